/* A decoder of .lzma files, the format that `xz --format=lzma` and Python's lzma.FORMAT_ALONE write. */
#ifndef SM120_LZMA_H
#define SM120_LZMA_H

#include <stdbool.h>
#include <stddef.h>

/* Decode a .lzma file that holds exactly `bytes` bytes. Returns false if the file is cut short, damaged or longer than
 * its end marker, holds another number of bytes, or needs more than 12,288 literal probabilities (lc + lp above 4). The
 * contents of `to` are then undefined. It does not read beyond `packed_bytes`, write beyond `bytes`, or allocate. */
bool lzma_decode(const void *packed, size_t packed_bytes, void *to, size_t bytes);

#endif
