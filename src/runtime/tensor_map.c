/* Tensor maps: sm120_tensor_map_encode and sm120_tensor_map_replace_address. */
#include <inttypes.h>
#include <string.h>

#include "driver/tensor_map_rules.h"
#include "runtime/check.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/memory.h"
#include "runtime/tensor.h"

_Static_assert(sizeof(sm120_tensor_map) == sizeof(CUtensorMap), "the driver's map fits");
_Static_assert(sizeof(CUtensorMap) == TENSOR_MAP_BYTES, "the driver's map fits");

/* The checks that need no device. */
static sm120_status check_args(const sm120_tensor_map_args *args) {
    char why[256];
    struct tensor_map map = {.address = args->address,
                             .type = args->data_type,
                             .rank = args->rank,
                             .interleave = args->interleave,
                             .swizzle = args->swizzle,
                             .promotion = args->l2_promotion,
                             .fill = args->oob_fill};
    memcpy(map.dims, args->dims, sizeof map.dims);
    memcpy(map.strides, args->strides, sizeof map.strides);
    memcpy(map.box, args->box, sizeof map.box);
    memcpy(map.steps, args->element_strides, sizeof map.steps);
    if (args->reserved != 0) {
        return fail(SM120_INVALID_ARGUMENT, "reserved = %" PRIu32 "; it must be 0", args->reserved);
    }
    const sm120_status status = check_address("address", args->address, 16);
    return status != SM120_OK || tensor_map_check(&map, why, sizeof why) ? status
                                                                         : fail(SM120_INVALID_ARGUMENT, "%s", why);
}

/* Check that the chip supports the type and the swizzle. */
static sm120_status check_chip(const struct device *device, const sm120_tensor_map_args *args) {
    enum { BLACKWELL = 10 };
    const bool is_new_type = args->data_type >= SM120_TENSOR_MAP_16U4_ALIGN8B;
    if (device->info.capability_major >= BLACKWELL || (!is_new_type && args->swizzle <= SM120_SWIZZLE_128B)) {
        return SM120_OK;
    }
    return fail(SM120_UNSUPPORTED,
                "%s = %" PRIu32 "; \"%s\" has compute capability %d.%d, and this needs %d.0 or later",
                is_new_type ? "data_type" : "swizzle", is_new_type ? args->data_type : args->swizzle, device->info.name,
                (int)device->info.capability_major, (int)device->info.capability_minor, BLACKWELL);
}

/* Translate the driver's answer. */
static sm120_status encoded(const struct device *device, CUresult result, const char *what) {
    return result == CUDA_SUCCESS ? SM120_OK
                                  : driver_fail(device->driver, result, "%s on \"%s\"%s", what, device->info.name,
                                                result == CUDA_ERROR_NOT_SUPPORTED && !device->info.is_virtual
                                                    ? ", which needs a driver of CUDA 12.0 or later"
                                                    : "");
}

sm120_status sm120_tensor_map_encode(sm120_device *handle, const sm120_tensor_map_args *args, sm120_tensor_map *map) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(args, sizeof *args, "args", "sm120_tensor_map_args");
    status = status == SM120_OK ? check_pointer(map, "map") : status;
    status = status == SM120_OK ? check_args(args) : status;
    status = status == SM120_OK ? check_chip(device, args) : status;
    status = status == SM120_OK ? memory_check(device, args->address, 1, "address") : status;
    if (status == SM120_OK) {
        CUtensorMap made = {{0}};
        const CUresult result = device->driver->cuTensorMapEncodeTiled(
            &made, (CUtensorMapDataType)args->data_type, args->rank, (void *)(uintptr_t)args->address, args->dims,
            args->strides, args->box, args->element_strides, (CUtensorMapInterleave)args->interleave,
            (CUtensorMapSwizzle)args->swizzle, (CUtensorMapL2promotion)args->l2_promotion,
            (CUtensorMapFloatOOBfill)args->oob_fill);
        status = encoded(device, result, "encoding a tensor map");
        if (status == SM120_OK) {
            memcpy(map, &made, sizeof *map);
        }
    }
    return device_leave(device, status);
}

sm120_status sm120_tensor_map_replace_address(sm120_device *handle, sm120_tensor_map *map, sm120_address address) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer(map, "map");
    status = status == SM120_OK ? check_address("address", address, 16) : status;
    status = status == SM120_OK ? memory_check(device, address, 1, "address") : status;
    if (status == SM120_OK) {
        CUtensorMap made;
        memcpy(&made, map, sizeof made);
        const CUresult result = device->driver->cuTensorMapReplaceAddress(&made, (void *)(uintptr_t)address);
        status = encoded(device, result, "replacing the address of a tensor map");
        if (status == SM120_OK) {
            memcpy(map, &made, sizeof *map);
        }
    }
    return device_leave(device, status);
}
