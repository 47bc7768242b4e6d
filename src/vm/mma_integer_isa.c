/* Tensor-core sums of integer products (k 16 and 32 of 8 bits). */
#include "mma_isa.h"

enum { BLOCKS = 4, LANES_B = MMA_COLUMNS * MMA_WORDS };

/* Take byte t of n words, with or without sign. */
static inline void decode(int32_t *restrict value, const uint32_t *restrict words, int n, int t, int is_signed) {
    const int32_t flip = is_signed ? 0x80 : 0; /* (x ^ 80h) - 80h extends the sign */
    for (int i = 0; i < n; i++)
        value[i] = ((int32_t)(words[i] >> (8 * t) & 0xff) ^ flip) - flip;
}

/* Sum the products of one column with every row. */
static inline void multiply_column(int32_t sum[restrict MMA_ROWS], int32_t a[restrict BLOCKS][MMA_WORDS][MMA_ROWS],
                                   int32_t b[restrict BLOCKS][LANES_B], int column) {
    for (int i = 0; i < MMA_ROWS; i++)
        sum[i] = 0;
    for (int t = 0; t < BLOCKS; t++)
        for (int i = 0; i < MMA_ROWS; i++) {
            int32_t x = sum[i];
            for (int w = 0; w < MMA_WORDS; w++)
                x += a[t][w][i] * b[t][MMA_WORDS * column + w];
            sum[i] = x;
        }
}

/* The forms of s8 and u8. */
mma_function VM_NAME(mma_integer);
void VM_NAME(mma_integer)(const struct mma_shape *shape, const struct mma_operands *operands) {
    struct mma_words words;
    int32_t a[BLOCKS][MMA_WORDS][MMA_ROWS], b[BLOCKS][LANES_B];
    uint32_t c[MMA_OUTPUTS];
    mma_gather(&words, operands, shape->k / 16);
    mma_load_tile(c, operands->c);
    for (int t = 0; t < BLOCKS; t++) {
        decode(a[t][0], words.a[0], MMA_WORDS * MMA_ROWS, t, shape->a_type == MMA_S8);
        decode(b[t], words.b, LANES_B, t, shape->b_type == MMA_S8);
    }
    for (int j = 0; j < MMA_COLUMNS; j++) {
        int32_t sum[MMA_ROWS];
        multiply_column(sum, a, b, j);
        for (int i = 0; i < MMA_ROWS; i++) {
            const int64_t total = (int64_t)(int32_t)c[MMA_ROWS * j + i] + sum[i];
            const int64_t limited = total > INT32_MAX ? INT32_MAX : total < INT32_MIN ? INT32_MIN : total;
            c[MMA_ROWS * j + i] = (uint32_t)(shape->saturate ? limited : total);
        }
    }
    mma_store_tile(operands->d, c);
}
