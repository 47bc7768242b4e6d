/* Parse PTX text into a module. */
#ifndef SM120_VM_TEXT_MODULE_H
#define SM120_VM_TEXT_MODULE_H

#include <stddef.h>

#include "driver/driver.h"
#include "vm/machine/program.h"

/* Parse PTX text into a module. Return CUDA_SUCCESS or CUDA_ERROR_*, with all reasons in the log. An entry that cannot
 * run is refused when it is asked for, unless no entry can run. The text lives as long as the module. */
CUresult module_parse(struct module *module, const char *text, char *log, size_t log_bytes);

/* Find an entry. CUDA_ERROR_NOT_FOUND: the module has none of this name. CUDA_ERROR_INVALID_PTX: the entry cannot run;
 * the log says why. Decodes the entry if its code was not kept, so the caller has the lock of the device's modules. */
CUresult module_entry(struct module *module, const char *name, struct CUfunc_st **function, char *log,
                      size_t log_bytes);

/* Free everything that a module took from the host. */
void module_free(struct module *module);

#endif
