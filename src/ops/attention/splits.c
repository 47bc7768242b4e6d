/* Into how many splits the keys of Q tiles are divided, and the launch that adds them up. */
#include "ops/attention/splits.h"

#include <inttypes.h>

#include "generated/constants.h"
#include "ops/attention/clocks.h"
#include "runtime/check.h"
#include "runtime/error.h"

enum { SPLITS_MAX = ATTENTION_SPLITS_MAX };

/* Why the keys of a call cannot be split; NULL: they can. Every row must see all keys, and O must not be rounded to
 * E4M3 nor its largest value be found by the CTAs. */
static const char *obstacle(const struct attention *call) {
    const struct reach reach = attention_reach(call->args);
    return reach.has_left || reach.has_right   ? "a causal mask or a window"
           : !call->is_uniform                 ? "features that change scores, lengths or a past"
           : call->args->o.dtype == SM120_E4M3 ? "o in E4M3"
           : call->args->amax.address != 0     ? "amax"
                                               : NULL;
}

/* The number of splits that takes the least time, and the first Q tile that is split: the first one of the last wave,
 * or of the last wave of tiles with all rows. */
static int64_t choose(const struct device *device, const struct attention *call, const struct kernel_record *record,
                      int64_t *first, double *clocks) {
    const struct attention_estimate estimate = attention_estimate_of(device, call, record);
    const int64_t sms = estimate.sms, starts[] = {estimate.tiles / sms * sms, estimate.whole / sms * sms};
    const int64_t kv_tiles = (call->args->kv_rows + record->kv_rows - 1) / record->kv_rows;
    const int64_t most = kv_tiles < SPLITS_MAX ? kv_tiles : SPLITS_MAX;
    int64_t best = 1;
    *first = estimate.tiles;
    *clocks = attention_clocks_with(&estimate, starts[0], 1);
    for (int64_t splits = 2; splits <= most && obstacle(call) == NULL; ++splits) {
        if (attention_least_clocks(&estimate, starts[0], splits) >= *clocks &&
            attention_least_clocks(&estimate, starts[1], splits) >= *clocks) {
            break;
        }
        for (int i = 0; i < 1 + (starts[1] != starts[0]); ++i) {
            const double found = attention_clocks_with(&estimate, starts[i], splits);
            if (found < *clocks) {
                *clocks = found;
                *first = starts[i];
                best = splits;
            }
        }
    }
    return best;
}

double attention_clocks(const struct device *device, const struct attention *call, const struct kernel_record *record) {
    int64_t first = 0;
    double clocks = 0;
    if (call->args->num_splits != 0) {
        const struct attention_estimate estimate = attention_estimate_of(device, call, record);
        return attention_clocks_with(&estimate, 0, call->args->num_splits);
    }
    choose(device, call, record, &first, &clocks);
    return clocks;
}

sm120_status attention_split(const struct device *device, const struct attention *call,
                             const struct kernel_record *record, struct split *split) {
    const sm120_attention_args *const args = call->args;
    const int64_t tiles = attention_ctas(call, record);
    double clocks = 0;
    *split = (struct split){.tiles = tiles, .first = tiles, .splits = 1, .whole = attention_whole_tiles(call, record)};
    if (args->num_splits > 1) {
        const char *const why = obstacle(call);
        if (why != NULL) {
            return fail(SM120_UNSUPPORTED, "num_splits = %" PRId64 " with %s; this call supports 0 (chosen) and 1",
                        args->num_splits, why);
        }
        split->first = 0;
        split->splits = args->num_splits;
    } else if (args->num_splits == 0) {
        split->splits = choose(device, call, record, &split->first, &clocks);
    }
    const int64_t ctas = split->splits > 1 ? tiles - split->first : 0;
    const int64_t row_bytes = split->splits * record->q_rows * (int64_t)sizeof(float);
    int64_t lse_bytes = 0;
    if (!multiply(ctas, row_bytes, &lse_bytes) || !multiply(lse_bytes, record->head_dim, &split->o_bytes) ||
        !add(split->o_bytes, lse_bytes, &split->bytes)) {
        return fail(SM120_UNSUPPORTED, "num_splits = %" PRId64 "; the workspace exceeds 2^63 bytes", args->num_splits);
    }
    return SM120_OK;
}

sm120_status attention_launch_of(struct argument_pointers *pointers, const struct attention *call,
                                 const struct kernel_record *record, const struct split *split,
                                 struct arguments arguments, struct launch *launch) {
    int64_t ctas = 0;
    if (!multiply(split->tiles - split->first, split->splits, &ctas) || !add(ctas, split->first, &ctas) ||
        ctas > INT32_MAX) {
        return fail(SM120_UNSUPPORTED,
                    "batch * heads = %" PRId64 " with %" PRId64 " Q tiles in all, and %" PRId64
                    " splits of a tile, is too many CTAs; at most %d are supported",
                    call->args->batch * call->args->heads, split->tiles, split->splits, INT32_MAX);
    }
    return launch_of(pointers, arguments, (uint32_t)ctas, record, call->args->stream, launch);
}

struct splits_parameters attention_splits_at(const struct split *split, sm120_address area) {
    return (struct splits_parameters){.split_o = area,
                                      .split_lse = area + (uint64_t)split->o_bytes,
                                      .first_split = (uint32_t)split->first,
                                      .splits = (uint32_t)split->splits,
                                      .whole_tiles = (uint32_t)split->whole};
}

sm120_status attention_splits_prepare(struct device *device, const struct attention *call,
                                      const struct kernel_record *record, const struct split *split, sm120_address area,
                                      struct split_launch *launch) {
    const sm120_attention_args *const args = call->args;
    const struct kernel_record wanted = {.operation = "attention_splits"};
    const struct splits_parameters at = attention_splits_at(split, area);
    uint32_t index = 0;
    launch->kernel = NULL;
    if (split->splits == 1) {
        return SM120_OK;
    }
    sm120_status status = builtin_find(&wanted, &index);
    if (status != SM120_OK) {
        return status;
    }
    launch->values = (struct attention_splits_parameters){
        .split_o = at.split_o,
        .split_lse = at.split_lse,
        .o = call->o.address,
        .lse = args->lse,
        .o_batch_stride = call->o.batch_stride,
        .o_head_stride = call->o.head_stride,
        .o_row_stride = call->o.row_stride,
        .first_split = at.first_split,
        .splits = at.splits,
        .whole_tiles = at.whole_tiles,
        .heads = (uint32_t)args->heads,
        .q_rows = (uint32_t)args->q_rows,
        .q_tiles = (uint32_t)((args->q_rows + record->q_rows - 1) / record->q_rows),
        .q_rows_of_tile = record->q_rows,
        .head_dim = (uint32_t)call->o_shape.head_dim,
        .padded_head_dim = record->head_dim,
        .o_type = attention_type(call->args->o.dtype),
    };
    const int64_t grid = (split->tiles - split->first) * (record->q_rows / kernel_records[index].rows);
    if (grid > INT32_MAX) {
        return fail(SM120_UNSUPPORTED, "num_splits = %" PRId64 " of %" PRId64 " Q tiles; at most %d are supported",
                    args->num_splits, split->tiles, INT32_MAX / (int)(record->q_rows / kernel_records[index].rows));
    }
    status = launch_of(&launch->pointers, ARGUMENTS(&launch->values), (uint32_t)grid, kernel_records + index,
                       args->stream, &launch->launch);
    launch->launch.is_early = true;
    status = status == SM120_OK ? builtin_load(device, index, &launch->kernel) : status;
    return status == SM120_OK ? launch_check(launch->kernel, &launch->launch) : status;
}

sm120_status attention_splits_start(const struct split_launch *launch) {
    return launch->kernel != NULL ? launch_start(launch->kernel, &launch->launch) : SM120_OK;
}

sm120_status attention_launch(struct device *device, const struct attention *call, uint32_t index,
                              const struct split *split, sm120_address workspace, struct arguments arguments) {
    const struct kernel_record *const record = kernel_records + index;
    struct argument_pointers pointers;
    struct launch launch;
    struct split_launch adds;
    struct kernel *kernel = NULL;
    sm120_status status = attention_launch_of(&pointers, call, record, split, arguments, &launch);
    status = status == SM120_OK ? builtin_load(device, index, &kernel) : status;
    status = status == SM120_OK ? launch_check(kernel, &launch) : status;
    status = status == SM120_OK ? attention_splits_prepare(device, call, record, split, workspace, &adds) : status;
    status = status == SM120_OK ? launch_start(kernel, &launch) : status;
    return status == SM120_OK ? attention_splits_start(&adds) : status;
}

sm120_status attention_answer(struct device *device, const struct attention *call, uint32_t index,
                              const struct split *split, const struct workspace *workspace) {
    struct kernel *kernel;
    struct split_launch adds;
    *workspace->answer = (size_t)split->bytes;
    const sm120_status status = builtin_load(device, index, &kernel);
    return status == SM120_OK ? attention_splits_prepare(device, call, kernel_records + index, split, 0, &adds)
                              : status;
}
