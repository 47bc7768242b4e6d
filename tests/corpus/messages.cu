// printf and assert.
#include <cassert>
#include <cstdio>

extern "C" __global__ void hello(const float *x) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i % 32 == 0)
        printf("thread %3d of %u: %5.2f %s 0x%llx %c|%-6d|%%\n", i, blockDim.x, x[i], i ? "later" : "first",
               1ull << 40, 'A' + i / 32, i);
    if (i == 1)
        printf("no arguments\n");
}

extern "C" __global__ void checked(const int *x) {
    assert(x[threadIdx.x] < 100);
}
