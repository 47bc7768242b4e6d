/* A virtual device: its memory, counters and launches. */
#ifndef SM120_VM_MACHINE_DEVICE_H
#define SM120_VM_MACHINE_DEVICE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "platform/thread.h"
#include "vm/machine/launch.h"
#include "vm/machine/memory.h"

enum { MAX_COUNTERS = 1024, FREED = 256, HEAP = 8 << 20, HEAP_SPACE = 256 << 20, HEAP_BLOCKS = 1 << 20 };
/* HEAP: bytes that malloc gives kernels at most, as in CUDA. HEAP_SPACE and HEAP_BLOCKS: their addresses, and
 * the number of blocks, with those that kernels have freed and whose launches have not ended. */

struct work;
struct device {
    int ordinal;
    struct rwlock memory_lock;      /* protects the allocations; held briefly, and while the host copies */
    struct allocation *allocations; /* sorted by start */
    size_t allocation_count, allocation_space;
    struct allocation freed[FREED];
    size_t freed_next;
    size_t used, limit;
    char *heap;                /* HEAP_SPACE bytes for malloc in kernels; NULL: none was called */
    size_t heap_next;          /* where the search for room begins */
    uint32_t heap_blocks;      /* of at most HEAP_BLOCKS */
    uint64_t heap_used;        /* bytes of malloc in kernels, of at most HEAP */
    struct mutex running_lock; /* protects the next three members; taken after memory_lock */
    struct launch *running;
    uint64_t launches;
    size_t dying; /* number of freed allocations that a launch may still use */
    struct mutex counter_lock;
    uint64_t opcode_count[MAX_COUNTERS];
    uint64_t bytes[TRAFFIC_COUNT], tensor_flops;
    atomic_uint shades;      /* number of allocations with a shade */
    struct stored *stored;   /* defined_report.c; guarded by running_lock */
    struct profile *profile; /* the profile being recorded; guarded by counter_lock */
    struct module *modules;
    struct mutex module_lock;
    atomic_uint host_calls; /* copies, fills, allocations and launches so far: they show that the host is active */
    struct work *work;      /* work that was issued and has not ended; streams.c */
    atomic_uint interrupts; /* number of requests to stop the running launches */
};

#endif
