/* Entries of PTX: parameters, performance directives, body. */
#include <string.h>

#include "vm/execute/control.h"
#include "vm/machine/base.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

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
    const struct token name = p->token;
    expect(p, TOKEN_NAME, "a name");
    const bool is_array = p->token.kind == '[';
    const uint64_t bytes = read_array(p, type);
    align = align != 0 ? align : type_bytes(type);
    const uint32_t offset = (p->function->parameter_bytes + align - 1) / align * align;
    if (bytes == 0) {
        error_at(p, &name, "'%.*s' has 0 bytes; a parameter has at least 1 byte", (int)name.length, name.at);
    }
    if (bytes > 32764 || offset + bytes > 32764) {
        error_at(p, &name, "the parameters exceed 32764 bytes");
    }
    struct symbol *s = symbol_add(p, &name, name.at, name.length, SYMBOL_VARIABLE);
    s->space = SPACE_PARAM;
    s->address = offset;
    s->bytes = bytes;
    char *copy = parser_take(p, name.length + 1);
    memcpy(copy, name.at, name.length);
    const uint32_t count = is_array ? (uint32_t)(bytes / type_bytes(type)) : 0;
    *to = (struct parameter){copy, type, offset, (uint32_t)bytes, align, count};
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
