// Clusters of several CTAs: distributed shared memory, its barrier, copies between CTAs, multicast, cancelled launches.
#include <cooperative_groups.h>
#include <cuda/ptx>
#include <cstdint>

namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;

// A histogram whose bins are spread over the CTAs of a cluster. out: bins of each cluster.
extern "C" __global__ void __cluster_dims__(4, 1, 1) histogram(const uint32_t *values, uint32_t n, uint32_t *out) {
    __shared__ uint32_t bins[32];
    const cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x < 32) {
        bins[threadIdx.x] = 0;
    }
    cluster.sync();
    for (uint32_t k = blockIdx.x * blockDim.x + threadIdx.x; k < n; k += gridDim.x * blockDim.x) {
        const uint32_t bin = values[k] % 128;
        atomicAdd(cluster.map_shared_rank(bins, bin / 32) + bin % 32, 1);
    }
    cluster.sync();
    if (threadIdx.x < 32) {
        const uint32_t first = blockIdx.x / cluster.num_blocks() * 128;
        out[first + 32 * cluster.block_rank() + threadIdx.x] = bins[threadIdx.x];
    }
}

// Where each CTA is: its position and rank in the cluster, the cluster's position, the sizes of both.
extern "C" __global__ void __cluster_dims__(2, 2, 1) places(uint32_t *out) {
    __shared__ uint32_t mine;
    const cg::cluster_group cluster = cg::this_cluster();
    const dim3 at = cluster.block_index(), size = cluster.dim_blocks();
    const uint32_t cta = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    if (threadIdx.x == 0) {
        mine = cta;
    }
    cluster.sync();
    if (threadIdx.x == 0) {
        const uint32_t next = (cluster.block_rank() + 1) % cluster.num_blocks();
        uint32_t *const o = out + 12 * cta, *const other = cluster.map_shared_rank(&mine, next);
        const uint32_t values[12] = {at.x, at.y, at.z, size.x, size.y, size.z, cluster.block_rank(),
                                     ptx::get_sreg_clusterid_x(), ptx::get_sreg_clusterid_y(),
                                     ptx::get_sreg_nclusterid_x(), *other, cluster.query_shared_rank(other)};
        for (int k = 0; k < 12; ++k) {
            o[k] = values[k];
        }
    }
    cluster.sync();
}

static __device__ uint32_t shared(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// Tiles that one CTA loads and both receive, through a ring of two stages. The consumers of both CTAs free a stage.
constexpr int STAGES = 2, TILE = 256; // words
extern "C" __global__ void __cluster_dims__(2, 1, 1) multicast(const uint32_t *in, int tiles, uint32_t *out) {
    __shared__ alignas(128) uint32_t tile[STAGES][TILE];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    const uint32_t rank = cg::this_cluster().block_rank(), t = threadIdx.x;
    if (t == 0) {
        for (int s = 0; s < STAGES; ++s) {
            ptx::mbarrier_init(&full[s], 1);
            ptx::mbarrier_init(&empty[s], 2);
        }
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    ptx::barrier_cluster_arrive(ptx::sem_relaxed);
    ptx::barrier_cluster_wait();
    uint32_t sum = 0;
    for (int k = 0; k < tiles; ++k) {
        const int s = k % STAGES;
        const uint32_t parity = k / STAGES % 2;
        if (t == 0) {
            ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full[s], TILE * 4);
            if (rank == 0) {
                while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &empty[s], parity ^ 1)) {
                }
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                             "[%0], [%1], %2, [%3], %4;" // cuda::ptx has it for sm_90a and sm_100a alone
                             :
                             : "r"(shared(tile[s])), "l"(in + k * TILE), "r"(TILE * 4), "r"(shared(&full[s])),
                               "h"((uint16_t)3)
                             : "memory");
            }
        }
        while (!ptx::mbarrier_try_wait_parity(&full[s], parity)) {
        }
        sum = sum * 3 + tile[s][t] + tile[s][t + 128] * (rank + 1);
        __syncthreads();
        if (t == 0) {
            uint64_t *const to = cg::this_cluster().map_shared_rank(&empty[s], 0);
            ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cluster, ptx::space_cluster, to);
        }
    }
    out[blockIdx.x * blockDim.x + t] = sum;
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
}

// Words, sums and a block that each CTA sends to the next one of the cluster.
extern "C" __global__ void __cluster_dims__(2, 1, 1) messages(const uint32_t *in, uint32_t *out) {
    __shared__ alignas(128) uint32_t words[128], block[32], copy[32], sums[4];
    __shared__ alignas(16) uint64_t vectors[64];
    __shared__ uint64_t landed;
    const cg::cluster_group cluster = cg::this_cluster();
    const uint32_t other = cluster.block_rank() ^ 1, t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    if (t < 32) {
        block[t] = in[i] ^ 0x5555;
        ptx::fence_proxy_async(ptx::space_shared);
    }
    if (t < 4) {
        sums[t] = 100;
    }
    if (t == 0) {
        ptx::mbarrier_init(&landed, 1);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &landed,
                                       sizeof words + sizeof copy + sizeof vectors + 128 * 4);
    }
    cluster.sync();
    uint64_t *const bar = cluster.map_shared_rank(&landed, other);
    ptx::st_async(cluster.map_shared_rank(&words[t], other), in[i], bar);
    ptx::red_async(ptx::op_add, cluster.map_shared_rank(&sums[t % 4], other), in[i], bar);
    if (t < 32) {
        const uint64_t two[2] = {in[i], in[i] + (1ull << 40)};
        ptx::st_async(cluster.map_shared_rank(&vectors[2 * t], other), two, bar);
    }
    if (t == 0) {
        ptx::cp_async_bulk(ptx::space_cluster, ptx::space_shared, cluster.map_shared_rank(copy, other), block,
                           sizeof copy, bar);
    }
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &landed, 0)) {
    }
    out[i] = words[t] + sums[t % 4] * 3 + copy[t % 32] * 5 + (uint32_t)(vectors[t % 64] >> 40) +
             (uint32_t)vectors[t % 64] * 7;
    cluster.sync();
}

// Tiles of a grid: each CTA takes the next ones by cancelling the launch of CTAs that have not started.
extern "C" __global__ void cancel(uint32_t *done, uint32_t *taken) {
    __shared__ alignas(16) uint4 answer;
    __shared__ uint64_t bar;
    uint32_t x = blockIdx.x, y = blockIdx.y, parity = 0;
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(&bar, 1);
    }
    __syncthreads();
    for (;;) {
        if (threadIdx.x == 0) {
            ptx::fence_proxy_async(ptx::space_shared);
            ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &bar, sizeof answer);
            ptx::clusterlaunchcontrol_try_cancel(&answer, &bar);
            atomicAdd(&done[x + gridDim.x * y], 1);
        }
        while (!ptx::mbarrier_try_wait_parity(&bar, parity)) {
        }
        parity ^= 1;
        const longlong2 handle = *reinterpret_cast<longlong2 *>(&answer);
        __int128 h;
        memcpy(&h, &handle, 16);
        if (!ptx::clusterlaunchcontrol_query_cancel_is_canceled(h)) {
            break;
        }
        x = ptx::clusterlaunchcontrol_query_cancel_get_first_ctaid_x<uint32_t>(h);
        y = ptx::clusterlaunchcontrol_query_cancel_get_first_ctaid_y<uint32_t>(h);
        if (threadIdx.x == 0) {
            atomicAdd(taken, 1);
        }
        __syncthreads();
    }
}
