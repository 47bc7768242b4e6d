/* Modules of the virtual SM120: PTX in, entries out. */
#include "vm/run/virtual.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/thread.h"
#include "vm/machine/arena.h"
#include "vm/machine/fault.h"
#include "vm/machine/memory.h"
#include "vm/machine/program.h"
#include "vm/text/module.h"

/* Return whether an image is a cubin or a fatbin. */
static bool is_binary(const void *image) {
    static const unsigned char magics[][4] = {
        {0x7f, 'E', 'L', 'F'}, {0x50, 0xed, 0x55, 0xba}, {0xb1, 0x43, 0x62, 0x46}};
    for (size_t k = 0; k < 3; ++k) { /* byte by byte, because a text may be shorter than a magic number */
        for (size_t n = 0; ((const unsigned char *)image)[n] == magics[k][n];) {
            if (++n == 4) {
                return true;
            }
        }
    }
    return false;
}

static _Thread_local const char *text_name;

void virtual_name_text(const char *name) {
    text_name = name;
}

/* Create a module without functions that has copies of the text and its name. Return NULL when out of memory. */
static struct CUmod_st *new_module(const char *image, char **text) {
    const char *const known = text_name != NULL ? text_name : "<ptx>";
    struct CUmod_st *m = calloc(1, sizeof *m);
    char *const copy = m != NULL ? arena_take(&m->module.arena, strlen(image) + 1) : NULL;
    char *const name = copy != NULL ? arena_take(&m->module.arena, strlen(known) + 1) : NULL;
    if (name == NULL) {
        if (m != NULL) {
            arena_free(&m->module.arena);
        }
        free(m);
        return NULL;
    }
    m->module.name = strcpy(name, known);
    m->module.device = virtual_current();
    *text = strcpy(copy, image);
    return m;
}

void virtual_free_module(struct CUmod_st *m) {
    struct device *device = m->module.device;
    for (uint32_t k = 0; k < m->module.variable_count; ++k) {
        memory_free(device, m->module.variables[k].address, ALLOCATION_VARIABLE);
    }
    module_free(&m->module);
    free(m);
}

CUresult virtual_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned options, CUjit_option *option,
                                    void **value) {
    char *log = NULL, *text = NULL;
    size_t log_bytes = 0;
    if (module == NULL || image == NULL || (options != 0 && (option == NULL || value == NULL))) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "module, image or the options are NULL");
    }
    if (virtual_current() == NULL) {
        return virtual_no_context();
    }
    for (unsigned k = 0; k < options; ++k) {
        if (option[k] == CU_JIT_ERROR_LOG_BUFFER) {
            log = value[k];
        }
        if (option[k] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
            log_bytes = (size_t)(uintptr_t)value[k];
        }
    }
    if (is_binary(image)) {
        return fault_set(CUDA_ERROR_NO_BINARY_FOR_GPU,
                         "the image is machine code; the virtual SM120 executes only PTX");
    }
    struct CUmod_st *m = new_module(image, &text);
    if (m == NULL) {
        return fault_set(CUDA_ERROR_OUT_OF_MEMORY, "out of host memory");
    }
    char message[8192];
    const CUresult r = module_parse(&m->module, text, message, sizeof message);
    if (log != NULL && log_bytes != 0) {
        snprintf(log, log_bytes, "%s", message);
    }
    if (r != CUDA_SUCCESS) {
        fault_set(r, "%s", message);
        virtual_free_module(m);
        return r;
    }
    struct device *device = virtual_current();
    mutex_lock(&device->module_lock);
    m->module.next = device->modules;
    if (m->module.next != NULL) {
        m->module.next->previous = &m->module;
    }
    device->modules = &m->module;
    mutex_unlock(&device->module_lock);
    *module = m;
    return CUDA_SUCCESS;
}

CUresult virtual_cuModuleUnload(CUmodule module) {
    if (module == NULL) {
        return fault_set(CUDA_ERROR_INVALID_HANDLE, "module is NULL");
    }
    struct device *device = module->module.device;
    mutex_lock(&device->module_lock);
    struct module *m = &module->module;
    if (m->next != NULL) {
        m->next->previous = m->previous;
    }
    if (m->previous != NULL) {
        m->previous->next = m->next;
    } else {
        device->modules = m->next;
    }
    mutex_unlock(&device->module_lock);
    virtual_free_module(module);
    return CUDA_SUCCESS;
}

CUresult virtual_cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    if (function == NULL || module == NULL || name == NULL) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "function, module or name is NULL");
    }
    char log[4096] = "";
    struct device *const device = module->module.device;
    mutex_lock(&device->module_lock);
    const CUresult r = module_entry(&module->module, name, function, log, sizeof log);
    mutex_unlock(&device->module_lock);
    return r == CUDA_SUCCESS             ? r
           : r == CUDA_ERROR_NOT_FOUND   ? fault_set(r, "the module has no entry '%s'", name)
           : r == CUDA_ERROR_INVALID_PTX ? fault_set(r, "%s", log)
                                         : fault_set(r, "out of host memory");
}
