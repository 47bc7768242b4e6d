/* sm120_quantize_nvfp4: e2m1 elements with an e4m3 scale for each 16. */
#include <inttypes.h>

#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/launch.h"
#include "runtime/places.h"
#include "runtime/tensor.h"

enum { BLOCK = 16, TILE_COLUMNS = 4 };

static const float GLOBAL_MIN = 0x1p-100f, GLOBAL_MAX = 0x1p+100f;

/* The tiles of a layout of scales. */
static const struct scale_layout {
    uint32_t rows, columns; /* of a tile */
    uint32_t shift;         /* log2(rows / 4); 0: linear */
} layouts[] = {
    [SM120_SCALES_LINEAR] = {1, 1, 0},
    [SM120_SCALES_128X4] = {128, TILE_COLUMNS, 5},
    [SM120_SCALES_64X4] = {64, TILE_COLUMNS, 4},
};
enum { LAYOUT_COUNT = sizeof layouts / sizeof *layouts };

/* A call whose arguments were checked. */
struct nvfp4 {
    struct shape shape;
    struct tensor x;
    int64_t padded_rows, padded_blocks;
    int64_t bytes; /* of the elements */
    int64_t items; /* scales, with the padding */
};

/* Check what needs no device. */
static sm120_status check_args(const sm120_quantize_nvfp4_args *args, struct nvfp4 *call) {
    *call = (struct nvfp4){.shape = {args->batch, args->heads, args->rows, args->head_dim}};
    if (args->layout >= LAYOUT_COUNT) {
        return fail(SM120_INVALID_ARGUMENT,
                    "layout = %" PRIu32 "; it must be SCALES_LINEAR (%d), SCALES_128X4 (%d) or SCALES_64X4 (%d)",
                    args->layout, SM120_SCALES_LINEAR, SM120_SCALES_128X4, SM120_SCALES_64X4);
    }
    if (args->search > 1) {
        return fail(SM120_INVALID_ARGUMENT, "search = %" PRIu32 "; it must be 0 or 1", args->search);
    }
    if (!(args->global_scale >= GLOBAL_MIN && args->global_scale <= GLOBAL_MAX)) { /* true for a NaN too */
        return fail(SM120_INVALID_ARGUMENT, "global_scale = %g; it must be from 2^-100 to 2^100",
                    (double)args->global_scale);
    }
    sm120_status status = check_shape(&call->shape, "rows", INT32_MAX);
    if (status == SM120_OK && args->head_dim % BLOCK != 0) {
        status = fail(SM120_UNSUPPORTED, "head_dim = %" PRId64 "; only multiples of %d are supported", args->head_dim,
                      BLOCK);
    }
    status = status == SM120_OK ? tensor_check("x", &args->x, &call->shape, TENSOR_INPUT, &call->x) : status;
    if (status != SM120_OK) {
        return status;
    }
    const struct scale_layout *const tile = layouts + args->layout;
    const int64_t heads = args->batch * args->heads;
    call->padded_rows = (args->rows + tile->rows - 1) / tile->rows * tile->rows;
    call->padded_blocks = (args->head_dim / BLOCK + tile->columns - 1) / tile->columns * tile->columns;
    if (!multiply(heads, call->padded_rows, &call->items) ||
        !multiply(call->items, call->padded_blocks, &call->items) || call->items > INT32_MAX) {
        return fail(SM120_UNSUPPORTED,
                    "batch * heads = %" PRId64 " with %" PRId64 " x %" PRId64
                    " scales each is too many; at most %d are supported",
                    heads, call->padded_rows, call->padded_blocks, INT32_MAX);
    }
    call->bytes = heads * args->rows * (args->head_dim / 2); /* at most 8 for each of the items */
    return SM120_OK;
}

/* Check the addresses of x and of the results. */
static sm120_status check_places(struct device *device, const sm120_quantize_nvfp4_args *args,
                                 const struct nvfp4 *call) {
    const struct place places[] = {
        place_tensor(&call->x, NULL, PLACE_READ),
        place_array("elements", args->elements, call->bytes, 16, PLACE_WRITTEN),
        place_array("scales", args->scales, call->items, 1, PLACE_WRITTEN),
    };
    sm120_status status = tensor_check_alignment(&call->x, &args->x);
    status = status == SM120_OK ? check_address("elements", args->elements, 16) : status;
    status = status == SM120_OK ? check_address("scales", args->scales, 1) : status;
    return status == SM120_OK ? places_check(device, places, sizeof places / sizeof *places) : status;
}

/* Launch the kernel of the call's dtype. */
static sm120_status launch(struct device *device, const sm120_quantize_nvfp4_args *args, const struct nvfp4 *call) {
    const struct kernel_record wanted = {.operation = "quantize_nvfp4", .dtype = call->x.dtype, .layout = "d"};
    uint32_t index;
    sm120_status status = builtin_find(&wanted, &index);
    if (status != SM120_OK) {
        return status;
    }
    const struct kernel_record *const record = kernel_records + index;
    const struct quantize_nvfp4_parameters values = {
        .x = call->x.address,
        .elements = args->elements,
        .scales = args->scales,
        .batch_stride = call->x.batch_stride,
        .head_stride = call->x.head_stride,
        .row_stride = call->x.row_stride,
        .items = (uint32_t)call->items,
        .heads = (uint32_t)call->shape.heads,
        .rows = (uint32_t)call->shape.rows,
        .blocks = (uint32_t)(call->shape.head_dim / BLOCK),
        .padded_rows = (uint32_t)call->padded_rows,
        .padded_blocks = (uint32_t)call->padded_blocks,
        .shift = layouts[args->layout].shift,
        .is_search = args->search,
        .global_scale = args->global_scale,
    };
    const int64_t ctas = (call->items + record->threads - 1) / record->threads;
    struct argument_pointers pointers;
    struct launch launch;
    struct kernel *kernel = NULL;
    status = launch_of(&pointers, ARGUMENTS(&values), (uint32_t)ctas, record, args->stream, &launch);
    status = status == SM120_OK ? builtin_load(device, index, &kernel) : status;
    status = status == SM120_OK ? launch_check(kernel, &launch) : status;
    return status == SM120_OK ? launch_start(kernel, &launch) : status;
}

sm120_status sm120_quantize_nvfp4(sm120_device *handle, const sm120_quantize_nvfp4_args *args) {
    struct device *device;
    struct nvfp4 call;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(args, sizeof *args, "args", "sm120_quantize_nvfp4_args");
    status = status == SM120_OK ? check_args(args, &call) : status;
    status = status == SM120_OK ? check_places(device, args, &call) : status;
    status = status == SM120_OK ? launch(device, args, &call) : status;
    return device_leave(device, status);
}
