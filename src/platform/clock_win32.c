/* Clocks on Windows. */
#include "platform/clock.h"

#include <windows.h>

static const uint64_t SECOND = 1000000000, MILLISECOND = 1000000;

uint64_t clock_steady(void) {
    LARGE_INTEGER now, rate;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&rate);
    const uint64_t ticks = (uint64_t)now.QuadPart, per_second = (uint64_t)rate.QuadPart;
    return ticks / per_second * SECOND + ticks % per_second * SECOND / per_second;
}

/* File times count 100 ns from 1601-01-01. */
uint64_t clock_wall(void) {
    static const uint64_t until_1970 = 116444736000000000;
    FILETIME now;
    GetSystemTimePreciseAsFileTime(&now);
    return (((uint64_t)now.dwHighDateTime << 32 | now.dwLowDateTime) - until_1970) * 100;
}

/* Sleep() knows milliseconds only. */
void clock_sleep(uint64_t nanoseconds) {
    const uint64_t milliseconds = nanoseconds / MILLISECOND + (nanoseconds % MILLISECOND != 0);
    Sleep(milliseconds < INFINITE ? (DWORD)milliseconds : INFINITE - 1);
}
