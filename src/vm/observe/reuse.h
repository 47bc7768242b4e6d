/* Reuse of global memory: after how many other bytes of its own a CTA touches a sector again.
 *
 * A warp has a clock that counts the sectors it touches. The distance between two touches of a sector by a CTA is the
 * difference of the clocks of their warps, in whatever order the warps ran. Touches by a warp within REUSE_NEAR sectors
 * are one. At the end of a launch, distances become bytes: while its fastest warp's clock advances by one, a CTA moves
 * a certain number of sectors that no other CTA touches. Lines of 128 bytes that several CTAs touch have no distance:
 * on a chip other CTAs touch them in between. A struct cta is a cluster. */
#ifndef SM120_VM_REUSE_H
#define SM120_VM_REUSE_H

#include "vm/machine/cta.h"

enum { REUSE_NEAR = 128, REUSE_LEAST = 4096, REUSE_STEPS = 24 };

struct reuse;

/* Return the memory of a launch. NULL when out of memory. */
struct reuse *reuse_open(void);
void reuse_close(struct reuse *reuse);

/* Set the clocks of a CTA that begins to 0. */
void reuse_start(struct cta *cta);

/* Note that a warp touches the sectors at the lanes' addresses in global memory. */
void reuse_touch(struct reuse *reuse, struct warp *w, uint32_t pc, uint32_t mask, const uint64_t *address);

/* Note that a warp adds at the lanes' addresses. Return to how many of their lines nobody in the launch had added. */
uint32_t reuse_add(struct reuse *reuse, const struct warp *w, uint32_t mask, const uint64_t *address);

/* Return whether memory has run out, so that the counts are not complete. */
bool reuse_is_exhausted(const struct reuse *reuse);

/* Call `add` for the sectors that a CTA has touched again: an instruction, a step, a number of sectors. Step n has
 * distances from REUSE_LEAST * 2^(n/2) bytes, the first one also less. */
void reuse_read(const struct reuse *reuse, uint32_t ranks,
                void (*add)(void *to, uint32_t pc, uint32_t step, uint64_t sectors), void *to);

#endif
