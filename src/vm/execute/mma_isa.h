/* Shared parts of the tensor-core files that are compiled once per vector width: names, fragments, final rounding. */
#ifndef SM120_VM_MMA_ISA_H
#define SM120_VM_MMA_ISA_H

#include "vm/execute/bits.h"
#include "vm/execute/mma.h"

#ifndef VM_ISA
#define VM_ISA base
#endif
#define VM_JOIN_(name, isa) name##_##isa
#define VM_JOIN(name, isa)  VM_JOIN_(name, isa)
#define VM_NAME(name)       VM_JOIN(name, VM_ISA)

/* A tile of accumulators is indexed [16 * column + row], so that rows are vector lanes. */
enum { MMA_ROWS = 16, MMA_COLUMNS = 8, MMA_WORDS = 8, MMA_OUTPUTS = MMA_ROWS * MMA_COLUMNS };

/* Words of both operands. Word w of a row or column holds the k from w * (elements per word) on. For shapes of half
 * the depth, words 4 to 7 are zero, which adds nothing. Only mma.sp uses the second half: A is expanded with zeros
 * for its omitted elements. */
enum { MMA_HALVES = 2 };
struct mma_words {
    uint32_t a[MMA_HALVES][MMA_WORDS][MMA_ROWS];
    uint32_t b[MMA_HALVES][MMA_COLUMNS * MMA_WORDS]; /* [8 * column + w] */
};

static inline int32_t mma_max(int32_t x, int32_t y) {
    return x > y ? x : y;
}

static inline int32_t mma_min(int32_t x, int32_t y) {
    return x < y ? x : y;
}

/* Distribute a register of 8 groups of four lanes over four rows, `stride` apart. Compilers turn the loop over
 * groups into shuffles. */
static inline void mma_deal(uint32_t *restrict rows, int stride, const uint32_t lanes[restrict 32]) {
    for (int g = 0; g < 8; ++g) {
        rows[g] = lanes[4 * g];
        rows[stride + g] = lanes[4 * g + 1];
        rows[2 * stride + g] = lanes[4 * g + 2];
        rows[3 * stride + g] = lanes[4 * g + 3];
    }
}

/* Undo mma_deal(). */
static inline void mma_collect(uint32_t lanes[restrict 32], const uint32_t *restrict rows, int stride) {
    for (int g = 0; g < 8; ++g) {
        lanes[4 * g] = rows[g];
        lanes[4 * g + 1] = rows[stride + g];
        lanes[4 * g + 2] = rows[2 * stride + g];
        lanes[4 * g + 3] = rows[3 * stride + g];
    }
}

/* Arrange the fragment of A in rows. All shapes share one layout: register r of lane 4g + q holds word q + 4 (r >>
 * 1) of row g + 8 (r & 1) of A, and word q + 4r of column g of B. */
static inline void mma_gather_a(uint32_t a[MMA_WORDS][MMA_ROWS], const uint32_t (*registers)[32], int count) {
    for (int r = 0; r < count; ++r) {
        mma_deal(a[4 * (r >> 1)] + 8 * (r & 1), MMA_ROWS, registers[r]);
    }
}

static inline void mma_gather_b(struct mma_words *words, const uint32_t (*registers)[32], int count) {
    for (int r = 0; r < count; ++r) {
        for (int j = 0; j < MMA_COLUMNS; ++j) {
            memcpy(words->b[r >> 1] + MMA_WORDS * j + 4 * (r & 1), registers[r] + 4 * j, 4 * sizeof words->b[0][0]);
        }
    }
}

/* Place two of four units in 64 bits (16-bit units) or 32 bits (8-bit units). */
static inline uint64_t mma_spread(uint32_t units, uint32_t width, uint32_t indices) {
    const uint64_t first = units & ((1u << width) - 1), second = units >> width & ((1u << width) - 1);
    return first << width * (indices & 3) | second << width * (indices >> 2);
}

/* Expand the rows of a sparse A. Row i has the words a[w][i]. */
static inline void mma_expand(struct mma_words *words, uint32_t a[MMA_WORDS][MMA_ROWS], const struct mma_shape *shape,
                              const struct mma_operands *operands, int count) {
    for (int w = 0; w < count; ++w) {
        for (int i = 0; i < MMA_ROWS; ++i) {
            uint32_t *const low = &words->a[w >> 2][2 * (w & 3)][i], *const high = low + MMA_ROWS;
            const uint32_t row = (uint32_t)i, wide = shape->a_type <= MMA_TF32;
            uint32_t nibble[2];
            for (uint32_t c = 0; c < 2; ++c) {
                const uint32_t chunk = wide != 0 ? (uint32_t)w : 2 * (uint32_t)w + c;
                const struct mma_place at = mma_metadata_place(shape, operands->sparsity, row, chunk);
                nibble[c] = operands->metadata[4 * (i & 7) + at.lane] >> at.bit & 15u;
            }
            if (wide != 0) {
                const uint64_t both = mma_spread(a[w][i], 16, nibble[0]);
                *low = (uint32_t)both;
                *high = (uint32_t)(both >> 32);
            } else {
                *low = (uint32_t)mma_spread(a[w][i] & 0xffffu, 8, nibble[0]);
                *high = (uint32_t)mma_spread(a[w][i] >> 16, 8, nibble[1]);
            }
        }
    }
}

/* Arrange the operands in rows and columns, with 4 words for each register of B. */
static inline void mma_gather(struct mma_words *words, const struct mma_operands *operands, int count) {
    if (count < 2) {
        memset(words->a[0], 0, sizeof words->a[0]);
        memset(words->b[0], 0, sizeof words->b[0]);
    }
    mma_gather_a(words->a[0], operands->a, 2 * count);
    mma_gather_b(words, operands->b, count);
}

/* Arrange the operands of a sparse mma. Return how many halves of `words` are filled. */
static inline int mma_gather_sparse(struct mma_words *words, const struct mma_shape *shape,
                                    const struct mma_operands *operands, int count) {
    uint32_t packed[MMA_WORDS][MMA_ROWS];
    mma_gather_a(packed, operands->a, count);
    mma_gather_b(words, operands->b, count);
    mma_expand(words, packed, shape, operands, 2 * count);
    return count / 2;
}

/* Read four registers of accumulators: register r of lane 4g + q is row g + 8 (r >> 1), column 2q + (r & 1). */
static inline void mma_load_tile(uint32_t tile[restrict MMA_OUTPUTS], const uint32_t (*registers)[32]) {
    for (int r = 0; r < 4; ++r) {
        mma_deal(tile + MMA_ROWS * (r & 1) + 8 * (r >> 1), 2 * MMA_ROWS, registers[r]);
    }
}

/* Write four registers of accumulators. */
static inline void mma_store_tile(uint32_t (*registers)[32], const uint32_t tile[restrict MMA_OUTPUTS]) {
    for (int r = 0; r < 4; ++r) {
        mma_collect(registers[r], tile + MMA_ROWS * (r & 1) + 8 * (r >> 1), 2 * MMA_ROWS);
    }
}

/* Return a block scale: byte `block` of a row or column. */
static inline uint8_t mma_scale_a(const struct mma_operands *operands, int row, int block) {
    const int lane = 4 * (row & 7) + 2 * (operands->thread_a & 1) + (row >> 3);
    return (uint8_t)(operands->scale_a[lane] >> (8 * ((operands->byte_a + block) & 3)));
}

static inline uint8_t mma_scale_b(const struct mma_operands *operands, int column, int block) {
    const int lane = 4 * column + (operands->thread_b & 3);
    return (uint8_t)(operands->scale_b[lane] >> (8 * ((operands->byte_b + block) & 3)));
}

/* Truncate total * 2^(exponent - fraction) to f32. total is an integer below 2^53, exponent at least -126. */
static inline void mma_truncate_to_f32(uint32_t result[restrict MMA_OUTPUTS], const double total[restrict MMA_OUTPUTS],
                                       const int32_t exponent[restrict MMA_OUTPUTS], int fraction) {
    int32_t subnormal = 0;
    for (int n = 0; n < MMA_OUTPUTS; ++n) {
        const double unit = value64((uint64_t)(int64_t)(exponent[n] - fraction + 1023) << 52);
        const uint64_t bits = bits64(total[n] * unit) & ~(((uint64_t)1 << 29) - 1);
        const float x = (float)value64(bits);
        result[n] = bits32(x);
        subnormal |= (bits32(x) & 0x7fffffffu) <= 0x00800000u && total[n] != 0;
    }
    for (int n = 0; subnormal != 0 && n < MMA_OUTPUTS; ++n) {
        const double unit = value64((uint64_t)(int64_t)(exponent[n] - fraction + 1023) << 52);
        const double x = total[n] * unit;
        if (x > -0x1p-126 && x < 0x1p-126) {
            const uint32_t code = (uint32_t)(int32_t)((x < 0 ? -x : x) * 0x1p149);
            result[n] = code | (x < 0 && code != 0 ? 0x80000000u : 0);
        }
    }
}

#endif
