/* Aligned memory by the C library. */
#include "platform/aligned.h"

#include <stdlib.h>

void *aligned_allocate(size_t alignment, size_t bytes) {
    return aligned_alloc(alignment, bytes);
}

void aligned_release(void *memory) {
    free(memory);
}
