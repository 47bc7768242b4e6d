/* Aligned memory on Windows, whose C library lacks aligned_alloc(). */
#include "platform/aligned.h"

#include <malloc.h>

void *aligned_allocate(size_t alignment, size_t bytes) {
    return _aligned_malloc(bytes, alignment);
}

void aligned_release(void *memory) {
    _aligned_free(memory);
}
