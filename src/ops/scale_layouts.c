/* The orders of the scales of blocks. */
#include "ops/scale_layouts.h"

#include <inttypes.h>

#include "runtime/error.h"

enum { TILE_COLUMNS = 4 };

static const struct scale_layout layouts[] = {
    [SM120_SCALES_LINEAR] = {1, 1, 0},
    [SM120_SCALES_128X4] = {128, TILE_COLUMNS, 5},
    [SM120_SCALES_64X4] = {64, TILE_COLUMNS, 4},
};
enum { LAYOUT_COUNT = sizeof layouts / sizeof *layouts };

sm120_status scale_layout_of(const char *name, uint32_t code, const struct scale_layout **layout) {
    if (code >= LAYOUT_COUNT) {
        return fail(SM120_INVALID_ARGUMENT,
                    "%s = %" PRIu32 "; it must be SCALES_LINEAR (%d), SCALES_128X4 (%d) or SCALES_64X4 (%d)", name,
                    code, SM120_SCALES_LINEAR, SM120_SCALES_128X4, SM120_SCALES_64X4);
    }
    *layout = layouts + code;
    return SM120_OK;
}

/* Round up to a multiple. */
static int64_t rounded(int64_t size, uint32_t step) {
    return (size + step - 1) / step * step;
}

int64_t scale_layout_rows(const struct scale_layout *layout, int64_t rows) {
    return rounded(rows, layout->rows);
}

int64_t scale_layout_columns(const struct scale_layout *layout, int64_t columns) {
    return rounded(columns, layout->columns);
}
