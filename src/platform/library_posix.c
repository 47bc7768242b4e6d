/* Shared libraries on POSIX systems. */
#include "platform/library.h"

#include <dlfcn.h>

void *library_open(const char *name) {
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

void library_close(void *library) {
    dlclose(library);
}

void *library_symbol(void *library, const char *name) {
    return dlsym(library, name);
}

const char *library_error(void) {
    return dlerror();
}
