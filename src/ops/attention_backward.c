/* sm120_attention_backward: delta and zeros, then dK, dV and the sums of dQ, then dQ. */
#include <inttypes.h>
#include <string.h>

#include "ops/attention/attention.h"
#include "ops/copy_rows.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/launch.h"
#include "runtime/memory.h"

enum { FRAGMENT = 16 * 8 };     /* elements of an accumulator */
enum { ROWS_HEAD = 16 };        /* bytes behind bias and delta of a tile's rows */
enum { Q, K, V, DOUT, LOADED }; /* the tensors that the copy engine loads */
enum { DQ, DK, DV, RESULTS };

/* A call whose arguments were checked, but for addresses. */
struct backward {
    const sm120_attention_backward_args *args;
    sm120_attention_args forward;
    struct attention call; /* of `forward`; q, k and v are copies where those are loaded */
    struct tensor given[LOADED], loaded[LOADED], results[RESULTS];
    struct shape given_shape[LOADED], loaded_shape[LOADED], result_shape[RESULTS];
    struct copy_rows copies[LOADED];
    bool is_copied[LOADED];
    uint32_t main, delta, dq; /* kernel_records */
    int64_t q_tiles, kv_tiles;
    int64_t rows_at, sums_at, tile_bytes, workspace_bytes; /* in the workspace; sums of a tile */
};

static const struct precision precisions[] = {
    {SM120_BF16, SM120_BF16, 256, true, NULL},
    {SM120_F16, SM120_F16, 256, true, NULL},
};

/* The call of sm120_attention whose gradients are wanted. */
static sm120_attention_args forward_of(const sm120_attention_backward_args *args) {
    return (sm120_attention_args){
        .size = sizeof(sm120_attention_args),
        .precision = args->precision,
        .batch = args->batch,
        .heads = args->heads,
        .kv_heads = args->kv_heads,
        .q_rows = args->q_rows,
        .kv_rows = args->kv_rows,
        .head_dim = args->head_dim,
        .q = args->q,
        .k = args->k,
        .v = args->v,
        .o = args->o,
        .lse = args->lse,
        .scale = args->scale,
        .causal = args->causal,
        .stream = args->stream,
        .v_head_dim = args->v_head_dim,
        .window_left = args->window_left,
        .window_right = args->window_right,
        .window = args->window,
    };
}

/* Check dout and the results. */
static sm120_status check_tensors(struct backward *b) {
    const sm120_attention_backward_args *const args = b->args;
    const struct attention *const call = &b->call;
    const struct {
        const char *name;
        const sm120_tensor *given;
        const struct shape *shape;
        struct tensor *tensor;
        enum tensor_role role;
    } list[] = {
        {"dout", &args->dout, &call->o_shape, &b->given[DOUT], TENSOR_INPUT},
        {"dq", &args->dq, &call->q_shape, &b->results[DQ], TENSOR_OUTPUT},
        {"dk", &args->dk, &call->k_shape, &b->results[DK], TENSOR_OUTPUT},
        {"dv", &args->dv, &call->v_shape, &b->results[DV], TENSOR_OUTPUT},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; ++i) {
        const sm120_status status =
            tensor_check(list[i].name, list[i].given, list[i].shape, list[i].role, list[i].tensor);
        if (status != SM120_OK) {
            return status;
        }
        if (list[i].role == TENSOR_OUTPUT && args->accumulate != 0 && list[i].tensor->dtype != SM120_F32) {
            return fail(SM120_INVALID_ARGUMENT, "%s.dtype = 0x%08" PRIx32 "; with accumulate it is F32 (0x%08x)",
                        list[i].name, list[i].tensor->dtype, SM120_F32);
        }
    }
    if (b->given[DOUT].dtype != call->q.dtype) {
        return fail(SM120_INVALID_ARGUMENT, "dout.dtype = 0x%08" PRIx32 "; it is q.dtype = 0x%08" PRIx32,
                    b->given[DOUT].dtype, call->q.dtype);
    }
    return SM120_OK;
}

/* Check the arguments but for addresses. */
static sm120_status check_args(const sm120_attention_backward_args *args, struct backward *b) {
    const struct precision *precision = NULL;
    *b = (struct backward){.args = args, .forward = forward_of(args)};
    for (size_t i = 0; i < sizeof precisions / sizeof *precisions; ++i) {
        precision = precisions[i].code == args->precision ? precisions + i : precision;
    }
    if (precision == NULL) {
        return fail(SM120_UNSUPPORTED, "precision = 0x%" PRIx32 "; BF16 (0x%x) and F16 (0x%x) have a backward pass",
                    args->precision, SM120_BF16, SM120_F16);
    }
    if (args->accumulate > 1) {
        return fail(SM120_INVALID_ARGUMENT, "accumulate = %" PRIu32 "; it is 0 or 1", args->accumulate);
    }
    if (args->dlse != 0 && args->delta != 0) {
        return fail(SM120_INVALID_ARGUMENT,
                    "dlse = 0x%" PRIx64 " and delta = 0x%" PRIx64 "; delta contains dlse already, so give one of them",
                    args->dlse, args->delta);
    }
    sm120_status status = attention_check(&b->forward, precision, &b->call);
    status = status == SM120_OK ? check_tensors(b) : status;
    b->given[Q] = b->call.q;
    b->given[K] = b->call.k;
    b->given[V] = b->call.v;
    b->given_shape[Q] = b->result_shape[DQ] = b->call.q_shape;
    b->given_shape[K] = b->result_shape[DK] = b->call.k_shape;
    b->given_shape[V] = b->result_shape[DV] = b->call.v_shape;
    b->given_shape[DOUT] = b->call.o_shape;
    return status;
}

/* Choose the kernels: of those of the least head size, the one whose tiles fill the most shared memory. */
static sm120_status choose(const struct device *device, struct backward *b) {
    const int64_t width =
        b->call.q_shape.head_dim > b->call.v_shape.head_dim ? b->call.q_shape.head_dim : b->call.v_shape.head_dim;
    const struct kernel_record *best = NULL;
    for (uint32_t i = 0; i < kernel_record_count; ++i) {
        const struct kernel_record *const record = kernel_records + i;
        if (strcmp(record->operation, "attention_backward") == 0 && record->precision == b->args->precision &&
            record->head_dim >= width && record->shared <= (uint32_t)device->info.shared_bytes_per_block &&
            (best == NULL || record->head_dim < best->head_dim ||
             (record->head_dim == best->head_dim && record->shared > best->shared))) {
            best = record;
            b->main = i;
        }
    }
    if (best == NULL) {
        return fail(SM120_INTERNAL, "the library holds no kernel of attention_backward for head_dim = %" PRId64, width);
    }
    const struct kernel_record delta = {.operation = "attention_backward_delta", .precision = b->args->precision};
    const struct kernel_record dq = {.operation = "attention_backward_dq"};
    const sm120_status status = builtin_find(&delta, &b->delta);
    return status == SM120_OK ? builtin_find(&dq, &b->dq) : status;
}

/* Move `offset` behind an area of `count * bytes` bytes. False: the workspace would exceed 2^63 bytes. */
static bool place(int64_t *offset, int64_t count, int64_t bytes, int64_t *at) {
    int64_t end = 0;
    *at = *offset;
    const bool fits =
        multiply(count, bytes, &end) && add(end, *offset, &end) && add(end, WORKSPACE_ALIGNMENT - 1, &end);
    *offset = end / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    return fits;
}

/* Lay out the workspace: copies of tensors that the copy engine cannot load, bias and delta of each row, sums of dQ. */
static sm120_status lay_out(struct backward *b) {
    const struct kernel_record *const record = kernel_records + b->main;
    const sm120_attention_backward_args *const args = b->args;
    int64_t q_ctas = 0, kv_ctas = 0;
    for (int i = 0; i < LOADED; ++i) {
        b->loaded[i] = b->given[i];
        b->loaded_shape[i] = b->given_shape[i];
        b->is_copied[i] = !copy_rows_is_needless(&b->given[i], &b->given_shape[i]);
        if (b->is_copied[i]) {
            const sm120_status status =
                copy_rows_place(&b->given[i], &b->given_shape[i], &b->loaded[i], &b->workspace_bytes);
            if (status != SM120_OK) {
                return status;
            }
            b->loaded_shape[i].head_dim = copy_rows_width(b->given_shape[i].head_dim);
        }
    }
    b->q_tiles = (args->q_rows + record->q_rows - 1) / record->q_rows;
    b->kv_tiles = (args->kv_rows + record->kv_rows - 1) / record->kv_rows;
    b->tile_bytes = (int64_t)record->q_rows * record->head_dim * 4;
    if (!multiply(args->batch * args->heads, b->q_tiles, &q_ctas) || q_ctas > INT32_MAX ||
        !multiply(args->batch * args->kv_heads, b->kv_tiles, &kv_ctas) || kv_ctas > INT32_MAX) {
        return fail(SM120_UNSUPPORTED,
                    "batch * heads = %" PRId64 " of %" PRId64 " q tiles and %" PRId64
                    " kv tiles are too many CTAs; at most %d",
                    args->batch * args->heads, b->q_tiles, b->kv_tiles, INT32_MAX);
    }
    if (!place(&b->workspace_bytes, q_ctas, 8 * (int64_t)record->q_rows + ROWS_HEAD, &b->rows_at) ||
        !place(&b->workspace_bytes, q_ctas, b->tile_bytes, &b->sums_at)) {
        return fail(SM120_UNSUPPORTED, "q_rows = %" PRId64 "; the workspace exceeds 2^63 bytes", args->q_rows);
    }
    return SM120_OK;
}

/* ---- addresses ---- */

/* Check that a result shares no byte with an input or another result. */
static sm120_status check_results(const struct backward *b, const struct tensor *arrays, size_t array_count) {
    for (int r = 0; r < RESULTS; ++r) {
        const struct tensor *const out = &b->results[r];
        for (int i = 0; i < LOADED + 1 + r; ++i) {
            const struct tensor *const in = i < LOADED    ? &b->given[i]
                                            : i == LOADED ? &b->call.o
                                                          : &b->results[i - LOADED - 1];
            const struct shape *const shape = i < LOADED    ? &b->given_shape[i]
                                              : i == LOADED ? &b->call.o_shape
                                                            : &b->result_shape[i - LOADED - 1];
            if (tensor_meets(in, shape, out, &b->result_shape[r])) {
                return fail(SM120_INVALID_ARGUMENT,
                            "%s (0x%" PRIx64 ", %" PRId64 " bytes) and %s (0x%" PRIx64 ", %" PRId64 " bytes) overlap",
                            out->name, out->address, out->bytes, in->name, in->address, in->bytes);
            }
        }
        for (size_t i = 0; i < array_count; ++i) {
            const sm120_status status = arrays[i].address == 0
                                            ? SM120_OK
                                            : check_apart(out->name, out->address, out->bytes, arrays[i].name,
                                                          arrays[i].address, arrays[i].bytes);
            if (status != SM120_OK) {
                return status;
            }
        }
    }
    return SM120_OK;
}

/* Check all addresses: those of the call, and that the workspace is apart from them. */
static sm120_status check_places(struct device *device, const struct backward *b, sm120_address workspace,
                                 size_t workspace_bytes) {
    const sm120_attention_backward_args *const args = b->args;
    const int64_t bytes = b->call.lse_bytes;
    const struct tensor arrays[] = {{"lse", args->lse, SM120_F32, 0, 0, 0, bytes},
                                    {"dlse", args->dlse, SM120_F32, 0, 0, 0, bytes},
                                    {"delta", args->delta, SM120_F32, 0, 0, 0, bytes}};
    const struct tensor *const tensors[] = {&b->given[Q], &b->given[K],    &b->given[V],    &b->given[DOUT],
                                            &b->call.o,   &b->results[DQ], &b->results[DK], &b->results[DV],
                                            &arrays[0],   &arrays[1],      &arrays[2]};
    const size_t array_count = sizeof arrays / sizeof *arrays, count = sizeof tensors / sizeof *tensors;
    sm120_status status = check_address("lse", args->lse, 4);
    for (size_t i = 0; i < count - array_count && status == SM120_OK; ++i) {
        status = tensor_check_address(device, tensors[i]);
    }
    for (size_t i = 0; i < array_count && status == SM120_OK; ++i) {
        if (arrays[i].address != 0) {
            status = check_address(arrays[i].name, arrays[i].address, 4);
            status =
                status == SM120_OK ? memory_check(device, arrays[i].address, (uint64_t)bytes, arrays[i].name) : status;
        }
    }
    status = status == SM120_OK ? check_results(b, arrays, array_count) : status;
    status = status == SM120_OK ? check_address("workspace", workspace, WORKSPACE_ALIGNMENT) : status;
    if (status == SM120_OK && workspace_bytes < (size_t)b->workspace_bytes) {
        status = fail(SM120_WORKSPACE_TOO_SMALL, "*workspace_bytes = %zu; this call needs %" PRId64, workspace_bytes,
                      b->workspace_bytes);
    }
    if (status == SM120_OK) {
        status = memory_check(device, workspace, (uint64_t)b->workspace_bytes, "workspace");
    }
    for (size_t i = 0; i < count && status == SM120_OK; ++i) {
        if (tensors[i]->address != 0) {
            status = check_apart("workspace", workspace, b->workspace_bytes, tensors[i]->name, tensors[i]->address,
                                 tensors[i]->bytes);
        }
    }
    return status;
}

/* ---- launches ---- */

/* A kernel, its launch and what that points to. Not to be copied once filled. */
struct step {
    struct kernel *kernel;
    struct launch launch;
    struct argument_pointers pointers;
};

/* Load a kernel, and check its launch. */
static sm120_status prepare(struct device *device, const struct backward *b, uint32_t index, struct arguments arguments,
                            int64_t grid, struct step *step) {
    sm120_status status =
        launch_of(&step->pointers, arguments, (uint32_t)grid, kernel_records + index, b->args->stream, &step->launch);
    status = status == SM120_OK ? builtin_load(device, index, &step->kernel) : status;
    return status == SM120_OK ? launch_check(step->kernel, &step->launch) : status;
}

/* The parameters of the kernel of delta. */
static struct attention_backward_delta_parameters delta_of(const struct backward *b, sm120_address workspace) {
    const struct tensor *const o = &b->call.o, *const dout = &b->loaded[DOUT];
    const bool is_wide = o->dtype == dout->dtype && copy_rows_is_needless(o, &b->call.o_shape);
    return (struct attention_backward_delta_parameters){
        .o = o->address,
        .dout = dout->address,
        .lse = b->args->lse,
        .dlse = b->args->dlse,
        .delta = b->args->delta,
        .rows = workspace + (uint64_t)b->rows_at,
        .sums = workspace + (uint64_t)b->sums_at,
        .o_batch_stride = o->batch_stride,
        .o_head_stride = o->head_stride,
        .o_row_stride = o->row_stride,
        .dout_batch_stride = dout->batch_stride,
        .dout_head_stride = dout->head_stride,
        .dout_row_stride = dout->row_stride,
        .heads = (uint32_t)b->args->heads,
        .q_rows = (uint32_t)b->args->q_rows,
        .q_tiles = (uint32_t)b->q_tiles,
        .tile_rows = kernel_records[b->main].q_rows,
        .tile_bytes = (uint32_t)b->tile_bytes,
        .head_dim = (uint32_t)b->call.o_shape.head_dim,
        .o_type = attention_type(o->dtype),
        .is_wide = is_wide,
    };
}

/* Whether four neighbouring elements of a 16-bit result can be stored at once. */
static bool has_quads(const struct tensor *x, const struct shape *shape) {
    return x->dtype != SM120_F32 && shape->head_dim % 4 == 0 &&
           ((x->address | (uint64_t)x->batch_stride | (uint64_t)x->head_stride | (uint64_t)x->row_stride) & 7) == 0;
}

/* The parameters of the main kernel. */
static sm120_status main_of(const struct device *device, const struct backward *b, sm120_address workspace,
                            struct attention_backward_16bit_parameters *a) {
    const sm120_attention_backward_args *const args = b->args;
    const struct kernel_record *const record = kernel_records + b->main;
    const struct tensor *const dk = &b->results[DK], *const dv = &b->results[DV];
    const int64_t heads = record->group_rows / args->kv_rows;
    const bool takes_turns = attention_reach(&b->forward).has_right;
    *a = (struct attention_backward_16bit_parameters){
        .rows = workspace + (uint64_t)b->rows_at,
        .dq = workspace + (uint64_t)b->sums_at,
        .dk = dk->address,
        .dv = dv->address,
        .dk_batch_stride = dk->batch_stride,
        .dk_head_stride = dk->head_stride,
        .dk_row_stride = dk->row_stride,
        .dv_batch_stride = dv->batch_stride,
        .dv_head_stride = dv->head_stride,
        .dv_row_stride = dv->row_stride,
        .batches = (uint32_t)args->batch,
        .heads = (uint32_t)args->heads,
        .kv_heads = (uint32_t)args->kv_heads,
        .q_rows = (uint32_t)args->q_rows,
        .kv_rows = (uint32_t)args->kv_rows,
        .head_dim = (uint32_t)b->call.q_shape.head_dim,
        .v_head_dim = (uint32_t)b->call.v_shape.head_dim,
        .dk_type = attention_type(dk->dtype),
        .dv_type = attention_type(dv->dtype),
        .accumulate = args->accumulate,
        .quads = (has_quads(dk, &b->result_shape[DK]) ? 1 : 0) | (has_quads(dv, &b->result_shape[DV]) ? 2 : 0),
        .group = !takes_turns || heads < 1     ? 1
                 : heads < record->group_heads ? (uint32_t)heads
                                               : record->group_heads,
        .scale = args->scale,
        .scale_log2 = (float)((double)args->scale * LOG2_E),
        .lower = attention_lower(&b->forward),
        .upper = attention_upper(&b->forward),
    };
    CUtensorMap *const maps[LOADED] = {&a->q_map, &a->k_map, &a->v_map, &a->dout_map};
    for (int i = 0; i < LOADED; ++i) {
        uint32_t broadcast = 0;
        const sm120_status status =
            attention_describe(device, &b->loaded[i], &b->loaded_shape[i],
                               i == Q || i == DOUT ? record->q_rows : record->kv_rows, maps[i], &broadcast);
        if (status != SM120_OK) {
            return status;
        }
        a->broadcast |= broadcast << 2 * i;
    }
    return SM120_OK;
}

/* The parameters of the kernel that writes dq. */
static struct attention_backward_dq_parameters dq_of(const struct backward *b, sm120_address workspace) {
    const struct kernel_record *const record = kernel_records + b->main;
    const struct tensor *const dq = &b->results[DQ];
    const uint32_t warps = record->threads / 32;
    return (struct attention_backward_dq_parameters){
        .sums = workspace + (uint64_t)b->sums_at,
        .dq = dq->address,
        .dq_batch_stride = dq->batch_stride,
        .dq_head_stride = dq->head_stride,
        .dq_row_stride = dq->row_stride,
        .heads = (uint32_t)b->args->heads,
        .q_rows = (uint32_t)b->args->q_rows,
        .q_tiles = (uint32_t)b->q_tiles,
        .tile_rows = record->q_rows,
        .warps = warps,
        .row_warps = record->q_warp_rows,
        .fragments = record->q_rows * record->head_dim / (warps * FRAGMENT),
        .columns = record->head_dim / 8 * record->q_warp_rows / warps,
        .head_dim = (uint32_t)b->call.q_shape.head_dim,
        .dq_type = attention_type(dq->dtype),
        .accumulate = b->args->accumulate,
        .quads = has_quads(dq, &b->result_shape[DQ]),
        .scale = b->args->scale,
    };
}

/* Give the copies their addresses, and check their launches. */
static sm120_status prepare_copies(struct device *device, struct backward *b, sm120_address workspace) {
    sm120_status status = SM120_OK;
    for (int i = 0; i < LOADED && status == SM120_OK; ++i) {
        if (b->is_copied[i]) {
            b->loaded[i].address += workspace;
            status = copy_rows_prepare(device, &b->given[i], &b->loaded[i], &b->given_shape[i],
                                       b->loaded_shape[i].head_dim, b->args->stream, &b->copies[i]);
        }
    }
    return status;
}

/* Load the kernels, so that the call itself can be captured in a graph. */
static sm120_status load(struct device *device, struct backward *b) {
    const uint32_t needed[] = {b->delta, b->main, b->dq};
    sm120_status status = SM120_OK;
    for (size_t i = 0; i < sizeof needed / sizeof *needed && status == SM120_OK; ++i) {
        struct kernel *kernel = NULL;
        status = builtin_load(device, needed[i], &kernel);
    }
    return status == SM120_OK ? prepare_copies(device, b, 0) : status;
}

/* Check all launches, then start them. */
static sm120_status run(struct device *device, struct backward *b, sm120_address workspace) {
    const int64_t q_heads = b->args->batch * b->args->heads, kv_heads = b->args->batch * b->args->kv_heads;
    struct attention_backward_16bit_parameters main_values;
    struct step delta, main, dq;
    sm120_status status = prepare_copies(device, b, workspace);
    const struct attention_backward_delta_parameters delta_values = delta_of(b, workspace);
    const struct attention_backward_dq_parameters dq_values = dq_of(b, workspace);
    status = status == SM120_OK ? main_of(device, b, workspace, &main_values) : status;
    if (status == SM120_OK) {
        status = prepare(device, b, b->delta, ARGUMENTS(&delta_values), q_heads * b->q_tiles, &delta);
    }
    if (status == SM120_OK) {
        status = prepare(device, b, b->main, ARGUMENTS(&main_values), kv_heads * b->kv_tiles, &main);
    }
    if (status == SM120_OK) {
        status = prepare(device, b, b->dq, ARGUMENTS(&dq_values), q_heads * b->q_tiles, &dq);
    }
    for (int i = 0; i < LOADED && status == SM120_OK; ++i) {
        status = b->is_copied[i] ? launch_start(b->copies[i].kernel, &b->copies[i].launch) : status;
    }
    status = status == SM120_OK ? launch_start(delta.kernel, &delta.launch) : status;
    status = status == SM120_OK ? launch_start(main.kernel, &main.launch) : status;
    return status == SM120_OK ? launch_start(dq.kernel, &dq.launch) : status;
}

sm120_status sm120_attention_backward(sm120_device *handle, const sm120_attention_backward_args *args,
                                      sm120_address workspace, size_t *workspace_bytes) {
    struct device *device;
    struct backward backward;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(args, sizeof *args, "args", "sm120_attention_backward_args");
    status = status == SM120_OK ? check_args(args, &backward) : status;
    status = status == SM120_OK ? check_pointer(workspace_bytes, "workspace_bytes") : status;
    status = status == SM120_OK ? choose(device, &backward) : status;
    status = status == SM120_OK ? lay_out(&backward) : status;
    if (status == SM120_OK && workspace == 0) {
        *workspace_bytes = (size_t)backward.workspace_bytes;
        status = load(device, &backward);
    } else if (status == SM120_OK) {
        status = check_places(device, &backward, workspace, *workspace_bytes);
        status = status == SM120_OK ? run(device, &backward, workspace) : status;
    }
    return device_leave(device, status);
}
