// Products of quantised weights and vectors by llama.cpp, for benchmarks/llama.py: what the files mmvq.cu and
// quantize.cu of its ggml-cuda need of the rest of the library, and one function with a C interface.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "mmvq.cuh"
#include "quantize.cuh"

// The library is built with hidden symbols, and what no function of this file needs is left out.
#define EXPORT extern "C" __attribute__((visibility("default")))

int ggml_cuda_get_device() {
    int device = 0;
    cudaGetDevice(&device);
    return device;
}

const ggml_cuda_device_info &ggml_cuda_info() {
    static const ggml_cuda_device_info info = [] {
        ggml_cuda_device_info made = {};
        cudaDeviceProp found;
        cudaGetDeviceProperties(&found, ggml_cuda_get_device());
        made.device_count = 1;
        for (auto &device : made.devices) {
            device.cc = 100 * found.major + 10 * found.minor;
            device.nsm = found.multiProcessorCount;
            device.smpb = found.sharedMemPerBlock;
            device.smpbo = found.sharedMemPerBlockOptin;
            device.warp_size = found.warpSize;
        }
        return made;
    }();
    return info;
}

[[noreturn]] void ggml_cuda_error(const char *statement, const char *function, const char *file, int line,
                                  const char *message) {
    std::fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, function, statement, message);
    std::abort();
}

extern "C" void ggml_abort(const char *file, int line, const char *format, ...) {
    std::va_list values;
    va_start(values, format);
    std::fprintf(stderr, "%s:%d: ", file, line);
    std::vfprintf(stderr, format, values);
    std::fputc('\n', stderr);
    va_end(values);
    std::abort();
}

// Columns of a block. The other facts of a type are constants of the kernels.
extern "C" int64_t ggml_blck_size(enum ggml_type type) {
    return type == GGML_TYPE_Q8_0 || type == GGML_TYPE_MXFP4 ? 32 : QK_K;
}

static int64_t padded(int64_t columns) {
    return (columns + MATRIX_ROW_PADDING - 1) / MATRIX_ROW_PADDING * MATRIX_ROW_PADDING;
}

// Bytes of `room` below.
EXPORT int64_t llama_room(int64_t columns, int64_t vectors) {
    return vectors * (padded(columns) / QK8_1) * (int64_t)sizeof(block_q8_1);
}

// y = W x of up to 8 vectors, as a graph of llama.cpp computes it: x [vectors][columns] to q8_1 in `room`, then the
// product to y [vectors][rows].
EXPORT void llama_matvec(int type, const void *weights, const float *x, void *room, float *y, int64_t rows,
                             int64_t columns, int64_t vectors, cudaStream_t stream) {
    // Its destructor, which frees buffers of llama.cpp's pool, must not run.
    alignas(ggml_backend_cuda_context) static unsigned char memory[sizeof(ggml_backend_cuda_context)];
    auto *const context = reinterpret_cast<ggml_backend_cuda_context *>(memory);
    context->device = ggml_cuda_get_device();
    ggml_tensor of_weights = {}, of_x = {}, of_y = {};
    of_weights.type = (enum ggml_type)type;
    of_weights.ne[0] = of_x.ne[0] = columns;
    of_weights.ne[1] = of_y.ne[0] = rows;
    of_x.ne[1] = of_y.ne[1] = vectors;
    quantize_row_q8_1_cuda(x, nullptr, room, of_weights.type, columns, columns, columns * vectors, columns * vectors,
                           padded(columns), vectors, 1, 1, stream);
    ggml_cuda_op_mul_mat_vec_q(*context, &of_weights, &of_x, &of_y, static_cast<const char *>(weights), x,
                               static_cast<const char *>(room), y, 0, rows, vectors, padded(columns), stream);
}
