/* The clocks of a launch of an attention kernel on SM120, as the timing model predicts them. */
#ifndef SM120_ATTENTION_CLOCKS_H
#define SM120_ATTENTION_CLOCKS_H

#include "ops/attention/attention.h"

/* Clocks of a round of the main loop, and of a CTA outside of its rounds. */
struct attention_pace {
    double round, outside;
};

/* What the clocks of a launch depend on, but for its splits. */
struct attention_estimate {
    /* Of a CTA that has a multiprocessor to itself; of each where two share it, or of each Q tile of a CTA that goes on
     * from one to the other, which takes `start` more clocks. */
    struct attention_pace alone, each;
    double start;
    double average, most;      /* rounds of the CTAs, and of the longest */
    int64_t sms, tiles, whole; /* Q tiles; those that come before the last ones of all heads, or all */
    double last;               /* the clocks of such a last tile, for each of one with all rows */
    double tile_bytes;         /* that the results of a split of a tile move */
};
struct attention_estimate attention_estimate_of(const struct device *device, const struct attention *call,
                                                const struct kernel_record *record);

/* The Q tiles of a launch that come before the last one of each head, because that one has fewer rows and as many
 * rounds; 0: the tiles of each head follow one another. */
int64_t attention_whole_tiles(const struct attention *call, const struct kernel_record *record);

/* Estimate the clocks of a launch whose Q tiles from `first` on have `splits` CTAs each, and of the launch that adds
 * them up. */
double attention_clocks_with(const struct attention_estimate *estimate, int64_t first, int64_t splits);

/* Clocks that such a launch takes at least, were its work spread evenly; more splits never take less. */
double attention_least_clocks(const struct attention_estimate *estimate, int64_t first, int64_t splits);

#endif
