/* The memory of a call: what it reads, what it writes, and its workspace. */
#ifndef SM120_PLACES_H
#define SM120_PLACES_H

#include "runtime/tensor.h"

enum { WORKSPACE_ALIGNMENT = 256 }; /* of a workspace and of its areas, in bytes */

/* The workspace of a call, or the question how large it must be: each operation answers both in one function. */
struct workspace {
    sm120_address address;
    size_t bytes; /* of the caller's memory */
    bool is_question;
    size_t *answer; /* to a question */
};

/* Describe the workspace of a call, and a question. */
struct workspace workspace_of(sm120_address address, size_t bytes);
struct workspace workspace_question(size_t *answer);

/* Check that a question can be answered. */
sm120_status workspace_check_question(const struct workspace *workspace);

/* Check the address and the size of a workspace of which a call needs `needed` bytes; 0: any workspace will do. */
sm120_status workspace_check(struct device *device, const struct workspace *workspace, int64_t needed);

/* Place an area of `bytes` bytes of a workspace at *end, and move *end behind it; false: it exceeds 2^63 bytes. */
bool workspace_place(int64_t bytes, int64_t *begin, int64_t *end);

/* What a call does with a place. */
enum access { PLACE_READ, PLACE_WRITTEN };

/* Memory that a call reads or writes. With address 0 the call has none. */
struct place {
    const char *name;
    sm120_address address;
    int64_t bytes;
    uint64_t alignment; /* of an array */
    enum access access;
    const struct tensor *tensor;       /* NULL: an array, or the workspace */
    const struct shape *shape;         /* of the tensor, whose rows other tensors may lie between; NULL: nothing may */
    const struct workspace *workspace; /* of which `bytes` are needed; 0: none */
    const char *rule;                  /* text that follows the message of an overlap; NULL: none */
};

/* Describe an array or a tensor. */
struct place place_array(const char *name, sm120_address address, int64_t bytes, uint64_t alignment,
                         enum access access);
struct place place_tensor(const struct tensor *tensor, const struct shape *shape, enum access access);

/* Describe a workspace of which the call needs `needed` bytes; 0: it needs none. */
struct place place_workspace(const struct workspace *workspace, int64_t needed);

/* Check a call's places: each lies in one allocation, is aligned, and what is written overlaps nothing else. The rows
 * of two tensors with shapes may lie between one another. */
sm120_status places_check(struct device *device, const struct place *places, size_t count);

#endif
