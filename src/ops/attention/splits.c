/* Into how many splits the keys of Q tiles are divided, and the launch that adds them up. */
#include "ops/attention/splits.h"

#include <inttypes.h>
#include <math.h>

#include "generated/constants.h"
#include "ops/resident.h"
#include "runtime/check.h"
#include "runtime/error.h"

enum { SPLITS_MAX = ATTENTION_SPLITS_MAX };

/* Floating-point operations that a kernel does in a clock of a multiprocessor, as predicted for SM120. */
static const struct {
    uint32_t precision;
    double rate;
} rates[] = {
    {SM120_BF16, 510},      {SM120_F16, 510},  {SM120_MXFP8, 1850}, {SM120_MXFP8_BF16, 810},
    {SM120_MXFP8_F16, 810}, {SM120_FP8, 1900}, {SM120_NVFP4, 2550}, {SM120_NVFP4_MXFP8, 2100},
};

/* The same of kernels that differ: groups of warps share the keys, or few warps are on a multiprocessor; and the clocks
 * of a CTA outside of its rounds. */
static const struct timing {
    uint32_t precision, head_dim, key_groups;
    double rate, outside;
} timings[] = {
    {SM120_BF16, 64, 4, 510, 2500}, {SM120_F16, 64, 4, 510, 2500},  {SM120_BF16, 128, 2, 510, 3900},
    {SM120_F16, 128, 2, 510, 3900}, {SM120_FP8, 64, 4, 1380, 4100}, {SM120_FP8, 128, 4, 1550, 7500},
    {SM120_FP8, 64, 1, 1500, 5100},
};

static const struct timing *timing_of(const struct kernel_record *record) {
    for (size_t i = 0; i < sizeof timings / sizeof *timings; ++i) {
        if (timings[i].precision == record->precision && timings[i].head_dim == record->head_dim &&
            timings[i].key_groups == record->key_groups) {
            return timings + i;
        }
    }
    return NULL;
}

static double rate_of(const struct device *device, const struct kernel_record *record) {
    const double of_hopper = 2600; /* of 16 bits; the others are emulated there, and their splits as good as any */
    const struct timing *const own = timing_of(record);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; ++i) {
        if (rates[i].precision == record->precision && device->info.capability_major != HOPPER) {
            return own != NULL ? own->rate : rates[i].rate;
        }
    }
    return of_hopper;
}

/* Clocks of a CTA outside of its rounds: the timing model's 5100 of a CTA of eight or twelve warps, 9000 of four, which
 * overlap where CTAs share a multiprocessor. */
static double clocks_outside(const struct device *device, const struct kernel_record *record) {
    enum { FOUR_WARPS = 128 };
    const struct timing *const own = timing_of(record);
    if (own != NULL) {
        return own->outside;
    }
    return record->threads == FOUR_WARPS ? 9000.0 / (double)resident_ctas(device, record, record->shared) : 5100;
}

/* Clocks of a launch that splits all Q tiles behind the last full wave, `splits` times: those of the multiprocessor
 * with the most CTAs, then those of the launch that adds up the splits, whose memory is the L2. */
static double clocks_with(const struct device *device, const struct attention *call, const struct kernel_record *record,
                          int64_t first, int64_t splits) {
    const double merge = 3000, bytes_per_clock = 16; /* of a multiprocessor */
    const int64_t sms = device->info.multiprocessors, tiles = attention_ctas(call, record);
    const int64_t step = (int64_t)record->kv_rows * record->key_groups;
    const int64_t rounds = (call->args->kv_rows + step - 1) / step;
    const double each = 4.0 * (double)step * record->q_rows * record->head_dim / rate_of(device, record);
    const double outside = clocks_outside(device, record);
    const double whole = (double)(first / sms) * ((double)rounds * each + outside);
    const double rest = (double)(((tiles - first) * splits + sms - 1) / sms) *
                        ((double)((rounds + splits - 1) / splits) * each + outside);
    const double moved = 8.0 * (double)((tiles - first) * splits) * record->q_rows * record->head_dim;
    return whole + rest + (splits > 1 ? merge + moved / (bytes_per_clock * (double)sms) : 0);
}

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

/* The number of splits that takes the least time, and the first Q tile that is split. */
static int64_t choose(const struct device *device, const struct attention *call, const struct kernel_record *record,
                      int64_t *first, double *clocks) {
    const int64_t sms = device->info.multiprocessors, tiles = attention_ctas(call, record);
    const int64_t full = tiles / sms * sms;
    const int64_t kv_tiles = (call->args->kv_rows + record->kv_rows - 1) / record->kv_rows;
    const int64_t most = kv_tiles < SPLITS_MAX ? kv_tiles : SPLITS_MAX;
    int64_t best = 1;
    *clocks = clocks_with(device, call, record, full, 1);
    for (int64_t splits = 2; splits <= most && obstacle(call) == NULL; ++splits) {
        const double found = clocks_with(device, call, record, full, splits);
        best = found < *clocks ? splits : best;
        *clocks = found < *clocks ? found : *clocks;
    }
    *first = best > 1 ? full : tiles;
    return best;
}

double attention_clocks(const struct device *device, const struct attention *call, const struct kernel_record *record) {
    int64_t first = 0;
    double clocks = 0;
    if (call->args->num_splits != 0) {
        return clocks_with(device, call, record, 0, call->args->num_splits);
    }
    choose(device, call, record, &first, &clocks);
    return clocks;
}

sm120_status attention_split(const struct device *device, const struct attention *call,
                             const struct kernel_record *record, struct split *split) {
    const sm120_attention_args *const args = call->args;
    const int64_t tiles = attention_ctas(call, record);
    double clocks = 0;
    *split = (struct split){.tiles = tiles, .first = tiles, .splits = 1};
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
                                      .splits = (uint32_t)split->splits};
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
