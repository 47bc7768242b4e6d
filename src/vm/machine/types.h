/* The types of PTX. */
#ifndef SM120_VM_MACHINE_TYPES_H
#define SM120_VM_MACHINE_TYPES_H

#include <stddef.h>

/* X(name, PTX spelling, bytes, class): class p predicate, b bits, i integer, f float, x packed */
#define TYPES(X)                                                                                                       \
    X(PRED, "pred", 0, 'p')                                                                                            \
    X(B8, "b8", 1, 'b')                                                                                                \
    X(U8, "u8", 1, 'i')                                                                                                \
    X(S8, "s8", 1, 'i')                                                                                                \
    X(B16, "b16", 2, 'b')                                                                                              \
    X(U16, "u16", 2, 'i')                                                                                              \
    X(S16, "s16", 2, 'i')                                                                                              \
    X(F16, "f16", 2, 'f')                                                                                              \
    X(BF16, "bf16", 2, 'f')                                                                                            \
    X(B32, "b32", 4, 'b')                                                                                              \
    X(U32, "u32", 4, 'i')                                                                                              \
    X(S32, "s32", 4, 'i')                                                                                              \
    X(F32, "f32", 4, 'f')                                                                                              \
    X(F16X2, "f16x2", 4, 'x')                                                                                          \
    X(BF16X2, "bf16x2", 4, 'x')                                                                                        \
    X(TF32, "tf32", 4, 'x')                                                                                            \
    X(U16X2, "u16x2", 4, 'x')                                                                                          \
    X(S16X2, "s16x2", 4, 'x')                                                                                          \
    X(B64, "b64", 8, 'b')                                                                                              \
    X(U64, "u64", 8, 'i')                                                                                              \
    X(S64, "s64", 8, 'i')                                                                                              \
    X(F64, "f64", 8, 'f')                                                                                              \
    X(F32X2, "f32x2", 8, 'x')                                                                                          \
    X(B128, "b128", 16, 'b')                                                                                           \
    X(E4M3X2, "e4m3x2", 2, 'x')                                                                                        \
    X(E5M2X2, "e5m2x2", 2, 'x')                                                                                        \
    X(E2M3X2, "e2m3x2", 2, 'x')                                                                                        \
    X(E3M2X2, "e3m2x2", 2, 'x')                                                                                        \
    X(E2M1X2, "e2m1x2", 1, 'x')                                                                                        \
    X(UE8M0X2, "ue8m0x2", 2, 'x')
enum type {
    T_NONE,
#define X(name, text, bytes, class) T_##name,
    TYPES(X)
#undef X
        TYPE_COUNT
};
const char *type_name(enum type type);
unsigned type_bytes(enum type type);
char type_class(enum type type);
/* Return the type spelled `text` ("u32", without a dot), or T_NONE. */
enum type type_find(const char *text, size_t length);

#endif
