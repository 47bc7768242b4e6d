/* Check the addresses of a call: each is valid, and no kernel writes what another one reads. */
#include <inttypes.h>

#include "ops/attention_backward/attention_backward.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/memory.h"

enum { ARRAY_RESULTS = 2 }; /* the last arrays of a call: dsinks and dmask */

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

/* Check that dsinks or dmask shares no byte with a tensor or with an array before it in the list. */
static sm120_status check_array_result(const struct tensor *out, const struct tensor *const *tensors,
                                       size_t tensor_count, const struct tensor *arrays, size_t array_count) {
    sm120_status status = SM120_OK;
    for (size_t i = 0; i < tensor_count + array_count && status == SM120_OK && out->address != 0; ++i) {
        const struct tensor *const x = i < tensor_count ? tensors[i] : arrays + (i - tensor_count);
        if (x->address != 0) {
            status = check_apart(out->name, out->address, out->bytes, x->name, x->address, x->bytes);
        }
    }
    return status;
}

sm120_status backward_check_places(struct device *device, const struct backward *b, sm120_address workspace,
                                   size_t workspace_bytes) {
    const sm120_attention_backward_args *const args = b->args;
    const int64_t rows = b->call.lse_bytes, batch = 4 * args->batch;
    const int64_t slopes = 4 * (args->alibi_batch_stride * (args->batch - 1) + args->heads);
    const struct tensor arrays[] = {
        {"lse", args->lse, SM120_F32, 0, 0, 0, rows},
        {"dlse", args->dlse, SM120_F32, 0, 0, 0, rows},
        {"delta", args->delta, SM120_F32, 0, 0, 0, rows},
        {"diagonals", args->diagonals, SM120_F32, 0, 0, 0, batch},
        {"kv_lengths", args->kv_lengths, SM120_F32, 0, 0, 0, batch},
        {"cu_seqlens_q", args->cu_seqlens_q, SM120_F32, 0, 0, 0, batch + 4},
        {"cu_seqlens_k", args->cu_seqlens_k, SM120_F32, 0, 0, 0, batch + 4},
        {"alibi_slopes", args->alibi_slopes, SM120_F32, 0, 0, 0, slopes},
        {"sinks", args->sinks, SM120_F32, 0, 0, 0, 4 * args->heads},
        {"mask.address", args->mask.address, args->mask.dtype, 0, 0, 0, b->call.mask_bytes},
        {"dsinks", args->dsinks, SM120_F32, 0, 0, 0, 4 * args->heads},
        {"dmask.address", args->dmask.address, SM120_F32, 0, 0, 0, b->dmask_bytes},
    };
    const struct tensor *const tensors[] = {&b->given[Q], &b->given[K],    &b->given[V],    &b->given[DOUT],
                                            &b->call.o,   &b->results[DQ], &b->results[DK], &b->results[DV]};
    const size_t array_count = sizeof arrays / sizeof *arrays, tensor_count = sizeof tensors / sizeof *tensors;
    const size_t count = tensor_count + array_count;
    sm120_status status = check_address("lse", args->lse, 4);
    for (size_t i = 0; i < tensor_count && status == SM120_OK; ++i) {
        status = tensor_check_address(device, tensors[i]);
    }
    for (size_t i = 0; i < array_count && status == SM120_OK; ++i) {
        const struct tensor *const x = arrays + i;
        if (x->address != 0) {
            status = check_address(x->name, x->address, (uint64_t)attention_mask_bytes(x->dtype));
            status = status == SM120_OK ? memory_check(device, x->address, (uint64_t)x->bytes, x->name) : status;
        }
    }
    status = status == SM120_OK ? check_results(b, arrays, array_count) : status;
    for (size_t i = array_count - ARRAY_RESULTS; i < array_count && status == SM120_OK; ++i) {
        status = check_array_result(arrays + i, tensors, tensor_count, arrays, i);
    }
    status = status == SM120_OK ? check_address("workspace", workspace, WORKSPACE_ALIGNMENT) : status;
    if (status == SM120_OK && workspace_bytes < (size_t)b->workspace_bytes) {
        status = fail(SM120_WORKSPACE_TOO_SMALL, "*workspace_bytes = %zu; this call needs %" PRId64, workspace_bytes,
                      b->workspace_bytes);
    }
    if (status == SM120_OK) {
        status = memory_check(device, workspace, (uint64_t)b->workspace_bytes, "workspace");
    }
    for (size_t i = 0; i < count && status == SM120_OK; ++i) {
        const struct tensor *const x = i < tensor_count ? tensors[i] : arrays + (i - tensor_count);
        if (x->address != 0) {
            status = check_apart("workspace", workspace, b->workspace_bytes, x->name, x->address, x->bytes);
        }
    }
    return status;
}
