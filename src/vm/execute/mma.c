/* Choose the function that computes an mma, for the vectors of this CPU. */
#include "vm/execute/mma.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define FORMS(isa)                                                                                                     \
    mma_function mma_narrow_##isa, mma_wide_##isa, mma_fp4_##isa, mma_integer_##isa, mma_narrow_sparse_##isa,          \
        mma_wide_sparse_##isa;                                                                                         \
    static mma_function *const forms_##isa[] = {mma_narrow_##isa,  mma_wide_##isa,          mma_fp4_##isa,             \
                                                mma_integer_##isa, mma_narrow_sparse_##isa, mma_wide_sparse_##isa}

enum form { NARROW, WIDE, FP4, INTEGER, NARROW_SPARSE, WIDE_SPARSE, NO_FORM };

FORMS(base);
#if defined(__x86_64__) && defined(__GNUC__) && !defined(VM_BASE_ONLY)
FORMS(v3);
FORMS(v4);
#endif

/* Return the functions for the widest vectors that this CPU supports and PYSM120_VM_ISA allows. */
static mma_function *const *widest(void) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(VM_BASE_ONLY)
    const char *const limit = getenv("PYSM120_VM_ISA");
    const bool base = limit != NULL && strcmp(limit, "base") == 0;
    const bool v3 = limit != NULL && strcmp(limit, "v3") == 0;
    if (!base && !v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        return forms_v4;
    }
    if (!base && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("fma")) {
        return forms_v3;
    }
#endif
    return forms_base;
}

/* Return whether a type is one of the five floats in byte containers. */
static bool is_byte_float(uint8_t type) {
    return type == MMA_E4M3 || type == MMA_E5M2 || type == MMA_E2M3 || type == MMA_E3M2 || type == MMA_E2M1;
}

/* Return the form of a floating-point mma without scales. */
static enum form plain_form(const struct mma_shape *shape) {
    const int k = shape->k;
    const bool f32 = shape->accumulator == MMA_ACC_F32;
    const uint8_t a = shape->a_type, b = shape->b_type;
    if (shape->scale_vec != 0 || shape->saturate != 0 || (!f32 && shape->accumulator != MMA_ACC_F16)) {
        return NO_FORM;
    }
    if (is_byte_float(a) && is_byte_float(b)) {
        const bool eight = (a == MMA_E4M3 || a == MMA_E5M2) && (b == MMA_E4M3 || b == MMA_E5M2);
        return k == 32 || (k == 16 && eight) ? NARROW : NO_FORM;
    }
    if (a != b) {
        return NO_FORM;
    }
    if (a == MMA_F16) {
        return k == 8 || k == 16 ? NARROW : NO_FORM;
    }
    if (a == MMA_BF16) {
        return f32 && (k == 8 || k == 16) ? WIDE : NO_FORM;
    }
    if (a == MMA_TF32) {
        return f32 && (k == 4 || k == 8) ? WIDE : NO_FORM;
    }
    return NO_FORM;
}

/* Return the form of an integer mma. */
static enum form integer_form(const struct mma_shape *shape) {
    const uint8_t a = shape->a_type, b = shape->b_type;
    const int k = shape->k;
    if (shape->accumulator != MMA_ACC_S32 || shape->scale != MMA_NO_SCALE || shape->scale_vec != 0) {
        return NO_FORM;
    }
    if ((a == MMA_S8 || a == MMA_U8) && (b == MMA_S8 || b == MMA_U8)) {
        return k == 16 || k == 32 ? INTEGER : NO_FORM;
    }
    if ((a == MMA_S4 || a == MMA_U4) && (b == MMA_S4 || b == MMA_U4)) {
        return k == 32 || k == 64 ? INTEGER : NO_FORM;
    }
    if ((a == MMA_B1_AND || a == MMA_B1_XOR) && a == b && shape->saturate == 0) {
        return k == 128 || k == 256 ? INTEGER : NO_FORM;
    }
    return NO_FORM;
}

/* Return the form of an mma with block scales. */
static enum form scaled_form(const struct mma_shape *shape) {
    if (shape->accumulator != MMA_ACC_F32 || shape->saturate != 0) {
        return NO_FORM;
    }
    if (shape->scale == MMA_UE8M0 && is_byte_float(shape->a_type) && is_byte_float(shape->b_type)) {
        return shape->k == 32 && shape->scale_vec == 1 ? NARROW : NO_FORM;
    }
    if (shape->a_type != MMA_E2M1_PACKED || shape->b_type != MMA_E2M1_PACKED || shape->k != 64) {
        return NO_FORM;
    }
    if (shape->scale == MMA_UE8M0) {
        return shape->scale_vec == 2 ? FP4 : NO_FORM;
    }
    return shape->scale == MMA_UE4M3 && shape->scale_vec == 4 ? FP4 : NO_FORM;
}

mma_function *mma_find(const struct mma_shape *shape) {
    struct mma_shape dense = *shape;
    if (shape->sparse != 0) { /* the dense form with as many products; floats in bytes have one form for all sizes */
        if (shape->k == 32 && is_byte_float(shape->a_type)) {
            return NULL;
        }
        dense.k /= 2;
    }
    enum form form = shape->scale == MMA_NO_SCALE ? plain_form(&dense) : scaled_form(&dense);
    if (form == NO_FORM) {
        form = integer_form(&dense);
    }
    if (shape->sparse != 0 && (shape->a_type == MMA_B1_AND || shape->a_type == MMA_B1_XOR)) {
        return NULL;
    }
    if (shape->sparse != 0 && form <= WIDE) {
        form = form == WIDE ? WIDE_SPARSE : NARROW_SPARSE;
    }
    return form == NO_FORM ? NULL : widest()[form];
}
