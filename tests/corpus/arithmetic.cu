// Long integers, the double and single mathematics library, half, bfloat16 and fp8.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void big_integers(const unsigned long long *x, const unsigned long long *y,
                                        unsigned long long *z, int n) {
    const int i = threadIdx.x;
    const unsigned __int128 a = (unsigned __int128)x[i] << 40 | y[i], b = (unsigned __int128)y[i] << 17 ^ x[i];
    const unsigned __int128 list[8] = {a + b, a - b, a * b, a / (b | 1), a % (b | 1), a >> (i & 127), a << (i & 63),
                                       a < b ? a : b};
    for (int k = 0; k < 8; k++) {
        z[(2 * k) * n + i] = (unsigned long long)list[k];
        z[(2 * k + 1) * n + i] = (unsigned long long)(list[k] >> 64);
    }
    z[16 * n + i] = (unsigned long long)((long long)x[i] / (long long)(y[i] | 1));
    z[17 * n + i] = x[i] % (y[i] | 1);
    z[18 * n + i] = __umul64hi(x[i], y[i]) + (unsigned long long)__mul64hi((long long)x[i], (long long)y[i]);
    z[19 * n + i] = __brevll(x[i]) ^ (unsigned long long)__clzll((long long)x[i]) ^ __popcll(y[i]);
}

extern "C" __global__ void double_math(const double *x, double *y, int n) {
    const int i = threadIdx.x;
    const double v = x[i];
    const double list[] = {sin(v),   cos(v),    tan(v),         exp(v),      log(v),    pow(v, 2.3),    sqrt(v),
                           cbrt(v),  atan2(v, 2.0), sinh(v),    tanh(v),     erf(v),    tgamma(v + 1),  fmod(v, 0.7),
                           floor(v), 1 / v,     hypot(v, 3.0),  log1p(v),    expm1(v),  asin(v / 1000), fma(v, v, v),
                           exp2(v),  log10(v),  rsqrt(v),       lgamma(v),   rint(v),   sin(v * 1e6)};
    for (int k = 0; k < (int)(sizeof list / sizeof *list); k++)
        y[k * n + i] = list[k];
}

extern "C" __global__ void float_math(const float *x, float *y, int n) {
    const int i = threadIdx.x;
    const float v = x[i];
    const float list[] = {sinf(v),   cosf(v),   tanf(v),      expf(v),     logf(v),     powf(v, 2.3f),   sqrtf(v),
                          cbrtf(v),  atan2f(v, 2), tanhf(v),  erff(v),     fmodf(v, 0.7f), 1 / v,        log1pf(v),
                          __expf(v), __logf(v), __sinf(v),    __fdividef(v, 3), rsqrtf(v), __frcp_rn(v), __fsqrt_rn(v),
                          exp10f(v), normcdff(v), j0f(v),     sinf(v * 1e5f), roundf(v), tgammaf(v)};
    for (int k = 0; k < (int)(sizeof list / sizeof *list); k++)
        y[k * n + i] = list[k];
}

extern "C" __global__ void small_floats(const float *x, float *y, int n) {
    const int i = threadIdx.x;
    const __half h = __float2half(x[i]), g = __float2half(1.5f);
    const __nv_bfloat16 b = __float2bfloat16(x[i]), c = __float2bfloat16(1.5f);
    const __half2 h2 = __halves2half2(h, g);
    const float list[] = {__half2float(__hadd(h, g)),       __half2float(__hmul(h, g)),
                          __half2float(__hfma(h, g, h)),    __half2float(__hdiv(h, g)),
                          __half2float(hsqrt(__habs(h))),   __half2float(hexp(h)),
                          __half2float(__hmax(h, g)),       (float)__hgt(h, g),
                          __low2float(__hmul2(h2, h2)),     __high2float(__hfma2(h2, h2, h2)),
                          __bfloat162float(__hadd(b, c)),   __bfloat162float(__hmul(b, c)),
                          __bfloat162float(__hfma(b, c, b)), __bfloat162float(__hmin(b, c)),
                          (float)__nv_fp8_e4m3(x[i]),       (float)__nv_fp8_e5m2(x[i]),
                          (float)(int)__half2int_rn(h),     __half2float(__int2half_rn(i)),
                          __half2float(hsin(h)),            (float)__hlt(b, c),
                          __half2float(__hneg(h)),          __half2float(hfloor(h))};
    for (int k = 0; k < (int)(sizeof list / sizeof *list); k++)
        y[k * n + i] = list[k];
}
