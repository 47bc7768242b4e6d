/* Into how many parts the keys are split. */
#include <math.h>

#include "generated/constants.h"
#include "ops/attention_kv_cache/attention_kv_cache.h"
#include "ops/resident.h"

enum {
    MOST_SPLITS = 256,
    STEP = 64 /* keys that a CTA reads at a time */
};

/* Whether k or v has scales of blocks; whether one of them is in NVFP4. */
static bool has_blocks(const struct cached *call) {
    return call->k.tensor[CACHE_BLOCKS].address != 0 || call->v.tensor[CACHE_BLOCKS].address != 0;
}
static bool has_nvfp4(const struct cached *call) {
    return call->k.form == KV_FORMAT_NVFP4 || call->v.form == KV_FORMAT_NVFP4;
}

/* The CTAs that make a multiprocessor busy: two, those of MXFP8 four up to head size 128, those of NVFP4 all that are
 * resident. */
static int64_t needed_ctas(const struct cached *call, int64_t resident) {
    const int64_t needed = has_blocks(call) && kernel_records[call->kernel].head_dim <= 128 ? 4 : 2;
    return has_nvfp4(call) || needed > resident ? resident : needed;
}

/* The time of a step, in those of a step in e4m3. With MXFP8 at head size 256, one CTA on each multiprocessor of an
 * H200 (2026-11-28) read 8 sequences of 4096 keys and 16 heads at 2.5 TB/s, in e4m3 at 3.8. */
static double time_of_step(const struct cached *call) {
    return has_blocks(call) && !has_nvfp4(call) && kernel_records[call->kernel].head_dim > 128 ? 1.5 : 1;
}

/* The rest of the estimate, in steps of a CTA that is alone on a multiprocessor: for 64 keys in 16 bits it takes 1,340
 * clocks. Meanwhile the memory of an H200 delivers 73 such steps; that of an RTX 5090 33, by its data sheet. If some
 * multiprocessors have a CTA more than others, memory is idle at the end; a CTA alone leaves some of it idle, too. The
 * merge of a call begins before the call has ended, and the next call before the merge has: it takes one step, and some
 * for each part. Measured on an H200 (2026-11-29) with 1 to 64 parts in 37 problems: what these values choose takes at
 * most 7 percent longer than the best. A multiprocessor full of CTAs takes half as long for a step. */
static const double memory_of_multiprocessor[] = {0.2, 0.55}; /* SM120, Hopper */
static const double uneven = 0.2, alone = 0.006, merge = 1, merge_of_part = 0.05, of_lone = 2;

/* The number of parts that takes the least time, by this estimate in steps of a full multiprocessor: CTAs run in waves;
 * those of a multiprocessor share its speed, but fewer than `needed` leave some of it unused; each begins and ends in
 * the time of `start` steps. Memory may take longer. */
int64_t cached_splits(const struct device *device, const struct cached *call) {
    const int64_t sms = device->info.multiprocessors, start = call->is_narrow ? 3 : 2;
    const struct kernel_record *const record = kernel_records + call->kernel;
    const int64_t resident = resident_ctas(device, record, record->shared), needed = needed_ctas(call, resident);
    const int64_t pairs = call->args->batch * call->args->kv_heads;
    const int64_t all = (call->kv_rows + STEP - 1) / STEP, most = all < MOST_SPLITS ? all : MOST_SPLITS;
    const double of_16_bits = call->k.form == KV_FORMAT_NVFP4 ? 0.28 : call->is_narrow ? 0.5 : 1;
    const double speed = memory_of_multiprocessor[device->info.capability_major == HOPPER] * (double)sms;
    const double read = of_16_bits * (double)pairs * (double)all / speed;
    const double step = time_of_step(call);
    int64_t best = 1;
    double least = INFINITY;
    if (call->args->num_splits > 0) {
        return call->args->num_splits;
    }
    for (int64_t splits = 1; splits <= most; ++splits) {
        const double merged = splits > 1 ? of_lone * (merge + merge_of_part * (double)splits) : 0;
        if (of_lone * ((double)start + read) + merged >= least) {
            break; /* so it is for all others: what is moved and merged becomes no less */
        }
        const int64_t ctas = pairs * call->row_tiles * splits, steps = (all + splits - 1) / splits;
        const int64_t full = ctas / (sms * resident), last = (ctas % (sms * resident) + sms - 1) / sms;
        const int64_t shares = full * resident + (last == 0 || last >= needed ? last : needed);
        const double computed = step * (double)shares * (double)(steps + start);
        const double places = (double)((ctas + sms - 1) / sms * sms);
        const double idle = (2 * ctas > sms ? uneven * (places / (double)ctas - 1) : 0) + (ctas <= sms ? alone : 0);
        const double waves = (double)ctas / (double)(sms * resident);
        const double moved = of_lone * ((double)start * (waves > 1 ? waves : 1) + read * (1 + idle));
        const double time = (computed < moved ? moved : computed) + merged;
        best = time < least ? splits : best;
        least = time < least ? time : least;
    }
    return best;
}
