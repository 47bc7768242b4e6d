/* The clocks of a launch of an attention kernel on SM120, as the timing model predicts them. */
#ifndef SM120_ATTENTION_CLOCKS_H
#define SM120_ATTENTION_CLOCKS_H

#include "ops/attention/attention.h"

/* Estimate the clocks of a launch whose Q tiles from `first` on have `splits` CTAs each, and of the launch that adds
 * them up. */
double attention_clocks_with(const struct device *device, const struct attention *call,
                             const struct kernel_record *record, int64_t first, int64_t splits);

#endif
