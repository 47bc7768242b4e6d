/* sm120_repack: quantised weights in the packed layout. */
#include "ops/weights.h"
#include "runtime/check.h"

/* Check addresses, and that the result lies apart from the weights. */
static sm120_status check_places(struct device *device, const sm120_repack_args *args, const struct weights *weights) {
    const struct place places[] = {
        place_array("weights", args->weights, weights->bytes, WEIGHTS_ALIGNMENT, PLACE_READ),
        place_array("packed", args->packed, weights->packed_bytes, WEIGHTS_ALIGNMENT, PLACE_WRITTEN),
    };
    sm120_status status =
        weights_check_buffer(device, "weights", args->weights, "weight_bytes", args->weight_bytes, weights->bytes);
    if (status == SM120_OK) {
        status = weights_check_buffer(device, "packed", args->packed, "packed_bytes", args->packed_bytes,
                                      weights->packed_bytes);
    }
    return status == SM120_OK ? places_check(device, places, sizeof places / sizeof *places) : status;
}

sm120_status sm120_repack(sm120_device *handle, const sm120_repack_args *args) {
    struct device *device;
    struct weights weights;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(args, sizeof *args, "args", "sm120_repack_args");
    status = status == SM120_OK ? weights_check(args->type, args->rows, args->columns, &weights) : status;
    status = status == SM120_OK ? check_places(device, args, &weights) : status;
    if (status == SM120_OK) {
        const struct repack_parameters values = {
            .weights = args->weights,
            .packed = args->packed,
            .rows = weights.rows,
            .columns = weights.columns,
            .spans = weights.spans,
            .tiles = weights.tiles,
        };
        status = weights_launch(device, "repack", &weights, ARGUMENTS(&values), args->stream);
    }
    return device_leave(device, status);
}
