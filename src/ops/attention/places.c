/* Check the addresses of a call: each is valid, and no CTA writes what another CTA reads. */
#include <inttypes.h>

#include "ops/attention/attention.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/memory.h"

/* Whether o replaces q in place: each row of o is written by the CTA that has read this row of q. */
static bool is_in_place(const struct attention *call) {
    const struct tensor *const q = &call->q, *const o = &call->o;
    return q->address == o->address && attention_mask_bytes(q->dtype) == attention_mask_bytes(o->dtype) &&
           call->q_shape.head_dim == call->o_shape.head_dim && q->batch_stride == o->batch_stride &&
           q->head_stride == o->head_stride && q->row_stride == o->row_stride;
}

/* Check that nothing is written where other CTAs read. */
static sm120_status check_outputs(const struct attention *call) {
    const sm120_attention_args *const args = call->args;
    const struct shape row = {1, 1, 1, call->lse_bytes / 4};
    const struct tensor lse = {"lse", args->lse, SM120_F32, 0, 0, 0, args->lse != 0 ? call->lse_bytes : 0};
    const struct {
        const struct tensor *tensor;
        const struct shape *shape;
    } outputs[] = {{&call->o, &call->o_shape}, {&lse, &row}}, inputs[] = {{&call->q, &call->q_shape},
                                                                          {&call->k, &call->k_shape},
                                                                          {&call->v, &call->v_shape},
                                                                          {&call->past_k, &call->past_k_shape},
                                                                          {&call->past_v, &call->past_v_shape}};
    for (int o = 0; o < (args->lse != 0 ? 2 : 1); ++o) {
        for (int i = 0; i < (args->past_rows == 0 ? 3 : 5); ++i) {
            const struct tensor *const in = inputs[i].tensor, *const out = outputs[o].tensor;
            if (tensor_meets(in, inputs[i].shape, out, outputs[o].shape) &&
                !(in == &call->q && out == &call->o && is_in_place(call))) {
                return fail(SM120_INVALID_ARGUMENT,
                            "%s (0x%" PRIx64 ", %" PRId64 " bytes) and %s (0x%" PRIx64 ", %" PRId64
                            " bytes) overlap; o may only be q itself, with the same strides and head size",
                            out->name, out->address, out->bytes, in->name, in->address, in->bytes);
            }
        }
    }
    return SM120_OK;
}

sm120_status attention_check_places(struct device *device, const struct attention *call) {
    const sm120_attention_args *const args = call->args;
    const struct tensor *const tensors[] = {&call->q, &call->k, &call->v, &call->o, &call->past_k, &call->past_v};
    const struct {
        const char *name;
        sm120_address address;
        uint64_t alignment;
        int64_t bytes;
    } arrays[] = {
        {"lse", args->lse, 4, call->lse_bytes},
        {"diagonals", args->diagonals, 4, 4 * args->batch},
        {"kv_lengths", args->kv_lengths, 4, 4 * args->batch},
        {"cu_seqlens_q", args->cu_seqlens_q, 4, 4 * args->batch + 4},
        {"cu_seqlens_k", args->cu_seqlens_k, 4, 4 * args->batch + 4},
        {"sinks", args->sinks, 4, 4 * args->heads},
        {"alibi_slopes", args->alibi_slopes, 4, 4 * (args->alibi_batch_stride * (args->batch - 1) + args->heads)},
        {"mask.address", args->mask.address, (uint64_t)attention_mask_bytes(args->mask.dtype), call->mask_bytes},
    };
    sm120_status status = SM120_OK;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors - (args->past_rows == 0 ? 2 : 0); ++i) {
        status = status == SM120_OK ? tensor_check_address(device, tensors[i]) : status;
    }
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) {
        if (status == SM120_OK && arrays[i].address != 0) {
            status = check_address(arrays[i].name, arrays[i].address, arrays[i].alignment);
            status = status == SM120_OK
                         ? memory_check(device, arrays[i].address, (uint64_t)arrays[i].bytes, arrays[i].name)
                         : status;
        }
    }
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays && status == SM120_OK; ++i) {
        if (arrays[i].address != 0) {
            status =
                check_apart(arrays[i].name, arrays[i].address, arrays[i].bytes, "o", call->o.address, call->o.bytes);
        }
        if (status == SM120_OK && i > 0 && arrays[i].address != 0 && args->lse != 0) {
            status = check_apart(arrays[i].name, arrays[i].address, arrays[i].bytes, "lse", args->lse, call->lse_bytes);
        }
    }
    return status == SM120_OK ? check_outputs(call) : status;
}
