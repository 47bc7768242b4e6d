/* What the tensor-core files that are compiled once per vector width share: names, fragments, the last rounding. */
#ifndef SM120_VM_MMA_ISA_H
#define SM120_VM_MMA_ISA_H

#include "mma.h"

#include <string.h>

#ifndef VM_ISA
#define VM_ISA base
#endif
#define VM_JOIN_(name, isa) name##_##isa
#define VM_JOIN(name, isa)  VM_JOIN_(name, isa)
#define VM_NAME(name)       VM_JOIN(name, VM_ISA)

/* A tile of the accumulator's shape is [16 * column + row], so that rows lie in vector lanes. */
enum { MMA_ROWS = 16, MMA_COLUMNS = 8, MMA_WORDS = 8, MMA_OUTPUTS = MMA_ROWS * MMA_COLUMNS };

/* The words of both operands. Word w of a row or column covers the k from w * (elements per word); shapes of half
 * the depth leave words 4..7 zero, and a zero in both operands adds nothing. */
struct mma_words {
    uint32_t a[MMA_WORDS][MMA_ROWS];
    uint32_t b[MMA_COLUMNS * MMA_WORDS]; /* [8 * column + w] */
};

/* The float with these bits. */
static inline float mma_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The bits of a float. */
static inline uint32_t mma_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The double with these bits. */
static inline double mma_double(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The bits of a double. */
static inline uint64_t mma_bits64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline int32_t mma_max(int32_t x, int32_t y) {
    return x > y ? x : y;
}

static inline int32_t mma_min(int32_t x, int32_t y) {
    return x < y ? x : y;
}

/* Bring the fragments into rows and columns. Every shape has one map of words: register r of lane 4g + q holds word
 * q + 4 (r >> 1) of row g + 8 (r & 1) in A, and word q + 4r of column g in B. */
static inline void mma_gather(struct mma_words *words, const struct mma_operands *operands, int halves) {
    for (int h = 0; h < 2; h++)
        for (int q = 0; q < 4; q++)
            for (int i = 0; i < MMA_ROWS; i++)
                words->a[4 * h + q][i] = h < halves ? operands->a[2 * h + (i >> 3)][4 * (i & 7) + q] : 0;
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < MMA_COLUMNS; j++)
            for (int q = 0; q < 4; q++)
                words->b[8 * j + 4 * h + q] = h < halves ? operands->b[h][4 * j + q] : 0;
}

/* Read four registers of accumulators. */
static inline void mma_load_tile(uint32_t tile[restrict MMA_OUTPUTS], const uint32_t (*registers)[32]) {
    for (int j = 0; j < MMA_COLUMNS; j++)
        for (int i = 0; i < MMA_ROWS; i++)
            tile[MMA_ROWS * j + i] = registers[2 * (i >> 3) + (j & 1)][4 * (i & 7) + (j >> 1)];
}

/* Write four registers of accumulators. */
static inline void mma_store_tile(uint32_t (*registers)[32], const uint32_t tile[restrict MMA_OUTPUTS]) {
    for (int r = 0; r < 4; r++)
        for (int lane = 0; lane < 32; lane++)
            registers[r][lane] = tile[MMA_ROWS * (2 * (lane & 3) + (r & 1)) + (lane >> 2) + 8 * (r >> 1)];
}

/* The block scales: byte `block` of row or column n. */
static inline uint8_t mma_scale_a(const struct mma_operands *operands, int row, int block) {
    const int lane = 4 * (row & 7) + 2 * (operands->thread_a & 1) + (row >> 3);
    return (uint8_t)(operands->scale_a[lane] >> (8 * ((operands->byte_a + block) & 3)));
}

static inline uint8_t mma_scale_b(const struct mma_operands *operands, int column, int block) {
    const int lane = 4 * column + (operands->thread_b & 3);
    return (uint8_t)(operands->scale_b[lane] >> (8 * ((operands->byte_b + block) & 3)));
}

/* Round total * 2^(exponent - fraction), total a whole number below 2^53 and exponent >= -126, toward zero to f32. */
static inline void mma_truncate_to_f32(uint32_t result[restrict MMA_OUTPUTS], const double total[restrict MMA_OUTPUTS],
                                       const int32_t exponent[restrict MMA_OUTPUTS], int fraction) {
    int32_t subnormal = 0;
    for (int n = 0; n < MMA_OUTPUTS; n++) {
        const double unit = mma_double((uint64_t)(int64_t)(exponent[n] - fraction + 1023) << 52);
        const uint64_t bits = mma_bits64(total[n] * unit) & ~(((uint64_t)1 << 29) - 1);
        const float x = (float)mma_double(bits);
        result[n] = mma_bits(x);
        subnormal |= (mma_bits(x) & 0x7fffffffu) <= 0x00800000u && total[n] != 0;
    }
    for (int n = 0; subnormal && n < MMA_OUTPUTS; n++) {
        const double unit = mma_double((uint64_t)(int64_t)(exponent[n] - fraction + 1023) << 52);
        const double x = total[n] * unit;
        if (x > -0x1p-126 && x < 0x1p-126) {
            const uint32_t code = (uint32_t)(int32_t)((x < 0 ? -x : x) * 0x1p149);
            result[n] = code | (x < 0 && code != 0 ? 0x80000000u : 0);
        }
    }
}

#endif
