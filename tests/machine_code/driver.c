/* A libcuda.so.1 whose GPU is the virtual SM120 twice: a launch of a cubin runs the PTX of its kernel, then, on the
 * memory as it was before, the kernel's machine code, and shows both results to the program. */
#include "../support/cuda_versions.h"

#include "driver/driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* MOST_BYTES: with more memory, a launch runs the PTX alone, because the memory is copied several times. */
enum { OTHER_SEEDS = 3, MOST_BYTES = 1 << 28 };

/* ---- what the program sets ---- */

/* Texts of a kernel: its PTX, and its machine code as PTX, NULL if only the PTX is to run. in_any_order: it adds f32 by
 * atomic operations. */
struct texts {
    const char *entry, *ptx, *machine;
    int in_any_order;
};
/* Memory that a launch may have changed. */
struct region {
    unsigned char *now, *wanted, *before; /* as the machine code left it, as the PTX left it, and before the launch */
    unsigned char *again[OTHER_SEEDS]; /* as the PTX leaves it with other seeds; NULL if the order has no influence */
    size_t bytes;
};
struct launch {
    const char *entry;
    unsigned grid[3], block[3];
    const struct region *regions;
    size_t count;
    const char *fault; /* of the machine code; NULL: none */
};
typedef int texts_function(const void *image, struct texts *texts);
typedef void launched_function(const struct launch *launch);

void machine_open(texts_function *find, launched_function *report);

static texts_function *find_texts;
static launched_function *launched;

void machine_open(texts_function *find, launched_function *report) {
    find_texts = find;
    launched = report;
}

/* ---- turns ----
 *
 * A launch replaces all memory several times until it is judged. Meanwhile no other thread may launch, copy, allocate
 * or free. */

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void enter(void) {
    pthread_mutex_lock(&turn);
}
static CUresult leave(CUresult result) {
    pthread_mutex_unlock(&turn);
    return result;
}

/* ---- memory ---- */

enum { MOST_REGIONS = 4096 };
static struct {
    unsigned char *at;
    size_t bytes;
} memory[MOST_REGIONS];
static size_t memory_count;

/* Note an allocation. */
static CUresult note(CUresult result, void *at, size_t bytes) {
    if (result == CUDA_SUCCESS) {
        if (memory_count == MOST_REGIONS) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        memory[memory_count].at = at;
        memory[memory_count++].bytes = bytes;
    }
    return result;
}

/* Forget an allocation. */
static void forget(const void *at) {
    for (size_t i = 0; i < memory_count; ++i) {
        if (memory[i].at == at) {
            memory[i] = memory[--memory_count];
            return;
        }
    }
}

/* Return the bytes of all allocations. */
static size_t memory_bytes(void) {
    size_t total = 0;
    for (size_t i = 0; i < memory_count; ++i) {
        total += memory[i].bytes;
    }
    return total;
}

/* Return a copy of all memory. */
static unsigned char *save(void) {
    unsigned char *const copy = malloc(memory_bytes() + 1);
    if (copy == NULL) {
        abort();
    }
    size_t at = 0;
    for (size_t i = 0; i < memory_count; at += memory[i++].bytes) {
        memcpy(copy + at, memory[i].at, memory[i].bytes);
    }
    return copy;
}

/* Write a copy of all memory back. */
static void restore(const unsigned char *copy) {
    size_t at = 0;
    for (size_t i = 0; i < memory_count; at += memory[i++].bytes) {
        memcpy(memory[i].at, copy + at, memory[i].bytes);
    }
}

/* ---- the driver functions that pass through ---- */

#define VIRTUAL driver_virtual()
#define PASS(name, parameters, arguments)                                                                              \
    CUresult name parameters;                                                                                          \
    CUresult name parameters {                                                                                         \
        return VIRTUAL->name arguments;                                                                                \
    }

#define PASS_IN_TURN(name, parameters, arguments)                                                                      \
    CUresult name parameters;                                                                                          \
    CUresult name parameters {                                                                                         \
        enter();                                                                                                       \
        return leave(VIRTUAL->name arguments);                                                                         \
    }

PASS(cuInit, (unsigned flags), (flags))
PASS(cuDriverGetVersion, (int *version), (version))
PASS(cuGetErrorName, (CUresult error, const char **name), (error, name))
PASS(cuGetErrorString, (CUresult error, const char **text), (error, text))
PASS(cuDeviceGetCount, (int *count), (count))
PASS(cuDeviceGet, (CUdevice * device, int ordinal), (device, ordinal))
PASS(cuDeviceGetName, (char *name, int bytes, CUdevice device), (name, bytes, device))
PASS(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device), (value, attribute, device))
PASS(cuDeviceTotalMem, (size_t *bytes, CUdevice device), (bytes, device))
PASS(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), (context, device))
PASS(cuDevicePrimaryCtxRelease, (CUdevice device), (device))
PASS(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active), (device, flags, active))
PASS(cuCtxGetCurrent, (CUcontext * context), (context))
PASS(cuCtxGetDevice, (CUdevice * device), (device))
PASS(cuCtxPushCurrent, (CUcontext context), (context))
PASS(cuCtxPopCurrent, (CUcontext * context), (context))
PASS(cuCtxSynchronize, (void), ())
PASS(cuMemHostGetDevicePointer, (CUdeviceptr * address, void *host, unsigned flags), (address, host, flags))
PASS_IN_TURN(cuMemcpyHtoDAsync, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
             (to, from, bytes, stream))
PASS_IN_TURN(cuMemcpyDtoHAsync, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream))
PASS_IN_TURN(cuMemcpyDtoDAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
             (to, from, bytes, stream))
PASS_IN_TURN(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream),
             (to, value, bytes, stream))
PASS(cuStreamCreate, (CUstream * stream, unsigned flags), (stream, flags))
PASS(cuStreamDestroy, (CUstream stream), (stream))
PASS(cuStreamSynchronize, (CUstream stream), (stream))
PASS(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), (stream, event, flags))
PASS(cuEventCreate, (CUevent * event, unsigned flags), (event, flags))
PASS(cuEventDestroy, (CUevent event), (event))
PASS(cuEventRecord, (CUevent event, CUstream stream), (event, stream))
PASS(cuEventSynchronize, (CUevent event), (event))
PASS(cuEventElapsedTime, (float *milliseconds, CUevent start, CUevent end), (milliseconds, start, end))
PASS(cuTensorMapEncodeTiled,
     (CUtensorMap * map, CUtensorMapDataType type, uint32_t rank, void *address, const uint64_t *dims,
      const uint64_t *strides, const uint32_t *box, const uint32_t *steps, CUtensorMapInterleave interleave,
      CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill),
     (map, type, rank, address, dims, strides, box, steps, interleave, swizzle, promotion, fill))
PASS(cuTensorMapReplaceAddress, (CUtensorMap * map, void *address), (map, address))

/* ---- memory, modules and functions ---- */

#define F(name, ...)                                                                                                   \
    CUresult name(__VA_ARGS__);                                                                                        \
    CUresult name(__VA_ARGS__)

F(cuMemAlloc, CUdeviceptr *address, size_t bytes) {
    enter();
    const CUresult result = VIRTUAL->cuMemAlloc(address, bytes);
    return leave(note(result, result == CUDA_SUCCESS ? (void *)(uintptr_t)*address : NULL, bytes));
}
F(cuMemFree, CUdeviceptr address) {
    enter();
    forget((const void *)(uintptr_t)address);
    return leave(VIRTUAL->cuMemFree(address));
}
F(cuMemHostAlloc, void **host, size_t bytes, unsigned flags) {
    enter();
    const CUresult result = VIRTUAL->cuMemHostAlloc(host, bytes, flags);
    return leave(note(result, result == CUDA_SUCCESS ? *host : NULL, bytes));
}
F(cuMemFreeHost, void *host) {
    enter();
    forget(host);
    return leave(VIRTUAL->cuMemFreeHost(host));
}

/* The module of a kernel twice; a program's own PTX has no machine code. */
struct CUmod_st {
    CUmodule ptx, machine;
    char *entry;
    int in_any_order;
};
struct CUfunc_st {
    CUfunction ptx, machine; /* machine: NULL if there is none */
    const char *entry;
    int in_any_order;
};

/* Load a text. A complaint goes to stderr, because the library has a second image to try. */
static CUresult load(CUmodule *module, const char *text) {
    const CUresult result = VIRTUAL->cuModuleLoadDataEx(module, text, 0, NULL, NULL);
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s\n", VIRTUAL->fault());
    }
    return result;
}

/* Load the two texts of a cubin. */
static CUresult load_both(struct CUmod_st *module, const void *image) {
    struct texts texts = {NULL, NULL, NULL, 0};
    if (find_texts(image, &texts) == 0) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    const size_t length = strlen(texts.entry) + 1;
    module->entry = malloc(length);
    if (module->entry == NULL) {
        abort();
    }
    memcpy(module->entry, texts.entry, length);
    module->in_any_order = texts.in_any_order;
    CUresult result = load(&module->ptx, texts.ptx);
    return result == CUDA_SUCCESS && texts.machine != NULL ? load(&module->machine, texts.machine) : result;
}

F(cuModuleLoadDataEx, CUmodule *module, const void *image, unsigned options, CUjit_option *option, void **value) {
    struct CUmod_st *const made = calloc(1, sizeof *made);
    if (made == NULL) {
        abort();
    }
    *module = made;
    enter(); /* the texts that were found are kept until the next ones are */
    return leave(memcmp(image,
                        "\x7f"
                        "ELF",
                        4) == 0
                     ? load_both(made, image)
                     : VIRTUAL->cuModuleLoadDataEx(&made->ptx, image, options, option, value));
}
F(cuModuleUnload, CUmodule module) {
    if (module->machine != NULL) {
        VIRTUAL->cuModuleUnload(module->machine);
    }
    const CUresult result = VIRTUAL->cuModuleUnload(module->ptx);
    free(module->entry);
    free(module);
    return result;
}
F(cuModuleGetFunction, CUfunction *function, CUmodule module, const char *name) {
    struct CUfunc_st *const made = calloc(1, sizeof *made); /* never freed: a module does not know its functions */
    if (made == NULL) {
        abort();
    }
    made->entry = module->entry;
    made->in_any_order = module->in_any_order;
    CUresult result = VIRTUAL->cuModuleGetFunction(&made->ptx, module->ptx, name);
    if (result == CUDA_SUCCESS && module->machine != NULL) {
        result = VIRTUAL->cuModuleGetFunction(&made->machine, module->machine, name);
    }
    *function = made;
    return result;
}
F(cuFuncGetAttribute, int *value, CUfunction_attribute attribute, CUfunction function) {
    return VIRTUAL->cuFuncGetAttribute(value, attribute, function->ptx);
}
F(cuFuncSetAttribute, CUfunction function, CUfunction_attribute attribute, int value) {
    if (function->machine != NULL) {
        VIRTUAL->cuFuncSetAttribute(function->machine, attribute, value);
    }
    return VIRTUAL->cuFuncSetAttribute(function->ptx, attribute, value);
}
F(cuFuncGetParamInfo, CUfunction function, size_t index, size_t *offset, size_t *bytes) {
    return VIRTUAL->cuFuncGetParamInfo(function->ptx, index, offset, bytes);
}
F(cuOccupancyMaxActiveBlocksPerMultiprocessor, int *blocks, CUfunction function, int threads, size_t shared_bytes) {
    return VIRTUAL->cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function->ptx, threads, shared_bytes);
}

/* ---- launches ---- */

/* Launch a function on this memory, with a seed; return the memory after it, or NULL after a fault. */
static unsigned char *after(const CUlaunchConfig *config, CUfunction function, void **arguments,
                            const unsigned char *memory_before, uint64_t seed) {
    const struct driver_options options = {.checks = -1, .has_seed = seed != 0, .seed = seed};
    VIRTUAL->configure(&options);
    restore(memory_before);
    return VIRTUAL->cuLaunchKernelEx(config, function, arguments, NULL) == CUDA_SUCCESS ? save() : NULL;
}

/* Show the program what came of both. */
static void report(const CUlaunchConfig *config, CUfunction function, const unsigned char *now,
                   unsigned char *const results[2 + OTHER_SEEDS]) {
    struct region *const regions = calloc(memory_count + 1, sizeof *regions);
    if (regions == NULL) {
        abort();
    }
    size_t at = 0;
    for (size_t i = 0; i < memory_count; at += memory[i++].bytes) {
        regions[i] = (struct region){.now = memory[i].at, .bytes = memory[i].bytes};
        regions[i].before = results[0] + at;
        regions[i].wanted = results[1] + at;
        for (size_t k = 0; k < OTHER_SEEDS; ++k) {
            regions[i].again[k] = results[2 + k] != NULL ? results[2 + k] + at : NULL;
        }
    }
    struct launch launch = {.entry = function->entry, .regions = regions, .count = memory_count};
    launch.fault = now == NULL ? VIRTUAL->fault() : NULL;
    memcpy(launch.grid, config->grid, sizeof launch.grid);
    memcpy(launch.block, config->block, sizeof launch.block);
    launched(&launch);
    free(regions);
}

/* Launch both, the machine code last, and report. */
static CUresult launch_both(const CUlaunchConfig *config, CUfunction function, void **arguments) {
    if (function->machine == NULL || memory_bytes() > MOST_BYTES) {
        return VIRTUAL->cuLaunchKernelEx(config, function->ptx, arguments, NULL);
    }
    unsigned char *results[2 + OTHER_SEEDS] = {save()};
    results[1] = after(config, function->ptx, arguments, results[0], 0);
    if (results[1] == NULL) {
        fprintf(stderr, "the PTX of %s: %s\n", function->entry, VIRTUAL->fault());
        free(results[0]);
        return CUDA_ERROR_LAUNCH_FAILED;
    }
    for (size_t k = 0; k < OTHER_SEEDS && function->in_any_order != 0; ++k) {
        results[2 + k] = after(config, function->ptx, arguments, results[0], k + 1);
    }
    unsigned char *const now = after(config, function->machine, arguments, results[0], 0);
    report(config, function, now, results);
    restore(results[1]); /* the next launch begins with the right memory, whatever the machine code made of it */
    free(now);
    for (size_t k = 0; k < 2 + OTHER_SEEDS; ++k) {
        free(results[k]);
    }
    return CUDA_SUCCESS;
}

F(cuLaunchKernelEx, const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    enter();
    return leave(extra != NULL ? CUDA_ERROR_INVALID_VALUE : launch_both(config, function, arguments));
}
F(cuLaunchKernel, CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
  unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **arguments, void **extra) {
    const CUlaunchConfig config = {
        {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, NULL, 0};
    enter();
    return leave(extra != NULL ? CUDA_ERROR_INVALID_VALUE : launch_both(&config, function, arguments));
}
