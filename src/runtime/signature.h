/* Entries and their parameters, as a PTX text declares them. */
#ifndef SM120_SIGNATURE_H
#define SM120_SIGNATURE_H

#include <stdbool.h>
#include <stdint.h>

struct parameter {
    uint32_t offset, bytes;
    char type[12]; /* "u64", "b8[128]"; "" where not known */
    char name[64]; /* "" where not known */
};

struct signature {
    char *entry;
    uint32_t count;
    struct parameter *parameters;
};

struct signatures {
    struct signature *items; /* in the order of the text */
    uint32_t count;
};

/* Read the entries of a PTX text that has been found good by a driver. What is not understood is left out. False: out
 * of host memory; *signatures is then empty. */
bool signatures_read(const char *text, struct signatures *signatures);

/* Make the signature of one entry from what is known of it. False: out of host memory; *signatures is then empty. */
bool signatures_make(const char *entry, const struct parameter *parameters, uint32_t count,
                     struct signatures *signatures);

/* The signature of an entry, or NULL. */
const struct signature *signatures_find(const struct signatures *signatures, const char *entry);

void signatures_free(struct signatures *signatures);

#endif
