/* Functions (.func): their signatures, calls, and how they become part of a kernel's code.
 *
 * The code of a kernel is followed by one copy of every function that it may call. All share the warp's registers. A
 * thread's local memory starts with the argument area, through which arguments and results are passed. The kernel's
 * own variables follow, then the frames of the calls. A call stores its arguments to the area with ordinary store
 * instructions; the function loads them into its frame. Results return the same way. */
#include <stdio.h>
#include <string.h>

#include "vm/execute/call.h"
#include "vm/execute/control.h"
#include "vm/execute/heap.h"
#include "vm/execute/lanes.h"
#include "vm/execute/print.h"
#include "vm/machine/base.h"
#include "vm/machine/counters.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

enum { MOST_FORMALS = 256, MOST_ARGUMENT_BYTES = 4096, MOST_ROUTINES = 4096, RECURSION_BYTES = 16384, DEEPEST = 1024 };

/* ---- signatures ---- */

static bool lists_equal(const struct formal *a, const struct formal *b, uint32_t count) {
    for (uint32_t k = 0; k < count; ++k) {
        if (a[k].bytes != b[k].bytes || a[k].offset != b[k].offset) {
            return false;
        }
    }
    return true;
}

/* Return whether functions with these signatures can be used for each other. */
static bool signature_equal(const struct signature *a, const struct signature *b) {
    return a->result_count == b->result_count && a->argument_count == b->argument_count &&
           lists_equal(a->results, b->results, a->result_count) &&
           lists_equal(a->arguments, b->arguments, a->argument_count);
}

/* Return whether an indirect call may reach this function. */
static bool fits(const struct call_site *site, const struct routine *callee) {
    return signature_equal(site->signature, callee->definition->signature);
}

/* Read the value of .align. */
static uint32_t read_align(struct parser *p) {
    token_next(p);
    const struct token at = p->token;
    const int64_t n = constant_integer(p);
    if (n < 1 || n > 128 || (n & (n - 1)) != 0) {
        error_at(p, &at, "the alignment of a parameter must be a power of two up to 128");
    }
    return (uint32_t)n;
}

/* Read .param .align 8 .b8, or .reg .b32. */
static struct formal read_formal_type(struct parser *p) {
    struct formal f = {.is_register = token_is(&p->token, ".reg")};
    if (!f.is_register && !token_is(&p->token, ".param")) {
        error_at(p, &p->token, "expected .param or .reg before '%.*s'", (int)p->token.length, p->token.at);
    }
    token_next(p);
    while (f.type == T_NONE || token_is(&p->token, ".ptr") || token_is(&p->token, ".align")) {
        if (token_is(&p->token, ".align")) {
            f.align = read_align(p);
        } else if (token_is(&p->token, ".ptr")) {
            token_next(p);
        } else {
            f.type = token_type(p);
        }
    }
    if (f.type == T_PRED || f.type == T_B128) {
        error_at(p, &p->token, "a parameter of a function cannot be .%s", type_name(f.type));
    }
    f.align = f.align > type_bytes(f.type) ? f.align : type_bytes(f.type);
    return f;
}

/* Read name, or name[16], behind the type. */
static void read_formal_name(struct parser *p, struct formal *f) {
    f->name = p->token;
    expect(p, TOKEN_NAME, "a name");
    const uint64_t bytes = read_array(p, f->type);
    if (bytes > MOST_ARGUMENT_BYTES) {
        error_at(p, &f->name, "'%.*s' has %llu bytes; a parameter of a function has at most %d", (int)f->name.length,
                 f->name.at, (unsigned long long)bytes, (int)MOST_ARGUMENT_BYTES);
    }
    f->bytes = (uint32_t)bytes;
}

/* Read ( formal, ... ), which may be missing. Return the number of formals. */
static uint32_t read_formals(struct parser *p, struct formal **to) {
    struct formal list[MOST_FORMALS];
    uint32_t n = 0, offset = 0;
    if (!accept(p, '(')) {
        return 0;
    }
    while (p->token.kind != ')') {
        if (n == MOST_FORMALS) {
            error_at(p, &p->token, "a function has at most %d parameters", (int)MOST_FORMALS);
        }
        list[n] = read_formal_type(p);
        read_formal_name(p, &list[n]);
        list[n].offset = offset;
        offset += (list[n++].bytes + 15) / 16 * 16;
        if (!accept(p, ',')) {
            break;
        }
    }
    expect(p, ')', "')'");
    if (offset > MOST_ARGUMENT_BYTES) {
        error_at(p, &p->token, "the parameters of a function have more than %d bytes", (int)MOST_ARGUMENT_BYTES);
    }
    p->argument_bytes = p->argument_bytes > offset ? p->argument_bytes : offset;
    *to = parser_take(p, (n + 1) * sizeof list[0]);
    memcpy(*to, list, n * sizeof list[0]);
    return n;
}

/* .callprototype (results) _ (arguments); */
const struct signature *read_prototype(struct parser *p) {
    struct signature *s = parser_take(p, sizeof *s);
    struct CUfunc_st ignored = {0};
    token_next(p);
    s->result_count = read_formals(p, &s->results);
    expect(p, TOKEN_NAME, "a name");
    s->argument_count = read_formals(p, &s->arguments);
    read_performance(p, &ignored);
    expect(p, ';', "';'");
    return s;
}

/* .calltargets f, g; names functions that a call by address may reach. They have the same parameters. */
const struct signature *read_call_targets(struct parser *p) {
    const struct signature *first = NULL;
    do {
        token_next(p);
        const struct symbol *const s = symbol_find(p, p->token.at, p->token.length);
        if (p->token.kind != TOKEN_NAME || s == NULL || s->definition == NULL) {
            error_at(p, &p->token, "expected a function before '%.*s'", (int)p->token.length, p->token.at);
        }
        if (first != NULL && !signature_equal(first, s->definition->signature)) {
            error_at(p, &p->token, "the functions of .calltargets must have the same parameters");
        }
        first = s->definition->signature;
        token_next(p);
    } while (p->token.kind == ',');
    expect(p, ';', "';'");
    return first;
}

/* ---- declarations ---- */

/* Skip { ... }. */
void skip_block(struct parser *p) {
    unsigned depth = 0;
    do {
        if (p->token.kind == TOKEN_END) {
            error_at(p, &p->token, "expected '}', but the text ends");
        }
        depth += p->token.kind == '{';
        depth -= p->token.kind == '}';
        token_next(p);
    } while (depth != 0);
}

/* Return the definition of a function name, and create it at the first declaration. */
static struct definition *define(struct parser *p, const struct token *name) {
    struct symbol *s = symbol_find(p, name->at, name->length);
    if (s != NULL && s->definition != NULL) {
        return s->definition;
    }
    struct definition *d = parser_take(p, sizeof *d);
    s = symbol_add(p, name, name->at, name->length, SYMBOL_FUNCTION);
    s->definition = d;
    s->type = T_B64;
    d->symbol = s;
    d->token = *name;
    d->number = ++p->definition_count;
    if (d->number > MOST_ROUTINES) {
        error_at(p, name, "a module has at most %d functions", (int)MOST_ROUTINES);
    }
    s->address = CODE_WINDOW | 16u * d->number;
    d->next = p->definitions;
    p->definitions = d;
    return d;
}

/* .func (results) name (arguments) { body }. The body is read when a kernel calls the function. */
void read_function(struct parser *p, bool is_extern) {
    struct signature *s = parser_take(p, sizeof *s);
    struct CUfunc_st ignored = {0};
    token_next(p);
    while (p->token.kind == TOKEN_DOT) { /* read_performance rejects .attribute */
        read_performance(p, &ignored);
    }
    s->result_count = read_formals(p, &s->results);
    const struct token name = p->token;
    expect(p, TOKEN_NAME, "a name");
    struct definition *d = define(p, &name);
    s->argument_count = read_formals(p, &s->arguments);
    read_performance(p, &ignored);
    if (d->signature != NULL && !signature_equal(d->signature, s)) {
        error_at(p, &name, "'%.*s' was declared earlier with other parameters", (int)name.length, name.at);
    }
    d->signature = s;
    d->is_extern = is_extern;
    if (accept(p, ';')) {
        return;
    }
    if (p->token.kind != '{') {
        expect(p, '{', "'{'");
    }
    if (d->has_body) {
        error_at(p, &name, "'%.*s' is defined twice", (int)name.length, name.at);
    }
    d->has_body = true;
    d->lexer = p->lexer;
    d->token = p->token;
    skip_block(p);
}

/* .alias name, function; makes name another name of a function whose body has been read. */
void read_alias(struct parser *p) {
    struct definition *d[2];
    token_next(p);
    for (int k = 0; k < 2; ++k) {
        const struct symbol *s = symbol_find(p, p->token.at, p->token.length);
        if (p->token.kind != TOKEN_NAME || s == NULL || s->definition == NULL) {
            error_at(p, &p->token, "expected a function before '%.*s'", (int)p->token.length, p->token.at);
        }
        d[k] = s->definition;
        if (k != 0 ? !d[k]->has_body : d[k]->has_body) {
            error_at(p, &p->token, k != 0 ? "'%.*s' has no body" : "'%.*s' has a body, so it cannot be an alias",
                     (int)p->token.length, p->token.at);
        }
        token_next(p);
        expect(p, k != 0 ? ';' : ',', k != 0 ? "';'" : "','");
    }
    if (!signature_equal(d[0]->signature, d[1]->signature)) {
        error_at(p, &d[0]->token, "'%.*s' and the function that it is an alias of have different parameters",
                 (int)d[0]->token.length, d[0]->token.at);
    }
    d[0]->has_body = true; /* for uses of its address that precede .alias */
    d[0]->lexer = d[1]->lexer;
    d[0]->token = d[1]->token;
    d[0]->symbol->address = d[1]->symbol->address;
    d[0]->symbol->definition = d[1];
}

/* Assign a variable of the frame its address. */
static struct symbol *add_local(struct parser *p, const struct formal *f, struct range_name called) {
    struct symbol *s = symbol_add(p, &f->name, called.text, called.length, SYMBOL_VARIABLE);
    s->space = SPACE_LOCAL;
    s->type = f->type;
    s->is_argument = true;
    s->bytes = f->bytes;
    s->align = f->align;
    p->local_bytes = (p->local_bytes + 15) / 16 * 16;
    s->address = p->local_bytes;
    p->local_bytes += f->bytes;
    if (p->local_bytes > 1u << 19) {
        error_at(p, &f->name, "'%.*s' exceeds the 512 KiB of local memory per thread", (int)f->name.length, f->name.at);
    }
    return s;
}

/* Read .param .b32 a, b[4], c<2>; inside a function: arguments and results of calls. */
void read_arguments(struct parser *p) {
    struct formal f = read_formal_type(p);
    do {
        read_formal_name(p, &f);
        if (!accept(p, '<')) {
            add_local(p, &f, (struct range_name){f.name.at, f.name.length});
            continue;
        }
        const uint64_t count = read_range(p);
        for (uint64_t k = 0; k < count; ++k) {
            add_local(p, &f, range_name(p, &f.name, k));
        }
    } while (accept(p, ','));
    expect(p, ';', "';'");
}

/* ---- passing arguments and results ---- */

/* Return the register or constant that addresses of local variables are relative to. */
uint32_t local_base(struct parser *p) {
    return p->routine != NULL ? p->routine->frame : constant_slot(p, 0, true, NULL);
}

/* Emit a load or store of one element of local memory. */
static void emit_local(struct parser *p, enum access access, uint32_t base, uint64_t offset, uint32_t bytes,
                       uint32_t slot) {
    uint32_t *slots = parser_take(p, sizeof *slots);
    *slots = slot;
    struct inst *i = emit(p, access_table()[access]);
    i->a = base;
    i->offset = (int64_t)offset;
    i->space = SPACE_LOCAL;
    i->size = (uint8_t)bytes;
    i->count = 1;
    i->more = slots;
}

/* Emit a copy between the argument area and a variable of the frame, in pieces that the alignment allows. */
static void emit_copy(struct parser *p, const struct formal *f, uint64_t address, bool to_area) {
    const uint32_t area = constant_slot(p, 0, true, NULL), frame = local_base(p);
    const uint32_t step = f->align < 8 ? f->align : 8, wide = register_take(p, T_B64);
    for (uint32_t done = 0, n; done < f->bytes; done += n) {
        for (n = step; n > f->bytes - done; n /= 2)
            ;
        emit_local(p, ACCESS_LOAD, to_area ? frame : area, (to_area ? address : f->offset) + done, n, wide);
        emit_local(p, ACCESS_STORE, to_area ? area : frame, (to_area ? f->offset : address) + done, n, wide);
    }
}

/* Emit the load or store of a parameter that is a register. */
static void emit_formal(struct parser *p, enum access access, const struct formal *f, struct symbol *s) {
    emit_local(p, access, constant_slot(p, 0, true, NULL), f->offset, f->bytes, s->slot);
    use_register(p, symbol_name(p, s), s->slot, s->type, access == ACCESS_LOAD);
    use_attach(p);
}

/* Return the variable or register that holds a formal inside its function. */
static struct symbol *formal_symbol(struct parser *p, const struct formal *f) {
    return symbol_find(p, f->name.at, f->name.length);
}

/* Emit the return from a function or, outside functions, the end of the thread. */
void emit_return(struct parser *p) {
    if (p->routine == NULL) {
        emit(p, control_exit);
        return;
    }
    const struct signature *s = p->routine->definition->signature;
    for (uint32_t k = 0; k < s->result_count; ++k) {
        const struct formal *f = &s->results[k];
        struct symbol *from = formal_symbol(p, f);
        if (f->is_register) {
            emit_formal(p, ACCESS_STORE, f, from);
        } else {
            emit_copy(p, f, from->address, true);
        }
    }
    emit(p, call_return);
}

/* Declare the formals inside their function and emit the loads of its arguments. */
static void receive(struct parser *p, const struct formal *list, uint32_t count, bool are_arguments) {
    for (uint32_t k = 0; k < count; ++k) {
        const struct formal *f = &list[k];
        if (f->is_register) {
            struct symbol *s = symbol_add(p, &f->name, f->name.at, f->name.length, SYMBOL_REGISTER);
            s->type = f->type;
            s->slot = register_take(p, f->type);
            if (are_arguments) {
                emit_formal(p, ACCESS_LOAD, f, s);
            }
            continue;
        }
        const struct symbol *s = add_local(p, f, (struct range_name){f->name.at, f->name.length});
        if (are_arguments) {
            emit_copy(p, f, s->address, false);
        }
    }
}

/* Emit the passing of one argument, or of one result back to the caller. */
static void pass(struct parser *p, const struct formal *f, const struct operand *o, bool is_argument) {
    const uint32_t area = constant_slot(p, 0, true, NULL);
    if (o->kind == OPERAND_SYMBOL && o->symbol->is_argument) {
        if (o->symbol->bytes != f->bytes) {
            error_at(p, &o->token, "'%.*s' has %llu bytes, but the function's parameter has %u", (int)o->token.length,
                     o->token.at, (unsigned long long)o->symbol->bytes, f->bytes);
        }
        struct formal either = *f;
        either.align = o->symbol->align < f->align ? o->symbol->align : f->align;
        emit_copy(p, &either, o->symbol->address, is_argument);
        return;
    }
    const uint32_t slot = is_argument ? need_source(p, o, f->type) : need_destination(p, o, f->type);
    emit_local(p, is_argument ? ACCESS_STORE : ACCESS_LOAD, area, f->offset, f->bytes, slot);
    use_attach(p);
}

/* ---- calls ---- */

/* Read ( operand, ... ). */
static uint32_t read_operands(struct parser *p, struct operand **to) {
    struct operand list[MOST_FORMALS];
    uint32_t n = 0;
    expect(p, '(', "'('");
    while (p->token.kind != ')') {
        if (n == MOST_FORMALS) {
            error_at(p, &p->token, "a call has at most %d arguments", (int)MOST_FORMALS);
        }
        operand_parse(p, &list[n++]);
        if (!accept(p, ',')) {
            break;
        }
    }
    expect(p, ')', "')'");
    *to = parser_take(p, (n + 1) * sizeof list[0]);
    memcpy(*to, list, n * sizeof list[0]);
    return n;
}

struct call_text {
    struct operand *results, *arguments, target;
    uint32_t result_count, argument_count;
    const struct signature *prototype;
};

/* Read {(results),} target {, (arguments)} {, prototype}. */
static struct call_text read_call_text(struct parser *p) {
    struct call_text c = {0};
    if (p->token.kind == '(') {
        c.result_count = read_operands(p, &c.results);
        expect(p, ',', "','");
    }
    if (p->token.kind != TOKEN_NAME) {
        error_at(p, &p->token, "expected a function before '%.*s'", (int)p->token.length, p->token.at);
    }
    operand_parse(p, &c.target);
    while (accept(p, ',')) {
        if (p->token.kind == '(') {
            c.argument_count = read_operands(p, &c.arguments);
            continue;
        }
        const struct symbol *s = symbol_find(p, p->token.at, p->token.length);
        if (s == NULL || s->kind != SYMBOL_LABEL || s->prototype == NULL) {
            error_at(p, &p->token, "'%.*s' is not a label of .callprototype or .calltargets", (int)p->token.length,
                     p->token.at);
        }
        c.prototype = s->prototype;
        token_next(p);
    }
    return c;
}

/* Return the register that holds an argument of a function provided by the device. */
static uint32_t fetch(struct parser *p, const struct operand *o, enum type type) {
    if (o->kind != OPERAND_SYMBOL || !o->symbol->is_argument) {
        return need_source(p, o, type);
    }
    if (o->symbol->bytes != type_bytes(type)) {
        error_at(p, &o->token, "expected an argument of %u bytes", type_bytes(type));
    }
    const uint32_t slot = register_take(p, type);
    emit_local(p, ACCESS_LOAD, local_base(p), o->symbol->address, type_bytes(type), slot);
    return slot;
}

/* Emit a call of malloc or free. Return false for any other function. */
static bool call_heap(struct parser *p, const struct call_text *c, const struct token *name) {
    const bool is_malloc = token_is(name, "malloc") && c->result_count == 1;
    if (c->argument_count != 1 || !(is_malloc || (token_is(name, "free") && c->result_count == 0))) {
        return false;
    }
    const struct symbol *const result = is_malloc && c->results->kind == OPERAND_SYMBOL ? c->results->symbol : NULL;
    if (is_malloc && (result == NULL || !result->is_argument || result->bytes != 8)) {
        return false;
    }
    const uint32_t a = fetch(p, &c->arguments[0], T_B64), d = register_take(p, T_B64);
    struct inst *const i = emit(p, is_malloc ? heap_allocate : heap_free);
    i->a = a, i->d = d;
    if (result != NULL) {
        emit_local(p, ACCESS_STORE, local_base(p), result->address, 8, d);
    }
    return true;
}

/* Emit a call of a function that the device provides. Return false for any other function. */
static bool call_builtin(struct parser *p, const struct call_text *c, const struct token *name) {
    if (token_is(name, "vprintf") && c->argument_count == 2 && c->result_count <= 1) {
        const uint32_t a = fetch(p, &c->arguments[0], T_B64), b = fetch(p, &c->arguments[1], T_B64);
        const uint32_t d = register_take(p, T_B32);
        struct inst *i = emit(p, print_format);
        i->a = a, i->b = b, i->d = d;
        if (c->result_count != 0 && c->results->kind == OPERAND_SYMBOL && c->results->symbol->is_argument) {
            emit_local(p, ACCESS_STORE, local_base(p), c->results->symbol->address, 4, d);
        }
        return true;
    }
    if (token_is(name, "__assertfail") && c->argument_count == 5 && c->result_count == 0) {
        uint32_t slot[4];
        for (uint32_t k = 0; k < 4; ++k) {
            slot[k] = fetch(p, &c->arguments[k], k == 2 ? T_B32 : T_B64);
        }
        struct inst *i = emit(p, print_assertion);
        i->a = slot[0], i->b = slot[1], i->c = slot[2], i->e = slot[3];
        return true;
    }
    return call_heap(p, c, name);
}

/* Return the signature of a call. Report an error if the function cannot be called. */
static const struct signature *call_signature(struct parser *p, const struct call_text *c, struct definition *d) {
    const struct token *t = &c->target.token;
    if (d != NULL && !d->has_body && d->is_extern) {
        error_at(p, t,
                 "'%.*s' is not defined in this module, and modules are not linked; the only system functions are "
                 "vprintf, __assertfail, malloc and free",
                 (int)t->length, t->at);
    }
    if (d == NULL && c->target.kind != OPERAND_REGISTER) {
        error_at(p, t, "undefined function '%.*s'", (int)t->length, t->at);
    }
    if (d == NULL && c->prototype == NULL) {
        error_at(p, t, "a call by address needs a prototype: a label of .callprototype or .calltargets");
    }
    const struct signature *s = d != NULL ? d->signature : c->prototype;
    if (s->argument_count != c->argument_count || s->result_count != c->result_count) {
        error_at(p, t, "the call has %u arguments and %u results, but the function has %u and %u", c->argument_count,
                 c->result_count, s->argument_count, s->result_count);
    }
    return s;
}

/* Note that a call by address has this signature. */
static void note_prototype(struct parser *p, const struct signature *s) {
    const struct prototype *known = p->prototypes;
    while (known != NULL && !signature_equal(known->signature, s)) {
        known = known->next;
    }
    if (known == NULL) {
        struct prototype *const new = parser_take(p, sizeof *new);
        *new = (struct prototype){p->prototypes, s};
        p->prototypes = new;
    }
}

/* Create the copy of a function that belongs to this kernel. */
static void create_routine(struct parser *p, struct definition *d) {
    d->owner = p->function;
    d->routine = parser_take(p, sizeof *d->routine);
    d->routine->definition = d;
}

/* call{.uni} {(results),} target {, (arguments)} {, prototype} */
void read_call(struct parser *p) {
    const struct call_text c = read_call_text(p);
    struct definition *d = c.target.kind == OPERAND_SYMBOL ? c.target.symbol->definition : NULL;
    const struct token opcode = p->statement.opcode;
    if (p->function == NULL) {
        error_at(p, &opcode, "call outside a function");
    }
    if (d != NULL && !d->has_body && call_builtin(p, &c, &c.target.token)) {
        use_attach(p);
        p->places[p->length - 1].opcode = counter_index("call", 4);
        return;
    }
    const struct signature *s = call_signature(p, &c, d);
    for (uint32_t k = 0; k < s->argument_count; ++k) {
        pass(p, &s->arguments[k], &c.arguments[k], true);
    }
    const uint32_t address = d != NULL ? 0 : need_source(p, &c.target, T_B64);
    struct call_site *site = parser_take(p, sizeof *site);
    struct call_site **list = p->routine != NULL ? &p->routine->sites : &p->sites;
    *site = (struct call_site){.next = *list, .caller = p->routine, .signature = s, .fits = fits};
    *list = site;
    struct inst *i = emit(p, d != NULL ? call_direct : call_indirect);
    i->a = address;
    i->more = site;
    p->places[p->length - 1].opcode = counter_index("call", 4);
    use_attach(p);
    if (d != NULL && d->owner != p->function) {
        create_routine(p, d);
    }
    site->callee = d != NULL ? d->routine : NULL;
    if (d == NULL) {
        note_prototype(p, s);
    }
    for (uint32_t k = 0; k < s->result_count; ++k) {
        pass(p, &s->results[k], &c.results[k], false);
    }
}

/* ---- linking ---- */

/* Return a copy of a function's name. */
static char *name_of(struct parser *p, const struct definition *d) {
    char *const name = parser_take(p, d->symbol->length + 1);
    return memcpy(name, d->symbol->name, d->symbol->length);
}

/* Read the body of a function into the kernel's code. */
static void link_body(struct parser *p, struct definition *d) {
    struct routine *r = d->routine;
    r->name = name_of(p, d);
    r->pc = p->length;
    r->first = p->register_bytes;
    r->first_predicate = p->predicates;
    p->lexer = d->lexer;
    p->token = d->token;
    p->routine = r;
    p->located = (struct location){0};
    p->local_bytes = 0;
    p->statement = (struct statement){.opcode = d->token, .start = d->token.at, .name = "call"};
    scope_open(p);
    r->frame = register_take(p, T_B64);
    receive(p, d->signature->results, d->signature->result_count, false);
    receive(p, d->signature->arguments, d->signature->argument_count, true);
    token_next(p);
    read_block(p);
    p->routine = NULL;
    r->frame_bytes = (p->local_bytes + 15) / 16 * 16;
    r->end = p->register_bytes;
    r->end_predicate = p->predicates;
    r->saved_bytes = ((r->end - r->first) / 128 * 8 + (r->end_predicate - r->first_predicate) + 15) / 16 * 16;
}

static void link_current(struct parser *p) {
    struct definition *const d = p->linking;
    if (!d->has_body) {
        error_at(p, &d->token,
                 d->is_extern ? "'%.*s' is not defined in this module, and modules are not linked"
                              : "'%.*s' is called but has no body",
                 (int)d->symbol->length, d->symbol->name);
    }
    link_body(p, d);
}

/* Give a function that cannot run code that faults with the reasons. */
static void refuse(struct parser *p, struct definition *d, const struct reason *reasons) {
    enum { BYTES = 900 };
    struct routine *const r = d->routine;
    char *const text = parser_take(p, BYTES);
    size_t used = (size_t)snprintf(text, BYTES, "a call of %.200s, which cannot run:\n", name_of(p, d));
    for (; reasons != NULL && used < BYTES; reasons = reasons->next) {
        used += (size_t)snprintf(text + used, BYTES - used, "%s", reasons->text);
    }
    const size_t length = strlen(text);
    text[length - 1] = '\0'; /* the last line feed */
    *r = (struct routine){.name = name_of(p, d),
                          .definition = d,
                          .pc = p->length,
                          .frame = register_take(p, T_B64),
                          .first = p->register_bytes,
                          .end = p->register_bytes,
                          .first_predicate = p->predicates,
                          .end_predicate = p->predicates};
    p->located = (struct location){0};
    p->statement = (struct statement){.opcode = d->token, .start = d->token.at, .name = "call"};
    emit(p, call_refused)->more = text;
    p->places[p->length - 1].opcode = counter_index("call", 4);
}

/* Read a function that is reached by address only. If it cannot run, the kernel can: a call of it is a fault. */
static void link_or_refuse(struct parser *p) {
    struct entry *const entry = p->entry, trial = {.name = entry->name};
    struct scope *const scope = p->scope;
    const CUresult result = p->result;
    const uint32_t length = p->length;
    p->entry = &trial;
    const bool is_read = parser_try(p, link_current);
    p->entry = entry;
    if (is_read && trial.reasons == NULL) {
        return;
    }
    while (p->scope != scope) {
        scope_drop(p);
    }
    p->result = result;
    p->routine = NULL;
    p->length = length;
    refuse(p, p->linking, trial.reasons);
}

/* Read the functions that are called so far, and those that they call. */
static void link_called(struct parser *p, struct CUfunc_st *f, void (*read)(struct parser *)) {
    for (bool again = true; again;) {
        again = false;
        for (struct definition *d = p->definitions; d != NULL; d = d->next) {
            if (d->owner == f && f->routines[d->number] == NULL) {
                f->routines[d->number] = d->routine;
                p->linking = d;
                read(p);
                again = true;
            }
        }
    }
}

/* Go behind ( ... ). */
static void skip_list(struct parser *p) {
    while (p->token.kind != ')' && p->token.kind != TOKEN_END) {
        token_next(p);
    }
    token_next(p);
}

/* Go behind the function that a call or a declaration names, unless it is a register. */
static void skip_target(struct parser *p) {
    do {
        token_next(p);
    } while (p->token.kind == TOKEN_DOT);
    if (p->token.kind == '(') {
        skip_list(p);
        accept(p, ',');
    }
    accept(p, TOKEN_NAME);
}

/* Find the functions whose addresses the module uses: whatever names them, except calls, declarations, aliases and
 * debug information. */
static void find_taken(struct parser *p) {
    p->knows_taken = true;
    lexer_start(&p->lexer, p->lexer.text, p->module->name != NULL ? p->module->name : "<ptx>");
    token_next(p);
    while (p->token.kind != TOKEN_END) {
        const int end = token_is(&p->token, ".alias") ? ';' : token_is(&p->token, ".section") ? '}' : 0;
        while (end != 0 && p->token.kind != end && p->token.kind != TOKEN_END) {
            token_next(p);
        }
        if (token_is(&p->token, "call") || token_is(&p->token, ".func")) {
            skip_target(p);
            continue;
        }
        const struct symbol *const s =
            p->token.kind == TOKEN_NAME ? symbol_find(p, p->token.at, p->token.length) : NULL;
        if (s != NULL && s->definition != NULL) {
            s->definition->is_taken = true;
        }
        token_next(p);
    }
    for (struct definition *d = p->definitions; d != NULL; d = d->next) {
        d->is_taken |= d->symbol->definition->is_taken; /* of an alias, the function's */
    }
}

/* Return whether a call by address may reach a function. */
static bool is_candidate(const struct parser *p, const struct definition *d) {
    const struct prototype *s = p->prototypes;
    while (s != NULL && !signature_equal(s->signature, d->signature)) {
        s = s->next;
    }
    return d->is_taken && s != NULL;
}

/* Read every function that the kernel, or a function it calls, may call. */
static void link_bodies(struct parser *p, struct CUfunc_st *f) {
    f->routine_count = p->definition_count + 1;
    f->routines = parser_take(p, f->routine_count * sizeof(struct routine *));
    link_called(p, f, link_current);
    if (p->prototypes != NULL && !p->knows_taken) {
        find_taken(p);
    }
    for (bool again = p->prototypes != NULL; again;) {
        again = false;
        for (struct definition *d = p->definitions; d != NULL; d = d->next) {
            if (d->owner != f && is_candidate(p, d)) {
                create_routine(p, d);
                again = true;
            }
        }
        link_called(p, f, link_or_refuse);
    }
    for (struct definition *d = p->definitions; d != NULL && p->prototypes != NULL; d = d->next) {
        if (d->owner != f && d->is_taken) { /* it fits no call: only its name is needed */
            create_routine(p, d);
            d->routine->name = name_of(p, d);
            f->routines[d->number] = d->routine;
        }
    }
}

enum { UNSEEN, ON_PATH, KNOWN };
struct need {
    uint32_t bytes, depth, state;
};

struct search {
    const struct CUfunc_st *f;
    struct need *known; /* by number of the function */
    bool recursive;
};
static struct need need_of(struct search *s, const struct call_site *site);

/* Update `most` with the stack and call depth that a call of this function needs. */
static void add_need(struct search *s, struct need *most, const struct routine *r) {
    struct need *known = &s->known[r->definition->number];
    if (known->state == ON_PATH) {
        s->recursive = true;
        return;
    }
    if (known->state == UNSEEN) {
        known->state = ON_PATH;
        *known = need_of(s, r->sites);
    }
    const uint32_t bytes = known->bytes + r->frame_bytes, depth = known->depth + 1;
    most->bytes = bytes > most->bytes ? bytes : most->bytes;
    most->depth = depth > most->depth ? depth : most->depth;
}

/* Return the stack and call depth that these calls need below their own frame. Sets s->recursive if a function may
 * call itself. */
static struct need need_of(struct search *s, const struct call_site *site) {
    struct need most = {.state = KNOWN};
    for (; site != NULL; site = site->next) {
        if (site->callee != NULL) {
            add_need(s, &most, site->callee);
        }
        for (uint32_t k = 1; k < s->f->routine_count && site->callee == NULL; ++k) {
            const struct routine *r = s->f->routines[k];
            if (r != NULL && fits(site, r)) {
                add_need(s, &most, r);
            }
        }
    }
    return most;
}

/* Read the functions that the kernel calls into its code, and compute the stack that they need. If a function may
 * call itself, each call saves the caller's registers. */
void link_functions(struct parser *p, struct CUfunc_st *f) {
    f->frame_bytes = (p->local_bytes + 15) / 16 * 16;
    if (p->sites != NULL) {
        const struct lexer lexer = p->lexer;
        const struct token token = p->token;
        link_bodies(p, f);
        p->lexer = lexer;
        p->token = token;
        struct search search = {f, parser_take(p, f->routine_count * sizeof(struct need)), false};
        const struct need need = need_of(&search, p->sites);
        uint8_t *wide = parser_take(p, p->register_bytes / 128 + 1);
        memcpy(wide, p->wide, p->register_bytes / 128);
        for (uint32_t k = 1; k < f->routine_count; ++k) {
            if (f->routines[k] == NULL) {
                continue;
            }
            f->routines[k]->is_recursive = search.recursive;
            f->routines[k]->wide = wide;
        }
        f->call_depth = search.recursive ? DEEPEST : need.depth;
        p->local_bytes = f->frame_bytes + need.bytes + (search.recursive ? RECURSION_BYTES : 0);
    }
    p->sites = NULL;
    p->prototypes = NULL;
}
