/* The launches of a call: delta and zeros, then dK, dV and the sums of dQ, then dQ, then the gradient of sinks. */
#include <float.h>

#include "ops/attention/special.h"
#include "ops/attention_backward/attention_backward.h"
#include "runtime/launch.h"

enum { FRAGMENT = 16 * 8 }; /* elements of an accumulator */
enum { PACKED_ROWS = 32 };  /* of a CTA that packs operands in MXFP8 */

/* A kernel, its launch and what that points to. Not to be copied once filled. */
struct step {
    struct kernel *kernel;
    struct launch launch;
    struct argument_pointers pointers;
};

/* The parameters of the kernels before dq, by precision. */
struct values {
    struct attention_backward_delta_parameters delta;
    struct attention_backward_16bit_any_parameters main;
    struct attention_backward_pack_queries_parameters queries;
    struct attention_backward_pack_keys_parameters keys;
    struct attention_backward_mxfp8_any_parameters mxfp8;
};

/* Load a kernel, and check its launch. */
static sm120_status prepare(struct device *device, const struct backward *b, uint32_t index, struct arguments arguments,
                            int64_t grid, struct step *step) {
    sm120_status status =
        launch_of(&step->pointers, arguments, (uint32_t)grid, kernel_records + index, b->args->stream, &step->launch);
    status = status == SM120_OK ? builtin_load(device, index, &step->kernel) : status;
    return status == SM120_OK ? launch_check(step->kernel, &step->launch) : status;
}

sm120_address backward_turns(const struct backward *b, sm120_address workspace) {
    return b->args->deterministic != 0 ? workspace + (uint64_t)b->turns_at : 0;
}

int64_t backward_batch_stride(const struct tensor *x, sm120_address starts) {
    return starts != 0 ? 0 : x->batch_stride;
}

struct gradients_mask_parameters backward_dmask(const struct backward *b) {
    const sm120_mask *const dmask = &b->args->dmask;
    return (struct gradients_mask_parameters){
        .dmask = dmask->address,
        .dmask_batch_stride = 4 * dmask->batch_stride,
        .dmask_head_stride = 4 * dmask->head_stride,
        .dmask_row_stride = 4 * dmask->row_stride,
        .dmask_column_stride = 4 * dmask->column_stride,
    };
}

/* The parameters of the kernel of delta. */
static struct attention_backward_delta_parameters delta_of(const struct backward *b, sm120_address workspace) {
    const sm120_attention_backward_args *const args = b->args;
    const struct tensor *const o = &b->call.o, *const dout = &b->loaded[DOUT];
    const int64_t lse_head_stride = 4 * b->call.q_shape.rows;
    const bool is_wide = o->dtype == dout->dtype && copy_rows_is_needless(o, &b->call.o_shape);
    const struct gradients_mask_parameters mask = backward_dmask(b);
    return (struct attention_backward_delta_parameters){
        .o = o->address,
        .dout = dout->address,
        .lse = b->args->lse,
        .dlse = b->args->dlse,
        .delta = b->args->delta,
        .rows = workspace + (uint64_t)b->rows_at,
        .sums = workspace + (uint64_t)b->sums_at,
        .finished = backward_finished(b, workspace),
        .turns = backward_turns(b, workspace),
        .o_batch_stride = backward_batch_stride(o, args->cu_seqlens_q),
        .o_head_stride = o->head_stride,
        .o_row_stride = o->row_stride,
        .dout_batch_stride = backward_batch_stride(dout, args->cu_seqlens_q),
        .dout_head_stride = dout->head_stride,
        .dout_row_stride = dout->row_stride,
        .lse_batch_stride = args->cu_seqlens_q != 0 ? 0 : lse_head_stride * args->heads,
        .lse_head_stride = lse_head_stride,
        .cu_seqlens_q = args->cu_seqlens_q,
        .slopes = args->alibi_slopes,
        .dmask = mask.dmask,
        .dmask_batch_stride = mask.dmask_batch_stride,
        .dmask_head_stride = mask.dmask_head_stride,
        .dmask_row_stride = mask.dmask_row_stride,
        .dmask_column_stride = mask.dmask_column_stride,
        .q_total = (int32_t)args->q_total,
        .head_slots = (uint32_t)b->head_slots,
        .batch_slots = (uint32_t)b->batch_slots,
        .slopes_batch_stride = (uint32_t)args->alibi_batch_stride,
        .kv_rows = (uint32_t)args->kv_rows,
        .heads = (uint32_t)b->args->heads,
        .q_rows = (uint32_t)b->args->q_rows,
        .q_tiles = (uint32_t)b->q_tiles,
        .tile_rows = kernel_records[b->main].q_rows,
        .tile_bytes = (uint32_t)b->tile_bytes,
        .ring_slots = (uint32_t)b->ring.slots,
        .head_dim = (uint32_t)b->call.o_shape.head_dim,
        .o_type = attention_type(o->dtype),
        .is_wide = is_wide,
    };
}

bool backward_has_quads(const struct backward *b, int result) {
    const struct tensor *const x = &b->results[result];
    return x->dtype != SM120_F32 && b->result_shape[result].head_dim % 4 == 0 &&
           ((x->address | (uint64_t)x->batch_stride | (uint64_t)x->head_stride | (uint64_t)x->row_stride) & 7) == 0;
}

/* The parameters that the main kernels of all precisions have. */
static struct gradients_call_parameters call_of(const struct backward *b, sm120_address workspace) {
    const sm120_attention_backward_args *const args = b->args;
    const struct tensor *const dq = &b->results[DQ], *const dk = &b->results[DK], *const dv = &b->results[DV];
    const sm120_address turns = backward_turns(b, workspace), finished = backward_finished(b, workspace);
    const struct edges edges = attention_edges(&b->call);
    return (struct gradients_call_parameters){
        .dq = workspace + (uint64_t)b->sums_at,
        .dk = dk->address,
        .dv = dv->address,
        .finished = finished,
        .dq_out = dq->address,
        .dq_out_batch_stride = dq->batch_stride,
        .dq_out_head_stride = dq->head_stride,
        .dq_out_row_stride = dq->row_stride,
        .dq_out_type = attention_type(dq->dtype),
        .group_tiles = (uint32_t)b->ring.group_tiles,
        .full_groups = (uint32_t)b->ring.full_groups,
        .reach = (uint32_t)b->ring.reach,
        .tickets = turns != 0 ? turns : finished,
        .turns = turns,
        .turn_rows = (uint32_t)(b->turn_tiles - 1) * kernel_records[b->main].q_rows,
        .last_row = (uint32_t)(b->q_tiles - 1) * kernel_records[b->main].q_rows,
        .dk_batch_stride = backward_batch_stride(dk, args->cu_seqlens_k),
        .dk_head_stride = dk->head_stride,
        .dk_row_stride = dk->row_stride,
        .dv_batch_stride = backward_batch_stride(dv, args->cu_seqlens_k),
        .dv_head_stride = dv->head_stride,
        .dv_row_stride = dv->row_stride,
        .batches = (uint32_t)args->batch,
        .heads = (uint32_t)args->heads,
        .kv_heads = (uint32_t)args->kv_heads,
        .first_split = (uint32_t)b->first_split,
        .splits = (uint32_t)b->splits,
        .dk_parts = workspace + (uint64_t)b->parts_at[DK],
        .dv_parts = workspace + (uint64_t)b->parts_at[DV],
        .q_rows = (uint32_t)args->q_rows,
        .kv_rows = (uint32_t)args->kv_rows,
        .head_dim = (uint32_t)b->call.q_shape.head_dim,
        .v_head_dim = (uint32_t)b->call.v_shape.head_dim,
        .dk_type = attention_type(dk->dtype),
        .dv_type = attention_type(dv->dtype),
        .accumulate = args->accumulate,
        .quads = (backward_has_quads(b, DK) ? 1 : 0) | (backward_has_quads(b, DV) ? 2 : 0),
        .group = (uint32_t)b->group,
        .scale = args->scale,
        .scale_log2 = (float)((double)args->scale * LOG2_E),
        .lower = edges.lower,
        .upper = edges.upper,
    };
}

/* The sequences of a call that is not uniform. Here the scale of softcap keeps its sign. */
static void sequence_of(const struct backward *b, struct sequence_parameters *s) {
    if (!b->call.is_uniform) {
        attention_sequence(&b->call, s);
        s->softcap_scale = b->args->scale == 0.0f ? 0.0f : b->args->scale < 0.0f ? -s->softcap_scale : s->softcap_scale;
    }
}

/* The parameters of the main kernel in 16 bits. A kernel without features reads only those before gradients_features.
 */
static sm120_status main_of(const struct device *device, const struct backward *b, sm120_address workspace,
                            struct attention_backward_16bit_any_parameters *a) {
    const sm120_attention_backward_args *const args = b->args;
    const struct kernel_record *const record = kernel_records + b->main;
    *a = (struct attention_backward_16bit_any_parameters){
        .rows = workspace + (uint64_t)b->rows_at,
        .gradients_call = call_of(b, workspace),
        .gradients_features = {.q_tiles = (uint32_t)b->head_slots},
        .gradients_mask = backward_dmask(b),
    };
    sequence_of(b, &a->sequence);
    CUtensorMap *const maps[LOADED] = {&a->q_map, &a->k_map, &a->v_map, &a->dout_map};
    for (int i = 0; i < LOADED; ++i) {
        uint32_t broadcast = 0;
        const sm120_status status =
            attention_describe(device, &b->loaded[i], &b->loaded_shape[i], ATTENTION_BOX_COLUMNS,
                               i == Q || i == DOUT ? record->q_rows : record->kv_rows, maps[i], &broadcast);
        if (status != SM120_OK) {
            return status;
        }
        const sm120_address starts = i == Q || i == DOUT ? args->cu_seqlens_q : args->cu_seqlens_k;
        a->broadcast |= (broadcast | (starts != 0 ? 1u : 0u)) << 2 * i;
    }
    a->sequence.past_k_map = a->k_map; /* never used, but valid */
    a->sequence.past_v_map = a->v_map;
    return SM120_OK;
}

/* The parameters of the main kernel in MXFP8. A kernel for tensors of one length reads only those before
 * gradients_slots. */
static struct attention_backward_mxfp8_any_parameters mxfp8_of(const struct backward *b, sm120_address workspace) {
    struct attention_backward_mxfp8_any_parameters parameters = {
        .q_tiles = workspace + (uint64_t)b->rows_at,
        .k_tiles = workspace + (uint64_t)b->packed.k_at,
        .v_tiles = workspace + (uint64_t)b->packed.v_at,
        .dout_tiles = workspace + (uint64_t)b->packed.dout_at,
        .gradients_call = call_of(b, workspace),
        .gradients_slots =
            {
                .q_slots = (uint32_t)b->head_slots,
                .kv_slots = (uint32_t)b->packed.head_slots,
                .kv_batch_slots = (uint32_t)b->packed.batch_slots,
            },
        .gradients_mask = backward_dmask(b),
    };
    sequence_of(b, &parameters.sequence);
    /* The kernel hides keys by infinite scores; 0 times infinity would be NaN. */
    if (parameters.gradients_call.scale_log2 == 0.0f) {
        parameters.gradients_call.scale_log2 = FLT_MIN;
    }
    return parameters;
}

/* The parameters of the kernel that writes dq. */
static struct attention_backward_dq_parameters dq_of(const struct backward *b, sm120_address workspace) {
    const struct kernel_record *const record = kernel_records + b->main;
    const struct tensor *const dq = &b->results[DQ];
    const uint32_t warps = record->threads / 32;
    return (struct attention_backward_dq_parameters){
        .sums = workspace + (uint64_t)b->sums_at,
        .dq = dq->address,
        .dq_batch_stride = backward_batch_stride(dq, b->args->cu_seqlens_q),
        .dq_head_stride = dq->head_stride,
        .dq_row_stride = dq->row_stride,
        .cu_seqlens_q = b->args->cu_seqlens_q,
        .q_total = (int32_t)b->args->q_total,
        .head_slots = (uint32_t)b->head_slots,
        .batch_slots = (uint32_t)b->batch_slots,
        .ring_slots = (uint32_t)b->ring.slots,
        .first_head = (uint32_t)b->ring.first_head,
        .heads = (uint32_t)b->args->heads,
        .q_rows = (uint32_t)b->args->q_rows,
        .q_tiles = (uint32_t)b->q_tiles,
        .tile_rows = record->q_rows,
        .warps = warps,
        .row_warps = record->q_warp_rows,
        .fragments = record->q_rows * record->head_dim / (warps * FRAGMENT),
        .columns = record->head_dim / 8 * record->q_warp_rows / warps,
        .head_dim = (uint32_t)b->call.q_shape.head_dim,
        .dq_type = attention_type(dq->dtype),
        .accumulate = b->args->accumulate,
        .quads = backward_has_quads(b, DQ),
        .scale = b->args->scale,
    };
}

/* The parameters of the kernel that writes dsinks. */
static struct attention_backward_sinks_parameters sinks_of(const struct backward *b, sm120_address workspace) {
    const struct rows_place rows = backward_rows_place(b);
    return (struct attention_backward_sinks_parameters){
        .rows = workspace + (uint64_t)rows.at,
        .sinks = b->args->sinks,
        .dsinks = b->args->dsinks,
        .cu_seqlens_q = b->args->cu_seqlens_q,
        .q_total = (int32_t)b->args->q_total,
        .head_slots = (uint32_t)b->head_slots,
        .batch_slots = (uint32_t)b->batch_slots,
        .batches = (uint32_t)b->args->batch,
        .q_rows = (uint32_t)b->args->q_rows,
        .tile_rows = kernel_records[b->main].q_rows,
        .slot_bytes = (uint32_t)rows.step,
        .shift = rows.shift,
    };
}

/* Give the copies their addresses, and check their launches. */
static sm120_status prepare_copies(struct device *device, struct backward *b, sm120_address workspace) {
    sm120_status status = SM120_OK;
    for (int i = 0; i < LOADED && status == SM120_OK; ++i) {
        if (b->is_copied[i]) {
            b->loaded[i].address += workspace;
            status =
                copy_rows_prepare(device, &b->given[i], &b->loaded[i], &b->given_shape[i], b->loaded_shape[i].head_dim,
                                  backward_is_rounded(b, i), b->args->stream, &b->copies[i]);
        }
    }
    return status;
}

sm120_status backward_load(struct device *device, struct backward *b) {
    const uint32_t needed[] = {b->delta, b->main, b->dq,
                               b->sinks, b->sum,  b->products == SM120_MXFP8 ? b->packed.keys : b->delta};
    sm120_status status = SM120_OK;
    for (size_t i = 0; i < sizeof needed / sizeof *needed && status == SM120_OK; ++i) {
        struct kernel *kernel = NULL;
        status = builtin_load(device, needed[i], &kernel);
    }
    return status == SM120_OK ? prepare_copies(device, b, 0) : status;
}

int64_t backward_ctas(const struct backward *b) {
    return b->first_split + (b->kv_ctas - b->first_split) * b->splits;
}

/* Prepare the steps of MXFP8 before dq: the queries, the keys and the products. */
static sm120_status prepare_mxfp8(struct device *device, const struct backward *b, sm120_address workspace,
                                  struct values *values, struct step *delta, struct step *keys, struct step *main) {
    const int64_t q_heads = b->args->batch * b->args->heads;
    const struct kernel_record *const record = kernel_records + b->main;
    values->queries = backward_pack_queries(b, workspace);
    values->keys = backward_pack_keys(b, workspace);
    values->mxfp8 = mxfp8_of(b, workspace);
    sm120_status status = prepare(device, b, b->delta, ARGUMENTS(&values->queries),
                                  q_heads * b->q_tiles * (record->q_rows / PACKED_ROWS), delta);
    if (status == SM120_OK) {
        status = prepare(device, b, b->packed.keys, ARGUMENTS(&values->keys),
                         b->kv_ctas * (record->kv_rows / PACKED_ROWS), keys);
    }
    return status == SM120_OK ? prepare(device, b, b->main, ARGUMENTS(&values->mxfp8), backward_ctas(b), main) : status;
}

/* Prepare the steps of 16 bits before dq. */
static sm120_status prepare_16bit(struct device *device, const struct backward *b, sm120_address workspace,
                                  struct values *values, struct step *delta, struct step *main) {
    const int64_t q_heads = b->args->batch * b->args->heads;
    values->delta = delta_of(b, workspace);
    sm120_status status = main_of(device, b, workspace, &values->main);
    if (status == SM120_OK) {
        status = prepare(device, b, b->delta, ARGUMENTS(&values->delta), q_heads * b->q_tiles, delta);
    }
    return status == SM120_OK ? prepare(device, b, b->main, ARGUMENTS(&values->main), backward_ctas(b), main) : status;
}

sm120_status backward_run(struct device *device, struct backward *b, sm120_address workspace) {
    const bool has_sinks = b->args->dsinks != 0, is_mxfp8 = b->products == SM120_MXFP8;
    struct values values;
    int64_t sum_ctas = 0;
    const struct attention_backward_sum_parameters sum_values = backward_sum(b, workspace, &sum_ctas);
    struct step delta, keys, main, sum, dq, sinks;
    sm120_status status = prepare_copies(device, b, workspace);
    const struct attention_backward_dq_parameters dq_values = dq_of(b, workspace);
    const struct attention_backward_sinks_parameters sinks_values = sinks_of(b, workspace);
    if (status == SM120_OK) {
        status = is_mxfp8 ? prepare_mxfp8(device, b, workspace, &values, &delta, &keys, &main)
                          : prepare_16bit(device, b, workspace, &values, &delta, &main);
    }
    if (status == SM120_OK) {
        status = prepare(device, b, b->dq, ARGUMENTS(&dq_values),
                         (b->args->batch * b->args->heads - b->ring.first_head) * b->q_tiles, &dq);
    }
    if (status == SM120_OK && has_sinks) {
        status = prepare(device, b, b->sinks, ARGUMENTS(&sinks_values), b->args->heads, &sinks);
    }
    if (status == SM120_OK && b->splits > 1) {
        status = prepare(device, b, b->sum, ARGUMENTS(&sum_values), sum_ctas, &sum);
    }
    for (int i = 0; i < LOADED && status == SM120_OK; ++i) {
        status = b->is_copied[i] ? launch_start(b->copies[i].kernel, &b->copies[i].launch) : status;
    }
    status = status == SM120_OK ? launch_start(delta.kernel, &delta.launch) : status;
    status = status == SM120_OK && is_mxfp8 ? launch_start(keys.kernel, &keys.launch) : status;
    status = status == SM120_OK ? launch_start(main.kernel, &main.launch) : status;
    status = status == SM120_OK && b->splits > 1 ? launch_start(sum.kernel, &sum.launch) : status;
    status = status == SM120_OK ? launch_start(dq.kernel, &dq.launch) : status;
    return status == SM120_OK && has_sinks ? launch_start(sinks.kernel, &sinks.launch) : status;
}
