/* Attention on tensors that kernels cannot use in place: they are copied to the workspace, and the result back. */
#include "ops/attention/attention.h"
#include "ops/copy_rows.h"
#include "runtime/check.h"
#include "runtime/places.h"

enum { TENSORS = 6 };

/* A call on copies of its tensors. */
struct stage {
    sm120_attention_args args;
    struct attention call;
    struct {
        const struct tensor *given;
        const struct shape *shape; /* of the given tensor */
        struct tensor *copy;
        struct shape *copy_shape;
        bool is_output, is_copied;
        struct copy_rows in, out;
    } tensors[TENSORS];
    int64_t bytes; /* of the copies */
};

bool attention_is_narrowed(const struct attention *call) {
    return call->args->precision == SM120_BF16 && call->q.dtype == SM120_F32;
}

/* The dtype whose step a tensor's head size has: in FP8 that of q, o in 16 bits too. */
static uint32_t step_dtype(const struct attention *call, const struct tensor *x) {
    return call->args->precision == SM120_FP8 ? SM120_E4M3 : x->dtype;
}

/* Whether a tensor is used in place, as tiles are. One that is MXFP8 already is loaded in 8 bytes. */
static bool is_in_place(const struct attention *call, const struct tensor *x, const struct shape *shape) {
    enum { BYTES = 8 };
    if (attention_is_tiles(x)) {
        return true;
    }
    if (x->dtype == SM120_E4M3 && call->args->precision != SM120_FP8) {
        const int64_t strides = x->batch_stride | x->head_stride | x->row_stride | shape->head_dim;
        return strides % BYTES == 0 && x->address % BYTES == 0;
    }
    return copy_rows_is_needless(x, shape) && shape->head_dim % copy_rows_step(step_dtype(call, x)) == 0;
}

bool attention_is_ready(const struct attention *call) {
    return !attention_is_narrowed(call) && is_in_place(call, &call->q, &call->q_shape) &&
           is_in_place(call, &call->k, &call->k_shape) && is_in_place(call, &call->v, &call->v_shape) &&
           is_in_place(call, &call->o, &call->o_shape) &&
           (call->args->past_rows == 0 || (is_in_place(call, &call->past_k, &call->past_k_shape) &&
                                           is_in_place(call, &call->past_v, &call->past_v_shape)));
}

/* Decide which tensors are copied, and where to. */
static sm120_status lay_out(const struct attention *call, struct stage *stage) {
    *stage = (struct stage){.args = *call->args, .call = *call};
    struct attention *const on = &stage->call;
    const struct {
        const struct tensor *given;
        const struct shape *shape;
        struct tensor *copy;
        struct shape *copy_shape;
    } list[TENSORS] = {
        {&call->q, &call->q_shape, &on->q, &on->q_shape},
        {&call->k, &call->k_shape, &on->k, &on->k_shape},
        {&call->v, &call->v_shape, &on->v, &on->v_shape},
        {&call->o, &call->o_shape, &on->o, &on->o_shape},
        {&call->past_k, &call->past_k_shape, &on->past_k, &on->past_k_shape},
        {&call->past_v, &call->past_v_shape, &on->past_v, &on->past_v_shape},
    };
    on->args = &stage->args;
    for (int i = 0; i < (call->args->past_rows == 0 ? TENSORS - 2 : TENSORS); ++i) {
        stage->tensors[i].given = list[i].given;
        stage->tensors[i].shape = list[i].shape;
        stage->tensors[i].copy = list[i].copy;
        stage->tensors[i].copy_shape = list[i].copy_shape;
        stage->tensors[i].is_output = list[i].given == &call->o;
        const bool is_narrowed = attention_is_narrowed(call) && !stage->tensors[i].is_output;
        stage->tensors[i].is_copied = is_narrowed || !is_in_place(call, list[i].given, list[i].shape);
        if (stage->tensors[i].is_copied) {
            const uint32_t step = step_dtype(call, list[i].given);
            list[i].copy_shape->head_dim = copy_rows_width(list[i].shape->head_dim, step);
            const sm120_status status =
                copy_rows_place(list[i].given, list[i].copy_shape, is_narrowed ? SM120_BF16 : list[i].given->dtype,
                                list[i].copy, &stage->bytes);
            if (status != SM120_OK) {
                return status;
            }
        }
    }
    if (attention_is_tiles(&call->v)) { /* it has the columns of o */
        on->v_shape.head_dim = on->o_shape.head_dim;
    }
    stage->args.head_dim = on->q_shape.head_dim;
    stage->args.v_head_dim = on->v_shape.head_dim;
    return SM120_OK;
}

/* Check the launches of the copies, which now have addresses. */
static sm120_status prepare(struct device *device, struct stage *stage, sm120_address workspace) {
    for (int i = 0; i < TENSORS; ++i) {
        if (!stage->tensors[i].is_copied) {
            continue;
        }
        const struct tensor *const given = stage->tensors[i].given;
        struct tensor *const copy = stage->tensors[i].copy;
        const struct shape *const shape = stage->tensors[i].shape, *const padded = stage->tensors[i].copy_shape;
        copy->address += workspace;
        const sm120_stream stream = stage->args.stream;
        sm120_status status =
            copy_rows_prepare(device, given, copy, shape, padded->head_dim, false, stream, &stage->tensors[i].in);
        if (status == SM120_OK && stage->tensors[i].is_output) {
            status =
                copy_rows_prepare(device, copy, given, padded, shape->head_dim, false, stream, &stage->tensors[i].out);
        }
        if (status != SM120_OK) {
            return status;
        }
    }
    return SM120_OK;
}

/* Start the copies of the inputs. With packed sequences o is copied in too, because rows of no sequence keep their
 * contents. */
static sm120_status start_in(struct stage *stage) {
    sm120_status status = SM120_OK;
    for (int i = 0; i < TENSORS && status == SM120_OK; ++i) {
        const bool is_read = !stage->tensors[i].is_output || stage->args.cu_seqlens_q != 0;
        if (stage->tensors[i].is_copied && is_read) {
            status = launch_start(stage->tensors[i].in.kernel, &stage->tensors[i].in.launch);
        }
    }
    return status;
}

/* Start the copy of the output. */
static sm120_status start_out(struct stage *stage) {
    sm120_status status = SM120_OK;
    for (int i = 0; i < TENSORS && status == SM120_OK; ++i) {
        if (stage->tensors[i].is_copied && stage->tensors[i].is_output) {
            status = launch_start(stage->tensors[i].out.kernel, &stage->tensors[i].out.launch);
        }
    }
    return status;
}

/* A query loads the kernels of the copies too, so that the next call can be captured in a graph. */
sm120_status attention_on_copies(struct device *device, const struct attention *call, attention_run *run,
                                 const struct workspace *workspace) {
    struct stage stage;
    size_t inner = 0;
    struct workspace rest = workspace_question(&inner);
    sm120_status status = lay_out(call, &stage);
    status = status == SM120_OK ? run(device, &stage.call, &rest) : status;
    if (status != SM120_OK) {
        return status;
    }
    const size_t needed = (size_t)stage.bytes + inner;
    if (workspace->is_question) {
        *workspace->answer = needed;
        return prepare(device, &stage, 0);
    }
    status = attention_check_places(device, call, workspace, (int64_t)needed);
    status = status == SM120_OK ? prepare(device, &stage, workspace->address) : status;
    status = status == SM120_OK ? start_in(&stage) : status;
    rest = workspace_of(workspace->address + (uint64_t)stage.bytes, inner);
    status = status == SM120_OK ? run(device, &stage.call, &rest) : status;
    return status == SM120_OK ? start_out(&stage) : status;
}
