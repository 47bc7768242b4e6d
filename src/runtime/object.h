/* Handles of devices, modules and kernels. A handle is a number that is never used twice, not an address, so a stale,
 * foreign or mistyped handle is detected and never dereferenced. */
#ifndef SM120_OBJECT_H
#define SM120_OBJECT_H

#include <stdbool.h>
#include <stdint.h>

#include "sm120.h"

enum object_kind { OBJECT_DEVICE = 1, OBJECT_MODULE, OBJECT_KERNEL };

/* The first member of every object that has a handle. Guarded by the lock of object.c. */
struct object {
    enum object_kind kind;
    bool alive;           /* false once it is being closed */
    uint32_t uses;        /* running calls that use it or an object that it owns */
    struct object *owner; /* kernel -> module -> device -> NULL */
    void *handle;
};

/* Give an object a handle. The owner, if any, is held by the caller. False: out of host memory. */
bool object_register(struct object *object, enum object_kind kind, struct object *owner);

/* Find a handle's object and hold it and its owners. Returns NULL if the handle is NULL, stale, foreign, or of another
 * kind; the message names the argument `what`. */
struct object *object_acquire(const void *handle, enum object_kind kind, const char *what);

/* Release an object and its owners, which object_acquire holds. */
void object_release(struct object *object);

/* Close a handle: wait until all calls that use it have ended; no further call can begin. The owners are held until
 * object_unregister. Returns NULL with a message like object_acquire. */
struct object *object_retire(const void *handle, enum object_kind kind, const char *what);

/* Before a fork: take the lock of the table and, by `seize`, the lock of each object of a kind. If `seize` fails,
 * release all locks and start again. */
void object_lock_all(enum object_kind kind, bool (*seize)(struct object *), void (*let_go)(struct object *));

/* After a fork: release the locks. In the child no object is in use, because the threads that used them are gone. */
void object_unlock_all(enum object_kind kind, void (*let_go)(struct object *), bool is_child);

/* Forget an object's handle, before its memory is freed. */
void object_unregister(struct object *object);

#endif
