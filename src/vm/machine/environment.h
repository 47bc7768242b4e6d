/* Environment variables of the virtual device. All reads go through these functions, so a bad value is always an
 * error. */
#ifndef SM120_VM_ENVIRONMENT_H
#define SM120_VM_ENVIRONMENT_H

#include <stdint.h>

#include "driver/driver.h"

/* Read a number from `least` to `most`, decimal or hexadecimal (0x). Use `otherwise` if the variable is unset or
 * empty. */
CUresult environment_number(const char *name, uint64_t least, uint64_t most, uint64_t otherwise, uint64_t *value);

/* Read one of three words and store its index. Store `otherwise` if the variable is unset or empty. */
CUresult environment_word(const char *name, const char *const words[3], int otherwise, int *index);

#endif
