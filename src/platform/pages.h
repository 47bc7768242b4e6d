/* Address space in whole pages. Addresses and sizes are multiples of pages_size(). */
#ifndef SM120_PLATFORM_PAGES_H
#define SM120_PLATFORM_PAGES_H

#include <stdbool.h>
#include <stddef.h>

size_t pages_size(void);

/* Reserve addresses that cannot be read or written. Return NULL on failure. */
void *pages_reserve(size_t bytes);

/* Make reserved pages readable and writable. They are zero and use no memory until written. Return false on failure. */
bool pages_commit(void *at, size_t bytes);

/* Free the memory of pages, but keep their addresses reserved. */
void pages_decommit(void *at, size_t bytes);

/* Free a whole reservation. */
void pages_release(void *at, size_t bytes);

#endif
