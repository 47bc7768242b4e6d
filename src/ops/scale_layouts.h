/* The orders of the scales of blocks. */
#ifndef SM120_SCALE_LAYOUTS_H
#define SM120_SCALE_LAYOUTS_H

#include "sm120.h"

/* The tiles of a layout, to whose multiples rows and columns are padded. */
struct scale_layout {
    uint32_t rows, columns; /* of a tile */
    uint32_t shift;         /* log2(rows / 4); 0: linear */
};

/* Find the layout of a code, SM120_SCALES_LINEAR or another. `name` is the argument's. */
sm120_status scale_layout_of(const char *name, uint32_t code, const struct scale_layout **layout);

/* The numbers of rows and of columns with the padding. */
int64_t scale_layout_rows(const struct scale_layout *layout, int64_t rows);
int64_t scale_layout_columns(const struct scale_layout *layout, int64_t columns);

#endif
