/* Into how many parts the keys are split. */
#include <math.h>

#include "generated/constants.h"
#include "ops/attention_kv_cache/attention_kv_cache.h"
#include "ops/resident.h"

enum {
    LEAST_KEYS = 256,  /* of a part */
    MOST_SPLITS = 256, /* the merge reads them one after the other */
    STEP = 64          /* keys that a CTA reads at a time */
};

/* The CTAs that make a multiprocessor busy. In 16 bits one has enough copies in flight; the conversions of 8 bits need
 * two, those of MXFP8 four up to head size 128, those of NVFP4 all that are resident. */
static int64_t needed_ctas(const struct cached *call, int64_t resident) {
    const bool has_blocks = call->k.tensor[CACHE_BLOCKS].address != 0 || call->v.tensor[CACHE_BLOCKS].address != 0;
    const bool has_nvfp4 = call->k.form == KV_FORMAT_NVFP4 || call->v.form == KV_FORMAT_NVFP4;
    const int64_t needed = !call->is_narrow ? 1 : has_blocks && kernel_records[call->kernel].head_dim <= 128 ? 4 : 2;
    return has_nvfp4 || needed > resident ? resident : needed;
}

/* The number of parts that takes the least time, by this estimate in steps of a CTA alone on a multiprocessor: CTAs run
 * in waves; those of a multiprocessor share its speed, but fewer than `needed` leave some of it unused; each begins and
 * ends in the time of `start` steps. */
int64_t cached_splits(const struct device *device, const struct cached *call) {
    const int64_t sms = device->info.multiprocessors, start = call->is_narrow ? 3 : 2;
    const struct kernel_record *const record = kernel_records + call->kernel;
    const int64_t resident = resident_ctas(device, record, record->shared), needed = needed_ctas(call, resident);
    const int64_t ctas = call->args->batch * call->args->kv_heads * call->row_tiles;
    const int64_t longest = (call->kv_rows + LEAST_KEYS - 1) / LEAST_KEYS;
    const int64_t most = longest < MOST_SPLITS ? longest : MOST_SPLITS;
    int64_t best = 1;
    double least = INFINITY;
    if (call->args->num_splits > 0) {
        return call->args->num_splits;
    }
    for (int64_t splits = 1; splits <= most; ++splits) {
        const int64_t full = ctas * splits / (sms * resident), rest = ctas * splits % (sms * resident);
        const int64_t last = (rest + sms - 1) / sms, steps = (call->kv_rows + STEP * splits - 1) / (STEP * splits);
        const int64_t shares = full * resident + (rest == 0 ? 0 : last < needed ? needed : last);
        const double time = (double)shares * (double)(steps + start);
        best = time < least ? splits : best;
        least = time < least ? time : least;
    }
    return best;
}
