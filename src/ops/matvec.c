/* sm120_matvec: products of quantised weights and vectors. */
#include <inttypes.h>
#include <stdio.h>

#include "generated/constants.h"
#include "ops/copy_rows.h"
#include "ops/resident.h"
#include "ops/weights.h"
#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"

enum {
    GRID_MAX = 65535,         /* of the dimensions y and z of a grid */
    VECTOR_TILES_MAX = 65534, /* an even number: tiles of 16 vectors are two of 8 */
    /* Shared memory of a CTA that holds its vector: SM120's limit on every device, so that all use one kernel. */
    SHARED_MAX = 101376
};

/* A call whose arguments were checked, and its kernel. */
struct matvec {
    struct weights weights; /* one matrix */
    int64_t weight_bytes;   /* of all experts, in the call's layout */
    int64_t results;        /* vectors of y */
    struct tensor x, y;
    const struct form *form;
    bool is_packed, has_residual;
    const struct kernel_record *record;
    uint32_t index;          /* of the record */
    uint32_t shared;         /* bytes of a CTA */
    uint32_t vector_tiles;   /* of 8 or 16 vectors; 0: the kernel of one vector, which needs no workspace */
    uint32_t record_tiles;   /* of 8 vectors, in the workspace */
    int64_t workspace_bytes; /* x in its form */
};

/* The forms of x, by `activations`. */
static const struct form {
    const char *name;      /* of SM120_ACTIVATIONS_... */
    const char *quantizer; /* configuration of the kernel that writes x to the workspace */
    const char *width;     /* of the kernel that multiplies 8 vectors */
    uint32_t record_bytes; /* of 8 vectors and 256 columns */
    uint32_t type;         /* of the only weights that have it, by one kernel for every number of vectors; 0: all */
    const char *type_name;
} forms[] = {
    [SM120_ACTIVATIONS_INT8] = {"INT8", "int8", "8", MATVEC_RECORD_BYTES, 0, NULL},
    [SM120_ACTIVATIONS_INT16] = {"INT16", "int8", "8", MATVEC_RECORD_BYTES, 0, NULL},
    [SM120_ACTIVATIONS_MXFP8X2] = {"MXFP8X2", "mxfp8x2", "mxfp8x2", MATVEC_RECORD_MX_BYTES, SM120_GGUF_MXFP4, "MXFP4"},
    [SM120_ACTIVATIONS_NVFP4X3] = {"NVFP4X3", "nvfp4x3", "nvfp4x3", MATVEC_RECORD_NVFP4_BYTES, SM120_GGUF_NVFP4,
                                   "NVFP4"},
};

/* Find the kernel of the call's weights of a width: "1", "8" or "16" vectors, or a block-scaled form of 8. */
static sm120_status find_kernel(struct matvec *call, const char *width) {
    char config[24];
    snprintf(config, sizeof config, "%s_%s", call->is_packed ? "packed" : "native", width);
    const struct kernel_record wanted = {.operation = "matvec", .layout = call->weights.type, .config = config};
    sm120_status status = builtin_find(&wanted, &call->index);
    if (status == SM120_OK) {
        call->record = kernel_records + call->index;
        call->shared = call->record->shared;
    }
    return status;
}

/* Choose the kernel of one vector, which keeps x in shared memory; `is_chosen` says whether x is short enough. */
static sm120_status choose_single(struct matvec *call, bool has_experts, bool *is_chosen) {
    sm120_status status = find_kernel(call, "1");
    const int64_t shared = (int64_t)call->shared + (int64_t)call->weights.spans * MATVEC_X_SPAN;
    *is_chosen = status == SM120_OK && shared <= SHARED_MAX;
    if (*is_chosen) {
        call->shared = (uint32_t)shared;
    } else if (status == SM120_OK && has_experts) {
        status = fail(SM120_UNSUPPORTED, "columns = %u; with experts of this type and layout at most %d are supported",
                      call->weights.columns,
                      (SHARED_MAX - (int32_t)call->shared) / MATVEC_X_SPAN * (int32_t)call->record->columns);
    }
    return status;
}

/* Choose the kernel. If one vector is too long for its kernel, that of 8 vectors computes it, without experts. Packed
 * weights have a kernel of 16 vectors too, but those whose kernel of 8 vectors has 32 rows. */
static sm120_status choose(struct matvec *call, int64_t vectors, bool has_experts) {
    sm120_status status = SM120_OK;
    bool is_chosen = false;
    if ((vectors == 1 && !call->has_residual && call->form->type == 0) || has_experts) {
        status = choose_single(call, has_experts, &is_chosen);
    }
    if (status != SM120_OK || is_chosen) {
        return status;
    }
    status = find_kernel(call, call->form->width);
    if (status != SM120_OK) {
        return status;
    }
    const int64_t of_record = call->has_residual ? MATVEC_TOKENS / 2 : MATVEC_TOKENS;
    const bool is_wide =
        call->is_packed && vectors > of_record && call->form->type == 0 && call->record->rows == WEIGHTS_TILE_ROWS;
    const int64_t records = is_wide ? 2 : 1; /* of a tile and a span */
    const int64_t tiles = (vectors + records * of_record - 1) / (records * of_record);
    if (tiles * records * call->weights.spans > INT32_MAX) {
        return fail(SM120_UNSUPPORTED,
                    "vectors = %" PRId64 " of %u columns are too many; at most %" PRId64 " are supported", vectors,
                    call->weights.columns, (int64_t)INT32_MAX / (records * call->weights.spans) * records * of_record);
    }
    call->vector_tiles = (uint32_t)tiles;
    call->record_tiles = (uint32_t)(tiles * records);
    call->workspace_bytes = tiles * records * call->weights.spans * call->form->record_bytes;
    return is_wide ? find_kernel(call, "16") : SM120_OK;
}

/* Check the experts, and find the bytes of all matrices and the vectors of y. */
static sm120_status check_experts(const sm120_matvec_args *args, struct matvec *call) {
    const bool has_experts = args->experts != 0;
    struct weights whole = call->weights;
    if (!has_experts && (args->expert_count != 0 || args->chosen != 0)) {
        return fail(SM120_INVALID_ARGUMENT,
                    "experts = 0 with expert_count = %" PRId64 " and chosen = %" PRId64 "; both must be 0",
                    args->expert_count, args->chosen);
    }
    sm120_status status = SM120_OK;
    if (has_experts) {
        status = check_size("expert_count", args->expert_count, INT32_MAX);
        status = status == SM120_OK ? check_size("chosen", args->chosen, GRID_MAX) : status;
        status = status == SM120_OK ? check_size("vectors", args->vectors, GRID_MAX) : status;
        if (status == SM120_OK && call->is_packed && args->rows % call->record->rows != 0) {
            status = fail(SM120_UNSUPPORTED, "rows = %" PRId64 "; with packed experts it must be a multiple of %u",
                          args->rows, call->record->rows);
        }
        if (status == SM120_OK && args->rows > INT32_MAX / args->expert_count) {
            status = fail(SM120_UNSUPPORTED, "rows * expert_count = %" PRId64 " * %" PRId64 " exceeds 2^31", args->rows,
                          args->expert_count);
        }
        status = status == SM120_OK ? weights_check(args->type, args->rows * args->expert_count, args->columns, &whole)
                                    : status;
    }
    call->weight_bytes = call->is_packed ? whole.packed_bytes : whole.bytes;
    call->results = has_experts ? args->vectors * args->chosen : args->vectors;
    return status;
}

/* Check what needs no device. */
static sm120_status check_args(const sm120_matvec_args *args, struct matvec *call) {
    *call = (struct matvec){.is_packed = args->layout == SM120_WEIGHTS_PACKED,
                            .has_residual = args->activations == SM120_ACTIVATIONS_INT16};
    if (args->layout > SM120_WEIGHTS_PACKED) {
        return fail(SM120_INVALID_ARGUMENT,
                    "layout = %" PRIu32 "; it must be WEIGHTS_NATIVE (%d) or WEIGHTS_PACKED (%d)", args->layout,
                    SM120_WEIGHTS_NATIVE, SM120_WEIGHTS_PACKED);
    }
    if (args->reserved != 0) {
        return fail(SM120_INVALID_ARGUMENT, "reserved = %" PRIu32 "; it must be 0", args->reserved);
    }
    if (args->activations >= sizeof forms / sizeof *forms) {
        return fail(SM120_INVALID_ARGUMENT,
                    "activations = %" PRIu32
                    "; it must be ACTIVATIONS_INT8 (%d), _INT16 (%d), _MXFP8X2 (%d) or _NVFP4X3 (%d)",
                    args->activations, SM120_ACTIVATIONS_INT8, SM120_ACTIVATIONS_INT16, SM120_ACTIVATIONS_MXFP8X2,
                    SM120_ACTIVATIONS_NVFP4X3);
    }
    call->form = &forms[args->activations];
    if (args->activations != SM120_ACTIVATIONS_INT8 && args->experts != 0) {
        return fail(SM120_UNSUPPORTED, "activations = ACTIVATIONS_%s; with experts it must be ACTIVATIONS_INT8 (%d)",
                    call->form->name, SM120_ACTIVATIONS_INT8);
    }
    if (call->form->type != 0 && args->type != call->form->type) {
        return fail(SM120_UNSUPPORTED,
                    "activations = ACTIVATIONS_%s with type = %" PRIu32 "; its type must be %s (%" PRIu32 ")",
                    call->form->name, args->type, call->form->type_name, call->form->type);
    }
    if (args->activation > (args->up != 0 ? SM120_GELU : 0)) {
        return fail(SM120_INVALID_ARGUMENT,
                    "activation = %" PRIu32 "; it must be SILU (%d) or GELU (%d), and 0 without up", args->activation,
                    SM120_SILU, SM120_GELU);
    }
    if (args->up != 0 && args->bias != 0) {
        return fail(SM120_INVALID_ARGUMENT, "bias = 0x%" PRIx64 "; with up it must be 0", args->bias);
    }
    if (args->up == 0 && args->up_bytes != 0) {
        return fail(SM120_INVALID_ARGUMENT, "up_bytes = %" PRId64 "; without up it must be 0", args->up_bytes);
    }
    sm120_status status = weights_check(args->type, args->rows, args->columns, &call->weights);
    const int64_t of_tile = call->has_residual ? MATVEC_TOKENS / 2 : MATVEC_TOKENS;
    status = status == SM120_OK ? check_size("vectors", args->vectors, VECTOR_TILES_MAX * of_tile) : status;
    status = status == SM120_OK ? choose(call, args->vectors, args->experts != 0) : status;
    status = status == SM120_OK ? check_experts(args, call) : status;
    if (status == SM120_OK) {
        const struct shape x = {1, 1, args->vectors, args->columns}, y = {1, 1, call->results, args->rows};
        status = tensor_check("x", &args->x, &x, TENSOR_INPUT, &call->x);
        status = status == SM120_OK ? tensor_check("y", &args->y, &y, TENSOR_OUTPUT, &call->y) : status;
    }
    return status;
}

/* Check addresses. */
static sm120_status check_places(struct device *device, const sm120_matvec_args *args, const struct matvec *call,
                                 const struct workspace *workspace) {
    const struct place places[] = {
        place_array("weights", args->weights, call->weight_bytes, WEIGHTS_ALIGNMENT, PLACE_READ),
        place_array("up", args->up, call->weight_bytes, WEIGHTS_ALIGNMENT, PLACE_READ),
        place_tensor(&call->x, NULL, PLACE_READ),
        place_array("experts", args->experts, 4 * call->results, 4, PLACE_READ),
        place_array("bias", args->bias, 4 * args->rows, 4, PLACE_READ),
        place_tensor(&call->y, NULL, PLACE_WRITTEN),
        place_workspace(workspace, call->workspace_bytes),
    };
    sm120_status status =
        weights_check_buffer(device, "weights", args->weights, "weight_bytes", args->weight_bytes, call->weight_bytes);
    if (status == SM120_OK && args->up != 0) {
        status = weights_check_buffer(device, "up", args->up, "up_bytes", args->up_bytes, call->weight_bytes);
    }
    status = status == SM120_OK ? tensor_check_alignment(&call->x, &args->x) : status;
    return status == SM120_OK ? places_check(device, places, sizeof places / sizeof *places) : status;
}

/* The tiles of rows of a kernel. */
static uint32_t row_tiles(const struct matvec *call) {
    return (call->weights.rows + call->record->rows - 1) / call->record->rows;
}

static uint64_t ceil_div(uint64_t x, uint64_t y) {
    return (x + y - 1) / y;
}

/* The CTAs of a launch along x. Every SM gets as many tiles as another, or one less, in as few rounds as its CTAs
 * allow, and no more CTAs than these rounds need: each of one vector quantizes x. All tiles of vectors are resident at
 * once, so that they read the weights at about the same time, and only the first from DRAM. */
static uint32_t grid_of(const struct device *device, const struct matvec *call) {
    const uint64_t sms = (uint64_t)device->info.multiprocessors;
    const uint64_t others = call->vector_tiles != 0 ? call->vector_tiles : (uint64_t)call->results;
    const uint64_t tiles = row_tiles(call), of_sm = ceil_div(tiles * others, sms);
    const uint64_t rounds = ceil_div(of_sm, (uint64_t)resident_ctas(device, call->record, call->shared));
    const uint64_t ctas = ceil_div(of_sm, rounds) * sms / others;
    return (uint32_t)(ctas == 0 ? 1 : ctas < tiles ? ctas : tiles);
}

/* Check and start a launch whose CTAs along x are set. */
static sm120_status start(struct device *device, uint32_t index, struct launch *launch, uint32_t grid_y,
                          uint32_t grid_z) {
    struct kernel *kernel = NULL;
    launch->grid[1] = grid_y;
    launch->grid[2] = grid_z;
    sm120_status status = builtin_load(device, index, &kernel);
    status = status == SM120_OK ? launch_check(kernel, launch) : status;
    return status == SM120_OK ? launch_start(kernel, launch) : status;
}

/* Find the kernel that writes x to the workspace. */
static sm120_status find_quantizer(const struct matvec *call, uint32_t *index) {
    const struct kernel_record wanted = {.operation = "matvec_activations", .config = call->form->quantizer};
    return builtin_find(&wanted, index);
}

/* Write x in its form to the workspace. */
static sm120_status quantize(struct device *device, const struct matvec *call, sm120_address workspace, int64_t vectors,
                             sm120_stream stream) {
    uint32_t index;
    sm120_status status = find_quantizer(call, &index);
    const struct matvec_activations_parameters int8 = {
        .x = call->x.address,
        .records = workspace,
        .x_row_stride = call->x.row_stride,
        .vectors = (uint32_t)vectors,
        .columns = call->weights.columns,
        .x_type = weights_result_type(call->x.dtype),
        .residual = call->has_residual,
        .is_wide = call->record_tiles != call->vector_tiles,
    };
    const struct matvec_activations_mx_parameters mx = {
        .x = int8.x,
        .records = int8.records,
        .x_row_stride = int8.x_row_stride,
        .vectors = int8.vectors,
        .columns = int8.columns,
        .x_type = int8.x_type,
    };
    struct argument_pointers pointers;
    struct launch launch;
    if (status == SM120_OK) {
        const struct arguments arguments = call->form->type != 0 ? ARGUMENTS(&mx) : ARGUMENTS(&int8);
        status = launch_of(&pointers, arguments, call->weights.spans, kernel_records + index, stream, &launch);
    }
    launch.is_early = true;
    return status == SM120_OK ? start(device, index, &launch, call->record_tiles, 1) : status;
}

/* Launch the kernels of a call. */
static sm120_status run(struct device *device, const sm120_matvec_args *args, const struct matvec *call,
                        sm120_address workspace) {
    sm120_status status = SM120_OK;
    if (call->vector_tiles != 0) {
        status = quantize(device, call, workspace, args->vectors, args->stream);
    }
    const struct matvec_parameters values = {
        .weights = args->weights,
        .x = call->vector_tiles != 0 ? workspace : call->x.address,
        .y = call->y.address,
        .bias = args->bias,
        .up = args->up,
        .activation = args->activation == SM120_SILU ? MATVEC_SILU : MATVEC_GELU,
        .experts = args->experts,
        .expert_bytes = call->is_packed ? call->weights.packed_bytes : args->rows * call->weights.row_bytes,
        .expert_count = (uint32_t)args->expert_count,
        .x_row_stride = call->x.row_stride,
        .y_row_stride = call->y.row_stride,
        .rows = call->weights.rows,
        .columns = call->weights.columns,
        .vectors = (uint32_t)call->results,
        .spans = call->weights.spans,
        .tiles = row_tiles(call),
        .x_type = weights_result_type(call->x.dtype),
        .y_type = weights_result_type(call->y.dtype),
        .residual = call->has_residual,
    };
    struct argument_pointers pointers;
    struct launch launch;
    if (status == SM120_OK) {
        status = launch_of(&pointers, ARGUMENTS(&values), grid_of(device, call), call->record, args->stream, &launch);
    }
    launch.shared_bytes = call->shared;
    launch.is_early = call->vector_tiles != 0; /* one vector: its CTAs would crowd on the first SMs that are free */
    const uint32_t grid_y = call->vector_tiles != 0 ? call->vector_tiles : (uint32_t)args->vectors;
    return status == SM120_OK
               ? start(device, call->index, &launch, grid_y, args->experts != 0 ? (uint32_t)args->chosen : 1)
               : status;
}

/* Write the size of the workspace, and load the kernels so that the next call can be captured in a graph. */
static sm120_status answer(struct device *device, const struct matvec *call, const struct workspace *workspace) {
    struct kernel *kernel;
    uint32_t index = 0;
    sm120_status status = builtin_load(device, call->index, &kernel);
    if (status == SM120_OK && call->vector_tiles != 0) {
        status = find_quantizer(call, &index);
        status = status == SM120_OK ? builtin_load(device, index, &kernel) : status;
    }
    if (status == SM120_OK) {
        *workspace->answer = (size_t)call->workspace_bytes;
    }
    return status;
}

/* Launch, or answer the question for the size of the workspace. */
static sm120_status matvec(sm120_device *handle, const sm120_matvec_args *args, struct workspace workspace) {
    struct device *device;
    struct matvec call;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(args, sizeof *args, "args", "sm120_matvec_args");
    status = status == SM120_OK ? check_args(args, &call) : status;
    status = status == SM120_OK ? workspace_check_question(&workspace) : status;
    if (status == SM120_OK && workspace.is_question) {
        return device_leave(device, answer(device, &call, &workspace));
    }
    status = status == SM120_OK ? check_places(device, args, &call, &workspace) : status;
    status = status == SM120_OK ? run(device, args, &call, workspace.address) : status;
    return device_leave(device, status);
}

sm120_status sm120_matvec_workspace(sm120_device *device, const sm120_matvec_args *args, size_t *workspace_bytes) {
    return matvec(device, args, workspace_question(workspace_bytes));
}

sm120_status sm120_matvec(sm120_device *device, const sm120_matvec_args *args, sm120_address workspace,
                          size_t workspace_bytes) {
    return matvec(device, args, workspace_of(workspace, workspace_bytes));
}
