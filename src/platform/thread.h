/* Threads and locks.
 *
 * The types belong to the operating system; thread_types.h defines them. MUTEX_INITIALIZER, CONDITION_INITIALIZER
 * and ONCE_INITIALIZER initialise static objects. */
#ifndef SM120_PLATFORM_THREAD_H
#define SM120_PLATFORM_THREAD_H

#include <stdbool.h>

#include "platform/thread_types.h"

/* A lock that one thread holds. */
void mutex_init(struct mutex *mutex);
void mutex_destroy(struct mutex *mutex);
void mutex_lock(struct mutex *mutex);
bool mutex_try_lock(struct mutex *mutex); /* true: the caller holds it */
void mutex_unlock(struct mutex *mutex);

/* Condition variables. condition_wait() unlocks the mutex while it waits, and may wake up spuriously. */
void condition_init(struct condition *condition);
void condition_wait(struct condition *condition, struct mutex *mutex);
void condition_wake_all(struct condition *condition);

/* A lock that one writer or many readers hold. Where the system supports it, a waiting writer goes before new
 * readers, so a thread must not take a read lock twice. */
void rwlock_init(struct rwlock *lock);
void rwlock_lock_read(struct rwlock *lock);
void rwlock_unlock_read(struct rwlock *lock);
void rwlock_lock_write(struct rwlock *lock);
void rwlock_unlock_write(struct rwlock *lock);

/* Call `run` if no thread has called it for this `once`. When once_run() returns, the call has ended. */
void once_run(struct once *once, void (*run)(void));

/* Start a detached thread. Return false on failure. */
bool thread_start(void (*run)(void *argument), void *argument);

/* Yield the processor to another thread. */
void thread_yield(void);

/* A value per thread. When a thread ends, `release` is called with its value, unless that is NULL. C11's
 * _Thread_local has no such function. */
void thread_value_init(struct thread_value *value, void (*release)(void *));
void thread_value_set(const struct thread_value *value, void *to);

/* Return how many processors the calling thread may run on, at least 1. */
unsigned thread_processors(void);

#endif
