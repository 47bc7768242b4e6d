/* What the kernels of every precision share: scale, window, grid, launch, tensor maps. */
#include <inttypes.h>

#include "generated/constants.h"
#include "ops/attention/attention.h"
#include "runtime/check.h"
#include "runtime/error.h"

enum { FAR = ATTENTION_FAR }; /* beyond every row and key */

/* |scale| * log2(e): kernels compute exp(x) as 2^(x * log2(e)). */
double attention_scale_log2(float scale) {
    return (scale < 0.0f ? -(double)scale : (double)scale) * LOG2_E;
}

/* The factor of a score in the exponent of softcap's tanh. With a scale of 0 all scores are 0, so any factor is right.
 */
double attention_softcap_scale(const sm120_attention_args *args) {
    return args->scale == 0.0f ? 1.0 : 2 * attention_scale_log2(args->scale) / (double)args->softcap;
}

/* The key on the diagonal of row 0, of tensors of one length without a past. */
static int64_t diagonal_of(const sm120_attention_args *args) {
    const bool is_top_left = args->causal == SM120_CAUSAL_TOP_LEFT || args->causal == SM120_NOT_CAUSAL_TOP_LEFT;
    return is_top_left ? 0 : args->kv_rows - args->q_rows;
}

static bool is_causal(const sm120_attention_args *args) {
    return args->causal == SM120_CAUSAL_BOTTOM_RIGHT || args->causal == SM120_CAUSAL_TOP_LEFT;
}

static int32_t clamp(int64_t x) {
    return x > FAR ? FAR : x < -FAR ? -FAR : (int32_t)x;
}

struct reach attention_reach(const sm120_attention_args *args) {
    struct reach reach = {.has_left = (args->window & SM120_WINDOW_LEFT) != 0,
                          .has_right = (args->window & SM120_WINDOW_RIGHT) != 0 || is_causal(args)};
    reach.left = reach.has_left ? clamp(args->window_left) : FAR;
    reach.right = is_causal(args) ? 0 : reach.has_right ? clamp(args->window_right) : FAR;
    return reach;
}

int32_t attention_lower(const sm120_attention_args *args) {
    const struct reach reach = attention_reach(args);
    return reach.has_left ? clamp(diagonal_of(args) - reach.left) : -FAR;
}

int32_t attention_upper(const sm120_attention_args *args) {
    const struct reach reach = attention_reach(args);
    return reach.has_right ? clamp(diagonal_of(args) + reach.right) : FAR;
}

uint32_t attention_type(uint32_t dtype) {
    return dtype == SM120_F32    ? ATTENTION_O_F32
           : dtype == SM120_F16  ? ATTENTION_O_F16
           : dtype == SM120_E4M3 ? ATTENTION_O_E4M3
                                 : ATTENTION_O_BF16;
}

sm120_status attention_describe(const struct device *device, const struct tensor *x, const struct shape *shape,
                                uint32_t columns, uint32_t rows, CUtensorMap *map, uint32_t *broadcast) {
    const int64_t steps[] = {x->row_stride, x->head_stride, x->batch_stride};
    uint64_t dims[] = {(uint64_t)shape->head_dim, (uint64_t)shape->rows, (uint64_t)shape->heads,
                       (uint64_t)shape->batch};
    uint64_t strides[3];
    for (int i = 0; i < 3; ++i) {
        strides[i] = steps[i] != 0 ? (uint64_t)steps[i] : 16;
        dims[i + 1] = steps[i] != 0 || i == 0 ? dims[i + 1] : 1;
    }
    *broadcast = (x->batch_stride == 0 ? 1u : 0u) | (x->head_stride == 0 ? 2u : 0u);
    const uint32_t box[] = {columns, rows, 1, 1}, ones[] = {1, 1, 1, 1};
    const CUtensorMapDataType type = tensor_element_bytes(x->dtype) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                     : x->dtype == SM120_BF16            ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                                         : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    const bool is_half = columns * tensor_element_bytes(x->dtype) == 64;
    const CUresult result = device->driver->cuTensorMapEncodeTiled(
        map, type, 4, (void *)(uintptr_t)x->address, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
        is_half ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? SM120_OK
                                  : driver_fail(device->driver, result, "describing %s to the copy engine", x->name);
}
