/* First touches of global memory, as first.h says: a hash table of the lines of each CTA. */
#include "vm/observe/first.h"

#include <stdlib.h>
#include <string.h>

#include "vm/machine/base.h"
#include "vm/machine/types.h"

enum { LINE = 128, FIRST_ROOM = 1024 };

bool first_open(struct first *first) {
    *first = (struct first){.room = FIRST_ROOM, .owner = UINT64_MAX};
    first->lines = calloc(first->room, sizeof *first->lines);
    return first->lines != NULL;
}

void first_close(struct first *first) {
    free(first->lines);
}

/* Return the place of a line of a CTA: the one that holds it, else an unused one. */
static struct first_line *place(struct first_line *lines, size_t room, uint64_t number, uint64_t cta) {
    const uint64_t mixed = (number ^ cta * 0xbf58476d1ce4e5b9u) * 0x9e3779b97f4a7c15u;
    size_t at = (size_t)(mixed >> 20) & (room - 1);
    while (lines[at].cta != 0 && (lines[at].number != number || lines[at].cta != cta)) {
        at = (at + 1) & (room - 1);
    }
    return &lines[at];
}

/* Double the room. Return false when out of memory. */
static bool grow(struct first *first) {
    struct first_line *const lines = calloc(2 * first->room, sizeof *lines);
    if (lines == NULL) {
        return false;
    }
    for (size_t k = 0; k < first->room; ++k) {
        const struct first_line *const line = &first->lines[k];
        if (line->cta != 0) {
            *place(lines, 2 * first->room, line->number, line->cta) = *line;
        }
    }
    free(first->lines);
    first->lines = lines;
    first->room *= 2;
    return true;
}

/* Touch a line. Return whether the CTA had not touched it. */
static bool touch(struct first *first, uint64_t cta, uint64_t number) {
    if (4 * first->used >= 3 * first->room && !grow(first)) {
        first->is_exhausted = true;
        return false;
    }
    struct first_line *const line = place(first->lines, first->room, number, cta);
    const bool is_first = line->cta == 0;
    first->used += is_first;
    *line = (struct first_line){.number = number, .cta = cta};
    return is_first;
}

uint32_t first_touch(struct first *first, uint64_t owner, uint64_t cta, uint32_t mask, const uint64_t *address) {
    uint32_t found = 0;
    uint64_t before = UINT64_MAX;
    if (owner != first->owner) {
        memset(first->lines, 0, first->room * sizeof *first->lines);
        first->used = 0;
        first->owner = owner;
    }
    for (uint32_t rest = mask; rest != 0 && !first->is_exhausted; rest &= rest - 1) {
        const uint64_t number = address[lowest_bit(rest)] / LINE;
        found += number != before && touch(first, cta + 1, number);
        before = number;
    }
    return found;
}
