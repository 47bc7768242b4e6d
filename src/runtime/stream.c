/* Streams and events. All functions take those of other libraries too, except the two that destroy. */
#include "runtime/stream.h"

#include "runtime/check.h"
#include "runtime/error.h"

/* The key of a handle in a registry. */
static uint64_t key_of(const void *handle) {
    return (uint64_t)(uintptr_t)handle;
}

/* Reserve room for one more handle. */
static sm120_status reserve(struct device *device, struct registry *registry) {
    mutex_lock(&device->lock);
    const bool reserved = registry_reserve(registry);
    mutex_unlock(&device->lock);
    return reserved ? SM120_OK : fail(SM120_OUT_OF_MEMORY, "recording a handle: out of host memory");
}

/* Record a new handle in reserved room; NULL cancels the reservation. */
static void settle(struct device *device, struct registry *registry, const void *handle) {
    mutex_lock(&device->lock);
    if (handle != NULL) {
        registry_add(registry, (struct record){key_of(handle), 0});
    } else {
        registry_cancel(registry);
    }
    mutex_unlock(&device->lock);
}

/* Take a handle out of a registry, or fail if it is not there. */
static sm120_status claim(struct device *device, struct registry *registry, const void *handle, const char *what) {
    struct record record;
    mutex_lock(&device->lock);
    const bool found = registry_remove(registry, key_of(handle), &record);
    mutex_unlock(&device->lock);
    return found ? SM120_OK
                 : fail(SM120_INVALID_ARGUMENT,
                        "%s = %p was not created by sm120_%s_create on this device, or it was destroyed already", what,
                        handle, what);
}

sm120_status sm120_stream_create(sm120_device *handle, sm120_stream *stream) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer((const void *)stream, "stream");
    status = status == SM120_OK ? reserve(device, &device->streams) : status;
    if (status == SM120_OK) {
        CUstream made = NULL;
        const CUresult result = device->driver->cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
        settle(device, &device->streams, result == CUDA_SUCCESS ? made : NULL);
        status = result == CUDA_SUCCESS ? SM120_OK : driver_fail(device->driver, result, "creating a stream");
        *stream = result == CUDA_SUCCESS ? made : NULL;
    }
    return device_leave(device, status);
}

sm120_status sm120_stream_destroy(sm120_device *handle, sm120_stream stream) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = claim(device, &device->streams, stream, "stream");
    if (status == SM120_OK) {
        const CUresult result = device->driver->cuStreamDestroy((CUstream)stream);
        settle(device, &device->streams, result == CUDA_SUCCESS ? NULL : stream);
        status =
            result == CUDA_SUCCESS ? SM120_OK : driver_fail(device->driver, result, "destroying stream = %p", stream);
    }
    return device_leave(device, status);
}

sm120_status sm120_stream_synchronize(sm120_device *handle, sm120_stream stream) {
    struct device *device;
    const sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    const CUresult result = device->driver->cuStreamSynchronize((CUstream)stream);
    return device_leave(device, result == CUDA_SUCCESS
                                    ? SM120_OK
                                    : driver_fail(device->driver, result, "synchronising stream = %p", stream));
}

sm120_status sm120_stream_wait_event(sm120_device *handle, sm120_stream stream, sm120_event event) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer(event, "event");
    if (status == SM120_OK) {
        const CUresult result = device->driver->cuStreamWaitEvent((CUstream)stream, (CUevent)event, 0);
        if (result != CUDA_SUCCESS) {
            status = driver_fail(device->driver, result, "making stream = %p wait for event = %p", stream, event);
        }
    }
    return device_leave(device, status);
}

sm120_status sm120_event_create(sm120_device *handle, sm120_event *event) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer((const void *)event, "event");
    status = status == SM120_OK ? reserve(device, &device->events) : status;
    if (status == SM120_OK) {
        CUevent made = NULL;
        const CUresult result = device->driver->cuEventCreate(&made, CU_EVENT_DEFAULT);
        settle(device, &device->events, result == CUDA_SUCCESS ? made : NULL);
        status = result == CUDA_SUCCESS ? SM120_OK : driver_fail(device->driver, result, "creating an event");
        *event = result == CUDA_SUCCESS ? made : NULL;
    }
    return device_leave(device, status);
}

sm120_status sm120_event_destroy(sm120_device *handle, sm120_event event) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = claim(device, &device->events, event, "event");
    if (status == SM120_OK) {
        const CUresult result = device->driver->cuEventDestroy((CUevent)event);
        settle(device, &device->events, result == CUDA_SUCCESS ? NULL : event);
        status =
            result == CUDA_SUCCESS ? SM120_OK : driver_fail(device->driver, result, "destroying event = %p", event);
    }
    return device_leave(device, status);
}

sm120_status sm120_event_record(sm120_device *handle, sm120_event event, sm120_stream stream) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer(event, "event");
    if (status == SM120_OK) {
        const CUresult result = device->driver->cuEventRecord((CUevent)event, (CUstream)stream);
        if (result != CUDA_SUCCESS) {
            status = driver_fail(device->driver, result, "recording event = %p on stream = %p", event, stream);
        }
    }
    return device_leave(device, status);
}

sm120_status sm120_event_synchronize(sm120_device *handle, sm120_event event) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer(event, "event");
    if (status == SM120_OK) {
        const CUresult result = device->driver->cuEventSynchronize((CUevent)event);
        if (result != CUDA_SUCCESS) {
            status = driver_fail(device->driver, result, "synchronising event = %p", event);
        }
    }
    return device_leave(device, status);
}

sm120_status sm120_event_elapsed(sm120_device *handle, sm120_event start, sm120_event end, float *milliseconds) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer(start, "start");
    status = status == SM120_OK ? check_pointer(end, "end") : status;
    status = status == SM120_OK ? check_pointer(milliseconds, "milliseconds") : status;
    if (status == SM120_OK) {
        const CUresult result = device->driver->cuEventElapsedTime(milliseconds, (CUevent)start, (CUevent)end);
        if (result != CUDA_SUCCESS) {
            status = driver_fail(device->driver, result, "the time from start = %p to end = %p", start, end);
        }
    }
    return device_leave(device, status);
}

void stream_close_all(struct device *device) {
    for (size_t i = 0; i < device->events.count; ++i) {
        device->driver->cuEventDestroy((CUevent)(uintptr_t)device->events.records[i].key);
    }
    for (size_t i = 0; i < device->streams.count; ++i) {
        device->driver->cuStreamDestroy((CUstream)(uintptr_t)device->streams.records[i].key);
    }
}
