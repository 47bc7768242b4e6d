/* Fuzz target: PTX text is loaded, asked about, unloaded. */
#define _POSIX_C_SOURCE 200809L
#include "vm/text/parse.h"
#include "target.h"
#include "vm/machine/program.h"

/* Ask everything that can be asked about a function. */
static void ask(const struct driver *d, CUfunction f) {
    static const CUfunction_attribute attributes[] = {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                                      CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                                                      CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, CU_FUNC_ATTRIBUTE_NUM_REGS,
                                                      CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES};
    size_t offset, bytes, end = 0;
    int value, blocks;
    for (size_t k = 0; k < sizeof attributes / sizeof *attributes; k++) {
        if (d->cuFuncGetAttribute(&value, attributes[k], f) || value < 0) {
            fuzz_fail("attribute %d of a function", (int)attributes[k]);
        }
    }
    for (size_t k = 0; !d->cuFuncGetParamInfo(f, k, &offset, &bytes); k++) {
        if (offset < end) {
            fuzz_fail("parameter %zu begins at %zu, inside of the one before it", k, offset);
        }
        end = offset + bytes;
    }
    if (d->cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 128, 0)) {
        fuzz_fail("occupancy: %s", d->fault());
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct driver *const d = target_device();
    CUmodule module = target_load(data, size);
    CUfunction f;
    if (!module) {
        return 0;
    }
    const struct module *m = (const struct module *)(const void *)module;
    for (uint32_t k = 0; k < m->entry_count; k++) {
        const char *const name = m->entries[k].name;
        const CUresult result = d->cuModuleGetFunction(&f, module, name);
        if (result == CUDA_SUCCESS) {
            ask(d, f);
        } else if (result != CUDA_ERROR_INVALID_PTX || d->fault()[0] == '\0') {
            fuzz_fail("entry '%s' is not found: %s", name, d->fault());
        }
    }
    if (d->cuModuleUnload(module)) {
        fuzz_fail("a module cannot be unloaded: %s", d->fault());
    }
    return 0;
}
