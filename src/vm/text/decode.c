/* Decode statements to `struct inst`: the table of opcodes, checks of operands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vm/execute/lanes.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/counters.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

/* ---- arithmetic, from lanes.def ---- */

struct row {
    const char *pattern;
    uint16_t lane;
    uint8_t sources, types[5]; /* d, a, b, c, e */
};

static const struct row rows[] = {
#define A1(name, pattern, D, A, ...)          {pattern, LANE_##name, 1, {T_##D, T_##A}},
#define A2(name, pattern, D, A, B, ...)       {pattern, LANE_##name, 2, {T_##D, T_##A, T_##B}},
#define A3(name, pattern, D, A, B, C, ...)    {pattern, LANE_##name, 3, {T_##D, T_##A, T_##B, T_##C}},
#define A4(name, pattern, D, A, B, C, E, ...) {pattern, LANE_##name, 4, {T_##D, T_##A, T_##B, T_##C, T_##E}},
#define H1(name, pattern, E, ...)             {pattern, LANE_##name, 1, {T_##E##X2, T_##E##X2}},
#define H2(name, pattern, E, ...)             {pattern, LANE_##name, 2, {T_##E##X2, T_##E##X2, T_##E##X2}},
#define H3(name, pattern, E, ...)             {pattern, LANE_##name, 3, {T_##E##X2, T_##E##X2, T_##E##X2, T_##E##X2}},
#define K(name, pattern, T, n, ...)           {pattern, LANE_##name, n, {T_##T, T_##T, T_##T, T_##T}},
#include "vm/execute/lanes.def"
};

/* ---- all other instructions ---- */

static const struct {
    const char *name;
    decoder *decode;
} opcodes[] = {
    {"mov", decode_mov},
    {"cvt", decode_cvt},
    {"setp", decode_setp},
    {"set", decode_set},
    {"lop3", decode_lop3},
    {"selp", decode_mov},
    {"testp", decode_mov},
    {"and", decode_mov},
    {"or", decode_mov},
    {"xor", decode_mov},
    {"not", decode_mov},
    {"ld", decode_ld},
    {"ldu", decode_ld},
    {"st", decode_st},
    {"prefetch", decode_prefetch},
    {"prefetchu", decode_prefetch},
    {"applypriority", decode_prefetch},
    {"discard", decode_prefetch},
    {"createpolicy", decode_createpolicy},
    {"cvta", decode_cvta},
    {"isspacep", decode_isspacep},
    {"atom", decode_atom},
    {"red", decode_red},
    {"ldmatrix", decode_ldmatrix},
    {"stmatrix", decode_stmatrix},
    {"movmatrix", decode_movmatrix},
    {"mma", decode_mma},
    {"wmma", decode_wmma},
    {"call", decode_pmevent}, /* arguments are read by read_call */
    {"bra", decode_bra},
    {"brx", decode_brx},
    {"exit", decode_exit},
    {"ret", decode_exit},
    {"trap", decode_trap},
    {"brkpt", decode_trap},
    {"bar", decode_bar},
    {"barrier", decode_bar},
    {"membar", decode_fence},
    {"fence", decode_fence},
    {"shfl", decode_shfl},
    {"vote", decode_vote},
    {"match", decode_match},
    {"redux", decode_redux},
    {"activemask", decode_activemask},
    {"elect", decode_elect},
    {"mbarrier", decode_mbarrier},
    {"cp", decode_cp},
    {"tensormap", decode_tensormap},
    {"nanosleep", decode_nanosleep},
    {"setmaxnreg", decode_setmaxnreg},
    {"griddepcontrol", decode_griddepcontrol},
    {"pmevent", decode_pmevent},
    {"mapa", decode_mapa},
    {"clusterlaunchcontrol", decode_clusterlaunchcontrol},
    {"getctarank", decode_getctarank},
};

/* Report an instruction that the target does not support. */
void need_feature(struct parser *p, int least_target, bool needs_suffix, const char *what) {
    if (p->target < least_target || (needs_suffix && p->target_suffix == '\0')) {
        error_at(p, &p->statement.opcode, "%s needs .target sm_%d%s, but the target is sm_%d", what, least_target,
                 needs_suffix ? "a or sm_120f" : "", p->target);
    }
}

/* ---- operands ---- */

/* Report a wrong number of operands. */
void need_count(struct parser *p, uint32_t least, uint32_t most) {
    const struct statement *s = &p->statement;
    if (s->operands >= least && s->operands <= most) {
        return;
    }
    if (least == most) {
        error_at(p, &s->opcode, "'%s' takes %u operand%s, not %u", s->name, least, least == 1 ? "" : "s", s->operands);
    }
    error_at(p, &s->opcode, "'%s' takes %u to %u operands, not %u", s->name, least, most, s->operands);
}

static NORETURN void wrong_operand(struct parser *p, const struct operand *o, const char *wanted) {
    if (o->kind == OPERAND_LABEL) {
        error_at(p, &o->token, "undefined register '%.*s'", (int)o->token.length, o->token.at);
    }
    if (o->kind == OPERAND_REGISTER) {
        error_at(p, &o->token, "'%.*s' is .%s, but '%s' expects %s here", (int)o->token.length, o->token.at,
                 type_name(o->type), p->statement.name, wanted);
    }
    if (o->kind == OPERAND_PREDICATE) {
        error_at(p, &o->token, "'%.*s' is a predicate, but '%s' expects %s here", (int)o->token.length, o->token.at,
                 p->statement.name, wanted);
    }
    error_at(p, &o->token, "'%s' expects %s here", p->statement.name, wanted);
}

/* Return whether a register of one type may be used for an operand of another type. */
static bool fits(enum type have, enum type want) {
    if (type_bytes(have) != type_bytes(want)) {
        return false;
    }
    const char a = type_class(have), b = type_class(want);
    const bool pairs = have == T_F16X2 && (want == T_U16X2 || want == T_S16X2);
    return a == 'b' || b == 'b' || have == want || (a == 'i' && b == 'i') || pairs;
}

/* Return the bits of a constant as a value of a type. */
static uint64_t immediate_bits(struct parser *p, const struct operand *o, enum type type) {
    const unsigned bytes = type_bytes(type);
    const char class = type_class(type);
    uint64_t bits = o->integer;
    if (o->kind == OPERAND_REAL && (bytes < 4 || bytes == 16 || class == 'i' || class == 'x' ||
                                    (class != 'f' && (bytes == 4) == (o->single == 0)))) {
        error_at(p, &o->token, "a float constant cannot be used as .%s", type_name(type));
    }
    if (o->kind == OPERAND_INTEGER && (class == 'f' || class == 'x')) {
        error_at(p, &o->token, "'%s' expects a %s here", p->statement.name,
                 class == 'f' ? "float constant" : "register, not a constant,");
    }
    if (type == T_F64 || (o->kind == OPERAND_REAL && bytes == 8)) {
        const double value = o->kind == OPERAND_REAL ? o->real : (double)(int64_t)o->integer;
        memcpy(&bits, &value, 8);
    } else if (o->kind == OPERAND_REAL && o->single != 0 && bytes == 4) {
        bits = o->integer & 0xffffffffu;
    } else if (type == T_F32 || (o->kind == OPERAND_REAL && bytes == 4)) {
        const float value = o->kind == OPERAND_REAL ? (float)o->real : (float)(int64_t)o->integer;
        uint32_t narrow;
        memcpy(&narrow, &value, 4);
        bits = narrow;
    }
    return bytes >= 8 ? bits : bits & ((1ULL << 8 * bytes) - 1);
}

/* If the operand is a constant or the address of a variable, set *slot and return true. */
static bool constant_source(struct parser *p, const struct operand *o, enum type type, uint32_t *slot) {
    const bool wide = type_bytes(type) >= 8;
    if (o->kind == OPERAND_INTEGER || o->kind == OPERAND_REAL) {
        *slot = constant_slot(p, immediate_bits(p, o, type), wide, NULL);
        return true;
    }
    if (o->kind == OPERAND_SYMBOL && type_bytes(type) >= 4 && type_class(type) != 'f') {
        struct symbol *s = o->symbol;
        if (s->space == SPACE_LOCAL && p->routine != NULL && wide) {
            struct inst *i = emit(p, lanes_table()[LANE_add_u64]);
            i->a = p->routine->frame;
            i->b = constant_slot(p, s->address + (uint64_t)o->offset, true, NULL);
            *slot = i->d = register_take(p, T_B64);
            return true;
        }
        *slot = constant_slot(p, s->address + (uint64_t)o->offset, wide, s->space == SPACE_SHARED ? s : NULL);
        return true;
    }
    return false;
}

/* Extend a 64-bit constant to 128 bits with zeros. */
static uint32_t extended(struct parser *p, uint32_t slot) {
    const uint32_t to = register_take(p, T_B128), half[] = {slot, constant_slot(p, 0, true, NULL)};
    for (uint32_t k = 0; k < 2; ++k) {
        struct inst *i = emit(p, lanes_table()[LANE_mov_64]);
        i->a = half[k];
        i->d = to + 256 * k;
    }
    return to;
}

/* Return a source operand that must have exactly this size and a compatible type. */
uint32_t need_source(struct parser *p, const struct operand *o, enum type type) {
    uint32_t slot;
    char wanted[40];
    if (constant_source(p, o, type, &slot)) {
        return type_bytes(type) == 16 ? extended(p, slot) : slot;
    }
    snprintf(wanted, sizeof wanted, "a .%s", type_name(type));
    if (o->kind != OPERAND_REGISTER || !fits(o->type, type)) {
        wrong_operand(p, o, wanted);
    }
    if (o->is_special && strncmp(p->statement.name, "mov", 3) != 0 && strncmp(p->statement.name, "cvt.", 4) != 0) {
        error_at(p, &o->token, "'%.*s' is a hardware register, which only mov and cvt can read", (int)o->token.length,
                 o->token.at);
    }
    use_operand(p, o, false);
    return o->slot;
}

/* Return whether a register of this type cannot hold a narrower value of the other: floats have their own size. */
static bool mixes(enum type have, enum type type) {
    const bool is_float = type_class(have) == 'f';
    return type == T_BF16 ||
           ((is_float || type_class(type) == 'f') && type_class(have) != 'b' && !(is_float && type_class(type) == 'b'));
}

/* Return a source operand whose register may be wider than the type (ld, st, cvt). A 64-bit register is truncated to
 * a temporary. */
uint32_t need_source_wide(struct parser *p, const struct operand *o, enum type type) {
    const bool is_narrow = o->kind != OPERAND_REGISTER || type_bytes(o->type) <= type_bytes(type);
    if (is_narrow || mixes(o->type, type) || (o->is_special && strncmp(p->statement.name, "cvt.", 4) != 0)) {
        return need_source(p, o, type);
    }
    use_operand(p, o, false);
    if (type_bytes(o->type) < 8 || type_bytes(type) >= 8) {
        return o->slot;
    }
    struct inst *i = emit(p, lanes_table()[LANE_trunc_64]);
    i->a = o->slot;
    i->d = register_take(p, T_B32);
    return i->d;
}

/* Report `_` where the result cannot be dropped. */
void need_result(struct parser *p, const struct operand *o) {
    if (o->kind == OPERAND_SINK) {
        error_at(p, &o->token, "'%s' needs a register for its result, not '_'", p->statement.name);
    }
}

/* Return the register of a result that must have exactly this size. `_` gets a register that is never read. */
uint32_t need_destination(struct parser *p, const struct operand *o, enum type type) {
    char wanted[48];
    if (o->kind == OPERAND_SINK) {
        return register_take(p, type);
    }
    snprintf(wanted, sizeof wanted, "a .%s register", type_name(type));
    if (o->kind != OPERAND_REGISTER || o->is_special || !fits(o->type, type)) {
        wrong_operand(p, o, wanted);
    }
    use_operand(p, o, true);
    return o->slot;
}

/* Return the register of a result, which may be wider than the result. */
uint32_t need_destination_wide(struct parser *p, const struct operand *o, enum type type) {
    const bool is_narrow = o->kind != OPERAND_REGISTER || type_bytes(o->type) <= type_bytes(type);
    if (is_narrow || o->is_special || mixes(o->type, type)) {
        return need_destination(p, o, type);
    }
    use_operand(p, o, true);
    return o->slot;
}

/* Return a predicate source, which may be negated. */
uint16_t need_predicate(struct parser *p, const struct operand *o, int *negate) {
    if (negate != NULL) {
        *negate = o->negate;
    }
    if (o->kind == OPERAND_INTEGER && negate != NULL) {
        *negate = o->integer == 0;
        return 0;
    }
    if (o->kind != OPERAND_PREDICATE || (o->negate && negate == NULL)) {
        wrong_operand(p, o, "a predicate");
    }
    use_operand(p, o, false);
    return (uint16_t)o->slot;
}

/* Return the predicate that receives a result. `_` is predicate 0, which is never written. */
uint16_t need_predicate_destination(struct parser *p, const struct operand *o) {
    if (o->kind == OPERAND_SINK) {
        return 0;
    }
    if (o->kind != OPERAND_PREDICATE || o->negate) {
        wrong_operand(p, o, "a predicate");
    }
    use_operand(p, o, true);
    return (uint16_t)o->slot;
}

/* Return a constant within a range. */
int64_t need_integer(struct parser *p, const struct operand *o, int64_t least, int64_t most) {
    if (o->kind != OPERAND_INTEGER) {
        wrong_operand(p, o, "a constant");
    }
    if ((int64_t)o->integer < least || (int64_t)o->integer > most) {
        error_at(p, &o->token, "%lld is out of range; expected %lld to %lld", (long long)o->integer, (long long)least,
                 (long long)most);
    }
    return (int64_t)o->integer;
}

/* Decode an address: i->a is the base (64-bit, or 32-bit with flag 1 in i->flags), i->offset is added to it. */
void need_address(struct parser *p, const struct operand *o, enum space space, struct inst *i) {
    if (o->kind != OPERAND_ADDRESS) {
        wrong_operand(p, o, "an address in brackets");
    }
    i->offset = o->offset;
    i->space = (uint8_t)space;
    i->flags |= space == SPACE_SHARED && has(p, "shared::cluster") ? ADDRESS_CLUSTER : 0;
    if (o->count == 0) {
        if (space != SPACE_LOCAL) {
            error_at(p, &o->token, "'%s' needs a register or a variable here: only .local takes a constant address",
                     p->statement.name);
        }
        i->a = constant_slot(p, 0, true, NULL);
        return;
    }
    const struct operand *base = o->items;
    if (o->count > 1) {
        error_at(p, &o->items[1].token, "'%s' does not take coordinates", p->statement.name);
    }
    if (base->kind == OPERAND_SYMBOL) {
        struct symbol *s = base->symbol;
        const enum space own = s->is_argument && space == SPACE_PARAM ? SPACE_PARAM : s->space;
        const bool is_deduced = space == SPACE_GENERIC && own != SPACE_CONST && own != SPACE_PARAM; /* as ptxas does */
        i->space = is_deduced && own == SPACE_SHARED ? SPACE_SHARED : i->space;
        if (own != space && !is_deduced) {
            error_at(p, &base->token, "'%.*s' is not in the state space that '%s' accesses", (int)base->token.length,
                     base->token.at, p->statement.name);
        }
        if (s->space == SPACE_LOCAL) {
            i->a = local_base(p);
            i->offset += (int64_t)s->address;
            i->space = SPACE_LOCAL;
        } else {
            i->a = constant_slot(p, s->address, true, s->space == SPACE_SHARED ? s : NULL);
        }
        use_variable(p, s, i->a, (uint64_t)(i->offset - o->offset));
    } else if (strchr("ib", type_class(base->type)) == NULL || type_bytes(base->type) < 4 ||
               type_bytes(base->type) > 8) {
        wrong_operand(p, base, "a 32- or 64-bit address");
    } else {
        i->space = space == SPACE_PARAM && p->routine != NULL ? SPACE_LOCAL : i->space;
        use_operand(p, base, false);
        i->a = base->slot;
        i->flags |= type_bytes(base->type) == 4;
    }
}

/* ---- instructions ---- */

/* Append an instruction with the guard of the statement. */
struct inst *emit(struct parser *p, handler *run) {
    struct statement *s = &p->statement;
    if (p->length == p->code_space) {
        const uint32_t space = p->code_space != 0 ? 2 * p->code_space : 32;
        struct inst *code = parser_take(p, space * sizeof *code);
        struct place *places = parser_take(p, space * sizeof *places);
        if (p->length != 0) {
            memcpy(code, p->code, p->length * sizeof *code);
            memcpy(places, p->places, p->length * sizeof *places);
        }
        p->code = code;
        p->places = places;
        p->code_space = space;
    }
    const struct location *const located = &p->located;
    const bool is_located = located->file != NULL;
    p->places[p->length] = (struct place){.file = is_located ? located->file : s->opcode.file,
                                          .from_file = located->from_file,
                                          .from_line = located->from_line,
                                          .text = s->start != NULL ? s->start : s->opcode.at,
                                          .line = is_located ? located->line : s->opcode.line,
                                          .row = s->opcode.row,
                                          .is_located = is_located,
                                          .opcode = UINT32_MAX,
                                          .guard = s->guard_name};
    struct inst *i = &p->code[p->length++];
    *i = (struct inst){.run = run, .guard = s->guard, .flip = s->flip};
    return i;
}

/* Report combinations of modifiers that the pattern of a row cannot exclude. */
static void check_row(struct parser *p, const struct row *row, uint32_t flags) {
    const struct statement *s = &p->statement;
    const bool extreme = strncmp(s->name, "min.", 4) == 0 || strncmp(s->name, "max.", 4) == 0;
    if (extreme && row->sources == 2 && ((flags & FLAG_ABS) == 0) != ((flags & FLAG_XORSIGN) == 0)) {
        error_at(p, &s->opcode, "unknown instruction '%s': .xorsign needs .abs, and .abs needs .xorsign", s->name);
    }
    if (strncmp(s->name, "cvt.", 4) == 0 && (flags & FLAG_RELU) != 0 && has(p, "rna")) {
        error_at(p, &s->opcode, "unknown instruction '%s': .rna and .relu cannot be combined", s->name);
    }
    if (strncmp(s->name, "fma.", 4) == 0 && (flags & FLAG_SAT) != 0 && (flags & FLAG_RELU) != 0) {
        error_at(p, &s->opcode, "unknown instruction '%s': .sat and .relu cannot be combined", s->name);
    }
}

/* Return the type that ptxas wants for operand k of a row: rows name the types of their formulas, which may be those of
 * the bits alone. */
static enum type row_type(const struct statement *s, const struct row *row, uint32_t k) {
    const enum type type = (enum type)row->types[k];
    if (type_class(type) != 'b') {
        return type;
    }
    const bool is_cvt = strncmp(s->name, "cvt.", 4) == 0;
    enum type found[2] = {T_NONE, T_NONE}; /* types among the modifiers */
    uint32_t count = 0;
    for (uint32_t j = 0; j < s->modifiers && count < 2; ++j) {
        const enum type here = type_find(s->modifier[j], s->modifier_length[j]);
        if (here != T_NONE) {
            found[count++] = here;
        }
    }
    const enum type named = is_cvt && k != 0 ? found[1] : found[0];
    return type_bytes(named) == type_bytes(type) ? named : type;
}

/* Report constants that ptxas refuses, of bit fields beyond 255 and of video instructions, and the table of lop3 that
 * is none. */
static void check_constants(struct parser *p, const struct statement *s) {
    if (strncmp(s->name, "lop3.", 5) == 0) {
        need_integer(p, &s->operand[4], INT64_MIN, INT64_MAX);
    }
    const bool is_field = strncmp(s->name, "bfe.", 4) == 0 || strncmp(s->name, "bfi.", 4) == 0;
    for (uint32_t k = s->operands - 2; is_field && k < s->operands; ++k) {
        if (s->operand[k].kind == OPERAND_INTEGER) {
            need_integer(p, &s->operand[k], 0, 255);
        }
    }
    for (uint32_t k = 0; s->name[0] == 'v' && k < s->operands; ++k) {
        if (s->operand[k].kind == OPERAND_INTEGER) {
            error_at(p, &s->operand[k].token, "'%s' expects a register here", s->name);
        }
    }
}

/* Decode an instruction of lanes.def. */
static void decode_row(struct parser *p, const struct row *row, uint32_t flags) {
    const struct statement *s = &p->statement;
    struct inst i = {0};
    const bool is_cvt = strncmp(s->name, "cvt.", 4) == 0;
    need_count(p, row->sources + 1u, row->sources + 1u);
    uint32_t *const slots[4] = {&i.a, &i.b, &i.c, &i.e};
    check_row(p, row, flags);
    check_constants(p, s);
    for (uint32_t k = 0; k < row->sources; ++k) {
        const struct operand *o = &s->operand[k + 1];
        if (o->is_special && is_cvt) {
            error_at(p, &o->token, "'%.*s' is a hardware register, which '%s' cannot read; copy it with mov",
                     (int)o->token.length, o->token.at, s->name);
        }
        *slots[k] = need_source(p, o, row_type(s, row, k + 1));
    }
    need_result(p, &s->operand[0]);
    i.d = need_destination(p, &s->operand[0], row_type(s, row, 0));
    struct inst *to = emit(p, lanes_table()[row->lane]);
    i.run = to->run;
    i.guard = to->guard;
    i.flip = to->flip;
    i.flags = flags;
    *to = i;
}

/* Find the row of lanes.def with this opcode and, if possible, this number of operands. */
static const struct row *find_row(struct statement *s, uint32_t *flags) {
    const struct row *found = NULL;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; ++k) {
        if (rows[k].pattern[0] != s->name[0] || rows[k].pattern[1] != s->name[1]) {
            continue;
        }
        uint32_t f = 0;
        if (!modifiers_match(s, rows[k].pattern, &f)) {
            continue;
        }
        if (rows[k].sources + 1u == s->operands) {
            *flags = f;
            return &rows[k];
        }
        found = found != NULL ? found : &rows[k];
    }
    return found;
}

/* Attach the counter of the opcode to the last instruction emitted for the statement. */
static void finish(struct parser *p) {
    const struct statement *s = &p->statement;
    if (p->length != 0) {
        p->places[p->length - 1].opcode = counter_index(s->name, strcspn(s->name, "."));
    }
}

/* Name the counter after the opcode and those of its modifiers that select a different operation. */
static void name_counter(struct parser *p) {
    static const char *const kept[] = {"mma.sync",  "mma.sp", "wmma.",    "cp.async", "cp.reduce",
                                       "mbarrier.", "bar.",   "barrier.", "fence.",   "griddepcontrol."};
    const struct statement *s = &p->statement;
    size_t length = strcspn(s->name, ".");
    for (size_t k = 0; k < sizeof kept / sizeof *kept; ++k) {
        if (strncmp(s->name, kept[k], strlen(kept[k])) != 0) {
            continue;
        }
        length = strlen(kept[k]);
        length += strcspn(s->name + length, ".");
        if (strncmp(s->name + length, ".bulk", 5) == 0 && length == 8) {
            length += 5;
        }
        if (strncmp(s->name, "cp.reduce.async.bulk", 20) == 0) {
            length = 20;
        }
        if (strncmp(s->name + length, ".tensor", 7) == 0 && s->name[0] == 'c') {
            length += 7;
        }
    }
    p->places[p->length - 1].opcode = counter_index(s->name, length);
}

/* Instructions of PTX that this device does not support, with the reason. */
static const struct {
    const char *name, *reason;
} refused[] = {
    {"wgmma", "only sm_90a supports it; use mma.sync on SM120"},
    {"tcgen05", "only sm_100 and its family support it; use mma.sync on SM120"},
    {"tex", "textures are not supported"},
    {"tld4", "textures are not supported"},
    {"txq", "textures are not supported"},
    {"suld", "surfaces are not supported"},
    {"sust", "surfaces are not supported"},
    {"sured", "surfaces are not supported"},
    {"suq", "surfaces are not supported"},
    {"istypep", "textures and surfaces are not supported"},
    {"multimem", "multicast memory is not supported"},
    {"alloca", "dynamic stack allocation is not supported"},
    {"stacksave", "dynamic stack allocation is not supported"},
    {"stackrestore", "dynamic stack allocation is not supported"},
};

/* Report an unknown opcode before its operands are read. */
void decode_known(struct parser *p) {
    const struct statement *s = &p->statement;
    const size_t word = strcspn(s->name, ".");
    for (size_t k = 0; k < sizeof refused / sizeof *refused; ++k) {
        if (strlen(refused[k].name) == word && memcmp(refused[k].name, s->name, word) == 0) {
            error_at(p, &s->opcode, "unknown instruction '%s': %s", s->name, refused[k].reason);
        }
    }
    for (size_t k = 0; k < sizeof opcodes / sizeof *opcodes; ++k) {
        if (strncmp(opcodes[k].name, s->name, word) == 0 && opcodes[k].name[word] == '\0') {
            return;
        }
    }
    for (size_t k = 0; k < sizeof rows / sizeof *rows; ++k) {
        if (word != 0 && strncmp(rows[k].pattern, s->name, word) == 0 && strcspn(rows[k].pattern, ".{[") == word) {
            return;
        }
    }
    error_at(p, &s->opcode, "unknown instruction '%s'%s", s->name,
             s->name[0] == 'v' ? ": the only video instructions supported are vabsdiff2 and vabsdiff4 without selectors"
                               : "");
}

/* Return whether name[0..length) is this word. */
static bool is_word(const char *name, size_t length, const char *word) {
    return strlen(word) == length && memcmp(name, word, length) == 0;
}

/* Return whether ptxas takes braces around operand k: around bf16 values, in mov.b*, around scales and metadata of mma
 * the count of mbarrier.arrive, and the answer of clusterlaunchcontrol. */
static bool may_have_braces(struct parser *p, size_t word, uint32_t k) {
    const struct statement *s = &p->statement;
    const char *const modifiers = s->name + word;
    if (is_word(s->name, word, "mma")) {
        return k >= 4 && k % 2 == 0;
    }
    if (is_word(s->name, word, "mbarrier")) {
        return k == 2 && has(p, "arrive") && !has(p, "expect_tx");
    }
    if (is_word(s->name, word, "clusterlaunchcontrol")) {
        return k == 1 && !has(p, "is_canceled") && !has(p, "v4") && has(p, "query_cancel");
    }
    if (is_word(s->name, word, "mov")) {
        return (has(p, "b16") || has(p, "b32") || has(p, "b64")) && s->operand[1 - k % 2].kind != OPERAND_VECTOR;
    }
    if (is_word(s->name, word, "cvt")) { /* the first type is that of the result */
        const char *const to = strstr(modifiers, ".bf16"), *const from = strstr(modifiers, ".f32");
        return to != NULL && from != NULL && k == (to > from);
    }
    if (is_word(s->name, word, "setp") || is_word(s->name, word, "set")) {
        return k != 0 && has(p, "bf16");
    }
    static const char *const arithmetic[] = {"add", "sub", "mul", "fma", "min", "max", "abs", "neg"};
    for (size_t j = 0; j < sizeof arithmetic / sizeof *arithmetic; ++j) {
        if (is_word(s->name, word, arithmetic[j])) {
            return has(p, "bf16");
        }
    }
    return false;
}

/* Take the braces off single operands where ptxas does. */
static void take_braces_off(struct parser *p, size_t word) {
    struct statement *s = &p->statement;
    for (uint32_t k = 0; k < s->operands; ++k) {
        if (s->operand[k].kind == OPERAND_VECTOR && s->operand[k].count == 1 && may_have_braces(p, word, k)) {
            s->operand[k] = s->operand[k].items[0];
        }
    }
}

/* Decode the statement that the parser has read. */
void decode(struct parser *p) {
    struct statement *s = &p->statement;
    const size_t word = strcspn(s->name, ".");
    uint32_t flags = 0;
    if (p->function == NULL) {
        error_at(p, &s->opcode, "instruction '%s' outside a function", s->name);
    }
    modifiers_drop_repeated(s);
    take_braces_off(p, word);
    const struct row *row = find_row(s, &flags);
    if (row != NULL) {
        decode_row(p, row, flags);
        finish(p);
        use_attach(p);
        return;
    }
    for (size_t k = 0; k < sizeof opcodes / sizeof *opcodes; ++k) {
        if (strlen(opcodes[k].name) != word || memcmp(opcodes[k].name, s->name, word) != 0) {
            continue;
        }
        const uint32_t before = p->length;
        opcodes[k].decode(p);
        if (p->length > before) { /* mov {_, _}, a emits nothing */
            modifiers_name(s);
            name_counter(p);
            use_attach(p);
        }
        return;
    }
    error_at(p, &s->opcode, "unknown instruction '%s'%s", s->name,
             strncmp(s->name, "fma.", 4) == 0 && has(p, "oob")
                 ? ": .oob looks for a NaN of the chip's own, whose bits PTX does not tell"
                 : "");
}
