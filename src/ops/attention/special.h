/* What kernels take of a call that is more than tensors of one length: the parameters of ptx/parts/sequence.ptx. */
#ifndef SM120_ATTENTION_SPECIAL_H
#define SM120_ATTENTION_SPECIAL_H

#include "ops/attention/attention.h"

/* lower and upper count from the diagonal, which the kernel knows. */
struct special {
    int32_t lower, upper;
    CUtensorMap past_k, past_v;
    uint64_t cu_seqlens_q, cu_seqlens_k, kv_lengths, diagonals, sinks, slopes, mask;
    int64_t mask_batch_stride, mask_head_stride, mask_row_stride, mask_column_stride;
    int64_t lse_batch_stride, lse_head_stride;
    uint32_t features, mask_type, slopes_batch_stride;
    int32_t q_total, kv_total, past_rows;
    float softcap, softcap_scale;
};

/* Fill in all but the maps of the past. */
void attention_special(const struct attention *call, struct special *s);

/* The arguments that sequence_params() of ptx/parts/sequence.ptx declares, in their order. */
#define SPECIAL_ARGUMENTS(s)                                                                                           \
    ARGUMENT((s)->past_k), ARGUMENT((s)->past_v), ARGUMENT((s)->cu_seqlens_q), ARGUMENT((s)->cu_seqlens_k),            \
        ARGUMENT((s)->kv_lengths), ARGUMENT((s)->diagonals), ARGUMENT((s)->sinks), ARGUMENT((s)->slopes),              \
        ARGUMENT((s)->mask), ARGUMENT((s)->mask_batch_stride), ARGUMENT((s)->mask_head_stride),                        \
        ARGUMENT((s)->mask_row_stride), ARGUMENT((s)->mask_column_stride), ARGUMENT((s)->lse_batch_stride),            \
        ARGUMENT((s)->lse_head_stride), ARGUMENT((s)->features), ARGUMENT((s)->mask_type),                             \
        ARGUMENT((s)->slopes_batch_stride), ARGUMENT((s)->q_total), ARGUMENT((s)->kv_total), ARGUMENT((s)->past_rows), \
        ARGUMENT((s)->softcap), ARGUMENT((s)->softcap_scale)

#endif
