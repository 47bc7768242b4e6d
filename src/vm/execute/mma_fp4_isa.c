/* Tensor-core sums of packed e2m1 with one scale per 16 or 32 k (k 64; sparse A: per 32 or 64 of 128).
 *
 * The 16 products of a group (of 32 k for a sparse A) are summed exactly and multiplied by the significands of their
 * two scales. The four sums and c are shifted to the largest exponent, truncated to 35 fraction bits and added
 * exactly. The total is rounded once. */
#include <string.h>

#include "vm/execute/mma.h"
#include "vm/execute/mma_isa.h"

enum {
    FRACTION = 35,
    GROUPS = 4,
    ELEMENTS = 8, /* per word */
    LANES_B = MMA_COLUMNS * MMA_WORDS,
    OUTPUTS = MMA_OUTPUTS,
    GROUP_FRACTION = 8 /* fraction bits of a group's sum: 1 for each e2m1, 3 for each scale */
};

/* Scales of every group, as significand * 2^(exponent - 3), and whether a row or column has a NaN scale. */
struct scales {
    int32_t a_significand[GROUPS][MMA_ROWS], a_exponent[GROUPS][MMA_ROWS];
    int32_t b_significand[GROUPS][MMA_COLUMNS], b_exponent[GROUPS][MMA_COLUMNS];
    int32_t a_nan[MMA_ROWS], b_nan[MMA_COLUMNS];
};

/* Decode a scale. Return whether it is NaN. Zero has exponent -126. The sign of ue4m3 is ignored. */
static int32_t decode_scale(int32_t *significand, int32_t *exponent, uint8_t code, uint8_t type) {
    if (type == MMA_UE8M0) {
        *significand = 8;
        *exponent = code - 127;
        return code == 0xff;
    }
    const int32_t magnitude = code & 0x7f;
    const int32_t field = mma_max(magnitude >> 3, 1);
    *significand = magnitude - (field - 1) * 8;
    *exponent = magnitude != 0 ? field - 7 : -126;
    return magnitude == 0x7f;
}

/* Decode element t of n words as twice its value. */
static inline void decode(int16_t *restrict value, const uint32_t *restrict words, int n, int t) {
    for (int i = 0; i < n; ++i) {
        const int32_t code = (int32_t)(words[i] >> (4 * t));
        const int32_t x = code & 7;
        const int32_t twice = x < 4 ? x : x < 6 ? 2 * x - 4 : 4 * x - 16;
        value[i] = (int16_t)((code & 8) != 0 ? -twice : twice);
    }
}

/* Sum the products of a run of 16 k with every row, in units of 1/4. */
static inline void multiply_column(int16_t sum[restrict MMA_ROWS], int16_t a[restrict ELEMENTS][MMA_WORDS][MMA_ROWS],
                                   int16_t b[restrict ELEMENTS][LANES_B], int group, int column) {
    for (int i = 0; i < MMA_ROWS; ++i) {
        int16_t x = 0;
        for (int t = 0; t < ELEMENTS; ++t) {
            x = (int16_t)(x + a[t][2 * group][i] * b[t][MMA_WORDS * column + 2 * group]);
        }
        for (int t = 0; t < ELEMENTS; ++t) {
            x = (int16_t)(x + a[t][2 * group + 1][i] * b[t][MMA_WORDS * column + 2 * group + 1]);
        }
        sum[i] = x;
    }
}

/* Sum the products of every run of 16 k in one half. */
static void sum_runs(int16_t groups[restrict GROUPS][OUTPUTS], const struct mma_words *restrict words, int half) {
    int16_t a[ELEMENTS][MMA_WORDS][MMA_ROWS];
    int16_t b[ELEMENTS][LANES_B];
    for (int t = 0; t < ELEMENTS; ++t) {
        decode(a[t][0], words->a[half][0], MMA_WORDS * MMA_ROWS, t);
        decode(b[t], words->b[half], LANES_B, t);
    }
    for (int group = 0; group < GROUPS; ++group) {
        for (int j = 0; j < MMA_COLUMNS; ++j) {
            multiply_column(groups[group] + MMA_ROWS * j, a, b, group, j);
        }
    }
}

/* Sum the products of every group: one run, or two runs for a sparse A. */
static void sum_groups(int16_t groups[restrict GROUPS][OUTPUTS], const struct mma_words *restrict words, int halves) {
    int16_t runs[GROUPS][OUTPUTS];
    if (halves == 1) {
        sum_runs(groups, words, 0);
        return;
    }
    for (int half = 0; half < halves; ++half) {
        sum_runs(runs, words, half);
        for (int group = 0; group < GROUPS / 2; ++group) {
            for (int n = 0; n < OUTPUTS; ++n) {
                groups[GROUPS / 2 * half + group][n] = (int16_t)(runs[2 * group][n] + runs[2 * group + 1][n]);
            }
        }
    }
}

/* Decode the scales of all rows and columns, by group. */
static void decode_scales(struct scales *restrict scales, const struct mma_shape *shape,
                          const struct mma_operands *operands) {
    memset(scales, 0, sizeof *scales);
    for (int group = 0; group < GROUPS; ++group) {
        const int block = group * shape->scale_vec / GROUPS;
        for (int i = 0; i < MMA_ROWS; ++i) {
            scales->a_nan[i] |= decode_scale(&scales->a_significand[group][i], &scales->a_exponent[group][i],
                                             mma_scale_a(operands, i, block), shape->scale);
        }
        for (int j = 0; j < MMA_COLUMNS; ++j) {
            scales->b_nan[j] |= decode_scale(&scales->b_significand[group][j], &scales->b_exponent[group][j],
                                             mma_scale_b(operands, j, block), shape->scale);
        }
    }
}

/* Return |x| * 2^(FRACTION - fraction), shifted right and truncated. */
static inline int64_t cut(int32_t x, int fraction, int32_t shift) {
    const int64_t magnitude = (int64_t)(x < 0 ? -x : x) << (FRACTION - fraction) >> mma_min(shift, 63);
    return x < 0 ? -magnitude : magnitude;
}

/* Add c and the groups of one column. `exponent` is set to the exponents of the sums. */
static inline void add_column(double total[restrict MMA_ROWS], int32_t exponent[restrict MMA_ROWS],
                              int16_t groups[restrict GROUPS][OUTPUTS], const struct scales *restrict scales,
                              const uint32_t c[restrict MMA_ROWS], int column) {
    int64_t sum[MMA_ROWS];
    for (int i = 0; i < MMA_ROWS; ++i) {
        int32_t largest = mma_max((int32_t)(c[i] >> 23 & 0xff), 1) - 127;
        for (int group = 0; group < GROUPS; ++group) {
            largest = mma_max(largest, scales->a_exponent[group][i] + scales->b_exponent[group][column]);
        }
        exponent[i] = largest;
    }
    for (int i = 0; i < MMA_ROWS; ++i) {
        const int32_t field = mma_max((int32_t)(c[i] >> 23 & 0xff), 1);
        const int32_t magnitude = (int32_t)((c[i] & 0x7fffffffu) - ((uint32_t)(field - 1) << 23));
        sum[i] = cut(c[i] >> 31 != 0 ? -magnitude : magnitude, 23, exponent[i] - (field - 127));
    }
    for (int group = 0; group < GROUPS; ++group) {
        const int32_t significand = scales->b_significand[group][column];
        for (int i = 0; i < MMA_ROWS; ++i) {
            sum[i] +=
                cut(groups[group][MMA_ROWS * column + i] * scales->a_significand[group][i] * significand,
                    GROUP_FRACTION, exponent[i] - scales->a_exponent[group][i] - scales->b_exponent[group][column]);
        }
    }
    for (int i = 0; i < MMA_ROWS; ++i) {
        total[i] = (double)sum[i];
    }
}

/* Replace the sums with a NaN or an infinity among their terms. */
static void replace_specials(uint32_t result[restrict OUTPUTS], const uint32_t c[restrict OUTPUTS],
                             const struct scales *restrict scales) {
    for (int n = 0; n < OUTPUTS; ++n) {
        const uint32_t magnitude = c[n] & 0x7fffffffu;
        const int nan = scales->a_nan[n % MMA_ROWS] != 0 || scales->b_nan[n / MMA_ROWS] != 0 || magnitude > 0x7f800000u;
        const uint32_t infinite = magnitude == 0x7f800000u ? c[n] : result[n];
        result[n] = nan != 0 ? 0x7fffffffu : infinite;
    }
}

/* Form for kinds mxf4 and mxf4nvf4. */
mma_function VM_NAME(mma_fp4);
void VM_NAME(mma_fp4)(const struct mma_shape *shape, const struct mma_operands *operands) {
    struct mma_words words;
    struct scales scales;
    int16_t groups[GROUPS][OUTPUTS];
    uint32_t c[OUTPUTS], result[OUTPUTS];
    double total[OUTPUTS];
    int32_t exponent[OUTPUTS];
    int halves = 1;
    if (shape->sparse != 0) {
        halves = mma_gather_sparse(&words, shape, operands, shape->k / 32);
    } else {
        mma_gather(&words, operands, shape->k / 32);
    }
    mma_load_tile(c, operands->c);
    sum_groups(groups, &words, halves);
    decode_scales(&scales, shape, operands);
    for (int j = 0; j < MMA_COLUMNS; ++j) {
        add_column(total + MMA_ROWS * j, exponent + MMA_ROWS * j, groups, &scales, c + MMA_ROWS * j, j);
    }
    mma_truncate_to_f32(result, total, exponent, FRACTION);
    replace_specials(result, c, &scales);
    mma_store_tile(operands->d, result);
}
