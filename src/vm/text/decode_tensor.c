/* Decode mma.sync and mma.sp: shapes, types, kinds, block scales, metadata. */
#include "vm/execute/control.h"
#include "vm/execute/mma.h"
#include "vm/execute/tensor.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

static NORETURN void unknown(struct parser *p) {
    error_at(p, &p->statement.opcode, "unknown instruction '%s'", p->statement.name);
}

/* Types of d, a, b and c, as in .f32.e4m3.e4m3.f32. */
struct mma_types {
    int d, a, b, c;
};

enum { KIND_NONE, KIND_F8F6F4, KIND_MXF8F6F4, KIND_MXF4, KIND_MXF4NVF4 };

static const struct {
    const char *name;
    int type;
} inputs[] = {{"bf16", MMA_BF16}, {"f16", MMA_F16},   {"tf32", MMA_TF32}, {"s8", MMA_S8},     {"u8", MMA_U8},
              {"e4m3", MMA_E4M3}, {"e5m2", MMA_E5M2}, {"e2m3", MMA_E2M3}, {"e3m2", MMA_E3M2}, {"e2m1", MMA_E2M1},
              {"s4", MMA_S4},     {"u4", MMA_U4},     {"b1", MMA_B1_AND}};

static int take_input(struct parser *p, uint32_t *at) {
    for (size_t k = 0; k < sizeof inputs / sizeof *inputs; ++k) {
        if (take(p, at, inputs[k].name)) {
            return inputs[k].type;
        }
    }
    error_at(p, &p->statement.opcode, "unknown instruction '%s': expected a type of the matrices a and b",
             p->statement.name);
}

static int take_accumulator(struct parser *p, uint32_t *at) {
    static const int types[] = {MMA_ACC_F32, MMA_ACC_F16, MMA_ACC_S32};
    const int k = take_choice(p, at, "f32 f16 s32");
    if (k < 0) {
        unknown(p);
    }
    return types[k];
}

/* Take a kind. It may stand before or after the shape. */
static int take_kind(struct parser *p, uint32_t *at) {
    return take_choice(p, at, "kind::f8f6f4 kind::mxf8f6f4 kind::mxf4 kind::mxf4nvf4") + 1;
}

/* Check that a kind supports these scales, and set them in the shape. */
static void check_scale(struct parser *p, int kind, int vector, int stype, struct mma_shape *shape) {
    const struct statement *s = &p->statement;
    shape->scale = stype == 0 ? MMA_UE8M0 : MMA_UE4M3;
    if (kind == KIND_MXF8F6F4 && (vector == 0 || vector == 1) && stype == 0) {
        shape->scale_vec = 1;
    } else if (kind == KIND_MXF4 && (vector == 0 || vector == 2) && stype == 0) {
        shape->scale_vec = 2;
    } else if (kind == KIND_MXF4NVF4 && vector == 2 && stype == 0) {
        shape->scale_vec = 2;
    } else if (kind == KIND_MXF4NVF4 && vector == 4 && stype == 1) {
        shape->scale_vec = 4;
    } else {
        error_at(p, &s->opcode, "unknown instruction '%s': this kind does not support these scales", s->name);
    }
}

/* Read all modifiers of mma.sync into a shape. Return the kind. */
static int read_modifiers(struct parser *p, struct mma_shape *shape) {
    struct statement *s = &p->statement;
    static const uint16_t depths[] = {4, 8, 16, 32, 64, 128, 256, 16, 32, 128};
    uint32_t at = 0;
    int vector = 0;
    shape->sparse = take_choice(p, &at, "sp sp::ordered_metadata") >= 0;
    if (!take(p, &at, "sync") || !take(p, &at, "aligned")) {
        unknown(p);
    }
    int kind = take_kind(p, &at), scaled = take(p, &at, "block_scale");
    const char *const vectors = "scale_vec::1X scale_vec::2X scale_vec::4X";
    int v = scaled != 0 ? take_choice(p, &at, vectors) : -1;
    const int k = take_choice(p, &at,
                              "m16n8k4 m16n8k8 m16n8k16 m16n8k32 m16n8k64 m16n8k128 m16n8k256 "
                              "m8n8k16 m8n8k32 m8n8k128");
    if (k < 0) {
        error_at(p, &s->opcode, "unsupported instruction '%s'%s", s->name,
                 has(p, "m8n8k4") ? ": only Volta supports this shape with .f16" : "");
    }
    shape->k = depths[k];
    if (!take(p, &at, "row") || !take(p, &at, "col")) {
        unknown(p);
    }
    kind = kind != 0 ? kind : take_kind(p, &at);
    if (scaled == 0 && take(p, &at, "block_scale")) {
        scaled = 1;
        v = take_choice(p, &at, vectors);
    }
    vector = v < 0 ? 0 : 1 << v;
    shape->saturate = (uint8_t)take(p, &at, "satfinite");
    const int d = take_accumulator(p, &at), a = take_input(p, &at), b = take_input(p, &at);
    const int c = take_accumulator(p, &at);
    shape->a_type = (uint8_t)a, shape->b_type = (uint8_t)b, shape->accumulator = (uint8_t)d;
    if (d != c) {
        error_at(p, &s->opcode, "unknown instruction '%s': the types of d and c must be the same", s->name);
    }
    if (scaled != (kind >= KIND_MXF8F6F4)) {
        unknown(p);
    }
    if (scaled != 0) {
        const int stype = take_choice(p, &at, "ue8m0 ue4m3");
        if (stype < 0) {
            unknown(p);
        }
        check_scale(p, kind, vector, stype, shape);
    }
    if (a == MMA_B1_AND && b == MMA_B1_AND) {
        const int operation = take_choice(p, &at, "and xor");
        if (operation < 0 || !take(p, &at, "popc")) {
            unknown(p);
        }
        shape->a_type = shape->b_type = operation != 0 ? MMA_B1_XOR : MMA_B1_AND;
    }
    take_end(p, at);
    return kind;
}

/* Return whether a type is an 8-bit, 6-bit or 4-bit float in a byte, not before `first` in their order. */
static bool is_byte_float_from(int type, int first) {
    return type >= first && type <= MMA_E2M1;
}

/* Report sparse forms that the target or the metadata order excludes. */
static void check_sparse(struct parser *p, int kind, const struct mma_shape *shape) {
    const struct statement *s = &p->statement;
    const bool half = is_byte_float_from(shape->a_type, MMA_E4M3) && shape->accumulator == MMA_ACC_F16;
    if ((kind != 0 || half) && !has(p, "sp::ordered_metadata")) {
        error_at(p, &s->opcode, "unknown instruction '%s': this type needs .sp::ordered_metadata", s->name);
    }
    if (half) {
        need_feature(p, 120, true, "a sparse mma of 8-bit floats with .f16 accumulators");
    }
    if (kind >= KIND_MXF4 && p->target_suffix != 'a') {
        error_at(p, &s->opcode, "a sparse mma of .kind::mxf4 needs .target sm_120a or sm_121a");
    }
}

/* Report combinations that the kind excludes. */
static void check_mma_shape(struct parser *p, int kind, struct mma_shape *shape) {
    const struct statement *s = &p->statement;
    const bool small = is_byte_float_from(shape->a_type, MMA_E2M3) || is_byte_float_from(shape->b_type, MMA_E2M3);
    const bool bytes = is_byte_float_from(shape->a_type, MMA_E4M3) && is_byte_float_from(shape->b_type, MMA_E4M3);
    const bool four = kind == KIND_MXF4 || kind == KIND_MXF4NVF4;
    if (kind != 0) {
        need_feature(p, 120, true, kind == KIND_F8F6F4 ? "mma with .kind::f8f6f4" : "mma with block scale");
    }
    const int depth = shape->sparse != 0 ? shape->k / 2 : shape->k;
    if ((kind != 0 && !bytes) || (kind == 0 && small) || (four && depth != 64) ||
        (four && (shape->a_type != MMA_E2M1 || shape->b_type != MMA_E2M1)) ||
        (kind >= KIND_MXF8F6F4 && shape->accumulator != MMA_ACC_F32) || (kind == KIND_MXF8F6F4 && depth != 32)) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    if (shape->sparse != 0) {
        check_sparse(p, kind, shape);
    }
    if (four) {
        shape->a_type = shape->b_type = MMA_E2M1_PACKED;
    }
}

/* Read a vector of registers. */
static void read_fragment(struct parser *p, const struct operand *o, uint32_t count, enum type type, bool is_source,
                          struct fragment *to) {
    if (o->kind != OPERAND_VECTOR && count == 1) {
        to->slot[0] = is_source ? need_source(p, o, type) : need_destination(p, o, type);
    } else if (o->kind != OPERAND_VECTOR || o->count != count) {
        error_at(p, &o->token, "'%s' expects a vector of %u registers here", p->statement.name, count);
    } else {
        for (uint32_t k = 0; k < count; ++k) {
            to->slot[k] = is_source ? need_source(p, &o->items[k], type) : need_destination(p, &o->items[k], type);
        }
    }
    to->count = count;
    to->together = 1;
    for (uint32_t k = 0; k < count; ++k) {
        to->together &= to->slot[k] == to->slot[0] + 128 * k && (to->slot[k] & 1) == 0;
    }
}

/* Read {byte-id, thread-id}: constants or 16-bit registers. `first` is 0 for A, 2 for B. */
static void read_selectors(struct parser *p, const struct operand *o, struct mma_plan *plan, uint32_t first) {
    if (o->kind != OPERAND_VECTOR || o->count != 2) {
        error_at(p, &o->token, "'%s' expects {byte-id, thread-id} here", p->statement.name);
    }
    for (uint32_t k = 0; k < 2; ++k) {
        const struct operand *item = &o->items[k];
        const uint32_t vector = plan->shape.scale_vec, most = k != 0        ? first != 0 ? 3 : 1
                                                              : vector == 1 ? 3
                                                              : vector == 2 ? 2
                                                                            : 0;
        if (item->kind == OPERAND_INTEGER) {
            if (item->integer > most || (k == 0 && vector == 2 && item->integer % 2 != 0)) {
                error_at(p, &item->token, "the %s is %llu; expected %s", k != 0 ? "thread-id" : "byte-id",
                         (unsigned long long)item->integer,
                         k != 0        ? first != 0 ? "0 to 3" : "0 or 1"
                         : vector == 1 ? "0 to 3"
                         : vector == 2 ? "0 or 2"
                                       : "0");
            }
            plan->value[first + k] = (uint8_t)item->integer;
        } else {
            plan->constant = 0;
        }
        plan->selector[first + k] = need_source(p, item, T_U16);
    }
}

/* Read metadata and sparsity selector. One, two or four of every four lanes hold metadata, because a row has 4, 8 or
 * 16 pairs. */
static void read_metadata(struct parser *p, struct mma_plan *plan) {
    const struct statement *s = &p->statement;
    const uint32_t chunks = mma_chunks(&plan->shape), lanes = chunks / 4;
    if (s->operand[4].kind != OPERAND_REGISTER) {
        error_at(p, &s->operand[4].token, "'%s' expects its metadata in a register here", s->name);
    }
    plan->metadata = need_source(p, &s->operand[4], T_B32);
    plan->sparsity = (uint8_t)need_integer(p, &s->operand[5], 0, 4 / lanes - 1);
    plan->holders = (uint8_t)(((1u << lanes) - 1) << lanes * plan->sparsity);
    plan->pairs = plan->shape.a_type == MMA_TF32   ? MMA_PAIRS_TF32
                  : has(p, "sp::ordered_metadata") ? MMA_PAIRS_ORDERED
                                                   : MMA_PAIRS_ANY;
}

/* Reduce a product of 16 rows to 8: the upper rows of A and C are zero, those of D are dropped. */
void tensor_drop_upper_rows(struct parser *p, struct mma_plan *plan) {
    const uint32_t zero = constant_slot(p, 0, false, NULL);
    plan->a.slot[1] = plan->c.slot[2] = plan->c.slot[3] = zero;
    plan->d.slot[2] = register_take(p, T_B32);
    plan->d.slot[3] = register_take(p, T_B32);
    plan->a.count = 2;
    plan->c.count = plan->d.count = 4;
    plan->a.together = plan->c.together = plan->d.together = 0;
}

/* mma.sync.aligned.{m8n8k4 m16n8k4 m16n8k8 m16n8k16}.row.col{.rnd}.f64.f64.f64.f64 d, a, b, c */
static void decode_mma_double(struct parser *p) {
    struct statement *s = &p->statement;
    struct mma_plan *plan = parser_take(p, sizeof *plan);
    uint32_t at = 0;
    if (!take(p, &at, "sync") || !take(p, &at, "aligned")) {
        unknown(p);
    }
    const int shape = take_choice(p, &at, "m8n8k4 m16n8k4 m16n8k8 m16n8k16");
    if (shape < 0 || !take(p, &at, "row") || !take(p, &at, "col")) {
        unknown(p);
    }
    const int rounding = take_choice(p, &at, "rn rz rm rp");
    for (int k = 0; k < 4; ++k) {
        if (!take(p, &at, "f64")) {
            unknown(p);
        }
    }
    take_end(p, at);
    need_count(p, 4, 4);
    const uint32_t rows = shape != 0 ? 16 : 8, depth = shape != 0 ? 2u << shape : 4;
    plan->shape.k = (uint16_t)depth;
    read_fragment(p, &s->operand[0], rows / 4, T_F64, false, &plan->d);
    read_fragment(p, &s->operand[1], rows * depth / 32, T_F64, true, &plan->a);
    read_fragment(p, &s->operand[2], depth / 4, T_F64, true, &plan->b);
    read_fragment(p, &s->operand[3], rows / 4, T_F64, true, &plan->c);
    plan->flops = 2u * rows * 8u * depth;
    struct inst *i = emit(p, control_aligned);
    i->next = tensor_mma_double;
    i->more = plan;
    i->flags = rounding > 0 ? (uint32_t)rounding * FLAG_ROUND : 0;
}

/* Return the bits of an element, including padding in its container. */
static uint32_t element_bits(int type) {
    switch (type) {
    case MMA_TF32:
        return 32;
    case MMA_BF16:
    case MMA_F16:
        return 16;
    case MMA_E2M1_PACKED:
    case MMA_S4:
    case MMA_U4:
        return 4;
    case MMA_B1_AND:
    case MMA_B1_XOR:
        return 1;
    default:
        return 8;
    }
}

/* mma.sync.aligned.m16n8k*.row.col... or, for integers, .m8n8k*: d, a, b, c{, scale-a, {byte, thread}, scale-b,
 * {byte, thread}}. mma.sp takes metadata and a selector after c. */
void decode_mma(struct parser *p) {
    struct statement *s = &p->statement;
    if (has(p, "f64")) {
        decode_mma_double(p);
        return;
    }
    struct mma_plan *plan = parser_take(p, sizeof *plan);
    struct mma_shape *shape = &plan->shape;
    const int kind = read_modifiers(p, shape);
    check_mma_shape(p, kind, shape);
    plan->run = mma_find(shape);
    if (plan->run == NULL) {
        error_at(p, &s->opcode, "unsupported instruction '%s'", s->name);
    }
    const uint32_t bits = element_bits(shape->a_type);
    const bool half = has(p, "m8n8k16") || has(p, "m8n8k32") || has(p, "m8n8k128");
    if (half && (shape->accumulator != MMA_ACC_S32 || shape->k * bits != 128)) {
        error_at(p, &s->opcode, "unknown instruction '%s'", s->name);
    }
    const uint32_t b = 8u * shape->k * bits / 1024u, a = shape->sparse != 0 ? b : 2 * b;
    const uint32_t accumulators = half || shape->accumulator == MMA_ACC_F16 ? 2 : 4;
    static const enum type fragments[] = {[MMA_BF16] = T_BF16X2, [MMA_F16] = T_F16X2, [MMA_TF32] = T_TF32};
    const enum type part = shape->a_type <= MMA_TF32 ? fragments[shape->a_type] : T_B32;
    const enum type type = shape->accumulator == MMA_ACC_F32   ? T_F32
                           : shape->accumulator == MMA_ACC_F16 ? T_F16X2
                                                               : T_U32;
    const uint32_t scales = shape->sparse != 0 ? 6 : 4, operands = scales + (shape->scale != 0 ? 4 : 0);
    need_count(p, operands, operands);
    read_fragment(p, &s->operand[0], accumulators, type, false, &plan->d);
    read_fragment(p, &s->operand[1], half ? 1 : a, part, true, &plan->a);
    read_fragment(p, &s->operand[2], b, part, true, &plan->b);
    read_fragment(p, &s->operand[3], accumulators, type, true, &plan->c);
    if (half) {
        tensor_drop_upper_rows(p, plan);
    }
    plan->flops = 2u * (half ? 8u : 16u) * 8u * shape->k;
    plan->constant = 1;
    if (shape->sparse != 0) {
        read_metadata(p, plan);
    }
    if (shape->scale != 0) {
        plan->scale_a = need_source(p, &s->operand[scales], T_B32);
        read_selectors(p, &s->operand[scales + 1], plan, 0);
        plan->scale_b = need_source(p, &s->operand[scales + 2], T_B32);
        read_selectors(p, &s->operand[scales + 3], plan, 2);
    }
    struct inst *i = emit(p, control_aligned);
    i->next = tensor_mma;
    i->more = plan;
}
