/* The L1 cache that profiles count with: sets of four lines of 128 bytes.
 *
 * A line holds its sectors of 32 bytes one by one, as loads bring them. The least recently used line of a set makes
 * room. CTAs with different numbers of their L1 share no lines, so the counts depend neither on the order of CTAs nor
 * on the number of threads that run them. */
#ifndef SM120_VM_L1_H
#define SM120_VM_L1_H

#include <stdbool.h>
#include <stdint.h>

enum { L1_WAYS = 4 };

struct l1_line {
    uint64_t line, owner, used; /* used: when it was last used; 0: empty */
    uint32_t sectors;           /* a bit for each sector that it holds */
};

struct l1 {
    struct l1_line (*lines)[L1_WAYS];
    uint32_t sets;
    uint64_t now;
};

/* Open an empty cache, of one set at least. Return false when out of memory. */
bool l1_open(struct l1 *l1, uint32_t bytes);
void l1_close(struct l1 *l1);

/* Load the sectors at the lanes' addresses in global memory. Return how many of them the cache did not hold.
 * `owner`: the number of the L1, of which the cache holds the lines of one after the other. */
uint32_t l1_load(struct l1 *l1, uint64_t owner, uint32_t mask, const uint64_t *address);

#endif
