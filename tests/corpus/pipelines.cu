// cuda::barrier and cuda::pipeline of libcu++, cuda::memcpy_async and bulk copies through cuda::device.
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/ptx>
namespace cg = cooperative_groups;

extern "C" __global__ void barriers(const float *x, float *y, int rounds) {
    using barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ barrier full, empty;
    __shared__ float buffer[128];
    const int i = threadIdx.x;
    if (i == 0) {
        init(&full, blockDim.x);
        init(&empty, blockDim.x);
    }
    __syncthreads();
    float sum = 0;
    for (int r = 0; r < rounds; r++) {
        buffer[i] = x[r * 128 + i];
        full.arrive_and_wait();
        sum += buffer[(i + 1) % 128] - 0.5f * buffer[(i + 32) % 128];
        empty.wait(empty.arrive());
    }
    y[i] = sum;
}

extern "C" __global__ void pipelined(const float *x, float *y, int rounds) {
    constexpr int stages = 3;
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, stages> state;
    __shared__ float buffer[stages][128];
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    const int i = threadIdx.x;
    float sum = 0;
    for (int compute = 0, fetch = 0; compute < rounds; compute++) {
        for (; fetch < rounds && fetch < compute + stages; fetch++) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, buffer[fetch % stages], x + fetch * 128, sizeof(float) * 128, pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += buffer[compute % stages][127 - i] * (compute + 1);
        pipe.consumer_release();
    }
    y[i] = sum;
}

extern "C" __global__ void bulk(const float *x, float *y) {
    using barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ alignas(128) float buffer[128];
    __shared__ barrier full;
    const int i = threadIdx.x;
    if (i == 0) {
        init(&full, blockDim.x);
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    }
    __syncthreads();
    barrier::arrival_token token;
    if (i == 0) {
        cuda::memcpy_async(buffer, x, cuda::aligned_size_t<16>(sizeof buffer), full);
        token = full.arrive();
    } else {
        token = full.arrive();
    }
    full.wait(std::move(token));
    const float v = buffer[127 - i];
    __syncthreads();
    buffer[i] = v + 1;
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncthreads();
    if (i == 0) {
        cuda::ptx::cp_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, y, buffer, sizeof buffer);
        cuda::ptx::cp_async_bulk_commit_group();
        cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>{});
    }
}
