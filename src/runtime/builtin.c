/* Choose among the images of a built-in kernel and load it once per device. */
#define _POSIX_C_SOURCE 200809L
#include "runtime/builtin.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/module.h"

/* The images of a kernel file for one target. */
struct images {
    const unsigned char *cubin, *ptx;
    size_t cubin_bytes, ptx_bytes;
};

const char *builtin_target(int capability_major) {
    return capability_major == 12 ? "sm_120f" : capability_major == 9 ? "sm_90" : NULL;
}

/* The images of a file for a target. */
static struct images images_of(const struct kernel_file *file, const char *target) {
    if (strcmp(target, "sm_120f") == 0) {
        return (struct images){file->cubin_sm120, file->ptx_sm120, file->cubin_sm120_bytes, file->ptx_sm120_bytes};
    }
    return (struct images){file->cubin_sm90, file->ptx_sm90, file->cubin_sm90_bytes, file->ptx_sm90_bytes};
}

bool builtin_open(struct device *device) {
    device->builtin_modules = calloc((size_t)kernel_file_count + 1, sizeof *device->builtin_modules);
    device->builtin_kernels = calloc((size_t)kernel_entry_count + 1, sizeof *device->builtin_kernels);
    return device->builtin_modules != NULL && device->builtin_kernels != NULL;
}

void builtin_close(struct device *device) {
    free(device->builtin_modules);
    free(device->builtin_kernels);
}

sm120_status builtin_find(const char *operation, const char *variant, uint32_t *index) {
    for (uint32_t i = 0; i < kernel_entry_count; ++i) {
        if (strcmp(kernel_entries[i].operation, operation) == 0 && strcmp(kernel_entries[i].variant, variant) == 0) {
            *index = i;
            return SM120_OK;
        }
    }
    return fail(SM120_INTERNAL, "the library holds no kernel for variant \"%s\" of %s", variant, operation);
}

/* Load a kernel file: the cubin, or the PTX where the device does not take the cubin. The caller has the lock. */
static sm120_status load_file(struct device *device, uint32_t index, struct module **module) {
    const struct kernel_file *const file = kernel_files + index;
    const char *const target = builtin_target(device->info.capability_major);
    if (target == NULL) {
        return fail(SM120_UNSUPPORTED,
                    "\"%s\" has compute capability %d.%d; the kernels of this library run on 12.x and 9.x",
                    device->info.name, device->info.capability_major, device->info.capability_minor);
    }
    const struct images images = images_of(file, target);
    const char *const text = (const char *)images.ptx;
    sm120_status status = SM120_INTERNAL;
    if (images.cubin_bytes != 0) {
        status = module_load(device, images.cubin, images.cubin_bytes, file->source, text, module);
    }
    if (status != SM120_OK && status != SM120_OUT_OF_MEMORY && images.ptx_bytes != 0) {
        status = module_load(device, images.ptx, images.ptx_bytes, file->source, NULL, module);
        if (status == SM120_OK) {
            error_clear();
        }
    }
    if (images.cubin_bytes == 0 && images.ptx_bytes == 0) {
        return fail(SM120_UNSUPPORTED, "this build of the library holds no image of %s for %s", file->source, target);
    }
    return status;
}

sm120_status builtin_load(struct device *device, uint32_t index, struct kernel **kernel) {
    const struct kernel_entry *const entry = kernel_entries + index;
    sm120_status status = SM120_OK;
    pthread_mutex_lock(&device->builtin_lock);
    struct module **const module = device->builtin_modules + entry->file;
    if (*module == NULL) {
        status = load_file(device, entry->file, module);
    }
    if (status == SM120_OK && device->builtin_kernels[index] == NULL) {
        status = module_kernel(*module, entry->entry, device->builtin_kernels + index);
        if (status == SM120_OK) {
            const bool sm120 = strcmp(builtin_target(device->info.capability_major), "sm_120f") == 0;
            kernel_know_registers(device->builtin_kernels[index],
                                  sm120 ? entry->registers_sm120 : entry->registers_sm90);
        }
    }
    *kernel = device->builtin_kernels[index];
    pthread_mutex_unlock(&device->builtin_lock);
    return status;
}

/* Check an index into the table of entries. */
static sm120_status check_index(int32_t index) {
    if (index < 0) {
        return fail(SM120_INVALID_ARGUMENT, "index = %d is negative; the first kernel is 0", index);
    }
    return (uint32_t)index < kernel_entry_count
               ? SM120_OK
               : fail(SM120_UNSUPPORTED, "index = %d is past the last of the %u kernels inside the library", index,
                      kernel_entry_count);
}

sm120_status sm120_builtin(int32_t index, sm120_builtin_info *info) {
    error_clear();
    sm120_status status = check_struct(info, sizeof *info, "info", "sm120_builtin_info");
    status = status == SM120_OK ? check_index(index) : status;
    if (status == SM120_OK) {
        const struct kernel_entry *const entry = kernel_entries + index;
        info->threads = entry->threads;
        info->shared_bytes = entry->shared;
        info->registers_sm120 = entry->registers_sm120;
        info->registers_sm90 = entry->registers_sm90;
        info->entry = entry->entry;
        info->source = kernel_files[entry->file].source;
    }
    return status;
}

sm120_status sm120_builtin_kernel(sm120_device *handle, int32_t index, sm120_kernel **kernel) {
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer((const void *)kernel, "kernel");
    status = status == SM120_OK ? check_index(index) : status;
    if (status == SM120_OK) {
        struct kernel *loaded = NULL;
        status = builtin_load(device, (uint32_t)index, &loaded);
        *kernel = status == SM120_OK ? loaded->object.handle : NULL;
    }
    return device_leave(device, status);
}

sm120_status sm120_builtin_image(int32_t index, const char *target, const char *form, const void **image,
                                 size_t *bytes) {
    error_clear();
    sm120_status status = check_pointer(target, "target");
    status = status == SM120_OK ? check_pointer(form, "form") : status;
    status = status == SM120_OK ? check_pointer((const void *)image, "image") : status;
    status = status == SM120_OK ? check_pointer(bytes, "bytes") : status;
    status = status == SM120_OK ? check_index(index) : status;
    if (status != SM120_OK) {
        return status;
    }
    if (strcmp(target, "sm_120f") != 0 && strcmp(target, "sm_90") != 0) {
        return fail(SM120_INVALID_ARGUMENT, "target = \"%.200s\"; \"sm_120f\" and \"sm_90\" are targets", target);
    }
    const bool is_ptx = strcmp(form, "ptx") == 0;
    if (!is_ptx && strcmp(form, "cubin") != 0) {
        return fail(SM120_INVALID_ARGUMENT, "form = \"%.200s\"; \"ptx\" and \"cubin\" are forms", form);
    }
    const struct images images = images_of(kernel_files + kernel_entries[index].file, target);
    *image = is_ptx ? images.ptx : images.cubin;
    *bytes = is_ptx ? images.ptx_bytes : images.cubin_bytes;
    if (*bytes == 0) {
        return fail(SM120_UNSUPPORTED, "this build of the library holds no %s of %s for %s", form,
                    kernel_entries[index].entry, target);
    }
    return SM120_OK;
}
