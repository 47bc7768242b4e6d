/* Polls (reads that are repeated until another warp or CTA answers), and descriptions of waits. */
#ifndef SM120_VM_EXECUTE_POLL_H
#define SM120_VM_EXECUTE_POLL_H

#include <stdbool.h>
#include <stddef.h>

#include "vm/machine/cta.h"
#include "vm/machine/launch.h"

/* Record a read of `bytes` bytes by some lanes. Return true if all of them have repeated it, with the same value
 * every time. */
bool poll_note(struct warp *w, uint8_t *const *place, uint32_t mask, uint32_t bytes, int is_shared);
void poll_start(struct cta *cta);
/* Start and stop attributing the worker's work to a CTA. */
void poll_enter(struct cta *cta, const struct worker *worker);
void poll_leave(struct cta *cta, const struct worker *worker);
/* Record what a waiting CTA polls. */
void poll_watch(struct cta *cta);
/* Return whether a polled value has changed. */
bool poll_has_answer(const struct cta *cta);
/* Describe what lanes of a warp poll, for a report. Return 0 if they poll nothing. */
int poll_describe(const struct warp *w, uint32_t mask, char *to, size_t bytes);
/* Return a number that changes whenever a worker writes to global memory. */
uint64_t poll_changes(const struct worker *worker);
/* At the end of a slice, return whether the CTA only polled in it. */
bool poll_is_all(struct cta *cta, const struct worker *worker);
/* Describe what a split waits for. */
void cta_wait_text(const struct warp *w, const struct split *s, char *to, size_t bytes);

#endif
