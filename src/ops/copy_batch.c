/* sm120_copy_batch: copies of many pieces of device memory in one launch. */
#include <inttypes.h>
#include <stdio.h>

#include "generated/constants.h"
#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/launch.h"
#include "runtime/memory.h"
#include "runtime/tensor.h"

enum { CTAS_PER_MULTIPROCESSOR = 2, LIST_ALIGNMENT = 16, NAME_BYTES = 48 };

/* Check a piece. */
static sm120_status check_piece(struct device *device, const sm120_copy_piece *piece, size_t index) {
    char to[NAME_BYTES], from[NAME_BYTES];
    snprintf(to, sizeof to, "pieces[%zu].to", index);
    snprintf(from, sizeof from, "pieces[%zu].from", index);
    if (piece->bytes > INT64_MAX) {
        return fail(SM120_INVALID_ARGUMENT, "pieces[%zu].bytes = %" PRIu64 "; it is at most 2^63 - 1", index,
                    piece->bytes);
    }
    sm120_status status = check_address(to, piece->to, 1);
    status = status == SM120_OK ? check_address(from, piece->from, 1) : status;
    status = status == SM120_OK ? memory_check(device, piece->to, piece->bytes, to) : status;
    status = status == SM120_OK ? memory_check(device, piece->from, piece->bytes, from) : status;
    return status == SM120_OK
               ? check_apart(to, piece->to, (int64_t)piece->bytes, from, piece->from, (int64_t)piece->bytes)
               : status;
}

sm120_status sm120_copy_batch_prepare(sm120_device *handle, sm120_copy_piece *pieces, size_t count) {
    struct device *device;
    uint64_t chunks = 0;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_pointer(pieces, "pieces");
    status = status == SM120_OK && count == 0 ? check_size("count", 0, INT32_MAX) : status;
    for (size_t i = 0; i < count && status == SM120_OK; ++i) {
        pieces[i].first = chunks;
        chunks += pieces[i].bytes / COPY_CHUNK + (pieces[i].bytes % COPY_CHUNK != 0);
        if (pieces[i].bytes <= INT64_MAX && chunks > INT32_MAX) {
            status =
                fail(SM120_UNSUPPORTED, "pieces[%zu].bytes = %" PRIu64 "; a batch has at most %d chunks of %d bytes", i,
                     pieces[i].bytes, INT32_MAX, COPY_CHUNK);
        } else if (pieces[i].bytes != 0) { /* empty pieces need no address */
            status = check_piece(device, pieces + i, i);
        }
    }
    return device_leave(device, status);
}

/* Launch the kernel. */
static sm120_status launch(struct device *device, const struct copy_batch_parameters *values, uint32_t ctas,
                           sm120_stream stream) {
    const struct kernel_record wanted = {.operation = "copy_batch"};
    struct kernel *kernel;
    struct launch launch;
    struct argument_pointers pointers;
    uint32_t index;
    sm120_status status = builtin_find(&wanted, &index);
    if (status != SM120_OK) {
        return status;
    }
    const uint32_t grid = ctas != 0 ? ctas : CTAS_PER_MULTIPROCESSOR * (uint32_t)device->info.multiprocessors;
    status = launch_of(&pointers, ARGUMENTS(values), grid, kernel_records + index, stream, &launch);
    status = status == SM120_OK ? builtin_load(device, index, &kernel) : status;
    status = status == SM120_OK ? launch_check(kernel, &launch) : status;
    return status == SM120_OK ? launch_start(kernel, &launch) : status;
}

sm120_status sm120_copy_batch(sm120_device *handle, sm120_address pieces, size_t count, uint32_t ctas,
                              sm120_stream stream) {
    enum { CTAS_MAX = 1 << 20 };
    struct device *device;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_size("count", count > INT64_MAX ? INT64_MAX : (int64_t)count, INT32_MAX);
    status = status == SM120_OK && ctas != 0 ? check_size("ctas", ctas, CTAS_MAX) : status;
    status = status == SM120_OK ? check_address("pieces", pieces, LIST_ALIGNMENT) : status;
    status = status == SM120_OK ? memory_check(device, pieces, count * sizeof(sm120_copy_piece), "pieces") : status;
    if (status == SM120_OK) {
        const struct copy_batch_parameters values = {.pieces = pieces, .count = (uint32_t)count};
        status = launch(device, &values, ctas, stream);
    }
    return device_leave(device, status);
}
