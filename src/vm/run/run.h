/* Running a warp, a CTA, the CTAs of a launch, and a launch. */
#ifndef SM120_VM_RUN_RUN_H
#define SM120_VM_RUN_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/driver.h"
#include "vm/machine/cta.h"
#include "vm/machine/launch.h"

/* run_warp.c */
enum turn { TURN_BLOCKED, TURN_USED, TURN_POLLED, TURN_DONE, TURN_FAULT };
enum turn warp_run(struct warp *w, uint32_t quantum, uint32_t *executed);

/* run_cta.c */
enum outcome { CTA_TURN, CTA_WAITS, CTA_ENDED, CTA_STOPPED };
/* Set a CTA to its first instruction. Its buffers have been prepared. Return false after a fault. */
bool cta_start(struct cta *cta, struct worker *worker, uint64_t linear);
/* Give each warp of a CTA this many turns. CTA_WAITS: it only polls. */
enum outcome cta_run(struct cta *cta, struct worker *worker, uint32_t turns);
/* Write one line for each warp that says what it waits for. Return the bytes written. */
size_t cta_describe(const struct cta *cta, char *to, size_t bytes);

/* schedule.c */
bool schedule_open(struct launch *launch); /* False: out of memory */
void schedule_run(struct worker *worker, struct launch *launch);
bool schedule_has_work(struct launch *launch);
void schedule_close(struct launch *launch);
void room_free(struct cta *room);

/* launch.c */
CUresult launch_run(struct device *device, struct CUfunc_st *f, const uint32_t given[3], const uint32_t block[3],
                    uint32_t dynamic, void **arguments, bool is_cooperative);
/* Return the bytes of shared memory of a CTA with this much dynamic memory. */
uint32_t launch_shared(const struct CUfunc_st *f, uint32_t dynamic);
unsigned launch_threads(void);
void launch_out_of_memory(struct launch *launch);
/* Lock before a fork, unlock after it. The child has no helpers. */
void launch_lock(void);
void launch_unlock(bool is_child);

/* Return how many CTAs a multiprocessor holds, limited by threads, shared memory and their number. Registers are not
 * counted. */
unsigned launch_occupancy(unsigned threads, size_t shared);
/* Return how many CTAs of a launch the chip holds at once. */
uint64_t launch_resident(const struct launch *launch);

#endif
