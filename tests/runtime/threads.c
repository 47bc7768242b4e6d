/* Many launches at once: several threads, devices, levels of checks, and CTAs on several host threads. For
 * ThreadSanitizer; without it the results count. Prints what is wrong; ends with 0 where nothing is. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <sm120.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 4, ROUNDS = 25, CTAS = 24, BLOCK = 96, WORDS = CTAS * BLOCK, BYTES = 4 * WORDS };

/* Every kernel works on x[ctaid * 96 + tid], and begins alike. */
#define KERNEL(name)                                                                                                   \
    ".entry " name "(.param .u64 param_x) {\n"                                                                         \
    ".reg .pred p, q; .reg .b32 i, n, at, other, a, b; .reg .b64 x, mine, state, slice, text;\n"                       \
    ".shared .align 128 .b8 smem[512]; .shared .align 8 .b64 bar;\n"                                                   \
    "ld.param.u64 x, [param_x]; mov.u32 i, %tid.x; mov.u32 n, %ctaid.x;\n"                                             \
    "mul.lo.u32 n, n, 96; mad.wide.u32 slice, n, 4, x; mad.wide.u32 mine, i, 4, slice;\n"                              \
    "mov.u32 at, smem; mad.lo.u32 at, i, 4, at; setp.eq.u32 p, i, 0;\n"

static const char program[] = ".version 8.8\n.target sm_120f\n.address_size 64\n"
                              ".extern .func (.param .b32 status) vprintf(.param .b64 format, .param .b64 arguments);\n"
                              ".global .align 1 .b8 format[4] = {67, 84, 65, 0};\n"
    /* each CTA turns its words round, through shared memory */
    KERNEL("reverse") "ld.global.b32 a, [mine]; st.shared.b32 [at], a; bar.sync 0;\n"
                      "mov.u32 other, smem; sub.u32 b, 95, i; mad.lo.u32 other, b, 4, other;\n"
                      "ld.shared.b32 a, [other]; st.global.b32 [mine], a; ret; }\n"
    /* all CTAs add to word i % 16, first in shared memory */
    KERNEL("count") "setp.ge.u32 q, i, 16; mov.b32 b, 0; @!q st.shared.b32 [at], b; bar.sync 0;\n"
                    "and.b32 b, i, 15; mov.u32 other, smem; mad.lo.u32 other, b, 4, other;\n"
                    "red.shared.add.u32 [other], 1; bar.sync 0;\n"
                    "mad.wide.u32 mine, i, 4, x; @!q ld.shared.b32 a, [at]; @!q red.global.add.u32 [mine], a; ret; }\n"
    /* each CTA's words come by a bulk copy, are doubled, and go back by another */
    KERNEL("bulk") "@p mbarrier.init.shared::cta.b64 [bar], 1; bar.sync 0; mov.u32 other, smem;\n"
                   "@p mbarrier.arrive.expect_tx.shared::cta.b64 state, [bar], 384;\n"
                   "@p cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [other], [slice], 384, [bar];\n"
                   "again: mbarrier.try_wait.parity.shared::cta.b64 q, [bar], 0; @!q bra again;\n"
                   "ld.shared.b32 a, [at]; add.u32 a, a, a; st.shared.b32 [at], a;\n"
                   "fence.proxy.async.shared::cta; bar.sync 0;\n"
                   "@p cp.async.bulk.global.shared::cta.bulk_group [slice], [other], 384;\n"
                   "@p cp.async.bulk.commit_group; @p cp.async.bulk.wait_group 0; ret; }\n"
    /* some CTAs read address 0 */
    KERNEL("fault") "and.b32 a, n, 32; setp.ne.u32 q, a, 0; mov.b64 x, 0; @q ld.global.b32 a, [x]; ret; }\n"
    /* each CTA says "CTA" */
    KERNEL("say") "mov.u64 text, format; cvta.global.u64 text, text; mov.b64 x, 0; @!p ret;\n"
                  "{ .param .b32 result; .param .b64 f; .param .b64 v; st.param.b64 [f], text; st.param.b64 [v], x;\n"
                  "call (result), vprintf, (f, v); } ret; }\n"
    /* somebody has to stop it */
    KERNEL("forever") "again: bra again; }\n";

struct worker {
    pthread_t thread;
    sm120_device *device; /* shared with the other half of the workers */
    uint32_t number;
};

static int failures;
static atomic_int stopped; /* launches that were to be interrupted, and ended */
static pthread_mutex_t failures_lock = PTHREAD_MUTEX_INITIALIZER;

/* Count and print a failure. */
static void wrong(const char *entry, const char *what) {
    pthread_mutex_lock(&failures_lock);
    failures++;
    fprintf(stderr, "threads.c: %s: %s (%s)\n", entry, what, sm120_last_error());
    pthread_mutex_unlock(&failures_lock);
}

/* What word k is after a kernel that found k + 1 there. */
static uint32_t expected(const char *entry, uint32_t k) {
    if (!strcmp(entry, "reverse")) {
        return k / BLOCK * BLOCK + BLOCK - 1 - k % BLOCK + 1;
    }
    if (!strcmp(entry, "count")) {
        return k + 1 + (k < 16 ? WORDS / 16 : 0);
    }
    return !strcmp(entry, "bulk") ? 2 * (k + 1) : k + 1;
}

/* Run an entry on words of its own and look at the result. */
static void run(sm120_device *device, sm120_module *module, const char *entry) {
    const uint32_t grid[3] = {CTAS, 1, 1}, block[3] = {BLOCK, 1, 1};
    static _Thread_local uint32_t words[WORDS];
    sm120_kernel *kernel = NULL;
    sm120_address x = 0;
    const void *arguments[] = {&x};
    const size_t sizes[] = {sizeof x};
    for (uint32_t k = 0; k < WORDS; k++) {
        words[k] = k + 1;
    }
    if (sm120_module_kernel(module, entry, &kernel) || sm120_alloc(device, BYTES, &x) ||
        sm120_copy_to_device(device, x, words, BYTES, NULL)) {
        wrong(entry, "does not begin");
    }
    const sm120_status want = !strcmp(entry, "fault") ? SM120_FAULT : SM120_OK;
    if (sm120_launch(kernel, grid, block, 0, NULL, arguments, sizes, 1) != want) {
        wrong(entry, "ends in another way");
    }
    memset(words, 0, sizeof words);
    if (sm120_copy_to_host(device, words, x, BYTES, NULL)) {
        wrong(entry, "leaves nothing");
    }
    for (uint32_t k = 0; k < WORDS; k++) {
        if (words[k] != expected(entry, k)) {
            wrong(entry, "leaves something else");
            break;
        }
    }
    if (sm120_free(device, x)) {
        wrong(entry, "leaves memory that cannot be freed");
    }
}

/* Load, run, unload, again and again: now on the common device, now on one of its own. */
static void *work(void *argument) {
    static const char *const entries[] = {"reverse", "count", "bulk", "fault", "say"};
    static const char *const names[] = {"virtual:0", "virtual:1?checks=off&seed=3", "virtual:1?checks=full"};
    struct worker *const worker = argument;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        sm120_device *device = worker->device, *own = NULL;
        sm120_module *module = NULL;
        if (round % 3 == 2 && !sm120_device_open(names[(worker->number + round) % 3], &own)) {
            device = own;
        }
        if (sm120_module_load(device, program, sizeof program - 1, "threads.ptx", &module)) {
            wrong("the module", "does not load");
        }
        for (uint32_t k = 0; k < 2; k++) {
            run(device, module, entries[(worker->number + round + k) % 5]);
        }
        if (sm120_module_unload(module) || (own && sm120_device_close(own))) {
            wrong("the module", "cannot be closed");
        }
    }
    return NULL;
}

/* Run what never ends. */
static void *work_for_ever(void *argument) {
    const uint32_t grid[3] = {CTAS, 1, 1}, block[3] = {BLOCK, 1, 1};
    struct worker *const worker = argument;
    const sm120_address x = 0;
    const void *arguments[] = {&x};
    const size_t sizes[] = {sizeof x};
    sm120_module *module = NULL;
    sm120_kernel *kernel = NULL;
    if (sm120_module_load(worker->device, program, sizeof program - 1, "threads.ptx", &module) ||
        sm120_module_kernel(module, "forever", &kernel)) {
        wrong("forever", "does not load");
    }
    const sm120_status status = sm120_launch(kernel, grid, block, 0, NULL, arguments, sizes, 1);
    if (status != SM120_FAULT || !strstr(sm120_last_error(), "interrupted")) {
        wrong("forever", "ends in another way");
    }
    sm120_module_unload(module);
    atomic_fetch_add(&stopped, 1);
    return NULL;
}

/* Stop launches of two threads from a third. */
static void interrupt(sm120_device *device) {
    struct worker workers[2];
    const struct timespec moment = {0, 10000000};
    for (int k = 0; k < 2; k++) {
        workers[k] = (struct worker){.device = device};
        pthread_create(&workers[k].thread, NULL, work_for_ever, &workers[k]);
    }
    while (atomic_load(&stopped) < 2) { /* a launch that has not begun yet is not stopped */
        nanosleep(&moment, NULL);
        if (sm120_device_interrupt(device)) {
            wrong("forever", "cannot be interrupted");
        }
    }
    for (int k = 0; k < 2; k++) {
        pthread_join(workers[k].thread, NULL);
    }
}

int main(void) {
    struct worker workers[THREADS];
    sm120_device *devices[2] = {NULL, NULL};
    setenv("PYSM120_THREADS", "3", 1);
    setenv("PYSM120_VIRTUAL_DEVICES", "2", 1);
    if (sm120_device_open("virtual:0", &devices[0]) || sm120_device_open("virtual:1?seed=5", &devices[1])) {
        wrong("the devices", "do not open");
    }
    for (uint32_t k = 0; k < THREADS; k++) {
        workers[k] = (struct worker){.device = devices[k % 2], .number = k};
        pthread_create(&workers[k].thread, NULL, work, &workers[k]);
    }
    for (uint32_t k = 0; k < THREADS; k++) {
        pthread_join(workers[k].thread, NULL);
    }
    interrupt(devices[0]);
    if (sm120_device_close(devices[0]) || sm120_device_close(devices[1])) {
        wrong("the devices", "do not close");
    }
    return failures != 0;
}
