/* Reads that are repeated until another warp or CTA answers; what a split waits for. */
#ifndef SM120_VM_EXECUTE_POLL_H
#define SM120_VM_EXECUTE_POLL_H

#include <stdbool.h>
#include <stddef.h>

#include "vm/machine/cta.h"
#include "vm/machine/launch.h"

/* Lanes have read `bytes` each. true: all of them have read this again and again, and it was always the same. */
bool poll_note(struct warp *w, uint8_t *const *place, uint32_t mask, uint32_t bytes, int is_shared);
void poll_start(struct cta *cta);
/* A worker takes a CTA up, and leaves it. */
void poll_enter(struct cta *cta, const struct worker *worker);
void poll_leave(struct cta *cta, const struct worker *worker);
/* A CTA waits: remember what for. */
void poll_watch(struct cta *cta);
/* Has something changed that it polled? */
bool poll_has_answer(const struct cta *cta);
/* What lanes of a warp poll, for a report; 0 if nothing. */
int poll_describe(const struct warp *w, uint32_t mask, char *to, size_t bytes);
/* What a worker has done to global memory: a number that changes. */
uint64_t poll_changes(const struct worker *worker);
/* At the end of a slice: did the CTA do nothing but poll in it? */
bool poll_is_all(struct cta *cta, const struct worker *worker);
/* What a split waits for, in words. */
void cta_wait_text(const struct warp *w, const struct split *s, char *to, size_t bytes);

#endif
