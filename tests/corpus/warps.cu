// Warp intrinsics, cooperative groups, clocks, nanosleep.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

extern "C" __global__ void intrinsics(const int *x, int *y, int n) {
    const int i = threadIdx.x, lane = i & 31;
    const int v = x[i];
    int *out = y + i;
    out[0 * n] = __shfl_sync(~0u, v, 5);
    out[1 * n] = __shfl_up_sync(~0u, v, 3, 16);
    out[2 * n] = __shfl_down_sync(~0u, v, 7);
    out[3 * n] = __shfl_xor_sync(~0u, v, 9, 16);
    out[4 * n] = (int)__ballot_sync(~0u, v > 0);
    out[5 * n] = __all_sync(~0u, v > -1000) + 2 * __any_sync(~0u, v == x[0]);
    out[6 * n] = (int)__match_any_sync(~0u, v & 3);
    int all;
    out[7 * n] = (int)__match_all_sync(~0u, lane >> 5, &all) + all;
    out[8 * n] = __reduce_add_sync(~0u, v);
    out[9 * n] = __reduce_max_sync(~0u, v) - __reduce_min_sync(~0u, v);
    out[10 * n] = (int)(__reduce_and_sync(~0u, (unsigned)v) ^ __reduce_or_sync(~0u, (unsigned)v));
    out[11 * n] = __popc(v) + __clz(v) + __ffs(v) + (int)__brev((unsigned)v);
    out[12 * n] = (int)__byte_perm((unsigned)v, (unsigned)lane, 0x3650);
    out[13 * n] = (int)__funnelshift_l((unsigned)v, (unsigned)lane, 7);
    out[14 * n] = __dp4a(v, v, lane);
    out[15 * n] = (int)__fns((unsigned)v, 0, 3);
    if (lane & 1)
        out[16 * n] = (int)__activemask();
    else
        out[16 * n] = __shfl_sync(0x55555555u, v, 6);
    out[17 * n] = (int)__vadd4((unsigned)v, 0x01020304u);
    out[18 * n] = __sad(v, lane, 1) + __mulhi(v, v) + __rhadd(v, lane);
    out[19 * n] = (int)__shfl_sync(~0u, (long long)v << 20, 3);
}

extern "C" __global__ void groups(const int *x, int *y, int n) {
    __shared__ int partial[32];
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    auto tile = cg::tiled_partition<8>(warp);
    const int i = block.thread_rank(), v = x[i];
    y[i] = cg::reduce(warp, v, cg::plus<int>());
    y[n + i] = cg::reduce(tile, v, cg::greater<int>());
    y[2 * n + i] = cg::inclusive_scan(tile, v);
    y[3 * n + i] = cg::exclusive_scan(warp, v);
    y[4 * n + i] = tile.shfl_xor(v, 3) + tile.meta_group_rank();
    if (warp.thread_rank() == 0)
        partial[warp.meta_group_rank()] = y[i];
    block.sync();
    int sum = 0;
    for (int k = 0; k < (int)warp.meta_group_size(); k++)
        sum += partial[k];
    y[5 * n + i] = sum;
    if (v & 1) {
        auto some = cg::coalesced_threads();
        y[6 * n + i] = some.size() * 100 + some.thread_rank();
        y[7 * n + i] = cg::reduce(some, v, cg::plus<int>());
    } else {
        y[6 * n + i] = y[7 * n + i] = -1;
    }
    auto kind = cg::labeled_partition(warp, v % 3);
    y[8 * n + i] = kind.size();
}

extern "C" __global__ void clocks(long long *y) {
    const long long start = clock64();
    const unsigned low = clock();
    __nanosleep(100);
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    y[threadIdx.x] = clock64() - start;
    y[blockDim.x + threadIdx.x] = (unsigned)clock() - low;
    y[2 * blockDim.x + threadIdx.x] = time != 0;
}
