/* Watch launches of the virtual device: the checks of a watch, and the queries that a callback may make. */
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/kernel.h"

enum { WATCHED_BYTES_MAX = 64 };

sm120_status sm120_kernel_instruction(sm120_kernel *handle, int32_t index, sm120_instruction_info *info) {
    struct kernel *kernel;
    sm120_status status = kernel_enter(handle, &kernel);
    if (status != SM120_OK) {
        return status;
    }
    const struct driver *const driver = kernel->module->device->driver;
    status = check_struct(info, sizeof *info, "info", "sm120_instruction_info");
    if (status == SM120_OK && index < 0) {
        status = fail(SM120_INVALID_ARGUMENT, "index = %d is negative; the first instruction is 0", index);
    } else if (status == SM120_OK) {
        const CUresult result =
            driver->instruction != NULL ? driver->instruction(kernel->function, index, info) : CUDA_ERROR_NOT_FOUND;
        status = result == CUDA_SUCCESS
                     ? SM120_OK
                     : fail(SM120_UNSUPPORTED, "index = %d is past the last instruction of %s", index, kernel->entry);
    }
    return kernel_leave(kernel, status);
}

/* Check the members of a watch. */
static sm120_status check_watch(const sm120_watch *watch) {
    const sm120_status status = check_struct(watch, sizeof *watch, "watch", "sm120_watch");
    if (status != SM120_OK) {
        return status;
    }
    if (watch->see == NULL) {
        return fail(SM120_INVALID_ARGUMENT,
                    "watch->see is NULL; give a function, or pass NULL as watch to end watching");
    }
    if (watch->moment > SM120_AFTER) {
        return fail(SM120_INVALID_ARGUMENT, "watch->moment = %u; it must be SM120_BEFORE (0) or SM120_AFTER (1)",
                    watch->moment);
    }
    if (watch->bytes > WATCHED_BYTES_MAX) {
        return fail(SM120_INVALID_ARGUMENT, "watch->bytes = %u; at most %d bytes can be watched", watch->bytes,
                    WATCHED_BYTES_MAX);
    }
    if (watch->bytes > 0 && watch->moment != SM120_AFTER) {
        return fail(SM120_INVALID_ARGUMENT, "watch->moment = %u; with watch->bytes it must be SM120_AFTER (1)",
                    watch->moment);
    }
    if (watch->last_line < watch->first_line) {
        return fail(SM120_INVALID_ARGUMENT, "watch->last_line = %u; it must be at least watch->first_line = %u",
                    watch->last_line, watch->first_line);
    }
    return watch->reserved == 0 ? SM120_OK
                                : fail(SM120_INVALID_ARGUMENT, "watch->reserved = %u; it must be 0", watch->reserved);
}

sm120_status sm120_device_watch(sm120_device *handle, const sm120_watch *watch) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    if (device->driver->looking == NULL) {
        status = fail(SM120_UNSUPPORTED, "\"%s\" cannot be watched; only the virtual device can", device->info.name);
    } else if (watch != NULL) {
        status = check_watch(watch);
    }
    if (status == SM120_OK) {
        mutex_lock(&device->lock);
        device->options.watch = watch != NULL ? *watch : (sm120_watch){0};
        mutex_unlock(&device->lock);
    }
    return device_leave(device, status);
}

/* ---- in a callback ---- */

/* Translate the driver's answer: an index past the last one is UNSUPPORTED. */
static sm120_status answer(CUresult result, int32_t index) {
    if (result == CUDA_SUCCESS) {
        return SM120_OK;
    }
    return fail(result == CUDA_ERROR_NOT_FOUND ? SM120_UNSUPPORTED : SM120_INVALID_ARGUMENT, "index = %d: %s", index,
                driver_virtual()->fault());
}

/* Check an index. */
static sm120_status check_index(int32_t index) {
    return index >= 0 ? SM120_OK : fail(SM120_INVALID_ARGUMENT, "index = %d is negative; the first is 0", index);
}

sm120_status sm120_step_query(const sm120_step *step, sm120_step_info *info) {
    error_clear();
    const sm120_status status = check_struct(info, sizeof *info, "info", "sm120_step_info");
    if (status != SM120_OK) {
        return status;
    }
    return driver_virtual()->step_query(step, info) == CUDA_SUCCESS
               ? SM120_OK
               : fail(SM120_INVALID_ARGUMENT, "step = %p: %s", (const void *)step, driver_virtual()->fault());
}

sm120_status sm120_step_register(const sm120_step *step, int32_t which, int32_t index, sm120_register_info *info) {
    error_clear();
    sm120_status status = check_struct(info, sizeof *info, "info", "sm120_register_info");
    status = status == SM120_OK ? check_index(index) : status;
    if (status == SM120_OK && which != SM120_OF_INSTRUCTION && which != SM120_OF_FUNCTION) {
        status = fail(SM120_INVALID_ARGUMENT,
                      "which = %d; it must be SM120_OF_INSTRUCTION (0) or SM120_OF_FUNCTION (1)", which);
    }
    return status == SM120_OK ? answer(driver_virtual()->step_register(step, which, index, info), index) : status;
}

sm120_status sm120_step_variable(const sm120_step *step, int32_t index, sm120_variable_info *info) {
    error_clear();
    sm120_status status = check_struct(info, sizeof *info, "info", "sm120_variable_info");
    status = status == SM120_OK ? check_index(index) : status;
    return status == SM120_OK ? answer(driver_virtual()->step_variable(step, index, info), index) : status;
}

sm120_status sm120_step_lanes(const sm120_step *step, int32_t index, sm120_lanes_info *info) {
    error_clear();
    sm120_status status = check_struct(info, sizeof *info, "info", "sm120_lanes_info");
    status = status == SM120_OK ? check_index(index) : status;
    return status == SM120_OK ? answer(driver_virtual()->step_lanes(step, index, info), index) : status;
}

sm120_status sm120_step_shared(const sm120_step *step, uint32_t address, void *to, size_t bytes) {
    error_clear();
    const sm120_status status = check_pointer(to, "to");
    if (status != SM120_OK) {
        return status;
    }
    return driver_virtual()->step_shared(step, address, to, bytes) == CUDA_SUCCESS
               ? SM120_OK
               : fail(SM120_INVALID_ARGUMENT, "address = 0x%x: %s", address, driver_virtual()->fault());
}
