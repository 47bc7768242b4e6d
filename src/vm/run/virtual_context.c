/* Contexts of the virtual SM120: one for each device, and the stack of each thread. Forks. */
#include "vm/run/virtual.h"

#include <stdbool.h>
#include <stddef.h>

#include "platform/at_fork.h"
#include "platform/thread.h"
#include "vm/defined/defined.h"
#include "vm/machine/counters.h"
#include "vm/machine/fault.h"
#include "vm/machine/memory.h"
#include "vm/observe/profile.h"
#include "vm/run/run.h"
#include "vm/run/streams.h"

enum { STACK = 16 };

static struct CUctx_st contexts[MAX_DEVICES];
static struct mutex contexts_lock = MUTEX_INITIALIZER;

static _Thread_local CUcontext stack[STACK];
static _Thread_local int depth;

struct device *virtual_current(void) {
    return depth != 0 ? &stack[depth - 1]->device : NULL;
}

CUresult virtual_no_context(void) {
    return fault_set(CUDA_ERROR_INVALID_CONTEXT, "the calling thread has no current context");
}

static void before_fork(void) {
    mutex_lock(&contexts_lock);
    for (int k = 0; k < MAX_DEVICES; ++k) {
        if (contexts[k].made != 0) {
            mutex_lock(&contexts[k].device.module_lock);
            memory_lock_all(&contexts[k].device);
            mutex_lock(&contexts[k].device.counter_lock);
        }
    }
    streams_lock();
    counters_lock();
    launch_lock();
}

static void after_fork(bool is_child) {
    launch_unlock(is_child);
    counters_unlock();
    for (int k = 0; k < MAX_DEVICES && is_child; ++k) {
        streams_keep_own(&contexts[k].device);
    }
    streams_unlock(is_child);
    for (int k = 0; k < MAX_DEVICES; ++k) {
        if (contexts[k].made != 0) {
            mutex_unlock(&contexts[k].device.counter_lock);
            memory_unlock_all(&contexts[k].device, is_child);
            mutex_unlock(&contexts[k].device.module_lock);
        }
    }
    mutex_unlock(&contexts_lock);
}

static void after_fork_in_parent(void) {
    after_fork(false);
}

static void after_fork_in_child(void) {
    after_fork(true);
}

static void watch_forks(void) {
    at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

CUresult virtual_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult r = virtual_check_device(device);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    if (context == NULL) {
        return virtual_null_argument("context");
    }
    static struct once once = ONCE_INITIALIZER;
    once_run(&once, watch_forks);
    mutex_lock(&contexts_lock);
    struct CUctx_st *c = &contexts[device];
    if (c->made == 0) {
        memory_open(&c->device);
        mutex_init(&c->device.counter_lock);
        mutex_init(&c->device.module_lock);
        c->device.ordinal = device;
        c->made = 1;
    }
    if (c->retained++ == 0) {
        c->device.limit = virtual_memory();
        virtual_counters_reset(c);
    }
    mutex_unlock(&contexts_lock);
    *context = c;
    return CUDA_SUCCESS;
}

CUresult virtual_cuDevicePrimaryCtxRelease(CUdevice device) {
    const CUresult r = virtual_check_device(device);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    mutex_lock(&contexts_lock);
    struct CUctx_st *c = &contexts[device];
    if (c->retained != 0 && --c->retained == 0) {
        while (c->device.modules != NULL) {
            struct CUmod_st *m = (struct CUmod_st *)(void *)c->device.modules;
            c->device.modules = m->module.next;
            virtual_free_module(m);
        }
        stored_free(c->device.stored);
        c->device.stored = NULL;
        memory_free_all(&c->device);
        profile_end(&c->device);
    }
    mutex_unlock(&contexts_lock);
    return CUDA_SUCCESS;
}

CUresult virtual_cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    const CUresult r = virtual_check_device(device);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    if (flags == NULL || active == NULL) {
        return virtual_null_argument(flags == NULL ? "flags" : "active");
    }
    mutex_lock(&contexts_lock);
    *flags = 0;
    *active = contexts[device].retained != 0;
    mutex_unlock(&contexts_lock);
    return CUDA_SUCCESS;
}

/* Whether a pointer is a context that is retained. */
static bool is_context(CUcontext context) {
    bool found = false;
    mutex_lock(&contexts_lock);
    for (int i = 0; i < MAX_DEVICES && !found; ++i) {
        found = context == &contexts[i] && contexts[i].retained != 0;
    }
    mutex_unlock(&contexts_lock);
    return found;
}

CUresult virtual_cuCtxGetCurrent(CUcontext *context) {
    if (context == NULL) {
        return virtual_null_argument("context");
    }
    *context = depth != 0 ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CUresult virtual_cuCtxGetDevice(CUdevice *device) {
    if (device == NULL) {
        return virtual_null_argument("device");
    }
    if (depth == 0) {
        return virtual_no_context();
    }
    *device = virtual_current()->ordinal;
    return CUDA_SUCCESS;
}

CUresult virtual_cuCtxPushCurrent(CUcontext context) {
    if (context == NULL) {
        return virtual_null_argument("context");
    }
    if (!is_context(context)) {
        return fault_set(CUDA_ERROR_INVALID_CONTEXT, "%p is no context of a virtual device that is open",
                         (void *)context);
    }
    if (depth == STACK) {
        return fault_set(CUDA_ERROR_INVALID_CONTEXT, "more than %d contexts are pushed", STACK);
    }
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult virtual_cuCtxPopCurrent(CUcontext *context) {
    if (depth == 0) {
        return virtual_no_context();
    }
    --depth;
    if (context != NULL) {
        *context = stack[depth];
    }
    return CUDA_SUCCESS;
}

CUresult virtual_cuCtxSynchronize(void) {
    if (depth == 0) {
        return virtual_no_context();
    }
    device_wait(virtual_current());
    return CUDA_SUCCESS;
}
