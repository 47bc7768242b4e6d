/* What the virtual SM120 remembers of a CTA to find what a chip would punish only sometimes: unordered accesses to
 * shared memory, missing proxy fences and waits, misused mbarriers.
 *
 * Order is happens-before by vector clocks. The agents are
 *   warp w           its own accesses, and the clock that its releases advance
 *   copies of w      its cp.async operations by number; whoever knows n of them sees what those wrote
 *   mbarrier m       the bulk copies that complete on it, by phase; whoever knows the phase sees what they wrote
 * `seen` holds how much of each agent a warp is ordered after. `proxied` holds, of warps and their copies, the part
 * that a fence.proxy.async lies behind; it travels with `seen`.
 *
 * Every 16 bytes of shared memory have a cell: the last weak write, and the warps that have read or strongly written
 * since. An access to a part of the 16 bytes splits the cell into one per byte. */
#ifndef SM120_VM_CHECK_H
#define SM120_VM_CHECK_H

#include "vm/machine/launch.h"
#include "vm/machine/tma_box.h"

enum {
    AGENT_COPY = 32,
    AGENT_MBARRIER = 64,
    AGENTS = 128,
    AGENT_LIVE = AGENTS - 1, /* the bytes of a live mbarrier: nobody is ordered after them */
    MBARRIER_AGENTS = AGENT_LIVE - AGENT_MBARRIER
};

enum { GRANULE = 16, GRANULES = MAX_SHARED / GRANULE + 1, CELLS = GRANULES * (1 + GRANULE) };

enum { COPY_GROUPS = 64 }; /* more that are open at once blur into one another */

/* How an access came about. */
enum access_kind { BY_PLAIN, BY_STRONG, BY_BULK, BY_COPY };

/* What is known of other CTAs, and which part of it lies behind a proxy fence (check_far.c; NULL below level full). */
struct far {
    const struct node *known, *proxied;
};

struct clocks {
    uint32_t seen[AGENTS], proxied[AGENT_MBARRIER];
    struct far far;
    struct far fenced; /* what the last fences whose scope is the GPU let out */
    struct far found;  /* what relaxed reads have found since, which the next such fence lets in */
};

struct cell {
    uint32_t clock, pc;
    uint8_t agent, kind, split, spare;
    uint32_t readers; /* warps that have read since the write */
    uint32_t strong;  /* warps that have written strongly (atomics, st.relaxed, ...) since the write */
};

/* The last access of a warp to a cell. */
struct mark {
    uint32_t clock, pc; /* bit 31 of pc: a strong read */
};

/* A bulk store or reduction that its issuer has not waited for, or a part of one. */
struct bulk_store {
    uint64_t global, global_bytes; /* that it may write */
    uint32_t box;                  /* index + 1 of the box that it writes of them; 0: all */
    uint32_t warp, lane, group, shared, bytes, pc;
    bool has_read; /* it was waited for with .read */
};

/* What a memory location that warps synchronise through passes on. */
struct location {
    uintptr_t key;
    struct clocks clocks;
};

struct mbarrier_shadow {
    struct clocks gathering, done; /* of the arrivals in this phase and of those up to the last */
    uint32_t base;                 /* clock of the agent when the mbarrier was initialised */
    uint32_t waited;               /* phases that somebody has seen completed */
    uint32_t init_warp, init_clock, init_pc;
    uint32_t copied, copy_pc; /* the last phase + 1 that a bulk copy completes on */
};

/* A tensor map in global memory, as the CTA has changed it and fenced it. */
struct map_shadow {
    uint64_t address;
    uint32_t changed_by, changed, changed_pc; /* warp, its clock, 0: not changed */
    uint32_t released;                        /* the clock of its release fence, 0: none */
    uint32_t acquired[MAX_WARPS];             /* the clock of each warp's acquire fence, 0: none */
};

struct shadow {
    struct clocks warp[MAX_WARPS], barrier[BARRIERS + 1];
    struct clocks released[MAX_WARPS], acquired[MAX_WARPS]; /* by the last fence; by relaxed reads since */
    uint32_t has_released, has_acquired;                    /* sets of warps */
    uint32_t copies[MAX_WARPS];                             /* cp.async operations issued */
    uint32_t committed[MAX_WARPS][COPY_GROUPS];             /* how many of them when a group was committed */
    uint32_t mbarrier_clock[MBARRIER_AGENTS];
    struct mbarrier_shadow *mbarrier;
    uint32_t mbarrier_space;
    struct bulk_store *store;
    uint32_t stores, store_space;
    struct tma_box *box; /* of the stores */
    uint32_t boxes, box_space;
    struct map_shadow *map;
    uint32_t maps, map_space;
    struct location *location;
    uint32_t locations, location_space;
    struct world *world;            /* check_global.h; NULL below level full */
    struct lanes *lanes[MAX_WARPS]; /* check_lanes.c; used at level full */
    struct cell *cell;              /* GRANULES, then 16 bytes of each */
    struct mark *read[MAX_WARPS];   /* beside the cells */
    struct mark *strong[MAX_WARPS]; /* likewise; NULL until a warp writes strongly */
};

/* check.c: the accesses. All return false after a fault. */
struct shadow *check_open(struct shadow *old, const struct launch *launch); /* NULL: out of memory */
void check_free(struct shadow *shadow);
void check_start(struct cta *cta);
/* The lanes of `mask` access `bytes` bytes each at host pointers. */
bool check_lanes(struct warp *w, uint8_t *const *place, uint32_t mask, uint32_t bytes, bool is_write,
                 enum access_kind kind);
/* Check a matrix store, then copy its rows of 16 bytes to their places. */
bool check_matrix(struct warp *w, uint8_t *const *place, uint32_t rows, uint8_t (*image)[GRANULE]);
bool check_access(struct warp *w, const struct inst *i, uint8_t *const *place, uint32_t mask, bool is_write);
bool check_atomic(struct warp *w, const struct inst *i, uint8_t *place, uint32_t bytes, uint32_t lane);
/* Does a store write what is there already, to the part of its places that lies in `bytes` bytes from `at`? */
bool check_same_value(const struct warp *w, const struct inst *store, uint8_t *const *place, uint32_t mask,
                      uint32_t bytes, const uint8_t *at, uint32_t count);
bool check_shared(struct warp *w, uint32_t address, uint32_t bytes, uint32_t lane, bool is_write,
                  enum access_kind kind);
/* Note a write or a read without a check. */
void check_mark_write(struct cta *cta, uint32_t address, uint32_t bytes, uint32_t agent, uint32_t clock, uint32_t pc,
                      enum access_kind kind);
void check_mark_read(struct warp *w, uint32_t address, uint32_t bytes, uint32_t pc);

/* check_order.c: what orders them */
void check_barrier_arrived(struct warp *w, uint32_t number);
void check_barrier_empty(struct cta *cta, uint32_t number);
void check_barrier_left(struct warp *w, uint32_t number);
void check_fence(struct warp *w, uint32_t kind);
bool check_ordered(struct warp *w, const struct inst *i, const void *place, bool is_read, bool is_write);
bool check_mbarrier_init(struct warp *w, const struct mbarrier *m, uint32_t lane, uint32_t address);
void check_mbarrier_inval(struct warp *w, const struct mbarrier *m);
bool check_mbarrier_used(struct warp *w, const struct mbarrier *m, uint32_t lane);
void check_mbarrier_arrives(struct warp *w, const struct mbarrier *m);
bool check_mbarrier_arrival(struct warp *w, const struct mbarrier *m, uint32_t lane);
void check_mbarrier_phase(struct cta *cta, const struct mbarrier *m);
void check_mbarrier_waited(struct warp *w, const struct mbarrier *m, bool is_acquire);

/* check_async.c: asynchronous copies */
bool check_bulk(struct warp *w, struct async_op *op);
void check_bulk_landed(struct cta *cta, const struct async_op *op, const struct mbarrier *m);
void check_bulk_waited(struct warp *w, uint32_t mask, uint32_t allowed, int is_read_only);
bool check_stores(struct warp *w, uint32_t address, uint32_t bytes, uint32_t lane, const char *what);
bool check_stores_global(struct warp *w, uint64_t address, uint32_t bytes, uint32_t lane, bool is_write);
bool check_copy(struct warp *w, struct async_op *op);
void check_copy_committed(struct warp *w, uint32_t mask);
void check_copy_waited(struct warp *w, const struct inst *i, uint32_t mask);
void check_copy_arrives(struct warp *w, const struct mbarrier *m);
bool check_exit(struct warp *w, uint32_t mask);
void check_end(struct cta *cta);

/* check_map.c: tensor maps in global memory, and their proxy. Those that return a bool return false after a fault. */
bool check_map_used(struct warp *w, uint64_t address, uint32_t lane);
bool check_map_changed(struct warp *w, uint64_t address, bool is_released);
bool check_map_acquired(struct warp *w, uint64_t address);
void check_map_released(struct warp *w);

/* check_global.c: accesses to global memory, at level full */
struct world *world_open(const struct launch *launch); /* NULL: out of memory */
void world_close(struct world *world);
/* A CTA starts, and ends. False: out of memory. */
bool world_enter(struct world *world, struct cta *cta);
void world_leave(struct world *world, const struct cta *cta);
/* A CTA has run to its end: what is still suspected of it is a fault. */
void world_end(const struct cta *cta);
/* The lanes of `mask` access `bytes` bytes each. All return false after a fault. */
bool world_access(struct warp *w, const struct inst *i, uint8_t *const *place, uint32_t mask, uint32_t bytes,
                  bool is_write);
bool world_atomic(struct warp *w, const struct inst *i, const uint8_t *place, uint32_t bytes, uint32_t lane);
/* A bulk operation, or a lane's part of a cp.async, whose end the agent's clock tells. */
bool world_bulk(struct warp *w, const struct async_op *op, uint32_t agent, uint32_t clock);
bool world_copy(struct warp *w, uint64_t address, uint32_t bytes, uint32_t lane, uint32_t number);
/* A bulk store or reduction of this warp has written. */
void world_written(struct warp *w, uint64_t address, uint32_t bytes, uint32_t pc);

/* Is a place that a generic address led to in global memory? */
bool check_is_global(const struct warp *w, const uint8_t *place);

/* check_lanes.c: order between lanes of a warp, at level full */
struct lanes *lanes_open(struct lanes *old, uint32_t shared_bytes); /* NULL: out of memory */
void lanes_free(struct lanes *lanes);
bool lanes_access(struct warp *w, const struct inst *i, uint8_t *const *place, uint32_t mask, uint32_t bytes,
                  bool is_write);

/* check_far.c: order between CTAs, at level full */
void far_join(struct world *world, struct far *to, const struct far *from);
void far_fence(struct warp *w);
void far_proxy_fence(struct warp *w);
void far_ordered(struct warp *w, const void *place, uint32_t order, bool is_read, bool is_write);

/* Where an instruction was written: "file:line". */
struct spot {
    char text[128];
};
struct spot check_spot(const struct warp *w, uint32_t pc);

/* check_lanes.c: lanes have met at a collective; called at level full alone. */
void lanes_meet(struct warp *w, uint32_t mask);

#endif
