/* sm120_kv_cache_append and sm120_kv_cache_gather: copies between dense keys and values and a cache. */
#include <inttypes.h>
#include <stdio.h>

#include "generated/constants.h"
#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/launch.h"
#include "runtime/memory.h"
#include "runtime/tensor.h"

enum { MX_BLOCK = 32, NV_BLOCK = 16, ALIGNMENT_OF_4_BITS = 8, SWIZZLE = 4, NAME_BYTES = 16 };

enum role { DENSE, CACHE, BLOCKS, SCALE, ROLES };

/* K or V of a call: its tensors, and how the cache holds elements. */
struct operand {
    const sm120_tensor *given[ROLES];
    struct shape shape[ROLES];
    struct tensor tensor[ROLES];
    char name[ROLES][NAME_BYTES];
    uint32_t format, flags;
};

enum { LISTS = 3 };

/* A call whose arguments were checked. */
struct copy {
    bool is_gather;
    struct operand operands[2];
    struct tensor lists[LISTS]; /* slots, page_table, kv_lengths; address 0: not given */
    int64_t chunks, items;
};

/* Find out how a cache holds elements. */
static sm120_status find_format(struct operand *operand) {
    const sm120_tensor *const dense = operand->given[DENSE], *const cache = operand->given[CACHE];
    const sm120_tensor *const blocks = operand->given[BLOCKS], *const scale = operand->given[SCALE];
    const bool has_blocks = blocks->address != 0;
    const uint32_t wanted = cache->dtype == SM120_U8 ? SM120_E4M3 : SM120_E8M0;
    if (cache->dtype == dense->dtype) {
        operand->format = KV_FORMAT_COPY;
    } else if (cache->dtype == SM120_E4M3) {
        operand->format = has_blocks ? KV_FORMAT_MXFP8 : KV_FORMAT_E4M3;
    } else if (cache->dtype == SM120_E5M2) {
        operand->format = KV_FORMAT_E5M2;
    } else if (cache->dtype == SM120_U8) {
        operand->format = KV_FORMAT_NVFP4;
    } else {
        return fail(SM120_INVALID_ARGUMENT,
                    "%s.dtype = 0x%08" PRIx32 "; it must be that of %s, 0x%08" PRIx32
                    ", or E4M3 (0x%08x), E5M2 (0x%08x) or U8 (0x%08x)",
                    operand->name[CACHE], cache->dtype, operand->name[DENSE], dense->dtype, SM120_E4M3, SM120_E5M2,
                    SM120_U8);
    }
    const bool is_blocked = operand->format == KV_FORMAT_MXFP8 || operand->format == KV_FORMAT_NVFP4;
    if (has_blocks != is_blocked) {
        return fail(SM120_INVALID_ARGUMENT, "%s.address = 0x%" PRIx64 "; %s.dtype = 0x%08" PRIx32 " %s",
                    operand->name[BLOCKS], blocks->address, operand->name[CACHE], cache->dtype,
                    is_blocked ? "needs scales in blocks" : "has no scales in blocks");
    }
    if (is_blocked && blocks->dtype != wanted) {
        return fail(SM120_INVALID_ARGUMENT,
                    "%s.dtype = 0x%08" PRIx32 "; with %s.dtype = 0x%08" PRIx32 " it must be 0x%08" PRIx32,
                    operand->name[BLOCKS], blocks->dtype, operand->name[CACHE], cache->dtype, wanted);
    }
    if (scale->address != 0 && (operand->format == KV_FORMAT_COPY || operand->format == KV_FORMAT_MXFP8)) {
        return fail(SM120_INVALID_ARGUMENT,
                    "%s.address = 0x%" PRIx64 "; only E4M3 and E5M2 without scales in blocks, and NVFP4 have it",
                    operand->name[SCALE], scale->address);
    }
    if (scale->address != 0 && scale->dtype != SM120_F32) {
        return fail(SM120_INVALID_ARGUMENT, "%s.dtype = 0x%08" PRIx32 "; it must be F32 (0x%08x)", operand->name[SCALE],
                    scale->dtype, SM120_F32);
    }
    return SM120_OK;
}

/* Whether lanes may load and store vectors: every row begins at one, and all parts of a row are whole. */
static bool is_fast(const struct operand *operand) {
    const struct tensor *const dense = operand->tensor + DENSE, *const cache = operand->tensor + CACHE;
    const int64_t bytes = operand->format == KV_FORMAT_NVFP4 ? ALIGNMENT_OF_4_BITS : TENSOR_ALIGNMENT;
    const int64_t steps = cache->batch_stride | cache->head_stride | cache->row_stride | (int64_t)cache->address;
    return tensor_is_aligned(dense) && dense->address % TENSOR_ALIGNMENT == 0 && steps % bytes == 0 &&
           operand->shape[DENSE].head_dim % KV_COLUMNS == 0;
}

/* Check dtypes, shapes and strides of K or V. */
static sm120_status check_operand(const sm120_kv_cache_append_args *args, bool is_gather, const char *letter,
                                  int64_t columns, struct operand *operand) {
    static const char *const endings[ROLES] = {"", "_cache", "_blocks", "_scale"};
    for (int role = 0; role < ROLES; ++role) {
        (void)snprintf(operand->name[role], NAME_BYTES, "%s%s", letter, endings[role]);
    }
    operand->shape[DENSE] = (struct shape){args->batch, args->kv_heads, args->rows, columns};
    sm120_status status = tensor_check(operand->name[DENSE], operand->given[DENSE], &operand->shape[DENSE],
                                       is_gather ? TENSOR_OUTPUT : TENSOR_INPUT, operand->tensor + DENSE);
    status = status == SM120_OK ? find_format(operand) : status;
    if (status != SM120_OK) {
        return status;
    }
    const bool is_4_bits = operand->format == KV_FORMAT_NVFP4;
    const int64_t block = is_4_bits ? NV_BLOCK : MX_BLOCK;
    if (is_4_bits && columns % 2 != 0) {
        return fail(SM120_INVALID_ARGUMENT,
                    "%s.dtype = U8 holds pairs of elements; the head size %" PRId64 " must be even",
                    operand->name[CACHE], columns);
    }
    const int64_t widths[ROLES] = {columns, is_4_bits ? columns / 2 : columns, (columns + block - 1) / block, 1};
    for (int role = CACHE; role < ROLES; ++role) {
        operand->shape[role] = (struct shape){args->pages, args->kv_heads, args->page_rows, widths[role]};
        const enum tensor_role kind = role == SCALE ? TENSOR_SPREAD : is_gather ? TENSOR_INPUT : TENSOR_OUTPUT;
        if (status == SM120_OK && (role == CACHE || operand->given[role]->address != 0)) {
            status = tensor_check_strides(operand->name[role], operand->given[role], &operand->shape[role], kind,
                                          operand->tensor + role);
        }
    }
    operand->flags = is_fast(operand) ? KV_FLAG_FAST : 0;
    return status;
}

/* Check which places tokens have. */
static sm120_status check_lists(const sm120_kv_cache_append_args *args, struct copy *copy) {
    int64_t entries = 0, tokens = 0;
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
    if (args->page_table != 0) {
        const sm120_status status = check_size("table_pages", args->table_pages, INT32_MAX);
        if (status != SM120_OK) {
            return status;
        }
    }
    entries = args->page_table != 0 ? args->batch * args->table_pages : 0; /* both are below 2^31 */
    tokens = args->batch * args->rows;
    const struct tensor lists[LISTS] = {
        {.name = "slots", .address = args->slots, .dtype = SM120_U8, .bytes = 8 * tokens},
        {.name = "page_table", .address = args->page_table, .dtype = SM120_U8, .bytes = 4 * entries},
        {.name = "kv_lengths", .address = args->kv_lengths, .dtype = SM120_U8, .bytes = 4 * args->batch}};
    for (int i = 0; i < LISTS; ++i) {
        copy->lists[i] = lists[i];
    }
    return SM120_OK;
}

/* Check the arguments except addresses. */
static sm120_status check_args(const sm120_kv_cache_append_args *args, bool is_gather, struct copy *copy) {
    const int64_t v_head_dim = args->v_head_dim != 0 ? args->v_head_dim : args->head_dim;
    *copy = (struct copy){
        .is_gather = is_gather,
        .operands = {{.given = {&args->k, &args->k_cache, &args->k_blocks, &args->k_scale}},
                     {.given = {&args->v, &args->v_cache, &args->v_blocks, &args->v_scale}}},
    };
    const struct shape dense = {args->batch, args->kv_heads, args->rows, args->head_dim};
    const struct shape cache = {args->pages, args->kv_heads, args->page_rows, args->head_dim};
    if (args->v_swizzled > 1) {
        return fail(SM120_INVALID_ARGUMENT, "v_swizzled = %" PRIu32 "; it must be 0 or 1", args->v_swizzled);
    }
    sm120_status status = check_shape(&dense, "rows", INT32_MAX);
    status = status == SM120_OK ? check_size("v_head_dim", v_head_dim, INT32_MAX) : status;
    status = status == SM120_OK ? check_size("pages", args->pages, INT32_MAX) : status;
    status = status == SM120_OK ? check_shape(&cache, "page_rows", INT32_MAX) : status;
    status = status == SM120_OK ? check_size("pages * page_rows", args->pages * args->page_rows, INT32_MAX) : status;
    status = status == SM120_OK ? check_size("batch * rows", args->batch * args->rows, INT32_MAX) : status;
    status = status == SM120_OK ? check_operand(args, is_gather, "k", args->head_dim, copy->operands) : status;
    status = status == SM120_OK ? check_operand(args, is_gather, "v", v_head_dim, copy->operands + 1) : status;
    status = status == SM120_OK ? check_lists(args, copy) : status;
    if (status == SM120_OK && args->v.dtype != args->k.dtype) {
        status = fail(SM120_INVALID_ARGUMENT, "v.dtype = 0x%08" PRIx32 "; it must be k.dtype = 0x%08" PRIx32,
                      args->v.dtype, args->k.dtype);
    }
    if (status == SM120_OK && args->v_swizzled != 0) {
        struct operand *const v = copy->operands + 1;
        if (v->format != KV_FORMAT_NVFP4 || v_head_dim % (SWIZZLE * NV_BLOCK) != 0 || args->page_rows % SWIZZLE != 0) {
            status =
                fail(SM120_INVALID_ARGUMENT,
                     "v_swizzled = 1; it needs v_cache in NVFP4, a head size that is a multiple of %d, not %" PRId64
                     ", and page_rows a multiple of %d, not %" PRId64,
                     SWIZZLE * NV_BLOCK, v_head_dim, SWIZZLE, args->page_rows);
        }
        v->flags |= KV_FLAG_SWIZZLED;
    }
    /* Two neighbouring lanes share a block of MXFP8. */
    const int64_t columns = args->head_dim > v_head_dim ? args->head_dim : v_head_dim;
    copy->chunks = (columns + MX_BLOCK - 1) / MX_BLOCK * (MX_BLOCK / KV_COLUMNS);
    if (status == SM120_OK && (!multiply(args->batch * args->rows, args->kv_heads, &copy->items) ||
                               !multiply(copy->items, copy->chunks, &copy->items) || copy->items > INT32_MAX)) {
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
    const struct tensor *tensors[2 * ROLES + LISTS];
    struct shape shapes[2 * ROLES + LISTS];
    bool is_written[2 * ROLES + LISTS];
    int count = 0;
    sm120_status status = SM120_OK;
    for (int o = 0; o < 2; ++o) {
        for (int role = 0; role < ROLES; ++role) {
            const struct tensor *const tensor = copy->operands[o].tensor + role;
            if (role <= CACHE || tensor->address != 0) {
                tensors[count] = tensor;
                shapes[count] = copy->operands[o].shape[role];
                is_written[count++] = copy->is_gather ? role == DENSE : role == CACHE || role == BLOCKS;
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
            is_written[count++] = false;
            status = status == SM120_OK ? check_address(list->name, list->address, i == 0 ? 8 : 4) : status;
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
#define OPERAND(o, from)                                                                                               \
    .o##_x = (from).tensor[DENSE].address, .o##_cache = (from).tensor[CACHE].address,                                  \
    .o##_blocks = (from).tensor[BLOCKS].address, .o##_factor = (from).tensor[SCALE].address,                           \
    .o##_x_batch_stride = (from).tensor[DENSE].batch_stride, .o##_x_head_stride = (from).tensor[DENSE].head_stride,    \
    .o##_x_row_stride = (from).tensor[DENSE].row_stride, .o##_cache_page_stride = (from).tensor[CACHE].batch_stride,   \
    .o##_cache_head_stride = (from).tensor[CACHE].head_stride,                                                         \
    .o##_cache_row_stride = (from).tensor[CACHE].row_stride,                                                           \
    .o##_blocks_page_stride = (from).tensor[BLOCKS].batch_stride,                                                      \
    .o##_blocks_head_stride = (from).tensor[BLOCKS].head_stride,                                                       \
    .o##_blocks_row_stride = (from).tensor[BLOCKS].row_stride,                                                         \
    .o##_factor_page_stride = (from).tensor[SCALE].batch_stride,                                                       \
    .o##_factor_head_stride = (from).tensor[SCALE].head_stride,                                                        \
    .o##_factor_row_stride = (from).tensor[SCALE].row_stride, .o##_columns = (uint32_t)(from).shape[DENSE].head_dim,   \
    .o##_format = (from).format, .o##_flags = (from).flags

/* Launch the kernel. */
static sm120_status launch(struct device *device, const sm120_kv_cache_append_args *args, const struct copy *copy) {
    const struct kernel_record wanted = {.operation = copy->is_gather ? "kv_cache_gather" : "kv_cache_append",
                                         .dtype = args->k.dtype};
    struct kernel *kernel;
    struct launch launch;
    struct argument_pointers pointers;
    uint32_t index;
    sm120_status status = builtin_find(&wanted, &index);
    if (status != SM120_OK) {
        return status;
    }
    const struct kernel_record *const record = kernel_records + index;
    const struct kv_copy_parameters values = {
        OPERAND(k, copy->operands[0]),
        OPERAND(v, copy->operands[1]),
        .slots = args->slots,
        .page_table = args->page_table,
        .kv_lengths = args->kv_lengths,
        .items = (uint32_t)copy->items,
        .chunks = (uint32_t)copy->chunks,
        .heads = (uint32_t)args->kv_heads,
        .rows = (uint32_t)args->rows,
        .pages = (uint32_t)args->pages,
        .page_rows = (uint32_t)args->page_rows,
        .table_stride = (uint32_t)(args->page_table != 0 ? args->table_pages : 0),
    };
    const uint32_t grid = (uint32_t)((copy->items + record->threads - 1) / record->threads);
    status = launch_of(&pointers, ARGUMENTS(&values), grid, record, args->stream, &launch);
    launch.grid[1] = 2; /* K and V */
    status = status == SM120_OK ? builtin_load(device, index, &kernel) : status;
    status = status == SM120_OK ? launch_check(kernel, &launch) : status;
    return status == SM120_OK ? launch_start(kernel, &launch) : status;
}

/* Check and launch either operation. */
static sm120_status run(sm120_device *handle, const sm120_kv_cache_append_args *args, bool is_gather) {
    struct device *device;
    struct copy copy;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(args, sizeof *args, "args",
                          is_gather ? "sm120_kv_cache_gather_args" : "sm120_kv_cache_append_args");
    status = status == SM120_OK ? check_args(args, is_gather, &copy) : status;
    status = status == SM120_OK ? check_places(device, &copy) : status;
    status = status == SM120_OK ? launch(device, args, &copy) : status;
    return device_leave(device, status);
}

sm120_status sm120_kv_cache_append(sm120_device *handle, const sm120_kv_cache_append_args *args) {
    return run(handle, args, false);
}

sm120_status sm120_kv_cache_gather(sm120_device *handle, const sm120_kv_cache_gather_args *args) {
    return run(handle, args, true);
}
