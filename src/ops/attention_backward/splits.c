/* Where tiles of keys leave multiprocessors idle, several CTAs share the queries of one of them. */
#include "ops/attention_backward/attention_backward.h"

enum {
    FIXED_SMS = 128, /* that a deterministic call counts with, so that its bits do not depend on the device */
    SPLITS_MAX = 32, /* CTAs of a tile */
    CTA_TILES = 2,   /* tiles of queries in whose time a CTA loads k and v and stores dk and dv */
    PART_TILES = 3,  /* the same, of a CTA that stores a part of them in f32 */
    SUM_TILES = 4,   /* in whose time a further launch adds up the parts */
    LEAST_TILES = 8, /* what splits must save */
    LEAST_GAIN = 1,  /* the same, in percent */
    SUM_THREADS = 256
};

/* The time of the main kernel in tiles of queries: the tiles of keys before `first` have a CTA each, the others
 * `splits` CTAs. With a right edge, as causal calls have, half of the walks are skipped, and short CTAs fill the gaps
 * behind long ones. */
static int64_t tiles_of(const struct backward *b, int64_t first, int64_t splits, int64_t sms) {
    const int64_t walk = b->args->heads / b->args->kv_heads * b->q_tiles;
    const int64_t share = (walk + splits - 1) / splits, ends = splits > 1 ? PART_TILES : CTA_TILES;
    const int64_t sum = splits > 1 ? SUM_TILES : 0, ctas = (b->kv_ctas - first) * splits;
    if (!attention_reach(&b->forward).has_right) {
        return first / sms * (walk + CTA_TILES) + (ctas + sms - 1) / sms * (share + ends) + sum;
    }
    const int64_t mean = ctas * ((share + 1) / 2 + ends) / sms;
    return (mean > share + ends ? mean : share + ends) + sum;
}

int64_t backward_split(const struct device *device, struct backward *b) {
    const bool is_fixed = b->args->deterministic != 0;
    const int64_t sms = is_fixed ? FIXED_SMS : device->info.multiprocessors;
    /* A wave of whole tiles is one of this device alone, and of tiles of equal length. */
    const bool has_waves = !is_fixed && !attention_reach(&b->forward).has_right;
    const int64_t full = has_waves ? b->kv_ctas / sms * sms : 0;
    const int64_t whole = tiles_of(b, full, 1, sms);
    int64_t least = whole;
    b->splits = 1;
    for (int64_t splits = 2; splits <= SPLITS_MAX && b->call.is_uniform; ++splits) {
        const int64_t tiles = tiles_of(b, full, splits, sms);
        if (tiles < least) {
            b->splits = splits;
            least = tiles;
        }
    }
    if (whole - least < LEAST_TILES || (whole - least) * 100 < whole * LEAST_GAIN) {
        b->splits = 1;
        least = whole;
    }
    b->first_split = b->splits > 1 ? full : b->kv_ctas;
    return least;
}

struct attention_backward_sum_parameters backward_sum(const struct backward *b, sm120_address workspace,
                                                      int64_t *ctas) {
    const sm120_attention_backward_args *const args = b->args;
    const struct kernel_record *const main = kernel_records + b->main;
    const struct tensor *const dk = &b->results[DK], *const dv = &b->results[DV];
    const int64_t width = b->result_shape[DK].head_dim + b->result_shape[DV].head_dim;
    const int64_t chunks = (main->kv_rows * width + SUM_THREADS - 1) / SUM_THREADS;
    *ctas = (b->kv_ctas - b->first_split) * chunks;
    return (struct attention_backward_sum_parameters){
        .dk_parts = workspace + (uint64_t)b->parts_at[DK],
        .dv_parts = workspace + (uint64_t)b->parts_at[DV],
        .dk = dk->address,
        .dv = dv->address,
        .dk_batch_stride = dk->batch_stride,
        .dk_head_stride = dk->head_stride,
        .dk_row_stride = dk->row_stride,
        .dv_batch_stride = dv->batch_stride,
        .dv_head_stride = dv->head_stride,
        .dv_row_stride = dv->row_stride,
        .batches = (uint32_t)args->batch,
        .kv_heads = (uint32_t)args->kv_heads,
        .kv_rows = (uint32_t)args->kv_rows,
        .tile_rows = main->kv_rows,
        .head_dim = (uint32_t)b->result_shape[DK].head_dim,
        .v_head_dim = (uint32_t)b->result_shape[DV].head_dim,
        .group = (uint32_t)b->group,
        .first_split = (uint32_t)b->first_split,
        .splits = (uint32_t)b->splits,
        .chunks = (uint32_t)chunks,
        .dk_type = attention_type(dk->dtype),
        .dv_type = attention_type(dv->dtype),
        .accumulate = args->accumulate,
    };
}
