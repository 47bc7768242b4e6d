/* No target, but a test of the engine: what $PLANTED says happens as soon as a text has a guard. An "arena" is a byte
 * too many in a block of the device's own allocator. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"
#include "vm/machine/arena.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char *volatile kept;
    const char *const what = getenv("PLANTED");
    struct arena arena = {0};
    if (!what || !memchr(data, '@', size)) {
        return 0;
    }
    volatile int again = !strcmp(what, "timeout");
    while (again)
        ;
    kept = malloc(size);
    if (kept && !strcmp(what, "crash")) {
        kept[size] = 1;
    }
    if (!strcmp(what, "arena")) {
        ((char *)arena_take(&arena, size + 1))[size + 1] = 1;
    }
    arena_free(&arena);
    if (strcmp(what, "leak") != 0) {
        free(kept);
    }
    kept = NULL;
    return 0;
}
