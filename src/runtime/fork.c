/* fork(): the locks of the library are taken before it and released after it, in the parent and in the child. */
#include "runtime/fork.h"

#include "platform/at_fork.h"
#include "runtime/device.h"

/* Take the lock of a device, if that is possible now. */
static bool seize(struct object *object) {
    return mutex_try_lock(&((struct device *)object)->lock);
}

static void let_go(struct object *object) {
    mutex_unlock(&((struct device *)object)->lock);
}

/* The same in the child, where a thread that was loading a kernel of the library no longer exists. */
static void renew(struct object *object) {
    let_go(object);
    mutex_init(&((struct device *)object)->builtin_lock);
}

static void before(void) {
    object_lock_all(OBJECT_DEVICE, seize, let_go);
}

static void in_parent(void) {
    object_unlock_all(OBJECT_DEVICE, let_go, false);
}

static void in_child(void) {
    object_unlock_all(OBJECT_DEVICE, renew, true);
}

static void install(void) {
    at_fork(before, in_parent, in_child);
}

void fork_prepare(void) {
    static struct once once = ONCE_INITIALIZER;
    once_run(&once, install);
}
