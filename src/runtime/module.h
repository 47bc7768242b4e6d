/* Modules and their kernels. */
#ifndef SM120_MODULE_H
#define SM120_MODULE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "runtime/device.h"
#include "runtime/kernels.h"
#include "runtime/signature.h"

struct module {
    struct object object;
    struct device *device;
    CUmodule module;
    char *name;
    struct signatures signatures; /* empty for a cubin */
    struct kernel *kernels;       /* list; guarded by the device's lock */
    struct module *next;          /* of the device's list; guarded by its lock */
};

struct kernel {
    struct object object;
    struct module *module;
    CUfunction function;
    char *entry;
    sm120_kernel_info info;
    bool table_registers;         /* info.registers comes from the table; the device allocates none */
    struct parameter *parameters; /* info.parameters of them */
    atomic_uint dynamic_limit;    /* dynamic shared memory that the driver allows a launch so far */
    atomic_bool has_carveout;     /* see kernel_share_multiprocessors() */
    struct kernel *next;
};

/* Load an image. `record` describes the one kernel in it; NULL: the kernels are read from the image, if it is PTX. The
 * module is in the device's list and has a handle. The device's context is current. */
sm120_status module_load(struct device *device, const void *image, size_t bytes, const char *name,
                         const struct kernel_record *record, struct module **module);

/* Unload all modules of a device that is being closed, with or without its context. */
void module_close_all(struct device *device, bool context);

#endif
