/* The driver table of the virtual SM120, and its functions that CUDA does not have. Work runs in the thread that issues
 * it, in the order of its stream. When a call returns, its work has ended. */
#include "vm/run/virtual.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "platform/thread.h"
#include "vm/machine/counters.h"
#include "vm/machine/fault.h"
#include "vm/machine/options.h"
#include "vm/machine/types.h"
#include "vm/observe/profile.h"
#include "vm/observe/trace.h"

static const char *virtual_fault(void) {
    return fault_text();
}

CUresult virtual_counters_reset(CUcontext context) {
    if (context == NULL) {
        return virtual_null_argument("context");
    }
    struct device *device = &context->device;
    mutex_lock(&device->counter_lock);
    memset(device->opcode_count, 0, sizeof device->opcode_count);
    memset(device->bytes, 0, sizeof device->bytes);
    device->tensor_flops = 0;
    mutex_unlock(&device->counter_lock);
    return CUDA_SUCCESS;
}

/* Return the index-th nonzero counter. */
static CUresult virtual_counter(CUcontext context, int index, const char **name, uint64_t *value) {
    if (context == NULL || name == NULL || value == NULL || index < 0) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "context, name or value is NULL, or index is negative");
    }
    struct device *device = &context->device;
    CUresult r = CUDA_ERROR_NOT_FOUND;
    uint64_t total = 0;
    mutex_lock(&device->counter_lock);
    for (uint32_t k = 0; k < MAX_COUNTERS; ++k) {
        total += device->opcode_count[k];
    }
    const uint32_t all = 2 + MAX_COUNTERS + TRAFFIC_COUNT;
    for (uint32_t k = 0; k < all; ++k) {
        const uint32_t opcode = k - 1, path = k - 2 - MAX_COUNTERS;
        const uint64_t v = k == 0                  ? total
                           : k <= MAX_COUNTERS     ? device->opcode_count[opcode]
                           : k == MAX_COUNTERS + 1 ? device->tensor_flops
                                                   : device->bytes[path];
        if (v == 0 || index-- != 0) {
            continue;
        }
        *name = k == 0                  ? "instructions"
                : k <= MAX_COUNTERS     ? counter_name(opcode)
                : k == MAX_COUNTERS + 1 ? "tensor flops"
                                        : counter_path(path) - strlen("bytes ");
        *value = v;
        r = CUDA_SUCCESS;
        break;
    }
    mutex_unlock(&device->counter_lock);
    return r;
}

static CUresult virtual_variable(CUmodule module, int index, sm120_variable_info *info) {
    if (module == NULL || info == NULL || index < 0) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "module or info is NULL, or index is negative");
    }
    if ((uint32_t)index >= module->module.variable_count) {
        return fault_set(CUDA_ERROR_NOT_FOUND, "the module has %u variables", module->module.variable_count);
    }
    variable_describe(&module->module.variables[index], info);
    return CUDA_SUCCESS;
}

static CUresult virtual_profile(CUcontext context, int on) {
    if (context == NULL) {
        return virtual_null_argument("context");
    }
    if (on != 0) {
        return profile_begin(&context->device);
    }
    profile_end(&context->device);
    return CUDA_SUCCESS;
}

static CUresult virtual_profile_read(CUcontext context, int index, sm120_profile_row *row) {
    if (context == NULL || row == NULL || index < 0) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "context or row is NULL, or index is negative");
    }
    return profile_read(&context->device, index, row);
}

static CUresult virtual_profile_cta(CUcontext context, int index, const char **kernel, uint64_t *cta,
                                    uint64_t *executed) {
    if (context == NULL || kernel == NULL || cta == NULL || executed == NULL || index < 0) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "an argument is NULL, or index is negative");
    }
    return profile_cta(&context->device, index, kernel, cta, executed);
}

static bool virtual_checks(void) {
    return options_checks() != CHECKS_OFF;
}

/* Stop the running launches, which compare the count with its value at their start. */
static CUresult virtual_interrupt(CUcontext context) {
    if (context == NULL) {
        return virtual_null_argument("context");
    }
    atomic_fetch_add(&context->device.interrupts, 1);
    return CUDA_SUCCESS;
}

/* Return the driver of the virtual SM120. */
const struct driver *driver_virtual(void) {
    static const struct driver driver = {
#define X(name, parameters) .name = virtual_##name,
        DRIVER_FUNCTIONS(X)
#undef X
            .fault = virtual_fault,
        .counter = virtual_counter,
        .counters_reset = virtual_counters_reset,
        .allocated = virtual_allocated,
        .interrupt = virtual_interrupt,
        .configure = options_set,
        .checks = virtual_checks,
        .variable = virtual_variable,
        .profile = virtual_profile,
        .profile_read = virtual_profile_read,
        .profile_cta = virtual_profile_cta,
        .looking = trace_is_looking,
        .instruction = trace_instruction,
        .step_query = trace_query,
        .step_register = trace_register,
        .step_variable = trace_variable,
        .step_lanes = trace_lanes,
        .step_shared = trace_shared,
        .name_text = virtual_name_text};
    return &driver;
}
