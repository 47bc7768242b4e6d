/* Parse PTX text into a module. */
#ifndef SM120_VM_TEXT_MODULE_H
#define SM120_VM_TEXT_MODULE_H

#include <stddef.h>

#include "driver/driver.h"
#include "vm/machine/program.h"

/* Parse PTX text into a module. Return CUDA_SUCCESS or CUDA_ERROR_*, with the reason in log. */
CUresult module_parse(struct module *module, const char *text, char *log, size_t log_bytes);

#endif
