/* Threads and locks on Windows. */
#include "platform/thread.h"

#include <stdlib.h>
#include <windows.h>

/* ---- locks ---- */

_Static_assert(sizeof(SRWLOCK) == sizeof(struct mutex), "struct mutex holds an SRWLOCK");
_Static_assert(sizeof(SRWLOCK) == sizeof(struct rwlock), "struct rwlock holds an SRWLOCK");
_Static_assert(sizeof(CONDITION_VARIABLE) == sizeof(struct condition), "struct condition holds a CONDITION_VARIABLE");
_Static_assert(sizeof(INIT_ONCE) == sizeof(struct once), "struct once holds an INIT_ONCE");

static SRWLOCK *lock_of(void **win32) {
    return (SRWLOCK *)(void *)win32;
}

static CONDITION_VARIABLE *variable_of(struct condition *condition) {
    return (CONDITION_VARIABLE *)(void *)&condition->win32;
}

void mutex_init(struct mutex *mutex) {
    InitializeSRWLock(lock_of(&mutex->win32));
}

void mutex_destroy(struct mutex *mutex) {
    (void)mutex;
}

void mutex_lock(struct mutex *mutex) {
    AcquireSRWLockExclusive(lock_of(&mutex->win32));
}

bool mutex_try_lock(struct mutex *mutex) {
    return TryAcquireSRWLockExclusive(lock_of(&mutex->win32)) != 0;
}

void mutex_unlock(struct mutex *mutex) {
    ReleaseSRWLockExclusive(lock_of(&mutex->win32));
}

void condition_init(struct condition *condition) {
    InitializeConditionVariable(variable_of(condition));
}

void condition_wait(struct condition *condition, struct mutex *mutex) {
    SleepConditionVariableSRW(variable_of(condition), lock_of(&mutex->win32), INFINITE, 0);
}

void condition_wake_all(struct condition *condition) {
    WakeAllConditionVariable(variable_of(condition));
}

void rwlock_init(struct rwlock *lock) {
    InitializeSRWLock(lock_of(&lock->win32));
}

void rwlock_lock_read(struct rwlock *lock) {
    AcquireSRWLockShared(lock_of(&lock->win32));
}

void rwlock_unlock_read(struct rwlock *lock) {
    ReleaseSRWLockShared(lock_of(&lock->win32));
}

void rwlock_lock_write(struct rwlock *lock) {
    AcquireSRWLockExclusive(lock_of(&lock->win32));
}

void rwlock_unlock_write(struct rwlock *lock) {
    ReleaseSRWLockExclusive(lock_of(&lock->win32));
}

void once_run(struct once *once, void (*run)(void)) {
    INIT_ONCE *const state = (INIT_ONCE *)(void *)&once->win32;
    BOOL pending = FALSE;
    InitOnceBeginInitialize(state, 0, &pending, NULL);
    if (pending) {
        run();
        InitOnceComplete(state, 0, NULL);
    }
}

/* ---- threads ---- */

enum { STACK_BYTES = 8 << 20 };

/* Argument of a new thread. */
struct start {
    void (*run)(void *argument);
    void *argument;
};

static DWORD WINAPI started(void *pointer) {
    const struct start start = *(struct start *)pointer;
    free(pointer);
    start.run(start.argument);
    return 0;
}

/* Keep the library loaded, because its threads outlive a FreeLibrary. */
static void stay_loaded(void) {
    static const char inside;
    HMODULE library = NULL;
    GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, &inside, &library);
}

bool thread_start(void (*run)(void *argument), void *argument) {
    static struct once once = ONCE_INITIALIZER;
    struct start *const start = malloc(sizeof *start);
    if (start == NULL) {
        return false;
    }
    once_run(&once, stay_loaded);
    *start = (struct start){run, argument};
    const HANDLE thread = CreateThread(NULL, STACK_BYTES, started, start, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    if (thread == NULL) {
        free(start);
        return false;
    }
    CloseHandle(thread);
    return true;
}

void thread_yield(void) {
    SwitchToThread();
}

void thread_value_init(struct thread_value *value, void (*release)(void *)) {
    value->win32 = FlsAlloc(release); /* all functions have one calling convention on x64 */
}

void thread_value_set(const struct thread_value *value, void *to) {
    FlsSetValue(value->win32, to);
}

/* Return the processors of the affinity mask; a process of several groups may use all of them. */
unsigned thread_processors(void) {
    DWORD_PTR mine = 0, all = 0;
    unsigned count = 0;
    if (GetProcessAffinityMask(GetCurrentProcess(), &mine, &all)) {
        for (; mine != 0; mine &= mine - 1) {
            ++count;
        }
    }
    if (count == 0) {
        count = GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    }
    return count > 0 ? count : 1;
}
