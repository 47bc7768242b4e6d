/* Rules for tiled tensor maps, as in cuTensorMapEncodeTiled. The runtime uses them for error messages; the virtual
 * SM120 uses them because kernels can change maps. */
#ifndef SM120_TENSOR_MAP_RULES_H
#define SM120_TENSOR_MAP_RULES_H

#include "driver/driver.h"

enum { TENSOR_MAP_RANK = 5, TENSOR_MAP_BYTES = 128 };

/* Dimensions count from the innermost, whose elements are contiguous. */
struct tensor_map {
    uint64_t address;
    uint64_t dims[TENSOR_MAP_RANK];        /* elements */
    uint64_t strides[TENSOR_MAP_RANK - 1]; /* bytes, of dimensions 1, 2, ... */
    uint32_t box[TENSOR_MAP_RANK];         /* extent of a box in elements */
    uint32_t steps[TENSOR_MAP_RANK];       /* a box takes every steps[i]-th element */
    uint32_t type, rank, interleave, swizzle, promotion, fill;
};

/* Check a map. Return false and write one sentence about the first mistake to `why`. */
bool tensor_map_check(const struct tensor_map *map, char *why, size_t bytes);

/* Return the bits of an element in global memory. */
uint32_t tensor_map_bits(uint32_t type);

/* Return whether the type unpacks 16 elements into 16 bytes of shared memory. */
bool tensor_map_unpacks(uint32_t type);

/* Return the bytes of a box's innermost dimension in shared memory. */
uint32_t tensor_map_row(const struct tensor_map *map);

/* Return the bytes of the span of a swizzle; 0 without swizzle. */
uint32_t tensor_map_span(uint32_t swizzle);

#endif
