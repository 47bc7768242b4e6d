/* fork() on POSIX systems. */
#define _POSIX_C_SOURCE 200809L
#include "platform/at_fork.h"

#include <pthread.h>

void at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
    pthread_atfork(before, in_parent, in_child);
}
