/* The clocks of a launch of an attention kernel on SM120, as the timing model predicts them. */
#include "ops/attention/clocks.h"

#include <math.h>
#include <string.h>

#include "ops/resident.h"

/* The paces of kernels on an RTX 5090: of a CTA that has a multiprocessor to itself, and of each of many that share it
 * two at a time, or with goes_on of each Q tile of a CTA behind the first; 0: neither. `python -m pysm120 model`
 * predicts them; tests/ops/test_attention_clocks.py compares. F16 has those of BF16. */
static const struct timing {
    uint32_t precision, head_dim;
    const char *config;
    struct attention_pace alone, each;
    bool goes_on;
} timings[] = {
    {SM120_BF16, 32, "r32", {2568, 5335}, {0, 0}, false},
    {SM120_BF16, 32, "r16", {1994, 5447}, {2054, 1871}, false},
    {SM120_BF16, 64, "r32", {8894, 5495}, {0, 0}, false},
    {SM120_BF16, 64, "r16", {4164, 4557}, {0, 0}, false},
    {SM120_BF16, 64, "walk", {4133, 2956}, {4133, 1294}, true},
    {SM120_BF16, 64, "w4", {2537, 4343}, {2061, 1600}, false},
    {SM120_BF16, 64, "k4", {1972, 5234}, {0, 0}, false},
    {SM120_BF16, 96, "r32", {6740, 6801}, {0, 0}, false},
    {SM120_BF16, 96, "r16", {6219, 5704}, {0, 0}, false},
    {SM120_BF16, 96, "walk", {6222, 3510}, {6222, 700}, true},
    {SM120_BF16, 128, "r32", {8814, 7534}, {0, 0}, false},
    {SM120_BF16, 128, "r16", {8299, 5958}, {0, 0}, false},
    {SM120_BF16, 128, "walk", {8236, 4364}, {8236, 1572}, true},
    {SM120_BF16, 128, "w4", {4662, 4894}, {0, 0}, false},
    {SM120_BF16, 128, "k2", {2198, 3906}, {0, 0}, false},
    {SM120_BF16, 256, "r16", {8228, 12603}, {0, 0}, false},
    {SM120_BF16, 256, "w4", {4842, 7075}, {0, 0}, false},
    {SM120_FP8, 64, "r16", {1555, 3304}, {1165, 2184}, false},
    {SM120_FP8, 64, "k4", {1658, 3738}, {0, 0}, false},
    {SM120_FP8, 128, "r16", {3264, 7627}, {3264, 2604}, true},
    {SM120_FP8, 128, "k4", {1514, 6958}, {0, 0}, false},
    {SM120_MXFP8, 64, "r16", {1528, 3012}, {1184, 1710}, false},
    {SM120_MXFP8, 128, "r16", {3286, 4457}, {3286, 1638}, true},
    {SM120_MXFP8, 256, "r16", {4367, 6589}, {0, 0}, false},
    {SM120_MXFP8_BF16, 64, "r16", {2640, 3706}, {2555, 1769}, false},
    {SM120_MXFP8_BF16, 128, "r16", {5270, 2364}, {5270, 677}, true},
    {SM120_MXFP8_BF16, 256, "r16", {10270, 9300}, {0, 0}, false},
    {SM120_NVFP4, 64, "r16", {1212, 4290}, {865, 2683}, false},
    {SM120_NVFP4, 128, "r16", {2212, 6990}, {2212, 2586}, true},
    {SM120_NVFP4_MXFP8, 64, "r16", {1613, 3740}, {1061, 2413}, false},
    {SM120_NVFP4_MXFP8, 128, "r16", {2844, 6998}, {2844, 2046}, true},
};

static const struct timing *timing_of(const struct kernel_record *record) {
    const uint32_t precision = record->precision == SM120_F16         ? SM120_BF16
                               : record->precision == SM120_MXFP8_F16 ? SM120_MXFP8_BF16
                                                                      : record->precision;
    for (size_t i = 0; i < sizeof timings / sizeof *timings; ++i) {
        const struct timing *const one = timings + i;
        if (one->precision == precision && one->head_dim == record->head_dim &&
            strcmp(one->config, record->config) == 0) {
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

int64_t attention_whole_tiles(const struct attention *call, const struct kernel_record *record) {
    const int64_t q_rows = call->args->q_rows;
    const struct reach reach = attention_reach(call->args);
    const bool is_order_free = call->is_uniform && !reach.has_left && !reach.has_right;
    return is_order_free && q_rows % record->q_rows != 0
               ? call->args->batch * call->args->heads * (q_rows / record->q_rows)
               : 0;
}

/* The clocks of a tile with some of its rows, for each of one with all: warps without rows only wait, and what a warp
 * does alone takes as long. The model has 0.76 and 0.58 for 128 and 64 of 192 rows in MXFP8, 0.82 and 0.75 in NVFP4. */
static double share_of_rows(const struct kernel_record *record, int64_t rows) {
    return record->key_groups > 1 ? 1 : 0.45 + 0.5 * (double)rows / record->q_rows;
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
        .whole = attention_whole_tiles(call, record),
        .last = share_of_rows(record, call->args->q_rows % record->q_rows),
        .tile_bytes = 8.0 * record->q_rows * record->head_dim,
    };
    estimate.each = found != NULL && found->each.round != 0 ? found->each : estimate.alone;
    estimate.start = found != NULL && found->goes_on ? found->alone.outside - found->each.outside : 0;
    estimate.whole = estimate.whole != 0 ? estimate.whole : estimate.tiles;
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

/* Multiprocessors that are free at the same time. */
struct free_sms {
    int64_t sms;
    double from;
};

/* All multiprocessors. A class of CTAs that start one after the other divides one of the groups at most. */
enum { CLASSES = 4 };
struct schedule {
    struct free_sms groups[CLASSES + 1];
    int count;
};

/* Start CTAs of so many clocks, each where a multiprocessor is free first. */
static void start_ctas(struct schedule *schedule, int64_t ctas, double clocks) {
    while (ctas > 0) {
        struct free_sms *first = schedule->groups;
        int64_t sms = 0;
        double last = 0;
        for (int i = 0; i < schedule->count; ++i) {
            struct free_sms *const group = schedule->groups + i;
            first = group->from < first->from ? group : first;
            last = fmax(last, group->from);
            sms += group->sms;
        }
        if (ctas >= sms && last - first->from <= clocks) { /* every multiprocessor has one before any has two */
            for (int i = 0; i < schedule->count; ++i) {
                schedule->groups[i].from += (double)(ctas / sms) * clocks;
            }
            ctas %= sms;
            continue;
        }
        if (ctas < first->sms) {
            schedule->groups[schedule->count++] = (struct free_sms){first->sms - ctas, first->from};
            first->sms = ctas;
        }
        first->from += clocks;
        ctas -= first->sms;
    }
}

/* When the last multiprocessor is free. */
static double end_of(const struct schedule *schedule) {
    double end = 0;
    for (int i = 0; i < schedule->count; ++i) {
        end = fmax(end, schedule->groups[i].from);
    }
    return end;
}

/* The clocks of a launch of `tiles` CTAs of an average number of rounds. The longest come first, and short ones fill
 * the multiprocessors. */
static double clocks_of_mixed(const struct attention_estimate *estimate) {
    const struct attention_pace alone = estimate->alone, each = estimate->each;
    const double ctas = fmax(1, (double)estimate->tiles / (double)estimate->sms), rounds = estimate->average;
    const double shared = ctas * clocks_of(each, rounds) + rounds * (alone.round - each.round) + estimate->start;
    return fmax(shared, clocks_of(alone, estimate->most));
}

/* The clocks of the launch that adds up so many splits of `left` tiles. */
static double clocks_of_merge(const struct attention_estimate *estimate, int64_t left, int64_t splits) {
    const double merge = 3000, bytes_per_clock = 16; /* of a multiprocessor */
    const double moved = (double)(left * splits) * estimate->tile_bytes;
    return splits > 1 ? merge + moved / (bytes_per_clock * (double)estimate->sms) : 0;
}

double attention_least_clocks(const struct attention_estimate *estimate, int64_t first, int64_t splits) {
    const struct attention_pace alone = estimate->alone, each = estimate->each;
    const int64_t whole = first < estimate->whole ? first : estimate->whole, left = estimate->tiles - first;
    const int64_t whole_left = estimate->whole - whole;
    const double of_tile = clocks_of(each, estimate->most);
    const double of_splits = (double)splits * clocks_of(each, estimate->most / (double)splits);
    const double work = ((double)whole + estimate->last * (double)(first - whole)) * of_tile +
                        ((double)whole_left + estimate->last * (double)(left - whole_left)) * of_splits;
    const double last = fmin(0, estimate->most * (alone.round - each.round));
    return work / (double)estimate->sms + last + estimate->start + clocks_of_merge(estimate, left, splits);
}

/* Splits have the average number of rounds, but for the last one. Where two CTAs share a multiprocessor, the last one
 * ends alone; where a CTA does the work of many, it starts once. */
double attention_clocks_with(const struct attention_estimate *estimate, int64_t first, int64_t splits) {
    const struct attention_pace alone = estimate->alone, each = estimate->each;
    const int64_t left = estimate->tiles - first, whole = first < estimate->whole ? first : estimate->whole;
    const double most = estimate->most, fewer = most / (double)splits, rest = left > 0 ? ceil(fewer) - fewer : 0;
    if (estimate->average < most) {
        return clocks_of_mixed(estimate);
    }
    struct schedule schedule = {.groups = {{.sms = estimate->sms}}, .count = 1};
    start_ctas(&schedule, whole, clocks_of(each, most));
    start_ctas(&schedule, first - whole, estimate->last * clocks_of(each, most));
    start_ctas(&schedule, (estimate->whole - whole) * splits, clocks_of(each, fewer));
    start_ctas(&schedule, (left - (estimate->whole - whole)) * splits, estimate->last * clocks_of(each, fewer));
    const double last = (left > 0 ? ceil(fewer) : most) * (alone.round - each.round) + rest * each.round;
    const double clocks =
        fmax(end_of(&schedule) + last + estimate->start, clocks_of(alone, first > 0 ? most : ceil(fewer)));
    return clocks + clocks_of_merge(estimate, left, splits);
}
