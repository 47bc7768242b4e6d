/* Decode mov, cvt, setp, set, selp, testp and logic on predicates. */
#include <string.h>

#include "vm/execute/control.h"
#include "vm/execute/lanes.h"
#include "vm/machine/base.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

/* Append an instruction of lanes.def. */
static struct inst *emit_lane(struct parser *p, enum lane lane, uint32_t d, uint32_t a, uint32_t b) {
    struct inst *i = emit(p, lanes_table()[lane]);
    i->d = d;
    i->a = a;
    i->b = b;
    return i;
}

/* mov.v2 and mov.v4: one copy per element. All sources are read before the first write. */
static void decode_mov_vector(struct parser *p, uint32_t at, uint32_t count) {
    const struct statement *s = &p->statement;
    const enum type type = take_type(p, &at, "b32 u32 s32 f32 b64 u64 s64 f64 b16 u16 s16 b8 u8 s8");
    uint32_t from[4];
    take_end(p, at);
    need_count(p, 2, 2);
    for (int k = 0; k < 2; ++k) {
        if (s->operand[k].kind != OPERAND_VECTOR || s->operand[k].count != count) {
            error_at(p, &s->operand[k].token, "'%s' expects a vector of %u elements here", s->name, count);
        }
    }
    for (uint32_t k = 0; k < count; ++k) {
        from[k] = register_take(p, type);
        emit_lane(p, type_bytes(type) == 8 ? LANE_mov_64 : LANE_mov_32, from[k],
                  need_source(p, &s->operand[1].items[k], type), 0);
    }
    for (uint32_t k = 0; k < count; ++k) {
        emit_lane(p, type_bytes(type) == 8 ? LANE_mov_64 : LANE_mov_32,
                  need_destination(p, &s->operand[0].items[k], type), from[k], 0);
    }
}

/* Emit a copy between registers of the same size. */
static void emit_copy(struct parser *p, uint32_t d, uint32_t a, enum type type) {
    if (type_bytes(type) == 16) {
        emit_lane(p, LANE_mov_64, d, a, 0);
        emit_lane(p, LANE_mov_64, d + 256, a + 256, 0);
    } else {
        emit_lane(p, type_bytes(type) == 8 ? LANE_mov_64 : LANE_mov_32, d, a, 0);
    }
}

static enum type part_type(struct parser *p, enum type whole, const struct operand *vector) {
    static const enum type by_bytes[9] = {[1] = T_B8, [2] = T_B16, [4] = T_B32, [8] = T_B64};
    const unsigned bytes = type_bytes(whole);
    if ((vector->count != 2 && vector->count != 4) || bytes / vector->count == 0) {
        error_at(p, &vector->token, "'%s' expects a vector of 2 or 4 elements here", p->statement.name);
    }
    return by_bytes[bytes / vector->count];
}

/* mov.b64 d, {a, b}: the first element is the least significant. */
static void decode_pack(struct parser *p, enum type type, const struct operand *d, const struct operand *v) {
    const enum type part = part_type(p, type, v);
    uint32_t slot[4];
    for (uint32_t k = 0; k < v->count; ++k) {
        slot[k] = need_source(p, &v->items[k], part);
    }
    const uint32_t to = need_destination(p, d, type);
    if (part == T_B64) {
        const uint32_t t = register_take(p, T_B64);
        emit_lane(p, LANE_mov_64, t, slot[1], 0);
        emit_lane(p, LANE_mov_64, to, slot[0], 0);
        emit_lane(p, LANE_mov_64, to + 256, t, 0);
        return;
    }
    if (type == T_B128) {
        const uint32_t low = register_take(p, T_B64), high = register_take(p, T_B64);
        emit_lane(p, LANE_join_32, low, slot[0], slot[1]);
        emit_lane(p, LANE_join_32, high, slot[2], slot[3]);
        emit_lane(p, LANE_mov_64, to, low, 0);
        emit_lane(p, LANE_mov_64, to + 256, high, 0);
        return;
    }
    const enum lane join = part == T_B8 ? LANE_join_8 : LANE_join_16;
    if (v->count == 2) {
        emit_lane(p, part == T_B32 ? LANE_join_32 : join, to, slot[0], slot[1]);
        return;
    }
    const uint32_t low = register_take(p, T_B32), high = register_take(p, T_B32);
    emit_lane(p, join, low, slot[0], slot[1]);
    emit_lane(p, join, high, slot[2], slot[3]);
    emit_lane(p, part == T_B8 ? LANE_join_16 : LANE_join_32, to, low, high);
}

/* Emit the extraction of one part of a 32-bit value. */
static void emit_part(struct parser *p, const struct operand *o, enum type part, uint32_t from, uint32_t index) {
    if (o->kind == OPERAND_SINK) {
        return;
    }
    const uint32_t to = need_destination(p, o, part);
    if (part == T_B8) {
        emit_lane(p, LANE_byte_of, to, from, constant_slot(p, 8 * index, false, NULL));
    } else if (part == T_B16) {
        emit_lane(p, index != 0 ? LANE_high_16 : LANE_low_16, to, from, 0);
    } else {
        emit_lane(p, LANE_mov_32, to, from, 0);
    }
}

/* mov.b64 {a, b}, s */
static void decode_unpack(struct parser *p, enum type type, const struct operand *v, const struct operand *source_) {
    const enum type part = part_type(p, type, v);
    const uint32_t from = need_source(p, source_, type);
    if (part == T_B64) {
        for (uint32_t k = 0; k < 2; ++k) {
            if (v->items[k].kind != OPERAND_SINK) {
                emit_lane(p, LANE_mov_64, need_destination(p, &v->items[k], part), from + 256 * k, 0);
            }
        }
        return;
    }
    if (type_bytes(type) != 8) { /* through a temporary: the source may be one of the elements */
        const uint32_t t = register_take(p, T_B32);
        emit_lane(p, LANE_mov_32, t, from, 0);
        for (uint32_t k = 0; k < v->count; ++k) {
            emit_part(p, &v->items[k], part, t, k);
        }
        return;
    }
    if (type == T_B128) {
        error_at(p, &v->token, "'%s' expects a vector of two .b64 here", p->statement.name);
    }
    const uint32_t half[2] = {register_take(p, T_B32), register_take(p, T_B32)};
    emit_lane(p, LANE_trunc_64, half[0], from, 0);
    emit_lane(p, LANE_high_64, half[1], from, 0);
    for (uint32_t k = 0; k < v->count; ++k) {
        const uint32_t per = v->count / 2;
        emit_part(p, &v->items[k], part, half[k / per], k % per);
    }
}

/* Decode logic on predicates as setp: p = (0 == 0) op q. */
static void decode_predicate_logic(struct parser *p) {
    const struct statement *s = &p->statement;
    const bool is_not = s->name[0] == 'n', is_mov = s->name[0] == 'm';
    need_count(p, is_not || is_mov ? 2 : 3, is_not || is_mov ? 2 : 3);
    const uint16_t d = need_predicate_destination(p, &s->operand[0]);
    int negate_a, negate_b = 0;
    const uint16_t a = need_predicate(p, &s->operand[1], &negate_a);
    const uint16_t b = s->operands == 3 ? need_predicate(p, &s->operand[2], &negate_b) : 0;
    struct inst *i = emit(p, control_setp);
    i->p = d;
    i->q = a;
    i->r = b;
    i->negate = (uint8_t)((negate_a ^ is_not) | negate_b << 1);
    i->kind = s->name[0] == 'o' ? 1 : s->name[0] == 'x' ? 2 : 0; /* and, or, xor; mov and not: and with true */
}

/* selp.type d, a, b, p: d = p ? a : b */
static void decode_selp(struct parser *p) {
    const struct statement *s = &p->statement;
    uint32_t at = 0;
    const enum type type = take_type(p, &at, "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64");
    take_end(p, at);
    need_count(p, 4, 4);
    need_result(p, &s->operand[0]);
    int negate;
    const uint32_t a = need_source(p, &s->operand[1], type), b = need_source(p, &s->operand[2], type);
    const uint16_t r = need_predicate(p, &s->operand[3], &negate);
    struct inst *i = emit_lane(p, type_bytes(type) == 8 ? LANE_selp_64 : LANE_selp_32,
                               need_destination(p, &s->operand[0], type), a, b);
    i->r = r;
    i->negate = (uint8_t)negate;
}

/* testp.finite.f32 p, a */
static void decode_testp(struct parser *p) {
    const struct statement *s = &p->statement;
    uint32_t at = 0;
    const int test = take_choice(p, &at, "finite infinite number notanumber normal subnormal");
    const enum type type = take_type(p, &at, "f32 f64");
    take_end(p, at);
    need_count(p, 2, 2);
    const bool wide = type == T_F64;
    const uint32_t a = need_source(p, &s->operand[1], type), t = register_take(p, wide ? T_B64 : T_B32);
    const uint64_t sign = wide ? 1ULL << 63 : 1ULL << 31, infinity = wide ? 0x7ff0000000000000u : 0x7f800000u;
    const uint64_t normal = wide ? 1ULL << 52 : 1ULL << 23;
    emit_lane(p, wide ? LANE_and_b64 : LANE_and_b32, t, a, constant_slot(p, ~sign, wide, NULL));
    uint64_t low = 0, span = 0; /* the test is |bits| - low < span; .normal also accepts zero */
    switch (test) {
    case 0:
        span = infinity;
        break;
    case 1:
        low = infinity, span = 1;
        break;
    case 2:
        span = infinity + 1;
        break;
    case 3:
        low = infinity + 1, span = infinity;
        break;
    case 4:
        low = normal, span = infinity - normal;
        break;
    case 5:
        low = 1, span = normal - 1;
        break;
    default:
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    const enum lane less = wide ? LANE_setp_lt_u64 : LANE_setp_lt_u32;
    const uint16_t d = need_predicate_destination(p, &s->operand[0]);
    uint16_t zero = 0;
    if (test == 4) {
        zero = (uint16_t)register_take(p, T_PRED);
        emit_lane(p, less, 0, t, constant_slot(p, 1, wide, NULL))->p = zero;
    }
    emit_lane(p, wide ? LANE_sub_u64 : LANE_sub_u32, t, t, constant_slot(p, low, wide, NULL));
    struct inst *i = emit_lane(p, less, 0, t, constant_slot(p, span, wide, NULL));
    i->p = d;
    i->r = zero;
    i->kind = zero != 0 ? 2 : 0;
}

/* Decode all forms of mov, and the instructions that share its decoder. */
void decode_mov(struct parser *p) {
    const struct statement *s = &p->statement;
    uint32_t at = 0;
    if (strncmp(s->name, "selp", 4) == 0) {
        decode_selp(p);
        return;
    }
    if (strncmp(s->name, "testp", 5) == 0) {
        decode_testp(p);
        return;
    }
    if (has(p, "pred") && s->modifiers == 1) {
        decode_predicate_logic(p);
        return;
    }
    if (strncmp(s->name, "mov", 3) != 0) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    const int vector = take_choice(p, &at, "v2 v4");
    if (vector >= 0) {
        decode_mov_vector(p, at, 2u << vector);
        return;
    }
    const enum type type = take_type(p, &at, "b32 u32 s32 f32 b64 u64 s64 f64 b16 u16 s16 b128");
    take_end(p, at);
    need_count(p, 2, 2);
    const struct operand *d = &s->operand[0], *a = &s->operand[1];
    const bool packs = a->kind == OPERAND_VECTOR || d->kind == OPERAND_VECTOR;
    if (packs && type_class(type) != 'b') {
        error_at(p, &s->opcode, "unknown instruction '%s': packing needs .b32, .b64 or .b128", s->name);
    }
    if (a->kind == OPERAND_VECTOR) {
        decode_pack(p, type, d, a);
    } else if (d->kind == OPERAND_VECTOR) {
        decode_unpack(p, type, d, a);
    } else {
        need_result(p, d);
        const uint32_t from = need_source(p, a, type);
        emit_copy(p, need_destination(p, d, type), from, type);
    }
}

/* ---- comparisons ---- */

static const struct {
    const char *name;
    enum type type;
    enum lane lane;
} comparisons[] = {
#define P(name, comparison, T, condition) {comparison, T_##T, LANE_setp_##name},
#include "vm/execute/lanes.def"
};

/* Find the comparison with this name for a type. eq and ne ignore the sign, so they serve signed and unsigned
 * integers. */
static int find_comparison(const char *name, size_t length, enum type type) {
    static const enum type plain[TYPE_COUNT] = {[T_B16] = T_U16, [T_S16] = T_S16, [T_U16] = T_U16, [T_B32] = T_U32,
                                                [T_U32] = T_U32, [T_S32] = T_S32, [T_B64] = T_U64, [T_U64] = T_U64,
                                                [T_S64] = T_S64, [T_F32] = T_F32, [T_F64] = T_F64};
    static const enum type of_signed[TYPE_COUNT] = {[T_S16] = T_U16, [T_S32] = T_U32, [T_S64] = T_U64};
    static const char *const synonyms[][2] = {{"lo", "lt"}, {"ls", "le"}, {"hi", "gt"}, {"hs", "ge"}};
    enum type want = plain[type];
    for (size_t k = 0; k < 4; ++k) {
        if (length == 2 && memcmp(name, synonyms[k][0], 2) == 0 && type_class(type) == 'i' && want != T_S16 &&
            want != T_S32 && want != T_S64) {
            name = synonyms[k][1];
        }
    }
    if (length == 2 && of_signed[type] != T_NONE && (memcmp(name, "eq", 2) == 0 || memcmp(name, "ne", 2) == 0)) {
        want = of_signed[type];
    }
    if (type_class(type) == 'b' && (length != 2 || (memcmp(name, "eq", 2) != 0 && memcmp(name, "ne", 2) != 0))) {
        return -1;
    }
    for (size_t k = 0; k < sizeof comparisons / sizeof *comparisons; ++k) {
        if (comparisons[k].type == want && strlen(comparisons[k].name) == length &&
            memcmp(comparisons[k].name, name, length) == 0) {
            return (int)comparisons[k].lane;
        }
    }
    return -1;
}

/* Return a source of setp. f16 and bf16 are widened to f32. For packed types, `half` selects the element. */
static uint32_t compared(struct parser *p, const struct operand *o, enum type type, int half, uint32_t flags) {
    uint32_t slot = need_source(p, o, type);
    const bool is_half = type == T_F16 || type == T_F16X2, is_brain = type == T_BF16 || type == T_BF16X2;
    if (!is_half && !is_brain) {
        return slot;
    }
    if (type == T_F16X2 || type == T_BF16X2) {
        const uint32_t part = register_take(p, T_B16);
        emit_lane(p, half != 0 ? LANE_high_16 : LANE_low_16, part, slot, 0);
        slot = part;
    }
    const uint32_t t = register_take(p, T_F32);
    emit_lane(p, is_half ? LANE_compared_f16 : LANE_cvt_f32_bf16, t, slot, 0)->flags = flags;
    return t;
}

/* The modifiers of setp and set. */
struct comparison {
    enum lane lane;
    enum type type;
    uint32_t flags;
    int combine;
};

static const char comparison_words[] = "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan";

/* Read the modifiers of a comparison. Those of set include its destination type. */
static struct comparison read_comparison(struct parser *p) {
    static const char *const types = "u32 s32 b32 f32 u64 s64 b64 f64 u16 s16 b16 f16 bf16 f16x2 bf16x2";
    struct statement *s = &p->statement;
    uint32_t at = 0;
    if (s->modifiers == 0) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    at += take_choice(p, &at, comparison_words) < 0; /* an unknown comparison is reported below */
    const char *name = s->modifier[0];
    const size_t length = s->modifier_length[0];
    struct comparison c = {.combine = take_choice(p, &at, "and or xor")};
    c.flags = take(p, &at, "ftz") ? FLAG_FTZ : 0;
    at += s->name[3] == '.';
    c.type = take_type(p, &at, types);
    take_end(p, at);
    if (c.flags != 0 && c.type != T_F32 && c.type != T_F16 && c.type != T_F16X2) {
        error_at(p, &s->opcode, "unknown instruction '%s': .ftz needs .f32, .f16 or .f16x2", s->name);
    }
    const bool halves = type_bytes(c.type) == 2 ? type_class(c.type) == 'f' : type_class(c.type) == 'x';
    const int lane = find_comparison(name, length, halves ? T_F32 : c.type);
    if (lane < 0) {
        error_at(p, &s->opcode, "unknown instruction '%s': .%s does not support this comparison", s->name,
                 type_name(c.type));
    }
    c.lane = (enum lane)lane;
    need_count(p, 3 + (c.combine >= 0), 3 + (c.combine >= 0));
    return c;
}

/* Emit the comparison of operands 1 and 2, or of one half of each. The caller sets p and q. */
static struct inst *emit_comparison(struct parser *p, const struct comparison *c, int half) {
    const struct statement *s = &p->statement;
    int negate = 0;
    const uint16_t r = c->combine >= 0 ? need_predicate(p, &s->operand[3], &negate) : 0;
    const uint32_t a = compared(p, &s->operand[1], c->type, half, c->flags);
    const uint32_t b = compared(p, &s->operand[2], c->type, half, c->flags);
    struct inst *i = emit_lane(p, c->lane, 0, a, b);
    i->flags = c->type == T_F32 ? c->flags : 0;
    i->kind = (uint8_t)(c->combine + 1);
    i->r = r;
    i->negate = (uint8_t)negate;
    return i;
}

/* setp.cmp{.boolop}{.ftz}.type p{|q}, a, b{, {!}c}. For packed types, p is the result of the lower half and q that
 * of the upper. */
void decode_setp(struct parser *p) {
    const struct operand *d = &p->statement.operand[0];
    const bool pair = d->kind == OPERAND_PAIR;
    const struct comparison c = read_comparison(p);
    if (pair && (c.type == T_F16 || c.type == T_BF16)) {
        error_at(p, &d->token, "'%s' writes one predicate, not p|q", p->statement.name);
    }
    const uint16_t first = need_predicate_destination(p, pair ? &d->items[0] : d);
    const uint16_t second = pair ? need_predicate_destination(p, &d->items[1]) : 0;
    if (type_class(c.type) != 'x') {
        struct inst *i = emit_comparison(p, &c, 0);
        i->p = first;
        i->q = second;
        return;
    }
    if (!pair) {
        error_at(p, &p->statement.opcode, "'%s' expects two predicates: p|q", p->statement.name);
    }
    const uint16_t low = (uint16_t)register_take(p, T_PRED);
    emit_comparison(p, &c, 0)->p = low;
    emit_comparison(p, &c, 1)->p = second;
    struct inst *i = emit(p, control_setp); /* last, because p may be the predicate of the third operand */
    i->p = first;
    i->q = low;
}

/* set.cmp{.boolop}{.ftz}.dtype.stype d, a, b{, {!}c}. True is all ones or 1.0, in each half of a packed type. */
void decode_set(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    take_choice(p, &at, comparison_words);
    take_choice(p, &at, "and or xor");
    take(p, &at, "ftz");
    const enum type type = take_type(p, &at, "u32 s32 f32 u16 s16 f16 bf16 f16x2 bf16x2");
    const struct comparison c = read_comparison(p);
    const int packed = type_class(c.type) == 'x', half = c.type == T_F16 || c.type == T_BF16;
    const bool mask = type == T_U32 || type == T_S32;
    const int good = packed != 0                                        ? type == c.type || mask
                     : type_class(type) == 'x'                          ? 0
                     : type_bytes(type) == 2 && type_class(type) == 'i' ? half
                     : type == T_F32                                    ? half == 0
                     : type == T_F16                                    ? c.type != T_BF16
                                                                        : 1;
    if (good == 0 || (c.flags != 0 && type == T_BF16)) {
        error_at(p, &s->opcode, "unknown instruction '%s': these two types cannot be combined", s->name);
    }
    const uint32_t one = type == T_F32                          ? 0x3f800000u
                         : type == T_F16 || type == T_F16X2     ? 0x3c00u
                         : type == T_BF16 || type == T_BF16X2   ? 0x3f80u
                         : packed != 0 || type_bytes(type) == 2 ? 0xffffu
                                                                : FULL;
    uint32_t part[2] = {0};
    for (int half = 0; half <= packed; ++half) {
        const uint16_t t = (uint16_t)register_take(p, T_PRED);
        emit_comparison(p, &c, half)->p = t;
        part[half] = packed != 0 ? register_take(p, T_B32) : need_destination(p, &s->operand[0], type);
        emit_lane(p, LANE_selp_32, part[half], constant_slot(p, one, false, NULL), constant_slot(p, 0, false, NULL))
            ->r = t;
    }
    if (packed != 0) {
        emit_lane(p, LANE_join_16, need_destination(p, &s->operand[0], type), part[0], part[1]);
    }
}

/* lop3.boolop.b32 d|p, a, b, c, table, {!}q: p = (d != 0) boolop q */
void decode_lop3(struct parser *p) {
    struct statement *s = &p->statement;
    uint32_t at = 0;
    const int combine = take_choice(p, &at, "or and");
    if (combine < 0 || !take(p, &at, "b32")) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    take_end(p, at);
    need_count(p, 6, 6);
    const struct operand *d = &s->operand[0];
    if (d->kind != OPERAND_PAIR) {
        error_at(p, &s->opcode, "'%s' expects a register and a predicate: d|p", s->name);
    }
    int negate = 0;
    const uint16_t q = need_predicate(p, &s->operand[5], &negate);
    const uint32_t a = need_source(p, &s->operand[1], T_B32), b = need_source(p, &s->operand[2], T_B32);
    const uint32_t c = need_source(p, &s->operand[3], T_B32);
    const uint32_t table = constant_slot(p, (uint64_t)need_integer(p, &s->operand[4], 0, 255), false, NULL);
    const uint32_t to = need_destination(p, &d->items[0], T_B32);
    struct inst *i = emit_lane(p, LANE_lop3_b32, to, a, b);
    i->c = c;
    i->e = table;
    i = emit_lane(p, LANE_setp_ne_u32, 0, to, constant_slot(p, 0, false, NULL));
    i->p = need_predicate_destination(p, &d->items[1]);
    i->kind = combine != 0 ? 1 : 2;
    i->r = q;
    i->negate = (uint8_t)negate;
}

/* ---- conversions ---- */

/* Extend a narrow result to the register that receives it. */
void emit_extend(struct parser *p, const struct operand *d, enum type type, uint32_t from) {
    const bool is_signed = type == T_S8 || type == T_S16 || type == T_S32;
    const unsigned bytes = type_bytes(type), into = d->kind == OPERAND_REGISTER ? type_bytes(d->type) : bytes;
    const uint32_t to = need_destination_wide(p, d, type);
    uint32_t narrow = from;
    if (is_signed && bytes < 4 && into > bytes) {
        narrow = into == 8 ? register_take(p, T_B32) : to;
        emit_lane(p, bytes == 1 ? LANE_sext_8 : LANE_sext_16, narrow, from, 0);
        if (into == 2) {
            emit_lane(p, LANE_low_16, to, narrow, 0);
        }
    }
    if (into == 8 && bytes < 8) {
        emit_lane(p, is_signed ? LANE_sext_64 : LANE_zext_64, to, narrow, 0);
    } else if (narrow != to) {
        emit_lane(p, bytes == 8 ? LANE_mov_64 : LANE_mov_32, to, narrow, 0);
    }
}

/* Convert a source of any numeric type to a 64-bit integer or a double. */
static uint32_t emit_widen(struct parser *p, enum type type, uint32_t from, uint32_t flags) {
    static const enum lane lanes[TYPE_COUNT] = {
        [T_U8] = LANE_wide_u8,   [T_S8] = LANE_wide_s8,     [T_U16] = LANE_wide_u16,
        [T_S16] = LANE_wide_s16, [T_U32] = LANE_wide_u32,   [T_S32] = LANE_wide_s32,
        [T_F16] = LANE_wide_f16, [T_BF16] = LANE_wide_bf16, [T_F32] = LANE_wide_f32};
    if (type_bytes(type) == 8) {
        return from;
    }
    const uint32_t t = register_take(p, T_B64);
    emit_lane(p, lanes[type], t, from, 0)->flags = flags & FLAG_FTZ;
    return t;
}

/* Convert a 64-bit integer to a narrower integer. With .sat the value is clamped. */
static void emit_narrow(struct parser *p, enum type to, enum type from_type, uint32_t d, uint32_t from, bool saturate) {
    static const enum lane clamps[TYPE_COUNT] = {[T_U8] = LANE_clamp_u8,   [T_S8] = LANE_clamp_s8,
                                                 [T_U16] = LANE_clamp_u16, [T_S16] = LANE_clamp_s16,
                                                 [T_U32] = LANE_clamp_u32, [T_S32] = LANE_clamp_s32};
    if (saturate && from_type == T_U64 && to != T_U64) {
        const uint32_t t = register_take(p, T_B64);
        emit_lane(p, LANE_clamp_unsigned, t, from, 0);
        from = t;
    }
    if (saturate && clamps[to] != LANE_add_u16) {
        emit_lane(p, clamps[to], d, from, 0);
    } else if (saturate && to == T_U64 && from_type != T_U64) {
        emit_lane(p, LANE_clamp_u64, d, from, 0);
    } else if (type_bytes(to) == 8) {
        emit_lane(p, LANE_mov_64, d, from, 0);
    } else {
        emit_lane(p,
                  type_bytes(to) == 4   ? LANE_trunc_64
                  : type_bytes(to) == 2 ? LANE_narrow_16
                                        : LANE_narrow_8,
                  d, from, 0);
    }
}

/* Emit one conversion between a number and its 64-bit intermediate. */
static void emit_number(struct parser *p, enum type to, enum type from_type, uint32_t d, uint32_t from,
                        uint32_t flags) {
    static const enum lane from_f64[TYPE_COUNT] = {
        [T_U8] = LANE_f64_to_u8,   [T_S8] = LANE_f64_to_s8,     [T_U16] = LANE_f64_to_u16, [T_S16] = LANE_f64_to_s16,
        [T_U32] = LANE_f64_to_u32, [T_S32] = LANE_f64_to_s32,   [T_U64] = LANE_f64_to_u64, [T_S64] = LANE_f64_to_s64,
        [T_F16] = LANE_f64_to_f16, [T_BF16] = LANE_f64_to_bf16, [T_F32] = LANE_f64_to_f32, [T_F64] = LANE_mov_64};
    static const enum lane from_integer[TYPE_COUNT][2] = {[T_F16] = {LANE_s64_to_f16, LANE_u64_to_f16},
                                                          [T_BF16] = {LANE_s64_to_bf16, LANE_u64_to_bf16},
                                                          [T_F32] = {LANE_s64_to_f32, LANE_u64_to_f32},
                                                          [T_F64] = {LANE_s64_to_f64, LANE_u64_to_f64}};
    if (type_class(from_type) == 'f') {
        emit_lane(p, from_f64[to], d, from, 0)->flags = flags;
    } else {
        emit_lane(p, from_integer[to][from_type == T_U64], d, from, 0)->flags = flags;
    }
}

/* Read the modifiers of a scalar cvt. */
static uint32_t cvt_flags(struct parser *p, uint32_t *at, int *integral) {
    static const uint32_t modes[9] = {0, 1, 2, 3, 0, 1, 2, 3, 4};
    const int rounding = take_choice(p, at, "rn rz rm rp rni rzi rmi rpi rna");
    uint32_t flags = rounding >= 0 ? modes[rounding] * FLAG_ROUND : 0;
    *integral = rounding >= 4 && rounding < 8;
    if (rounding < 0) {
        *integral = -1;
    }
    flags |= take(p, at, "ftz") ? FLAG_FTZ : 0;
    flags |= take(p, at, "sat") ? FLAG_SAT : 0;
    return flags;
}

/* Report modifiers that a scalar cvt between these types does not allow. */
static void check_cvt(struct parser *p, enum type to, enum type from) {
    const struct statement *s = &p->statement;
    const bool to_float = type_class(to) == 'f', from_float = type_class(from) == 'f';
    const bool wider = to_float && from_float && (type_bytes(to) > type_bytes(from) || to == from);
    const bool rounds = has(p, "rn") || has(p, "rz") || has(p, "rm") || has(p, "rp");
    const bool integral = has(p, "rni") || has(p, "rzi") || has(p, "rmi") || has(p, "rpi");
    const bool brain = to == T_BF16 || from == T_BF16, byte = type_bytes(to) == 1 || type_bytes(from) == 1;
    if (has(p, "rna") || (wider && rounds && (from != T_BF16 || to == from)) || (wider && to != from && integral)) {
        error_at(p, &s->opcode, "unknown instruction '%s': this rounding is not supported between these types",
                 s->name);
    }
    if (has(p, "ftz") && to != T_F32 && from != T_F32) {
        error_at(p, &s->opcode, "unknown instruction '%s': .ftz needs .f32", s->name);
    }
    const struct operand *o = &s->operand[to == T_BF16 ? 1 : 0]; /* ptxas takes bytes only from and in .b8 */
    const bool is_byte = s->operands == 2 && o->kind == OPERAND_REGISTER && type_bytes(o->type) == 1;
    if (brain && (has(p, "sat") || (byte && !is_byte))) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
}

/* cvt{.round}{.ftz}{.sat}.dtype.atype d, a for scalars. Packed forms are rows of lanes.def. */
void decode_cvt(struct parser *p) {
    static const char *const types = "u8 s8 u16 s16 u32 s32 u64 s64 f16 bf16 f32 f64";
    struct statement *s = &p->statement;
    uint32_t at = 0;
    int integral;
    uint32_t flags = cvt_flags(p, &at, &integral);
    const enum type to = take_type(p, &at, types), from = take_type(p, &at, types);
    check_cvt(p, to, from);
    if (to == T_F16 && from == T_F32) { /* f16 keeps subnormals, and a subnormal f32 rounds to zero anyway */
        flags &= ~(uint32_t)FLAG_FTZ;
    }
    take_end(p, at);
    need_count(p, 2, 2);
    const bool to_float = type_class(to) == 'f', from_float = type_class(from) == 'f';
    need_result(p, &s->operand[0]);
    if (s->operand[1].is_special && (to_float || from_float)) {
        error_at(p, &s->operand[1].token, "'%s' cannot read a hardware register; copy it with mov", s->name);
    }
    const bool narrows = to_float && (!from_float || type_bytes(from) > type_bytes(to) ||
                                      (type_bytes(from) == type_bytes(to) && from != to));
    if (from_float && !to_float && integral != 1) {
        error_at(p, &s->opcode, "'%s' needs an integer rounding: .rni, .rzi, .rmi or .rpi", s->name);
    }
    if (narrows && integral != 0 && !(integral < 0 && type_bytes(to) == 2 && type_bytes(from) == 2 && from_float)) {
        error_at(p, &s->opcode, "'%s' needs a rounding: .rn, .rz, .rm or .rp", s->name);
    }
    const int to_signed = type_name(to)[0] == 's', from_signed = type_name(from)[0] == 's';
    const bool holds = to_signed == from_signed ? type_bytes(to) >= type_bytes(from)
                                                : to_signed != 0 && type_bytes(to) > type_bytes(from);
    if (!to_float && !from_float && (flags & FLAG_SAT) != 0 && holds) {
        error_at(p, &s->opcode, "'%s' cannot saturate: every source value fits the result; remove .sat", s->name);
    }
    if (!to_float && !from_float && integral >= 0) {
        error_at(p, &s->opcode, "'%s' converts between integers; remove the rounding modifier", s->name);
    }
    const uint32_t a = need_source_wide(p, &s->operand[1], from);
    uint32_t wide = emit_widen(p, from, a, flags);
    const enum type wide_type = from_float ? T_F64 : from == T_U64 ? T_U64 : T_S64;
    const uint32_t t = register_take(p, type_bytes(to) == 8 ? T_B64 : T_B32);
    if (!to_float && !from_float) {
        emit_narrow(p, to, wide_type, t, wide, (flags & FLAG_SAT) != 0);
    } else {
        if (to_float && from_float && (integral == 1 || (to == T_F64 && (flags & FLAG_SAT) != 0))) {
            const uint32_t rounded = register_take(p, T_B64), no_rounding = 5 * FLAG_ROUND;
            emit_lane(p, LANE_round_f64, rounded, wide, 0)->flags = integral == 1 ? flags : FLAG_SAT | no_rounding;
            wide = rounded;
        }
        const uint32_t nan = from == T_F64 ? FLAG_NAN : 0;
        emit_number(p, to, wide_type, t, wide, nan | (integral == 1 && to_float ? flags & FLAG_FTZ : flags));
    }
    emit_extend(p, &s->operand[0], to, t);
}
