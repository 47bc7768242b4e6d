/* Arenas: memory that is freed all at once. */
#ifndef SM120_VM_MACHINE_ARENA_H
#define SM120_VM_MACHINE_ARENA_H

#include <stddef.h>

struct arena {
    struct arena_block *first;
};
void *arena_take(struct arena *arena, size_t bytes); /* zeroed, 64-byte aligned; NULL when out of memory */
void arena_free(struct arena *arena);

#endif
