/* Tensor maps of the virtual SM120. */
#include "vm/run/virtual.h"

#include <stddef.h>
#include <stdint.h>

#include "driver/tensor_map_rules.h"
#include "vm/execute/tma.h"
#include "vm/machine/fault.h"

/* Read the arguments of cuTensorMapEncodeTiled. */
CUresult virtual_cuTensorMapEncodeTiled(CUtensorMap *to, CUtensorMapDataType type, uint32_t rank, void *address,
                                        const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                        const uint32_t *steps, CUtensorMapInterleave interleave,
                                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                        CUtensorMapFloatOOBfill fill) {
    char why[256];
    struct tensor_map map = {.address = (uint64_t)(uintptr_t)address,
                             .rank = rank,
                             .type = (uint32_t)type,
                             .interleave = (uint32_t)interleave,
                             .swizzle = (uint32_t)swizzle,
                             .promotion = (uint32_t)promotion,
                             .fill = (uint32_t)fill};
    if (virtual_current() == NULL) {
        return virtual_no_context();
    }
    if (to == NULL || (uintptr_t)to % _Alignof(CUtensorMap) != 0 || dims == NULL || box == NULL || steps == NULL ||
        (strides == NULL && rank > 1)) {
        return fault_set(CUDA_ERROR_INVALID_VALUE,
                         "dims, strides, box or steps is NULL, or map is not a multiple of 64");
    }
    for (uint32_t k = 0; k < rank && k < TENSOR_MAP_RANK; ++k) {
        map.dims[k] = dims[k];
        map.box[k] = box[k];
        map.steps[k] = steps[k];
        if (k + 1 < rank) {
            map.strides[k] = strides[k];
        }
    }
    if (!tensor_map_check(&map, why, sizeof why)) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "%s", why);
    }
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) {
        return fault_set(CUDA_ERROR_NOT_SUPPORTED, "interleave = %d; interleaved layouts are not supported",
                         (int)interleave);
    }
    tma_map_pack(to, &map);
    return CUDA_SUCCESS;
}

CUresult virtual_cuTensorMapReplaceAddress(CUtensorMap *map, void *address) {
    char why[256];
    struct tensor_map fields;
    if (virtual_current() == NULL) {
        return virtual_no_context();
    }
    if (map == NULL) {
        return virtual_null_argument("map");
    }
    if (!tma_map_unpack(map, &fields, why, sizeof why)) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "map is not a tensor map of this device: %s", why);
    }
    fields.address = (uint64_t)(uintptr_t)address;
    if (!tensor_map_check(&fields, why, sizeof why)) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "%s", why);
    }
    tma_map_pack(map, &fields);
    return CUDA_SUCCESS;
}
