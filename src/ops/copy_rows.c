/* Copies of tensors that kernels cannot load from, or store to, as they lie. */
#include "ops/copy_rows.h"

#include <inttypes.h>

#include "runtime/builtin.h"
#include "runtime/error.h"

enum { GROUPS_MAX = 65535 }; /* grid.y; a CTA goes on with further rows */

sm120_status copy_rows_prepare(struct device *device, const struct tensor *from, const struct tensor *to,
                               const struct shape *shape, int64_t to_columns, sm120_stream stream,
                               struct copy_rows *copy) {
    uint32_t index;
    sm120_status status = builtin_find("copy_rows", from->dtype == SM120_F32 ? "b32" : "b16", &index);
    if (status != SM120_OK) {
        return status;
    }
    const struct kernel_entry *const entry = kernel_entries + index;
    const int64_t groups = (shape->rows + entry->rows - 1) / entry->rows;
    copy->values = (struct copy_rows_arguments){
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
    struct copy_rows_arguments *const a = &copy->values;
    const struct argument list[] = {
        ARGUMENT(a->from),
        ARGUMENT(a->to),
        ARGUMENT(a->from_batch_stride),
        ARGUMENT(a->from_head_stride),
        ARGUMENT(a->from_row_stride),
        ARGUMENT(a->to_batch_stride),
        ARGUMENT(a->to_head_stride),
        ARGUMENT(a->to_row_stride),
        ARGUMENT(a->heads),
        ARGUMENT(a->rows),
        ARGUMENT(a->from_columns),
        ARGUMENT(a->to_columns),
    };
    const uint32_t grid = (uint32_t)(shape->batch * shape->heads);
    copy->launch = launch_of(&copy->arguments, list, sizeof list / sizeof list[0], grid, entry, stream);
    copy->launch.grid[1] = (uint32_t)(groups < GROUPS_MAX ? groups : GROUPS_MAX);
    status = builtin_load(device, index, &copy->kernel);
    return status == SM120_OK ? launch_check(copy->kernel, &copy->launch) : status;
}
