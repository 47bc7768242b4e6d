/* CTAs that a multiprocessor holds at once: by their threads, shared memory and registers. */
#include "ops/resident.h"

enum {
    RESERVED_SHARED = 1024, /* of each CTA, by the driver */
    REGISTER_STEP = 8,
    SHARED_STEP = 128
};

int64_t resident_ctas(const struct device *device, const struct kernel_record *record, uint32_t shared_bytes) {
    const sm120_device_info *const info = &device->info;
    const uint32_t of_thread = info->capability_major == HOPPER ? record->registers_sm90 : record->registers_sm120;
    const uint32_t allocated = (of_thread + REGISTER_STEP - 1) / REGISTER_STEP * REGISTER_STEP * record->threads;
    const int64_t limits[] = {
        info->max_threads_per_multiprocessor / (int64_t)record->threads,
        info->shared_bytes_per_multiprocessor / ((int64_t)shared_bytes + RESERVED_SHARED),
        allocated != 0 ? info->registers_per_multiprocessor / (int64_t)allocated : 1,
    };
    int64_t ctas = limits[0];
    for (size_t i = 1; i < sizeof limits / sizeof *limits; ++i) {
        ctas = limits[i] < ctas ? limits[i] : ctas;
    }
    return ctas > 0 ? ctas : 1;
}

/* Where the launch in front still holds some multiprocessors, CTAs would share the others while those stay empty.
 * Virtual devices report accesses behind record->shared. */
uint32_t even_shared(const struct device *device, const struct kernel_record *record, int64_t ctas) {
    const sm120_device_info *const info = &device->info;
    const int64_t each = (ctas + info->multiprocessors - 1) / info->multiprocessors;
    if (info->is_virtual != 0 || each >= resident_ctas(device, record, record->shared)) {
        return record->shared;
    }
    /* one more than `each` do not fit */
    const int64_t least = info->shared_bytes_per_multiprocessor / (each + 1) + 1 - RESERVED_SHARED;
    const int64_t bytes = (least + SHARED_STEP - 1) / SHARED_STEP * SHARED_STEP;
    return bytes < record->shared || bytes > info->shared_bytes_per_block ? record->shared : (uint32_t)bytes;
}
