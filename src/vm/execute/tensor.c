/* mma.sync, mma.sp and wmma: pass the registers to the functions of mma.c. */
#include "vm/execute/tensor.h"

#include <string.h>

#include "vm/execute/lanes_math.h"
#include "vm/execute/mma.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/program.h"

/* Return the registers of a fragment as one array. They are copied to scratch if they are not contiguous. */
static const uint32_t (*gather(struct warp *w, const struct fragment *f, uint32_t (*scratch)[WARP])) [WARP] {
    if (f->together != 0) {
        return (const uint32_t (*)[WARP])source(w, f->slot[0]);
    }
    for (uint32_t k = 0; k < f->count; ++k) {
        memcpy(scratch[k], source(w, f->slot[k]), sizeof *scratch);
    }
    return (const uint32_t (*)[WARP])scratch;
}

/* Read the scale selectors from registers and check them. Return false after a fault. */
static bool read_selectors(struct warp *w, const struct mma_plan *plan, uint8_t *value) {
    static const char *const names[4] = {"byte-id of A", "thread-id of A", "byte-id of B", "thread-id of B"};
    const uint32_t vector = plan->shape.scale_vec, byte = vector == 1 ? 3 : vector == 2 ? 2 : 0;
    const uint32_t most[4] = {byte, 1, byte, 3};
    for (uint32_t k = 0; k < 4; ++k) {
        const uint32_t *lanes = source(w, plan->selector[k]);
        for (uint32_t l = 0; l < WARP; ++l) {
            const uint32_t v = lanes[l] & 0xffffu;
            if (v > most[k] || (vector == 2 && k % 2 == 0 && v % 2 != 0) || v != (lanes[0] & 0xffffu)) {
                fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, l,
                         "the %s is %u; expected the same value in all lanes, at most %u", names[k], v, most[k]);
                return false;
            }
        }
        value[k] = (uint8_t)(lanes[0] & 0xffffu);
    }
    return true;
}

/* Check all indices in the metadata of a sparse A. Return false after a fault. */
static bool check_metadata(struct warp *w, const struct mma_plan *plan) {
    const uint32_t *lanes = source(w, plan->metadata);
    for (uint32_t l = 0; l < WARP; ++l) {
        for (uint32_t bit = 0; bit < 32 && (plan->holders >> (l & 3) & 1) != 0; bit += 4) {
            const uint32_t pair = lanes[l] >> bit & 15u;
            if (LIKELY(plan->pairs >> pair & 1)) {
                continue;
            }
            fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, l,
                     "bits %u to %u of the metadata 0x%x are 0x%x: the indices %u and %u; expected %s", bit, bit + 3,
                     lanes[l], pair, pair & 3, pair >> 2,
                     plan->pairs == MMA_PAIRS_TF32      ? "0x4 or 0xe"
                     : plan->pairs == MMA_PAIRS_ORDERED ? "the lower index first"
                                                        : "two different indices");
            return false;
        }
    }
    return true;
}

/* Check a wmma.load or wmma.store before its accesses: all lanes have the same address and stride; rows are aligned
 * to the bytes that a lane accesses (to 16 for 32 bytes, as in CUDA); a store's stride is at least the row length. */
enum step tensor_wmma(struct warp *w, const struct inst *i, uint32_t mask) {
    const uint64_t *address = source(w, i->a);
    const uint32_t *stride = source(w, i->b), first = lowest_bit(mask), bits = i->kind;
    for (uint32_t l = first; l < WARP; ++l) {
        if ((mask >> l & 1u) != 0 && (address[l] != address[first] || stride[l] != stride[first])) {
            return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, l,
                            "a matrix at 0x%llx with stride %u, in lane %u at 0x%llx with stride %u; expected one "
                            "address and one stride in all lanes",
                            (unsigned long long)address[l] + (uint64_t)i->offset, stride[l], first,
                            (unsigned long long)address[first] + (uint64_t)i->offset, stride[first]);
        }
    }
    const uint64_t at = address[first] + (uint64_t)i->offset, row = (uint64_t)stride[first] * bits;
    const uint32_t unit = i->size < 16 ? i->size : 16;
    if (at % i->size != 0) {
        return fault_at(w, CUDA_ERROR_MISALIGNED_ADDRESS, first, "a matrix at 0x%llx; expected a multiple of %u",
                        (unsigned long long)at, i->size);
    }
    if (row % (8 * unit) != 0) {
        return fault_at(w, CUDA_ERROR_MISALIGNED_ADDRESS, first,
                        "a matrix with stride %u, in elements of %u bits; expected a multiple of %u", stride[first],
                        bits, 8 * unit / bits);
    }
    if (stride[first] < i->target) {
        return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, first,
                        "a matrix stored with stride %u; expected at least its row length %u", stride[first],
                        i->target);
    }
    return STEP_NEXT;
}

/* d = a * b + c */
enum step tensor_mma(struct warp *w, const struct inst *i, uint32_t mask) {
    const struct mma_plan *plan = i->more;
    uint32_t (*scratch)[WARP] = w->worker->scratch;
    uint8_t selected[4];
    const uint8_t *value = plan->value;
    (void)mask;
    if (plan->constant == 0) {
        if (!read_selectors(w, plan, selected)) {
            return STEP_FAULT;
        }
        value = selected;
    }
    if (plan->shape.sparse != 0 && !check_metadata(w, plan)) {
        return STEP_FAULT;
    }
    const struct mma_operands operands = {
        .d = plan->d.together != 0 ? (uint32_t (*)[WARP])destination(w, plan->d.slot[0]) : scratch + 12,
        .a = gather(w, &plan->a, scratch),
        .b = gather(w, &plan->b, scratch + 4),
        .c = gather(w, &plan->c, scratch + 8),
        .scale_a = plan->shape.scale != 0 ? source(w, plan->scale_a) : NULL,
        .scale_b = plan->shape.scale != 0 ? source(w, plan->scale_b) : NULL,
        .byte_a = value[0],
        .thread_a = value[1],
        .byte_b = value[2],
        .thread_b = value[3],
        .metadata = plan->shape.sparse != 0 ? source(w, plan->metadata) : NULL,
        .sparsity = plan->sparsity};
    plan->run(&plan->shape, &operands);
    if (plan->d.together == 0) {
        for (uint32_t k = 0; k < plan->d.count; ++k) {
            memcpy(destination(w, plan->d.slot[k]), scratch[12 + k], sizeof *scratch);
        }
    }
    w->worker->tensor_flops += plan->flops;
    return STEP_NEXT;
}
