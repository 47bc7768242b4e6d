/* malloc and free in kernels. */
#ifndef SM120_VM_EXECUTE_HEAP_H
#define SM120_VM_EXECUTE_HEAP_H

#include "vm/machine/cta.h"

handler heap_allocate, heap_free;

#endif
