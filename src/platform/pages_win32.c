/* Address space on Windows. */
#include "platform/pages.h"

#include <windows.h>

size_t pages_size(void) {
    SYSTEM_INFO system;
    GetSystemInfo(&system);
    return system.dwPageSize;
}

void *pages_reserve(size_t bytes) {
    return VirtualAlloc(NULL, bytes, MEM_RESERVE, PAGE_NOACCESS);
}

bool pages_commit(void *at, size_t bytes) {
    return VirtualAlloc(at, bytes, MEM_COMMIT, PAGE_READWRITE) != NULL;
}

void pages_decommit(void *at, size_t bytes) {
    VirtualFree(at, bytes, MEM_DECOMMIT);
}

void pages_release(void *at, size_t bytes) {
    (void)bytes;
    VirtualFree(at, 0, MEM_RELEASE);
}
