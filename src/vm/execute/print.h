/* printf and assertions of kernels. */
#ifndef SM120_VM_EXECUTE_PRINT_H
#define SM120_VM_EXECUTE_PRINT_H

#include "vm/machine/cta.h"

struct launch;

handler print_format, print_assertion;
/* Write what a launch printed to stdout, in the order of its CTAs. */
void print_flush(struct launch *launch);

#endif
