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

struct watcher;
struct trace;
struct launch {
    const struct CUfunc_st *function;
    struct device *device;
    uint32_t grid[3], block[3], threads, warps;
    uint32_t shared_bytes, dynamic_bytes; /* static + dynamic */
    uint8_t *parameters;
    uint64_t workspace; /* address of the CTA counter of cooperative groups; 0: not a cooperative launch */
    /* stride: between consecutive CTAs in the order that the seed gives */
    uint64_t ctas, seed, stride, instruction_limit;
    uint32_t multiprocessors;
    uint64_t patience; /* milliseconds to wait for the host when every CTA waits */
    atomic_uint_fast64_t next, executed;
    atomic_int stop;
    unsigned interrupts; /* device->interrupts when the launch began */
    struct mutex lock;   /* protects the members below */
    CUresult result;
    char fault[4096];
    struct printed *printed; /* output of printf, latest first */
    size_t printed_bytes, unprinted_bytes;
    unsigned helpers;
    enum checks checks;
    const struct watcher *watcher[4]; /* watch.h */
    uint32_t watchers;
    struct profile *profile; /* NULL: no profile is recorded */
    struct trace *trace;     /* trace.c; NULL: not traced */
    struct launch *following;
    uint64_t number; /* number of this launch in the process, from 1 */
    struct launch *next_running;
    struct schedule *schedule; /* schedule.c */
    struct world *world;       /* check_global.h: at level full, else NULL */
};

#endif
