/* Load the library, launch on several threads, unload it, and end the thread that did so: unload <library>. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <pthread.h>
#include <sm120.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char ptx[] = ".version 8.8\n.target sm_120f\n.address_size 64\n.visible .entry k() { ret; }";

/* Find a function of the library; ISO C has no cast from an object pointer to a function pointer. */
static void find(void *library, const char *name, void *function) {
    void *const found = dlsym(library, name);
    if (found == NULL) {
        printf("%s is missing\n", name);
        exit(EXIT_FAILURE);
    }
    memcpy(function, &found, sizeof found);
}

static void *use(void *path) {
    sm120_status (*open)(const char *, sm120_device **);
    sm120_status (*close)(sm120_device *);
    sm120_status (*load)(sm120_device *, const void *, size_t, const char *, sm120_module **);
    sm120_status (*lookup)(sm120_module *, const char *, sm120_kernel **);
    sm120_status (*launch)(sm120_kernel *, const uint32_t *, const uint32_t *, uint32_t, sm120_stream,
                           const void *const *, const size_t *, size_t);
    sm120_device *device = NULL;
    sm120_module *module = NULL;
    sm120_kernel *kernel = NULL;
    const uint32_t grid[3] = {100, 1, 1};
    const uint32_t block[3] = {32, 1, 1};
    void *const library = dlopen(path, RTLD_NOW);
    if (library == NULL) {
        puts(dlerror());
        exit(EXIT_FAILURE);
    }
    find(library, "sm120_device_open", &open);
    find(library, "sm120_device_close", &close);
    find(library, "sm120_module_load", &load);
    find(library, "sm120_module_kernel", &lookup);
    find(library, "sm120_launch", &launch);
    if (open("virtual", &device) != SM120_OK || load(device, ptx, strlen(ptx), "k.ptx", &module) != SM120_OK ||
        lookup(module, "k", &kernel) != SM120_OK || launch(kernel, grid, block, 0, NULL, NULL, NULL, 0) != SM120_OK ||
        close(device) != SM120_OK) {
        puts("a call failed");
    }
    if (dlclose(library) != 0) {
        puts("dlclose failed");
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc != 2 || pthread_create(&thread, NULL, use, argv[1]) != 0) {
        return EXIT_FAILURE;
    }
    pthread_join(thread, NULL);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* the library's own threads run on */
    return EXIT_SUCCESS;
}
