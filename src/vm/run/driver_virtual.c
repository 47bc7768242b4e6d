/* The CUDA driver API of the virtual SM120. Work runs in the thread that issues it, in the order of its stream. When a
 * call returns, its work has ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/tensor_map_rules.h"
#include "platform/at_fork.h"
#include "platform/thread.h"
#include "vm/defined/defined.h"
#include "vm/execute/tma.h"
#include "vm/machine/arena.h"
#include "vm/machine/base.h"
#include "vm/machine/counters.h"
#include "vm/machine/device.h"
#include "vm/machine/environment.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/memory.h"
#include "vm/machine/options.h"
#include "vm/machine/program.h"
#include "vm/machine/shade.h"
#include "vm/machine/types.h"
#include "vm/observe/profile.h"
#include "vm/observe/trace.h"
#include "vm/run/run.h"
#include "vm/run/streams.h"
#include "vm/text/module.h"

enum { MAX_DEVICES = 16, STACK = 16 };

struct CUctx_st {
    struct device device;
    int retained, made;
};
struct CUmod_st {
    struct module module;
};

static struct CUctx_st contexts[MAX_DEVICES];
static struct mutex contexts_lock = MUTEX_INITIALIZER;

static _Thread_local CUcontext stack[STACK];
static _Thread_local int depth;

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_PROFILER_NOT_INITIALIZED, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "no profile is running"},
    {CUDA_ERROR_PROFILER_ALREADY_STARTED, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "a profile is already running"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for this device"},
    {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the PTX version is not supported"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested"},
    {CUDA_ERROR_LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch does not end"},
    {CUDA_ERROR_ASSERT, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {CUDA_ERROR_ILLEGAL_INSTRUCTION, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {CUDA_ERROR_INVALID_ADDRESS_SPACE, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on this space"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
     "too many blocks in cooperative launch"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"}};

static CUresult read_device_count(uint64_t *count) {
    return environment_number("PYSM120_VIRTUAL_DEVICES", 1, MAX_DEVICES, 1, count);
}

static int device_count(void) {
    uint64_t count;
    read_device_count(&count);
    return (int)count;
}

/* Return the bytes of a device's memory, at most the address space of a process. */
static CUresult read_memory_limit(uint64_t *bytes) {
    return environment_number("PYSM120_VIRTUAL_MEMORY", 1, 1ULL << 47, 24ULL << 30, bytes);
}

/* Return the major compute capability that the devices report. With 9, the library uses the kernels for Hopper. */
static CUresult read_capability(uint64_t *major) {
    return environment_number("PYSM120_VIRTUAL_CAPABILITY", 7, 12, 12, major);
}

static int capability(void) {
    uint64_t major;
    read_capability(&major);
    return (int)major;
}

/* The most shared memory of a CTA. */
static int shared_limit(void) {
    return capability() == 9 ? MAX_SHARED : SM120_SHARED;
}

/* Check the environment variables that are read when a device is opened. Launches check theirs. */
static CUresult check_environment(void) {
    static const char *const widths[] = {"base", "v3", "v4"};
    uint64_t number;
    int width;
    CUresult r = read_device_count(&number);
    r = r != CUDA_SUCCESS ? r : read_memory_limit(&number);
    r = r != CUDA_SUCCESS ? r : read_capability(&number);
    return r != CUDA_SUCCESS ? r : environment_word("PYSM120_VM_ISA", widths, 2, &width);
}

/* Return the device of the current context, or NULL. */
static struct device *current(void) {
    return depth != 0 ? &stack[depth - 1]->device : NULL;
}

static CUresult no_context(void) {
    return fault_set(CUDA_ERROR_INVALID_CONTEXT, "the calling thread has no current context");
}

static CUresult null_argument(const char *name) {
    return fault_set(CUDA_ERROR_INVALID_VALUE, "%s is NULL", name);
}

/* ---- library and devices ------------------------------------------------------------------------------------- */

static CUresult virtual_cuInit(unsigned flags) {
    return flags != 0 ? fault_set(CUDA_ERROR_INVALID_VALUE, "flags is %u; expected 0", flags) : CUDA_SUCCESS;
}

static CUresult virtual_cuDriverGetVersion(int *version) {
    if (version == NULL) {
        return null_argument("version");
    }
    *version = 13000;
    return CUDA_SUCCESS;
}

static CUresult virtual_cuGetErrorName(CUresult error, const char **name) {
    for (size_t k = 0; name != NULL && k < sizeof errors / sizeof *errors; ++k) {
        if (errors[k].code == error) {
            *name = errors[k].name;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult virtual_cuGetErrorString(CUresult error, const char **text) {
    for (size_t k = 0; text != NULL && k < sizeof errors / sizeof *errors; ++k) {
        if (errors[k].code == error) {
            *text = errors[k].text;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult virtual_cuDeviceGetCount(int *count) {
    if (count == NULL) {
        return null_argument("count");
    }
    *count = device_count();
    return check_environment();
}

static CUresult check_device(CUdevice device) {
    if (device < 0 || device >= device_count()) {
        return fault_set(CUDA_ERROR_INVALID_DEVICE, "device %d does not exist; %d devices are available", device,
                         device_count());
    }
    return CUDA_SUCCESS;
}

static CUresult virtual_cuDeviceGet(CUdevice *device, int ordinal) {
    if (device == NULL) {
        return null_argument("device");
    }
    const CUresult r = check_device(ordinal);
    if (r == CUDA_SUCCESS) {
        *device = ordinal;
    }
    return r;
}

static CUresult virtual_cuDeviceGetName(char *name, int bytes, CUdevice device) {
    const CUresult r = check_device(device);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    if (name == NULL || bytes < 1) {
        return null_argument("name");
    }
    const int major = capability();
    snprintf(name, (size_t)bytes, major == 12 ? "virtual SM120" : "virtual SM120 as sm_%d0", major);
    return CUDA_SUCCESS;
}

static CUresult virtual_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    const int table[][2] = {{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
                            {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
                            {CU_DEVICE_ATTRIBUTE_WARP_SIZE, WARP},
                            {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 2407000},
                            {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, (int)options_multiprocessors()},
                            {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 96 << 20},
                            {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 1536},
                            {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, capability()},
                            {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
                            {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, shared_limit() + 1024},
                            {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
                            {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, shared_limit()}};
    const CUresult r = check_device(device);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    for (size_t k = 0; value != NULL && k < sizeof table / sizeof *table; ++k) {
        if (table[k][0] == (int)attribute) {
            *value = table[k][1];
            return CUDA_SUCCESS;
        }
    }
    return fault_set(CUDA_ERROR_INVALID_VALUE, "attribute %d is not supported", (int)attribute);
}

/* Return the value of $PYSM120_VIRTUAL_MEMORY, which cuInit has checked. */
static size_t device_memory(void) {
    uint64_t bytes;
    read_memory_limit(&bytes);
    return (size_t)bytes;
}

static CUresult virtual_cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    const CUresult r = check_device(device);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    if (bytes == NULL) {
        return null_argument("bytes");
    }
    *bytes = device_memory();
    return CUDA_SUCCESS;
}

/* ---- contexts ------------------------------------------------------------------------------------------------ */

static void before_fork(void) {
    mutex_lock(&contexts_lock);
    for (int k = 0; k < MAX_DEVICES; ++k) {
        if (contexts[k].made != 0) {
            mutex_lock(&contexts[k].device.module_lock);
            memory_lock_all(&contexts[k].device);
            mutex_lock(&contexts[k].device.counter_lock);
        }
    }
    streams_lock();
    counters_lock();
    launch_lock();
}

static void after_fork(bool is_child) {
    launch_unlock(is_child);
    counters_unlock();
    for (int k = 0; k < MAX_DEVICES && is_child; ++k) {
        streams_keep_own(&contexts[k].device);
    }
    streams_unlock(is_child);
    for (int k = 0; k < MAX_DEVICES; ++k) {
        if (contexts[k].made != 0) {
            mutex_unlock(&contexts[k].device.counter_lock);
            memory_unlock_all(&contexts[k].device, is_child);
            mutex_unlock(&contexts[k].device.module_lock);
        }
    }
    mutex_unlock(&contexts_lock);
}

static void after_fork_in_parent(void) {
    after_fork(false);
}

static void after_fork_in_child(void) {
    after_fork(true);
}

static void watch_forks(void) {
    at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static CUresult virtual_counters_reset(CUcontext context) {
    if (context == NULL) {
        return null_argument("context");
    }
    struct device *device = &context->device;
    mutex_lock(&device->counter_lock);
    memset(device->opcode_count, 0, sizeof device->opcode_count);
    memset(device->bytes, 0, sizeof device->bytes);
    device->tensor_flops = 0;
    mutex_unlock(&device->counter_lock);
    return CUDA_SUCCESS;
}

static CUresult virtual_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult r = check_device(device);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    if (context == NULL) {
        return null_argument("context");
    }
    static struct once once = ONCE_INITIALIZER;
    once_run(&once, watch_forks);
    mutex_lock(&contexts_lock);
    struct CUctx_st *c = &contexts[device];
    if (c->made == 0) {
        memory_open(&c->device);
        mutex_init(&c->device.counter_lock);
        mutex_init(&c->device.module_lock);
        c->device.ordinal = device;
        c->made = 1;
    }
    if (c->retained++ == 0) {
        c->device.limit = device_memory();
        virtual_counters_reset(c);
    }
    mutex_unlock(&contexts_lock);
    *context = c;
    return CUDA_SUCCESS;
}

static void free_module(struct CUmod_st *m) {
    struct device *device = m->module.device;
    for (uint32_t k = 0; k < m->module.variable_count; ++k) {
        memory_free(device, m->module.variables[k].address, ALLOCATION_VARIABLE);
    }
    module_free(&m->module);
    free(m);
}

static CUresult virtual_cuDevicePrimaryCtxRelease(CUdevice device) {
    const CUresult r = check_device(device);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    mutex_lock(&contexts_lock);
    struct CUctx_st *c = &contexts[device];
    if (c->retained != 0 && --c->retained == 0) {
        while (c->device.modules != NULL) {
            struct CUmod_st *m = (struct CUmod_st *)(void *)c->device.modules;
            c->device.modules = m->module.next;
            free_module(m);
        }
        stored_free(c->device.stored);
        c->device.stored = NULL;
        memory_free_all(&c->device);
        profile_end(&c->device);
    }
    mutex_unlock(&contexts_lock);
    return CUDA_SUCCESS;
}

static CUresult virtual_cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    const CUresult r = check_device(device);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    if (flags == NULL || active == NULL) {
        return null_argument(flags == NULL ? "flags" : "active");
    }
    mutex_lock(&contexts_lock);
    *flags = 0;
    *active = contexts[device].retained != 0;
    mutex_unlock(&contexts_lock);
    return CUDA_SUCCESS;
}

/* Whether a pointer is a context that is retained. */
static bool is_context(CUcontext context) {
    bool found = false;
    mutex_lock(&contexts_lock);
    for (int i = 0; i < MAX_DEVICES && !found; ++i) {
        found = context == &contexts[i] && contexts[i].retained != 0;
    }
    mutex_unlock(&contexts_lock);
    return found;
}

static CUresult virtual_cuCtxGetCurrent(CUcontext *context) {
    if (context == NULL) {
        return null_argument("context");
    }
    *context = depth != 0 ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

static CUresult virtual_cuCtxGetDevice(CUdevice *device) {
    if (device == NULL) {
        return null_argument("device");
    }
    if (depth == 0) {
        return no_context();
    }
    *device = current()->ordinal;
    return CUDA_SUCCESS;
}

static CUresult virtual_cuCtxPushCurrent(CUcontext context) {
    if (context == NULL) {
        return null_argument("context");
    }
    if (!is_context(context)) {
        return fault_set(CUDA_ERROR_INVALID_CONTEXT, "%p is no context of a virtual device that is open",
                         (void *)context);
    }
    if (depth == STACK) {
        return fault_set(CUDA_ERROR_INVALID_CONTEXT, "more than %d contexts are pushed", STACK);
    }
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult virtual_cuCtxPopCurrent(CUcontext *context) {
    if (depth == 0) {
        return no_context();
    }
    --depth;
    if (context != NULL) {
        *context = stack[depth];
    }
    return CUDA_SUCCESS;
}

static CUresult virtual_cuCtxSynchronize(void) {
    if (depth == 0) {
        return no_context();
    }
    device_wait(current());
    return CUDA_SUCCESS;
}

/* ---- streams and events -------------------------------------------------------------------------------------- */

static CUresult virtual_cuStreamCreate(CUstream *stream, unsigned flags) {
    if (stream == NULL || flags > 1) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "stream is NULL, or flags is not 0 or 1");
    }
    return depth != 0 ? stream_create(current(), stream) : no_context();
}

static CUresult virtual_cuStreamDestroy(CUstream stream) {
    return stream_destroy(stream);
}

static CUresult virtual_cuStreamSynchronize(CUstream stream) {
    return depth != 0 ? stream_wait(current(), stream) : no_context();
}

/* An event is recorded when the work before it has ended. */
static CUresult virtual_cuEventSynchronize(CUevent event) {
    return event_check(event);
}

/* The event may be one of another device. */
static CUresult virtual_cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    if (flags != 0) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "flags is %u; expected 0", flags);
    }
    if (depth == 0) {
        return no_context();
    }
    const CUresult r = event_check(event);
    return r != CUDA_SUCCESS ? r : stream_wait(current(), stream);
}

static CUresult virtual_cuEventCreate(CUevent *event, unsigned flags) {
    (void)flags;
    if (event == NULL) {
        return null_argument("event");
    }
    return depth != 0 ? event_create(current(), event) : no_context();
}

static CUresult virtual_cuEventDestroy(CUevent event) {
    return event_destroy(event);
}

static CUresult virtual_cuEventRecord(CUevent event, CUstream stream) {
    return depth != 0 ? event_record(current(), event, stream) : no_context();
}

static CUresult virtual_cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return milliseconds != NULL ? event_elapsed(start, end, milliseconds) : null_argument("milliseconds");
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static CUresult virtual_cuMemAlloc(CUdeviceptr *address, size_t bytes) {
    if (address == NULL) {
        return null_argument("address");
    }
    return depth != 0 ? memory_alloc(current(), bytes,
                                     options_checks() == CHECKS_FULL ? ALLOCATION_SHADED : ALLOCATION_PLAIN, address)
                      : no_context();
}

static CUresult virtual_cuMemFree(CUdeviceptr address) {
    if (depth == 0) {
        return no_context();
    }
    return address != 0 ? memory_free(current(), address, ALLOCATION_PLAIN) : CUDA_SUCCESS;
}

static CUresult virtual_cuMemHostAlloc(void **host, size_t bytes, unsigned flags) {
    uint64_t address = 0;
    if (host == NULL) {
        return null_argument("host");
    }
    if (flags > 7) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "flags is %u, which is not supported", flags);
    }
    const CUresult r = depth != 0 ? memory_alloc(current(), bytes, ALLOCATION_PINNED, &address) : no_context();
    if (r == CUDA_SUCCESS) {
        *host = (void *)(uintptr_t)address;
    }
    return r;
}

static void read_begin(void) {
    rwlock_lock_read(&current()->memory_lock);
}

static CUresult read_end(CUresult result) {
    atomic_fetch_add(&current()->host_calls, 1);
    rwlock_unlock_read(&current()->memory_lock);
    return result;
}

/* Begin a copy, in its stream's order. */
static CUresult copy_begin(CUstream stream, struct work *work) {
    const CUresult r = work_begin(current(), stream, work);
    if (r == CUDA_SUCCESS) {
        read_begin();
    }
    return r;
}

static CUresult copy_end(struct work *work, CUresult result) {
    return work_end(work, read_end(result));
}

static CUresult virtual_cuMemHostGetDevicePointer(CUdeviceptr *address, void *host, unsigned flags) {
    if (address == NULL || host == NULL || flags != 0) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "address or host is NULL, or flags is not 0");
    }
    if (depth == 0) {
        return no_context();
    }
    read_begin();
    const CUresult r = memory_check_range(current(), (uint64_t)(uintptr_t)host, 1, "host");
    if (r == CUDA_SUCCESS) {
        *address = (uint64_t)(uintptr_t)host;
    }
    return read_end(r);
}

static CUresult virtual_cuMemFreeHost(void *host) {
    if (depth == 0) {
        return no_context();
    }
    return host != NULL ? memory_free(current(), (uint64_t)(uintptr_t)host, ALLOCATION_PINNED) : CUDA_SUCCESS;
}

/* Copies hold the lock until they are done, so that no other thread frees the memory. */
static CUresult virtual_cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    struct work work;
    if (depth == 0 || bytes == 0) {
        return depth != 0 ? stream_check(current(), stream) : no_context();
    }
    if (from == NULL) {
        return null_argument("from");
    }
    CUresult r = copy_begin(stream, &work);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    r = memory_check_range(current(), to, bytes, "to");
    if (r == CUDA_SUCCESS) {
        memmove((void *)(uintptr_t)to, from, bytes);
    }
    if (r == CUDA_SUCCESS) {
        shade_written(current(), to, bytes);
    }
    return copy_end(&work, r);
}

static CUresult virtual_cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    struct work work;
    if (depth == 0 || bytes == 0) {
        return depth != 0 ? stream_check(current(), stream) : no_context();
    }
    if (to == NULL) {
        return null_argument("to");
    }
    CUresult r = copy_begin(stream, &work);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    r = memory_check_range(current(), from, bytes, "from");
    r = r != CUDA_SUCCESS ? r : shade_read(current(), from, bytes);
    if (r == CUDA_SUCCESS) {
        memmove(to, (const void *)(uintptr_t)from, bytes);
    }
    return copy_end(&work, r);
}

static CUresult virtual_cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    struct work work;
    if (depth == 0 || bytes == 0) {
        return depth != 0 ? stream_check(current(), stream) : no_context();
    }
    CUresult r = copy_begin(stream, &work);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    r = memory_check_range(current(), to, bytes, "to");
    r = r != CUDA_SUCCESS ? r : memory_check_range(current(), from, bytes, "from");
    if (r == CUDA_SUCCESS) {
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    }
    if (r == CUDA_SUCCESS) {
        shade_copied(current(), to, from, bytes);
    }
    return copy_end(&work, r);
}

static CUresult virtual_cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    struct work work;
    if (depth == 0 || bytes == 0) {
        return depth != 0 ? stream_check(current(), stream) : no_context();
    }
    CUresult r = copy_begin(stream, &work);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    r = memory_check_range(current(), to, bytes, "to");
    if (r == CUDA_SUCCESS) {
        memset((void *)(uintptr_t)to, value, bytes);
    }
    if (r == CUDA_SUCCESS) {
        shade_written(current(), to, bytes);
    }
    return copy_end(&work, r);
}

/* ---- modules ------------------------------------------------------------------------------------------------- */

/* Return whether an image is a cubin or a fatbin. */
static bool is_binary(const void *image) {
    static const unsigned char magics[][4] = {
        {0x7f, 'E', 'L', 'F'}, {0x50, 0xed, 0x55, 0xba}, {0xb1, 0x43, 0x62, 0x46}};
    for (size_t k = 0; k < 3; ++k) { /* byte by byte, because a text may be shorter than a magic number */
        for (size_t n = 0; ((const unsigned char *)image)[n] == magics[k][n];) {
            if (++n == 4) {
                return true;
            }
        }
    }
    return false;
}

static _Thread_local const char *text_name;

/* Set the name of the text that this thread loads next, for messages. NULL: "<ptx>". */
static void virtual_name_text(const char *name) {
    text_name = name;
}

/* Create a module without functions that has copies of the text and its name. Return NULL when out of memory. */
static struct CUmod_st *new_module(const char *image, char **text) {
    const char *const known = text_name != NULL ? text_name : "<ptx>";
    struct CUmod_st *m = calloc(1, sizeof *m);
    char *const copy = m != NULL ? arena_take(&m->module.arena, strlen(image) + 1) : NULL;
    char *const name = copy != NULL ? arena_take(&m->module.arena, strlen(known) + 1) : NULL;
    if (name == NULL) {
        if (m != NULL) {
            arena_free(&m->module.arena);
        }
        free(m);
        return NULL;
    }
    m->module.name = strcpy(name, known);
    m->module.device = current();
    *text = strcpy(copy, image);
    return m;
}

static CUresult virtual_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned options, CUjit_option *option,
                                           void **value) {
    char *log = NULL, *text = NULL;
    size_t log_bytes = 0;
    if (module == NULL || image == NULL || (options != 0 && (option == NULL || value == NULL))) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "module, image or the options are NULL");
    }
    if (depth == 0) {
        return no_context();
    }
    for (unsigned k = 0; k < options; ++k) {
        if (option[k] == CU_JIT_ERROR_LOG_BUFFER) {
            log = value[k];
        }
        if (option[k] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
            log_bytes = (size_t)(uintptr_t)value[k];
        }
    }
    if (is_binary(image)) {
        return fault_set(CUDA_ERROR_NO_BINARY_FOR_GPU,
                         "the image is machine code; the virtual SM120 executes only PTX");
    }
    struct CUmod_st *m = new_module(image, &text);
    if (m == NULL) {
        return fault_set(CUDA_ERROR_OUT_OF_MEMORY, "out of host memory");
    }
    char message[8192];
    const CUresult r = module_parse(&m->module, text, message, sizeof message);
    if (log != NULL && log_bytes != 0) {
        snprintf(log, log_bytes, "%s", message);
    }
    if (r != CUDA_SUCCESS) {
        fault_set(r, "%s", message);
        free_module(m);
        return r;
    }
    struct device *device = current();
    mutex_lock(&device->module_lock);
    m->module.next = device->modules;
    if (m->module.next != NULL) {
        m->module.next->previous = &m->module;
    }
    device->modules = &m->module;
    mutex_unlock(&device->module_lock);
    *module = m;
    return CUDA_SUCCESS;
}

static CUresult virtual_cuModuleUnload(CUmodule module) {
    if (module == NULL) {
        return fault_set(CUDA_ERROR_INVALID_HANDLE, "module is NULL");
    }
    struct device *device = module->module.device;
    mutex_lock(&device->module_lock);
    struct module *m = &module->module;
    if (m->next != NULL) {
        m->next->previous = m->previous;
    }
    if (m->previous != NULL) {
        m->previous->next = m->next;
    } else {
        device->modules = m->next;
    }
    mutex_unlock(&device->module_lock);
    free_module(module);
    return CUDA_SUCCESS;
}

static CUresult virtual_cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    if (function == NULL || module == NULL || name == NULL) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "function, module or name is NULL");
    }
    char log[4096] = "";
    struct device *const device = module->module.device;
    mutex_lock(&device->module_lock);
    const CUresult r = module_entry(&module->module, name, function, log, sizeof log);
    mutex_unlock(&device->module_lock);
    return r == CUDA_SUCCESS             ? r
           : r == CUDA_ERROR_NOT_FOUND   ? fault_set(r, "the module has no entry '%s'", name)
           : r == CUDA_ERROR_INVALID_PTX ? fault_set(r, "%s", log)
                                         : fault_set(r, "out of host memory");
}

static CUresult virtual_cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    if (value == NULL || function == NULL) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "value or function is NULL");
    }
    const uint32_t *most = function->required[0] != 0 ? function->required : function->maximum;
    const uint64_t threads = (uint64_t)most[0] * most[1] * most[2];
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = threads != 0 && threads < 1024 ? (int)threads : 1024;
        break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = (int)function->static_shared;
        break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = (int)function->local_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 0;
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = function->dynamic_limit != 0 ? function->dynamic_limit : DEFAULT_SHARED - (int)function->static_shared;
        break;
    default:
        return fault_set(CUDA_ERROR_INVALID_VALUE, "attribute %d is not supported", (int)attribute);
    }
    return CUDA_SUCCESS;
}

static CUresult virtual_cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    if (function == NULL || attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "attribute %d cannot be set", (int)attribute);
    }
    const int most = shared_limit() - (int)function->static_shared;
    if (value < 0 || value > most) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "%d dynamic bytes of shared memory; expected 0 to %d", value, most);
    }
    function->dynamic_limit = value;
    return CUDA_SUCCESS;
}

static CUresult virtual_cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
    if (function == NULL || offset == NULL) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "function or offset is NULL");
    }
    if (index >= function->parameter_count) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "parameter index %zu; the kernel has %u parameters", index,
                         function->parameter_count);
    }
    *offset = function->parameters[index].offset;
    if (bytes != NULL) {
        *bytes = function->parameters[index].bytes;
    }
    return CUDA_SUCCESS;
}

/* The virtual SM120 does not allocate registers: threads, shared memory and the number of CTAs limit occupancy. */
static CUresult virtual_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                                    size_t shared_bytes) {
    if (blocks == NULL || function == NULL || threads < 1 || threads > 1024) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "blocks or function is NULL, or %d threads are out of range",
                         threads);
    }
    const size_t most = (size_t)shared_limit();
    const uint32_t shared = launch_shared(function, (uint32_t)(shared_bytes <= most ? shared_bytes : most + 1));
    *blocks = shared <= most ? (int)launch_occupancy((unsigned)threads, shared) : 0;
    return CUDA_SUCCESS;
}

/* Run a kernel when the earlier work of its stream has ended. */
static CUresult launch_in_order(CUstream stream, CUfunction function, const uint32_t grid[3], const uint32_t block[3],
                                unsigned shared_bytes, void **arguments, bool is_cooperative) {
    struct device *const device = function->module->device;
    struct work work;
    const CUresult r = work_begin(device, stream, &work);
    return r != CUDA_SUCCESS
               ? r
               : work_end(&work, launch_run(device, function, grid, block, shared_bytes, arguments, is_cooperative));
}

static CUresult virtual_cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                       CUstream stream, void **arguments, void **extra) {
    const uint32_t grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    if (function == NULL || extra != NULL) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "function is NULL, or extra is not NULL");
    }
    return launch_in_order(stream, function, grid, block, shared_bytes, arguments, false);
}

/* Launches run one after the other, so PROGRAMMATIC_STREAM_SERIALIZATION changes nothing. */
static CUresult virtual_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments,
                                         void **extra) {
    if (config == NULL || function == NULL || extra != NULL) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "config or function is NULL, or extra is not NULL");
    }
    bool is_cooperative = false;
    for (unsigned i = 0; i < config->attribute_count; ++i) {
        const CUlaunchAttribute *const attribute = &config->attributes[i];
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
            is_cooperative = attribute->value.flag != 0;
        } else if (attribute->id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
            return fault_set(CUDA_ERROR_INVALID_VALUE, "launch attribute %d is not supported", (int)attribute->id);
        }
    }
    return launch_in_order(config->stream, function, config->grid, config->block, config->shared_bytes, arguments,
                           is_cooperative);
}

/* ---- tensor maps --------------------------------------------------------------------------------------------- */

/* Read the arguments of cuTensorMapEncodeTiled. */
static CUresult virtual_cuTensorMapEncodeTiled(CUtensorMap *to, CUtensorMapDataType type, uint32_t rank, void *address,
                                               const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                               const uint32_t *steps, CUtensorMapInterleave interleave,
                                               CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                               CUtensorMapFloatOOBfill fill) {
    char why[256];
    struct tensor_map map = {.address = (uint64_t)(uintptr_t)address,
                             .rank = rank,
                             .type = (uint32_t)type,
                             .interleave = (uint32_t)interleave,
                             .swizzle = (uint32_t)swizzle,
                             .promotion = (uint32_t)promotion,
                             .fill = (uint32_t)fill};
    if (depth == 0) {
        return no_context();
    }
    if (to == NULL || (uintptr_t)to % _Alignof(CUtensorMap) != 0 || dims == NULL || box == NULL || steps == NULL ||
        (strides == NULL && rank > 1)) {
        return fault_set(CUDA_ERROR_INVALID_VALUE,
                         "dims, strides, box or steps is NULL, or map is not a multiple of 64");
    }
    for (uint32_t k = 0; k < rank && k < TENSOR_MAP_RANK; ++k) {
        map.dims[k] = dims[k];
        map.box[k] = box[k];
        map.steps[k] = steps[k];
        if (k + 1 < rank) {
            map.strides[k] = strides[k];
        }
    }
    if (!tensor_map_check(&map, why, sizeof why)) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "%s", why);
    }
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) {
        return fault_set(CUDA_ERROR_NOT_SUPPORTED, "interleave = %d; interleaved layouts are not supported",
                         (int)interleave);
    }
    tma_map_pack(to, &map);
    return CUDA_SUCCESS;
}

static CUresult virtual_cuTensorMapReplaceAddress(CUtensorMap *map, void *address) {
    char why[256];
    struct tensor_map fields;
    if (depth == 0) {
        return no_context();
    }
    if (map == NULL) {
        return null_argument("map");
    }
    if (!tma_map_unpack(map, &fields, why, sizeof why)) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "map is not a tensor map of this device: %s", why);
    }
    fields.address = (uint64_t)(uintptr_t)address;
    if (!tensor_map_check(&fields, why, sizeof why)) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "%s", why);
    }
    tma_map_pack(map, &fields);
    return CUDA_SUCCESS;
}

/* ---- functions that CUDA does not have ----------------------------------------------------------------------- */

static const char *virtual_fault(void) {
    return fault_text();
}

/* Return the index-th nonzero counter. */
static CUresult virtual_counter(CUcontext context, int index, const char **name, uint64_t *value) {
    if (context == NULL || name == NULL || value == NULL || index < 0) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "context, name or value is NULL, or index is negative");
    }
    struct device *device = &context->device;
    CUresult r = CUDA_ERROR_NOT_FOUND;
    uint64_t total = 0;
    mutex_lock(&device->counter_lock);
    for (uint32_t k = 0; k < MAX_COUNTERS; ++k) {
        total += device->opcode_count[k];
    }
    const uint32_t all = 2 + MAX_COUNTERS + TRAFFIC_COUNT;
    for (uint32_t k = 0; k < all; ++k) {
        const uint32_t opcode = k - 1, path = k - 2 - MAX_COUNTERS;
        const uint64_t v = k == 0                  ? total
                           : k <= MAX_COUNTERS     ? device->opcode_count[opcode]
                           : k == MAX_COUNTERS + 1 ? device->tensor_flops
                                                   : device->bytes[path];
        if (v == 0 || index-- != 0) {
            continue;
        }
        *name = k == 0                  ? "instructions"
                : k <= MAX_COUNTERS     ? counter_name(opcode)
                : k == MAX_COUNTERS + 1 ? "tensor flops"
                                        : counter_path(path) - strlen("bytes ");
        *value = v;
        r = CUDA_SUCCESS;
        break;
    }
    mutex_unlock(&device->counter_lock);
    return r;
}

static CUresult virtual_variable(CUmodule module, int index, sm120_variable_info *info) {
    if (module == NULL || info == NULL || index < 0) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "module or info is NULL, or index is negative");
    }
    if ((uint32_t)index >= module->module.variable_count) {
        return fault_set(CUDA_ERROR_NOT_FOUND, "the module has %u variables", module->module.variable_count);
    }
    variable_describe(&module->module.variables[index], info);
    return CUDA_SUCCESS;
}

static CUresult virtual_profile(CUcontext context, int on) {
    if (context == NULL) {
        return null_argument("context");
    }
    if (on != 0) {
        return profile_begin(&context->device);
    }
    profile_end(&context->device);
    return CUDA_SUCCESS;
}

static CUresult virtual_profile_read(CUcontext context, int index, sm120_profile_row *row) {
    if (context == NULL || row == NULL || index < 0) {
        return fault_set(CUDA_ERROR_INVALID_VALUE, "context or row is NULL, or index is negative");
    }
    return profile_read(&context->device, index, row);
}

/* Stop the running launches, which compare the count with its value at their start. */
static CUresult virtual_interrupt(CUcontext context) {
    if (context == NULL) {
        return null_argument("context");
    }
    atomic_fetch_add(&context->device.interrupts, 1);
    return CUDA_SUCCESS;
}

/* Return the driver of the virtual SM120. */
const struct driver *driver_virtual(void) {
    static const struct driver driver = {
#define X(name, parameters) .name = virtual_##name,
        DRIVER_FUNCTIONS(X)
#undef X
            .fault = virtual_fault,
        .counter = virtual_counter,
        .counters_reset = virtual_counters_reset,
        .interrupt = virtual_interrupt,
        .configure = options_set,
        .variable = virtual_variable,
        .profile = virtual_profile,
        .profile_read = virtual_profile_read,
        .looking = trace_is_looking,
        .instruction = trace_instruction,
        .step_query = trace_query,
        .step_register = trace_register,
        .step_variable = trace_variable,
        .step_lanes = trace_lanes,
        .step_shared = trace_shared,
        .name_text = virtual_name_text};
    return &driver;
}
