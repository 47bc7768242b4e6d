/* sm120_kv_cache_append and sm120_kv_cache_gather: copies between dense keys and values and a cache. */
#include <inttypes.h>

#include "generated/constants.h"
#include "ops/cache_numbers.h"
#include "ops/cache_side.h"
#include "ops/divisor.h"
#include "ops/kv_cache.h"
#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/memory.h"
#include "runtime/tensor.h"

enum { MX_BLOCK = 32, ALIGNMENT_OF_4_BITS = 8 };

/* K or V of a call: the dense tensor and the cache. */
struct operand {
    const sm120_tensor *given;
    struct shape shape;
    struct tensor dense;
    struct cache_side cache;
    uint32_t flags;
};

enum { SLOTS, PAGE_TABLE, KV_LENGTHS, NEW_LENGTHS, ROTARY_COS, ROTARY_SIN, POSITIONS, LISTS };

/* A call whose arguments were checked. */
struct copy {
    bool is_gather;
    struct operand operands[2];
    struct tensor lists[LISTS]; /* address 0: not given */
    bool is_wide;               /* lanes have twice KV_COLUMNS columns */
    int64_t lanes, items;       /* lanes: of a head */
    uint32_t rotary_flags;
};

/* Whether lanes may load and store vectors: every row begins at one, and all parts of a row are whole. */
static bool is_fast(const struct operand *operand) {
    const struct tensor *const dense = &operand->dense, *const cache = operand->cache.tensor + CACHE_ELEMENTS;
    const int64_t bytes = operand->cache.form == KV_FORMAT_NVFP4 ? ALIGNMENT_OF_4_BITS : TENSOR_ALIGNMENT;
    const int64_t steps = cache->batch_stride | cache->head_stride | cache->row_stride | (int64_t)cache->address;
    return tensor_is_aligned(dense) && dense->address % TENSOR_ALIGNMENT == 0 && steps % bytes == 0 &&
           operand->shape.head_dim % KV_COLUMNS == 0;
}

/* Check dtypes, shapes and strides of K or V. */
static sm120_status check_operand(const sm120_kv_cache_append_args *args, bool is_gather, const char *name,
                                  int64_t columns, struct operand *operand) {
    const struct shape cached = {args->pages, args->kv_heads, args->page_rows, columns};
    operand->shape = (struct shape){args->batch, args->kv_heads, args->rows, columns};
    sm120_status status =
        tensor_check(name, operand->given, &operand->shape, is_gather ? TENSOR_OUTPUT : TENSOR_INPUT, &operand->dense);
    if (status == SM120_OK) {
        status = cache_side_check(&operand->cache, &cached, operand->given->dtype, name,
                                  is_gather ? TENSOR_INPUT : TENSOR_OUTPUT);
    }
    operand->flags = status == SM120_OK && is_fast(operand) ? KV_FLAG_FAST : 0;
    return status;
}

/* Check the rotary embedding. */
static sm120_status check_rotary(const sm120_kv_cache_append_args *args, bool is_gather, struct copy *copy) {
    const bool has = args->rotary_cos != 0;
    if (args->reserved != 0) {
        return fail(SM120_INVALID_ARGUMENT, "reserved = %" PRIu32 "; it must be 0", args->reserved);
    }
    if (has != (args->rotary_sin != 0)) {
        return fail(SM120_INVALID_ARGUMENT,
                    "rotary_cos = 0x%" PRIx64 " and rotary_sin = 0x%" PRIx64 "; give both or neither", args->rotary_cos,
                    args->rotary_sin);
    }
    if (!has || is_gather) {
        if (has || args->positions != 0 || args->rotary_dim != 0 || args->rotary_positions != 0 ||
            args->rotary_interleaved != 0) {
            return fail(SM120_INVALID_ARGUMENT,
                        "rotary_cos = 0x%" PRIx64 ", positions = 0x%" PRIx64 ", rotary_dim = %" PRId64
                        ", rotary_positions = %" PRId64 ", rotary_interleaved = %" PRIu32 "; %s they must be 0",
                        args->rotary_cos, args->positions, args->rotary_dim, args->rotary_positions,
                        args->rotary_interleaved, is_gather ? "in a gather" : "without rotary_cos");
        }
        return SM120_OK;
    }
    if (args->rotary_interleaved > 1) {
        return fail(SM120_INVALID_ARGUMENT, "rotary_interleaved = %" PRIu32 "; it must be 0 or 1",
                    args->rotary_interleaved);
    }
    if (args->rotary_dim < 2 || args->rotary_dim % 2 != 0 || args->rotary_dim > args->head_dim) {
        return fail(SM120_INVALID_ARGUMENT,
                    "rotary_dim = %" PRId64 "; it must be even, at least 2, and at most head_dim = %" PRId64,
                    args->rotary_dim, args->head_dim);
    }
    if (args->slots != 0 && args->positions == 0) {
        return fail(SM120_INVALID_ARGUMENT, "positions = 0; with slots a rotation needs the positions of the tokens");
    }
    const bool is_fast = (copy->operands[0].flags & KV_FLAG_FAST) != 0 && args->rotary_dim % (2 * KV_COLUMNS) == 0 &&
                         (args->rotary_cos | args->rotary_sin) % TENSOR_ALIGNMENT == 0;
    copy->rotary_flags =
        (is_fast ? ROTARY_FLAG_FAST : 0) | (args->rotary_interleaved != 0 ? ROTARY_FLAG_INTERLEAVED : 0);
    return check_size("rotary_positions", args->rotary_positions, INT32_MAX);
}

/* Check which places tokens have. */
static sm120_status check_lists(const sm120_kv_cache_append_args *args, struct copy *copy) {
    int64_t entries = 0, tokens = 0;
    if (args->new_lengths != 0 && (copy->is_gather || args->slots != 0)) {
        return fail(SM120_INVALID_ARGUMENT, "new_lengths = 0x%" PRIx64 "; it must be 0 %s", args->new_lengths,
                    copy->is_gather ? "in a gather, which has no new tokens" : "with slots, which have no lengths");
    }
    if ((args->slots != 0) && (args->page_table != 0 || args->kv_lengths != 0)) {
        return fail(SM120_INVALID_ARGUMENT,
                    "slots = 0x%" PRIx64 ", page_table = 0x%" PRIx64 ", kv_lengths = 0x%" PRIx64
                    "; slots exclude the other two",
                    args->slots, args->page_table, args->kv_lengths);
    }
    if (args->slots == 0 && args->page_table == 0 && args->pages != args->batch) {
        return fail(SM120_INVALID_ARGUMENT,
                    "pages = %" PRId64
                    "; without slots and page table each sequence has a page, so it must be batch = %" PRId64,
                    args->pages, args->batch);
    }
    const sm120_status of_table = args->page_table != 0
                                      ? check_size("table_pages", args->table_pages, INT32_MAX)
                                      : check_needs("table_pages", args->table_pages, "page_table", false);
    if (of_table != SM120_OK) {
        return of_table;
    }
    entries = args->batch * args->table_pages; /* both are below 2^31 */
    tokens = args->batch * args->rows;
    const int64_t table = 4 * args->rotary_positions * (args->rotary_dim / 2); /* below 2^63: see check_rotary() */
    const struct tensor lists[LISTS] = {
        [SLOTS] = {.name = "slots", .address = args->slots, .bytes = 8 * tokens},
        [PAGE_TABLE] = {.name = "page_table", .address = args->page_table, .bytes = 4 * entries},
        [KV_LENGTHS] = {.name = "kv_lengths", .address = args->kv_lengths, .bytes = 4 * args->batch},
        [NEW_LENGTHS] = {.name = "new_lengths", .address = args->new_lengths, .bytes = 4 * args->batch},
        [ROTARY_COS] = {.name = "rotary_cos", .address = args->rotary_cos, .bytes = table},
        [ROTARY_SIN] = {.name = "rotary_sin", .address = args->rotary_sin, .bytes = table},
        [POSITIONS] = {.name = "positions", .address = args->positions, .bytes = 4 * tokens}};
    for (int i = 0; i < LISTS; ++i) {
        copy->lists[i] = lists[i];
        copy->lists[i].dtype = SM120_U8;
    }
    return SM120_OK;
}

/* Share the columns of a head among lanes. A lane has KV_COLUMNS of them, in a wide kernel twice: a conversion to NVFP4
 * takes as long as its bytes, and what two parts share is computed once. With fewer threads latencies decide. Two
 * neighbouring lanes have a block of MXFP8. */
static void share_columns(struct copy *copy, int64_t heads, int64_t columns) {
    enum { WIDE_LANES = 1 << 14 }; /* of K, and as many of V: 256 CTAs */
    const bool converts_much =
        copy->operands[0].cache.form == KV_FORMAT_NVFP4 || copy->operands[1].cache.form == KV_FORMAT_NVFP4;
    copy->lanes = (columns + MX_BLOCK - 1) / MX_BLOCK * (MX_BLOCK / KV_COLUMNS);
    copy->is_wide = !copy->is_gather && converts_much && heads * copy->lanes >= WIDE_LANES;
    if (copy->is_wide) {
        copy->lanes = (columns + 2 * MX_BLOCK - 1) / (2 * MX_BLOCK) * (MX_BLOCK / KV_COLUMNS);
    }
}

/* Check the arguments except addresses. casts: BF16 becomes F16 and the reverse. */
static sm120_status check_args(const sm120_kv_cache_append_args *args, bool is_gather, bool casts, struct copy *copy) {
    const int64_t v_head_dim = args->v_head_dim != 0 ? args->v_head_dim : args->head_dim;
    *copy = (struct copy){
        .is_gather = is_gather,
        .operands = {{.given = &args->k, .cache = CACHE_SIDE(k, k_cache, args)},
                     {.given = &args->v, .cache = CACHE_SIDE(v, v_cache, args)}},
    };
    copy->operands[0].cache.casts = copy->operands[1].cache.casts = casts;
    const struct shape dense = {args->batch, args->kv_heads, args->rows, args->head_dim};
    const struct shape cache = {args->pages, args->kv_heads, args->page_rows, args->head_dim};
    sm120_status status = check_shape(&dense, "rows", INT32_MAX);
    status = status == SM120_OK ? check_size("v_head_dim", v_head_dim, INT32_MAX) : status;
    status = status == SM120_OK ? check_size("pages", args->pages, INT32_MAX) : status;
    status = status == SM120_OK ? check_shape(&cache, "page_rows", INT32_MAX) : status;
    status = status == SM120_OK ? check_size("pages * page_rows", args->pages * args->page_rows, INT32_MAX) : status;
    status = status == SM120_OK ? check_size("batch * rows", args->batch * args->rows, INT32_MAX) : status;
    status = status == SM120_OK ? check_operand(args, is_gather, "k", args->head_dim, copy->operands) : status;
    status = status == SM120_OK ? check_operand(args, is_gather, "v", v_head_dim, copy->operands + 1) : status;
    status = status == SM120_OK ? check_rotary(args, is_gather, copy) : status;
    status = status == SM120_OK ? check_lists(args, copy) : status;
    if (status == SM120_OK && args->v.dtype != args->k.dtype) {
        status = fail(SM120_INVALID_ARGUMENT, "v.dtype = %s; it must be k.dtype = %s", dtype_text(args->v.dtype).text,
                      dtype_text(args->k.dtype).text);
    }
    if (status == SM120_OK) {
        const struct shape whole = {args->pages, args->kv_heads, args->page_rows, v_head_dim};
        status = cache_side_check_swizzle(&copy->operands[1].cache, args->v_swizzled, &whole);
        copy->operands[1].flags |= args->v_swizzled != 0 ? KV_FLAG_SWIZZLED : 0;
    }
    const int64_t columns = args->head_dim > v_head_dim ? args->head_dim : v_head_dim;
    int64_t heads = 0;
    bool fits = status == SM120_OK && multiply(args->batch * args->rows, args->kv_heads, &heads) && heads <= INT32_MAX;
    if (fits) {
        share_columns(copy, heads, columns);
        fits = multiply(heads, copy->lanes, &copy->items) && copy->items <= INT32_MAX;
    }
    if (status == SM120_OK && !fits) {
        status = fail(SM120_UNSUPPORTED,
                      "batch * rows * kv_heads = %" PRId64 " * %" PRId64 " * %" PRId64 ", with %" PRId64
                      " columns each, is more than one launch copies; append fewer rows",
                      args->batch, args->rows, args->kv_heads, columns);
    }
    return status;
}

/* Check the addresses: tensors lie in memory, and what is written lies apart from everything else. */
static sm120_status check_places(struct device *device, const struct copy *copy) {
    static const struct shape list_shape = {1, 1, 1, 1};
    enum { MOST = 2 * (1 + CACHE_ROLES) + LISTS };
    const struct tensor *tensors[MOST];
    struct shape shapes[MOST];
    bool is_written[MOST];
    int count = 0;
    sm120_status status = SM120_OK;
    for (int o = 0; o < 2; ++o) {
        const struct operand *const operand = copy->operands + o;
        for (int role = -1; role < CACHE_ROLES; ++role) {
            const bool is_dense = role < 0;
            const struct tensor *const tensor = is_dense ? &operand->dense : operand->cache.tensor + role;
            if (role <= CACHE_ELEMENTS || tensor->address != 0) {
                tensors[count] = tensor;
                shapes[count] = is_dense ? operand->shape : operand->cache.shape[role];
                is_written[count++] = is_dense ? copy->is_gather : !copy->is_gather && role != CACHE_SCALE;
                status = status == SM120_OK ? tensor_check_address(device, tensor) : status;
            }
        }
    }
    for (int i = 0; i < LISTS; ++i) {
        const struct tensor *const list = copy->lists + i;
        if (list->address != 0) {
            tensors[count] = list;
            shapes[count] = list_shape;
            shapes[count].head_dim = list->bytes;
            is_written[count++] = i == NEW_LENGTHS;
            status = status == SM120_OK ? check_address(list->name, list->address, i == SLOTS ? 8 : 4) : status;
            status =
                status == SM120_OK ? memory_check(device, list->address, (uint64_t)list->bytes, list->name) : status;
        }
    }
    for (int a = 0; a < count; ++a) {
        for (int b = 0; b < count && is_written[a]; ++b) {
            if (status == SM120_OK && b != a && tensor_meets(tensors[a], shapes + a, tensors[b], shapes + b)) {
                status = fail(SM120_INVALID_ARGUMENT, "%s (0x%" PRIx64 ") and %s (0x%" PRIx64 ") overlap",
                              tensors[a]->name, tensors[a]->address, tensors[b]->name, tensors[b]->address);
            }
        }
    }
    return status;
}

/* The kernel's parameters of K or V. */
#define STRIDES(o, tensor, first)                                                                                      \
    .o##_##first##_stride = (tensor).batch_stride, .o##_head_stride = (tensor).head_stride,                            \
    .o##_row_stride = (tensor).row_stride
#define OPERAND(o, from)                                                                                               \
    .o##_x = (from).dense.address, .o##_cache = (from).cache.tensor[CACHE_ELEMENTS].address,                           \
    .o##_blocks = (from).cache.tensor[CACHE_BLOCKS].address, .o##_factor = (from).cache.tensor[CACHE_SCALE].address,   \
    STRIDES(o##_x, (from).dense, batch), STRIDES(o##_cache, (from).cache.tensor[CACHE_ELEMENTS], page),                \
    STRIDES(o##_blocks, (from).cache.tensor[CACHE_BLOCKS], page),                                                      \
    STRIDES(o##_factor, (from).cache.tensor[CACHE_SCALE], page), .o##_columns = (uint32_t)(from).shape.head_dim,       \
    .o##_format = (from).cache.form, .o##_flags = (from).flags

/* Choose the kernel of an operation and check the launch. */
static sm120_status prepare(struct device *device, const char *operation, const sm120_kv_cache_append_args *args,
                            const struct copy *copy, struct kv_copy_launch *prepared) {
    const struct kernel_record wanted = {
        .operation = operation,
        .dtype = args->k.dtype,
        .config = copy->is_gather ? NULL
                  : copy->is_wide ? "wide"
                                  : "narrow",
        .features = args->rotary_cos != 0,
    };
    uint32_t index;
    sm120_status status = builtin_find(&wanted, &index);
    if (status != SM120_OK) {
        return status;
    }
    const struct kernel_record *const record = kernel_records + index;
    prepared->values = (struct kv_append_parameters){
        OPERAND(k, copy->operands[0]),
        OPERAND(v, copy->operands[1]),
        .slots = args->slots,
        .page_table = args->page_table,
        .kv_lengths = args->kv_lengths,
        .new_lengths = args->new_lengths,
        .items = (uint32_t)copy->items,
        DIVISOR(lanes, copy->lanes),
        DIVISOR(heads, args->kv_heads),
        DIVISOR(rows, args->rows),
        DIVISOR(page_rows, args->page_rows),
        .pages = (uint32_t)args->pages,
        .table_stride = (uint32_t)(args->page_table != 0 ? args->table_pages : 0),
        .rotary = {.rotary_cos = args->rotary_cos,
                   .rotary_sin = args->rotary_sin,
                   .positions = args->positions,
                   .rotary_dim = (uint32_t)args->rotary_dim,
                   .table_rows = (uint32_t)args->rotary_positions,
                   .rotary_flags = copy->rotary_flags},
    };
    const uint32_t grid = (uint32_t)((copy->items + record->threads - 1) / record->threads);
    status =
        launch_of(&prepared->pointers, ARGUMENTS(&prepared->values), grid, record, args->stream, &prepared->launch);
    prepared->launch.grid[1] = 2; /* K and V */
    status = status == SM120_OK ? builtin_load(device, index, &prepared->kernel) : status;
    return status == SM120_OK ? launch_check(prepared->kernel, &prepared->launch) : status;
}

sm120_status kv_gather_prepare(struct device *device, const sm120_kv_cache_gather_args *args,
                               struct kv_copy_launch *prepared) {
    struct copy copy;
    const sm120_status status = check_args(args, true, true, &copy);
    const bool casts = copy.operands[0].cache.form == KV_FORMAT_CAST || copy.operands[1].cache.form == KV_FORMAT_CAST;
    const char *const operation = casts ? "kv_cache_gather_cast" : "kv_cache_gather_sparse";
    return status == SM120_OK ? prepare(device, operation, args, &copy, prepared) : status;
}

/* Check lengths, page numbers, slots and positions, where they can be read. */
static sm120_status check_numbers(struct device *device, const sm120_kv_cache_append_args *args, bool is_gather) {
    if (!numbers_are_checked(device)) {
        return SM120_OK;
    }
    const int64_t all = args->page_rows * (args->page_table != 0 ? args->table_pages : 1);
    const bool are_behind = args->new_lengths != 0;
    const struct cache_numbers numbers = {
        CACHE_NUMBERS(device, args),
        .rows = are_behind ? 0 : args->rows,
        .most = all,
        .new_rows = are_behind ? args->rows : 0,
    };
    const struct rotary_numbers rotary = {args->rotary_cos, args->positions, args->rotary_positions};
    if (args->slots != 0) {
        return numbers_check_slots(&numbers, args->slots, args->batch * args->rows, &rotary);
    }
    return is_gather ? numbers_check_keys(&numbers, args->rows) : numbers_check_tokens(&numbers, args->rows, &rotary);
}

/* Check and launch either operation. */
static sm120_status run(sm120_device *handle, const sm120_kv_cache_append_args *args, bool is_gather) {
    struct device *device;
    struct copy copy;
    struct kv_copy_launch prepared;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(args, sizeof *args, "args",
                          is_gather ? "sm120_kv_cache_gather_args" : "sm120_kv_cache_append_args");
    status = status == SM120_OK ? check_args(args, is_gather, false, &copy) : status;
    status = status == SM120_OK ? check_places(device, &copy) : status;
    status = status == SM120_OK ? check_numbers(device, args, is_gather) : status;
    const char *const operation = is_gather ? "kv_cache_gather" : "kv_cache_append";
    status = status == SM120_OK ? prepare(device, operation, args, &copy, &prepared) : status;
    prepared.launch.is_early = !is_gather;
    status = status == SM120_OK ? launch_start(prepared.kernel, &prepared.launch) : status;
    return device_leave(device, status);
}

sm120_status sm120_kv_cache_append(sm120_device *handle, const sm120_kv_cache_append_args *args) {
    return run(handle, args, false);
}

sm120_status sm120_kv_cache_gather(sm120_device *handle, const sm120_kv_cache_gather_args *args) {
    return run(handle, args, true);
}
