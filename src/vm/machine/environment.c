/* Read numbers and words from the environment. */
#include "vm/machine/environment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vm/machine/fault.h"
#include "vm/machine/types.h"

/* Read decimal or hexadecimal digits up to the end of the text. Return false for other text and on overflow. */
static bool read_digits(const char *text, uint64_t *value) {
    const bool hexadecimal = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    const char *const digits = text + (hexadecimal ? 2 : 0);
    if (*digits == '\0' || digits[strspn(digits, hexadecimal ? "0123456789abcdefABCDEF" : "0123456789")] != '\0') {
        return false;
    }
    errno = 0;
    *value = strtoull(digits, NULL, hexadecimal ? 16 : 10);
    return errno == 0;
}

CUresult environment_number(const char *name, uint64_t least, uint64_t most, uint64_t otherwise, uint64_t *value) {
    const char *const text = getenv(name);
    *value = otherwise;
    if (text == NULL || *text == '\0') {
        return CUDA_SUCCESS;
    }
    uint64_t given;
    if (read_digits(text, &given) && given >= least && given <= most) {
        *value = given;
        return CUDA_SUCCESS;
    }
    return fault_set(CUDA_ERROR_INVALID_VALUE, "%s is \"%.100s\", expected a number from %llu to %llu", name, text,
                     (unsigned long long)least, (unsigned long long)most);
}

CUresult environment_word(const char *name, const char *const words[3], int otherwise, int *index) {
    const char *const text = getenv(name);
    *index = otherwise;
    if (text == NULL || *text == '\0') {
        return CUDA_SUCCESS;
    }
    for (int k = 0; k < 3; ++k) {
        if (strcmp(text, words[k]) == 0) {
            *index = k;
            return CUDA_SUCCESS;
        }
    }
    return fault_set(CUDA_ERROR_INVALID_VALUE, "%s is \"%.100s\", expected %s, %s or %s", name, text, words[0],
                     words[1], words[2]);
}
