/* Functions that run around fork(). On a system without fork() they never run. */
#ifndef SM120_PLATFORM_AT_FORK_H
#define SM120_PLATFORM_AT_FORK_H

/* From now on call `before` in the thread that forks, and afterwards `in_parent` there and `in_child` in the child.
 * The `before` functions run in reverse order of registration, the others in that order. */
void at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

#endif
