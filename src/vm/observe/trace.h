/* Traces: the driver's table offers callbacks that observe warps while they execute. */
#ifndef SM120_VM_TRACE_H
#define SM120_VM_TRACE_H

#include "driver/driver.h"
#include "vm/machine/cta.h"
#include "vm/machine/launch.h"

/* Prepare a watched launch. Does nothing if the launch is not watched. */
CUresult trace_open(struct launch *launch, const sm120_watch *watch);
void trace_close(struct launch *launch);
/* Return whether the calling thread is in a callback. */
bool trace_is_looking(void);

/* These return NOT_FOUND past the last index and INVALID_VALUE if the step is no longer valid. */
CUresult trace_instruction(CUfunction function, int index, sm120_instruction_info *info);
CUresult trace_query(const sm120_step *step, sm120_step_info *info);
CUresult trace_register(const sm120_step *step, int which, int index, sm120_register_info *info);
CUresult trace_variable(const sm120_step *step, int index, sm120_variable_info *info);
CUresult trace_lanes(const sm120_step *step, int index, sm120_lanes_info *info);
CUresult trace_shared(const sm120_step *step, uint32_t address, void *to, size_t bytes);

/* Describe a variable. */
void variable_describe(const struct placed *v, sm120_variable_info *info);

#endif
