/* Checks that many entries share. */
#ifndef SM120_CHECK_H
#define SM120_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sm120.h"

/* Check a struct whose first member is its size, as the caller set it: at least `known` bytes, and 0 in those beyond.
 * `what` is the argument, `type` its struct. */
sm120_status check_struct(const void *pointer, size_t known, const char *what, const char *type);

/* Check that a pointer that the call writes to or reads from is not NULL. */
sm120_status check_pointer(const void *pointer, const char *what);

/* Copy a name into a field of a struct. Of a long name the end is kept, behind dots: compilers put there what tells
 * parameters apart. */
void copy_name(char *to, size_t bytes, const char *name);

/* Multiply or add numbers that are not negative. False: the result is above INT64_MAX. */
bool multiply(int64_t a, int64_t b, int64_t *product);
bool add(int64_t a, int64_t b, int64_t *sum);

#endif
