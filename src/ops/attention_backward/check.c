/* The checks of a call that need no address: precision, shapes, tensors. */
#include <inttypes.h>

#include "ops/attention_backward/attention_backward.h"
#include "runtime/check.h"
#include "runtime/error.h"

enum { MXFP8_WIDEST = 128 }; /* the largest head size of kernels in MXFP8 */

/* The call of sm120_attention whose gradients are wanted. */
static sm120_attention_args forward_of(const sm120_attention_backward_args *args) {
    return (sm120_attention_args){
        .size = sizeof(sm120_attention_args),
        .precision = args->precision,
        .batch = args->batch,
        .heads = args->heads,
        .kv_heads = args->kv_heads,
        .q_rows = args->q_rows,
        .kv_rows = args->kv_rows,
        .head_dim = args->head_dim,
        .q = args->q,
        .k = args->k,
        .v = args->v,
        .o = args->o,
        .lse = args->lse,
        .scale = args->scale,
        .causal = args->causal,
        .stream = args->stream,
        .v_head_dim = args->v_head_dim,
        .window_left = args->window_left,
        .window_right = args->window_right,
        .window = args->window,
        .softcap = args->softcap,
        .diagonals = args->diagonals,
        .kv_lengths = args->kv_lengths,
        .cu_seqlens_q = args->cu_seqlens_q,
        .cu_seqlens_k = args->cu_seqlens_k,
        .q_total = args->q_total,
        .kv_total = args->kv_total,
        .alibi_slopes = args->alibi_slopes,
        .alibi_batch_stride = args->alibi_batch_stride,
        .mask = args->mask,
    };
}

/* Check dout and the results. */
static sm120_status check_tensors(struct backward *b) {
    const sm120_attention_backward_args *const args = b->args;
    const struct attention *const call = &b->call;
    const struct {
        const char *name;
        const sm120_tensor *given;
        const struct shape *shape;
        struct tensor *tensor;
        enum tensor_role role;
    } list[] = {
        {"dout", &args->dout, &call->o_shape, &b->given[DOUT], TENSOR_INPUT},
        {"dq", &args->dq, &call->q_shape, &b->results[DQ], TENSOR_OUTPUT},
        {"dk", &args->dk, &call->k_shape, &b->results[DK], TENSOR_OUTPUT},
        {"dv", &args->dv, &call->v_shape, &b->results[DV], TENSOR_OUTPUT},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; ++i) {
        const sm120_status status =
            tensor_check(list[i].name, list[i].given, list[i].shape, list[i].role, list[i].tensor);
        if (status != SM120_OK) {
            return status;
        }
        if (list[i].role == TENSOR_OUTPUT && args->accumulate != 0 && list[i].tensor->dtype != SM120_F32) {
            return fail(SM120_INVALID_ARGUMENT, "%s.dtype = %s; with accumulate it is %s", list[i].name,
                        dtype_text(list[i].tensor->dtype).text, dtype_text(SM120_F32).text);
        }
    }
    if (b->given[DOUT].dtype != call->q.dtype) {
        return fail(SM120_INVALID_ARGUMENT, "dout.dtype = %s; it must be q.dtype = %s",
                    dtype_text(b->given[DOUT].dtype).text, dtype_text(call->q.dtype).text);
    }
    return SM120_OK;
}

/* Check the gradient of the mask, and find its extent: elements that differ in a dimension whose stride is not 0 must
 * not overlap. */
static sm120_status check_dmask(struct backward *b) {
    const sm120_attention_backward_args *const args = b->args;
    const sm120_mask *const dmask = &args->dmask;
    const struct {
        const char *name;
        int64_t stride, count;
    } steps[] = {{"column_stride", dmask->column_stride, args->kv_rows},
                 {"row_stride", dmask->row_stride, args->q_rows},
                 {"head_stride", dmask->head_stride, args->heads},
                 {"batch_stride", dmask->batch_stride, args->batch}};
    enum { STEPS = sizeof steps / sizeof *steps };
    bool is_done[STEPS] = {false};
    int64_t elements = 1;
    if (dmask->address == 0) {
        return SM120_OK;
    }
    if (args->mask.address == 0 || args->mask.dtype == SM120_BOOL) {
        return fail(SM120_INVALID_ARGUMENT, "dmask.address = 0x%" PRIx64 "; a gradient needs a mask that is not BOOL",
                    dmask->address);
    }
    if (dmask->dtype != SM120_F32 || dmask->reserved != 0) {
        return fail(SM120_INVALID_ARGUMENT, "dmask.dtype = %s, dmask.reserved = %" PRIu32 "; they must be %s and 0",
                    dtype_text(dmask->dtype).text, dmask->reserved, dtype_text(SM120_F32).text);
    }
    for (int n = 0; n < STEPS; ++n) {
        int next = -1; /* the least stride that is left */
        for (int i = 0; i < STEPS; ++i) {
            next = !is_done[i] && (next < 0 || steps[i].stride < steps[next].stride) ? i : next;
        }
        const int64_t stride = steps[next].stride, count = steps[next].count;
        int64_t span = 0;
        is_done[next] = true;
        if (stride == 0 && count > 1 && args->deterministic != 0) {
            return fail(SM120_UNSUPPORTED,
                        "dmask.%s = 0 with deterministic; sums over a dimension have no fixed order, so give dmask "
                        "all dimensions",
                        steps[next].name);
        }
        if (stride == 0 || count == 1) {
            continue;
        }
        if (stride < elements) {
            return fail(SM120_INVALID_ARGUMENT,
                        "dmask.%s = %" PRId64 "; it must be 0, or at least the %" PRId64
                        " elements that shorter strides span",
                        steps[next].name, stride, elements);
        }
        if (!multiply(stride, count - 1, &span) || !add(span, elements, &elements) || elements > INT64_MAX / 4) {
            return fail(SM120_UNSUPPORTED, "dmask.%s = %" PRId64 "; the gradient exceeds 2^63 bytes", steps[next].name,
                        stride);
        }
    }
    b->dmask_bytes = 4 * elements;
    return SM120_OK;
}

/* The precision of the kernels: that of the call if it has kernels of its own, else 16 bits: mixed precisions have
 * none. */
static uint32_t products_of(const struct backward *b) {
    return b->args->precision == SM120_MXFP8 ? SM120_MXFP8
           : attention_is_narrowed(&b->call) ? SM120_BF16
                                             : b->call.q.dtype;
}

sm120_status backward_check(const sm120_attention_backward_args *args, struct backward *b) {
    const struct precision *found = NULL;
    *b = (struct backward){.args = args, .forward = forward_of(args)};
    sm120_status status = attention_find_precision(args->precision, &found);
    if (status != SM120_OK) {
        return status;
    }
    const bool is_fp8 = args->precision == SM120_FP8;
    if (is_fp8 || args->precision == SM120_NVFP4 || args->precision == SM120_NVFP4_MXFP8) {
        return fail(SM120_UNSUPPORTED,
                    "precision = %s (0x%" PRIx32
                    "); gradients are computed in MXFP8 (0x%x), MXFP8_BF16 (0x%x), MXFP8_F16 (0x%x), BF16 (0x%x) or "
                    "F16 (0x%x)",
                    is_fp8                           ? "FP8"
                    : args->precision == SM120_NVFP4 ? "NVFP4"
                                                     : "NVFP4_MXFP8",
                    args->precision, SM120_MXFP8, SM120_MXFP8_BF16, SM120_MXFP8_F16, SM120_BF16, SM120_F16);
    }
    struct precision precision = *found;
    precision.has_left = true; /* every backward kernel has a left window */
    const int64_t v_head_dim = args->v_head_dim != 0 ? args->v_head_dim : args->head_dim;
    if (args->precision == SM120_MXFP8 && (args->head_dim > MXFP8_WIDEST || v_head_dim > MXFP8_WIDEST)) {
        const bool is_v = args->head_dim <= MXFP8_WIDEST;
        return fail(SM120_UNSUPPORTED,
                    "%s = %" PRId64 "; gradients in MXFP8 (0x%x) support at most %d, those in MXFP8_BF16 (0x%x) and "
                    "MXFP8_F16 (0x%x) %" PRId64,
                    is_v ? "v_head_dim" : "head_dim", is_v ? v_head_dim : args->head_dim, SM120_MXFP8, MXFP8_WIDEST,
                    SM120_MXFP8_BF16, SM120_MXFP8_F16, found->head_dim_max);
    }
    if (args->accumulate > 1) {
        return fail(SM120_INVALID_ARGUMENT, "accumulate = %" PRIu32 "; it is 0 or 1", args->accumulate);
    }
    if (args->deterministic > 1) {
        return fail(SM120_INVALID_ARGUMENT, "deterministic = %" PRIu32 "; it is 0 or 1", args->deterministic);
    }
    if (args->dsinks != 0 && args->sinks == 0) {
        return fail(SM120_INVALID_ARGUMENT, "dsinks = 0x%" PRIx64 " without sinks; it is their gradient", args->dsinks);
    }
    if (args->dlse != 0 && args->delta != 0) {
        return fail(SM120_INVALID_ARGUMENT,
                    "dlse = 0x%" PRIx64 " and delta = 0x%" PRIx64 "; delta contains dlse already, so give one of them",
                    args->dlse, args->delta);
    }
    status = attention_check(&b->forward, &precision, &b->call);
    status = status == SM120_OK ? check_tensors(b) : status;
    status = status == SM120_OK ? check_dmask(b) : status;
    b->products = products_of(b);
    b->given[Q] = b->call.q;
    b->given[K] = b->call.k;
    b->given[V] = b->call.v;
    b->given_shape[Q] = b->result_shape[DQ] = b->call.q_shape;
    b->given_shape[K] = b->result_shape[DK] = b->call.k_shape;
    b->given_shape[V] = b->result_shape[DV] = b->call.v_shape;
    b->given_shape[DOUT] = b->call.o_shape;
    return status;
}
