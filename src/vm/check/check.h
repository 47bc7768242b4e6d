/* Race checks of a CTA. They find mistakes that fail on a chip only occasionally: unordered accesses to shared memory,
 * missing proxy fences and waits, misused mbarriers.
 *
 * Order is happens-before with vector clocks. The agents are
 *   warp w           its own accesses; its releases advance its clock
 *   copies of w      its cp.async operations, by number: seeing number n orders after the writes of the first n,
 * because every lane has waited for its own part of them mbarrier m       the bulk copies that complete on it, by
 * phase: seeing a phase orders after their writes `seen` is a vector clock: how much of each agent a warp is ordered
 * after. `proxied` is the part of the warps' and copies' clocks that a fence.proxy.async has covered; it is passed on
 * together with `seen`.
 *
 * Every 16 bytes of shared memory have a cell with the last weak write and the warps that have read or strongly
 * written since. An access to some of the 16 bytes splits the cell into one per byte. */
#ifndef SM120_VM_CHECK_H
#define SM120_VM_CHECK_H

#include "vm/machine/launch.h"
#include "vm/machine/tma_box.h"

enum {
    AGENT_COPY = 32,
    AGENT_MBARRIER = 64,
    AGENTS = 128,
    AGENT_LIVE = AGENTS - 1, /* the bytes of a live mbarrier: no warp is ordered after them */
    MBARRIER_AGENTS = AGENT_LIVE - AGENT_MBARRIER
};

enum { GRANULE = 16, GRANULES = MOST_SHARED / GRANULE + 1, CELLS = GRANULES * (1 + GRANULE) };

enum { COPY_GROUPS = 64 }; /* further open groups share a record */

/* Origin of an access. */
enum access_kind { BY_PLAIN, BY_STRONG, BY_BULK, BY_COPY };

/* Knowledge of other CTAs, and the part of it covered by a proxy fence (check_far.c; NULL below level full). */
struct far {
    const struct node *known, *proxied;
};

struct clocks {
    uint32_t seen[AGENTS], proxied[AGENT_MBARRIER];
    struct far far;
    struct far fenced; /* released by the last fence of GPU scope */
    struct far found;  /* found by relaxed reads since then; acquired by the next fence of GPU scope */
};

struct cell {
    uint32_t clock, pc;
    uint8_t agent, kind, split;
    uint8_t lane;     /* of a cp.async: the one that issued it */
    uint32_t readers; /* warps that have read since the write */
    uint32_t strong;  /* warps that have made strong writes (atomics, st.relaxed, ...) since the write */
};

/* Last access of a warp to a cell. */
struct mark {
    uint32_t clock, pc; /* bit 31 of pc: a strong read */
};

/* A bulk store or reduction, or a part of one, that its issuer has not waited for. */
struct bulk_store {
    uint64_t global, global_bytes; /* the range that it may write */
    uint32_t box;                  /* index + 1 of the box that it writes in the range; 0: it writes the whole range */
    uint32_t warp, lane, group, shared, bytes, pc;
    bool has_read; /* a wait with .read has completed */
};

/* Clocks passed on through a memory location that warps synchronise with. */
struct location {
    uintptr_t key;
    struct clocks clocks;
};

/* Arrivals at a barrier, as clocks of the warps; 0: none. */
struct barrier_phases {
    uint32_t completed;                               /* phases */
    uint32_t arrival[MAX_WARPS], previous[MAX_WARPS]; /* in this phase, in the last one that has completed */
    uint32_t left[MAX_WARPS];                         /* 1 + the phase of a warp's last bar.arrive; 0: none */
};

struct mbarrier_shadow {
    struct clocks gathering, done; /* clocks of the arrivals in this phase; of all completed phases */
    uint32_t base;                 /* clock of the agent when the mbarrier was initialised */
    uint32_t waited;               /* phases whose completion a warp has waited for */
    uint32_t init_warp, init_clock, init_pc;
    uint32_t copiers[MAX_WARPS];                       /* lanes whose cp.async this phase waits for */
    uint32_t asked_phase[MAX_WARPS], asked[MAX_WARPS]; /* 1 + the phase that a warp last asked for; its lanes */
    uint32_t copied, copy_pc;                          /* 1 + the last phase that a bulk copy completes on */
};

/* A proxy fence by some lanes of a warp that does not cover the last writes of others, at level full. */
struct loose {
    uint32_t from, to;    /* clocks of the warp: of those writes, of the fence */
    uint32_t lanes;       /* that wrote; 0: the fences cover everything */
    uint32_t after, last; /* accesses of the warp: their writes have larger numbers, up to `last` */
};

/* State of a tensor map in global memory that the CTA uses: its changes and fences. */
struct map_shadow {
    uint64_t address;
    uint32_t changed_by, changed, changed_pc; /* warp; its clock, 0: not changed; pc */
    uint32_t released;                        /* clock of the release fence, 0: none */
    uint32_t acquired[MAX_WARPS];             /* clock of each warp's acquire fence, 0: none */
};

struct shadow {
    struct clocks warp[MAX_WARPS], barrier[ALL_BARRIERS];
    struct barrier_phases phases[ALL_BARRIERS];
    /* Clocks at the last fence; clocks found by relaxed reads since then. */
    struct clocks released[MAX_WARPS], acquired[MAX_WARPS];
    uint32_t has_released, has_acquired; /* sets of warps */
    /* Clocks of the last fence.mbarrier_init of each warp: itself, as of its arrivals in the even or odd phase of the
     * cluster's barrier, and as each warp knows them. */
    uint32_t inits[MAX_WARPS], inits_arrived[2][MAX_WARPS], inits_known[MAX_WARPS][MAX_WARPS];
    uint32_t copies[MAX_WARPS];                       /* cp.async operations issued */
    uint32_t committed[MAX_WARPS][COPY_GROUPS][WARP]; /* value of `copies` when a lane committed a group */
    uint32_t issued[MAX_WARPS][WARP];                 /* number of a lane's last cp.async */
    uint32_t landed[MAX_WARPS][WARP];                 /* a lane has waited for its own of the first so many */
    struct loose loose[MAX_WARPS];
    uint32_t mbarrier_clock[MBARRIER_AGENTS];
    struct mbarrier_shadow *mbarrier;
    uint32_t mbarrier_space;
    struct bulk_store *store;
    uint32_t stores, store_space;
    struct tma_box *box; /* boxes of the stores */
    uint32_t boxes, box_space;
    struct map_shadow *map;
    uint32_t maps, map_space;
    struct location *location;
    uint32_t locations, location_space;
    uint32_t latest;                             /* location that was found last */
    struct world *world;                         /* check_global.h; NULL below level full */
    struct mark touched[MAX_CLUSTER][MAX_WARPS]; /* the last access of a warp to the memory of another CTA, by rank */
    struct lanes *lanes[MAX_WARPS];              /* check_lanes.c; used at level full */
    struct cell *cell;                           /* GRANULES cells, then 16 cells for the bytes of each */
    struct mark *read[MAX_WARPS];                /* parallel to `cell` */
    struct mark *strong[MAX_WARPS];              /* parallel to `cell`; NULL until a warp makes a strong write */
};

/* check.c: accesses. All return false after a fault. */
struct shadow *check_open(struct shadow *old, const struct launch *launch); /* NULL: out of memory */
void check_free(struct shadow *shadow);
void check_start(struct cta *cta);
/* Check accesses of the lanes of `mask` to `bytes` bytes each, at host pointers. */
bool check_lanes(struct warp *w, uint8_t *const *place, uint32_t mask, uint32_t bytes, bool is_write,
                 enum access_kind kind);
/* Check a matrix store, then copy its rows of 16 bytes to their places. */
bool check_matrix(struct warp *w, uint8_t *const *place, uint32_t rows, uint8_t (*image)[GRANULE]);
bool check_access(struct warp *w, const struct inst *i, uint8_t *const *place, uint32_t mask, bool is_write);
/* Return whether two strong accesses have elements of different sizes: then neither is atomic for the other. */
bool check_sizes_differ(const struct warp *w, uint32_t pc, uint32_t other);
bool check_atomic(struct warp *w, const struct inst *i, uint8_t *place, uint32_t bytes, uint32_t lane);
/* Return whether a store writes the values that are already there, as far as its places lie in the `bytes` bytes
 * from `at`. */
bool check_same_value(const struct warp *w, const struct inst *store, uint8_t *const *place, uint32_t mask,
                      uint32_t bytes, const uint8_t *at, uint32_t count);
bool check_shared(struct warp *w, uint32_t address, uint32_t bytes, uint32_t lane, bool is_write,
                  enum access_kind kind);
/* Record a write or a read without checking it. */
void check_mark_write(struct cta *cta, uint32_t address, uint32_t bytes, uint32_t agent, uint32_t clock, uint32_t pc,
                      enum access_kind kind, uint32_t lane);
void check_mark_read(struct warp *w, uint32_t address, uint32_t bytes, uint32_t pc);

/* Record that a warp has accessed an address, if it is in another CTA of the cluster. */
void check_touched(struct warp *w, uint32_t address);

/* check_order.c: synchronisation */
/* Check and record the arrival of a warp. does_wait: it also waits. Return false after a fault. */
bool check_barrier_arrived(struct warp *w, uint32_t number, bool does_wait);
/* A relaxed arrival at the barrier of the cluster: it releases what the warp's last fences have. */
void check_barrier_relaxed(struct warp *w, uint32_t number);
void check_barrier_empty(struct cta *cta, uint32_t number);
void check_barrier_left(struct warp *w, uint32_t number);
void check_fence(struct warp *w, uint32_t kind, uint32_t mask);
bool check_ordered(struct warp *w, const struct inst *i, const void *place, bool is_read, bool is_write);
bool check_mbarrier_init(struct warp *w, const struct mbarrier *m, uint32_t lane, uint32_t address);
void check_mbarrier_inval(struct warp *w, const struct mbarrier *m);
bool check_mbarrier_used(struct warp *w, const struct mbarrier *m, uint32_t lane);
void check_mbarrier_arrives(struct warp *w, const struct mbarrier *m);
bool check_mbarrier_arrival(struct warp *w, const struct mbarrier *m, uint32_t lane);
void check_mbarrier_phase(struct cta *cta, const struct mbarrier *m);
/* Lanes ask whether the current phase (is_done: the previous one) has completed. Return those that may be told no: they
 * have not asked for this phase before, and do not know that it has completed. */
uint32_t check_mbarrier_refuses(struct warp *w, const struct mbarrier *m, uint32_t mask, bool is_done);
void check_mbarrier_waited(struct warp *w, const struct mbarrier *m, bool is_acquire);

/* check_async.c: asynchronous copies */
bool check_bulk(struct warp *w, struct async_op *op);
/* Return whether a bulk store has the source of one that the instruction at `pc` of a warp issued, which still reads
 * it and writes this global address. */
bool check_bulk_repeats(const struct warp *w, const struct async_op *op, uint32_t warp, uint32_t pc, uint64_t address);
void check_bulk_landed(struct cta *cta, const struct async_op *op, const struct mbarrier *m);
void check_bulk_waited(struct warp *w, uint32_t mask, uint32_t allowed, int is_read_only);
bool check_stores(struct warp *w, uint32_t address, uint32_t bytes, uint32_t lane, const char *what);
bool check_stores_global(struct warp *w, uint64_t address, uint32_t bytes, uint32_t lane, bool is_write);
bool check_copy(struct warp *w, struct async_op *op);
void check_copy_committed(struct warp *w, uint32_t mask);
void check_copy_waited(struct warp *w, const struct inst *i, uint32_t mask);
void check_copy_arrives(struct warp *w, const struct mbarrier *m, uint32_t lane);
bool check_exit(struct warp *w, uint32_t mask);
void check_end(struct cta *cta);

/* check_map.c: tensor maps in global memory, and their proxy. Functions that return a bool return false after a
 * fault. */
bool check_map_used(struct warp *w, uint64_t address, uint32_t lane);
bool check_map_changed(struct warp *w, uint64_t address, bool is_released);
bool check_map_acquired(struct warp *w, uint64_t address);
void check_map_released(struct warp *w);

/* check_global.c: accesses to global memory, at level full */
struct world *world_open(const struct launch *launch); /* NULL: out of memory */
void world_close(struct world *world);
/* A CTA starts, and ends. Return false when out of memory. */
bool world_enter(struct world *world, struct cta *cta);
void world_leave(struct world *world, const struct cta *cta);
/* A CTA has ended: report its remaining suspicions as faults. */
void world_end(const struct cta *cta);
/* Check accesses of the lanes of `mask` to `bytes` bytes each. All return false after a fault. */
bool world_access(struct warp *w, const struct inst *i, uint8_t *const *place, uint32_t mask, uint32_t bytes,
                  bool is_write);
bool world_atomic(struct warp *w, const struct inst *i, const uint8_t *place, uint32_t bytes, uint32_t lane);
/* Check a bulk operation, or one lane of a cp.async. It ends at the given clock of the agent. */
bool world_bulk(struct warp *w, const struct async_op *op, uint32_t agent, uint32_t clock);
bool world_copy(struct warp *w, uint64_t address, uint32_t bytes, uint32_t lane, uint32_t number);
bool world_discard(struct warp *w, uint64_t address, uint32_t bytes, uint32_t lane);
/* Record that a bulk store or reduction of this warp has written its bytes. */
void world_written(struct warp *w, uint64_t address, uint32_t bytes, uint32_t pc);

/* Return whether the place of a generic access is in global memory. */
bool check_is_global(const struct warp *w, const uint8_t *place);

/* check_lanes.c: order between lanes of a warp, at level full */
struct lanes *lanes_open(struct lanes *old, uint32_t shared_bytes); /* NULL: out of memory */
void lanes_free(struct lanes *lanes);
bool lanes_access(struct warp *w, const struct inst *i, uint8_t *const *place, uint32_t mask, uint32_t bytes,
                  bool is_write);

/* Check the shared memory of a bulk operation of one lane: other lanes' writes must be ordered before it. */
bool lanes_bulk(struct warp *w, uint32_t address, uint32_t bytes, uint32_t lane);
/* Lanes execute a proxy fence. Return the others whose writes to shared memory it does not cover. */
uint32_t lanes_fence(struct warp *w, uint32_t mask, struct loose *loose);
/* Return whether uncovered lanes wrote some of these bytes. */
bool lanes_left_out(const struct lanes *lanes, uint32_t offset, uint32_t bytes, const struct loose *loose);
/* Lanes have waited for copies of their own. */
void lanes_waited(struct warp *w, uint32_t mask);
/* Return whether all accesses of other lanes are ordered after that wait of a lane; and whether the access of one is.
 */
bool lanes_all_know(const struct warp *w, uint32_t waiter);
bool lanes_know(const struct warp *w, uint32_t lane, uint32_t waiter);

/* check_far.c: order between CTAs, at level full */
void far_join(struct world *world, struct far *to, const struct far *from);
void far_fence(struct warp *w);
void far_proxy_fence(struct warp *w);
void far_ordered(struct warp *w, const void *place, uint32_t order, bool is_read, bool is_write);

struct spot check_spot(const struct warp *w, uint32_t pc);
struct spot check_warp(const struct warp *w, uint32_t index);

/* check_lanes.c: record that lanes have met at a collective. Called only at level full. */
void lanes_meet(struct warp *w, uint32_t mask);

#endif
