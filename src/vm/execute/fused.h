/* Fused multiply-add by integers, in the current rounding mode. MinGW's fma() and fmaf() round twice. */
#ifndef SM120_VM_FUSED_H
#define SM120_VM_FUSED_H

#include <fenv.h>
#include <stdbool.h>

#include "vm/execute/bits.h"

/* A magnitude: (high * 2^64 + low) * 2^exponent. If it is not exact, its last bit is set. */
struct fused_sum {
    uint64_t high, low;
    int exponent;
};

/* Shift left until bit 125 is the top bit. The magnitude is not zero and has at most 126 bits. */
static inline struct fused_sum fused_normal(struct fused_sum x) {
    for (int step = 64; step > 0; step /= 2) {
        const uint64_t above = ~UINT64_C(0) << (62 - (step < 62 ? step : 62));
        const bool is_small = step == 64 ? x.high == 0 && x.low >> 62 == 0 : (x.high & above) == 0;
        if (is_small) {
            x.high = step == 64 ? x.low : x.high << step | x.low >> (64 - step);
            x.low = step == 64 ? 0 : x.low << step;
            x.exponent -= step;
        }
    }
    return x;
}

/* Shift right by `bits`; the last bit is set if a set bit is lost. */
static inline struct fused_sum fused_right(struct fused_sum x, int bits) {
    struct fused_sum r = {0, (x.high | x.low) != 0, x.exponent + bits};
    if (bits == 0) {
        return x;
    }
    if (bits < 64) {
        r.high = x.high >> bits;
        r.low = x.high << (64 - bits) | x.low >> bits | (x.low << (64 - bits) != 0);
    } else if (bits == 64) {
        r.low = x.high | (x.low != 0);
    } else if (bits < 128) {
        r.low = x.high >> (bits - 64) | ((x.high << (128 - bits) | x.low) != 0);
    }
    return r;
}

/* Return a finite number's magnitude. It has at most 53 bits. */
static inline struct fused_sum fused_read(double x) {
    const uint64_t u = bits64(x), fraction = u & ((UINT64_C(1) << 52) - 1);
    const int exponent = (int)(u >> 52 & 0x7ff);
    return (struct fused_sum){0, exponent != 0 ? fraction | UINT64_C(1) << 52 : fraction,
                              exponent != 0 ? exponent - 1075 : -1074};
}

/* Return the product of two magnitudes of 53 bits. */
static inline struct fused_sum fused_product(struct fused_sum x, struct fused_sum y) {
    const uint64_t xl = x.low & 0xffffffffu, xh = x.low >> 32, yl = y.low & 0xffffffffu, yh = y.low >> 32;
    const uint64_t middle = xh * yl + (xl * yl >> 32), other = xl * yh + (middle & 0xffffffffu);
    return (struct fused_sum){xh * yh + (middle >> 32) + (other >> 32), x.low * y.low, x.exponent + y.exponent};
}

/* Return |x - y|, or x + y, of normal magnitudes; `is_swapped` says whether y is larger. */
static inline struct fused_sum fused_add(struct fused_sum x, struct fused_sum y, bool is_difference, bool *is_swapped) {
    *is_swapped = x.exponent != y.exponent ? x.exponent < y.exponent
                  : x.high != y.high       ? x.high < y.high
                                           : x.low < y.low;
    const struct fused_sum large = *is_swapped ? y : x, small = *is_swapped ? x : y;
    const struct fused_sum s = fused_right(small, large.exponent - small.exponent);
    struct fused_sum r = large;
    if (is_difference) {
        r.low = large.low - s.low;
        r.high = large.high - s.high - (large.low < s.low);
    } else {
        r.low = large.low + s.low;
        r.high = large.high + s.high + (r.low < s.low);
    }
    return r;
}

/* Return whether a magnitude grows when it is rounded: `rest` of 2^`bits` is lost. */
static inline bool fused_grows(bool is_odd, uint64_t rest, uint64_t half, bool is_negative) {
    switch (fegetround()) {
    case FE_TOWARDZERO:
        return false;
    case FE_UPWARD:
        return rest != 0 && !is_negative;
    case FE_DOWNWARD:
        return rest != 0 && is_negative;
    default:
        return rest > half || (rest == half && is_odd);
    }
}

/* Return 2^n, for n from -1074 to 1023. */
static inline double fused_power(int n) {
    return value64(n >= -1022 ? (uint64_t)(n + 1023) << 52 : UINT64_C(1) << (n + 1074));
}

/* Round a magnitude below 2^127 to a format with so many binary digits and exponents from `lowest` to `highest`. */
static inline double fused_round(struct fused_sum x, bool is_negative, int digits, int lowest, int highest) {
    if (x.high >> 62 != 0) { /* 127 bits, of a sum */
        x = fused_right(x, 1);
    }
    x = fused_normal(x);
    const uint64_t top = x.high << 2 | x.low >> 62 | (x.low << 2 != 0); /* 64 bits; the last one is sticky */
    const int first = x.exponent + 125;                                 /* exponent of the first bit */
    const int kept_digits = first < lowest ? digits - (lowest - first) : digits;
    uint64_t kept = 0, rest = 1, half = 2;
    int last = first - kept_digits + 1; /* exponent of the last bit that is kept */
    if (kept_digits > 0) {
        kept = top >> (64 - kept_digits);
        rest = top << kept_digits;
        half = UINT64_C(1) << 63;
    } else if (kept_digits == 0) { /* the first bit is the half */
        rest = top;
        half = UINT64_C(1) << 63;
    } else {
        last = lowest - digits + 1;
    }
    kept += fused_grows((kept & 1) != 0, rest, half, is_negative);
    const double sign = is_negative ? -1.0 : 1.0;
    if (first > highest || (first == highest && kept >> digits != 0)) {
        const bool is_infinite = fused_grows(true, 2, 1, is_negative);
        const double most = (double)((UINT64_C(1) << digits) - 1) * fused_power(highest - digits + 1);
        return sign * (is_infinite ? value64(UINT64_C(0x7ff) << 52) : most);
    }
    return sign * ((double)kept * fused_power(last));
}

static inline double fused(double x, double y, double z, int digits, int lowest, int highest) {
    const uint64_t infinity = UINT64_C(0x7ff) << 52, magnitude = ~(UINT64_C(1) << 63);
    const uint64_t a = bits64(x) & magnitude, b = bits64(y) & magnitude, c = bits64(z) & magnitude;
    if (a >= infinity || b >= infinity) {
        return x * y + z;
    }
    if (c >= infinity) { /* x * y must not overflow */
        return z + z;
    }
    const bool is_negative = (bits64(x) ^ bits64(y)) >> 63 != 0, z_is_negative = bits64(z) >> 63 != 0;
    if (a == 0 || b == 0) {
        return (is_negative ? -0.0 : 0.0) + z;
    }
    const struct fused_sum product = fused_normal(fused_product(fused_read(x), fused_read(y)));
    if (c == 0) {
        return fused_round(product, is_negative, digits, lowest, highest);
    }
    bool is_swapped = false;
    const struct fused_sum sum =
        fused_add(product, fused_normal(fused_read(z)), is_negative != z_is_negative, &is_swapped);
    if ((sum.high | sum.low) == 0) {
        return fegetround() == FE_DOWNWARD ? -0.0 : 0.0;
    }
    return fused_round(sum, is_swapped ? z_is_negative : is_negative, digits, lowest, highest);
}

/* Return x * y + z, rounded once. */
static inline double fused64(double x, double y, double z) {
    return fused(x, y, z, 53, -1022, 1023);
}

static inline float fused32(float x, float y, float z) {
    return (float)fused((double)x, (double)y, (double)z, 24, -126, 127);
}

#endif
