/* A libcuda.so.1 without a GPU: it runs no kernel, but keeps account of contexts and of what was not given back, and
 * any one of its calls can be made to fail. GPU 0 has capability 8.0, GPU 1 has 9.0. */
#include "../support/cuda_versions.h"

#include "driver/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int fake_live, fake_left,
    fake_depth;  /* objects in use; those that only the end of the context freed; contexts pushed */
int fake_failed; /* calls made to fail */
int fake_init_result;
static int fail_at, calls;

void fake_fail_at(int call);
void fake_fail_at(int call) {
    fail_at = call;
    calls = 0;
    fake_failed = 0;
}

/* Is this the call that is to fail? */
static int fails(void) {
    calls += 1;
    fake_failed += calls == fail_at;
    return calls == fail_at;
}

/* Every call that may fail begins with this one; most need a context. */
#define BEGIN                                                                                                          \
    if (fails()) {                                                                                                     \
        return CUDA_ERROR_UNKNOWN;                                                                                     \
    }
#define BEGIN_IN_CONTEXT                                                                                               \
    BEGIN if (fake_depth == 0) {                                                                                       \
        return CUDA_ERROR_INVALID_CONTEXT;                                                                             \
    }
#define UNUSED(x) (void)(x)

/* What a context owns, in a ring. */
struct object {
    struct object *next, *previous;
};
static struct object ring = {&ring, &ring};

/* Give out an object of `bytes` bytes. */
static CUresult give(void **out, size_t bytes) {
    struct object *const object = bytes > (size_t)1 << 30 ? NULL : calloc(1, sizeof *object + bytes);
    if (object == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *object = (struct object){&ring, ring.previous};
    object->previous->next = object;
    ring.previous = object;
    fake_live += 1;
    *out = object + 1;
    return CUDA_SUCCESS;
}

/* Take an object back. */
static CUresult take(void *given) {
    struct object *const object = (struct object *)given - 1;
    object->previous->next = object->next;
    object->next->previous = object->previous;
    free(object);
    fake_live -= 1;
    return CUDA_SUCCESS;
}

/* ---- the table, in its order ---- */

#define F(name, ...)                                                                                                   \
    CUresult name(__VA_ARGS__);                                                                                        \
    CUresult name(__VA_ARGS__)

F(cuInit, unsigned flags) {
    UNUSED(flags);
    BEGIN return (CUresult)fake_init_result;
}
F(cuDriverGetVersion, int *version) {
    BEGIN *version = 13000;
    return CUDA_SUCCESS;
}
F(cuGetErrorName, CUresult error, const char **name) {
    *name = error == CUDA_ERROR_UNKNOWN ? "CUDA_ERROR_UNKNOWN" : "CUDA_ERROR_OTHER";
    return CUDA_SUCCESS;
}
F(cuGetErrorString, CUresult error, const char **text) {
    UNUSED(error);
    return *text = "some text", CUDA_SUCCESS;
}
F(cuDeviceGetCount, int *count) {
    BEGIN *count = 2;
    return CUDA_SUCCESS;
}
F(cuDeviceGet, CUdevice *device, int ordinal) {
    BEGIN *device = ordinal;
    return CUDA_SUCCESS;
}
F(cuDeviceGetName, char *name, int bytes, CUdevice device) {
    BEGIN snprintf(name, (size_t)bytes, "Fake GPU %d", device);
    return CUDA_SUCCESS;
}
F(cuDeviceGetAttribute, int *value, CUdevice_attribute attribute, CUdevice device) {
    BEGIN *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR            ? 8 + device
                   : attribute == CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK             ? 1024
                   : attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 232448
                                                                                        : 0;
    return CUDA_SUCCESS;
}
F(cuDeviceTotalMem, size_t *bytes, CUdevice device) {
    UNUSED(device);
    BEGIN *bytes = (size_t)1 << 30;
    return CUDA_SUCCESS;
}
F(cuDevicePrimaryCtxRetain, CUcontext *context, CUdevice device) {
    UNUSED(device);
    BEGIN fake_live += 1;
    *context = (CUcontext)&fake_live;
    return CUDA_SUCCESS;
}
F(cuDevicePrimaryCtxRelease, CUdevice device) {
    UNUSED(device);
    for (fake_left = 0; ring.next != &ring; ++fake_left) {
        take(ring.next + 1);
    }
    fake_live -= 1;
    return CUDA_SUCCESS;
}
F(cuDevicePrimaryCtxGetState, CUdevice device, unsigned *flags, int *active) {
    UNUSED(device);
    BEGIN *flags = 0;
    *active = fake_live != 0;
    return CUDA_SUCCESS;
}
F(cuCtxGetCurrent, CUcontext *context) {
    BEGIN *context = (CUcontext)&fake_depth;
    return CUDA_SUCCESS;
}
F(cuCtxGetDevice, CUdevice *device) {
    BEGIN_IN_CONTEXT *device = 1;
    return CUDA_SUCCESS;
}
F(cuCtxPushCurrent, CUcontext context) {
    UNUSED(context);
    BEGIN fake_depth += 1;
    return CUDA_SUCCESS;
}
F(cuCtxPopCurrent, CUcontext *context) {
    *context = NULL;
    fake_depth -= 1;
    return CUDA_SUCCESS;
}
F(cuCtxSynchronize, void) {
    BEGIN_IN_CONTEXT return CUDA_SUCCESS;
}
F(cuMemAlloc, CUdeviceptr *address, size_t bytes) {
    void *memory = NULL;
    BEGIN_IN_CONTEXT const CUresult result = give(&memory, bytes + 256);
    *address = (CUdeviceptr)(uintptr_t)memory;
    return result;
}
F(cuMemFree, CUdeviceptr address) {
    return take((void *)(uintptr_t)address);
}
F(cuMemHostAlloc, void **host, size_t bytes, unsigned flags) {
    UNUSED(flags);
    BEGIN_IN_CONTEXT return give(host, bytes);
}
F(cuMemHostGetDevicePointer, CUdeviceptr *address, void *host, unsigned flags) {
    UNUSED(flags);
    BEGIN_IN_CONTEXT *address = (CUdeviceptr)(uintptr_t)host;
    return CUDA_SUCCESS;
}
F(cuMemFreeHost, void *host) {
    return take(host);
}
F(cuMemcpyHtoDAsync, CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    UNUSED(stream);
    BEGIN_IN_CONTEXT memcpy((void *)(uintptr_t)to, from, bytes);
    return CUDA_SUCCESS;
}
F(cuMemcpyDtoHAsync, void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    UNUSED(stream);
    BEGIN_IN_CONTEXT memcpy(to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}
F(cuMemcpyDtoDAsync, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    UNUSED(stream);
    BEGIN_IN_CONTEXT memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}
F(cuMemsetD8Async, CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    UNUSED(stream);
    BEGIN_IN_CONTEXT memset((void *)(uintptr_t)to, value, bytes);
    return CUDA_SUCCESS;
}
F(cuStreamCreate, CUstream *stream, unsigned flags) {
    UNUSED(flags);
    BEGIN_IN_CONTEXT return give((void **)stream, 8);
}
F(cuStreamDestroy, CUstream stream) {
    return take(stream);
}
F(cuStreamSynchronize, CUstream stream) {
    UNUSED(stream);
    BEGIN_IN_CONTEXT return CUDA_SUCCESS;
}
F(cuStreamWaitEvent, CUstream stream, CUevent event, unsigned flags) {
    UNUSED(stream), UNUSED(event), UNUSED(flags);
    BEGIN_IN_CONTEXT return CUDA_SUCCESS;
}
F(cuEventCreate, CUevent *event, unsigned flags) {
    UNUSED(flags);
    BEGIN_IN_CONTEXT return give((void **)event, 8);
}
F(cuEventDestroy, CUevent event) {
    return take(event);
}
F(cuEventRecord, CUevent event, CUstream stream) {
    UNUSED(event), UNUSED(stream);
    BEGIN_IN_CONTEXT return CUDA_SUCCESS;
}
F(cuEventSynchronize, CUevent event) {
    UNUSED(event);
    BEGIN_IN_CONTEXT return CUDA_SUCCESS;
}
F(cuEventElapsedTime, float *milliseconds, CUevent start, CUevent end) {
    UNUSED(start), UNUSED(end);
    BEGIN_IN_CONTEXT *milliseconds = 1.0f;
    return CUDA_SUCCESS;
}
F(cuModuleLoadDataEx, CUmodule *module, const void *image, unsigned options, CUjit_option *option, void **value) {
    BEGIN_IN_CONTEXT if (strcmp(image, "wrong") == 0) {
        if (options != 2 || option[0] != CU_JIT_ERROR_LOG_BUFFER) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        strcpy(value[0], "ptxas application ptx input, line 5; fatal   : one\nptxas fatal   : two\n");
        return CUDA_ERROR_INVALID_PTX;
    }
    return give((void **)module, 8);
}
F(cuModuleUnload, CUmodule module) {
    return take(module);
}
F(cuModuleGetFunction, CUfunction *function, CUmodule module, const char *name) {
    BEGIN_IN_CONTEXT *function = (CUfunction)(void *)module;
    return strcmp(name, "missing") == 0 ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
F(cuFuncGetAttribute, int *value, CUfunction_attribute attribute, CUfunction function) {
    UNUSED(function);
    BEGIN_IN_CONTEXT *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CUDA_SUCCESS;
}
F(cuFuncSetAttribute, CUfunction function, CUfunction_attribute attribute, int value) {
    UNUSED(function), UNUSED(attribute), UNUSED(value);
    BEGIN_IN_CONTEXT return CUDA_SUCCESS;
}
F(cuOccupancyMaxActiveBlocksPerMultiprocessor, int *blocks, CUfunction function, int threads, size_t shared_bytes) {
    UNUSED(function), UNUSED(threads), UNUSED(shared_bytes);
    BEGIN_IN_CONTEXT *blocks = 1;
    return CUDA_SUCCESS;
}
#ifndef WITHOUT_LAUNCH
F(cuLaunchKernel, CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
  unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **arguments, void **extra) {
    UNUSED(function), UNUSED(grid_x), UNUSED(grid_y), UNUSED(grid_z), UNUSED(block_x), UNUSED(block_y);
    UNUSED(block_z), UNUSED(shared_bytes), UNUSED(stream), UNUSED(arguments), UNUSED(extra);
    BEGIN_IN_CONTEXT return CUDA_SUCCESS;
}
#endif
F(cuLaunchKernelEx, const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    UNUSED(function), UNUSED(arguments), UNUSED(extra);
    BEGIN_IN_CONTEXT return config->attributes->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE &&
            config->grid[0] * config->grid[1] * config->grid[2] > 1
        ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
        : CUDA_SUCCESS;
}
#ifndef WITHOUT_TENSOR_MAPS
F(cuTensorMapEncodeTiled, CUtensorMap *map, CUtensorMapDataType type, uint32_t rank, void *address,
  const uint64_t *dims, const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
  CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
  CUtensorMapFloatOOBfill fill) {
    UNUSED(type), UNUSED(rank), UNUSED(address), UNUSED(dims), UNUSED(strides), UNUSED(box), UNUSED(steps);
    UNUSED(interleave), UNUSED(swizzle), UNUSED(promotion), UNUSED(fill);
    BEGIN_IN_CONTEXT memset(map, 0, sizeof *map);
    return CUDA_SUCCESS;
}
#endif
