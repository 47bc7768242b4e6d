/* Devices: choose, open, query, synchronise, close. */
#define _POSIX_C_SOURCE 200809L
#include "runtime/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/fork.h"
#include "runtime/memory.h"
#include "runtime/module.h"
#include "runtime/profile.h"
#include "runtime/stream.h"

/* ---- one call ---- */

sm120_status device_push(struct device *device) {
    const CUresult result = device->driver->cuCtxPushCurrent(device->context);
    if (device->driver->configure != NULL) {
        pthread_mutex_lock(&device->lock);
        const struct driver_options options = device->options;
        pthread_mutex_unlock(&device->lock);
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

/* ---- choice ---- */

/* What a device is called by: a driver and an ordinal. */
struct choice {
    const struct driver *driver;
    int ordinal;
    struct driver_options options;
};

/* Initialise the CUDA driver and count its GPUs. A machine without a driver or a GPU has 0; `why` then says so. */
static sm120_status count_gpus(const struct driver **driver, int *count, const char **why) {
    enum { STUB_LIBRARY = 34 };
    *count = 0;
    *why = NULL;
    *driver = driver_cuda(why);
    if (*driver == NULL) {
        return SM120_OK;
    }
    CUresult result = (*driver)->cuInit(0);
    if (result == CUDA_ERROR_NO_DEVICE || (int)result == STUB_LIBRARY) {
        *why = result == CUDA_ERROR_NO_DEVICE ? "the CUDA driver finds no GPU" : "libcuda.so.1 is a stub, not a driver";
        return SM120_OK;
    }
    if (result == CUDA_SUCCESS) {
        result = (*driver)->cuDeviceGetCount(count);
    }
    return result == CUDA_SUCCESS ? SM120_OK : driver_fail(*driver, result, "initialising the CUDA driver");
}

/* Find the first GPU that the kernels of this library run on, -1 where there is none. */
static int usable_gpu(const struct driver *driver, int count) {
    for (int ordinal = 0; ordinal < count; ++ordinal) {
        CUdevice device;
        int major = 0;
        if (driver->cuDeviceGet(&device, ordinal) == CUDA_SUCCESS &&
            driver->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) ==
                CUDA_SUCCESS &&
            builtin_target(major) != NULL) {
            return ordinal;
        }
    }
    return -1;
}

/* Choose a GPU. `ordinal` -1: the first that our kernels run on, else the first of all. */
static sm120_status choose_gpu(const char *name, int ordinal, const char *argument, struct choice *choice) {
    int count;
    const char *why;
    const sm120_status status = count_gpus(&choice->driver, &count, &why);
    if (status != SM120_OK) {
        return status;
    }
    if (count == 0) {
        return fail(SM120_NO_DEVICE, "%s = \"%s\", but %s; \"virtual\" works on every machine", argument, name,
                    why != NULL ? why : "the CUDA driver finds no GPU");
    }
    if (ordinal >= count) {
        return fail(SM120_NO_DEVICE, "%s = \"%s\", but there %s %d CUDA GPU%s; the last is \"cuda:%d\"", argument, name,
                    count == 1 ? "is" : "are", count, count == 1 ? "" : "s", count - 1);
    }
    if (ordinal < 0) {
        const int usable = usable_gpu(choice->driver, count);
        ordinal = usable < 0 ? 0 : usable;
    }
    choice->ordinal = ordinal;
    return SM120_OK;
}

/* Choose a virtual device. */
static sm120_status choose_virtual(const char *name, int ordinal, const char *argument, struct choice *choice) {
    int count = 0;
    choice->driver = driver_virtual();
    choice->ordinal = ordinal < 0 ? 0 : ordinal;
    CUresult result = choice->driver->cuInit(0);
    if (result == CUDA_SUCCESS) {
        result = choice->driver->cuDeviceGetCount(&count);
    }
    if (result != CUDA_SUCCESS) {
        return driver_fail(choice->driver, result, "initialising the virtual device");
    }
    if (choice->ordinal >= count) {
        return fail(SM120_NO_DEVICE, "%s = \"%s\", but the last virtual device is \"virtual:%d\"", argument, name,
                    count - 1);
    }
    return SM120_OK;
}

/* Choose the first GPU that our kernels run on, else the virtual device: a GPU out of order is no reason to fail. */
static sm120_status choose_default(struct choice *choice) {
    int count;
    const char *why;
    if (count_gpus(&choice->driver, &count, &why) == SM120_OK) {
        choice->ordinal = usable_gpu(choice->driver, count);
        if (choice->ordinal >= 0) {
            return SM120_OK;
        }
    }
    error_clear();
    return choose_virtual("virtual", 0, "name", choice);
}

/* Read ":<ordinal>" or nothing. False: it is neither. */
static bool read_ordinal(const char *text, int *ordinal) {
    *ordinal = -1;
    if (text[0] == '\0') {
        return true;
    }
    const size_t digits = strspn(text + 1, "0123456789");
    if (text[0] != ':' || digits == 0 || digits > 4 || text[1 + digits] != '\0') {
        return false;
    }
    *ordinal = atoi(text + 1);
    return true;
}

static sm120_status no_such_name(const char *name, const char *argument) {
    return fail(SM120_INVALID_ARGUMENT,
                "%s = \"%.200s\" names no device; \"cuda\", \"cuda:1\" and \"virtual\" are names", argument, name);
}

/* Read "checks=off", "checks=default", "checks=full" or "seed=<number>", of `length` bytes. False: it is none. */
static bool read_option(const char *text, size_t length, struct driver_options *options) {
    static const char *const levels[] = {"checks=off", "checks=default", "checks=full"};
    for (int i = 0; i < 3; ++i) {
        if (strlen(levels[i]) == length && memcmp(text, levels[i], length) == 0) {
            options->checks = i;
            return true;
        }
    }
    if (length < 6 || length > 25 || memcmp(text, "seed=", 5) != 0 || strspn(text + 5, "0123456789") != length - 5) {
        return false;
    }
    errno = 0;
    options->has_seed = 1;
    options->seed = strtoull(text + 5, NULL, 10);
    return errno == 0;
}

/* Choose a virtual device and, after "?", how it runs kernels: options with "&" between them. */
static sm120_status choose_virtual_with(const char *name, const char *rest, const char *argument,
                                        struct choice *choice) {
    char place[8];
    const size_t length = strcspn(rest, "?");
    int ordinal = -1;
    if (length >= sizeof place ||
        (length > 0 && (memcpy(place, rest, length), place[length] = '\0', !read_ordinal(place, &ordinal)))) {
        return no_such_name(name, argument);
    }
    for (const char *at = rest + length; *at != '\0';) {
        const size_t n = strcspn(at + 1, "&");
        if (!read_option(at + 1, n, &choice->options)) {
            return fail(SM120_INVALID_ARGUMENT,
                        "%s = \"%.200s\" asks for \"%.*s\"; \"checks=off\", \"checks=default\", \"checks=full\" and "
                        "\"seed=7\" can be asked for, with & between them",
                        argument, name, n < 100 ? (int)n : 100, at + 1);
        }
        at += 1 + n;
    }
    return choose_virtual(name, ordinal, argument, choice);
}

/* Choose a device by name. */
static sm120_status choose(const char *name, struct choice *choice) {
    const char *const given = name;
    if (name == NULL) {
        name = getenv("PYSM120_DEVICE");
        if (name == NULL || name[0] == '\0') {
            return choose_default(choice);
        }
    }
    const char *const argument = given != NULL ? "name" : "PYSM120_DEVICE";
    int ordinal;
    if (strncmp(name, "cuda", 4) == 0 && read_ordinal(name + 4, &ordinal)) {
        return choose_gpu(name, ordinal, argument, choice);
    }
    if (strncmp(name, "virtual", 7) == 0) {
        return choose_virtual_with(name, name + 7, argument, choice);
    }
    return no_such_name(name, argument);
}

sm120_status sm120_device_count(const char *kind, int32_t *count) {
    error_clear();
    sm120_status status = check_pointer(kind, "kind");
    if (status == SM120_OK) {
        status = check_pointer(count, "count");
    }
    if (status != SM120_OK) {
        return status;
    }
    int n = 0;
    if (strcmp(kind, "cuda") == 0) {
        const struct driver *driver;
        const char *why;
        status = count_gpus(&driver, &n, &why);
    } else if (strcmp(kind, "virtual") == 0) {
        const struct driver *const driver = driver_virtual();
        CUresult result = driver->cuInit(0);
        result = result == CUDA_SUCCESS ? driver->cuDeviceGetCount(&n) : result;
        status = result == CUDA_SUCCESS ? SM120_OK : driver_fail(driver, result, "counting the virtual devices");
    } else {
        return fail(SM120_INVALID_ARGUMENT, "kind = \"%.200s\" is no kind of device; \"cuda\" and \"virtual\" are",
                    kind);
    }
    *count = n;
    return status;
}

/* ---- open, close ---- */

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
    info->l2_bytes = l2_bytes;
    info->memory_bytes = (int64_t)memory_bytes;
    return result;
}

/* Free a device's own memory. */
static void discard(struct device *device) {
    pthread_mutex_destroy(&device->lock);
    pthread_mutex_destroy(&device->builtin_lock);
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
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_init(&device->builtin_lock, NULL);
    if (!builtin_open(device)) {
        discard(device);
        return NULL;
    }
    return device;
}

sm120_status sm120_device_open(const char *name, sm120_device **device) {
    error_clear();
    struct choice choice = {.options = {.checks = -1}};
    sm120_status status = check_pointer((const void *)device, "device");
    if (status == SM120_OK) {
        *device = NULL;
        status = choose(name, &choice);
    }
    if (status != SM120_OK) {
        return status;
    }
    fork_prepare();
    struct device *const made = make(&choice);
    if (made == NULL) {
        return fail(SM120_OUT_OF_MEMORY, "opening a device: host memory is used up");
    }
    CUresult result = choice.driver->cuDeviceGet(&made->ordinal, choice.ordinal);
    result = result == CUDA_SUCCESS ? read_info(choice.driver, made->ordinal, &made->info) : result;
    result = result == CUDA_SUCCESS ? choice.driver->cuDevicePrimaryCtxRetain(&made->context, made->ordinal) : result;
    if (result != CUDA_SUCCESS) {
        status = driver_fail(choice.driver, result, "opening %s device %d", made->info.is_virtual ? "virtual" : "CUDA",
                             choice.ordinal);
        discard(made);
        return status;
    }
    if (!object_register(&made->object, OBJECT_DEVICE, NULL)) {
        choice.driver->cuDevicePrimaryCtxRelease(made->ordinal);
        discard(made);
        return fail(SM120_OUT_OF_MEMORY, "opening a device: host memory is used up");
    }
    *device = made->object.handle;
    return SM120_OK;
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
    } else { /* the context is gone, and all that it held */
        module_close_all(device, false);
    }
    device->driver->cuDevicePrimaryCtxRelease(device->ordinal);
    object_unregister(&device->object);
    discard(device);
    error_clear();
    return SM120_OK;
}

/* ---- query ---- */

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
        status = fail(SM120_UNSUPPORTED, "\"%s\" counts nothing; the virtual device does", device->info.name);
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
        status = fail(SM120_UNSUPPORTED, "\"%s\" cannot be interrupted; the virtual device can", device->info.name);
    } else {
        const CUresult result = device->driver->interrupt(device->context);
        status = result == CUDA_SUCCESS ? SM120_OK : driver_fail(device->driver, result, "interrupting the launches");
    }
    return device_leave(device, status);
}
