/* The library, errors and devices of the virtual SM120, and the environment variables that describe devices. */
#include "vm/run/virtual.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "vm/machine/base.h"
#include "vm/machine/environment.h"
#include "vm/machine/fault.h"
#include "vm/machine/options.h"

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_PROFILER_NOT_INITIALIZED, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "no profile is running"},
    {CUDA_ERROR_PROFILER_ALREADY_STARTED, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "a profile is already running"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for this device"},
    {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the PTX version is not supported"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested"},
    {CUDA_ERROR_LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch does not end"},
    {CUDA_ERROR_ASSERT, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {CUDA_ERROR_ILLEGAL_INSTRUCTION, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {CUDA_ERROR_INVALID_ADDRESS_SPACE, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on this space"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
     "too many blocks in cooperative launch"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"}};

static CUresult read_device_count(uint64_t *count) {
    return environment_number("PYSM120_VIRTUAL_DEVICES", 1, MAX_DEVICES, 1, count);
}

static int device_count(void) {
    uint64_t count;
    read_device_count(&count);
    return (int)count;
}

/* Return the bytes of a device's memory, at most the address space of a process. */
static CUresult read_memory_limit(uint64_t *bytes) {
    return environment_number("PYSM120_VIRTUAL_MEMORY", 1, 1ULL << 47, 24ULL << 30, bytes);
}

/* Return the major compute capability that the devices report. With 9, the library uses the kernels for Hopper. */
static CUresult read_capability(uint64_t *major) {
    return environment_number("PYSM120_VIRTUAL_CAPABILITY", 7, 12, 12, major);
}

static int capability(void) {
    uint64_t major;
    read_capability(&major);
    return (int)major;
}

int virtual_shared_limit(void) {
    return capability() == 9 ? MAX_SHARED : SM120_SHARED;
}

/* Check the environment variables that are read when a device is opened. Launches check theirs. */
static CUresult check_environment(void) {
    static const char *const widths[] = {"base", "v3", "v4"};
    uint64_t number;
    int width;
    CUresult r = read_device_count(&number);
    r = r != CUDA_SUCCESS ? r : read_memory_limit(&number);
    r = r != CUDA_SUCCESS ? r : read_capability(&number);
    return r != CUDA_SUCCESS ? r : environment_word("PYSM120_VM_ISA", widths, 2, &width);
}

CUresult virtual_null_argument(const char *name) {
    return fault_set(CUDA_ERROR_INVALID_VALUE, "%s is NULL", name);
}

CUresult virtual_cuInit(unsigned flags) {
    return flags != 0 ? fault_set(CUDA_ERROR_INVALID_VALUE, "flags is %u; expected 0", flags) : CUDA_SUCCESS;
}

CUresult virtual_cuDriverGetVersion(int *version) {
    if (version == NULL) {
        return virtual_null_argument("version");
    }
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult virtual_cuGetErrorName(CUresult error, const char **name) {
    for (size_t k = 0; name != NULL && k < sizeof errors / sizeof *errors; ++k) {
        if (errors[k].code == error) {
            *name = errors[k].name;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult virtual_cuGetErrorString(CUresult error, const char **text) {
    for (size_t k = 0; text != NULL && k < sizeof errors / sizeof *errors; ++k) {
        if (errors[k].code == error) {
            *text = errors[k].text;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult virtual_cuDeviceGetCount(int *count) {
    if (count == NULL) {
        return virtual_null_argument("count");
    }
    *count = device_count();
    return check_environment();
}

CUresult virtual_check_device(CUdevice device) {
    if (device < 0 || device >= device_count()) {
        return fault_set(CUDA_ERROR_INVALID_DEVICE, "device %d does not exist; %d devices are available", device,
                         device_count());
    }
    return CUDA_SUCCESS;
}

CUresult virtual_cuDeviceGet(CUdevice *device, int ordinal) {
    if (device == NULL) {
        return virtual_null_argument("device");
    }
    const CUresult r = virtual_check_device(ordinal);
    if (r == CUDA_SUCCESS) {
        *device = ordinal;
    }
    return r;
}

CUresult virtual_cuDeviceGetName(char *name, int bytes, CUdevice device) {
    const CUresult r = virtual_check_device(device);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    if (name == NULL || bytes < 1) {
        return virtual_null_argument("name");
    }
    const int major = capability();
    snprintf(name, (size_t)bytes, major == 12 ? "virtual SM120" : "virtual SM120 as sm_%d0", major);
    return CUDA_SUCCESS;
}

CUresult virtual_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    const int table[][2] = {{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
                            {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
                            {CU_DEVICE_ATTRIBUTE_WARP_SIZE, WARP},
                            {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 2407000},
                            {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, (int)options_multiprocessors()},
                            {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, (capability() == 12 ? 96 : 50) << 20},
                            {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 1536},
                            {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, capability()},
                            {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
                            {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, virtual_shared_limit() + 1024},
                            {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
                            {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, virtual_shared_limit()}};
    const CUresult r = virtual_check_device(device);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    for (size_t k = 0; value != NULL && k < sizeof table / sizeof *table; ++k) {
        if (table[k][0] == (int)attribute) {
            *value = table[k][1];
            return CUDA_SUCCESS;
        }
    }
    return fault_set(CUDA_ERROR_INVALID_VALUE, "attribute %d is not supported", (int)attribute);
}

size_t virtual_memory(void) {
    uint64_t bytes;
    read_memory_limit(&bytes);
    return (size_t)bytes;
}

CUresult virtual_cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    const CUresult r = virtual_check_device(device);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    if (bytes == NULL) {
        return virtual_null_argument("bytes");
    }
    *bytes = virtual_memory();
    return CUDA_SUCCESS;
}
