/* Checks of shapes, dtypes, strides and addresses. */
#include "runtime/tensor.h"

#include <inttypes.h>
#include <stdio.h>

#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/memory.h"

enum { NAME_BYTES = 32 };

sm120_status check_size(const char *name, int64_t value, int64_t max) {
    if (value < 1) {
        return fail(SM120_INVALID_ARGUMENT, "%s = %" PRId64 "; it must be at least 1", name, value);
    }
    if (value > max) {
        return fail(SM120_UNSUPPORTED, "%s = %" PRId64 "; at most %" PRId64 " is supported", name, value, max);
    }
    return SM120_OK;
}

sm120_status check_needs(const char *name, int64_t value, const char *owner, bool is_given) {
    return value == 0 || is_given
               ? SM120_OK
               : fail(SM120_INVALID_ARGUMENT, "%s = %" PRId64 "; without %s it must be 0", name, value, owner);
}

sm120_status check_shape(const struct shape *shape, const char *rows_name, int64_t rows_max) {
    sm120_status status = check_size("batch", shape->batch, INT32_MAX);
    status = status == SM120_OK ? check_size("heads", shape->heads, INT32_MAX) : status;
    status = status == SM120_OK ? check_size(rows_name, shape->rows, rows_max) : status;
    status = status == SM120_OK ? check_size("batch * heads", shape->batch * shape->heads, INT32_MAX) : status;
    return status == SM120_OK ? check_size("head_dim", shape->head_dim, INT32_MAX) : status;
}

int64_t tensor_element_bytes(uint32_t dtype) {
    return dtype == SM120_F32 ? 4 : dtype == SM120_F16 || dtype == SM120_BF16 ? 2 : 1;
}

struct dtype_text dtype_text(uint32_t dtype) {
    static const struct {
        uint32_t dtype;
        const char *name;
    } names[] = {{SM120_F32, "F32"},   {SM120_F16, "F16"},   {SM120_BF16, "BF16"}, {SM120_E4M3, "E4M3"},
                 {SM120_E5M2, "E5M2"}, {SM120_E8M0, "E8M0"}, {SM120_U8, "U8"},     {SM120_BOOL, "BOOL"}};
    struct dtype_text found;
    (void)snprintf(found.text, sizeof found.text, "0x%08" PRIx32, dtype);
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        if (names[i].dtype == dtype) {
            (void)snprintf(found.text, sizeof found.text, "%s (0x%08" PRIx32 ")", names[i].name, dtype);
        }
    }
    return found;
}

/* Check a dtype. */
static sm120_status check_dtype(const char *name, uint32_t dtype) {
    if (dtype == SM120_F32 || dtype == SM120_F16 || dtype == SM120_BF16) {
        return SM120_OK;
    }
    const int is_known = dtype == SM120_E4M3 || dtype == SM120_E8M0 || dtype == SM120_E5M2 || dtype == SM120_U8;
    return fail(is_known ? SM120_UNSUPPORTED : SM120_INVALID_ARGUMENT, "%s.dtype = %s; %s, %s and %s are supported",
                name, dtype_text(dtype).text, dtype_text(SM120_F32).text, dtype_text(SM120_F16).text,
                dtype_text(SM120_BF16).text);
}

/* Check one stride and turn it into bytes. */
static sm120_status check_stride(const char *name, const char *field, int64_t stride, int64_t count, bool may_be_0,
                                 int64_t element, int64_t *bytes) {
    *bytes = 0;
    if (stride < 0) {
        return fail(SM120_INVALID_ARGUMENT, "%s.%s = %" PRId64 "; a stride must not be negative", name, field, stride);
    }
    if (count == 1) {
        return SM120_OK;
    }
    if (stride == 0 && !may_be_0) {
        return fail(SM120_INVALID_ARGUMENT, "%s.%s = 0; it must be positive, because that dimension is %" PRId64, name,
                    field, count);
    }
    if (!multiply(stride, element, bytes)) {
        return fail(SM120_UNSUPPORTED, "%s.%s = %" PRId64 " elements exceeds 2^63 bytes", name, field, stride);
    }
    return SM120_OK;
}

/* A dimension: how many steps of how many bytes. */
struct dimension {
    int64_t count, stride;
};

/* Sort dimensions by stride, the smallest first. */
static void sort(struct dimension dimensions[3]) {
    for (int i = 1; i < 3; ++i) {
        for (int j = i; j > 0 && dimensions[j].stride < dimensions[j - 1].stride; --j) {
            const struct dimension swapped = dimensions[j];
            dimensions[j] = dimensions[j - 1];
            dimensions[j - 1] = swapped;
        }
    }
}

/* The member that holds a stride. */
static const char *stride_name(const struct tensor *tensor, const struct shape *shape, int64_t stride) {
    return shape->rows != 1 && tensor->row_stride == stride     ? "row_stride"
           : shape->heads != 1 && tensor->head_stride == stride ? "head_stride"
                                                                : "batch_stride";
}

/* Find the bytes from the first element to the last. The elements of an output must not overlap: each stride is at
 * least the extent of the dimensions inside it. */
static sm120_status check_extent(struct tensor *tensor, const struct shape *shape, enum tensor_role role,
                                 int64_t element) {
    struct dimension dimensions[3] = {
        {shape->batch, tensor->batch_stride}, {shape->heads, tensor->head_stride}, {shape->rows, tensor->row_stride}};
    tensor->bytes = shape->head_dim * element;
    sort(dimensions);
    for (int i = 0; i < 3; ++i) {
        const int64_t stride = dimensions[i].stride;
        int64_t span;
        if (dimensions[i].count == 1) {
            continue;
        }
        if (role == TENSOR_OUTPUT && stride < tensor->bytes) {
            return fail(SM120_INVALID_ARGUMENT,
                        "%s.%s = %" PRId64 " steps over %" PRId64 " elements with head_dim = %" PRId64
                        "; rows of an output must not overlap",
                        tensor->name, stride_name(tensor, shape, stride), stride / element, tensor->bytes / element,
                        shape->head_dim);
        }
        if (!multiply(stride, dimensions[i].count - 1, &span) || !add(span, tensor->bytes, &tensor->bytes)) {
            return fail(SM120_UNSUPPORTED, "%s: %" PRId64 " steps of %" PRId64 " elements exceed 2^63 bytes",
                        tensor->name, dimensions[i].count - 1, stride / element);
        }
    }
    return SM120_OK;
}

sm120_status tensor_check(const char *name, const sm120_tensor *given, const struct shape *shape, enum tensor_role role,
                          struct tensor *tensor) {
    const sm120_status status = check_dtype(name, given->dtype);
    return status == SM120_OK ? tensor_check_strides(name, given, shape, role, tensor) : status;
}

sm120_status tensor_check_strides(const char *name, const sm120_tensor *given, const struct shape *shape,
                                  enum tensor_role role, struct tensor *tensor) {
    const bool is_input = role != TENSOR_OUTPUT;
    *tensor = (struct tensor){.name = name, .address = given->address, .dtype = given->dtype};
    sm120_status status = SM120_OK;
    if (given->reserved != 0) {
        status = fail(SM120_INVALID_ARGUMENT, "%s.reserved = %" PRIu32 "; it must be 0", name, given->reserved);
    }
    const int64_t element = tensor_element_bytes(given->dtype);
    if (status == SM120_OK) {
        status = check_stride(name, "batch_stride", given->batch_stride, shape->batch, is_input, element,
                              &tensor->batch_stride);
    }
    if (status == SM120_OK) {
        status = check_stride(name, "head_stride", given->head_stride, shape->heads, is_input, element,
                              &tensor->head_stride);
    }
    if (status == SM120_OK) {
        status = check_stride(name, "row_stride", given->row_stride, shape->rows, role == TENSOR_SPREAD, element,
                              &tensor->row_stride);
    }
    return status == SM120_OK ? check_extent(tensor, shape, role, element) : status;
}

sm120_status check_address(const char *name, sm120_address address, uint64_t alignment) {
    if (address == 0) {
        return fail(SM120_INVALID_ARGUMENT, "%s = 0; it must be an address in device memory", name);
    }
    if (address % alignment != 0) {
        return fail(SM120_MISALIGNED, "%s = 0x%" PRIx64 "; it must be a multiple of %" PRIu64, name, address,
                    alignment);
    }
    return SM120_OK;
}

bool tensor_is_aligned(const struct tensor *tensor) {
    return (tensor->batch_stride | tensor->head_stride | tensor->row_stride) % TENSOR_ALIGNMENT == 0;
}

sm120_status tensor_check_alignment(const struct tensor *tensor, const sm120_tensor *given) {
    const struct {
        const char *name;
        int64_t stride, bytes;
    } steps[] = {{"batch_stride", given->batch_stride, tensor->batch_stride},
                 {"head_stride", given->head_stride, tensor->head_stride},
                 {"row_stride", given->row_stride, tensor->row_stride}};
    for (int i = 0; i < 3; ++i) {
        if (steps[i].bytes % TENSOR_ALIGNMENT != 0) {
            return fail(SM120_MISALIGNED,
                        "%s.%s = %" PRId64 " elements is %" PRId64 " bytes; it must be a multiple of %d bytes",
                        tensor->name, steps[i].name, steps[i].stride, steps[i].bytes, TENSOR_ALIGNMENT);
        }
    }
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s.address", tensor->name);
    return check_address(name, tensor->address, TENSOR_ALIGNMENT);
}

sm120_status tensor_check_address(struct device *device, const struct tensor *tensor) {
    const uint64_t element = (uint64_t)tensor_element_bytes(tensor->dtype);
    if (tensor->address != 0 && tensor->address % element == 0 &&
        memory_holds(device, tensor->address, (uint64_t)tensor->bytes)) {
        return SM120_OK; /* the name below is for messages only */
    }
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s.address", tensor->name);
    const sm120_status status = check_address(name, tensor->address, element);
    return status == SM120_OK ? memory_check(device, tensor->address, (uint64_t)tensor->bytes, name) : status;
}

/* The bytes of a row. */
static int64_t row_bytes(const struct tensor *tensor, const struct shape *shape) {
    return shape->head_dim * tensor_element_bytes(tensor->dtype);
}

/* Whether there is no gap between the first element and the last. */
static bool is_dense(const struct tensor *tensor, const struct shape *shape) {
    int64_t bytes = row_bytes(tensor, shape);
    bool fits = true;
    fits = fits && (tensor->batch_stride == 0 || multiply(bytes, shape->batch, &bytes));
    fits = fits && (tensor->head_stride == 0 || multiply(bytes, shape->heads, &bytes));
    fits = fits && (tensor->row_stride == 0 || multiply(bytes, shape->rows, &bytes));
    return fits && bytes == tensor->bytes;
}

/* Whether rows of two tensors overlap that have the same strides. b begins `distance` bytes behind a; the strides are
 * sorted, the longest last. Along each stride, b's rows may lie behind a's by the rest of the distance or one more
 * stride. */
static bool rows_meet(const struct dimension a[3], const struct dimension b[3], int dimensions, int64_t distance,
                      int64_t a_bytes, int64_t b_bytes) {
    if (dimensions == 0) {
        return distance < a_bytes && -distance < b_bytes;
    }
    const int last = dimensions - 1;
    const int64_t stride = a[last].stride;
    const int64_t whole = stride == 0 ? 0 : distance / stride - (distance % stride < 0 ? 1 : 0);
    for (int64_t steps = whole; steps <= whole + (stride == 0 ? 0 : 1); ++steps) {
        if (steps < a[last].count && -steps < b[last].count &&
            rows_meet(a, b, last, distance - steps * stride, a_bytes, b_bytes)) {
            return true;
        }
    }
    return false;
}

/* The stride that two tensors share along a dimension, 0 along one element; negative: their strides differ. */
static int64_t shared_stride(int64_t a, int64_t b) {
    return a == b || b == 0 ? a : a == 0 ? b : -1;
}

/* Whether the first or the last element of a tensor lies in the extent of another one. */
static bool has_end_in(const struct tensor *x, const struct tensor *other) {
    const uint64_t last = x->address + (uint64_t)x->bytes - 1;
    return x->address - other->address < (uint64_t)other->bytes || last - other->address < (uint64_t)other->bytes;
}

bool tensor_meets(const struct tensor *a, const struct shape *a_shape, const struct tensor *b,
                  const struct shape *b_shape) {
    if (a->address >= b->address + (uint64_t)b->bytes || b->address >= a->address + (uint64_t)a->bytes) {
        return false;
    }
    if (a->address == b->address || (is_dense(a, a_shape) && has_end_in(b, a)) ||
        (is_dense(b, b_shape) && has_end_in(a, b))) {
        return true;
    }
    const int64_t strides[3] = {shared_stride(a->batch_stride, b->batch_stride),
                                shared_stride(a->head_stride, b->head_stride),
                                shared_stride(a->row_stride, b->row_stride)};
    struct dimension steps[2][3] = {{{a->batch_stride == 0 ? 1 : a_shape->batch, strides[0]},
                                     {a->head_stride == 0 ? 1 : a_shape->heads, strides[1]},
                                     {a->row_stride == 0 ? 1 : a_shape->rows, strides[2]}},
                                    {{b->batch_stride == 0 ? 1 : b_shape->batch, strides[0]},
                                     {b->head_stride == 0 ? 1 : b_shape->heads, strides[1]},
                                     {b->row_stride == 0 ? 1 : b_shape->rows, strides[2]}}};
    if (strides[0] < 0 || strides[1] < 0 || strides[2] < 0) {
        return false;
    }
    sort(steps[0]);
    sort(steps[1]);
    return rows_meet(steps[0], steps[1], 3, (int64_t)(b->address - a->address), row_bytes(a, a_shape),
                     row_bytes(b, b_shape));
}

sm120_status check_apart(const char *a_name, sm120_address a, int64_t a_bytes, const char *b_name, sm120_address b,
                         int64_t b_bytes) {
    if (a < b + (uint64_t)b_bytes && b < a + (uint64_t)a_bytes) {
        return fail(SM120_INVALID_ARGUMENT,
                    "%s (0x%" PRIx64 ", %" PRId64 " bytes) and %s (0x%" PRIx64 ", %" PRId64 " bytes) overlap", a_name,
                    a, a_bytes, b_name, b, b_bytes);
    }
    return SM120_OK;
}
