/* The checks of the tensors of a call: dtypes and strides, and the scales of those that are MXFP8 already. */
#include <inttypes.h>

#include "ops/attention/attention.h"
#include "ops/quantize_mxfp8.h"
#include "runtime/check.h"
#include "runtime/error.h"

enum { BLOCK = 32 };

/* A tensor that a call reads. */
struct operand {
    const char *name, *blocks_name;
    const sm120_tensor *given, *given_blocks;
    const struct shape *shape;
    struct tensor *tensor;
    struct blocks *blocks;
    bool is_v, may_be_tiles;
};

/* The shape of the scales: along rows in v, where each packed sequence begins with a block of its own. */
static struct shape blocks_shape(const struct attention *call, const struct operand *x) {
    struct shape shape = *x->shape;
    if (!x->is_v) {
        shape.head_dim = (shape.head_dim + BLOCK - 1) / BLOCK;
        return shape;
    }
    shape.rows = (shape.rows + BLOCK - 1) / BLOCK;
    shape.rows += call->args->cu_seqlens_k != 0 && x->tensor == &call->v ? call->args->batch - 1 : 0;
    return shape;
}

/* Check the scales of a tensor in E4M3. */
static sm120_status check_blocks(const struct attention *call, const struct operand *x) {
    if (x->given_blocks->dtype != SM120_E8M0 && x->given_blocks->dtype != SM120_U8) {
        return fail(SM120_INVALID_ARGUMENT, "%s.dtype = %s; %s in E4M3 needs scales in %s or %s, one for each %d %s",
                    x->blocks_name, dtype_text(x->given_blocks->dtype).text, x->name, dtype_text(SM120_E8M0).text,
                    dtype_text(SM120_U8).text, BLOCK, x->is_v ? "rows" : "columns");
    }
    x->blocks->are_given = true;
    x->blocks->shape = blocks_shape(call, x);
    return tensor_check_strides(x->blocks_name, x->given_blocks, &x->blocks->shape, TENSOR_SPREAD, &x->blocks->tensor);
}

bool attention_is_tiles(const struct tensor *x) {
    return x->dtype == SM120_U8;
}

int64_t attention_tile_columns(const struct attention *call) {
    const int64_t k = call->q_shape.head_dim, v = call->v_shape.head_dim;
    return mxfp8_tile_columns(k > v ? k : v);
}

/* Whether a given operand is tiles. Other operands in U8 are wrong. */
static bool is_tiles(const struct precision *precision, const struct operand *x) {
    return x->given->dtype == SM120_U8 && x->may_be_tiles &&
           (x->is_v ? precision->has_v_blocks : precision->has_qk_blocks);
}

/* Check an operand in tiles, or rows of q. Their memory is dense. */
static sm120_status check_tiles(const struct attention *call, const struct operand *x) {
    const sm120_attention_args *const args = call->args;
    const bool is_q = x->tensor == &call->q;
    const int64_t columns = attention_tile_columns(call);
    const int64_t step = is_q ? mxfp8_q_tile_rows(args->precision, columns) : MXFP8_TILE_ROWS;
    const int64_t kv_tiles = (args->kv_rows + MXFP8_TILE_ROWS - 1) / MXFP8_TILE_ROWS;
    const int64_t tiles = is_q ? (args->q_rows + step - 1) / step * step : kv_tiles;
    const int64_t bytes = is_q ? mxfp8_q_row_bytes(columns) : mxfp8_tile_bytes(x->is_v, columns);
    const int64_t heads = is_q ? args->heads : args->kv_heads;
    int64_t head = 0, batch = 0, all = 0;
    if (is_q && !(args->scale > 0.0f)) {
        return fail(SM120_UNSUPPORTED, "scale = %g; with q in tiles it must be above 0", (double)args->scale);
    }
    if (x->given_blocks->address != 0) {
        return fail(SM120_INVALID_ARGUMENT, "%s is given, but tiles of %s hold their scales", x->blocks_name, x->name);
    }
    if (args->past_rows != 0 && !is_q) {
        return fail(SM120_UNSUPPORTED, "%s in tiles with past_rows = %" PRId64 "; a past needs other tensors", x->name,
                    args->past_rows);
    }
    if (x->given->reserved != 0) {
        return fail(SM120_INVALID_ARGUMENT, "%s.reserved = %" PRIu32 "; it must be 0", x->name, x->given->reserved);
    }
    if (!multiply(tiles, bytes, &head) || !multiply(heads, head, &batch) || !multiply(args->batch, batch, &all)) {
        return fail(SM120_UNSUPPORTED, "%s: tiles of batch * heads = %" PRId64 " * %" PRId64 " exceed 2^63 bytes",
                    x->name, args->batch, heads);
    }
    const struct {
        const char *name;
        int64_t count, given, dense;
    } strides[] = {{"batch_stride", args->batch, x->given->batch_stride, batch},
                   {"head_stride", heads, x->given->head_stride, head},
                   {"row_stride", tiles, x->given->row_stride, bytes}};
    for (size_t i = 0; i < sizeof strides / sizeof *strides; ++i) {
        if (strides[i].count > 1 && strides[i].given != strides[i].dense) {
            return fail(SM120_INVALID_ARGUMENT,
                        "%s.%s = %" PRId64 "; tiles of %" PRId64 " columns are dense, so it must be %" PRId64, x->name,
                        strides[i].name, strides[i].given, columns, strides[i].dense);
        }
    }
    *x->tensor = (struct tensor){.name = x->name, .address = x->given->address, .dtype = SM120_U8, .bytes = all};
    return SM120_OK;
}

/* Check that a past in FP8 has the dtype of the keys or values after it. q, k and v may mix E4M3 and E5M2. */
static sm120_status check_fp8(const struct attention *call, const struct operand *x) {
    const struct tensor *const after = x->tensor == &call->past_k   ? &call->k
                                       : x->tensor == &call->past_v ? &call->v
                                                                    : x->tensor;
    return x->tensor->dtype == after->dtype
               ? SM120_OK
               : fail(SM120_INVALID_ARGUMENT, "%s.dtype = %s; it must be %s.dtype = %s", x->name,
                      dtype_text(x->tensor->dtype).text, after->name, dtype_text(after->dtype).text);
}

/* Check a tensor that the call reads. `first` is the first one that is not MXFP8. */
static sm120_status check_operand(const struct attention *call, const struct precision *precision,
                                  const struct operand *x, const struct tensor **first) {
    const bool is_e4m3 = x->given->dtype == SM120_E4M3;
    if (is_tiles(precision, x)) {
        return check_tiles(call, x);
    }
    const bool is_mx = is_e4m3 && (x->is_v ? precision->has_v_blocks : precision->has_qk_blocks);
    const bool is_fp8 = attention_is_fp8(call->args, x->given->dtype), is_checked = is_mx || is_fp8;
    if (!is_mx && x->given_blocks->address != 0) {
        return fail(SM120_INVALID_ARGUMENT,
                    "%s is given, but %s.dtype = %s with precision = 0x%" PRIx32 "; it is for E4M3 in %s",
                    x->blocks_name, x->name, dtype_text(x->given->dtype).text, precision->code,
                    x->is_v ? "MXFP8 and NVFP4_MXFP8" : "MXFP8, MXFP8_BF16 and MXFP8_F16");
    }
    const sm120_status status =
        (is_checked ? tensor_check_strides : tensor_check)(x->name, x->given, x->shape, TENSOR_INPUT, x->tensor);
    if (status != SM120_OK || is_mx) {
        return status == SM120_OK ? check_blocks(call, x) : status;
    }
    *first = *first != NULL ? *first : x->tensor;
    if (is_fp8 && attention_is_fp8(call->args, (*first)->dtype)) {
        return check_fp8(call, x);
    }
    return x->tensor->dtype == (*first)->dtype
               ? SM120_OK
               : fail(SM120_INVALID_ARGUMENT, "%s.dtype = %s; it must be %s.dtype = %s", x->name,
                      dtype_text(x->tensor->dtype).text, (*first)->name, dtype_text((*first)->dtype).text);
}

sm120_status attention_check_tensors(struct attention *call, const struct precision *precision) {
    const sm120_attention_args *const args = call->args;
    struct blocks *const blocks = call->blocks;
    const struct operand list[ATTENTION_OPERANDS] = {
        [ATTENTION_Q] = {"q", "q_blocks", &args->q, &args->q_blocks, &call->q_shape, &call->q, blocks + ATTENTION_Q,
                         false, true},
        [ATTENTION_K] = {"k", "k_blocks", &args->k, &args->k_blocks, &call->k_shape, &call->k, blocks + ATTENTION_K,
                         false, true},
        [ATTENTION_V] = {"v", "v_blocks", &args->v, &args->v_blocks, &call->v_shape, &call->v, blocks + ATTENTION_V,
                         true, true},
        [ATTENTION_PAST_K] = {"past_k", "past_k_blocks", &args->past_k, &args->past_k_blocks, &call->past_k_shape,
                              &call->past_k, blocks + ATTENTION_PAST_K, false, false},
        [ATTENTION_PAST_V] = {"past_v", "past_v_blocks", &args->past_v, &args->past_v_blocks, &call->past_v_shape,
                              &call->past_v, blocks + ATTENTION_PAST_V, true, false},
    };
    const bool may_be_e4m3 = precision->dtype == SM120_E4M3 && args->o.dtype == SM120_E4M3;
    const struct tensor *first = NULL;
    sm120_status status = SM120_OK;
    for (int i = 0; i < (args->past_rows == 0 ? ATTENTION_PAST_K : ATTENTION_OPERANDS) && status == SM120_OK; ++i) {
        if (i >= ATTENTION_PAST_K && list[i].given->dtype == 0 && list[i].given->address == 0) {
            return fail(SM120_INVALID_ARGUMENT, "past_rows = %" PRId64 " needs %s", args->past_rows, list[i].name);
        }
        status = check_operand(call, precision, list + i, &first);
    }
    if (status == SM120_OK && args->o.dtype == SM120_E4M3 && !may_be_e4m3) {
        status = fail(SM120_UNSUPPORTED, "o.dtype = E4M3 (0x%08x), which only precision = FP8 (0x%x) has", SM120_E4M3,
                      SM120_FP8);
    }
    if (status == SM120_OK) {
        status =
            (may_be_e4m3 ? tensor_check_strides : tensor_check)("o", &args->o, &call->o_shape, TENSOR_OUTPUT, &call->o);
    }
    if (status == SM120_OK && first != NULL && precision->dtype != 0 && first->dtype != precision->dtype &&
        !attention_is_narrowed(call) && !attention_is_fp8(args, first->dtype)) {
        status = fail(SM120_INVALID_ARGUMENT,
                      "%s.dtype = %s; with precision = 0x%" PRIx32 " the dtype of q, k and v must be %s", first->name,
                      dtype_text(first->dtype).text, args->precision, dtype_text(precision->dtype).text);
    }
    return status;
}
