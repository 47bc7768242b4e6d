/* xla_ffi.h: the part of XLA's FFI, versions 0.1 to 0.4, that a handler needs. It is the same in all of them.
 *
 * The names are those of xla/ffi/api/c_api.h without XLA_FFI_; tests compare the layout with that file. Members that no
 * handler here uses are void pointers.
 */
#ifndef SM120_XLA_FFI_H
#define SM120_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

enum { XLA_MAJOR = 0, XLA_FIRST_MINOR = 1, XLA_MINOR = 4 };

typedef struct XlaError XlaError;
typedef struct XlaContext XlaContext;

enum { XLA_EXTENSION_METADATA = 1 };
typedef struct XlaExtension {
    size_t struct_size;
    int type; /* XLA_EXTENSION_METADATA */
    struct XlaExtension *next;
} XlaExtension;

typedef struct XlaVersion {
    size_t struct_size;
    XlaExtension *extension_start;
    int major_version, minor_version;
} XlaVersion;

typedef struct XlaMetadata {
    size_t struct_size;
    XlaVersion api_version;
    uint32_t traits;
} XlaMetadata;

typedef struct XlaMetadataExtension {
    XlaExtension extension_base;
    XlaMetadata *metadata;
} XlaMetadataExtension;

enum { XLA_INVALID_ARGUMENT = 3, XLA_RESOURCE_EXHAUSTED = 8, XLA_INTERNAL = 13 };
typedef struct XlaErrorCreate {
    size_t struct_size;
    XlaExtension *extension_start;
    const char *message; /* copied */
    int errc;
} XlaErrorCreate;

typedef struct XlaStreamGet {
    size_t struct_size;
    XlaExtension *extension_start;
    XlaContext *ctx;
    void *stream; /* out: a CUstream */
} XlaStreamGet;

typedef struct XlaMemoryAllocate {
    size_t struct_size;
    XlaExtension *extension_start;
    XlaContext *ctx;
    size_t size, alignment;
    void *data; /* out */
} XlaMemoryAllocate;

typedef struct XlaMemoryFree {
    size_t struct_size;
    XlaExtension *extension_start;
    XlaContext *ctx;
    size_t size;
    void *data;
} XlaMemoryFree;

typedef struct XlaOrdinalGet {
    size_t struct_size;
    XlaExtension *extension_start;
    XlaContext *ctx;
    int32_t device_ordinal; /* out */
} XlaOrdinalGet;

typedef struct XlaApi {
    size_t struct_size;
    XlaExtension *extension_start;
    XlaVersion api_version;
    const void *internal_api;
    XlaError *(*error_create)(XlaErrorCreate *args);
    void *error_get_message, *error_destroy, *handler_register;
    XlaError *(*stream_get)(XlaStreamGet *args);
    void *type_register, *execution_context_get, *state_set, *state_get;
    XlaError *(*memory_allocate)(XlaMemoryAllocate *args);
    XlaError *(*memory_free)(XlaMemoryFree *args);
    void *thread_pool_schedule, *thread_pool_num_threads, *future_create, *future_set_available, *future_set_error;
    void *run_id_get;
    XlaError *(*ordinal_get)(XlaOrdinalGet *args);
} XlaApi;

enum { XLA_BUFFER = 1 };
typedef struct XlaBuffer {
    size_t struct_size;
    XlaExtension *extension_start;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} XlaBuffer;

/* Arguments, and results: each of type XLA_BUFFER points to an XlaBuffer. */
typedef struct XlaBuffers {
    size_t struct_size;
    XlaExtension *extension_start;
    int64_t size;
    int *types;
    void **buffers;
} XlaBuffers;

typedef struct XlaSpan {
    const char *ptr;
    size_t len;
} XlaSpan;

enum { XLA_S64 = 5 };
typedef struct XlaArray {
    int dtype;
    size_t size;
    void *data;
} XlaArray;

enum { XLA_ATTRIBUTE_ARRAY = 1, XLA_ATTRIBUTE_STRING = 4 };
typedef struct XlaAttributes {
    size_t struct_size;
    XlaExtension *extension_start;
    int64_t size;
    int *types;
    XlaSpan **names;
    void **attributes; /* each points to an XlaArray or an XlaSpan */
} XlaAttributes;

typedef struct XlaFrame {
    size_t struct_size;
    XlaExtension *extension_start;
    const XlaApi *api;
    XlaContext *ctx;
    int stage;
    XlaBuffers arguments, results;
    XlaAttributes attributes;
} XlaFrame;

#endif
