/* Query, synchronise and interrupt an open device; read and reset its counters. */
#include "runtime/check.h"
#include "runtime/device.h"
#include "runtime/error.h"

sm120_status sm120_device_query(sm120_device *handle, sm120_device_info *info) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(info, sizeof *info, "info", "sm120_device_info");
    if (status == SM120_OK) {
        const uint32_t size = info->size;
        *info = device->info;
        info->size = size;
    }
    return device_leave(device, status);
}

sm120_status sm120_device_context(sm120_device *handle, sm120_context *context) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer((const void *)context, "context");
    if (status == SM120_OK) {
        *context = device->context;
    }
    return device_leave(device, status);
}

sm120_status sm120_device_synchronize(sm120_device *handle) {
    struct device *device;
    const sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    const CUresult result = device->driver->cuCtxSynchronize();
    return device_leave(device, result == CUDA_SUCCESS
                                    ? SM120_OK
                                    : driver_fail(device->driver, result, "synchronising \"%s\"", device->info.name));
}

sm120_status sm120_device_counter(sm120_device *handle, int32_t index, const char **name, uint64_t *value) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer((const void *)name, "name");
    status = status == SM120_OK ? check_pointer(value, "value") : status;
    if (status == SM120_OK && index < 0) {
        status = fail(SM120_INVALID_ARGUMENT, "index = %d is negative; the first counter is 0", index);
    }
    if (status == SM120_OK) {
        const CUresult result = device->driver->counter != NULL
                                    ? device->driver->counter(device->context, index, name, value)
                                    : CUDA_ERROR_NOT_FOUND;
        if (result == CUDA_ERROR_NOT_FOUND) {
            status = fail(SM120_UNSUPPORTED, "index = %d is past the last counter of \"%s\"", index, device->info.name);
        } else if (result != CUDA_SUCCESS) {
            status = driver_fail(device->driver, result, "reading counter %d", index);
        }
    }
    return device_leave(device, status);
}

sm120_status sm120_device_counters_reset(sm120_device *handle) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    if (device->driver->counters_reset == NULL) {
        status = fail(SM120_UNSUPPORTED, "\"%s\" has no counters; only the virtual device has", device->info.name);
    } else {
        const CUresult result = device->driver->counters_reset(device->context);
        status = result == CUDA_SUCCESS ? SM120_OK : driver_fail(device->driver, result, "resetting the counters");
    }
    return device_leave(device, status);
}

sm120_status sm120_device_interrupt(sm120_device *handle) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    if (device->driver->interrupt == NULL) {
        status =
            fail(SM120_UNSUPPORTED, "\"%s\" cannot be interrupted; only the virtual device can", device->info.name);
    } else {
        const CUresult result = device->driver->interrupt(device->context);
        status = result == CUDA_SUCCESS ? SM120_OK : driver_fail(device->driver, result, "interrupting the launches");
    }
    return device_leave(device, status);
}
