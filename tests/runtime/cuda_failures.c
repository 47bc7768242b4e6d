/* The library on a CUDA driver of which calls fail, one after the other: cuda_failures [limits | too-old]. Run with
 * fake_cuda.c as libcuda.so.1. */
#define _POSIX_C_SOURCE 200809L
#include "operations.h"

#include <dlfcn.h>
#include <limits.h>
#include <sm120.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

/* Count and print a condition that does not hold. */
static void check(int line, int holds, const char *text) {
    if (!holds) {
        failures += 1;
        printf("cuda_failures.c:%d: %s; the last message is \"%s\"\n", line, text, sm120_last_error());
    }
}
#define TRUE(condition)         check(__LINE__, condition, #condition)
#define BAD(status, word, call) check(__LINE__, (call) == (status) && strstr(sm120_last_error(), word) != NULL, #call)
/* End a scenario at the first call that fails, with its status. */
#define DO(call)                                                                                                       \
    do {                                                                                                               \
        const sm120_status status_ = (call);                                                                           \
        TRUE((status_ == SM120_OK) == (sm120_last_error()[0] == '\0'));                                                \
        if (status_ != SM120_OK) {                                                                                     \
            return status_;                                                                                            \
        }                                                                                                              \
    } while (0)

static const char ptx[] = ".version 8.8\n.target sm_90\n.entry e(.param .u32 n, .param .u64 x) { ret; }\n";

static sm120_status use_memory(sm120_device *device, sm120_stream stream) {
    sm120_address address = 0;
    sm120_address pinned_address = 0;
    void *pinned = NULL;
    char host[64] = {0};
    DO(sm120_alloc(device, 4096, &address));
    DO(sm120_alloc_pinned(device, 64, &pinned, &pinned_address));
    DO(sm120_copy_to_device(device, address, host, 64, stream));
    DO(sm120_copy_to_host(device, host, address, 64, stream));
    DO(sm120_copy_on_device(device, address + 64, address, 64, stream));
    DO(sm120_fill(device, address, 1, 64, stream));
    sm120_copy_piece piece = {.to = address + 64, .from = address, .bytes = 64};
    DO(sm120_copy_batch_prepare(device, &piece, 1));
    DO(sm120_copy_to_device(device, address + 128, &piece, sizeof piece, stream));
    DO(sm120_copy_batch(device, address + 128, 1, 0, stream));
    DO(sm120_free_pinned(device, pinned));
    DO(sm120_free(device, address));
    return sm120_alloc(device, 64, &address); /* is left to the close */
}

static sm120_status use_events(sm120_device *device, sm120_stream stream) {
    sm120_event start = NULL;
    sm120_event end = NULL;
    float ms = 0.0f;
    DO(sm120_event_create(device, &start));
    DO(sm120_event_create(device, &end));
    DO(sm120_event_record(device, start, stream));
    DO(sm120_stream_wait_event(device, stream, start));
    DO(sm120_event_synchronize(device, start));
    DO(sm120_event_elapsed(device, start, end, &ms));
    DO(sm120_stream_synchronize(device, stream));
    return sm120_event_destroy(device, start); /* `end` is left to the close */
}

static sm120_status use_module(sm120_device *device, sm120_stream stream) {
    sm120_module *module = NULL;
    sm120_kernel *kernel = NULL;
    int32_t blocks = 0;
    const uint32_t n = 1;
    const uint64_t x = 0;
    const uint32_t one[3] = {1, 1, 1};
    const void *const arguments[] = {&n, &x};
    const size_t sizes[] = {4, 8};
    DO(sm120_module_load(device, ptx, strlen(ptx), "e.ptx", &module));
    DO(sm120_module_kernel(module, "e", &kernel));
    DO(sm120_kernel_occupancy(kernel, 32, 65536, &blocks));
    DO(sm120_launch(kernel, one, one, 65536, stream, arguments, sizes, 2));
    DO(sm120_launch_cooperative(kernel, one, one, 65536, stream, arguments, sizes, 2));
    DO(sm120_module_unload(module));
    return sm120_module_load(device, ptx, strlen(ptx), "e.ptx", &module);
}

/* The smallest call of every operation; workspaces lie behind their arrays. */
static sm120_status use_operations(sm120_device *device, sm120_stream stream) {
    enum { WORKSPACE = 1 << 20 };
    sm120_address memory = 0;
    DO(sm120_alloc(device, OPERATION_ROOM + WORKSPACE + 256, &memory));
    memory = (memory + 255) / 256 * 256;
    for (size_t i = 0; i < OPERATION_COUNT; ++i) {
        uint64_t args[OPERATION_BYTES_MAX / sizeof(uint64_t) + 1];
        size_t bytes = 0;
        operations[i].fill(args, memory, stream);
        DO(operations[i].ask(device, args, &bytes));
        TRUE(bytes <= WORKSPACE);
        DO(operations[i].call(device, args, bytes != 0 ? memory + OPERATION_ROOM : 0, bytes));
    }
    return SM120_OK;
}

/* Use everything on an open device. */
static sm120_status use(sm120_device *device) {
    sm120_stream stream = NULL;
    DO(sm120_stream_create(device, &stream));
    DO(use_memory(device, stream));
    DO(use_events(device, stream));
    DO(use_module(device, stream));
    DO(use_operations(device, stream));
    DO(sm120_device_synchronize(device));
    return sm120_stream_destroy(device, stream);
}

/* The fake driver's accounts. */
struct fake {
    int *live, *left, *depth, *failed, *init_result;
    void (*fail_at)(int call);
};

static struct fake find_fake(void *library) {
    struct fake fake = {.live = dlsym(library, "fake_live"),
                        .left = dlsym(library, "fake_left"),
                        .depth = dlsym(library, "fake_depth"),
                        .failed = dlsym(library, "fake_failed"),
                        .init_result = dlsym(library, "fake_init_result")};
    void *const address = dlsym(library, "fake_fail_at");
    memcpy(&fake.fail_at, &address, sizeof fake.fail_at);
    return fake;
}

/* Adopt the current context, which is not the primary one, then that of an open device, which is. */
static sm120_status use_contexts(sm120_device *device) {
    sm120_device *adopted = NULL;
    sm120_context context = NULL;
    sm120_device_info info = {.size = sizeof info};
    DO(sm120_device_open_context("cuda", NULL, &adopted));
    DO(sm120_device_query(adopted, &info));
    TRUE(info.ordinal == 1 && info.is_virtual == 0); /* the device of the context, not the first one */
    DO(sm120_device_close(adopted));
    DO(sm120_device_context(device, &context));
    DO(sm120_device_open_context("cuda", context, &adopted));
    return sm120_device_close(adopted);
}

/* Let the first call of the driver fail, then the second, until none is left: nothing crashes or stays behind. */
static void test_each_call(const struct fake *fake) {
    for (int call = 1; call == 1 || *fake->failed != 0; ++call) {
        sm120_device *device = NULL;
        fake->fail_at(call);
        sm120_status status = sm120_device_open("cuda", &device);
        if (status == SM120_OK) {
            status = use_contexts(device);
            status = status == SM120_OK ? use(device) : status;
            const int most = *fake->failed == 0 ? INT_MAX : 1;
            TRUE(sm120_device_close(device) == SM120_OK);
            TRUE(*fake->left <= most); /* where a context cannot be had, a module or all is left to the driver */
        } else {
            TRUE(device == NULL && sm120_last_error()[0] != '\0');
        }
        TRUE(*fake->live == 0 && *fake->depth == 0);
        TRUE(*fake->failed == 1 || status == SM120_OK);
    }
    fake->fail_at(0);
}

/* What a driver without cuFuncGetParamInfo and tensor maps, and without a GPU for our kernels, allows. */
static void test_limits(void) {
    sm120_device *device = NULL;
    sm120_module *module = NULL;
    sm120_kernel *kernel = NULL;
    sm120_parameter_info parameter = {.size = sizeof parameter};
    sm120_device_info info = {.size = sizeof info};
    const void *cubin = NULL;
    size_t bytes = 0;
    int32_t count = 0;
    TRUE(sm120_device_count("cuda", &count) == SM120_OK && count == 2);
    BAD(SM120_NO_DEVICE, "the last is \"cuda:1\"", sm120_device_open("cuda:2", &device));
    TRUE(sm120_device_open(NULL, &device) == SM120_OK && sm120_device_query(device, &info) == SM120_OK);
    TRUE(info.ordinal == 1 && info.is_virtual == 0 && info.capability_major == 9);
    BAD(SM120_UNSUPPORTED, "has no counters; only the virtual device has", sm120_device_counters_reset(device));
    BAD(SM120_OUT_OF_MEMORY, "bytes = 1099511627776", sm120_alloc(device, (size_t)1 << 40, &(sm120_address){0}));
    BAD(SM120_INVALID_PROGRAM, "my.ptx, line 5; fatal   : one\nptxas fatal   : two",
        sm120_module_load(device, "wrong", 5, "my.ptx", &module));
    TRUE(sm120_last_driver_error() == 218);
    TRUE(sm120_builtin_image(0, "sm_90", "cubin", &cubin, &bytes) == SM120_OK);
    TRUE(sm120_module_load(device, cubin, bytes, "some.cubin", &module) == SM120_OK);
    BAD(SM120_UNSUPPORTED, "CUDA 12.4", sm120_module_kernel(module, "e", &kernel));
    BAD(SM120_INVALID_ARGUMENT, "missing", sm120_module_kernel(module, "missing", &kernel));
    const sm120_tensor_map_args map_args = {
        .size = sizeof map_args, .rank = 1, .box = {16}, .element_strides = {1}, .address = 4096, .dims = {64}};
    sm120_tensor_map map = {{0}};
    BAD(SM120_UNSUPPORTED, "CUDA 12.0", sm120_tensor_map_encode(device, &map_args, &map));
    sm120_tensor_map_args new_args = map_args;
    new_args.swizzle = SM120_SWIZZLE_128B_ATOM_64B;
    BAD(SM120_UNSUPPORTED, "swizzle = 6; ", sm120_tensor_map_encode(device, &new_args, &map));
    BAD(SM120_UNSUPPORTED, "CUDA 12.0", sm120_tensor_map_replace_address(device, &map, 4096));
    TRUE(sm120_module_load(device, ptx, strlen(ptx), "e.ptx", &module) == SM120_OK);
    TRUE(sm120_module_kernel(module, "e", &kernel) == SM120_OK);
    TRUE(sm120_kernel_parameter(kernel, 1, &parameter) == SM120_OK);
    TRUE(parameter.offset == 8 && parameter.bytes == 8 && strcmp(parameter.type, "u64") == 0);
    const uint32_t one[3] = {1, 1, 1}, two[3] = {2, 1, 1};
    const void *const arguments[] = {&count, &bytes};
    BAD(SM120_UNSUPPORTED, "grid = 2 x 1 x 1; a cooperative launch of e",
        sm120_launch_cooperative(kernel, two, one, 0, NULL, arguments, (const size_t[]){4, 8}, 2));
    TRUE(sm120_last_driver_error() == 720);
    TRUE(sm120_device_close(device) == SM120_OK);
    TRUE(sm120_device_open("cuda:0", &device) == SM120_OK);
    BAD(SM120_UNSUPPORTED, "compute capability 8.0", sm120_builtin_kernel(device, 0, &kernel));
    TRUE(sm120_device_close(device) == SM120_OK);
}

/* A driver that does not start: no GPU, or an error. The default is then the virtual device. */
static void test_no_gpu(int *init_result) {
    static const struct {
        int result;
        sm120_status count_status, open_status;
        const char *word;
    } rows[] = {
        {100, SM120_OK, SM120_NO_DEVICE, "finds no GPU"},
        {34, SM120_OK, SM120_NO_DEVICE, "stub"},
        {999, SM120_DRIVER_ERROR, SM120_DRIVER_ERROR, "CUDA_ERROR_UNKNOWN (some text)"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        sm120_device *device = NULL;
        sm120_device_info info = {.size = sizeof info};
        int32_t count = -1;
        *init_result = rows[i].result;
        TRUE(sm120_device_count("cuda", &count) == rows[i].count_status && count == 0);
        BAD(rows[i].open_status, rows[i].word, sm120_device_open("cuda", &device));
        TRUE(sm120_device_open(NULL, &device) == SM120_OK && sm120_last_error()[0] == '\0');
        TRUE(sm120_device_query(device, &info) == SM120_OK && info.is_virtual == 1);
        TRUE(sm120_device_close(device) == SM120_OK);
    }
}

int main(int argc, char **argv) {
    unsetenv("PYSM120_DEVICE");
    if (argc > 1 && strcmp(argv[1], "limits") == 0) {
        test_limits();
    } else if (argc > 1) {
        sm120_device *device = NULL;
        int32_t count = -1;
        TRUE(sm120_device_count("cuda", &count) == SM120_OK && count == 0);
        BAD(SM120_NO_DEVICE, "too old: libcuda.so.1 has no cuLaunchKernel", sm120_device_open("cuda", &device));
    } else {
        void *const library = dlopen("libcuda.so.1", RTLD_NOW);
        TRUE(library != NULL && dlsym(library, "fake_live") != NULL);
        if (failures == 0) {
            const struct fake fake = find_fake(library);
            test_each_call(&fake);
            test_no_gpu(fake.init_result);
            dlclose(library);
        }
    }
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
