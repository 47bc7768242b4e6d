/* Names, constant expressions and operands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vm/execute/control.h"
#include "vm/machine/base.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

static uint32_t hash_name(const char *name, uint32_t length) {
    uint32_t hash = 2166136261u;
    for (uint32_t i = 0; i < length; ++i) {
        hash = (hash ^ (uint8_t)name[i]) * 16777619u;
    }
    return hash;
}

/* Return the innermost symbol with exactly this name. is_range: look for ranges only, else for other symbols only. */
static struct symbol *find(struct parser *p, const char *name, uint32_t length, bool is_range) {
    const uint32_t hash = hash_name(name, length);
    for (struct symbol *s = p->hash[hash % p->hash_size]; s != NULL; s = s->chain) {
        if (s->hash == hash && s->length == length && memcmp(s->name, name, length) == 0 &&
            (s->kind == SYMBOL_RANGE) == is_range) {
            return s;
        }
    }
    return NULL;
}

/* Return the symbol of one element of a register range; create it on first use. */
static struct symbol *element_of(struct parser *p, struct symbol *range, uint64_t index, const char *name,
                                 uint32_t length) {
    if (range->elements == NULL) {
        range->elements = parser_take(p, range->bytes * sizeof(struct symbol *));
    }
    struct symbol *s = range->elements[index];
    if (s == NULL) {
        const uint32_t each = (type_bytes(range->type) == 16  ? 512u
                               : type_bytes(range->type) == 8 ? 256u
                                                              : 128u) *
                              (range->vector != 0 ? range->vector : 1);
        s = range->elements[index] = parser_take(p, sizeof *s);
        *s = (struct symbol){.scope = range->scope,
                             .name = name,
                             .length = length,
                             .kind = SYMBOL_REGISTER,
                             .type = range->type,
                             .slot = range->slot + (uint32_t)index * (range->type == T_PRED ? 1 : each),
                             .vector = range->vector};
    }
    return s;
}

/* Return the innermost symbol of a name, or NULL. r12 may be an element of r<20>, or of r1<5>. */
struct symbol *symbol_find(struct parser *p, const char *name, uint32_t length) {
    struct symbol *s = find(p, name, length, false);
    uint64_t index = 0, unit = 1;
    for (uint32_t digits = 1; digits < length && digits < 8; ++digits, unit *= 10) {
        const char c = name[length - digits];
        if (c < '0' || c > '9') {
            break;
        }
        index += (uint64_t)(c - '0') * unit;
        if (c == '0' && digits > 1) {
            continue;
        }
        struct symbol *const range = find(p, name, length - digits, true);
        if (range != NULL && index < range->bytes && (s == NULL || s->scope->depth < range->scope->depth)) {
            s = element_of(p, range, index, name, length);
        }
    }
    return s;
}

/* Return a symbol of the current scope that has the name of an element of a new range, or NULL. */
static const struct symbol *find_element(const struct parser *p, const char *name, uint32_t length, uint64_t count) {
    for (const struct symbol *s = p->scope->symbols; s != NULL; s = s->in_scope) {
        uint64_t index = 0;
        uint32_t k = length;
        if (s->kind == SYMBOL_RANGE || s->length <= length || s->length > length + 7 ||
            memcmp(s->name, name, length) != 0) {
            continue;
        }
        while (k < s->length && s->name[k] >= '0' && s->name[k] <= '9') {
            index = 10 * index + (uint64_t)(s->name[k++] - '0');
        }
        if (k == s->length && index < count && (s->name[length] != '0' || s->length == length + 1)) {
            return s;
        }
    }
    return NULL;
}

/* Double the table of names. Symbols of one name stay in one list, in their order. */
static void hash_grow(struct parser *p) {
    const uint32_t size = 2 * p->hash_size;
    struct symbol **const grown = realloc(p->hash, size * sizeof *grown);
    if (grown == NULL) {
        p->result = CUDA_ERROR_OUT_OF_MEMORY;
        error_at(p, &p->token, "out of memory");
    }
    for (uint32_t k = 0; k < p->hash_size; ++k) {
        struct symbol *s = grown[k], **low = &grown[k], **high = &grown[k + p->hash_size];
        for (; s != NULL; s = s->chain) {
            struct symbol ***const end = s->hash % size == k ? &low : &high;
            **end = s;
            *end = &s->chain;
        }
        *low = *high = NULL;
    }
    p->hash = grown;
    p->hash_size = size;
}

/* Add a symbol to the current scope. */
struct symbol *symbol_add(struct parser *p, const struct token *token, const char *name, uint32_t length,
                          enum symbol_kind kind) {
    const uint32_t hash = hash_name(name, length);
    const struct symbol *const old = length == 0            ? NULL
                                     : kind == SYMBOL_RANGE ? find(p, name, length, true)
                                                            : symbol_find(p, name, length);
    if (old != NULL && old->scope == p->scope) {
        error_at(p, token, "'%.*s' is declared twice in this scope", (int)length, name);
    }
    if (p->symbol_count >= p->hash_size) {
        hash_grow(p);
    }
    ++p->symbol_count;
    struct symbol *s = parser_take(p, sizeof *s);
    s->name = name;
    s->length = length;
    s->hash = hash;
    s->kind = kind;
    s->scope = p->scope;
    s->chain = p->hash[hash % p->hash_size];
    p->hash[hash % p->hash_size] = s;
    s->in_scope = p->scope->symbols;
    p->scope->symbols = s;
    return s;
}

/* Add a register range name<count>. The symbols of its elements are created on first use. */
struct symbol *symbol_add_range(struct parser *p, const struct token *name, enum type type, uint64_t count) {
    const struct symbol *const old = find_element(p, name->at, name->length, count);
    if (old != NULL) {
        error_at(p, name, "'%.*s' is declared twice in this scope", (int)old->length, old->name);
    }
    struct symbol *s = symbol_add(p, name, name->at, name->length, SYMBOL_RANGE);
    s->type = type;
    s->bytes = count;
    return s;
}

/* Open a { } scope. */
void scope_open(struct parser *p) {
    struct scope *scope = parser_take(p, sizeof *scope);
    scope->outer = p->scope;
    scope->depth = p->scope != NULL ? p->scope->depth + 1 : 0;
    p->scope = scope;
}

/* Close a scope: resolve its labels, pass unresolved ones to the outer scope, drop its names. */
void scope_close(struct parser *p) {
    struct scope *scope = p->scope;
    for (struct label_use *use = scope->uses, *next; use != NULL; use = next) {
        next = use->next;
        const struct symbol *s = symbol_find(p, use->token.at, use->token.length);
        if (s != NULL && s->kind == SYMBOL_LABEL) {
            *use->target = s->slot;
        } else if (scope->outer != NULL && p->function != NULL && scope->outer->outer != NULL) {
            use->next = scope->outer->uses;
            scope->outer->uses = use;
        } else {
            error_at(p, &use->token, "undefined label '%.*s'", (int)use->token.length, use->token.at);
        }
    }
    scope_drop(p);
}

void scope_drop(struct parser *p) {
    for (struct symbol *s = p->scope->symbols; s != NULL; s = s->in_scope) {
        p->hash[s->hash % p->hash_size] = s->chain;
        --p->symbol_count;
    }
    p->scope = p->scope->outer;
}

/* Reserve a register of a type in the warp's register file. For a predicate, return its number. */
uint32_t register_take(struct parser *p, enum type type) {
    if (type == T_PRED && p->predicates == UINT16_MAX) {
        error_at(p, &p->token, "a function has at most 65533 predicates");
    }
    if (type == T_PRED) {
        return p->predicates++;
    }
    const uint32_t bytes = type_bytes(type) == 16 ? 512 : type_bytes(type) == 8 ? 256 : 128;
    const uint32_t slot = p->register_bytes;
    if (slot > (1u << 28)) {
        error_at(p, &p->token, "a function has at most 2^21 registers");
    }
    p->register_bytes += bytes;
    if (p->register_bytes / 128 > p->wide_space) {
        const uint32_t space = p->register_bytes / 64 + 1024;
        uint8_t *grown = parser_take(p, space);
        if (p->wide_space != 0) {
            memcpy(grown, p->wide, p->wide_space);
        }
        p->wide = grown;
        p->wide_space = space;
    }
    for (uint32_t k = slot / 128; k < p->register_bytes / 128; ++k) {
        p->wide[k] = bytes > 128;
    }
    return slot;
}

/* Return the offset (with bit 0 set) of a constant vector. Equal constants share one vector. */
uint32_t constant_slot(struct parser *p, uint64_t value, bool is_wide, struct symbol *base) {
    if (!is_wide) {
        value &= 0xffffffffu;
    }
    for (uint32_t i = p->constant_count; i-- > 0 && p->constant_count - i < 512;) {
        const struct constant *c = &p->constants[i];
        if (c->value == value && c->is_wide == (uint32_t)is_wide && c->base == base) {
            return c->slot | 1u;
        }
    }
    if (p->constant_count == p->constant_space) {
        const uint32_t space = p->constant_space != 0 ? 2 * p->constant_space : 64;
        struct constant *grown = parser_take(p, space * sizeof *grown);
        if (p->constant_count != 0) {
            memcpy(grown, p->constants, p->constant_count * sizeof *grown);
        }
        p->constants = grown;
        p->constant_space = space;
    }
    const uint32_t slot = p->constant_bytes;
    p->constants[p->constant_count++] = (struct constant){value, slot, (uint32_t)is_wide, base};
    p->constant_bytes += is_wide ? 256 : 128;
    return slot | 1u;
}

/* Assign a shared variable its address at its first use in this function. Other variables already have one. */
void symbol_place(struct parser *p, struct symbol *s) {
    if (s->space != SPACE_SHARED || s->owner == p->function) {
        return;
    }
    s->owner = p->function;
    if (s->is_dynamic) {
        if (p->function->dynamic_align < s->align) {
            p->function->dynamic_align = s->align;
        }
        s->address = 0;
        return;
    }
    p->shared_bytes = (p->shared_bytes + s->align - 1) / s->align * s->align;
    s->address = SHARED_BASE + p->shared_bytes;
    if (s->bytes > MAX_SHARED || p->shared_bytes + s->bytes > DEFAULT_SHARED) {
        error_at(p, &p->token, "with '%.*s', static shared memory exceeds %d bytes", (int)s->length, s->name,
                 DEFAULT_SHARED);
    }
    p->shared_bytes += (uint32_t)s->bytes;
}

/* ---- constant expressions ------------------------------------------------------------------------------------ */

static struct expression conditional(struct parser *p);

/* Read a literal, a parenthesised expression or a unary operator. */
static struct expression unary(struct parser *p) {
    struct expression e = {0};
    const struct token t = p->token;
    if (++p->depth > 64) {
        error_at(p, &t, "the constant expression is nested too deeply");
    }
    if (t.kind == TOKEN_INTEGER) {
        e.integer = t.integer;
        token_next(p);
    } else if (t.kind == TOKEN_REAL) {
        e = (struct expression){.integer = t.integer, .real = t.real, .is_real = true, .single = t.single};
        token_next(p);
    } else if (t.kind == TOKEN_NAME && token_is(&t, "WARP_SZ")) {
        e.integer = WARP;
        token_next(p);
    } else if (t.kind == TOKEN_DOT && t.length > 1 && t.at[1] >= '0' && t.at[1] <= '9') { /* .5 */
        char *end;
        e = (struct expression){.real = strtod(t.at, &end), .is_real = true};
        p->lexer.next = end;
        token_next(p);
    } else if (accept(p, '(')) {
        if (p->token.kind == TOKEN_DOT) { /* a cast */
            if (!token_is(&p->token, ".s64") && !token_is(&p->token, ".u64")) {
                error_at(p, &p->token, "a cast is (.s64) or (.u64)");
            }
            token_next(p);
            expect(p, ')', "')'");
            e = unary(p);
        } else {
            e = conditional(p);
            expect(p, ')', "')'");
        }
    } else if (t.kind == '-' || t.kind == '+' || t.kind == '~' || t.kind == '!') {
        token_next(p);
        const bool is_bits = p->token.kind == TOKEN_REAL && p->token.single;
        e = unary(p);
        if (e.is_real && (t.kind == '~' || t.kind == '!')) {
            error_at(p, &t, "'%c' expects an integer", t.kind);
        }
        if (is_bits) {
            error_at(p, &t, "'%c' before the bits of a float: write the sign into its bits", t.kind);
        }
        if (t.kind == '-') {
            e.real = -e.real;
            e.integer = e.is_real ? e.integer ^ 0x80000000u : 0 - e.integer;
        } else if (t.kind != '+') {
            e.integer = t.kind == '~' ? ~e.integer : e.integer == 0;
        }
    } else {
        error_at(p, &t, "expected a constant before '%.*s'", (int)t.length, t.at);
    }
    --p->depth;
    return e;
}

static int precedence(int kind) {
    switch (kind) {
    case '*':
    case '/':
    case '%':
        return 10;
    case '+':
    case '-':
        return 9;
    case TOKEN_SHIFT_LEFT:
    case TOKEN_SHIFT_RIGHT:
        return 8;
    case '<':
    case '>':
    case TOKEN_AT_MOST:
    case TOKEN_AT_LEAST:
        return 7;
    case TOKEN_EQUAL:
    case TOKEN_UNEQUAL:
        return 6;
    case '&':
        return 5;
    case '^':
        return 4;
    case '|':
        return 3;
    case TOKEN_AND:
        return 2;
    case TOKEN_OR:
        return 1;
    default:
        return 0;
    }
}

/* Compute a op b on 64-bit integers. Division by zero is an error. */
static uint64_t combine(struct parser *p, const struct token *operator, uint64_t a, uint64_t b) {
    const int64_t x = (int64_t)a, y = (int64_t)b;
    if ((operator->kind == '/' || operator->kind == '%') && (b == 0 || (y == -1 && x == INT64_MIN))) {
        error_at(p, operator, "division by zero in a constant expression");
    }
    switch (operator->kind) {
    case '*':
        return a * b;
    case '/':
        return (uint64_t)(x / y);
    case '%':
        return (uint64_t)(x % y);
    case '+':
        return a + b;
    case '-':
        return a - b;
    case TOKEN_SHIFT_LEFT:
        return b < 64 ? a << b : 0;
    case TOKEN_SHIFT_RIGHT:
        return (uint64_t)(x >> (b < 64 ? b : 63));
    case '<':
        return x < y;
    case '>':
        return x > y;
    case TOKEN_AT_MOST:
        return x <= y;
    case TOKEN_AT_LEAST:
        return x >= y;
    case TOKEN_EQUAL:
        return a == b;
    case TOKEN_UNEQUAL:
        return a != b;
    case '&':
        return a & b;
    case '^':
        return a ^ b;
    case '|':
        return a | b;
    case TOKEN_AND:
        return a != 0 && b != 0;
    default:
        return a != 0 || b != 0;
    }
}

/* Compute a binary operator on two floats, in double precision; comparisons give integers. */
static struct expression combine_reals(struct parser *p, const struct token *operator, const struct expression *left,
                                       const struct expression *right) {
    const double a = left->real, b = right->real;
    if (!left->is_real || !right->is_real || left->single || right->single) {
        error_at(p, operator, "an operator takes two integers, or two floats that are not written as bits");
    }
    switch (operator->kind) {
    case '+':
        return (struct expression){.real = a + b, .is_real = true};
    case '-':
        return (struct expression){.real = a - b, .is_real = true};
    case '*':
        return (struct expression){.real = a * b, .is_real = true};
    case '/':
        if (b == 0) {
            error_at(p, operator, "division by zero");
        }
        return (struct expression){.real = a / b, .is_real = true};
    case '<':
        return (struct expression){.integer = a < b};
    case '>':
        return (struct expression){.integer = a > b};
    case TOKEN_AT_MOST:
        return (struct expression){.integer = a <= b};
    case TOKEN_AT_LEAST:
        return (struct expression){.integer = a >= b};
    case TOKEN_EQUAL:
        return (struct expression){.integer = a == b};
    case TOKEN_UNEQUAL:
        return (struct expression){.integer = a != b};
    default:
        error_at(p, operator, "the operator takes integers only");
    }
}

static struct expression binary(struct parser *p, int least) {
    struct expression left = unary(p);
    for (;;) {
        const struct token operator = p->token;
        const int level = precedence(operator.kind);
        if (level == 0 || level < least) {
            return left;
        }
        token_next(p);
        const struct expression right = binary(p, level + 1);
        if (left.is_real || right.is_real) {
            left = combine_reals(p, &operator, &left, &right);
            continue;
        }
        left.integer = combine(p, &operator, left.integer, right.integer);
    }
}

static struct expression conditional(struct parser *p) {
    struct expression e = binary(p, 1);
    if (p->token.kind != '?') {
        return e;
    }
    if (++p->depth > 64) {
        error_at(p, &p->token, "the constant expression is nested too deeply");
    }
    token_next(p);
    const struct expression yes = conditional(p);
    expect(p, ':', "':'");
    const struct expression no = conditional(p);
    if (e.is_real || yes.is_real || no.is_real) {
        error_at(p, &p->token, "the operator ? takes integers only");
    }
    --p->depth;
    return e.integer != 0 ? yes : no;
}

/* Read a constant expression. */
struct expression constant_expression(struct parser *p) {
    return conditional(p);
}

/* Read a constant expression that must be an integer. */
int64_t constant_integer(struct parser *p) {
    const struct token t = p->token;
    const struct expression e = conditional(p);
    if (e.is_real) {
        error_at(p, &t, "expected an integer constant");
    }
    return (int64_t)e.integer;
}

/* ---- operands ------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    enum special special;
    enum type type;
} specials[] = {{"%tid.x", SPECIAL_TID_X, T_U32},
                {"%tid.y", SPECIAL_TID_Y, T_U32},
                {"%tid.z", SPECIAL_TID_Z, T_U32},
                {"%ntid.x", SPECIAL_NTID_X, T_U32},
                {"%ntid.y", SPECIAL_NTID_Y, T_U32},
                {"%ntid.z", SPECIAL_NTID_Z, T_U32},
                {"%ctaid.x", SPECIAL_CTAID_X, T_U32},
                {"%ctaid.y", SPECIAL_CTAID_Y, T_U32},
                {"%ctaid.z", SPECIAL_CTAID_Z, T_U32},
                {"%nctaid.x", SPECIAL_NCTAID_X, T_U32},
                {"%nctaid.y", SPECIAL_NCTAID_Y, T_U32},
                {"%nctaid.z", SPECIAL_NCTAID_Z, T_U32},
                {"%tid.w", SPECIAL_ZERO, T_U32},
                {"%ntid.w", SPECIAL_ZERO, T_U32},
                {"%ctaid.w", SPECIAL_ZERO, T_U32},
                {"%nctaid.w", SPECIAL_ZERO, T_U32},
                {"%clusterid.w", SPECIAL_ZERO, T_U32},
                {"%nclusterid.w", SPECIAL_ZERO, T_U32},
                {"%cluster_ctaid.w", SPECIAL_ZERO, T_U32},
                {"%cluster_nctaid.w", SPECIAL_ZERO, T_U32},
                {"%laneid", SPECIAL_LANEID, T_U32},
                {"%warpid", SPECIAL_WARPID, T_U32},
                {"%nwarpid", SPECIAL_NWARPID, T_U32},
                {"%smid", SPECIAL_SMID, T_U32},
                {"%nsmid", SPECIAL_NSMID, T_U32},
                {"%gridid", SPECIAL_GRIDID, T_U64},
                {"%lanemask_eq", SPECIAL_LANEMASK_EQ, T_U32},
                {"%lanemask_le", SPECIAL_LANEMASK_LE, T_U32},
                {"%lanemask_lt", SPECIAL_LANEMASK_LT, T_U32},
                {"%lanemask_ge", SPECIAL_LANEMASK_GE, T_U32},
                {"%lanemask_gt", SPECIAL_LANEMASK_GT, T_U32},
                {"%dynamic_smem_size", SPECIAL_DYNAMIC_SMEM_SIZE, T_U32},
                {"%total_smem_size", SPECIAL_TOTAL_SMEM_SIZE, T_U32},
                {"%aggr_smem_size", SPECIAL_AGGR_SMEM_SIZE, T_U32},
                {"%current_graph_exec", SPECIAL_GRAPH, T_U64},
                {"%envreg1", SPECIAL_GRID_WORKSPACE_HIGH, T_U32},
                {"%envreg2", SPECIAL_GRID_WORKSPACE_LOW, T_U32},
                {"%clusterid.x", SPECIAL_CLUSTERID_X, T_U32},
                {"%clusterid.y", SPECIAL_CLUSTERID_Y, T_U32},
                {"%clusterid.z", SPECIAL_CLUSTERID_Z, T_U32},
                {"%nclusterid.x", SPECIAL_NCLUSTERID_X, T_U32},
                {"%nclusterid.y", SPECIAL_NCLUSTERID_Y, T_U32},
                {"%nclusterid.z", SPECIAL_NCLUSTERID_Z, T_U32},
                {"%cluster_ctaid.x", SPECIAL_CLUSTER_CTAID_X, T_U32},
                {"%cluster_ctaid.y", SPECIAL_CLUSTER_CTAID_Y, T_U32},
                {"%cluster_ctaid.z", SPECIAL_CLUSTER_CTAID_Z, T_U32},
                {"%cluster_nctaid.x", SPECIAL_CLUSTER_NCTAID_X, T_U32},
                {"%cluster_nctaid.y", SPECIAL_CLUSTER_NCTAID_Y, T_U32},
                {"%cluster_nctaid.z", SPECIAL_CLUSTER_NCTAID_Z, T_U32},
                {"%cluster_ctarank", SPECIAL_CLUSTER_CTARANK, T_U32},
                {"%cluster_nctarank", SPECIAL_CLUSTER_NCTARANK, T_U32},
                {"%clock", SPECIAL_CLOCK, T_U32},
                {"%clock_hi", SPECIAL_CLOCK_HI, T_U32},
                {"%clock64", SPECIAL_CLOCK64, T_U64},
                {"%globaltimer", SPECIAL_GLOBALTIMER, T_U64},
                {"%globaltimer_lo", SPECIAL_GLOBALTIMER_LO, T_U32},
                {"%globaltimer_hi", SPECIAL_GLOBALTIMER_HI, T_U32}};

/* Parse a hardware register. Its slot is filled when the warp starts; a clock is read just before this instruction. */
static bool special_parse(struct parser *p, struct operand *o, const struct token *name) {
    char text[32];
    int length = (int)name->length;
    if (name->at[0] != '%') {
        return false;
    }
    if (p->token.kind == TOKEN_DOT && p->token.at == name->at + name->length) {
        length += (int)p->token.length;
    }
    if (length >= (int)sizeof text) {
        return false;
    }
    memcpy(text, name->at, (size_t)length);
    text[length] = 0;
    if (length == (int)name->length + 2) { /* %tid.r is %tid.x */
        const char *const rgba = "rgba", *const letter = strchr(rgba, text[length - 1]);
        text[length - 1] = letter != NULL ? "xyzw"[letter - rgba] : text[length - 1];
    }
    for (size_t i = 0; i < sizeof specials / sizeof *specials; ++i) {
        if (strcmp(specials[i].name, text) != 0) {
            continue;
        }
        const enum special special = specials[i].special;
        if (length > (int)name->length) {
            token_next(p);
        }
        if (p->special_slot[special] == 0) {
            p->special_slot[special] = register_take(p, specials[i].type) + 1;
        }
        o->kind = OPERAND_REGISTER;
        o->is_special = true;
        o->type = specials[i].type;
        o->slot = p->special_slot[special] - 1;
        o->name = specials[i].name;
        if (special >= SPECIAL_CLOCK) {
            struct inst *read = emit(p, control_clock);
            read->kind = (uint8_t)special;
            read->d = o->slot;
        }
        return true;
    }
    return false;
}

/* Parse %tid and similar registers as vectors of four. */
static bool special_vector(struct parser *p, struct operand *o, const struct token *name) {
    static const char *const vectors[] = {"%tid",       "%ntid",       "%ctaid",         "%nctaid",
                                          "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"};
    for (size_t k = 0; k < sizeof vectors / sizeof *vectors; ++k) {
        if (!token_is(name, vectors[k]) || p->token.kind == TOKEN_DOT) {
            continue;
        }
        o->kind = OPERAND_VECTOR;
        o->count = 4;
        o->items = parser_take(p, 4 * sizeof *o->items);
        for (uint32_t e = 0; e < 4; ++e) {
            char text[32];
            const int length = snprintf(text, sizeof text, "%s.%c", vectors[k], "xyzw"[e]);
            struct token whole = *name;
            whole.at = text;
            whole.length = (uint32_t)length;
            o->items[e] = (struct operand){.token = *name};
            special_parse(p, &o->items[e], &whole);
        }
        return true;
    }
    return false;
}

/* Parse the shared memory that the system reserves for cooperative groups. It is allocated from the kernel's own
 * shared memory. */
static void reserved_parse(struct parser *p, struct operand *o) {
    enum { RESERVED = 512 };
    if (p->reserved_shared == 0) {
        p->shared_bytes = (p->shared_bytes + 127) / 128 * 128;
        if (p->shared_bytes + RESERVED > DEFAULT_SHARED) {
            error_at(p, &o->token,
                     "static shared memory leaves no room for the %d reserved bytes of cooperative groups",
                     (int)RESERVED);
        }
        p->reserved_shared = SHARED_BASE + p->shared_bytes;
        p->shared_bytes += RESERVED;
    }
    o->kind = OPERAND_INTEGER;
    o->integer = p->reserved_shared;
}

/* Parse a vector register, or the element of it that a suffix selects. */
static void vector_register(struct parser *p, struct operand *o, const struct symbol *s, const struct token *name) {
    static const char names[2][5] = {"xyzw", "rgba"};
    const uint32_t step = type_bytes(s->type) == 8 ? 256 : 128;
    const struct token *t = &p->token;
    if (t->kind == TOKEN_DOT && t->at == name->at + name->length) {
        uint32_t k = 0;
        while (k < s->vector && (t->length != 2 || (t->at[1] != names[0][k] && t->at[1] != names[1][k]))) {
            ++k;
        }
        if (k == s->vector) {
            error_at(p, t, "a vector register of %u elements has no element '%.*s'", s->vector, (int)t->length, t->at);
        }
        o->kind = OPERAND_REGISTER;
        o->slot = s->slot + k * step;
        token_next(p);
        return;
    }
    o->kind = OPERAND_VECTOR;
    o->count = s->vector;
    o->items = parser_take(p, s->vector * sizeof *o->items);
    for (uint32_t k = 0; k < s->vector; ++k) {
        o->items[k] =
            (struct operand){.kind = OPERAND_REGISTER, .token = *name, .type = s->type, .slot = s->slot + k * step};
    }
}

void need_supported(struct parser *p, const struct token *name, const struct symbol *s) {
    if (s->unsupported != NULL) {
        error_at(p, name, "'%.*s' %s", (int)name->length, name->at, s->unsupported);
    }
}

/* Parse a name: register, hardware register, variable or label. */
static void name_parse(struct parser *p, struct operand *o) {
    const struct token name = p->token;
    token_next(p);
    if (token_is(&name, "_")) {
        o->kind = OPERAND_SINK;
        return;
    }
    if (token_is(&name, "WARP_SZ")) {
        o->kind = OPERAND_INTEGER;
        o->integer = WARP;
        return;
    }
    struct symbol *s = symbol_find(p, name.at, name.length);
    if (s != NULL && s->kind == SYMBOL_REGISTER) {
        o->kind = s->type == T_PRED ? OPERAND_PREDICATE : OPERAND_REGISTER;
        o->type = s->type;
        o->slot = s->slot;
        o->name = symbol_name(p, s);
        if (s->vector != 0) {
            vector_register(p, o, s, &name);
        }
    } else if (s != NULL && s->kind == SYMBOL_VARIABLE) {
        need_supported(p, &name, s);
        o->kind = OPERAND_SYMBOL;
        o->symbol = s;
        symbol_place(p, s);
    } else if (s != NULL && s->kind == SYMBOL_FUNCTION && s->definition == NULL) {
        error_at(p, &name, "'%.*s' is a kernel; launches from a kernel are not supported", (int)name.length, name.at);
    } else if (s != NULL && s->kind == SYMBOL_FUNCTION) {
        o->kind = OPERAND_SYMBOL;
        o->symbol = s;
    } else if (token_is(&name, "%reserved_smem_offset_1")) {
        reserved_parse(p, o);
    } else if (token_is(&name, "%is_explicit_cluster") && strcmp(p->statement.name, "mov.pred") == 0) {
        o->kind = OPERAND_PREDICATE; /* the one that is always true, or its negation */
        o->type = T_PRED;
        o->name = "%is_explicit_cluster";
        o->negate = p->function->cluster[0] == 0;
    } else if (!special_vector(p, o, &name) && !special_parse(p, o, &name)) {
        o->kind = OPERAND_LABEL;
    }
}

static void vector_parse(struct parser *p, struct operand *o);

/* Parse [register + constant], [variable + constant], [constant] or [tensor map, {coordinates}]. */
static void address_parse(struct parser *p, struct operand *o) {
    o->kind = OPERAND_ADDRESS;
    token_next(p);
    if (p->token.kind == TOKEN_NAME) {
        o->items = parser_take(p, 2 * sizeof *o->items);
        o->items->token = p->token;
        name_parse(p, o->items);
        o->count = 1;
        if (o->items->kind == OPERAND_LABEL) {
            error_at(p, &o->items->token, "undefined symbol '%.*s'", (int)o->items->token.length, o->items->token.at);
        }
        if (o->items->kind != OPERAND_REGISTER && o->items->kind != OPERAND_SYMBOL) {
            error_at(p, &o->items->token, "expected a register, a variable or a constant as the address, not '%.*s'",
                     (int)o->items->token.length, o->items->token.at);
        }
        if (accept(p, '+')) {
            o->offset = constant_integer(p);
        }
        if (accept(p, ',')) {
            o->items[1] = (struct operand){.token = p->token};
            if (p->token.kind != '{') {
                error_at(p, &p->token, "expected coordinates in braces: {x, y}");
            }
            vector_parse(p, &o->items[1]);
            o->count = 2;
        }
    } else {
        o->offset = constant_integer(p);
    }
    expect(p, ']', "']'");
}

/* Parse {a, b, ...}. */
static void vector_parse(struct parser *p, struct operand *o) {
    enum { MOST = 64 };
    o->kind = OPERAND_VECTOR;
    struct operand items[MOST];
    token_next(p);
    do {
        if (o->count == MOST) {
            error_at(p, &p->token, "a vector operand has at most %d elements", (int)MOST);
        }
        if (p->token.kind == '{') {
            error_at(p, &p->token, "a vector operand cannot contain vectors");
        }
        operand_parse(p, &items[o->count++]);
    } while (accept(p, ','));
    expect(p, '}', "'}'");
    o->items = parser_take(p, o->count * sizeof *items);
    memcpy(o->items, items, o->count * sizeof *items);
}

/* Read one operand. */
void operand_parse(struct parser *p, struct operand *o) {
    *o = (struct operand){.token = p->token};
    if (p->token.kind == '!') {
        const struct token sign = p->token;
        const struct lexer after = p->lexer;
        token_next(p);
        if (p->token.kind == TOKEN_NAME && !token_is(&p->token, "WARP_SZ")) {
            name_parse(p, o);
            if (o->kind != OPERAND_PREDICATE) {
                error_at(p, &o->token, "expected a predicate after '!'");
            }
            o->negate = !o->negate;
            return;
        }
        p->token = sign; /* a constant: 1 if it is 0, else 0 */
        p->lexer = after;
    }
    if (p->token.kind == '{') {
        vector_parse(p, o);
    } else if (p->token.kind == '[') {
        address_parse(p, o);
    } else if (p->token.kind == TOKEN_NAME && !token_is(&p->token, "WARP_SZ")) {
        name_parse(p, o);
        if (o->kind == OPERAND_SYMBOL && accept(p, '+')) {
            o->offset = constant_integer(p);
        }
    } else {
        const struct expression e = constant_expression(p);
        o->kind = e.is_real ? OPERAND_REAL : OPERAND_INTEGER;
        o->integer = e.integer;
        o->real = e.real;
        o->single = e.single;
    }
    if (p->token.kind == '|' &&
        (o->kind == OPERAND_PREDICATE || o->kind == OPERAND_REGISTER || o->kind == OPERAND_SINK)) {
        struct operand *items = parser_take(p, 2 * sizeof *items);
        items[0] = *o;
        token_next(p);
        items[1] = (struct operand){.token = p->token};
        if (p->token.kind != TOKEN_NAME) {
            error_at(p, &p->token, "expected a predicate after '|'");
        }
        name_parse(p, &items[1]);
        *o = (struct operand){.kind = OPERAND_PAIR, .token = o->token, .items = items, .count = 2};
    }
}
