// Tensor cores: mma and ldmatrix as inline assembly behind a cp.async pipeline.
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

extern "C" __global__ void mma_inline(const __half *a, const __half *b, float *c, int k) {
    __shared__ __align__(128) __half sa[2][16 * 16], sb[2][8 * 16];
    const int lane = threadIdx.x;
    float d[4] = {};
    const auto fetch = [&](int stage, int at) {
        __pipeline_memcpy_async(&sa[stage][lane * 8], a + (lane / 2) * k + at + (lane % 2) * 8, 16);
        if (lane < 16)
            __pipeline_memcpy_async(&sb[stage][lane * 8], b + (lane / 2) * k + at + (lane % 2) * 8, 16);
        __pipeline_commit();
    };
    fetch(0, 0);
    for (int at = 0; at < k; at += 16) {
        const int stage = at / 16 & 1;
        if (at + 16 < k)
            fetch(stage ^ 1, at + 16);
        __pipeline_wait_prior(at + 16 < k ? 1 : 0);
        __syncwarp();
        unsigned x[4], y[2];
        const unsigned pa = (unsigned)__cvta_generic_to_shared(&sa[stage][(lane % 16) * 16 + (lane / 16) * 8]);
        const unsigned pb = (unsigned)__cvta_generic_to_shared(&sb[stage][(lane % 8) * 16 + (lane / 8 % 2) * 8]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(pa));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(pb));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
        __syncwarp();
    }
    const int row = lane / 4, column = lane % 4 * 2;
    c[row * 8 + column] = d[0];
    c[row * 8 + column + 1] = d[1];
    c[(row + 8) * 8 + column] = d[2];
    c[(row + 8) * 8 + column + 1] = d[3];
}
