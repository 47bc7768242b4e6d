/* Calls of functions. */
#ifndef SM120_VM_EXECUTE_CALL_H
#define SM120_VM_EXECUTE_CALL_H

#include "vm/machine/cta.h"

handler call_direct, call_indirect, call_return, call_refused;

#endif
