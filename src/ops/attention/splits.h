/* The split of the keys of Q tiles over several CTAs, and the launch that adds up their results.
 * ptx/parts/key_splits.ptx says how the CTAs divide the work. */
#ifndef SM120_ATTENTION_SPLITS_H
#define SM120_ATTENTION_SPLITS_H

#include "generated/parameters.h"
#include "ops/attention/attention.h"

/* Of `tiles` Q tiles, in the order of the launch, those from `first` on have `splits` CTAs each. Without splits,
 * `first` is `tiles` and no memory is needed. The `whole` first ones come before the last one of each head, which has
 * fewer rows; 0: every head's tiles follow one another. */
struct split {
    int64_t tiles, first, splits, whole;
    int64_t o_bytes, bytes; /* of the results of all splits: O, then LSE */
};

/* The launch behind the attention kernel. Do not copy it once filled, because it points into itself. */
struct split_launch {
    struct kernel *kernel; /* NULL: nothing is split */
    struct launch launch;
    struct attention_splits_parameters values;
    struct argument_pointers pointers;
};

/* Estimate the clocks of a launch on SM120, with the splits that attention_split() chooses. */
double attention_clocks(const struct device *device, const struct attention *call, const struct kernel_record *record);

/* Split a call of a kernel, as args->num_splits says, or such that the estimated time is least. */
sm120_status attention_split(const struct device *device, const struct attention *call,
                             const struct kernel_record *record, struct split *split);

/* Describe the launch of the attention kernel. */
sm120_status attention_launch_of(struct argument_pointers *pointers, const struct attention *call,
                                 const struct kernel_record *record, const struct split *split,
                                 struct arguments arguments, struct launch *launch);

/* The kernel's parameters; the results of the splits begin at `area`, which is aligned as a workspace is. */
struct splits_parameters attention_splits_at(const struct split *split, sm120_address area);

/* Check the launch that adds up the splits, and start it. */
sm120_status attention_splits_prepare(struct device *device, const struct attention *call,
                                      const struct kernel_record *record, const struct split *split, sm120_address area,
                                      struct split_launch *launch);
sm120_status attention_splits_start(const struct split_launch *launch);

/* Check the launch of an attention kernel that needs no other before it, and start it; then add up its splits, which
 * the workspace holds. */
sm120_status attention_launch(struct device *device, const struct attention *call, uint32_t index,
                              const struct split *split, sm120_address workspace, struct arguments arguments);

/* Answer how much memory that needs, and load the kernels, so that the call can be captured in a graph. */
sm120_status attention_answer(struct device *device, const struct attention *call, uint32_t index,
                              const struct split *split, const struct workspace *workspace);

#endif
