/* The clocks of a launch of an attention kernel on SM120, as the timing model predicts them. */
#include "ops/attention/clocks.h"

#include <math.h>

#include "ops/resident.h"

/* The paces of kernels on an RTX 5090: of a CTA that has a multiprocessor to itself, and of each of many that share it
 * two at a time, or with goes_on of each Q tile of a CTA behind the first; 0: neither. `python -m pysm120 model`
 * predicts them; tests/ops/test_attention_clocks.py compares. F16 has those of BF16. */
static const struct timing {
    uint32_t precision, head_dim, q_rows, threads;
    struct attention_pace alone, each;
    bool goes_on;
} timings[] = {
    {SM120_BF16, 32, 128, 128, {2568, 5335}, {0, 0}, false},
    {SM120_BF16, 32, 128, 256, {1994, 5447}, {2054, 1871}, false},
    {SM120_BF16, 64, 128, 128, {8894, 5495}, {0, 0}, false},
    {SM120_BF16, 64, 128, 256, {4170, 4857}, {0, 0}, false},
    {SM120_BF16, 64, 64, 128, {2537, 4343}, {2061, 1600}, false},
    {SM120_BF16, 64, 32, 256, {1972, 5234}, {0, 0}, false},
    {SM120_BF16, 96, 128, 128, {6740, 6801}, {0, 0}, false},
    {SM120_BF16, 96, 128, 256, {6283, 5507}, {0, 0}, false},
    {SM120_BF16, 128, 128, 128, {8814, 7534}, {0, 0}, false},
    {SM120_BF16, 128, 128, 256, {8196, 7089}, {0, 0}, false},
    {SM120_BF16, 128, 64, 128, {4662, 4894}, {0, 0}, false},
    {SM120_BF16, 128, 32, 128, {2198, 3906}, {0, 0}, false},
    {SM120_BF16, 256, 128, 256, {8228, 12603}, {0, 0}, false},
    {SM120_BF16, 256, 64, 128, {4842, 7075}, {0, 0}, false},
    {SM120_FP8, 64, 128, 256, {1533, 3200}, {1242, 1665}, false},
    {SM120_FP8, 64, 32, 256, {1658, 3738}, {0, 0}, false},
    {SM120_FP8, 128, 192, 384, {3442, 7608}, {3442, 1893}, true},
    {SM120_FP8, 128, 32, 256, {1514, 6958}, {0, 0}, false},
    {SM120_MXFP8, 64, 128, 256, {1600, 3244}, {1215, 1978}, false},
    {SM120_MXFP8, 128, 192, 384, {3546, 6592}, {3546, 1387}, true},
    {SM120_MXFP8, 256, 128, 256, {4461, 9738}, {0, 0}, false},
    {SM120_MXFP8_BF16, 64, 128, 256, {2640, 3706}, {2555, 1769}, false},
    {SM120_MXFP8_BF16, 128, 128, 256, {5189, 5344}, {0, 0}, false},
    {SM120_MXFP8_BF16, 256, 128, 256, {10270, 9300}, {0, 0}, false},
    {SM120_NVFP4, 64, 128, 256, {1212, 4290}, {865, 2683}, false},
    {SM120_NVFP4, 128, 192, 384, {2212, 6990}, {2212, 2586}, true},
    {SM120_NVFP4_MXFP8, 64, 128, 256, {1613, 3740}, {1061, 2413}, false},
    {SM120_NVFP4_MXFP8, 128, 192, 384, {2844, 6998}, {2844, 2046}, true},
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

/* The pace of a kernel on Hopper. All have the rate of those in 16 bits; the others emulate their products there. A CTA
 * of four warps takes longer outside of its rounds, unless others share its multiprocessor. */
static struct attention_pace pace_on_hopper(const struct device *device, const struct kernel_record *record,
                                            int64_t step) {
    enum { FOUR_WARPS = 128 };
    const double flops_per_clock = 2600;
    return (struct attention_pace){
        .round = 4.0 * (double)step * record->q_rows * record->head_dim / flops_per_clock,
        .outside =
            record->threads == FOUR_WARPS ? 9000.0 / (double)resident_ctas(device, record, record->shared) : 5100,
    };
}

struct attention_estimate attention_estimate_of(const struct device *device, const struct attention *call,
                                                const struct kernel_record *record) {
    const int64_t step = (int64_t)record->kv_rows * record->key_groups;
    const double all = (double)((call->args->kv_rows + step - 1) / step);
    const double edges = (double)record->q_rows / (double)step + 1;
    const struct reach reach = attention_reach(call->args);
    const struct timing *const found = device->info.capability_major != HOPPER ? timing_of(record) : NULL;
    struct attention_estimate estimate = {
        .alone = found != NULL ? found->alone : pace_on_hopper(device, record, step),
        .average = all,
        .most = all,
        .sms = device->info.multiprocessors,
        .tiles = attention_ctas(call, record),
        .tile_bytes = 8.0 * record->q_rows * record->head_dim,
    };
    estimate.each = found != NULL && found->each.round != 0 ? found->each : estimate.alone;
    estimate.start = found != NULL && found->goes_on ? found->alone.outside - found->each.outside : 0;
    if (reach.has_left && reach.has_right) { /* all but the keys of a window are hidden */
        estimate.most = fmin(all, ((double)reach.left + (double)reach.right) / (double)step + edges);
        estimate.average = estimate.most;
    } else if (reach.has_left || reach.has_right) { /* half of the keys are hidden on average */
        estimate.average = fmin(all, (all + edges) / 2);
    }
    return estimate;
}

static double clocks_of(struct attention_pace pace, double rounds) {
    return rounds * pace.round + pace.outside;
}

/* The clocks of a multiprocessor for `whole` CTAs of so many rounds and `parts` CTAs of fewer rounds. Where two share
 * it, the last one ends alone; where a CTA does the work of many, it starts once. */
static double clocks_of_sm(const struct attention_estimate *estimate, double whole, double rounds, double parts,
                           double fewer) {
    const struct attention_pace alone = estimate->alone, each = estimate->each;
    const double shared = whole * clocks_of(each, rounds) + parts * clocks_of(each, fewer);
    const double last = shared + (parts > 0 ? fewer : rounds) * (alone.round - each.round);
    return fmax(last + estimate->start, clocks_of(alone, whole > 0 ? rounds : fewer));
}

double attention_clocks_with(const struct attention_estimate *estimate, int64_t first, int64_t splits) {
    const double merge = 3000, bytes_per_clock = 16; /* of a multiprocessor */
    const int64_t sms = estimate->sms, left = estimate->tiles - first;
    const double most = estimate->most;
    if (estimate->average < most) { /* the longest CTAs come first, and short ones fill the multiprocessors */
        const double whole = fmax(1, (double)estimate->tiles / (double)sms);
        return fmax(clocks_of_sm(estimate, whole, estimate->average, 0, 0), clocks_of(estimate->alone, most));
    }
    const int64_t parts = (left * splits + sms - 1) / sms;
    const double clocks =
        clocks_of_sm(estimate, (double)(first / sms), most, (double)parts, ceil(most / (double)splits));
    const double moved = (double)(left * splits) * estimate->tile_bytes;
    return clocks + (splits > 1 ? merge + moved / (bytes_per_clock * (double)sms) : 0);
}
