/* Functions of the virtual SM120: their attributes, their occupancy, and launches. */
#include "vm/run/virtual.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vm/machine/fault.h"
#include "vm/machine/program.h"
#include "vm/run/run.h"
#include "vm/run/streams.h"

CUresult virtual_cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    if (value == NULL || function == NULL) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "value or function is NULL");
    }
    const uint32_t *most = function->required[0] != 0 ? function->required : function->maximum;
    const uint64_t threads = (uint64_t)most[0] * most[1] * most[2];
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = threads != 0 && threads < 1024 ? (int)threads : 1024;
        break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = (int)function->static_shared;
        break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = (int)function->local_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 0;
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = function->dynamic_limit != 0 ? function->dynamic_limit : DEFAULT_SHARED - (int)function->static_shared;
        break;
    default:
        return fault_set(CUDA_ERROR_INVALID_VALUE, "attribute %d is not supported", (int)attribute);
    }
    return CUDA_SUCCESS;
}

CUresult virtual_cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    enum { CARVEOUT_OF_DRIVER = -1, CARVEOUT_MAX = 100 };
    if (function != NULL && attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        /* A preference: L1 and shared memory are apart here. */
        return value >= CARVEOUT_OF_DRIVER && value <= CARVEOUT_MAX
                   ? CUDA_SUCCESS
                   : fault_set(CUDA_ERROR_INVALID_VALUE, "%d percent of shared memory; expected %d to %d", value,
                               CARVEOUT_OF_DRIVER, CARVEOUT_MAX);
    }
    if (function == NULL || attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "attribute %d cannot be set", (int)attribute);
    }
    const int most = virtual_shared_limit() - (int)function->static_shared;
    if (value < 0 || value > most) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "%d dynamic bytes of shared memory; expected 0 to %d", value, most);
    }
    function->dynamic_limit = value;
    return CUDA_SUCCESS;
}

CUresult virtual_cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
    if (function == NULL || offset == NULL) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "function or offset is NULL");
    }
    if (index >= function->parameter_count) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "parameter index %zu; the kernel has %u parameters", index,
                         function->parameter_count);
    }
    *offset = function->parameters[index].offset;
    if (bytes != NULL) {
        *bytes = function->parameters[index].bytes;
    }
    return CUDA_SUCCESS;
}

/* The virtual SM120 does not allocate registers: threads, shared memory and the number of CTAs limit occupancy. */
CUresult virtual_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                             size_t shared_bytes) {
    if (blocks == NULL || function == NULL || threads < 1 || threads > 1024) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "blocks or function is NULL, or %d threads are out of range",
                         threads);
    }
    const size_t most = (size_t)virtual_shared_limit();
    const uint32_t shared = launch_shared(function, (uint32_t)(shared_bytes <= most ? shared_bytes : most + 1));
    *blocks = shared <= most ? (int)launch_occupancy((unsigned)threads, shared) : 0;
    return CUDA_SUCCESS;
}

/* Run a kernel when the earlier work of its stream has ended. */
static CUresult launch_in_order(CUstream stream, CUfunction function, const uint32_t grid[3], const uint32_t block[3],
                                unsigned shared_bytes, void **arguments, bool is_cooperative) {
    struct device *const device = function->module->device;
    struct work work;
    const CUresult r = work_begin(device, stream, &work);
    return r != CUDA_SUCCESS
               ? r
               : work_end(&work, launch_run(device, function, grid, block, shared_bytes, arguments, is_cooperative));
}

CUresult virtual_cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                CUstream stream, void **arguments, void **extra) {
    const uint32_t grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    if (function == NULL || extra != NULL) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "function is NULL, or extra is not NULL");
    }
    return launch_in_order(stream, function, grid, block, shared_bytes, arguments, false);
}

/* Launches run one after the other, so PROGRAMMATIC_STREAM_SERIALIZATION changes nothing. */
CUresult virtual_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    if (config == NULL || function == NULL || extra != NULL) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "config or function is NULL, or extra is not NULL");
    }
    bool is_cooperative = false;
    for (unsigned i = 0; i < config->attribute_count; ++i) {
        const CUlaunchAttribute *const attribute = &config->attributes[i];
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
            is_cooperative = attribute->value.flag != 0;
        } else if (attribute->id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
            return fault_set(CUDA_ERROR_INVALID_VALUE, "launch attribute %d is not supported", (int)attribute->id);
        }
    }
    return launch_in_order(config->stream, function, config->grid, config->block, config->shared_bytes, arguments,
                           is_cooperative);
}
