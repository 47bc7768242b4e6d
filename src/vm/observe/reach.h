/* Which memory an instruction is about to touch: for those who look on. */
#ifndef SM120_VM_REACH_H
#define SM120_VM_REACH_H

#include "vm/observe/cost.h"

/* One side of an access: lanes, their addresses, and bytes of each. */
struct reach {
    enum cost_kind kind;
    enum space space; /* SPACE_GENERIC: each address tells */
    uint32_t mask, bytes;
    uint64_t address[WARP];
};

enum reach_class {
    REACH_NOTHING, /* and what no lane addresses: parameters, mbarriers, bulk copies */
    REACH_LOAD,
    REACH_STORE,
    REACH_ATOMIC,
    REACH_MATRIX,
    REACH_COPY /* two sides: global, then shared */
};
/* What an instruction does, whatever lanes take part. */
enum reach_class reach_class(const struct inst *i);

/* The sides of an instruction of that class; how many there are. */
uint32_t reach_sides(const struct warp *w, const struct inst *i, enum reach_class class, uint32_t mask,
                     struct reach sides[2]);

/* The lanes of a side that are in a space, and their addresses in it. */
uint32_t reach_in(const struct reach *side, enum space space, uint64_t *address);

#endif
