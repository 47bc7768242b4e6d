/* Kernels: find an entry of a module, read its parameters and limits from the driver and the PTX text, check a launch
 * against the limits. */
#include "runtime/kernel.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/error.h"

/* ---- make ---- */

/* Free a kernel that has no handle. */
static void discard(struct kernel *kernel) {
    free(kernel->entry);
    free(kernel->parameters);
    free(kernel);
}

/* Ask the driver for what sm120_kernel_query answers. */
static CUresult read_info(const struct driver *driver, CUfunction function, sm120_kernel_info *info) {
    const struct {
        CUfunction_attribute attribute;
        int32_t *value;
    } facts[] = {
        {CU_FUNC_ATTRIBUTE_NUM_REGS, &info->registers},
        {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &info->static_shared_bytes},
        {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &info->local_bytes},
        {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &info->max_threads},
    };
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < sizeof facts / sizeof facts[0] && result == CUDA_SUCCESS; ++i) {
        int value = 0;
        result = driver->cuFuncGetAttribute(&value, facts[i].attribute, function);
        *facts[i].value = value;
    }
    return result;
}

enum { PARAMETERS_MAX = 32 * 1024 };

/* Ask the driver for offset and size of the first `limit` parameters, up to the first index that it rejects. *known:
 * the driver supports the query. */
static sm120_status ask_parameters(struct kernel *kernel, int32_t limit, bool *known) {
    const struct driver *const driver = kernel->module->device->driver;
    int32_t count = 0;
    *known = true;
    for (;;) {
        size_t offset = 0;
        size_t bytes = 0;
        /* Tools that trace the API report an index past the end as an error. It is not asked for if the text tells the
         * count. */
        const CUresult result = count == limit
                                    ? CUDA_ERROR_INVALID_VALUE
                                    : driver->cuFuncGetParamInfo(kernel->function, (size_t)count, &offset, &bytes);
        if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_INVALID_VALUE) {
            *known = result != CUDA_ERROR_NOT_SUPPORTED;
            kernel->info.parameters = count;
            return SM120_OK;
        }
        if (result != CUDA_SUCCESS) {
            return driver_fail(driver, result, "asking for parameter %d of %s", (int)count, kernel->entry);
        }
        struct parameter *const grown = realloc(kernel->parameters, ((size_t)count + 1) * sizeof *grown);
        if (grown == NULL) {
            return fail(SM120_OUT_OF_MEMORY, "%s: out of host memory", kernel->entry);
        }
        kernel->parameters = grown;
        grown[count] = (struct parameter){.offset = (uint32_t)offset, .bytes = (uint32_t)bytes};
        count += 1;
    }
}

/* Find out a kernel's parameters: sizes from the driver, names and types from the text. If the driver cannot tell the
 * sizes, they come from the text too. */
static sm120_status find_parameters(struct kernel *kernel) {
    bool known = false;
    const struct signature *const signature = signatures_find(&kernel->module->signatures, kernel->entry);
    const int32_t limit = signature != NULL ? (int32_t)signature->count : PARAMETERS_MAX;
    const sm120_status status = ask_parameters(kernel, limit, &known);
    if (status != SM120_OK) {
        return status;
    }
    if (!known && signature == NULL) {
        return fail(SM120_UNSUPPORTED,
                    "%s: this driver cannot list the parameters of a cubin; load PTX, or use a driver of CUDA 12.4 or "
                    "later",
                    kernel->entry);
    }
    if (signature == NULL || (known && (uint32_t)kernel->info.parameters != signature->count)) {
        return SM120_OK;
    }
    if (signature->count != 0 && kernel->parameters == NULL) {
        kernel->parameters = calloc(signature->count, sizeof *kernel->parameters);
        if (kernel->parameters == NULL) {
            return fail(SM120_OUT_OF_MEMORY, "%s: out of host memory", kernel->entry);
        }
    }
    for (uint32_t i = 0; i < signature->count; ++i) {
        const struct parameter told = kernel->parameters[i];
        kernel->parameters[i] = signature->parameters[i];
        if (known) {
            kernel->parameters[i].offset = told.offset;
            kernel->parameters[i].bytes = told.bytes;
        }
    }
    kernel->info.parameters = (int32_t)signature->count;
    return SM120_OK;
}

/* Make a kernel of an entry, without a handle. */
static sm120_status make(struct module *module, const char *entry, CUfunction function, struct kernel **made) {
    struct kernel *const kernel = calloc(1, sizeof *kernel);
    char *const copy = malloc(strlen(entry) + 1);
    if (kernel == NULL || copy == NULL) {
        free(kernel);
        free(copy);
        return fail(SM120_OUT_OF_MEMORY, "%s: out of host memory", entry);
    }
    strcpy(copy, entry);
    kernel->module = module;
    kernel->function = function;
    kernel->entry = copy;
    kernel->info.entry = copy;
    const CUresult result = read_info(module->device->driver, function, &kernel->info);
    sm120_status status = result == CUDA_SUCCESS
                              ? find_parameters(kernel)
                              : driver_fail(module->device->driver, result, "asking for attributes of %s", entry);
    if (status == SM120_OK) {
        const int32_t used = kernel->info.static_shared_bytes;
        atomic_init(&kernel->has_carveout, false);
        atomic_init(&kernel->dynamic_limit, used < SHARED_BYTES_DEFAULT ? (unsigned)(SHARED_BYTES_DEFAULT - used) : 0u);
        *made = kernel;
    } else {
        discard(kernel);
    }
    return status;
}

/* Find a kernel that was made already, or NULL. The caller has the device's lock. */
static struct kernel *find(const struct module *module, const char *entry) {
    struct kernel *kernel = module->kernels;
    while (kernel != NULL && strcmp(kernel->entry, entry) != 0) {
        kernel = kernel->next;
    }
    return kernel;
}

/* Put a kernel into its module's list. If another thread was faster, its kernel is used instead. */
static sm120_status publish(struct kernel *made, struct kernel **kernel) {
    struct module *const module = made->module;
    mutex_lock(&module->device->lock);
    *kernel = find(module, made->entry);
    bool registered = true;
    if (*kernel == NULL) {
        registered = object_register(&made->object, OBJECT_KERNEL, &module->object);
        if (registered) {
            made->next = module->kernels;
            module->kernels = made;
            *kernel = made;
        }
    }
    mutex_unlock(&module->device->lock);
    if (*kernel != made) {
        discard(made);
    }
    return registered ? SM120_OK : fail(SM120_OUT_OF_MEMORY, "kernel: out of host memory");
}

/* Report that a module does not have an entry, and which entries it has. */
static sm120_status no_entry(const struct module *module, const char *entry) {
    const struct signatures *const signatures = &module->signatures;
    if (signatures->count == 0) {
        return fail(SM120_INVALID_ARGUMENT, "entry = \"%s\" is not in %s", entry, module->name);
    }
    return fail(SM120_INVALID_ARGUMENT, "entry = \"%s\" is not in %s; its entries (%u) are \"%s\"%s", entry,
                module->name, signatures->count, signatures->items[0].entry, signatures->count > 1 ? ", ..." : "");
}

sm120_status module_kernel(struct module *module, const char *entry, struct kernel **kernel) {
    struct device *const device = module->device;
    mutex_lock(&device->lock);
    *kernel = find(module, entry);
    mutex_unlock(&device->lock);
    if (*kernel != NULL) {
        return SM120_OK;
    }
    CUfunction function = NULL;
    const CUresult result = device->driver->cuModuleGetFunction(&function, module->module, entry);
    if (result == CUDA_ERROR_NOT_FOUND) {
        error_set_driver(result);
        return no_entry(module, entry);
    }
    if (result == CUDA_ERROR_INVALID_PTX && device->driver->fault != NULL) {
        error_set_driver(result);
        return fail(SM120_INVALID_PROGRAM, "%s of %s cannot run:\n%s", entry, module->name, device->driver->fault());
    }
    if (result != CUDA_SUCCESS) {
        return driver_fail(device->driver, result, "looking up entry = \"%s\" in %s", entry, module->name);
    }
    struct kernel *made = NULL;
    const sm120_status status = make(module, entry, function, &made);
    return status == SM120_OK ? publish(made, kernel) : status;
}

/* ---- limits ---- */

enum { BLOCK_XY_MAX = 1024, BLOCK_Z_MAX = 64 };

sm120_status kernel_check_threads(const struct kernel *kernel, const char *what, uint32_t x, uint32_t y, uint32_t z) {
    const int32_t device_max = kernel->module->device->info.max_threads_per_block;
    const int32_t max = kernel->info.max_threads < device_max ? kernel->info.max_threads : device_max;
    if (x == 0 || y == 0 || z == 0) {
        return fail(SM120_INVALID_ARGUMENT, "%s = %u x %u x %u; each dimension must be at least 1", what, x, y, z);
    }
    if (x > BLOCK_XY_MAX || y > BLOCK_XY_MAX || z > BLOCK_Z_MAX || x * y > INT32_MAX / BLOCK_Z_MAX ||
        x * y * z > (uint32_t)max) {
        return fail(SM120_INVALID_ARGUMENT,
                    "%s = %u x %u x %u threads; %s runs with at most %d, and a block is at most %d x %d x %d", what, x,
                    y, z, kernel->entry, max, BLOCK_XY_MAX, BLOCK_XY_MAX, BLOCK_Z_MAX);
    }
    return SM120_OK;
}

/* Ask the driver to allow more dynamic shared memory than before. The device's lock keeps the limit from shrinking. */
static sm120_status opt_in(struct kernel *kernel, uint32_t shared_bytes) {
    struct device *const device = kernel->module->device;
    CUresult result = CUDA_SUCCESS;
    mutex_lock(&device->lock);
    if (shared_bytes > atomic_load(&kernel->dynamic_limit)) {
        result = device->driver->cuFuncSetAttribute(kernel->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                    (int)shared_bytes);
        if (result == CUDA_SUCCESS) {
            atomic_store(&kernel->dynamic_limit, shared_bytes);
        }
    }
    mutex_unlock(&device->lock);
    return result == CUDA_SUCCESS
               ? SM120_OK
               : driver_fail(device->driver, result, "allowing %s shared_bytes = %u", kernel->entry, shared_bytes);
}

sm120_status kernel_allow_shared(struct kernel *kernel, uint32_t shared_bytes) {
    const int64_t used = kernel->info.static_shared_bytes;
    const int64_t max = kernel->module->device->info.shared_bytes_per_block;
    if (used + (int64_t)shared_bytes > max) {
        return fail(SM120_INVALID_ARGUMENT,
                    "shared_bytes = %u, and %s has %d static bytes; \"%s\" allows a block at most %d in total",
                    shared_bytes, kernel->entry, (int)used, kernel->module->device->info.name, (int)max);
    }
    return shared_bytes > atomic_load(&kernel->dynamic_limit) ? opt_in(kernel, shared_bytes) : SM120_OK;
}

/* By default a driver divides the memory of a multiprocessor between L1 and shared memory so that the CTAs of one
 * kernel just fit. Then CTAs of the next launch, which begin before these end, would find no room. */
sm120_status kernel_share_multiprocessors(struct kernel *kernel) {
    enum { ALL_SHARED = 100 }; /* percent */
    const struct driver *const driver = kernel->module->device->driver;
    if (atomic_load(&kernel->has_carveout)) {
        return SM120_OK;
    }
    const CUresult result =
        driver->cuFuncSetAttribute(kernel->function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, ALL_SHARED);
    if (result != CUDA_SUCCESS) {
        return driver_fail(driver, result, "preferring shared memory to L1 for %s", kernel->entry);
    }
    atomic_store(&kernel->has_carveout, true);
    return SM120_OK;
}

/* ---- use ---- */

sm120_status kernel_enter(sm120_kernel *handle, struct kernel **kernel) {
    error_clear();
    struct object *const object = object_acquire(handle, OBJECT_KERNEL, "kernel");
    if (object == NULL) {
        return SM120_INVALID_ARGUMENT;
    }
    *kernel = (struct kernel *)object;
    const sm120_status status = device_push((*kernel)->module->device);
    if (status != SM120_OK) {
        object_release(object);
    }
    return status;
}

sm120_status kernel_leave(struct kernel *kernel, sm120_status status) {
    device_pop(kernel->module->device);
    object_release(&kernel->object);
    return status;
}

sm120_status sm120_module_kernel(sm120_module *handle, const char *entry, sm120_kernel **kernel) {
    error_clear();
    struct module *const module = (struct module *)object_acquire(handle, OBJECT_MODULE, "module");
    if (module == NULL) {
        return SM120_INVALID_ARGUMENT;
    }
    sm120_status status = check_pointer(entry, "entry");
    status = status == SM120_OK ? check_pointer((const void *)kernel, "kernel") : status;
    status = status == SM120_OK ? device_push(module->device) : status;
    if (status == SM120_OK) {
        struct kernel *found = NULL;
        status = module_kernel(module, entry, &found);
        *kernel = status == SM120_OK ? found->object.handle : NULL;
        device_pop(module->device);
    }
    object_release(&module->object);
    return status;
}

sm120_status sm120_kernel_query(sm120_kernel *handle, sm120_kernel_info *info) {
    struct kernel *kernel;
    sm120_status status = kernel_enter(handle, &kernel);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(info, sizeof *info, "info", "sm120_kernel_info");
    if (status == SM120_OK) {
        const uint32_t size = info->size;
        *info = kernel->info;
        info->size = size;
    }
    return kernel_leave(kernel, status);
}

sm120_status sm120_kernel_parameter(sm120_kernel *handle, int32_t index, sm120_parameter_info *info) {
    struct kernel *kernel;
    sm120_status status = kernel_enter(handle, &kernel);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(info, sizeof *info, "info", "sm120_parameter_info");
    if (status == SM120_OK && index < 0) {
        status = fail(SM120_INVALID_ARGUMENT, "index = %d is negative; the first parameter is 0", index);
    } else if (status == SM120_OK && index >= kernel->info.parameters) {
        status = fail(SM120_UNSUPPORTED, "index = %d is past the last of the %d parameters of %s", index,
                      kernel->info.parameters, kernel->entry);
    } else if (status == SM120_OK) {
        const struct parameter *const parameter = kernel->parameters + index;
        info->offset = parameter->offset;
        info->bytes = parameter->bytes;
        memcpy(info->type, parameter->type, sizeof info->type);
        memcpy(info->name, parameter->name, sizeof info->name);
    }
    return kernel_leave(kernel, status);
}

void kernel_know_registers(struct kernel *kernel, uint32_t registers) {
    if (kernel->info.registers == 0) {
        kernel->info.registers = (int32_t)registers;
        kernel->table_registers = true;
    }
}

/* How many CTAs of `threads` threads the registers of a multiprocessor hold. A warp's registers are in one of the four
 * quarters and are allocated in units of 256. */
static int32_t blocks_by_registers(const struct kernel *kernel, uint32_t threads) {
    const int32_t warp_registers = (kernel->info.registers * 32 + 255) / 256 * 256;
    const int32_t warps = kernel->module->device->info.registers_per_multiprocessor / 4 / warp_registers * 4;
    return warps / (int32_t)((threads + 31) / 32);
}

sm120_status sm120_kernel_occupancy(sm120_kernel *handle, uint32_t threads, uint32_t shared_bytes,
                                    int32_t *blocks_per_multiprocessor) {
    struct kernel *kernel;
    sm120_status status = kernel_enter(handle, &kernel);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer(blocks_per_multiprocessor, "blocks_per_multiprocessor");
    status = status == SM120_OK ? kernel_check_threads(kernel, "threads", threads, 1, 1) : status;
    status = status == SM120_OK ? kernel_allow_shared(kernel, shared_bytes) : status;
    if (status == SM120_OK) {
        const struct driver *const driver = kernel->module->device->driver;
        int blocks = 0;
        const CUresult result =
            driver->cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel->function, (int)threads, shared_bytes);
        status = result == CUDA_SUCCESS
                     ? SM120_OK
                     : driver_fail(driver, result, "occupancy of %s with %u threads", kernel->entry, threads);
        if (status == SM120_OK && kernel->table_registers) {
            const int32_t limit = blocks_by_registers(kernel, threads);
            blocks = blocks < limit ? blocks : limit;
        }
        *blocks_per_multiprocessor = blocks;
    }
    return kernel_leave(kernel, status);
}
