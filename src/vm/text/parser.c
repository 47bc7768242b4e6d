/* Statements of PTX: instructions, directives, labels and blocks. */
#include <stdio.h>
#include <string.h>

#include "vm/machine/base.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

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
void read_pragma(struct parser *p) {
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
        declare_registers(p);
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
