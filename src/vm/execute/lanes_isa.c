/* Arithmetic on 32 lanes: one function per row of lanes.def. Compiled once per vector width (VM_ISA). */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "no-math-errno", "no-trapping-math")
#endif
#include "vm/execute/bits.h"
#include "vm/execute/lanes_math.h"
#include "vm/execute/mma_isa.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/program.h"

#define PASTE2(a, b) a##_##b
#define PASTE(a, b)  PASTE2(a, b)
#if defined(__GNUC__) && !defined(__clang__)
#define LANES _Pragma("GCC ivdep") for (uint32_t l = 0; l < WARP; ++l)
#else
#define LANES for (uint32_t l = 0; l < WARP; ++l)
#endif

/* For each type: how a value is stored (REP), read (GET) and written (PUT). */
#define REP_B8      uint32_t
#define REP_U8      uint32_t
#define REP_S8      uint32_t
#define REP_B16     uint32_t
#define REP_U16     uint32_t
#define REP_S16     uint32_t
#define REP_F16     uint32_t
#define REP_BF16    uint32_t
#define REP_B32     uint32_t
#define REP_U32     uint32_t
#define REP_S32     uint32_t
#define REP_F32     uint32_t
#define REP_B64     uint64_t
#define REP_U64     uint64_t
#define REP_S64     uint64_t
#define REP_F64     uint64_t
#define VALUE_B8    uint32_t
#define VALUE_U8    uint32_t
#define VALUE_S8    int32_t
#define VALUE_B16   uint32_t
#define VALUE_U16   uint32_t
#define VALUE_S16   int32_t
#define VALUE_F16   float
#define VALUE_BF16  float
#define VALUE_B32   uint32_t
#define VALUE_U32   uint32_t
#define VALUE_S32   int32_t
#define VALUE_F32   float
#define VALUE_B64   uint64_t
#define VALUE_U64   uint64_t
#define VALUE_S64   int64_t
#define VALUE_F64   double
#define GET_B8(x)   ((x) & 255u)
#define GET_U8(x)   ((x) & 255u)
#define GET_S8(x)   ((int32_t)(((x) & 255u) ^ 128u) - 128)
#define GET_B16(x)  ((x) & 0xffffu)
#define GET_U16(x)  ((x) & 0xffffu)
#define GET_S16(x)  ((int32_t)(((x) & 0xffffu) ^ 0x8000u) - 0x8000)
#define GET_F16(x)  half_value(x)
#define GET_BF16(x) value32((x) << 16)
#define GET_B32(x)  (x)
#define GET_U32(x)  (x)
#define GET_S32(x)  ((int32_t)(x))
#define GET_F32(x)  value32(x)
#define GET_B64(x)  (x)
#define GET_U64(x)  (x)
#define GET_S64(x)  ((int64_t)(x))
#define GET_F64(x)  value64(x)
#define PUT_B8(x)   ((uint32_t)(x) & 255u)
#define PUT_U8(x)   ((uint32_t)(x) & 255u)
#define PUT_S8(x)   ((uint32_t)(x) & 255u)
#define PUT_B16(x)  ((uint32_t)(x) & 0xffffu)
#define PUT_U16(x)  ((uint32_t)(x) & 0xffffu)
#define PUT_S16(x)  ((uint32_t)(x) & 0xffffu)
#define PUT_F16(x)  half_of(x)
#define PUT_BF16(x) bhalf_of(x)
#define PUT_B32(x)  ((uint32_t)(x))
#define PUT_U32(x)  ((uint32_t)(x))
#define PUT_S32(x)  ((uint32_t)(x))
#define PUT_F32(x)  put_f32(x)
#define PUT_B64(x)  ((uint64_t)(x))
#define PUT_U64(x)  ((uint64_t)(x))
#define PUT_S64(x)  ((uint64_t)(x))
#define PUT_F64(x)  bits64(x)

static inline uint32_t put_f32(float x) {
    return x != x ? 0x7fffffffu : bits32(x);
}

/* Write only the lanes of `mask`. */
static inline void blend_uint32_t(uint32_t *d, const uint32_t *from, uint32_t mask) {
    LANES d[l] = (mask >> l & 1u) != 0 ? from[l] : d[l];
}

static inline void blend_uint64_t(uint64_t *d, const uint64_t *from, uint32_t mask) {
    LANES d[l] = (mask >> l & 1u) != 0 ? from[l] : d[l];
}

#define PASTE_BLEND2(rep) blend_##rep
#define PASTE_BLEND(rep)  PASTE_BLEND2(rep)

/* Frame of all handlers: compute all lanes, write those of the mask. */
#define FRAME(D, ...)                                                                                                  \
    REP_##D together[WARP];                                                                                            \
    REP_##D *const d = destination(w, i->d), *const to = mask == FULL ? d : together;                                  \
    const uint32_t F = i->flags;                                                                                       \
    (void)F;                                                                                                           \
    LANES {                                                                                                            \
        __VA_ARGS__                                                                                                    \
    }                                                                                                                  \
    if (mask != FULL)                                                                                                  \
        PASTE_BLEND(REP_##D)(d, together, mask);                                                                       \
    return STEP_NEXT;
#define READ(T, x) const REP_##T *const p##x = source(w, i->x);
#define LANE(T, x) const VALUE_##T x = GET_##T(p##x[l]);

#define A1(name, pattern, D, A, formula)                                                                               \
    static enum step name(struct warp *w, const struct inst *i, uint32_t mask) {                                       \
        READ(A, a) FRAME(D, LANE(A, a) to[l] = PUT_##D(formula);)                                                      \
    }
#define A2(name, pattern, D, A, B, formula)                                                                            \
    static enum step name(struct warp *w, const struct inst *i, uint32_t mask) {                                       \
        READ(A, a) READ(B, b) FRAME(D, LANE(A, a) LANE(B, b) to[l] = PUT_##D(formula);)                                \
    }
#define A3(name, pattern, D, A, B, C, formula)                                                                         \
    static enum step name(struct warp *w, const struct inst *i, uint32_t mask) {                                       \
        READ(A, a) READ(B, b) READ(C, c) FRAME(D, LANE(A, a) LANE(B, b) LANE(C, c) to[l] = PUT_##D(formula);)          \
    }
#define A4(name, pattern, D, A, B, C, E, formula)                                                                      \
    static enum step name(struct warp *w, const struct inst *i, uint32_t mask) {                                       \
        READ(A, a)                                                                                                     \
        READ(B, b)                                                                                                     \
        READ(C, c) READ(E, e) FRAME(D, LANE(A, a) LANE(B, b) LANE(C, c) LANE(E, e) to[l] = PUT_##D(formula);)          \
    }
#define H1(name, pattern, E, formula)                                                                                  \
    static inline uint32_t name##_half(float a, uint32_t F) {                                                          \
        (void)F;                                                                                                       \
        return PUT_##E(formula);                                                                                       \
    }                                                                                                                  \
    static enum step name(struct warp *w, const struct inst *i, uint32_t mask) {                                       \
        READ(B32, a)                                                                                                   \
        FRAME(B32, const uint32_t a = pa[l];                                                                           \
              to[l] = pair(name##_half(GET_##E(a & 0xffffu), F), name##_half(GET_##E(a >> 16), F));)                   \
    }
#define H2(name, pattern, E, formula)                                                                                  \
    static inline uint32_t name##_half(float a, float b, uint32_t F) {                                                 \
        (void)F;                                                                                                       \
        return PUT_##E(formula);                                                                                       \
    }                                                                                                                  \
    static enum step name(struct warp *w, const struct inst *i, uint32_t mask) {                                       \
        READ(B32, a)                                                                                                   \
        READ(B32, b)                                                                                                   \
        FRAME(B32, const uint32_t a = pa[l], b = pb[l];                                                                \
              to[l] = pair(name##_half(GET_##E(a & 0xffffu), GET_##E(b & 0xffffu), F),                                 \
                           name##_half(GET_##E(a >> 16), GET_##E(b >> 16), F));)                                       \
    }
#define H3(name, pattern, E, formula)                                                                                  \
    static inline uint32_t name##_half(float a, float b, float c, uint32_t F) {                                        \
        (void)F;                                                                                                       \
        return PUT_##E(formula);                                                                                       \
    }                                                                                                                  \
    static enum step name(struct warp *w, const struct inst *i, uint32_t mask) {                                       \
        READ(B32, a)                                                                                                   \
        READ(B32, b)                                                                                                   \
        READ(B32, c)                                                                                                   \
        FRAME(B32, const uint32_t a = pa[l], b = pb[l], c = pc[l];                                                     \
              to[l] = pair(name##_half(GET_##E(a & 0xffffu), GET_##E(b & 0xffffu), GET_##E(c & 0xffffu), F),           \
                           name##_half(GET_##E(a >> 16), GET_##E(b >> 16), GET_##E(c >> 16), F));)                     \
    }
#define K(name, pattern, T, sources, result, carry)                                                                    \
    static enum step name(struct warp *w, const struct inst *i, uint32_t mask) {                                       \
        uint32_t *const flags = &w->predicates[1];                                                                     \
        uint32_t carries = 0;                                                                                          \
        READ(T, a) READ(T, b) const REP_##T *const pc = source(w, sources == 3 ? i->c : i->b);                         \
        REP_##T *const d = destination(w, i->d);                                                                       \
        for (uint32_t l = 0; l < WARP; ++l) {                                                                          \
            const VALUE_##T a = pa[l], b = pb[l], c = pc[l], k = *flags >> l & 1u;                                     \
            const VALUE_##T keep = k;                                                                                  \
            const VALUE_##T r = result;                                                                                \
            (void)b, (void)c, (void)k, (void)keep;                                                                     \
            carries |= (uint32_t)((carry) != 0) << l;                                                                  \
            d[l] = mask >> l & 1u ? r : d[l];                                                                          \
        }                                                                                                              \
        *flags = (*flags & ~mask) | (carries & mask);                                                                  \
        return STEP_NEXT;                                                                                              \
    }
/* p = (a cmp b) op c, q = !(a cmp b) op c */
#define P(name, comparison, T, condition)                                                                              \
    static enum step setp_##name(struct warp *w, const struct inst *i, uint32_t mask) {                                \
        READ(T, a) READ(T, b) const uint32_t F = i->flags;                                                             \
        uint32_t bits[WARP], all = 0;                                                                                  \
        (void)F;                                                                                                       \
        LANES {                                                                                                        \
            LANE(T, a) LANE(T, b) bits[l] = (uint32_t)((condition) != 0) << l;                                         \
        }                                                                                                              \
        for (uint32_t l = 0; l < WARP; ++l)                                                                            \
            all |= bits[l];                                                                                            \
        return set_predicates(w, i, mask, all);                                                                        \
    }

/* Combine a comparison with the third predicate and write one or two predicates. Predicate 0 is constant true and
 * never written. */
static inline enum step set_predicates(struct warp *w, const struct inst *i, uint32_t mask, uint32_t yes) {
    uint32_t *const predicates = w->predicates, no = ~yes;
    if (i->kind != 0) {
        const uint32_t with = predicates[i->r] ^ (i->negate != 0 ? FULL : 0u);
        yes = i->kind == 1 ? yes & with : i->kind == 2 ? yes | with : yes ^ with;
        no = i->kind == 1 ? no & with : i->kind == 2 ? no | with : no ^ with;
    }
    if (i->q != 0) {
        predicates[i->q] = (predicates[i->q] & ~mask) | (no & mask);
    }
    if (i->p != 0) {
        predicates[i->p] = (predicates[i->p] & ~mask) | (yes & mask);
    }
    return STEP_NEXT;
}

#include "vm/execute/lanes.def"

/* d = p ? a : b */
static enum step selp_32(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t choose = w->predicates[i->r] ^ (i->negate != 0 ? FULL : 0u);
    READ(B32, a) READ(B32, b) FRAME(B32, to[l] = choose >> l & 1u ? pa[l] : pb[l];)
}

static enum step selp_64(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t choose = w->predicates[i->r] ^ (i->negate != 0 ? FULL : 0u);
    READ(B64, a) READ(B64, b) FRAME(B64, to[l] = choose >> l & 1u ? pa[l] : pb[l];)
}

#define A1(name, ...) name,
#define A2(name, ...) name,
#define A3(name, ...) name,
#define A4(name, ...) name,
#define H1(name, ...) name,
#define H2(name, ...) name,
#define H3(name, ...) name,
#define K(name, ...)  name,
#define P(name, ...)  setp_##name,
handler *const PASTE(lanes, VM_ISA)[] = {
#include "vm/execute/lanes.def"
    selp_32, selp_64};
