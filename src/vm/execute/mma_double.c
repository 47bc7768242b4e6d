/* mma.sync of f64: one fused multiply-add per k, in order of k, as observed on the tensor cores of an H200. */
#include <string.h>

#include "vm/execute/bits.h"
#include "vm/execute/lanes_math.h"
#include "vm/execute/tensor.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/launch.h"
#include "vm/machine/program.h"

enum { ROWS = 16, COLUMNS = 8, DEPTH = 16 };

/* For element r of a lane's fragment, return its row (of A and C), its k (of A and B) or its column (of C). */
static uint32_t row_of(uint32_t lane, uint32_t r) {
    return lane / 4 + 8 * r;
}

static void read_a(const struct warp *w, const struct fragment *f, uint32_t rows, double a[ROWS][DEPTH]) {
    for (uint32_t r = 0; r < f->count; ++r) {
        const uint64_t *const lanes = source(w, f->slot[r]);
        const uint32_t second = rows == ROWS ? r & 1 : 0, group = rows == ROWS ? r / 2 : r;
        for (uint32_t l = 0; l < WARP; ++l) {
            a[row_of(l, second)][l % 4 + 4 * group] = value64(lanes[l]);
        }
    }
}

static void read_b(const struct warp *w, const struct fragment *f, double b[DEPTH][COLUMNS]) {
    for (uint32_t r = 0; r < f->count; ++r) {
        const uint64_t *const lanes = source(w, f->slot[r]);
        for (uint32_t l = 0; l < WARP; ++l) {
            b[l % 4 + 4 * r][l / 4] = value64(lanes[l]);
        }
    }
}

/* d = a * b + c, for m8n8k4, m16n8k4, m16n8k8 and m16n8k16. */
enum step tensor_mma_double(struct warp *w, const struct inst *i, uint32_t mask) {
    const struct mma_plan *const plan = i->more;
    const uint32_t depth = plan->shape.k, rows = plan->c.count == 2 ? 8 : ROWS;
    double a[ROWS][DEPTH], b[DEPTH][COLUMNS];
    uint64_t d[4][WARP];
    (void)mask;
    read_a(w, &plan->a, rows, a);
    read_b(w, &plan->b, b);
    for (uint32_t r = 0; r < plan->c.count; ++r) {
        const uint64_t *const lanes = source(w, plan->c.slot[r]);
        for (uint32_t l = 0; l < WARP; ++l) {
            const uint32_t row = row_of(l, r / 2), column = 2 * (l % 4) + r % 2;
            double sum = value64(lanes[l]);
            for (uint32_t k = 0; k < depth; ++k) {
                sum = nan3(b[k][column], sum, a[row][k],
                           i->flags != 0 ? directed_fma64(a[row][k], b[k][column], sum, i->flags)
                                         : FMA(a[row][k], b[k][column], sum));
            }
            d[r][l] = bits64(sum);
        }
    }
    for (uint32_t r = 0; r < plan->d.count; ++r) {
        memcpy(destination(w, plan->d.slot[r]), d[r], sizeof d[r]);
    }
    w->worker->tensor_flops += plan->flops;
    return STEP_NEXT;
}
