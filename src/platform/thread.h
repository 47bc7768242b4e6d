/* Threads and locks.
 *
 * The types are the operating system's; thread_types.h defines them. MUTEX_INITIALIZER, CONDITION_INITIALIZER and
 * ONCE_INITIALIZER initialise static objects. */
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

/* Threads that wait until another thread wakes them. condition_wait unlocks the mutex while it waits and may return
 * although nothing woke it. */
void condition_init(struct condition *condition);
void condition_wait(struct condition *condition, struct mutex *mutex);
void condition_wake_all(struct condition *condition);

/* A lock that one writer or many readers hold. Where the system offers it, a writer that waits goes before new readers;
 * so a thread must not take a read lock twice. */
void rwlock_init(struct rwlock *lock);
void rwlock_lock_read(struct rwlock *lock);
void rwlock_unlock_read(struct rwlock *lock);
void rwlock_lock_write(struct rwlock *lock);
void rwlock_unlock_write(struct rwlock *lock);

/* Call `run` if no thread has called it yet for this `once`. The call has ended when once_run returns. */
void once_run(struct once *once, void (*run)(void));

/* Start a thread that nobody joins. False: the system refuses. */
bool thread_start(void (*run)(void *argument), void *argument);

/* Give the processor to another thread. */
void thread_yield(void);

/* A value per thread. `release` gets the value of each thread that ends, unless it is NULL. C11's _Thread_local has no
 * such function. */
void thread_value_init(struct thread_value *value, void (*release)(void *));
void thread_value_set(const struct thread_value *value, void *to);

/* The processors that the calling thread may run on, at least 1. */
unsigned thread_processors(void);

#endif
