/* Tokens of PTX, and errors that point at them. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vm/machine/arena.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

/* Prepare to read `text`, the contents of `file`. */
void lexer_start(struct lexer *lexer, const char *text, const char *file) {
    *lexer = (struct lexer){.text = text, .next = text, .file = file, .line = 1, .row = 1, .line_start = true};
}

static bool is_name_start(char c) {
    return isalpha((unsigned char)c) || c == '_' || c == '$';
}

static bool is_name(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$';
}

/* Write the error, its source line and a caret into the log, and leave the parser. */
void error_at(struct parser *p, const struct token *token, const char *format, ...) {
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    const char *start = token->at, *end = token->at;
    while (start > p->lexer.text && start[-1] != '\n') {
        --start;
    }
    while (*end != '\0' && *end != '\n') {
        ++end;
    }
    const int column = (int)(token->at - start);
    char pad[256];
    int n = 0;
    for (; n < column && n < (int)sizeof pad - 1; ++n) {
        pad[n] = start[n] == '\t' ? '\t' : ' ';
    }
    pad[n] = 0;
    snprintf(p->message, sizeof p->message, "%s:%u:%d: error: %s\n%.*s\n%s^\n", token->file, token->line, column + 1,
             message, (int)(end - start > 400 ? 400 : end - start), start, pad);
    p->failed_at = token->at;
    if (p->result == CUDA_SUCCESS) {
        p->result = CUDA_ERROR_INVALID_PTX;
    }
    longjmp(*p->fail, 1);
}

/* Add the last error to the reasons of the entry, once. Return false when out of memory. */
static bool add_reason(struct parser *p) {
    struct entry *const e = p->entry;
    for (const struct reason *r = e->reasons; r != NULL; r = r->next) {
        if (r->at == p->failed_at) {
            return true;
        }
    }
    struct reason *const r = arena_take(&p->module->arena, sizeof *r);
    char *const text = r != NULL ? arena_take(&p->module->arena, strlen(p->message) + 1) : NULL;
    if (text == NULL) {
        return false;
    }
    *r = (struct reason){.at = p->failed_at, .text = strcpy(text, p->message)};
    *(e->reasons != NULL ? e->reason : &e->reasons) = r;
    e->reason = &r->next;
    ++e->reason_count;
    return true;
}

bool parser_try(struct parser *p, void (*read)(struct parser *)) {
    jmp_buf here, *const outer = p->fail;
    p->fail = &here;
    if (setjmp(here) == 0) {
        read(p);
        p->fail = outer;
        return true;
    }
    p->fail = outer;
    p->depth = 0;
    if (p->result != CUDA_ERROR_OUT_OF_MEMORY && p->entry != NULL && !add_reason(p)) {
        p->result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (p->result == CUDA_ERROR_OUT_OF_MEMORY && outer != NULL) {
        longjmp(*outer, 1);
    }
    return false;
}

/* Return memory of an arena. */
static void *take_from(struct parser *p, struct arena *arena, size_t bytes) {
    void *memory = arena_take(arena, bytes);
    if (memory == NULL) {
        p->result = CUDA_ERROR_OUT_OF_MEMORY;
        error_at(p, &p->token, "out of memory");
    }
    return memory;
}

void *parser_take(struct parser *p, size_t bytes) {
    return take_from(p, p->arena, bytes);
}

void *module_take(struct parser *p, size_t bytes) {
    return take_from(p, &p->module->arena, bytes);
}

const char *file_name(struct parser *p, const char *name, size_t length) {
    for (const struct file *f = p->files; f != NULL; f = f->next) {
        if (strlen(f->name) == length && memcmp(f->name, name, length) == 0) {
            return f->name;
        }
    }
    struct file *const f = module_take(p, sizeof *f);
    char *const copy = module_take(p, length + 1);
    memcpy(copy, name, length);
    *f = (struct file){.next = p->files, .name = copy};
    p->files = f;
    return copy;
}

/* Read a line marker, `#line N "file"` or `# N "file"`; `s` is after the #. */
static const char *read_marker(struct parser *p, const char *s) {
    struct lexer *x = &p->lexer;
    while (*s == ' ' || *s == '\t') {
        ++s;
    }
    if (strncmp(s, "line", 4) == 0) {
        s += 4;
    }
    while (*s == ' ' || *s == '\t') {
        ++s;
    }
    if (isdigit((unsigned char)*s)) {
        char *end;
        const unsigned long line = strtoul(s, &end, 10);
        s = end;
        while (*s == ' ' || *s == '\t') {
            ++s;
        }
        if (*s == '"') {
            const char *name = ++s;
            while (*s != '\0' && *s != '"' && *s != '\n') {
                ++s;
            }
            const size_t length = (size_t)(s - name);
            if (strlen(x->file) != length || memcmp(x->file, name, length) != 0) {
                x->file = file_name(p, name, length);
            }
        }
        x->line = (uint32_t)line - 1; /* the line feed below increments it to N */
    }
    while (*s != '\0' && *s != '\n') {
        ++s;
    }
    return s;
}

/* Skip white space, comments and line markers. */
static void skip_space(struct parser *p) {
    struct lexer *x = &p->lexer;
    const char *s = x->next;
    for (;;) {
        if (*s == '\n') {
            ++x->line;
            ++x->row;
            x->line_start = true;
            ++s;
        } else if (isspace((unsigned char)*s)) {
            ++s;
        } else if (*s == '#' && x->line_start) {
            s = read_marker(p, s + 1);
        } else if (s[0] == '/' && s[1] == '/') {
            while (*s != '\0' && *s != '\n') {
                ++s;
            }
        } else if (s[0] == '/' && s[1] == '*') {
            p->token = (struct token){.at = s, .file = x->file, .line = x->line};
            for (s += 2; *s != '\0' && !(s[0] == '*' && s[1] == '/'); ++s) {
                if (*s == '\n') {
                    ++x->line;
                    ++x->row;
                }
            }
            if (*s == '\0') {
                error_at(p, &p->token, "the comment has no closing '*/'");
            }
            s += 2;
        } else {
            break;
        }
    }
    x->next = s;
    x->line_start = false;
}

/* Read 0f, 0d, 0x, 0b, octal and decimal numbers. */
static const char *read_number(struct parser *p, struct token *t, const char *s) {
    char *end;
    t->kind = TOKEN_INTEGER;
    errno = 0;
    if (s[0] == '0' && strchr("fFdD", s[1]) != NULL && s[1] != '\0' && isxdigit((unsigned char)s[2])) {
        t->kind = TOKEN_REAL;
        t->single = s[1] == 'f' || s[1] == 'F';
        const uint64_t bits = strtoull(s + 2, &end, 16);
        if (end - s != (t->single ? 10 : 18)) {
            error_at(p, t, "a hexadecimal float needs %d digits after 0%c", t->single ? 8 : 16, s[1]);
        }
        if (t->single) {
            t->integer = bits;
            const uint32_t narrow = (uint32_t)bits;
            float value;
            memcpy(&value, &narrow, 4);
            t->real = (double)value;
        } else {
            memcpy(&t->real, &bits, 8);
        }
    } else if (s[0] == '0' && (s[1] == 'b' || s[1] == 'B')) {
        t->integer = strtoull(s + 2, &end, 2);
    } else {
        t->integer = strtoull(s, &end, 0);
        if (s[1] != 'x' && s[1] != 'X' && (*end == '.' || *end == 'e' || *end == 'E')) {
            t->kind = TOKEN_REAL;
            t->real = strtod(s, &end);
        }
    }
    if (t->kind == TOKEN_INTEGER && errno == ERANGE) {
        error_at(p, t, "the number does not fit in 64 bits");
    }
    if (t->kind == TOKEN_INTEGER && *end == 'U') {
        ++end;
    }
    if (is_name(*end)) {
        error_at(p, t, "malformed number");
    }
    return end;
}

/* Read an operator of one or two characters. */
static const char *read_operator(struct token *t, const char *s) {
    static const struct {
        char text[3];
        int kind;
    } pairs[] = {{"<<", TOKEN_SHIFT_LEFT}, {">>", TOKEN_SHIFT_RIGHT}, {"==", TOKEN_EQUAL}, {"!=", TOKEN_UNEQUAL},
                 {"<=", TOKEN_AT_MOST},    {">=", TOKEN_AT_LEAST},    {"&&", TOKEN_AND},   {"||", TOKEN_OR}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; ++i) {
        if (s[0] == pairs[i].text[0] && s[1] == pairs[i].text[1]) {
            t->kind = pairs[i].kind;
            return s + 2;
        }
    }
    t->kind = (unsigned char)*s;
    return s + 1;
}

/* Read the next token into p->token. */
void token_next(struct parser *p) {
    skip_space(p);
    struct lexer *x = &p->lexer;
    const char *s = x->next;
    struct token *t = &p->token;
    *t = (struct token){.at = s, .file = x->file, .line = x->line, .row = x->row, .kind = TOKEN_END};
    if (*s == '\0') {
        return;
    }
    if (isdigit((unsigned char)*s)) {
        s = read_number(p, t, s);
    } else if (is_name_start(*s) || (*s == '%' && is_name_start(s[1]))) {
        t->kind = TOKEN_NAME;
        for (s++; is_name(*s); ++s)
            ;
    } else if (*s == '.' && is_name(s[1])) {
        t->kind = TOKEN_DOT;
        for (s++; is_name(*s) || (s[0] == ':' && s[1] == ':' && is_name(s[2])); s += *s == ':' ? 2 : 1)
            ;
    } else if (*s == '"') {
        t->kind = TOKEN_STRING;
        for (s++; *s != '\0' && *s != '"' && *s != '\n'; ++s)
            ;
        if (*s != '"') {
            error_at(p, t, "the string has no closing '\"'");
        }
        ++s;
    } else {
        s = read_operator(t, s);
    }
    t->length = (uint32_t)(s - t->at);
    x->next = s;
}

/* Return whether the token has exactly this text. */
bool token_is(const struct token *token, const char *text) {
    return strlen(text) == token->length && memcmp(text, token->at, token->length) == 0;
}

/* Go past a token of this kind. Any other token is an error. */
void expect(struct parser *p, int kind, const char *what) {
    if (p->token.kind == TOKEN_END) {
        error_at(p, &p->token, "expected %s, but the text ends", what);
    }
    if (p->token.kind != kind) {
        error_at(p, &p->token, "expected %s before '%.*s'", what, (int)p->token.length, p->token.at);
    }
    token_next(p);
}

/* Go past a token of this kind if it is next. */
bool accept(struct parser *p, int kind) {
    if (p->token.kind != kind) {
        return false;
    }
    token_next(p);
    return true;
}
