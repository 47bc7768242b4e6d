/* The driver table: the subset of the CUDA driver API that this library uses, with the driver's names and meanings.
 * driver/cuda.c fills it from libcuda.so.1, vm/run/driver_virtual.c from the virtual SM120. The code above does not
 * know which of the two it uses. */
#ifndef SM120_DRIVER_H
#define SM120_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sm120.h"

typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

typedef enum CUresult {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_PROFILER_NOT_INITIALIZED = 6,
    CUDA_ERROR_PROFILER_ALREADY_STARTED = 7,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
    CUDA_ERROR_LAUNCH_TIMEOUT = 702,
    CUDA_ERROR_ASSERT = 710,
    CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
    CUDA_ERROR_MISALIGNED_ADDRESS = 716,
    CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_UNKNOWN = 999
} CUresult;

typedef enum CUdevice_attribute {
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5,
    CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
    CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
    CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
} CUdevice_attribute;

typedef enum CUfunction_attribute {
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
    CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
    CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9
} CUfunction_attribute;

typedef enum CUjit_option {
    CU_JIT_INFO_LOG_BUFFER = 3,
    CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4,
    CU_JIT_ERROR_LOG_BUFFER = 5,
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6
} CUjit_option;

enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_DEFAULT = 0 };
enum { CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2 };

typedef enum CUtensorMapDataType {
    CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0,
    CU_TENSOR_MAP_DATA_TYPE_UINT16 = 1,
    CU_TENSOR_MAP_DATA_TYPE_UINT32 = 2,
    CU_TENSOR_MAP_DATA_TYPE_INT32 = 3,
    CU_TENSOR_MAP_DATA_TYPE_UINT64 = 4,
    CU_TENSOR_MAP_DATA_TYPE_INT64 = 5,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT64 = 8,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ = 10,
    CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 = 11,
    CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ = 12,
    CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B = 13,
    CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B = 14,
    CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B = 15
} CUtensorMapDataType;

typedef enum CUtensorMapInterleave {
    CU_TENSOR_MAP_INTERLEAVE_NONE = 0,
    CU_TENSOR_MAP_INTERLEAVE_16B = 1,
    CU_TENSOR_MAP_INTERLEAVE_32B = 2
} CUtensorMapInterleave;

typedef enum CUtensorMapSwizzle {
    CU_TENSOR_MAP_SWIZZLE_NONE = 0,
    CU_TENSOR_MAP_SWIZZLE_32B = 1,
    CU_TENSOR_MAP_SWIZZLE_64B = 2,
    CU_TENSOR_MAP_SWIZZLE_128B = 3,
    CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B = 4,
    CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B = 5,
    CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B = 6
} CUtensorMapSwizzle;

typedef enum CUtensorMapL2promotion {
    CU_TENSOR_MAP_L2_PROMOTION_NONE = 0,
    CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3
} CUtensorMapL2promotion;

typedef enum CUtensorMapFloatOOBfill {
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0,
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA = 1
} CUtensorMapFloatOOBfill;

/* An opaque tensor map. Its address must be a multiple of 64. */
typedef struct CUtensorMap {
    _Alignas(64) uint64_t opaque[16];
} CUtensorMap;

/* Attributes of a launch. COOPERATIVE: all CTAs are resident at once. PROGRAMMATIC_STREAM_SERIALIZATION: the launch may
 * begin before the one in front of it has ended, and waits for its end by griddepcontrol.wait. */
typedef enum CUlaunchAttributeID {
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
} CUlaunchAttributeID;

typedef struct CUlaunchAttribute {
    CUlaunchAttributeID id;
    char pad[8 - sizeof(CUlaunchAttributeID)];
    union {
        int flag; /* of both */
        char pad[64];
    } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    CUlaunchAttribute *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

/* X(name, parameters): every function of the table, all returning CUresult. */
#define DRIVER_FUNCTIONS(X)                                                                                            \
    X(cuInit, (unsigned flags))                                                                                        \
    X(cuDriverGetVersion, (int *version))                                                                              \
    X(cuGetErrorName, (CUresult error, const char **name))                                                             \
    X(cuGetErrorString, (CUresult error, const char **text))                                                           \
    X(cuDeviceGetCount, (int *count))                                                                                  \
    X(cuDeviceGet, (CUdevice * device, int ordinal))                                                                   \
    X(cuDeviceGetName, (char *name, int bytes, CUdevice device))                                                       \
    X(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device))                               \
    X(cuDeviceTotalMem, (size_t *bytes, CUdevice device))                                                              \
    X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                                \
    X(cuDevicePrimaryCtxRelease, (CUdevice device))                                                                    \
    X(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active))                                     \
    X(cuCtxGetCurrent, (CUcontext * context))                                                                          \
    X(cuCtxGetDevice, (CUdevice * device))                                                                             \
    X(cuCtxPushCurrent, (CUcontext context))                                                                           \
    X(cuCtxPopCurrent, (CUcontext * context))                                                                          \
    X(cuCtxSynchronize, (void))                                                                                        \
    X(cuMemAlloc, (CUdeviceptr * address, size_t bytes))                                                               \
    X(cuMemFree, (CUdeviceptr address))                                                                                \
    X(cuMemHostAlloc, (void **host, size_t bytes, unsigned flags))                                                     \
    X(cuMemHostGetDevicePointer, (CUdeviceptr * address, void *host, unsigned flags))                                  \
    X(cuMemFreeHost, (void *host))                                                                                     \
    X(cuMemcpyHtoDAsync, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                            \
    X(cuMemcpyDtoHAsync, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))                                  \
    X(cuMemcpyDtoDAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                            \
    X(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream))                           \
    X(cuStreamCreate, (CUstream * stream, unsigned flags))                                                             \
    X(cuStreamDestroy, (CUstream stream))                                                                              \
    X(cuStreamSynchronize, (CUstream stream))                                                                          \
    X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                                             \
    X(cuEventCreate, (CUevent * event, unsigned flags))                                                                \
    X(cuEventDestroy, (CUevent event))                                                                                 \
    X(cuEventRecord, (CUevent event, CUstream stream))                                                                 \
    X(cuEventSynchronize, (CUevent event))                                                                             \
    X(cuEventElapsedTime, (float *milliseconds, CUevent start, CUevent end))                                           \
    X(cuModuleLoadDataEx,                                                                                              \
      (CUmodule * module, const void *image, unsigned options, CUjit_option *option, void **value))                    \
    X(cuModuleUnload, (CUmodule module))                                                                               \
    X(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name))                                 \
    X(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction function))                           \
    X(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value))                            \
    X(cuFuncGetParamInfo, (CUfunction function, size_t index, size_t *offset, size_t *bytes))                          \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor,                                                                     \
      (int *blocks, CUfunction function, int threads, size_t shared_bytes))                                            \
    X(cuLaunchKernel,                                                                                                  \
      (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,     \
       unsigned block_z, unsigned shared_bytes, CUstream stream, void **arguments, void **extra))                      \
    X(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra))           \
    X(cuTensorMapEncodeTiled,                                                                                          \
      (CUtensorMap * map, CUtensorMapDataType type, uint32_t rank, void *address, const uint64_t *dims,                \
       const uint64_t *strides, const uint32_t *box, const uint32_t *steps, CUtensorMapInterleave interleave,          \
       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill))                    \
    X(cuTensorMapReplaceAddress, (CUtensorMap * map, void *address))

/* Options in the name of a virtual device. */
struct driver_options {
    int checks; /* 0 off, 1 default, 2 full; -1: $PYSM120_CHECKS */
    bool has_seed;
    uint64_t seed;       /* otherwise $PYSM120_SEED */
    int multiprocessors; /* 0: 170 */
    int resident;        /* of a profile: CTAs that a multiprocessor runs at once; 0: all CTAs run, each for itself */
    int sampled;         /* of a profile: multiprocessors whose CTAs run, from 0 on; 0: one */
    int l1_bytes;        /* L1 and shared memory of a multiprocessor, which these CTAs share; 0: 128 KiB */
    sm120_watch watch;   /* see NULL: no watch */
};

struct driver {
#define X(name, parameters) CUresult(*name) parameters;
    DRIVER_FUNCTIONS(X)
#undef X
    /* Functions that the CUDA driver does not have; NULL for it. */
    const char *(*fault)(void); /* text of the fault behind the calling thread's last failed call */
    CUresult (*counter)(CUcontext context, int index, const char **name, uint64_t *value); /* NOT_FOUND past the end */
    CUresult (*counters_reset)(CUcontext context);
    bool (*allocated)(CUcontext context, CUdeviceptr address); /* whether an allocation holds the address */
    /* Set the options of the calling thread's next launches. NULL: use the environment. */
    void (*configure)(const struct driver_options *options);
    /* Whether the calling thread's calls check values in device memory: at every level of checks except off. Its
     * copies to the host have ended when they return. */
    bool (*checks)(void);
    /* Set the file name, for messages, of the text that the calling thread loads next. The pointer must stay valid
     * meanwhile. */
    void (*name_text)(const char *name);
    /* Describe the index-th .global or .const variable. NOT_FOUND past the last. */
    CUresult (*variable)(CUmodule module, int index, sm120_variable_info *info);
    /* Start (on) or end a profile. PROFILER_ALREADY_STARTED if one is running; ending never fails. Rows: NOT_FOUND
     * past the last. */
    CUresult (*profile)(CUcontext context, int on);
    CUresult (*profile_read)(CUcontext context, int index, sm120_profile_row *row);
    CUresult (*profile_cta)(CUcontext context, int index, const char **kernel, uint64_t *cta, uint64_t *executed);
    CUresult (*interrupt)(CUcontext context); /* stop the running launches; callable from another thread */
    /* Behind sm120_kernel_instruction and sm120_step_*: NOT_FOUND past the last, INVALID_VALUE for an invalid step. */
    bool (*looking)(void); /* whether the calling thread is in a watcher's callback */
    CUresult (*instruction)(CUfunction function, int index, sm120_instruction_info *info);
    CUresult (*step_query)(const sm120_step *step, sm120_step_info *info);
    CUresult (*step_register)(const sm120_step *step, int which, int index, sm120_register_info *info);
    CUresult (*step_variable)(const sm120_step *step, int index, sm120_variable_info *info);
    CUresult (*step_lanes)(const sm120_step *step, int index, sm120_lanes_info *info);
    CUresult (*step_shared)(const sm120_step *step, uint32_t address, void *to, size_t bytes);
};

/* Return the CUDA driver, or NULL with the reason in `why`. Loaded once, thread-safe. */
const struct driver *driver_cuda(const char **why);
/* Return the virtual SM120; never NULL. */
const struct driver *driver_virtual(void);

#endif
