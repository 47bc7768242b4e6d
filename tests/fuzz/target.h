/* What the targets do alike: a device, and texts that are loaded into it. */
#ifndef SM120_TESTS_FUZZ_TARGET_H
#define SM120_TESTS_FUZZ_TARGET_H

#include "driver/driver.h"
#include "fuzz.h"

/* The device, opened at the first call. */
const struct driver *target_device(void);

/* Load the text of an input; NULL where it is refused. */
CUmodule target_load(const uint8_t *data, size_t size);

#endif
