/* Clocks, in nanoseconds. */
#ifndef SM120_PLATFORM_CLOCK_H
#define SM120_PLATFORM_CLOCK_H

#include <stdint.h>

/* Return the time since a fixed moment. It never decreases. */
uint64_t clock_steady(void);

/* Return the time since 1970-01-01 00:00 UTC. */
uint64_t clock_wall(void);

/* Sleep. A signal may end the sleep early. */
void clock_sleep(uint64_t nanoseconds);

#endif
