/* printf and assertions of kernels. */
#ifndef SM120_VM_EXECUTE_PRINT_H
#define SM120_VM_EXECUTE_PRINT_H

#include "vm/machine/cta.h"

struct launch;

handler print_format, print_assertion;
/* Write the output of a launch to stdout, ordered by CTA. */
void print_flush(struct launch *launch);

#endif
