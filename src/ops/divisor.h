/* Division by a number that a whole launch shares, as a kernel does it: by a multiplication. */
#ifndef SM120_DIVISOR_H
#define SM120_DIVISOR_H

#include <stdint.h>

/* x / n = (2 x * factor) >> 32 >> shift for x below 2^31. */
struct divisor {
    uint32_t factor, shift;
};

/* Those of n, from 1 to 2^31 - 1. */
struct divisor divisor_of(int64_t n);

/* A kernel's parameters of a divisor, as divisor() in ptx/parts/index.ptx names them. */
#define DIVISOR(name, n)                                                                                               \
    .name = (uint32_t)(n), .name##_factor = divisor_of(n).factor, .name##_shift = divisor_of(n).shift

#endif
