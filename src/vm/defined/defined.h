/* Tracking of undefined bits in registers and memory, at level full. This watcher records which bits have been written.
 * It reports an undefined value when the value affects an address, a branch or another decision. Copying undefined
 * values is allowed.
 *
 * Registers have undefined bits (1: undefined). Each byte of memory has a byte of defined bits (1: defined), so
 * zeroed shadow memory means undefined. The origin of an undefined value (its birth) is copied with the value. */
#ifndef SM120_VM_DEFINED_H
#define SM120_VM_DEFINED_H

#include <stdbool.h>
#include <stdint.h>

#include "driver/driver.h"
#include "vm/machine/watch.h"

/* Origin of an undefined value. */
enum born {
    BORN_UNKNOWN,
    BORN_REGISTER,  /* a register that was never written */
    BORN_PREDICATE, /* a predicate that was never written */
    BORN_LANE,      /* shfl from an inactive lane */
    BORN_QUOTIENT,  /* a division by zero */
    BORN_DISCARDED, /* memory that discard has made undefined */
    BORN_SHARED,    /* memory that was never written */
    BORN_LOCAL,
    BORN_GLOBAL,
    BORN_STORED /* global memory to which a kernel has stored an undefined value */
};
struct birth {
    uint64_t address; /* address in memory; BORN_STORED: number of its text */
    uint32_t pc, slot;
    enum born born;
};
struct found {
    uint64_t key;
    uint32_t number;
};

/* What a lane gives to a collective: its value, and the undefined bits of it. */
struct brought {
    uint64_t bits;
    uint32_t value, birth, tag;
};

/* State of a warp's registers, by slot / 128. In lanes of `whole` the register was never written; bits and births
 * are not kept for them. In the other lanes of `some` the bits and births are valid. */
struct defined_warp {
    uint32_t *some, *whole;
    char *bits;                /* same layout as the registers */
    uint32_t *birth;           /* [slot / 128][lane] */
    uint32_t *tag;             /* [slot / 128][lane] of partly undefined registers: see defined_tag(); 0: none */
    uint32_t *predicate;       /* lanes in which it is undefined */
    uint32_t *predicate_birth; /* [number][lane]; 0: never written */
    uint8_t *local;            /* [lane][local_bytes] */
    uint32_t *local_origin;
    struct brought brought[WARP]; /* of lanes at a collective, for those that meet them from another statement */
};

/* Effect of an instruction with an undefined guard. */
enum effect {
    EFFECT_NONE,
    EFFECT_REGISTERS, /* the results are undefined */
    EFFECT_OUTSIDE,   /* a fault */
    EFFECT_BRANCH     /* a fault, unless its ways only write registers */
};

struct defined;
struct region;
typedef enum step defined_part(struct defined *d, const struct event *e);
/* Rule for one instruction. */
struct rule {
    defined_part *before; /* check the operands; arithmetic is done completely here. NULL: nothing */
    defined_part *after;  /* record the results. NULL: nothing */
    uint16_t lane;        /* row of lanes.def */
    uint8_t effect;
};

/* State of a CTA; reused for later CTAs. */
struct defined {
    const struct CUfunc_st *function;
    struct device *device;
    uint64_t launch;   /* number of the launch that the members below were made for */
    struct rule *rule; /* [pc] */
    char *memory;
    size_t memory_bytes;
    uint8_t *shared;
    uint32_t *shared_origin;
    bool stored; /* whether undefined bytes were stored to shared or local memory */
    struct defined_warp warp[MAX_WARPS];
    struct birth *birth; /* number 1 stands for all births beyond the limit */
    uint32_t births, birth_space;
    struct found *found, *found_stored; /* hash tables of births and of texts */
    /* State of the current instruction. */
    uint32_t doubtful;      /* lanes whose guard is undefined */
    uint64_t address[WARP]; /* of its memory access */
    uint64_t bits[WARP];    /* undefined bits of the result */
    uint32_t birth_in[WARP], tag_in[WARP];
    uint32_t tags;      /* given so far */
    uint32_t undefined; /* lanes in which a predicate result is undefined */
    /* Branches that undefined predicates decided, and how many of them each warp is inside of. */
    struct region *regions;
    uint32_t branched[MAX_WARPS];
};

extern const struct watcher defined_watcher;
void defined_free(struct defined *d);

/* ---- registers ---- */

static inline struct defined_warp *defined_of(struct defined *d, const struct event *e) {
    return &d->warp[e->warp->index];
}

/* Return the lanes in which a source has an undefined bit. */
static inline uint32_t some_of(const struct defined_warp *u, uint32_t slot) {
    return (slot & 1u) != 0 ? 0 : u->some[slot / 128];
}

/* Mark these lanes of a register as defined. */
static inline void define(struct defined_warp *u, uint32_t slot, uint32_t lanes) {
    u->some[slot / 128] &= ~lanes;
    u->whole[slot / 128] &= ~lanes;
}

static inline void define_predicate(struct defined_warp *u, uint32_t number, uint32_t lanes) {
    if (number != 0) {
        u->predicate[number] &= ~lanes;
    }
}

/* Return the undefined bits of one lane. */
static inline uint64_t bits_of(const struct defined_warp *u, uint32_t slot, uint32_t lane, uint32_t bytes) {
    if ((some_of(u, slot) >> lane & 1u) == 0) {
        return 0;
    }
    if ((u->whole[slot / 128] >> lane & 1u) != 0) {
        return bytes == 8 ? UINT64_MAX : FULL;
    }
    const void *at = u->bits + slot;
    return bytes == 8 ? ((const uint64_t *)at)[lane] : ((const uint32_t *)at)[lane];
}

/* Set the undefined bits of one lane. bytes: 8 for a 64-bit register, less for a 32-bit register. */
static inline void set_bits(struct defined_warp *u, uint32_t slot, uint32_t lane, uint32_t bytes, uint64_t bits,
                            uint32_t birth) {
    void *at = u->bits + slot;
    define(u, slot, 1u << lane);
    if (bits == 0) {
        return;
    }
    u->some[slot / 128] |= 1u << lane;
    if (bytes == 8) {
        ((uint64_t *)at)[lane] = bits;
    } else {
        ((uint32_t *)at)[lane] = (uint32_t)bits;
    }
    u->birth[slot / 128 * WARP + lane] = birth;
    u->tag[slot / 128 * WARP + lane] = 0;
}

/* Return the tag of one lane of a 32-bit register; 0 if it is defined or was never written. Values with one tag are
 * sums of defined numbers and of the same undefined one. So their difference is defined: scans of parts that nobody
 * uses compute such differences. */
static inline uint32_t defined_tag(struct defined *d, struct defined_warp *u, uint32_t slot, uint32_t lane) {
    if ((some_of(u, slot) >> lane & 1u) == 0 || (u->whole[slot / 128] >> lane & 1u) != 0) {
        return 0;
    }
    uint32_t *const tag = &u->tag[slot / 128 * WARP + lane];
    if (*tag == 0) {
        *tag = ++d->tags;
    }
    return *tag;
}

/* Mark lanes of a predicate as undefined. */
static inline void undefine_predicate(struct defined_warp *u, uint32_t number, uint32_t lanes, uint32_t birth) {
    if (number == 0) {
        return;
    }
    u->predicate[number] |= lanes;
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        u->predicate_birth[number * WARP + lowest_bit(rest)] = birth;
    }
}

/* ---- defined_report.c: births and reports ---- */
bool births_start(struct defined *d); /* False: out of memory */
/* Return the number of a birth. Equal births have the same number. */
uint32_t birth_make(struct defined *d, enum born born, uint32_t pc, uint32_t slot, uint64_t address);
/* Return the birth of the undefined bits of a register or predicate. */
uint32_t birth_of(struct defined *d, const struct event *e, uint32_t slot, uint32_t lane);
uint32_t birth_of_predicate(struct defined *d, const struct event *e, uint32_t number, uint32_t lane);
void birth_text(const struct defined *d, const struct warp *w, uint32_t birth, char *to, size_t bytes);
/* Return the number of the text about an undefined value that the warp stores to global memory. */
uint32_t birth_stored(struct defined *d, const struct warp *w, uint32_t lane, uint32_t birth);
struct stored;
const char *stored_text(struct device *device, uint32_t number); /* valid until the device is closed */
void stored_free(struct stored *stored);
/* Report a fault if a source of the instruction is undefined in active lanes. `what` names what the source decides. */
enum step decided_by(struct defined *d, const struct event *e, const char *what, uint32_t slot);
enum step decided_by_predicate(struct defined *d, const struct event *e, const char *what, uint32_t number,
                               uint32_t lanes);

/* ---- defined_branch.c ---- */
void regions_free(struct defined *d);
void regions_start(struct defined *d); /* no lane is inside of a region */
/* Check a branch whose predicate is undefined in lanes `doubtful`: report it, or make what it skips undefined. */
extern defined_part defined_branch;
/* Some lanes of a warp are inside of regions: end those that join at this instruction. */
void defined_joined(struct defined *d, const struct event *e);

/* ---- defined_lanes.c: arithmetic ---- */
extern defined_part defined_logic, defined_lane_doubt;
/* Return the rule for a row of lanes.def. */
defined_part *defined_lane_part(uint32_t lane);

/* ---- defined_memory.c, defined_matrix.c ---- */
struct async_op;
extern defined_part defined_address, defined_operand, defined_load, defined_parameter, defined_store, defined_atomic,
    defined_initialised;
extern defined_part defined_rows, defined_ldmatrix, defined_ldmatrix_trans, defined_ldmatrix_b8, defined_stmatrix,
    defined_stmatrix_b8, defined_selectors, defined_mma, defined_mma_double;
extern defined_part defined_called, defined_returned, defined_discarded;
/* Make all local memory of a lane undefined. */
void defined_forget_local(struct defined *d, const struct warp *w, uint32_t lane, uint32_t birth);
/* Record that an asynchronous copy has written its bytes. Return false after a fault. */
bool defined_landed(struct warp *w, const struct async_op *op);

/* ---- defined_collect.c: collectives ---- */
extern defined_part defined_shfl, defined_vote, defined_together, defined_elect, defined_collected, defined_movmatrix;

/* ---- defined_global.c ---- */
/* Check the bytes that the host copies: kernels must not have stored undefined values there. The memory lock is
 * held. */
CUresult shade_read(struct device *device, uint64_t address, size_t bytes);

#endif
