/* The names by which callers know devices, modules and kernels. A handle is a number that is never used twice, not an
 * address: a handle that is stale, foreign or of another kind is found out, never followed. */
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
    uint32_t uses;        /* calls at work on it or on what it owns */
    struct object *owner; /* kernel -> module -> device -> NULL */
    void *handle;
};

/* Give an object a handle. The owner, if any, is held by the caller. False: out of host memory. */
bool object_register(struct object *object, enum object_kind kind, struct object *owner);

/* Find a handle's object and hold it and its owners. NULL, with a message that calls the argument `what`, where the
 * handle is NULL, stale, foreign, or of another kind. */
struct object *object_acquire(const void *handle, enum object_kind kind, const char *what);

/* Let go of what object_acquire held. */
void object_release(struct object *object);

/* Close a handle: no call can begin with it from here on, and those that have begun have ended. The owners are held
 * until object_unregister. NULL with a message as above. */
struct object *object_retire(const void *handle, enum object_kind kind, const char *what);

/* Before a fork: take the lock of the table and, by `seize`, that of each object of a kind. Where `seize` fails, all
 * that was taken is let go, and it begins again. */
void object_lock_all(enum object_kind kind, bool (*seize)(struct object *), void (*let_go)(struct object *));

/* After a fork. In the child no object is in use, for the threads that used them are no more. */
void object_unlock_all(enum object_kind kind, void (*let_go)(struct object *), bool is_child);

/* Forget an object's handle, before its memory is freed. */
void object_unregister(struct object *object);

#endif
