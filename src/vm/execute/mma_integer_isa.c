/* Tensor-core sums of integer products (k 16 and 32 for 8 bits, 32 and 64 for 4 bits; sparse A: twice that), and
 * counts of equal or common bits of b1 (k 128 and 256). */
#include <string.h>

#include "vm/execute/mma.h"
#include "vm/execute/mma_isa.h"

enum { LANES_B = MMA_COLUMNS * MMA_WORDS };

/* Decode element t of n words, signed or unsigned. */
static inline void decode(int32_t *restrict value, const uint32_t *restrict words, int n, int t, int width,
                          int is_signed) {
    const int32_t mask = (1 << width) - 1;
    const int32_t flip = is_signed != 0 ? 1 << (width - 1) : 0; /* (x ^ flip) - flip extends the sign */
    for (int i = 0; i < n; ++i) {
        value[i] = (((int32_t)(words[i] >> (width * t)) & mask) ^ flip) - flip;
    }
}

/* Add the products of one column with every row. */
static inline void multiply_column(int32_t sum[restrict MMA_ROWS], int32_t a[restrict MMA_WORDS][MMA_ROWS],
                                   int32_t b[restrict MMA_WORDS]) {
    for (int i = 0; i < MMA_ROWS; ++i) {
        int32_t x = sum[i];
        for (int w = 0; w < MMA_WORDS; ++w) {
            x += a[w][i] * b[w];
        }
        sum[i] = x;
    }
}

/* Sum the products of s8, u8, s4 or u4. */
static inline void multiply(int32_t sum[restrict MMA_OUTPUTS], const struct mma_shape *shape,
                            const struct mma_words *words, int halves) {
    const int width = shape->a_type == MMA_S8 || shape->a_type == MMA_U8 ? 8 : 4;
    int32_t a[MMA_WORDS][MMA_ROWS], b[LANES_B];
    memset(sum, 0, MMA_OUTPUTS * sizeof sum[0]);
    const int a_signed = shape->a_type == MMA_S8 || shape->a_type == MMA_S4;
    const int b_signed = shape->b_type == MMA_S8 || shape->b_type == MMA_S4;
    for (int half = 0; half < halves; ++half) {
        for (int t = 0; t < 32 / width; ++t) {
            decode(a[0], words->a[half][0], MMA_WORDS * MMA_ROWS, t, width, a_signed);
            decode(b, words->b[half], LANES_B, t, width, b_signed);
            for (int j = 0; j < MMA_COLUMNS; ++j) {
                multiply_column(sum + MMA_ROWS * j, a, b + MMA_WORDS * j);
            }
        }
    }
}

/* Count the ones of a word. */
static inline int32_t count_ones(uint32_t x) {
    x -= x >> 1 & 0x55555555u;
    x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0fu;
    return (int32_t)(x * 0x01010101u >> 24);
}

/* Count the ones of a AND b, or of a XOR b. */
static inline void count(int32_t sum[restrict MMA_OUTPUTS], const struct mma_words *words, int exclusive) {
    for (int j = 0; j < MMA_COLUMNS; ++j) {
        for (int i = 0; i < MMA_ROWS; ++i) {
            int32_t x = 0;
            for (int w = 0; w < MMA_WORDS; ++w) {
                const uint32_t a = words->a[0][w][i], b = words->b[0][MMA_WORDS * j + w];
                x += count_ones(exclusive != 0 ? a ^ b : a & b);
            }
            sum[MMA_ROWS * j + i] = x;
        }
    }
}

/* Form for s8, u8, s4, u4 and b1. */
mma_function VM_NAME(mma_integer);
void VM_NAME(mma_integer)(const struct mma_shape *shape, const struct mma_operands *operands) {
    const int bits = shape->a_type == MMA_B1_AND || shape->a_type == MMA_B1_XOR;
    const int width = bits != 0 ? 1 : shape->a_type == MMA_S8 || shape->a_type == MMA_U8 ? 8 : 4;
    struct mma_words words;
    uint32_t c[MMA_OUTPUTS];
    int32_t sum[MMA_OUTPUTS];
    int halves = 1;
    if (shape->sparse != 0) {
        halves = mma_gather_sparse(&words, shape, operands, shape->k * width / 128);
    } else {
        mma_gather(&words, operands, shape->k * width / 128);
    }
    mma_load_tile(c, operands->c);
    if (bits != 0) {
        count(sum, &words, shape->a_type == MMA_B1_XOR);
    } else {
        multiply(sum, shape, &words, halves);
    }
    for (int n = 0; n < MMA_OUTPUTS; ++n) {
        const int64_t total = (int64_t)(int32_t)c[n] + sum[n];
        const int64_t limited = total > INT32_MAX ? INT32_MAX : total < INT32_MIN ? INT32_MIN : total;
        c[n] = (uint32_t)(shape->saturate != 0 ? limited : total);
    }
    mma_store_tile(operands->d, c);
}
