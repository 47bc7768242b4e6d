/* fork(): the locks of the library are taken before it and free after it, in the parent and in the child. */
#define _POSIX_C_SOURCE 200809L
#include "runtime/fork.h"

#include <pthread.h>

#include "runtime/device.h"

/* Take the lock of a device, if that is possible now. */
static bool seize(struct object *object) {
    return pthread_mutex_trylock(&((struct device *)object)->lock) == 0;
}

static void let_go(struct object *object) {
    pthread_mutex_unlock(&((struct device *)object)->lock);
}

/* The same in the child, where the thread that loads a kernel of the library, if any, is no more. */
static void renew(struct object *object) {
    let_go(object);
    pthread_mutex_init(&((struct device *)object)->builtin_lock, NULL);
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
    pthread_atfork(before, in_parent, in_child);
}

void fork_prepare(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}
