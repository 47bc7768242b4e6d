/* sm120_dequantize: the values of quantised weights. */
#include "ops/weights.h"
#include "runtime/check.h"

/* Check addresses, and that y lies apart from the weights. */
static sm120_status check_places(struct device *device, const sm120_dequantize_args *args,
                                 const struct weights *weights, const struct tensor *y) {
    const struct place places[] = {
        place_array("weights", args->weights, weights->bytes, WEIGHTS_ALIGNMENT, PLACE_READ),
        place_tensor(y, NULL, PLACE_WRITTEN),
    };
    sm120_status status =
        weights_check_buffer(device, "weights", args->weights, "weight_bytes", args->weight_bytes, weights->bytes);
    status = status == SM120_OK ? tensor_check_alignment(y, &args->y) : status;
    return status == SM120_OK ? places_check(device, places, sizeof places / sizeof *places) : status;
}

sm120_status sm120_dequantize(sm120_device *handle, const sm120_dequantize_args *args) {
    struct device *device;
    struct weights weights;
    struct tensor y;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(args, sizeof *args, "args", "sm120_dequantize_args");
    status = status == SM120_OK ? weights_check(args->type, args->rows, args->columns, &weights) : status;
    if (status == SM120_OK) {
        const struct shape shape = {1, 1, args->rows, args->columns};
        status = tensor_check("y", &args->y, &shape, TENSOR_OUTPUT, &y);
    }
    status = status == SM120_OK ? check_places(device, args, &weights, &y) : status;
    if (status == SM120_OK) {
        const struct dequantize_parameters values = {
            .weights = args->weights,
            .y = y.address,
            .y_row_stride = y.row_stride,
            .rows = weights.rows,
            .columns = weights.columns,
            .spans = weights.spans,
            .y_type = weights_result_type(y.dtype),
        };
        status = weights_launch(device, "dequantize", &weights, ARGUMENTS(&values), args->stream);
    }
    return device_leave(device, status);
}
