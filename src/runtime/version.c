/* The version of the library. */
#include "sm120.h"

#define VERSION_MAJOR 0
#define VERSION_MINOR 1
#define VERSION_PATCH 0

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

int32_t sm120_version(void) {
    return 10000 * VERSION_MAJOR + 100 * VERSION_MINOR + VERSION_PATCH;
}

const char *sm120_version_string(void) {
    return TEXT(VERSION_MAJOR) "." TEXT(VERSION_MINOR) "." TEXT(VERSION_PATCH);
}
