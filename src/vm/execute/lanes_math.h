/* Functions used by the formulas of lanes.def. Each computes one lane, without branches if its loop should vectorise.
 * Accuracy: ex2, lg2, sin, cos and tanh are polynomials in double with a relative error below 2^-40 (ex2 2^-44, lg2
 * 2^-42), rounded to f32 once, so a result is within 0.51 ulp. sin and cos lose relative accuracy beyond |x| = 2^20.
 * rcp, rsqrt, sqrt and div are correctly rounded, except for double rounding. */
#ifndef SM120_VM_LANES_MATH_H
#define SM120_VM_LANES_MATH_H

#include <fenv.h>
#include <math.h>

#include "vm/execute/bits.h"
#include "vm/execute/fused.h"
#include "vm/machine/address.h"
#include "vm/machine/cta.h"

/* ---- integers ---- */

static inline uint32_t clamp32(int32_t x, int32_t low, int32_t high) {
    return (uint32_t)(x < low ? low : x > high ? high : x);
}

static inline int32_t saturate32(int64_t x) {
    return (int32_t)(x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : x);
}

static inline uint32_t high32(uint32_t a, uint32_t b) {
    return (uint32_t)(((uint64_t)a * b) >> 32);
}

static inline uint32_t high32s(uint32_t a, uint32_t b) {
    return (uint32_t)((uint64_t)((int64_t)(int32_t)a * (int32_t)b) >> 32);
}

static inline uint64_t high64(uint64_t a, uint64_t b) {
    const uint64_t al = a & FULL, ah = a >> 32, bl = b & FULL, bh = b >> 32;
    const uint64_t middle = ah * bl + (al * bl >> 32), other = al * bh + (middle & FULL);
    return ah * bh + (middle >> 32) + (other >> 32);
}

static inline int64_t high64s(int64_t a, int64_t b) {
    uint64_t h = high64((uint64_t)a, (uint64_t)b);
    h -= a < 0 ? (uint64_t)b : 0;
    h -= b < 0 ? (uint64_t)a : 0;
    return (int64_t)h;
}

static inline uint32_t sign24(uint32_t a) {
    return (uint32_t)((int32_t)(a << 8) >> 8);
}

/* Return bits 16 to 47 of the product of two signed 24-bit numbers. */
static inline int32_t high24s(uint32_t a, uint32_t b) {
    return (int32_t)((int64_t)(int32_t)sign24(a) * (int32_t)sign24(b) >> 16);
}

static inline int32_t divide32(int32_t a, int32_t b) {
    return b == 0 ? -1 : b == -1 ? (int32_t)(0u - (uint32_t)a) : a / b;
}

static inline int64_t divide64(int64_t a, int64_t b) {
    return b == 0 ? -1 : b == -1 ? (int64_t)(0u - (uint64_t)a) : a / b;
}

static inline uint32_t min32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static inline uint32_t max32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static inline uint32_t pair(uint32_t low_half, uint32_t high_half) {
    return (low_half & 0xffffu) | high_half << 16;
}

static inline uint32_t min_s16x2_of(uint32_t a, uint32_t b) {
    return min32((a ^ 0x8000u) & 0xffffu, (b ^ 0x8000u) & 0xffffu) ^ 0x8000u ^
           (min32((a >> 16) ^ 0x8000u, (b >> 16) ^ 0x8000u) ^ 0x8000u) << 16;
}

static inline uint32_t max_s16x2_of(uint32_t a, uint32_t b) {
    return max32((a ^ 0x8000u) & 0xffffu, (b ^ 0x8000u) & 0xffffu) ^ 0x8000u ^
           (max32((a >> 16) ^ 0x8000u, (b >> 16) ^ 0x8000u) ^ 0x8000u) << 16;
}

/* Return |a - b| of the elements at one bit position. */
static inline uint32_t difference(uint32_t a, uint32_t b, uint32_t at, uint32_t width, int is_signed) {
    const uint32_t mask = (1u << width) - 1, sign = is_signed != 0 ? 1u << (width - 1) : 0;
    const uint32_t x = (a >> at & mask) ^ sign, y = (b >> at & mask) ^ sign;
    return x > y ? x - y : y - x;
}

/* Return |a - b| of each element. c is overwritten as a whole. */
static inline uint32_t differences(uint32_t a, uint32_t b, uint32_t c, uint32_t width, int is_signed) {
    for (uint32_t at = 0; at < 32; at += width) {
        c = (c & ~(((1u << width) - 1) << at)) | difference(a, b, at, width, is_signed) << at;
    }
    return c;
}

static inline uint32_t sum_of_differences(uint32_t a, uint32_t b, uint32_t width, int is_signed) {
    uint32_t sum = 0;
    for (uint32_t at = 0; at < 32; at += width) {
        sum += difference(a, b, at, width, is_signed);
    }
    return sum;
}

static inline uint32_t dot4(uint32_t a, uint32_t b, int a_signed, int b_signed) {
    uint32_t sum = 0;
    for (unsigned i = 0; i < 32; i += 8) {
        const uint32_t x = (a >> i) & 255u, y = (b >> i) & 255u;
        sum += (a_signed != 0 ? (x ^ 128u) - 128u : x) * (b_signed != 0 ? (y ^ 128u) - 128u : y);
    }
    return sum;
}

static inline uint32_t dot2(uint32_t a, uint32_t b, int a_signed, int b_signed) {
    uint32_t sum = 0;
    for (unsigned i = 0; i < 2; ++i) {
        const uint32_t x = (a >> 16 * i) & 0xffffu, y = (b >> 8 * i) & 255u;
        sum += (a_signed != 0 ? (x ^ 0x8000u) - 0x8000u : x) * (b_signed != 0 ? (y ^ 128u) - 128u : y);
    }
    return sum;
}

static inline uint32_t ones32(uint32_t x) {
    x -= (x >> 1) & 0x55555555u;
    x = (x & 0x33333333u) + ((x >> 2) & 0x33333333u);
    return (((x + (x >> 4)) & 0x0f0f0f0fu) * 0x01010101u) >> 24;
}

static inline uint32_t leading32(uint32_t x) {
    x |= x >> 1;
    x |= x >> 2;
    x |= x >> 4;
    x |= x >> 8;
    x |= x >> 16;
    return 32 - ones32(x);
}

static inline uint32_t leading64(uint64_t x) {
    return x >> 32 != 0 ? leading32((uint32_t)(x >> 32)) : 32 + leading32((uint32_t)x);
}

static inline uint32_t flip32(uint32_t x) {
    return x >> 31 != 0 ? ~x : x;
}

static inline uint64_t flip64(uint64_t x) {
    return x >> 63 != 0 ? ~x : x;
}

/* Reverse all 64 bits. A reversed 32-bit value is in the upper half. */
static inline uint64_t reverse64(uint64_t x) {
    x = (x >> 1 & 0x5555555555555555u) | (x & 0x5555555555555555u) << 1;
    x = (x >> 2 & 0x3333333333333333u) | (x & 0x3333333333333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0f0f0f0f0fu) | (x & 0x0f0f0f0f0f0f0f0fu) << 4;
    x = (x >> 8 & 0x00ff00ff00ff00ffu) | (x & 0x00ff00ff00ff00ffu) << 8;
    x = (x >> 16 & 0x0000ffff0000ffffu) | (x & 0x0000ffff0000ffffu) << 16;
    return x >> 32 | x << 32;
}

static inline uint32_t funnel_left(uint32_t a, uint32_t b, uint32_t n) {
    return (uint32_t)((((uint64_t)b << 32 | a) << n) >> 32);
}

static inline uint32_t funnel_right(uint32_t a, uint32_t b, uint32_t n) {
    return (uint32_t)(((uint64_t)b << 32 | a) >> n);
}

static inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t r = 0;
    for (unsigned i = 0; i < 8; ++i) {
        const uint32_t take = 0u - (table >> i & 1u);
        r |= take & ((i & 4) != 0 ? a : ~a) & ((i & 2) != 0 ? b : ~b) & ((i & 1) != 0 ? c : ~c);
    }
    return r;
}

static inline uint64_t extract_u64(uint64_t a, uint32_t position, uint32_t length) {
    const uint64_t shifted = position < 64 ? a >> position : 0;
    return length < 64 ? shifted & ((1ULL << length) - 1) : shifted;
}

/* bfe.s32 and bfe.s64: bits above the top bit repeat the sign. */
static inline int64_t extract_s(int64_t a, uint32_t position, uint32_t length, uint32_t top) {
    if (length == 0) {
        return 0;
    }
    const int64_t shifted = a >> (position < 63 ? position : 63);
    if (length > top || position > top - length) {
        return shifted;
    }
    const uint32_t up = 64 - length;
    return (int64_t)((uint64_t)shifted << up) >> up;
}

static inline uint64_t insert(uint64_t a, uint64_t b, uint32_t position, uint32_t length) {
    if (position > 63) {
        return b;
    }
    const uint64_t mask = (length < 64 ? (1ULL << length) - 1 : UINT64_MAX) << position;
    return (b & ~mask) | ((a << position) & mask);
}

static inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (unsigned i = 0; i < 4; ++i) {
        const uint32_t s = selector >> 4 * i;
        uint32_t byte = (uint32_t)(bytes >> 8 * (s & 7u)) & 255u;
        byte = (s & 8u) != 0 ? 255u * (byte >> 7) : byte;
        r |= byte << 8 * i;
    }
    return r;
}

static inline uint32_t permute_back(uint32_t c) {
    uint32_t s = 0;
    for (unsigned i = 0; i < 4; ++i) {
        s |= ((c & 3u) + 8u - i) % 8u << 4 * i;
    }
    return s;
}

static inline uint32_t permute_clamp(uint32_t c, int right) {
    uint32_t s = 0;
    for (uint32_t i = 0; i < 4; ++i) {
        s |= (right != 0 ? min32(i, c & 3u) : max32(i, c & 3u)) << 4 * i;
    }
    return s;
}

static inline uint32_t zero_extend(uint32_t a, uint32_t n) {
    return n < 32 ? a & ((1u << n) - 1) : a;
}

static inline uint32_t sign_extend(uint32_t a, uint32_t n) {
    if (n == 0) {
        return 0;
    }
    return n < 32 ? (uint32_t)((int32_t)(a << (32 - n)) >> (32 - n)) : a;
}

static inline uint32_t bit_mask(uint32_t start, uint32_t length) {
    if (start > 31) {
        return 0;
    }
    return (length < 32 ? (1u << length) - 1 : FULL) << start;
}

static inline uint32_t find_set(uint32_t mask, uint32_t base, int32_t offset) {
    if (base > 31) {
        return FULL;
    }
    if (offset == INT32_MIN) {
        return 0;
    }
    if (offset == 0) {
        return (mask >> base & 1) != 0 ? base : FULL;
    }
    const int step = offset > 0 ? 1 : -1;
    int32_t left = offset > 0 ? offset : -offset;
    for (int32_t i = (int32_t)base; i >= 0 && i < 32; i += step) {
        if ((mask >> i & 1) != 0 && --left == 0) {
            return (uint32_t)i;
        }
    }
    return FULL;
}

/* ---- floats ---- */

#if defined(_WIN32) && !defined(__FMA__) && !defined(__aarch64__)
#define FMAF fused32
#define FMA  fused64
#elif defined(__GNUC__)
#define FMAF __builtin_fmaf
#define FMA  __builtin_fma
#else
#define FMAF fmaf
#define FMA  fma
#endif

/* Arithmetic with the instruction's rounding mode. volatile keeps the compiler from moving the operation out of the
 * region where the mode is set. */
static inline void directed_begin(uint32_t flags) {
    static const int modes[8] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD,  FE_UPWARD,
                                 FE_TONEAREST, FE_TONEAREST,  FE_TONEAREST, FE_TONEAREST};
    fesetround(modes[ROUNDING(flags)]);
}

#define DIRECTED(name, type, from, expression)                                                                         \
    static inline type name(from a, from b, from c, uint32_t flags) {                                                  \
        volatile from x = a, y = b, z = c;                                                                             \
        volatile type r;                                                                                               \
        directed_begin(flags);                                                                                         \
        r = (type)(expression);                                                                                        \
        fesetround(FE_TONEAREST);                                                                                      \
        (void)y, (void)z;                                                                                              \
        return r;                                                                                                      \
    }
DIRECTED(directed_add, float, float, x + y)
DIRECTED(directed_mul, float, float, x *y)
DIRECTED(directed_div, float, float, x / y)
DIRECTED(directed_fma, float, float, FMAF(x, y, z))
DIRECTED(directed_sqrt, float, float, sqrtf(x))
DIRECTED(directed_add64, double, double, x + y)
DIRECTED(directed_mul64, double, double, x *y)
DIRECTED(directed_div64, double, double, x / y)
DIRECTED(directed_fma64, double, double, FMA(x, y, z))
DIRECTED(directed_sqrt64, double, double, sqrt(x))
DIRECTED(directed_from_s64, double, int64_t, x)
DIRECTED(directed_from_u64, double, uint64_t, x)
#undef DIRECTED

/* Return the square root without setting errno. A negative number gives NaN. */
static inline double square_root(double x) {
    return sqrt(x);
}

static inline float ftz(float x) {
    const uint32_t u = bits32(x);
    return value32((u & 0x7f800000u) != 0 ? u : u & 0x80000000u);
}

/* Flush the result r of an instruction with .ftz if it is below the smallest normal number before rounding. `scaled`
 * is the result for operands scaled so that it is 2^64 times as large and cannot underflow. */
static inline float flushed(float r, float scaled) {
    return scaled < 0x1p-62f && scaled > -0x1p-62f ? value32(bits32(r) & 0x80000000u) : ftz(r);
}

static inline float flushed_if(float r, float scaled, uint32_t flags) {
    return (flags & FLAG_FTZ) != 0 ? flushed(r, scaled) : r;
}

/* Return an operand, flushed if the instruction has .ftz. */
static inline float in(float x, uint32_t flags) {
    return (flags & FLAG_FTZ) != 0 ? ftz(x) : x;
}

static inline float sat(float x, uint32_t flags) {
    return (flags & FLAG_SAT) != 0 ? (x > 0 ? (x < 1 ? x : 1.0f) : 0.0f) : x;
}

static inline double satd(double x, uint32_t flags) {
    return (flags & FLAG_SAT) != 0 ? (x > 0 ? (x < 1 ? x : 1.0) : 0.0) : x;
}

static inline float relu_of(float x) {
    return x < 0 || bits32(x) == 0x80000000u ? 0.0f : x;
}

static inline float relu(float x, uint32_t flags) {
    return (flags & FLAG_RELU) != 0 ? relu_of(x) : x;
}

/* Apply .ftz, then .sat to a result. */
static inline float finish(float x, uint32_t flags) {
    return sat(in(x, flags), flags);
}

static inline float absolute(float x) {
    return value32(bits32(x) & 0x7fffffffu);
}

static inline int is_negative(double x) {
    return bits64(x) >> 63 != 0;
}

/* min and max: if one operand is NaN, return the other. -0 is less than +0. */
static inline float smaller(float a, float b) {
    const uint32_t zero = bits32(a) | bits32(b);
    const float r = a < b ? a : b < a ? b : a == b ? value32(a == 0 ? zero : bits32(a)) : b;
    return b != b ? a : r;
}

static inline float larger(float a, float b) {
    const uint32_t zero = bits32(a) & bits32(b);
    const float r = a > b ? a : b > a ? b : a == b ? value32(a == 0 ? zero : bits32(a)) : b;
    return b != b ? a : r;
}

static inline float extreme(float a, float b, int want_larger, uint32_t flags) {
    const uint32_t sign = (bits32(a) ^ bits32(b)) & 0x80000000u;
    const float x = (flags & FLAG_ABS) != 0 ? absolute(a) : a, y = (flags & FLAG_ABS) != 0 ? absolute(b) : b;
    float r = want_larger != 0 ? larger(x, y) : smaller(x, y);
    if ((flags & FLAG_NAN) != 0) {
        r = x != x || y != y ? value32(0x7fffffffu) : r;
    }
    if ((flags & FLAG_XORSIGN) != 0) {
        r = value32((bits32(r) & 0x7fffffffu) | sign);
    }
    return r;
}

/* Return the result of an f64 instruction. If an operand is NaN, it is the first NaN operand, made quiet. Other
 * invalid operations give the NaN with the sign set. */
static inline double nan2(double first, double second, double r) {
    const uint64_t quiet = 1ULL << 51;
    const uint64_t u = first != first     ? bits64(first) | quiet
                       : second != second ? bits64(second) | quiet
                       : r != r           ? 0xfff8000000000000u
                                          : bits64(r);
    return value64(u);
}

static inline double nan3(double first, double second, double third, double r) {
    return first == first && second == second ? nan2(third, third, r) : nan2(first, second, r);
}

/* Return an f32 as a double. With .ftz, every NaN becomes canonical. */
static inline double widened(float x, uint32_t flags) {
    return (double)((flags & FLAG_FTZ) != 0 && x != x ? value32(0x7fffffffu) : in(x, flags));
}

static inline double high_nan(double x) {
    return x != x ? value64(0x7fffffff00000000u) : x;
}

/* Return a double with its lower 32 bits cleared and subnormals flushed, as the .ftz.f64 approximations read it. */
static inline double high_word(double x) {
    uint64_t u = bits64(x) & 0xffffffff00000000u;
    u = u << 1 >> 53 != 0 ? u : u & (1ULL << 63);
    return value64(u);
}

static inline float low(uint64_t x) {
    return value32((uint32_t)x);
}

static inline float high(uint64_t x) {
    return value32((uint32_t)(x >> 32));
}

static inline uint32_t out(float x, uint32_t flags) {
    const float y = in(x, flags);
    return y != y ? 0x7fffffffu : bits32(y);
}

/* Return the bits of a product, which .ftz flushes by its value before rounding. */
static inline uint32_t out_scaled(float x, float scaled, uint32_t flags) {
    const float y = flushed_if(x, scaled, flags);
    return y != y ? 0x7fffffffu : bits32(y);
}

static inline uint64_t two(uint32_t lower, uint32_t upper) {
    return (uint64_t)upper << 32 | lower;
}

/* Return a * (1 / b). If |b| is above 2^126, the reciprocal is flushed to zero. */
static inline float divide_fast(float a, float b) {
    const float r = (float)((double)a / (double)b);
    return absolute(b) > 0x1p126f ? a * value32(bits32(b) & 0x80000000u) : r;
}

/* ---- transcendental functions ---- */

/* Return 2^x for |x| < 1000. */
static inline double exp2_double(double x) {
    const double shifted = x + 0x1.8p52, f = x - (shifted - 0x1.8p52);
    double p = 7.054911620801123e-09;
    p = p * f + 1.0178086009239699e-07;
    p = p * f + 1.3215486790144307e-06;
    p = p * f + 1.5252733804059841e-05;
    p = p * f + 1.5403530393381608e-04;
    p = p * f + 1.3333558146428443e-03;
    p = p * f + 9.6181291076284769e-03;
    p = p * f + 5.5504108664821580e-02;
    p = p * f + 2.4022650695910072e-01;
    p = p * f + 6.9314718055994531e-01;
    p = p * f + 1.0;
    return value64(bits64(p) + (bits64(shifted) << 52));
}

static inline float exp2_lane(float a) {
    double x = a > -200.0f ? (double)a : -200.0;
    x = x < 200.0 ? x : 200.0;
    const float r = (float)exp2_double(x);
    return a != a ? a : r;
}

/* Return log2 of a positive, finite, normal double. */
static inline double log2_double(double x) {
    const uint64_t u = bits64(x), top = u - 0x3fe6a09e00000000u; /* sqrt(1/2) */
    const double exponent = value64((top >> 52) + 0x4330000000000000u) - 0x1p52;
    const double scale = exponent > 1024 ? exponent - 4096 : exponent;
    const double m = value64(u - (top & 0xfff0000000000000u));
    const double s = (m - 1) / (m + 1), z = s * s;
    double p = 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    p = p * z + 1.0;
    return scale + s * p * 2.8853900817779268;
}

static inline float log2_lane(float a) {
    const float r = (float)log2_double((double)(a > 0 ? a : 1.0f));
    const float special = a == 0 ? -INFINITY : a > 0 ? INFINITY : NAN;
    return a > 0 && a < INFINITY ? r : special;
}

/* Return sin(a), or cos(a). */
static inline float sine_lane(float a, int cosine) {
    const double x = absolute(a) < 0x1p30f ? (double)a : 0.0;
    const double shifted = x * 0.63661977236758134 + 0x1.8p52, n = shifted - 0x1.8p52;
    const double r = (x - n * 1.5707963267341256) - n * 6.0771005065061922e-11, z = r * r;
    const uint64_t quadrant = bits64(shifted) + (uint64_t)cosine;
    double s = 1.6059043836821613e-10, c = -1.1470745597729725e-11;
    s = s * z - 2.5052108385441720e-08;
    s = s * z + 2.7557319223985893e-06;
    s = s * z - 1.9841269841269841e-04;
    s = s * z + 8.3333333333333332e-03;
    s = s * z - 1.6666666666666666e-01;
    s = s * z * r + r;
    c = c * z + 2.0876756987868099e-09;
    c = c * z - 2.7557319223985888e-07;
    c = c * z + 2.4801587301587302e-05;
    c = c * z - 1.3888888888888889e-03;
    c = c * z + 4.1666666666666664e-02;
    c = c * z - 0.5;
    c = c * z + 1.0;
    const double even = (quadrant & 1) != 0 ? c : s;
    const float y = (float)((quadrant & 2) != 0 ? -even : even);
    return a == 0 && cosine == 0 ? a : absolute(a) < INFINITY ? y : NAN;
}

static inline float tanh_lane(float a) {
    double x = (double)absolute(a);
    x = x < 40.0 ? x : 40.0;
    const double e = exp2_double(x * 2.8853900817779268), z = x * x;
    const double small = x * (1 + z * (-1.0 / 3 + z * (2.0 / 15 - z * (17.0 / 315))));
    const double t = x < 0.03 ? small : 1 - 2 / (e + 1);
    /* t is not negative. Clang 18 would compile a copysign wrongly for AVX-512. */
    const float r = value32(bits32((float)t) | (bits32(a) & 0x80000000u));
    return a != a ? a : r;
}

/* ---- small formats ---- */

/* Return the value of an f16. */
static inline float half_value(uint32_t h) {
    const float magnitude = value32((h & 0x7fffu) << 13) * 0x1p112f;
    const uint32_t u = bits32(magnitude) | ((h & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u);
    return value32(u | (h & 0x8000u) << 16);
}

/* Convert f32 to f16, to nearest even. */
static inline uint32_t half_of(float x) {
    const uint32_t u = bits32(x), a = u & 0x7fffffffu;
    const uint32_t normal = ((a + 0xfffu + (a >> 13 & 1u)) >> 13) - (112u << 10);
    const uint32_t small = bits32(value32(a < 0x38800000u ? a : 0u) + 0.5f) - 0x3f000000u;
    uint32_t r = a < 0x38800000u ? small : a >= 0x477ff000u ? 0x7c00u : normal;
    r |= u >> 16 & 0x8000u;
    return a > 0x7f800000u ? 0x7fffu : r;
}

/* Convert f32 to bf16, to nearest even. */
static inline uint32_t bhalf_of(float x) {
    const uint32_t u = bits32(x);
    return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

/* Return an f16 operand, flushed if the instruction has .ftz. */
static inline float hin(float x, uint32_t flags) {
    return (flags & FLAG_FTZ) != 0 && absolute(x) < 0x1p-14f ? value32(bits32(x) & 0x80000000u) : x;
}

/* Return a result that is rounded to f16 next. A value that rounds up to 2^-14 is not flushed. */
static inline float hout(float x, uint32_t flags) {
    return (flags & FLAG_FTZ) != 0 && absolute(x) < 0x1.ffep-15f ? value32(bits32(x) & 0x80000000u) : x;
}

/* Return a + b rounded to odd in f32. The sticky bit makes a second rounding to fewer bits correct. */
static inline float add_odd(float a, float b) {
    const double s = (double)a + (double)b;
    const double v = s - (double)a, error = ((double)a - (s - v)) + ((double)b - v);
    const float f = (float)s;
    const double left = (s - (double)f) + error;
    const uint32_t u = bits32(f);
    const uint32_t down = (left < 0) != (f < 0) ? u - 1 : u;
    return left != 0 && absolute(f) < INFINITY && (u & 1u) == 0 ? value32((left < 0) != (f < 0) ? down : u + 1) : f;
}

/* Return a * b + c for f16 and bf16, rounded to odd in f32. */
static inline float fma_half(float a, float b, float c) {
    const double p = (double)a * (double)b, q = (double)c, s = p + q;
    const double v = s - p, error = (p - (s - v)) + (q - v);
    const float f = (float)s;
    const double left = (s - (double)f) + error;
    const uint32_t u = bits32(f);
    const int change = left != 0 && absolute(f) < INFINITY && (u & 1u) == 0 && u << 1 != 0;
    return change != 0 ? value32((left < 0) != (f < 0) ? u - 1 : u + 1) : f;
}

/* Round to a small format with saturation, to nearest even: `fraction` bits, smallest normal 2^least, largest value
 * `most`, NaN code `nan`. */
static inline uint32_t tiny_of(float x, int fraction, int least, float most, uint32_t nan, uint32_t sign_bit) {
    const uint32_t u = bits32(x), sign = u >> 31 != 0 ? sign_bit : 0u;
    const uint32_t drop = 23u - (uint32_t)fraction;
    const float limit = bits32(most) < (u & 0x7fffffffu) ? most : absolute(x);
    const uint32_t a = bits32(limit);
    const uint32_t normal =
        ((a + ((1u << (drop - 1)) - 1) + (a >> drop & 1u)) >> drop) - ((uint32_t)(126 + least) << fraction);
    /* Adding 2^(least + drop) leaves the code of a subnormal in the low bits. */
    const float magic = value32((uint32_t)(127 + least + (int)drop) << 23);
    const uint32_t small = bits32(limit + magic) - bits32(magic);
    const uint32_t r = a < (uint32_t)(127 + least) << 23 ? small : normal;
    return (u & 0x7fffffffu) > 0x7f800000u ? nan : r | sign;
}

static inline uint32_t e4m3_of(float x) {
    return tiny_of(x, 3, -6, 448.0f, 0x7f, 0x80);
}

static inline uint32_t e5m2_of(float x) {
    return tiny_of(x, 2, -14, 57344.0f, 0x7f, 0x80);
}

static inline uint32_t e2m3_of(float x) {
    return tiny_of(x, 3, 0, 7.5f, 0x1f, 0x20);
}

static inline uint32_t e3m2_of(float x) {
    return tiny_of(x, 2, -2, 28.0f, 0x1f, 0x20);
}

static inline uint32_t e2m1_of(float x) {
    return tiny_of(x, 1, 0, 6.0f, 0x7, 0x8);
}

/* Return the value of a code with `fraction` bits and smallest normal 2^least. */
static inline float tiny_value(uint32_t code, uint32_t sign_bit, int fraction, int least) {
    const uint32_t magnitude = code & (sign_bit - 1);
    const float scaled = value32(magnitude << (23 - fraction)) * value32((uint32_t)(126 + 127 + least) << 23);
    return (code & sign_bit) != 0 ? -scaled : scaled;
}

static inline float e4m3_value(uint32_t code) {
    const float x = tiny_value(code, 0x80, 3, -6);
    return (code & 0x7fu) == 0x7fu ? NAN : x;
}

static inline float e2m3_value(uint32_t code) {
    return tiny_value(code, 0x20, 3, 0);
}

static inline float e3m2_value(uint32_t code) {
    return tiny_value(code, 0x20, 2, -2);
}

static inline float e2m1_value(uint32_t code) {
    return tiny_value(code, 0x8, 1, 0);
}

/* Convert to ue8m0, ignoring the sign: .rz drops the fraction, .rp rounds up to a power of two. */
static inline uint32_t ue8m0_of(float x, uint32_t flags) {
    const uint32_t a = bits32(x) & 0x7fffffffu, up = ROUNDING(flags) == 3;
    uint32_t e = a >> 23;
    e += up != 0 && (e != 0 ? (a & 0x7fffffu) != 0 : a > 0x400000u);
    const uint32_t most = (flags & FLAG_SAT) != 0 ? 0xfeu : 0xffu;
    return a > 0x7f800000u ? 0xffu : e > most ? most : e;
}

static inline uint32_t ue8m0_bhalf(uint32_t code) {
    return code == 0xffu ? 0x7fffu : code != 0 ? code << 7 : 0x40u;
}

/* ---- conversions through double ---- */

/* Round a double to `fraction` bits with smallest normal exponent `least`, in the instruction's rounding mode.
 * Return the bits of the format (f16, bf16 or f32). .sat clamps to [0, 1] and NaN to 0. Otherwise a NaN becomes
 * canonical or, with FLAG_NAN, keeps its sign and the upper bits of its payload. */
static inline uint32_t narrow_float(double value, int fraction, int least, uint32_t flags) {
    const double x = satd(value, flags);
    const uint32_t width = fraction == 10 ? 5 : 8, infinity = ((1u << width) - 1) << fraction;
    const uint32_t sign_place = fraction == 23 ? 31 : 15;
    const uint64_t u = bits64(x), a = u & ~(1ULL << 63);
    const uint32_t sign = (uint32_t)(u >> 63) << sign_place;
    if (a > 0x7ff0000000000000u && (flags & FLAG_NAN) == 0) {
        return fraction == 23 ? 0x7fffffffu : 0x7fffu;
    }
    if (a > 0x7ff0000000000000u) {
        return sign | infinity | 1u << (fraction - 1) | ((uint32_t)(a >> (52 - fraction)) & (infinity - 1));
    }
    int exponent = (int)(a >> 52) - 1023;
    uint64_t m = (a & 0xfffffffffffffu) | (a >> 52 != 0 ? 1ULL << 52 : 0);
    const uint32_t mode = ROUNDING(flags);
    const int away = mode == 2 ? sign != 0 : mode == 3 ? sign == 0 : 0;
    uint32_t r;
    if (a >= 0x7ff0000000000000u) {
        r = infinity;
    } else {
        int drop = 52 - fraction + (exponent < least ? least - exponent : 0);
        if (drop > 62) {
            drop = 62;
        }
        const uint64_t rest = m & ((1ULL << drop) - 1), half = 1ULL << (drop - 1);
        m >>= drop;
        m += mode == 0   ? (rest > half || (rest == half && (m & 1) != 0))
             : mode == 4 ? rest >= half
                         : away != 0 && rest != 0;
        const int base = exponent < least ? 0 : exponent - least;
        r = base > 2 * -least + 2 ? infinity : (uint32_t)(m + ((uint64_t)(unsigned)base << fraction));
        if (r >= infinity) {
            r = mode == 1 || ((mode == 2 || mode == 3) && away == 0) ? infinity - 1 : infinity;
        }
    }
    if ((flags & FLAG_FTZ) != 0 && fraction == 23 && (r & infinity) == 0) {
        r = 0;
    }
    return r | sign;
}

/* cvt.*.{f16,bf16}x2.f32 with .relu and .satfinite, for which FLAG_SAT stands here. */
static inline uint32_t narrow_pack(float x, int fraction, int least, uint32_t flags) {
    const uint32_t r = narrow_float((double)relu(x, flags), fraction, least, flags & ~(uint32_t)(FLAG_SAT | FLAG_FTZ));
    const uint32_t infinity = fraction == 10 ? 0x7c00u : 0x7f80u;
    return (flags & FLAG_SAT) != 0 && (r & 0x7fffu) == infinity ? r - 1 : r;
}

/* Convert f32 to tf32, which is an f32 with 10 fraction bits. */
static inline uint32_t tf32_of(float x, uint32_t flags) {
    uint32_t u = bits32(relu(x, flags));
    const uint32_t mode = ROUNDING(flags);
    if ((u & 0x7fffffffu) > 0x7f800000u && mode != 4) {
        return 0x7fffe000u;
    }
    if ((u & 0x7fffffffu) < 0x7f800000u) {
        u += mode == 4 ? 0x1000u : mode == 0 ? 0xfffu + (u >> 13 & 1u) : 0u;
    }
    u &= 0xffffe000u;
    return (flags & FLAG_SAT) != 0 && (u & 0x7f800000u) == 0x7f800000u ? u - 0x2000u : u;
}

/* Return r, or the integer for a NaN: 0, but the sign bit if the source is f64. */
static inline uint32_t nan_or(double x, uint32_t flags, uint32_t sign_bit, uint32_t r) {
    return x != x ? ((flags & FLAG_NAN) != 0 ? sign_bit : 0u) : r;
}

/* Round to an integer in the instruction's rounding mode. */
static inline double integral(double x, uint32_t flags) {
    switch (ROUNDING(flags)) {
    case 1:
        return trunc(x);
    case 2:
        return floor(x);
    case 3:
        return ceil(x);
    case 4:
        return round(x);
    case 5:
        return x;
    default:
        return rint(x);
    }
}

static inline uint32_t to_unsigned(double x, double most) {
    return (uint32_t)(x > 0 ? (x < most ? x : most) : 0.0);
}

static inline int32_t to_signed(double x, double least, double most) {
    return (int32_t)(x > least ? (x < most ? x : most) : x != x ? 0.0 : least);
}

static inline uint64_t to_u64(double x) {
    return x > 0 ? x < 0x1p64 ? (uint64_t)x : UINT64_MAX : 0;
}

static inline int64_t to_s64(double x) {
    return x != x ? 0 : x >= 0x1p63 ? INT64_MAX : x > -0x1p63 ? (int64_t)x : INT64_MIN;
}

/* Convert an integer to a double, rounded to odd. */
static inline double odd_double_u(uint64_t x) {
    const uint64_t lost = x >> 53 != 0 ? x & 2047u : 0;
    return (double)(x >> 53 != 0 ? (x & ~(uint64_t)2047u) | (lost != 0 ? 2048u : 0u) : x);
}

static inline double odd_double(int64_t x) {
    return x < 0 ? -odd_double_u(0u - (uint64_t)x) : odd_double_u((uint64_t)x);
}

#endif
