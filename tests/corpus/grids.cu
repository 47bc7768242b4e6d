// Cooperative launches: all CTAs of a grid meet.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// y = the reverse of x * sum(x), by way of scaled; needs both meetings
template <bool MEETS_TWICE> __device__ void reverse_scaled(const int *x, int *sums, int *scaled, int *y, int n) {
    const auto grid = cg::this_grid();
    __shared__ int own;
    if (threadIdx.x == 0)
        own = 0;
    __syncthreads();
    for (int i = grid.thread_rank(); i < n; i += grid.size())
        atomicAdd_block(&own, x[i]);
    __syncthreads();
    if (threadIdx.x == 0)
        sums[grid.block_rank()] = own;
    grid.sync();
    int sum = 0;
    for (int k = 0; k < grid.num_blocks(); k++)
        sum += sums[k];
    for (int i = grid.thread_rank(); i < n; i += grid.size())
        scaled[i] = x[i] * sum;
    if (MEETS_TWICE)
        grid.sync();
    for (int i = grid.thread_rank(); i < n; i += grid.size())
        y[i] = scaled[n - 1 - i];
}

extern "C" __global__ void meets(const int *x, int *sums, int *scaled, int *y, int n) {
    reverse_scaled<true>(x, sums, scaled, y, n);
}

extern "C" __global__ void forgets_to_meet(const int *x, int *sums, int *scaled, int *y, int n) {
    reverse_scaled<false>(x, sums, scaled, y, n);
}

// a meeting in two halves: what a CTA does between them nobody waits for
extern "C" __global__ void arrives(const int *x, int *y, int *z) {
    auto grid = cg::this_grid();
    const int i = grid.thread_rank(), other = (i + blockDim.x) % grid.size();
    y[i] = x[i] + 1;
    auto token = grid.barrier_arrive();
    const int own = 2 * x[i] + grid.is_valid();
    grid.barrier_wait(std::move(token));
    z[i] = y[other] + own;
}
