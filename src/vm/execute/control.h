/* Branches, exits, fences and clocks. */
#ifndef SM120_VM_EXECUTE_CONTROL_H
#define SM120_VM_EXECUTE_CONTROL_H

#include "vm/machine/cta.h"

handler control_bra, control_exit, control_trap, control_barwarp, control_aligned, control_brx, control_nop,
    control_fence, control_setp, control_set, control_clock, control_mapa, control_discard;

#endif
