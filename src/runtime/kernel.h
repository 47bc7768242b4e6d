/* Kernels of a module. */
#ifndef SM120_KERNEL_H
#define SM120_KERNEL_H

#include "runtime/module.h"

enum { SHARED_BYTES_DEFAULT = 48 * 1024 }; /* what a launch may have without opting in */

/* Find or make the kernel of an entry. The device's context is current. */
sm120_status module_kernel(struct module *module, const char *entry, struct kernel **kernel);

/* Set the registers that ptxas allocated for a kernel, for a device that does not allocate registers. */
void kernel_know_registers(struct kernel *kernel, uint32_t registers);

/* Hold a kernel and make its device's context current; undone by kernel_leave, which returns `status`. */
sm120_status kernel_enter(sm120_kernel *handle, struct kernel **kernel);
sm120_status kernel_leave(struct kernel *kernel, sm120_status status);

/* Check a block against the kernel's limits. */
sm120_status kernel_check_threads(const struct kernel *kernel, const char *what, uint32_t x, uint32_t y, uint32_t z);

/* Check an amount of dynamic shared memory, and opt in to it if the driver requires that. */
sm120_status kernel_allow_shared(struct kernel *kernel, uint32_t shared_bytes);

/* Let CTAs of other launches have what shared memory this kernel leaves of a multiprocessor. */
sm120_status kernel_share_multiprocessors(struct kernel *kernel);

#endif
