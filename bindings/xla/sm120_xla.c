/* sm120_xla.c: handlers of XLA's FFI for attention and its gradient, which pysm120.jax registers.
 *
 * A call carries the filled struct of its operation as an attribute, without addresses. The handler adds the addresses
 * of XLA's buffers, and calls libsm120. Attributes, all arrays of int64 but the last:
 *   args     the bytes of the struct
 *   places   for each argument and then for each result, the word of the struct that holds its address, and its bytes
 *   options  1 for a gradient; the index of the argument kv_lengths, or -1; the most that a length may be
 *   device   a string: what sm120_device_open takes, "" for its NULL, or a name that sm120_xla_set_device has given
 */
#define _POSIX_C_SOURCE 200809L /* pthread_rwlock_t */
#include "sm120.h"
#include "xla_ffi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BUFFERS = 24, MOST_DEVICES = 256, NAME_BYTES = 128 };
enum { ALIGNMENT = 256, XLA_ALIGNMENT = 16 }; /* of a workspace; the most that XLA's allocator takes */

/* ---- devices --------------------------------------------------------------------------------------------- */

typedef struct Named {
    char name[NAME_BYTES];
    sm120_device *device; /* NULL: it was closed */
} Named;

static Named devices[MOST_DEVICES];
static int device_count;
static pthread_rwlock_t devices_lock = PTHREAD_RWLOCK_INITIALIZER; /* a call holds it while it uses a device */

/* Return the entry of a name, or NULL. */
static Named *find_device(const char *name) {
    for (int i = 0; i < device_count; i++) {
        if (strcmp(devices[i].name, name) == 0) {
            return &devices[i];
        }
    }
    return NULL;
}

/* Give a device a name, or with NULL say that it is closed; waits for the calls that use a device. Return 0 if there
 * are too many names. */
SM120_API int sm120_xla_set_device(const char *name, sm120_device *device);
int sm120_xla_set_device(const char *name, sm120_device *device) {
    pthread_rwlock_wrlock(&devices_lock);
    Named *found = find_device(name);
    for (int i = 0; found == NULL && i < device_count; i++) { /* the entry of a closed device that had such a name */
        found = device != NULL && devices[i].device == NULL ? &devices[i] : NULL;
    }
    if (found == NULL && device != NULL && device_count < MOST_DEVICES) {
        found = &devices[device_count++];
    }
    if (found != NULL) {
        snprintf(found->name, sizeof found->name, "%s", name);
        found->device = device;
    }
    pthread_rwlock_unlock(&devices_lock);
    return found != NULL || device == NULL;
}

/* Return the version of sm120.h that the structs of calls have. */
SM120_API int32_t sm120_xla_version(void);
int32_t sm120_xla_version(void) {
    return SM120_VERSION;
}

/* ---- errors ---------------------------------------------------------------------------------------------- */

static XlaError *fail(const XlaFrame *frame, int code, const char *message) {
    XlaErrorCreate args = {.struct_size = sizeof args, .message = message, .errc = code};
    return frame->api->error_create(&args);
}

/* Return the error of a status of libsm120 with its message, or NULL. */
static XlaError *check(const XlaFrame *frame, sm120_status status) {
    if (status == SM120_OK) {
        return NULL;
    }
    const int is_wrong = status == SM120_INVALID_ARGUMENT || status == SM120_UNSUPPORTED;
    const int code = status == SM120_OUT_OF_MEMORY ? XLA_RESOURCE_EXHAUSTED : XLA_INTERNAL;
    return fail(frame, is_wrong ? XLA_INVALID_ARGUMENT : code, sm120_last_error());
}

/* Take the lock and write the device of a name, which is opened if it is new. After an error the lock is free. */
static XlaError *hold_device(const XlaFrame *frame, const char *name, sm120_device **device) {
    pthread_rwlock_rdlock(&devices_lock);
    const Named *found = find_device(name);
    if (found == NULL && name[0] != '#') {
        pthread_rwlock_unlock(&devices_lock);
        sm120_device *opened;
        XlaError *error = check(frame, sm120_device_open(name[0] != 0 ? name : NULL, &opened));
        if (error != NULL) {
            return error;
        }
        if (!sm120_xla_set_device(name, opened)) {
            sm120_device_close(opened);
            return fail(frame, XLA_RESOURCE_EXHAUSTED, "too many devices are open in this process");
        }
        pthread_rwlock_rdlock(&devices_lock);
        found = find_device(name);
    }
    if (found == NULL || found->device == NULL) {
        pthread_rwlock_unlock(&devices_lock);
        return fail(frame, XLA_INVALID_ARGUMENT, "the device of this function is closed; trace it with another one");
    }
    *device = found->device;
    return NULL;
}

/* ---- calls ----------------------------------------------------------------------------------------------- */

typedef union Args {
    sm120_attention_args forward;
    sm120_attention_backward_args backward;
} Args;

typedef struct Call {
    const XlaFrame *frame;
    Args args;
    const int64_t *places;
    const int64_t *options;
    char device[NAME_BYTES];
    int64_t count; /* of arguments and results */
} Call;

/* Return an attribute, or NULL if the call has none of this name and type. */
static const void *attribute(const XlaFrame *frame, const char *name, int type) {
    const XlaAttributes *all = &frame->attributes;
    for (int64_t i = 0; i < all->size; i++) {
        const XlaSpan *found = all->names[i];
        if (all->types[i] == type && found->len == strlen(name) && memcmp(found->ptr, name, found->len) == 0) {
            return all->attributes[i];
        }
    }
    return NULL;
}

/* Return the elements of an attribute of a number of int64, or NULL. */
static const int64_t *numbers(const XlaFrame *frame, const char *name, size_t count) {
    const XlaArray *array = attribute(frame, name, XLA_ATTRIBUTE_ARRAY);
    return array != NULL && array->dtype == XLA_S64 && array->size == count ? array->data : NULL;
}

/* Return argument or result `index` of a call. */
static const XlaBuffer *buffer(const XlaFrame *frame, int64_t index) {
    const int64_t inputs = frame->arguments.size;
    return index < inputs ? frame->arguments.buffers[index] : frame->results.buffers[index - inputs];
}

/* Read the attributes of a call. Return 0 if they are not what pysm120.jax of this version gives. */
static int read_call(const XlaFrame *frame, Call *call) {
    call->frame = frame;
    call->count = frame->arguments.size + frame->results.size;
    call->options = numbers(frame, "options", 3);
    if (call->count > MOST_BUFFERS || call->options == NULL || call->options[1] >= frame->arguments.size) {
        return 0;
    }
    const size_t bytes = call->options[0] ? sizeof call->args.backward : sizeof call->args.forward;
    const int64_t *args = numbers(frame, "args", bytes / sizeof(int64_t));
    call->places = numbers(frame, "places", 2 * (size_t)call->count);
    const XlaSpan *device = attribute(frame, "device", XLA_ATTRIBUTE_STRING);
    if (args == NULL || call->places == NULL || device == NULL || device->len >= sizeof call->device) {
        return 0;
    }
    memcpy(&call->args, args, bytes);
    memcpy(call->device, device->ptr, device->len);
    call->device[device->len] = 0;
    for (int64_t i = 0; i < call->count; i++) {
        if (call->places[2 * i] < 0 || (uint64_t)call->places[2 * i] >= bytes / sizeof(uint64_t)) {
            return 0;
        }
    }
    return 1;
}

static sm120_status ask(const Call *call, sm120_device *device, size_t *bytes) {
    return call->options[0] ? sm120_attention_backward_workspace(device, &call->args.backward, bytes)
                            : sm120_attention_workspace(device, &call->args.forward, bytes);
}

static sm120_status launch(const Call *call, sm120_device *device, sm120_address workspace, size_t bytes) {
    return call->options[0] ? sm120_attention_backward(device, &call->args.backward, workspace, bytes)
                            : sm120_attention(device, &call->args.forward, workspace, bytes);
}

/* Write the address of argument or result `index` to the struct. */
static void place(Call *call, int64_t index, sm120_address address) {
    memcpy((char *)&call->args + 8 * call->places[2 * index], &address, sizeof address);
}

/* ---- buffers in host memory ------------------------------------------------------------------------------ */

/* Return the error of a length that is out of range, or NULL. */
static XlaError *check_lengths(const Call *call) {
    if (call->options[1] < 0) {
        return NULL;
    }
    const XlaBuffer *given = buffer(call->frame, call->options[1]);
    const int32_t *lengths = given->data;
    for (int64_t i = 0; i < call->places[2 * call->options[1] + 1] / (int64_t)sizeof *lengths; i++) {
        if (lengths[i] < 0 || lengths[i] > call->options[2]) {
            char text[160];
            snprintf(text, sizeof text,
                     "kv_lengths is %d for batch %lld, but each length must be from 0 to %lld, the rows of k",
                     (int)lengths[i], (long long)i, (long long)call->options[2]);
            return fail(call->frame, XLA_INVALID_ARGUMENT, text);
        }
    }
    return NULL;
}

/* Copy the arguments to the device, launch, and copy the results back. The caller frees what is in `held`. */
static sm120_status compute(Call *call, sm120_device *device, sm120_address *held) {
    const int64_t inputs = call->frame->arguments.size;
    sm120_status status = SM120_OK;
    for (int64_t i = 0; status == SM120_OK && i < call->count; i++) {
        const size_t bytes = (size_t)call->places[2 * i + 1];
        status = sm120_alloc(device, bytes, &held[i]);
        if (status == SM120_OK && i < inputs) {
            status = sm120_copy_to_device(device, held[i], buffer(call->frame, i)->data, bytes, NULL);
        }
        place(call, i, held[i]);
    }
    size_t bytes = 0;
    status = status == SM120_OK ? ask(call, device, &bytes) : status;
    if (status == SM120_OK && bytes > 0) {
        status = sm120_alloc(device, bytes, &held[call->count]);
    }
    status = status == SM120_OK ? launch(call, device, held[call->count], bytes) : status;
    for (int64_t i = inputs; status == SM120_OK && i < call->count; i++) {
        status =
            sm120_copy_to_host(device, buffer(call->frame, i)->data, held[i], (size_t)call->places[2 * i + 1], NULL);
    }
    return status == SM120_OK ? sm120_stream_synchronize(device, NULL) : status;
}

static XlaError *run_on_host(Call *call) {
    sm120_device *device;
    XlaError *error = check_lengths(call);
    error = error == NULL ? hold_device(call->frame, call->device, &device) : error;
    if (error != NULL) {
        return error;
    }
    sm120_address held[MOST_BUFFERS + 1] = {0};
    error = check(call->frame, compute(call, device, held));
    for (int64_t i = 0; i <= call->count; i++) {
        if (held[i] != 0) {
            sm120_free(device, held[i]);
        }
    }
    pthread_rwlock_unlock(&devices_lock);
    return error;
}

/* ---- buffers on a GPU ------------------------------------------------------------------------------------ */

/* Launch on XLA's stream with a workspace of XLA, and do not wait. */
static XlaError *launch_on_stream(Call *call, sm120_device *device) {
    const XlaFrame *frame = call->frame;
    XlaStreamGet stream = {.struct_size = sizeof stream, .ctx = frame->ctx};
    XlaError *error = frame->api->stream_get(&stream);
    if (error != NULL) {
        return error;
    }
    if (call->options[0]) {
        call->args.backward.stream = stream.stream;
    } else {
        call->args.forward.stream = stream.stream;
    }
    for (int64_t i = 0; i < call->count; i++) {
        place(call, i, (sm120_address)(uintptr_t)buffer(frame, i)->data);
    }
    size_t bytes = 0;
    error = check(frame, ask(call, device, &bytes));
    XlaMemoryAllocate memory = {.struct_size = sizeof memory, .ctx = frame->ctx, .alignment = XLA_ALIGNMENT};
    if (error == NULL && bytes > 0) {
        memory.size = bytes + ALIGNMENT - XLA_ALIGNMENT;
        error = frame->api->memory_allocate(&memory);
    }
    if (error != NULL) {
        return error;
    }
    const sm120_address workspace = ((uintptr_t)memory.data + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    error = check(frame, launch(call, device, workspace, bytes));
    if (memory.data != NULL) { /* XLA reuses the memory in the order of the stream */
        XlaMemoryFree freed = {
            .struct_size = sizeof freed, .ctx = frame->ctx, .size = memory.size, .data = memory.data};
        XlaError *other = frame->api->memory_free(&freed);
        error = error == NULL ? other : error;
    }
    return error;
}

static XlaError *run_on_gpu(Call *call) {
    const XlaFrame *frame = call->frame;
    if (strstr(call->device, "virtual") != NULL) {
        return fail(frame, XLA_INVALID_ARGUMENT,
                    "device is a virtual one, but the arrays are on a GPU: put them on the CPU, or leave device out");
    }
    if (frame->api->struct_size < sizeof *frame->api) {
        return fail(frame, XLA_INTERNAL, "XLA's FFI does not tell the ordinal of a GPU: install a later JAX");
    }
    XlaOrdinalGet ordinal = {.struct_size = sizeof ordinal, .ctx = frame->ctx};
    XlaError *error = frame->api->ordinal_get(&ordinal);
    if (error != NULL) {
        return error;
    }
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", (int)ordinal.device_ordinal);
    sm120_device *device;
    error = hold_device(frame, name, &device);
    if (error != NULL) {
        return error;
    }
    error = launch_on_stream(call, device);
    pthread_rwlock_unlock(&devices_lock);
    return error;
}

/* ---- handlers -------------------------------------------------------------------------------------------- */

static int minor_of_header = XLA_MINOR;

/* Say which minor version the header of XLA's FFI has. Releases that do not state their version when they ask for that
 * of a handler take no other. */
SM120_API void sm120_xla_set_version(int minor);
void sm120_xla_set_version(int minor) {
    minor_of_header = minor;
}

/* Answer XLA's question for the version: its own one, or if that is newer the newest that is known here. XLA refuses
 * the handler if it does not support the answer, and else must keep to it. */
static XlaError *answer(const XlaFrame *frame, XlaMetadata *metadata) {
    const int theirs = frame->api != NULL ? frame->api->api_version.minor_version : minor_of_header;
    metadata->api_version.major_version = XLA_MAJOR;
    metadata->api_version.minor_version = theirs < XLA_MINOR ? theirs : XLA_MINOR;
    metadata->traits = 0;
    return NULL;
}

/* Return if all arguments, or all results, are buffers with the members of XlaBuffer. */
static int are_known(const XlaBuffers *buffers) {
    for (int64_t i = 0; i < buffers->size; i++) {
        if (buffers->types[i] != XLA_BUFFER || ((XlaBuffer *)buffers->buffers[i])->struct_size < sizeof(XlaBuffer)) {
            return 0;
        }
    }
    return 1;
}

/* Return if a call has the layout of xla_ffi.h: XLA states its version and the size of every struct. A later minor
 * version adds members at an end. If a struct inside another one grew, what stands behind it is elsewhere. */
static int is_known(const XlaFrame *frame) {
    const XlaVersion *version = &frame->api->api_version;
    return version->struct_size == sizeof *version && version->major_version == XLA_MAJOR &&
           version->minor_version >= XLA_FIRST_MINOR && frame->struct_size >= sizeof *frame &&
           frame->arguments.struct_size == sizeof frame->arguments &&
           frame->results.struct_size == sizeof frame->results &&
           frame->attributes.struct_size >= sizeof frame->attributes && are_known(&frame->arguments) &&
           are_known(&frame->results);
}

static XlaError *refuse(const XlaFrame *frame) {
    char text[160];
    snprintf(text, sizeof text,
             "XLA's FFI has version %d.%d with a layout that pysm120 does not know; it knows %d.%d to %d.%d",
             frame->api->api_version.major_version, frame->api->api_version.minor_version, XLA_MAJOR, XLA_FIRST_MINOR,
             XLA_MAJOR, XLA_MINOR);
    return fail(frame, XLA_INTERNAL, text);
}

static XlaError *handle(XlaFrame *frame, XlaError *(*run)(Call *call)) {
    if (frame->extension_start != NULL && frame->extension_start->type == XLA_EXTENSION_METADATA) {
        return answer(frame, ((XlaMetadataExtension *)(void *)frame->extension_start)->metadata);
    }
    if (!is_known(frame)) {
        return refuse(frame);
    }
    Call call;
    if (!read_call(frame, &call)) {
        return fail(frame, XLA_INVALID_ARGUMENT, "this function is of another version of pysm120: trace it again");
    }
    return run(&call);
}

SM120_API XlaError *sm120_xla_on_host(XlaFrame *frame);
XlaError *sm120_xla_on_host(XlaFrame *frame) {
    return handle(frame, run_on_host);
}

SM120_API XlaError *sm120_xla_on_gpu(XlaFrame *frame);
XlaError *sm120_xla_on_gpu(XlaFrame *frame) {
    return handle(frame, run_on_gpu);
}
