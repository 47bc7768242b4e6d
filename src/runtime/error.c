/* Status codes, the thread's message, and the translation of driver errors. */
#include "runtime/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 24 * 1024 }; /* room for a compiler's log of 16 KiB and a sentence around it */

static _Thread_local char message[MESSAGE_BYTES];
static _Thread_local CUresult last_driver_error;

void error_clear(void) {
    message[0] = '\0';
    last_driver_error = CUDA_SUCCESS;
}

void error_set_driver(CUresult result) {
    last_driver_error = result;
}

sm120_status fail(sm120_status status, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    return status;
}

sm120_status driver_status(CUresult result) {
    switch (result) {
    case CUDA_SUCCESS:
        return SM120_OK;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_NOT_FOUND:
        return SM120_INVALID_ARGUMENT;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return SM120_OUT_OF_MEMORY;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
        return SM120_NO_DEVICE;
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
        return SM120_INVALID_PROGRAM;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_LAUNCH_FAILED:
        return SM120_FAULT;
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
    case CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:
    case CUDA_ERROR_NOT_SUPPORTED:
        return SM120_UNSUPPORTED;
    default:
        return SM120_DRIVER_ERROR;
    }
}

/* Append to the thread's message. */
static void PRINTF_LIKE(1, 2) append(const char *format, ...) {
    const size_t used = strlen(message);
    va_list list;
    va_start(list, format);
    vsnprintf(message + used, sizeof message - used, format, list);
    va_end(list);
}

sm120_status driver_fail(const struct driver *driver, CUresult result, const char *format, ...) {
    const char *const fault = driver->fault != NULL ? driver->fault() : NULL;
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    last_driver_error = result;
    const char *name = NULL;
    const char *text = NULL;
    if (driver->cuGetErrorName(result, &name) != CUDA_SUCCESS || name == NULL) {
        append(": the driver answered CUresult %d", (int)result);
    } else {
        append(": the driver answered %s", name);
    }
    if (driver->cuGetErrorString(result, &text) == CUDA_SUCCESS && text != NULL) {
        append(" (%s)", text);
    }
    if (fault != NULL && fault[0] != '\0') {
        append(": %s", fault);
    }
    return driver_status(result);
}

const char *sm120_last_error(void) {
    return message;
}

int32_t sm120_last_driver_error(void) {
    return (int32_t)last_driver_error;
}

const char *sm120_status_string(sm120_status status) {
    static const char *const text[] = {
        [SM120_OK] = "success",
        [SM120_INVALID_ARGUMENT] = "invalid argument",
        [SM120_UNSUPPORTED] = "not supported here",
        [SM120_NO_DEVICE] = "no such device",
        [SM120_OUT_OF_MEMORY] = "out of memory",
        [SM120_MISALIGNED] = "misaligned address or stride",
        [SM120_WORKSPACE_TOO_SMALL] = "workspace too small",
        [SM120_INVALID_PROGRAM] = "program does not load",
        [SM120_FAULT] = "fault in a kernel",
        [SM120_DRIVER_ERROR] = "error of the CUDA driver",
        [SM120_INTERNAL] = "defect of libsm120",
    };
    if (status < 0 || (size_t)status >= sizeof text / sizeof text[0]) {
        return "unknown status";
    }
    return text[status];
}
