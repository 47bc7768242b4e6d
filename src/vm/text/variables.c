/* Declarations of variables and registers in PTX. */
#include <stdio.h>
#include <string.h>

#include "vm/machine/base.h"
#include "vm/machine/memory.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

/* Read the type of a declaration. */
enum type token_type(struct parser *p) {
    enum type type = T_NONE;
    if (token_is(&p->token, ".texref") || token_is(&p->token, ".samplerref") || token_is(&p->token, ".surfref")) {
        error_at(p, &p->token, "textures and surfaces are not supported");
    }
    if (p->token.kind == TOKEN_DOT) {
        type = type_find(p->token.at + 1, p->token.length - 1);
    }
    if (type == T_NONE || type > T_B128 || (type_class(type) == 'x' && type != T_F16X2)) {
        error_at(p, &p->token, "expected a type before '%.*s'", (int)p->token.length, p->token.at);
    }
    token_next(p);
    return type;
}

enum { MAX_CONST = 65536, MOST_REGISTERS = 1 << 21, MOST_IN_RANGE = 4096 };

struct variable {
    struct token name;
    struct range_name called; /* what the symbol is called: the name, or that of an element of a range */
    enum space space;
    enum type type;
    uint32_t align, vector;
    uint64_t count; /* elements over all dimensions */
    bool is_array, is_open, is_extern;
};

/* Read [n][m]... after a name. */
static void read_dimensions(struct parser *p, struct variable *v) {
    v->count = 1;
    while (accept(p, '[')) {
        v->is_array = true;
        if (accept(p, ']')) {
            v->is_open = true;
            v->count = 0;
            continue;
        }
        const struct token at = p->token;
        const int64_t n = constant_integer(p);
        if (n < 0 || n > (1LL << 40) || (v->count != 0 && (uint64_t)n > (1ULL << 40) / v->count)) {
            error_at(p, &at, "the array size %lld is out of range", (long long)n);
        }
        v->count *= (uint64_t)n;
        expect(p, ']', "']'");
    }
}

/* Return the bytes of an array whose [n] is read next, or of a single value. */
uint64_t read_array(struct parser *p, enum type type) {
    struct variable v = {.type = type};
    const struct token at = p->token;
    read_dimensions(p, &v);
    if (v.is_open) {
        error_at(p, &at, "the array needs a size, such as [16]");
    }
    return v.count * type_bytes(type);
}

/* Read the address of a variable or function in an initialiser: name or generic(name), each with an optional offset. */
static uint64_t read_address(struct parser *p, unsigned bytes) {
    const bool is_generic = token_is(&p->token, "generic");
    if (is_generic) {
        token_next(p);
        expect(p, '(', "'('");
    }
    const struct symbol *s = symbol_find(p, p->token.at, p->token.length);
    const bool is_variable =
        s != NULL && s->kind == SYMBOL_VARIABLE && (s->space == SPACE_GLOBAL || s->space == SPACE_CONST);
    if (is_variable && s->unsupported != NULL) {
        p->unsupported = s;
    }
    if (bytes != 8 || !(is_variable || (s != NULL && s->kind == SYMBOL_FUNCTION && s->definition != NULL))) {
        error_at(p, &p->token, "expected a constant or the address of a global variable or function");
    }
    token_next(p);
    uint64_t address = s->address;
    if (is_generic) {
        expect(p, ')', "')'");
    }
    if (p->token.kind == '+' || p->token.kind == '-') {
        address += (uint64_t)constant_integer(p);
    }
    return address;
}

/* Read one byte of an address: 0xff(name), 0xff00(name), and so on. */
static uint8_t read_masked(struct parser *p) {
    const struct token at = p->token;
    uint32_t shift = 0;
    while (shift < 64 && at.integer != 0xffULL << shift) {
        shift += 8;
    }
    if (shift == 64) {
        error_at(p, &at, "the mask of an address must select one byte: 0xff, 0xff00 and so on");
    }
    token_next(p);
    expect(p, '(', "'('");
    const uint64_t address = read_address(p, 8);
    expect(p, ')', "')'");
    return (uint8_t)(address >> shift);
}

/* Store one element of an initialiser. */
static void store_element(struct parser *p, const struct variable *v, uint8_t *to, const struct token *at) {
    const unsigned bytes = type_bytes(v->type);
    if (p->token.kind == TOKEN_NAME && !token_is(&p->token, "WARP_SZ")) {
        const uint64_t address = read_address(p, bytes);
        memcpy(to, &address, 8);
        return;
    }
    if (bytes == 1 && p->token.kind == TOKEN_INTEGER && *p->lexer.next == '(') {
        *to = read_masked(p);
        return;
    }
    const struct expression e = constant_expression(p);
    uint64_t bits = e.integer;
    if (type_class(v->type) == 'f' && !e.is_real) {
        error_at(p, at, "a float variable expects floats, such as 1.0");
    }
    if (v->type == T_F32) {
        const float f = (float)e.real;
        uint32_t narrow;
        memcpy(&narrow, &f, 4);
        bits = e.single ? e.integer & 0xffffffffu : narrow;
    } else if (v->type == T_F64) {
        memcpy(&bits, &e.real, 8);
    } else if (e.is_real && !(e.single && bytes == 4)) {
        error_at(p, at, "an integer variable expects integers");
    }
    memset(to, 0, bytes); /* an integer constant sets the low 64 bits of .b128 */
    memcpy(to, &bits, bytes < sizeof bits ? bytes : sizeof bits);
}

/* Read { a, b, { c } } or a single value. Return the number of elements given. */
static uint64_t read_initialiser(struct parser *p, const struct variable *v, uint8_t *to, uint64_t done) {
    if (p->token.kind != '{') {
        if (done >= v->count) {
            error_at(p, &p->token, "the initialiser has more values than the variable has elements");
        }
        const struct token at = p->token;
        store_element(p, v, to + done * type_bytes(v->type), &at);
        return done + 1;
    }
    if (++p->depth > 16) {
        error_at(p, &p->token, "the initialiser is nested too deeply");
    }
    token_next(p);
    if (p->token.kind != '}') {
        do {
            done = read_initialiser(p, v, to, done);
        } while (accept(p, ','));
    }
    expect(p, '}', "'}'");
    --p->depth;
    return done;
}

/* Count the elements of an initialiser without consuming it, for name[] = {...}. */
static uint64_t count_elements(const struct parser *p) {
    uint64_t n = 1;
    for (const char *s = p->lexer.next; *s != '\0' && *s != ';'; s++) {
        n += *s == ',';
    }
    return n;
}

/* Allocate the memory of a .global or .const variable. */
static void place_global(struct parser *p, struct symbol *s) {
    uint64_t address = 0;
    const CUresult r = memory_alloc(p->module->device, s->bytes != 0 ? s->bytes : 1,
                                    s->space == SPACE_CONST ? ALLOCATION_CONSTANT : ALLOCATION_VARIABLE, &address);
    if (r != CUDA_SUCCESS) {
        p->result = r;
        error_at(p, &p->token, "cannot allocate device memory for '%.*s'", (int)s->length, s->name);
    }
    struct module *m = p->module;
    if (m->variable_count == m->variable_space) {
        const uint32_t space = m->variable_space != 0 ? 2 * m->variable_space : 16;
        struct placed *grown = module_take(p, space * sizeof *grown);
        if (m->variable_count != 0) {
            memcpy(grown, m->variables, m->variable_count * sizeof *grown);
        }
        m->variables = grown;
        m->variable_space = space;
    }
    m->variables[m->variable_count++] =
        (struct placed){symbol_name(p, s), address, s->bytes, (uint8_t)s->type, (uint8_t)s->space};
    s->address = address;
}

/* Add the symbol of a variable. One that was declared .extern before gets its definition, and the reverse. */
static struct symbol *add_variable(struct parser *p, const struct variable *v) {
    struct symbol *const s = symbol_find(p, v->called.text, v->called.length);
    const bool is_known = s != NULL && s->scope == p->scope && s->kind == SYMBOL_VARIABLE && s->space == v->space &&
                          s->type == v->type && (s->is_extern || v->is_extern);
    return is_known ? s : symbol_add(p, &v->name, v->called.text, v->called.length, SYMBOL_VARIABLE);
}

/* Record a variable of another module. Code that names it cannot run, unless its definition follows. */
static void declare_extern(struct parser *p, const struct variable *v) {
    struct symbol *const s = add_variable(p, v);
    if (p->token.kind == '=') {
        error_at(p, &p->token, "an .extern variable cannot have an initial value");
    }
    if (s->type != T_NONE && !s->is_extern) {
        return; /* it was defined before */
    }
    s->type = v->type;
    s->space = v->space;
    s->is_extern = p->has_extern = true;
    s->unsupported = "is not defined in this module, and modules are not linked";
}

/* Mark a variable whose initial value has the address of one that is not supported. */
static void inherit_unsupported(struct parser *p, struct symbol *s, const struct symbol *from) {
    enum { SIZE = 160 };
    char *const text = module_take(p, SIZE);
    snprintf(text, SIZE, "holds the address of '%.*s', which %s", (int)(from->length < 50 ? from->length : 50),
             from->name, from->unsupported);
    s->unsupported = text;
}

uint64_t read_range(struct parser *p) {
    const struct token at = p->token;
    if (at.kind != TOKEN_INTEGER || at.integer > MOST_IN_RANGE) {
        error_at(p, &at, "expected a number of variables, at most %d", (int)MOST_IN_RANGE);
    }
    token_next(p);
    expect(p, '>', "'>'");
    if (p->token.kind != ',' && p->token.kind != ';') {
        error_at(p, &p->token, "expected ';' before '%.*s'", (int)p->token.length, p->token.at);
    }
    return at.integer;
}

struct range_name range_name(struct parser *p, const struct token *name, uint64_t element) {
    enum { DIGITS = 20 };
    char *const text = module_take(p, name->length + DIGITS + 1);
    const int length =
        snprintf(text, name->length + DIGITS + 1, "%.*s%llu", (int)name->length, name->at, (unsigned long long)element);
    return (struct range_name){text, (uint32_t)length};
}

/* Read the dimensions of one variable, declare it, and read its initialiser. */
static void declare_one(struct parser *p, struct variable *v) {
    read_dimensions(p, v);
    if (v->is_extern && !(v->space == SPACE_SHARED && v->is_open)) {
        declare_extern(p, v);
        return;
    }
    struct symbol *s = add_variable(p, v);
    s->is_extern = false;
    s->unsupported = NULL;
    s->type = v->type;
    s->space = v->space;
    s->align = v->align;
    if (v->is_open && p->token.kind == '=') {
        v->count = count_elements(p) / v->vector;
    }
    v->count *= v->vector;
    s->bytes = v->count * type_bytes(v->type);
    s->is_dynamic = v->space == SPACE_SHARED && v->is_open;
    if (s->is_dynamic && !v->is_extern) {
        error_at(p, &v->name, "'%.*s' has no size; shared memory without a size must be .extern", (int)v->name.length,
                 v->name.at);
    }
    if (v->space == SPACE_CONST && (s->bytes > MAX_CONST || (p->const_bytes += (uint32_t)s->bytes) > MAX_CONST)) {
        error_at(p, &v->name, "with '%.*s', .const variables exceed %d bytes", (int)v->name.length, v->name.at,
                 (int)MAX_CONST);
    }
    if (v->space == SPACE_GLOBAL || v->space == SPACE_CONST) {
        place_global(p, s);
    }
    if (v->space == SPACE_LOCAL) {
        p->local_bytes = (uint32_t)((p->local_bytes + v->align - 1) / v->align * v->align);
        s->address = p->local_bytes;
        if (s->bytes > (1u << 19) || p->local_bytes + s->bytes > (1u << 19)) {
            error_at(p, &v->name, "'%.*s' exceeds the 512 KiB of local memory per thread", (int)v->name.length,
                     v->name.at);
        }
        p->local_bytes += (uint32_t)s->bytes;
    }
    if (p->token.kind == '=') {
        if (v->space != SPACE_GLOBAL && v->space != SPACE_CONST) {
            error_at(p, &p->token, "only .global and .const variables can have initial values");
        }
        token_next(p);
        uint8_t *to = (uint8_t *)(uintptr_t)s->address;
        p->unsupported = NULL;
        read_initialiser(p, v, to, 0);
        if (p->unsupported != NULL) {
            inherit_unsupported(p, s, p->unsupported);
        }
    }
}

/* Declare name, name[n], name = value, or name<n>: name0, name1, ... */
static void declare_variable(struct parser *p, struct variable *v) {
    if (p->token.kind != TOKEN_NAME) {
        error_at(p, &p->token, "expected a name before '%.*s'", (int)p->token.length, p->token.at);
    }
    v->name = p->token;
    v->called = (struct range_name){v->name.at, v->name.length};
    token_next(p);
    if (!accept(p, '<')) {
        declare_one(p, v);
        return;
    }
    const uint64_t count = read_range(p);
    for (uint64_t k = 0; k < count; ++k) {
        v->called = range_name(p, &v->name, k);
        declare_one(p, v);
    }
}

/* Read the rest of .global .texref a, b[4] = { ... }; Code that names such a variable cannot run. */
static void read_opaque(struct parser *p) {
    do {
        token_next(p); /* the type, or the comma before */
        const struct token name = p->token;
        expect(p, TOKEN_NAME, "a name");
        struct variable v = {.name = name};
        read_dimensions(p, &v);
        struct symbol *const s = symbol_add(p, &name, name.at, name.length, SYMBOL_VARIABLE);
        s->type = T_B64;
        s->space = SPACE_GLOBAL;
        s->unsupported = "is a texture, surface or sampler; these are not supported";
        if (accept(p, '=')) {
            if (p->token.kind != '{') {
                expect(p, '{', "'{'");
            }
            skip_block(p);
        }
    } while (p->token.kind == ',');
    expect(p, ';', "';'");
}

/* Return whether the type of a variable of a module is .texref, .surfref or .samplerref. */
static bool is_opaque(const struct parser *p, const struct variable *v) {
    const struct token *const t = &p->token;
    return v->space == SPACE_GLOBAL && v->vector == 1 && p->function == NULL &&
           (token_is(t, ".texref") || token_is(t, ".surfref") || (p->has_samplers && token_is(t, ".samplerref")));
}

/* .attribute(.managed) of a .global variable, which the host shares. Its memory is the device's: host code cannot name
 * the variable, and the others (.unified) need a linker. */
static void read_attribute(struct parser *p, enum space space) {
    token_next(p);
    expect(p, '(', "'('");
    if (!token_is(&p->token, ".managed")) {
        error_at(p, &p->token, "'%.*s' is not supported; expected .managed", (int)p->token.length, p->token.at);
    }
    if (space != SPACE_GLOBAL) {
        error_at(p, &p->token, "only a .global variable can be .managed");
    }
    token_next(p);
    expect(p, ')', "')'");
}

/* .shared .align 16 .b8 name[n], ...; after the state space. As ptxas, static shared memory takes any alignment. */
void read_variables(struct parser *p, enum space space, bool is_extern) {
    const int64_t most = space == SPACE_SHARED && !is_extern ? INT64_C(1) << 30 : 4096;
    struct variable v = {.space = space, .is_extern = is_extern, .vector = 1};
    for (;;) {
        if (token_is(&p->token, ".align")) {
            token_next(p);
            const struct token at = p->token;
            const int64_t align = constant_integer(p);
            if (align < 1 || align > most || (align & (align - 1)) != 0) {
                error_at(p, &at, "an alignment must be a power of two up to %d", (int)most);
            }
            v.align = (uint32_t)align;
        } else if (token_is(&p->token, ".v2") || token_is(&p->token, ".v4")) {
            v.vector = p->token.at[2] == '2' ? 2 : 4;
            token_next(p);
        } else if (token_is(&p->token, ".attribute")) {
            read_attribute(p, space);
        } else {
            break;
        }
    }
    if (is_opaque(p, &v)) {
        read_opaque(p);
        return;
    }
    v.type = token_type(p);
    if (v.type == T_PRED) {
        error_at(p, &p->token, "a predicate cannot be a variable; declare it with .reg");
    }
    if (v.align == 0) {
        v.align = type_bytes(v.type) * v.vector;
    }
    do {
        v.is_array = v.is_open = false;
        declare_variable(p, &v);
    } while (accept(p, ','));
    expect(p, ';', "';'");
}

/* Reserve consecutive registers. */
static uint32_t take_registers(struct parser *p, enum type type, uint64_t count) {
    const uint32_t first = count != 0 ? register_take(p, type) : 0;
    for (uint64_t k = 1; k < count; ++k) {
        register_take(p, type);
    }
    return first;
}

/* .reg{.v2 .v4} .b32 a, b, r<4>; */
void declare_registers(struct parser *p) {
    uint32_t vector = 0;
    token_next(p);
    if (token_is(&p->token, ".v2") || token_is(&p->token, ".v4")) {
        vector = p->token.at[2] == '2' ? 2 : 4;
        token_next(p);
    }
    const struct token of = p->token;
    const enum type type = token_type(p);
    if (vector != 0 && (type == T_PRED || vector * type_bytes(type) > 16)) {
        error_at(p, &of, "a vector register has at most 128 bits and cannot hold predicates");
    }
    do {
        const struct token name = p->token;
        expect(p, TOKEN_NAME, "a name");
        if (!accept(p, '<')) {
            struct symbol *s = symbol_add(p, &name, name.at, name.length, SYMBOL_REGISTER);
            s->type = type;
            s->vector = vector;
            s->slot = take_registers(p, type, vector != 0 ? vector : 1);
            continue;
        }
        const struct token at = p->token;
        if (at.kind != TOKEN_INTEGER || at.integer > MOST_REGISTERS) {
            error_at(p, &at, "expected a number of registers, at most %d", (int)MOST_REGISTERS);
        }
        token_next(p);
        struct symbol *s = symbol_add_range(p, &name, type, at.integer);
        s->vector = vector;
        s->slot = take_registers(p, type, at.integer * (vector != 0 ? vector : 1));
        expect(p, '>', "'>'");
    } while (accept(p, ','));
    expect(p, ';', "';'");
}
