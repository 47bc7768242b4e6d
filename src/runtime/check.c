/* Checks that many entries share. */
#include "runtime/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/error.h"

enum { STRUCT_BYTES_MAX = 4096 }; /* above this, the size was never set: no later version has so large a struct */

sm120_status check_pointer(const void *pointer, const char *what) {
    return pointer != NULL ? SM120_OK : fail(SM120_INVALID_ARGUMENT, "%s is NULL; give a valid pointer", what);
}

sm120_status check_struct(const void *pointer, size_t known, const char *what, const char *type) {
    if (pointer == NULL) {
        return fail(SM120_INVALID_ARGUMENT, "%s is NULL; give a pointer to a %s", what, type);
    }
    uint32_t size;
    memcpy(&size, pointer, sizeof size);
    if (size < known || size > STRUCT_BYTES_MAX) {
        return fail(SM120_INVALID_ARGUMENT,
                    "%s->size = %" PRIu32 " is not supported; set it to sizeof(%s), which is %zu", what, size, type,
                    known);
    }
    const unsigned char *const bytes = pointer;
    for (size_t i = known; i < size; ++i) {
        if (bytes[i] != 0) {
            return fail(SM120_INVALID_ARGUMENT,
                        "%s->size = %" PRIu32
                        ", and byte %zu is %d; the bytes behind the %zu that this version of %s knows "
                        "must be 0",
                        what, size, i, bytes[i], known, type);
        }
    }
    return SM120_OK;
}

void copy_name(char *to, size_t bytes, const char *name) {
    const size_t length = strlen(name);
    if (length < bytes) {
        memcpy(to, name, length + 1);
    } else {
        snprintf(to, bytes, "...%s", name + length - (bytes - 4));
    }
}

bool multiply(int64_t a, int64_t b, int64_t *product) {
    if (b != 0 && a > INT64_MAX / b) {
        return false;
    }
    *product = a * b;
    return true;
}

bool add(int64_t a, int64_t b, int64_t *sum) {
    if (a > INT64_MAX - b) {
        return false;
    }
    *sum = a + b;
    return true;
}
