/* First touches of global memory: which lines of 128 bytes, and pairs of sectors, a CTA has touched before.
 *
 * What a CTA touches for the first time may come from DRAM. L2 takes 64 bytes from it, a pair of sectors, or the whole
 * line if the access asks for it. The other sectors come from L2 then. A struct cta is a cluster. */
#ifndef SM120_VM_FIRST_H
#define SM120_VM_FIRST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct first_line {
    uint64_t number, cta; /* cta: from 1; 0: the place is unused */
    uint32_t until[2];    /* of each pair: what its first warp had executed, and FIRST_WINDOW more; 0: untouched */
};

/* The lines that the CTAs of one L1 have touched. */
struct first {
    struct first_line *lines;
    size_t room, used; /* room: a power of two */
    uint64_t owner;
    bool is_exhausted; /* out of memory, so that the counts are not complete */
};

/* Open an empty set of lines. Return false when out of memory. */
bool first_open(struct first *first);
void first_close(struct first *first);

struct first_touches {
    uint32_t lines, pairs; /* those that the CTA had not touched; of pairs also those on their way */
};

enum { FIRST_WINDOW = 32 };

/* Note that a warp of a CTA touches the lines at the lanes' addresses. `owner`: the number of the L1; the lines of the
 * owner before are forgotten. `statement`: how many the warp has executed since its CTA began. A pair is still on its
 * way if the warp that touched it first had executed more by then, less FIRST_WINDOW. */
struct first_touches first_touch(struct first *first, uint64_t owner, uint64_t cta, uint32_t statement, uint32_t mask,
                                 const uint64_t *address);

#endif
