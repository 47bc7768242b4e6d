/* sm120_attention: each precision, and which function launches its kernels. */
#include <inttypes.h>

#include "ops/attention/splits.h"
#include "runtime/check.h"
#include "runtime/error.h"

static const struct precision precisions[] = {
    {SM120_MXFP8, 0, 256, false, attention_mxfp8, true, true},
    {SM120_MXFP8_BF16, SM120_BF16, 256, true, attention_mxfp8, true, false},
    {SM120_MXFP8_F16, SM120_F16, 256, true, attention_mxfp8, true, false},
    {SM120_NVFP4, 0, 128, false, attention_mxfp8, false, false},
    {SM120_NVFP4_MXFP8, 0, 128, false, attention_mxfp8, false, true},
    {SM120_FP8, SM120_E4M3, 128, false, attention_fp8, false, false},
    {SM120_BF16, SM120_BF16, 256, true, attention_bf16_f16, false, false},
    {SM120_F16, SM120_F16, 256, true, attention_bf16_f16, false, false},
};

sm120_status attention_find_precision(uint32_t code, const struct precision **precision) {
    for (size_t i = 0; i < sizeof precisions / sizeof *precisions; ++i) {
        if (precisions[i].code == code) {
            *precision = precisions + i;
            return SM120_OK;
        }
    }
    return fail(SM120_INVALID_ARGUMENT,
                "precision = 0x%" PRIx32
                "; it must be MXFP8 (0x%x), MXFP8_BF16 (0x%x), MXFP8_F16 (0x%x), NVFP4 (0x%x), NVFP4_MXFP8 (0x%x), "
                "FP8 (0x%x), BF16 (0x%x) or F16 (0x%x)",
                code, SM120_MXFP8, SM120_MXFP8_BF16, SM120_MXFP8_F16, SM120_NVFP4, SM120_NVFP4_MXFP8, SM120_FP8,
                SM120_BF16, SM120_F16);
}

sm120_status attention_call(struct device *device, const sm120_attention_args *args,
                            const struct workspace *workspace) {
    struct attention call;
    const struct precision *precision = NULL;
    sm120_status status = check_struct(args, sizeof *args, "args", "sm120_attention_args");
    status = status == SM120_OK ? attention_find_precision(args->precision, &precision) : status;
    status = status == SM120_OK ? attention_check(args, precision, &call) : status;
    status = status == SM120_OK ? workspace_check_question(workspace) : status;
    if (status != SM120_OK) {
        return status;
    }
    return attention_is_ready(&call) ? precision->run(device, &call, workspace)
                                     : attention_on_copies(device, &call, precision->run, workspace);
}

/* Launch, or answer the question for the size of the workspace. */
static sm120_status attention(sm120_device *handle, const sm120_attention_args *args, struct workspace workspace) {
    struct device *device;
    const sm120_status status = device_enter(handle, &device);
    return status == SM120_OK ? device_leave(device, attention_call(device, args, &workspace)) : status;
}

sm120_status sm120_attention_workspace(sm120_device *device, const sm120_attention_args *args,
                                       size_t *workspace_bytes) {
    return attention(device, args, workspace_question(workspace_bytes));
}

sm120_status sm120_attention(sm120_device *device, const sm120_attention_args *args, sm120_address workspace,
                             size_t workspace_bytes) {
    return attention(device, args, workspace_of(workspace, workspace_bytes));
}

/* The checks that the functions about choices share. */
static sm120_status check_question(const sm120_attention_args *args, struct attention *call) {
    const struct precision *precision = NULL;
    sm120_status status = check_struct(args, sizeof *args, "args", "sm120_attention_args");
    status = status == SM120_OK ? attention_find_precision(args->precision, &precision) : status;
    return status == SM120_OK ? attention_check_forms(args, precision, call) : status;
}

static sm120_status check_config(const char *const *config, const int32_t *kernel) {
    const sm120_status status = check_pointer((const void *)config, "config");
    return status == SM120_OK ? check_pointer(kernel, "kernel") : status;
}

sm120_status sm120_attention_config(const sm120_attention_args *args, int32_t index, const char **config,
                                    int32_t *kernel) {
    struct attention call;
    uint32_t entry = 0;
    error_clear();
    sm120_status status = check_config(config, kernel);
    status = status == SM120_OK ? check_question(args, &call) : status;
    status = status == SM120_OK ? attention_config(&call, index, &entry) : status;
    if (status == SM120_OK) {
        *config = attention_config_name(entry);
        *kernel = (int32_t)entry;
    }
    return status;
}

sm120_status sm120_attention_chosen(sm120_device *handle, const sm120_attention_args *args, const char **config,
                                    int32_t *kernel) {
    struct device *device;
    struct attention call;
    uint32_t entry = 0;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_config(config, kernel);
    status = status == SM120_OK ? check_question(args, &call) : status;
    status = status == SM120_OK ? attention_choose(device, &call, &entry) : status;
    if (status == SM120_OK) {
        *config = attention_config_name(entry);
        *kernel = (int32_t)entry;
    }
    return device_leave(device, status);
}

sm120_status sm120_attention_splits(sm120_device *handle, const sm120_attention_args *args, int64_t *first,
                                    int64_t *splits) {
    struct device *device;
    struct attention call;
    struct split split;
    uint32_t entry = 0;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer(first, "first");
    status = status == SM120_OK ? check_pointer(splits, "splits") : status;
    status = status == SM120_OK ? check_question(args, &call) : status;
    status = status == SM120_OK ? attention_choose(device, &call, &entry) : status;
    status = status == SM120_OK ? attention_split(device, &call, kernel_records + entry, &split) : status;
    if (status == SM120_OK) {
        *first = split.first;
        *splits = split.splits;
    }
    return device_leave(device, status);
}
