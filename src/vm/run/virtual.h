/* The driver API of the virtual SM120, divided by subject into virtual_*.c; driver_virtual.c has the table. */
#ifndef SM120_VM_RUN_VIRTUAL_H
#define SM120_VM_RUN_VIRTUAL_H

#include <stddef.h>

#include "driver/driver.h"
#include "vm/machine/device.h"
#include "vm/machine/program.h"

enum { MAX_DEVICES = 16 };

struct CUctx_st {
    struct device device;
    int retained, made;
};
struct CUmod_st {
    struct module module;
};

/* The functions of the table. */
#define X(name, parameters) CUresult virtual_##name parameters;
DRIVER_FUNCTIONS(X)
#undef X

/* virtual_device.c */
/* Set the fault of an argument that is NULL; return its code. */
CUresult virtual_null_argument(const char *name);
CUresult virtual_check_device(CUdevice device);
/* Return the value of $PYSM120_VIRTUAL_MEMORY, which cuInit has checked. */
size_t virtual_memory(void);
/* Return the most shared memory of a CTA. */
int virtual_shared_limit(void);

/* virtual_context.c */
/* Return the device of the current context, or NULL. */
struct device *virtual_current(void);
/* Set the fault of a thread without a current context; return its code. */
CUresult virtual_no_context(void);

/* virtual_memory.c */
bool virtual_allocated(CUcontext context, CUdeviceptr address);

/* virtual_module.c */
/* Free a module and its variables. It is no longer in the list of its device. */
void virtual_free_module(CUmodule module);
/* Set the name of the text that this thread loads next, for messages. NULL: "<ptx>". */
void virtual_name_text(const char *name);

/* driver_virtual.c */
CUresult virtual_counters_reset(CUcontext context);

#endif
