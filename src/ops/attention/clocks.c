/* The clocks of a launch of an attention kernel on SM120, as the timing model predicts them. */
#include "ops/attention/clocks.h"

#include <math.h>

#include "ops/resident.h"

/* Clocks of a round of the main loop, and of a CTA outside of its rounds. */
struct pace {
    double round, outside;
};

/* The paces of kernels on an RTX 5090: of a CTA that has a multiprocessor to itself, and of each of many that share it
 * two at a time; 0: two do not fit. `python -m pysm120 model` predicts them; tests/ops/test_attention_clocks.py
 * compares. F16 has those of BF16. */
static const struct timing {
    uint32_t precision, head_dim, q_rows, threads;
    struct pace alone, each;
} timings[] = {
    {SM120_BF16, 32, 128, 128, {2568, 5335}, {0, 0}},
    {SM120_BF16, 32, 128, 256, {1994, 5447}, {2054, 1871}},
    {SM120_BF16, 64, 128, 128, {8894, 5495}, {0, 0}},
    {SM120_BF16, 64, 128, 256, {4170, 4857}, {0, 0}},
    {SM120_BF16, 64, 64, 128, {2537, 4343}, {2061, 1600}},
    {SM120_BF16, 64, 32, 256, {1972, 5234}, {0, 0}},
    {SM120_BF16, 96, 128, 128, {6740, 6801}, {0, 0}},
    {SM120_BF16, 96, 128, 256, {6283, 5507}, {0, 0}},
    {SM120_BF16, 128, 128, 128, {8814, 7534}, {0, 0}},
    {SM120_BF16, 128, 128, 256, {8196, 7089}, {0, 0}},
    {SM120_BF16, 128, 64, 128, {4662, 4894}, {0, 0}},
    {SM120_BF16, 128, 32, 128, {2198, 3906}, {0, 0}},
    {SM120_BF16, 256, 128, 256, {8228, 12603}, {0, 0}},
    {SM120_BF16, 256, 64, 128, {4842, 7075}, {0, 0}},
    {SM120_FP8, 64, 128, 256, {1569, 4116}, {1240, 2472}},
    {SM120_FP8, 64, 32, 256, {1452, 4347}, {0, 0}},
    {SM120_FP8, 128, 192, 384, {3508, 7414}, {0, 0}},
    {SM120_FP8, 128, 32, 256, {1295, 7744}, {0, 0}},
    {SM120_MXFP8, 64, 128, 256, {1654, 4098}, {1214, 2650}},
    {SM120_MXFP8, 128, 192, 384, {3428, 8982}, {0, 0}},
    {SM120_MXFP8, 256, 128, 256, {4824, 9925}, {0, 0}},
    {SM120_MXFP8_BF16, 64, 128, 256, {2788, 3110}, {2546, 1746}},
    {SM120_MXFP8_BF16, 128, 128, 256, {5202, 5224}, {0, 0}},
    {SM120_MXFP8_BF16, 256, 128, 256, {10269, 9307}, {0, 0}},
    {SM120_NVFP4, 64, 128, 256, {1510, 4357}, {972, 2985}},
    {SM120_NVFP4, 128, 192, 384, {2295, 7222}, {0, 0}},
    {SM120_NVFP4_MXFP8, 64, 128, 256, {1814, 4338}, {1161, 2540}},
    {SM120_NVFP4_MXFP8, 128, 192, 384, {2889, 7016}, {0, 0}},
};

static const struct timing *timing_of(const struct kernel_record *record) {
    const uint32_t precision = record->precision == SM120_F16         ? SM120_BF16
                               : record->precision == SM120_MXFP8_F16 ? SM120_MXFP8_BF16
                                                                      : record->precision;
    for (size_t i = 0; i < sizeof timings / sizeof *timings; ++i) {
        const struct timing *const one = timings + i;
        if (one->precision == precision && one->head_dim == record->head_dim && one->q_rows == record->q_rows &&
            one->threads == record->threads) {
            return one;
        }
    }
    return NULL;
}

/* The paces of a kernel on a device. Hopper's are those of 16 bits: other products are emulated there, and their splits
 * as good as any. A CTA of four warps takes longer outside of its rounds, unless others share its multiprocessor. */
static struct timing timing_on(const struct device *device, const struct kernel_record *record, int64_t step) {
    enum { FOUR_WARPS = 128 };
    const double flops_per_clock = 2600;
    const struct timing *const found = timing_of(record);
    if (found != NULL && device->info.capability_major != HOPPER) {
        return *found;
    }
    return (struct timing){.alone = {
                               .round = 4.0 * (double)step * record->q_rows * record->head_dim / flops_per_clock,
                               .outside = record->threads == FOUR_WARPS
                                              ? 9000.0 / (double)resident_ctas(device, record, record->shared)
                                              : 5100,
                           }};
}

static double clocks_of(struct pace pace, double rounds) {
    return rounds * pace.round + pace.outside;
}

/* The clocks of a multiprocessor for `whole` CTAs of so many rounds and `parts` CTAs of fewer rounds. Where two share
 * it, the last one ends alone. */
static double clocks_of_sm(const struct timing *timing, double whole, double rounds, double parts, double fewer) {
    const struct pace alone = timing->alone, each = timing->each.round != 0 ? timing->each : alone;
    const double shared = whole * clocks_of(each, rounds) + parts * clocks_of(each, fewer);
    const double last = shared + (parts > 0 ? fewer : rounds) * (alone.round - each.round);
    const double least = clocks_of(alone, whole > 0 ? rounds : fewer);
    return last > least ? last : least;
}

/* The tiles of keys that a CTA visits on average, and at most: a causal mask hides half of them, a window all but its
 * own. */
static double average_rounds(const struct attention *call, const struct kernel_record *record, int64_t step,
                             double rounds) {
    const struct reach reach = attention_reach(call->args);
    const double edges = (double)record->q_rows / (double)step + 1;
    const double seen = reach.has_left && reach.has_right
                            ? ((double)reach.left + (double)reach.right) / (double)step + edges
                        : reach.has_left || reach.has_right ? (rounds + edges) / 2
                                                            : rounds;
    return seen < rounds ? seen : rounds;
}

double attention_clocks_with(const struct device *device, const struct attention *call,
                             const struct kernel_record *record, int64_t first, int64_t splits) {
    const double merge = 3000, bytes_per_clock = 16; /* of a multiprocessor */
    const int64_t sms = device->info.multiprocessors, tiles = attention_ctas(call, record);
    const int64_t step = (int64_t)record->kv_rows * record->key_groups;
    const double rounds = (double)((call->args->kv_rows + step - 1) / step);
    const struct timing timing = timing_on(device, record, step);
    const double average = average_rounds(call, record, step, rounds);
    if (average < rounds) { /* the longest CTAs come first, so that short ones fill the multiprocessors at the end */
        const double each = (double)tiles / (double)sms, longest = clocks_of(timing.alone, rounds);
        const double shared = clocks_of_sm(&timing, each > 1 ? each : 1, average, 0, 0);
        return shared > longest ? shared : longest;
    }
    const int64_t parts = ((tiles - first) * splits + sms - 1) / sms;
    const double clocks =
        clocks_of_sm(&timing, (double)(first / sms), rounds, (double)parts, ceil(rounds / (double)splits));
    const double moved = 8.0 * (double)((tiles - first) * splits) * record->q_rows * record->head_dim;
    return clocks + (splits > 1 ? merge + moved / (bytes_per_clock * (double)sms) : 0);
}
