/* setmaxnreg. The number of registers at launch is known from .maxnreg, or from .maxntid with .minnctapersm, which
 * ptxas requires too. Otherwise the instruction has no effect, and only warpgroups are checked. */
#include "vm/execute/pool.h"

#include "vm/machine/base.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/program.h"

enum { FILE_REGISTERS = 65536, MOST = 255, UNIT = 8, GROUP = 4 };

/* Return the registers of a thread at launch; 0 if they are unknown. */
static uint32_t registers_of(const struct CUfunc_st *f) {
    const uint32_t *shape = f->required[0] != 0 ? f->required : f->maximum;
    const uint32_t warps = (shape[0] * shape[1] * shape[2] + WARP - 1) / WARP;
    uint32_t most = f->register_limit != 0 ? f->register_limit : UINT32_MAX;
    if (warps != 0 && f->resident != 0) {
        const uint32_t fair = FILE_REGISTERS / (WARP * warps * f->resident) / UNIT * UNIT;
        most = fair < most ? fair : most;
    }
    return most == UINT32_MAX ? 0 : most < MOST ? (most + UNIT - 1) / UNIT * UNIT : MOST + 1;
}

void pool_start(struct cta *cta) {
    for (uint32_t k = 0; k < cta->warps; ++k) {
        cta->warp[k].maximum = registers_of(cta->launch->function);
        cta->warp[k].adjusted = cta->warp[k].adjusted_pc = 0;
    }
}

/* setmaxnreg.inc, and dec (kind 1) */
enum step pool_set(struct warp *w, const struct inst *i, uint32_t mask) {
    struct cta *cta = w->cta;
    struct member *m = warp_member(w);
    const uint32_t wanted = (uint32_t)i->offset, had = w->maximum;
    if (had != 0 && (i->kind == 0 ? wanted < had : wanted > had)) {
        return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lowest_bit(mask),
                        "setmaxnreg.%s to %u registers in a warp that has %u; expected at %s %u",
                        i->kind == 0 ? "inc" : "dec", wanted, had, i->kind == 0 ? "least" : "most", had);
    }
    if (had != 0 && i->kind == 0 && WARP * (wanted - had) > m->pool) {
        struct split *s = &w->split[w->current];
        s->wait = WAIT_POOL;
        s->detail = WARP * (wanted - had);
        return STEP_AGAIN;
    }
    if (had != 0) {
        m->pool += WARP * (had - wanted); /* modulo 2^32 */
        w->maximum = wanted;
        ++cta->progress;
    }
    w->adjusted = (w->adjusted ^ (w->pc + 1)) * 0x9e3779b1u;
    w->adjusted_pc = w->pc;
    return STEP_NEXT;
}

bool pool_end(struct cta *cta) {
    for (uint32_t k = 0; k < cta->warps; ++k) {
        const struct warp *w = &cta->warp[k], *first = w - w->number % GROUP, *named = w->adjusted ? w : first;
        if (w->adjusted == first->adjusted) {
            continue;
        }
        const struct place *at = &w->function->places[named->adjusted_pc];
        fault_cta(cta, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                  "warp %u executed setmaxnreg at %s, but warp %u of its warpgroup did not execute the same "
                  "setmaxnreg; expected it in all warps from %u to %u",
                  named->number, spot_of(at).text, named == w ? first->number : w->number, first->number,
                  first->number + GROUP - 1);
        return false;
    }
    return true;
}
