/* Shades: which bytes of device memory are defined. Allocations that the host makes at level full have one. */
#include "vm/machine/shade.h"

#include <stdlib.h>
#include <string.h>

#include "platform/pages.h"
#include "platform/thread.h"
#include "vm/machine/device.h"
#include "vm/machine/memory.h"
#include "vm/machine/types.h"

/* Return zeroed memory that is committed on first access; NULL when the host is out of memory. */
static void *reserve(size_t bytes) {
    void *memory = pages_reserve(bytes);
    if (memory != NULL && !pages_commit(memory, bytes)) {
        pages_release(memory, bytes);
        memory = NULL;
    }
    return memory;
}

/* Create the shade of a new allocation, with all bytes undefined. */
struct shade *shade_open(size_t bytes) {
    struct shade *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->bytes = (bytes + pages_size() - 1) / pages_size() * pages_size();
    s->defined = reserve(s->bytes);
    s->origin = reserve(s->bytes);
    if (s->defined != NULL && s->origin != NULL) {
        return s;
    }
    shade_free(s);
    return NULL;
}

void shade_free(struct shade *s) {
    if (s != NULL && s->defined != NULL) {
        pages_release(s->defined, s->bytes);
    }
    if (s != NULL && s->origin != NULL) {
        pages_release(s->origin, s->bytes);
    }
    free(s);
}

/* Return the allocation that holds an address if it has a valid shade. NULL: all bytes count as defined. */
const struct allocation *shade_find(const struct device *device, uint64_t address) {
    for (size_t k = 0; k < device->allocation_count; ++k) {
        const struct allocation *a = &device->allocations[k];
        if (a->start <= address && address < a->end) {
            return a->shade != NULL && !atomic_load(&a->shade->lost) ? a : NULL;
        }
    }
    return NULL;
}

/* Invalidate all shades. Called before a launch that does not maintain them. */
void shade_lose_all(struct device *device) {
    if (!atomic_load(&device->shades)) {
        return;
    }
    rwlock_lock_read(&device->memory_lock);
    for (size_t k = 0; k < device->allocation_count; ++k) {
        if (device->allocations[k].shade != NULL) {
            atomic_store(&device->allocations[k].shade->lost, 1);
        }
    }
    rwlock_unlock_read(&device->memory_lock);
}

/* Clear the recorded origins of these bytes. */
static void forget(const struct shade *s, size_t at, size_t bytes) {
    if (!atomic_load_explicit(&s->stored, memory_order_relaxed)) {
        return;
    }
    for (size_t k = at; k < at + bytes;) {
        if (k % 4 == 0 && at + bytes - k >= 4) {
            s->origin[k / 4] = 0;
            k += 4;
            continue;
        }
        s->origin[k / 4] &= ~(1u << k % 4);
        ++k;
    }
}

/* Mark bytes that the host has written as defined. */
void shade_written(struct device *device, uint64_t address, size_t bytes) {
    const struct allocation *a = atomic_load(&device->shades) ? shade_find(device, address) : NULL;
    if (a == NULL) {
        return;
    }
    memset(a->shade->defined + (address - a->start), 0xff, bytes);
    forget(a->shade, address - a->start, bytes);
}

/* Copy the shade of one range to another. Call it before or after the host's copy. The ranges may overlap. */
void shade_copied(struct device *device, uint64_t to, uint64_t from, size_t bytes) {
    const struct allocation *a = atomic_load(&device->shades) ? shade_find(device, from) : NULL;
    const struct allocation *b = atomic_load(&device->shades) ? shade_find(device, to) : NULL;
    if (a == NULL || b == NULL) {
        shade_written(device, to, bytes);
        return;
    }
    const size_t x = from - a->start, y = to - b->start;
    const bool upward = to <= from, stored = atomic_load(&a->shade->stored);
    for (size_t n = 0; stored && n < bytes; ++n) {
        const size_t k = upward ? n : bytes - 1 - n;
        const uint32_t origin = a->shade->origin[(x + k) / 4], bit = 1u << (y + k) % 4;
        uint32_t *const old = &b->shade->origin[(y + k) / 4];
        if ((origin >> (x + k) % 4 & 1u) != 0) {
            *old = (origin & ~15u) | (*old & 15u) | bit;
        } else {
            *old &= ~bit;
        }
    }
    if (!stored) {
        forget(b->shade, y, bytes);
    } else {
        atomic_store(&b->shade->stored, 1);
    }
    memmove(b->shade->defined + y, a->shade->defined + x, bytes);
}
