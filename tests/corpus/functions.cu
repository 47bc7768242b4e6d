// Functions that are called: arguments, results, a stack, recursion, pointers to functions, switch tables.
struct Pair {
    int a[3];
    double b;
};

__device__ __noinline__ float scaled(float x, float y) { return x * y + 1.0f; }

__device__ __noinline__ Pair swapped(Pair p) {
    Pair q;
    q.a[0] = p.a[2];
    q.a[1] = p.a[1];
    q.a[2] = p.a[0];
    q.b = -p.b;
    return q;
}

__device__ __noinline__ int fill(int *to, int n, int seed) {
    for (int k = 0; k < n; k++)
        to[k] = seed * (k + 1);
    return n;
}

__device__ __noinline__ unsigned fibonacci(unsigned n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

__device__ __noinline__ int ackermann(int m, int n) {
    int trace[4] = {m, n, m + n, 0};
    if (m == 0)
        return n + 1;
    if (n == 0)
        return ackermann(m - 1, 1) + trace[3];
    const int inner = ackermann(m, n - 1);
    return ackermann(trace[0] - 1, inner) + trace[3];
}

__device__ __noinline__ long long wide(char a, short b, long long c, bool d) { return d ? a * b + c : c; }

extern "C" __global__ void calls(const float *x, float *y, int n) {
    const int i = threadIdx.x;
    y[i] = scaled(x[i], 3.0f);
    Pair p = {{i, i + 1, i + 2}, x[i]};
    if (i & 1)
        p = swapped(p);
    y[n + i] = (float)(p.a[0] * 100 + p.a[2]) + (float)p.b;
    int list[20];
    const int used = fill(list, 20, i);
    int sum = 0;
    for (int k = 0; k < used; k++)
        sum += list[(k * 7 + i) % 20];
    y[2 * n + i] = (float)sum;
    y[3 * n + i] = (float)wide((char)-i, (short)i, 5, i > 3);
}

extern "C" __global__ void recursion(unsigned *y, int n) {
    const int i = threadIdx.x;
    y[i] = fibonacci(i % 12);
    y[n + i] = (unsigned)ackermann(i % 3, i % 4);
}

typedef float (*Operation)(float, float);
__device__ __noinline__ float plus(float a, float b) { return a + b; }
__device__ __noinline__ float minus(float a, float b) { return a - b; }
__device__ __noinline__ float times(float a, float b) { return a * b; }
__device__ Operation operations[3] = {plus, minus, times};

extern "C" __global__ void pointers(const float *x, float *y, int n) {
    const int i = threadIdx.x;
    Operation operation = operations[(i / 3) % 3];
    y[i] = operation(x[i], 2.0f);
}

struct Shape {
    __device__ virtual float area(float x) const = 0;
};
struct Square : Shape {
    __device__ float area(float x) const override { return x * x; }
};
struct Circle : Shape {
    float factor;
    __device__ Circle(float f) : factor(f) {}
    __device__ float area(float x) const override { return factor * x * x; }
};

__device__ __noinline__ float measure(const Shape *s, float x) { return s->area(x); }

extern "C" __global__ void virtuals(const float *x, float *y, int n) {
    const int i = threadIdx.x;
    Square square;
    Circle circle(3.0f);
    const Shape *shape = i & 2 ? (const Shape *)&square : (const Shape *)&circle;
    y[i] = measure(shape, x[i]);
}

extern "C" __global__ void tables(const int *x, int *y, int n) {
    const int i = threadIdx.x;
    int v = x[i];
    switch (v) {
    case 0: v = i * 3; break;
    case 1: v = i ^ 0x55; break;
    case 2: y[n + i] = 7; v = __popc(i); break;
    case 3: v -= i * i; break;
    case 4: y[n + i] = i; v = 1 << (i & 7); break;
    case 5: v = ~i; break;
    case 6: v = i / 3; break;
    case 7: y[n + i] = v; v = i % 5; break;
    default: v = -1;
    }
    y[i] = v;
}
