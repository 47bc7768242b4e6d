/* Launches of the smoothing of q and k for attention in NVFP4: means of samples of their rows, and the scores that a
 * mean of q gives to the keys. ptx/attention/smoothing.ptx has the formulas. */
#ifndef SM120_ATTENTION_SMOOTHING_H
#define SM120_ATTENTION_SMOOTHING_H

#include "ops/attention/attention.h"

enum { SMOOTHING_LAUNCHES = 4, SMOOTHING_MEANS_MAX = 128 };

/* What a call smooths, and where in the workspace. */
struct smoothing {
    const struct attention *call;
    int64_t batch, q_rows, kv_rows;        /* a batch for each sequence, with the rows of the longest one */
    int64_t mean_rows, q_means_of_head;    /* queries of a mean; means of a head */
    int64_t past_tiles, all_tiles;         /* of keys */
    sm120_address q_means, k_means;        /* f32 [batch * heads * means], [batch * kv_heads][MEAN_COLUMNS] */
    sm120_address row_scores, mean_scores; /* f32 [batch * heads][padded rows], [batch * heads][means][tiles][64] */
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

/* The rows of a mean of q: a tile of the kernel, doubled until a head has at most SMOOTHING_MEANS_MAX means. So the
 * mean scores of long sequences grow with the keys alone. */
int64_t smoothing_mean_rows(int64_t rows, int64_t tile_rows);

/* Choose the kernels and check their launches without starting them. */
sm120_status smoothing_prepare(struct device *device, const struct smoothing *smoothing,
                               struct smoothing_launches *launches);

/* Start the launches in order. */
sm120_status smoothing_start(const struct smoothing_launches *launches);

#endif
