// Matrices through nvcuda::wmma, in shared and global memory, of every type; a sparse mma as inline assembly.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;

// c = relu(a * b + bias): a [64][k], b [k][64], one warp for each 16 x 16 of c, a and b by way of shared memory.
extern "C" __global__ void matmul(const __half *a, const __half *b, const float *bias, float *c, int k) {
    __shared__ __align__(32) __half sa[64][24], sb[16][72];
    const int warp = threadIdx.x / 32, row = warp / 4 * 16, column = warp % 4 * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> x;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> y;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::load_matrix_sync(sum, bias + column, 0, wmma::mem_row_major); // every row the same
    for (int at = 0; at < k; at += 16) {
        for (int i = threadIdx.x; i < 64 * 16; i += blockDim.x) {
            sa[i / 16][i % 16] = a[i / 16 * k + at + i % 16];
            sb[i / 64][i % 64] = b[(at + i / 64) * 64 + i % 64];
        }
        __syncthreads();
        wmma::load_matrix_sync(x, &sa[row][0], 24);
        wmma::load_matrix_sync(y, &sb[0][column], 72);
        wmma::mma_sync(sum, x, y, sum);
        __syncthreads();
    }
    for (int i = 0; i < sum.num_elements; i++)
        sum.x[i] = fmaxf(sum.x[i], 0.0f);
    wmma::store_matrix_sync(c + row * 64 + column, sum, 64, wmma::mem_row_major);
}

template <int M, int N, int K, typename T, typename S, typename R, typename A, typename B>
__device__ void product(const S *a, const S *b, R *d, int lda, int ldb, int ldd, wmma::layout_t order) {
    wmma::fragment<wmma::matrix_a, M, N, K, T, A> x;
    wmma::fragment<wmma::matrix_b, M, N, K, T, B> y;
    wmma::fragment<wmma::accumulator, M, N, K, R> sum;
    wmma::fill_fragment(sum, R(1));
    wmma::load_matrix_sync(x, a, lda);
    wmma::load_matrix_sync(y, b, ldb);
    if constexpr (std::is_same<T, wmma::precision::tf32>::value)
        for (int i = 0; i < x.num_elements; i++)
            x.x[i] = wmma::__float_to_tf32(x.x[i]);
    wmma::mma_sync(sum, x, y, sum);
    wmma::store_matrix_sync(d, sum, ldd, order);
}
typedef wmma::row_major row;
typedef wmma::col_major col;

extern "C" __global__ void shapes(const __half *h, const __nv_bfloat16 *g, const float *f, const double *e,
                                  const signed char *s, float *y, int *z, double *w) {
    product<32, 8, 16, __half, __half, float, col, row>(h, h + 512, y, 32, 8, 8, wmma::mem_row_major);
    product<8, 32, 16, __nv_bfloat16, __nv_bfloat16, float, row, col>(g, g + 512, y + 256, 16, 16, 8,
                                                                     wmma::mem_col_major);
    product<16, 16, 8, wmma::precision::tf32, float, float, row, row>(f, f + 512, y + 512, 8, 16, 16,
                                                                     wmma::mem_row_major);
    product<16, 16, 16, signed char, signed char, int, row, col>(s, s + 512, z, 16, 16, 16, wmma::mem_row_major);
    product<8, 8, 4, double, double, double, row, col>(e, e + 64, w, 4, 4, 8, wmma::mem_row_major);
}

extern "C" __global__ void bits(const unsigned *x, int *y) {
    using namespace wmma::experimental;
    wmma::fragment<wmma::matrix_a, 8, 8, 32, precision::s4, row> a;
    wmma::fragment<wmma::matrix_b, 8, 8, 32, precision::s4, col> b;
    wmma::fragment<wmma::accumulator, 8, 8, 32, int> c;
    wmma::fill_fragment(c, 0);
    wmma::load_matrix_sync(a, x, 32);
    wmma::load_matrix_sync(b, x + 32, 32);
    wmma::mma_sync(c, a, b, c);
    wmma::store_matrix_sync(y, c, 8, wmma::mem_row_major);
    wmma::fragment<wmma::matrix_a, 8, 8, 128, precision::b1, row> p;
    wmma::fragment<wmma::matrix_b, 8, 8, 128, precision::b1, col> q;
    wmma::fragment<wmma::accumulator, 8, 8, 128, int> r;
    wmma::fill_fragment(r, 0);
    wmma::load_matrix_sync(p, x, 128);
    wmma::load_matrix_sync(q, x + 32, 128);
    wmma::bmma_sync(r, p, q, r, bmmaBitOpAND, bmmaAccumulateOpPOPC);
    wmma::store_matrix_sync(y + 64, r, 8, wmma::mem_row_major);
}

// d = a * b of one tile: a [16][32] with two of four, b [32][8]; each lane finds its own indices.
extern "C" __global__ void sparse(const __half *a, const __half *b, float *d) {
    const int g = threadIdx.x / 4, q = threadIdx.x % 4;
    unsigned x[4], y[4], meta = 0;
    for (int r = 0; r < 4; r++) {
        const int row = g + 8 * (r & 1), chunk = q + 4 * (r >> 1);
        __half two[2] = {};
        int n = 0;
        for (int i = 0; i < 4 && n < 2; i++)
            if (__half2float(a[row * 32 + 4 * chunk + i]) != 0)
                two[n++] = a[row * 32 + 4 * chunk + i];
        x[r] = __half_as_ushort(two[0]) | (unsigned)__half_as_ushort(two[1]) << 16;
    }
    if (q < 2) // lanes 0 and 1 of four: chunks 0 to 3, then 4 to 7, of rows g and g + 8
        for (int c = 0; c < 8; c++) {
            const int row = g + 8 * (c / 4), chunk = 4 * q + c % 4;
            int index[2] = {0, 3}, n = 0;
            for (int i = 0; i < 4; i++)
                if (__half2float(a[row * 32 + 4 * chunk + i]) != 0 && n < 2)
                    index[n++] = i;
            if (n == 1)
                index[1] = index[0] == 3 ? (index[0] = 2, 3) : 3;
            meta |= (unsigned)(index[0] | index[1] << 2) << 4 * c;
        }
    for (int r = 0; r < 4; r++)
        y[r] = __half_as_ushort(b[(2 * q + 8 * r) * 8 + g]) | (unsigned)__half_as_ushort(b[(2 * q + 8 * r + 1) * 8 + g]) << 16;
    float sum[4] = {};
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, 0x0;"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]), "r"(meta));
    d[g * 8 + 2 * q] = sum[0];
    d[g * 8 + 2 * q + 1] = sum[1];
    d[(g + 8) * 8 + 2 * q] = sum[2];
    d[(g + 8) * 8 + 2 * q + 1] = sum[3];
}
