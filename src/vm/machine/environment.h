/* The variables of the environment that steer the virtual device: read here alone, so that a bad value is an error. */
#ifndef SM120_VM_ENVIRONMENT_H
#define SM120_VM_ENVIRONMENT_H

#include <stdint.h>

#include "driver/driver.h"

/* Read a number, decimal or 0x and hexadecimal, from `least` to `most`; `otherwise` where the variable is unset or
 * empty. */
CUresult environment_number(const char *name, uint64_t least, uint64_t most, uint64_t otherwise, uint64_t *value);

/* Read one of three words: its index, or `otherwise` where the variable is unset or empty. */
CUresult environment_word(const char *name, const char *const words[3], int otherwise, int *index);

#endif
