/* Launches: the checks before them, and the distribution of CTAs to threads. The calling thread runs CTAs too, so a
 * launch makes progress even if no helper thread can be started. */
#include <fenv.h>
#include <stdlib.h>
#include <string.h>

#include "platform/thread.h"
#include "vm/defined/defined.h"
#include "vm/execute/print.h"
#include "vm/machine/base.h"
#include "vm/machine/counters.h"
#include "vm/machine/device.h"
#include "vm/machine/environment.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/memory.h"
#include "vm/machine/options.h"
#include "vm/machine/program.h"
#include "vm/machine/shade.h"
#include "vm/machine/types.h"
#include "vm/observe/profile.h"
#include "vm/observe/trace.h"
#include "vm/run/run.h"

static struct {
    struct mutex lock;
    struct condition work, done;
    struct launch *first; /* launches with CTAs that no thread has taken yet */
    unsigned threads;
} pool = {.lock = MUTEX_INITIALIZER, .work = CONDITION_INITIALIZER, .done = CONDITION_INITIALIZER};

static _Thread_local struct worker *own;
static struct thread_value own_value;
static struct once own_once = ONCE_INITIALIZER;

/* ---- workers ------------------------------------------------------------------------------------------------- */

static void worker_free(void *pointer) {
    struct worker *worker = pointer;
    if (worker == NULL) {
        return;
    }
    free(worker->counts);
    room_free(worker->spare);
    free(worker);
}

static void make_value(void) {
    thread_value_init(&own_value, worker_free);
}

/* Return the calling thread's worker. It is freed when the thread ends. */
static struct worker *worker_get(void) {
    once_run(&own_once, make_value);
    if (own == NULL) {
        own = calloc(1, sizeof *own);
        thread_value_set(&own_value, own);
    }
    return own;
}

/* Prepare a worker for a launch. Return false when out of memory. */
static bool worker_prepare(struct worker *worker, struct launch *launch) {
    worker->launch = launch;
    free(worker->counts);
    worker->counts = calloc(launch->function->length + 1u, sizeof *worker->counts);
    memset(worker->bytes, 0, sizeof worker->bytes);
    memset(worker->cached, 0, sizeof worker->cached);
    worker->tensor_flops = worker->executed = worker->checked = worker->changes = 0;
    return worker->counts != NULL;
}

/* End a launch because the host is out of memory. */
void launch_out_of_memory(struct launch *launch) {
    mutex_lock(&launch->lock);
    if (launch->result == CUDA_SUCCESS) {
        launch->result = CUDA_ERROR_OUT_OF_MEMORY;
        strcpy(launch->fault, "out of host memory");
    }
    mutex_unlock(&launch->lock);
    atomic_store(&launch->stop, 1);
}

/* Return a stride that visits all CTAs. */
static uint64_t choose_stride(uint64_t seed, uint64_t ctas) {
    if (ctas >> 32 != 0) { /* products of turns and strides would overflow */
        return 1;
    }
    for (uint64_t s = (seed * 0xbf58476d1ce4e5b9u >> 7) % ctas;; s = (s + 1) % ctas) {
        uint64_t a = s, b = ctas;
        while (a != 0) {
            const uint64_t rest = b % a;
            b = a;
            a = rest;
        }
        if (b == 1) {
            return s;
        }
    }
}

/* Run CTAs of a launch on this thread until none are left. */
static void run_ctas(struct launch *launch) {
    struct worker *worker = worker_get();
    if (worker == NULL || !worker_prepare(worker, launch) || !profile_worker_open(worker)) {
        launch_out_of_memory(launch);
        return;
    }
    schedule_run(worker, launch);
    counters_add(launch->device, worker, launch->function);
    profile_worker_close(worker);
}

/* Run CTAs in the default floating-point environment: the host may flush subnormals, as XLA does around callbacks, or
 * round in another direction. */
static void work(struct launch *launch) {
    fenv_t host;
    fegetenv(&host);
    fesetenv(FE_DFL_ENV);
    run_ctas(launch);
    fesetenv(&host);
}

/* ---- the pool ------------------------------------------------------------------------------------------------ */

static CUresult read_threads(uint64_t *threads) {
    return environment_number("PYSM120_THREADS", 1, 1024, 0, threads);
}

/* Return how many threads run CTAs. */
unsigned launch_threads(void) {
    uint64_t asked;
    read_threads(&asked);
    return asked != 0 ? (unsigned)asked : thread_processors();
}

/* Body of a helper thread: take a launch with CTAs left, run CTAs, notify its owner. */
static void help(void *unused) {
    (void)unused;
    mutex_lock(&pool.lock);
    for (;;) {
        struct launch *launch = pool.first;
        while (launch != NULL && !schedule_has_work(launch)) {
            launch = launch->following;
        }
        if (launch == NULL) {
            condition_wait(&pool.work, &pool.lock);
            continue;
        }
        ++launch->helpers;
        mutex_unlock(&pool.lock);
        work(launch);
        mutex_lock(&pool.lock);
        --launch->helpers;
        condition_wake_all(&pool.done);
    }
}

void launch_lock(void) {
    mutex_lock(&pool.lock);
}

void launch_unlock(bool is_child) {
    if (is_child) {
        condition_init(&pool.work);
        condition_init(&pool.done);
        pool.first = NULL;
        pool.threads = 0;
    }
    mutex_unlock(&pool.lock);
}

/* Start missing helper threads. The lock is held. */
static void start_helpers(unsigned wanted) {
    while (pool.threads < wanted && thread_start(help, NULL)) {
        ++pool.threads;
    }
}

/* Share a launch with the helpers, run CTAs, and wait until all helpers have left it. */
static void run_shared(struct launch *launch) {
    const unsigned threads = launch_threads();
    /* At level full, and if the launch is watched, the seed determines the order of CTAs, and so of atomics in
     * global memory. */
    const bool alone = threads < 2 || launch->clusters < 2 || launch->checks == CHECKS_FULL || launch->trace != NULL ||
                       launch->resident != 0;
    if (!alone) {
        mutex_lock(&pool.lock);
        start_helpers(threads - 1);
        launch->following = pool.first;
        pool.first = launch;
        condition_wake_all(&pool.work);
        mutex_unlock(&pool.lock);
    }
    work(launch);
    if (alone) {
        return;
    }
    mutex_lock(&pool.lock);
    struct launch **link = &pool.first;
    while (*link != launch) {
        link = &(*link)->following;
    }
    *link = launch->following;
    while (launch->helpers != 0) {
        condition_wait(&pool.done, &pool.lock);
    }
    mutex_unlock(&pool.lock);
}

/* ---- checks -------------------------------------------------------------------------------------------------- */

/* Compute the CTAs of the grid. The launch of a kernel with .blocksareclusters gives its clusters. */
static void count_ctas(const struct CUfunc_st *f, const uint32_t grid[3], uint32_t ctas[3]) {
    for (int k = 0; k < 3; ++k) {
        const uint64_t n = (uint64_t)grid[k] * (f->counts_clusters ? f->cluster[k] : 1);
        ctas[k] = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX; /* which check_grid() rejects */
    }
}

/* Check that grid and block fit the chip and the kernel's own declarations. */
static CUresult check_grid(const struct CUfunc_st *f, const uint32_t grid[3], const uint32_t block[3]) {
    const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    for (int k = 0; k < 3; ++k) {
        if (grid[k] == 0 || block[k] == 0 || (k != 0 && grid[k] > 65535) || grid[k] > INT32_MAX) {
            return fault_set(CUDA_ERROR_INVALID_VALUE,
                             "%s: grid (%u, %u, %u), block (%u, %u, %u); expected 1 to 2147483647 (x) and 65535 (y, z)",
                             f->name, grid[0], grid[1], grid[2], block[0], block[1], block[2]);
        }
    }
    if (block[0] > 1024 || block[1] > 1024 || block[2] > 64 || threads > 1024) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "%s: block (%u, %u, %u) has %llu threads; expected at most 1024",
                         f->name, block[0], block[1], block[2], (unsigned long long)threads);
    }
    if (f->required[0] != 0 && memcmp(f->required, block, sizeof f->required) != 0) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "%s: block (%u, %u, %u), but the kernel requires (%u, %u, %u)",
                         f->name, block[0], block[1], block[2], f->required[0], f->required[1], f->required[2]);
    }
    const uint64_t most = (uint64_t)f->maximum[0] * f->maximum[1] * f->maximum[2];
    if (most != 0 && threads > most) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "%s: %llu threads, but the kernel declares at most %llu", f->name,
                         (unsigned long long)threads, (unsigned long long)most);
    }
    return CUDA_SUCCESS;
}

/* Check that the clusters of a kernel divide its grid, and that one fits the virtual device. */
static CUresult check_cluster(const struct launch *launch) {
    const char *const name = launch->function->name;
    const uint32_t *const c = launch->cluster, *const g = launch->grid;
    if (g[0] % c[0] != 0 || g[1] % c[1] != 0 || g[2] % c[2] != 0) {
        return fault_set(CUDA_ERROR_INVALID_VALUE,
                         "%s: grid (%u, %u, %u) with clusters of (%u, %u, %u) CTAs; expected multiples of them", name,
                         g[0], g[1], g[2], c[0], c[1], c[2]);
    }
    if (launch->warps > MAX_WARPS) {
        return fault_set(CUDA_ERROR_NOT_SUPPORTED,
                         "%s: %u CTAs of %u warps in a cluster; the virtual device runs at most %d warps of a cluster",
                         name, launch->ranks, launch->cta_warps, (int)MAX_WARPS);
    }
    if (launch->shared_bytes > MOST_SHARED) {
        return fault_set(CUDA_ERROR_NOT_SUPPORTED,
                         "%s: %u CTAs of %u bytes of shared memory in a cluster; the virtual device holds %d bytes of "
                         "a cluster",
                         name, launch->ranks, launch->cta_shared, (int)MAX_SHARED);
    }
    return CUDA_SUCCESS;
}

/* Check that there is enough shared memory, and that its use was enabled. */
static CUresult check_dynamic(const struct CUfunc_st *f, uint32_t dynamic) {
    const uint64_t total = (uint64_t)f->static_shared + dynamic;
    if (total > MAX_SHARED) {
        return fault_set(CUDA_ERROR_INVALID_VALUE,
                         "%s: %u static and %u dynamic bytes of shared memory; expected at most %d", f->name,
                         f->static_shared, dynamic, MAX_SHARED);
    }
    if (total > DEFAULT_SHARED && (int64_t)dynamic > f->dynamic_limit) {
        return fault_set(CUDA_ERROR_INVALID_VALUE,
                         "%s: %u dynamic bytes of shared memory; a total of more than %d needs "
                         "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, which is %d",
                         f->name, dynamic, DEFAULT_SHARED, f->dynamic_limit);
    }
    return CUDA_SUCCESS;
}

/* Choose the seed, the limit of instructions and the patience. The number of threads is read when threads are
 * started. */
static CUresult choose_numbers(uint64_t *seed, uint64_t *limit, uint64_t *patience) {
    uint64_t threads;
    CUresult r = environment_number("PYSM120_SEED", 0, UINT64_MAX, 0, seed);
    r = r != CUDA_SUCCESS ? r : environment_number("PYSM120_INSTRUCTION_LIMIT", 1, UINT64_MAX, 1ULL << 40, limit);
    r = r != CUDA_SUCCESS ? r : environment_number("PYSM120_PATIENCE", 0, 86400000, 1000, patience);
    const struct driver_options configured = options_get();
    if (configured.has_seed) {
        *seed = configured.seed;
    }
    return r != CUDA_SUCCESS ? r : read_threads(&threads);
}

/* Check that the registers of a CTA do not take too much host memory in each thread. */
static CUresult check_registers(const struct CUfunc_st *f, const uint32_t block[3]) {
    enum { MOST = 1 << 30 };
    const uint64_t warps = ((uint64_t)block[0] * block[1] * block[2] + WARP - 1) / WARP;
    const uint64_t bytes = warps * f->register_bytes;
    if (bytes <= MOST) {
        return CUDA_SUCCESS;
    }
    return fault_set(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
                     "%s: %llu registers in each of %llu warps are %llu bytes; expected at most %d; declare fewer, or "
                     "launch fewer threads",
                     f->name, (unsigned long long)f->register_bytes / (4 * WARP), (unsigned long long)warps,
                     (unsigned long long)bytes, (int)MOST);
}

uint32_t launch_shared(const struct CUfunc_st *f, uint32_t dynamic) {
    const uint32_t align = f->dynamic_align;
    const uint32_t start = (SHARED_BASE + f->static_shared + align - 1) / align * align - SHARED_BASE;
    return dynamic != 0 ? start + dynamic : f->static_shared;
}

/* Check that the chip holds the whole grid at once. */
static CUresult check_together(const struct launch *launch) {
    const uint64_t most = launch_resident(launch), ctas = launch->clusters * launch->ranks;
    if (ctas <= most) {
        return CUDA_SUCCESS;
    }
    return fault_set(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "%s: %llu CTAs; expected at most %llu",
                     launch->function->name, (unsigned long long)ctas, (unsigned long long)most);
}

/* Copy the constants for each CTA of a cluster, where addresses of shared memory differ. Return false when out of
 * memory. */
static bool copy_constants(struct launch *launch) {
    const struct CUfunc_st *f = launch->function;
    if (launch->ranks == 1) {
        return true;
    }
    launch->constants = malloc((size_t)launch->ranks * f->constant_bytes + 64);
    for (uint32_t r = 0; launch->constants != NULL && r < launch->ranks; ++r) {
        char *const to = launch->constants + (size_t)r * f->constant_bytes;
        memcpy(to, f->constants, f->constant_bytes);
        for (uint32_t k = 0; k < f->shared_constant_count; ++k) {
            const uint32_t slot = f->shared_constants[k] & ~1u, is_wide = f->shared_constants[k] & 1u;
            for (uint32_t lane = 0; lane < WARP; ++lane) {
                if (is_wide != 0) {
                    *(uint64_t *)(void *)(to + slot + 8 * lane) += (uint64_t)r * launch->span;
                } else {
                    *(uint32_t *)(void *)(to + slot + 4 * lane) += r * launch->span;
                }
            }
        }
    }
    return launch->constants != NULL;
}

/* Divide a launch into clusters. Each has its CTAs' shared memory in a row, with gaps in which nothing may be. */
static void divide(struct launch *launch, const struct CUfunc_st *f) {
    enum { PATTERN = 1024 /* bytes after which the swizzles of tensor copies repeat */ };
    launch->clusters = launch->ranks = 1;
    for (int k = 0; k < 3; ++k) {
        launch->cluster[k] = f->cluster[k] != 0 ? f->cluster[k] : 1;
        launch->ranks *= launch->cluster[k];
        launch->clusters *= launch->grid[k] / launch->cluster[k];
    }
    launch->cta_warps = (launch->threads + WARP - 1) / WARP;
    launch->warps = launch->ranks * launch->cta_warps;
    launch->span = launch->ranks == 1 ? 0 : (launch->cta_shared + PATTERN - 1) / PATTERN * PATTERN + PATTERN;
    launch->shared_bytes = (launch->ranks - 1) * launch->span + launch->cta_shared;
}

/* Create the parts of a launch. On failure nothing is left allocated. */
static CUresult open_parts(struct launch *launch, bool is_cooperative) {
    enum { WORKSPACE = 8 }; /* its size, which nothing reads, and the count of a barrier */
    const struct driver_options configured = options_get();
    CUresult r = trace_open(launch, &configured.watch);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    if (!schedule_open(launch)) {
        trace_close(launch);
        return fault_set(CUDA_ERROR_OUT_OF_MEMORY, "out of host memory");
    }
    r = is_cooperative ? memory_alloc(launch->device, WORKSPACE, ALLOCATION_VARIABLE, &launch->workspace)
                       : CUDA_SUCCESS;
    if (r != CUDA_SUCCESS) {
        schedule_close(launch);
        trace_close(launch);
    }
    return r;
}

static void close_parts(struct launch *launch) {
    trace_close(launch);
    schedule_close(launch);
    if (launch->workspace != 0) {
        memory_free(launch->device, launch->workspace, ALLOCATION_VARIABLE);
    }
}

/* Run a kernel to its end. */
CUresult launch_run(struct device *device, struct CUfunc_st *f, const uint32_t given[3], const uint32_t block[3],
                    uint32_t dynamic, void **arguments, bool is_cooperative) {
    uint32_t grid[3];
    count_ctas(f, given, grid);
    enum checks checks;
    uint64_t seed = 0, limit = 0, patience = 0;
    CUresult r = check_grid(f, grid, block);
    r = r != CUDA_SUCCESS ? r : check_dynamic(f, dynamic);
    r = r != CUDA_SUCCESS ? r : check_registers(f, block);
    r = r != CUDA_SUCCESS ? r : options_read_checks(&checks);
    r = r != CUDA_SUCCESS ? r : choose_numbers(&seed, &limit, &patience);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    struct launch launch = {.function = f,
                            .device = device,
                            .grid = {grid[0], grid[1], grid[2]},
                            .block = {block[0], block[1], block[2]},
                            .threads = block[0] * block[1] * block[2],
                            .cta_shared = launch_shared(f, dynamic),
                            .dynamic_bytes = dynamic,
                            .multiprocessors = options_multiprocessors(),
                            .checks = checks,
                            .seed = seed,
                            .instruction_limit = limit,
                            .patience = patience};
    divide(&launch, f);
    if ((r = check_cluster(&launch)) != CUDA_SUCCESS) {
        return r;
    }
    if (is_cooperative && (r = check_together(&launch)) != CUDA_SUCCESS) {
        return r;
    }
    if (trace_is_looking()) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "%s: the callback of a watched launch cannot start a launch",
                         f->name);
    }
    if (f->parameter_count != 0 && arguments == NULL) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "%s: no arguments; expected %u", f->name, f->parameter_count);
    }
    launch.parameters = calloc(1, f->parameter_bytes + 16u);
    if (launch.parameters == NULL) {
        return fault_set(CUDA_ERROR_OUT_OF_MEMORY, "out of host memory");
    }
    for (uint32_t k = 0; k < f->parameter_count; ++k) {
        memcpy(launch.parameters + f->parameters[k].offset, arguments[k], f->parameters[k].bytes);
    }
    launch.interrupts = atomic_load(&device->interrupts);
    launch.stride = choose_stride(launch.seed, launch.clusters);
    r = copy_constants(&launch) ? open_parts(&launch, is_cooperative)
                                : fault_set(CUDA_ERROR_OUT_OF_MEMORY, "out of host memory");
    if (r != CUDA_SUCCESS) {
        free(launch.constants);
        free(launch.parameters);
        return r;
    }
    if (checks == CHECKS_FULL) {
        launch.watcher[launch.watchers++] = &defined_watcher;
    } else {
        shade_lose_all(device);
    }
    mutex_init(&launch.lock);
    memory_enter(device, &launch);
    profile_join(&launch);
    run_shared(&launch);
    profile_leave(&launch);
    memory_leave(device, &launch);
    mutex_destroy(&launch.lock);
    close_parts(&launch);
    print_flush(&launch);
    free(launch.constants);
    free(launch.parameters);
    return launch.result != CUDA_SUCCESS ? fault_set(launch.result, "%s", launch.fault) : CUDA_SUCCESS;
}
