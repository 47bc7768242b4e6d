/* Profiles: counts for each statement of a kernel. */
#ifndef SM120_VM_PROFILE_H
#define SM120_VM_PROFILE_H

#include "driver/driver.h"
#include "vm/machine/cta.h"
#include "vm/machine/launch.h"

/* X(member of sm120_profile_row): the counts, except for bytes. The first three are those of the instruction that
 * has the statement's opcode; the others are sums over all its instructions. */
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
    X(tensor_flops)                                                                                                    \
    X(global_l2_accesses)                                                                                              \
    X(global_l2_sectors)                                                                                               \
    X(shared_paired_accesses)                                                                                          \
    X(global_wavefronts)                                                                                               \
    X(global_first_lines)                                                                                              \
    X(global_pending_accesses)                                                                                         \
    X(global_added_lines)                                                                                              \
    X(global_added_words)                                                                                              \
    X(global_first_accesses)

/* Start a profile. Return CUDA_ERROR_PROFILER_ALREADY_STARTED if one is running. */
CUresult profile_begin(struct device *device);
/* End the profile, if one is running, and free its counts. */
void profile_end(struct device *device);
/* Read a row: a statement of a kernel that ran. Return CUDA_ERROR_NOT_FOUND past the last. Pointers in the row are
 * valid until profile_end(). */
CUresult profile_read(struct device *device, int index, sm120_profile_row *row);
/* Read a CTA that has ended, likewise. */
CUresult profile_cta(struct device *device, int index, const char **kernel, uint64_t *cta, uint64_t *executed);

/* A launch begins and ends. */
void profile_join(struct launch *launch);
void profile_leave(struct launch *launch);

/* A thread begins and ends its work on a launch. Return false when out of memory. */
bool profile_worker_open(struct worker *worker);
void profile_worker_close(struct worker *worker);

#endif
