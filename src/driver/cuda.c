/* The driver table of the CUDA driver. The library is opened at the first use and never linked. */
#include <stdio.h>
#include <string.h>

#include "driver/driver.h"
#include "platform/library.h"
#include "platform/thread.h"

static struct driver table;
static char reason[512];
static struct once once = ONCE_INITIALIZER;

/* Functions that the driver exports under a versioned name. cuEventElapsedTime keeps its first version, because CUDA
 * before 12.8 does not have the second. */
static const char *const versioned[] = {
    "cuDeviceTotalMem_v2",  "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",  "cuCtxPopCurrent_v2",
    "cuMemAlloc_v2",        "cuMemFree_v2",
    "cuMemcpyHtoDAsync_v2", "cuMemHostGetDevicePointer_v2",
    "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2",
    "cuStreamDestroy_v2",   "cuEventDestroy_v2",
};

/* Return the name under which the driver exports a function. */
static const char *exported(const char *name) {
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof versioned / sizeof versioned[0]; ++i) {
        if (strncmp(versioned[i], name, length) == 0 && versioned[i][length] == '_') {
            return versioned[i];
        }
    }
    return name;
}

/* Find a function and store its address. memcpy, because ISO C cannot cast an object pointer to a function pointer. */
static bool find(void *library, const char *name, void *function) {
    void *const address = library_symbol(library, exported(name));
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

/* Replacement for a function that was added in CUDA 12.4. */
static CUresult no_parameter_info(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
    (void)function;
    (void)index;
    (void)offset;
    (void)bytes;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* Replacement for a function that was added in CUDA 12.0. */
static CUresult no_tensor_map(CUtensorMap *map, CUtensorMapDataType type, uint32_t rank, void *address,
                              const uint64_t *dims, const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                              CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                              CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    (void)map, (void)type, (void)rank, (void)address, (void)dims, (void)strides, (void)box, (void)steps;
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_tensor_map_address(CUtensorMap *map, void *address) {
    (void)map, (void)address;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* Return whether old drivers may lack this function. */
static bool is_optional(const char *name) {
    return strcmp(name, "cuFuncGetParamInfo") == 0 || strncmp(name, "cuTensorMap", strlen("cuTensorMap")) == 0;
}

/* Fill the table, or store the reason for the failure. */
static void load(void) {
    void *const library = library_open(LIBRARY_CUDA);
    if (library == NULL) {
        const char *const why = library_error();
        snprintf(reason, sizeof reason, "there is no CUDA driver (%s)", why != NULL ? why : LIBRARY_CUDA);
        return;
    }
    const char *missing = NULL;
#define X(name, parameters)                                                                                            \
    if (!find(library, #name, &table.name)) {                                                                          \
        missing = is_optional(#name) ? missing : #name;                                                                \
    }
    DRIVER_FUNCTIONS(X)
#undef X
    if (table.cuFuncGetParamInfo == NULL) {
        table.cuFuncGetParamInfo = no_parameter_info;
    }
    if (table.cuTensorMapEncodeTiled == NULL) {
        table.cuTensorMapEncodeTiled = no_tensor_map;
    }
    if (table.cuTensorMapReplaceAddress == NULL) {
        table.cuTensorMapReplaceAddress = no_tensor_map_address;
    }
    if (missing != NULL) {
        snprintf(reason, sizeof reason, "the CUDA driver is too old: " LIBRARY_CUDA " has no %s", exported(missing));
        library_close(library);
    }
}

const struct driver *driver_cuda(const char **why) {
    once_run(&once, load);
    if (why != NULL) {
        *why = reason[0] != '\0' ? reason : NULL;
    }
    return reason[0] != '\0' ? NULL : &table;
}
