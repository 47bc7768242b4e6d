/* How the operands of an instruction become the addresses of its lanes. */
#ifndef SM120_VM_ADDRESS_H
#define SM120_VM_ADDRESS_H

#include "vm/machine/cta.h"

/* Loop over the lanes of a warp. Iterations are independent, so the compiler may vectorise the loop. */
#if defined(__GNUC__) && !defined(__clang__)
#define LANES _Pragma("GCC ivdep") for (uint32_t l = 0; l < WARP; ++l)
#else
#define LANES for (uint32_t l = 0; l < WARP; ++l)
#endif

/* inst.flags: the address is in a 32-bit register; the load is .nc; each half of an element is atomic by itself;
 * the address may be in another CTA of the cluster (.shared::cluster);
 * the access is asynchronous. */
enum {
    ADDRESS_NARROW = 1,
    ADDRESS_READ_ONLY = 2,
    ADDRESS_HALVES = 4,
    ADDRESS_CLUSTER = 1 << 30,
    ADDRESS_ASYNC = 1 << 29
};

/* Return one lane of a register that holds an address. */
static inline uint64_t address_register(const struct warp *w, uint32_t slot, int narrow, uint32_t lane) {
    return narrow != 0 ? ((const uint32_t *)source(w, slot))[lane] : ((const uint64_t *)source(w, slot))[lane];
}

/* Compute [a + offset] for all lanes. */
static inline void address_lanes(const struct warp *w, const struct inst *i, uint64_t *to) {
    const uint64_t offset = (uint64_t)i->offset;
    if ((i->flags & ADDRESS_NARROW) != 0) {
        const uint32_t *a = source(w, i->a);
        LANES to[l] = (uint32_t)(a[l] + (uint32_t)offset);
    } else {
        const uint64_t *a = source(w, i->a);
        LANES to[l] = a[l] + offset;
    }
}

/* Compute [a + offset] for one lane. */
static inline uint64_t address_lane(const struct warp *w, const struct inst *i, uint32_t lane) {
    const int narrow = i->flags & ADDRESS_NARROW;
    const uint64_t at = address_register(w, i->a, narrow, lane) + (uint64_t)i->offset;
    return narrow != 0 ? (uint32_t)at : at;
}

/* Compute [a + offset] for one lane as a shared-memory address. Return 0, which is never valid, for other spaces. */
static inline uint32_t address_shared(const struct warp *w, const struct inst *i, uint32_t lane) {
    const uint64_t at = address_lane(w, i, lane);
    if (i->space == SPACE_GENERIC) {
        return (at & WINDOW_MASK) == SHARED_WINDOW ? (uint32_t)at : 0;
    }
    return at >> 32 != 0 ? 0 : (uint32_t)at;
}

/* Compute [b + target], the global address of a copy, for one lane. */
static inline uint64_t address_global(const struct warp *w, const struct inst *i, uint32_t lane) {
    return address_register(w, i->b, 0, lane) + (uint64_t)(int64_t)(int32_t)i->target;
}

/* Return the state space that a generic address points into. */
static inline enum space address_space(uint64_t address) {
    const uint64_t window = address & WINDOW_MASK;
    return window == SHARED_WINDOW  ? SPACE_SHARED
           : window == LOCAL_WINDOW ? SPACE_LOCAL
           : window == PARAM_WINDOW ? SPACE_PARAM
                                    : SPACE_GLOBAL;
}

/* Return the state space of an address. A generic address is replaced by its address in that space. */
static inline enum space address_resolve(enum space space, uint64_t *address) {
    if (space != SPACE_GENERIC) {
        return space;
    }
    space = address_space(*address);
    *address &= space == SPACE_GLOBAL ? UINT64_MAX : ~WINDOW_MASK;
    return space;
}

#endif
