/* Instructions on tensor maps: tensor copies, changes of maps, fences. */
#include "vm/execute/tma.h"

#include <stdlib.h>
#include <string.h>

#include "driver/tensor_map_rules.h"
#include "vm/check/check.h"
#include "vm/execute/async.h"
#include "vm/execute/atomic.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/fault.h"
#include "vm/machine/mbarrier.h"
#include "vm/machine/memory.h"
#include "vm/machine/program.h"
#include "vm/machine/tma_box.h"
#include "vm/machine/types.h"

atomic_function *tma_reduction(enum atomic_op op, uint32_t type) {
    static const uint8_t types[16] = {
        [CU_TENSOR_MAP_DATA_TYPE_UINT32] = T_U32,   [CU_TENSOR_MAP_DATA_TYPE_INT32] = T_S32,
        [CU_TENSOR_MAP_DATA_TYPE_UINT64] = T_U64,   [CU_TENSOR_MAP_DATA_TYPE_INT64] = T_S64,
        [CU_TENSOR_MAP_DATA_TYPE_FLOAT16] = T_F16,  [CU_TENSOR_MAP_DATA_TYPE_BFLOAT16] = T_BF16,
        [CU_TENSOR_MAP_DATA_TYPE_FLOAT32] = T_F32,  [CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ] = T_F32,
        [CU_TENSOR_MAP_DATA_TYPE_TFLOAT32] = T_F32, [CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ] = T_F32,
        [CU_TENSOR_MAP_DATA_TYPE_FLOAT64] = T_F64};
    const enum type is = (enum type)types[type];
    const bool has_ftz = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ || type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
    if (op == ATOMIC_AND || op == ATOMIC_OR || op == ATOMIC_XOR) {
        return is == T_U32 || is == T_S32 ? atomic_find_bulk(op, T_B32)
               : is == T_U64              ? atomic_find_bulk(op, T_B64)
                                          : NULL;
    }
    if (is == T_NONE || (is == T_S64 && op == ATOMIC_ADD)) {
        return NULL;
    }
    return has_ftz ? atomic_find(op, is) : atomic_find_bulk(op, is);
}

/* ---- maps ---------------------------------------------------------------------------------------------------- */

/* Read the tensor map at a generic address. Return false after a fault. */
static bool read_map(struct warp *w, uint64_t address, uint32_t lane, struct tensor_map *map) {
    static const char *const names[] = {
        [SPACE_GLOBAL] = "global", [SPACE_SHARED] = "shared", [SPACE_LOCAL] = "local", [SPACE_PARAM] = "parameter"};
    char why[256];
    enum space space = SPACE_GLOBAL;
    const void *const bytes = memory_any(w, SPACE_GENERIC, address, TENSOR_MAP_BYTES, 64, lane, 0, &space);
    const unsigned long long shown = space == SPACE_GLOBAL ? address : address & ~WINDOW_MASK;
    if (bytes == NULL) {
        return false;
    }
    if (space == SPACE_SHARED || space == SPACE_LOCAL) {
        fault_at(w, CUDA_ERROR_INVALID_ADDRESS_SPACE, lane,
                 "the tensor map is at %s address 0x%llx; expected a parameter, constant or global memory",
                 names[space], shown);
        return false;
    }
    if (w->cta->shadow != NULL && space == SPACE_GLOBAL && memory_find(w->worker, address, TENSOR_MAP_BYTES) == 1 &&
        !check_map_used(w, address, lane)) {
        return false;
    }
    if (!tma_map_unpack(bytes, map, why, sizeof why)) {
        fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane, "the tensor map at %s address 0x%llx cannot be used: %s",
                 names[space], shown, why);
        return false;
    }
    return true;
}

/* Check that a map matches the instruction. Return false after a fault. */
static bool fits(struct warp *w, const struct inst *i, const struct tensor_map *map, uint32_t lane) {
    const struct tma_operands *more = i->more;
    if (map->interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) {
        fault_at(w, CUDA_ERROR_NOT_SUPPORTED, lane,
                 "a tensor map with interleave %u; interleaved layouts are not supported", map->interleave);
        return false;
    }
    if (map->rank != more->rank) {
        fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane,
                 "a copy of %u dimensions with a tensor map of %u dimensions; expected the same number", more->rank,
                 map->rank);
        return false;
    }
    if (more->is_gather != 0 && map->box[1] != 1) {
        fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane, "tile::gather4 with a box of %u rows; expected 1",
                 map->box[1]);
        return false;
    }
    return true;
}

/* ---- copies -------------------------------------------------------------------------------------------------- */

/* Check the coordinates of a copy. Return false after a fault. */
static bool is_aligned(struct warp *w, const struct inst *i, const struct tma_box *box, uint32_t lane) {
    const uint32_t bits = tensor_map_bits(box->map.type);
    const int32_t whole = tensor_map_unpacks(box->map.type) ? 128 : (int32_t)(128 / bits);
    if (box->at[0] % whole != 0) {
        fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane,
                 "a tensor copy at coordinate %d of dimension 0 with elements of %u bits; expected a multiple of "
                 "%d, because the copy must start at a multiple of 16 bytes",
                 box->at[0], bits, whole);
        return false;
    }
    for (uint32_t k = 0; k < box->map.rank && i->kind != ASYNC_LOAD; ++k) {
        if (box->at[k] < 0) {
            fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane,
                     "a tensor %s at coordinate %d of dimension %u; only loads may have negative coordinates",
                     i->kind == ASYNC_STORE ? "store" : "reduction", box->at[k], k);
            return false;
        }
    }
    return true;
}

/* Check that the element type allows the copy. Return false after a fault. */
static bool is_allowed(struct warp *w, const struct inst *i, const struct tma_box *box, uint32_t lane) {
    static const char *const names[] = {"add", "min", "max", "and", "or", "xor", "inc", "dec"};
    const uint32_t type = box->map.type;
    if (i->kind == ASYNC_STORE && type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B) {
        fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane,
                 "a store with a tensor map of data_type 16U4_ALIGN16B, which supports only loads");
        return false;
    }
    if (i->kind == ASYNC_LOAD && type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B &&
        box->map.swizzle == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B) {
        fault_at(
            w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane,
            "a load with a tensor map of data_type 16U6_ALIGN16B and swizzle 128B_ATOM_64B, which support only stores");
        return false;
    }
    if (i->kind == ASYNC_REDUCE && tma_reduction((enum atomic_op)i->negate, type) == NULL) {
        fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane,
                 "cp.reduce.async.bulk.tensor with .%s, which data_type %u of the tensor map does not support",
                 names[i->negate], type);
        return false;
    }
    return true;
}

/* Compute the box that an instruction copies. Return false after a fault. */
static bool find_box(struct warp *w, const struct inst *i, uint32_t lane, struct tma_box *box) {
    const struct tma_operands *more = i->more;
    *box = (struct tma_box){.is_gather = more->is_gather, .is_written = i->kind != ASYNC_LOAD, .in_use = true};
    if (!read_map(w, address_register(w, more->map, more->is_map_narrow, lane), lane, &box->map) ||
        !fits(w, i, &box->map, lane)) {
        return false;
    }
    for (uint32_t k = 0; k < (more->is_gather != 0 ? TMA_COORDINATES : more->rank); ++k) {
        box->at[k] = (int32_t)((const uint32_t *)source(w, more->coordinates[k]))[lane];
    }
    for (uint32_t k = 0; k < more->rank; ++k) {
        box->counts[k] = k != 0 ? (box->map.box[k] + box->map.steps[k] - 1) / box->map.steps[k] : box->map.box[0];
    }
    if (more->is_gather != 0) {
        box->counts[1] = 4;
    }
    return is_aligned(w, i, box, lane) && is_allowed(w, i, box, lane);
}

/* Check the addresses of a copy. Return false after a fault. */
static bool check_sides(struct warp *w, const struct inst *i, const struct tma_box *box, uint32_t shared,
                        uint32_t lane) {
    static const char *const names[] = {
        [ASYNC_LOAD] = "tensor load", [ASYNC_STORE] = "tensor store", [ASYNC_REDUCE] = "tensor reduction"};
    const char *const what = names[i->kind];
    uint32_t address, n;
    if (memory_shared(w, shared, 0, TMA_LINE, lane, what) == NULL) {
        return false;
    }
    if (tma_bytes(box) > w->cta->shared_bytes) {
        fault_at(w, CUDA_ERROR_ILLEGAL_ADDRESS, lane, "%s of a box of %u bytes; this CTA has %u bytes of shared memory",
                 what, tma_bytes(box), w->cta->shared_bytes);
        return false;
    }
    for (uint32_t done = 0; (n = tma_piece(box, shared, done, &address)) != 0; done += n) {
        if (memory_shared(w, address, n, 16, lane, what) == NULL) {
            return false;
        }
    }
    for (uint32_t k = 0; k < tma_rows(box); ++k) {
        const struct tma_row row = tma_row(box, k);
        if (row.end > row.first && memory_global(w, row.global, row.end - row.first, 1, lane, what) == NULL) {
            return false;
        }
        if (row.end > row.first && i->kind != ASYNC_LOAD &&
            memory_find(w->worker, row.global, row.end - row.first) > 1) {
            fault_at(w, CUDA_ERROR_INVALID_ADDRESS_SPACE, lane, "%s to a .const variable, which is read-only", what);
            return false;
        }
    }
    return true;
}

/* cp.async.bulk.tensor and cp.reduce.async.bulk.tensor: check both addresses now, copy later. */
enum step tma_copy(struct warp *w, const struct inst *i, uint32_t mask) {
    const struct tma_operands *more = i->more;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest), shared = address_shared(w, i, lane);
        struct tma_box box;
        uint32_t ranks = 0;
        struct async_op op = {.kind = i->kind, .op = i->negate, .lane = lane, .shared = shared, .is_tensor = 1};
        if (!find_box(w, i, lane, &box) || !check_sides(w, i, &box, shared, lane)) {
            return STEP_FAULT;
        }
        if (i->kind == ASYNC_LOAD) {
            op.mbarrier =
                (uint32_t)address_register(w, more->barrier, more->is_barrier_narrow, lane) + more->barrier_offset;
            ranks = more->multicast != 0 ? ((const uint32_t *)source(w, more->multicast))[lane] & 0xffffu : 0;
            if (mbarrier_get(w, op.mbarrier, lane, "tensor load") == NULL ||
                (more->multicast != 0 && !async_ranks_exist(w, ranks, lane))) {
                return STEP_FAULT;
            }
        }
        op.bytes = tma_counted(&box);
        if (!async_start(w, &op, &box, ranks)) {
            return STEP_FAULT;
        }
    }
    return STEP_NEXT;
}

/* cp.async.bulk.prefetch.tensor: check the map; nothing is copied. */
enum step tma_prefetch(struct warp *w, const struct inst *i, uint32_t mask) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        struct tma_box box;
        if (!find_box(w, i, lowest_bit(rest), &box)) {
            return STEP_FAULT;
        }
    }
    return STEP_NEXT;
}

/* ---- changes of maps ----------------------------------------------------------------------------------------- */

/* tensormap.replace: b is the value, c the ordinal, kind the field. */
enum step tma_replace(struct warp *w, const struct inst *i, uint32_t mask) {
    char why[256];
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        const uint64_t address = address_lane(w, i, lane);
        enum space space = SPACE_GLOBAL;
        uint8_t *const bytes = memory_any(w, (enum space)i->space, address, TENSOR_MAP_BYTES, 64, lane, 1, &space);
        if (bytes == NULL) {
            return STEP_FAULT;
        }
        if (space != SPACE_GLOBAL && space != SPACE_SHARED) {
            return fault_at(w, CUDA_ERROR_INVALID_ADDRESS_SPACE, lane,
                            "tensormap.replace at 0x%llx; expected an address in global or shared memory",
                            (unsigned long long)address);
        }
        if (w->cta->shadow != NULL && space == SPACE_SHARED &&
            !check_shared(w, (uint32_t)(bytes - w->cta->shared) + SHARED_BASE, TENSOR_MAP_BYTES, lane, true,
                          BY_PLAIN)) {
            return STEP_FAULT;
        }
        if (w->cta->shadow != NULL && space == SPACE_GLOBAL && !check_map_changed(w, address, false)) {
            return STEP_FAULT;
        }
        if (!tma_map_replace(bytes, (enum tma_field)i->kind, i->c, address_register(w, i->b, i->size == 4, lane), why,
                             sizeof why)) {
            return fault_at(w, CUDA_ERROR_ILLEGAL_INSTRUCTION, lane, "tensormap.replace at %s address 0x%llx: %s",
                            space == SPACE_SHARED ? "shared" : "global",
                            (unsigned long long)(space == SPACE_SHARED ? address & ~WINDOW_MASK : address), why);
        }
    }
    return STEP_NEXT;
}

/* tensormap.cp_fenceproxy: a is in global memory, b in shared memory. All lanes copy the same map. */
enum step tma_copy_map(struct warp *w, const struct inst *i, uint32_t mask) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        const uint64_t to = address_lane(w, i, lane);
        const uint64_t from = address_register(w, i->b, i->flags & 2u, lane) + i->target;
        enum space space = SPACE_GLOBAL;
        uint8_t *const global = memory_any(w, SPACE_GLOBAL, to, TENSOR_MAP_BYTES, 128, lane, 1, &space);
        const uint8_t *const shared = memory_shared(w, from, TENSOR_MAP_BYTES, 128, lane, "tensormap.cp_fenceproxy");
        if (global == NULL || shared == NULL) {
            return STEP_FAULT;
        }
        if (w->cta->shadow != NULL && (!check_shared(w, (uint32_t)from, TENSOR_MAP_BYTES, lane, false, BY_PLAIN) ||
                                       !check_map_changed(w, to, true))) {
            return STEP_FAULT;
        }
        memcpy(global, shared, TENSOR_MAP_BYTES);
    }
    return STEP_NEXT;
}

/* ---- fences -------------------------------------------------------------------------------------------------- */

/* fence.proxy.tensormap::generic.acquire [map], 128 */
enum step tma_acquire(struct warp *w, const struct inst *i, uint32_t mask) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        const uint64_t address = address_lane(w, i, lane);
        enum space space = SPACE_GLOBAL;
        if (memory_any(w, SPACE_GENERIC, address, TENSOR_MAP_BYTES, 64, lane, 0, &space) == NULL) {
            return STEP_FAULT;
        }
        if (w->cta->shadow != NULL && space == SPACE_GLOBAL && !check_map_acquired(w, address)) {
            return STEP_FAULT;
        }
    }
    return STEP_NEXT;
}

/* fence.proxy.tensormap::generic.release */
enum step tma_release(struct warp *w, const struct inst *i, uint32_t mask) {
    (void)i, (void)mask;
    if (w->cta->shadow != NULL) {
        check_map_released(w);
    }
    return STEP_NEXT;
}
