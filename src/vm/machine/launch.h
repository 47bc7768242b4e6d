/* A launch, and the threads that work on it. */
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

/* How strict a launch is: bounds, alignment and the like are always checked. */
enum checks { CHECKS_OFF, CHECKS_DEFAULT, CHECKS_FULL };

struct CUfunc_st;

/* What one thread needs to run CTAs; kept between launches. */
struct worker {
    struct launch *launch;
    uint64_t *counts; /* [pc]: warp instructions executed */
    uint64_t bytes[16];
    uint64_t tensor_flops;
    uint64_t executed, checked; /* warp instructions; looked at */
    uint64_t changes;           /* atomic operations that changed what they met */
    struct allocation cached[8];
    struct profile_worker *profile; /* profile.c; NULL when nobody takes a profile */
    struct cta *spare;              /* an empty room, or NULL */
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
    uint64_t workspace; /* address of what cooperative groups count CTAs in; 0: no cooperative launch */
    uint64_t ctas, seed, stride, instruction_limit; /* stride: from one CTA to the next, in the seed's order */
    uint64_t patience;                              /* milliseconds that the host has to answer when all wait */
    atomic_uint_fast64_t next, executed;
    atomic_int stop;
    unsigned interrupts; /* of the device, when the launch began */
    struct mutex lock;   /* of what follows */
    CUresult result;
    char fault[4096];
    struct printed *printed; /* what printf wrote, latest first */
    size_t printed_bytes, unprinted_bytes;
    unsigned helpers;
    enum checks checks;
    const struct watcher *watcher[4]; /* watch.h */
    uint32_t watchers;
    struct profile *profile; /* NULL: nobody takes one */
    struct trace *trace;     /* trace.c; NULL: no caller looks on */
    struct launch *following;
    uint64_t number; /* of this launch in the process, from 1 */
    struct launch *next_running;
    struct schedule *schedule; /* schedule.c */
    struct world *world;       /* check_global.h: at level full, else NULL */
};

#endif
