/* Into how many parts the keys are split. */
#include "ops/attention_kv_cache/attention_kv_cache.h"
#include "ops/resident.h"

enum {
    LEAST_KEYS = 256,     /* of a part: below, beginning and merging cost more than a part saves */
    MOST_SPLITS = 256,    /* the merge reads them one after the other */
    ENOUGH = 95,          /* percent of the places for CTAs: more parts cost more than they gain */
    BYTES_AHEAD = 1 << 16 /* of copies in flight, which suffice for a multiprocessor's share of the memory's speed */
};

/* The CTAs that a multiprocessor needs. In 16 bits one has enough copies in flight. With 8 bits it takes as many as
 * have BYTES_AHEAD in their rings, and two for their conversions. With scales in blocks the conversions need all that
 * are resident. */
static int64_t needed_ctas(const struct cached *call, uint32_t shared, int64_t resident) {
    const bool has_blocks = call->k.tensor[CACHE_BLOCKS].address != 0 || call->v.tensor[CACHE_BLOCKS].address != 0;
    const int64_t ahead = (BYTES_AHEAD + shared - 1) / shared, least = ahead > 2 ? ahead : 2;
    return !call->is_narrow ? 1 : has_blocks || least > resident ? resident : least;
}

/* The fewest parts with which the last wave of CTAs is nearly full. CTAs that are all resident at once need only as
 * many places as make the multiprocessors busy. */
int64_t cached_splits(const struct device *device, const struct cached *call) {
    const int64_t sms = device->info.multiprocessors;
    const struct kernel_record *const record = kernel_records + call->kernel;
    const int64_t resident = resident_ctas(device, record, record->shared), places = sms * resident;
    const int64_t busy = sms * needed_ctas(call, record->shared, resident);
    const int64_t ctas = call->args->batch * call->args->kv_heads * call->row_tiles;
    const int64_t longest = (call->kv_rows + LEAST_KEYS - 1) / LEAST_KEYS;
    const int64_t most = longest < MOST_SPLITS ? longest : MOST_SPLITS;
    int64_t best = 1, best_share = 0;
    if (call->args->num_splits > 0) {
        return call->args->num_splits;
    }
    for (int64_t splits = 1; splits <= most && best_share < ENOUGH; ++splits) {
        const int64_t wave = ctas * splits <= places ? busy : places;
        const int64_t waves = (ctas * splits + wave - 1) / wave;
        const int64_t share = 100 * ctas * splits / (waves * wave);
        best = share > best_share ? splits : best;
        best_share = share > best_share ? share : best_share;
    }
    return best;
}
