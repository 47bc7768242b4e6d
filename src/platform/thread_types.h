/* The types of thread.h for POSIX. A port to another system defines the same names here. */
#ifndef SM120_PLATFORM_THREAD_TYPES_H
#define SM120_PLATFORM_THREAD_TYPES_H

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
