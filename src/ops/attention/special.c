/* What kernels take of a call that is more than tensors of one length. */
#include "ops/attention/special.h"

/* Bits of the kernels' param_features: FEATURES in ptx/parts/sequence.ptx. */
enum { LEFT = 1, RIGHT = 2, TOP_LEFT = 4, SOFTCAP = 8, ALIBI = 16, MASK = 32 };

void attention_special(const struct attention *call, struct special *s) {
    const sm120_attention_args *const args = call->args;
    const sm120_mask *const mask = &args->mask;
    const struct reach reach = attention_reach(args);
    const bool is_top_left = args->causal == SM120_CAUSAL_TOP_LEFT || args->causal == SM120_NOT_CAUSAL_TOP_LEFT;
    const int64_t element = mask->dtype == SM120_F32 ? 4 : mask->dtype == SM120_BOOL ? 1 : 2;
    const int64_t lse_head_stride = 4 * call->q_shape.rows;
    *s = (struct special){
        .lower = -reach.left,
        .upper = reach.right,
        .features = (reach.has_left ? LEFT : 0) | (reach.has_right ? RIGHT : 0) | (is_top_left ? TOP_LEFT : 0) |
                    (args->softcap != 0.0f ? SOFTCAP : 0) | (args->alibi_slopes != 0 ? ALIBI : 0) |
                    (mask->address != 0 ? MASK : 0),
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
        .mask_type = mask->dtype == SM120_F32    ? 0
                     : mask->dtype == SM120_F16  ? 1
                     : mask->dtype == SM120_BF16 ? 2
                                                 : 3,
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
