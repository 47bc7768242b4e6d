/* Declarations and statements of PTX: parses the text of a module. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vm/execute/control.h"
#include "vm/machine/arena.h"
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

/* ---- variables ----------------------------------------------------------------------------------------------- */

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
static void read_registers(struct parser *p) {
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

/* ---- statements ---------------------------------------------------------------------------------------------- */

/* Read @p or @!p before an instruction. */
static void read_guard(struct parser *p) {
    struct statement *s = &p->statement;
    s->guard = s->flip = 0;
    s->guard_name = NULL;
    s->start = p->token.at;
    if (!accept(p, '@')) {
        return;
    }
    s->flip = accept(p, '!') ? FULL : 0;
    struct symbol *symbol = p->token.kind == TOKEN_NAME ? symbol_find(p, p->token.at, p->token.length) : NULL;
    if (symbol == NULL || symbol->kind != SYMBOL_REGISTER || symbol->type != T_PRED) {
        error_at(p, &p->token, "undefined predicate '%.*s'", (int)p->token.length, p->token.at);
    }
    s->guard = symbol->slot;
    s->guard_name = symbol_name(p, symbol);
    token_next(p);
}

/* Read an instruction (opcode, modifiers, operands) and decode it. */
static void read_instruction(struct parser *p) {
    struct statement *s = &p->statement;
    read_guard(p);
    s->opcode = p->token;
    expect(p, TOKEN_NAME, "an instruction");
    const char *end = s->opcode.at + s->opcode.length;
    for (s->modifiers = 0; p->token.kind == TOKEN_DOT; token_next(p)) {
        if (s->modifiers == MAX_MODIFIERS) {
            error_at(p, &p->token, "an instruction has at most %d modifiers", (int)MAX_MODIFIERS);
        }
        s->modifier[s->modifiers] = p->token.at + 1;
        s->modifier_length[s->modifiers++] = p->token.length - 1;
        end = p->token.at + p->token.length;
    }
    snprintf(s->name, sizeof s->name, "%.*s", (int)s->opcode.length, s->opcode.at);
    modifiers_name(s);
    s->opcode.length = (uint32_t)(end - s->opcode.at);
    decode_known(p);
    s->operands = s->uses = s->variables = 0;
    if (strcmp(s->name, "call") == 0 || strcmp(s->name, "call.uni") == 0) {
        read_call(p);
        expect(p, ';', "';'");
        return;
    }
    while (p->token.kind != ';') {
        if (s->operands == MAX_OPERANDS) {
            error_at(p, &p->token, "an instruction has at most %d operands", (int)MAX_OPERANDS);
        }
        operand_parse(p, &s->operand[s->operands++]);
        if (p->token.kind != ',') {
            break;
        }
        token_next(p);
        if (p->token.kind == ';') {
            error_at(p, &p->token, "expected an operand before ';'");
        }
    }
    if (p->token.kind != ';') {
        expect(p, ';', "';'");
    }
    decode(p);
    token_next(p);
}

/* Return the name of a file that a .file directive numbers, or NULL. */
static const char *source_name(const struct parser *p, uint64_t number) {
    const struct source *s = p->sources;
    while (s != NULL && s->number != number) {
        s = s->next;
    }
    return s != NULL ? s->name : NULL;
}

/* Return where the inlining of a place is kept; a later one with the same hash replaces it. */
static struct inlining *inlining_of(struct parser *p, const uint64_t place[3]) {
    return p->inlined + (place[0] * 7919 + place[1] * 31 + place[2]) % INLININGS;
}

/* Find the line of the kernel behind a .loc inlined at `site`: that of the site's own .loc, if it was inlined too. */
static void follow_inlining(struct parser *p, const uint64_t own[3], const uint64_t site[3], struct location *to) {
    const struct inlining *const outer = inlining_of(p, site);
    const bool is_inlined =
        outer->from_file != NULL && outer->file == site[0] && outer->line == site[1] && outer->column == site[2];
    to->from_file = is_inlined ? outer->from_file : source_name(p, site[0]);
    to->from_line = is_inlined ? outer->from_line : (uint32_t)site[1];
    if (to->from_file != NULL) {
        *inlining_of(p, own) = (struct inlining){own[0], own[1], own[2], to->from_file, to->from_line};
    }
}

/* Read a word. */
static void expect_word(struct parser *p, const char *word) {
    if (!token_is(&p->token, word)) {
        error_at(p, &p->token, "expected '%s'", word);
    }
    token_next(p);
}

/* Read file, line and column. */
static void read_place(struct parser *p, uint64_t place[3]) {
    for (uint32_t k = 0; k < 3; ++k) {
        place[k] = p->token.integer;
        expect(p, TOKEN_INTEGER, "a file, a line and a column");
    }
}

/* .loc file line column [, function_name label [+ n], inlined_at file line column], without ';': the source of the
 * instructions up to the next .loc. Line 0: they have none. */
static void read_location(struct parser *p) {
    uint64_t own[3], site[3] = {0};
    token_next(p);
    read_place(p, own);
    const bool is_inlined = accept(p, ',');
    if (is_inlined) {
        expect_word(p, "function_name");
        expect(p, TOKEN_NAME, "a label");
        if (accept(p, '+')) {
            expect(p, TOKEN_INTEGER, "a number");
        }
        expect(p, ',', "','");
        expect_word(p, "inlined_at");
        read_place(p, site);
    }
    const bool has_line = own[1] != 0 && own[1] <= UINT32_MAX;
    p->located = (struct location){.file = has_line ? source_name(p, own[0]) : NULL, .line = (uint32_t)own[1]};
    if (p->located.file != NULL && is_inlined && site[1] != 0 && site[1] <= UINT32_MAX) {
        follow_inlining(p, own, site, &p->located);
    }
}

/* .pragma "nounroll", ...; has no effect. */
static void read_pragma(struct parser *p) {
    do {
        token_next(p);
        expect(p, TOKEN_STRING, "a string");
    } while (p->token.kind == ',');
    expect(p, ';', "';'");
}

/* Read a directive inside a function body. */
void read_directive(struct parser *p) {
    const struct token t = p->token;
    if (token_is(&t, ".reg")) {
        read_registers(p);
    } else if (token_is(&t, ".shared") || token_is(&t, ".shared::cta")) {
        token_next(p);
        read_variables(p, SPACE_SHARED, false);
    } else if (token_is(&t, ".local")) {
        token_next(p);
        read_variables(p, SPACE_LOCAL, false);
    } else if (token_is(&t, ".param")) {
        read_arguments(p);
    } else if (token_is(&t, ".global") || token_is(&t, ".const")) {
        token_next(p);
        read_variables(p, t.at[1] == 'g' ? SPACE_GLOBAL : SPACE_CONST, false);
    } else if (token_is(&t, ".loc")) {
        read_location(p);
    } else if (token_is(&t, ".pragma")) {
        read_pragma(p);
    } else {
        error_at(p, &t, "unsupported directive '%.*s'", (int)t.length, t.at);
    }
}

/* Read "ts1, ts2, ...;" after "name: .branchtargets". */
static void read_targets(struct parser *p, struct symbol *label) {
    uint32_t n = 0;
    struct label_use *uses[256];
    token_next(p);
    do {
        if (n == 256) {
            error_at(p, &p->token, "more than 256 branch targets");
        }
        struct label_use *use = parser_take(p, sizeof *use);
        use->token = p->token;
        uses[n++] = use;
        expect(p, TOKEN_NAME, "a label");
    } while (accept(p, ','));
    uint32_t *list = parser_take(p, (n + 1) * sizeof *list);
    list[0] = n;
    for (uint32_t i = 0; i < n; ++i) {
        uses[i]->target = &list[i + 1];
        uses[i]->next = p->scope->uses;
        p->scope->uses = uses[i];
    }
    label->bytes = (uint64_t)(uintptr_t)list;
    expect(p, ';', "';'");
}

/* Read a label, if the statement is one. */
static bool read_label(struct parser *p) {
    const char *s = p->lexer.next;
    while (*s == ' ' || *s == '\t') {
        ++s;
    }
    if (p->token.kind != TOKEN_NAME || *s != ':' || s[1] == ':') {
        return false;
    }
    struct symbol *label = symbol_add(p, &p->token, p->token.at, p->token.length, SYMBOL_LABEL);
    label->slot = p->length;
    token_next(p);
    token_next(p);
    if (token_is(&p->token, ".branchtargets")) {
        read_targets(p, label);
    } else if (token_is(&p->token, ".callprototype")) {
        label->prototype = read_prototype(p);
    } else if (token_is(&p->token, ".calltargets")) {
        label->prototype = read_call_targets(p);
    }
    return true;
}

/* Read a label or an instruction. */
static void read_statement(struct parser *p) {
    if (!read_label(p)) {
        read_instruction(p);
    }
}

/* Read the statements of a function's { } block and close the scope of its parameters. The opening brace has been
 * read. */
void read_block(struct parser *p) {
    unsigned depth = 1;
    while (depth != 0) {
        if (p->token.kind == '}') {
            if (depth == 1) { /* end of the function: emit a ret, in case control reaches it */
                p->statement = (struct statement){.opcode = p->token, .start = p->token.at, .name = "ret"};
                emit_return(p);
            }
            scope_close(p);
            --depth;
            token_next(p);
        } else if (p->token.kind == '{') {
            if (++depth > 200) {
                error_at(p, &p->token, "blocks are nested too deeply");
            }
            scope_open(p);
            token_next(p);
        } else if (p->token.kind == TOKEN_DOT) {
            read_directive(p);
        } else if (p->token.kind == TOKEN_END) {
            error_at(p, &p->token, "expected '}', but the text ends");
        } else {
            const struct lexer lexer = p->lexer;
            const struct token token = p->token;
            if (!parser_try(p, read_statement)) { /* go on behind it, to report the other reasons too */
                if (p->entry->reason_count >= MAX_REASONS) {
                    longjmp(*p->fail, 1);
                }
                p->lexer = lexer;
                p->token = token;
                while (p->token.kind != ';' && p->token.kind != TOKEN_END) {
                    token_next(p);
                }
                accept(p, ';');
            }
        }
    }
}

/* ---- functions ----------------------------------------------------------------------------------------------- */

/* Read one .param of an entry. */
static void read_parameter(struct parser *p, struct parameter *to) {
    if (!token_is(&p->token, ".param")) {
        error_at(p, &p->token, "expected .param before '%.*s'", (int)p->token.length, p->token.at);
    }
    token_next(p);
    uint32_t align = 0;
    enum type type = T_NONE;
    while (p->token.kind == TOKEN_DOT) {
        if (token_is(&p->token, ".align")) {
            token_next(p);
            const struct token at = p->token;
            const int64_t n = constant_integer(p);
            if (n < 1 || n > 128 || (n & (n - 1)) != 0) {
                error_at(p, &at, "the alignment of a parameter must be a power of two up to 128");
            }
            if (type == T_NONE) {
                align = (uint32_t)n;
            }
        } else if (token_is(&p->token, ".ptr") || token_is(&p->token, ".global") || token_is(&p->token, ".const") ||
                   token_is(&p->token, ".shared") || token_is(&p->token, ".local")) {
            token_next(p);
        } else {
            type = token_type(p);
        }
    }
    if (type == T_NONE || type == T_PRED) {
        error_at(p, &p->token, "the parameter needs a type, such as .u64");
    }
    struct variable v = {.name = p->token, .type = type};
    expect(p, TOKEN_NAME, "a name");
    read_dimensions(p, &v);
    const uint64_t bytes = v.count * type_bytes(type);
    align = align != 0 ? align : type_bytes(type);
    const uint32_t offset = (p->function->parameter_bytes + align - 1) / align * align;
    if (bytes == 0) {
        error_at(p, &v.name, "'%.*s' has 0 bytes; a parameter has at least 1 byte", (int)v.name.length, v.name.at);
    }
    if (bytes > 32764 || offset + bytes > 32764) {
        error_at(p, &v.name, "the parameters exceed 32764 bytes");
    }
    struct symbol *s = symbol_add(p, &v.name, v.name.at, v.name.length, SYMBOL_VARIABLE);
    s->space = SPACE_PARAM;
    s->address = offset;
    s->bytes = bytes;
    char *name = parser_take(p, v.name.length + 1);
    memcpy(name, v.name.at, v.name.length);
    *to = (struct parameter){name, type, offset, (uint32_t)bytes, align, v.is_array ? (uint32_t)v.count : 0};
    p->function->parameter_bytes = offset + (uint32_t)bytes;
}

/* Read .reqntid 128, .maxntid 32, 4 and the other directives between the parameters and the body. */
void read_performance(struct parser *p, struct CUfunc_st *f) {
    struct token unsized = p->token;
    while (p->token.kind == TOKEN_DOT) {
        const struct token t = p->token;
        uint32_t *to = token_is(&t, ".reqntid") ? f->required : token_is(&t, ".maxntid") ? f->maximum : NULL;
        uint32_t *cluster = token_is(&t, ".reqnctapercluster") ? f->cluster : NULL;
        if (f->is_entry && token_is(&t, ".blocksareclusters")) {
            token_next(p);
            f->counts_clusters = true;
            unsized = t;
            continue;
        }
        if (to == NULL && cluster == NULL && !token_is(&t, ".explicitcluster") && !token_is(&t, ".minnctapersm") &&
            !token_is(&t, ".maxnreg") && !token_is(&t, ".maxnctapersm") && !token_is(&t, ".noreturn") &&
            !token_is(&t, ".pragma") && !token_is(&t, ".maxclusterrank") && !token_is(&t, ".abi_preserve") &&
            !token_is(&t, ".abi_preserve_control")) {
            error_at(p, &t, "unsupported directive '%.*s'", (int)t.length, t.at);
        }
        if (token_is(&t, ".pragma")) {
            read_pragma(p);
            continue;
        }
        token_next(p);
        for (int n = 0; p->token.kind == TOKEN_INTEGER && n < 3; ++n) {
            if (to != NULL && (p->token.integer < 1 || p->token.integer > 1024)) {
                error_at(p, &p->token, "%llu threads are out of range; expected 1 to 1024",
                         (unsigned long long)p->token.integer);
            }
            if (cluster != NULL && (p->token.integer < 1 || p->token.integer > MAX_CLUSTER)) {
                error_at(p, &p->token, "clusters have 1 to %d CTAs", (int)MAX_CLUSTER);
            }
            if (cluster != NULL) {
                cluster[n] = (uint32_t)p->token.integer;
            }
            if (to != NULL) {
                to[n] = (uint32_t)p->token.integer;
            }
            f->register_limit = token_is(&t, ".maxnreg") ? (uint32_t)p->token.integer : f->register_limit;
            f->resident = token_is(&t, ".minnctapersm") ? (uint32_t)p->token.integer : f->resident;
            token_next(p);
            if (!accept(p, ',')) {
                break;
            }
        }
        for (int n = 1; to != NULL && n < 3; ++n) {
            to[n] = to[n] != 0 ? to[n] : 1;
        }
        if (cluster != NULL) {
            cluster[1] += cluster[1] == 0, cluster[2] += cluster[2] == 0;
        }
        if (cluster != NULL && (uint64_t)cluster[0] * cluster[1] * cluster[2] > MAX_CLUSTER) {
            error_at(p, &t, "a cluster of %u x %u x %u CTAs; expected at most %d", cluster[0], cluster[1], cluster[2],
                     (int)MAX_CLUSTER);
        }
    }
    if (f->counts_clusters && (f->required[0] == 0 || f->cluster[0] == 0)) {
        error_at(p, &unsized, ".blocksareclusters needs .reqntid and .reqnctapercluster");
    }
}

/* Copy the constants into vectors. The address of dynamic shared memory is known only now. */
static void finish_constants(struct parser *p, struct CUfunc_st *f) {
    const uint32_t align = f->dynamic_align > 16 ? f->dynamic_align : 16;
    const uint64_t dynamic = (SHARED_BASE + f->static_shared + align - 1) / align * align;
    f->dynamic_align = align;
    f->constants = parser_take(p, p->constant_bytes + 64);
    f->constant_bytes = p->constant_bytes;
    f->shared_constants = parser_take(p, (p->constant_count + 1) * sizeof *f->shared_constants);
    for (uint32_t i = 0; i < p->constant_count; ++i) {
        const struct constant *c = &p->constants[i];
        const uint64_t value = c->value + (c->base != NULL && c->base->is_dynamic ? dynamic : 0);
        if (c->base != NULL) {
            f->shared_constants[f->shared_constant_count++] = c->slot | c->is_wide;
        }
        for (uint32_t lane = 0; lane < WARP; ++lane) {
            const uint32_t narrow = (uint32_t)value;
            if (c->is_wide != 0) {
                memcpy(f->constants + c->slot + 8 * lane, &value, 8);
            } else {
                memcpy(f->constants + c->slot + 4 * lane, &narrow, 4);
            }
        }
    }
}

/* Store code, registers and constants in the function. */
static void finish_function(struct parser *p, struct CUfunc_st *f) {
    for (uint32_t k = 0; k < p->length; ++k) {
        if (p->code[k].run == control_bra) {
            p->code[k].target = *(const uint32_t *)p->code[k].more;
        }
    }
    f->code = p->code;
    f->places = p->places;
    f->length = p->length;
    f->register_bytes = p->register_bytes;
    f->predicates = p->predicates;
    f->static_shared = p->shared_bytes;
    f->local_bytes = (p->local_bytes + 15) / 16 * 16;
    f->specials = parser_take(p, SPECIAL_COUNT * sizeof *f->specials);
    for (uint32_t s = 0; s < SPECIAL_CLOCK; ++s) {
        if (p->special_slot[s] != 0) {
            f->specials[f->special_count++] = (struct special_use){s, p->special_slot[s] - 1};
        }
    }
    finish_constants(p, f);
}

/* Read the list of parameters in parentheses, if present. */
static void read_parameters(struct parser *p, struct CUfunc_st *f) {
    struct parameter list[512];
    if (!accept(p, '(')) {
        return;
    }
    if (p->token.kind != ')') {
        do {
            if (f->parameter_count == 512) {
                error_at(p, &p->token, "an entry has at most 512 parameters");
            }
            read_parameter(p, &list[f->parameter_count++]);
        } while (accept(p, ','));
    }
    expect(p, ')', "')'");
    f->parameters = parser_take(p, (f->parameter_count + 1) * sizeof *list);
    memcpy(f->parameters, list, f->parameter_count * sizeof *list);
}

/* Begin to decode a function. */
static void start_function(struct parser *p, struct CUfunc_st *f) {
    p->function = f;
    p->routine = NULL;
    p->located = (struct location){0};
    p->sites = NULL;
    p->prototypes = NULL;
    p->code = NULL;
    p->places = NULL;
    p->constants = NULL;
    p->length = p->code_space = p->constant_count = p->constant_space = p->constant_bytes = 0;
    p->register_bytes = p->shared_bytes = p->reserved_shared = 0;
    p->wide = NULL;
    p->wide_space = 0;
    p->local_bytes = p->argument_bytes;
    p->predicates = 2;
    memset(p->special_slot, 0, sizeof p->special_slot);
}

struct CUfunc_st *read_entry(struct parser *p, const char *name) {
    /* not in the code: each attempt to decode an entry has an address of its own, by which its symbols know it */
    struct CUfunc_st *f = module_take(p, sizeof *f);
    *f = (struct CUfunc_st){.name = name, .module = p->module, .is_entry = true};
    start_function(p, f);
    scope_open(p);
    read_parameters(p, f);
    read_performance(p, f);
    const bool is_prototype = accept(p, ';');
    if (is_prototype) {
        scope_close(p);
    } else {
        expect(p, '{', "'{'");
        read_block(p);
        link_functions(p, f);
        finish_function(p, f);
    }
    p->function = NULL;
    return is_prototype ? NULL : f;
}
