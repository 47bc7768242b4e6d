/* Tensor-core sums of packed e2m1 with a scale for every 16 or 32 k (k 64).
 *
 * The products of each run of 16 k are summed exactly and multiplied by the significands of their two scales; the
 * four sums and c are shifted to the largest exponent, cut toward zero to 35 fraction bits, added exactly, and the
 * sum is rounded once. */
#include "mma_isa.h"

enum {
    FRACTION = 35,
    GROUPS = 4,
    ELEMENTS = 8, /* in a word */
    LANES_B = MMA_COLUMNS * MMA_WORDS,
    OUTPUTS = MMA_OUTPUTS,
    GROUP_FRACTION = 8 /* of a group's sum: 1 bit for each e2m1, 3 for each scale */
};

/* A scale as significand * 2^(exponent - 3). */
struct scale {
    int32_t significand;
    int32_t exponent;
    int32_t nan;
};

/* Decode a scale; zero counts as exponent -126, and the sign of ue4m3 is ignored. */
static struct scale decode_scale(uint8_t code, uint8_t type) {
    if (type == MMA_UE8M0)
        return (struct scale){8, code - 127, code == 0xff};
    const int32_t magnitude = code & 0x7f;
    const int32_t field = mma_max(magnitude >> 3, 1);
    return (struct scale){magnitude - (field - 1) * 8, magnitude != 0 ? field - 7 : -126, magnitude == 0x7f};
}

/* Decode element t of n words to twice its value. */
static inline void decode(int16_t *restrict value, const uint32_t *restrict words, int n, int t) {
    for (int i = 0; i < n; i++) {
        const int32_t code = (int32_t)(words[i] >> (4 * t));
        const int32_t x = code & 7;
        const int32_t twice = x < 4 ? x : x < 6 ? 2 * x - 4 : 4 * x - 16;
        value[i] = (int16_t)(code & 8 ? -twice : twice);
    }
}

/* Sum the products of each run of 16 k, in quarters. */
static void sum_groups(int16_t groups[restrict GROUPS][OUTPUTS], const struct mma_words *restrict words) {
    int16_t a[ELEMENTS][MMA_WORDS][MMA_ROWS];
    int16_t b[ELEMENTS][LANES_B];
    for (int t = 0; t < ELEMENTS; t++) {
        decode(a[t][0], words->a[0], MMA_WORDS * MMA_ROWS, t);
        decode(b[t], words->b, LANES_B, t);
    }
    for (int group = 0; group < GROUPS; group++)
        for (int j = 0; j < MMA_COLUMNS; j++)
            for (int i = 0; i < MMA_ROWS; i++) {
                int16_t x = 0;
                for (int t = 0; t < ELEMENTS; t++)
                    x = (int16_t)(x + a[t][2 * group][i] * b[t][MMA_WORDS * j + 2 * group] +
                                  a[t][2 * group + 1][i] * b[t][MMA_WORDS * j + 2 * group + 1]);
                groups[group][MMA_ROWS * j + i] = x;
            }
}

/* Decode the scales of all rows and columns by group. */
static void decode_scales(struct scale a[GROUPS][MMA_ROWS], struct scale b[GROUPS][MMA_COLUMNS],
                          const struct mma_shape *shape, const struct mma_operands *operands) {
    const int groups_per_scale = GROUPS / shape->scale_vec;
    for (int group = 0; group < GROUPS; group++) {
        for (int i = 0; i < MMA_ROWS; i++)
            a[group][i] = decode_scale(mma_scale_a(operands, i, group / groups_per_scale), shape->scale);
        for (int j = 0; j < MMA_COLUMNS; j++)
            b[group][j] = decode_scale(mma_scale_b(operands, j, group / groups_per_scale), shape->scale);
    }
}

/* Cut |x| * 2^(FRACTION - fraction) after a shift to the right. */
static inline int64_t cut(int32_t x, int fraction, int32_t shift) {
    const int64_t magnitude = (int64_t)(x < 0 ? -x : x) << (FRACTION - fraction) >> mma_min(shift, 63);
    return x < 0 ? -magnitude : magnitude;
}

/* Add the groups of one output and c; *exponent becomes that of the sum. */
static inline double add_groups(const int16_t groups[GROUPS], const struct scale a[GROUPS],
                                const struct scale b[GROUPS], uint32_t c, int32_t *exponent) {
    const int32_t field = mma_max((int32_t)(c >> 23 & 0xff), 1);
    const int32_t magnitude = (int32_t)((c & 0x7fffffffu) - ((uint32_t)(field - 1) << 23));
    int32_t largest = field - 127;
    for (int group = 0; group < GROUPS; group++)
        largest = mma_max(largest, a[group].exponent + b[group].exponent);
    int64_t total = cut(c >> 31 ? -magnitude : magnitude, 23, largest - (field - 127));
    for (int group = 0; group < GROUPS; group++)
        total += cut(groups[group] * a[group].significand * b[group].significand, GROUP_FRACTION,
                     largest - a[group].exponent - b[group].exponent);
    *exponent = largest;
    return (double)total;
}

/* The forms mxf4 and mxf4nvf4. */
mma_function VM_NAME(mma_fp4);
void VM_NAME(mma_fp4)(const struct mma_shape *shape, const struct mma_operands *operands) {
    struct mma_words words;
    int16_t groups[GROUPS][OUTPUTS];
    struct scale a[GROUPS][MMA_ROWS], b[GROUPS][MMA_COLUMNS];
    uint32_t c[OUTPUTS], result[OUTPUTS];
    double total[OUTPUTS];
    int32_t exponent[OUTPUTS];
    mma_gather(&words, operands, 2);
    mma_load_tile(c, operands->c);
    sum_groups(groups, &words);
    decode_scales(a, b, shape, operands);
    for (int n = 0; n < OUTPUTS; n++) {
        const int row = n % MMA_ROWS, column = n / MMA_ROWS;
        int16_t group_sums[GROUPS];
        struct scale row_scales[GROUPS], column_scales[GROUPS];
        for (int group = 0; group < GROUPS; group++) {
            group_sums[group] = groups[group][n];
            row_scales[group] = a[group][row];
            column_scales[group] = b[group][column];
        }
        total[n] = add_groups(group_sums, row_scales, column_scales, c[n], &exponent[n]);
    }
    mma_truncate_to_f32(result, total, exponent, FRACTION);
    for (int n = 0; n < OUTPUTS; n++) {
        const int row = n % MMA_ROWS, column = n / MMA_ROWS;
        int32_t nan = (c[n] & 0x7fffffffu) > 0x7f800000u;
        for (int group = 0; group < GROUPS; group++)
            nan |= a[group][row].nan | b[group][column].nan;
        if (nan)
            result[n] = 0x7fffffffu;
        else if ((c[n] & 0x7fffffffu) == 0x7f800000u)
            result[n] = c[n];
    }
    mma_store_tile(operands->d, result);
}
