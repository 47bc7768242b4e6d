/* Images that callers load: PTX text, a cubin or a fat binary. */
#ifndef SM120_IMAGE_H
#define SM120_IMAGE_H

#include <stdbool.h>

#include "sm120.h"

/* A copy of an image that ends with a NUL and that a driver may read without knowing its size. */
struct image {
    char *bytes;
    bool is_ptx;
};

/* Check that an image is complete, and copy it. The driver itself trusts the sizes written in a cubin. */
sm120_status image_copy(const void *bytes, size_t count, const char *name, struct image *image);

#endif
