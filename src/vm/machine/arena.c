/* Arenas: memory that is freed all at once. */
#include "vm/machine/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vm/machine/poison.h"
#include "vm/machine/types.h"

struct arena_block {
    struct arena_block *next;
    char *at, *end;
};

/* Return zeroed, 64-byte aligned memory, or NULL when the host is out of memory. */
void *arena_take(struct arena *arena, size_t bytes) {
    enum { BLOCK = 1 << 18 };
    const size_t asked = bytes;
    bytes = (bytes + 63) / 64 * 64 + POISON_GAP;
    struct arena_block *b = arena->first;
    if (b == NULL || (size_t)(b->end - b->at) < bytes) {
        const size_t space = bytes > BLOCK / 2 ? bytes + 192 : BLOCK;
        b = calloc(1, space);
        if (b == NULL) {
            return NULL;
        }
        b->at = (char *)(((uintptr_t)(b + 1) + 63) / 64 * 64);
        b->end = (char *)b + space;
        b->next = arena->first;
        arena->first = b;
        arena->bytes += space;
    }
    void *memory = b->at;
    b->at += bytes;
    POISON((char *)memory + asked, bytes - asked);
    return memory;
}

struct arena_mark arena_mark(const struct arena *arena) {
    return (struct arena_mark){arena->first, arena->first != NULL ? arena->first->at : NULL};
}

void arena_release(struct arena *arena, struct arena_mark mark) {
    while (arena->first != mark.first) {
        struct arena_block *const b = arena->first;
        arena->first = b->next;
        arena->bytes -= (size_t)(b->end - (char *)b);
        free(b);
    }
    if (mark.first != NULL) {
        const size_t used = (size_t)(mark.first->at - mark.at);
        UNPOISON(mark.at, used);
        memset(mark.at, 0, used);
        mark.first->at = mark.at;
    }
}

/* Free everything taken from the arena. */
void arena_free(struct arena *arena) {
    for (struct arena_block *b = arena->first, *next; b != NULL; b = next) {
        next = b->next;
        free(b);
    }
    *arena = (struct arena){0};
}
