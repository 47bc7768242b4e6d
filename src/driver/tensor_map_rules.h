/* What a tensor map of tiles may say: the rules of cuTensorMapEncodeTiled, for the callers of the seam, which get a
 * sentence, and for the virtual SM120, whose kernels change maps. */
#ifndef SM120_TENSOR_MAP_RULES_H
#define SM120_TENSOR_MAP_RULES_H

#include "driver/driver.h"

enum { TENSOR_MAP_RANK = 5, TENSOR_MAP_BYTES = 128 };

/* Dimensions count from the innermost, whose elements lie next to each other. */
struct tensor_map {
    uint64_t address;
    uint64_t dims[TENSOR_MAP_RANK];        /* elements */
    uint64_t strides[TENSOR_MAP_RANK - 1]; /* bytes, of dimensions 1, 2, ... */
    uint32_t box[TENSOR_MAP_RANK];         /* elements that a box spans */
    uint32_t steps[TENSOR_MAP_RANK];       /* of which it takes every steps[i]-th */
    uint32_t type, rank, interleave, swizzle, promotion, fill;
};

/* Write what is wrong with the map in one sentence. True: nothing is. */
bool tensor_map_check(const struct tensor_map *map, char *why, size_t bytes);

/* The bits of an element in global memory. */
uint32_t tensor_map_bits(uint32_t type);

/* Does the type unpack 16 elements into 16 bytes of shared memory? */
bool tensor_map_unpacks(uint32_t type);

/* The bytes of the innermost dimension of a box in shared memory. */
uint32_t tensor_map_row(const struct tensor_map *map);

/* The bytes that a swizzle stays inside; 0 for none. */
uint32_t tensor_map_span(uint32_t swizzle);

#endif
