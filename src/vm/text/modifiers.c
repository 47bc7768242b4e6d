/* The modifiers of a statement. They may stand in any order that ptxas takes; decoders name them in the order of the
 * PTX manual, and what a decoder takes moves to that place.
 *
 * ptxas keeps the order of six kinds of words and no other:
 *   the words that belong to the opcode, as in cp.async.bulk or mul.wide: each has its place
 *   types: cvt.f32.s32 converts to f32
 *   state spaces: cp.async.bulk.shared::cta.global copies to shared memory
 *   layouts: mma.row.col has rows in A
 *   operations on bits: mma.and.popc
 *   priorities in L2: createpolicy.fractional.L2::evict_last.L2::evict_first
 * The order of words of one kind counts; other words may stand between them. */
#include <stdio.h>
#include <string.h>

#include "vm/execute/lanes.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

/* ---- kinds of words ---- */

enum kind { FREE, OPCODE, TYPE, SPACE, LAYOUT, BITS, PRIORITY };

/* The words that belong to an opcode. */
static const struct {
    const char *opcode, *words;
} opcode_words[] = {
    {"bar", "warp cta sync arrive red"},
    {"barrier", "cta cluster sync arrive red wait"},
    {"cp", "async bulk tensor reduce prefetch mbarrier arrive commit_group wait_group wait_all"},
    {"clusterlaunchcontrol", "try_cancel query_cancel async"},
    {"createpolicy", "fractional range cvt"},
    {"cvt", "pack"},
    {"cvta", "to"},
    {"div", "full"},
    {"dp2a", "lo hi"},
    {"fence", "proxy"},
    {"mad", "lo hi wide"},
    {"mad24", "lo hi"},
    {"madc", "lo hi"},
    {"mbarrier", "init inval expect_tx complete_tx arrive arrive_drop test_wait try_wait parity pending_count"},
    {"mul", "lo hi wide"},
    {"mul24", "lo hi"},
    {"red", "async"},
    {"setmaxnreg", "inc dec"},
    {"shf", "l r"},
    {"st", "async bulk"},
    {"tensormap", "replace cp_fenceproxy"},
    {"wmma", "load store mma a b c d"},
};

/* Return whether a word is in the list "a b c". */
static bool is_in(const char *list, const char *word, size_t length) {
    while (*list != '\0') {
        const size_t n = strcspn(list, " ");
        if (n == length && memcmp(list, word, n) == 0) {
            return true;
        }
        list += n + (list[n] == ' ');
    }
    return false;
}

/* Return whether a word names a type: a class letter or format, then digits. b1024, the size of a tensor map, is none.
 */
static bool is_type(const char *word, size_t length) {
    static const char *const starts[] = {"bf", "tf", "ue", "u", "s", "b", "f", "e"};
    if (is_in("pred b1024 b4e f4e", word, length)) {
        return word[0] == 'p';
    }
    for (size_t k = 0; k < sizeof starts / sizeof *starts; ++k) {
        const size_t n = strlen(starts[k]);
        if (length > n && memcmp(word, starts[k], n) == 0 && word[n] >= '0' && word[n] <= '9') {
            return true;
        }
    }
    return false;
}

/* Return the kind of a word of a statement. */
static enum kind kind_of(const struct statement *s, const char *word, size_t length) {
    const size_t opcode = strcspn(s->name, ".");
    for (size_t k = 0; k < sizeof opcode_words / sizeof *opcode_words; ++k) {
        if (strlen(opcode_words[k].opcode) == opcode && memcmp(opcode_words[k].opcode, s->name, opcode) == 0 &&
            is_in(opcode_words[k].words, word, length)) {
            return OPCODE;
        }
    }
    static const struct {
        enum kind kind;
        const char *words;
    } ordered[] = {{SPACE, "global shared shared::cta shared::cluster local const param"},
                   {LAYOUT, "row col"},
                   {BITS, "and xor popc"},
                   {PRIORITY, "L2::evict_last L2::evict_normal L2::evict_first L2::evict_unchanged"}};
    for (size_t k = 0; k < sizeof ordered / sizeof *ordered; ++k) {
        if (is_in(ordered[k].words, word, length)) {
            return ordered[k].kind;
        }
    }
    return is_type(word, length) ? TYPE : FREE;
}

/* Drop the repetitions of words that ptxas takes more than once. */
void modifiers_drop_repeated(struct statement *s) {
    uint32_t kept = 0;
    for (uint32_t k = 0; k < s->modifiers; ++k) {
        bool repeats = false;
        for (uint32_t j = 0; j < kept && !repeats; ++j) {
            repeats = s->modifier_length[j] == s->modifier_length[k] &&
                      memcmp(s->modifier[j], s->modifier[k], s->modifier_length[k]) == 0;
        }
        if (repeats && is_in("NaN approx cc relu sat satfinite shiftamt sync", s->modifier[k], s->modifier_length[k])) {
            continue;
        }
        s->modifier[kept] = s->modifier[k];
        s->modifier_length[kept++] = s->modifier_length[k];
    }
    if (kept != s->modifiers) {
        s->modifiers = kept;
        modifiers_name(s);
    }
}

/* ---- taking words ---- */

/* Return whether a statement has this modifier at `at`, or further on where ptxas would take it as well; such a
 * modifier moves to `at`. */
static bool seek(struct statement *s, uint32_t at, const char *word, size_t length) {
    uint32_t k = at;
    while (k < s->modifiers && (s->modifier_length[k] != length || memcmp(s->modifier[k], word, length) != 0)) {
        ++k;
    }
    if (k >= s->modifiers || k == at) {
        return k < s->modifiers;
    }
    const enum kind kind = kind_of(s, word, length);
    for (uint32_t j = at; j < k; ++j) {
        const enum kind other = kind_of(s, s->modifier[j], s->modifier_length[j]);
        if (kind == OPCODE || other == OPCODE || (kind != FREE && other == kind)) {
            return false;
        }
    }
    const char *const found = s->modifier[k];
    memmove(&s->modifier[at + 1], &s->modifier[at], (k - at) * sizeof *s->modifier);
    memmove(&s->modifier_length[at + 1], &s->modifier_length[at], (k - at) * sizeof *s->modifier_length);
    s->modifier[at] = found;
    s->modifier_length[at] = (uint32_t)length;
    return true;
}

/* Return whether the statement has a modifier. */
bool has(const struct parser *p, const char *modifier) {
    const struct statement *s = &p->statement;
    for (uint32_t i = 0; i < s->modifiers; ++i) {
        if (strlen(modifier) == s->modifier_length[i] && memcmp(modifier, s->modifier[i], s->modifier_length[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Go past a modifier at *at. */
bool take(struct parser *p, uint32_t *at, const char *modifier) {
    if (!seek(&p->statement, *at, modifier, strlen(modifier))) {
        return false;
    }
    ++*at;
    return true;
}

/* Go past a modifier at *at that is in the list "a b c". Return its index, else -1. */
int take_choice(struct parser *p, uint32_t *at, const char *list) {
    for (int index = 0; *list != '\0'; ++index) {
        const size_t n = strcspn(list, " ");
        if (seek(&p->statement, *at, list, n)) {
            ++*at;
            return index;
        }
        list += n + (list[n] == ' ');
    }
    return -1;
}

/* Go past a type modifier that is in the list; any other modifier is an error. */
enum type take_type(struct parser *p, uint32_t *at, const char *list) {
    const struct statement *s = &p->statement;
    const uint32_t here = *at;
    if (take_choice(p, at, list) < 0) {
        error_at(p, &s->opcode, "unknown instruction '%s': expected one of these types: %s", s->name, list);
    }
    return type_find(s->modifier[here], s->modifier_length[here]);
}

/* Report modifiers that are left over. */
void take_end(struct parser *p, uint32_t at) {
    const struct statement *s = &p->statement;
    if (at < s->modifiers) {
        error_at(p, &s->opcode, "unknown instruction '%s': '.%.*s' is not expected here", s->name,
                 (int)s->modifier_length[at], s->modifier[at]);
    }
}

/* Write the opcode and its modifiers, in their order now, into the name of the statement. */
void modifiers_name(struct statement *s) {
    size_t length = strcspn(s->name, ".");
    for (uint32_t k = 0; k < s->modifiers && length < sizeof s->name; ++k) {
        const int n =
            snprintf(s->name + length, sizeof s->name - length, ".%.*s", (int)s->modifier_length[k], s->modifier[k]);
        length += n > 0 ? (size_t)n : 0;
    }
}

/* ---- patterns ---- */

struct match {
    struct statement *s;
    uint32_t at, flags;
};

static const struct {
    const char *modifier;
    uint32_t flag;
} flag_names[] = {{"ftz", FLAG_FTZ},       {"sat", FLAG_SAT},         {"satfinite", FLAG_SAT}, {"relu", FLAG_RELU},
                  {"NaN", FLAG_NAN},       {"rz", FLAG_ROUND},        {"rm", 2 * FLAG_ROUND},  {"rp", 3 * FLAG_ROUND},
                  {"rna", 4 * FLAG_ROUND}, {"xorsign", FLAG_XORSIGN}, {"abs", FLAG_ABS}};

/* Go past a modifier. */
static bool match_one(struct match *m, const char *text, size_t length) {
    if (!seek(m->s, m->at, text, length)) {
        return false;
    }
    ++m->at;
    for (size_t i = 0; i < sizeof flag_names / sizeof *flag_names; ++i) {
        if (strlen(flag_names[i].modifier) == length && memcmp(flag_names[i].modifier, text, length) == 0) {
            m->flags |= flag_names[i].flag;
        }
    }
    return true;
}

/* Match one of the alternatives ".x .y" up to `close`. *pattern is moved past `close`. */
static bool match_list(struct match *m, const char **pattern, char close) {
    const char *s = *pattern;
    bool found = false;
    while (*s != close) {
        s += *s == ' ' ? 2 : 1; /* the dot */
        const char *word = s;
        while (*s != ' ' && *s != close) {
            ++s;
        }
        if (!found) {
            found = match_one(m, word, (size_t)(s - word));
        }
    }
    *pattern = s + 1;
    return found;
}

/* Return whether the modifiers of a statement match the whole pattern; set the flags of those that it names. */
bool modifiers_match(struct statement *s, const char *pattern, uint32_t *flags) {
    struct match m = {.s = s};
    const char *name = s->name;
    while (*pattern != '\0' && *pattern != '.' && *pattern != '{' && *pattern != '[') {
        if (*name++ != *pattern++) {
            return false;
        }
    }
    if (*name != '\0' && *name != '.') {
        return false;
    }
    while (*pattern != '\0') {
        if (*pattern == '{') {
            ++pattern;
            match_list(&m, &pattern, '}');
        } else if (*pattern == '[') {
            ++pattern;
            if (!match_list(&m, &pattern, ']')) {
                return false;
            }
        } else {
            const char *word = ++pattern;
            while (*pattern != '\0' && *pattern != '.' && *pattern != '{' && *pattern != '[') {
                ++pattern;
            }
            if (!match_one(&m, word, (size_t)(pattern - word))) {
                return false;
            }
        }
    }
    *flags = m.flags;
    return m.at == s->modifiers;
}
