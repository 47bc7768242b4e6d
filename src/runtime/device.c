/* The frame of every call on a device: hold it, make its context current, and undo both. */
#include "runtime/device.h"

#include "runtime/error.h"

sm120_status device_push(struct device *device) {
    const CUresult result = device->driver->cuCtxPushCurrent(device->context);
    if (device->driver->configure != NULL) {
        mutex_lock(&device->lock);
        const struct driver_options options = device->options;
        mutex_unlock(&device->lock);
        device->driver->configure(&options);
    }
    return result == CUDA_SUCCESS
               ? SM120_OK
               : driver_fail(device->driver, result, "making the context of \"%s\" current", device->info.name);
}

void device_pop(struct device *device) {
    CUcontext context;
    device->driver->cuCtxPopCurrent(&context);
    if (device->driver->configure != NULL) {
        device->driver->configure(NULL);
    }
}

sm120_status device_enter(sm120_device *handle, struct device **device) {
    error_clear();
    struct object *const object = object_acquire(handle, OBJECT_DEVICE, "device");
    if (object == NULL) {
        return SM120_INVALID_ARGUMENT;
    }
    *device = (struct device *)object;
    const sm120_status status = device_push(*device);
    if (status != SM120_OK) {
        object_release(object);
    }
    return status;
}

sm120_status device_leave(struct device *device, sm120_status status) {
    device_pop(device);
    object_release(&device->object);
    return status;
}
