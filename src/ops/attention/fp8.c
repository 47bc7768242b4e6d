/* Attention in FP8: one kernel on the caller's tensors in E4M3; tensor maps describe k and v. */
#include "ops/attention/special.h"
#include "ops/attention/splits.h"
#include "runtime/check.h"
#include "runtime/error.h"

/* Make the tensor maps of k, v and the past. Without a past, its maps are never used but must be valid. */
static sm120_status describe_all(const struct device *device, const struct attention *call,
                                 const struct kernel_record *record, struct attention_fp8_any_parameters *a) {
    const bool has_past = call->args->past_rows != 0;
    const struct {
        const struct tensor *x;
        const struct shape *shape;
        CUtensorMap *map;
        uint32_t *broadcast;
        int bit;
    } list[] = {
        {&call->k, &call->k_shape, &a->k_map, &a->k_broadcast, 0},
        {&call->v, &call->v_shape, &a->v_map, &a->mxfp8_call.v_broadcast, 0},
        {&call->past_k, &call->past_k_shape, &a->sequence.past_k_map, &a->k_broadcast, 2},
        {&call->past_v, &call->past_v_shape, &a->sequence.past_v_map, &a->mxfp8_call.v_broadcast, 2},
    };
    for (int i = 0; i < (has_past ? 4 : 2); ++i) {
        uint32_t broadcast = 0;
        const sm120_status status = attention_describe(device, list[i].x, list[i].shape, record->head_dim,
                                                       record->kv_rows, list[i].map, &broadcast);
        if (status != SM120_OK) {
            return status;
        }
        *list[i].broadcast |= broadcast << list[i].bit;
    }
    if (!has_past) {
        a->sequence.past_k_map = a->k_map;
        a->sequence.past_v_map = a->v_map;
    }
    return SM120_OK;
}

/* Fill in the parameters. A kernel without features reads only those before `sequence`. */
static sm120_status fill(const struct device *device, const struct attention *call, const struct kernel_record *record,
                         struct attention_fp8_any_parameters *a) {
    const sm120_attention_args *const args = call->args;
    const struct tensor *const scales = call->scales;
    *a = (struct attention_fp8_any_parameters){
        .q = call->q.address,
        .q_batch_stride = call->q.batch_stride,
        .q_head_stride = call->q.head_stride,
        .q_row_stride = call->q.row_stride,
        .q_scale = scales[ATTENTION_Q_SCALE].address,
        .q_scale_batch_stride = scales[ATTENTION_Q_SCALE].batch_stride,
        .q_scale_head_stride = scales[ATTENTION_Q_SCALE].head_stride,
        .k_scale = scales[ATTENTION_K_SCALE].address,
        .k_scale_batch_stride = scales[ATTENTION_K_SCALE].batch_stride,
        .k_scale_head_stride = scales[ATTENTION_K_SCALE].head_stride,
        .v_scale = scales[ATTENTION_V_SCALE].address,
        .v_scale_batch_stride = scales[ATTENTION_V_SCALE].batch_stride,
        .v_scale_head_stride = scales[ATTENTION_V_SCALE].head_stride,
        .o_scale = scales[ATTENTION_O_SCALE].address,
        .o_scale_batch_stride = scales[ATTENTION_O_SCALE].batch_stride,
        .o_scale_head_stride = scales[ATTENTION_O_SCALE].head_stride,
        .amax = scales[ATTENTION_AMAX].address,
        .amax_batch_stride = scales[ATTENTION_AMAX].batch_stride,
        .amax_head_stride = scales[ATTENTION_AMAX].head_stride,
        .q_and = args->scale == 0.0f ? 0 : UINT32_MAX,
        .q_xor = args->scale < 0.0f ? 0x80808080u : 0,
        .q_scale_by_kv = args->q_scale_by_kv_head,
        .qk_head_dim = (uint32_t)call->q_shape.head_dim,
        .mxfp8_call = attention_packed_call(call, (args->q_rows + record->q_rows - 1) / record->q_rows),
    };
    if (!call->is_uniform) {
        attention_sequence(call, &a->sequence);
    }
    return describe_all(device, call, record, a);
}

/* These kernels need no workspace, unless keys are split. */
sm120_status attention_fp8(struct device *device, const struct attention *call, const struct workspace *workspace) {
    struct attention_fp8_any_parameters arguments;
    struct split split;
    uint32_t index = 0;
    sm120_status status = attention_choose(device, call, &index);
    status = status == SM120_OK ? attention_split(device, call, kernel_records + index, &split) : status;
    if (status == SM120_OK && workspace->is_question) {
        return attention_answer(device, call, index, &split, workspace);
    }
    status = status == SM120_OK ? attention_check_places(device, call, workspace, split.bytes) : status;
    status = status == SM120_OK ? fill(device, call, kernel_records + index, &arguments) : status;
    if (status == SM120_OK) {
        arguments.splits = attention_splits_at(&split, workspace->address);
        status = attention_launch(device, call, index, &split, workspace->address, ARGUMENTS(&arguments));
    }
    return status;
}
