// Constant and global variables with initial values, addresses in initialisers, dynamic shared memory, local arrays.
struct Node {
    const int *data;
    const Node *next;
    int count;
    float weight;
};

__constant__ float coefficients[4] = {0.5f, -1.25f, 3.0f, 1e-3f};
__constant__ unsigned char bytes[8] = {1, 2, 4, 8, 16, 32, 64, 128};
__constant__ struct {
    short a;
    double b;
    char c[5];
} mixed = {-7, 2.5, {'a', 'b', 'c', 'd', 0}};
__device__ int first[4] = {1, 2, 3, 4};
__device__ int second[2] = {50, 60};
__device__ Node tail = {second, nullptr, 2, 0.25f};
__device__ Node head = {first + 1, &tail, 3, 4.0f};
__device__ unsigned counter = 7;
__device__ const char *names[3] = {"zero", "one", "two"};
__device__ double2 vector = {1.5, -2.5};

extern "C" __global__ void variables(double *y, int n) {
    const int i = threadIdx.x;
    y[i] = coefficients[i & 3] * bytes[i & 7] + mixed.a + mixed.b + mixed.c[i % 5];
    double sum = 0;
    for (const Node *node = &head; node; node = node->next)
        for (int k = 0; k < node->count; k++)
            sum += node->data[k] * node->weight;
    y[n + i] = sum + names[i % 3][1] + vector.x * vector.y;
    if (i == 0)
        y[2 * n] = atomicAdd(&counter, 5u);
}

extern __shared__ __align__(16) unsigned char dynamic[];

extern "C" __global__ void shared_dynamic(const float *x, float *y, int n) {
    __shared__ float fixed[32];
    float *a = (float *)dynamic, *b = a + blockDim.x;
    const int i = threadIdx.x;
    a[i] = x[i];
    b[i] = 2 * x[i];
    if (i < 32)
        fixed[i] = (float)i;
    __syncthreads();
    const int j = blockDim.x - 1 - i;
    y[i] = a[j] - b[i] + fixed[i & 31];
}

extern "C" __global__ void local_arrays(const int *x, int *y, int n) {
    int heap[64];
    const int i = threadIdx.x;
    for (int k = 0; k < 64; k++)
        heap[k] = x[(i * 64 + k) % n];
#pragma unroll 1
    for (int k = 1; k < 64; k++)
#pragma unroll 1
        for (int j = k; j > 0 && heap[j - 1] > heap[j]; j--) {
            const int t = heap[j];
            heap[j] = heap[j - 1];
            heap[j - 1] = t;
        }
    for (int k = 0; k < 64; k++)
        y[i * 64 + k] = heap[k];
}
