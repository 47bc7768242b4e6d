// Atomic operations of every kind, in global and in shared memory.
#include <cuda/atomic>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void atomics(int *i32, unsigned *u32, unsigned long long *u64, long long *s64, float *f32,
                                   double *f64, __half2 *h2, __nv_bfloat162 *b2, __half *h, unsigned short *u16,
                                   int *old) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    old[i] = atomicAdd(i32, 1);
    atomicSub(i32 + 1, i);
    atomicMin(i32 + 2, -i);
    atomicMax(i32 + 3, i);
    atomicAnd(i32 + 4, ~(1 << (i & 31)));
    atomicOr(i32 + 5, 1 << (i & 31));
    atomicXor(i32 + 6, i);
    atomicExch(i32 + 7, 99);
    atomicInc(u32, 9);
    atomicDec(u32 + 1, 9);
    atomicMax(u32 + 2, 0xfffffff0u + (i & 7));
    unsigned seen = u32[3], assumed;
    do {
        assumed = seen;
        seen = atomicCAS(u32 + 3, assumed, assumed * 3 + 1);
    } while (seen != assumed);
    atomicAdd(u64, 1ull << 33);
    atomicMax(u64 + 1, (unsigned long long)i << 40);
    atomicOr(u64 + 2, 1ull << (i & 63));
    atomicCAS(u64 + 3, 0ull, 5ull);
    atomicMin(s64, (long long)-i);
    atomicAdd(f32, 0.5f);
    atomicAdd(f64, 0.25);
    atomicAdd(h2, __floats2half2_rn(1.0f, 2.0f));
    atomicAdd(b2, __floats2bfloat162_rn(1.0f, 0.5f));
    atomicAdd(h, __float2half(1.0f));
    atomicCAS(u16, (unsigned short)0, (unsigned short)77);
    __shared__ int s[4];
    __shared__ float sf;
    if (threadIdx.x < 4)
        s[threadIdx.x] = 0;
    if (threadIdx.x == 0)
        sf = 0;
    __syncthreads();
    atomicAdd(s, 2);
    atomicMax(s + 1, (int)threadIdx.x);
    atomicExch(s + 2, 5);
    atomicCAS(s + 3, 0, 6);
    atomicAdd(&sf, 1.0f);
    __syncthreads();
    if (threadIdx.x == 0)
        atomicAdd(i32 + 8, s[0] + s[1] + s[2] + s[3] + (int)sf);
    if (blockIdx.x == 0)
        atomicAdd_block(i32 + 9, 1);
    atomicAdd_system(i32 + 10, 1);
}

extern "C" __global__ void ordered(int *data, int *flag, int *y) {
    cuda::atomic_ref<int, cuda::thread_scope_device> ready(*flag);
    if (blockIdx.x == 0) {
        data[threadIdx.x] = 3 * threadIdx.x;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0)
            ready.store(1, cuda::memory_order_release);
    } else {
        if (threadIdx.x == 0)
            while (ready.load(cuda::memory_order_acquire) == 0)
                __nanosleep(20);
        __syncthreads();
        y[threadIdx.x] = data[threadIdx.x] + 1;
    }
}
