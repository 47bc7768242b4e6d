/* Splits of a warp, and the random numbers of a CTA. */
#include "vm/machine/cta.h"

#include "vm/machine/base.h"
#include "vm/machine/fault.h"
#include "vm/machine/program.h"

/* Move the lanes of the current split that are not in `mask` to the next instruction, as a split of their own. */
void warp_leave_behind(struct warp *w, uint32_t mask) {
    const uint32_t rest = w->active & ~mask;
    if (rest == 0) {
        return;
    }
    w->split[w->splits++] = (struct split){.pc = w->pc + 1, .mask = rest};
    w->split[w->current].mask = mask;
    w->active = mask;
}

/* Report lanes whose predicate is false, but which an instruction needs. */
enum step warp_left_out(struct warp *w, uint32_t missing, uint32_t needed, const char *what) {
    return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lowest_bit(missing),
                    "lanes 0x%08x do not take part in %s, expected 0x%08x: their predicate is false", missing, what,
                    needed);
}

/* Wait until all lanes in `needed` are at this .aligned instruction. */
enum step warp_converge(struct warp *w, uint32_t mask, uint32_t needed) {
    const uint32_t missing = needed & ~mask;
    if (missing == 0) {
        return STEP_NEXT;
    }
    if ((missing & w->active) != 0) {
        return warp_left_out(w, missing & w->active, needed, "an .aligned instruction");
    }
    struct split *s = &w->split[w->current];
    s->wait = WAIT_ALIGNED;
    s->detail = missing;
    return STEP_AGAIN;
}

/* Return the next random number of this CTA (splitmix64). */
uint64_t cta_random(struct cta *cta) {
    uint64_t z = cta->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
