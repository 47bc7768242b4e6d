/* What the fuzz targets, the mutator and the engine share. The names that begin with LLVM are libFuzzer's. */
#ifndef SM120_TESTS_FUZZ_H
#define SM120_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

enum { LONGEST = 1 << 14 }; /* bytes of an input */

/* A target: run one input; whatever it is, nothing may crash, hang, leak or touch what is not its own. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *count, char ***arguments);

/* mutate.c */
/* Change an input in place; its new size, at most `most`. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
/* Learn the words and statements of a text, from which later ones are made. */
void mutate_learn(const uint8_t *data, size_t size);
/* Learn from the files that -words=FILE names, and from all files of the folders. */
void mutate_prepare(int count, char **arguments);

/* target.c */
/* Print what is wrong with the device's answer, and abort. */
void fuzz_fail(const char *format, ...);

#endif
