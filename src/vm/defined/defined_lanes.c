/* Arithmetic on undefined bits: for each row of lanes.def, the undefined bits of the result given those of the
 * sources. Rows without a rule make the whole result undefined if any source bit is. */
#include <string.h>

#include "vm/defined/defined.h"
#include "vm/execute/bits.h"
#include "vm/execute/lanes.h"
#include "vm/execute/lanes_math.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/machine/watch.h"

/* ---- table ---------------------------------------------------------------------------------------------------- */

enum how {
    ALL,      /* any undefined bit makes the result undefined */
    MOVE,     /* bits move: the same function, applied to the undefined bits; x: set of the sources that move */
    UP,       /* carries: from the lowest undefined bit up */
    UP_16,    /* UP in each half */
    AND,      /* depends on the values of the defined bits */
    OR,       /* depends on the values of the defined bits */
    XOR,      /* bit by bit */
    LOP3,     /* bit by bit, from the table */
    PARTS,    /* two parts, of x bits in the result and y bits in every source */
    PACK,     /* two parts of x bits: the upper one from a, the lower one from b */
    COUNT,    /* x: the bits of the result that can be set */
    COPYSIGN, /* the uppermost bit from a, the others from b */
    SELECT,   /* a or b, by c */
    QUOTIENT  /* a by b: all bits, also if b is 0 */
};

static const struct {
    uint8_t how, x, y;
} rules[LANE_COUNT] = {
#define H1(name, ...) [LANE_##name] = {PARTS, 16, 16},
#define H2(name, ...) [LANE_##name] = {PARTS, 16, 16},
#define H3(name, ...) [LANE_##name] = {PARTS, 16, 16},
#include "vm/execute/lanes.def"
#define MOVES(x, name)       [LANE_##name] = {MOVE, x, 0},
#define GOES_UP(name)        [LANE_##name] = {UP, 0, 0},
#define IN_PARTS(name, x, y) [LANE_##name] = {PARTS, x, y},
#define PACKS(name, x)       [LANE_##name] = {PACK, x, 0},
#define DIVIDES(type)        [LANE_div_##type] = {QUOTIENT, 0, 0}, [LANE_rem_##type] = {QUOTIENT, 0, 0},
    DIVIDES(u16) DIVIDES(s16) DIVIDES(u32) DIVIDES(s32) DIVIDES(u64) DIVIDES(s64) GOES_UP(add_u16) GOES_UP(add_u32)
        GOES_UP(add_u64) GOES_UP(sub_u16) GOES_UP(sub_u32) GOES_UP(sub_u64) GOES_UP(mul_lo_16) GOES_UP(mul_lo_32)
            GOES_UP(mul_lo_64) GOES_UP(mad_lo_16) GOES_UP(mad_lo_32) GOES_UP(mad_lo_64) GOES_UP(mul_wide_u16)
                GOES_UP(mul_wide_s16) GOES_UP(mul_wide_u32) GOES_UP(mul_wide_s32) GOES_UP(mad_wide_u16)
                    GOES_UP(mad_wide_s16) GOES_UP(mad_wide_u32) GOES_UP(mad_wide_s32) GOES_UP(neg_s16) GOES_UP(neg_s32)
                        GOES_UP(neg_s64) GOES_UP(window_to) GOES_UP(window_from)[LANE_add_u16x2] = {UP_16, 0, 0},
    [LANE_min_u16x2] = {PARTS, 16, 16},
    [LANE_max_u16x2] = {PARTS, 16, 16},
    [LANE_min_s16x2] = {PARTS, 16, 16},
    [LANE_max_s16x2] = {PARTS, 16, 16},
    [LANE_min_relu_s16x2] = {PARTS, 16, 16},
    [LANE_max_relu_s16x2] = {PARTS, 16, 16},
    [LANE_and_b16] = {AND, 0, 0},
    [LANE_and_b32] = {AND, 0, 0},
    [LANE_and_b64] = {AND, 0, 0},
    [LANE_or_b16] = {OR, 0, 0},
    [LANE_or_b32] = {OR, 0, 0},
    [LANE_or_b64] = {OR, 0, 0},
    [LANE_xor_b16] = {XOR, 0, 0},
    [LANE_xor_b32] = {XOR, 0, 0},
    [LANE_xor_b64] = {XOR, 0, 0},
    [LANE_not_b16] = {XOR, 0, 0},
    [LANE_not_b32] = {XOR, 0, 0},
    [LANE_not_b64] = {XOR, 0, 0},
    [LANE_lop3_b32] = {LOP3, 0, 0},
    [LANE_cnot_b16] = {COUNT, 1, 0},
    [LANE_cnot_b32] = {COUNT, 1, 0},
    [LANE_cnot_b64] = {COUNT, 1, 0},
    [LANE_clz_b32] = {COUNT, 6, 0},
    [LANE_clz_b64] = {COUNT, 7, 0},
    [LANE_popc_b32] = {COUNT, 6, 0},
    [LANE_popc_b64] = {COUNT, 7, 0},
    MOVES(1, shl_b16) MOVES(1, shl_b32) MOVES(1, shl_b64) MOVES(1, shr_u16) MOVES(1, shr_u32) MOVES(1, shr_u64) MOVES(
        1, shr_s16) MOVES(1, shr_s32) MOVES(1, shr_s64) MOVES(3, shf_l_wrap) MOVES(3, shf_l_clamp) MOVES(3, shf_r_wrap)
        MOVES(3, shf_r_clamp) MOVES(1, bfe_u32) MOVES(1, bfe_s32) MOVES(1, bfe_u64) MOVES(1, bfe_s64) MOVES(3, bfi_b32)
            MOVES(3, bfi_b64) MOVES(1, brev_b32) MOVES(1, brev_b64) MOVES(3, prmt) MOVES(3, prmt_f4e) MOVES(3, prmt_b4e)
                MOVES(3, prmt_rc8) MOVES(3, prmt_ecl) MOVES(3, prmt_ecr) MOVES(3, prmt_rc16) MOVES(1, szext_wrap_u32)
                    MOVES(1, szext_clamp_u32) MOVES(1, szext_wrap_s32) MOVES(1, szext_clamp_s32) MOVES(1, mov_32)
                        MOVES(1, mov_64) MOVES(1, trunc_64) MOVES(1, low_16) MOVES(1, low_8) MOVES(1, high_16)
                            MOVES(1, high_64) MOVES(3, join_16) MOVES(3, join_32) MOVES(3, join_8) MOVES(1, byte_of)
                                MOVES(1, sext_8) MOVES(1, sext_16) MOVES(1, sext_64) MOVES(1, zext_64) MOVES(1, wide_u8)
                                    MOVES(1, wide_s8) MOVES(1, wide_u16) MOVES(1, wide_s16) MOVES(1, wide_u32)
                                        MOVES(1, wide_s32) MOVES(1, narrow_8) MOVES(1, narrow_16)
                                            MOVES(1, cvt_f32_bf16)[LANE_copysign_f32] = {COPYSIGN, 32, 0},
    [LANE_copysign_f64] = {COPYSIGN, 64, 0},
    [LANE_slct_16_s32] = {SELECT, 1, 0},
    [LANE_slct_32_s32] = {SELECT, 1, 0},
    [LANE_slct_64_s32] = {SELECT, 1, 0},
    [LANE_slct_16_f32] = {SELECT, 0, 0},
    [LANE_slct_32_f32] = {SELECT, 0, 0},
    [LANE_slct_64_f32] = {SELECT, 0, 0},
    IN_PARTS(add_f32x2, 32, 32) IN_PARTS(sub_f32x2, 32, 32) IN_PARTS(mul_f32x2, 32, 32) IN_PARTS(fma_f32x2, 32, 32)
        PACKS(cvt_f16x2_f32, 16) PACKS(cvt_bf16x2_f32, 16) PACKS(cvt_f16x2_any, 16) PACKS(cvt_bf16x2_any, 16)
            PACKS(cvt_e4m3x2, 8) PACKS(cvt_e4m3x2_relu, 8) PACKS(cvt_e5m2x2, 8) PACKS(cvt_e2m3x2, 8)
                PACKS(cvt_e3m2x2, 8) PACKS(cvt_e2m1x2, 4) PACKS(cvt_ue8m0x2, 8) IN_PARTS(cvt_e4m3x2_f16x2, 8, 16)
                    IN_PARTS(cvt_e5m2x2_f16x2, 8, 16) IN_PARTS(cvt_e2m1x2_f16x2, 4, 16)
                        IN_PARTS(cvt_ue8m0x2_bf16x2, 8, 16) IN_PARTS(cvt_f16x2_e4m3x2, 16, 8)
                            IN_PARTS(cvt_f16x2_e5m2x2, 16, 8) IN_PARTS(cvt_f16x2_e2m3x2, 16, 8)
                                IN_PARTS(cvt_f16x2_e3m2x2, 16, 8) IN_PARTS(cvt_f16x2_e2m1x2, 16, 4)
                                    IN_PARTS(cvt_bf16x2_e4m3x2, 16, 8) IN_PARTS(cvt_bf16x2_e5m2x2, 16, 8)
                                        IN_PARTS(cvt_bf16x2_e2m3x2, 16, 8) IN_PARTS(cvt_bf16x2_e3m2x2, 16, 8)
                                            IN_PARTS(cvt_bf16x2_e2m1x2, 16, 4) IN_PARTS(cvt_bf16x2_ue8m0x2, 16, 8)};

/* Effect of a carry row on the flag. */
enum { CARRY_READ = 1, CARRY_WRITTEN = 2, CARRY_HIGH = 4 };

/* Number of sources of a row, types of the result (first) and of the sources, and the comparison. */
static const struct row {
    const char *name;
    uint8_t sources, type[5];
} rows[LANE_COUNT] = {
#define A1(n, pattern, D, A, ...)          {#n, 1, {T_##D, T_##A}},
#define A2(n, pattern, D, A, B, ...)       {#n, 2, {T_##D, T_##A, T_##B}},
#define A3(n, pattern, D, A, B, C, ...)    {#n, 3, {T_##D, T_##A, T_##B, T_##C}},
#define A4(n, pattern, D, A, B, C, E, ...) {#n, 4, {T_##D, T_##A, T_##B, T_##C, T_##E}},
#define H1(n, pattern, E, ...)             {#n, 1, {T_B32, T_B32}},
#define H2(n, pattern, E, ...)             {#n, 2, {T_B32, T_B32, T_B32}},
#define H3(n, pattern, E, ...)             {#n, 3, {T_B32, T_B32, T_B32, T_B32}},
#define K(n, pattern, T, count, ...)       {pattern, count, {T_##T, T_##T, T_##T, T_##T}},
#define P(n, comparison, T, ...)           {comparison, 2, {T_PRED, T_##T, T_##T}},
#include "vm/execute/lanes.def"
    {"selp", 2, {T_B32, T_B32, T_B32}}, {"selp", 2, {T_B64, T_B64, T_B64}}};

static const uint8_t is_carry[LANE_COUNT] = {
#define K(name, ...) [LANE_##name] = 1,
#include "vm/execute/lanes.def"
};

static defined_part lane_plain, lane_carry, lane_select, lane_compare, lane_quotient;

defined_part *defined_lane_part(uint32_t lane) {
    if (lane == LANE_selp_32 || lane == LANE_selp_64) {
        return lane_select;
    }
    if (rules[lane].how == QUOTIENT) {
        return lane_quotient;
    }
    return is_carry[lane] != 0 ? lane_carry : rows[lane].type[0] == T_PRED ? lane_compare : lane_plain;
}

/* ---- one lane ------------------------------------------------------------------------------------------------- */

/* Sources of one lane: values and undefined bits, masked to the bits that the row reads. */
struct bits {
    uint64_t v[4], u[4], any;
};

static uint64_t ones(uint32_t bytes) {
    return bytes >= 8 ? UINT64_MAX : (1ULL << 8 * bytes) - 1;
}

static uint64_t value_of(const struct warp *w, uint32_t slot, uint32_t lane, uint32_t bytes) {
    const void *const at = source(w, slot);
    return bytes == 8 ? ((const uint64_t *)at)[lane] : ((const uint32_t *)at)[lane] & ones(bytes);
}

static struct bits read_lane(const struct event *e, const struct defined_warp *u, const struct row *row,
                             uint32_t lane) {
    const uint32_t slots[4] = {e->inst->a, e->inst->b, e->inst->c, e->inst->e};
    struct bits x = {0};
    for (uint32_t k = 0; k < row->sources; ++k) {
        const uint32_t bytes = type_bytes((enum type)row->type[k + 1]);
        x.v[k] = value_of(e->warp, slots[k], lane, bytes);
        x.u[k] = bits_of(u, slots[k], lane, bytes) & ones(bytes);
        x.any |= x.u[k];
    }
    return x;
}

/* Set all bits above the lowest set bit: the reach of carries. */
static uint64_t upward(uint64_t u) {
    return u | (0 - u);
}

/* Return the bits that change when undefined bits of a, b and c change. */
static uint64_t lop3_bits(const struct bits *x) {
    if (x->u[3] != 0) {
        return FULL;
    }
    const uint32_t a = (uint32_t)x->v[0], b = (uint32_t)x->v[1], c = (uint32_t)x->v[2], table = (uint32_t)x->v[3];
    uint32_t u = 0;
    for (uint32_t k = 1; k < 8; ++k) {
        u |= lop3(a, b, c, table) ^ lop3(a ^ ((k & 1) != 0 ? (uint32_t)x->u[0] : 0),
                                         b ^ ((k & 2) != 0 ? (uint32_t)x->u[1] : 0),
                                         c ^ ((k & 4) != 0 ? (uint32_t)x->u[2] : 0), table);
    }
    return u;
}

/* Return a result whose lower and upper part are each defined or undefined as a whole. */
static uint64_t two_parts(uint32_t width, bool low, bool high) {
    const uint64_t part = width == 32 ? FULL : (1ULL << width) - 1;
    return (low ? part : 0) | (high ? part << width : 0);
}

/* slct by a sign (by_sign), or by a float. */
static uint64_t select_bits(const struct bits *x, bool by_sign, bool chooses_a) {
    if ((by_sign ? x->u[2] >> 31 & 1u : x->u[2] != 0) != 0) {
        return x->u[0] | x->u[1] | (x->v[0] ^ x->v[1]);
    }
    return x->u[chooses_a ? 0 : 1];
}

/* Return the undefined bits of a result, for all rules except MOVE. */
static uint64_t result_bits(uint32_t lane, const struct bits *x, bool same, uint32_t flags) {
    const uint64_t sources = x->u[0] | x->u[1] | x->u[2];
    const uint32_t by = rules[lane].x, from = rules[lane].y;
    switch (rules[lane].how) {
    case UP:
        return same && (lane == LANE_sub_u16 || lane == LANE_sub_u32 || lane == LANE_sub_u64) ? 0 : upward(sources);
    case UP_16:
        return (upward(sources & 0xffffu) & 0xffffu) | upward(sources & 0xffff0000u);
    case AND:
        return (x->u[0] & x->u[1]) | (x->u[0] & x->v[1]) | (x->u[1] & x->v[0]);
    case OR:
        return (x->u[0] & x->u[1]) | (x->u[0] & ~x->v[1]) | (x->u[1] & ~x->v[0]);
    case XOR:
        return same ? 0 : sources;
    case LOP3:
        return lop3_bits(x);
    case PARTS:
        return two_parts(by, (sources & (from == 32 ? FULL : (1ULL << from) - 1)) != 0, (sources >> from) != 0);
    case PACK:
        return two_parts(by, x->u[1] != 0, x->u[0] != 0);
    case COUNT:
        return x->any != 0 ? (1ULL << by) - 1 : 0;
    case COPYSIGN:
        return (x->u[0] & 1ULL << (by - 1)) | (x->u[1] & ((1ULL << (by - 1)) - 1));
    case SELECT: {
        const uint32_t c = (uint32_t)x->v[2];
        return select_bits(x, by != 0, by != 0 ? (c >> 31) == 0 : in(value32(c), flags) >= 0);
    }
    default:
        return x->any != 0 ? UINT64_MAX : 0;
    }
}

/* ---- instructions --------------------------------------------------------------------------------------------- */

/* Return the first source with an undefined bit in a lane. */
static uint32_t first_undefined(const struct event *e, const struct defined_warp *u, uint32_t sources, uint32_t lane) {
    const uint32_t slots[4] = {e->inst->a, e->inst->b, e->inst->c, e->inst->e};
    for (uint32_t k = 0; k < sources; ++k) {
        if ((some_of(u, slots[k]) >> lane & 1u) != 0) {
            return slots[k];
        }
    }
    return 0;
}

/* Return the lanes in which a source has an undefined bit. */
static inline uint32_t undefined_lanes(const struct event *e, const struct defined_warp *u, uint32_t sources) {
    const struct inst *i = e->inst;
    uint32_t lanes = some_of(u, i->a);
    if (sources > 1) {
        lanes |= some_of(u, i->b);
    }
    if (sources > 2) {
        lanes |= some_of(u, i->c);
    }
    if (sources > 3) {
        lanes |= some_of(u, i->e);
    }
    return lanes & e->mask;
}

/* Run the instruction on the undefined bits, in temporary registers. If the distance of a move is undefined in a
 * lane, its whole result is undefined. */
static void move_bits(struct defined *d, const struct event *e, const struct row *row, uint32_t lanes, uint32_t moved,
                      uint64_t *result) {
    const struct defined_warp *u = defined_of(d, e);
    const uint32_t slots[4] = {e->inst->a, e->inst->b, e->inst->c, e->inst->e};
    uint64_t file[5][WARP] = {{0}};
    uint32_t lost = 0;
    for (uint32_t k = 0; k < row->sources; ++k) {
        const uint32_t bytes = type_bytes((enum type)row->type[k + 1]);
        for (uint32_t l = 0; l < WARP; ++l) {
            const uint64_t bits = (lanes >> l & 1u) != 0 ? bits_of(u, slots[k], l, bytes) & ones(bytes) : 0;
            const uint64_t x = (moved >> k & 1u) != 0 ? bits : value_of(e->warp, slots[k], l, bytes);
            lost |= (uint32_t)((moved >> k & 1u) == 0 && bits != 0) << l;
            if (bytes == 8) {
                file[k + 1][l] = x;
            } else {
                ((uint32_t *)file[k + 1])[l] = (uint32_t)x;
            }
        }
    }
    struct warp own = {.registers = (char *)file, .base = {(const char *)file, (const char *)file}};
    struct inst inst = *e->inst;
    inst.d = 0, inst.a = 256, inst.b = 512, inst.c = 768, inst.e = 1024;
    e->inst->run(&own, &inst, FULL);
    const bool wide = type_bytes((enum type)row->type[0]) == 8;
    for (uint32_t l = 0; l < WARP; ++l) {
        result[l] = (lost >> l & 1u) != 0 ? UINT64_MAX : wide ? file[0][l] : ((const uint32_t *)file[0])[l];
    }
}

/* Return the tag of the result of a move, sum or difference of 32 bits in one lane. *cancels: the undefined part of a
 * difference cancels out. */
static uint32_t result_tag(struct defined *d, const struct event *e, struct defined_warp *u, uint32_t lane, uint32_t l,
                           bool *cancels) {
    *cancels = false;
    if (lane != LANE_mov_32 && lane != LANE_add_u32 && lane != LANE_sub_u32) {
        return 0;
    }
    const uint32_t bit = 1u << l, a = e->inst->a, b = e->inst->b;
    const bool has_a = (some_of(u, a) & bit) != 0, has_b = lane != LANE_mov_32 && (some_of(u, b) & bit) != 0;
    const uint32_t tag = has_a ? defined_tag(d, u, a, l) : 0;
    if (has_a && has_b) {
        *cancels = lane == LANE_sub_u32 && tag != 0 && tag == defined_tag(d, u, b, l);
        return 0;
    }
    return has_a ? tag : lane == LANE_add_u32 ? defined_tag(d, u, b, l) : 0;
}

/* Rule for rows without predicates or carry. */
static enum step lane_plain(struct defined *d, const struct event *e) {
    struct defined_warp *u = defined_of(d, e);
    const uint32_t lane = d->rule[e->pc].lane;
    const struct row *row = &rows[lane];
    const uint32_t lanes = undefined_lanes(e, u, row->sources);
    if (lanes == 0) {
        define(u, e->inst->d, e->mask);
        return STEP_NEXT;
    }
    const uint32_t bytes = type_bytes((enum type)row->type[0]);
    const bool same = row->sources == 2 && e->inst->a == e->inst->b;
    uint64_t moved[WARP];
    if (rules[lane].how == MOVE) {
        move_bits(d, e, row, lanes, rules[lane].x, moved);
    }
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        const uint32_t l = lowest_bit(rest);
        const struct bits x = read_lane(e, u, row, l);
        bool cancels;
        const uint32_t tag = result_tag(d, e, u, lane, l, &cancels);
        const uint64_t bits = cancels                   ? 0
                              : rules[lane].how == MOVE ? moved[l]
                                                        : result_bits(lane, &x, same, e->inst->flags);
        const uint32_t birth = bits != 0 ? birth_of(d, e, first_undefined(e, u, row->sources, l), l) : 0;
        set_bits(u, e->inst->d, l, bytes, bits & ones(bytes), birth);
        if ((bits & ones(bytes)) != 0) {
            u->tag[e->inst->d / 128 * WARP + l] = tag;
        }
    }
    define(u, e->inst->d, e->mask & ~lanes);
    return STEP_NEXT;
}

/* div and rem of integers: PTX does not define the result of a division by zero. */
static enum step lane_quotient(struct defined *d, const struct event *e) {
    const uint32_t bytes = type_bytes((enum type)rows[d->rule[e->pc].lane].type[0]);
    const void *const divisor = source(e->warp, e->inst->b);
    uint32_t zero = 0;
    for (uint32_t l = 0; l < WARP; ++l) {
        const uint64_t value = bytes == 8 ? ((const uint64_t *)divisor)[l] : ((const uint32_t *)divisor)[l];
        zero |= (uint32_t)((value & ones(bytes)) == 0) << l;
    }
    zero &= e->mask & ~some_of(defined_of(d, e), e->inst->b);
    lane_plain(d, e);
    for (; zero != 0; zero &= zero - 1) {
        set_bits(defined_of(d, e), e->inst->d, lowest_bit(zero), bytes, ones(bytes),
                 birth_make(d, BORN_QUOTIENT, e->pc, 0, 0));
    }
    return STEP_NEXT;
}

/* add.cc, addc and so on. */
static enum step lane_carry(struct defined *d, const struct event *e) {
    struct defined_warp *u = defined_of(d, e);
    const struct row *row = &rows[d->rule[e->pc].lane];
    const bool reads = row->name[3] == 'c', writes = strstr(row->name, ".cc") != NULL,
               high = strstr(row->name, ".hi") != NULL;
    const uint32_t carry = reads ? u->predicate[1] & e->mask : 0, lanes = undefined_lanes(e, u, row->sources) | carry;
    const uint32_t bytes = type_bytes((enum type)row->type[0]);
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        const uint32_t l = lowest_bit(rest);
        const struct bits x = read_lane(e, u, row, l);
        const bool spoilt = high || (carry >> l & 1u) != 0;
        const uint32_t slot = first_undefined(e, u, row->sources, l);
        const uint32_t birth = x.any != 0 ? birth_of(d, e, slot, l) : birth_of_predicate(d, e, 1, l);
        set_bits(u, e->inst->d, l, bytes, (spoilt ? UINT64_MAX : upward(x.any)) & ones(bytes), birth);
        if (writes) {
            undefine_predicate(u, 1, 1u << l, birth);
        }
    }
    define(u, e->inst->d, e->mask & ~lanes);
    if (writes) {
        define_predicate(u, 1, e->mask & ~lanes);
    }
    return STEP_NEXT;
}

/* d = p ? a : b */
static enum step lane_select(struct defined *d, const struct event *e) {
    struct defined_warp *u = defined_of(d, e);
    const struct inst *i = e->inst;
    const struct row *row = &rows[d->rule[e->pc].lane];
    const uint32_t unsure = u->predicate[i->r] & e->mask, lanes = undefined_lanes(e, u, 2) | unsure;
    const uint32_t chosen = e->warp->predicates[i->r] ^ (i->negate != 0 ? FULL : 0);
    const uint32_t bytes = type_bytes((enum type)row->type[0]);
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        const uint32_t l = lowest_bit(rest);
        const struct bits x = read_lane(e, u, row, l);
        const uint32_t slot = (chosen >> l & 1u) != 0 ? i->a : i->b;
        const int by = (int)(unsure >> l & 1u);
        const uint64_t bits = by != 0 ? x.any | (x.v[0] ^ x.v[1]) : x.u[(chosen >> l & 1u) != 0 ? 0 : 1];
        set_bits(u, i->d, l, bytes, bits,
                 bits == 0 ? 0
                 : by != 0 ? birth_of_predicate(d, e, i->r, l)
                           : birth_of(d, e, slot, l));
    }
    define(u, i->d, e->mask & ~lanes);
    return STEP_NEXT;
}

/* ---- comparisons ---------------------------------------------------------------------------------------------- */

/* Return whether the undefined bits can change the outcome of an integer comparison. */
static bool changes(const struct row *row, const struct bits *x) {
    const char type = type_class((enum type)row->type[1]);
    const uint64_t sign =
        type_name((enum type)row->type[1])[0] == 's' ? (ones(type_bytes((enum type)row->type[1])) >> 1) + 1 : 0;
    if (x->any == 0 || type == 'f') {
        return x->any != 0;
    }
    if (row->name[0] == 'e' || row->name[0] == 'n') { /* eq, ne */
        return ((x->v[0] ^ x->v[1]) & ~x->any) == 0;
    }
    const uint64_t a = x->v[0] ^ sign, b = x->v[1] ^ sign;
    const uint64_t least_a = a & ~x->u[0], most_a = a | x->u[0], least_b = b & ~x->u[1], most_b = b | x->u[1];
    if (strcmp(row->name, "lt") == 0 || strcmp(row->name, "ge") == 0) {
        return !(most_a < least_b || least_a >= most_b);
    }
    return !(most_a <= least_b || least_a > most_b);
}

/* Return the undefined lanes of x op y in three-valued logic. kind: 0 and, 1 or, 2 xor. vx and vy are the values, ux
 * and uy the undefined lanes. */
static uint32_t combine(uint32_t kind, uint32_t vx, uint32_t ux, uint32_t vy, uint32_t uy) {
    const uint32_t both = ux | uy;
    if (kind == 2) {
        return both;
    }
    const uint32_t decides_x = ~ux & (kind != 0 ? vx : ~vx), decides_y = ~uy & (kind != 0 ? vy : ~vy);
    return both & ~decides_x & ~decides_y;
}

/* Return the outcome of a comparison in one lane, without its third operand. */
static uint32_t outcome(const struct event *e, const struct inst *plain) {
    uint32_t predicates[3] = {FULL, 0, 0};
    struct warp own = *e->warp;
    struct inst i = *plain;
    own.predicates = predicates;
    i.kind = 0, i.p = 2, i.q = 0;
    e->inst->run(&own, &i, FULL);
    return predicates[2];
}

/* p|q = (a ? b) op r */
static enum step lane_compare(struct defined *d, const struct event *e) {
    struct defined_warp *u = defined_of(d, e);
    const struct inst *i = e->inst;
    const struct row *row = &rows[d->rule[e->pc].lane];
    const uint32_t lanes = undefined_lanes(e, u, 2), with = i->kind != 0 ? u->predicate[i->r] & e->mask : 0;
    define_predicate(u, i->p, e->mask & ~with);
    define_predicate(u, i->q, e->mask & ~with);
    if ((lanes | with) == 0) {
        return STEP_NEXT;
    }
    uint32_t unsure = 0, birth[WARP] = {0};
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        const uint32_t l = lowest_bit(rest);
        const struct bits x = read_lane(e, u, row, l);
        if (!changes(row, &x)) {
            continue;
        }
        unsure |= 1u << l;
        birth[l] = birth_of(d, e, first_undefined(e, u, 2, l), l);
    }
    for (uint32_t rest = with & ~unsure; rest != 0; rest &= rest - 1) {
        birth[lowest_bit(rest)] = birth_of_predicate(d, e, i->r, lowest_bit(rest));
    }
    uint32_t yes = unsure, no = unsure;
    if (i->kind != 0) {
        const uint32_t result = outcome(e, i), other = e->warp->predicates[i->r] ^ (i->negate != 0 ? FULL : 0);
        yes = combine(i->kind - 1u, result, unsure, other, with);
        no = combine(i->kind - 1u, ~result, unsure, other, with);
    }
    define_predicate(u, i->p, e->mask);
    define_predicate(u, i->q, e->mask);
    for (uint32_t rest = (yes | no) & e->mask; rest != 0; rest &= rest - 1) {
        const uint32_t l = lowest_bit(rest), bit = 1u << l;
        undefine_predicate(u, i->p, yes & bit, birth[l]);
        undefine_predicate(u, i->q, no & bit, birth[l]);
    }
    return STEP_NEXT;
}

/* Logic on predicates. */
enum step defined_logic(struct defined *d, const struct event *e) {
    struct defined_warp *u = defined_of(d, e);
    const struct inst *i = e->inst;
    const uint32_t ua = u->predicate[i->q], ub = u->predicate[i->r];
    if (((ua | ub) & e->mask) == 0) {
        define_predicate(u, i->p, e->mask);
        return STEP_NEXT;
    }
    const uint32_t a = e->warp->predicates[i->q] ^ ((i->negate & 1) != 0 ? FULL : 0);
    const uint32_t b = e->warp->predicates[i->r] ^ ((i->negate & 2) != 0 ? FULL : 0);
    const uint32_t lanes = combine(i->kind, a, ua, b, ub) & e->mask;
    define_predicate(u, i->p, e->mask & ~lanes);
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        const uint32_t l = lowest_bit(rest);
        undefine_predicate(u, i->p, 1u << l, birth_of_predicate(d, e, (ua >> l & 1u) != 0 ? i->q : i->r, l));
    }
    return STEP_NEXT;
}

/* Make the results undefined in lanes whose guard is undefined, whether or not the instruction wrote them. */
enum step defined_lane_doubt(struct defined *d, const struct event *e) {
    struct defined_warp *u = defined_of(d, e);
    const struct inst *i = e->inst;
    const uint32_t lane = d->rule[e->pc].lane;
    const bool is_comparison = rows[lane].type[0] == T_PRED;
    const uint32_t bytes = type_bytes((enum type)rows[lane].type[0]);
    for (uint32_t rest = d->doubtful; rest != 0; rest &= rest - 1) {
        const uint32_t l = lowest_bit(rest), birth = birth_of_predicate(d, e, i->guard, l);
        if (!is_comparison) {
            set_bits(u, i->d, l, bytes, ones(bytes), birth);
        }
        if (is_comparison) {
            undefine_predicate(u, i->p, 1u << l, birth);
        }
        if (is_comparison) {
            undefine_predicate(u, i->q, 1u << l, birth);
        }
        if (is_carry[lane] != 0 && strstr(rows[lane].name, ".cc") != NULL) {
            undefine_predicate(u, 1, 1u << l, birth);
        }
    }
    return STEP_NEXT;
}
