/* Decode wmma. Loads and stores become loads and stores of single elements or words; wmma.mma becomes mma.sync.
 *
 * PTX does not define which lane holds which element. A wmma fragment has the layout that ptxas gives it: the fragments
 * of the mma.sync that compute it, side by side. Lane 4g + q holds the following elements, where E is the number of
 * elements per register (f64: an element takes two registers):
 *   tall    16 rows in 2 registers for 4 words of k: register r is row g + 8 (r & 1), word q + 4 (r >> 1)
 *   flat    8 rows in 1 register for 4 words: row g, word q + 4r
 *   tile    16 x 8 sums in 4 registers: row g + 8 (r >> 1), column 2q + (r & 1); f16: 2 registers of two columns
 * The rows of B are its columns. Word w holds the elements E w to E w + E - 1 along k.
 *   shape    A              B              sums
 *   m16n16   tall           flat, twice    two tiles side by side
 *   m32n8    tall, twice    flat           two tiles, one below the other
 *   m8n32    flat           tall, twice    two tiles side by side, each transposed
 *   m8n8     flat           flat           the upper half of a tile
 * Fragments A and B of f16 have 8 registers in every shape; surplus registers repeat the others. */
#include <string.h>

#include "vm/execute/control.h"
#include "vm/execute/lanes.h"
#include "vm/execute/mma.h"
#include "vm/execute/tensor.h"
#include "vm/machine/base.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

enum part { PART_A, PART_B, PART_C };

static const struct wmma_shape {
    const char *name, *inputs, *sums;
    uint8_t size[3]; /* m, n, k */
} shapes[] = {
    {"m16n16k16", "f16 bf16 s8 u8", "f16 f32 s32", {16, 16, 16}},
    {"m8n32k16", "f16 bf16 s8 u8", "f16 f32 s32", {8, 32, 16}},
    {"m32n8k16", "f16 bf16 s8 u8", "f16 f32 s32", {32, 8, 16}},
    {"m16n16k8", "tf32", "f32", {16, 16, 8}},
    {"m8n8k4", "f64", "f64", {8, 8, 4}},
    {"m8n8k32", "s4 u4", "s32", {8, 8, 32}},
    {"m8n8k128", "b1", "s32", {8, 8, 128}},
};

static const struct element {
    const char *name;
    uint8_t bits, mma;
    enum type type;
} elements[] = {
    {"f16", 16, MMA_F16, T_F16X2},  {"bf16", 16, MMA_BF16, T_BF16X2},
    {"tf32", 32, MMA_TF32, T_TF32}, {"s8", 8, MMA_S8, T_B32},
    {"u8", 8, MMA_U8, T_B32},       {"s4", 4, MMA_S4, T_B32},
    {"u4", 4, MMA_U4, T_B32},       {"b1", 1, MMA_B1_AND, T_B32},
    {"f64", 64, 0, T_F64},          {"f32", 32, 0, T_F32},
    {"s32", 32, 0, T_B32},
};

/* The part of a fragment that a lane holds in registers. */
struct matrix {
    const struct wmma_shape *shape;
    const struct element *element;
    enum part part;
    uint32_t registers; /* distinct registers */
    uint32_t count;     /* registers that the instruction names */
};

static NORETURN void unknown(struct parser *p, const char *why) {
    error_at(p, &p->statement.opcode, "unknown instruction '%s'%s%s", p->statement.name, *why != '\0' ? ": " : "", why);
}

/* Return whether a word is in a list of words. */
static bool listed(const char *list, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = strstr(list, word); at != NULL; at = strstr(at + 1, word)) {
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

static const struct wmma_shape *take_shape(struct parser *p, uint32_t *at) {
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; ++k) {
        if (take(p, at, shapes[k].name)) {
            return &shapes[k];
        }
    }
    return NULL;
}

static const struct element *take_element(struct parser *p, uint32_t *at, const char *list) {
    for (size_t k = 0; k < sizeof elements / sizeof *elements; ++k) {
        if (listed(list, elements[k].name) && take(p, at, elements[k].name)) {
            return &elements[k];
        }
    }
    unknown(p, "the shape does not support this type");
}

/* Describe a fragment: its distinct registers and the registers that the instruction names. */
static struct matrix matrix_of(const struct wmma_shape *shape, enum part part, const struct element *element) {
    struct matrix m = {.shape = shape, .element = element, .part = part};
    const uint32_t rows = shape->size[part == PART_B], columns = shape->size[part == PART_C ? 1 : 2];
    const uint32_t held = element->bits == 64 ? 32 : element->bits;
    m.registers = rows * columns * held / 1024;
    m.count = part != PART_C && element->mma == MMA_F16 && element->bits == 16 ? 8 : m.registers;
    return m;
}

static uint32_t per_register(const struct matrix *m) {
    return m->element->bits < 32 ? 32u / m->element->bits : 1;
}

/* Position of an element in lane 4g + q: row + g, column + q * step_of(m). For B, and for a transposed tile, rows
 * and columns are swapped. */
struct place_in {
    uint32_t row, column;
};

static uint32_t step_of(const struct matrix *m) {
    return m->part == PART_C ? 2 : per_register(m);
}

static bool is_transposed(const struct matrix *m) {
    return m->part == PART_C && m->shape->size[1] == 32;
}

static struct place_in place_of(const struct matrix *m, uint32_t r, uint32_t e) {
    const uint8_t *const size = m->shape->size;
    if (m->part == PART_C) {
        const uint32_t in_tile = m->element->bits == 16 ? 2 : 4, tile = r / in_tile, n = r % in_tile;
        const uint32_t lower = in_tile == 2 ? n : n >> 1, column = in_tile == 2 ? e : n & 1;
        const bool beside = size[0] == 16;
        return (struct place_in){8 * lower + (beside ? 0 : 16 * tile), column + (beside ? 8 * tile : 0)};
    }
    const uint32_t rows = size[m->part], words = size[2] / per_register(m), each = per_register(m);
    const bool tall = rows == 32 || (rows == 16 && m->part == PART_A);
    const uint32_t in_block = words / 4 * (tall ? 2 : 1), block = r / in_block, n = r % in_block;
    return tall ? (struct place_in){16 * block + 8 * (n & 1), (n >> 1) * 4 * each + e}
                : (struct place_in){8 * block, n * 4 * each + e};
}

/* ---- loads and stores ---------------------------------------------------------------------------------------- */

/* Addresses of elements: base + multiple * stride + bytes. */
struct addresses {
    enum space space;
    uint32_t base[64]; /* by multiple of the stride; [0] is the base of this lane, 0: not computed yet */
    uint32_t stride;   /* stride in bytes, in a register */
    int64_t bytes;     /* stride in bytes, if is_constant */
    bool is_constant;
    bool is_across; /* columns, not rows, are a stride apart */
};

static uint32_t emit_lane(struct parser *p, enum lane lane, enum type type, uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t d = register_take(p, type);
    struct inst *i = emit(p, lanes_table()[lane]);
    i->d = d, i->a = a, i->b = b, i->c = c;
    return d;
}

static uint32_t wide(struct parser *p, uint64_t value) {
    return constant_slot(p, value, true, NULL);
}

static uint32_t narrow(struct parser *p, uint32_t value) {
    return constant_slot(p, value, false, NULL);
}

/* %laneid */
static uint32_t lane_index(struct parser *p) {
    if (p->special_slot[SPECIAL_LANEID] == 0) {
        p->special_slot[SPECIAL_LANEID] = register_take(p, T_U32) + 1;
    }
    return p->special_slot[SPECIAL_LANEID] - 1;
}

/* Emit a * b + c in 64 bits, where a is a 32-bit register and b the stride. */
static uint32_t emit_stride(struct parser *p, const struct addresses *to, uint32_t times, uint32_t plus) {
    const uint32_t stride = to->is_constant ? wide(p, (uint64_t)to->bytes) : to->stride;
    return emit_lane(p, LANE_mad_lo_64, T_B64, emit_lane(p, LANE_zext_64, T_B64, times, 0, 0), stride, plus);
}

/* Read [address]{, stride} and emit the computation of this lane's base address. Emit a check of both for run time. */
static void read_place(struct parser *p, const struct matrix *m, const struct operand *o, const struct operand *stride,
                       enum space space, int is_column, int is_store, struct addresses *to) {
    const uint32_t bits = m->element->bits, first = m->part == PART_B ? 1 : 0;
    const uint32_t rows = m->part == PART_B ? m->shape->size[2] : m->shape->size[0];
    const uint32_t columns = m->part == PART_A ? m->shape->size[2] : m->shape->size[1];
    const uint32_t least = is_column != 0 ? rows : columns;
    struct inst i = {0};
    need_address(p, o, space, &i);
    if (i.space == SPACE_LOCAL) {
        error_at(p, &o->token, "'%s' expects global or shared memory", p->statement.name);
    }
    to->space = space;
    to->is_constant = stride == NULL || stride->kind == OPERAND_INTEGER;
    const uint32_t given = stride != NULL ? need_source(p, stride, T_U32) : narrow(p, least);
    const uint32_t base = (i.flags & 1) != 0 ? emit_lane(p, LANE_zext_64, T_B64, i.a, 0, 0) : i.a;
    struct inst *check = emit(p, control_aligned);
    check->next = tensor_wmma;
    check->a = base;
    check->b = given;
    check->offset = i.offset;
    check->size = (uint8_t)(m->count * (bits == 64 ? 8 : 4));
    check->kind = (uint8_t)bits;
    check->target = is_store != 0 ? least : 0;
    if (to->is_constant) {
        to->bytes = (int64_t)((stride != NULL ? (uint32_t)stride->integer : least) * (uint64_t)bits / 8);
    } else {
        to->stride = emit_lane(p, LANE_shr_u64, T_B64,
                               emit_lane(p, LANE_mul_wide_u32, T_B64, given, narrow(p, bits), 0), narrow(p, 3), 0);
    }
    /* The stride lies between rows, in the sense of place_of(), or between the elements of a row. */
    const int by_row = first != 0 ? is_column : is_transposed(m) ? is_column : is_column == 0;
    to->is_across = by_row == 0;
    const uint32_t lane = lane_index(p);
    const uint32_t g = emit_lane(p, LANE_shr_u32, T_B32, lane, narrow(p, 2), 0);
    const uint32_t q = emit_lane(p, LANE_mul_lo_32, T_B32, emit_lane(p, LANE_and_b32, T_B32, lane, narrow(p, 3), 0),
                                 narrow(p, step_of(m)), 0);
    const uint32_t element = narrow(p, bits < 8 ? 1 : bits / 8);
    uint32_t near = by_row != 0 ? q : g;
    if (bits < 8) { /* address whole words */
        near = emit_lane(p, LANE_shr_u32, T_B32, near, narrow(p, bits == 4 ? 1 : 3), 0);
    }
    const uint32_t start = emit_lane(p, LANE_add_u64, T_B64, base, wide(p, (uint64_t)i.offset), 0);
    const uint32_t moved = emit_lane(p, LANE_mad_wide_u32, T_B64, near, element, start);
    to->base[0] = emit_stride(p, to, by_row != 0 ? g : q, moved);
}

/* Return the register that holds the address of an element, and set *offset. */
static uint32_t address_of(struct parser *p, const struct matrix *m, struct addresses *to, struct place_in at,
                           int64_t *offset) {
    const uint32_t strides = to->is_across ? at.column : at.row, near = to->is_across ? at.row : at.column;
    *offset = (int64_t)near * m->element->bits / 8;
    if (to->is_constant) {
        *offset += strides * to->bytes;
        return to->base[0];
    }
    if (to->base[strides] == 0) {
        to->base[strides] = emit_lane(p, LANE_mad_lo_64, T_B64, wide(p, strides), to->stride, to->base[0]);
    }
    return to->base[strides];
}

/* Emit a load or store of `size` bytes in every lane. */
static void emit_access(struct parser *p, const struct matrix *m, struct addresses *to, struct place_in at,
                        uint32_t size, uint32_t slot, enum access access) {
    int64_t offset;
    const uint32_t address = address_of(p, m, to, at, &offset);
    uint32_t *slots = parser_take(p, 8 * sizeof *slots);
    slots[0] = slot;
    struct inst *i = emit(p, access_table()[access]);
    i->a = address;
    i->offset = offset;
    i->space = (uint8_t)to->space;
    i->size = (uint8_t)size;
    i->count = 1;
    i->more = slots;
}

/* Return whether a register is one access, instead of one access per element. */
static bool is_one_access(const struct matrix *m, const struct addresses *to) {
    return per_register(m) == 1 || !to->is_across;
}

static void emit_load(struct parser *p, const struct matrix *m, struct addresses *to, uint32_t r, uint32_t slot) {
    const uint32_t n = per_register(m), size = m->element->bits / 8u;
    if (is_one_access(m, to)) {
        emit_access(p, m, to, place_of(m, r, 0), size > 4 ? size : 4, slot, ACCESS_LOAD);
        return;
    }
    uint32_t part[4];
    for (uint32_t e = 0; e < n; ++e) {
        part[e] = register_take(p, T_B32);
        emit_access(p, m, to, place_of(m, r, e), size, part[e], ACCESS_LOAD);
    }
    for (uint32_t e = n - 1; e > 0; --e) {
        struct inst *i = emit(p, lanes_table()[LANE_mad_lo_32]);
        i->a = part[e];
        i->b = narrow(p, 1u << 8 * size);
        i->c = part[e - 1];
        i->d = part[e - 1] = e == 1 ? slot : register_take(p, T_B32);
    }
}

static void emit_store(struct parser *p, const struct matrix *m, struct addresses *to, uint32_t r, uint32_t slot) {
    const uint32_t n = per_register(m), size = m->element->bits / 8u;
    if (is_one_access(m, to)) {
        emit_access(p, m, to, place_of(m, r, 0), size > 4 ? size : 4, slot, ACCESS_STORE);
        return;
    }
    for (uint32_t e = 0; e < n; ++e) {
        const uint32_t part = e != 0 ? emit_lane(p, LANE_shr_u32, T_B32, slot, narrow(p, 8 * size * e), 0) : slot;
        emit_access(p, m, to, place_of(m, r, e), size, part, ACCESS_STORE);
    }
}

/* Read the registers of a fragment. */
static void read_registers(struct parser *p, const struct operand *o, const struct matrix *m, int is_source,
                           uint32_t *slot) {
    if (!(o->kind == OPERAND_VECTOR && o->count == m->count)) {
        error_at(p, &o->token, "'%s' expects a vector of %u registers here", p->statement.name, m->count);
    }
    for (uint32_t r = 0; r < m->count; ++r) {
        slot[r] = is_source != 0 ? need_source(p, &o->items[r], m->element->type)
                                 : need_destination(p, &o->items[r], m->element->type);
    }
}

/* wmma.load.{a b c}.sync.aligned.layout.shape{.space}.type r, [p]{, stride}; wmma.store.d takes r after [p]. */
static void decode_access(struct parser *p, uint32_t at, int is_store) {
    struct statement *s = &p->statement;
    const int part = is_store != 0 ? take(p, &at, "d") ? (int)PART_C : -1 : take_choice(p, &at, "a b c");
    int layout = -1, space = -1;
    const struct wmma_shape *shape = NULL;
    if (part < 0 || !take(p, &at, "sync") || !take(p, &at, "aligned")) {
        unknown(p, "");
    }
    for (uint32_t before = UINT32_MAX; before != at;) {
        before = at;
        layout = layout < 0 ? take_choice(p, &at, "row col") : layout;
        space = space < 0 ? take_choice(p, &at, "global shared shared::cta") : space;
        shape = shape != NULL ? shape : take_shape(p, &at);
    }
    if (layout < 0 || shape == NULL) {
        unknown(p, "");
    }
    const struct element *element = take_element(p, &at, part == PART_C ? shape->sums : shape->inputs);
    take_end(p, at);
    if (element->bits < 8 && layout != (part == PART_B)) {
        unknown(p, "elements of less than 8 bits need .row for A and .col for B");
    }
    need_count(p, 2, 3);
    const struct matrix m = matrix_of(shape, (enum part)part, element);
    const struct operand *r = &s->operand[is_store], *stride = s->operands > 2 ? &s->operand[2] : NULL;
    struct addresses to = {0};
    uint32_t slot[8];
    read_registers(p, r, &m, is_store, slot);
    read_place(p, &m, &s->operand[is_store == 0], stride,
               space < 0    ? SPACE_GENERIC
               : space == 0 ? SPACE_GLOBAL
                            : SPACE_SHARED,
               layout, is_store, &to);
    for (uint32_t k = 0; k < m.registers; ++k) {
        (is_store != 0 ? emit_store : emit_load)(p, &m, &to, k, slot[k]);
    }
    for (uint32_t k = m.registers; k < m.count; ++k) {
        struct inst *i = emit(p, lanes_table()[LANE_mov_32]);
        i->d = slot[k];
        i->a = slot[k % m.registers];
    }
}

/* ---- wmma.mma ------------------------------------------------------------------------------------------------ */

/* Operands of wmma.mma. d and c have the type of the accumulator, whatever the instruction's input type is. */
struct product {
    const struct wmma_shape *shape;
    const struct element *a, *b, *c, *d;
    uint32_t slot_d[8], slot_a[8], slot_b[8], slot_c[8];
    uint32_t flags;
    bool saturate, exclusive;
};

/* Take the types: of d and c for f16, of d, a, b and c otherwise. */
static void take_types(struct parser *p, uint32_t *at, struct product *x) {
    const char *const sums = x->shape->sums;
    x->d = take_element(p, at, sums);
    const uint32_t two = *at;
    if (p->statement.modifiers - *at >= 3) {
        x->a = take_element(p, at, x->shape->inputs);
        x->b = take_element(p, at, x->shape->inputs);
        x->c = take_element(p, at, sums);
        const char *const fits = x->a->bits == 64 ? "f64" : x->a->bits >= 16 ? "f32" : "s32";
        if (x->a != x->b || x->d != x->c || strcmp(x->c->name, fits) != 0 || x->a == &elements[0]) {
            unknown(p, "these types cannot be combined");
        }
    } else {
        *at = two;
        x->a = x->b = &elements[0];
        x->c = take_element(p, at, sums);
        if (!listed(x->shape->inputs, "f16") || strcmp(x->c->name, "s32") == 0 || strcmp(x->d->name, "s32") == 0) {
            unknown(p, "these types cannot be combined");
        }
    }
}

/* Read modifiers and operands. */
static void read_product(struct parser *p, uint32_t at, struct product *x) {
    const struct statement *s = &p->statement;
    const int operation = take_choice(p, &at, "xor and");
    if ((operation >= 0 && !take(p, &at, "popc")) || !take(p, &at, "sync") || !take(p, &at, "aligned")) {
        unknown(p, "");
    }
    int layout[2] = {-1, -1};
    for (int k = 0; k < 2; ++k) {
        x->shape = k == 0 ? take_shape(p, &at) : x->shape;
        layout[0] = layout[0] < 0 ? take_choice(p, &at, "row col") : layout[0];
        layout[1] = layout[1] < 0 ? take_choice(p, &at, "row col") : layout[1];
        x->shape = x->shape != NULL ? x->shape : take_shape(p, &at);
    }
    if (x->shape == NULL || layout[1] < 0) {
        unknown(p, "");
    }
    /* The manual puts the rounding before the types, nvcc after them. */
    int rounding = x->shape->size[2] == 4 ? take_choice(p, &at, "rn rz rm rp") : 0;
    take_types(p, &at, x);
    rounding = rounding < 0 ? take_choice(p, &at, "rn rz rm rp") : rounding;
    x->flags = rounding > 0 ? (uint32_t)rounding * FLAG_ROUND : 0;
    x->saturate = strcmp(x->d->name, "s32") == 0 && x->a->bits > 1 && take(p, &at, "satfinite");
    x->exclusive = operation == 0;
    take_end(p, at);
    if ((operation >= 0) != (x->a->bits == 1) || (x->a->bits < 8 && (layout[0] != 0 || layout[1] == 0))) {
        unknown(p, "");
    }
    need_count(p, 4, 4);
    const struct matrix d = matrix_of(x->shape, PART_C, x->d), a = matrix_of(x->shape, PART_A, x->a);
    const struct matrix b = matrix_of(x->shape, PART_B, x->b), c = matrix_of(x->shape, PART_C, x->c);
    read_registers(p, &s->operand[0], &d, 0, x->slot_d);
    read_registers(p, &s->operand[1], &a, 1, x->slot_a);
    read_registers(p, &s->operand[2], &b, 1, x->slot_b);
    read_registers(p, &s->operand[3], &c, 1, x->slot_c);
}

/* Copy consecutive registers into a fragment. */
static void set_fragment(struct fragment *f, const uint32_t *slot, uint32_t count) {
    f->count = count;
    f->together = 1;
    for (uint32_t k = 0; k < count; ++k) {
        f->slot[k] = slot[k];
        f->together &= slot[k] == slot[0] + 128 * k && (slot[k] & 1) == 0;
    }
}

/* Emit one mma.sync of the product. */
static struct mma_plan *emit_part(struct parser *p, const struct product *x, uint32_t depth, uint32_t rows) {
    struct mma_plan *plan = parser_take(p, sizeof *plan);
    plan->shape = (struct mma_shape){.k = (uint16_t)depth,
                                     .a_type = x->a->mma,
                                     .b_type = x->b->mma,
                                     .accumulator = x->c->bits == 16                 ? MMA_ACC_F16
                                                    : strcmp(x->c->name, "s32") == 0 ? MMA_ACC_S32
                                                                                     : MMA_ACC_F32,
                                     .saturate = (uint8_t)x->saturate};
    if (x->a->bits == 1) {
        plan->shape.a_type = plan->shape.b_type = x->exclusive ? MMA_B1_XOR : MMA_B1_AND;
    }
    plan->constant = 1;
    plan->flops = 2u * rows * 8u * depth;
    struct inst *i = emit(p, control_aligned);
    i->more = plan;
    i->flags = x->flags;
    if (x->a->bits == 64) {
        i->next = tensor_mma_double;
    } else {
        plan->run = mma_find(&plan->shape);
        i->next = tensor_mma;
    }
    return plan;
}

/* Emit the two tiles of a shape with 256 sums. A tile takes one mma.sync, or two for tf32: k 0 to 3, then 4 to 7. */
static void emit_tiles(struct parser *p, const struct product *x) {
    const uint8_t *size = x->shape->size;
    const struct matrix a = matrix_of(x->shape, PART_A, x->a), b = matrix_of(x->shape, PART_B, x->b);
    const bool turned = size[1] == 32, beside = size[0] == 16;
    const uint32_t *const tall = turned ? x->slot_b : x->slot_a, *const flat = turned ? x->slot_a : x->slot_b;
    const uint32_t tall_count = (turned ? b.registers : a.registers) / (beside ? 1 : 2);
    const uint32_t flat_count = (turned ? a.registers : b.registers) / (beside ? 2 : 1);
    const uint32_t sums = x->c->bits == 16 ? 2 : 4, steps = x->a->mma == MMA_TF32 ? 2 : 1;
    for (uint32_t tile = 0; tile < 2; ++tile) {
        for (uint32_t step = 0; step < steps; ++step) {
            struct mma_plan *plan = emit_part(p, x, size[2] / steps, 16);
            const uint32_t ta = tall_count / steps, fl = flat_count / steps;
            set_fragment(&plan->a, tall + (beside ? 0 : tile * tall_count) + step * ta, ta);
            set_fragment(&plan->b, flat + (beside ? tile * flat_count : 0) + step * fl, fl);
            set_fragment(&plan->c, (step != 0 ? x->slot_d : x->slot_c) + tile * sums, sums);
            set_fragment(&plan->d, x->slot_d + tile * sums, sums);
        }
    }
}

/* wmma.mma{.op.popc}.sync.aligned.layout.layout.shape{.rnd}.types{.satfinite} d, a, b, c. D is computed in
 * temporaries, because its registers may be those of A, B or C in another order. */
static void decode_product(struct parser *p, uint32_t at) {
    struct product x = {0};
    uint32_t result[8];
    read_product(p, at, &x);
    const struct matrix d = matrix_of(x.shape, PART_C, x.d);
    const bool widen = x.c->bits < x.d->bits, cut = x.d->bits < x.c->bits;
    memcpy(result, x.slot_d, sizeof result);
    if (widen) {
        uint32_t sums[8];
        for (uint32_t k = 0; k < 8; ++k) {
            const uint32_t half = (k & 1) != 0 ? emit_lane(p, LANE_high_16, T_B32, x.slot_c[k / 2], 0, 0)
                                               : emit_lane(p, LANE_low_16, T_B32, x.slot_c[k / 2], 0, 0);
            sums[k] = emit_lane(p, LANE_cvt_f32_f16, T_F32, half, 0, 0);
        }
        memcpy(x.slot_c, sums, sizeof sums);
        x.c = x.d;
    }
    for (uint32_t k = 0; k < (cut ? 8 : d.count); ++k) {
        x.slot_d[k] = register_take(p, x.a->bits == 64 ? T_F64 : T_B32);
    }
    if (x.shape->size[0] * x.shape->size[1] == 64) {
        struct mma_plan *plan = emit_part(p, &x, x.shape->size[2], 8);
        set_fragment(&plan->a, x.slot_a, 1);
        set_fragment(&plan->b, x.slot_b, 1);
        set_fragment(&plan->c, x.slot_c, 2);
        set_fragment(&plan->d, x.slot_d, 2);
        if (x.a->bits < 64) {
            tensor_drop_upper_rows(p, plan);
        }
    } else {
        emit_tiles(p, &x);
    }
    for (uint32_t k = 0; k < d.count; ++k) {
        struct inst *i = emit(p, lanes_table()[cut ? LANE_cvt_f16x2_f32 : x.a->bits == 64 ? LANE_mov_64 : LANE_mov_32]);
        i->d = result[k];
        i->a = x.slot_d[cut ? 2 * k + 1 : k];
        i->b = x.slot_d[2 * k * (uint32_t)cut];
    }
}

void decode_wmma(struct parser *p) {
    uint32_t at = 0;
    const int which = take_choice(p, &at, "load store mma");
    if (which < 0) {
        unknown(p, "");
    }
    if (which == 2) {
        decode_product(p, at);
    } else {
        decode_access(p, at, which == 1);
    }
}
