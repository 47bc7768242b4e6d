/* Limits of the SM120 and the bases of its address spaces. */
#ifndef SM120_VM_MACHINE_BASE_H
#define SM120_VM_MACHINE_BASE_H

#include <stdint.h>

#include "platform/compiler.h"

#define FULL 0xffffffffu
enum {
    WARP = 32,
    MAX_WARPS = 32,
    SM120_SHARED = 101376, /* bytes of a CTA, static and dynamic */
    MAX_SHARED = 232448,   /* the same of Hopper, as which a device may run */
    DEFAULT_SHARED = 49152,
    MAX_CLUSTER = 8,                               /* CTAs of a cluster */
    MOST_SHARED = MAX_SHARED + MAX_CLUSTER * 2048, /* of a cluster, with the gaps between its CTAs */
    BARRIERS = 16,
    /* Numbers of barriers: those of the cluster's first CTA, the two of the cluster, those of its other CTAs. */
    CLUSTER_BARRIER = BARRIERS,
    MORE_BARRIERS = CLUSTER_BARRIER + 2,
    ALL_BARRIERS = MORE_BARRIERS + (MAX_CLUSTER - 1) * BARRIERS,
    DISCARDED = 128 /* bytes of the line that discard takes */
};

/* Bases of the generic addresses of shared, local and parameter memory. Shared memory starts at 1024, as on the
 * chip, so that address 0 is never valid. */
#define SHARED_BASE   1024u
#define SHARED_WINDOW 0x0100000000000000u
#define LOCAL_WINDOW  0x0200000000000000u
#define PARAM_WINDOW  0x0300000000000000u
#define CODE_WINDOW   0x0400000000000000u /* the address of a function is CODE_WINDOW + 16 * its number */
#define WINDOW_MASK   0xff00000000000000u

enum space { SPACE_GENERIC, SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL, SPACE_PARAM, SPACE_CONST };

static inline uint32_t bit_count(uint32_t x) {
    uint32_t n = 0;
    for (; x != 0; x &= x - 1) {
        ++n;
    }
    return n;
}

static inline uint32_t lowest_bit(uint32_t x) {
#if defined(__GNUC__)
    return (uint32_t)__builtin_ctz(x);
#else
    uint32_t n = 0;
    while (!(x >> n & 1)) {
        ++n;
    }
    return n;
#endif
}

#endif
