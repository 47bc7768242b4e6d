// Cooperative groups of several warps, which use the shared memory that the system reserves, and the cluster of one CTA.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

extern "C" __global__ void wide_tiles(const int *x, int *y, int n) {
    const auto block = cg::this_thread_block();
    const auto tile = cg::tiled_partition<64>(block);
    const int i = block.thread_rank();
    __shared__ int turned[256];
    y[i] = cg::reduce(tile, x[i], cg::plus<int>());
    y[n + i] = tile.shfl(x[i], 37);
    turned[i] = x[i];
    tile.sync();
    y[2 * n + i] = turned[i ^ 63];
    y[3 * n + i] = tile.any(x[i] == 7) + 2 * tile.all(x[i] >= 0);
    y[4 * n + i] = tile.meta_group_rank() * 1000 + tile.thread_rank();
}

extern "C" __global__ void cluster(const int *x, int *y) {
    __shared__ int own[128];
    const auto all = cg::this_cluster();
    const int i = threadIdx.x;
    own[i] = x[blockIdx.x * 128 + i];
    all.sync();
    int *const other = all.map_shared_rank(own, all.block_rank());
    y[blockIdx.x * 128 + i] = other[127 - i] + 1000 * all.num_blocks() + 10000 * all.block_rank() +
                              100000 * all.query_shared_rank(own);
    all.sync();
}
