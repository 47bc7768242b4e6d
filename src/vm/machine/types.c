/* The types of PTX. */
#include "vm/machine/types.h"

#include <string.h>

static const struct {
    const char *text;
    unsigned bytes;
    char class;
} types[TYPE_COUNT] = {{"none", 0, 0},
#define X(name, text, bytes, class) {text, bytes, class},
                       TYPES(X)
#undef X
};

/* Return the PTX spelling of a type. */
const char *type_name(enum type type) {
    return types[type].text;
}

/* Return the size of a type in bytes. */
unsigned type_bytes(enum type type) {
    return types[type].bytes;
}

/* Return the class of a type: p predicate, b bits, i integer, f float, x packed. */
char type_class(enum type type) {
    return types[type].class;
}

/* Return the type with this spelling, or T_NONE. */
enum type type_find(const char *text, size_t length) {
    for (int t = T_PRED; t < TYPE_COUNT; ++t) {
        if (strlen(types[t].text) == length && memcmp(types[t].text, text, length) == 0) {
            return (enum type)t;
        }
    }
    return T_NONE;
}
