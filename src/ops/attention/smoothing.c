/* The smoothing of q and k for attention in NVFP4. */
#include "ops/attention/smoothing.h"

#include <inttypes.h>

#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"

enum { KEY_SAMPLES = 256, QUERY_SAMPLES = 64 }; /* rows of a mean: its error is 1/16 and 1/8 of a row's deviation */

int64_t smoothing_mean_rows(int64_t rows, int64_t tile_rows) {
    int64_t mean_rows = tile_rows;
    while (mean_rows * SMOOTHING_MEANS_MAX < rows) {
        mean_rows *= 2;
    }
    return mean_rows;
}

/* Find a kernel and check its launch of a CTA for each tile. */
static sm120_status prepare(struct device *device, const struct smoothing *smoothing, const char *operation,
                            const struct tensor *x, int64_t tiles, struct arguments arguments,
                            struct smoothing_launch *launch) {
    const struct kernel_record wanted = {.operation = operation, .dtype = x->dtype};
    uint32_t index;
    sm120_status status = builtin_find(&wanted, &index);
    if (status != SM120_OK) {
        return status;
    }
    if (tiles > INT32_MAX) {
        return fail(SM120_UNSUPPORTED, "%s: %" PRId64 " tiles of all heads are too many CTAs; at most %d are supported",
                    x->name, tiles, INT32_MAX);
    }
    status = launch_of(&launch->pointers, arguments, (uint32_t)tiles, kernel_records + index,
                       smoothing->call->args->stream, &launch->launch);
    status = status == SM120_OK ? builtin_load(device, index, &launch->kernel) : status;
    return status == SM120_OK ? launch_check(launch->kernel, &launch->launch) : status;
}

/* The means of tiles of q, or of the keys of a head with those of the past. */
static sm120_status prepare_means(struct device *device, const struct smoothing *smoothing, bool is_q,
                                  struct smoothing_launch *launch) {
    const struct attention *const call = smoothing->call;
    const sm120_attention_args *const args = call->args;
    const struct tensor *const x = is_q ? &call->q : &call->k;
    const int64_t heads = is_q ? args->heads : args->kv_heads;
    struct attention_means_parameters *const values = &launch->values.means;
    *values = (struct attention_means_parameters){
        .x = x->address,
        .means = is_q ? smoothing->q_means : smoothing->k_means,
        .batch_stride = x->batch_stride,
        .head_stride = x->head_stride,
        .row_stride = x->row_stride,
        .heads = (uint32_t)heads,
        .rows = (uint32_t)(is_q ? smoothing->q_rows : smoothing->kv_rows),
        .head_dim = (uint32_t)call->q_shape.head_dim,
        .row_tiles = is_q ? (uint32_t)smoothing->q_means_of_head : 1,
        .tile_rows = is_q ? (uint32_t)smoothing->mean_rows : INT32_MAX,
        .samples = is_q ? QUERY_SAMPLES : KEY_SAMPLES,
        .starts = is_q ? args->cu_seqlens_q : args->cu_seqlens_k,
        .lengths = is_q ? 0 : args->kv_lengths,
        .total = (int32_t)(is_q ? args->q_total : args->kv_total),
    };
    if (!is_q && args->past_rows != 0) {
        values->past_rows = (uint32_t)args->past_rows;
        values->past = call->past_k.address;
        values->past_batch_stride = call->past_k.batch_stride;
        values->past_head_stride = call->past_k.head_stride;
        values->past_row_stride = call->past_k.row_stride;
    }
    return prepare(device, smoothing, "attention_means", x, smoothing->batch * heads * values->row_tiles,
                   ARGUMENTS(values), launch);
}

/* The scores of the means of q with the keys, or with those of the past. */
static sm120_status prepare_mean_scores(struct device *device, const struct smoothing *smoothing, bool is_past,
                                        struct smoothing_launch *launch) {
    const struct attention *const call = smoothing->call;
    const sm120_attention_args *const args = call->args;
    const struct tensor *const x = is_past ? &call->past_k : &call->k;
    const int64_t tiles = is_past ? smoothing->past_tiles : smoothing->all_tiles - smoothing->past_tiles;
    struct attention_mean_scores_parameters *const values = &launch->values.mean_scores;
    *values = (struct attention_mean_scores_parameters){
        .x = x->address,
        .means = smoothing->q_means,
        .key_means = smoothing->k_means,
        .scores = smoothing->mean_scores,
        .batch_stride = x->batch_stride,
        .head_stride = x->head_stride,
        .row_stride = x->row_stride,
        .heads = (uint32_t)args->kv_heads,
        .rows = (uint32_t)(is_past ? args->past_rows : smoothing->kv_rows),
        .head_dim = (uint32_t)call->q_shape.head_dim,
        .row_tiles = (uint32_t)tiles,
        .mean_rows = (uint32_t)(args->heads / args->kv_heads * smoothing->q_means_of_head),
        .factor = smoothing->factor,
        .starts = is_past ? 0 : args->cu_seqlens_k,
        .lengths = is_past ? 0 : args->kv_lengths,
        .total = (int32_t)args->kv_total,
        .all_tiles = (uint32_t)smoothing->all_tiles,
        .first_tile = is_past ? 0 : (uint32_t)smoothing->past_tiles,
    };
    return prepare(device, smoothing, "attention_mean_scores", x, smoothing->batch * args->kv_heads * tiles,
                   ARGUMENTS(values), launch);
}

sm120_status smoothing_prepare(struct device *device, const struct smoothing *smoothing,
                               struct smoothing_launches *launches) {
    struct smoothing_launch *const list = launches->list;
    launches->count = smoothing->past_tiles != 0 ? SMOOTHING_LAUNCHES : SMOOTHING_LAUNCHES - 1;
    sm120_status status = prepare_means(device, smoothing, true, list);
    status = status == SM120_OK ? prepare_means(device, smoothing, false, list + 1) : status;
    status = status == SM120_OK ? prepare_mean_scores(device, smoothing, false, list + 2) : status;
    return status == SM120_OK && launches->count > 3 ? prepare_mean_scores(device, smoothing, true, list + 3) : status;
}

sm120_status smoothing_start(const struct smoothing_launches *launches) {
    sm120_status status = SM120_OK;
    for (int i = 0; i < launches->count && status == SM120_OK; ++i) {
        status = launch_start(launches->list[i].kernel, &launches->list[i].launch);
    }
    return status;
}
