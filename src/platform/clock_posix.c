/* Clocks on POSIX systems. */
#define _POSIX_C_SOURCE 200809L
#include "platform/clock.h"

#include <stddef.h>
#include <time.h>

enum { SECOND = 1000000000 };

static uint64_t read_clock(clockid_t clock) {
    struct timespec now = {0};
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

uint64_t clock_steady(void) {
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t clock_wall(void) {
    return read_clock(CLOCK_REALTIME);
}

void clock_sleep(uint64_t nanoseconds) {
    const struct timespec wait = {.tv_sec = (time_t)(nanoseconds / SECOND), .tv_nsec = (long)(nanoseconds % SECOND)};
    nanosleep(&wait, NULL);
}
