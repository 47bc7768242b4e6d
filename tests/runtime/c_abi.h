/* What the C programs that call every entry of sm120.h share: how calls are checked, and a kernel. Each prints what is
 * wrong and counts it, and ends with 0 where nothing is. They run under sanitizers too. */
#ifndef C_ABI_H
#define C_ABI_H

#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <sm120.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The same for Windows, whose C library has no setenv(). */
#ifdef _WIN32
#define setenv(name, value, overwrite) _putenv_s(name, value)
#define unsetenv(name)                 _putenv_s(name, "")
#endif

static const char *device_name = "virtual";
static int failures;
static pthread_mutex_t failures_lock = PTHREAD_MUTEX_INITIALIZER;

/* Count and print a failure. */
static void wrong(int line, const char *call, const char *text) {
    pthread_mutex_lock(&failures_lock);
    failures += 1;
    printf("line %d: %s: %s\n", line, call, text);
    pthread_mutex_unlock(&failures_lock);
}

/* Check a call's status, and that its message is empty after a success and else one that holds `word`. */
static void expect(int line, const char *call, sm120_status got, sm120_status want, const char *word) {
    const char *const message = sm120_last_error();
    char text[1024];
    snprintf(text, sizeof text, "status %" PRId32 " (%s), wanted %" PRId32 " with \"%s\"; message \"%.600s\"", got,
             sm120_status_string(got), want, word, message);
    if (got != want || (got == SM120_OK) != (message[0] == '\0') || strstr(message, word) == NULL) {
        wrong(line, call, text);
    }
}

/* Say how many calls were wrong; the exit status of the program. */
static int ended(void) {
    if (failures != 0) {
        printf("%d failed\n", failures);
    }
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#define OK(call)                expect(__LINE__, #call, call, SM120_OK, "")
#define BAD(status, word, call) expect(__LINE__, #call, call, SM120_##status, word)
#define TRUE(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            wrong(__LINE__, #condition, "is false");                                                                   \
        }                                                                                                              \
    } while (0)

/* ---- PTX of the tests ---- */

/* x[i] *= a for i < n. The array is not used: it is there to be found. */
static const char body[] = ".address_size 64\n"
                           "// .entry hidden_by_a_comment ( .param .u64 x )\n"
                           "/* .entry and_by_another () */\n"
                           ".visible .entry scale(\n"
                           "    .param .u64 .ptr .global .align 4 x, .param .u32 n, // a comment, with a comma\n"
                           "    .param .f32 a, .param .align 16 .b8 pair[24])\n"
                           "{\n"
                           "    .reg .pred p;\n"
                           "    .reg .b32 i, j, count;\n"
                           "    .reg .b64 address, offset;\n"
                           "    .reg .f32 v, factor;\n"
                           "    mov.u32 i, %ctaid.x;\n"
                           "    mov.u32 j, %ntid.x;\n"
                           "    mul.lo.u32 i, i, j;\n"
                           "    mov.u32 j, %tid.x;\n"
                           "    add.u32 i, i, j;\n"
                           "    ld.param.u32 count, [n];\n"
                           "    setp.ge.u32 p, i, count;\n"
                           "    @p bra done;\n"
                           "    ld.param.u64 address, [x];\n"
                           "    mul.wide.u32 offset, i, 4;\n"
                           "    add.u64 address, address, offset;\n"
                           "    ld.param.f32 factor, [a];\n"
                           "    ld.global.f32 v, [address];\n"
                           "    mul.f32 v, v, factor;\n"
                           "    st.global.f32 [address], v;\n"
                           "done:\n"
                           "    ret;\n"
                           "}\n"
                           ".visible .entry nothing()\n"
                           "{\n"
                           "    ret;\n"
                           "}\n";

/* Write a module for the device: the same text for two targets. */
static inline void write_ptx(sm120_device *device, char *text, size_t bytes, const char *rest) {
    sm120_device_info info = {.size = sizeof info};
    OK(sm120_device_query(device, &info));
    snprintf(text, bytes, ".version 8.8\n.target %s\n%s", info.capability_major == 12 ? "sm_120f" : "sm_90", rest);
}

/* Load `body` and look `scale` up. */
static inline sm120_kernel *load_scale(sm120_device *device, sm120_module **module) {
    char text[4096];
    sm120_kernel *kernel = NULL;
    write_ptx(device, text, sizeof text, body);
    OK(sm120_module_load(device, text, strlen(text), "body.ptx", module));
    OK(sm120_module_kernel(*module, "scale", &kernel));
    return kernel;
}

/* Launch `scale` on n floats. */
static inline sm120_status launch_scale(sm120_kernel *kernel, sm120_address x, uint32_t n, float a,
                                        sm120_stream stream) {
    const char pair[24] = {0};
    const void *const arguments[] = {&x, &n, &a, pair};
    const size_t sizes[] = {sizeof x, sizeof n, sizeof a, sizeof pair};
    const uint32_t grid[3] = {(n + 127) / 128, 1, 1};
    const uint32_t block[3] = {128, 1, 1};
    return sm120_launch(kernel, grid, block, 0, stream, arguments, sizes, 4);
}

#endif
