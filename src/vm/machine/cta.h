/* The running state: CTAs, warps and their splits, barriers, mbarriers, asynchronous copies. */
#ifndef SM120_VM_MACHINE_CTA_H
#define SM120_VM_MACHINE_CTA_H

#include <stdbool.h>
#include <stdint.h>

#include "vm/machine/program.h"

/* inst.q of ld, st, atom, red and mbarrier operations: their memory order. For the first four, inst.r says whether
 * their scope is the CTA. */
enum order { ORDER_WEAK, ORDER_RELAXED, ORDER_ACQUIRE, ORDER_RELEASE, ORDER_ACQ_REL };

/* inst.flags of a fence. FENCE_GPU: its scope is wider than the CTA. FENCE_INITS: of mbarrier.init alone. */
enum { FENCE_MEMORY = 1, FENCE_PROXY = 2, FENCE_PROXY_GLOBAL = 4, FENCE_GPU = 8 /* its scope */, FENCE_INITS = 16 };

enum atomic_op {
    ATOMIC_ADD,
    ATOMIC_MIN,
    ATOMIC_MAX,
    ATOMIC_AND,
    ATOMIC_OR,
    ATOMIC_XOR,
    ATOMIC_INC,
    ATOMIC_DEC,
    ATOMIC_EXCH,
    ATOMIC_CAS
};
typedef uint64_t atomic_function(void *address, uint64_t value, uint64_t compare);

enum wait {
    WAIT_NOT,
    WAIT_MEMBERS, /* at a collective, for the other lanes of the member mask */
    WAIT_ALIGNED, /* at an .aligned instruction, for other lanes of the warp */
    WAIT_MBARRIER,
    WAIT_POOL,   /* for registers that other warps release */
    WAIT_BULK,   /* for bulk groups of this thread */
    WAIT_BARRIER /* bar.sync; unlike other waits, its instruction is not executed again */
};

/* Lanes of a warp that are at the same pc. */
struct split {
    uint32_t pc, mask;
    uint32_t address; /* of the mbarrier, or the number of the barrier */
    uint32_t phase, detail;
    uint32_t ran;                       /* instructions executed since another split last ran */
    uint8_t wait, skip, forced, polled; /* polled: address and phase are those of the last poll, which failed */
};

struct cta;
struct worker;
/* A CTA of a cluster. The struct cta is a cluster: the CTAs of a cluster run together, as parts of one. */
struct member {
    uint32_t id[3];
    uint64_t linear;
    uint32_t exited_warps, heard; /* heard: ranks whose shared memory it has accessed */
    uint32_t pool;                /* free registers */
};

struct warp {
    const char *base[2]; /* registers, constants */
    char *registers;
    uint32_t *predicates; /* [0] is the constant true, [1] holds the carry flags */
    uint32_t pc, active;  /* of the split that is running */
    uint32_t live;        /* lanes that have not exited */
    struct cta *cta;
    struct worker *worker;
    const struct CUfunc_st *function;
    uint8_t *local;                  /* [lane][local_bytes] */
    uint32_t index, current, splits; /* index: in the cluster */
    uint32_t rank, number;           /* rank of its CTA; index in its CTA */
    uint32_t shared_start;           /* shared address at which the memory of its CTA begins */
    uint32_t bulk_group[WARP];       /* committed bulk groups */
    uint32_t async_group[WARP];      /* committed cp.async groups */
    uint32_t maximum, adjusted,
        adjusted_pc;                   /* setmaxnreg: registers (0: unknown), a hash of those executed, the last */
    uint32_t touched;                  /* reuse.c: sectors of global memory */
    uint32_t stepped;                  /* profile.c: statements that it has executed */
    uint64_t begun;                    /* profile.c: statements that earlier CTAs of its multiprocessor have executed */
    uint32_t cluster[2];               /* lanes that have arrived in an even or odd phase, and not waited for it */
    uint32_t meeting, met;             /* lanes that have met at several collectives; those that still have to execute
                                          theirs, before anything else runs */
    uint64_t brought[WARP];            /* their source operands */
    struct call *calls;                /* [depth][lane] */
    uint32_t depth[WARP], frame[WARP]; /* call depth of each lane; local address of its frame */
    struct split split[WARP];
};

struct mbarrier {
    uint32_t address;
    uint32_t expected, pending, phase;
    int32_t tx;
    bool valid;
};

struct barrier {
    uint32_t arrived, expected; /* threads */
    uint32_t reduced_and, reduced_or, count;
    uint32_t lanes[MAX_WARPS]; /* of each warp, that have arrived */
    uint8_t kind;              /* 0: bar.sync and bar.arrive; else 1 + the operation of bar.red */
};

/* ASYNC_WORD: st.async and red.async to a CTA's shared memory. ASYNC_INSIDE: a bulk copy between CTAs of a cluster. */
enum async_kind { ASYNC_LOAD, ASYNC_STORE, ASYNC_REDUCE, ASYNC_WORD, ASYNC_INSIDE, ASYNC_COPY, ASYNC_ARRIVE };
struct async_op {
    uint8_t kind, op, type, is_tensor;
    uint32_t warp, lane, group, mask;
    uint32_t shared, bytes, mbarrier;
    uint64_t global;
    uint32_t copy; /* ASYNC_COPY, ASYNC_ARRIVE: index into async_lanes; tensor copies: index into boxes */
    uint32_t pc;
    uint32_t from;     /* ASYNC_INSIDE: shared address of the source */
    uint64_t value[2]; /* ASYNC_WORD: its bytes; op: 0 for a store, else 1 + the operation */
};
struct async_lanes {
    uint64_t from[WARP];
    uint32_t to[WARP], bytes[WARP], group[WARP];
    uint32_t size;
};

struct launch;
struct tma_box;
struct cta {
    struct launch *launch;
    uint64_t linear; /* number of the cluster */
    struct member member[MAX_CLUSTER];
    uint32_t ranks; /* CTAs */
    uint32_t warps, exited_warps;
    uint8_t *shared;                   /* shared[address - SHARED_BASE] */
    uint32_t shared_bytes, cta_shared; /* of all CTAs, with the gaps between them; of each */
    struct mbarrier *mbarrier;
    uint32_t mbarriers, mbarrier_space;
    uint16_t *mbarrier_at;                /* [shared_bytes / 8]: index into mbarrier, plus 1 */
    struct barrier barrier[ALL_BARRIERS]; /* CLUSTER_BARRIER and the next: even and odd phases of the cluster's */
    uint32_t cluster_phase;
    bool is_refused; /* a thread knows that clusterlaunchcontrol found no cluster to cancel */
    struct async_op *async;
    uint32_t asyncs, async_space;
    struct async_lanes *async_lanes;
    uint32_t async_lanes_space;
    struct tma_box *boxes; /* of tensor copies in flight */
    uint32_t box_space;
    uint64_t random;
    uint32_t progress; /* incremented by everything that can end a wait */
    struct warp *warp;
    struct shadow *shadow;   /* check.h; NULL if nothing is checked */
    struct defined *defined; /* defined.h; reused by launches at level full */
    int watches_lanes;       /* at level full */
    uint64_t executed;       /* warp instructions */
    uint32_t touched;        /* reuse.c: the most of a warp */
    uint32_t left;           /* warps that have not ended */
    uint32_t hopeless, fruitless, blocked, progressed;
    uint64_t changes, work, changes_base, work_base; /* poll.c: totals of this CTA; totals of its worker before it */
    uint64_t slice_start, slice_changes, slice_work, slice_reads; /* at the start of the current slice */
    uint32_t polled, quiet_slices; /* reads in the slice that repeat earlier ones; slices without progress */
    bool waits_outside;            /* a wait of this round may depend on another CTA */
    struct poll *polls;            /* [warp][lane][2]; NULL until a lane reads strongly */
    struct poll *watched[8];       /* some of the polls that keep it waiting */
    uint32_t watches;
    uint64_t states[16], state_news; /* schedule.c: hashes of the states in its last futile waits */
    uint32_t state_count;
    bool in_vain, is_stuck;
    /* Buffers that the next CTA of this worker reuses. */
    char *memory; /* shared, then registers, predicates, local and calls of each warp */
    size_t memory_bytes, used_bytes;
    const struct launch *prepared_for;
    uint64_t prepared_number;
    struct shadow *kept_shadow;
    struct cta *following; /* next in its list */
};

/* Return how many of the barriers exist. */
static inline uint32_t cta_barriers(const struct cta *cta) {
    return MORE_BARRIERS + (cta->ranks - 1) * BARRIERS;
}

/* Return the number of a barrier as its CTA counts. */
static inline uint32_t barrier_number(uint32_t number) {
    return number < MORE_BARRIERS ? number : (number - MORE_BARRIERS) % BARRIERS;
}

/* Return the CTA of a warp. */
static inline struct member *warp_member(const struct warp *w) {
    return &w->cta->member[w->rank];
}

static inline const void *source(const struct warp *w, uint32_t offset) {
    return w->base[offset & 1u] + (offset & ~1u);
}

static inline void *destination(struct warp *w, uint32_t offset) {
    return w->registers + offset;
}

/* Move the lanes of the current split that are not in `mask` to the next instruction, as a split of their own. */
void warp_leave_behind(struct warp *w, uint32_t mask);
/* Wait until all lanes in `needed` are at this .aligned instruction. Return STEP_NEXT when they are. */
enum step warp_converge(struct warp *w, uint32_t mask, uint32_t needed);
/* Report that the predicate of lanes that are here is false, but an instruction needs them. what: the instruction. */
enum step warp_left_out(struct warp *w, uint32_t missing, uint32_t needed, const char *what);

/* Return the next number of this CTA's random sequence, which depends on the seed. */
uint64_t cta_random(struct cta *cta);

#endif
