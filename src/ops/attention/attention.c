/* sm120_attention: what is checked for every precision. */
#include <float.h>
#include <inttypes.h>

#include "generated/constants.h"
#include "ops/attention/attention.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/memory.h"

enum { ROWS_MAX = (1 << 30) - 1 };
enum { FAR = ATTENTION_FAR }; /* beyond every row and key */
enum { SOFTCAP_MAX = 1024 };  /* where the error of tanh, 2^-22 of it, is as small as that of P in f16 */
enum { BOX_COLUMNS = 64 };    /* of a box of a tensor map: 128 bytes, as wide as the swizzle */

/* What a precision takes. */
static const struct precision {
    uint32_t code;
    uint32_t dtype; /* of q, k and v; 0: any */
    int64_t head_dim_max;
    bool has_left; /* its kernel for tensors of one length has a left window */
    attention_run *run;
} precisions[] = {
    {SM120_MXFP8, 0, 128, false, attention_mxfp8},
    {SM120_MXFP8_BF16, SM120_BF16, 128, true, attention_mxfp8},
    {SM120_MXFP8_F16, SM120_F16, 128, true, attention_mxfp8},
    {SM120_BF16, SM120_BF16, 256, true, attention_bf16_f16},
    {SM120_F16, SM120_F16, 256, true, attention_bf16_f16},
};

/* The bytes of a mask's element; 0 for no dtype of a mask. */
static int64_t mask_element_bytes(uint32_t dtype) {
    return dtype == SM120_F32 ? 4 : dtype == SM120_F16 || dtype == SM120_BF16 ? 2 : dtype == SM120_BOOL ? 1 : 0;
}

/* ---- what the precisions share ---- */

/* |scale| * log2(e), of which kernels take powers of two. */
double attention_scale_log2(float scale) {
    return (scale < 0.0f ? -(double)scale : (double)scale) * LOG2_E;
}

/* What kernels multiply scores by to have the exponent of their tanh: any number does where a scale of 0 makes them 0.
 */
double attention_softcap_scale(const sm120_attention_args *args) {
    return args->scale == 0.0f ? 1.0 : 2 * attention_scale_log2(args->scale) / (double)args->softcap;
}

/* The key at which row 0 is. */
static int64_t diagonal_of(const sm120_attention_args *args) {
    const bool is_top_left = args->causal == SM120_CAUSAL_TOP_LEFT || args->causal == SM120_NOT_CAUSAL_TOP_LEFT;
    return is_top_left ? 0 : args->past_rows + args->kv_rows - args->q_rows;
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

uint32_t attention_o_type(const sm120_attention_args *args) {
    return args->o.dtype == SM120_F32   ? ATTENTION_O_F32
           : args->o.dtype == SM120_F16 ? ATTENTION_O_F16
                                        : ATTENTION_O_BF16;
}

sm120_status attention_grid(const struct attention *call, uint32_t q_rows, uint32_t *grid) {
    const int64_t heads = call->args->batch * call->args->heads;
    const int64_t tiles = (call->args->q_rows + q_rows - 1) / q_rows;
    int64_t ctas = 0;
    if (!multiply(heads, tiles, &ctas) || ctas > INT32_MAX) {
        return fail(SM120_UNSUPPORTED,
                    "batch * heads = %" PRId64 " of %" PRId64 " q tiles are too many CTAs; at most %d", heads, tiles,
                    INT32_MAX);
    }
    *grid = (uint32_t)ctas;
    return SM120_OK;
}

/* Whether o is written where q is read, each row by the CTA that has read it. */
static bool is_in_place(const struct attention *call) {
    const struct tensor *const q = &call->q, *const o = &call->o;
    return q->address == o->address && mask_element_bytes(q->dtype) == mask_element_bytes(o->dtype) &&
           call->q_shape.head_dim == call->o_shape.head_dim && q->batch_stride == o->batch_stride &&
           q->head_stride == o->head_stride && q->row_stride == o->row_stride;
}

/* Check that nothing is written where other CTAs read. */
static sm120_status check_outputs(const struct attention *call) {
    const sm120_attention_args *const args = call->args;
    const struct shape row = {1, 1, 1, call->lse_bytes / 4};
    const struct tensor lse = {"lse", args->lse, SM120_F32, 0, 0, 0, args->lse != 0 ? call->lse_bytes : 0};
    const struct {
        const struct tensor *tensor;
        const struct shape *shape;
    } outputs[] = {{&call->o, &call->o_shape}, {&lse, &row}}, inputs[] = {{&call->q, &call->q_shape},
                                                                          {&call->k, &call->k_shape},
                                                                          {&call->v, &call->v_shape},
                                                                          {&call->past_k, &call->past_k_shape},
                                                                          {&call->past_v, &call->past_v_shape}};
    for (int o = 0; o < (args->lse != 0 ? 2 : 1); ++o) {
        for (int i = 0; i < (args->past_rows == 0 ? 3 : 5); ++i) {
            const struct tensor *const in = inputs[i].tensor, *const out = outputs[o].tensor;
            if (tensor_meets(in, inputs[i].shape, out, outputs[o].shape) &&
                !(in == &call->q && out == &call->o && is_in_place(call))) {
                return fail(SM120_INVALID_ARGUMENT,
                            "%s (0x%" PRIx64 ", %" PRId64 " bytes) and %s (0x%" PRIx64 ", %" PRId64
                            " bytes) overlap; of the inputs o may only be where q is, with its strides and head size",
                            out->name, out->address, out->bytes, in->name, in->address, in->bytes);
            }
        }
    }
    return SM120_OK;
}

sm120_status attention_check_places(struct device *device, const struct attention *call) {
    const sm120_attention_args *const args = call->args;
    const struct tensor *const tensors[] = {&call->q, &call->k, &call->v, &call->o, &call->past_k, &call->past_v};
    const struct {
        const char *name;
        sm120_address address;
        uint64_t alignment;
        int64_t bytes;
    } arrays[] = {
        {"lse", args->lse, 4, call->lse_bytes},
        {"diagonals", args->diagonals, 4, 4 * args->batch},
        {"kv_lengths", args->kv_lengths, 4, 4 * args->batch},
        {"cu_seqlens_q", args->cu_seqlens_q, 4, 4 * args->batch + 4},
        {"cu_seqlens_k", args->cu_seqlens_k, 4, 4 * args->batch + 4},
        {"sinks", args->sinks, 4, 4 * args->heads},
        {"alibi_slopes", args->alibi_slopes, 4, 4 * (args->alibi_batch_stride * (args->batch - 1) + args->heads)},
        {"mask.address", args->mask.address, (uint64_t)mask_element_bytes(args->mask.dtype), call->mask_bytes},
    };
    sm120_status status = SM120_OK;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors - (args->past_rows == 0 ? 2 : 0); ++i) {
        status = status == SM120_OK ? tensor_check_address(device, tensors[i]) : status;
    }
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) {
        if (status == SM120_OK && arrays[i].address != 0) {
            status = check_address(arrays[i].name, arrays[i].address, arrays[i].alignment);
            status = status == SM120_OK
                         ? memory_check(device, arrays[i].address, (uint64_t)arrays[i].bytes, arrays[i].name)
                         : status;
        }
    }
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays && status == SM120_OK; ++i) {
        if (arrays[i].address != 0) {
            status =
                check_apart(arrays[i].name, arrays[i].address, arrays[i].bytes, "o", call->o.address, call->o.bytes);
        }
        if (status == SM120_OK && i > 0 && arrays[i].address != 0 && args->lse != 0) {
            status = check_apart(arrays[i].name, arrays[i].address, arrays[i].bytes, "lse", args->lse, call->lse_bytes);
        }
    }
    return status == SM120_OK ? check_outputs(call) : status;
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
    if (args->causal > SM120_NOT_CAUSAL_TOP_LEFT) {
        return fail(SM120_INVALID_ARGUMENT,
                    "causal = %" PRIu32
                    "; NOT_CAUSAL (%d), CAUSAL_BOTTOM_RIGHT (%d), CAUSAL_TOP_LEFT (%d) and NOT_CAUSAL_TOP_LEFT (%d) "
                    "are right",
                    args->causal, SM120_NOT_CAUSAL, SM120_CAUSAL_BOTTOM_RIGHT, SM120_CAUSAL_TOP_LEFT,
                    SM120_NOT_CAUSAL_TOP_LEFT);
    }
    if (!(attention_scale_log2(args->scale) <= (double)FLT_MAX)) { /* false for a NaN too */
        return fail(SM120_INVALID_ARGUMENT, "scale = %g; scale * log2(e) is finite in f32", (double)args->scale);
    }
    return SM120_OK;
}

/* Check the shapes of q, k and v. */
static sm120_status check_shapes(const struct attention *call, int64_t head_dim_max) {
    const sm120_attention_args *const args = call->args;
    const struct shape rows = {args->batch, args->heads, args->q_rows, args->head_dim};
    sm120_status status = check_shape(&rows, "q_rows", ROWS_MAX);
    status = status == SM120_OK ? check_size("kv_heads", args->kv_heads, INT32_MAX) : status;
    status = status == SM120_OK ? check_size("kv_rows", args->kv_rows, ROWS_MAX) : status;
    status = status == SM120_OK ? check_size("head_dim", args->head_dim, head_dim_max) : status;
    status = status == SM120_OK ? check_size("v_head_dim", call->v_shape.head_dim, head_dim_max) : status;
    if (status == SM120_OK && args->heads % args->kv_heads != 0) {
        status = fail(SM120_INVALID_ARGUMENT, "kv_heads = %" PRId64 " does not divide heads = %" PRId64, args->kv_heads,
                      args->heads);
    }
    return status;
}

/* Check dtypes and strides of the tensors. */
static sm120_status check_tensors(struct attention *call, uint32_t dtype) {
    const sm120_attention_args *const args = call->args;
    const struct {
        const char *name;
        const sm120_tensor *given;
        const struct shape *shape;
        struct tensor *tensor;
        bool is_output;
    } list[] = {
        {"q", &args->q, &call->q_shape, &call->q, false},
        {"k", &args->k, &call->k_shape, &call->k, false},
        {"v", &args->v, &call->v_shape, &call->v, false},
        {"o", &args->o, &call->o_shape, &call->o, true},
        {"past_k", &args->past_k, &call->past_k_shape, &call->past_k, false},
        {"past_v", &args->past_v, &call->past_v_shape, &call->past_v, false},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list - (args->past_rows == 0 ? 2 : 0); ++i) {
        const sm120_status status = tensor_check(list[i].name, list[i].given, list[i].shape,
                                                 list[i].is_output ? TENSOR_OUTPUT : TENSOR_INPUT, list[i].tensor);
        if (status != SM120_OK) {
            return status;
        }
        if (!list[i].is_output && list[i].tensor->dtype != call->q.dtype) {
            return fail(SM120_INVALID_ARGUMENT, "%s.dtype = 0x%08" PRIx32 "; it is q.dtype = 0x%08" PRIx32,
                        list[i].name, list[i].tensor->dtype, call->q.dtype);
        }
    }
    if (dtype != 0 && call->q.dtype != dtype) {
        return fail(SM120_INVALID_ARGUMENT,
                    "q.dtype = 0x%08" PRIx32 "; with precision = 0x%" PRIx32 " the dtype of q, k and v is 0x%08" PRIx32,
                    call->q.dtype, args->precision, dtype);
    }
    return SM120_OK;
}

/* Check the window and softcap. */
static sm120_status check_scores(const sm120_attention_args *args) {
    if (args->window > (SM120_WINDOW_LEFT | SM120_WINDOW_RIGHT)) {
        return fail(SM120_INVALID_ARGUMENT, "window = %" PRIu32 "; WINDOW_LEFT (%d) and WINDOW_RIGHT (%d) are its bits",
                    args->window, SM120_WINDOW_LEFT, SM120_WINDOW_RIGHT);
    }
    const struct {
        const char *name;
        uint32_t bit;
        int64_t value;
    } sides[] = {{"window_left", SM120_WINDOW_LEFT, args->window_left},
                 {"window_right", SM120_WINDOW_RIGHT, args->window_right}};
    for (int i = 0; i < 2; ++i) {
        if ((args->window & sides[i].bit) != 0 && sides[i].value < 0) {
            return fail(SM120_INVALID_ARGUMENT, "%s = %" PRId64 "; it is at least 0", sides[i].name, sides[i].value);
        }
    }
    if (args->softcap > (float)SOFTCAP_MAX && args->softcap <= FLT_MAX) {
        return fail(SM120_UNSUPPORTED,
                    "softcap = %g; at most %d is supported, because a score is off by 2^-22 of it, and 0 is none",
                    (double)args->softcap, SOFTCAP_MAX);
    }
    if (!(args->softcap >= 0.0f && args->softcap <= FLT_MAX) ||
        (args->softcap > 0.0f && !(attention_softcap_scale(args) <= (double)FLT_MAX))) {
        return fail(SM120_INVALID_ARGUMENT,
                    "softcap = %g; it is 0 for none, or above 0 such that scale / softcap is finite in f32",
                    (double)args->softcap);
    }
    return SM120_OK;
}

/* Check what says where sequences begin and how long they are. */
static sm120_status check_sequences(const sm120_attention_args *args) {
    const struct {
        const char *name, *starts_name, *rows_name;
        sm120_address starts;
        int64_t total, rows;
    } packed[] = {{"q_total", "cu_seqlens_q", "q_rows", args->cu_seqlens_q, args->q_total, args->q_rows},
                  {"kv_total", "cu_seqlens_k", "kv_rows", args->cu_seqlens_k, args->kv_total, args->kv_rows}};
    for (int i = 0; i < 2; ++i) {
        const sm120_status status =
            packed[i].starts != 0 ? check_size(packed[i].name, packed[i].total, ROWS_MAX) : SM120_OK;
        if (status != SM120_OK) {
            return status;
        }
        if (packed[i].starts == 0 && packed[i].total != 0) {
            return fail(SM120_INVALID_ARGUMENT, "%s = %" PRId64 "; without %s it is 0", packed[i].name, packed[i].total,
                        packed[i].starts_name);
        }
    }
    if (args->past_rows < 0 || args->past_rows > ROWS_MAX - args->kv_rows) {
        return fail(SM120_INVALID_ARGUMENT,
                    "past_rows = %" PRId64 "; with kv_rows = %" PRId64 " it is from 0 to %" PRId64, args->past_rows,
                    args->kv_rows, ROWS_MAX - args->kv_rows);
    }
    if (args->past_rows != 0 && (args->cu_seqlens_k != 0 || args->kv_lengths != 0)) {
        return fail(SM120_UNSUPPORTED, "past_rows = %" PRId64 " and %s; a past is for keys of one length",
                    args->past_rows, args->cu_seqlens_k != 0 ? "cu_seqlens_k" : "kv_lengths");
    }
    if (args->alibi_slopes != 0 &&
        (args->alibi_batch_stride < 0 || args->alibi_batch_stride > INT32_MAX / args->batch)) {
        return fail(SM120_INVALID_ARGUMENT, "alibi_batch_stride = %" PRId64 "; it is 0 or heads = %" PRId64,
                    args->alibi_batch_stride, args->heads);
    }
    return SM120_OK;
}

/* Check the mask, and find its extent in bytes. */
static sm120_status check_mask(struct attention *call) {
    const sm120_attention_args *const args = call->args;
    const sm120_mask *const mask = &args->mask;
    const int64_t element = mask_element_bytes(mask->dtype);
    const struct {
        const char *name;
        int64_t stride, count;
    } steps[] = {{"batch_stride", mask->batch_stride, args->batch},
                 {"head_stride", mask->head_stride, args->heads},
                 {"row_stride", mask->row_stride, args->q_rows},
                 {"column_stride", mask->column_stride, args->past_rows + args->kv_rows}};
    if (mask->address == 0) {
        return SM120_OK;
    }
    if (element == 0) {
        return fail(SM120_INVALID_ARGUMENT,
                    "mask.dtype = 0x%08" PRIx32
                    "; F32 (0x%08x), F16 (0x%08x), BF16 (0x%08x) and BOOL (0x%08x) are right",
                    mask->dtype, SM120_F32, SM120_F16, SM120_BF16, SM120_BOOL);
    }
    if (mask->reserved != 0) {
        return fail(SM120_INVALID_ARGUMENT, "mask.reserved = %" PRIu32 "; it is 0", mask->reserved);
    }
    if (args->cu_seqlens_q != 0 || args->cu_seqlens_k != 0) {
        return fail(SM120_UNSUPPORTED, "mask and %s; a mask is for tensors that are not packed",
                    args->cu_seqlens_q != 0 ? "cu_seqlens_q" : "cu_seqlens_k");
    }
    call->mask_bytes = element;
    for (int i = 0; i < 4; ++i) {
        int64_t span;
        if (steps[i].stride < 0) {
            return fail(SM120_INVALID_ARGUMENT, "mask.%s = %" PRId64 "; no stride is negative", steps[i].name,
                        steps[i].stride);
        }
        if (!multiply(steps[i].stride, element, &span) || !multiply(span, steps[i].count - 1, &span) ||
            !add(span, call->mask_bytes, &call->mask_bytes)) {
            return fail(SM120_UNSUPPORTED, "mask.%s = %" PRId64 ": its bytes do not fit in 63 bits", steps[i].name,
                        steps[i].stride);
        }
    }
    return SM120_OK;
}

/* Whether a kernel for tensors of one length and unchanged scores does. */
static bool is_uniform(const sm120_attention_args *args, const struct precision *precision) {
    const bool is_left = (args->window & SM120_WINDOW_LEFT) != 0;
    return args->softcap == 0.0f && args->diagonals == 0 && args->kv_lengths == 0 && args->cu_seqlens_q == 0 &&
           args->cu_seqlens_k == 0 && args->sinks == 0 && args->alibi_slopes == 0 && args->past_rows == 0 &&
           args->mask.address == 0 && (precision->has_left || !is_left);
}

/* Check the arguments but for tensors and addresses. */
static sm120_status check_forms(const sm120_attention_args *args, struct attention *call,
                                const struct precision **precision) {
    const bool q_packed = args->cu_seqlens_q != 0, kv_packed = args->cu_seqlens_k != 0;
    const int64_t v_head_dim = args->v_head_dim != 0 ? args->v_head_dim : args->head_dim;
    const struct shape q = {q_packed ? 1 : args->batch, args->heads, q_packed ? args->q_total : args->q_rows,
                            args->head_dim};
    const struct shape k = {kv_packed ? 1 : args->batch, args->kv_heads, kv_packed ? args->kv_total : args->kv_rows,
                            args->head_dim};
    const struct shape past = {args->batch, args->kv_heads, args->past_rows, args->head_dim};
    *call = (struct attention){.args = args,
                               .q_shape = q,
                               .k_shape = k,
                               .v_shape = {k.batch, k.heads, k.rows, v_head_dim},
                               .o_shape = {q.batch, q.heads, q.rows, v_head_dim},
                               .past_k_shape = past,
                               .past_v_shape = {past.batch, past.heads, past.rows, v_head_dim}};
    sm120_status status = check_choices(args, precision);
    status = status == SM120_OK ? check_shapes(call, (*precision)->head_dim_max) : status;
    status = status == SM120_OK ? check_scores(args) : status;
    status = status == SM120_OK ? check_sequences(args) : status;
    if (status == SM120_OK) {
        call->is_uniform = is_uniform(args, *precision);
    }
    return status;
}

/* Check the arguments but for addresses. */
static sm120_status check_call(const sm120_attention_args *args, struct attention *call,
                               const struct precision **precision) {
    sm120_status status = check_forms(args, call, precision);
    status = status == SM120_OK ? check_tensors(call, (*precision)->dtype) : status;
    status = status == SM120_OK ? check_mask(call) : status;
    const struct shape *const q = &call->q_shape;
    if (status == SM120_OK && !multiply(q->batch * q->heads, 4 * q->rows, &call->lse_bytes)) {
        status = fail(SM120_UNSUPPORTED, "lse of batch * heads * q_rows = %" PRId64 " * %" PRId64 " does not fit",
                      q->batch * q->heads, q->rows);
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
    if (status == SM120_OK) {
        status = attention_is_ready(&call)
                     ? precision->run(device, &call, workspace, workspace_bytes)
                     : attention_on_copies(device, &call, precision->run, workspace, workspace_bytes);
    }
    return device_leave(device, status);
}

/* Check what both questions for a config give, and the call. */
static sm120_status check_question(const sm120_attention_args *args, const char *const *config, const int32_t *kernel,
                                   struct attention *call) {
    const struct precision *precision = NULL;
    sm120_status status = check_struct(args, sizeof *args, "args", "sm120_attention_args");
    status = status == SM120_OK ? check_pointer((const void *)config, "config") : status;
    status = status == SM120_OK ? check_pointer(kernel, "kernel") : status;
    return status == SM120_OK ? check_forms(args, call, &precision) : status;
}

sm120_status sm120_attention_config(const sm120_attention_args *args, int32_t index, const char **config,
                                    int32_t *kernel) {
    struct attention call;
    uint32_t entry = 0;
    error_clear();
    sm120_status status = check_question(args, config, kernel, &call);
    status = status == SM120_OK ? attention_config(&call, index, &entry) : status;
    if (status == SM120_OK) {
        *config = attention_config_name(entry);
        *kernel = (int32_t)entry;
    }
    return status;
}

sm120_status sm120_attention_chosen(sm120_device *handle, const sm120_attention_args *args, const char **config,
                                    int32_t *kernel) {
    struct device *device;
    struct attention call;
    uint32_t entry = 0;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_question(args, config, kernel, &call);
    status = status == SM120_OK ? attention_choose(device, &call, &entry) : status;
    if (status == SM120_OK) {
        *config = attention_config_name(entry);
        *kernel = (int32_t)entry;
    }
    return device_leave(device, status);
}
