/* Where few heads of k and v leave multiprocessors idle, several CTAs share the heads of q of one of them. */
#include "ops/attention_backward/attention_backward.h"

enum {
    FIXED_SMS = 128,  /* that a deterministic call counts with, so that its bits do not depend on the device */
    CTA_TILES = 2,    /* tiles of queries in whose time a CTA loads k and v and stores dk and dv */
    LESS = 5,         /* what more splits must save, in percent */
    LEAST_TILES = 8,  /* what a split must save: launches that add up the parts take time, too */
    LEAST_GAIN = 10,  /* the same, in percent */
    SUM_THREADS = 256 /* elements of a CTA that adds up parts */
};

/* The time of the main kernel in tiles of queries, if `splits` CTAs share the heads of q of one of k and v. With a
 * right edge, as causal calls have, half of the tiles are skipped, and short CTAs fill the gaps behind long ones. */
static int64_t tiles_of(const struct backward *b, int64_t splits, int64_t sms) {
    const int64_t group = b->args->heads / b->args->kv_heads;
    const int64_t ctas = b->args->batch * b->args->kv_heads * b->kv_tiles * splits;
    const int64_t longest = group / splits * b->q_tiles + CTA_TILES;
    if (!attention_reach(&b->forward).has_right) {
        return (ctas + sms - 1) / sms * longest;
    }
    const int64_t mean = ctas * ((group / splits * b->q_tiles + 1) / 2 + CTA_TILES) / sms;
    return mean > longest ? mean : longest;
}

int64_t backward_splits(const struct device *device, const struct backward *b) {
    const int64_t group = b->call.is_uniform ? b->args->heads / b->args->kv_heads : 1;
    const int64_t sms = b->args->deterministic != 0 ? FIXED_SMS : device->info.multiprocessors;
    const int64_t whole = tiles_of(b, 1, sms);
    int64_t best = 1, least = whole;
    for (int64_t splits = 2; splits <= group && splits <= sms; ++splits) {
        const int64_t tiles = group % splits == 0 ? tiles_of(b, splits, sms) : whole;
        if (tiles * 100 < least * (100 - LESS)) {
            best = splits;
            least = tiles;
        }
    }
    return whole - least < LEAST_TILES || (whole - least) * 100 < whole * LEAST_GAIN ? 1 : best;
}

/* The parts lie as [batch][kv_heads * splits][kv_rows][head_dim]. */
struct tensor backward_parts(const struct backward *b, int result, sm120_address workspace) {
    const struct shape *const shape = &b->result_shape[result];
    struct tensor parts = b->results[result];
    parts.address = workspace + (uint64_t)b->parts_at[result];
    parts.dtype = SM120_F32;
    parts.row_stride = shape->head_dim * 4;
    parts.head_stride = parts.row_stride * b->args->kv_rows;
    parts.batch_stride = parts.head_stride * b->args->kv_heads * b->splits;
    return parts;
}

struct attention_backward_sum_parameters backward_sum(const struct backward *b, int result, sm120_address workspace,
                                                      int64_t *ctas) {
    const struct tensor *const out = &b->results[result];
    const struct shape *const shape = &b->result_shape[result];
    const int64_t chunks = (b->args->kv_rows * shape->head_dim + SUM_THREADS - 1) / SUM_THREADS;
    *ctas = b->args->batch * b->args->kv_heads * chunks;
    return (struct attention_backward_sum_parameters){
        .parts = workspace + (uint64_t)b->parts_at[result],
        .out = out->address,
        .out_batch_stride = out->batch_stride,
        .out_head_stride = out->head_stride,
        .out_row_stride = out->row_stride,
        .kv_heads = (uint32_t)b->args->kv_heads,
        .kv_rows = (uint32_t)b->args->kv_rows,
        .head_dim = (uint32_t)shape->head_dim,
        .splits = (uint32_t)b->splits,
        .chunks = (uint32_t)chunks,
        .type = attention_type(out->dtype),
        .accumulate = b->args->accumulate,
    };
}
