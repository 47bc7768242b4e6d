/* Tell AddressSanitizer about bytes that must not be accessed: the gaps between blocks of one allocation. */
#ifndef SM120_VM_POISON_H
#define SM120_VM_POISON_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SM120_POISON 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define SM120_POISON 1
#endif

#if defined(SM120_POISON)
#include <sanitizer/asan_interface.h>

enum { POISON_GAP = 64 }; /* bytes between two blocks */
#define POISON(address, bytes)   ASAN_POISON_MEMORY_REGION(address, bytes)
#define UNPOISON(address, bytes) ASAN_UNPOISON_MEMORY_REGION(address, bytes)
#else
enum { POISON_GAP = 0 };
#define POISON(address, bytes)   ((void)(address), (void)(bytes))
#define UNPOISON(address, bytes) ((void)(address), (void)(bytes))
#endif

#endif
