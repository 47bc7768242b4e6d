/* Launches of the MXFP8 quantizers, plain and tile-packed. */
#ifndef SM120_QUANTIZE_MXFP8_H
#define SM120_QUANTIZE_MXFP8_H

#include "runtime/launch.h"
#include "runtime/tensor.h"

/* Where the batches of a tensor have their rows, and where their tiles go: the parameters of
 * the _any kernels of ptx/quantize/mxfp8.ptx. */
struct quantizer_sequences {
    sm120_address starts, lengths; /* 0: none */
    int32_t total;
    uint32_t all_tiles, first_tile; /* of a head; all_tiles 0: those of padded_rows */
};

/* What to quantise, and where to. */
struct quantizer {
    const char *layout; /* of the kernels' variant: "d", "rows", "q_d64", ... */
    const struct tensor *x;
    struct shape shape;
    int64_t padded_rows, padded_columns; /* what is written; plain layouts: shape's own */
    sm120_address elements, scales;
    uint32_t floor;
    float factor;       /* x is multiplied by it first: 1, -1 or 0 */
    bool has_sequences; /* shape is then batch x longest, of what `sequences` says */
    struct quantizer_sequences sequences;
};

/* A launch with the values that its arguments point to. Not to be copied once filled. */
struct quantizer_launch {
    struct kernel *kernel;
    struct launch launch;
    int64_t batch_stride, head_stride, row_stride;
    uint32_t heads, rows, head_dim, row_tiles, column_tiles;
    struct quantizer job;
    struct argument_list arguments;
};

/* Choose the kernel and check the launch; nothing starts. */
sm120_status quantizer_prepare(struct device *device, const struct quantizer *job, sm120_stream stream,
                               struct quantizer_launch *prepared);

#endif
