/* The L1 cache that profiles count with: 32 KiB for each CTA, in 64 sets of four lines of 128 bytes.
 *
 * A line holds its sectors of 32 bytes one by one, as loads bring them. The least recently used line of a set makes
 * room. CTAs share no lines, so the counts depend neither on the order of CTAs nor on the number of threads that run
 * them. */
#ifndef SM120_VM_L1_H
#define SM120_VM_L1_H

#include "vm/machine/cta.h"

enum { L1_SETS = 64, L1_WAYS = 4 };

struct l1 {
    struct l1_line {
        uint64_t line, cta, used; /* used: when it was last used; 0: empty */
        uint32_t sectors;         /* a bit for each sector that it holds */
    } lines[L1_SETS][L1_WAYS];
    uint64_t now;
};

/* Load the sectors at the lanes' addresses in global memory. Return how many of them the cache did not hold. */
uint32_t l1_load(struct l1 *l1, uint64_t cta, uint32_t mask, const uint64_t *address);

#endif
