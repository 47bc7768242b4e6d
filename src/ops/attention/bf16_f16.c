/* Attention in 16 bits: one kernel on the caller's tensors, which tensor maps describe. */
#include "ops/attention/special.h"
#include "ops/attention/splits.h"
#include "runtime/check.h"
#include "runtime/error.h"

/* Make the tensor maps of q, k, v and the past. Without a past, its maps are never used but must be valid. */
static sm120_status describe_all(const struct device *device, const struct attention *call,
                                 const struct kernel_record *record, struct attention_16bit_any_parameters *a) {
    const bool has_past = call->args->past_rows != 0;
    const struct {
        const struct tensor *x;
        const struct shape *shape;
        uint32_t rows;
        CUtensorMap *map;
    } list[] = {
        {&call->q, &call->q_shape, record->q_rows, &a->q_map},
        {&call->k, &call->k_shape, record->kv_rows, &a->k_map},
        {&call->v, &call->v_shape, record->kv_rows, &a->v_map},
        {&call->past_k, &call->past_k_shape, record->kv_rows, &a->sequence.past_k_map},
        {&call->past_v, &call->past_v_shape, record->kv_rows, &a->sequence.past_v_map},
    };
    for (uint32_t i = 0; i < (has_past ? 5 : 3); ++i) {
        uint32_t broadcast = 0;
        const sm120_status status = attention_describe(device, list[i].x, list[i].shape, ATTENTION_BOX_COLUMNS,
                                                       list[i].rows, list[i].map, &broadcast);
        if (status != SM120_OK) {
            return status;
        }
        a->broadcast |= broadcast << 2 * i;
    }
    if (!has_past) {
        a->sequence.past_k_map = a->k_map;
        a->sequence.past_v_map = a->v_map;
    }
    return SM120_OK;
}

/* Fill in the parameters. A kernel without features reads only those before `sequence`. */
static sm120_status fill(const struct device *device, const struct attention *call, const struct kernel_record *record,
                         struct attention_16bit_any_parameters *a) {
    const sm120_attention_args *const args = call->args;
    const struct edges edges = attention_edges(call);
    *a = (struct attention_16bit_any_parameters){
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
        .q_tiles = (uint32_t)((args->q_rows + record->q_rows - 1) / record->q_rows),
        .o_type = attention_type(args->o.dtype),
        .q_and = args->scale == 0.0f ? 0 : UINT32_MAX,
        .q_xor = args->scale < 0.0f ? 0x80008000u : 0,
        .scale_log2 = args->scale == 0.0f ? 1.0f : (float)attention_scale_log2(args->scale),
        .lower = edges.lower,
        .upper = edges.upper,
    };
    if (!call->is_uniform) {
        attention_sequence(call, &a->sequence);
    }
    return describe_all(device, call, record, a);
}

/* These kernels need no workspace, unless keys are split. */
sm120_status attention_bf16_f16(struct device *device, const struct attention *call,
                                const struct workspace *workspace) {
    struct attention_16bit_any_parameters arguments;
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
