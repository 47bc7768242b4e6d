/* The types of thread.h for POSIX and Windows. A port to another system defines the same names here. */
#ifndef SM120_PLATFORM_THREAD_TYPES_H
#define SM120_PLATFORM_THREAD_TYPES_H

#include <stddef.h>

#if defined(_WIN32)

/* Storage for SRWLOCK, CONDITION_VARIABLE and INIT_ONCE. <windows.h> defines too many names to be included here. */
struct mutex {
    void *win32;
};

struct condition {
    void *win32;
};

struct rwlock {
    void *win32;
};

struct once {
    void *win32;
};

struct thread_value {
    unsigned long win32;
};

#define MUTEX_INITIALIZER     {NULL}
#define CONDITION_INITIALIZER {NULL}
#define ONCE_INITIALIZER      {NULL}

#else

#include <pthread.h>

struct mutex {
    pthread_mutex_t posix;
};

struct condition {
    pthread_cond_t posix;
};

/* Storage for a pthread_rwlock_t, which <pthread.h> declares only if _POSIX_C_SOURCE requests it. */
struct rwlock {
    _Alignas(16) unsigned char posix[256];
};

struct once {
    pthread_once_t posix;
};

struct thread_value {
    pthread_key_t posix;
};

#define MUTEX_INITIALIZER     {PTHREAD_MUTEX_INITIALIZER}
#define CONDITION_INITIALIZER {PTHREAD_COND_INITIALIZER}
#define ONCE_INITIALIZER      {PTHREAD_ONCE_INIT}

#endif

#endif
