/* What an access of a warp costs: shared memory by banks, global memory by sectors and lines.
 *
 * Shared memory has 32 banks of 4 bytes. One pass over it ("wavefront") serves a group of lanes: all 32 for accesses of
 * up to 4 bytes, halves of the warp for 8, quarters for 16, and 8 rows of 16 bytes for the matrix instructions. A group
 * takes as many wavefronts as the bank that is asked for most different words has words to give: the same word goes to
 * any number of lanes at once. Lanes of an atomic wait for each other even at the same word. Loads of 8 and 16 bytes
 * serve two groups at once where every lane l has the address of lane l ^ 1, or every lane that of lane l ^ 2, lanes
 * that take no part aside. docs/reference/profiling.md has the sources. */
#ifndef SM120_VM_COST_H
#define SM120_VM_COST_H

#include "driver/driver.h"
#include "vm/machine/cta.h"
#include "vm/machine/launch.h"

enum cost_kind { ACCESS_IS_LOAD, ACCESS_IS_STORE, ACCESS_IS_ATOMIC, ACCESS_IS_MATRIX };

struct bank_cost {
    uint32_t wavefronts, ideal; /* ideal: one for every group that has lanes */
};
/* `bytes` of every lane in `mask`: 1, 2, 4, 8 or 16, at multiples of it. */
struct bank_cost cost_shared(enum cost_kind kind, uint32_t bytes, uint32_t mask, const uint64_t *address);

struct sector_cost {
    uint32_t sectors, ideal_sectors; /* of 32 bytes; ideal: as few as hold as many different bytes */
    uint32_t lines, ideal_lines;     /* of 128 bytes */
};
/* `bytes`: up to 32. */
struct sector_cost cost_global(uint32_t bytes, uint32_t mask, const uint64_t *address);

#endif
