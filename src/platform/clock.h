/* Clocks, in nanoseconds. */
#ifndef SM120_PLATFORM_CLOCK_H
#define SM120_PLATFORM_CLOCK_H

#include <stdint.h>

/* The time since a moment that stays the same while the system runs. It never goes backwards. */
uint64_t clock_steady(void);

/* The time since 1970-01-01 00:00 UTC. */
uint64_t clock_wall(void);

/* Wait that long; a signal may end the wait early. */
void clock_sleep(uint64_t nanoseconds);

#endif
