/* Time what a call costs the host, beside the launch of an empty kernel.
 *
 *     cc -O2 -Isrc benchmarks/host.c build/libsm120.so -Wl,-rpath,$PWD/build -o host && ./host cuda
 *
 * A figure is the least of several runs: microseconds of a call in a row of calls that the queue of the device holds,
 * on small problems. A call with splits launches two kernels, so two empty launches stand beside it. */
#define _POSIX_C_SOURCE 199309L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sm120.h"

enum { RUNS = 30, CALLS = 100, HEADS = 32, KV_HEADS = 8, HEAD_DIM = 128 };
static const char empty[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry empty() { ret; }\n";

static void check(sm120_status status) {
    if (status != SM120_OK) {
        fprintf(stderr, "host: %s\n", sm120_last_error());
        exit(EXIT_FAILURE);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

/* What is timed: an empty launch, attention with a cache, or attention. */
struct call {
    sm120_device *device;
    sm120_kernel *kernel;
    sm120_attention_with_kv_cache_args cached;
    sm120_attention_args args;
    sm120_address workspace;
    size_t bytes;
};

static sm120_status launch_empty(const struct call *call) {
    static const uint32_t one[3] = {1, 1, 1};
    return sm120_launch(call->kernel, one, one, 0, NULL, NULL, NULL, 0);
}

static sm120_status launch_cached(const struct call *call) {
    return sm120_attention_with_kv_cache(call->device, &call->cached, call->workspace, call->bytes);
}

static sm120_status launch_attention(const struct call *call) {
    return sm120_attention(call->device, &call->args, call->workspace, call->bytes);
}

/* Return the microseconds of a call. */
static double time_of(const struct call *call, sm120_status (*launch)(const struct call *)) {
    double least = 1e9;
    for (int run = 0; run < RUNS; ++run) {
        check(sm120_device_synchronize(call->device));
        const double start = now();
        for (int i = 0; i < CALLS; ++i) {
            check(launch(call));
        }
        const double each = (now() - start) / CALLS;
        least = each < least ? each : least;
    }
    check(sm120_device_synchronize(call->device));
    return least;
}

static sm120_tensor tensor(sm120_address address, int64_t rows, int64_t heads) {
    return (sm120_tensor){.address = address,
                          .dtype = SM120_BF16,
                          .batch_stride = rows * heads * HEAD_DIM,
                          .head_stride = HEAD_DIM,
                          .row_stride = heads * HEAD_DIM};
}

int main(int count, char **words) {
    struct call call = {0};
    sm120_module *module;
    check(sm120_device_open(count > 1 ? words[1] : "cuda", &call.device));
    check(sm120_module_load(call.device, empty, strlen(empty), "empty.ptx", &module));
    check(sm120_module_kernel(module, "empty", &call.kernel));
    const double one = time_of(&call, launch_empty);
    printf("an empty launch: %.2f us\n\n| call | launches | us | more than empty launches |\n|---|---|---|---|\n", one);
    static const int64_t caches[][3] = {{1, 512, 1}, {1, 512, 0}, {4, 512, 0}, {64, 64, 0}}; /* batch, keys, splits */
    for (size_t i = 0; i < sizeof caches / sizeof *caches; ++i) {
        const int64_t batch = caches[i][0], keys = caches[i][1];
        sm120_address q, k, v, o;
        const size_t rows = (size_t)(batch * HEADS * HEAD_DIM * 2),
                     all = (size_t)(batch * keys * KV_HEADS * HEAD_DIM * 2);
        check(sm120_alloc(call.device, rows, &q));
        check(sm120_alloc(call.device, rows, &o));
        check(sm120_alloc(call.device, all, &k));
        check(sm120_alloc(call.device, all, &v));
        call.cached = (sm120_attention_with_kv_cache_args){.size = sizeof call.cached,
                                                           .batch = batch,
                                                           .heads = HEADS,
                                                           .kv_heads = KV_HEADS,
                                                           .q_rows = 1,
                                                           .head_dim = HEAD_DIM,
                                                           .pages = batch,
                                                           .page_rows = keys,
                                                           .num_splits = caches[i][2],
                                                           .scale = 0.088f,
                                                           .q = tensor(q, 1, HEADS),
                                                           .o = tensor(o, 1, HEADS),
                                                           .k = tensor(k, keys, KV_HEADS),
                                                           .v = tensor(v, keys, KV_HEADS)};
        check(sm120_attention_with_kv_cache_workspace(call.device, &call.cached, &call.bytes));
        check(sm120_alloc(call.device, call.bytes + 16, &call.workspace));
        const double us = time_of(&call, launch_cached);
        const int launches = call.bytes != 0 ? 2 : 1;
        printf("| cache, %" PRId64 " x %" PRId64 " | %d | %.2f | %.2f |\n", batch, keys, launches, us,
               us - launches * one);
    }
    for (int64_t rows = 128; rows <= 512; rows *= 4) {
        sm120_address x[4];
        for (int i = 0; i < 4; ++i) {
            check(sm120_alloc(call.device, (size_t)(rows * HEADS * HEAD_DIM * 2), x + i));
        }
        call.args = (sm120_attention_args){.size = sizeof call.args,
                                           .precision = SM120_BF16,
                                           .batch = 1,
                                           .heads = HEADS,
                                           .kv_heads = HEADS,
                                           .q_rows = rows,
                                           .kv_rows = rows,
                                           .head_dim = HEAD_DIM,
                                           .q = tensor(x[0], rows, HEADS),
                                           .k = tensor(x[1], rows, HEADS),
                                           .v = tensor(x[2], rows, HEADS),
                                           .o = tensor(x[3], rows, HEADS),
                                           .scale = 0.088f};
        check(sm120_attention_workspace(call.device, &call.args, &call.bytes));
        check(sm120_alloc(call.device, call.bytes + 16, &call.workspace));
        const double us = time_of(&call, launch_attention);
        const int launches = call.bytes != 0 ? 2 : 1;
        printf("| attention, bf16, 1, %" PRId64 ", %d, %d | %d | %.2f | %.2f |\n", rows, HEADS, HEAD_DIM, launches, us,
               us - launches * one);
    }
    check(sm120_device_close(call.device));
    return EXIT_SUCCESS;
}
