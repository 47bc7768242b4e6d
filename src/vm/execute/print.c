/* printf and assert in kernels: vprintf and __assertfail. Output is written to stdout after the launch, ordered by
 * CTA and, within a CTA, by time. */
#include "vm/execute/print.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/thread.h"
#include "vm/execute/lanes_math.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/memory.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"

enum { LONGEST = 4096, MOST_PRINTED = 1 << 20 };

struct printed {
    struct printed *next;
    uint64_t cta, order;
    size_t length;
    char text[];
};

struct text {
    char *at;
    size_t used, space;
};

/* Append as many bytes as fit. */
static void append(struct text *t, const char *from, size_t n) {
    n = n < t->space - t->used ? n : t->space - t->used;
    memcpy(t->at + t->used, from, n);
    t->used += n;
}

/* Read a kernel's string, truncated to the space. Return false after a fault. */
static bool read_string(struct warp *w, uint64_t address, uint32_t lane, char *to, size_t space) {
    enum space found;
    for (size_t n = 0; n + 1 < space; ++n) {
        const char *c = memory_any(w, SPACE_GENERIC, address + n, 1, 1, lane, 0, &found);
        if (c == NULL) {
            return false;
        }
        to[n] = *c;
        if (*c == '\0') {
            return true;
        }
    }
    to[space - 1] = 0;
    return true;
}

/* Arguments of one printf, packed in memory like a va_list. */
struct arguments {
    struct warp *w;
    uint64_t at;
    uint32_t lane, count;
    bool failed;
};

/* Return the next argument, aligned to its size. */
static uint64_t next_argument(struct arguments *a, uint32_t bytes) {
    enum space found;
    uint64_t value = 0;
    a->at = (a->at + bytes - 1) / bytes * bytes;
    const void *from = a->failed ? NULL : memory_any(a->w, SPACE_GENERIC, a->at, bytes, bytes, a->lane, 0, &found);
    a->at += bytes;
    ++a->count;
    a->failed |= from == NULL;
    if (from != NULL) {
        memcpy(&value, from, bytes);
    }
    return bytes == 4 ? (uint64_t)(int64_t)(int32_t)value : value;
}

/* A conversion specification of the format. */
struct conversion {
    char flags[8], type;
    int width, precision, is_long; /* precision -1: not given */
};

/* Read a number or `*`. */
static const char *read_count(struct arguments *a, const char *s, int *to) {
    if (*s == '*') {
        *to = (int)next_argument(a, 4);
        ++s;
    } else {
        for (*to = 0; *s >= '0' && *s <= '9'; ++s) {
            *to = *to < 10000 ? 10 * *to + (*s - '0') : *to;
        }
    }
    *to = *to > 1000 ? 1000 : *to < -1000 ? -1000 : *to;
    return s;
}

/* Read a conversion specification after %. */
static const char *read_conversion(struct arguments *a, const char *s, struct conversion *c) {
    size_t n = 0;
    *c = (struct conversion){.precision = -1};
    for (; *s != '\0' && strchr("-+ #0", *s) != NULL; ++s) {
        if (n < 5 && memchr(c->flags, *s, n) == NULL) {
            c->flags[n++] = *s;
        }
    }
    s = read_count(a, s, &c->width);
    if (*s == '.') {
        s = read_count(a, s + 1, &c->precision);
    }
    for (; *s != '\0' && strchr("hlLjzt", *s) != NULL; ++s) {
        c->is_long |= *s != 'h' && *s != 'L';
    }
    c->type = *s;
    return *s != '\0' ? s + 1 : s;
}

/* Print one converted argument. */
static void convert(struct arguments *a, const struct conversion *c, struct text *to) {
    char format[32], string[LONGEST], out[LONGEST + 1100];
    int n = 0;
    const char *length = strchr("diouxXc", c->type) != NULL && c->type != 'c' ? "ll" : "";
    snprintf(format, sizeof format, "%%%s*.*%s%c", c->flags, length, c->type == 'p' ? 's' : c->type);
    if (strchr("di", c->type) != NULL) {
        n = snprintf(out, sizeof out, format, c->width, c->precision,
                     (long long)next_argument(a, c->is_long != 0 ? 8 : 4));
    } else if (strchr("ouxX", c->type) != NULL) {
        const uint64_t value = next_argument(a, c->is_long != 0 ? 8 : 4);
        n = snprintf(out, sizeof out, format, c->width, c->precision,
                     (unsigned long long)(c->is_long != 0 ? value : value & 0xffffffffu));
    } else if (c->type == 'c') {
        n = snprintf(out, sizeof out, format, c->width, c->precision, (int)next_argument(a, 4));
    } else if (strchr("fFeEgGaA", c->type) != NULL) {
        const uint64_t bits = next_argument(a, 8);
        double value;
        memcpy(&value, &bits, 8);
        n = snprintf(out, sizeof out, format, c->width, c->precision, value);
    } else if (c->type == 'p') {
        snprintf(string, sizeof string, "0x%llx", (unsigned long long)next_argument(a, 8));
        n = snprintf(out, sizeof out, format, c->width, c->precision, string);
    } else { /* s */
        const uint64_t address = next_argument(a, 8);
        a->failed = a->failed || !read_string(a->w, address, a->lane, string, sizeof string);
        if (!a->failed) {
            n = snprintf(out, sizeof out, format, c->width, c->precision, string);
        }
    }
    append(to, out, n < 0 ? 0 : (size_t)n < sizeof out ? (size_t)n : sizeof out - 1);
}

/* Keep a text until the launch ends. */
static void keep(const struct warp *w, const struct text *t) {
    struct launch *launch = w->cta->launch;
    struct printed *node = malloc(sizeof *node + t->used);
    mutex_lock(&launch->lock);
    if (node == NULL || launch->printed_bytes + t->used > MOST_PRINTED) {
        launch->unprinted_bytes += t->used;
        free(node);
    } else {
        *node = (struct printed){.next = launch->printed, .cta = warp_member(w)->linear, .length = t->used};
        node->order = launch->printed != NULL ? launch->printed->order + 1 : 0;
        memcpy(node->text, t->at, t->used);
        launch->printed = node;
        launch->printed_bytes += t->used;
    }
    mutex_unlock(&launch->lock);
}

/* Print for one lane. Return how many arguments were read, or -1 after a fault. */
static int print_lane(struct warp *w, uint64_t format, uint64_t values, uint32_t lane) {
    char pattern[LONGEST], out[2 * LONGEST];
    struct text to = {out, 0, sizeof out};
    struct arguments a = {.w = w, .at = values, .lane = lane};
    if (!read_string(w, format, lane, pattern, sizeof pattern)) {
        return -1;
    }
    for (const char *s = pattern; *s != '\0' && !a.failed;) {
        const char *percent = strchr(s, '%');
        append(&to, s, percent != NULL ? (size_t)(percent - s) : strlen(s));
        if (percent == NULL) {
            break;
        }
        struct conversion c;
        s = read_conversion(&a, percent + 1, &c);
        if (c.type != '\0' && strchr("diouxXcfFeEgGaAps", c.type) != NULL) {
            convert(&a, &c, &to);
        } else {
            append(&to, c.type == '%' ? "%" : percent, c.type == '%' ? 1 : (size_t)(s - percent));
        }
    }
    if (a.failed) {
        return -1;
    }
    keep(w, &to);
    return (int)a.count;
}

/* vprintf(format, arguments) */
enum step print_format(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint64_t *format = source(w, i->a), *values = source(w, i->b);
    uint32_t *d = destination(w, i->d);
    for (uint32_t l = 0; l < WARP; ++l) {
        if ((mask >> l & 1u) == 0) {
            continue;
        }
        const int n = print_lane(w, format[l], values[l], l);
        if (n < 0) {
            return STEP_FAULT;
        }
        d[l] = (uint32_t)n;
    }
    return STEP_NEXT;
}

/* __assertfail(message, file, line, function, size of a character). */
enum step print_assertion(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint32_t lane = lowest_bit(mask);
    char message[256], file[160], function[160];
    if (!read_string(w, ((const uint64_t *)source(w, i->a))[lane], lane, message, sizeof message) ||
        !read_string(w, ((const uint64_t *)source(w, i->b))[lane], lane, file, sizeof file) ||
        !read_string(w, ((const uint64_t *)source(w, i->e))[lane], lane, function, sizeof function)) {
        return STEP_FAULT;
    }
    return fault_at(w, CUDA_ERROR_ASSERT, lane, "assertion `%s` failed in %s, %s:%u", message, function, file,
                    ((const uint32_t *)source(w, i->c))[lane]);
}

static int compare(const void *a, const void *b) {
    const struct printed *x = *(struct printed *const *)a, *y = *(struct printed *const *)b;
    if (x->cta != y->cta) {
        return x->cta < y->cta ? -1 : 1;
    }
    return x->order < y->order ? -1 : x->order > y->order;
}

/* Write the output of a launch to stdout, ordered by CTA. */
void print_flush(struct launch *launch) {
    size_t count = 0;
    for (const struct printed *n = launch->printed; n != NULL; n = n->next) {
        ++count;
    }
    struct printed **list = count != 0 ? malloc(count * sizeof *list) : NULL;
    size_t k = 0;
    for (struct printed *n = launch->printed; list != NULL && n != NULL; n = n->next) {
        list[k++] = n;
    }
    if (list != NULL) {
        qsort(list, count, sizeof *list, compare);
    }
    for (k = 0; list != NULL && k < count; ++k) {
        fwrite(list[k]->text, 1, list[k]->length, stdout);
    }
    if (launch->unprinted_bytes != 0) {
        printf("[%zu more bytes were printed; a launch keeps %d]\n", launch->unprinted_bytes, (int)MOST_PRINTED);
    }
    if (list != NULL || launch->unprinted_bytes != 0) {
        fflush(stdout);
    }
    for (struct printed *n = launch->printed, *next; n != NULL; n = next) {
        next = n->next;
        free(n);
    }
    launch->printed = NULL;
    free(list);
}
