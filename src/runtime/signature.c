/* A small scanner of `.entry NAME ( .param .u64 x, .param .align 8 .b8 y[128] )`. */
#include "runtime/signature.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"

/* A word (a name, a number or a directive with its dot) or one other character, at `start`; length 0 at the end. */
struct token {
    const char *start;
    size_t length;
};

/* Whether a character may be part of a name. */
static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
           c == '%';
}

/* Skip blanks, comments, strings, and lines that begin with `#`. */
static const char *skip(const char *at, const char *text) {
    for (;;) {
        if (*at == ' ' || (*at >= '\t' && *at <= '\r')) {
            ++at;
        } else if ((at[0] == '/' && at[1] == '/') || (at[0] == '#' && (at == text || at[-1] == '\n'))) {
            at += strcspn(at, "\n");
        } else if (at[0] == '/' && at[1] == '*') {
            const char *const end = strstr(at + 2, "*/");
            at = end != NULL ? end + 2 : at + strlen(at);
        } else if (at[0] == '"') {
            const char *const end = strchr(at + 1, '"');
            at = end != NULL ? end + 1 : at + strlen(at);
        } else {
            return at;
        }
    }
}

/* Read the token after *at and move *at behind it. */
static struct token next(const char **at, const char *text) {
    struct token token = {skip(*at, text), 0};
    const char *end = token.start;
    if (*end == '.') {
        ++end;
    }
    while (is_word(*end)) {
        ++end;
    }
    if (end == token.start && *end != '\0') {
        ++end;
    }
    token.length = (size_t)(end - token.start);
    *at = end;
    return token;
}

static bool is(struct token token, const char *text) {
    return token.length == strlen(text) && memcmp(token.start, text, token.length) == 0;
}

/* The bytes of a type such as ".u64"; 0 if the token is not a type. */
static uint32_t type_bytes(struct token token) {
    static const struct {
        const char *name;
        uint32_t bytes;
    } types[] = {
        {".u8", 1},    {".s8", 1},     {".b8", 1},         {".u16", 2},     {".s16", 2}, {".b16", 2},
        {".f16", 2},   {".u32", 4},    {".s32", 4},        {".b32", 4},     {".f32", 4}, {".bf16", 2},
        {".f16x2", 4}, {".bf16x2", 4}, {".u64", 8},        {".s64", 8},     {".b64", 8}, {".f64", 8},
        {".b128", 16}, {".texref", 8}, {".samplerref", 8}, {".surfref", 8},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
        if (is(token, types[i].name)) {
            return types[i].bytes;
        }
    }
    return 0;
}

/* Copy a token into a field, shortened as copy_name does. */
static void copy_token(char *to, size_t bytes, struct token token) {
    char name[512];
    const size_t cut = token.length < sizeof name ? 0 : token.length - sizeof name + 1;
    memcpy(name, token.start + cut, token.length - cut);
    name[token.length - cut] = '\0';
    copy_name(to, bytes, name);
}

/* Read one parameter up to the `,` or `)` after it, which is returned. Its offset is set from *end, the end of the
 * parameter before it. */
static struct token read_parameter(const char **at, const char *text, struct parameter *parameter, uint32_t *end) {
    uint32_t align = 0;
    uint32_t bytes = 0;
    uint64_t items = 1;
    bool is_array = false;
    bool of_pointee = false; /* .align after .ptr is the alignment of the pointer's target */
    struct token type = {0};
    struct token token = next(at, text);
    *parameter = (struct parameter){0};
    for (; token.length != 0 && !is(token, ",") && !is(token, ")"); token = next(at, text)) {
        if (is(token, ".ptr")) {
            of_pointee = true;
        } else if (is(token, ".align")) {
            const uint32_t n = (uint32_t)strtoul(next(at, text).start, NULL, 0);
            align = of_pointee ? align : n;
        } else if (is(token, "[")) {
            is_array = true;
            const uint64_t n = strtoull(next(at, text).start, NULL, 0);
            items = n < UINT16_MAX && items * n < UINT16_MAX ? items * n : 0;
        } else if (type_bytes(token) != 0) {
            type = token;
            bytes = type_bytes(token);
        } else if (is_word(*token.start) && parameter->name[0] == '\0') {
            copy_token(parameter->name, sizeof parameter->name, token);
        }
    }
    align = align == 0 || (align & (align - 1)) != 0 ? bytes : align;
    parameter->bytes = (uint32_t)(bytes * items);
    parameter->offset = align == 0 ? *end : (*end + align - 1) / align * align;
    *end = parameter->offset + parameter->bytes;
    char text_of_type[64] = "";
    if (type.length > 1 && is_array) {
        snprintf(text_of_type, sizeof text_of_type, "%.*s[%llu]", (int)type.length - 1, type.start + 1,
                 (unsigned long long)items);
    } else if (type.length > 1) {
        snprintf(text_of_type, sizeof text_of_type, "%.*s", (int)type.length - 1, type.start + 1);
    }
    copy_name(parameter->type, sizeof parameter->type, text_of_type);
    return token;
}

/* Read the parameters between `(` and `)`. False: out of host memory. */
static bool read_parameters(const char **at, const char *text, struct signature *signature) {
    uint32_t end = 0;
    struct token token;
    if (*skip(*at, text) != '(' || !is(next(at, text), "(")) {
        return true;
    }
    do {
        struct parameter parameter;
        token = next(at, text);
        if (!is(token, ".param")) {
            return true;
        }
        token = read_parameter(at, text, &parameter, &end);
        struct parameter *const grown =
            realloc(signature->parameters, (signature->count + 1) * sizeof *signature->parameters);
        if (grown == NULL) {
            return false;
        }
        signature->parameters = grown;
        signature->parameters[signature->count] = parameter;
        signature->count += 1;
    } while (is(token, ","));
    return true;
}

/* Add an entry of this name. NULL: out of host memory. */
static struct signature *append(struct signatures *signatures, struct token name) {
    struct signature *const grown = realloc(signatures->items, (signatures->count + 1) * sizeof *signatures->items);
    if (grown == NULL) {
        return NULL;
    }
    signatures->items = grown;
    char *const entry = malloc(name.length + 1);
    if (entry == NULL) {
        return NULL;
    }
    memcpy(entry, name.start, name.length);
    entry[name.length] = '\0';
    signatures->items[signatures->count] = (struct signature){.entry = entry};
    signatures->count += 1;
    return signatures->items + signatures->count - 1;
}

bool signatures_read(const char *text, struct signatures *signatures) {
    const char *at = text;
    *signatures = (struct signatures){0};
    for (struct token token = next(&at, text); token.length != 0; token = next(&at, text)) {
        if (!is(token, ".entry")) {
            continue;
        }
        const struct token name = next(&at, text);
        struct signature *const signature = name.length != 0 ? append(signatures, name) : NULL;
        if (name.length != 0 && (signature == NULL || !read_parameters(&at, text, signature))) {
            signatures_free(signatures);
            return false;
        }
        const struct signature *const first = signature != NULL ? signatures_find(signatures, signature->entry) : NULL;
        if (first != signature) { /* a prototype came before */
            signatures->count -= 1;
            free(signature->entry);
            free(signature->parameters);
        }
    }
    return true;
}

bool signatures_make(const char *entry, const struct parameter *parameters, uint32_t count,
                     struct signatures *signatures) {
    *signatures = (struct signatures){0};
    struct signature *const signature = append(signatures, (struct token){entry, strlen(entry)});
    if (signature != NULL && count != 0) {
        signature->parameters = calloc(count, sizeof *parameters);
    }
    if (signature == NULL || (count != 0 && signature->parameters == NULL)) {
        signatures_free(signatures);
        return false;
    }
    for (uint32_t i = 0; i < count; ++i) {
        signature->parameters[i] = parameters[i];
    }
    signature->count = count;
    return true;
}

const struct signature *signatures_find(const struct signatures *signatures, const char *entry) {
    for (uint32_t i = 0; i < signatures->count; ++i) {
        if (strcmp(signatures->items[i].entry, entry) == 0) {
            return signatures->items + i;
        }
    }
    return NULL;
}

void signatures_free(struct signatures *signatures) {
    for (uint32_t i = 0; i < signatures->count; ++i) {
        free(signatures->items[i].entry);
        free(signatures->items[i].parameters);
    }
    free(signatures->items);
    *signatures = (struct signatures){0};
}
