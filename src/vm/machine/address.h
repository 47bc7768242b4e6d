/* Where the lanes of an instruction reach: how operands become addresses, in one place. */
#ifndef SM120_VM_ADDRESS_H
#define SM120_VM_ADDRESS_H

#include "vm/machine/cta.h"

/* All lanes, which do not depend on one another. */
#if defined(__GNUC__) && !defined(__clang__)
#define LANES _Pragma("GCC ivdep") for (uint32_t l = 0; l < WARP; ++l)
#else
#define LANES for (uint32_t l = 0; l < WARP; ++l)
#endif

/* inst.flags of an instruction whose address is in a 32-bit register */
enum { ADDRESS_NARROW = 1 };

/* One lane of a register that holds an address. */
static inline uint64_t address_register(const struct warp *w, uint32_t slot, int narrow, uint32_t lane) {
    return narrow != 0 ? ((const uint32_t *)source(w, slot))[lane] : ((const uint64_t *)source(w, slot))[lane];
}

/* [a + offset] of all lanes. */
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

/* [a + offset] of one lane. */
static inline uint64_t address_lane(const struct warp *w, const struct inst *i, uint32_t lane) {
    const int narrow = i->flags & ADDRESS_NARROW;
    const uint64_t at = address_register(w, i->a, narrow, lane) + (uint64_t)i->offset;
    return narrow != 0 ? (uint32_t)at : at;
}

/* [a + offset] of one lane as an address in shared memory; 0, which is none, where it is in another space. */
static inline uint32_t address_shared(const struct warp *w, const struct inst *i, uint32_t lane) {
    const uint64_t at = address_lane(w, i, lane);
    if (i->space == SPACE_GENERIC) {
        return (at & WINDOW_MASK) == SHARED_WINDOW ? (uint32_t)at : 0;
    }
    return at >> 32 != 0 ? 0 : (uint32_t)at;
}

/* The global side of a copy, [b + target], of one lane. */
static inline uint64_t address_global(const struct warp *w, const struct inst *i, uint32_t lane) {
    return address_register(w, i->b, 0, lane) + (uint64_t)(int64_t)(int32_t)i->target;
}

/* The space that a generic address is in. */
static inline enum space address_space(uint64_t address) {
    const uint64_t window = address & WINDOW_MASK;
    return window == SHARED_WINDOW  ? SPACE_SHARED
           : window == LOCAL_WINDOW ? SPACE_LOCAL
           : window == PARAM_WINDOW ? SPACE_PARAM
                                    : SPACE_GLOBAL;
}

/* The space that an address is in; a generic one becomes its address there. */
static inline enum space address_resolve(enum space space, uint64_t *address) {
    if (space != SPACE_GENERIC) {
        return space;
    }
    space = address_space(*address);
    *address &= space == SPACE_GLOBAL ? UINT64_MAX : ~WINDOW_MASK;
    return space;
}

#endif
