/* Checks of the tensors that operations take. */
#ifndef SM120_TENSOR_H
#define SM120_TENSOR_H

#include <stdbool.h>

#include "runtime/device.h"

/* The dimensions of a tensor. */
struct shape {
    int64_t batch, heads, rows, head_dim;
};

/* A tensor that was checked: strides in bytes, 0 along a dimension of 1, and the bytes from its first element to its
 * last. */
struct tensor {
    const char *name;
    sm120_address address;
    uint32_t dtype;
    int64_t batch_stride, head_stride, row_stride;
    int64_t bytes;
};

enum { TENSOR_ALIGNMENT = 16 }; /* bytes; vector loads and the copy engine need such addresses and strides */

enum tensor_role { TENSOR_INPUT, TENSOR_OUTPUT, TENSOR_SPREAD }; /* SPREAD: an input whose rows may have stride 0 too */

/* Check that `value` is from 1 to `max`: a smaller value is invalid, a larger one is not supported. */
sm120_status check_size(const char *name, int64_t value, int64_t max);

/* Check that an option is 0 if what it belongs to is not given. */
sm120_status check_needs(const char *name, int64_t value, const char *owner, bool is_given);

/* Check that batch * heads, rows and head_dim are numbers that kernels can count with. */
sm120_status check_shape(const struct shape *shape, const char *rows_name, int64_t rows_max);

/* The bytes of an element. */
int64_t tensor_element_bytes(uint32_t dtype);

/* A dtype for a message: "BF16 (0x00011004)". */
struct dtype_text {
    char text[24];
};
struct dtype_text dtype_text(uint32_t dtype);

/* Check dtype and strides of a tensor whose shape was checked. The elements of an output must not overlap. */
sm120_status tensor_check(const char *name, const sm120_tensor *given, const struct shape *shape, enum tensor_role role,
                          struct tensor *tensor);

/* The same for a tensor whose dtype the caller checked; 8-bit dtypes are possible. */
sm120_status tensor_check_strides(const char *name, const sm120_tensor *given, const struct shape *shape,
                                  enum tensor_role role, struct tensor *tensor);

/* Whether all strides, and every row with them, are aligned. */
bool tensor_is_aligned(const struct tensor *tensor);

/* Check that address and strides are aligned. */
sm120_status tensor_check_alignment(const struct tensor *tensor, const sm120_tensor *given);

/* Check the address of a tensor: a multiple of the element's size, and the tensor lies in one allocation. */
sm120_status tensor_check_address(struct device *device, const struct tensor *tensor);

/* Whether two tensors overlap for certain. It is known for tensors that begin at one address or have the same
 * strides, and of a tensor without gaps, if the first or last element of the other lies in it. Else the answer is
 * false. */
bool tensor_meets(const struct tensor *a, const struct shape *a_shape, const struct tensor *b,
                  const struct shape *b_shape);

/* Check that an address is not 0 and a multiple of `alignment`. */
sm120_status check_address(const char *name, sm120_address address, uint64_t alignment);

/* Check that two ranges of memory do not overlap. */
sm120_status check_apart(const char *a_name, sm120_address a, int64_t a_bytes, const char *b_name, sm120_address b,
                         int64_t b_bytes);

#endif
