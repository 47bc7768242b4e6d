/* Entries and their parameters, as a PTX text declares them. */
#ifndef SM120_SIGNATURE_H
#define SM120_SIGNATURE_H

#include <stdbool.h>
#include <stdint.h>

struct parameter {
    uint32_t offset, bytes;
    char type[12]; /* "u64", "b8[128]"; "" if unknown */
    char name[64]; /* "" if unknown */
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

/* Read the entries of a PTX text that a driver has accepted. Entries that cannot be parsed are left out. False: out of
 * host memory; *signatures is then empty. */
bool signatures_read(const char *text, struct signatures *signatures);

/* Make the signature of one entry from its list of parameters. False: out of host memory; *signatures is then empty. */
bool signatures_make(const char *entry, const struct parameter *parameters, uint32_t count,
                     struct signatures *signatures);

/* The signature of an entry, or NULL. */
const struct signature *signatures_find(const struct signatures *signatures, const char *entry);

void signatures_free(struct signatures *signatures);

#endif
