/* sm120_merge_states, and the launch with which sm120_attention_with_kv_cache adds up its splits. */
#include "ops/merge_states.h"

#include <inttypes.h>

#include "ops/attention/attention.h"
#include "ops/resident.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/places.h"

enum { GRID_MAX = 65535 }; /* of the dimensions y and z of a grid */

/* Find the kernel. The bits do not depend on it. Where the chip has room for all rows at once, a CTA for each row waits
 * for memory once for 64 states, and a warp once for 8. */
static sm120_status find_kernel(const struct device *device, const struct states *states, uint32_t *index) {
    struct kernel_record wanted = {.operation = "merge_states", .dtype = states->outs.dtype, .config = "w8"};
    const struct shape *const shape = &states->shape;
    const int64_t rows = shape->batch * shape->heads * shape->rows;
    const sm120_status status = builtin_find(&wanted, index);
    if (status != SM120_OK) {
        return status;
    }
    const struct kernel_record *const record = kernel_records + *index;
    const int64_t room = device->info.multiprocessors * resident_ctas(device, record, record->shared);
    if (states->states > 2 && rows <= room) {
        return SM120_OK;
    }
    wanted.config = "w1";
    return builtin_find(&wanted, index);
}

sm120_status merge_prepare(struct device *device, const struct states *states, sm120_stream stream,
                           struct merge_launch *merge) {
    const struct shape *const shape = &states->shape;
    const int64_t lse_head_stride = 4 * shape->rows, lse_batch_stride = lse_head_stride * shape->heads;
    uint32_t index;
    sm120_status status = find_kernel(device, states, &index);
    if (status != SM120_OK) {
        return status;
    }
    const struct kernel_record *const record = kernel_records + index;
    merge->values = (struct merge_states_parameters){
        .from = states->outs.address,
        .from_lse = states->lses,
        .to = states->o.address,
        .lse = states->lse,
        .sinks = states->sinks,
        .from_state_stride = states->state_stride,
        .from_batch_stride = states->outs.batch_stride,
        .from_head_stride = states->outs.head_stride,
        .from_row_stride = states->outs.row_stride,
        .from_lse_state_stride = lse_batch_stride * shape->batch,
        .from_lse_batch_stride = lse_batch_stride,
        .from_lse_head_stride = lse_head_stride,
        .to_batch_stride = states->o.batch_stride,
        .to_head_stride = states->o.head_stride,
        .to_row_stride = states->o.row_stride,
        .lse_batch_stride = lse_batch_stride,
        .lse_head_stride = lse_head_stride,
        .states = (uint32_t)states->states,
        .rows = (uint32_t)shape->rows,
        .head_dim = (uint32_t)shape->head_dim,
        .o_type = attention_type(states->o.dtype),
    };
    const int64_t groups = (shape->rows + record->rows - 1) / record->rows;
    status = launch_of(&merge->pointers, ARGUMENTS(&merge->values), (uint32_t)groups, record, stream, &merge->launch);
    merge->launch.grid[1] = (uint32_t)shape->heads;
    merge->launch.grid[2] = (uint32_t)shape->batch;
    merge->launch.is_early = true;
    status = status == SM120_OK ? builtin_load(device, index, &merge->kernel) : status;
    return status == SM120_OK ? launch_check(merge->kernel, &merge->launch) : status;
}

/* ---- sm120_merge_states ---- */

/* Check what needs no device. */
static sm120_status check_args(const sm120_merge_states_args *args, struct states *states, int64_t *lse_bytes) {
    const struct shape shape = {args->batch, args->heads, args->rows, args->head_dim};
    struct shape all = shape;
    if (args->reserved != 0) {
        return fail(SM120_INVALID_ARGUMENT, "reserved = %" PRIu32 "; it must be 0", args->reserved);
    }
    sm120_status status = check_size("states", args->states, INT32_MAX);
    status = status == SM120_OK ? check_size("batch", args->batch, GRID_MAX) : status;
    status = status == SM120_OK ? check_size("heads", args->heads, GRID_MAX) : status;
    status = status == SM120_OK ? check_shape(&shape, "rows", INT32_MAX) : status;
    all.batch *= args->states;
    status = status == SM120_OK ? check_shape(&all, "rows", INT32_MAX) : status;
    status = status == SM120_OK ? tensor_check("outs", &args->outs, &all, TENSOR_INPUT, &states->outs) : status;
    status = status == SM120_OK ? tensor_check("o", &args->o, &shape, TENSOR_OUTPUT, &states->o) : status;
    if (status == SM120_OK && !multiply(all.batch * all.heads, 4 * args->rows, lse_bytes)) {
        status = fail(SM120_UNSUPPORTED,
                      "lses of states * batch * heads * rows = %" PRId64 " * %" PRId64 " does not fit in 63 bits",
                      all.batch * all.heads, args->rows);
    }
    states->shape = shape;
    states->states = args->states;
    states->state_stride = states->outs.batch_stride * args->batch;
    states->lses = args->lses;
    states->lse = args->lse;
    states->sinks = args->sinks;
    return status;
}

/* Check addresses. */
static sm120_status check_places(struct device *device, const sm120_merge_states_args *args,
                                 const struct states *states, int64_t lse_bytes) {
    const struct place places[] = {
        place_tensor(&states->outs, NULL, PLACE_READ),
        place_array("lses", args->lses, lse_bytes, 4, PLACE_READ),
        place_array("sinks", args->sinks, 4 * args->heads, 4, PLACE_READ),
        place_tensor(&states->o, NULL, PLACE_WRITTEN),
        place_array("lse", args->lse, lse_bytes / args->states, 4, PLACE_WRITTEN),
    };
    const sm120_status status = check_address("lses", args->lses, 4);
    return status == SM120_OK ? places_check(device, places, sizeof places / sizeof *places) : status;
}

sm120_status sm120_merge_states(sm120_device *handle, const sm120_merge_states_args *args) {
    struct device *device;
    struct states states = {0};
    struct merge_launch merge;
    int64_t lse_bytes = 0;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(args, sizeof *args, "args", "sm120_merge_states_args");
    status = status == SM120_OK ? check_args(args, &states, &lse_bytes) : status;
    status = status == SM120_OK ? check_places(device, args, &states, lse_bytes) : status;
    status = status == SM120_OK ? merge_prepare(device, &states, args->stream, &merge) : status;
    status = status == SM120_OK ? launch_start(merge.kernel, &merge.launch) : status;
    return device_leave(device, status);
}
