/* sm120_quantize_mxfp8, and the launches of quantizers that sm120_attention needs. */
#include "ops/quantize_mxfp8.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/places.h"

sm120_status quantizer_prepare(struct device *device, const struct quantizer *job, sm120_stream stream,
                               struct quantizer_launch *prepared) {
    uint32_t index;
    const bool is_mx = job->x->dtype == SM120_E4M3;
    const struct kernel_record wanted = {.operation = is_mx ? "pack_mxfp8" : job->operation,
                                         .dtype = job->x->dtype,
                                         .layout = job->layout,
                                         .head_dim = job->width,
                                         .features = is_mx || job->has_sequences};
    sm120_status status = builtin_find(&wanted, &index);
    if (status != SM120_OK) {
        return status;
    }
    const struct kernel_record *const record = kernel_records + index;
    if (record->rows == 0 || record->columns == 0) {
        return fail(SM120_INTERNAL, "the record of %s lacks the rows and columns of a CTA", record->entry);
    }
    const int64_t row_tiles = (job->padded_rows + record->rows - 1) / record->rows;
    const int64_t column_tiles = (job->padded_columns + record->columns - 1) / record->columns;
    int64_t grid = 0;
    if (!multiply(job->shape.batch * job->shape.heads, row_tiles, &grid) || !multiply(grid, column_tiles, &grid) ||
        grid > INT32_MAX) {
        return fail(SM120_UNSUPPORTED,
                    "%s: batch * heads = %" PRId64 " with %" PRId64 " x %" PRId64
                    " tiles each is too many CTAs; at most %d are supported",
                    job->x->name, job->shape.batch * job->shape.heads, row_tiles, column_tiles, INT32_MAX);
    }
    prepared->values.any = (struct quantize_nvfp4_packed_parameters){
        .x = job->x->address,
        .elements = job->elements,
        .scales = job->scales,
        .batch_stride = job->x->batch_stride,
        .head_stride = job->x->head_stride,
        .row_stride = job->x->row_stride,
        .heads = (uint32_t)job->shape.heads,
        .rows = (uint32_t)job->shape.rows,
        .head_dim = (uint32_t)job->shape.head_dim,
        .row_tiles = (uint32_t)row_tiles,
        .column_tiles = (uint32_t)column_tiles,
        .floor = job->floor,
        .factor = job->factor,
        .quantizer_sequences = job->sequences,
        .quantizer_means = job->means,
    };
    if (job->sequences.all_tiles == 0) {
        prepared->values.any.quantizer_sequences.all_tiles = (uint32_t)row_tiles;
    }
    struct arguments arguments = ARGUMENTS(&prepared->values.any);
    if (is_mx) {
        prepared->values.mx.quantizer_blocks = job->blocks;
        arguments = ARGUMENTS(&prepared->values.mx);
    }
    status = launch_of(&prepared->pointers, arguments, (uint32_t)grid, record, stream, &prepared->launch);
    status = status == SM120_OK ? builtin_load(device, index, &prepared->kernel) : status;
    return status == SM120_OK ? launch_check(prepared->kernel, &prepared->launch) : status;
}

uint32_t mxfp8_half(int64_t columns) {
    enum { WIDEST = 128 };
    return (uint32_t)(columns < WIDEST ? columns : WIDEST);
}

/* A row of k has 4 bytes of scales in each half; a column of v has one for each 32 rows. */
int64_t mxfp8_tile_bytes(bool is_v, int64_t columns) {
    enum { WORD = 4, BLOCK = 32 };
    const int64_t halves = columns / mxfp8_half(columns);
    const int64_t scales = is_v ? MXFP8_TILE_ROWS / BLOCK * columns : MXFP8_TILE_ROWS * WORD * halves;
    return MXFP8_TILE_ROWS * columns + scales;
}

int64_t mxfp8_q_row_bytes(int64_t columns) {
    enum { WORD = 4 };
    return columns + WORD * (columns / mxfp8_half(columns));
}

int64_t mxfp8_q_tile_rows(uint32_t precision, int64_t columns) {
    const bool is_mx = precision == SM120_MXFP8 || precision == SM120_MXFP8_BF16 || precision == SM120_MXFP8_F16;
    for (uint32_t i = 0; is_mx && i < kernel_record_count; ++i) {
        const struct kernel_record *const record = kernel_records + i;
        if (strcmp(record->operation, "attention") == 0 && record->precision == precision &&
            record->head_dim == columns) {
            return record->q_rows;
        }
    }
    return 0;
}

int64_t mxfp8_tile_columns(int64_t head_dim) {
    enum { LEAST = 64 };
    int64_t columns = LEAST;
    while (columns < head_dim) {
        columns *= 2;
    }
    return columns <= MXFP8_WIDEST_TILE ? columns : 0;
}

/* ---- sm120_quantize_mxfp8 ---- */

/* Check the members of packed sequences. */
static sm120_status check_sequences(const sm120_quantize_mxfp8_args *args) {
    if (args->cu_seqlens == 0) {
        return args->sequences == 0 && args->longest == 0
                   ? SM120_OK
                   : fail(SM120_INVALID_ARGUMENT,
                          "sequences = %" PRId64 " and longest = %" PRId64 "; without cu_seqlens they must be 0",
                          args->sequences, args->longest);
    }
    if ((args->axis != SM120_ALONG_ROWS && args->layout == SM120_MX_LINEAR) || args->batch != 1) {
        return fail(SM120_INVALID_ARGUMENT,
                    "axis = %" PRIu32 " and batch = %" PRId64
                    "; with cu_seqlens they must be ALONG_ROWS (%d), unless layout has tiles, and 1",
                    args->axis, args->batch, SM120_ALONG_ROWS);
    }
    if (args->longest < 0 || args->longest > args->rows) {
        return fail(SM120_INVALID_ARGUMENT, "longest = %" PRId64 "; it must be from 0 to rows = %" PRId64,
                    args->longest, args->rows);
    }
    const sm120_status status = check_size("sequences", args->sequences, INT32_MAX / 2);
    return status == SM120_OK ? check_size("sequences * heads", args->sequences * args->heads, INT32_MAX) : status;
}

/* Check the members of tiles, and find their columns. */
static sm120_status check_tiles(const sm120_quantize_mxfp8_args *args, int64_t *columns) {
    const int64_t given = args->tile_columns;
    const bool is_q = args->layout == SM120_MX_Q_TILES;
    *columns = mxfp8_tile_columns(args->head_dim);
    if (args->precision != 0 && !is_q) {
        return fail(SM120_INVALID_ARGUMENT, "precision = %" PRIu32 "; without layout = MX_Q_TILES (%d) it must be 0",
                    args->precision, SM120_MX_Q_TILES);
    }
    if (is_q && args->axis != SM120_ALONG_HEAD_DIM) {
        return fail(SM120_INVALID_ARGUMENT, "axis = %" PRIu32 "; tiles of q need ALONG_HEAD_DIM (%d)", args->axis,
                    SM120_ALONG_HEAD_DIM);
    }
    if (args->layout == SM120_MX_LINEAR) {
        return given == 0 ? SM120_OK
                          : fail(SM120_INVALID_ARGUMENT,
                                 "tile_columns = %" PRId64 "; without layout = MX_TILES (%d) it must be 0", given,
                                 SM120_MX_TILES);
    }
    if (*columns == 0) {
        return fail(SM120_UNSUPPORTED, "head_dim = %" PRId64 "; a tile has at most %d columns", args->head_dim,
                    MXFP8_WIDEST_TILE);
    }
    if (given != 0 && (given < *columns || given > MXFP8_WIDEST_TILE || mxfp8_tile_columns(given) != given)) {
        return fail(SM120_INVALID_ARGUMENT,
                    "tile_columns = %" PRId64 "; it must be 64, 128 or 256, and at least head_dim = %" PRId64, given,
                    args->head_dim);
    }
    if (args->scales != 0) {
        return fail(SM120_INVALID_ARGUMENT, "scales = 0x%" PRIx64 "; tiles hold their scales, so it must be 0",
                    args->scales);
    }
    *columns = given != 0 ? given : *columns;
    if (is_q && mxfp8_q_tile_rows(args->precision, *columns) == 0) {
        return fail(SM120_INVALID_ARGUMENT,
                    "precision = %" PRIu32 "; tiles of q need MXFP8 (%d), MXFP8_BF16 (%d) or MXFP8_F16 (%d)",
                    args->precision, SM120_MXFP8, SM120_MXFP8_BF16, SM120_MXFP8_F16);
    }
    return SM120_OK;
}

/* The rows of scales of a head. */
static int64_t scale_rows_of(const sm120_quantize_mxfp8_args *args) {
    const int64_t blocks = (args->rows + 31) / 32;
    return args->axis != SM120_ALONG_ROWS ? args->rows : blocks + (args->cu_seqlens != 0 ? args->sequences - 1 : 0);
}

/* The checks that need no device. */
static sm120_status check_args(const sm120_quantize_mxfp8_args *args, int64_t *tile_columns, struct tensor *x) {
    const struct shape shape = {args->batch, args->heads, args->rows, args->head_dim};
    if (args->axis != SM120_ALONG_HEAD_DIM && args->axis != SM120_ALONG_ROWS) {
        return fail(SM120_INVALID_ARGUMENT, "axis = %" PRIu32 "; it must be ALONG_HEAD_DIM (%d) or ALONG_ROWS (%d)",
                    args->axis, SM120_ALONG_HEAD_DIM, SM120_ALONG_ROWS);
    }
    if (args->rounding != SM120_SCALE_UP && args->rounding != SM120_SCALE_FLOOR) {
        return fail(SM120_INVALID_ARGUMENT, "rounding = %" PRIu32 "; it must be SCALE_UP (%d) or SCALE_FLOOR (%d)",
                    args->rounding, SM120_SCALE_UP, SM120_SCALE_FLOOR);
    }
    if (args->layout > SM120_MX_Q_TILES) {
        return fail(SM120_INVALID_ARGUMENT,
                    "layout = %" PRIu32 "; it must be MX_LINEAR (%d), MX_TILES (%d) or MX_Q_TILES (%d)", args->layout,
                    SM120_MX_LINEAR, SM120_MX_TILES, SM120_MX_Q_TILES);
    }
    if (args->reserved != 0) {
        return fail(SM120_INVALID_ARGUMENT, "reserved = %" PRIu32 "; it must be 0", args->reserved);
    }
    sm120_status status = check_shape(&shape, "rows", INT32_MAX);
    status = status == SM120_OK ? check_sequences(args) : status;
    status = status == SM120_OK ? check_tiles(args, tile_columns) : status;
    if (status == SM120_OK && shape.head_dim % 8 != 0) {
        status = fail(SM120_UNSUPPORTED, "head_dim = %" PRId64 "; only multiples of 8 are supported", shape.head_dim);
    }
    return status == SM120_OK ? tensor_check("x", &args->x, &shape, TENSOR_INPUT, x) : status;
}

/* Write the bytes of the results; false: they do not fit in 63 bits. */
static bool result_bytes(const sm120_quantize_mxfp8_args *args, const struct quantizer *job, int64_t *elements,
                         int64_t *scales) {
    const bool along_rows = args->axis == SM120_ALONG_ROWS;
    const int64_t heads = job->shape.batch * job->shape.heads;
    *scales = 0;
    if (args->layout == SM120_MX_Q_TILES) {
        return multiply(heads, job->padded_rows, elements) &&
               multiply(*elements, mxfp8_q_row_bytes(job->padded_columns), elements);
    }
    if (args->layout == SM120_MX_TILES) {
        return multiply(heads, job->padded_rows / MXFP8_TILE_ROWS, elements) &&
               multiply(*elements, mxfp8_tile_bytes(along_rows, job->padded_columns), elements);
    }
    const int64_t scale_columns = along_rows ? args->head_dim : (args->head_dim + 31) / 32;
    const int64_t all = args->batch * args->heads;
    return multiply(all, args->rows, elements) && multiply(*elements, args->head_dim, elements) &&
           multiply(all, scale_rows_of(args), scales) && multiply(*scales, scale_columns, scales);
}

/* Check the addresses of x and of the results. */
static sm120_status check_places(struct device *device, const sm120_quantize_mxfp8_args *args,
                                 const struct quantizer *job) {
    const struct tensor *const x = job->x;
    int64_t elements = 0, scales = 0;
    if (!result_bytes(args, job, &elements, &scales)) {
        const int64_t heads = args->batch * args->heads;
        return fail(SM120_UNSUPPORTED,
                    "batch * heads * rows * head_dim = %" PRId64 " * %" PRId64 " * %" PRId64 " does not fit in 63 bits",
                    heads, args->rows, args->head_dim);
    }
    const struct place places[] = {
        place_tensor(x, NULL, PLACE_READ),
        place_array("elements", args->elements, elements, 16, PLACE_WRITTEN),
        place_array("scales", args->scales, scales, 1, PLACE_WRITTEN),
        place_array("cu_seqlens", args->cu_seqlens, 4 * (args->sequences + 1), 4, PLACE_READ),
    };
    sm120_status status = tensor_check_alignment(x, &args->x);
    status = status == SM120_OK ? check_address("elements", args->elements, 16) : status;
    if (status == SM120_OK && args->layout == SM120_MX_LINEAR) {
        status = check_address("scales", args->scales, 1);
    }
    return status == SM120_OK ? places_check(device, places, sizeof places / sizeof *places) : status;
}

/* The job of a call. */
static struct quantizer job_of(const sm120_quantize_mxfp8_args *args, int64_t tile_columns, const struct tensor *x) {
    const bool is_packed = args->cu_seqlens != 0, along_rows = args->axis == SM120_ALONG_ROWS;
    const int64_t rows = is_packed && args->longest != 0 ? args->longest : args->rows;
    struct quantizer job = {
        .operation = "quantize_mxfp8",
        .layout = along_rows ? "rows" : "d",
        .x = x,
        .shape = {is_packed ? args->sequences : args->batch, args->heads, rows, args->head_dim},
        .padded_rows = rows,
        .padded_columns = args->head_dim,
        .elements = args->elements,
        .scales = args->scales,
        .floor = args->rounding,
        .factor = 1.0f,
        .has_sequences = is_packed,
        .sequences = {.starts = args->cu_seqlens,
                      .total = (int32_t)args->rows,
                      .all_tiles = (uint32_t)scale_rows_of(args)},
    };
    if (args->layout == SM120_MX_TILES) {
        job.layout = along_rows ? "v" : "k";
        job.width = mxfp8_half(tile_columns);
        job.padded_rows = (rows + MXFP8_TILE_ROWS - 1) / MXFP8_TILE_ROWS * MXFP8_TILE_ROWS;
        job.padded_columns = tile_columns;
        job.sequences.all_tiles = 0;
    }
    if (args->layout == SM120_MX_Q_TILES) {
        const int64_t step = mxfp8_q_tile_rows(args->precision, tile_columns);
        job.layout = "q";
        job.width = mxfp8_half(tile_columns);
        job.padded_rows = (rows + step - 1) / step * step;
        job.padded_columns = tile_columns;
        job.sequences.all_tiles = 0;
        job.scales = job.elements + (uint64_t)job.shape.batch * (uint64_t)job.shape.heads * (uint64_t)job.padded_rows *
                                        (uint64_t)tile_columns;
    }
    return job;
}

sm120_status sm120_quantize_mxfp8(sm120_device *handle, const sm120_quantize_mxfp8_args *args) {
    struct device *device;
    struct tensor x;
    int64_t tile_columns = 0;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(args, sizeof *args, "args", "sm120_quantize_mxfp8_args");
    status = status == SM120_OK ? check_args(args, &tile_columns, &x) : status;
    if (status == SM120_OK) {
        struct quantizer_launch prepared;
        const struct quantizer job = job_of(args, tile_columns, &x);
        status = check_places(device, args, &job);
        status = status == SM120_OK ? quantizer_prepare(device, &job, args->stream, &prepared) : status;
        status = status == SM120_OK ? launch_start(prepared.kernel, &prepared.launch) : status;
    }
    return device_leave(device, status);
}
