/* sm120_quantize_nvfp4: e2m1 elements with an e4m3 scale for each 16. */
#include <inttypes.h>

#include "ops/scale_layouts.h"
#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/launch.h"
#include "runtime/places.h"
#include "runtime/tensor.h"

enum { BLOCK = 16 };

static const float GLOBAL_MIN = 0x1p-100f, GLOBAL_MAX = 0x1p+100f;

/* A call whose arguments were checked. A line of the results is a row of x or, along rows, a column. */
struct nvfp4 {
    struct shape shape;
    struct tensor x;
    const struct scale_layout *layout;
    int64_t lines, length; /* and the elements of a line */
    int64_t blocks;        /* of a line */
    int64_t padded_lines, padded_blocks;
    int64_t bytes;  /* of the elements */
    int64_t scales; /* with the padding */
};

/* Check the options. */
static sm120_status check_options(const sm120_quantize_nvfp4_args *args, struct nvfp4 *call) {
    const sm120_status status = scale_layout_of("layout", args->layout, &call->layout);
    if (status != SM120_OK) {
        return status;
    }
    if (args->search > 1) {
        return fail(SM120_INVALID_ARGUMENT, "search = %" PRIu32 "; it must be 0 or 1", args->search);
    }
    if (args->axis != SM120_ALONG_HEAD_DIM && args->axis != SM120_ALONG_ROWS) {
        return fail(SM120_INVALID_ARGUMENT, "axis = %" PRIu32 "; it must be ALONG_HEAD_DIM (%d) or ALONG_ROWS (%d)",
                    args->axis, SM120_ALONG_HEAD_DIM, SM120_ALONG_ROWS);
    }
    if (args->reserved != 0) {
        return fail(SM120_INVALID_ARGUMENT, "reserved = %" PRIu32 "; it must be 0", args->reserved);
    }
    if (args->global_scale_address != 0) {
        return args->global_scale == 0 ? SM120_OK
                                       : fail(SM120_INVALID_ARGUMENT,
                                              "global_scale = %g beside global_scale_address = 0x%" PRIx64
                                              "; only one of them may be given",
                                              (double)args->global_scale, args->global_scale_address);
    }
    if (!(args->global_scale >= GLOBAL_MIN && args->global_scale <= GLOBAL_MAX)) { /* true for a NaN too */
        return fail(SM120_INVALID_ARGUMENT, "global_scale = %g; it must be from 2^-100 to 2^100",
                    (double)args->global_scale);
    }
    return SM120_OK;
}

/* Check what needs no device. */
static sm120_status check_args(const sm120_quantize_nvfp4_args *args, struct nvfp4 *call) {
    *call = (struct nvfp4){.shape = {args->batch, args->heads, args->rows, args->head_dim}};
    sm120_status status = check_options(args, call);
    status = status == SM120_OK ? check_shape(&call->shape, "rows", INT32_MAX) : status;
    const bool is_along_rows = args->axis == SM120_ALONG_ROWS;
    if (status == SM120_OK && !is_along_rows && args->head_dim % BLOCK != 0) {
        status = fail(SM120_UNSUPPORTED, "head_dim = %" PRId64 "; only multiples of %d are supported along head_dim",
                      args->head_dim, BLOCK);
    }
    status = status == SM120_OK ? tensor_check("x", &args->x, &call->shape, TENSOR_INPUT, &call->x) : status;
    if (status != SM120_OK) {
        return status;
    }
    const int64_t heads = args->batch * args->heads;
    call->lines = is_along_rows ? args->head_dim : args->rows;
    call->length = is_along_rows ? args->rows : args->head_dim;
    call->blocks = (call->length + BLOCK - 1) / BLOCK;
    call->padded_lines = scale_layout_rows(call->layout, call->lines);
    call->padded_blocks = scale_layout_columns(call->layout, call->blocks);
    if (!multiply(heads, call->padded_lines, &call->scales) ||
        !multiply(call->scales, call->padded_blocks, &call->scales) || call->scales > INT32_MAX) {
        return fail(SM120_UNSUPPORTED,
                    "batch * heads = %" PRId64 " with %" PRId64 " x %" PRId64
                    " scales each is too many; at most %d are supported",
                    heads, call->padded_lines, call->padded_blocks, INT32_MAX);
    }
    call->bytes = heads * call->lines * call->blocks * (BLOCK / 2); /* at most 8 for each of the scales */
    return SM120_OK;
}

/* Check the addresses of x and of the results. */
static sm120_status check_places(struct device *device, const sm120_quantize_nvfp4_args *args,
                                 const struct nvfp4 *call) {
    const struct place places[] = {
        place_tensor(&call->x, NULL, PLACE_READ),
        place_array("global_scale_address", args->global_scale_address, sizeof(float), sizeof(float), PLACE_READ),
        place_array("elements", args->elements, call->bytes, 16, PLACE_WRITTEN),
        place_array("scales", args->scales, call->scales, 1, PLACE_WRITTEN),
    };
    sm120_status status = SM120_OK;
    if (args->axis == SM120_ALONG_HEAD_DIM) { /* along rows, elements are loaded one by one */
        status = tensor_check_alignment(&call->x, &args->x);
    }
    status = status == SM120_OK ? check_address("elements", args->elements, 16) : status;
    status = status == SM120_OK ? check_address("scales", args->scales, 1) : status;
    return status == SM120_OK ? places_check(device, places, sizeof places / sizeof *places) : status;
}

/* Threads that have work: each has the blocks of two lines at one place. */
static int64_t items_of(const struct nvfp4 *call) {
    return call->shape.batch * call->shape.heads * ((call->padded_lines + 1) / 2) * call->padded_blocks;
}

/* The CTAs of a call. */
static int64_t ctas_of(const struct nvfp4 *call, bool is_along_rows, const struct kernel_record *record) {
    if (!is_along_rows) {
        return (items_of(call) + record->threads - 1) / record->threads;
    }
    const int64_t lines = record->columns, blocks = record->rows / BLOCK;
    return call->shape.batch * call->shape.heads * ((call->padded_lines + lines - 1) / lines) *
           ((call->padded_blocks + blocks - 1) / blocks);
}

/* Launch the kernel of the call's dtype and axis. */
static sm120_status launch(struct device *device, const sm120_quantize_nvfp4_args *args, const struct nvfp4 *call) {
    const bool is_along_rows = args->axis == SM120_ALONG_ROWS;
    const struct kernel_record wanted = {
        .operation = "quantize_nvfp4", .dtype = call->x.dtype, .layout = is_along_rows ? "rows" : "d"};
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
        .global_address = args->global_scale_address,
        .batch_stride = call->x.batch_stride,
        .head_stride = call->x.head_stride,
        .row_stride = call->x.row_stride,
        .items = (uint32_t)items_of(call),
        .heads = (uint32_t)call->shape.heads,
        .lines = (uint32_t)call->lines,
        .length = (uint32_t)call->length,
        .blocks = (uint32_t)call->blocks,
        .padded_lines = (uint32_t)call->padded_lines,
        .padded_blocks = (uint32_t)call->padded_blocks,
        .shift = call->layout->shift,
        .is_search = args->search,
        .global_scale = args->global_scale,
    };
    struct argument_pointers pointers;
    struct launch launch;
    struct kernel *kernel = NULL;
    status = launch_of(&pointers, ARGUMENTS(&values), (uint32_t)ctas_of(call, is_along_rows, record), record,
                       args->stream, &launch);
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
