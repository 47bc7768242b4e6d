/* Profiles of the virtual device: begin, read, end. */
#include "runtime/profile.h"

#include "runtime/check.h"
#include "runtime/error.h"

/* Fail if the device is a GPU, or if no profile is open. */
static sm120_status need_profile(struct device *device) {
    if (device->driver->profile == NULL) {
        return fail(SM120_UNSUPPORTED, "\"%s\" cannot be profiled; only the virtual device can", device->info.name);
    }
    if (!atomic_load(&device->takes_profile)) {
        return fail(SM120_INVALID_ARGUMENT, "no profile is being recorded on device; call sm120_profile_begin first");
    }
    return SM120_OK;
}

sm120_status sm120_profile_begin(sm120_device *handle) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    const CUresult result =
        device->driver->profile != NULL ? device->driver->profile(device->context, 1) : CUDA_SUCCESS;
    if (device->driver->profile == NULL) {
        status = need_profile(device);
    } else if (result == CUDA_ERROR_PROFILER_ALREADY_STARTED) {
        status = fail(SM120_UNSUPPORTED, "a profile of \"%s\" %d is being recorded already; end it first",
                      device->info.name, device->info.ordinal);
    } else if (result != CUDA_SUCCESS) {
        status = driver_fail(device->driver, result, "beginning a profile");
    } else {
        atomic_store(&device->takes_profile, true);
    }
    return device_leave(device, status);
}

sm120_status sm120_profile_read(sm120_device *handle, int32_t index, sm120_profile_row *row) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(row, sizeof *row, "row", "sm120_profile_row");
    status = status == SM120_OK ? need_profile(device) : status;
    if (status == SM120_OK && index < 0) {
        status = fail(SM120_INVALID_ARGUMENT, "index = %d is negative; the first row is 0", index);
    }
    if (status == SM120_OK) {
        const CUresult result = device->driver->profile_read(device->context, index, row);
        if (result == CUDA_ERROR_NOT_FOUND) {
            status = fail(SM120_UNSUPPORTED, "index = %d is past the last row of the profile", index);
        } else if (result != CUDA_SUCCESS) {
            status = driver_fail(device->driver, result, "reading row %d of the profile", index);
        }
    }
    return device_leave(device, status);
}

sm120_status sm120_profile_cta(sm120_device *handle, int32_t index, const char **kernel, uint64_t *cta,
                               uint64_t *executed) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    if (kernel == NULL || cta == NULL || executed == NULL) {
        status = fail(SM120_INVALID_ARGUMENT, "kernel, cta or executed is NULL");
    }
    status = status == SM120_OK ? need_profile(device) : status;
    if (status == SM120_OK && index < 0) {
        status = fail(SM120_INVALID_ARGUMENT, "index = %d is negative; the first CTA is 0", index);
    }
    if (status == SM120_OK) {
        const CUresult result = device->driver->profile_cta(device->context, index, kernel, cta, executed);
        if (result == CUDA_ERROR_NOT_FOUND) {
            status = fail(SM120_UNSUPPORTED, "index = %d is past the last CTA of the profile", index);
        } else if (result != CUDA_SUCCESS) {
            status = driver_fail(device->driver, result, "reading CTA %d of the profile", index);
        }
    }
    return device_leave(device, status);
}

void profile_close(struct device *device) {
    if (atomic_exchange(&device->takes_profile, false)) {
        device->driver->profile(device->context, 0);
    }
}

sm120_status sm120_profile_end(sm120_device *handle) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = need_profile(device);
    if (status == SM120_OK) {
        profile_close(device);
    }
    return device_leave(device, status);
}
