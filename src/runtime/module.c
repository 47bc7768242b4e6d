/* Modules: load, list what they hold, unload. */
#include "runtime/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/image.h"

enum { LOG_BYTES = 16 * 1024 };

/* ---- load ---- */

/* Copy a compiler's log and write `name` in place of "ptxas application ptx input", which ptxas calls the text at the
 * beginning of a line. */
static void rename_in_log(const char *log, const char *name, char *to, size_t bytes) {
    static const char placeholder[] = "ptxas application ptx input";
    size_t used = 0;
    bool at_start = true;
    while (*log != '\0' && used + 1 < bytes) {
        if (at_start && strncmp(log, placeholder, sizeof placeholder - 1) == 0) {
            used += (size_t)snprintf(to + used, bytes - used, "%s", name);
            used = used < bytes ? used : bytes - 1;
            log += sizeof placeholder - 1;
            at_start = false;
        } else {
            at_start = *log == '\n';
            to[used++] = *log++;
        }
    }
    while (used > 0 && (to[used - 1] == '\n' || to[used - 1] == ' ')) {
        --used;
    }
    to[used] = '\0';
}

/* Translate a failed load: the message is the compiler's log, or the driver's error if the log is empty. */
static sm120_status load_fail(const struct device *device, CUresult result, const char *name, const char *log) {
    char text[LOG_BYTES];
    const sm120_status status = driver_fail(device->driver, result, "%s: loading on \"%s\"", name, device->info.name);
    if (log[0] == '\0' || status == SM120_OUT_OF_MEMORY) {
        return status;
    }
    rename_in_log(log, name, text, sizeof text);
    return fail(SM120_INVALID_PROGRAM, "%s", text);
}

/* Hand an image to the driver. */
static sm120_status load(const struct device *device, const char *image, const char *name, CUmodule *module) {
    char *const log = calloc(1, LOG_BYTES);
    if (log == NULL) {
        return fail(SM120_OUT_OF_MEMORY, "%s: out of host memory", name);
    }
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)(LOG_BYTES - 1)};
    if (device->driver->name_text != NULL) {
        device->driver->name_text(name);
    }
    const CUresult result = device->driver->cuModuleLoadDataEx(module, image, 2, options, values);
    if (device->driver->name_text != NULL) {
        device->driver->name_text(NULL);
    }
    const sm120_status status = result == CUDA_SUCCESS ? SM120_OK : load_fail(device, result, name, log);
    free(log);
    return status;
}

/* Free a module's own memory. */
static void discard(struct module *module) {
    signatures_free(&module->signatures);
    free(module->name);
    free(module);
}

/* Make a module without a driver's handle. Its signatures come from the text or from the record. NULL: out of host
 * memory. */
static struct module *make(struct device *device, const char *name, const char *text,
                           const struct kernel_record *record) {
    struct module *const module = calloc(1, sizeof *module);
    if (module == NULL) {
        return NULL;
    }
    module->device = device;
    module->name = malloc(strlen(name) + 1);
    bool is_read = true;
    if (record != NULL) {
        is_read =
            signatures_make(record->entry, record->parameters->items, record->parameters->count, &module->signatures);
    } else if (text != NULL) {
        is_read = signatures_read(text, &module->signatures);
    }
    if (module->name == NULL || !is_read) {
        discard(module);
        return NULL;
    }
    strcpy(module->name, name);
    return module;
}

/* Give a loaded module a handle and put it into its device's list. */
static bool publish(struct module *module) {
    struct device *const device = module->device;
    if (!object_register(&module->object, OBJECT_MODULE, &device->object)) {
        return false;
    }
    mutex_lock(&device->lock);
    module->next = device->modules;
    device->modules = module;
    mutex_unlock(&device->lock);
    return true;
}

sm120_status module_load(struct device *device, const void *image, size_t bytes, const char *name,
                         const struct kernel_record *record, struct module **module) {
    struct image copy;
    sm120_status status = image_copy(image, bytes, name, &copy);
    if (status != SM120_OK) {
        return status;
    }
    CUmodule loaded = NULL;
    status = load(device, copy.bytes, name, &loaded);
    if (status == SM120_OK) {
        *module = make(device, name, copy.is_ptx ? copy.bytes : NULL, record);
        if (*module != NULL) {
            (*module)->module = loaded;
            if (!publish(*module)) {
                discard(*module);
                *module = NULL;
            }
        }
        if (*module == NULL) {
            device->driver->cuModuleUnload(loaded);
            status = fail(SM120_OUT_OF_MEMORY, "%s: out of host memory", name);
        }
    }
    free(copy.bytes);
    return status;
}

sm120_status sm120_module_load(sm120_device *handle, const void *image, size_t bytes, const char *name,
                               sm120_module **module) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer(image, "image");
    status = status == SM120_OK ? check_pointer(name, "name") : status;
    status = status == SM120_OK ? check_pointer((const void *)module, "module") : status;
    if (status == SM120_OK && bytes == 0) {
        status = fail(SM120_INVALID_ARGUMENT, "bytes = 0; %s must be PTX text or a cubin of at least 1 byte", name);
    }
    if (status == SM120_OK) {
        struct module *loaded = NULL;
        status = module_load(device, image, bytes, name, NULL, &loaded);
        *module = status == SM120_OK ? loaded->object.handle : NULL;
    }
    return device_leave(device, status);
}

/* ---- unload ---- */

/* Free a module that is in no list and not in use. `context`: whether its context still exists, and with it the
 * driver's handles. */
static sm120_status unload(struct module *module, bool context) {
    const struct driver *const driver = module->device->driver;
    for (struct kernel *kernel = module->kernels; kernel != NULL;) {
        struct kernel *const after = kernel->next;
        object_unregister(&kernel->object);
        free(kernel->entry);
        free(kernel->parameters);
        free(kernel);
        kernel = after;
    }
    const CUresult result = context ? driver->cuModuleUnload(module->module) : CUDA_SUCCESS;
    const sm120_status status =
        result == CUDA_SUCCESS ? SM120_OK : driver_fail(driver, result, "unloading %s", module->name);
    object_unregister(&module->object);
    discard(module);
    return status;
}

sm120_status sm120_module_unload(sm120_module *handle) {
    error_clear();
    if (handle == NULL) {
        return SM120_OK;
    }
    struct module *const module = (struct module *)object_retire(handle, OBJECT_MODULE, "module");
    if (module == NULL) {
        return SM120_INVALID_ARGUMENT;
    }
    struct device *const device = module->device;
    mutex_lock(&device->lock);
    struct module **link = &device->modules;
    while (*link != module) {
        link = &(*link)->next;
    }
    *link = module->next;
    mutex_unlock(&device->lock);
    sm120_status status = device_push(device);
    if (status == SM120_OK) {
        status = unload(module, true);
        device_pop(device);
    } else {
        unload(module, false);
    }
    object_release(&device->object);
    return status;
}

void module_close_all(struct device *device, bool context) {
    while (device->modules != NULL) {
        struct module *const module = device->modules;
        device->modules = module->next;
        unload(module, context);
    }
}

/* ---- query ---- */

sm120_status sm120_module_entry(sm120_module *handle, int32_t index, const char **entry) {
    error_clear();
    struct module *const module = (struct module *)object_acquire(handle, OBJECT_MODULE, "module");
    if (module == NULL) {
        return SM120_INVALID_ARGUMENT;
    }
    sm120_status status = check_pointer((const void *)entry, "entry");
    if (status == SM120_OK && index < 0) {
        status = fail(SM120_INVALID_ARGUMENT, "index = %d is negative; the first entry is 0", index);
    } else if (status == SM120_OK && (uint32_t)index >= module->signatures.count) {
        status = fail(SM120_UNSUPPORTED, "index = %d is past the last of the %u entries that %s lists", index,
                      module->signatures.count, module->name);
    } else if (status == SM120_OK) {
        *entry = module->signatures.items[index].entry;
    }
    object_release(&module->object);
    return status;
}

sm120_status sm120_module_variable(sm120_module *handle, int32_t index, sm120_variable_info *info) {
    error_clear();
    struct module *const module = (struct module *)object_acquire(handle, OBJECT_MODULE, "module");
    if (module == NULL) {
        return SM120_INVALID_ARGUMENT;
    }
    const struct driver *const driver = module->device->driver;
    sm120_status status = check_struct(info, sizeof *info, "info", "sm120_variable_info");
    if (status == SM120_OK && index < 0) {
        status = fail(SM120_INVALID_ARGUMENT, "index = %d is negative; the first variable is 0", index);
    } else if (status == SM120_OK &&
               (driver->variable == NULL || driver->variable(module->module, index, info) != CUDA_SUCCESS)) {
        status = fail(SM120_UNSUPPORTED, "index = %d is past the last variable that %s lists", index, module->name);
    }
    object_release(&module->object);
    return status;
}
