/* Host memory at multiples of an alignment. */
#ifndef SM120_PLATFORM_ALIGNED_H
#define SM120_PLATFORM_ALIGNED_H

#include <stddef.h>

/* Return memory for aligned_release(), or NULL on failure. `bytes` is a multiple of the alignment, a power of two. */
void *aligned_allocate(size_t alignment, size_t bytes);
void aligned_release(void *memory);

#endif
