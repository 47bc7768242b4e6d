/* Level full: traces of accesses to global memory in this launch, and the knowledge between CTAs.
 *
 * Every 16 bytes that were accessed have two traces and a list of further ones. A trace is an access by an agent of
 * a CTA (check.h) at its clock, with the bytes accessed. It is dropped when a later access of the same kind is
 * ordered after it. Order within a CTA is that of check.h. Order between CTAs comes only from releases and acquires
 * of scope GPU or system at locations in global memory. Each passes on a map with the clocks of all CTAs it knows
 * (check_far.c). */
#ifndef SM120_VM_CHECK_GLOBAL_H
#define SM120_VM_CHECK_GLOBAL_H

#include "vm/check/check.h"
#include "vm/machine/fault.h"

/* Kinds of the access that left a trace. */
enum {
    TRACE_WRITE = 1,
    TRACE_STRONG = 2,
    TRACE_GPU = 4,
    TRACE_BULK = 8,
    TRACE_COPY = 16,
    TRACE_NC = 32,
    TRACE_ATOMIC = 64 /* it reads what it replaces */
};

struct trace {
    uint32_t cta, clock, pc;
    uint16_t mask; /* which of the 16 bytes; 0: unused */
    uint8_t agent, kind;
};

struct far_location {
    uintptr_t key;
    struct far far;
};

/* A weak read that is not ordered with an atomic operation. If the reading warp then executes a compare-and-swap
 * there, the read was only a guess of its operand, which is usual. Otherwise it is a race. */
struct suspicion {
    uint32_t cta, warp;
    uint64_t cell;
    uint32_t mask;
    struct fault_text text;
};

/* Cache of joins: two maps and their union. Most joins repeat earlier ones. */
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
    struct more *more; /* traces beyond two; index 0 is unused */
    uint32_t mores, more_space, free_more;
    uint64_t random;
    struct node *nodes;
    size_t node_bytes, sweep_at;
    uint32_t levels, sweeps;
    const struct node *found_in, *found; /* the last lookup */
    uint32_t found_cta;
    struct joined joined[1 << JOINED_BITS];
    struct far_location *location;
    size_t locations, location_space;
    struct cta **resident; /* CTAs that have started but not ended */
    uint32_t residents, resident_space;
    struct suspicion *suspicion;
    uint32_t suspicions;
    bool is_full; /* out of memory: the launch ends */
};

/* check_far.c */
bool far_knows(struct world *world, const struct node *map, uint32_t cta, uint32_t agent, uint32_t clock);
void far_sweep(struct world *world);
void far_close(struct world *world);

#endif
