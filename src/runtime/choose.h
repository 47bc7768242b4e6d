/* The choice of a device by its name. */
#ifndef SM120_CHOOSE_H
#define SM120_CHOOSE_H

#include "driver/driver.h"
#include "sm120.h"

/* The device that a name selects, and the options of a virtual device. */
struct choice {
    const struct driver *driver;
    int ordinal;
    struct driver_options options;
};

/* Choose a device by name. NULL: by PYSM120_DEVICE, else the first GPU that the kernels of the library run on, else the
 * virtual device. Writes the members of `choice` that the name decides. */
sm120_status choose_device(const char *name, struct choice *choice);

#endif
