/* The memory that an instruction is about to access. */
#include "vm/observe/reach.h"

#include "vm/execute/async.h"
#include "vm/execute/atomic.h"
#include "vm/execute/control.h"
#include "vm/execute/lanes.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/observe/cost.h"

enum reach_class reach_class(const struct inst *i) {
    handler *const run = i->run == control_aligned ? i->next : i->run, *const *const access = access_table();
    if (run == access[ACCESS_LOAD] || run == access[ACCESS_LOAD_STRONG]) {
        return REACH_LOAD;
    }
    if (run == access[ACCESS_STORE]) {
        return REACH_STORE;
    }
    if (run == atomic_run || run == atomic_run_wide) {
        return REACH_ATOMIC;
    }
    if (run == async_copy) {
        return REACH_COPY;
    }
    for (uint32_t k = ACCESS_LDMATRIX; k <= ACCESS_STMATRIX_B8; ++k) {
        if (run == access[k]) {
            return REACH_MATRIX;
        }
    }
    return REACH_NOTHING;
}

/* Find the rows of a matrix instruction: one address in each of the first lanes. */
static void reach_matrix(const struct warp *w, const struct inst *i, struct reach *side) {
    const uint32_t rows = (i->next == access_table()[ACCESS_LDMATRIX_B8] ? 16u : 8u) * i->count;
    side->kind = ACCESS_IS_MATRIX;
    side->bytes = 16;
    side->mask = rows == WARP ? FULL : (1u << rows) - 1;
    address_lanes(w, i, side->address);
}

/* Find both sides of a copy of up to 16 bytes per lane: the addresses that it reads and those that it writes. */
static void reach_copy(const struct warp *w, const struct inst *i, uint32_t mask, struct reach sides[2]) {
    sides[0] = (struct reach){.kind = ACCESS_IS_LOAD, .space = SPACE_GLOBAL, .mask = mask, .bytes = i->size};
    sides[1] = (struct reach){.kind = ACCESS_IS_STORE, .space = SPACE_SHARED, .mask = mask, .bytes = i->size};
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        sides[0].address[lane] = address_global(w, i, lane);
        sides[1].address[lane] = address_shared(w, i, lane);
        if (i->e != UINT32_MAX && ((const uint32_t *)source(w, i->e))[lane] == 0) { /* it only writes zeros */
            sides[0].mask &= ~(1u << lane);
        }
    }
}

uint32_t reach_sides(const struct warp *w, const struct inst *i, enum reach_class class, uint32_t mask,
                     struct reach sides[2]) {
    static const enum cost_kind kinds[] = {
        [REACH_LOAD] = ACCESS_IS_LOAD, [REACH_STORE] = ACCESS_IS_STORE, [REACH_ATOMIC] = ACCESS_IS_ATOMIC};
    if (class == REACH_NOTHING || mask == 0) {
        return 0;
    }
    if (class == REACH_COPY) {
        reach_copy(w, i, mask, sides);
        return 2;
    }
    sides->space = (enum space)i->space;
    if (class == REACH_MATRIX) {
        reach_matrix(w, i, sides);
        return 1;
    }
    sides->kind = kinds[class];
    sides->mask = mask;
    sides->bytes = (uint32_t)i->size * i->count;
    address_lanes(w, i, sides->address);
    return 1;
}

uint32_t reach_in(const struct reach *side, enum space space, uint64_t *address) {
    uint32_t mask = 0;
    for (uint32_t rest = side->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        uint64_t at = side->address[lane];
        if (address_resolve(side->space, &at) != space) {
            continue;
        }
        address[lane] = at;
        mask |= 1u << lane;
    }
    return mask;
}
