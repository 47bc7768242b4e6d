/* fork(): in the child every lock is free, and the only running call is the one that forked. */
#ifndef SM120_FORK_H
#define SM120_FORK_H

/* Install the fork handlers; further calls do nothing. */
void fork_prepare(void);

#endif
