/* sm120_attention: what is checked for every precision. */
#include <float.h>
#include <inttypes.h>

#include "attention.h"
#include "check.h"
#include "error.h"
#include "memory.h"

enum { ROWS_MAX = (1 << 30) - 1 };
enum { BOX_COLUMNS = 64 };         /* of a box of a tensor map: 128 bytes, as wide as the swizzle */
enum { NO_DIAGONAL = 0x3fffffff }; /* above every kv row */

typedef sm120_status attention_run(struct device *device, const struct attention *call, sm120_address workspace,
                                   size_t *workspace_bytes);

/* What a precision takes. */
static const struct precision {
    uint32_t code;
    uint32_t dtype; /* of q, k and v; 0: any */
    int64_t head_dim_max;
    attention_run *run;
} precisions[] = {
    {SM120_MXFP8, 0, 128, attention_mxfp8},
    {SM120_MXFP8_BF16, SM120_BF16, 128, attention_mxfp8},
    {SM120_MXFP8_F16, SM120_F16, 128, attention_mxfp8},
    {SM120_BF16, SM120_BF16, 256, attention_bf16_f16},
    {SM120_F16, SM120_F16, 256, attention_bf16_f16},
};

/* ---- what the precisions share ---- */

/* |scale| * log2(e), of which kernels take powers of two. */
double attention_scale_log2(float scale) {
    return (scale < 0.0f ? -(double)scale : (double)scale) * 1.4426950408889634;
}

int32_t attention_diagonal(const sm120_attention_args *args) {
    return args->causal == SM120_NOT_CAUSAL        ? NO_DIAGONAL
           : args->causal == SM120_CAUSAL_TOP_LEFT ? 0
                                                   : (int32_t)(args->kv_rows - args->q_rows);
}

uint32_t attention_o_type(const sm120_attention_args *args) {
    return args->o.dtype == SM120_F32 ? 0 : args->o.dtype == SM120_F16 ? 1 : 2;
}

sm120_status attention_grid(const struct attention *call, uint32_t q_rows, uint32_t *grid) {
    const int64_t heads = call->q_shape.batch * call->q_shape.heads;
    const int64_t tiles = (call->q_shape.rows + q_rows - 1) / q_rows;
    int64_t ctas = 0;
    if (!multiply(heads, tiles, &ctas) || ctas > INT32_MAX) {
        return fail(SM120_UNSUPPORTED,
                    "batch * heads = %" PRId64 " of %" PRId64 " q tiles are too many CTAs; at most %d", heads, tiles,
                    INT32_MAX);
    }
    *grid = (uint32_t)ctas;
    return SM120_OK;
}

sm120_status attention_check_places(struct device *device, const struct attention *call) {
    const sm120_address lse = call->args->lse;
    sm120_status status = tensor_check_address(device, &call->q);
    status = status == SM120_OK ? tensor_check_address(device, &call->k) : status;
    status = status == SM120_OK ? tensor_check_address(device, &call->v) : status;
    status = status == SM120_OK ? tensor_check_address(device, &call->o) : status;
    if (lse != 0) {
        status = status == SM120_OK ? check_address("lse", lse, 4) : status;
        status = status == SM120_OK ? memory_check(device, lse, (uint64_t)call->lse_bytes, "lse") : status;
        status =
            status == SM120_OK ? check_apart("lse", lse, call->lse_bytes, "o", call->o.address, call->o.bytes) : status;
    }
    return status;
}

sm120_status attention_describe(const struct device *device, const struct tensor *x, const struct shape *shape,
                                uint32_t rows, CUtensorMap *map, uint32_t *broadcast) {
    const int64_t steps[] = {x->row_stride, x->head_stride, x->batch_stride};
    uint64_t dims[] = {(uint64_t)shape->head_dim, (uint64_t)shape->rows, (uint64_t)shape->heads,
                       (uint64_t)shape->batch};
    uint64_t strides[3];
    for (int i = 0; i < 3; ++i) {
        strides[i] = steps[i] != 0 ? (uint64_t)steps[i] : 16;
        dims[i + 1] = steps[i] != 0 || i == 0 ? dims[i + 1] : 1;
    }
    *broadcast = (x->batch_stride == 0 ? 1u : 0u) | (x->head_stride == 0 ? 2u : 0u);
    const uint32_t box[] = {BOX_COLUMNS, rows, 1, 1}, ones[] = {1, 1, 1, 1};
    const CUresult result = device->driver->cuTensorMapEncodeTiled(
        map, x->dtype == SM120_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
        (void *)(uintptr_t)x->address, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? SM120_OK
                                  : driver_fail(device->driver, result, "describing %s to the copy engine", x->name);
}

/* ---- checks ---- */

/* Find the precision, and check the other fields that are choices. */
static sm120_status check_choices(const sm120_attention_args *args, const struct precision **precision) {
    *precision = NULL;
    for (size_t i = 0; i < sizeof precisions / sizeof *precisions; ++i) {
        if (precisions[i].code == args->precision) {
            *precision = precisions + i;
        }
    }
    if (*precision == NULL) {
        return fail(SM120_INVALID_ARGUMENT,
                    "precision = 0x%" PRIx32
                    "; MXFP8 (0x%x), MXFP8_BF16 (0x%x), MXFP8_F16 (0x%x), BF16 (0x%x) and F16 (0x%x) are right",
                    args->precision, SM120_MXFP8, SM120_MXFP8_BF16, SM120_MXFP8_F16, SM120_BF16, SM120_F16);
    }
    if (args->causal > SM120_CAUSAL_TOP_LEFT) {
        return fail(SM120_INVALID_ARGUMENT,
                    "causal = %" PRIu32
                    "; NOT_CAUSAL (%d), CAUSAL_BOTTOM_RIGHT (%d) and CAUSAL_TOP_LEFT (%d) are right",
                    args->causal, SM120_NOT_CAUSAL, SM120_CAUSAL_BOTTOM_RIGHT, SM120_CAUSAL_TOP_LEFT);
    }
    if (!(attention_scale_log2(args->scale) <= (double)FLT_MAX)) { /* false for a NaN too */
        return fail(SM120_INVALID_ARGUMENT, "scale = %g; scale * log2(e) is finite in f32", (double)args->scale);
    }
    return SM120_OK;
}

/* Check the shapes of q, k and v. */
static sm120_status check_shapes(const struct attention *call, int64_t head_dim_max) {
    const sm120_attention_args *const args = call->args;
    sm120_status status = check_shape(&call->q_shape, "q_rows", ROWS_MAX);
    status = status == SM120_OK ? check_size("kv_heads", args->kv_heads, INT32_MAX) : status;
    status = status == SM120_OK ? check_size("kv_rows", args->kv_rows, ROWS_MAX) : status;
    status = status == SM120_OK ? check_size("head_dim", args->head_dim, head_dim_max) : status;
    if (status == SM120_OK && args->heads % args->kv_heads != 0) {
        status = fail(SM120_INVALID_ARGUMENT, "kv_heads = %" PRId64 " does not divide heads = %" PRId64, args->kv_heads,
                      args->heads);
    }
    return status;
}

/* Check dtypes and strides of the four tensors. */
static sm120_status check_tensors(struct attention *call, uint32_t dtype) {
    const sm120_attention_args *const args = call->args;
    sm120_status status = tensor_check("q", &args->q, &call->q_shape, TENSOR_INPUT, &call->q);
    status = status == SM120_OK ? tensor_check("k", &args->k, &call->kv_shape, TENSOR_INPUT, &call->k) : status;
    status = status == SM120_OK ? tensor_check("v", &args->v, &call->kv_shape, TENSOR_INPUT, &call->v) : status;
    status = status == SM120_OK ? tensor_check("o", &args->o, &call->q_shape, TENSOR_OUTPUT, &call->o) : status;
    if (status == SM120_OK && (call->k.dtype != call->q.dtype || call->v.dtype != call->q.dtype)) {
        status = fail(SM120_INVALID_ARGUMENT,
                      "k.dtype = 0x%08" PRIx32 " and v.dtype = 0x%08" PRIx32 "; both are q.dtype = 0x%08" PRIx32,
                      call->k.dtype, call->v.dtype, call->q.dtype);
    }
    if (status == SM120_OK && dtype != 0 && call->q.dtype != dtype) {
        status =
            fail(SM120_INVALID_ARGUMENT,
                 "q.dtype = 0x%08" PRIx32 "; with precision = 0x%" PRIx32 " the dtype of q, k and v is 0x%08" PRIx32,
                 call->q.dtype, args->precision, dtype);
    }
    return status;
}

/* Check the arguments but for addresses. */
static sm120_status check_call(const sm120_attention_args *args, struct attention *call,
                               const struct precision **precision) {
    *call = (struct attention){
        .args = args,
        .q_shape = {args->batch, args->heads, args->q_rows, args->head_dim},
        .kv_shape = {args->batch, args->kv_heads, args->kv_rows, args->head_dim},
    };
    sm120_status status = check_choices(args, precision);
    status = status == SM120_OK ? check_shapes(call, (*precision)->head_dim_max) : status;
    status = status == SM120_OK ? check_tensors(call, (*precision)->dtype) : status;
    if (status == SM120_OK && !multiply(args->batch * args->heads, 4 * args->q_rows, &call->lse_bytes)) {
        status = fail(SM120_UNSUPPORTED, "lse of batch * heads * q_rows = %" PRId64 " * %" PRId64 " does not fit",
                      args->batch * args->heads, args->q_rows);
    }
    return status;
}

sm120_status sm120_attention(sm120_device *handle, const sm120_attention_args *args, sm120_address workspace,
                             size_t *workspace_bytes) {
    struct device *device;
    struct attention call;
    const struct precision *precision = NULL;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(args, sizeof *args, "args", "sm120_attention_args");
    status = status == SM120_OK ? check_call(args, &call, &precision) : status;
    status = status == SM120_OK ? precision->run(device, &call, workspace, workspace_bytes) : status;
    return device_leave(device, status);
}
