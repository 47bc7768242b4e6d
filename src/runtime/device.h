/* An open device: its driver, context and properties, and the resources to free when it is closed. */
#ifndef SM120_DEVICE_H
#define SM120_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "driver/driver.h"
#include "driver/registry.h"
#include "platform/thread.h"
#include "runtime/object.h"
#include "sm120.h"

struct module;
struct kernel;

struct device {
    struct object object;
    const struct driver *driver;
    CUdevice ordinal;
    CUcontext context;
    bool has_primary; /* it is the primary one, retained until the device is closed; else it is the caller's */
    sm120_device_info info;
    atomic_bool takes_profile;

    struct mutex lock;             /* of the next six */
    struct driver_options options; /* of a virtual device */
    struct registry memory;
    struct registry pinned; /* by host address */
    struct registry streams;
    struct registry events;
    struct module *modules;

    struct mutex builtin_lock;       /* of the next one */
    struct kernel **builtin_kernels; /* by index into kernel_records; NULL until first use */
};

/* Begin a call on a device: clear the thread's error, hold the device, and make its context current. */
sm120_status device_enter(sm120_device *handle, struct device **device);

/* The same for a device that is held already. */
sm120_status device_push(struct device *device);

/* End a call: restore the caller's context, release the device, and return `status`. */
sm120_status device_leave(struct device *device, sm120_status status);

/* Restore the caller's context. */
void device_pop(struct device *device);

#endif
