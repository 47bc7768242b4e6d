/* Check and start launches. */
#include "runtime/launch.h"

#include <limits.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/error.h"

enum { GRID_YZ_MAX = 65535 };

sm120_status launch_of(struct argument_pointers *pointers, struct arguments arguments, uint32_t grid,
                       const struct kernel_record *record, sm120_stream stream, struct launch *launch) {
    const struct parameter_list *const list = record->parameters;
    const struct parameter_list *known = arguments.list;
    while (known != NULL && known != list) {
        known = known->beginning;
    }
    if (known == NULL) {
        return fail(SM120_INTERNAL, "the arguments given to %s belong to another kernel", record->entry);
    }
    for (uint32_t i = 0; i < list->count; ++i) {
        pointers->values[i] = (const char *)arguments.values + list->items[i].offset;
        pointers->bytes[i] = list->items[i].bytes;
    }
    *launch = (struct launch){.grid = {grid, 1, 1},
                              .block = {record->threads, 1, 1},
                              .shared_bytes = record->shared,
                              .stream = stream,
                              .arguments = pointers->values,
                              .argument_bytes = pointers->bytes,
                              .argument_count = list->count};
    return SM120_OK;
}

/* Check the number of the arguments, and each one's pointer and size. */
static sm120_status check_arguments(const struct kernel *kernel, const struct launch *launch) {
    const size_t count = launch->argument_count;
    if (count != (size_t)kernel->info.parameters) {
        return fail(SM120_INVALID_ARGUMENT, "argument_count = %zu; %s has %d parameters", count, kernel->entry,
                    kernel->info.parameters);
    }
    if (count != 0 && (launch->arguments == NULL || launch->argument_bytes == NULL)) {
        return fail(SM120_INVALID_ARGUMENT, "%s is NULL; %s has %d parameters",
                    launch->arguments == NULL ? "arguments" : "argument_bytes", kernel->entry, kernel->info.parameters);
    }
    for (size_t i = 0; i < count; ++i) {
        const struct parameter *const parameter = kernel->parameters + i;
        const char *const space = parameter->name[0] != '\0' ? " " : "";
        if (launch->arguments[i] == NULL) {
            return fail(SM120_INVALID_ARGUMENT,
                        "arguments[%zu] is NULL; point it to the value of parameter %zu%s%s of %s", i, i, space,
                        parameter->name, kernel->entry);
        }
        if (launch->argument_bytes[i] != parameter->bytes) {
            return fail(SM120_INVALID_ARGUMENT, "argument_bytes[%zu] = %zu; parameter %zu%s%s of %s has %u%s%s%s", i,
                        launch->argument_bytes[i], i, space, parameter->name, kernel->entry, parameter->bytes,
                        parameter->type[0] != '\0' ? " (." : "", parameter->type,
                        parameter->type[0] != '\0' ? ")" : "");
        }
    }
    return SM120_OK;
}

sm120_status launch_check(struct kernel *kernel, const struct launch *launch) {
    const uint32_t *const grid = launch->grid;
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[0] > INT32_MAX || grid[1] > GRID_YZ_MAX ||
        grid[2] > GRID_YZ_MAX) {
        return fail(SM120_INVALID_ARGUMENT,
                    "grid = %u x %u x %u; each dimension must be at least 1, and at most %d x %d x %d", grid[0],
                    grid[1], grid[2], INT32_MAX, GRID_YZ_MAX, GRID_YZ_MAX);
    }
    sm120_status status = kernel_check_threads(kernel, "block", launch->block[0], launch->block[1], launch->block[2]);
    status = status == SM120_OK ? kernel_allow_shared(kernel, launch->shared_bytes) : status;
    if (status == SM120_OK && launch->is_early) {
        status = kernel_share_multiprocessors(kernel);
    }
    return status == SM120_OK ? check_arguments(kernel, launch) : status;
}

/* Report that a cooperative grid does not fit on a device at once, and how many CTAs fit. */
static sm120_status too_large(const struct kernel *kernel, const struct launch *launch) {
    const struct device *const device = kernel->module->device;
    const uint32_t *const grid = launch->grid;
    const uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    int blocks = 0;
    const CUresult result = device->driver->cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, kernel->function, (int)threads, launch->shared_bytes);
    if (result != CUDA_SUCCESS) {
        return driver_fail(device->driver, result, "occupancy of %s with %u threads", kernel->entry, threads);
    }
    error_set_driver(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    return fail(
        SM120_UNSUPPORTED,
        "grid = %u x %u x %u; a cooperative launch of %s with %u threads and shared_bytes = %u has at most %lld "
        "CTAs, because all of them must be resident on \"%s\" at once",
        grid[0], grid[1], grid[2], kernel->entry, threads, launch->shared_bytes,
        (long long)blocks * device->info.multiprocessors, device->info.name);
}

/* Hand a launch to the driver. It only reads the values and pointers, although its prototype is not const. */
static CUresult start(struct kernel *kernel, const struct launch *launch) {
    const struct driver *const driver = kernel->module->device->driver;
    const uint32_t *const grid = launch->grid;
    const uint32_t *const block = launch->block;
    void **const arguments = (void **)(uintptr_t)launch->arguments;
    const CUstream stream = (CUstream)launch->stream;
    if (!launch->is_cooperative && !launch->is_early) {
        return driver->cuLaunchKernel(kernel->function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                      launch->shared_bytes, stream, arguments, NULL);
    }
    CUlaunchAttribute attribute = {.id = launch->is_cooperative ? CU_LAUNCH_ATTRIBUTE_COOPERATIVE
                                                                : CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value = {.flag = 1}};
    const CUlaunchConfig config = {.grid = {grid[0], grid[1], grid[2]},
                                   .block = {block[0], block[1], block[2]},
                                   .shared_bytes = launch->shared_bytes,
                                   .stream = stream,
                                   .attributes = &attribute,
                                   .attribute_count = 1};
    return driver->cuLaunchKernelEx(&config, kernel->function, arguments, NULL);
}

sm120_status launch_start(struct kernel *kernel, const struct launch *launch) {
    const uint32_t *const grid = launch->grid;
    const uint32_t *const block = launch->block;
    const CUresult result = start(kernel, launch);
    if (result == CUDA_SUCCESS) {
        error_clear(); /* a watch callback may have left an error in this thread */
        return SM120_OK;
    }
    if (result == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE) {
        return too_large(kernel, launch);
    }
    return driver_fail(kernel->module->device->driver, result,
                       "launching %s, grid %u x %u x %u, block %u x %u x %u, shared_bytes %u", kernel->entry, grid[0],
                       grid[1], grid[2], block[0], block[1], block[2], launch->shared_bytes);
}

/* Fill in grid and block, which may be NULL, then check and start a launch. */
static sm120_status launch_kernel(sm120_kernel *handle, const uint32_t *grid, const uint32_t *block,
                                  struct launch launch) {
    struct kernel *kernel;
    sm120_status status = kernel_enter(handle, &kernel);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer(grid, "grid");
    status = status == SM120_OK ? check_pointer(block, "block") : status;
    if (status == SM120_OK) {
        memcpy(launch.grid, grid, sizeof launch.grid);
        memcpy(launch.block, block, sizeof launch.block);
        status = launch_check(kernel, &launch);
        status = status == SM120_OK ? launch_start(kernel, &launch) : status;
    }
    return kernel_leave(kernel, status);
}

sm120_status sm120_launch(sm120_kernel *kernel, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
                          sm120_stream stream, const void *const *arguments, const size_t *argument_bytes,
                          size_t argument_count) {
    return launch_kernel(kernel, grid, block,
                         (struct launch){.shared_bytes = shared_bytes,
                                         .stream = stream,
                                         .arguments = arguments,
                                         .argument_bytes = argument_bytes,
                                         .argument_count = argument_count});
}

sm120_status sm120_launch_cooperative(sm120_kernel *kernel, const uint32_t grid[3], const uint32_t block[3],
                                      uint32_t shared_bytes, sm120_stream stream, const void *const *arguments,
                                      const size_t *argument_bytes, size_t argument_count) {
    return launch_kernel(kernel, grid, block,
                         (struct launch){.shared_bytes = shared_bytes,
                                         .stream = stream,
                                         .arguments = arguments,
                                         .argument_bytes = argument_bytes,
                                         .argument_count = argument_count,
                                         .is_cooperative = true});
}
