/* A table of handles: slots with a serial number, under one lock. */
#include "runtime/object.h"

#include <stdlib.h>

#include "platform/thread.h"
#include "runtime/error.h"

/* A handle is serial << 32 | slot << 3 | kind. */
_Static_assert(sizeof(void *) == 8, "handles take 64 bits");
enum { KIND_BITS = 3, KIND_MASK = 7, SLOTS_MAX = 1 << 28 };

static struct mutex lock = MUTEX_INITIALIZER;
static struct condition unused = CONDITION_INITIALIZER; /* the last use of an object that is being closed has ended */
static struct object **slots;
static size_t slot_count, live_count;
static uint32_t serial;

static const char *const kind_name[] = {"", "device", "module", "kernel"};

/* Find a free slot; grow the table if all are taken. Returns SLOTS_MAX if that fails. */
static size_t free_slot(void) {
    for (size_t i = 0; live_count < slot_count && i < slot_count; ++i) {
        if (slots[i] == NULL) {
            return i;
        }
    }
    const size_t count = slot_count == 0 ? 16 : 2 * slot_count;
    if (count > SLOTS_MAX) {
        return SLOTS_MAX;
    }
    struct object **const grown = realloc(slots, count * sizeof *grown);
    if (grown == NULL) {
        return SLOTS_MAX;
    }
    for (size_t i = slot_count; i < count; ++i) {
        grown[i] = NULL;
    }
    const size_t slot = slot_count;
    slots = grown;
    slot_count = count;
    return slot;
}

bool object_register(struct object *object, enum object_kind kind, struct object *owner) {
    mutex_lock(&lock);
    const size_t slot = free_slot();
    if (slot != SLOTS_MAX) {
        serial += 1;
        const uintptr_t handle = (uintptr_t)serial << 32 | (uintptr_t)slot << KIND_BITS | (uintptr_t)kind;
        *object = (struct object){.kind = kind, .alive = true, .owner = owner, .handle = (void *)handle};
        slots[slot] = object;
        live_count += 1;
    }
    mutex_unlock(&lock);
    return slot != SLOTS_MAX;
}

void object_unregister(struct object *object) {
    mutex_lock(&lock);
    slots[((uintptr_t)object->handle & UINT32_MAX) >> KIND_BITS] = NULL;
    live_count -= 1;
    if (live_count == 0) { /* so that unloading the library leaks nothing */
        free(slots);
        slots = NULL;
        slot_count = 0;
    }
    mutex_unlock(&lock);
}

/* Find the object of a handle, or NULL. The caller has the lock. */
static struct object *find(const void *handle, enum object_kind kind) {
    const uintptr_t value = (uintptr_t)handle;
    const size_t slot = (value & UINT32_MAX) >> KIND_BITS;
    struct object *const object = slot < slot_count ? slots[slot] : NULL;
    if (object == NULL || object->handle != handle || object->kind != kind) {
        return NULL;
    }
    for (const struct object *o = object; o != NULL; o = o->owner) {
        if (!o->alive) {
            return NULL;
        }
    }
    return object;
}

/* Add one use to an object and its owners. The caller has the lock. */
static void hold(struct object *object) {
    for (struct object *o = object; o != NULL; o = o->owner) {
        o->uses += 1;
    }
}

/* Take one use from an object and its owners. The caller has the lock. */
static void let_go(struct object *object) {
    for (struct object *o = object; o != NULL; o = o->owner) {
        o->uses -= 1;
        if (o->uses == 0 && !o->alive) {
            condition_wake_all(&unused);
        }
    }
}

/* Say what is wrong with a handle. */
static void complain(const void *handle, enum object_kind kind, const char *what) {
    const char *const name = kind_name[kind];
    const uintptr_t given = (uintptr_t)handle & KIND_MASK;
    if (handle == NULL) {
        fail(SM120_INVALID_ARGUMENT, "%s is NULL; give an open %s", what, name);
    } else if (given != (uintptr_t)kind && given >= OBJECT_DEVICE && given <= OBJECT_KERNEL) {
        fail(SM120_INVALID_ARGUMENT, "%s = %p is not a %s but a %s; give an open %s", what, handle, name,
             kind_name[given], name);
    } else {
        fail(SM120_INVALID_ARGUMENT, "%s = %p is not an open %s: it was closed, or it never was one", what, handle,
             name);
    }
}

struct object *object_acquire(const void *handle, enum object_kind kind, const char *what) {
    mutex_lock(&lock);
    struct object *const object = find(handle, kind);
    if (object != NULL) {
        hold(object);
    }
    mutex_unlock(&lock);
    if (object == NULL) {
        complain(handle, kind, what);
    }
    return object;
}

void object_release(struct object *object) {
    mutex_lock(&lock);
    let_go(object);
    mutex_unlock(&lock);
}

struct object *object_retire(const void *handle, enum object_kind kind, const char *what) {
    mutex_lock(&lock);
    struct object *const object = find(handle, kind);
    if (object != NULL && object->uses != 0 && driver_virtual()->looking()) {
        mutex_unlock(&lock); /* closing would wait for the launch, which waits for this callback */
        fail(SM120_INVALID_ARGUMENT, "%s = %p is in use; a watch callback must not close an object that is in use",
             what, handle);
        return NULL;
    }
    if (object != NULL) {
        hold(object->owner);
        object->alive = false;
        while (object->uses != 0) {
            condition_wait(&unused, &lock);
        }
    }
    mutex_unlock(&lock);
    if (object == NULL) {
        complain(handle, kind, what);
    }
    return object;
}

/* Take the locks of the objects of a kind in slots below `end`. Returns the slot that failed, or `end`. */
static size_t seize_all(enum object_kind kind, bool (*seize)(struct object *), size_t end) {
    for (size_t i = 0; i < end; ++i) {
        if (slots[i] != NULL && slots[i]->kind == kind && !seize(slots[i])) {
            return i;
        }
    }
    return end;
}

static void let_go_all(enum object_kind kind, void (*let_go_one)(struct object *), size_t end) {
    for (size_t i = 0; i < end; ++i) {
        if (slots[i] != NULL && slots[i]->kind == kind) {
            let_go_one(slots[i]);
        }
    }
}

void object_lock_all(enum object_kind kind, bool (*seize)(struct object *), void (*let_go_one)(struct object *)) {
    for (;;) {
        mutex_lock(&lock);
        const size_t taken = seize_all(kind, seize, slot_count);
        if (taken == slot_count) {
            return;
        }
        let_go_all(kind, let_go_one, taken); /* its owner may be waiting for the table */
        mutex_unlock(&lock);
        thread_yield();
    }
}

void object_unlock_all(enum object_kind kind, void (*let_go_one)(struct object *), bool is_child) {
    let_go_all(kind, let_go_one, slot_count);
    for (size_t i = 0; is_child && i < slot_count; ++i) {
        if (slots[i] != NULL) {
            slots[i]->uses = 0;
        }
    }
    if (is_child) {
        condition_init(&unused);
    }
    mutex_unlock(&lock);
}
