/* A virtual device: its memory, counters and launches. */
#ifndef SM120_VM_MACHINE_DEVICE_H
#define SM120_VM_MACHINE_DEVICE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "platform/thread.h"
#include "vm/machine/launch.h"
#include "vm/machine/memory.h"

enum { MAX_COUNTERS = 1024, FREED = 256, MULTIPROCESSORS = 170 };

struct device {
    int ordinal;
    struct rwlock memory_lock;      /* of the allocations; taken for moments and while the host copies */
    struct allocation *allocations; /* sorted by start */
    size_t allocation_count, allocation_space;
    struct allocation freed[FREED];
    size_t freed_next;
    size_t used, limit;
    struct mutex running_lock; /* of the next three; taken after memory_lock */
    struct launch *running;
    uint64_t launches;
    size_t dying; /* allocations that are freed and still in use */
    struct mutex counter_lock;
    uint64_t opcode_count[MAX_COUNTERS];
    uint64_t bytes[TRAFFIC_COUNT], tensor_flops;
    atomic_uint shades;      /* allocations with a shade */
    struct stored *stored;   /* defined_report.c; guarded by running_lock */
    struct profile *profile; /* that is taken now; guarded by counter_lock */
    struct module *modules;
    struct mutex module_lock;
    atomic_uint host_calls; /* copies, fills, allocations, launches: signs that the host is alive */
    atomic_uint interrupts; /* how often somebody asked the running launches to stop */
};

#endif
