/* Address space on POSIX systems. */
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "platform/pages.h"

#include <sys/mman.h>
#include <unistd.h>

size_t pages_size(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

void *pages_reserve(size_t bytes) {
    void *const at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

bool pages_commit(void *at, size_t bytes) {
    return mprotect(at, bytes, PROT_READ | PROT_WRITE) == 0;
}

void pages_decommit(void *at, size_t bytes) {
#ifdef __linux__
    madvise(at, bytes, MADV_DONTNEED);
    mprotect(at, bytes, PROT_NONE);
#else /* there MADV_DONTNEED may keep the contents */
    mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
#endif
}

void pages_release(void *at, size_t bytes) {
    munmap(at, bytes);
}
