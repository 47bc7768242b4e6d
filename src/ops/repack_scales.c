/* sm120_repack_scales: scales from one order to another. */
#include <inttypes.h>

#include "ops/scale_layouts.h"
#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/launch.h"
#include "runtime/places.h"
#include "runtime/tensor.h"

enum { WORD = 4 }; /* scales of a thread */

/* One side of a call. */
struct scales {
    const char *name;
    sm120_address address;
    const struct scale_layout *layout;
    int64_t rows, columns; /* with the padding */
    int64_t bytes;
    bool has_words; /* four columns lie in an aligned word */
};

/* Check one side's layout and size. */
static sm120_status check_side(const sm120_repack_scales_args *args, const char *layout_name, uint32_t code,
                               struct scales *side) {
    const sm120_status status = scale_layout_of(layout_name, code, &side->layout);
    if (status != SM120_OK) {
        return status;
    }
    side->rows = scale_layout_rows(side->layout, args->rows);
    side->columns = scale_layout_columns(side->layout, args->columns);
    if (!multiply(args->batch, args->heads, &side->bytes) || !multiply(side->bytes, side->rows, &side->bytes) ||
        !multiply(side->bytes, side->columns, &side->bytes) || side->bytes > INT32_MAX) {
        return fail(SM120_UNSUPPORTED,
                    "batch * heads = %" PRId64 " * %" PRId64 " with %" PRId64 " x %" PRId64
                    " scales each is too many; at most %d are supported",
                    args->batch, args->heads, side->rows, side->columns, INT32_MAX);
    }
    side->has_words = (side->address | (uint64_t)side->columns) % WORD == 0;
    return SM120_OK;
}

/* Check what needs no device. */
static sm120_status check_args(const sm120_repack_scales_args *args, struct scales *from, struct scales *to) {
    *from = (struct scales){.name = "scales", .address = args->scales};
    *to = (struct scales){.name = "repacked", .address = args->repacked};
    if (args->reserved != 0) {
        return fail(SM120_INVALID_ARGUMENT, "reserved = %" PRIu32 "; it must be 0", args->reserved);
    }
    sm120_status status = check_size("batch", args->batch, INT32_MAX);
    status = status == SM120_OK ? check_size("heads", args->heads, INT32_MAX) : status;
    status = status == SM120_OK ? check_size("rows", args->rows, INT32_MAX) : status;
    status = status == SM120_OK ? check_size("columns", args->columns, INT32_MAX) : status;
    status = status == SM120_OK ? check_side(args, "source", args->source, from) : status;
    return status == SM120_OK ? check_side(args, "target", args->target, to) : status;
}

/* Check addresses; those of tiles are aligned to words. */
static sm120_status check_places(struct device *device, const struct scales *from, const struct scales *to) {
    const struct scales *const sides[] = {from, to};
    struct place places[2];
    sm120_status status = SM120_OK;
    for (int i = 0; i < 2 && status == SM120_OK; ++i) {
        const uint64_t alignment = sides[i]->layout->shift != 0 ? WORD : 1;
        places[i] = place_array(sides[i]->name, sides[i]->address, sides[i]->bytes, alignment,
                                i == 0 ? PLACE_READ : PLACE_WRITTEN);
        status = check_address(sides[i]->name, sides[i]->address, alignment);
    }
    return status == SM120_OK ? places_check(device, places, 2) : status;
}

/* Launch the kernel. */
static sm120_status launch(struct device *device, const sm120_repack_scales_args *args, const struct scales *from,
                           const struct scales *to) {
    const struct kernel_record wanted = {.operation = "repack_scales"};
    const int64_t items = args->batch * args->heads * to->rows * ((to->columns + WORD - 1) / WORD);
    uint32_t index;
    sm120_status status = builtin_find(&wanted, &index);
    if (status != SM120_OK) {
        return status;
    }
    const struct kernel_record *const record = kernel_records + index;
    const struct repack_scales_parameters values = {
        .from = from->address,
        .to = to->address,
        .items = (uint32_t)items,
        .rows = (uint32_t)args->rows,
        .columns = (uint32_t)args->columns,
        .from_rows = (uint32_t)from->rows,
        .from_columns = (uint32_t)from->columns,
        .from_shift = from->layout->shift,
        .from_words = from->has_words,
        .to_rows = (uint32_t)to->rows,
        .to_columns = (uint32_t)to->columns,
        .to_shift = to->layout->shift,
        .to_words = to->has_words,
    };
    struct argument_pointers pointers;
    struct launch launch;
    struct kernel *kernel = NULL;
    status = launch_of(&pointers, ARGUMENTS(&values), (uint32_t)((items + record->threads - 1) / record->threads),
                       record, args->stream, &launch);
    status = status == SM120_OK ? builtin_load(device, index, &kernel) : status;
    status = status == SM120_OK ? launch_check(kernel, &launch) : status;
    return status == SM120_OK ? launch_start(kernel, &launch) : status;
}

sm120_status sm120_repack_scales(sm120_device *handle, const sm120_repack_scales_args *args) {
    struct device *device;
    struct scales from;
    struct scales to;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(args, sizeof *args, "args", "sm120_repack_scales_args");
    status = status == SM120_OK ? check_args(args, &from, &to) : status;
    status = status == SM120_OK ? check_places(device, &from, &to) : status;
    status = status == SM120_OK ? launch(device, args, &from, &to) : status;
    return device_leave(device, status);
}
