/* Open a device: choose it, ask for its properties, retain its primary context or adopt the caller's. Close it: free
 * everything that it allocated. */
#include <stdlib.h>
#include <string.h>

#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/choose.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/fork.h"
#include "runtime/memory.h"
#include "runtime/module.h"
#include "runtime/profile.h"
#include "runtime/stream.h"

/* Ask the driver for everything that sm120_device_query answers. */
static CUresult read_info(const struct driver *driver, CUdevice device, sm120_device_info *info) {
    const struct {
        CUdevice_attribute attribute;
        int32_t *value;
    } facts[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &info->capability_major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &info->capability_minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &info->multiprocessors},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, &info->warp_size},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &info->max_threads_per_block},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &info->max_threads_per_multiprocessor},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &info->shared_bytes_per_block},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, &info->shared_bytes_per_multiprocessor},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, &info->registers_per_multiprocessor},
        {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, &info->clock_khz},
    };
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < sizeof facts / sizeof facts[0] && result == CUDA_SUCCESS; ++i) {
        int value = 0;
        result = driver->cuDeviceGetAttribute(&value, facts[i].attribute, device);
        *facts[i].value = value;
    }
    int version = 0;
    int l2_bytes = 0;
    size_t memory_bytes = 0;
    result = result == CUDA_SUCCESS ? driver->cuDriverGetVersion(&version) : result;
    result = result == CUDA_SUCCESS ? driver->cuDeviceGetAttribute(&l2_bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device)
                                    : result;
    result = result == CUDA_SUCCESS ? driver->cuDeviceTotalMem(&memory_bytes, device) : result;
    result = result == CUDA_SUCCESS ? driver->cuDeviceGetName(info->name, (int)sizeof info->name, device) : result;
    info->driver_version = version;
    info->multiprocessors = info->multiprocessors > 0 ? info->multiprocessors : 1; /* a divisor */
    info->l2_bytes = l2_bytes;
    info->memory_bytes = (int64_t)memory_bytes;
    return result;
}

/* read_info() of a device, with the options in its name. */
static CUresult ask(struct device *device) {
    const struct driver *const driver = device->driver;
    if (driver->configure != NULL) {
        driver->configure(&device->options);
    }
    const CUresult result = read_info(driver, device->ordinal, &device->info);
    if (driver->configure != NULL) {
        driver->configure(NULL);
    }
    return result;
}

/* Free a device's own memory. */
static void discard(struct device *device) {
    mutex_destroy(&device->lock);
    mutex_destroy(&device->builtin_lock);
    registry_free(&device->memory);
    registry_free(&device->pinned);
    registry_free(&device->streams);
    registry_free(&device->events);
    builtin_close(device);
    free(device);
}

/* Make a device of a driver and an ordinal, without a handle. NULL: out of host memory. */
static struct device *make(const struct choice *choice) {
    struct device *const device = calloc(1, sizeof *device);
    if (device == NULL) {
        return NULL;
    }
    device->driver = choice->driver;
    device->options = choice->options;
    device->info.size = sizeof device->info;
    device->info.is_virtual = choice->driver == driver_virtual();
    device->info.ordinal = choice->ordinal;
    mutex_init(&device->lock);
    mutex_init(&device->builtin_lock);
    if (!builtin_open(device)) {
        discard(device);
        return NULL;
    }
    return device;
}

/* Retain the primary context of a device. */
static CUresult retain(struct device *device) {
    const CUresult result = device->driver->cuDevicePrimaryCtxRetain(&device->context, device->ordinal);
    device->has_primary = result == CUDA_SUCCESS;
    return result;
}

/* Release the primary context. */
static void release(struct device *device) {
    if (device->has_primary) {
        device->driver->cuDevicePrimaryCtxRelease(device->ordinal);
        device->has_primary = false;
    }
}

/* Find the device of a context. If the context is the primary one, retain it too: it then lives as long as the device,
 * whoever else releases it. An inactive primary context is not made for that. */
static CUresult adopt(struct device *device, CUcontext context) {
    const struct driver *const driver = device->driver;
    CUcontext popped;
    unsigned flags = 0;
    int active = 0;
    CUresult result = driver->cuCtxPushCurrent(context);
    if (result == CUDA_SUCCESS) {
        result = driver->cuCtxGetDevice(&device->ordinal);
        driver->cuCtxPopCurrent(&popped);
    }
    result = result == CUDA_SUCCESS ? driver->cuDevicePrimaryCtxGetState(device->ordinal, &flags, &active) : result;
    result = result == CUDA_SUCCESS && active != 0 ? retain(device) : result;
    if (result == CUDA_SUCCESS && device->context != context) {
        release(device);
    }
    device->context = context;
    device->info.ordinal = device->ordinal;
    return result;
}

/* Give an open device its handle. */
static sm120_status hand_out(struct device *made, sm120_device **device) {
    if (!object_register(&made->object, OBJECT_DEVICE, NULL)) {
        release(made);
        discard(made);
        return fail(SM120_OUT_OF_MEMORY, "opening a device: out of host memory");
    }
    *device = made->object.handle;
    return SM120_OK;
}

/* Make a device, without a context. */
static sm120_status begin(const char *name, struct choice *choice, struct device **made, sm120_device **device) {
    *choice = (struct choice){.options = {.checks = -1}};
    sm120_status status = check_pointer((const void *)device, "device");
    if (status == SM120_OK) {
        *device = NULL;
        status = choose_device(name, choice);
    }
    if (status != SM120_OK) {
        return status;
    }
    fork_prepare();
    *made = make(choice);
    return *made != NULL ? SM120_OK : fail(SM120_OUT_OF_MEMORY, "opening a device: out of host memory");
}

sm120_status sm120_device_open(const char *name, sm120_device **device) {
    struct choice choice;
    struct device *made;
    error_clear();
    sm120_status status = begin(name, &choice, &made, device);
    if (status != SM120_OK) {
        return status;
    }
    CUresult result = choice.driver->cuDeviceGet(&made->ordinal, choice.ordinal);
    result = result == CUDA_SUCCESS ? ask(made) : result;
    result = result == CUDA_SUCCESS ? retain(made) : result;
    if (result != CUDA_SUCCESS) {
        status = driver_fail(choice.driver, result, "opening %s device %d", made->info.is_virtual ? "virtual" : "CUDA",
                             choice.ordinal);
        discard(made);
        return status;
    }
    return hand_out(made, device);
}

/* Find the context to adopt: the given one, or the current one. */
static sm120_status choose_context(const struct driver *driver, sm120_context given, CUcontext *context) {
    *context = (CUcontext)given;
    const CUresult result = given == NULL ? driver->cuCtxGetCurrent(context) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        return driver_fail(driver, result, "asking for the current context");
    }
    return *context != NULL ? SM120_OK
                            : fail(SM120_INVALID_ARGUMENT, "context = NULL, and no context is current in this thread; "
                                                           "pass one, or make it current");
}

sm120_status sm120_device_open_context(const char *name, sm120_context given, sm120_device **device) {
    struct choice choice;
    struct device *made;
    CUcontext context;
    error_clear();
    sm120_status status = check_pointer(name, "name");
    if (status == SM120_OK && strchr(name, ':') != NULL) {
        status = fail(SM120_INVALID_ARGUMENT,
                      "name = \"%.200s\", but a context belongs to one device; give \"cuda\" or \"virtual\"", name);
    }
    status = status == SM120_OK ? begin(name, &choice, &made, device) : status;
    if (status != SM120_OK) {
        return status;
    }
    status = choose_context(choice.driver, given, &context);
    if (status == SM120_OK) {
        CUresult result = adopt(made, context);
        result = result == CUDA_SUCCESS ? ask(made) : result;
        status = result == CUDA_SUCCESS
                     ? SM120_OK
                     : driver_fail(choice.driver, result, "opening the device of context = %p", (void *)context);
    }
    if (status != SM120_OK) {
        release(made);
        discard(made);
        return status;
    }
    return hand_out(made, device);
}

sm120_status sm120_device_close(sm120_device *handle) {
    error_clear();
    if (handle == NULL) {
        return SM120_OK;
    }
    struct device *const device = (struct device *)object_retire(handle, OBJECT_DEVICE, "device");
    if (device == NULL) {
        return SM120_INVALID_ARGUMENT;
    }
    if (device_push(device) == SM120_OK) {
        device->driver->cuCtxSynchronize();
        profile_close(device);
        module_close_all(device, true);
        stream_close_all(device);
        memory_close_all(device);
        device_pop(device);
    } else { /* the context is gone, and with it its modules and memory */
        module_close_all(device, false);
    }
    release(device);
    object_unregister(&device->object);
    discard(device);
    error_clear();
    return SM120_OK;
}
