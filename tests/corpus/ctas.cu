// CTAs that wait for one another: a reduction by the last CTA, a scan that looks back, a chain of semaphores, a lock, and
// barriers of all CTAs.
#include <cuda/atomic>

__device__ unsigned int finished;

extern "C" __global__ void last_block(const int *x, int *partial, int *sum, int n) {
    __shared__ int warp_sum[4];
    __shared__ bool is_last;
    int v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        v += x[i];
    v = __reduce_add_sync(~0u, v);
    if (threadIdx.x % 32 == 0)
        warp_sum[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = warp_sum[0] + warp_sum[1] + warp_sum[2] + warp_sum[3];
        __threadfence();
        is_last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (is_last && threadIdx.x == 0) {
        int total = 0;
        for (int k = 0; k < gridDim.x; k++)
            total += partial[k];
        *sum = total;
    }
}

struct State {
    int flag, own, all; // flag 1: own is there, 2: all too
};

// y = inclusive prefix sums of x; tiles are taken in order, each looks back for the sum before it
extern "C" __global__ void scan(const int *x, int *y, State *state, int *next, int n) {
    __shared__ int tile_shared, before, warp_sum[4];
    if (threadIdx.x == 0)
        tile_shared = atomicAdd(next, 1);
    __syncthreads();
    const int tile = tile_shared, i = tile * 128 + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int v = i < n ? x[i] : 0;
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, v, d);
        v += lane >= d ? other : 0;
    }
    if (lane == 31)
        warp_sum[warp] = v;
    __syncthreads();
    int offset = 0, sum = 0;
    for (int k = 0; k < 4; k++) {
        offset += k < warp ? warp_sum[k] : 0;
        sum += warp_sum[k];
    }
    if (threadIdx.x == 0) {
        cuda::atomic_ref<int, cuda::thread_scope_device> own(state[tile].flag);
        state[tile].own = sum;
        own.store(1, cuda::memory_order_release);
        int prefix = 0;
        for (int k = tile - 1; k >= 0;) {
            cuda::atomic_ref<int, cuda::thread_scope_device> flag(state[k].flag);
            const int f = flag.load(cuda::memory_order_acquire);
            if (f == 2) {
                prefix += state[k].all;
                break;
            }
            if (f == 1) {
                prefix += state[k].own;
                k--;
            }
        }
        state[tile].all = prefix + sum;
        own.store(2, cuda::memory_order_release);
        before = prefix;
    }
    __syncthreads();
    if (i < n)
        y[i] = before + offset + v;
}

// rows are added by CTAs in the order of their numbers, as stream-K fixes up its tiles
extern "C" __global__ void chain(const float *x, float *y, int *semaphore, int rows) {
    const int row = blockIdx.x % rows, turn = blockIdx.x / rows;
    if (threadIdx.x == 0)
        while (atomicAdd(semaphore + row, 0) != turn)
            __nanosleep(32);
    __syncthreads();
    __threadfence();
    const int at = row * blockDim.x + threadIdx.x;
    y[at] = y[at] * 0.5f + x[blockIdx.x * blockDim.x + threadIdx.x];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        atomicAdd(semaphore + row, 1);
}

extern "C" __global__ void locked(int *lock, long long *value) {
    if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0)
            ;
        __threadfence();
        *value = *value * 3 + 1;
        __threadfence();
        atomicExch(lock, 0);
    }
}

// Jacobi steps with a barrier of all CTAs between them
extern "C" __global__ void steps(int *a, int *b, unsigned *arrived, int n, int rounds) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int r = 0; r < rounds; r++) {
        if (i < n)
            b[i] = (a[(i + 1) % n] + a[(i + n - 1) % n]) & 1023;
        __syncthreads();
        if (threadIdx.x == 0) {
            cuda::atomic_ref<unsigned, cuda::thread_scope_device> count(*arrived);
            count.fetch_add(1, cuda::memory_order_acq_rel);
            while (count.load(cuda::memory_order_acquire) < (r + 1) * gridDim.x)
                ;
        }
        __syncthreads();
        int *t = a;
        a = b;
        b = t;
    }
}
