/* Matrices of quantised weights, and the launches that take one. */
#ifndef SM120_WEIGHTS_H
#define SM120_WEIGHTS_H

#include "runtime/launch.h"
#include "runtime/places.h"

enum {
    WEIGHTS_ALIGNMENT = 16, /* of a buffer, in bytes */
    WEIGHTS_TILE_ROWS = 16,
};

/* A matrix whose shape was checked. */
struct weights {
    const char *type; /* as kernels name it in their records: "q4_k" */
    uint32_t rows, columns;
    uint32_t tiles;       /* of 16 rows */
    uint32_t spans;       /* of 256 columns, of which the last one may be short */
    int64_t row_bytes;    /* of the blocks of a row */
    int64_t bytes;        /* that kernels may read of a native buffer */
    int64_t packed_bytes; /* of a packed buffer */
};

/* Check type and shape of a matrix. */
sm120_status weights_check(uint32_t type, int64_t rows, int64_t columns, struct weights *weights);

/* Check a buffer: its address, and that `given` bytes, of which `needed` are used, lie in an allocation. `bytes_name`
 * is the argument that states its size. */
sm120_status weights_check_buffer(struct device *device, const char *name, sm120_address address,
                                  const char *bytes_name, int64_t given, int64_t needed);

/* The type of a result as the kernels number it: MATVEC's types are those of attention. */
uint32_t weights_result_type(uint32_t dtype);

/* Find, load, check and start a kernel with a warp for each tile and span: those of `operation` for the type. */
sm120_status weights_launch(struct device *device, const char *operation, const struct weights *weights,
                            struct arguments arguments, sm120_stream stream);

#endif
