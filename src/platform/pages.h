/* Address space in whole pages. Addresses and sizes are multiples of pages_size(). */
#ifndef SM120_PLATFORM_PAGES_H
#define SM120_PLATFORM_PAGES_H

#include <stdbool.h>
#include <stddef.h>

size_t pages_size(void);

/* Reserve addresses that nothing can read or write. NULL: the system refuses. */
void *pages_reserve(size_t bytes);

/* Make reserved pages readable and writable. They are zero and take no memory until they are written. False: the
 * system refuses. */
bool pages_commit(void *at, size_t bytes);

/* Give the memory of pages back and keep their addresses reserved. */
void pages_decommit(void *at, size_t bytes);

/* Give a whole reservation back. */
void pages_release(void *at, size_t bytes);

#endif
