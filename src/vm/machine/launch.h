/* A launch and its worker threads. */
#ifndef SM120_VM_MACHINE_LAUNCH_H
#define SM120_VM_MACHINE_LAUNCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/driver.h"
#include "platform/thread.h"
#include "vm/machine/base.h"
#include "vm/machine/fault.h"
#include "vm/machine/memory.h"

/* Levels of checks. Bounds, alignment and operands are checked at every level. */
enum checks { CHECKS_OFF, CHECKS_DEFAULT, CHECKS_FULL };

struct CUfunc_st;

/* State of one worker thread that runs CTAs; kept between launches. */
struct worker {
    struct launch *launch;
    uint64_t *counts; /* [pc]: warp instructions executed */
    uint64_t bytes[16];
    uint64_t tensor_flops;
    uint64_t executed, checked; /* warp instructions executed; warp instructions covered by the last check */
    uint64_t changes;           /* atomic operations that changed the value in memory */
    struct allocation cached[8];
    struct profile_worker *profile; /* profile.c; NULL if no profile is recorded */
    struct cta *spare;              /* buffers of an ended CTA for reuse, or NULL */
    uint32_t scratch[16][WARP];
};

enum traffic {
    TRAFFIC_LD_GLOBAL,
    TRAFFIC_ST_GLOBAL,
    TRAFFIC_LD_SHARED,
    TRAFFIC_ST_SHARED,
    TRAFFIC_LD_LOCAL,
    TRAFFIC_ST_LOCAL,
    TRAFFIC_ATOM_GLOBAL,
    TRAFFIC_ATOM_SHARED,
    TRAFFIC_LDMATRIX,
    TRAFFIC_STMATRIX,
    TRAFFIC_BULK_LOAD,
    TRAFFIC_BULK_STORE,
    TRAFFIC_BULK_REDUCE,
    TRAFFIC_ASYNC,
    TRAFFIC_COUNT
};

enum { LAUNCH_MOST_RESIDENT = 64 }; /* CTAs of a multiprocessor that a profile runs at once */

struct watcher;
struct trace;
struct launch {
    const struct CUfunc_st *function;
    struct device *device;
    uint32_t grid[3], block[3], threads; /* threads of a CTA */
    uint32_t cluster[3], ranks;          /* CTAs of a cluster */
    uint32_t warps, cta_warps;           /* of a cluster, of a CTA */
    uint32_t shared_bytes;               /* of a cluster: its CTAs' shared memory, one `span` after the other */
    uint32_t cta_shared, dynamic_bytes;  /* of a CTA: static + dynamic, dynamic */
    uint32_t span;
    char *constants; /* of each CTA of a cluster, where addresses of shared memory differ; NULL: the function's */
    uint8_t *parameters;
    uint64_t workspace; /* address of the CTA counter of cooperative groups; 0: not a cooperative launch */
    /* stride: between consecutive clusters in the order that the seed gives */
    uint64_t clusters, seed, stride, instruction_limit;
    uint32_t multiprocessors;
    uint32_t resident; /* of a profile: CTAs of a multiprocessor that run at once; 0: all CTAs run, each for itself */
    uint32_t sampled;  /* of a profile: multiprocessors whose CTAs run */
    uint32_t l1_bytes; /* of a profile: what a CTA has, or all of these CTAs */
    uint64_t patience; /* milliseconds to wait for the host when every CTA waits */
    atomic_uint_fast64_t next, executed;
    atomic_int stop;
    unsigned interrupts; /* device->interrupts when the launch began */
    struct mutex lock;   /* protects the members below */
    CUresult result;
    char fault[FAULT_BYTES];
    struct printed *printed; /* output of printf, latest first */
    size_t printed_bytes, unprinted_bytes;
    unsigned helpers;
    enum checks checks;
    const struct watcher *watcher[4]; /* watch.h */
    uint32_t watchers;
    struct profile *profile; /* NULL: no profile is recorded */
    struct reuse *reuse;     /* reuse.c, of the profile */
    struct trace *trace;     /* trace.c; NULL: not traced */
    struct launch *following;
    uint64_t number; /* number of this launch in the process, from 1 */
    struct launch *next_running;
    struct schedule *schedule; /* schedule.c */
    struct world *world;       /* check_global.h: at level full, else NULL */
};

/* Return the cluster of a turn: in order for seed 0 and on one multiprocessor, else in strides from a random start. */
static inline uint64_t launch_cluster_at(const struct launch *launch, uint64_t turn) {
    if (launch->seed == 0 || launch->resident != 0) {
        return turn;
    }
    const uint64_t first = launch->seed * 0x9e3779b97f4a7c15u % launch->clusters;
    return (turn * launch->stride + first) % launch->clusters;
}

/* Write the position in the grid of a CTA: of this rank, in the cluster of this number. */
static inline void launch_place(const struct launch *launch, uint64_t cluster, uint32_t rank, uint32_t id[3]) {
    for (int k = 0; k < 3; ++k) {
        const uint32_t clusters = launch->grid[k] / launch->cluster[k];
        id[k] = (uint32_t)(cluster % clusters) * launch->cluster[k] + rank % launch->cluster[k];
        cluster /= clusters;
        rank /= launch->cluster[k];
    }
}

#endif
