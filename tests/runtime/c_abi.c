/* Handles, devices, memory and streams, called wrongly, then rightly, by one thread and by several: c_abi [device]. */
#include "c_abi.h"
#include "simulation.h"

/* ---- without a device ---- */

static void test_library(void) {
    TRUE(sm120_version() >= 0);
    TRUE(strchr(sm120_version_string(), '.') != NULL);
    for (sm120_status status = SM120_OK; status <= SM120_INTERNAL; ++status) {
        TRUE(strcmp(sm120_status_string(status), "unknown status") != 0);
    }
    TRUE(strcmp(sm120_status_string(-1), "unknown status") == 0);
    TRUE(strcmp(sm120_status_string(SM120_INTERNAL + 1), "unknown status") == 0);
    int32_t count = -1;
    OK(sm120_device_count("virtual", &count));
    TRUE(count >= 1);
    OK(sm120_device_count("cuda", &count));
    TRUE(count >= 0);
    BAD(INVALID_ARGUMENT, "kind", sm120_device_count("tpu", &count));
    BAD(INVALID_ARGUMENT, "kind", sm120_device_count(NULL, &count));
    BAD(INVALID_ARGUMENT, "count", sm120_device_count("cuda", NULL));
    TRUE(sm120_last_driver_error() == 0);
}

static void test_builtin(void) {
    sm120_builtin_info info = {.size = sizeof info};
    const void *image = NULL;
    size_t bytes = 0;
    OK(sm120_builtin(0, &info));
    TRUE(info.threads > 0 && strstr(info.source, ".ptx") != NULL && info.entry[0] != '\0');
    BAD(INVALID_ARGUMENT, "index", sm120_builtin(-1, &info));
    BAD(UNSUPPORTED, "index", sm120_builtin(INT32_MAX, &info));
    BAD(INVALID_ARGUMENT, "info", sm120_builtin(0, NULL));
    info.size -= 1;
    BAD(INVALID_ARGUMENT, "info->size", sm120_builtin(0, &info));
    OK(sm120_builtin_image(0, "sm_120f", "ptx", &image, &bytes));
    TRUE(bytes > 0 && strlen(image) == bytes);
    OK(sm120_builtin_image(0, "sm_90", "cubin", &image, &bytes));
    TRUE(bytes > 4 && memcmp(image, "\177ELF", 4) == 0);
    BAD(INVALID_ARGUMENT, "target", sm120_builtin_image(0, "sm_70", "ptx", &image, &bytes));
    BAD(INVALID_ARGUMENT, "target", sm120_builtin_image(0, NULL, "ptx", &image, &bytes));
    BAD(INVALID_ARGUMENT, "form", sm120_builtin_image(0, "sm_90", "elf", &image, &bytes));
    BAD(INVALID_ARGUMENT, "form", sm120_builtin_image(0, "sm_90", NULL, &image, &bytes));
    BAD(INVALID_ARGUMENT, "image", sm120_builtin_image(0, "sm_90", "ptx", NULL, &bytes));
    BAD(INVALID_ARGUMENT, "bytes", sm120_builtin_image(0, "sm_90", "ptx", &image, NULL));
    BAD(UNSUPPORTED, "index", sm120_builtin_image(INT32_MAX, "sm_90", "ptx", &image, &bytes));
}

/* Each image is that of one kernel, and a second call returns the same bytes; words of the record are never NULL. */
static void test_builtin_records(void) {
    sm120_builtin_info info = {.size = sizeof info};
    int32_t count = 0;
    for (; sm120_builtin(count, &info) == SM120_OK; ++count) {
        const void *first = NULL, *second = NULL;
        size_t bytes = 0;
        OK(sm120_builtin_image(count, "sm_90", "ptx", &first, &bytes));
        OK(sm120_builtin_image(count, "sm_90", "ptx", &second, &bytes));
        const char *const entry = strstr(first, ".visible .entry ");
        TRUE(first == second && entry != NULL && strncmp(entry + 16, info.entry, strlen(info.entry)) == 0);
        TRUE(entry != NULL && strstr(entry + 16, ".entry ") == NULL);
        TRUE(info.operation[0] != '\0' && info.layout != NULL && info.config != NULL);
        TRUE(strcmp(info.operation, "attention") != 0 || (info.q_rows > 0 && info.kv_rows > 0 && info.precision != 0));
    }
    TRUE(count > 0);
}

static void test_builtin_constants(void) {
    const char *name = NULL;
    int32_t value = 0, found = 0;
    for (int32_t i = 0; sm120_builtin_constant(i, &name, &value) == SM120_OK; ++i) {
        found |= strcmp(name, "ATTENTION_FEATURE_RIGHT") == 0 ? value : 0;
    }
    TRUE(found == 2);
    BAD(INVALID_ARGUMENT, "index", sm120_builtin_constant(-1, &name, &value));
    BAD(UNSUPPORTED, "index", sm120_builtin_constant(INT32_MAX, &name, &value));
    BAD(INVALID_ARGUMENT, "name", sm120_builtin_constant(0, NULL, &value));
    BAD(INVALID_ARGUMENT, "value", sm120_builtin_constant(0, &name, NULL));
}

/* Call every entry that takes a handle with `d`, `m` and `k`, which are no handles; `word` is in every message. */
static void test_no_handle(sm120_device *d, sm120_module *m, sm120_kernel *k, const char *word) {
    sm120_device_info device_info = {.size = sizeof device_info};
    sm120_kernel_info kernel_info = {.size = sizeof kernel_info};
    sm120_parameter_info parameter_info = {.size = sizeof parameter_info};
    sm120_attention_args attention = {.size = sizeof attention};
    sm120_quantize_mxfp8_args quantize = {.size = sizeof quantize};
    sm120_tensor_map_args tensor_map = {.size = sizeof tensor_map};
    sm120_tensor_map map = {{0}};
    const uint32_t one[3] = {1, 1, 1};
    const char *text = NULL;
    char host[16] = {0};
    void *pointer = NULL;
    sm120_address address = 0;
    sm120_module *module = NULL;
    sm120_kernel *kernel = NULL;
    uint64_t value = 0;
    size_t bytes = 0;
    float ms = 0.0f;
    int32_t n = 0;
    BAD(INVALID_ARGUMENT, word, sm120_device_query(d, &device_info));
    BAD(INVALID_ARGUMENT, word, sm120_device_context(d, &pointer));
    BAD(INVALID_ARGUMENT, word, sm120_device_synchronize(d));
    BAD(INVALID_ARGUMENT, word, sm120_device_counter(d, 0, &text, &value));
    BAD(INVALID_ARGUMENT, word, sm120_device_counters_reset(d));
    sm120_profile_row row = {.size = sizeof row};
    BAD(INVALID_ARGUMENT, word, sm120_profile_begin(d));
    BAD(INVALID_ARGUMENT, word, sm120_profile_read(d, 0, &row));
    BAD(INVALID_ARGUMENT, word, sm120_profile_cta(d, 0, &text, &value, &value));
    BAD(INVALID_ARGUMENT, word, sm120_profile_end(d));
    BAD(INVALID_ARGUMENT, word, sm120_device_interrupt(d));
    BAD(INVALID_ARGUMENT, word, sm120_device_watch(d, NULL));
    BAD(INVALID_ARGUMENT, word, sm120_alloc(d, 16, &address));
    BAD(INVALID_ARGUMENT, word, sm120_free(d, 256));
    BAD(INVALID_ARGUMENT, word, sm120_alloc_pinned(d, 16, &pointer, &address));
    BAD(INVALID_ARGUMENT, word, sm120_free_pinned(d, host));
    BAD(INVALID_ARGUMENT, word, sm120_copy_to_device(d, 256, host, 16, NULL));
    BAD(INVALID_ARGUMENT, word, sm120_copy_to_host(d, host, 256, 16, NULL));
    BAD(INVALID_ARGUMENT, word, sm120_copy_on_device(d, 256, 512, 16, NULL));
    BAD(INVALID_ARGUMENT, word, sm120_fill(d, 256, 0, 16, NULL));
    BAD(INVALID_ARGUMENT, word, sm120_stream_create(d, &pointer));
    BAD(INVALID_ARGUMENT, word, sm120_stream_destroy(d, host));
    BAD(INVALID_ARGUMENT, word, sm120_stream_synchronize(d, NULL));
    BAD(INVALID_ARGUMENT, word, sm120_stream_wait_event(d, NULL, host));
    BAD(INVALID_ARGUMENT, word, sm120_event_create(d, &pointer));
    BAD(INVALID_ARGUMENT, word, sm120_event_destroy(d, host));
    BAD(INVALID_ARGUMENT, word, sm120_event_record(d, host, NULL));
    BAD(INVALID_ARGUMENT, word, sm120_event_synchronize(d, host));
    BAD(INVALID_ARGUMENT, word, sm120_event_elapsed(d, host, host, &ms));
    BAD(INVALID_ARGUMENT, word, sm120_module_load(d, body, strlen(body), "x", &module));
    BAD(INVALID_ARGUMENT, word, sm120_builtin_kernel(d, 0, &kernel));
    BAD(INVALID_ARGUMENT, word, sm120_attention(d, &attention, 0, 0));
    BAD(INVALID_ARGUMENT, word, sm120_attention_workspace(d, &attention, &bytes));
    BAD(INVALID_ARGUMENT, word, sm120_quantize_mxfp8(d, &quantize));
    BAD(INVALID_ARGUMENT, word, sm120_tensor_map_encode(d, &tensor_map, &map));
    BAD(INVALID_ARGUMENT, word, sm120_tensor_map_replace_address(d, &map, 256));
    BAD(INVALID_ARGUMENT, word, sm120_module_kernel(m, "scale", &kernel));
    BAD(INVALID_ARGUMENT, word, sm120_module_entry(m, 0, &text));
    sm120_variable_info variable_info = {.size = sizeof variable_info};
    BAD(INVALID_ARGUMENT, word, sm120_module_variable(m, 0, &variable_info));
    BAD(INVALID_ARGUMENT, word, sm120_kernel_query(k, &kernel_info));
    BAD(INVALID_ARGUMENT, word, sm120_kernel_parameter(k, 0, &parameter_info));
    sm120_instruction_info instruction_info = {.size = sizeof instruction_info};
    BAD(INVALID_ARGUMENT, word, sm120_kernel_instruction(k, 0, &instruction_info));
    BAD(INVALID_ARGUMENT, word, sm120_kernel_occupancy(k, 32, 0, &n));
    BAD(INVALID_ARGUMENT, word, sm120_launch(k, one, one, 0, NULL, NULL, NULL, 0));
    BAD(INVALID_ARGUMENT, word, sm120_launch_cooperative(k, one, one, 0, NULL, NULL, NULL, 0));
}

static void test_handles(sm120_device *device, sm120_module *module, sm120_kernel *kernel) {
    int on_stack = 0;
    test_no_handle(NULL, NULL, NULL, "is NULL");
    test_no_handle((sm120_device *)module, (sm120_module *)kernel, (sm120_kernel *)device, "is no");
    test_no_handle((void *)&on_stack, (void *)&on_stack, (void *)&on_stack, "is no");
    OK(sm120_device_close(NULL));
    OK(sm120_module_unload(NULL));
    BAD(INVALID_ARGUMENT, "device", sm120_device_close((sm120_device *)module));
    BAD(INVALID_ARGUMENT, "module", sm120_module_unload((sm120_module *)device));
}

/* ---- devices ---- */

static void test_open(sm120_device *device) {
    sm120_device *other = NULL;
    BAD(INVALID_ARGUMENT, "device", sm120_device_open("virtual", NULL));
    BAD(INVALID_ARGUMENT, "tpu", sm120_device_open("tpu", &other));
    BAD(INVALID_ARGUMENT, "virtual:", sm120_device_open("virtual:", &other));
    BAD(INVALID_ARGUMENT, "virtual:-1", sm120_device_open("virtual:-1", &other));
    BAD(INVALID_ARGUMENT, "virtual:1x", sm120_device_open("virtual:1x", &other));
    BAD(NO_DEVICE, "virtual:999", sm120_device_open("virtual:999", &other));
    BAD(NO_DEVICE, "cuda:999", sm120_device_open("cuda:999", &other));
    TRUE(other == NULL);
    setenv("PYSM120_DEVICE", "nonsense", 1);
    BAD(INVALID_ARGUMENT, "PYSM120_DEVICE", sm120_device_open(NULL, &other));
    setenv("PYSM120_DEVICE", "", 1);
    OK(sm120_device_open(NULL, &other));
    OK(sm120_device_close(other));
    setenv("PYSM120_DEVICE", "virtual:0", 1);
    OK(sm120_device_open(NULL, &other));
    unsetenv("PYSM120_DEVICE");
    sm120_device_info info = {.size = sizeof info};
    OK(sm120_device_query(other, &info));
    TRUE(info.is_virtual == 1 && info.ordinal == 0 && info.capability_major == 12 && info.warp_size == 32);
    TRUE(info.shared_bytes_per_block == 101376 && info.max_threads_per_block == 1024 && info.memory_bytes > 0);
    TRUE(info.name[0] != '\0');
    TRUE(other != device);
    sm120_address address = 0;
    OK(sm120_alloc(other, 64, &address));
    BAD(INVALID_ARGUMENT, "address", sm120_free(device, address)); /* another device's */
    OK(sm120_device_close(other));                                 /* frees it */
    test_no_handle(other, (void *)other, (void *)other, "is no");
    BAD(INVALID_ARGUMENT, "closed", sm120_device_close(other));
}

/* Two devices in one context share its memory, streams and events, and each frees what is its own. */
static void test_context(void) {
    const char *const kind = strncmp(device_name, "cuda", 4) == 0 ? "cuda" : "virtual";
    sm120_device *first = NULL, *second = NULL;
    sm120_context context = NULL, same = NULL;
    sm120_device_info info = {.size = sizeof info};
    sm120_address x = 0, y = 0;
    sm120_stream stream = NULL;
    uint8_t back[4] = {0};
    BAD(INVALID_ARGUMENT, "device is NULL", sm120_device_open_context(kind, NULL, NULL));
    BAD(INVALID_ARGUMENT, "name is NULL", sm120_device_open_context(NULL, NULL, &second));
    BAD(INVALID_ARGUMENT, "\"tpu\" is not a device", sm120_device_open_context("tpu", NULL, &second));
    BAD(INVALID_ARGUMENT, "belongs to one device", sm120_device_open_context("virtual:0", NULL, &second));
    BAD(INVALID_ARGUMENT, "no context is current", sm120_device_open_context("virtual", NULL, &second));
    BAD(DRIVER_ERROR, "is no context of a virtual device that is open",
        sm120_device_open_context("virtual", &x, &second));
    OK(sm120_device_open(device_name, &first));
    BAD(INVALID_ARGUMENT, "context is NULL", sm120_device_context(first, NULL));
    OK(sm120_device_context(first, &context));
    OK(sm120_device_open_context(strcmp(kind, "virtual") == 0 ? "virtual?checks=full&seed=3" : kind, context, &second));
    OK(sm120_device_context(second, &same));
    TRUE(context != NULL && same == context && second != first);
    OK(sm120_device_query(second, &info));
    TRUE(info.is_virtual == (strcmp(kind, "virtual") == 0) && info.multiprocessors > 0);
    OK(sm120_alloc(first, 64, &x));
    OK(sm120_alloc(second, 64, &y));
    OK(sm120_stream_create(first, &stream));
    OK(sm120_fill(second, x, 7, 64, stream));
    OK(sm120_copy_on_device(second, y, x, 64, stream));
    BAD(INVALID_ARGUMENT, "address", sm120_free(second, x)); /* the first device's */
    OK(sm120_stream_synchronize(second, stream));
    OK(sm120_device_close(first)); /* frees x; the context lives on */
    OK(sm120_copy_to_host(second, back, y + 60, sizeof back, NULL));
    OK(sm120_device_synchronize(second));
    TRUE(back[0] == 7 && back[3] == 7);
    OK(sm120_device_close(second));
}

static void test_query(sm120_device *device) {
    struct {
        sm120_device_info info;
        char later[8];
    } longer = {.info = {.size = sizeof longer}};
    OK(sm120_device_query(device, &longer.info));
    TRUE(longer.info.size == sizeof longer);
    longer.later[3] = 1;
    BAD(INVALID_ARGUMENT, "must be 0", sm120_device_query(device, &longer.info));
    longer.info.size = sizeof longer.info - 4;
    BAD(INVALID_ARGUMENT, "info->size", sm120_device_query(device, &longer.info));
    longer.info.size = UINT32_MAX;
    BAD(INVALID_ARGUMENT, "info->size", sm120_device_query(device, &longer.info));
    BAD(INVALID_ARGUMENT, "info", sm120_device_query(device, NULL));
}

/* Add up all counters, and count them. */
static uint64_t sum_counters(sm120_device *device, int32_t *count) {
    const char *name = NULL;
    uint64_t value = 0;
    uint64_t sum = 0;
    for (*count = 0; sm120_device_counter(device, *count, &name, &value) == SM120_OK; ++*count) {
        TRUE(name != NULL && name[0] != '\0');
        sum += value;
    }
    return sum;
}

static void test_counters(sm120_device *device, sm120_kernel *kernel) {
    sm120_device_info info = {.size = sizeof info};
    const char *name = NULL;
    uint64_t value = 0;
    int32_t count = 0;
    sm120_address x = 0;
    OK(sm120_device_query(device, &info));
    TRUE(info.memory_bytes > 0);
    BAD(INVALID_ARGUMENT, "index", sm120_device_counter(device, -1, &name, &value));
    BAD(INVALID_ARGUMENT, "name", sm120_device_counter(device, 0, NULL, &value));
    BAD(INVALID_ARGUMENT, "value", sm120_device_counter(device, 0, &name, NULL));
    BAD(UNSUPPORTED, "index", sm120_device_counter(device, INT32_MAX, &name, &value));
    if (info.is_virtual == 0) {
        BAD(UNSUPPORTED, "has no counters; only the virtual device has", sm120_device_counters_reset(device));
        BAD(UNSUPPORTED, "cannot be interrupted; only the virtual device can", sm120_device_interrupt(device));
        return;
    }
    OK(sm120_alloc(device, 256, &x));
    OK(sm120_fill(device, x, 0, 256, NULL));
    OK(launch_scale(kernel, x, 64, 1.0f, NULL));
    OK(sm120_device_synchronize(device));
    TRUE(sum_counters(device, &count) > 0 && count > 0);
    OK(sm120_device_counters_reset(device));
    TRUE(sum_counters(device, &count) == 0);
    OK(sm120_device_interrupt(device));
    OK(launch_scale(kernel, x, 64, 1.0f, NULL)); /* begun after it: not stopped */
    OK(sm120_free(device, x));
}

/* The rows of the profile of one launch of 64 threads. */
static void check_rows(sm120_device *device) {
    sm120_profile_row row = {.size = sizeof row};
    uint64_t stored = 0;
    int32_t count = 0;
    for (; sm120_profile_read(device, count, &row) == SM120_OK; ++count) {
        TRUE(strcmp(row.kernel, "scale") == 0 && row.index == (uint32_t)count && row.line > 0);
        TRUE(row.lanes + row.predicated_off <= 32 * row.executed);
        if (strcmp(row.opcode, "st") == 0) {
            TRUE(strcmp(row.bytes[0].path, "st.global") == 0 && row.bytes[1].path == NULL);
            stored += row.bytes[0].bytes;
        }
    }
    TRUE(count > 0 && stored == 256);
    BAD(UNSUPPORTED, "past the last row", sm120_profile_read(device, count, &row));
    const char *of = NULL;
    uint64_t cta = 1, executed = 0;
    OK(sm120_profile_cta(device, 0, &of, &cta, &executed));
    TRUE(strcmp(of, "scale") == 0 && cta == 0 && executed != 0);
    BAD(UNSUPPORTED, "past the last CTA", sm120_profile_cta(device, 1 << 20, &of, &cta, &executed));
    BAD(INVALID_ARGUMENT, "index", sm120_profile_cta(device, -1, &of, &cta, &executed));
    BAD(INVALID_ARGUMENT, "NULL", sm120_profile_cta(device, 0, NULL, &cta, &executed));
    BAD(INVALID_ARGUMENT, "index", sm120_profile_read(device, -1, &row));
    BAD(INVALID_ARGUMENT, "row", sm120_profile_read(device, 0, NULL));
    row.size = 3;
    BAD(INVALID_ARGUMENT, "row->size", sm120_profile_read(device, 0, &row));
}

static void test_profile(sm120_device *device, sm120_kernel *kernel) {
    sm120_device_info info = {.size = sizeof info};
    sm120_profile_row row = {.size = sizeof row};
    sm120_device *other = NULL;
    sm120_address x = 0;
    OK(sm120_device_query(device, &info));
    if (info.is_virtual == 0) {
        BAD(UNSUPPORTED, "cannot be profiled; only the virtual device can", sm120_profile_begin(device));
        BAD(UNSUPPORTED, "cannot be profiled; only the virtual device can", sm120_profile_end(device));
        return;
    }
    BAD(INVALID_ARGUMENT, "sm120_profile_begin", sm120_profile_end(device));
    BAD(INVALID_ARGUMENT, "sm120_profile_begin", sm120_profile_read(device, 0, &row));
    OK(sm120_profile_begin(device));
    BAD(UNSUPPORTED, "already", sm120_profile_begin(device));
    OK(sm120_device_open("virtual", &other));
    BAD(UNSUPPORTED, "already", sm120_profile_begin(other));
    BAD(INVALID_ARGUMENT, "sm120_profile_begin", sm120_profile_end(other));
    BAD(UNSUPPORTED, "past the last row", sm120_profile_read(device, 0, &row));
    OK(sm120_alloc(device, 256, &x));
    OK(sm120_fill(device, x, 0, 256, NULL));
    OK(launch_scale(kernel, x, 64, 1.0f, NULL));
    check_rows(device);
    OK(sm120_profile_end(device));
    OK(sm120_profile_begin(other)); /* closing ends it */
    OK(sm120_device_close(other));
    OK(sm120_profile_begin(device));
    BAD(UNSUPPORTED, "past the last row", sm120_profile_read(device, 0, &row));
    OK(sm120_profile_end(device));
    OK(sm120_free(device, x));
}

/* ---- memory ---- */

/* Copies in a batch, within 256 bytes that begin with `host`. */
static void test_batch(sm120_device *device, sm120_address address, const unsigned char *host) {
    unsigned char back[256];
    sm120_copy_piece pieces[] = {{address + 65, address, 63, 0}, {0, 0, 0, 0}, {address + 160, address + 7, 1, 0}};
    const size_t bytes = sizeof pieces;
    OK(sm120_copy_batch_prepare(device, pieces, 3));
    TRUE(pieces[0].first == 0 && pieces[1].first == 1 && pieces[2].first == 1);
    sm120_address list = 0;
    OK(sm120_alloc(device, bytes, &list));
    OK(sm120_copy_to_device(device, list, pieces, bytes, NULL));
    OK(sm120_copy_batch(device, list, 3, 1, NULL));
    OK(sm120_copy_to_host(device, back, address, sizeof back, NULL));
    OK(sm120_device_synchronize(device));
    TRUE(memcmp(back + 65, host, 63) == 0 && back[160] == host[7] && back[64] == host[64]);
    BAD(INVALID_ARGUMENT, "pieces", sm120_copy_batch_prepare(device, NULL, 3));
    BAD(INVALID_ARGUMENT, "count", sm120_copy_batch_prepare(device, pieces, 0));
    BAD(INVALID_ARGUMENT, "count", sm120_copy_batch(device, list, 0, 1, NULL));
    BAD(MISALIGNED, "pieces", sm120_copy_batch(device, list + 4, 2, 1, NULL));
    BAD(UNSUPPORTED, "ctas", sm120_copy_batch(device, list, 3, 1u << 30, NULL));
    pieces[2].bytes = 250;
    BAD(INVALID_ARGUMENT, "pieces[2].to", sm120_copy_batch_prepare(device, pieces, 3));
    OK(sm120_free(device, list));
}

static void test_memory(sm120_device *device) {
    sm120_address address = 0;
    unsigned char host[256];
    unsigned char back[256];
    BAD(INVALID_ARGUMENT, "bytes = 0", sm120_alloc(device, 0, &address));
    BAD(INVALID_ARGUMENT, "address", sm120_alloc(device, 16, NULL));
    BAD(OUT_OF_MEMORY, "bytes = 4611686018427387904", sm120_alloc(device, (size_t)1 << 62, &address));
    TRUE(sm120_last_driver_error() == 2);
    for (size_t less = 0; less < 8192; less += 1024) {
        BAD(OUT_OF_MEMORY, "bytes = ", sm120_alloc(device, SIZE_MAX - less, &address));
    }
    OK(sm120_alloc(device, sizeof host, &address));
    TRUE(address != 0 && address % 256 == 0 && sm120_last_driver_error() == 0);
    for (int i = 0; i < 256; ++i) {
        host[i] = (unsigned char)i;
    }
    OK(sm120_copy_to_device(device, address, host, sizeof host, NULL));
    OK(sm120_copy_on_device(device, address + 128, address, 64, NULL));
    OK(sm120_fill(device, address + 192, 0x5a, 64, NULL));
    OK(sm120_copy_to_host(device, back, address, sizeof back, NULL));
    OK(sm120_device_synchronize(device));
    TRUE(memcmp(back, host, 128) == 0 && memcmp(back + 128, host, 64) == 0 && back[192] == 0x5a && back[255] == 0x5a);
    OK(sm120_copy_to_device(device, address, host, 0, NULL));
    BAD(INVALID_ARGUMENT, "from", sm120_copy_to_device(device, address, NULL, 16, NULL));
    BAD(INVALID_ARGUMENT, "to", sm120_copy_to_host(device, NULL, address, 16, NULL));
    BAD(INVALID_ARGUMENT, "to", sm120_copy_to_device(device, 0, host, 16, NULL));
    BAD(INVALID_ARGUMENT, "past the end", sm120_copy_to_device(device, address + 250, host, 7, NULL));
    BAD(INVALID_ARGUMENT, "past the end", sm120_copy_to_host(device, host, address, 257, NULL));
    BAD(INVALID_ARGUMENT, "past the end", sm120_copy_on_device(device, address + 128, address, 129, NULL));
    BAD(INVALID_ARGUMENT, "from", sm120_copy_on_device(device, address, UINT64_MAX - 3, 8, NULL));
    BAD(INVALID_ARGUMENT, "past the end", sm120_fill(device, address, 0, SIZE_MAX, NULL));
    test_batch(device, address, host);
    BAD(INVALID_ARGUMENT, "inside", sm120_free(device, address + 16));
    OK(sm120_free(device, address));
    BAD(INVALID_ARGUMENT, "freed already", sm120_free(device, address));
    BAD(INVALID_ARGUMENT, "address", sm120_free(device, 0));
}

static void test_pinned(sm120_device *device, sm120_kernel *kernel) {
    sm120_address address = 0;
    void *memory = NULL;
    BAD(INVALID_ARGUMENT, "bytes = 0", sm120_alloc_pinned(device, 0, &memory, &address));
    BAD(INVALID_ARGUMENT, "host", sm120_alloc_pinned(device, 16, NULL, &address));
    BAD(INVALID_ARGUMENT, "address", sm120_alloc_pinned(device, 16, &memory, NULL));
    BAD(OUT_OF_MEMORY, "bytes", sm120_alloc_pinned(device, (size_t)1 << 62, &memory, &address));
    OK(sm120_alloc_pinned(device, 200 * sizeof(float), &memory, &address));
    float *const x = memory;
    for (int i = 0; i < 200; ++i) {
        x[i] = (float)i;
    }
    OK(launch_scale(kernel, address, 199, 3.0f, NULL));
    OK(sm120_device_synchronize(device));
    TRUE(x[0] == 0.0f && x[1] == 3.0f && x[198] == 594.0f && x[199] == 199.0f);
    BAD(INVALID_ARGUMENT, "inside", sm120_free_pinned(device, (char *)memory + 4));
    OK(sm120_free_pinned(device, memory));
    BAD(INVALID_ARGUMENT, "freed already", sm120_free_pinned(device, memory));
    BAD(INVALID_ARGUMENT, "host", sm120_free_pinned(device, NULL));
}

static void test_streams(sm120_device *device, sm120_kernel *kernel) {
    sm120_stream stream = NULL;
    sm120_event start = NULL;
    sm120_event end = NULL;
    sm120_address x = 0;
    float ms = -1.0f;
    BAD(INVALID_ARGUMENT, "stream", sm120_stream_create(device, NULL));
    BAD(INVALID_ARGUMENT, "event", sm120_event_create(device, NULL));
    OK(sm120_alloc(device, 4096, &x));
    OK(sm120_stream_create(device, &stream));
    OK(sm120_event_create(device, &start));
    OK(sm120_event_create(device, &end));
    OK(sm120_event_record(device, start, stream));
    OK(sm120_fill(device, x, 0, 4096, stream));
    OK(launch_scale(kernel, x, 1024, 2.0f, stream));
    OK(sm120_event_record(device, end, stream));
    OK(sm120_stream_wait_event(device, NULL, end));
    OK(sm120_stream_synchronize(device, stream));
    OK(sm120_stream_synchronize(device, NULL));
    OK(sm120_event_synchronize(device, end));
    OK(sm120_event_elapsed(device, start, end, &ms));
    TRUE(ms >= 0.0f);
    BAD(INVALID_ARGUMENT, "event", sm120_stream_wait_event(device, stream, NULL));
    BAD(INVALID_ARGUMENT, "event", sm120_event_record(device, NULL, stream));
    BAD(INVALID_ARGUMENT, "event", sm120_event_synchronize(device, NULL));
    BAD(INVALID_ARGUMENT, "start", sm120_event_elapsed(device, NULL, end, &ms));
    BAD(INVALID_ARGUMENT, "end", sm120_event_elapsed(device, start, NULL, &ms));
    BAD(INVALID_ARGUMENT, "milliseconds", sm120_event_elapsed(device, start, end, NULL));
    BAD(INVALID_ARGUMENT, "stream", sm120_stream_destroy(device, NULL));
    BAD(INVALID_ARGUMENT, "event", sm120_event_destroy(device, stream));
    OK(sm120_event_destroy(device, start));
    OK(sm120_event_destroy(device, end));
    OK(sm120_stream_destroy(device, stream));
    BAD(INVALID_ARGUMENT, "destroyed already", sm120_stream_destroy(device, stream));
    BAD(INVALID_ARGUMENT, "destroyed already", sm120_event_destroy(device, end));
    OK(sm120_free(device, x));
}

/* Handles that are stale, of the other kind, or nothing at all; on the virtual device none is followed. */
/* tests/model has what is simulated. */
static void test_simulate(void) {
    struct small_simulation all;
    small_simulation(&all);
    OK(sm120_simulate(&all.of, &all.result));
    TRUE(all.result.issued == SIMULATED_ISSUED && all.result.event_count == SIMULATED_ISSUED);
    TRUE(all.result.ended == SIMULATED_TILES && all.ends[SIMULATED_TILES - 1] == all.result.clocks);
    TRUE(all.busy[0] == 2.0 * SIMULATED_ISSUED && all.result.lines >= 10);
    all.result.event_room = 7;
    memset(all.events, 0xff, sizeof all.events);
    OK(sm120_simulate(&all.of, &all.result));
    TRUE(all.result.event_count == SIMULATED_ISSUED && all.events[6].pipe == 0 && all.events[7].pipe == -1);
    all.steps[2].ahead = 5; /* so that nobody copies what the warps wait for */
    BAD(UNSUPPORTED, "wait for each other", sm120_simulate(&all.of, &all.result));
    BAD(INVALID_ARGUMENT, "simulation", sm120_simulate(NULL, &all.result));
    BAD(INVALID_ARGUMENT, "result", sm120_simulate(&all.of, NULL));
}

static void test_dead_handles(sm120_device *device, sm120_kernel *kernel) {
    sm120_device_info info = {.size = sizeof info};
    sm120_stream stream = NULL;
    sm120_event live = NULL;
    sm120_event dead = NULL;
    sm120_address x = 0;
    float ms = 0.0f;
    char garbage[64] = {0};
    OK(sm120_device_query(device, &info));
    if (info.is_virtual == 0) {
        return;
    }
    OK(sm120_alloc(device, 64, &x));
    OK(sm120_stream_create(device, &stream));
    OK(sm120_event_create(device, &live));
    OK(sm120_event_create(device, &dead));
    OK(sm120_event_record(device, live, (sm120_stream)(uintptr_t)2));
    OK(sm120_event_destroy(device, dead));
    void *const wrong[] = {dead, (void *)(uintptr_t)16, garbage, stream};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        BAD(INVALID_ARGUMENT, "is not a live event", sm120_event_record(device, wrong[i], NULL));
        BAD(INVALID_ARGUMENT, "is not a live event", sm120_event_synchronize(device, wrong[i]));
        BAD(INVALID_ARGUMENT, "is not a live event", sm120_stream_wait_event(device, stream, wrong[i]));
        BAD(INVALID_ARGUMENT, "is not a live event", sm120_event_elapsed(device, wrong[i], live, &ms));
        BAD(INVALID_ARGUMENT, "is not a live event", sm120_event_elapsed(device, live, wrong[i], &ms));
    }
    BAD(INVALID_ARGUMENT, "is not a live stream", sm120_stream_synchronize(device, garbage));
    BAD(INVALID_ARGUMENT, "is not a live stream", sm120_stream_wait_event(device, live, live));
    BAD(INVALID_ARGUMENT, "is not a live stream", sm120_event_record(device, live, garbage));
    BAD(INVALID_ARGUMENT, "is not a live stream", sm120_fill(device, x, 0, 64, dead));
    BAD(INVALID_ARGUMENT, "is not a live stream", sm120_copy_to_host(device, garbage, x, 64, garbage));
    BAD(INVALID_ARGUMENT, "is not a live stream", launch_scale(kernel, x, 1, 1.0f, garbage));
    OK(sm120_event_destroy(device, live));
    OK(sm120_stream_destroy(device, stream));
    OK(sm120_free(device, x));
}

/* ---- threads ---- */

struct worker {
    sm120_device *device;
    int number;
};

/* Load, allocate, launch, check, free: what each of several threads does on one device. */
static void *work(void *argument) {
    const struct worker *const worker = argument;
    sm120_device *const device = worker->device;
    enum { N = 500 };
    for (int round = 0; round < 5; ++round) {
        sm120_module *module = NULL;
        sm120_kernel *const kernel = load_scale(device, &module);
        sm120_address x = 0;
        float host[N];
        for (int i = 0; i < N; ++i) {
            host[i] = (float)(i + worker->number);
        }
        OK(sm120_alloc(device, sizeof host, &x));
        OK(sm120_copy_to_device(device, x, host, sizeof host, NULL));
        OK(launch_scale(kernel, x, N, 2.0f, NULL));
        OK(sm120_copy_to_host(device, host, x, sizeof host, NULL));
        OK(sm120_device_synchronize(device));
        TRUE(host[0] == 2.0f * (float)worker->number && host[N - 1] == 2.0f * (float)(N - 1 + worker->number));
        BAD(INVALID_ARGUMENT, "bytes", sm120_alloc(device, 0, &x)); /* the message is this thread's own */
        OK(sm120_free(device, x));
        OK(sm120_module_unload(module));
    }
    return NULL;
}

/* Use a device until another thread closes it: every call works, or says that the device is closed. */
static void *use_until_closed(void *argument) {
    sm120_device *const device = argument;
    for (;;) {
        sm120_address x = 0;
        const sm120_status status = sm120_alloc(device, 64, &x);
        if (status == SM120_INVALID_ARGUMENT) {
            BAD(INVALID_ARGUMENT, "closed", status);
            return NULL;
        }
        OK(status);
        if (sm120_fill(device, x, 1, 64, NULL) == SM120_OK) {
            (void)sm120_free(device, x);
        }
    }
}

static void test_threads(sm120_device *device) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    struct worker workers[THREADS];
    for (int i = 0; i < THREADS; ++i) {
        workers[i] = (struct worker){device, i};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < THREADS; ++i) {
        pthread_join(threads[i], NULL);
    }
    sm120_device *shared = NULL;
    OK(sm120_device_open(device_name, &shared));
    for (int i = 0; i < THREADS; ++i) {
        pthread_create(&threads[i], NULL, use_until_closed, shared);
    }
    OK(sm120_device_synchronize(shared));
    OK(sm120_device_close(shared));
    for (int i = 0; i < THREADS; ++i) {
        pthread_join(threads[i], NULL);
    }
}

int main(int argc, char **argv) {
    sm120_device *device = NULL;
    sm120_module *module = NULL;
    sm120_address left = 0;
    void *left_host = NULL;
    sm120_stream left_stream = NULL;
    sm120_event left_event = NULL;
    device_name = argc > 1 ? argv[1] : device_name;
    test_library();
    test_builtin();
    test_builtin_records();
    test_builtin_constants();
    OK(sm120_device_open(device_name, &device));
    if (device == NULL) {
        return EXIT_FAILURE;
    }
    sm120_kernel *const kernel = load_scale(device, &module);
    test_handles(device, module, kernel);
    test_open(device);
    test_context();
    test_query(device);
    test_counters(device, kernel);
    test_profile(device, kernel);
    test_memory(device);
    test_pinned(device, kernel);
    test_streams(device, kernel);
    test_simulate();
    test_dead_handles(device, kernel);
    test_threads(device);
    OK(sm120_alloc(device, 100, &left)); /* what is left is freed by the close: a leak checker sees to it */
    OK(sm120_alloc_pinned(device, 100, &left_host, &left));
    OK(sm120_stream_create(device, &left_stream));
    OK(sm120_event_create(device, &left_event));
    OK(sm120_device_close(device));
    test_no_handle(device, module, kernel, "is no");
    return ended();
}
