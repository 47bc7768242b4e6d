/* Choose among the images of a built-in kernel and load it once per device. */
#include "runtime/builtin.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/kernel.h"
#include "runtime/lzma.h"

const char *builtin_target(int capability_major) {
    return capability_major == 12 ? "sm_120f" : capability_major == 9 ? "sm_90" : NULL;
}

bool builtin_open(struct device *device) {
    device->builtin_kernels = calloc((size_t)kernel_record_count + 1, sizeof *device->builtin_kernels);
    return device->builtin_kernels != NULL;
}

void builtin_close(struct device *device) {
    free(device->builtin_kernels);
}

/* Compare two words; either may be NULL. */
static bool is_same(const char *a, const char *b) {
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* Find an operation; NULL if there is none of that name. */
static const struct kernel_operation *find_operation(const char *name) {
    uint32_t from = 0, end = kernel_operation_count;
    while (from < end) {
        const uint32_t middle = from + (end - from) / 2;
        const int order = strcmp(name, kernel_operations[middle].name);
        if (order == 0) {
            return kernel_operations + middle;
        }
        from = order > 0 ? middle + 1 : from;
        end = order < 0 ? middle : end;
    }
    return NULL;
}

bool builtin_has(const struct kernel_record *wanted, uint32_t *index) {
    const struct kernel_operation *const operation = find_operation(wanted->operation);
    for (uint32_t i = 0; operation != NULL && i < operation->count; ++i) {
        const uint32_t number = kernel_order[operation->first + i];
        const struct kernel_record *const record = kernel_records + number;
        if (record->head_dim == wanted->head_dim && record->precision == wanted->precision &&
            record->dtype == wanted->dtype && record->features == wanted->features &&
            record->element_bytes == wanted->element_bytes && is_same(record->layout, wanted->layout) &&
            is_same(record->config, wanted->config)) {
            *index = number;
            return true;
        }
    }
    return false;
}

sm120_status builtin_find(const struct kernel_record *wanted, uint32_t *index) {
    if (builtin_has(wanted, index)) {
        return SM120_OK;
    }
    return fail(SM120_INTERNAL,
                "the library holds no kernel of %s with precision = %u, dtype = 0x%08x, element_bytes = %u, layout = "
                "\"%s\", config = \"%s\", features = %d and head_dim = %u",
                wanted->operation, wanted->precision, wanted->dtype, wanted->element_bytes,
                wanted->layout != NULL ? wanted->layout : "", wanted->config != NULL ? wanted->config : "",
                wanted->features, wanted->head_dim);
}

/* ---- images ---- */

/* Decode an image and put a NUL behind it; the bytes are the caller's to free. */
static sm120_status decode(const struct kernel_image *image, const char *entry, char **bytes) {
    const struct kernel_block *const block = kernel_blocks + image->block;
    char *const all = malloc((size_t)block->bytes + 1);
    if (all == NULL) {
        return fail(SM120_OUT_OF_MEMORY, "%s: out of host memory", entry);
    }
    if (!lzma_decode(kernel_images + block->at, block->packed_bytes, all, block->bytes)) {
        free(all);
        return fail(SM120_INTERNAL, "the image of %s inside the library is damaged", entry);
    }
    memmove(all, all + image->at, image->bytes);
    all[image->bytes] = '\0';
    char *const shrunk = realloc(all, (size_t)image->bytes + 1);
    *bytes = shrunk != NULL ? shrunk : all;
    return SM120_OK;
}

/* Decode and load an image of a kernel. */
static sm120_status load_image(struct device *device, const struct kernel_record *record,
                               const struct kernel_image *image, struct module **module) {
    char *bytes = NULL;
    sm120_status status = decode(image, record->entry, &bytes);
    if (status == SM120_OK) {
        status = module_load(device, bytes, image->bytes, record->source, record, module);
        free(bytes);
    }
    return status;
}

/* Load a kernel's module: the cubin, or the PTX if the device rejects the cubin. */
static sm120_status load(struct device *device, const struct kernel_record *record, struct module **module) {
    const char *const target = builtin_target(device->info.capability_major);
    if (target == NULL) {
        return fail(SM120_UNSUPPORTED,
                    "\"%s\" has compute capability %d.%d; the kernels of this library run on 12.x and 9.x",
                    device->info.name, device->info.capability_major, device->info.capability_minor);
    }
    const bool is_sm120 = strcmp(target, "sm_120f") == 0;
    sm120_status status = SM120_INVALID_PROGRAM;
    if (!device->info.is_virtual) {
        status = load_image(device, record, is_sm120 ? &record->cubin_sm120 : &record->cubin_sm90, module);
    }
    if (status != SM120_OK && status != SM120_OUT_OF_MEMORY) {
        status = load_image(device, record, is_sm120 ? &record->ptx_sm120 : &record->ptx_sm90, module);
        if (status == SM120_OK) {
            error_clear();
        }
    }
    return status;
}

sm120_status builtin_load(struct device *device, uint32_t index, struct kernel **kernel) {
    const struct kernel_record *const record = kernel_records + index;
    sm120_status status = SM120_OK;
    mutex_lock(&device->builtin_lock);
    struct kernel **const loaded = device->builtin_kernels + index;
    if (*loaded == NULL) {
        struct module *module = NULL;
        status = load(device, record, &module);
        status = status == SM120_OK ? module_kernel(module, record->entry, loaded) : status;
        if (status == SM120_OK) {
            const bool is_sm120 = strcmp(builtin_target(device->info.capability_major), "sm_120f") == 0;
            kernel_know_registers(*loaded, is_sm120 ? record->registers_sm120 : record->registers_sm90);
        }
    }
    *kernel = *loaded;
    mutex_unlock(&device->builtin_lock);
    return status;
}

/* ---- the public functions ---- */

/* Check an index into the table of entries. */
static sm120_status check_index(int32_t index) {
    if (index < 0) {
        return fail(SM120_INVALID_ARGUMENT, "index = %d is negative; the first kernel is 0", index);
    }
    return (uint32_t)index < kernel_record_count
               ? SM120_OK
               : fail(SM120_UNSUPPORTED, "index = %d is past the last of the %u kernels inside the library", index,
                      kernel_record_count);
}

sm120_status sm120_builtin(int32_t index, sm120_builtin_info *info) {
    error_clear();
    sm120_status status = check_struct(info, sizeof *info, "info", "sm120_builtin_info");
    status = status == SM120_OK ? check_index(index) : status;
    if (status == SM120_OK) {
        const struct kernel_record *const record = kernel_records + index;
        *info = (sm120_builtin_info){
            .size = info->size,
            .threads = record->threads,
            .shared_bytes = record->shared,
            .registers_sm120 = record->registers_sm120,
            .registers_sm90 = record->registers_sm90,
            .entry = record->entry,
            .source = record->source,
            .operation = record->operation,
            .layout = record->layout != NULL ? record->layout : "",
            .config = record->config != NULL ? record->config : "",
            .precision = record->precision,
            .dtype = record->dtype,
            .features = record->features,
            .element_bytes = record->element_bytes,
            .head_dim = record->head_dim,
            .q_rows = record->q_rows,
            .kv_rows = record->kv_rows,
            .stages = record->stages,
            .group_heads = record->group_heads,
            .group_rows = record->group_rows,
            .rows = record->rows,
            .columns = record->columns,
            .q_warp_rows = record->q_warp_rows,
            .ordered = record->ordered,
            .key_groups = record->key_groups,
        };
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

sm120_status sm120_builtin_constant(int32_t index, const char **name, int32_t *value) {
    error_clear();
    sm120_status status = check_pointer((const void *)name, "name");
    status = status == SM120_OK ? check_pointer(value, "value") : status;
    if (status == SM120_OK && index < 0) {
        status = fail(SM120_INVALID_ARGUMENT, "index = %d is negative; the first constant is 0", index);
    } else if (status == SM120_OK && (uint32_t)index >= kernel_constant_count) {
        status = fail(SM120_UNSUPPORTED, "index = %d is past the last of the %u constants of the kernels", index,
                      kernel_constant_count);
    } else if (status == SM120_OK) {
        *name = kernel_constants[index].name;
        *value = kernel_constants[index].value;
    }
    return status;
}

/* An image that a caller has asked for: it is kept for as long as the library is loaded. */
struct kept {
    const struct kernel_image *image;
    char *bytes;
    struct kept *next;
};

static _Atomic(struct kept *) all_kept;

/* Find an image that was decoded before, or decode it. There is no lock: two threads that ask for the same image at the
 * same time may both decode it, and both copies stay. */
static sm120_status keep(const struct kernel_image *image, const char *entry, const void **bytes) {
    struct kept *first = atomic_load(&all_kept);
    for (const struct kept *one = first; one != NULL; one = one->next) {
        if (one->image == image) {
            *bytes = one->bytes;
            return SM120_OK;
        }
    }
    struct kept *const made = malloc(sizeof *made);
    if (made == NULL) {
        return fail(SM120_OUT_OF_MEMORY, "%s: out of host memory", entry);
    }
    *made = (struct kept){.image = image};
    const sm120_status status = decode(image, entry, &made->bytes);
    if (status != SM120_OK) {
        free(made);
        return status;
    }
    do {
        made->next = first;
    } while (!atomic_compare_exchange_weak(&all_kept, &first, made));
    *bytes = made->bytes;
    return SM120_OK;
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
        return fail(SM120_INVALID_ARGUMENT, "target = \"%.200s\"; it must be \"sm_120f\" or \"sm_90\"", target);
    }
    const bool is_ptx = strcmp(form, "ptx") == 0;
    if (!is_ptx && strcmp(form, "cubin") != 0) {
        return fail(SM120_INVALID_ARGUMENT, "form = \"%.200s\"; it must be \"ptx\" or \"cubin\"", form);
    }
    const struct kernel_record *const record = kernel_records + index;
    const bool is_sm120 = strcmp(target, "sm_120f") == 0;
    const struct kernel_image *const ptx = is_sm120 ? &record->ptx_sm120 : &record->ptx_sm90;
    const struct kernel_image *const cubin = is_sm120 ? &record->cubin_sm120 : &record->cubin_sm90;
    status = keep(is_ptx ? ptx : cubin, record->entry, image);
    *bytes = status == SM120_OK ? (is_ptx ? ptx : cubin)->bytes : 0;
    return status;
}
