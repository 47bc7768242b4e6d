/* The checks of a call that need no address: options, shapes, tensors, mask. */
#include <float.h>
#include <inttypes.h>

#include "generated/constants.h"
#include "ops/attention/attention.h"
#include "runtime/check.h"
#include "runtime/error.h"

enum { ROWS_MAX = (1 << 30) - 1 };
enum { SOFTCAP_MAX = 1024 }; /* up to here the error of tanh, 2^-22 of softcap, is at most the error of P in f16 */

int64_t attention_mask_bytes(uint32_t dtype) {
    return dtype == SM120_F32 ? 4 : dtype == SM120_F16 || dtype == SM120_BF16 ? 2 : dtype == SM120_BOOL ? 1 : 0;
}

/* Check causal, scale, num_splits and no_smoothing. */
static sm120_status check_choices(const sm120_attention_args *args) {
    if (args->causal > SM120_NOT_CAUSAL_TOP_LEFT) {
        return fail(SM120_INVALID_ARGUMENT,
                    "causal = %" PRIu32
                    "; it must be NOT_CAUSAL (%d), CAUSAL_BOTTOM_RIGHT (%d), CAUSAL_TOP_LEFT (%d) or "
                    "NOT_CAUSAL_TOP_LEFT (%d)",
                    args->causal, SM120_NOT_CAUSAL, SM120_CAUSAL_BOTTOM_RIGHT, SM120_CAUSAL_TOP_LEFT,
                    SM120_NOT_CAUSAL_TOP_LEFT);
    }
    if (args->num_splits < 0 || args->num_splits > ATTENTION_SPLITS_MAX) {
        return fail(SM120_INVALID_ARGUMENT, "num_splits = %" PRId64 "; it must be from 1 to %d, or 0 (chosen)",
                    args->num_splits, ATTENTION_SPLITS_MAX);
    }
    if (args->no_smoothing > 1) {
        return fail(SM120_INVALID_ARGUMENT, "no_smoothing = %" PRIu32 "; it must be 0 or 1", args->no_smoothing);
    }
    if (!(attention_scale_log2(args->scale) <= (double)FLT_MAX)) { /* false for a NaN too */
        return fail(SM120_INVALID_ARGUMENT, "scale = %g; scale * log2(e) must be finite in f32", (double)args->scale);
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
        status = fail(SM120_INVALID_ARGUMENT,
                      "kv_heads = %" PRId64 " does not divide heads = %" PRId64
                      "; the heads of q must be a multiple of those of k and v",
                      args->kv_heads, args->heads);
    }
    return status;
}

/* Check the window and softcap. */
static sm120_status check_scores(const sm120_attention_args *args) {
    if (args->window > (SM120_WINDOW_LEFT | SM120_WINDOW_RIGHT)) {
        return fail(SM120_INVALID_ARGUMENT, "window = %" PRIu32 "; its bits are WINDOW_LEFT (%d) and WINDOW_RIGHT (%d)",
                    args->window, SM120_WINDOW_LEFT, SM120_WINDOW_RIGHT);
    }
    const struct {
        const char *name, *bit_name;
        uint32_t bit;
        int64_t value;
    } sides[] = {{"window_left", "WINDOW_LEFT (1) in window", SM120_WINDOW_LEFT, args->window_left},
                 {"window_right", "WINDOW_RIGHT (2) in window", SM120_WINDOW_RIGHT, args->window_right}};
    for (int i = 0; i < 2; ++i) {
        const bool has_side = (args->window & sides[i].bit) != 0;
        const sm120_status status = check_needs(sides[i].name, sides[i].value, sides[i].bit_name, has_side);
        if (status != SM120_OK) {
            return status;
        }
        if (has_side && sides[i].value < 0) {
            return fail(SM120_INVALID_ARGUMENT, "%s = %" PRId64 "; it must be at least 0", sides[i].name,
                        sides[i].value);
        }
    }
    if (args->softcap > (float)SOFTCAP_MAX && args->softcap <= FLT_MAX) {
        return fail(SM120_UNSUPPORTED,
                    "softcap = %g; at most %d is supported, because the error of a score is 2^-22 of softcap; "
                    "0 turns it off",
                    (double)args->softcap, SOFTCAP_MAX);
    }
    if (!(args->softcap >= 0.0f && args->softcap <= FLT_MAX) ||
        (args->softcap > 0.0f && !(attention_softcap_scale(args) <= (double)FLT_MAX))) {
        return fail(SM120_INVALID_ARGUMENT,
                    "softcap = %g; it must be 0 (off), or above 0 such that scale / softcap is finite in f32",
                    (double)args->softcap);
    }
    return SM120_OK;
}

/* Check the options about sequences: packing, a past, lengths, and the stride of ALiBi slopes. */
static sm120_status check_sequences(const sm120_attention_args *args) {
    const struct {
        const char *name, *starts_name, *rows_name;
        sm120_address starts;
        int64_t total, rows;
    } packed[] = {{"q_total", "cu_seqlens_q", "q_rows", args->cu_seqlens_q, args->q_total, args->q_rows},
                  {"kv_total", "cu_seqlens_k", "kv_rows", args->cu_seqlens_k, args->kv_total, args->kv_rows}};
    for (int i = 0; i < 2; ++i) {
        const sm120_status status = packed[i].starts != 0
                                        ? check_size(packed[i].name, packed[i].total, ROWS_MAX)
                                        : check_needs(packed[i].name, packed[i].total, packed[i].starts_name, false);
        if (status != SM120_OK) {
            return status;
        }
    }
    if (args->past_rows < 0 || args->past_rows > ROWS_MAX - args->kv_rows) {
        return fail(SM120_INVALID_ARGUMENT,
                    "past_rows = %" PRId64 "; with kv_rows = %" PRId64 " it must be from 0 to %" PRId64,
                    args->past_rows, args->kv_rows, ROWS_MAX - args->kv_rows);
    }
    if (args->past_rows != 0 && (args->cu_seqlens_k != 0 || args->kv_lengths != 0)) {
        return fail(SM120_UNSUPPORTED,
                    "past_rows = %" PRId64 " with %s; a past is supported only for keys of one length", args->past_rows,
                    args->cu_seqlens_k != 0 ? "cu_seqlens_k" : "kv_lengths");
    }
    if (args->past_rows == 0 && (args->past_k.address != 0 || args->past_v.address != 0)) {
        return fail(SM120_INVALID_ARGUMENT, "past_rows = 0, but %s is given",
                    args->past_k.address != 0 ? "past_k" : "past_v");
    }
    if (args->alibi_slopes != 0 &&
        (args->alibi_batch_stride < 0 || args->alibi_batch_stride > INT32_MAX / args->batch)) {
        return fail(SM120_INVALID_ARGUMENT, "alibi_batch_stride = %" PRId64 "; it must be 0 or heads = %" PRId64,
                    args->alibi_batch_stride, args->heads);
    }
    return check_needs("alibi_batch_stride", args->alibi_batch_stride, "alibi_slopes", args->alibi_slopes != 0);
}

/* Check the mask, and find its extent in bytes. */
static sm120_status check_mask(struct attention *call) {
    const sm120_attention_args *const args = call->args;
    const sm120_mask *const mask = &args->mask;
    const int64_t element = attention_mask_bytes(mask->dtype);
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
        return fail(SM120_INVALID_ARGUMENT, "mask.dtype = %s; it must be %s, %s, %s or %s",
                    dtype_text(mask->dtype).text, dtype_text(SM120_F32).text, dtype_text(SM120_F16).text,
                    dtype_text(SM120_BF16).text, dtype_text(SM120_BOOL).text);
    }
    if (mask->reserved != 0) {
        return fail(SM120_INVALID_ARGUMENT, "mask.reserved = %" PRIu32 "; it must be 0", mask->reserved);
    }
    if (args->cu_seqlens_q != 0 || args->cu_seqlens_k != 0) {
        return fail(SM120_UNSUPPORTED, "mask with %s; a mask is supported only for tensors that are not packed",
                    args->cu_seqlens_q != 0 ? "cu_seqlens_q" : "cu_seqlens_k");
    }
    call->mask_bytes = element;
    for (int i = 0; i < 4; ++i) {
        int64_t span;
        if (steps[i].stride < 0) {
            return fail(SM120_INVALID_ARGUMENT, "mask.%s = %" PRId64 "; a stride must not be negative", steps[i].name,
                        steps[i].stride);
        }
        if (!multiply(steps[i].stride, element, &span) || !multiply(span, steps[i].count - 1, &span) ||
            !add(span, call->mask_bytes, &call->mask_bytes)) {
            return fail(SM120_UNSUPPORTED, "mask.%s = %" PRId64 "; the mask exceeds 2^63 bytes", steps[i].name,
                        steps[i].stride);
        }
    }
    return SM120_OK;
}

bool attention_is_fp8(const sm120_attention_args *args, uint32_t dtype) {
    return args->precision == SM120_FP8 && (dtype == SM120_E4M3 || dtype == SM120_E5M2);
}

static bool has_e5m2(const sm120_attention_args *args) {
    return args->precision == SM120_FP8 &&
           (args->q.dtype == SM120_E5M2 || args->k.dtype == SM120_E5M2 || args->v.dtype == SM120_E5M2);
}

/* Whether a kernel for tensors of one length and unmodified scores can compute the call. */
static bool is_uniform(const sm120_attention_args *args, const struct precision *precision) {
    const bool is_left = (args->window & SM120_WINDOW_LEFT) != 0;
    return args->softcap == 0.0f && args->diagonals == 0 && args->kv_lengths == 0 && args->cu_seqlens_q == 0 &&
           args->cu_seqlens_k == 0 && args->sinks == 0 && args->alibi_slopes == 0 && args->past_rows == 0 &&
           args->mask.address == 0 && (precision->has_left || !is_left) && !has_e5m2(args);
}

sm120_status attention_check_forms(const sm120_attention_args *args, const struct precision *precision,
                                   struct attention *call) {
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
    sm120_status status = check_choices(args);
    status = status == SM120_OK ? check_shapes(call, precision->head_dim_max) : status;
    status = status == SM120_OK ? check_scores(args) : status;
    status = status == SM120_OK ? check_sequences(args) : status;
    if (status == SM120_OK) {
        call->is_uniform = is_uniform(args, precision);
        call->has_e5m2 = has_e5m2(args);
    }
    return status;
}

/* Check the scales of FP8, and the tensor of amax. */
static sm120_status check_scales(struct attention *call, uint32_t dtype) {
    const sm120_attention_args *const args = call->args;
    const int64_t q_heads = args->q_scale_by_kv_head != 0 ? args->kv_heads : args->heads;
    const struct {
        const char *name;
        const sm120_tensor *given;
        int64_t heads;
    } list[ATTENTION_SCALES] = {
        [ATTENTION_Q_SCALE] = {"q_scale", &args->q_scale, q_heads},
        [ATTENTION_K_SCALE] = {"k_scale", &args->k_scale, args->kv_heads},
        [ATTENTION_V_SCALE] = {"v_scale", &args->v_scale, args->kv_heads},
        [ATTENTION_O_SCALE] = {"o_scale", &args->o_scale, args->heads},
        [ATTENTION_AMAX] = {"amax", &args->amax, args->heads},
    };
    if (args->q_scale_by_kv_head > 1) {
        return fail(SM120_INVALID_ARGUMENT, "q_scale_by_kv_head = %" PRIu32 "; it must be 0 or 1",
                    args->q_scale_by_kv_head);
    }
    const sm120_status of_q =
        check_needs("q_scale_by_kv_head", args->q_scale_by_kv_head, "q_scale", args->q_scale.address != 0);
    if (of_q != SM120_OK) {
        return of_q;
    }
    for (int i = 0; i < ATTENTION_SCALES; ++i) {
        if (list[i].given->address == 0) {
            continue;
        }
        if (dtype != SM120_E4M3) {
            return fail(SM120_INVALID_ARGUMENT, "%s is given, which only precision = FP8 (0x%x) has", list[i].name,
                        SM120_FP8);
        }
        if (list[i].given->dtype != SM120_F32) {
            return fail(SM120_INVALID_ARGUMENT, "%s.dtype = %s; it must be %s", list[i].name,
                        dtype_text(list[i].given->dtype).text, dtype_text(SM120_F32).text);
        }
        const struct shape shape = {args->batch, list[i].heads, 1, 1};
        const sm120_status status =
            tensor_check_strides(list[i].name, list[i].given, &shape, TENSOR_SPREAD, &call->scales[i]);
        if (status != SM120_OK) {
            return status;
        }
    }
    if (args->o_scale.address != 0 && args->o.dtype != SM120_E4M3) {
        return fail(SM120_INVALID_ARGUMENT, "o_scale is given, but o.dtype = %s; it is for o in E4M3",
                    dtype_text(args->o.dtype).text);
    }
    return SM120_OK;
}

sm120_status attention_check_options(const sm120_attention_args *args) {
    const sm120_status status = check_choices(args);
    return status == SM120_OK ? check_scores(args) : status;
}

sm120_status attention_check(const sm120_attention_args *args, const struct precision *precision,
                             struct attention *call) {
    sm120_status status = attention_check_forms(args, precision, call);
    status = status == SM120_OK ? attention_check_tensors(call, precision) : status;
    status = status == SM120_OK ? check_mask(call) : status;
    status = status == SM120_OK ? check_scales(call, precision->dtype) : status;
    const struct shape *const q = &call->q_shape;
    if (status == SM120_OK && !multiply(q->batch * q->heads, 4 * q->rows, &call->lse_bytes)) {
        status = fail(SM120_UNSUPPORTED, "lse of batch * heads * q_rows = %" PRId64 " * %" PRId64 " does not fit",
                      q->batch * q->heads, q->rows);
    }
    return status;
}
