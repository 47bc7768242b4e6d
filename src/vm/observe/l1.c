/* The L1 cache that profiles count with, as l1.h says. */
#include "vm/observe/l1.h"

#include <stdlib.h>

#include "vm/machine/base.h"
#include "vm/machine/types.h"

enum { SECTOR = 32, LINE = 128, SPREAD = 64 };

bool l1_open(struct l1 *l1, uint32_t bytes) {
    *l1 = (struct l1){.sets = bytes / (LINE * L1_WAYS)};
    l1->sets += l1->sets == 0;
    l1->lines = calloc(l1->sets, sizeof *l1->lines);
    return l1->lines != NULL;
}

void l1_close(struct l1 *l1) {
    free(l1->lines);
}

/* Return the place of a line: the one that holds it, else the least recently used one of its set, emptied. */
static struct l1_line *place(struct l1 *l1, uint64_t owner, uint64_t line) {
    /* Higher bits spread the lines of arrays whose pitch is a power of two. */
    struct l1_line *const set = l1->lines[(line ^ line / SPREAD ^ line / (SPREAD * SPREAD)) % l1->sets];
    struct l1_line *oldest = set;
    for (uint32_t way = 0; way < L1_WAYS; ++way) {
        if (set[way].used != 0 && set[way].line == line && set[way].owner == owner) {
            return &set[way];
        }
        if (set[way].used < oldest->used) {
            oldest = &set[way];
        }
    }
    *oldest = (struct l1_line){.line = line, .owner = owner};
    return oldest;
}

struct l1_found l1_load(struct l1 *l1, uint64_t owner, uint64_t statement, uint32_t mask, const uint64_t *address) {
    struct l1_found found = {0};
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint64_t at = address[lowest_bit(rest)];
        struct l1_line *const line = place(l1, owner, at / LINE);
        const uint32_t number = (uint32_t)(at % LINE / SECTOR), sector = 1u << number;
        if ((line->sectors & sector) == 0) {
            ++found.missing;
            line->sectors |= sector;
            line->asked[number] = statement;
        } else {
            found.is_pending = found.is_pending || statement < line->asked[number] + L1_PENDING;
        }
        line->used = ++l1->now;
    }
    found.is_pending = found.is_pending && found.missing == 0;
    return found;
}
