/* Counting what each statement of a kernel does. */
#ifndef SM120_VM_PROFILE_H
#define SM120_VM_PROFILE_H

#include "driver/driver.h"
#include "vm/machine/cta.h"
#include "vm/machine/launch.h"

/* X(member of sm120_profile_row): what is counted, but for bytes. The first three are those of the instruction that
 * has the statement's opcode, the others sums over all that it became. */
#define PROFILE_COUNTS(X)                                                                                              \
    X(executed)                                                                                                        \
    X(lanes)                                                                                                           \
    X(predicated_off)                                                                                                  \
    X(branches)                                                                                                        \
    X(divergent_branches)                                                                                              \
    X(shared_accesses)                                                                                                 \
    X(shared_wavefronts)                                                                                               \
    X(shared_ideal_wavefronts)                                                                                         \
    X(global_accesses)                                                                                                 \
    X(global_sectors)                                                                                                  \
    X(global_ideal_sectors)                                                                                            \
    X(global_lines)                                                                                                    \
    X(global_ideal_lines)                                                                                              \
    X(tensor_flops)

/* The device counts from now on; CUDA_ERROR_PROFILER_ALREADY_STARTED where it does already. */
CUresult profile_begin(struct device *device);
/* It forgets what it counted. Nothing where it does not count. */
void profile_end(struct device *device);
/* A statement of a kernel that ran: CUDA_ERROR_NOT_FOUND past the last. What it points to lives until the end. */
CUresult profile_read(struct device *device, int index, sm120_profile_row *row);

/* A launch begins and ends. */
void profile_join(struct launch *launch);
void profile_leave(struct launch *launch);

/* A thread begins and ends to work on a launch. False: out of memory. */
bool profile_worker_open(struct worker *worker);
void profile_worker_close(struct worker *worker);

#endif
