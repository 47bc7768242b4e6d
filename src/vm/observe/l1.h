/* The L1 cache that profiles count with: sets of four lines of 128 bytes.
 *
 * A line holds its sectors of 32 bytes one by one, as loads bring them. The least recently used line of a set makes
 * room. CTAs with different numbers of their L1 share no lines, so the counts depend neither on the order of CTAs nor
 * on the number of threads that run them. */
#ifndef SM120_VM_L1_H
#define SM120_VM_L1_H

#include <stdbool.h>
#include <stdint.h>

enum { L1_WAYS = 4, L1_SECTORS = 4, L1_PENDING = 32 };

struct l1_line {
    uint64_t line, owner, used; /* used: when it was last used; 0: empty */
    uint32_t sectors;           /* a bit for each sector that it holds */
    uint64_t asked[L1_SECTORS]; /* for each, at which statement its warp asked for it */
};

struct l1 {
    struct l1_line (*lines)[L1_WAYS];
    uint32_t sets;
    uint64_t now;
};

/* Open an empty cache, of one set at least. Return false when out of memory. */
bool l1_open(struct l1 *l1, uint32_t bytes);
void l1_close(struct l1 *l1);

/* What a load finds: the sectors that the cache did not hold; if there are none, whether one may still be on its way.
 * It may if the warp that asked for it did so at a later statement than this warp has reached, less L1_PENDING. */
struct l1_found {
    uint32_t missing;
    bool is_pending;
};

/* Load the sectors at the lanes' addresses in global memory.
 * `owner`: the number of the L1, of which the cache holds the lines of one after the other. `statement`: how many
 * statements the warp has executed, and one at its place in the CTAs before. */
struct l1_found l1_load(struct l1 *l1, uint64_t owner, uint64_t statement, uint32_t mask, const uint64_t *address);

#endif
