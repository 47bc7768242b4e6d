/* The memory that an instruction is about to access, for watchers. */
#ifndef SM120_VM_REACH_H
#define SM120_VM_REACH_H

#include "vm/observe/cost.h"

/* One side of an access: the active lanes, their addresses, and the bytes per lane. */
struct reach {
    enum cost_kind kind;
    enum space space; /* SPACE_GENERIC: the space follows from each address */
    uint32_t mask, bytes;
    uint64_t address[WARP];
};

enum reach_class {
    REACH_NOTHING, /* or memory that no lane addresses: parameters, mbarriers, bulk copies */
    REACH_LOAD,
    REACH_STORE,
    REACH_ATOMIC,
    REACH_MATRIX,
    REACH_COPY /* two sides: global, then shared */
};
/* Return the kind of access that an instruction makes, whatever lanes are active. */
enum reach_class reach_class(const struct inst *i);

/* Compute the sides of an access of this class. Return how many there are. */
uint32_t reach_sides(const struct warp *w, const struct inst *i, enum reach_class class, uint32_t mask,
                     struct reach sides[2]);

/* Find the lanes of a side that are in a space, and their addresses in it. */
uint32_t reach_in(const struct reach *side, enum space space, uint64_t *address);

#endif
