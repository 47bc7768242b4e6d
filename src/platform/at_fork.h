/* Functions that run around fork(). On a system without fork() they never run. */
#ifndef SM120_PLATFORM_AT_FORK_H
#define SM120_PLATFORM_AT_FORK_H

/* Register functions for fork(): `before` runs in the thread that forks, `in_parent` and `in_child` run afterwards.
 * The `before` functions run in reverse order of registration, the others in order. */
void at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

#endif
