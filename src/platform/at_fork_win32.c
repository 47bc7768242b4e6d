/* Windows has no fork(). */
#include "platform/at_fork.h"

void at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
    (void)before, (void)in_parent, (void)in_child;
}
