/* Conversions between f32 and smaller formats, as cvt defines them. Scalar, exact, independent of the C library's
 * rounding mode. Formats of one byte or half word are returned right-aligned. */
#ifndef SM120_VM_CONVERT_H
#define SM120_VM_CONVERT_H

#include <stdint.h>

enum rounding { ROUND_NEAREST_EVEN, ROUND_ZERO, ROUND_DOWN, ROUND_UP, ROUND_NEAREST_AWAY };

uint16_t f32_to_f16(float x, enum rounding rounding, int saturate_finite);  /* NaN: 0x7fff */
uint16_t f32_to_bf16(float x, enum rounding rounding, int saturate_finite); /* NaN: 0x7fff */
uint32_t f32_to_tf32(float x, enum rounding rounding, int saturate_finite);
float f16_to_f32(uint16_t x);
float bf16_to_f32(uint16_t x);

/* Saturating, round to nearest even, as cvt.rn.satfinite. */
uint8_t f32_to_e4m3(float x); /* NaN: 0x7f */
uint8_t f32_to_e5m2(float x); /* NaN: 0x7f */
uint8_t f32_to_e2m3(float x);
uint8_t f32_to_e3m2(float x);
uint8_t f32_to_e2m1(float x);
float e4m3_to_f32(uint8_t x);
float e5m2_to_f32(uint8_t x);
float e2m3_to_f32(uint8_t x);
float e3m2_to_f32(uint8_t x);
float e2m1_to_f32(uint8_t x);

uint8_t f32_to_ue8m0(float x, enum rounding rounding, int saturate_finite); /* ROUND_ZERO or ROUND_UP */
float ue8m0_to_f32(uint8_t x);

/* Other conversions (f64 to f16 and f32 with a rounding mode, float to integer) are in lanes_math.h. */

#endif
