/* Tensor-core sums of floating-point products, without scales or with one scale per row (k 4 to 32; sparse A: 8 to 64).
 *
 * The exact products a * b and c are significands times 2^e, not renormalised. All are shifted to the largest e,
 * truncated to 25 fraction bits and added exactly. The sum is rounded once. Here a term is an f32 product times a
 * power of two, both exact, converted to int32, which truncates. The sum of 16 terms fits in an int32. */
#include <string.h>

#include "vm/execute/bits.h"
#include "vm/execute/lanes_math.h"
#include "vm/execute/mma.h"
#include "vm/execute/mma_isa.h"
#include "vm/machine/types.h"

enum { FRACTION = 25, BLOCKS = 4, LANES_B = MMA_COLUMNS * MMA_WORDS, OUTPUTS = MMA_OUTPUTS };

/* Exponent of a product that is zero: it does not take part in the largest exponent, as observed on an H200 (MMA-Sim
 * counts a zero factor as 2^-126). Less than every sum of two exponents. */
enum { ZERO_EXPONENT = -1024 };

/* Encoding of an element: its fields, and the codes of NaN and infinity. */
struct format {
    uint8_t width;    /* bits of the container */
    uint8_t right;    /* unused bits below the code */
    uint8_t sign;     /* position of the sign in the code */
    uint8_t fraction; /* fraction bits */
    uint8_t bias;
    uint8_t has_special;
    uint8_t has_infinity; /* the smallest special code is infinity */
    uint32_t special;     /* smallest magnitude that is infinity or NaN; ~0: none */
};

static const struct format FORMATS[] = {
    [MMA_BF16] = {16, 0, 15, 7, 127, 1, 1, 0x7f80},    [MMA_F16] = {16, 0, 15, 10, 15, 1, 1, 0x7c00},
    [MMA_TF32] = {32, 13, 18, 10, 127, 1, 1, 0x3fc00}, [MMA_E4M3] = {8, 0, 7, 3, 7, 1, 0, 0x7f},
    [MMA_E5M2] = {8, 0, 7, 2, 15, 1, 1, 0x7c},         [MMA_E2M3] = {8, 0, 5, 3, 1, 0, 0, ~0u},
    [MMA_E3M2] = {8, 0, 5, 2, 3, 0, 0, ~0u},           [MMA_E2M1] = {8, 2, 3, 1, 1, 0, 0, ~0u},
};

/* One half of A and B, decoded: row n holds element n / 8 of word n % 8. In the narrow form a value is the element;
 * in the wide form, for 8-bit exponents, it is only the significand. */
enum { DEPTH = BLOCKS * MMA_WORDS };
struct rows {
    _Alignas(64) float value[DEPTH][MMA_ROWS];
    int32_t exponent[DEPTH][MMA_ROWS];
};
struct columns {
    _Alignas(64) float value[DEPTH][MMA_COLUMNS];
    int32_t exponent[DEPTH][MMA_COLUMNS];
};

/* A decoded A, kept because consecutive products often share A. */
struct kept_rows {
    uint32_t registers[4][32];
    struct rows rows;
    int type, count, special; /* count: registers of A, 0 if nothing is kept */
};

/* A sum under construction, [column][row]. */
struct sum {
    int32_t c_significand[OUTPUTS]; /* with FRACTION fraction bits */
    int32_t c_exponent[OUTPUTS];
    int32_t scale[OUTPUTS];    /* sum of the exponents of both scales */
    int32_t largest[OUTPUTS];  /* largest exponent of a term, without the scales */
    int32_t terms[2][OUTPUTS]; /* sums of up to 16 truncated, nonzero terms each */
};

/* Return whether one of n words holds a NaN or an infinity: adding the distance from the smallest such code to the
 * sign bit then carries into the sign bit. */
static inline int find_special(const uint32_t *restrict words, int n, struct format format) {
    const uint32_t ones = format.width == 8 ? 0x01010101u : format.width == 16 ? 0x00010001u : 1u;
    const uint32_t signs = ones << (format.width - 1);
    const uint32_t missing = ((uint32_t)1 << (format.width - 1)) - (format.special << format.right);
    uint32_t carries = 0;
    for (int i = 0; i < n; ++i) {
        carries |= (words[i] & ~signs) + ones * missing;
    }
    return (carries & signs) != 0;
}

/* Decode element t of n words. */
static inline void decode(float *restrict value, int32_t *restrict exponent, const uint32_t *restrict words, int n,
                          int t, struct format format, int wide) {
    const uint32_t magnitudes = ((uint32_t)1 << format.sign) - 1;
    const int shift = t * format.width + format.right;
    const int32_t unit = 127 - format.fraction - (wide != 0 ? 0 : format.bias);
    for (int i = 0; i < n; ++i) {
        const uint32_t code = words[i] >> shift;
        const uint32_t magnitude = code & magnitudes;
        const uint32_t sign = code << (31 - format.sign) & 0x80000000u;
        const int32_t field = mma_max((int32_t)(magnitude >> format.fraction), 1);
        const int32_t significand = (int32_t)magnitude - (int32_t)((uint32_t)(field - 1) << format.fraction);
        const float power = value32((uint32_t)((wide != 0 ? 0 : field) + unit) << 23);
        value[i] = value32(bits32((float)significand * power) | sign);
        exponent[i] = magnitude != 0 ? field - format.bias : ZERO_EXPONENT;
    }
}

static inline void decode_rows(struct rows *restrict rows, uint32_t words[MMA_WORDS][MMA_ROWS], struct format format,
                               int wide) {
    for (int t = 0; t < 32 / format.width; ++t) {
        decode(rows->value[MMA_WORDS * t], rows->exponent[MMA_WORDS * t], words[0], MMA_WORDS * MMA_ROWS, t, format,
               wide);
    }
}

static inline void decode_columns(struct columns *restrict columns, uint32_t words[MMA_WORDS][MMA_COLUMNS],
                                  struct format format, int wide) {
    for (int t = 0; t < 32 / format.width; ++t) {
        decode(columns->value[MMA_WORDS * t], columns->exponent[MMA_WORDS * t], words[0], LANES_B, t, format, wide);
    }
}

/* Return the decoded rows of A, possibly from an earlier call. *special is set if A has a NaN or an infinity. */
static inline const struct rows *find_rows(const struct mma_shape *shape, const struct mma_operands *operands,
                                           int count, int wide, int *special) {
    enum { KEPT = 4 };
    static _Thread_local struct kept_rows all[KEPT];
    struct kept_rows *const kept = &all[(uintptr_t)operands->a / sizeof kept->registers % KEPT];
    const size_t bytes = (size_t)count * sizeof kept->registers[0];
    if (kept->type != shape->a_type || kept->count != count || memcmp(kept->registers, operands->a, bytes) != 0) {
        const struct format format = FORMATS[shape->a_type];
        uint32_t words[MMA_WORDS][MMA_ROWS] = {{0}};
        memcpy(kept->registers, operands->a, bytes);
        kept->type = shape->a_type;
        kept->count = count;
        mma_gather_a(words, operands->a, count);
        kept->special = format.has_special != 0 && find_special(words[0], MMA_WORDS * MMA_ROWS, format) != 0;
        decode_rows(&kept->rows, words, format, wide);
    }
    *special = kept->special;
    return &kept->rows;
}

/* Split f32 accumulators into significand and exponent. Return whether one is NaN or infinite. */
static int32_t decode_c_f32(struct sum *restrict sum, const uint32_t c[restrict OUTPUTS]) {
    int32_t special = 0;
    for (int n = 0; n < OUTPUTS; ++n) {
        const uint32_t magnitude = c[n] & 0x7fffffffu;
        const int32_t field = mma_max((int32_t)(magnitude >> 23), 1);
        const int32_t significand = (int32_t)(magnitude - ((uint32_t)(field - 1) << 23)) << (FRACTION - 23);
        sum->c_significand[n] = c[n] >> 31 != 0 ? -significand : significand;
        sum->c_exponent[n] = field - 127; /* -126 for zero too */
        special |= magnitude >= 0x7f800000u;
    }
    return special;
}

/* Split f16 accumulators into significand and exponent. Return whether one is NaN or infinite. */
static int32_t decode_c_f16(struct sum *restrict sum, const uint32_t c[restrict OUTPUTS]) {
    int32_t special = 0;
    for (int n = 0; n < OUTPUTS; ++n) {
        const uint32_t magnitude = c[n] & 0x7fffu;
        const int32_t field = mma_max((int32_t)(magnitude >> 10), 1);
        const int32_t significand = (int32_t)(magnitude - ((uint32_t)(field - 1) << 10)) << (FRACTION - 10);
        sum->c_significand[n] = c[n] >> 15 != 0 ? -significand : significand;
        sum->c_exponent[n] = magnitude != 0 ? field - 15 : -126;
        special |= magnitude >= 0x7c00u;
    }
    return special;
}

/* Read the exponents of the scales. Return whether one is NaN. */
static int32_t start_scales(struct sum *restrict sum, const struct mma_operands *operands) {
    int32_t a[MMA_ROWS];
    int32_t special = 0;
    for (int i = 0; i < MMA_ROWS; ++i) {
        a[i] = mma_scale_a(operands, i, 0);
        special |= a[i] == 0xff;
    }
    for (int j = 0; j < MMA_COLUMNS; ++j) {
        const int32_t b = mma_scale_b(operands, j, 0);
        special |= b == 0xff;
        for (int i = 0; i < MMA_ROWS; ++i) {
            sum->scale[MMA_ROWS * j + i] = a[i] + b - 254;
        }
    }
    return special;
}

/* Read the accumulators and the scales. Return whether one is NaN or infinite. */
static int32_t start_sum(struct sum *restrict sum, uint32_t c[restrict OUTPUTS], const struct mma_shape *shape,
                         const struct mma_operands *operands) {
    int32_t special = 0;
    if (shape->accumulator == MMA_ACC_F16) {
        for (int n = 0; n < OUTPUTS; ++n) {
            const int row = n % MMA_ROWS, column = n / MMA_ROWS;
            c[n] = operands->c[row >> 3][4 * (row & 7) + (column >> 1)] >> (16 * (column & 1)) & 0xffffu;
        }
        special = decode_c_f16(sum, c);
    } else {
        mma_load_tile(c, operands->c);
        special = decode_c_f32(sum, c);
    }
    if (shape->scale != MMA_NO_SCALE) {
        special |= start_scales(sum, operands);
    } else {
        memset(sum->scale, 0, sizeof sum->scale);
    }
    for (int n = 0; n < OUTPUTS; ++n) {
        sum->largest[n] = sum->c_exponent[n] - sum->scale[n];
    }
    return special;
}

/* Expands X once per column of a tile, so that a row of A is read once for all columns. */
#define EACH_COLUMN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

/* Find the largest exponent of each sum. */
static void find_largest(struct sum *restrict sum, const struct rows *restrict rows,
                         const struct columns *restrict columns, int depth) {
    int32_t *const restrict largest = sum->largest;
    for (int i = 0; i < MMA_ROWS; ++i) {
#define X(j) int32_t x##j = largest[MMA_ROWS * j + i];
        EACH_COLUMN(X)
#undef X
        int n = 0;
        do { /* a loop that tests first is not vectorised */
            const int32_t a = rows->exponent[n][i], *const b = columns->exponent[n];
#define X(j) x##j = mma_max(x##j, a + b[j]);
            EACH_COLUMN(X)
#undef X
        } while (++n < depth);
#define X(j) largest[MMA_ROWS * j + i] = x##j;
        EACH_COLUMN(X)
#undef X
    }
}

/* Truncate and add the products of two blocks. The products are f32 values (exponents of at most 5 bits). */
static void add_pair(int32_t terms[restrict OUTPUTS], const struct rows *restrict rows,
                     const struct columns *restrict columns, int first, const float unit[restrict OUTPUTS]) {
    for (int i = 0; i < MMA_ROWS; ++i) {
#define X(j)                                                                                                           \
    int32_t x##j = 0;                                                                                                  \
    const float unit##j = unit[MMA_ROWS * j + i];
        EACH_COLUMN(X)
#undef X
        for (int n = first; n < first + 2 * MMA_WORDS; ++n) {
            const float a = rows->value[n][i], *const b = columns->value[n];
#define X(j) x##j += (int32_t)(a * b[j] * unit##j);
            EACH_COLUMN(X)
#undef X
        }
#define X(j) terms[MMA_ROWS * j + i] = x##j;
        EACH_COLUMN(X)
#undef X
    }
}

/* Truncate and add the products of all blocks, 2 or 4. */
static void add_narrow(struct sum *restrict sum, const struct rows *restrict rows,
                       const struct columns *restrict columns, int depth) {
    float unit[OUTPUTS];
    /* Below 2^-60 every product is truncated to zero; above 2^100 every product is zero. */
    for (int n = 0; n < OUTPUTS; ++n) {
        unit[n] = value32((uint32_t)(127 + mma_min(mma_max(FRACTION - sum->largest[n], -60), 100)) << 23);
    }
    add_pair(sum->terms[0], rows, columns, 0, unit);
    if (depth > 2 * MMA_WORDS) {
        add_pair(sum->terms[1], rows, columns, 2 * MMA_WORDS, unit);
    } else {
        memset(sum->terms[1], 0, sizeof sum->terms[1]);
    }
}

/* Truncate and add products whose significands and exponents are stored separately. */
static void add_wide(struct sum *restrict sum, const struct rows *restrict rows, const struct columns *restrict columns,
                     int depth) {
    int32_t *const restrict terms = sum->terms[0];
    const int32_t *const restrict largest = sum->largest;
    for (int i = 0; i < MMA_ROWS; ++i) {
#define X(j)                                                                                                           \
    int32_t x##j = 0;                                                                                                  \
    const int32_t up##j = FRACTION - largest[MMA_ROWS * j + i];
        EACH_COLUMN(X)
#undef X
        int n = 0;
        do {
            const float a = rows->value[n][i], *const b = columns->value[n];
            const int32_t a_exponent = rows->exponent[n][i], *const b_exponent = columns->exponent[n];
#define X(j)                                                                                                           \
    x##j += (int32_t)(a * b[j] * value32((uint32_t)(127 + mma_max(a_exponent + b_exponent[j] + up##j, -60)) << 23));
            EACH_COLUMN(X)
#undef X
        } while (++n < depth);
#define X(j) terms[MMA_ROWS * j + i] = x##j;
        EACH_COLUMN(X)
#undef X
    }
    memset(sum->terms[1], 0, sizeof sum->terms[1]);
}

/* Round total * 2^(exponent - FRACTION) to f16, to nearest even. */
static void round_to_f16(uint32_t result[restrict OUTPUTS], const double total[restrict OUTPUTS],
                         const int32_t exponent[restrict OUTPUTS]) {
    for (int n = 0; n < OUTPUTS; ++n) {
        const double unit = value64((uint64_t)(int64_t)(exponent[n] - FRACTION + 1023) << 52);
        const uint64_t bits = bits64(total[n] * unit);
        const uint64_t cut = ((uint64_t)1 << 29) - 1;
        /* Round to odd, so that the second rounding is correct. */
        const uint64_t odd = (bits & cut) != 0 ? (uint64_t)1 << 29 : 0;
        const uint32_t f32 = bits32((float)value64((bits & ~cut) | odd));
        const uint32_t magnitude = f32 & 0x7fffffffu;
        const uint32_t even = magnitude >> 13 & 1;
        const uint32_t normal = ((magnitude + 0xfff + even) >> 13) - (112u << 10);
        const uint32_t subnormal = bits32(value32(magnitude) + 0.5f) - 0x3f000000u;
        const uint32_t code = magnitude < 0x38800000u ? subnormal : normal < 0x7c00u ? normal : 0x7c00u;
        result[n] = code | (code != 0 ? f32 >> 16 & 0x8000u : 0);
    }
}

/* Add c and round. */
static void finish_sum(uint32_t result[restrict OUTPUTS], struct sum *restrict sum, int f16) {
    double total[OUTPUTS];
    int32_t exponent[OUTPUTS];
    for (int n = 0; n < OUTPUTS; ++n) {
        exponent[n] = sum->largest[n] + sum->scale[n];
        const int32_t shift = mma_min(exponent[n] - sum->c_exponent[n], 31);
        const int32_t c = sum->c_significand[n];
        const int32_t cut = c < 0 ? -(-c >> shift) : c >> shift;
        total[n] = (double)sum->terms[0][n] + (double)sum->terms[1][n] + (double)cut;
    }
    if (f16 != 0) {
        round_to_f16(result, total, exponent);
    } else {
        mma_truncate_to_f32(result, total, exponent, FRACTION);
    }
}

/* Infinities and NaNs among the terms of one sum. */
struct specials {
    int nan;
    int infinite[2]; /* positive, negative */
};

enum factor { ZERO, FINITE, INFINITE, NOT_A_NUMBER };

/* Classify element t of a word as a factor. */
static enum factor classify(uint32_t word, int t, struct format format, int *negative) {
    const uint32_t code = word >> (t * format.width + format.right);
    const uint32_t magnitude = code & (((uint32_t)1 << format.sign) - 1);
    *negative = (int)(code >> format.sign & 1);
    if (magnitude >= format.special) {
        return format.has_infinity != 0 && magnitude == format.special ? INFINITE : NOT_A_NUMBER;
    }
    return magnitude != 0 ? FINITE : ZERO;
}

/* Set all bits of the elements that A stores. Elements omitted from a sparse A multiply nothing, not even an
 * infinity. */
static void find_present(struct mma_words *present, const struct mma_shape *shape,
                         const struct mma_operands *operands) {
    uint32_t ones[MMA_WORDS][MMA_ROWS];
    memset(present, 0xff, sizeof *present);
    memset(ones, 0xff, sizeof ones);
    if (shape->sparse != 0) {
        mma_expand(present, ones, shape, operands, shape->k * FORMATS[shape->a_type].width / 64);
    }
}

/* Record NaNs and infinities among the products of one row and column. The first NaN ends the search. */
static void examine_products(struct specials *found, const struct mma_words *words, const struct mma_words *present,
                             int half, int row, int column, const struct mma_shape *shape) {
    const struct format a = FORMATS[shape->a_type], b = FORMATS[shape->b_type];
    for (int w = 0; w < MMA_WORDS; ++w) {
        for (int t = 0; t < 32 / a.width && found->nan == 0; ++t) {
            int a_negative, b_negative;
            if ((present->a[half][w][row] >> (t * a.width) & 1) == 0) {
                continue;
            }
            const enum factor x = classify(words->a[half][w][row], t, a, &a_negative);
            const enum factor y = classify(words->b[half][MMA_WORDS * column + w], t, b, &b_negative);
            found->nan =
                x == NOT_A_NUMBER || y == NOT_A_NUMBER || (x == INFINITE && y == ZERO) || (x == ZERO && y == INFINITE);
            if (x == INFINITE || y == INFINITE) {
                found->infinite[a_negative ^ b_negative] = 1;
            }
        }
    }
}

/* Replace the sums with a NaN or an infinity among their terms. */
static void replace_specials(uint32_t result[restrict OUTPUTS], const uint32_t c[restrict OUTPUTS],
                             const struct mma_shape *shape, const struct mma_operands *operands,
                             const struct mma_words *words, int halves) {
    struct mma_words present;
    find_present(&present, shape, operands);
    const int f16 = shape->accumulator == MMA_ACC_F16;
    const uint32_t infinity = f16 != 0 ? 0x7c00u : 0x7f800000u;
    const uint32_t sign = f16 != 0 ? 0x8000u : 0x80000000u;
    for (int n = 0; n < OUTPUTS; ++n) {
        const int row = n % MMA_ROWS, column = n / MMA_ROWS;
        struct specials found = {.nan = (c[n] & ~sign) > infinity};
        if ((c[n] & ~sign) == infinity) {
            found.infinite[(c[n] & sign) != 0] = 1;
        }
        if (shape->scale != MMA_NO_SCALE) {
            found.nan |= mma_scale_a(operands, row, 0) == 0xff || mma_scale_b(operands, column, 0) == 0xff;
        }
        for (int half = 0; half < halves; ++half) {
            examine_products(&found, words, &present, half, row, column, shape);
        }
        if (found.nan != 0 || (found.infinite[0] != 0 && found.infinite[1] != 0)) {
            result[n] = sign - 1;
        } else if (found.infinite[0] != 0 || found.infinite[1] != 0) {
            result[n] = infinity | (found.infinite[1] != 0 ? sign : 0);
        }
    }
}

/* Write the results to the registers of the warp. */
static void store(const struct mma_operands *operands, const uint32_t result[restrict OUTPUTS], int f16) {
    if (f16 == 0) {
        mma_store_tile(operands->d, result);
        return;
    }
    for (int r = 0; r < 2; ++r) {
        for (int lane = 0; lane < 32; ++lane) {
            const uint32_t *const low = result + MMA_ROWS * 2 * (lane & 3) + (lane >> 2) + 8 * r;
            operands->d[r][lane] = low[0] | low[MMA_ROWS] << 16;
        }
    }
}

/* Compute one mma: decode, align, add, round. */
static inline void multiply(const struct mma_shape *shape, const struct mma_operands *operands, int wide) {
    const struct format a = FORMATS[shape->a_type], b = FORMATS[shape->b_type];
    const int f16 = shape->accumulator == MMA_ACC_F16, registers = shape->k * a.width > 128 ? 2 : 1,
              depth = MMA_WORDS * (32 / a.width);
    struct mma_words words;
    struct columns columns;
    struct sum sum;
    uint32_t c[OUTPUTS];
    uint32_t result[OUTPUTS];
    int special;
    const struct rows *const rows = find_rows(shape, operands, 2 * registers, wide, &special);
    uint32_t b_words[MMA_WORDS][MMA_COLUMNS] = {{0}};
    for (int r = 0; r < registers; ++r) {
        mma_deal(b_words[4 * r], MMA_COLUMNS, operands->b[r]);
    }
    special |= b.has_special != 0 && find_special(b_words[0], LANES_B, b) != 0;
    decode_columns(&columns, b_words, b, wide);
    special |= start_sum(&sum, c, shape, operands);
    find_largest(&sum, rows, &columns, depth);
    (wide != 0 ? add_wide : add_narrow)(&sum, rows, &columns, depth);
    finish_sum(result, &sum, f16);
    if (special != 0) {
        mma_gather(&words, operands, registers);
        replace_specials(result, c, shape, operands, &words, 1);
    }
    store(operands, result, f16);
}

/* Compute one mma with a sparse A. Each half has at most 16 nonzero terms, so terms[0] + terms[1] fits in one sum. */
static void multiply_sparse(const struct mma_shape *shape, const struct mma_operands *operands, int wide) {
    const struct format a = FORMATS[shape->a_type], b = FORMATS[shape->b_type];
    const int f16 = shape->accumulator == MMA_ACC_F16, depth = MMA_WORDS * (32 / a.width);
    struct mma_words words;
    struct rows rows[MMA_HALVES];
    struct columns columns[MMA_HALVES];
    uint32_t b_words[MMA_WORDS][MMA_COLUMNS];
    struct sum sum;
    int32_t terms[MMA_HALVES][OUTPUTS] = {{0}};
    uint32_t c[OUTPUTS], result[OUTPUTS];
    const int halves = mma_gather_sparse(&words, shape, operands, shape->k * a.width / 128);
    int special = start_sum(&sum, c, shape, operands);
    for (int half = 0; half < halves; ++half) {
        special |= (a.has_special != 0 && find_special(words.a[half][0], MMA_WORDS * MMA_ROWS, a) != 0) ||
                   (b.has_special != 0 && find_special(words.b[half], LANES_B, b) != 0);
        decode_rows(&rows[half], words.a[half], a, wide);
        for (int n = 0; n < LANES_B; ++n) {
            b_words[n % MMA_WORDS][n / MMA_WORDS] = words.b[half][n];
        }
        decode_columns(&columns[half], b_words, b, wide);
        find_largest(&sum, &rows[half], &columns[half], depth);
    }
    for (int half = 0; half < halves; ++half) {
        (wide != 0 ? add_wide : add_narrow)(&sum, &rows[half], &columns[half], depth);
        for (int n = 0; n < OUTPUTS; ++n) {
            terms[half][n] = sum.terms[0][n] + sum.terms[1][n];
        }
    }
    memcpy(sum.terms, terms, sizeof terms);
    finish_sum(result, &sum, f16);
    if (special != 0) {
        replace_specials(result, c, shape, operands, &words, halves);
    }
    store(operands, result, f16);
}

/* Form for f16 and floats of 8, 6 and 4 bits in bytes. */
mma_function VM_NAME(mma_narrow);
void VM_NAME(mma_narrow)(const struct mma_shape *shape, const struct mma_operands *operands) {
    multiply(shape, operands, 0);
}

mma_function VM_NAME(mma_narrow_sparse);
void VM_NAME(mma_narrow_sparse)(const struct mma_shape *shape, const struct mma_operands *operands) {
    multiply_sparse(shape, operands, 0);
}

/* Form for bf16 and tf32, whose products exceed the range of f32. */
mma_function VM_NAME(mma_wide);
void VM_NAME(mma_wide)(const struct mma_shape *shape, const struct mma_operands *operands) {
    multiply(shape, operands, 1);
}

mma_function VM_NAME(mma_wide_sparse);
void VM_NAME(mma_wide_sparse)(const struct mma_shape *shape, const struct mma_operands *operands) {
    multiply_sparse(shape, operands, 1);
}
