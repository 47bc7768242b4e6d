/* Conversions between f32 and smaller formats, in integer arithmetic. */
#include "vm/execute/convert.h"

#include "vm/execute/bits.h"

/* A binary format: fraction bits, exponent bias and the code of its largest finite value. */
struct format {
    int fraction;
    int bias;
    uint32_t largest;
};

static const struct format F16 = {10, 15, 0x7bff};
static const struct format BF16 = {7, 127, 0x7f7f};
static const struct format TF32 = {10, 127, 0x3fbff};
static const struct format E4M3 = {3, 7, 0x7e};
static const struct format E5M2 = {2, 15, 0x7b};
static const struct format E2M3 = {3, 1, 0x1f};
static const struct format E3M2 = {2, 3, 0x1f};
static const struct format E2M1 = {1, 1, 0x7};

#define F32_INFINITY 0x7f800000u
#define F32_NAN      0x7fffffffu

/* Return 1 if a magnitude with quotient `code` rounds up. `rest` holds the bits below, in units where half is
 * `half`. */
static inline uint32_t goes_up(uint64_t code, uint64_t rest, uint64_t half, int negative, enum rounding rounding) {
    switch (rounding) {
    case ROUND_NEAREST_EVEN:
        return rest > half || (rest == half && (code & 1) != 0);
    case ROUND_NEAREST_AWAY:
        return rest >= half;
    case ROUND_DOWN:
        return rest != 0 && negative != 0;
    case ROUND_UP:
        return rest != 0 && negative == 0;
    default:
        return 0;
    }
}

/* Round a finite or infinite magnitude to a format's code. The exponent range is unlimited: a code above
 * format->largest is an overflow. */
static inline uint32_t round_magnitude(uint32_t magnitude, int negative, struct format format, enum rounding rounding) {
    const int exponent = magnitude < 0x800000u ? 1 : (int)(magnitude >> 23);
    const int below = 128 - format.bias - exponent; /* binades below the smallest normal number */
    uint64_t significand = magnitude - ((uint32_t)(127 - format.bias) << 23);
    int shift = 23 - format.fraction;
    if (below > 0) {
        significand = magnitude < 0x800000u ? magnitude : (magnitude & 0x7fffffu) | 0x800000u;
        shift += below < 32 ? below : 32; /* then all 24 bits of the significand are below one half */
    }
    const uint64_t code = significand >> shift;
    const uint64_t rest = significand & (((uint64_t)1 << shift) - 1);
    return (uint32_t)code + goes_up(code, rest, (uint64_t)1 << (shift - 1), negative, rounding);
}

/* Round to a format with an infinity, whose code follows that of the largest finite value. */
static inline uint32_t round_with_infinity(float x, struct format format, enum rounding rounding, int saturate_finite) {
    const uint32_t magnitude = bits32(x) & 0x7fffffffu;
    const int negative = (int)(bits32(x) >> 31);
    const uint32_t code = round_magnitude(magnitude, negative, format, rounding);
    if (code <= format.largest) {
        return code;
    }
    const int away = rounding == ROUND_NEAREST_EVEN || rounding == ROUND_NEAREST_AWAY ||
                     (rounding == ROUND_UP && negative == 0) || (rounding == ROUND_DOWN && negative != 0);
    return format.largest + (saturate_finite == 0 && (away != 0 || magnitude == F32_INFINITY));
}

/* Round to nearest even in a format without infinity, with saturation (.satfinite). */
static inline uint8_t round_saturating(float x, struct format format, int sign_bit, uint8_t nan) {
    const uint32_t magnitude = bits32(x) & 0x7fffffffu;
    if (magnitude > F32_INFINITY) {
        return nan;
    }
    const uint32_t code = round_magnitude(magnitude, 0, format, ROUND_NEAREST_EVEN);
    const uint32_t sign = bits32(x) >> 31 << sign_bit;
    return (uint8_t)(sign | (code < format.largest ? code : format.largest));
}

/* Return the value of a finite code. The computation is exact and uses no subnormal floats. */
static inline float finite_value(uint32_t code, uint32_t negative, struct format format) {
    const uint32_t normal = (code << (23 - format.fraction)) + ((uint32_t)(127 - format.bias) << 23);
    const float step = value32((uint32_t)(128 - format.bias - format.fraction) << 23);
    const uint32_t subnormal = bits32((float)code * step);
    return value32((code >> format.fraction != 0 ? normal : subnormal) | negative << 31);
}

uint16_t f32_to_f16(float x, enum rounding rounding, int saturate_finite) {
    if ((bits32(x) & 0x7fffffffu) > F32_INFINITY) {
        return 0x7fff;
    }
    return (uint16_t)(bits32(x) >> 31 << 15 | round_with_infinity(x, F16, rounding, saturate_finite));
}

uint16_t f32_to_bf16(float x, enum rounding rounding, int saturate_finite) {
    if ((bits32(x) & 0x7fffffffu) > F32_INFINITY) {
        return 0x7fff;
    }
    return (uint16_t)(bits32(x) >> 31 << 15 | round_with_infinity(x, BF16, rounding, saturate_finite));
}

uint32_t f32_to_tf32(float x, enum rounding rounding, int saturate_finite) {
    if ((bits32(x) & 0x7fffffffu) > F32_INFINITY) {
        return F32_NAN;
    }
    return bits32(x) >> 31 << 31 | round_with_infinity(x, TF32, rounding, saturate_finite) << 13;
}

float f16_to_f32(uint16_t x) {
    const uint32_t magnitude = x & 0x7fffu;
    if (magnitude > 0x7c00) {
        return value32(F32_NAN);
    }
    if (magnitude == 0x7c00) {
        return value32((uint32_t)(x >> 15) << 31 | F32_INFINITY);
    }
    return finite_value(magnitude, x >> 15, F16);
}

float bf16_to_f32(uint16_t x) {
    return value32((uint32_t)x << 16);
}

uint8_t f32_to_e4m3(float x) {
    return round_saturating(x, E4M3, 7, 0x7f);
}

uint8_t f32_to_e5m2(float x) {
    return round_saturating(x, E5M2, 7, 0x7f);
}

uint8_t f32_to_e2m3(float x) {
    return round_saturating(x, E2M3, 5, 0x1f);
}

uint8_t f32_to_e3m2(float x) {
    return round_saturating(x, E3M2, 5, 0x1f);
}

uint8_t f32_to_e2m1(float x) {
    return round_saturating(x, E2M1, 3, 0x7);
}

float e4m3_to_f32(uint8_t x) {
    if ((x & 0x7f) == 0x7f) {
        return value32(F32_NAN);
    }
    return finite_value(x & 0x7fu, x >> 7, E4M3);
}

float e5m2_to_f32(uint8_t x) {
    const uint32_t magnitude = x & 0x7fu;
    if (magnitude > 0x7c) {
        return value32(F32_NAN);
    }
    if (magnitude == 0x7c) {
        return value32((uint32_t)(x >> 7) << 31 | F32_INFINITY);
    }
    return finite_value(magnitude, x >> 7, E5M2);
}

float e2m3_to_f32(uint8_t x) {
    return finite_value(x & 0x1fu, x >> 5 & 1, E2M3);
}

float e3m2_to_f32(uint8_t x) {
    return finite_value(x & 0x1fu, x >> 5 & 1, E3M2);
}

float e2m1_to_f32(uint8_t x) {
    return finite_value(x & 0x7u, x >> 3 & 1, E2M1);
}

/* The sign is ignored. Magnitudes up to 2^-127 get the code of 2^-127. */
uint8_t f32_to_ue8m0(float x, enum rounding rounding, int saturate_finite) {
    const uint32_t magnitude = bits32(x) & 0x7fffffffu;
    const uint32_t inexact = (magnitude & 0x7fffffu) != 0 && magnitude > 0x400000u && magnitude < F32_INFINITY;
    const uint32_t code = (magnitude >> 23) + (rounding != ROUND_ZERO ? inexact : 0);
    return (uint8_t)(saturate_finite != 0 && code == 0xff && magnitude <= F32_INFINITY ? 0xfe : code);
}

float ue8m0_to_f32(uint8_t x) {
    if (x == 0xff) {
        return value32(F32_NAN);
    }
    return value32(x == 0 ? 0x00400000u : (uint32_t)x << 23);
}
