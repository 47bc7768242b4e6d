/* First touches of global memory, as first.h says: a hash table of the lines of each CTA. */
#include "vm/observe/first.h"

#include <stdlib.h>
#include <string.h>

#include "vm/machine/base.h"
#include "vm/machine/types.h"
#include "vm/observe/cost.h"

enum { PAIR = 64, PAIRS = 2 /* of a line */, FIRST_ROOM = 1024 };

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

/* Touch a pair of sectors. */
static void touch(struct first *first, uint64_t cta, uint64_t pair, uint32_t statement, struct first_touches *found) {
    if (4 * first->used >= 3 * first->room && !grow(first)) {
        first->is_exhausted = true;
        return;
    }
    struct first_line *const line = place(first->lines, first->room, pair / PAIRS, cta);
    if (line->cta == 0) {
        ++first->used;
        ++found->lines;
        *line = (struct first_line){.number = pair / PAIRS, .cta = cta};
    }
    uint32_t *const until = &line->until[pair % PAIRS];
    found->pairs += *until == 0 || statement < *until;
    *until = *until == 0 ? statement + FIRST_WINDOW : *until;
}

struct first_touches first_touch(struct first *first, uint64_t owner, uint64_t cta, uint32_t statement, uint32_t mask,
                                 const uint64_t *address) {
    struct first_touches found = {0};
    uint64_t pairs[WARP];
    uint32_t count = 0;
    if (owner != first->owner) {
        memset(first->lines, 0, first->room * sizeof *first->lines);
        first->used = 0;
        first->owner = owner;
    }
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        count = cost_add_different(pairs, count, address[lowest_bit(rest)] / PAIR);
    }
    for (uint32_t k = 0; k < count && !first->is_exhausted; ++k) {
        touch(first, cta + 1, pairs[k], statement, &found);
    }
    return found;
}
