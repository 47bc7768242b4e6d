/* The kernels inside the library. The build writes these tables (build/generated/kernels.c) from the notes and the
 * .param lines of the templates. A kernel's threads, shared memory, tile and parameters are written nowhere else. */
#ifndef SM120_KERNELS_H
#define SM120_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/signature.h"

/* The parameters of a kernel, in order. generated/parameters.h has a struct for each list with the same layout:
 * parameter i is at offset items[i].offset in both. */
struct parameter_list {
    const struct parameter *items;
    uint32_t count;
    const struct parameter_list *beginning; /* the longest other list that this one begins with, or NULL */
};

/* Images that are compressed together: .lzma files in kernel_images. */
struct kernel_block {
    uint32_t at, packed_bytes;
    uint32_t bytes; /* decoded */
};

/* An image in a block. PTX texts end without a NUL. */
struct kernel_image {
    uint32_t block, at, bytes;
};

/* The note of a template about a kernel (FIELDS in ptx/records.py), and what the build found out. Fields that the note
 * lacks are 0. */
struct kernel_record {
    const char *entry;
    const char *operation; /* "attention", "quantize_mxfp8" */
    const struct parameter_list *parameters;
    uint32_t threads;       /* of a CTA */
    uint32_t shared;        /* dynamic, of a CTA, in bytes */
    uint32_t precision;     /* of attention: SM120_BF16, SM120_MXFP8 */
    uint32_t dtype;         /* of the input's elements: SM120_F32 */
    uint32_t element_bytes; /* of a copied element */
    const char *layout;     /* of the output of a quantizer: "d", "rows", "q", "k", "v" */
    const char *config;     /* the name of this choice of tile and warps: "r32" */
    bool features;          /* it supports more than tensors of one length and unmodified scores */
    uint32_t head_dim;      /* that it computes; 0: any */
    uint32_t q_rows, kv_rows;
    uint32_t key_groups; /* groups of warps that hold the same rows and visit tiles of keys in turn */
    uint32_t stages;
    uint32_t group_heads, group_rows;
    uint32_t q_warp_rows;   /* warps that share the rows of a tile's dQ */
    bool ordered;           /* it can add up dQ in a fixed order */
    uint32_t rows, columns; /* of the input that a CTA covers */

    const char *source;                       /* the template: "ptx/attention/mxfp8.ptx" */
    uint32_t registers_sm120, registers_sm90; /* per thread, as ptxas allocated them */
    struct kernel_image ptx_sm120, cubin_sm120, ptx_sm90, cubin_sm90;
};

/* The records of an operation: kernel_order[first] to kernel_order[first + count - 1]. */
struct kernel_operation {
    const char *name;
    uint32_t first, count;
};

/* A number that templates share with C (generated/constants.h) and Python. */
struct kernel_constant {
    const char *name;
    int32_t value;
};

extern const struct kernel_record kernel_records[];
extern const uint32_t kernel_record_count;
extern const uint32_t kernel_order[];                     /* numbers of records, by operation */
extern const struct kernel_operation kernel_operations[]; /* by name */
extern const uint32_t kernel_operation_count;
extern const struct kernel_block kernel_blocks[];
extern const uint32_t kernel_block_count;
extern const struct kernel_constant kernel_constants[];
extern const uint32_t kernel_constant_count;
extern const unsigned char kernel_images[];

#endif
