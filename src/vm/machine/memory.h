/* Device memory: allocations, and all checks of addresses. */
#ifndef SM120_VM_MACHINE_MEMORY_H
#define SM120_VM_MACHINE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/driver.h"
#include "vm/machine/base.h"

struct cta;
struct device;
struct launch;
struct warp;
struct worker;

/* Who owns an allocation. ALLOCATION_SHADED and ALLOCATION_HEAP_SHADED track which of their bytes are defined
 * (shade.h). ALLOCATION_HEAP is a kernel's malloc. */
enum allocation_kind {
    ALLOCATION_PLAIN,
    ALLOCATION_PINNED,
    ALLOCATION_VARIABLE,
    ALLOCATION_CONSTANT,
    ALLOCATION_SHADED,
    ALLOCATION_HEAP,
    ALLOCATION_HEAP_SHADED
};

struct allocation {
    uint64_t start, end;
    void *mapping; /* including the guard pages */
    size_t mapped;
    bool pinned, owned;  /* owned by a module */
    bool in_heap, ended; /* ended: a kernel has freed it */
    int constant;        /* read-only for kernels */
    uint64_t freed_at;   /* number of the last launch that may still use the freed allocation; 0: not freed */
    struct shade *shade; /* shade.h: which of its bytes are defined; NULL: all of them */
};

void memory_open(struct device *device);
/* Take and release the locks around a fork. No launch is running in the child. */
void memory_lock_all(struct device *device);
void memory_unlock_all(struct device *device, bool is_child);
/* Begin or end a launch. Allocations freed in between are kept until it has ended. */
void memory_enter(struct device *device, struct launch *launch);
void memory_leave(struct device *device, struct launch *launch);
CUresult memory_alloc(struct device *device, size_t bytes, enum allocation_kind kind, uint64_t *address);
CUresult memory_free(struct device *device, uint64_t address, enum allocation_kind kind);
void memory_free_all(struct device *device);
/* malloc of a kernel. Return 0 if the heap has not enough room. */
uint64_t memory_heap_alloc(struct device *device, uint64_t bytes, bool is_shaded);
/* free of a kernel. From now on its accesses are faults. False: malloc has not returned the address, or it is free. */
bool memory_heap_free(struct worker *worker, uint64_t address);
CUresult memory_check_range(struct device *device, uint64_t address, size_t bytes, const char *what);
/* Return the host pointer of global memory, or NULL after a fault. */
void *memory_global(struct warp *w, uint64_t address, uint32_t bytes, uint32_t align, uint32_t lane, const char *what);
/* Return 0 if the range is not inside one allocation, 1 if it is, 2 if it is and is read-only. */
int memory_find(struct worker *worker, uint64_t address, uint64_t bytes);
/* Return the host pointer of an address in any space, as the instruction computed it. *traffic is set to its space. */
void *memory_any(struct warp *w, enum space space, uint64_t address, uint32_t bytes, uint32_t align, uint32_t lane,
                 int is_write, enum space *found);
void *memory_shared(struct warp *w, uint64_t address, uint32_t bytes, uint32_t align, uint32_t lane, const char *what);

#endif
