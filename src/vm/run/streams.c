/* Streams and events of the virtual device. */
#include "vm/run/streams.h"

#include <stdlib.h>

#include "driver/registry.h"
#include "platform/clock.h"
#include "platform/thread.h"
#include "vm/machine/fault.h"

enum { LEGACY = 1, PER_THREAD = 2 }; /* numbers of the default streams; 0 is the first one too */

/* The first member tells whose handle it is. */
struct CUstream_st {
    struct device *device;
};
struct CUevent_st {
    struct device *device;
    uint64_t time;
    bool recorded;
};

/* Live streams and events of all devices, by address. Handles are dereferenced only if they are found here. */
enum handle { HANDLE_STREAM = 1, HANDLE_EVENT };
static struct registry handles;
static struct mutex lock = MUTEX_INITIALIZER; /* of the handles, and of the work of all devices */
static struct condition ended = CONDITION_INITIALIZER;
static uint64_t numbers;               /* of pieces of work */
static _Thread_local struct work *own; /* the latest one that this thread has begun */

/* ---- handles ------------------------------------------------------------------------------------------------- */

/* Check that a handle is live. The lock is held. */
static CUresult check_live(const void *handle, enum handle kind) {
    const uint64_t key = (uint64_t)(uintptr_t)handle;
    const struct record *record = registry_find(&handles, key);
    if (handle != NULL && record != NULL && record->key == key && record->bytes == kind) {
        return CUDA_SUCCESS;
    }
    return fault_set(CUDA_ERROR_INVALID_HANDLE, "%p is not a live %s: it was destroyed or never created", handle,
                     kind == HANDLE_STREAM ? "stream" : "event");
}

/* Check that a handle is live and belongs to a device. The lock is held. */
static CUresult check_owner(const struct device *device, void *handle, enum handle kind) {
    struct device **const owner = handle;
    const CUresult r = check_live(handle, kind);
    if (r != CUDA_SUCCESS || *owner == device) {
        return r;
    }
    return fault_set(CUDA_ERROR_INVALID_HANDLE, "%p is %s of device %d; the call is on device %d", handle,
                     kind == HANDLE_STREAM ? "a stream" : "an event", (*owner)->ordinal, device->ordinal);
}

static bool is_default(CUstream stream) {
    return (uintptr_t)stream <= PER_THREAD;
}

/* Check that a handle is a live stream of a device or one of its default streams. The lock is held. */
static CUresult check_stream(const struct device *device, CUstream stream) {
    return is_default(stream) ? CUDA_SUCCESS : check_owner(device, stream, HANDLE_STREAM);
}

/* Create a handle of a device: zeroed memory, recorded as live. */
static CUresult handle_create(struct device *device, void **handle, size_t bytes, enum handle kind) {
    struct device **const made = calloc(1, bytes);
    mutex_lock(&lock);
    const bool is_made = made != NULL && registry_reserve(&handles);
    if (is_made) {
        *made = device;
        registry_add(&handles, (struct record){(uint64_t)(uintptr_t)made, kind});
    }
    mutex_unlock(&lock);
    *handle = is_made ? made : NULL;
    if (is_made) {
        return CUDA_SUCCESS;
    }
    free(made);
    return fault_set(CUDA_ERROR_OUT_OF_MEMORY, "out of host memory");
}

static CUresult handle_destroy(void *handle, enum handle kind) {
    struct record record;
    mutex_lock(&lock);
    const CUresult r = check_live(handle, kind);
    if (r == CUDA_SUCCESS && registry_remove(&handles, (uint64_t)(uintptr_t)handle, &record)) {
        registry_cancel(&handles);
        free(handle);
    }
    if (handles.count == 0) { /* no memory is left when all devices are closed */
        registry_free(&handles);
    }
    mutex_unlock(&lock);
    return r;
}

/* ---- work ---------------------------------------------------------------------------------------------------- */

/* The stream that orders work: the default stream has two numbers. */
static CUstream order_of(CUstream stream) {
    return (uintptr_t)stream == LEGACY ? NULL : stream;
}

/* Return whether this thread is inside work of a stream: its launch has called back. */
static bool is_inside(const struct device *device, CUstream stream) {
    for (const struct work *t = own; t != NULL; t = t->outer) {
        if (t->device == device && t->stream == stream) {
            return true;
        }
    }
    return false;
}

/* Wait until a device has no work with a number below `end`; any_stream: else those of `stream` alone. The lock is
 * held. */
static void wait_for(const struct device *device, CUstream stream, bool any_stream, uint64_t end) {
    for (;;) {
        const struct work *t = device->work;
        while (t != NULL && (t->number >= end || !(any_stream || t->stream == stream))) {
            t = t->next;
        }
        if (t == NULL) {
            return;
        }
        condition_wait(&ended, &lock);
    }
}

CUresult work_begin(struct device *device, CUstream stream, struct work *work) {
    stream = order_of(stream);
    *work = (struct work){.stream = stream};
    mutex_lock(&lock);
    const CUresult r = check_stream(device, stream);
    /* each thread has a default stream of its own */
    if (r == CUDA_SUCCESS && (uintptr_t)stream != PER_THREAD && !is_inside(device, stream)) {
        work->device = device;
        work->number = ++numbers;
        struct work **link = &device->work;
        while (*link != NULL) {
            link = &(*link)->next;
        }
        *link = work;
        wait_for(device, stream, false, work->number);
        work->outer = own;
        own = work;
    }
    mutex_unlock(&lock);
    return r;
}

CUresult work_end(struct work *work, CUresult result) {
    if (work->device == NULL) {
        return result;
    }
    mutex_lock(&lock);
    struct work **link = &work->device->work;
    while (*link != work) {
        link = &(*link)->next;
    }
    *link = work->next;
    own = work->outer;
    condition_wake_all(&ended);
    mutex_unlock(&lock);
    return result;
}

CUresult stream_wait(struct device *device, CUstream stream) {
    struct work work;
    const CUresult r = work_begin(device, stream, &work);
    return r == CUDA_SUCCESS ? work_end(&work, r) : r;
}

void device_wait(struct device *device) {
    mutex_lock(&lock);
    if (own == NULL) { /* else the work that has called back would wait for itself */
        wait_for(device, NULL, true, numbers + 1);
    }
    mutex_unlock(&lock);
}

/* ---- streams and events -------------------------------------------------------------------------------------- */

CUresult stream_create(struct device *device, CUstream *stream) {
    void *made;
    const CUresult r = handle_create(device, &made, sizeof **stream, HANDLE_STREAM);
    *stream = made;
    return r;
}

CUresult stream_check(struct device *device, CUstream stream) {
    mutex_lock(&lock);
    const CUresult r = check_stream(device, stream);
    mutex_unlock(&lock);
    return r;
}

CUresult stream_destroy(CUstream stream) {
    return handle_destroy(stream, HANDLE_STREAM);
}

CUresult event_create(struct device *device, CUevent *event) {
    void *made;
    const CUresult r = handle_create(device, &made, sizeof **event, HANDLE_EVENT);
    *event = made;
    return r;
}

CUresult event_destroy(CUevent event) {
    return handle_destroy(event, HANDLE_EVENT);
}

CUresult event_check(CUevent event) {
    mutex_lock(&lock);
    const CUresult r = check_live(event, HANDLE_EVENT);
    mutex_unlock(&lock);
    return r;
}

CUresult event_record(struct device *device, CUevent event, CUstream stream) {
    struct work work;
    CUresult r = work_begin(device, stream, &work);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    mutex_lock(&lock);
    r = check_owner(device, event, HANDLE_EVENT);
    if (r == CUDA_SUCCESS) {
        event->time = clock_steady();
        event->recorded = true;
    }
    mutex_unlock(&lock);
    return work_end(&work, r);
}

CUresult event_elapsed(CUevent start, CUevent end, float *milliseconds) {
    mutex_lock(&lock);
    CUresult r = check_live(start, HANDLE_EVENT);
    r = r != CUDA_SUCCESS ? r : check_owner(start->device, end, HANDLE_EVENT);
    if (r == CUDA_SUCCESS && (!start->recorded || !end->recorded)) {
        r = fault_set(CUDA_ERROR_INVALID_HANDLE, "an event was not recorded; record both first");
    }
    if (r == CUDA_SUCCESS) {
        *milliseconds = (float)((double)(int64_t)(end->time - start->time) * 1e-6);
    }
    mutex_unlock(&lock);
    return r;
}

/* ---- forks --------------------------------------------------------------------------------------------------- */

void streams_lock(void) {
    mutex_lock(&lock);
}

void streams_keep_own(struct device *device) {
    device->work = NULL;
    for (struct work *t = own; t != NULL; t = t->outer) { /* a thread has one work on a device */
        if (t->device == device) {
            t->next = NULL;
            device->work = t;
        }
    }
}

void streams_unlock(bool is_child) {
    if (is_child) {
        condition_init(&ended);
    }
    mutex_unlock(&lock);
}
