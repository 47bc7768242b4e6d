/* Launches of the smoothing of q and k for attention in NVFP4: means of samples of their rows, and the scores that a
 * mean of q gives to the keys. ptx/attention/smoothing.ptx has the formulas. */
#ifndef SM120_ATTENTION_SMOOTHING_H
#define SM120_ATTENTION_SMOOTHING_H

#include "ops/attention/attention.h"

enum { SMOOTHING_LAUNCHES = 4 };

/* What a call smooths, and where in the workspace. */
struct smoothing {
    const struct attention *call;
    int64_t batch, q_rows, kv_rows; /* a batch for each sequence, with the rows of the longest one */
    uint32_t tile_rows;             /* queries of a mean */
    int64_t q_tiles, past_tiles, all_tiles;
    sm120_address q_means, k_means;        /* f32 [batch * heads * q_tiles], [batch * kv_heads][MEAN_COLUMNS] */
    sm120_address row_scores, mean_scores; /* f32 [batch * heads][q_tiles * tile_rows], [...][q_tiles][tiles][64] */
    float factor;                          /* multiplies q: 1, -1 or 0 */
};

/* A launch and the values of its arguments. Do not copy it once filled, because it points into itself. */
struct smoothing_launch {
    struct kernel *kernel;
    struct launch launch;
    union {
        struct attention_means_parameters means;
        struct attention_mean_scores_parameters mean_scores;
    } values;
    struct argument_pointers pointers;
};

/* The launches of a call. They precede its quantizers, which read the means. */
struct smoothing_launches {
    struct smoothing_launch list[SMOOTHING_LAUNCHES];
    int count;
};

/* Choose the kernels and check their launches without starting them. */
sm120_status smoothing_prepare(struct device *device, const struct smoothing *smoothing,
                               struct smoothing_launches *launches);

/* Start the launches in order. */
sm120_status smoothing_start(const struct smoothing_launches *launches);

#endif
