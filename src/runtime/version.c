/* The version of the library. */
#include "sm120.h"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

int32_t sm120_version(void) {
    return SM120_VERSION;
}

const char *sm120_version_string(void) {
    return TEXT(SM120_VERSION_MAJOR) "." TEXT(SM120_VERSION_MINOR) "." TEXT(SM120_VERSION_PATCH);
}
