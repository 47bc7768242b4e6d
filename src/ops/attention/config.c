/* The choice of a kernel for a call of sm120_attention. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ops/attention/attention.h"
#include "runtime/check.h"
#include "runtime/error.h"

enum { HOPPER = 9 };

/* Whether a kernel can compute a call. */
static bool fits(const struct kernel_record *record, const struct attention *call) {
    return strcmp(record->operation, "attention") == 0 && record->precision == call->args->precision &&
           record->head_dim >= call->q_shape.head_dim && record->head_dim >= call->v_shape.head_dim &&
           record->features == !call->is_uniform;
}

/* Among the kernels that can compute a call, those with the smallest head size: the index of the first one, and of the
 * first one of each of three configs, which may be NULL. -1: not found. */
struct choice {
    uint32_t width;
    int64_t first, of[3];
};

static struct choice look(const struct attention *call, const char *const configs[3]) {
    const struct choice nothing = {.width = UINT32_MAX, .first = -1, .of = {-1, -1, -1}};
    struct choice choice = nothing;
    for (uint32_t i = 0; i < kernel_record_count; ++i) {
        const struct kernel_record *const record = kernel_records + i;
        if (record->head_dim > choice.width || !fits(record, call)) {
            continue;
        }
        if (record->head_dim < choice.width) {
            choice = nothing;
            choice.width = record->head_dim;
        }
        choice.first = choice.first < 0 ? i : choice.first;
        for (int n = 0; n < 3; ++n) {
            const bool is_it = choice.of[n] < 0 && configs[n] != NULL && strcmp(record->config, configs[n]) == 0;
            choice.of[n] = is_it ? i : choice.of[n];
        }
    }
    return choice;
}

/* The default config. r32: warps of 32 rows halve the reads of K and V from shared memory, which limits Hopper. r16:
 * warps of 16 rows leave registers for twice the warps. These hide more latency on SM120, which the tensor pipe limits,
 * and whenever each CTA has an SM to itself. w4, above head size 128: CTAs of four warps, if twice the CTAs still get
 * an SM each. */
static const char *usual(const struct device *device, const struct attention *call) {
    const sm120_attention_args *const args = call->args;
    const int64_t ctas = args->batch * args->heads * ((args->q_rows + 127) / 128);
    const bool is_wide = call->q_shape.head_dim > 128 || call->v_shape.head_dim > 128;
    if (is_wide && 2 * ctas <= device->info.multiprocessors) {
        return "w4";
    }
    return device->info.capability_major == HOPPER && ctas > device->info.multiprocessors ? "r32" : "r16";
}

sm120_status attention_choose(const struct device *device, const struct attention *call, uint32_t *index) {
    const char *const configs[] = {call->args->config, getenv("PYSM120_ATTENTION_CONFIG"), usual(device, call)};
    const struct choice choice = look(call, configs);
    if (choice.first < 0) {
        return fail(SM120_INTERNAL,
                    "the library has no kernel of attention for precision = %" PRIu32 " and head_dim = %" PRId64,
                    call->args->precision, call->q_shape.head_dim);
    }
    if (configs[0] != NULL && choice.of[0] < 0) {
        return fail(SM120_UNSUPPORTED, "config = \"%.32s\"; this call supports %s; sm120_attention_config lists all",
                    configs[0], kernel_records[choice.first].config);
    }
    int64_t found = choice.first;
    for (int n = 3; n-- > 0;) {
        found = choice.of[n] >= 0 ? choice.of[n] : found;
    }
    *index = (uint32_t)found;
    return SM120_OK;
}

sm120_status attention_config(const struct attention *call, int32_t index, uint32_t *entry) {
    const char *const none[3] = {NULL, NULL, NULL};
    const uint32_t width = look(call, none).width;
    int32_t count = 0;
    if (index < 0) {
        return fail(SM120_INVALID_ARGUMENT, "index = %" PRId32 " is negative; the first config is 0", index);
    }
    for (uint32_t i = 0; i < kernel_record_count; ++i) {
        if (kernel_records[i].head_dim == width && fits(kernel_records + i, call) && count++ == index) {
            *entry = i;
            return SM120_OK;
        }
    }
    return fail(SM120_UNSUPPORTED, "index = %" PRId32 " is past the last of the %" PRId32 " configs of this call",
                index, count);
}

const char *attention_config_name(uint32_t index) {
    return kernel_records[index].config;
}
