/* Device memory: allocations, and every check of an address. */
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

/* Who asked for an allocation. The bytes of a shaded one are known as defined or not (shade.h). */
enum allocation_kind {
    ALLOCATION_PLAIN,
    ALLOCATION_PINNED,
    ALLOCATION_VARIABLE,
    ALLOCATION_CONSTANT,
    ALLOCATION_SHADED
};

struct allocation {
    uint64_t start, end;
    void *mapping; /* with its guards */
    size_t mapped;
    bool pinned, owned;  /* owned by a module */
    int constant;        /* kernels only read it */
    uint64_t freed_at;   /* freed, but launches up to this number may still use it; 0: not freed */
    struct shade *shade; /* shade.h: which of its bytes are defined; NULL: all of them */
};

void memory_open(struct device *device);
/* Before and after a fork: take and free the locks. In the child no launch runs. */
void memory_lock_all(struct device *device);
void memory_unlock_all(struct device *device, bool is_child);
/* A launch begins or ends: what is freed in between stays until it has ended. */
void memory_enter(struct device *device, struct launch *launch);
void memory_leave(struct device *device, struct launch *launch);
CUresult memory_alloc(struct device *device, size_t bytes, enum allocation_kind kind, uint64_t *address);
CUresult memory_free(struct device *device, uint64_t address, enum allocation_kind kind);
void memory_free_all(struct device *device);
CUresult memory_check_range(struct device *device, uint64_t address, size_t bytes, const char *what);
/* The host pointer of global memory, or NULL after a fault. */
void *memory_global(struct warp *w, uint64_t address, uint32_t bytes, uint32_t align, uint32_t lane, const char *what);
/* 0: not in one allocation; 1: it is; 2: it is, and may not be written. */
int memory_find(struct worker *worker, uint64_t address, uint64_t bytes);
/* The same for any space. `address` is as the instruction computed it; *traffic says which space it was. */
void *memory_any(struct warp *w, enum space space, uint64_t address, uint32_t bytes, uint32_t align, uint32_t lane,
                 int is_write, enum space *found);
void *memory_shared(struct warp *w, uint64_t address, uint32_t bytes, uint32_t align, uint32_t lane, const char *what);

#endif
