/* What fork() leaves to the child: every lock free, and no call under way but the one that forked. */
#ifndef SM120_FORK_H
#define SM120_FORK_H

/* See to it, from the first call on; further calls do nothing. */
void fork_prepare(void);

#endif
