/* Copies of tensors that kernels cannot use in place. */
#include "ops/copy_rows.h"

#include <inttypes.h>

#include "runtime/builtin.h"
#include "runtime/error.h"

enum { GROUPS_MAX = 65535 }; /* limit of grid.y; CTAs loop over further rows */

sm120_status copy_rows_prepare(struct device *device, const struct tensor *from, const struct tensor *to,
                               const struct shape *shape, int64_t to_columns, sm120_stream stream,
                               struct copy_rows *copy) {
    uint32_t index;
    const struct kernel_record wanted = {.operation = "copy_rows", .element_bytes = from->dtype == SM120_F32 ? 4 : 2};
    sm120_status status = builtin_find(&wanted, &index);
    if (status != SM120_OK) {
        return status;
    }
    const struct kernel_record *const record = kernel_records + index;
    const int64_t groups = (shape->rows + record->rows - 1) / record->rows;
    copy->values = (struct copy_rows_parameters){
        .from = from->address,
        .to = to->address,
        .from_batch_stride = from->batch_stride,
        .from_head_stride = from->head_stride,
        .from_row_stride = from->row_stride,
        .to_batch_stride = to->batch_stride,
        .to_head_stride = to->head_stride,
        .to_row_stride = to->row_stride,
        .heads = (uint32_t)shape->heads,
        .rows = (uint32_t)shape->rows,
        .from_columns = (uint32_t)shape->head_dim,
        .to_columns = (uint32_t)to_columns,
    };
    const uint32_t grid = (uint32_t)(shape->batch * shape->heads);
    status = launch_of(&copy->pointers, ARGUMENTS(&copy->values), grid, record, stream, &copy->launch);
    copy->launch.grid[1] = (uint32_t)(groups < GROUPS_MAX ? groups : GROUPS_MAX);
    status = status == SM120_OK ? builtin_load(device, index, &copy->kernel) : status;
    return status == SM120_OK ? launch_check(copy->kernel, &copy->launch) : status;
}
