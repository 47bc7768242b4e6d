/* Threads and locks on POSIX systems. */
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "platform/thread.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- locks ---- */

void mutex_init(struct mutex *mutex) {
    pthread_mutex_init(&mutex->posix, NULL);
}

void mutex_destroy(struct mutex *mutex) {
    pthread_mutex_destroy(&mutex->posix);
}

void mutex_lock(struct mutex *mutex) {
    pthread_mutex_lock(&mutex->posix);
}

bool mutex_try_lock(struct mutex *mutex) {
    return pthread_mutex_trylock(&mutex->posix) == 0;
}

void mutex_unlock(struct mutex *mutex) {
    pthread_mutex_unlock(&mutex->posix);
}

void condition_init(struct condition *condition) {
    pthread_cond_init(&condition->posix, NULL);
}

void condition_wait(struct condition *condition, struct mutex *mutex) {
    pthread_cond_wait(&condition->posix, &mutex->posix);
}

void condition_wake_all(struct condition *condition) {
    pthread_cond_broadcast(&condition->posix);
}

_Static_assert(sizeof(pthread_rwlock_t) <= sizeof(struct rwlock), "struct rwlock holds a pthread_rwlock_t");
_Static_assert(_Alignof(pthread_rwlock_t) <= _Alignof(struct rwlock), "struct rwlock is aligned as a pthread_rwlock_t");

static pthread_rwlock_t *posix(struct rwlock *lock) {
    return (pthread_rwlock_t *)(void *)lock->posix;
}

void rwlock_init(struct rwlock *lock) {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
#ifdef __GLIBC__
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(posix(lock), &attributes);
    pthread_rwlockattr_destroy(&attributes);
}

void rwlock_lock_read(struct rwlock *lock) {
    pthread_rwlock_rdlock(posix(lock));
}

void rwlock_unlock_read(struct rwlock *lock) {
    pthread_rwlock_unlock(posix(lock));
}

void rwlock_lock_write(struct rwlock *lock) {
    pthread_rwlock_wrlock(posix(lock));
}

void rwlock_unlock_write(struct rwlock *lock) {
    pthread_rwlock_unlock(posix(lock));
}

void once_run(struct once *once, void (*run)(void)) {
    pthread_once(&once->posix, run);
}

/* ---- threads ---- */

enum { STACK_BYTES = 8 << 20 }; /* musl and macOS give new threads far less than glibc */

/* Argument of a new thread. */
struct start {
    void (*run)(void *argument);
    void *argument;
};

static void *started(void *pointer) {
    const struct start start = *(struct start *)pointer;
    free(pointer);
    start.run(start.argument);
    return NULL;
}

bool thread_start(void (*run)(void *argument), void *argument) {
    struct start *const start = malloc(sizeof *start);
    if (start == NULL) {
        return false;
    }
    *start = (struct start){run, argument};
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    size_t stack = 0;
    if (pthread_attr_getstacksize(&attributes, &stack) == 0 && stack < STACK_BYTES) {
        pthread_attr_setstacksize(&attributes, STACK_BYTES);
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    const bool is_started = pthread_create(&thread, &attributes, started, start) == 0;
    pthread_attr_destroy(&attributes);
    if (!is_started) {
        free(start);
    }
    return is_started;
}

void thread_yield(void) {
    sched_yield();
}

void thread_value_init(struct thread_value *value, void (*release)(void *)) {
    pthread_key_create(&value->posix, release);
}

void thread_value_set(const struct thread_value *value, void *to) {
    pthread_setspecific(value->posix, to);
}

unsigned thread_processors(void) {
#ifdef CPU_COUNT
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) {
        return (unsigned)CPU_COUNT(&set);
    }
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (unsigned)online : 1;
}
