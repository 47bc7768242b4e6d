/* Arenas: memory that is freed all at once. */
#ifndef SM120_VM_MACHINE_ARENA_H
#define SM120_VM_MACHINE_ARENA_H

#include <stddef.h>

struct arena {
    struct arena_block *first;
    size_t bytes; /* of all blocks */
};
/* A point in an arena, to which it can return. */
struct arena_mark {
    struct arena_block *first;
    char *at;
};
void *arena_take(struct arena *arena, size_t bytes); /* zeroed, 64-byte aligned; NULL when out of memory */
struct arena_mark arena_mark(const struct arena *arena);
void arena_release(struct arena *arena, struct arena_mark mark); /* free what was taken since the mark */
void arena_free(struct arena *arena);

#endif
