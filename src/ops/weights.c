/* Matrices of quantised weights: types, sizes, buffers. */
#include "ops/weights.h"

#include <inttypes.h>

#include "generated/constants.h"
#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/memory.h"

enum { TILE = WEIGHTS_TILE_ROWS, SPAN = 256, WORD = 4 }; /* rows, columns, bytes */

/* A block format. */
struct block_type {
    uint32_t code;
    const char *name; /* of kernels and of messages */
    int64_t columns, bytes;
};

#define BLOCK_TYPE(upper, lower) {SM120_GGUF_##upper, lower, GGUF_##upper##_BLOCK, GGUF_##upper##_BYTES}
static const struct block_type block_types[] = {
    BLOCK_TYPE(Q8_0, "q8_0"), BLOCK_TYPE(Q2_K, "q2_k"), BLOCK_TYPE(Q3_K, "q3_k"),   BLOCK_TYPE(Q4_K, "q4_k"),
    BLOCK_TYPE(Q5_K, "q5_k"), BLOCK_TYPE(Q6_K, "q6_k"), BLOCK_TYPE(MXFP4, "mxfp4"), BLOCK_TYPE(NVFP4, "nvfp4"),
};

sm120_status weights_check(uint32_t type, int64_t rows, int64_t columns, struct weights *weights) {
    const struct block_type *found = NULL;
    for (size_t i = 0; i < sizeof block_types / sizeof *block_types; ++i) {
        found = block_types[i].code == type ? block_types + i : found;
    }
    if (found == NULL) {
        return fail(SM120_INVALID_ARGUMENT,
                    "type = %" PRIu32
                    "; it must be GGUF's number of Q8_0 (8), Q2_K to Q6_K (10 to 14), MXFP4 (39) or NVFP4 (40)",
                    type);
    }
    sm120_status status = check_size("rows", rows, INT32_MAX - TILE);
    status = status == SM120_OK ? check_size("columns", columns, INT32_MAX - SPAN) : status;
    if (status != SM120_OK) {
        return status;
    }
    if (columns % found->columns != 0) {
        return fail(SM120_INVALID_ARGUMENT,
                    "columns = %" PRId64 "; it must be a multiple of %" PRId64 ", a block of %s", columns,
                    found->columns, found->name);
    }
    const int64_t tiles = (rows + TILE - 1) / TILE, spans = (columns + SPAN - 1) / SPAN;
    if (tiles * spans > INT32_MAX - TILE) {
        return fail(SM120_UNSUPPORTED,
                    "rows = %" PRId64 " and columns = %" PRId64 " are %" PRId64
                    " tiles of %d x %d; at most %d are supported",
                    rows, columns, tiles * spans, TILE, SPAN, INT32_MAX - TILE);
    }
    *weights = (struct weights){
        .type = found->name,
        .rows = (uint32_t)rows,
        .columns = (uint32_t)columns,
        .tiles = (uint32_t)tiles,
        .spans = (uint32_t)spans,
        .row_bytes = columns / found->columns * found->bytes,
        .bytes = (rows * (columns / found->columns) * found->bytes + WORD - 1) / WORD * WORD,
        .packed_bytes = tiles * TILE * spans * (SPAN / found->columns) * found->bytes,
    };
    return SM120_OK;
}

sm120_status weights_check_buffer(struct device *device, const char *name, sm120_address address,
                                  const char *bytes_name, int64_t given, int64_t needed) {
    if (given < needed) {
        return fail(SM120_INVALID_ARGUMENT, "%s = %" PRId64 "; a matrix of this type, layout and shape has %" PRId64,
                    bytes_name, given, needed);
    }
    sm120_status status = check_address(name, address, WEIGHTS_ALIGNMENT);
    return status == SM120_OK ? memory_check(device, address, (uint64_t)given, name) : status;
}

uint32_t weights_result_type(uint32_t dtype) {
    return dtype == SM120_F32 ? ATTENTION_O_F32 : dtype == SM120_F16 ? ATTENTION_O_F16 : ATTENTION_O_BF16;
}

sm120_status weights_launch(struct device *device, const char *operation, const struct weights *weights,
                            struct arguments arguments, sm120_stream stream) {
    const struct kernel_record wanted = {.operation = operation, .layout = weights->type};
    uint32_t index;
    sm120_status status = builtin_find(&wanted, &index);
    if (status != SM120_OK) {
        return status;
    }
    const struct kernel_record *const record = kernel_records + index;
    const uint32_t warps = record->threads / 32;
    struct argument_pointers pointers;
    struct launch launch;
    struct kernel *kernel = NULL;
    status =
        launch_of(&pointers, arguments, (weights->tiles * weights->spans + warps - 1) / warps, record, stream, &launch);
    status = status == SM120_OK ? builtin_load(device, index, &kernel) : status;
    status = status == SM120_OK ? launch_check(kernel, &launch) : status;
    return status == SM120_OK ? launch_start(kernel, &launch) : status;
}

sm120_status sm120_weights_bytes(uint32_t type, uint32_t layout, int64_t rows, int64_t columns, int64_t *bytes) {
    struct weights weights;
    error_clear();
    sm120_status status = check_pointer(bytes, "bytes");
    if (status == SM120_OK && layout > SM120_WEIGHTS_PACKED) {
        status =
            fail(SM120_INVALID_ARGUMENT, "layout = %" PRIu32 "; it must be WEIGHTS_NATIVE (%d) or WEIGHTS_PACKED (%d)",
                 layout, SM120_WEIGHTS_NATIVE, SM120_WEIGHTS_PACKED);
    }
    status = status == SM120_OK ? weights_check(type, rows, columns, &weights) : status;
    if (status == SM120_OK) {
        *bytes = layout == SM120_WEIGHTS_NATIVE ? weights.bytes : weights.packed_bytes;
    }
    return status;
}
