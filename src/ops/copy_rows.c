/* Copies of tensors that kernels cannot use in place. */
#include "ops/copy_rows.h"

#include <inttypes.h>

#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"

enum { GROUPS_MAX = 65535 }; /* limit of grid.y; CTAs loop over further rows */

enum { STEP = 8 }; /* of a head size, in elements */

int64_t copy_rows_step(uint32_t dtype) {
    return dtype == SM120_E4M3 ? 2 * STEP : STEP;
}

int64_t copy_rows_width(int64_t head_dim, uint32_t dtype) {
    return (head_dim + copy_rows_step(dtype) - 1) / copy_rows_step(dtype) * copy_rows_step(dtype);
}

bool copy_rows_is_needless(const struct tensor *x, const struct shape *shape) {
    return tensor_is_aligned(x) && x->address % TENSOR_ALIGNMENT == 0 && shape->head_dim % STEP == 0;
}

sm120_status copy_rows_place(const struct tensor *given, const struct shape *shape, uint32_t dtype, struct tensor *copy,
                             int64_t *offset) {
    const int64_t batches = given->batch_stride != 0 ? shape->batch : 1;
    const int64_t heads = given->head_stride != 0 ? shape->heads : 1;
    const int64_t row = shape->head_dim * tensor_element_bytes(dtype);
    int64_t head = 0, batch = 0, bytes = 0, begin = 0;
    const bool fits = multiply(row, shape->rows, &head) && multiply(head, heads, &batch) &&
                      multiply(batch, batches, &bytes) && workspace_place(bytes, &begin, offset);
    if (!fits) {
        return fail(SM120_UNSUPPORTED, "the workspace copy of %s exceeds 2^63 bytes", given->name);
    }
    *copy = (struct tensor){.name = given->name,
                            .address = (sm120_address)begin,
                            .dtype = dtype,
                            .batch_stride = batches > 1 ? batch : 0,
                            .head_stride = heads > 1 ? head : 0,
                            .row_stride = row,
                            .bytes = bytes};
    return SM120_OK;
}

sm120_status copy_rows_prepare(struct device *device, const struct tensor *from, const struct tensor *to,
                               const struct shape *shape, int64_t to_columns, bool is_rounded, sm120_stream stream,
                               struct copy_rows *copy) {
    uint32_t index;
    const struct kernel_record plain = {.operation = "copy_rows",
                                        .element_bytes = (uint32_t)tensor_element_bytes(from->dtype)};
    const struct kernel_record rounded = {.operation = "copy_rows_rounded", .dtype = from->dtype};
    const struct kernel_record narrowed = {.operation = "narrow_rows"};
    sm120_status status = builtin_find(is_rounded ? &rounded : from->dtype != to->dtype ? &narrowed : &plain, &index);
    if (status != SM120_OK) {
        return status;
    }
    const struct kernel_record *const record = kernel_records + index;
    const int64_t groups = (shape->rows + record->rows - 1) / record->rows;
    const int64_t batches = from->batch_stride != 0 ? shape->batch : 1;
    const int64_t heads = from->head_stride != 0 ? shape->heads : 1;
    copy->values = (struct copy_rows_parameters){
        .from = from->address,
        .to = to->address,
        .from_batch_stride = from->batch_stride,
        .from_head_stride = from->head_stride,
        .from_row_stride = from->row_stride,
        .to_batch_stride = to->batch_stride,
        .to_head_stride = to->head_stride,
        .to_row_stride = to->row_stride,
        .heads = (uint32_t)heads,
        .rows = (uint32_t)shape->rows,
        .from_columns = (uint32_t)shape->head_dim,
        .to_columns = (uint32_t)to_columns,
    };
    const uint32_t grid = (uint32_t)(batches * heads);
    status = launch_of(&copy->pointers, ARGUMENTS(&copy->values), grid, record, stream, &copy->launch);
    copy->launch.grid[1] = (uint32_t)(groups < GROUPS_MAX ? groups : GROUPS_MAX);
    status = status == SM120_OK ? builtin_load(device, index, &copy->kernel) : status;
    return status == SM120_OK ? launch_check(copy->kernel, &copy->launch) : status;
}
