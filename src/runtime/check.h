/* Checks that many entries share. */
#ifndef SM120_CHECK_H
#define SM120_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sm120.h"

/* Check a struct whose first member is its size, set by the caller: the size is at least `known`, and the bytes behind
 * the first `known` are 0. `what` is the argument, `type` its struct. */
sm120_status check_struct(const void *pointer, size_t known, const char *what, const char *type);

/* Check that a pointer that the call writes to or reads from is not NULL. */
sm120_status check_pointer(const void *pointer, const char *what);

/* Copy the name of a parameter into a field of a struct. A long name is shortened to "..." and its end, because
 * compilers number parameters at the end. */
void copy_name(char *to, size_t bytes, const char *name);

/* Multiply or add two numbers of at least 0. False: the result is above INT64_MAX. */
bool multiply(int64_t a, int64_t b, int64_t *product);
bool add(int64_t a, int64_t b, int64_t *sum);

#endif
