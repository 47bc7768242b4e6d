/* Modules: the header, declarations and entries of PTX text. */
#include "vm/text/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vm/machine/arena.h"
#include "vm/machine/program.h"
#include "vm/text/parse.h"

/* ---- the module ---------------------------------------------------------------------------------------------- */

/* .version 8.8 */
static void read_version(struct parser *p) {
    if (!token_is(&p->token, ".version")) {
        error_at(p, &p->token, "a module must begin with .version");
    }
    token_next(p);
    const struct token t = p->token;
    if (t.kind != TOKEN_REAL) {
        error_at(p, &t, "expected a version such as 8.8");
    }
    p->version = (int)(t.real * 10 + 0.5);
    /* Newer versions are accepted; unknown instructions are reported one by one. */
    if (p->version < 60 || p->version > 999) {
        p->result = CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
        error_at(p, &t, ".version %d.%d is not supported; expected 6.0 or later", p->version / 10, p->version % 10);
    }
    token_next(p);
}

/* .target sm_120f, ... */
static void read_target(struct parser *p) {
    if (!token_is(&p->token, ".target")) {
        error_at(p, &p->token, "expected .target");
    }
    token_next(p);
    const struct token t = p->token;
    char text[16] = "", suffix[8] = "";
    snprintf(text, sizeof text, "%.*s", (int)t.length, t.at);
    if (t.kind != TOKEN_NAME || sscanf(text, "sm_%4d%7s", &p->target, suffix) < 1 || strlen(suffix) > 1) {
        error_at(p, &t, "expected a target such as sm_120f");
    }
    p->target_suffix = suffix[0];
    const bool own = p->target == 120 || p->target == 121;
    if (p->target > 121 || (p->target > 103 && p->target != 110 && !own) || (suffix[0] != '\0' && !own) ||
        (suffix[0] != '\0' && suffix[0] != 'a' && suffix[0] != 'f')) {
        p->result = CUDA_ERROR_NO_BINARY_FOR_GPU;
        error_at(p, &t,
                 "target %s is not supported; expected sm_120, sm_121 (plain, a or f) or plain sm_XX up to sm_110",
                 text);
    }
    token_next(p);
    while (accept(p, ',')) {
        p->has_samplers |= token_is(&p->token, "texmode_independent");
        expect(p, TOKEN_NAME, "a target option");
    }
}

/* ---- entries ------------------------------------------------------------------------------------------------- */

/* Go behind an entry's body or, of a prototype, its ';'. A .pragma before the body ends with ';', too. */
static void skip_entry(struct parser *p) {
    bool is_pragma = false;
    for (; p->token.kind != '{' && p->token.kind != TOKEN_END && (is_pragma || p->token.kind != ';'); token_next(p)) {
        is_pragma = token_is(&p->token, ".pragma") || (is_pragma && p->token.kind != ';');
    }
    if (p->token.kind == '{') {
        skip_block(p);
    }
}

/* Add an entry whose parameters are read next. */
static struct entry *add_entry(struct parser *p, const struct token *name) {
    struct module *const m = p->module;
    if (m->entry_count == m->entry_space) {
        const uint32_t space = m->entry_space != 0 ? 2 * m->entry_space : 16;
        struct entry *const grown = module_take(p, space * sizeof *grown);
        if (m->entry_count != 0) {
            memcpy(grown, m->entries, m->entry_count * sizeof *grown);
        }
        m->entries = grown;
        m->entry_space = space;
    }
    char *const copy = module_take(p, name->length + 1);
    memcpy(copy, name->at, name->length);
    m->entries[m->entry_count] = (struct entry){.name = copy, .lexer = p->lexer, .token = p->token};
    return &m->entries[m->entry_count++];
}

static void read_current(struct parser *p) {
    p->entry->function = read_entry(p, p->entry->name);
}

/* Decode an entry. If it cannot run, its reasons are kept. */
static void decode_entry(struct parser *p, struct entry *e) {
    struct scope *const scope = p->scope;
    p->arena = &p->module->code;
    p->entry = e;
    const bool is_read = parser_try(p, read_current);
    p->entry = NULL;
    p->function = NULL;
    p->arena = &p->module->arena;
    while (p->scope != scope) {
        scope_drop(p);
    }
    if (!is_read || e->reasons != NULL) {
        e->function = NULL;
    }
}

/* Read an entry. Of a module with much code, only its reasons are kept: it is decoded again when it is asked for. */
static void read_new_entry(struct parser *p) {
    enum { KEPT = 16 << 20 };
    struct module *const m = p->module;
    token_next(p);
    const struct token name = p->token;
    expect(p, TOKEN_NAME, "a name");
    struct symbol *symbol = symbol_find(p, name.at, name.length);
    if (symbol == NULL || !symbol->is_prototype) {
        symbol = symbol_add(p, &name, name.at, name.length, SYMBOL_FUNCTION);
    }
    struct entry *const e = add_entry(p, &name);
    const struct arena_mark mark = arena_mark(&m->code);
    const uint32_t variables = m->variable_count, constants = p->const_bytes;
    decode_entry(p, e);
    symbol->is_prototype = e->function == NULL && e->reasons == NULL;
    if (symbol->is_prototype) {
        --m->entry_count;
    }
    if (e->reasons != NULL) {
        p->lexer = e->lexer;
        p->token = e->token;
        skip_entry(p);
    }
    const bool has_variables = m->variable_count != variables || p->const_bytes != constants;
    if (e->function == NULL || (m->code.bytes > KEPT && !has_variables)) {
        e->function = NULL;
        arena_release(&m->code, mark);
    }
}

/* Skip an entry that may call functions, or name variables, which are defined later. */
static void defer_entry(struct parser *p) {
    struct deferred *d = module_take(p, sizeof *d);
    d->lexer = p->lexer;
    d->token = p->token;
    *p->deferred_end = d;
    p->deferred_end = &d->next;
    skip_entry(p);
}

/* Read the entries that defer_entry() skipped. */
static void read_deferred(struct parser *p) {
    for (const struct deferred *d = p->deferred; d != NULL; d = d->next) {
        p->lexer = d->lexer;
        p->token = d->token;
        read_new_entry(p);
    }
}

/* Read a linking directive and the declaration after it. */
static void read_declaration(struct parser *p) {
    bool is_extern = false;
    while (token_is(&p->token, ".visible") || token_is(&p->token, ".weak") || token_is(&p->token, ".extern") ||
           token_is(&p->token, ".common")) {
        is_extern = token_is(&p->token, ".extern");
        token_next(p);
    }
    const struct token t = p->token;
    if (token_is(&t, ".entry") && (p->definitions != NULL || p->has_extern || p->has_prototypes)) {
        defer_entry(p);
    } else if (token_is(&t, ".entry")) {
        read_new_entry(p);
    } else if (token_is(&t, ".shared") || token_is(&t, ".global") || token_is(&t, ".const")) {
        token_next(p);
        read_variables(p, t.at[1] == 's' ? SPACE_SHARED : t.at[1] == 'g' ? SPACE_GLOBAL : SPACE_CONST, is_extern);
    } else if (token_is(&t, ".func")) {
        read_function(p, is_extern);
    } else {
        error_at(p, &t, "expected a declaration before '%.*s'", (int)t.length, t.at);
    }
}

/* .file number "name" [, time [, size]], without ';'. read_sources() has kept the name. */
static void read_file(struct parser *p) {
    token_next(p);
    expect(p, TOKEN_INTEGER, "the number of a file");
    expect(p, TOKEN_STRING, "the name of a file");
    for (uint32_t k = 0; k < 2 && accept(p, ','); ++k) {
        expect(p, TOKEN_INTEGER, "a number");
    }
}

/* Read everything after the header. */
static void read_module(struct parser *p) {
    token_next(p);
    read_version(p);
    read_target(p);
    while (p->token.kind != TOKEN_END) {
        const struct token t = p->token;
        if (token_is(&t, ".address_size")) {
            token_next(p);
            if (p->token.kind != TOKEN_INTEGER || p->token.integer != 64) {
                error_at(p, &p->token, ".address_size must be 64");
            }
            token_next(p);
        } else if (token_is(&t, ".file")) {
            read_file(p);
        } else if (token_is(&t, ".pragma")) {
            read_directive(p);
        } else if (token_is(&t, ".alias")) {
            read_alias(p);
        } else if (token_is(&t, ".section")) { /* debug information */
            while (p->token.kind != '}' && p->token.kind != TOKEN_END) {
                token_next(p);
            }
            expect(p, '}', "'}'");
        } else if (!accept(p, ';')) {
            read_declaration(p);
        }
    }
    read_deferred(p);
}

/* ---- reasons ------------------------------------------------------------------------------------------------- */

/* Append a reason to a log. Returns the bytes used. */
static size_t write_reason(const struct reason *r, char *log, size_t bytes, size_t used) {
    const int n = used < bytes ? snprintf(log + used, bytes - used, "%s", r->text) : 0;
    return used + (size_t)n;
}

/* Write why the entries of a module cannot run: each place of the text once, though several entries call a function.
 * Returns the bytes used. */
static size_t write_all_reasons(const struct module *m, char *log, size_t bytes) {
    enum { MOST = 64 };
    const struct reason *known[MOST];
    uint32_t count = 0;
    size_t used = 0;
    for (uint32_t k = 0; k < m->entry_count; ++k) {
        for (const struct reason *r = m->entries[k].reasons; r != NULL; r = r->next) {
            uint32_t same = 0;
            while (same < count && known[same]->at != r->at) {
                ++same;
            }
            if (count == MOST || used >= bytes) {
                return used;
            }
            if (same == count) {
                known[count++] = r;
                used = write_reason(r, log, bytes, used);
            }
        }
    }
    return used;
}

/* Return whether a module has entries, and none can run. */
static bool is_refused(const struct module *m) {
    uint32_t refused = 0;
    while (refused < m->entry_count && m->entries[refused].reasons != NULL) {
        ++refused;
    }
    return m->entry_count != 0 && refused == m->entry_count;
}

/* Read the names of `.file number "name"` directives. Compilers write them behind the code that refers to them. */
static void read_sources(struct parser *p) {
    static const char blanks[] = " \t\r\n";
    for (const char *at = strstr(p->lexer.text, ".file"); at != NULL; at = strstr(at + 1, ".file")) {
        char *end;
        const uint64_t number = strtoull(at + 5, &end, 0);
        const char *const quote = end + strspn(end, blanks), *const name = quote + 1;
        const size_t length = strchr(blanks, at[5]) != NULL && *quote == '"' ? strcspn(name, "\"\n") : 0;
        if (length != 0 && name[length] == '"') {
            struct source *const s = module_take(p, sizeof *s);
            *s = (struct source){.next = p->sources, .name = file_name(p, name, length), .number = number};
            p->sources = s;
        }
    }
}

static void read_all(struct parser *p) {
    read_sources(p);
    p->has_prototypes =
        strstr(p->lexer.text, ".callprototype") != NULL || strstr(p->lexer.text, ".calltargets") != NULL;
    scope_open(p);
    read_module(p);
}

CUresult module_parse(struct module *module, const char *text, char *log, size_t log_bytes) {
    enum { NAMES = 1024 };
    struct parser *p = arena_take(&module->arena, sizeof *p);
    *log = '\0';
    if (p == NULL || (p->hash = calloc(NAMES, sizeof(struct symbol *))) == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    module->parser = p;
    p->hash_size = NAMES;
    p->module = module;
    p->arena = &module->arena;
    lexer_start(&p->lexer, text, module->name != NULL ? module->name : "<ptx>");
    p->deferred_end = &p->deferred;
    const bool is_read = parser_try(p, read_all);
    if (is_read && !is_refused(module)) {
        return CUDA_SUCCESS;
    }
    const size_t used = write_all_reasons(module, log, log_bytes);
    if (!is_read && used < log_bytes) {
        snprintf(log + used, log_bytes - used, "%s", p->message);
    }
    return p->result;
}

CUresult module_entry(struct module *module, const char *name, struct CUfunc_st **function, char *log,
                      size_t log_bytes) {
    struct entry *e = module->entries, *const end = e + module->entry_count;
    while (e != end && strcmp(e->name, name) != 0) {
        ++e;
    }
    if (e == end) {
        return CUDA_ERROR_NOT_FOUND;
    }
    struct parser *const p = module->parser;
    if (e->function == NULL && e->reasons == NULL) {
        p->result = CUDA_SUCCESS;
        p->lexer = e->lexer;
        p->token = e->token;
        decode_entry(p, e);
    }
    if (e->reasons != NULL) {
        size_t used = 0;
        for (const struct reason *r = e->reasons; r != NULL; r = r->next) {
            used = write_reason(r, log, log_bytes, used);
        }
        const size_t length = strlen(log);
        log[length - 1] = '\0'; /* the last line feed */
        return CUDA_ERROR_INVALID_PTX;
    }
    *function = e->function;
    return e->function != NULL ? CUDA_SUCCESS : p->result;
}

void module_free(struct module *module) {
    if (module->parser != NULL) {
        free(module->parser->hash);
    }
    arena_free(&module->code);
    arena_free(&module->arena);
}
