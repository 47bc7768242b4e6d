/* Changes PTX at the level of its tokens: words of the same kind for one another, statements moved, doubled or taken
 * from other texts with their registers renamed to registers of the same type. Serves both engines. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 1 << 13, MOST_WORDS = 1 << 13, MOST_STATEMENTS = 1 << 14, LONGEST_WORD = 47, MOST_NAMES = 512 };
enum kind { KIND_SPACE, KIND_NAME, KIND_DOT, KIND_NUMBER, KIND_STRING, KIND_MARK, KINDS };

struct token {
    uint32_t at, length;
    enum kind kind;
};

/* A text and its tokens. */
struct text {
    char bytes[LONGEST + 1];
    size_t size;
    struct token token[MOST_TOKENS];
    size_t tokens;
};

/* A name that a text declares, and its type, such as ".b32". */
struct name {
    char text[LONGEST_WORD + 1], type[8];
};
struct names {
    struct name name[MOST_NAMES];
    size_t count;
};

static char words[KINDS][MOST_WORDS][LONGEST_WORD + 1];
static size_t word_count[KINDS];
/* Statements of all texts, each with the declarations that it needs: "a .b32 x .b64 :add.u32 a, a, x;" */
static char *statements[MOST_STATEMENTS];
static size_t statement_count;
static uint64_t state;

/* A step of splitmix64. */
static uint64_t draw(void) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t below(size_t n) {
    return n ? (size_t)(draw() % n) : 0;
}

/* ---- tokens -------------------------------------------------------------------------------------------------- */

static int is_name(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$';
}

/* The length of the white space or comment at s, 0 if there is none. */
static size_t space_length(const char *s) {
    const char *e = s;
    if (isspace((unsigned char)*s)) {
        while (isspace((unsigned char)*e)) {
            e++;
        }
    } else if (s[0] == '/' && s[1] == '/') {
        e += strcspn(s, "\n");
    }
    return (size_t)(e - s);
}

/* The token at s. */
static struct token read_token(const char *s) {
    struct token t = {.kind = KIND_MARK, .length = 1};
    const char *e = s + 1;
    const size_t space = space_length(s);
    if (space) {
        t.kind = KIND_SPACE;
        e = s + space;
    } else if (isdigit((unsigned char)*s)) {
        t.kind = KIND_NUMBER;
        while (is_name(*e) || (*e == '.' && isdigit((unsigned char)e[1]))) {
            e++;
        }
    } else if (is_name(*s) || (*s == '%' && is_name(s[1]))) {
        t.kind = KIND_NAME;
        while (is_name(*e)) {
            e++;
        }
    } else if (*s == '.' && is_name(s[1])) {
        t.kind = KIND_DOT;
        while (is_name(*e) || (e[0] == ':' && e[1] == ':')) {
            e += *e == ':' ? 2 : 1;
        }
    } else if (*s == '"') {
        t.kind = KIND_STRING;
        e += strcspn(e, "\"\n");
        e += *e == '"';
    }
    t.length = (uint32_t)(e - s);
    return t;
}

/* Split bytes into tokens; what comes after the first NUL, or after too many tokens, is dropped. */
static void split(struct text *t, const uint8_t *data, size_t size) {
    const uint8_t *const end = memchr(data, 0, size);
    t->size = end ? (size_t)(end - data) : size;
    t->size = t->size < LONGEST ? t->size : LONGEST;
    memcpy(t->bytes, data, t->size);
    t->bytes[t->size] = 0;
    t->tokens = 0;
    for (size_t at = 0; at < t->size && t->tokens < MOST_TOKENS;) {
        struct token token = read_token(t->bytes + at);
        token.at = (uint32_t)at;
        at += token.length;
        t->token[t->tokens++] = token;
    }
}

static int token_is(const struct text *t, size_t k, const char *spelled) {
    return k < t->tokens && strlen(spelled) == t->token[k].length &&
           !memcmp(t->bytes + t->token[k].at, spelled, t->token[k].length);
}

/* Copy a token's text, cut to a word's size. */
static void copy_word(const struct text *t, size_t k, char to[LONGEST_WORD + 1]) {
    const size_t n = t->token[k].length < LONGEST_WORD ? t->token[k].length : LONGEST_WORD;
    memcpy(to, t->bytes + t->token[k].at, n);
    to[n] = 0;
}

/* A token of a kind, or of any but space; t->tokens if there is none. */
static size_t choose_token(const struct text *t, enum kind kind) {
    for (int tries = 0; tries < 64 && t->tokens; tries++) {
        const size_t k = below(t->tokens);
        if (kind == KINDS ? t->token[k].kind != KIND_SPACE : t->token[k].kind == kind) {
            return k;
        }
    }
    return t->tokens;
}

/* Put text in the place of bytes; nothing happens where it would be too long. */
static void replace(struct text *t, size_t at, size_t length, const char *by) {
    const size_t n = strlen(by);
    static uint8_t whole[LONGEST + 1];
    if (t->size - length + n > LONGEST) {
        return;
    }
    memcpy(whole, t->bytes, at);
    memcpy(whole + at, by, n);
    memcpy(whole + at + n, t->bytes + at + length, t->size - at - length);
    split(t, whole, t->size - length + n);
}

/* ---- what a text declares ------------------------------------------------------------------------------------ */

static const char *name_type(const struct names *names, const char *text) {
    for (size_t k = 0; k < names->count; k++) {
        if (!strcmp(names->name[k].text, text)) {
            return names->name[k].type;
        }
    }
    return NULL;
}

static void declare(struct names *names, const char *text, const char *type) {
    if (names->count == MOST_NAMES) {
        return;
    }
    struct name *n = &names->name[names->count++];
    snprintf(n->text, sizeof n->text, "%s", text);
    snprintf(n->type, sizeof n->type, "%.7s", type);
}

/* r<4>: declare r0 ... r3, and no more than a few. */
static void declare_range(struct names *names, const char *stem, long count, const char *type) {
    char text[LONGEST_WORD + 1];
    for (int k = 0; k < count && k < 12; k++) {
        snprintf(text, sizeof text, "%.20s%d", stem, k);
        declare(names, text, type);
    }
}

/* Find the registers of `.reg .b32 a, r<4>;`, and variables by their space. */
static void find_names(const struct text *t, struct names *names) {
    char type[LONGEST_WORD + 1] = "", word[LONGEST_WORD + 1], next[LONGEST_WORD + 1];
    int inside = 0;
    names->count = 0;
    for (size_t k = 0; k < t->tokens; k++) {
        const enum kind kind = t->token[k].kind;
        if (token_is(t, k, ".reg") || token_is(t, k, ".shared") || token_is(t, k, ".param") ||
            token_is(t, k, ".local")) {
            inside = token_is(t, k, ".reg") ? 1 : 2;
            copy_word(t, k, type);
        } else if (token_is(t, k, ";") || token_is(t, k, ")") || token_is(t, k, "[")) {
            inside = 0;
        } else if (inside == 1 && kind == KIND_DOT) {
            copy_word(t, k, type);
        } else if (inside && kind == KIND_NAME) {
            copy_word(t, k, word);
            if (token_is(t, k + 1, "<") && k + 2 < t->tokens) {
                copy_word(t, k + 2, next);
                declare_range(names, word, atol(next), type);
            } else {
                declare(names, word, type);
            }
        }
    }
}

/* A name that a text declares with this type, or any if there is none such. */
static const char *choose_name(const struct names *names, const char *type) {
    const size_t first = below(names->count);
    for (size_t k = 0; type && k < names->count; k++) {
        const struct name *n = &names->name[(first + k) % names->count];
        if (!strcmp(n->type, type)) {
            return n->text;
        }
    }
    return names->count ? names->name[first].text : NULL;
}

/* ---- statements ---------------------------------------------------------------------------------------------- */

/* The tokens of a statement, around a token: behind the last ; { or } up to the next ; */
static void statement_around(const struct text *t, size_t k, size_t *first, size_t *end) {
    for (*first = k; *first > 0; --*first) {
        if (token_is(t, *first - 1, ";") || token_is(t, *first - 1, "{") || token_is(t, *first - 1, "}")) {
            break;
        }
    }
    while (*first < t->tokens && t->token[*first].kind == KIND_SPACE) {
        ++*first;
    }
    for (*end = k; *end < t->tokens && !token_is(t, *end, ";"); ++*end)
        ;
    *end += *end < t->tokens;
}

/* Copy the text of some tokens; it is cut to what fits. */
static void copy_tokens(const struct text *t, size_t first, size_t end, char *to, size_t space) {
    const size_t from = first < end ? t->token[first].at : 0;
    size_t n = first < end ? t->token[end - 1].at + t->token[end - 1].length - from : 0;
    n = n < space - 1 ? n : space - 1;
    memcpy(to, t->bytes + from, n);
    to[n] = 0;
}

/* Keep a statement with the types of its registers. */
static void learn_statement(const struct text *t, size_t first, size_t end, const struct names *names) {
    char line[600] = "", word[LONGEST_WORD + 1];
    size_t n = 0;
    if (end - first > 60 || statement_count == MOST_STATEMENTS || t->token[first].kind == KIND_DOT) {
        return;
    }
    for (size_t k = first; k < end && n < 200; k++) {
        copy_word(t, k, word);
        const char *type = t->token[k].kind == KIND_NAME ? name_type(names, word) : NULL;
        if (type) {
            n += (size_t)snprintf(line + n, sizeof line - n, "%s %s ", word, type);
        }
    }
    line[n++] = ':';
    copy_tokens(t, first, end, line + n, sizeof line - n);
    for (size_t k = statement_count > 64 ? statement_count - 64 : 0; k < statement_count; k++) {
        if (!strcmp(statements[k], line)) {
            return;
        }
    }
    char *copy = malloc(strlen(line) + 1);
    if (copy) {
        statements[statement_count++] = strcpy(copy, line);
    }
}

/* Write a learnt statement in the names of a text. */
static void adapt_statement(const char *learnt, const struct names *names, char *to, size_t space) {
    static struct text t;
    char needed[600], word[LONGEST_WORD + 1], type[8];
    size_t n = 0;
    const char *body = strchr(learnt, ':') + 1;
    snprintf(needed, sizeof needed, "%.*s", (int)(body - 1 - learnt), learnt);
    split(&t, (const uint8_t *)body, strlen(body));
    to[0] = 0;
    for (size_t k = 0; k < t.tokens && n + LONGEST_WORD + 2 < space; k++) {
        const char *by = NULL;
        char token[LONGEST_WORD + 1];
        int used;
        copy_word(&t, k, token);
        for (const char *s = needed; !by && sscanf(s, "%47s %7s %n", word, type, &used) == 2; s += used) {
            if (!strcmp(word, token)) {
                by = choose_name(names, type);
            }
        }
        n += (size_t)snprintf(to + n, space - n, "%s", by && t.token[k].kind == KIND_NAME ? by : token);
    }
}

/* ---- learning ------------------------------------------------------------------------------------------------ */

/* Keep a word, once. */
static void learn_word(enum kind kind, const char *word) {
    for (size_t k = 0; k < word_count[kind]; k++) {
        if (!strcmp(words[kind][k], word)) {
            return;
        }
    }
    if (word_count[kind] < MOST_WORDS) {
        snprintf(words[kind][word_count[kind]++], LONGEST_WORD + 1, "%s", word);
    }
}

void mutate_learn(const uint8_t *data, size_t size) {
    static struct text t;
    static struct names names;
    char word[LONGEST_WORD + 1];
    split(&t, data, size);
    find_names(&t, &names);
    for (size_t k = 0; k < t.tokens; k++) {
        copy_word(&t, k, word);
        if (t.token[k].kind == KIND_DOT || t.token[k].kind == KIND_NUMBER) {
            learn_word(t.token[k].kind, word);
        }
        if (t.token[k].kind == KIND_NAME && k + 1 < t.tokens && t.token[k + 1].kind == KIND_DOT) {
            learn_word(KIND_NAME, word); /* an opcode */
        }
        if (t.token[k].kind == KIND_NAME && word[0] == '%' && !name_type(&names, word)) {
            learn_word(KIND_NAME, word); /* a hardware register */
        }
    }
    for (size_t k = 0; k < t.tokens;) {
        size_t first, end;
        statement_around(&t, k, &first, &end);
        if (first < end && end <= t.tokens) {
            learn_statement(&t, first, end, &names);
        }
        k = end > k ? end : k + 1;
    }
}

/* Learn one word per line. */
static void learn_words(const char *path) {
    char line[LONGEST_WORD + 2];
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0]) {
            learn_word(line[0] == '.' ? KIND_DOT : KIND_NAME, line);
        }
    }
    if (f) {
        fclose(f);
    }
}

static void learn_folder(const char *folder) {
    static uint8_t data[LONGEST];
    char path[4096];
    DIR *d = opendir(folder);
    for (const struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (!f) {
            continue;
        }
        mutate_learn(data, fread(data, 1, sizeof data, f));
        fclose(f);
    }
    if (d) {
        closedir(d);
    }
}

void mutate_prepare(int count, char **arguments) {
    static const char *const numbers[] = {
        "0",  "1",  "2",   "3",    "4",    "7",    "8",     "15",    "16",         "31",         "32",
        "33", "63", "64",  "65",   "127",  "128",  "255",   "256",   "1023",       "1024",       "1025",
        "-1", "-8", "-16", "2048", "4095", "4096", "32764", "65535", "0x7fffffff", "0x80000000", "0xffffffff"};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        learn_word(KIND_NUMBER, numbers[k]);
    }
    for (int k = 1; k < count; k++) {
        if (!strncmp(arguments[k], "-words=", 7)) {
            learn_words(arguments[k] + 7);
        } else if (arguments[k][0] != '-') {
            learn_folder(arguments[k]);
        }
    }
}

/* ---- changes ------------------------------------------------------------------------------------------------- */

typedef void change(struct text *t, const struct names *names);

static void replace_token(struct text *t, size_t k, const char *by) {
    if (k < t->tokens) {
        replace(t, t->token[k].at, t->token[k].length, by);
    }
}

static const char *choose_word(enum kind kind) {
    return word_count[kind] ? words[kind][below(word_count[kind])] : "";
}

/* Another modifier or type. */
static void change_dot(struct text *t, const struct names *names) {
    (void)names;
    replace_token(t, choose_token(t, KIND_DOT), choose_word(KIND_DOT));
}

/* A modifier more, or one less. */
static void change_modifiers(struct text *t, const struct names *names) {
    char both[2 * LONGEST_WORD + 2];
    const size_t k = choose_token(t, KIND_DOT);
    (void)names;
    if (k == t->tokens) {
        return;
    }
    snprintf(both, sizeof both, "%.*s%s", (int)t->token[k].length, t->bytes + t->token[k].at, choose_word(KIND_DOT));
    replace_token(t, k, draw() & 1 ? both : "");
}

/* Another opcode or hardware register. */
static void change_opcode(struct text *t, const struct names *names) {
    (void)names;
    replace_token(t, choose_token(t, KIND_NAME), choose_word(KIND_NAME));
}

/* Another operand: mostly one of the same type. */
static void change_name(struct text *t, const struct names *names) {
    char word[LONGEST_WORD + 1];
    const size_t k = choose_token(t, KIND_NAME);
    if (k == t->tokens) {
        return;
    }
    copy_word(t, k, word);
    const char *by = choose_name(names, below(4) ? name_type(names, word) : NULL);
    if (by) {
        replace_token(t, k, by);
    }
}

static void change_number(struct text *t, const struct names *names) {
    char text[LONGEST_WORD + 1];
    const size_t k = choose_token(t, KIND_NUMBER);
    (void)names;
    if (k == t->tokens) {
        return;
    }
    copy_word(t, k, text);
    const long long value = strtoll(text, NULL, 0);
    switch (below(5)) {
    case 0:
        snprintf(text, sizeof text, "%lld", (long long)((uint64_t)value + (below(2) ? 1u : ~0u)));
        break;
    case 1:
        snprintf(text, sizeof text, "0x%llx", (unsigned long long)value ^ 1ull << below(64));
        break;
    case 2:
        snprintf(text, sizeof text, "0x%llx", (unsigned long long)draw() >> below(64));
        break;
    default:
        snprintf(text, sizeof text, "%s", choose_word(KIND_NUMBER));
    }
    replace_token(t, k, text);
}

/* An operand for a number or a number for an operand. */
static void change_kind(struct text *t, const struct names *names) {
    const enum kind kind = draw() & 1 ? KIND_NAME : KIND_NUMBER;
    const char *by = kind == KIND_NUMBER ? choose_name(names, NULL) : choose_word(KIND_NUMBER);
    if (by) {
        replace_token(t, choose_token(t, kind), by);
    }
}

static void drop_token(struct text *t, const struct names *names) {
    (void)names;
    replace_token(t, choose_token(t, KINDS), "");
}

static void double_token(struct text *t, const struct names *names) {
    char both[2 * LONGEST_WORD + 3];
    const size_t k = choose_token(t, KINDS);
    (void)names;
    if (k == t->tokens || t->token[k].length > LONGEST_WORD) {
        return;
    }
    const int n = (int)t->token[k].length;
    const char *const s = t->bytes + t->token[k].at;
    snprintf(both, sizeof both, "%.*s %.*s", n, s, n, s);
    replace_token(t, k, both);
}

static void put_mark(struct text *t, const struct names *names) {
    static const char *const marks[] = {",", ";", "{", "}", "[", "]", "(", ")", "@", "!", "|", "-", "+", ":", "<", ">"};
    (void)names;
    replace_token(t, choose_token(t, KINDS), marks[below(sizeof marks / sizeof *marks)]);
}

static void drop_statement(struct text *t, const struct names *names) {
    size_t first, end;
    (void)names;
    if (!t->tokens) {
        return;
    }
    statement_around(t, below(t->tokens), &first, &end);
    if (first < end) {
        replace(t, t->token[first].at, t->token[end - 1].at + t->token[end - 1].length - t->token[first].at, "");
    }
}

/* Put a statement behind another one. */
static void put_statement(struct text *t, const char *statement) {
    char line[700];
    size_t first, end;
    const size_t k = choose_token(t, KINDS);
    if (k == t->tokens) {
        return;
    }
    statement_around(t, k, &first, &end);
    snprintf(line, sizeof line, "\n%s", statement);
    replace(t, end ? t->token[end - 1].at + t->token[end - 1].length : 0, 0, line);
}

/* The same statement again, elsewhere. */
static void double_statement(struct text *t, const struct names *names) {
    char line[600];
    size_t first, end;
    (void)names;
    if (!t->tokens) {
        return;
    }
    statement_around(t, below(t->tokens), &first, &end);
    copy_tokens(t, first, end, line, sizeof line);
    put_statement(t, line);
}

/* A statement of another text. */
static void take_statement(struct text *t, const struct names *names) {
    char line[600];
    if (!statement_count) {
        return;
    }
    adapt_statement(statements[below(statement_count)], names, line, sizeof line);
    put_statement(t, line);
}

/* A guard, or another one. */
static void put_guard(struct text *t, const struct names *names) {
    char guard[LONGEST_WORD + 5];
    size_t first, end;
    const char *p = choose_name(names, ".pred");
    if (!t->tokens || !p) {
        return;
    }
    statement_around(t, below(t->tokens), &first, &end);
    snprintf(guard, sizeof guard, "@%s%s ", draw() & 1 ? "!" : "", p);
    if (first < t->tokens) {
        replace(t, t->token[first].at, 0, guard);
    }
}

/* The first line: how target run.c launches the kernels. */
static void change_launch(struct text *t, const struct names *names) {
    char line[80];
    static const unsigned blocks[] = {1, 31, 32, 33, 64, 64, 64, 96, 128, 256};
    (void)names;
    snprintf(line, sizeof line, "// %zu %zu %u %u %zu\n", below(4), 1 + below(4), blocks[below(10)],
             draw() & 1 ? 0u : (unsigned)below(2000), below(1000));
    const size_t old = strncmp(t->bytes, "// ", 3) ? 0 : strcspn(t->bytes, "\n") + 1;
    replace(t, 0, old < t->size ? old : t->size, line);
}

/* Any byte. */
static void change_byte(struct text *t, const struct names *names) {
    static uint8_t whole[LONGEST];
    (void)names;
    if (!t->size) {
        return;
    }
    memcpy(whole, t->bytes, t->size);
    whole[below(t->size)] = (uint8_t)(1 + below(255));
    split(t, whole, t->size);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) {
    static struct text t;
    static struct names names;
    static change *const changes[] = {
        change_dot,     change_dot,     change_modifiers, change_opcode,  change_name,    change_name,
        change_number,  change_number,  change_kind,      drop_token,     double_token,   put_mark,
        drop_statement, drop_statement, double_statement, take_statement, take_statement, take_statement,
        take_statement, put_guard,      change_launch,    change_byte};
    state = seed;
    split(&t, data, size);
    for (size_t n = 1 + below(4) * below(2); n--;) {
        find_names(&t, &names);
        changes[below(sizeof changes / sizeof *changes)](&t, &names);
    }
    const size_t made = t.size < most ? t.size : most;
    memcpy(data, t.bytes, made);
    return made;
}
