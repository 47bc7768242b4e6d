/* Launches of the MXFP8 quantizers, plain and tile-packed. */
#ifndef SM120_QUANTIZE_MXFP8_H
#define SM120_QUANTIZE_MXFP8_H

#include "runtime/launch.h"
#include "runtime/tensor.h"

/* Tiles of k and of v: their rows; the bytes of one; the least columns that hold a head, 0 for a head that is too wide.
 */
enum { MXFP8_TILE_ROWS = 64, MXFP8_WIDEST_TILE = 256 };
int64_t mxfp8_tile_bytes(bool is_v, int64_t columns);
int64_t mxfp8_tile_columns(int64_t head_dim);

/* Of tiles of q: the bytes of a row with its scales; the rows to whose multiples a precision's kernels pad, 0: it reads
 * none. */
int64_t mxfp8_q_row_bytes(int64_t columns);
int64_t mxfp8_q_tile_rows(uint32_t precision, int64_t columns);

/* The columns of a half of a tile, or of one that has none. */
uint32_t mxfp8_half(int64_t columns);

/* A tensor to quantise, and where the results go. Of one that is MXFP8 already, in E4M3, the results are packed. */
struct quantizer {
    const char *operation; /* of a kernel's record, unless x is in E4M3 */
    const char *layout;    /* of a kernel's record: "d", "rows", "q", "k", "v" */
    uint32_t width;        /* the head_dim of a kernel's record */
    const struct tensor *x;
    struct shape shape;
    int64_t padded_rows, padded_columns; /* extent of the output; in plain layouts that of `shape` */
    sm120_address elements, scales;
    uint32_t floor;
    float factor;       /* multiplies x before quantisation: 1, -1 or 0 */
    bool has_sequences; /* `shape` then has a batch for each sequence, with the rows of the longest */
    struct quantizer_sequences_parameters sequences; /* all_tiles 0: the tiles of padded_rows */
    struct quantizer_means_parameters means;         /* of NVFP4's layouts q and k */
    struct quantizer_blocks_parameters blocks;       /* of E4M3 */
};

/* A launch and the values of its arguments. Do not copy it once filled, because it points into itself. */
struct quantizer_launch {
    struct kernel *kernel;
    struct launch launch;
    union {
        struct quantize_nvfp4_packed_parameters any; /* of which most kernels read the first ones */
        struct pack_mxfp8_parameters mx;             /* the same, except for the last group */
    } values;
    struct argument_pointers pointers;
};

/* Choose the kernel and check the launch without starting it. */
sm120_status quantizer_prepare(struct device *device, const struct quantizer *job, sm120_stream stream,
                               struct quantizer_launch *prepared);

#endif
