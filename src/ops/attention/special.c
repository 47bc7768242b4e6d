/* The parameters of kernels with features. */
#include "ops/attention/special.h"

#include "generated/constants.h"

/* The kernels' code of a mask's dtype. */
static uint32_t mask_type(uint32_t dtype) {
    return dtype == SM120_F32    ? ATTENTION_MASK_F32
           : dtype == SM120_F16  ? ATTENTION_MASK_F16
           : dtype == SM120_BF16 ? ATTENTION_MASK_BF16
                                 : ATTENTION_MASK_B8;
}

struct edges attention_edges(const struct attention *call) {
    const struct reach reach = attention_reach(call->args);
    return call->is_uniform ? (struct edges){attention_lower(call->args), attention_upper(call->args)}
                            : (struct edges){-reach.left, reach.right};
}

struct mxfp8_call_parameters attention_packed_call(const struct attention *call, int64_t q_tiles) {
    const sm120_attention_args *const args = call->args;
    const struct edges edges = attention_edges(call);
    return (struct mxfp8_call_parameters){
        .o = call->o.address,
        .lse = args->lse,
        .o_batch_stride = call->o.batch_stride,
        .o_head_stride = call->o.head_stride,
        .o_row_stride = call->o.row_stride,
        .heads = (uint32_t)args->heads,
        .kv_heads = (uint32_t)args->kv_heads,
        .q_rows = (uint32_t)args->q_rows,
        .kv_rows = (uint32_t)args->kv_rows,
        .head_dim = (uint32_t)call->o_shape.head_dim,
        .q_tiles = (uint32_t)q_tiles,
        .o_type = attention_type(args->o.dtype),
        .scale_log2 = args->scale == 0.0f ? 1.0f : (float)attention_scale_log2(args->scale),
        .upper = edges.upper,
        .lower = edges.lower,
    };
}

void attention_sequence(const struct attention *call, struct sequence_parameters *s) {
    const sm120_attention_args *const args = call->args;
    const sm120_mask *const mask = &args->mask;
    const struct reach reach = attention_reach(args);
    const bool is_top_left = args->causal == SM120_CAUSAL_TOP_LEFT || args->causal == SM120_NOT_CAUSAL_TOP_LEFT;
    const int64_t element = mask->dtype == SM120_F32 ? 4 : mask->dtype == SM120_BOOL ? 1 : 2;
    const int64_t lse_head_stride = 4 * call->q_shape.rows;
    const int features =
        (reach.has_left ? ATTENTION_FEATURE_LEFT : 0) | (reach.has_right ? ATTENTION_FEATURE_RIGHT : 0) |
        (is_top_left ? ATTENTION_FEATURE_TOP_LEFT : 0) | (args->softcap != 0.0f ? ATTENTION_FEATURE_SOFTCAP : 0) |
        (args->alibi_slopes != 0 ? ATTENTION_FEATURE_ALIBI : 0) | (mask->address != 0 ? ATTENTION_FEATURE_MASK : 0) |
        (call->q.dtype == SM120_E5M2 ? ATTENTION_FEATURE_Q_E5M2 : 0) |
        (call->k.dtype == SM120_E5M2 ? ATTENTION_FEATURE_K_E5M2 : 0) |
        (call->v.dtype == SM120_E5M2 ? ATTENTION_FEATURE_V_E5M2 : 0);
    *s = (struct sequence_parameters){
        .features = (uint32_t)features,
        .cu_seqlens_q = args->cu_seqlens_q,
        .cu_seqlens_k = args->cu_seqlens_k,
        .kv_lengths = args->kv_lengths,
        .diagonals = args->diagonals,
        .sinks = args->sinks,
        .slopes = args->alibi_slopes,
        .slopes_batch_stride = (uint32_t)args->alibi_batch_stride,
        .mask = mask->address,
        .mask_batch_stride = mask->batch_stride * element,
        .mask_head_stride = mask->head_stride * element,
        .mask_row_stride = mask->row_stride * element,
        .mask_column_stride = mask->column_stride * element,
        .mask_type = mask_type(mask->dtype),
        .lse_head_stride = lse_head_stride,
        .lse_batch_stride = args->cu_seqlens_q != 0 ? 0 : lse_head_stride * args->heads,
        .q_total = (int32_t)args->q_total,
        .kv_total = (int32_t)args->kv_total,
        .past_rows = (int32_t)args->past_rows,
    };
    if (args->softcap != 0.0f) {
        s->softcap = (float)((double)args->softcap * LOG2_E);
        s->softcap_scale = (float)attention_softcap_scale(args);
    }
}
