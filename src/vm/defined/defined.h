/* Which bits of registers and memory are defined, at level full. A watcher keeps, beside everything that a kernel can
 * read, whether somebody wrote it, and reports an undefined value where it decides something. Copies alone are no
 * fault.
 *
 * Registers have undefined bits (1: undefined). Memory has a byte of defined bits (1: defined) beside every byte, so
 * that what nobody touched is zero. Where an undefined value came from, its birth, travels with it. */
#ifndef SM120_VM_DEFINED_H
#define SM120_VM_DEFINED_H

#include <stdbool.h>
#include <stdint.h>

#include "driver/driver.h"
#include "vm/machine/watch.h"

/* Where an undefined value came from. */
enum born {
    BORN_UNKNOWN,
    BORN_REGISTER,  /* a register that was never written */
    BORN_PREDICATE, /* likewise */
    BORN_LANE,      /* shfl from a lane that takes no part */
    BORN_SHARED,    /* memory that was never written */
    BORN_LOCAL,
    BORN_GLOBAL,
    BORN_STORED /* global memory to which a kernel has stored it */
};
struct birth {
    uint64_t address; /* of memory; of BORN_STORED, the number of its text */
    uint32_t pc, slot;
    enum born born;
};
struct found {
    uint64_t key;
    uint32_t number;
};

/* The registers of a warp, by slot / 128. In lanes of `whole` a register was never written, and bits and births are not
 * kept; in the other lanes of `some` they are. */
struct defined_warp {
    uint32_t *some, *whole;
    char *bits;                /* laid out as the registers */
    uint32_t *birth;           /* [slot / 128][lane] */
    uint32_t *predicate;       /* undefined lanes */
    uint32_t *predicate_birth; /* [number][lane]; 0: never written */
    uint8_t *local;            /* [lane][local_bytes] */
    uint32_t *local_origin;
};

/* What an undefined guard does. */
enum effect {
    EFFECT_NONE,
    EFFECT_REGISTERS, /* the results are undefined */
    EFFECT_OUTSIDE,   /* it is a fault */
    EFFECT_BRANCH     /* likewise */
};

struct defined;
typedef enum step defined_part(struct defined *d, const struct event *e);
/* What to do with one instruction. */
struct rule {
    defined_part *before; /* check what it is decided by; pure arithmetic is done with here. NULL: nothing */
    defined_part *after;  /* note what it wrote. NULL: nothing */
    uint16_t lane;        /* row of lanes.def */
    uint8_t effect;
};

/* What belongs to a CTA; kept for others after it. */
struct defined {
    const struct CUfunc_st *function;
    struct device *device;
    uint64_t launch;   /* number of the launch for which the rest was made */
    struct rule *rule; /* [pc] */
    char *memory;
    size_t memory_bytes;
    uint8_t *shared;
    uint32_t *shared_origin;
    bool stored; /* were undefined bytes stored to shared or local memory? */
    struct defined_warp warp[MAX_WARPS];
    struct birth *birth; /* number 1 stands for those that are not kept */
    uint32_t births, birth_space;
    struct found *found, *found_stored; /* of births and of texts, by hash */
    /* of the instruction that runs */
    uint32_t doubtful;      /* lanes whose guard is undefined */
    uint64_t address[WARP]; /* of a memory access */
    uint64_t bits[WARP];    /* of a result */
    uint32_t birth_in[WARP];
    uint32_t undefined; /* lanes of a result that is a predicate */
};

extern const struct watcher defined_watcher;
void defined_free(struct defined *d);

/* ---- registers ---- */

static inline struct defined_warp *defined_of(struct defined *d, const struct event *e) {
    return &d->warp[e->warp->index];
}

/* Lanes in which a source has an undefined bit. */
static inline uint32_t some_of(const struct defined_warp *u, uint32_t slot) {
    return (slot & 1u) != 0 ? 0 : u->some[slot / 128];
}

/* These lanes of a register are defined. */
static inline void define(struct defined_warp *u, uint32_t slot, uint32_t lanes) {
    u->some[slot / 128] &= ~lanes;
    u->whole[slot / 128] &= ~lanes;
}

static inline void define_predicate(struct defined_warp *u, uint32_t number, uint32_t lanes) {
    if (number != 0) {
        u->predicate[number] &= ~lanes;
    }
}

/* The undefined bits of one lane. */
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

/* Set the undefined bits of one lane; bytes: 8, or anything less for a register of 32 bits. */
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
}

/* Lanes of a predicate are undefined. */
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
/* The number of a birth; the same for the same thing. */
uint32_t birth_make(struct defined *d, enum born born, uint32_t pc, uint32_t slot, uint64_t address);
/* Where the undefined bits of a register or predicate came from. */
uint32_t birth_of(struct defined *d, const struct event *e, uint32_t slot, uint32_t lane);
uint32_t birth_of_predicate(struct defined *d, const struct event *e, uint32_t number, uint32_t lane);
void birth_text(const struct defined *d, const struct warp *w, uint32_t birth, char *to, size_t bytes);
/* The number of the text on an undefined value that the warp stores to global memory. */
uint32_t birth_stored(struct defined *d, const struct warp *w, uint32_t lane, uint32_t birth);
struct stored;
const char *stored_text(struct device *device, uint32_t number); /* it stays until the device is closed */
void stored_free(struct stored *stored);
/* If a source of the instruction is undefined in lanes that take part, report that it decides `what`. */
enum step decided_by(struct defined *d, const struct event *e, const char *what, uint32_t slot);
enum step decided_by_predicate(struct defined *d, const struct event *e, const char *what, uint32_t number,
                               uint32_t lanes);

/* ---- defined_lanes.c: arithmetic ---- */
extern defined_part defined_logic, defined_lane_doubt;
/* What to do with a row of lanes.def. */
defined_part *defined_lane_part(uint32_t lane);

/* ---- defined_memory.c, defined_matrix.c ---- */
struct async_op;
extern defined_part defined_address, defined_operand, defined_load, defined_parameter, defined_store, defined_atomic,
    defined_initialised;
extern defined_part defined_rows, defined_ldmatrix, defined_ldmatrix_trans, defined_ldmatrix_b8, defined_stmatrix,
    defined_stmatrix_b8, defined_selectors, defined_mma, defined_mma_double;
extern defined_part defined_called, defined_returned;
/* An asynchronous copy is about to land. False after a fault. */
bool defined_landed(struct warp *w, const struct async_op *op);

/* ---- defined_collect.c: lanes together ---- */
extern defined_part defined_shfl, defined_vote, defined_together, defined_elect, defined_collected, defined_movmatrix;

/* ---- defined_global.c ---- */
/* The host copies results, and what kernels have stored there must be defined. The memory lock is held. */
CUresult shade_read(struct device *device, uint64_t address, size_t bytes);

#endif
