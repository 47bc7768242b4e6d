/* The host runs out of something: the n-th call of malloc or one of its kind, of mmap, of mprotect, or of
 * pthread_create fails, for every n. Each call of the library returns an error code with a message, or succeeds, and
 * nothing leaks. Arguments: what fails, the first n, the distance from one n to the next, and the device.
 *
 * This program defines these functions, so the library calls them. Each n has a process of its own, so that a crash
 * fails one n. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sm120.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "simulation.h"

enum { DONE = 1, FAILED = 2, CRASHED = 4 }; /* bits of an exit status */
enum kind { ALLOCATION, MAPPING, PROTECTION, THREAD, KINDS };
static const char *const kinds[KINDS] = {"malloc", "mmap", "mprotect", "pthread_create"};

static atomic_long countdown[KINDS]; /* the call that makes it 0 fails; not above 0: none fails */
static atomic_long live;             /* blocks and mappings that are not freed */

static uintptr_t library_start, library_end; /* its code; calls from elsewhere neither fail nor count */

/* Return whether a call comes from the library. */
static int is_own(const void *caller) {
    return (uintptr_t)caller >= library_start && (uintptr_t)caller < library_end;
}

#define IS_OWN() is_own(__builtin_extract_return_addr(__builtin_return_address(0)))

/* Return whether this call has to fail. */
static int fails(enum kind kind, int own) {
    return own && atomic_load(&countdown[kind]) > 0 && atomic_fetch_sub(&countdown[kind], 1) == 1;
}

/* Find the code of the library. */
static int find_library(struct dl_phdr_info *info, size_t bytes, void *unused) {
    (void)bytes;
    (void)unused;
    for (int i = 0; strstr(info->dlpi_name, "libsm120.so") != NULL && i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr) *const part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X) != 0) {
            library_start = info->dlpi_addr + part->p_vaddr;
            library_end = library_start + part->p_memsz;
        }
    }
    return 0;
}

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

/* The blocks of the library. The C library frees some of them: a call at the end of a function seems to come from the
 * function's caller. */
enum { SLOTS = 1 << 16 };
static uintptr_t owned[SLOTS]; /* 0: never used; 1: free again */
static atomic_flag owned_lock = ATOMIC_FLAG_INIT;

/* Replace a word in the slots from a block's own one on. Returns whether one of the words was there. */
static int replace(uintptr_t block, uintptr_t from, uintptr_t or_from, uintptr_t to) {
    int is_there = 0;
    while (atomic_flag_test_and_set(&owned_lock)) {
    }
    for (size_t i = block / 16 * 7919, n = 0; n < SLOTS && !is_there; ++i, ++n) {
        uintptr_t *const slot = &owned[i % SLOTS];
        is_there = *slot == from || *slot == or_from;
        if (is_there) {
            *slot = to;
        } else if (*slot == 0) {
            break;
        }
    }
    atomic_flag_clear(&owned_lock);
    return is_there;
}

static void *counted(void *memory, int own) {
    if (own && memory != NULL && replace((uintptr_t)memory, 0, 1, (uintptr_t)memory)) {
        atomic_fetch_add(&live, 1);
    }
    return memory;
}

void *malloc(size_t bytes) {
    const int own = IS_OWN();
    return fails(ALLOCATION, own) ? NULL : counted(__libc_malloc(bytes), own);
}

void *calloc(size_t count, size_t bytes) {
    const int own = IS_OWN();
    return fails(ALLOCATION, own) ? NULL : counted(__libc_calloc(count, bytes), own);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    const int own = IS_OWN();
    return fails(ALLOCATION, own) ? NULL : counted(__libc_memalign(alignment, bytes), own);
}

void *realloc(void *memory, size_t bytes) {
    const int own = IS_OWN();
    if (fails(ALLOCATION, own)) {
        return NULL;
    }
    const int was_own = memory != NULL && replace((uintptr_t)memory, (uintptr_t)memory, (uintptr_t)memory, 1);
    atomic_fetch_sub(&live, was_own);
    return counted(__libc_realloc(memory, bytes), own || was_own);
}

void free(void *memory) {
    const uintptr_t block = (uintptr_t)memory;
    atomic_fetch_sub(&live, memory != NULL && replace(block, block, block, 1));
    __libc_free(memory);
}

/* The function of the C library that the program's own one stands for. */
static void *next(const char *name) {
    void *const found = dlsym(RTLD_NEXT, name);
    if (found == NULL) {
        abort();
    }
    return found;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    void *(*real)(void *, size_t, int, int, int, off_t);
    void *const found = next("mmap");
    memcpy(&real, &found, sizeof real);
    void *const memory = fails(MAPPING, IS_OWN()) ? MAP_FAILED : real(address, bytes, protection, flags, file, offset);
    atomic_fetch_add(&live, IS_OWN() && memory != MAP_FAILED);
    return memory;
}

int munmap(void *address, size_t bytes) {
    int (*real)(void *, size_t);
    void *const found = next("munmap");
    memcpy(&real, &found, sizeof real);
    atomic_fetch_sub(&live, IS_OWN());
    return real(address, bytes);
}

int mprotect(void *address, size_t bytes, int protection) {
    int (*real)(void *, size_t, int);
    void *const found = next("mprotect");
    memcpy(&real, &found, sizeof real);
    return fails(PROTECTION, IS_OWN()) ? -1 : real(address, bytes, protection);
}

static int start(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *const found = next("pthread_create");
    memcpy(&real, &found, sizeof real);
    return real(thread, attributes, run, argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    return fails(THREAD, IS_OWN()) ? 11 : start(thread, attributes, run, argument);
}

/* ---- what is done ---- */

static const char program[] =
    ".version 8.8\n.target sm_120f\n.address_size 64\n"
    ".global .u32 seven = 7;\n.const .b32 table[4] = {1, 2, 3, 4};\n"
    ".func (.param .b32 result) twice(.param .b32 x) { .reg .b32 a; ld.param.b32 a, [x]; add.u32 a, a, a;\n"
    "st.param.b32 [result], a; ret; }\n"
    ".entry bad() { frob; ret; }\n"
    ".entry k(.param .u64 p) { .reg .b64 a; .reg .b32 x, i; .reg .pred q; .shared .b32 s[64];\n"
    "ld.param.u64 a, [p]; mov.u32 i, %tid.x; mad.wide.u32 a, i, 4, a; ld.global.u32 x, [seven];\n"
    "setp.gt.u32 q, i, 15; @q bra done; add.u32 x, x, 1; done: bar.sync 0;\n"
    "{ .param .b32 t; .param .b32 r; st.param.b32 [t], x; call (r), twice, (t); ld.param.b32 x, [r]; }\n"
    "st.global.u32 [a], x; ret; }\n";

static int failures;

/* Check a status: a failure has a message. Returns whether the call has succeeded. */
static int fine(sm120_status status, const char *call) {
    if (status < SM120_OK || status > SM120_DRIVER_ERROR || status == SM120_FAULT ||
        (status != SM120_OK) != (sm120_last_error()[0] != '\0')) {
        printf("%s: status %d, \"%s\"\n", call, status, sm120_last_error());
        ++failures;
    }
    return status == SM120_OK;
}

static int32_t see(void *context, const sm120_step *step) {
    sm120_step_info info = {.size = sizeof info};
    (void)context;
    (void)fine(sm120_step_query(step, &info), "sm120_step_query");
    return 0;
}

/* Launch the kernel, and look at its results if all calls succeed. */
static void launch(sm120_device *device, sm120_kernel *kernel, sm120_address x, sm120_stream stream) {
    const uint32_t grid[3] = {4, 1, 1}, block[3] = {64, 1, 1};
    const void *arguments[] = {&x};
    const size_t sizes[] = {sizeof x};
    uint32_t words[64] = {0};
    int ok = fine(sm120_fill(device, x, 0, sizeof words, stream), "sm120_fill");
    ok = ok && fine(sm120_launch(kernel, grid, block, 0, stream, arguments, sizes, 1), "sm120_launch");
    ok = ok && fine(sm120_launch_cooperative(kernel, grid, block, 0, stream, arguments, sizes, 1), "cooperative");
    ok = ok && fine(sm120_copy_to_host(device, words, x, sizeof words, stream), "sm120_copy_to_host");
    if (ok && (words[0] != 16 || words[63] != 14)) {
        printf("results are %u and %u\n", words[0], words[63]);
        ++failures;
    }
}

/* An operation, which loads a kernel of the library. */
static void operate(sm120_device *device, sm120_address x, sm120_stream stream) {
    sm120_quantize_mxfp8_args args = {.size = sizeof args, .batch = 1, .heads = 1, .rows = 2, .head_dim = 32};
    args.x = (sm120_tensor){.address = x, .dtype = SM120_F32, .batch_stride = 64, .head_stride = 64, .row_stride = 32};
    args.elements = x + 4096;
    args.scales = x + 8192;
    args.stream = stream;
    (void)fine(sm120_quantize_mxfp8(device, &args), "sm120_quantize_mxfp8");
}

/* Simulate a multiprocessor. */
static void simulate(void) {
    struct small_simulation all;
    small_simulation(&all);
    if (fine(sm120_simulate(&all.of, &all.result), "sm120_simulate") && all.result.issued != SIMULATED_ISSUED) {
        printf("%lld steps were issued\n", (long long)all.result.issued);
        ++failures;
    }
}

/* Use a device, as far as calls succeed, and close it. */
static void *use(void *name) {
    sm120_device *device = NULL;
    simulate();
    if (!fine(sm120_device_open(name, &device), "sm120_device_open")) {
        return NULL;
    }
    sm120_module *module = NULL;
    sm120_kernel *kernel = NULL;
    sm120_address x = 0, pinned = 0;
    sm120_stream stream = NULL;
    sm120_event event = NULL;
    void *host = NULL;
    const sm120_watch watch = {.size = sizeof watch, .cta = {0, 0, 0}, .warp = 0, .see = see};
    sm120_profile_row row = {.size = sizeof row};
    (void)fine(sm120_stream_create(device, &stream), "sm120_stream_create");
    (void)fine(sm120_event_create(device, &event), "sm120_event_create");
    if (fine(sm120_alloc_pinned(device, 100, &host, &pinned), "sm120_alloc_pinned")) {
        (void)fine(sm120_free_pinned(device, host), "sm120_free_pinned");
    }
    if (fine(sm120_alloc(device, 16384, &x), "sm120_alloc")) {
        operate(device, x, stream);
    }
    if (fine(sm120_module_load(device, program, sizeof program - 1, "exhausted.ptx", &module), "sm120_module_load")) {
        const sm120_status refused = sm120_module_kernel(module, "bad", &kernel);
        if (refused == SM120_OK || fine(refused, "sm120_module_kernel")) {
            ++failures;
        }
        if (x != 0 && fine(sm120_module_kernel(module, "k", &kernel), "sm120_module_kernel")) {
            launch(device, kernel, x, stream);
            if (fine(sm120_profile_begin(device), "sm120_profile_begin")) {
                launch(device, kernel, x, stream);
                (void)fine(sm120_profile_read(device, 0, &row), "sm120_profile_read");
                (void)fine(sm120_profile_end(device), "sm120_profile_end");
            }
            if (fine(sm120_device_watch(device, &watch), "sm120_device_watch")) {
                launch(device, kernel, x, stream);
                (void)fine(sm120_device_watch(device, NULL), "sm120_device_watch");
            }
        }
        (void)fine(sm120_module_unload(module), "sm120_module_unload");
    }
    if (event != NULL && stream != NULL) {
        (void)fine(sm120_event_record(device, event, stream), "sm120_event_record");
    }
    (void)fine(sm120_device_close(device), "sm120_device_close");
    return NULL;
}

/* Use a device in a new thread, whose memory is freed with it. Returns whether a call has failed. */
static int run(enum kind kind, long n, char *name) {
    pthread_t thread;
    atomic_store(&countdown[kind], n);
    if (start(&thread, NULL, use, name) != 0) {
        abort();
    }
    pthread_join(thread, NULL);
    return n != 0 && atomic_load(&countdown[kind]) <= 0;
}

/* Fail one call. What the library keeps for its whole life is there after the second run. */
static int try_one(enum kind kind, long n, char *name) {
    const int has_failed = run(kind, n, name);
    (void)run(kind, 0, name);
    const long before = atomic_load(&live);
    (void)run(kind, n, name);
    (void)run(kind, 0, name);
    if (kind != THREAD && atomic_load(&live) != before) {
        printf("%s %ld: %ld blocks leak\n", kinds[kind], n, atomic_load(&live) - before);
        ++failures;
    }
    fflush(stdout);
    return (failures != 0 ? FAILED : 0) | (has_failed ? 0 : DONE);
}

int main(int count, char **arguments) {
    enum kind kind = ALLOCATION;
    while (count == 5 && kind < KINDS && strcmp(kinds[kind], arguments[1]) != 0) {
        ++kind;
    }
    if (count != 5 || kind == KINDS) {
        return 2;
    }
    dl_iterate_phdr(find_library, NULL);
    const long first = strtol(arguments[2], NULL, 10), step = strtol(arguments[3], NULL, 10);
    int status = 0, wrong = 0;
    long n = first;
    for (; (status & DONE) == 0; n += step) { /* until n calls are not made */
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            alarm(60);
            _exit(try_one(kind, n, arguments[4]));
        }
        int ended = 0;
        if (child < 0 || waitpid(child, &ended, 0) != child) {
            return 3;
        }
        status = WIFEXITED(ended) ? WEXITSTATUS(ended) : CRASHED;
        if (status > DONE) {
            printf("%s: call %ld of the run: %s %d\n", kinds[kind], n, WIFEXITED(ended) ? "status" : "signal",
                   WIFEXITED(ended) ? status : WTERMSIG(ended));
            ++wrong;
        }
    }
    printf("%ld to %ld of %s\n", first, n - step, kinds[kind]);
    return wrong != 0;
}
