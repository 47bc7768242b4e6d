/* Launches of the MXFP8 quantizers, plain and tile-packed. */
#ifndef SM120_QUANTIZE_MXFP8_H
#define SM120_QUANTIZE_MXFP8_H

#include "runtime/launch.h"
#include "runtime/tensor.h"

/* What to quantise, and where to. */
struct quantizer {
    const char *layout; /* of a kernel's record: "d", "rows", "q", "k", "v" */
    uint32_t width;     /* the head_dim of a kernel's record */
    const struct tensor *x;
    struct shape shape;
    int64_t padded_rows, padded_columns; /* what is written; plain layouts: shape's own */
    sm120_address elements, scales;
    uint32_t floor;
    float factor;                                    /* x is multiplied by it first: 1, -1 or 0 */
    bool has_sequences;                              /* shape is then batch x longest, of what `sequences` says */
    struct quantizer_sequences_parameters sequences; /* all_tiles 0: those of padded_rows */
};

/* A launch with the values that its arguments point to. Not to be copied once filled. */
struct quantizer_launch {
    struct kernel *kernel;
    struct launch launch;
    struct quantize_mxfp8_any_parameters values;
    struct argument_pointers pointers;
};

/* Choose the kernel and check the launch; nothing starts. */
sm120_status quantizer_prepare(struct device *device, const struct quantizer *job, sm120_stream stream,
                               struct quantizer_launch *prepared);

#endif
