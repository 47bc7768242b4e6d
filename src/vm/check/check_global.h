/* Level full: who has accessed global memory in this launch, and what CTAs know of one another.
 *
 * Every 16 bytes that were accessed have two traces beside them and a list of more: an access by an agent of a CTA
 * (check.h), at its clock, to some of the bytes. A trace goes when a later access of the same kind is ordered after it.
 * Within a CTA order is that of check.h. Between CTAs it passes through locations in global memory alone, by releases
 * and acquires whose scope is the GPU or the system: each carries a map of the clocks of all CTAs it knows
 * (check_far.c). */
#ifndef SM120_VM_CHECK_GLOBAL_H
#define SM120_VM_CHECK_GLOBAL_H

#include "vm/check/check.h"
#include "vm/machine/fault.h"

/* What kind of access left a trace. */
enum { TRACE_WRITE = 1, TRACE_STRONG = 2, TRACE_GPU = 4, TRACE_BULK = 8, TRACE_COPY = 16 };

struct trace {
    uint32_t cta, clock, pc;
    uint16_t mask; /* which of the 16 bytes; 0: none */
    uint8_t agent, kind;
};

struct far_location {
    uintptr_t key;
    struct far far;
};

/* A weak read that met an atomic operation without order. If the warp that read goes on to compare-and-swap there, it
 * only guessed the value, as everybody does; else it is a race. */
struct suspicion {
    uint32_t cta, warp;
    uint64_t cell;
    uint32_t mask;
    struct fault_text text;
};

/* Two maps, and what they know together: most joins have been made before. */
enum { JOINED_BITS = 12 };
struct joined {
    const struct node *a, *b, *both;
};

struct page;
struct more;
struct world {
    struct page **pages; /* hashed by address */
    size_t page_count, page_space;
    struct page *last;
    struct more *more; /* traces beyond two; [0] is none */
    uint32_t mores, more_space, free_more;
    uint64_t random;
    struct node *nodes;
    size_t node_bytes, sweep_at;
    uint32_t levels, sweeps;
    const struct node *found_in, *found; /* the last that was looked up */
    uint32_t found_cta;
    struct joined joined[1 << JOINED_BITS];
    struct far_location *location;
    size_t locations, location_space;
    struct cta **resident; /* CTAs that have started and not ended */
    uint32_t residents, resident_space;
    struct suspicion *suspicion;
    uint32_t suspicions;
    bool is_full; /* memory is used up: the launch ends */
};

/* check_far.c */
bool far_knows(struct world *world, const struct node *map, uint32_t cta, uint32_t agent, uint32_t clock);
void far_sweep(struct world *world);
void far_close(struct world *world);

#endif
