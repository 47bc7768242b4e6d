/* Device memory, and all checks of addresses. A device address is the host address of a lazily committed mapping
 * with a guard page on each side. Freed mappings stay reserved for a while, so that a use after free is recognised. */
#include "vm/machine/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/pages.h"
#include "platform/thread.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/device.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/poison.h"
#include "vm/machine/program.h"
#include "vm/machine/shade.h"
#include "vm/machine/types.h"

/* ---- allocations --------------------------------------------------------------------------------------------- */

/* Return the index of the allocation that holds an address, or the index where it would be inserted. The lock is
 * held. */
static size_t position(const struct device *device, uint64_t address) {
    size_t low = 0, high = device->allocation_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (device->allocations[middle].end <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Find room for a block of malloc in kernels, with a gap behind it. All blocks share one mapping, because a host has
 * few. Return 0 if there is no room. The lock is held. */
static uint64_t heap_place(struct device *device, size_t bytes) {
    enum { ALIGN = 16, GAP = 16 };
    const size_t whole = (bytes + ALIGN - 1) / ALIGN * ALIGN + GAP;
    if (device->heap == NULL) {
        char *const heap = pages_reserve(HEAP_SPACE);
        if (heap == NULL) {
            return 0;
        }
        if (!pages_commit(heap, HEAP_SPACE)) {
            pages_release(heap, HEAP_SPACE);
            return 0;
        }
        device->heap = heap;
    }
    const uint64_t first = (uint64_t)(uintptr_t)device->heap, end = first + HEAP_SPACE;
    uint64_t at = first + device->heap_next;
    for (bool is_again = false;;) {
        const size_t next = position(device, at);
        const uint64_t start = next < device->allocation_count ? device->allocations[next].start : UINT64_MAX;
        if (at + whole > end) {
            if (is_again) {
                return 0;
            }
            is_again = true;
            at = first;
        } else if (start < at + whole) {
            at = (device->allocations[next].end + ALIGN - 1) / ALIGN * ALIGN + GAP;
        } else {
            device->heap_next = (size_t)(at + whole - first);
            return at;
        }
    }
}

/* Map memory for an allocation, between two guard pages. Return false on failure. */
static bool map(struct allocation *a, size_t bytes) {
    const size_t page = pages_size(), whole = (bytes + page - 1) / page * page, mapped = whole + 2 * page;
    char *const base = pages_reserve(mapped);
    if (base == NULL) {
        return false;
    }
    if (!pages_commit(base + page, whole)) {
        pages_release(base, mapped);
        return false;
    }
    POISON(base + page + bytes, whole - bytes);
    a->mapping = base;
    a->mapped = mapped;
    a->start = (uint64_t)(uintptr_t)(base + page);
    return true;
}

/* Unmap an allocation. */
static void unmap(const struct allocation *a) {
    if (a->mapping == NULL) {
        return;
    }
    UNPOISON(a->mapping, a->mapped);
    pages_release(a->mapping, a->mapped);
}

/* Reserve and record memory. The lock is held. */
static CUresult allocate(struct device *device, size_t bytes, enum allocation_kind kind, uint64_t *address) {
    if (bytes > SIZE_MAX - 3 * pages_size() || bytes > device->limit || device->used > device->limit - bytes) {
        return fault_set(CUDA_ERROR_OUT_OF_MEMORY, "cannot allocate %zu bytes: %zu of %zu bytes are in use", bytes,
                         device->used, device->limit);
    }
    if (device->allocation_count == device->allocation_space) {
        const size_t space = device->allocation_space != 0 ? 2 * device->allocation_space : 64;
        struct allocation *grown = realloc(device->allocations, space * sizeof *grown);
        if (grown == NULL) {
            return fault_set(CUDA_ERROR_OUT_OF_MEMORY, "out of host memory");
        }
        device->allocations = grown;
        device->allocation_space = space;
    }
    const bool is_shaded = kind == ALLOCATION_SHADED || kind == ALLOCATION_HEAP_SHADED;
    struct allocation a = {.pinned = kind == ALLOCATION_PINNED,
                           .owned = kind == ALLOCATION_VARIABLE || kind == ALLOCATION_CONSTANT,
                           .constant = kind == ALLOCATION_CONSTANT,
                           .in_heap = kind == ALLOCATION_HEAP || kind == ALLOCATION_HEAP_SHADED};
    bool is_there = true;
    if (a.in_heap) {
        a.start = device->heap_blocks < HEAP_BLOCKS ? heap_place(device, bytes) : 0;
        is_there = a.start != 0;
    } else {
        is_there = map(&a, bytes);
    }
    a.end = a.start + bytes;
    a.shade = is_there && is_shaded ? shade_open(bytes) : NULL;
    if (!is_there || (is_shaded && a.shade == NULL)) {
        unmap(&a);
        return fault_set(CUDA_ERROR_OUT_OF_MEMORY, "the host could not map %zu bytes", bytes);
    }
    if (a.shade != NULL) {
        atomic_fetch_add(&device->shades, 1);
    }
    const size_t at = position(device, a.start);
    memmove(&device->allocations[at + 1], &device->allocations[at], (device->allocation_count - at) * sizeof a);
    device->allocations[at] = a;
    ++device->allocation_count;
    device->heap_blocks += a.in_heap;
    device->used += bytes;
    *address = a.start;
    return CUDA_SUCCESS;
}

/* Allocate device memory. */
CUresult memory_alloc(struct device *device, size_t bytes, enum allocation_kind kind, uint64_t *address) {
    if (bytes == 0) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "cannot allocate 0 bytes; expected at least 1");
    }
    atomic_fetch_add(&device->host_calls, 1);
    rwlock_lock_write(&device->memory_lock);
    const CUresult r = allocate(device, bytes, kind, address);
    rwlock_unlock_write(&device->memory_lock);
    return r;
}

/* Free the shade of an allocation. */
static void end_shade(struct device *device, struct allocation *a) {
    if (a->shade != NULL) {
        atomic_fetch_sub(&device->shades, 1);
    }
    shade_free(a->shade);
    a->shade = NULL;
}

/* Free an allocation. Its addresses stay reserved for a while. The lock is held. */
static void give_back(struct device *device, size_t at) {
    struct allocation *a = &device->allocations[at];
    struct allocation *old = &device->freed[device->freed_next++ % FREED];
    unmap(old);
    end_shade(device, a);
    *old = *a;
    if (a->mapping != NULL) {
        pages_decommit(a->mapping, a->mapped);
    }
    device->used -= (size_t)(a->end - a->start);
    device->heap_blocks -= a->in_heap;
    memmove(a, a + 1, (device->allocation_count - at - 1) * sizeof *a);
    --device->allocation_count;
}

/* Mark an allocation for freeing once the running launches have ended. Return false if none is running. The memory
 * lock is held. */
static bool postpone(struct device *device, struct allocation *a) {
    mutex_lock(&device->running_lock);
    const bool is_used = device->running != NULL;
    if (is_used) {
        a->freed_at = device->launches;
        ++device->dying;
    }
    mutex_unlock(&device->running_lock);
    return is_used;
}

/* Return the kind with which memory_free() must be called. */
static enum allocation_kind kind_of(const struct allocation *a) {
    return a->owned     ? ALLOCATION_VARIABLE
           : a->pinned  ? ALLOCATION_PINNED
           : a->in_heap ? ALLOCATION_HEAP
                        : ALLOCATION_PLAIN;
}

/* Free device memory. If launches are running, the last one that may use it frees it. */
CUresult memory_free(struct device *device, uint64_t address, enum allocation_kind kind) {
    atomic_fetch_add(&device->host_calls, 1);
    rwlock_lock_write(&device->memory_lock);
    const size_t at = position(device, address);
    struct allocation *a = &device->allocations[at];
    if (at == device->allocation_count || a->start != address || a->freed_at != 0 || kind_of(a) != kind) {
        rwlock_unlock_write(&device->memory_lock);
        return fault_set(CUDA_ERROR_INVALID_VALUE, "0x%llx is not the address of an allocation",
                         (unsigned long long)address);
    }
    if (!postpone(device, a)) {
        give_back(device, at);
    }
    rwlock_unlock_write(&device->memory_lock);
    return CUDA_SUCCESS;
}

uint64_t memory_heap_alloc(struct device *device, uint64_t bytes, bool is_shaded) {
    uint64_t address = 0;
    rwlock_lock_write(&device->memory_lock);
    if (bytes != 0 && bytes <= HEAP && device->heap_used <= HEAP - bytes &&
        allocate(device, bytes, is_shaded ? ALLOCATION_HEAP_SHADED : ALLOCATION_HEAP, &address) == CUDA_SUCCESS) {
        device->heap_used += bytes;
    }
    rwlock_unlock_write(&device->memory_lock);
    return address;
}

bool memory_heap_free(struct worker *worker, uint64_t address) {
    struct device *const device = worker->launch->device;
    rwlock_lock_write(&device->memory_lock);
    const size_t at = position(device, address);
    struct allocation *const a = &device->allocations[at];
    const bool is_good = at < device->allocation_count && a->start == address && a->in_heap && !a->ended;
    if (is_good) {
        a->ended = true;
        device->heap_used -= a->end - a->start;
        postpone(device, a);
        memset(worker->cached, 0, sizeof worker->cached);
    }
    rwlock_unlock_write(&device->memory_lock);
    return is_good;
}

/* Free allocations that no launch can use any more. */
static void reap(struct device *device) {
    rwlock_lock_write(&device->memory_lock);
    mutex_lock(&device->running_lock);
    uint64_t oldest = UINT64_MAX;
    for (const struct launch *l = device->running; l != NULL; l = l->next_running) {
        oldest = l->number < oldest ? l->number : oldest;
    }
    for (size_t k = device->allocation_count; k-- > 0 && device->dying != 0;) {
        if (device->allocations[k].freed_at != 0 && device->allocations[k].freed_at < oldest) {
            give_back(device, k);
            --device->dying;
        }
    }
    mutex_unlock(&device->running_lock);
    rwlock_unlock_write(&device->memory_lock);
}

/* Begin a launch. Its number is unique in the process: reused CTA buffers are recognised by it. */
void memory_enter(struct device *device, struct launch *launch) {
    static atomic_uint_fast64_t launches;
    atomic_fetch_add(&device->host_calls, 1);
    rwlock_lock_read(&device->memory_lock); /* no allocation is freed meanwhile */
    mutex_lock(&device->running_lock);
    launch->number = device->launches = atomic_fetch_add(&launches, 1) + 1;
    launch->next_running = device->running;
    device->running = launch;
    mutex_unlock(&device->running_lock);
    rwlock_unlock_read(&device->memory_lock);
}

/* End a launch. */
void memory_leave(struct device *device, struct launch *launch) {
    mutex_lock(&device->running_lock);
    struct launch **link = &device->running;
    while (*link != launch) {
        link = &(*link)->next_running;
    }
    *link = launch->next_running;
    const bool is_dying = device->dying != 0;
    mutex_unlock(&device->running_lock);
    if (is_dying) {
        reap(device);
    }
}

/* Create the locks. The lock of allocations must let writers through while there are many readers. */
void memory_open(struct device *device) {
    rwlock_init(&device->memory_lock);
    mutex_init(&device->running_lock);
}

void memory_lock_all(struct device *device) {
    rwlock_lock_write(&device->memory_lock);
    mutex_lock(&device->running_lock);
}

void memory_unlock_all(struct device *device, bool is_child) {
    if (!is_child) {
        mutex_unlock(&device->running_lock);
        rwlock_unlock_write(&device->memory_lock);
        return;
    }
    memory_open(device); /* the parent's threads that wait for the locks do not exist in the child */
    device->running = NULL;
    reap(device);
}

/* Free all memory of a device. */
void memory_free_all(struct device *device) {
    rwlock_lock_write(&device->memory_lock);
    for (size_t k = 0; k < device->allocation_count; ++k) {
        unmap(&device->allocations[k]);
        end_shade(device, &device->allocations[k]);
    }
    for (size_t k = 0; k < FREED; ++k) {
        unmap(&device->freed[k]);
    }
    memset(device->freed, 0, sizeof device->freed);
    free(device->allocations);
    device->allocations = NULL;
    device->allocation_count = device->allocation_space = device->used = device->heap_used = 0;
    if (device->heap != NULL) {
        pages_release(device->heap, HEAP_SPACE);
    }
    device->heap = NULL;
    device->heap_next = 0;
    device->heap_blocks = 0;
    rwlock_unlock_write(&device->memory_lock);
}

/* Check that a range lies inside one allocation. For copies by the host. */
CUresult memory_check_range(struct device *device, uint64_t address, size_t bytes, const char *what) {
    const size_t at = position(device, address);
    const struct allocation *a = &device->allocations[at];
    const bool inside = at < device->allocation_count && a->start <= address && a->freed_at == 0;
    if (inside && bytes <= a->end - address) {
        return CUDA_SUCCESS;
    }
    if (inside) {
        return fault_set(CUDA_ERROR_INVALID_VALUE,
                         "%s: %zu bytes at 0x%llx extend %llu bytes past the end of their allocation", what, bytes,
                         (unsigned long long)address, (unsigned long long)(address + bytes - a->end));
    }
    return fault_set(CUDA_ERROR_INVALID_VALUE, "%s: 0x%llx is not in device memory", what, (unsigned long long)address);
}

/* ---- accesses of kernels ------------------------------------------------------------------------------------- */

/* Return whether an allocation was freed before a launch began, or by a kernel. */
static bool is_freed_for(const struct launch *launch, const struct allocation *a) {
    return a->ended || (a->freed_at != 0 && a->freed_at < launch->number);
}

/* Return whether a range lies inside one allocation. The worker's cache is searched first; its entries stay valid
 * during a launch. */
int memory_find(struct worker *worker, uint64_t address, uint64_t bytes) {
    struct allocation *cached = worker->cached;
    for (uint32_t k = 0; k < 8; ++k) {
        if (cached[k].start <= address && address < cached[k].end && bytes <= cached[k].end - address) {
            return 1 + cached[k].constant;
        }
    }
    struct device *device = worker->launch->device;
    rwlock_lock_read(&device->memory_lock);
    const size_t at = position(device, address);
    const struct allocation *a = &device->allocations[at];
    const bool found = at < device->allocation_count && a->start <= address && bytes <= a->end - address &&
                       !is_freed_for(worker->launch, a);
    if (found) {
        memmove(cached + 1, cached, 7 * sizeof *cached);
        cached[0] = *a;
    }
    rwlock_unlock_read(&device->memory_lock);
    return found ? 1 + cached[0].constant : 0;
}

/* Report an access to freed memory. The lock is held. */
static void explain_freed(struct warp *w, const struct allocation *f, uint64_t address, uint32_t bytes, uint32_t lane,
                          const char *what) {
    fault_at(
        w, CUDA_ERROR_ILLEGAL_ADDRESS, lane,
        "%s of %u bytes at global address 0x%llx: use after free, %llu bytes into a freed allocation of %llu bytes",
        what, bytes, (unsigned long long)address, (unsigned long long)(address - f->start),
        (unsigned long long)(f->end - f->start));
}

/* Say which variable an allocation is, or which parameters of the launch point into it: ", to which ... points". */
static struct fault_text owner_of(const struct warp *w, const struct allocation *a) {
    const struct CUfunc_st *const f = w->function;
    struct fault_text to = {""};
    size_t used = 0;
    for (uint32_t k = 0; k < f->module->variable_count; ++k) {
        if (f->module->variables[k].address == a->start) {
            snprintf(to.text, sizeof to.text, ", the variable %s", f->module->variables[k].name);
            return to;
        }
    }
    for (uint32_t k = 0; k < f->parameter_count; ++k) {
        const struct parameter *const p = &f->parameters[k];
        for (uint32_t at = 0; at + 8 <= p->bytes && used < 400; at += 8) {
            uint64_t value;
            memcpy(&value, w->cta->launch->parameters + p->offset + at, sizeof value);
            if (value >= a->start && value < a->end) {
                char byte[32] = "";
                if (p->bytes > 8) {
                    snprintf(byte, sizeof byte, " + %u", at);
                }
                used += (size_t)snprintf(to.text + used, sizeof to.text - used, "%s%s%s (argument %u)",
                                         used == 0 ? ", to which points parameter " : ", ", p->name, byte, k);
                break;
            }
        }
    }
    return to;
}

/* Report an access outside all allocations. The lock is held. */
static void explain_global(struct warp *w, uint64_t address, uint32_t bytes, uint32_t lane, const char *what) {
    const struct device *device = w->worker->launch->device;
    const unsigned long long shown = address;
    const size_t at = position(device, address), count = device->allocation_count;
    const struct allocation *a = device->allocations;
    const bool is_known = at < count && a[at].start <= address;
    for (size_t k = 0; k < FREED && !is_known; ++k) {
        const struct allocation *f = &device->freed[k];
        if (f->start <= address && address < f->end) {
            explain_freed(w, f, address, bytes, lane, what);
            return;
        }
    }
    /* Distances to the neighbours: the nearer one is named. */
    enum { FAR = 1 << 20 };
    const uint64_t behind = at != 0 ? address - a[at - 1].end : UINT64_MAX;
    const uint64_t before = at < count && a[at].start > address ? a[at].start - address : UINT64_MAX;
    if (is_known && is_freed_for(w->worker->launch, &a[at])) {
        explain_freed(w, &a[at], address, bytes, lane, what);
    } else if (is_known) {
        fault_at(w, CUDA_ERROR_ILLEGAL_ADDRESS, lane,
                 "%s of %u bytes at global address 0x%llx crosses the end of an allocation of %llu bytes at 0x%llx%s",
                 what, bytes, shown, (unsigned long long)(a[at].end - a[at].start), (unsigned long long)a[at].start,
                 owner_of(w, &a[at]).text);
    } else if (behind <= before && behind < FAR) {
        fault_at(w, CUDA_ERROR_ILLEGAL_ADDRESS, lane,
                 "%s of %u bytes at global address 0x%llx, %llu bytes past the end of an allocation of %llu bytes%s",
                 what, bytes, shown, (unsigned long long)behind, (unsigned long long)(a[at - 1].end - a[at - 1].start),
                 owner_of(w, &a[at - 1]).text);
    } else if (before < FAR) {
        fault_at(w, CUDA_ERROR_ILLEGAL_ADDRESS, lane,
                 "%s of %u bytes at global address 0x%llx, %llu bytes before an allocation of %llu bytes%s", what,
                 bytes, shown, (unsigned long long)before, (unsigned long long)(a[at].end - a[at].start),
                 owner_of(w, &a[at]).text);
    } else {
        fault_at(w, CUDA_ERROR_ILLEGAL_ADDRESS, lane,
                 "%s of %u bytes at global address 0x%llx, which is in no allocation", what, bytes, shown);
    }
}

static bool misaligned(struct warp *w, uint64_t address, uint32_t align, uint32_t lane, const char *what,
                       const char *space) {
    if ((address & (align - 1)) == 0) {
        return false;
    }
    fault_at(w, CUDA_ERROR_MISALIGNED_ADDRESS, lane, "%s at %s address 0x%llx, expected a multiple of %u", what, space,
             (unsigned long long)address, align);
    return true;
}

/* Return the host pointer of global memory; NULL after a fault. */
void *memory_global(struct warp *w, uint64_t address, uint32_t bytes, uint32_t align, uint32_t lane, const char *what) {
    if (misaligned(w, address, align, lane, what, "global")) {
        return NULL;
    }
    if (memory_find(w->worker, address, bytes) == 0) {
        struct rwlock *lock = &w->worker->launch->device->memory_lock;
        rwlock_lock_read(lock);
        explain_global(w, address, bytes, lane, what);
        rwlock_unlock_read(lock);
        return NULL;
    }
    return (void *)(uintptr_t)address;
}

/* Report an access to the shared memory of another CTA of the cluster. Return false after a fault. */
static bool may_reach(struct warp *w, uint32_t rank, uint64_t address, uint32_t lane, const char *what) {
    struct cta *cta = w->cta;
    const struct inst *i = &w->function->code[w->pc];
    const struct member *to = &cta->member[rank];
    if (i->space != SPACE_GENERIC && (i->flags & ADDRESS_CLUSTER) == 0) {
        fault_at(w, CUDA_ERROR_ILLEGAL_ADDRESS, lane,
                 "%s at shared address 0x%llx, in the memory of CTA %u of the cluster; expected .shared::cluster", what,
                 (unsigned long long)address, rank);
        return false;
    }
    if (cta->cluster_phase == 0 && (warp_member(w)->heard >> rank & 1u) == 0) {
        fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
                 "%s at shared address 0x%llx of CTA %u of the cluster, which may not have started; expected "
                 "barrier.cluster.arrive and barrier.cluster.wait first",
                 what, (unsigned long long)address, rank);
        return false;
    }
    if (to->exited_warps == cta->launch->cta_warps) {
        fault_at(w, CUDA_ERROR_LAUNCH_FAILED, lane,
                 "%s at shared address 0x%llx of CTA %u of the cluster, which has ended; expected barrier.cluster "
                 "before its end",
                 what, (unsigned long long)address, rank);
        return false;
    }
    cta->member[rank].heard |= 1u << w->rank;
    return true;
}

/* Return the host pointer of shared memory; NULL after a fault. */
void *memory_shared(struct warp *w, uint64_t address, uint32_t bytes, uint32_t align, uint32_t lane, const char *what) {
    const uint64_t size = w->cta->cta_shared, span = w->cta->launch->span, offset = address - SHARED_BASE;
    const uint64_t rank = w->cta->ranks != 1 ? offset / span : 0, within = offset - rank * span;
    if (misaligned(w, address, align, lane, what, "shared")) {
        return NULL;
    }
    if (address < SHARED_BASE || rank >= w->cta->ranks || within > size || bytes > size - within) {
        fault_at(w, CUDA_ERROR_ILLEGAL_ADDRESS, lane,
                 "%s of %u bytes at shared address 0x%llx; this CTA has %u to %llu", what, bytes,
                 (unsigned long long)address, w->shared_start, (unsigned long long)(w->shared_start + size));
        return NULL;
    }
    if (UNLIKELY(rank != w->rank) && !may_reach(w, (uint32_t)rank, address, lane, what)) {
        return NULL;
    }
    return w->cta->shared + (address - SHARED_BASE);
}

/* Return the host pointer of a lane's local memory or of the parameters; NULL after a fault. */
static void *memory_small(struct warp *w, uint8_t *base, uint64_t size, uint64_t address, uint32_t bytes,
                          uint32_t align, uint32_t lane, const char *what, const char *space) {
    if (misaligned(w, address, align, lane, what, space)) {
        return NULL;
    }
    if (address > size || bytes > size - address) {
        fault_at(w, CUDA_ERROR_ILLEGAL_ADDRESS, lane,
                 "%s of %u bytes at %s address 0x%llx, out of bounds: the space has %llu bytes", what, bytes, space,
                 (unsigned long long)address, (unsigned long long)size);
        return NULL;
    }
    return base + address;
}

/* Return the address of a constant from its lower 32 bits, which are enough for ld.const. */
static uint64_t wide_constant(const struct warp *w, uint32_t narrow) {
    const struct module *m = w->function->module;
    for (uint32_t k = 0; k < m->variable_count; ++k) {
        const struct placed *v = &m->variables[k];
        const uint32_t offset = narrow - (uint32_t)v->address;
        if (v->space == SPACE_CONST && offset < v->bytes) {
            return v->address + offset;
        }
    }
    return narrow;
}

/* Return whether an access to local memory lies beyond the frame of the function that a lane is in: there are only
 * frames of functions that have returned. Report it. */
static bool is_beyond_frames(struct warp *w, uint64_t address, uint32_t bytes, uint32_t lane, const char *what) {
    const struct CUfunc_st *f = w->function;
    const uint32_t depth = w->depth[lane], end = depth != 0 ? w->calls[(depth - 1) * WARP + lane].end : f->frame_bytes;
    if (address + bytes <= end || address + bytes > f->local_bytes) {
        return false;
    }
    fault_at(w, CUDA_ERROR_ILLEGAL_ADDRESS, lane,
             "%s of %u bytes at local address 0x%llx, in the frame of a function that has returned; expected less than "
             "0x%x",
             what, bytes, (unsigned long long)address, end);
    return true;
}

/* Return the host pointer of an address in any space; NULL after a fault. *found is set to the space of the address. */
void *memory_any(struct warp *w, enum space space, uint64_t address, uint32_t bytes, uint32_t align, uint32_t lane,
                 int is_write, enum space *found) {
    const char *what = is_write != 0 ? "write" : "read";
    const struct CUfunc_st *f = w->function;
    *found = address_resolve(space, &address);
    switch (*found) {
    case SPACE_SHARED:
        return memory_shared(w, address, bytes, align, lane, what);
    case SPACE_LOCAL:
        if (UNLIKELY(f->call_depth != 0) && is_beyond_frames(w, address, bytes, lane, what)) {
            return NULL;
        }
        return memory_small(w, w->local + (size_t)lane * f->local_bytes, f->local_bytes, address, bytes, align, lane,
                            what, "local");
    case SPACE_PARAM:
        if (is_write != 0) {
            fault_at(w, CUDA_ERROR_INVALID_ADDRESS_SPACE, lane, "writes to a parameter, which is read-only");
            return NULL;
        }
        return memory_small(w, w->cta->launch->parameters, f->parameter_bytes, address, bytes, align, lane, what,
                            "parameter");
    default:
        address = space == SPACE_CONST && address >> 32 == 0 ? wide_constant(w, (uint32_t)address) : address;
        if (is_write != 0 && memory_find(w->worker, address, bytes) > 1) {
            fault_at(w, CUDA_ERROR_INVALID_ADDRESS_SPACE, lane, "writes to a .const variable, which is read-only");
            return NULL;
        }
        return memory_global(w, address, bytes, align, lane, what);
    }
}
