// Tensor copies through cuda::ptx and cuda::device: swizzled tiles, reductions, tensor maps in constant memory and maps
// that a kernel changes.
#include <cuda.h>
#include <cuda/barrier>
#include <cuda/ptx>
#include <cuda_fp16.h>
namespace ptx = cuda::ptx;
using barrier = cuda::barrier<cuda::thread_scope_block>;

// y[c][r] = x[r][c] by tiles of 64 x 64 in swizzled shared memory
extern "C" __global__ void transpose(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y) {
    __shared__ alignas(1024) __half in[64][64], out[64][64];
    __shared__ barrier full;
    const int i = threadIdx.x;
    const int column = blockIdx.x * 64, row = blockIdx.y * 64;
    if (i == 0) {
        init(&full, blockDim.x);
        ptx::fence_proxy_async(ptx::space_shared);
    }
    __syncthreads();
    barrier::arrival_token token;
    if (i == 0) {
        cuda::device::experimental::cp_async_bulk_tensor_2d_global_to_shared(&in, &x, column, row, full);
        token = cuda::device::barrier_arrive_tx(full, 1, sizeof in);
    } else {
        token = full.arrive();
    }
    full.wait(std::move(token));
    for (int k = i; k < 64 * 64; k += blockDim.x) {
        const int r = k / 64, c = k % 64;
        out[c][(r / 8 ^ c % 8) * 8 + r % 8] = in[r][(c / 8 ^ r % 8) * 8 + c % 8];
    }
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (i == 0) {
        const int at[2] = {row, column};
        ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &y, at, out);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
    }
}

__constant__ CUtensorMap sums;

// sums[0][k] += x of all CTAs, sums[1][k] likewise
extern "C" __global__ void add_up(const int *x) {
    __shared__ alignas(128) int tile[2][32];
    const int i = threadIdx.x;
    tile[0][i] = x[blockIdx.x * 32 + i];
    tile[1][i] = -x[blockIdx.x * 32 + i];
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (i == 0) {
        const int at[2] = {0, 0};
        ptx::cp_reduce_async_bulk_tensor(ptx::space_global, ptx::space_shared, ptx::op_add, &sums, at, tile);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
    }
}

// Every CTA makes its own map out of a given one: the row-th row of x, then copies its first 64 elements to y.
extern "C" __global__ void changed(const __grid_constant__ CUtensorMap given, CUtensorMap *made, const float *x, int pitch,
                                   float *y) {
    __shared__ alignas(128) CUtensorMap map;
    __shared__ alignas(128) float row[64];
    __shared__ barrier full;
    const int i = threadIdx.x;
    if (i == 0) {
        map = given;
        // cuda::ptx of CUDA 13.0 has tensormap.replace for sm_90a and sm_100a only
        const unsigned at = __cvta_generic_to_shared(&map);
        asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;"
                     ::"r"(at), "l"(x + blockIdx.x * pitch) : "memory");
        asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %1;"
                     ::"r"(at), "r"(40 + blockIdx.x) : "memory");
        init(&full, blockDim.x);
        ptx::fence_proxy_async(ptx::space_shared);
    }
    __syncthreads();
    CUtensorMap *const mine = made + blockIdx.x;
    if (i < 32)
        ptx::tensormap_cp_fenceproxy(ptx::sem_release, ptx::scope_gpu, mine, &map, ptx::n32_t<128>());
    __syncthreads();
    barrier::arrival_token token;
    if (i == 0) {
        const int at[1] = {0};
        ptx::fence_proxy_tensormap_generic(ptx::sem_acquire, ptx::scope_gpu, mine, ptx::n32_t<128>());
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, row, mine, at,
                                  cuda::device::barrier_native_handle(full));
        token = cuda::device::barrier_arrive_tx(full, 1, sizeof row);
    } else {
        token = full.arrive();
    }
    full.wait(std::move(token));
    y[blockIdx.x * 64 + i] = row[i];
}
