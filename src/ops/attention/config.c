/* The choice of a kernel for a call of sm120_attention. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/attention/splits.h"
#include "ops/resident.h"
#include "runtime/check.h"
#include "runtime/error.h"

/* Whether a kernel can compute a call. */
static bool fits(const struct kernel_record *record, const struct attention *call) {
    return strcmp(record->operation, call->has_e5m2 ? "attention_e5m2" : "attention") == 0 &&
           record->precision == call->args->precision && record->head_dim >= call->q_shape.head_dim &&
           record->head_dim >= call->v_shape.head_dim && record->features == !call->is_uniform;
}

/* Among the kernels that can compute a call, those with the smallest head size: the index of the first one, and of the
 * first one of each of a few configs, which may be NULL. -1: not found. */
enum { OF_CALLER, OF_ENVIRONMENT, OF_FEW, USUAL = OF_FEW + 4, CONFIGS };

struct choice {
    uint32_t width;
    int64_t first, of[CONFIGS];
};

static struct choice look(const struct attention *call, const char *const configs[CONFIGS]) {
    const struct choice nothing = {.width = UINT32_MAX, .first = -1, .of = {-1, -1, -1, -1, -1, -1, -1}};
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
        for (int n = 0; n < CONFIGS; ++n) {
            const bool is_it = choice.of[n] < 0 && configs[n] != NULL && strcmp(record->config, configs[n]) == 0;
            choice.of[n] = is_it ? i : choice.of[n];
        }
    }
    return choice;
}

int64_t attention_ctas(const struct attention *call, const struct kernel_record *record) {
    return call->args->batch * call->args->heads * ((call->args->q_rows + record->q_rows - 1) / record->q_rows);
}

/* On Hopper, whether all CTAs of a kernel are on the chip at once. Causal CTAs take half as long on average: then two
 * count as one, unless groups of warps share their keys. */
static bool is_one_wave(const struct device *device, const struct attention *call, const struct kernel_record *record) {
    const uint32_t causal = call->args->causal;
    const bool is_halved = causal == SM120_CAUSAL_TOP_LEFT || causal == SM120_CAUSAL_BOTTOM_RIGHT;
    const int64_t resident = device->info.multiprocessors * resident_ctas(device, record, record->shared);
    return attention_ctas(call, record) <= resident * (is_halved && record->key_groups == 1 ? 2 : 1);
}

/* On SM120, the clocks of a launch. Beyond 8 CTAs of a multiprocessor, small tiles read more of K and V than L2 may
 * give. */
static double clocks_of(const struct device *device, const struct attention *call, const struct kernel_record *record) {
    enum { MOST_OF_FEW = 8, EIGHT_WARPS = 256 };
    const int64_t each = (attention_ctas(call, record) - 1) / device->info.multiprocessors + 1;
    const bool is_small = record->threads < EIGHT_WARPS || record->key_groups > 1;
    return each > MOST_OF_FEW && is_small ? HUGE_VAL : attention_clocks(device, call, record);
}

/* The config of a launch of many CTAs. r32: warps of 32 rows halve the reads of K and V from shared memory, which
 * limits Hopper. r16: warps of 16 rows leave registers for twice the warps. These hide more latency on SM120, which the
 * tensor pipe limits, and whenever each CTA has an SM to itself. */
static const char *usual(const struct device *device, const struct attention *call) {
    const sm120_attention_args *const args = call->args;
    const int64_t ctas = args->batch * args->heads * ((args->q_rows + 127) / 128);
    return device->info.capability_major == HOPPER && ctas > device->info.multiprocessors ? "r32" : "r16";
}

/* The kernel for a call that names none: the usual one, or another where that is faster. */
static int64_t default_of(const struct device *device, const struct attention *call, const struct choice *choice) {
    const bool is_hopper = device->info.capability_major == HOPPER;
    int64_t found = choice->of[USUAL] >= 0 ? choice->of[USUAL] : choice->first;
    for (int n = USUAL; n-- > OF_FEW;) {
        const int64_t other = choice->of[n];
        if (other < 0) {
            continue;
        }
        const struct kernel_record *const record = kernel_records + other;
        const bool is_faster = is_hopper
                                   ? is_one_wave(device, call, record)
                                   : clocks_of(device, call, record) < clocks_of(device, call, kernel_records + found);
        found = is_faster ? other : found;
    }
    return found;
}

sm120_status attention_choose(const struct device *device, const struct attention *call, uint32_t *index) {
    /* For few CTAs: k4, k2: groups of warps share the keys of 32 rows; w4: CTAs of four warps. On SM120, walk: CTAs go
     * on to the tiles of others. */
    const bool is_hopper = device->info.capability_major == HOPPER;
    const char *const configs[CONFIGS] = {
        [OF_CALLER] = call->args->config,
        [OF_ENVIRONMENT] = getenv("PYSM120_ATTENTION_CONFIG"),
        [OF_FEW] = "k4",
        [OF_FEW + 1] = "k2",
        [OF_FEW + 2] = "w4",
        [OF_FEW + 3] = is_hopper ? NULL : "walk",
        [USUAL] = usual(device, call),
    };
    const struct choice choice = look(call, configs);
    if (choice.first < 0) {
        return fail(SM120_INTERNAL,
                    "the library has no kernel of attention for precision = %" PRIu32 " and head_dim = %" PRId64,
                    call->args->precision, call->q_shape.head_dim);
    }
    if (configs[OF_CALLER] != NULL && choice.of[OF_CALLER] < 0) {
        return fail(SM120_UNSUPPORTED, "config = \"%.32s\"; this call supports %s; sm120_attention_config lists all",
                    configs[OF_CALLER], kernel_records[choice.first].config);
    }
    const int64_t named = choice.of[OF_CALLER] >= 0 ? choice.of[OF_CALLER] : choice.of[OF_ENVIRONMENT];
    const int64_t found = named >= 0 ? named : default_of(device, call, &choice);
    *index = (uint32_t)found;
    return SM120_OK;
}

sm120_status attention_config(const struct attention *call, int32_t index, uint32_t *entry) {
    const char *const none[CONFIGS] = {NULL};
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
