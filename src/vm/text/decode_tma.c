/* Decode tensor copies and instructions on tensor maps. */
#include "driver/tensor_map_rules.h"
#include "vm/execute/control.h"
#include "vm/execute/tma.h"
#include "vm/machine/address.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/program.h"
#include "vm/machine/tma_box.h"
#include "vm/machine/types.h"
#include "vm/text/parse.h"

static NORETURN void unknown(struct parser *p) {
    error_at(p, &p->statement.opcode, "unknown instruction '%s'", p->statement.name);
}

/* Append a decoded instruction with the guard of the statement. */
static void append(struct parser *p, const struct inst *i) {
    struct inst *to = emit(p, i->run);
    const struct inst guarded = *to;
    *to = *i;
    to->guard = guarded.guard;
    to->flip = guarded.flip;
}

/* ---- copies -------------------------------------------------------------------------------------------------- */

enum load_mode { MODE_TILE, MODE_GATHER, MODE_COUNT };

/* Modifiers after .tensor. As in ptxas, they may stand in any order. */
struct modifiers {
    int rank, to, from, mode, completion, op, multicast, policy, is_prefetch;
};

/* Report unsupported modifiers, with the reason. */
static void refuse(struct parser *p) {
    static const struct {
        const char *modifier, *reason;
    } list[] = {{"im2col", "im2col is not supported"},
                {"im2col_no_offs", "im2col is not supported"},
                {"im2col::w", "im2col is not supported"},
                {"im2col::w::128", "only sm_100 and its family support it"},
                {"tile::scatter4", "only sm_100 and its family support it"},
                {"cta_group::1", "only sm_100 and its family support it"},
                {"cta_group::2", "only sm_100 and its family support it"}};
    for (size_t k = 0; k < sizeof list / sizeof *list; ++k) {
        if (has(p, list[k].modifier)) {
            error_at(p, &p->statement.opcode, "unsupported instruction '%s': .%s: %s", p->statement.name,
                     list[k].modifier, list[k].reason);
        }
    }
}

/* Take one modifier if it is in the list and the first of its kind. */
static bool take_once(struct parser *p, uint32_t *at, const char *list, int *value) {
    const uint32_t before = *at;
    const int found = take_choice(p, at, list);
    if (found < 0) {
        return false;
    }
    if (*value >= 0) {
        *at = before; /* given twice: take_end reports it */
        return false;
    }
    *value = found;
    return true;
}

static struct modifiers take_modifiers(struct parser *p, uint32_t at, bool is_prefetch) {
    static const char *const spaces = "shared::cta shared::cluster global";
    struct modifiers m = {-1, -1, -1, -1, -1, -1, -1, -1, is_prefetch};
    int level = -1;
    while (take_once(p, &at, "1d 2d 3d 4d 5d", &m.rank) || (is_prefetch && take_once(p, &at, "L2", &level)) ||
           take_once(p, &at, spaces, m.to < 0 && !is_prefetch ? &m.to : &m.from) ||
           take_once(p, &at, "tile tile::gather4", &m.mode) ||
           take_once(p, &at, "mbarrier::complete_tx::bytes bulk_group", &m.completion) ||
           take_once(p, &at, "add min max and or xor inc dec", &m.op) ||
           take_once(p, &at, "multicast::cluster", &m.multicast) || take_once(p, &at, "L2::cache_hint", &m.policy))
        ;
    take_end(p, at);
    if (m.rank < 0 || (is_prefetch && level < 0)) {
        unknown(p);
    }
    return m;
}

/* What ptxas compares of neighbouring coordinates: .b32 suits every one. */
enum coordinate { ANY_COORDINATE, WHOLE_COORDINATE, REAL_COORDINATE };

static enum coordinate coordinate_of(const struct operand *o) {
    const bool is_register = o->kind == OPERAND_REGISTER;
    return o->kind == OPERAND_REAL || (is_register && o->type == T_F32) ? REAL_COORDINATE
           : is_register && o->type == T_B32                            ? ANY_COORDINATE
                                                                        : WHOLE_COORDINATE;
}

/* Read [map, {coordinates}]. */
static void read_box(struct parser *p, const struct operand *o, struct tma_operands *more) {
    const uint32_t count = more->is_gather != 0 ? TMA_COORDINATES : more->rank;
    if (o->kind != OPERAND_ADDRESS || o->count != 2 || o->offset != 0) {
        error_at(p, &o->token, "'%s' expects [tensor map, {coordinates}] here", p->statement.name);
    }
    const struct operand *map = &o->items[0], *at = &o->items[1];
    if (at->count != count) {
        error_at(p, &at->token, "'%s' expects %u coordinates, not %u", p->statement.name, count, at->count);
    }
    bool is_real = true;
    for (uint32_t k = 0; k < count; ++k) {
        const enum coordinate own = coordinate_of(&at->items[k]);
        const enum coordinate before = k > 0 ? coordinate_of(&at->items[k - 1]) : ANY_COORDINATE;
        is_real = is_real && own == REAL_COORDINATE;
        if (own != before && own != ANY_COORDINATE && before != ANY_COORDINATE) {
            error_at(p, &at->items[k].token, "'%s' expects neighbouring coordinates of one type, or .b32",
                     p->statement.name);
        }
        more->coordinates[k] = need_source(p, &at->items[k], at->items[k].type == T_F32 ? T_F32 : T_S32);
    }
    if (is_real) {
        error_at(p, &at->token, "'%s' expects coordinates that are not all .f32", p->statement.name);
    }
    more->is_map_narrow = map->kind == OPERAND_REGISTER && type_bytes(map->type) == 4;
    if (map->kind == OPERAND_SYMBOL && map->symbol->space != SPACE_GLOBAL) {
        error_at(p, &map->token, "'%.*s' is not a generic address; use cvta to make one", (int)map->token.length,
                 map->token.at);
    }
    more->map = need_source(p, map, more->is_map_narrow != 0 ? T_B32 : T_B64);
}

/* Read the mbarrier of a load. */
static void read_barrier(struct parser *p, const struct operand *o, struct tma_operands *more) {
    struct inst barrier = {0};
    need_address(p, o, SPACE_SHARED, &barrier);
    more->barrier = barrier.a;
    more->barrier_offset = (uint32_t)barrier.offset;
    more->is_barrier_narrow = barrier.flags & 1u;
}

/* Decode cp{.reduce}.async.bulk.tensor and cp.async.bulk.prefetch.tensor, from the modifier after .tensor on. */
void decode_tensor_copy(struct parser *p, uint32_t at, bool is_reduction, bool is_prefetch) {
    struct statement *s = &p->statement;
    struct inst i = {.run = is_prefetch ? tma_prefetch : tma_copy};
    refuse(p);
    const struct modifiers m = take_modifiers(p, at, is_prefetch);
    const bool loads = m.to == 0 || m.to == 1, policy = m.policy >= 0;
    struct tma_operands *more = parser_take(p, sizeof *more);
    more->rank = (uint8_t)(m.rank + 1);
    more->is_gather = m.mode == MODE_GATHER;
    if (is_prefetch ? m.from != 2 || m.completion >= 0
        : loads     ? m.from != 2 || m.completion != 0
                    : m.to != 2 || m.from != 0 || m.completion != 1) {
        unknown(p);
    }
    if ((m.op >= 0) != is_reduction || (is_reduction && loads)) {
        unknown(p);
    }
    if (more->is_gather != 0 && (m.to != 0 || more->rank != 2 || is_prefetch)) {
        error_at(p, &s->opcode,
                 "unsupported instruction '%s': SM120 supports .tile::gather4 only for .2d.shared::cta.global",
                 s->name);
    }
    need_feature(p, more->is_gather != 0 ? 100 : 90, false, "a tensor copy");
    if (m.multicast >= 0 && (is_prefetch || m.to != 1)) {
        unknown(p);
    }
    const uint32_t plain = is_prefetch ? 1u : loads ? 3u : 2u, casts = m.multicast >= 0;
    const uint32_t count = plain + casts + (uint32_t)policy;
    need_count(p, count, count);
    read_box(p, &s->operand[loads ? 1 : 0], more);
    if (!is_prefetch) {
        need_address(p, &s->operand[loads ? 0 : 1], SPACE_SHARED, &i);
    }
    if (loads) {
        read_barrier(p, &s->operand[2], more);
    }
    more->multicast = casts != 0 ? need_source(p, &s->operand[plain], T_U16) : 0;
    if (policy) {
        need_source(p, &s->operand[count - 1], T_U64);
    }
    i.kind = (uint8_t)(is_reduction ? ASYNC_REDUCE : loads || is_prefetch ? ASYNC_LOAD : ASYNC_STORE);
    i.negate = (uint8_t)(is_reduction ? m.op : 0);
    i.more = more;
    i.flags |= ADDRESS_ASYNC;
    append(p, &i);
}

/* ---- tensor maps --------------------------------------------------------------------------------------------- */

/* Fields that tensormap.replace can change: `ordinal` fields take an ordinal, others a constant below `end`. */
static const struct {
    const char *name;
    uint8_t ordinals, end, is_wide;
} fields[TMA_FIELDS] = {[TMA_ADDRESS] = {"global_address", 0, 0, 1},
                        [TMA_RANK] = {"rank", 0, 0, 0},
                        [TMA_BOX] = {"box_dim", 5, 0, 0},
                        [TMA_DIM] = {"global_dim", 5, 0, 0},
                        [TMA_STRIDE] = {"global_stride", 4, 0, 1},
                        [TMA_STEP] = {"element_stride", 5, 0, 0},
                        [TMA_TYPE] = {"elemtype", 0, 16, 0},
                        [TMA_INTERLEAVE] = {"interleave_layout", 0, 3, 0},
                        [TMA_SWIZZLE] = {"swizzle_mode", 0, 4, 0},
                        [TMA_ATOM] = {"swizzle_atomicity", 0, 4, 0},
                        [TMA_FILL] = {"fill_mode", 0, 2, 0}};

/* tensormap.replace.tile.field{.space}.b1024.type [a], {ordinal, }value */
static void decode_replace(struct parser *p, uint32_t at) {
    static const enum space spaces[] = {SPACE_GLOBAL, SPACE_SHARED};
    struct statement *s = &p->statement;
    struct inst i = {.run = tma_replace};
    uint32_t field = 0;
    if (!take(p, &at, "tile")) {
        unknown(p);
    }
    while (field < TMA_FIELDS && !take(p, &at, fields[field].name)) {
        ++field;
    }
    if (field == TMA_FIELDS) {
        unknown(p);
    }
    const int space = take_choice(p, &at, "global shared::cta");
    if (!take(p, &at, "b1024") || !take(p, &at, fields[field].is_wide != 0 ? "b64" : "b32")) {
        unknown(p);
    }
    take_end(p, at);
    need_feature(p, 90, true, "tensormap.replace");
    const uint32_t last = fields[field].ordinals != 0 ? 2 : 1;
    need_count(p, last + 1, last + 1);
    need_address(p, &s->operand[0], space < 0 ? SPACE_GENERIC : spaces[space], &i);
    if (fields[field].ordinals != 0) {
        i.c = (uint32_t)need_integer(p, &s->operand[1], 0, fields[field].ordinals - 1);
    }
    if (fields[field].end != 0) {
        need_integer(p, &s->operand[last], 0, fields[field].end - 1);
    }
    i.b = need_source(p, &s->operand[last], fields[field].is_wide != 0 ? T_B64 : T_U32);
    i.size = fields[field].is_wide != 0 ? 8 : 4;
    i.kind = (uint8_t)field;
    append(p, &i);
}

/* tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.scope.sync.aligned [dst], [src], 128 */
static void decode_cp_fenceproxy(struct parser *p, uint32_t at) {
    struct statement *s = &p->statement;
    struct inst i = {.run = control_aligned, .next = tma_copy_map}, from = {0};
    if (!take(p, &at, "global") || !take(p, &at, "shared::cta") || !take(p, &at, "tensormap::generic") ||
        !take(p, &at, "release") || take_choice(p, &at, "cta cluster gpu sys") < 0 || !take(p, &at, "sync") ||
        !take(p, &at, "aligned")) {
        unknown(p);
    }
    take_end(p, at);
    need_feature(p, 90, false, "tensormap.cp_fenceproxy");
    need_count(p, 3, 3);
    need_address(p, &s->operand[0], SPACE_GLOBAL, &i);
    need_address(p, &s->operand[1], SPACE_SHARED, &from);
    need_integer(p, &s->operand[2], TENSOR_MAP_BYTES, TENSOR_MAP_BYTES);
    i.b = from.a;
    i.target = (uint32_t)from.offset;
    i.flags |= from.flags << 1;
    append(p, &i);
}

/* tensormap.op */
void decode_tensormap(struct parser *p) {
    uint32_t at = 0;
    const int op = take_choice(p, &at, "replace cp_fenceproxy");
    if (op < 0) {
        unknown(p);
    }
    (op != 0 ? decode_cp_fenceproxy : decode_replace)(p, at);
}

/* prefetch{.const,.param}.tensormap [map]: a hint without effect. */
void decode_prefetch_map(struct parser *p) {
    struct inst i = {.run = control_nop};
    uint32_t at = 0;
    const int space = take_choice(p, &at, "param const");
    if (!take(p, &at, "tensormap")) {
        unknown(p);
    }
    take_end(p, at);
    need_count(p, 1, 1);
    need_address(p, &p->statement.operand[0], space == 0 ? SPACE_PARAM : space == 1 ? SPACE_CONST : SPACE_GENERIC, &i);
    append(p, &i);
}

/* fence.proxy.tensormap::generic, from its order on: .release.scope, or .acquire.scope [map], 128 */
void decode_map_fence(struct parser *p, uint32_t at) {
    struct inst i = {.run = tma_release};
    const int is_acquire = take_choice(p, &at, "release acquire");
    if (is_acquire < 0 || take_choice(p, &at, "cta cluster gpu sys") < 0) {
        unknown(p);
    }
    take_end(p, at);
    need_count(p, is_acquire != 0 ? 2 : 0, is_acquire != 0 ? 2 : 0);
    if (is_acquire != 0) {
        i.run = tma_acquire;
        need_address(p, &p->statement.operand[0], SPACE_GENERIC, &i);
        need_integer(p, &p->statement.operand[1], TENSOR_MAP_BYTES, TENSOR_MAP_BYTES);
    }
    append(p, &i);
}
