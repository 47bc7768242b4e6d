/* First touches of global memory: which lines of 128 bytes a CTA has touched before.
 *
 * A line that a CTA touches for the first time may come from DRAM. Its other sectors come from L2 then, if the access
 * asked L2 for the whole line. A struct cta is a cluster. */
#ifndef SM120_VM_FIRST_H
#define SM120_VM_FIRST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct first_line {
    uint64_t number, cta; /* cta: from 1; 0: the place is unused */
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

/* Note that a CTA touches the lines at the lanes' addresses. Return how many of them it had not touched.
 * `owner`: the number of the L1; the lines of the owner before are forgotten. */
uint32_t first_touch(struct first *first, uint64_t owner, uint64_t cta, uint32_t mask, const uint64_t *address);

#endif
