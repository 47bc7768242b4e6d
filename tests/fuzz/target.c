/* What the targets do alike; see target.h. */
#define _POSIX_C_SOURCE 200809L
#include "target.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fuzz_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("fuzz: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    va_end(arguments);
    abort();
}

/* The device's memory is small, so that no input can use up the machine's, and no launch runs for long. */
int LLVMFuzzerInitialize(int *count, char ***arguments) {
    setenv("PYSM120_VIRTUAL_MEMORY", "67108864", 1);
    setenv("PYSM120_INSTRUCTION_LIMIT", "20000", 1);
    setenv("PYSM120_THREADS", "1", 0);
    if (!freopen("/dev/null", "w", stdout)) { /* what kernels print */
        fuzz_fail("/dev/null cannot be opened");
    }
    mutate_prepare(*count, *arguments);
    return 0;
}

const struct driver *target_device(void) {
    static const struct driver *driver;
    CUcontext context;
    if (driver) {
        return driver;
    }
    driver = driver_virtual();
    if (driver->cuInit(0) || driver->cuDevicePrimaryCtxRetain(&context, 0) || driver->cuCtxPushCurrent(context)) {
        fuzz_fail("the device does not open: %s", driver->fault());
    }
    return driver;
}

CUmodule target_load(const uint8_t *data, size_t size) {
    const struct driver *const d = target_device();
    CUmodule module = NULL;
    char log[1024];
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log};
    char *text = malloc(size + 1); /* of its own size, so that a read behind it is seen */
    if (!text) {
        return NULL;
    }
    memcpy(text, data, size);
    text[size] = 0;
    strcpy(log, "?");
    const CUresult r = d->cuModuleLoadDataEx(&module, text, 2, options, values);
    free(text);
    if (r && r != CUDA_ERROR_OUT_OF_MEMORY && r != CUDA_ERROR_NO_BINARY_FOR_GPU && !strstr(log, "error: ")) {
        fuzz_fail("refused with %d, and the log says '%s'", (int)r, log);
    }
    return r ? NULL : module;
}
