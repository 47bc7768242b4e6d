/* Cost of a warp's memory access: shared memory by banks, global memory by sectors and lines.
 *
 * Shared memory has 32 banks of 4 bytes. One pass over it (a wavefront) serves a group of lanes: all 32 for accesses
 * of up to 4 bytes, halves of the warp for 8 bytes, quarters for 16 bytes, and 8 rows of 16 bytes for matrix
 * instructions. The number of wavefronts of a group is the largest number of different words in one bank: lanes that
 * read the same word share it. Lanes of an atomic do not share words. A load of 8 or 16 bytes serves two groups at
 * once if every active lane l has the address of lane l ^ 1, or every one that of lane l ^ 2.
 * docs/reference/profiling.md names the sources. */
#ifndef SM120_VM_COST_H
#define SM120_VM_COST_H

#include "driver/driver.h"
#include "vm/machine/cta.h"
#include "vm/machine/launch.h"

enum cost_kind { ACCESS_IS_LOAD, ACCESS_IS_STORE, ACCESS_IS_ATOMIC, ACCESS_IS_MATRIX };

struct bank_cost {
    uint32_t wavefronts, ideal; /* ideal: one for every group with active lanes */
    bool is_paired;             /* a load whose lanes agree with lane ^ 1, or with lane ^ 2 */
};
/* Return the cost of an access to shared memory. `bytes` per lane is 1, 2, 4, 8 or 16; addresses are multiples of
 * it. `is_paired` does not depend on `bytes`. */
struct bank_cost cost_shared(enum cost_kind kind, uint32_t bytes, uint32_t mask, const uint64_t *address);

/* Return the passes over the data of L1 that a load of global memory takes, if L1 has its lines. Their banks
 * are those of shared memory, and a pass has at most four lines: measured on an H100 by `microbench memory`. `bytes`
 * per lane is at most 32. */
uint32_t cost_l1(uint32_t bytes, uint32_t mask, const uint64_t *address);

struct sector_cost {
    uint32_t places;                 /* different addresses */
    uint32_t sectors, ideal_sectors; /* of 32 bytes; ideal: the fewest that hold as many different bytes */
    uint32_t lines, ideal_lines;     /* of 128 bytes */
};
/* Add a value to a list without duplicates. Return the new length. */
uint32_t cost_add_different(uint64_t *list, uint32_t count, uint64_t value);

/* Return the cost of an access to global memory. `bytes` per lane is at most 32. */
struct sector_cost cost_global(uint32_t bytes, uint32_t mask, const uint64_t *address);

/* Return the sectors that L2 sends for a copy of 16 bytes per lane from global to shared memory, past L1. A sector
 * crosses once for each block of 32 bytes of shared memory that a part of it goes to: on an H200, rows 272 bytes apart
 * in shared memory took 1.50 times their sectors, rows without gaps and swizzled 1.00. */
uint32_t cost_copy(uint32_t mask, const uint64_t *from, const uint64_t *to);

#endif
