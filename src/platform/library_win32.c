/* Shared libraries on Windows. */
#include "platform/library.h"

#include <stdio.h>
#include <string.h>
#include <windows.h>

static _Thread_local char reason[64];

/* Remember why a call failed. */
static void note(const char *name) {
    snprintf(reason, sizeof reason, "%.32s: Windows error %lu", name, GetLastError());
}

/* Drivers are in the system's folder. A path is searched nowhere else. */
void *library_open(const char *name) {
    const DWORD where = strpbrk(name, "/\\") != NULL ? LOAD_WITH_ALTERED_SEARCH_PATH : LOAD_LIBRARY_SEARCH_SYSTEM32;
    void *const library = (void *)LoadLibraryExA(name, NULL, where);
    if (library == NULL) {
        note(name);
    }
    return library;
}

void library_close(void *library) {
    FreeLibrary((HMODULE)library);
}

void *library_symbol(void *library, const char *name) {
    const FARPROC function = GetProcAddress((HMODULE)library, name);
    void *address = NULL;
    _Static_assert(sizeof function == sizeof address, "a function pointer fits");
    memcpy(&address, &function, sizeof address);
    if (address == NULL) {
        note(name);
    }
    return address;
}

const char *library_error(void) {
    return reason[0] != '\0' ? reason : NULL;
}
