/* Every entry of sm120.h, called wrongly, then rightly, by one thread and by several: c_abi [device].
 *
 * Prints what is wrong and counts it; ends with 0 where nothing is. Runs under sanitizers too. */
#include "c_abi.h"

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
    BAD(INVALID_ARGUMENT, word, sm120_device_synchronize(d));
    BAD(INVALID_ARGUMENT, word, sm120_device_counter(d, 0, &text, &value));
    BAD(INVALID_ARGUMENT, word, sm120_device_counters_reset(d));
    sm120_profile_row row = {.size = sizeof row};
    BAD(INVALID_ARGUMENT, word, sm120_profile_begin(d));
    BAD(INVALID_ARGUMENT, word, sm120_profile_read(d, 0, &row));
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
    BAD(INVALID_ARGUMENT, word, sm120_attention(d, &attention, 0, &bytes));
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
        BAD(UNSUPPORTED, "counts nothing", sm120_device_counters_reset(device));
        BAD(UNSUPPORTED, "cannot be interrupted", sm120_device_interrupt(device));
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
        BAD(UNSUPPORTED, "takes no profile", sm120_profile_begin(device));
        BAD(UNSUPPORTED, "takes no profile", sm120_profile_end(device));
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
        BAD(INVALID_ARGUMENT, "is no event", sm120_event_record(device, wrong[i], NULL));
        BAD(INVALID_ARGUMENT, "is no event", sm120_event_synchronize(device, wrong[i]));
        BAD(INVALID_ARGUMENT, "is no event", sm120_stream_wait_event(device, stream, wrong[i]));
        BAD(INVALID_ARGUMENT, "is no event", sm120_event_elapsed(device, wrong[i], live, &ms));
        BAD(INVALID_ARGUMENT, "is no event", sm120_event_elapsed(device, live, wrong[i], &ms));
    }
    BAD(INVALID_ARGUMENT, "is no stream", sm120_stream_synchronize(device, garbage));
    BAD(INVALID_ARGUMENT, "is no stream", sm120_stream_wait_event(device, live, live));
    BAD(INVALID_ARGUMENT, "is no stream", sm120_event_record(device, live, garbage));
    BAD(INVALID_ARGUMENT, "is no stream", sm120_fill(device, x, 0, 64, dead));
    BAD(INVALID_ARGUMENT, "is no stream", sm120_copy_to_host(device, garbage, x, 64, garbage));
    BAD(INVALID_ARGUMENT, "is no stream", launch_scale(kernel, x, 1, 1.0f, garbage));
    OK(sm120_event_destroy(device, live));
    OK(sm120_stream_destroy(device, stream));
    OK(sm120_free(device, x));
}

/* ---- modules and launches ---- */

static void test_modules(sm120_device *device) {
    char text[4096];
    sm120_module *module = NULL;
    sm120_kernel *kernel = NULL;
    sm120_kernel *same = NULL;
    const char *entry = NULL;
    write_ptx(device, text, sizeof text, body);
    const size_t bytes = strlen(text);
    BAD(INVALID_ARGUMENT, "image", sm120_module_load(device, NULL, bytes, "x", &module));
    BAD(INVALID_ARGUMENT, "bytes", sm120_module_load(device, text, 0, "x", &module));
    BAD(INVALID_ARGUMENT, "name", sm120_module_load(device, text, bytes, NULL, &module));
    BAD(INVALID_ARGUMENT, "module", sm120_module_load(device, text, bytes, "x", NULL));
    OK(sm120_module_load(device, text, bytes + 1, "with its NUL", &module));
    OK(sm120_module_unload(module));
    char *const exact = malloc(bytes); /* with no byte behind it */
    memcpy(exact, text, bytes);
    OK(sm120_module_load(device, exact, bytes, "exact", &module));
    free(exact);
    OK(sm120_module_entry(module, 0, &entry));
    TRUE(strcmp(entry, "scale") == 0);
    OK(sm120_module_entry(module, 1, &entry));
    TRUE(strcmp(entry, "nothing") == 0);
    BAD(UNSUPPORTED, "index = 2", sm120_module_entry(module, 2, &entry));
    BAD(INVALID_ARGUMENT, "index", sm120_module_entry(module, -1, &entry));
    BAD(INVALID_ARGUMENT, "entry", sm120_module_entry(module, 0, NULL));
    BAD(INVALID_ARGUMENT, "missing", sm120_module_kernel(module, "missing", &kernel));
    BAD(INVALID_ARGUMENT, "entry", sm120_module_kernel(module, NULL, &kernel));
    BAD(INVALID_ARGUMENT, "kernel", sm120_module_kernel(module, "scale", NULL));
    OK(sm120_module_kernel(module, "scale", &kernel));
    OK(sm120_module_kernel(module, "scale", &same));
    TRUE(kernel == same);
    OK(sm120_module_unload(module));
    sm120_kernel_info info = {.size = sizeof info};
    BAD(INVALID_ARGUMENT, "module", sm120_module_unload(module));
    BAD(INVALID_ARGUMENT, "kernel", sm120_kernel_query(kernel, &info));
}

/* Variables: those of the text on the virtual device, none on a GPU. */
static void test_variables(sm120_device *device) {
    static const struct {
        const char *name, *type;
        int32_t is_constant;
        uint64_t bytes;
        uint32_t first;
    } want[] = {{"table", "u32", 0, 16, 7}, {"five", "b8", 1, 1, 5}};
    char text[4096], rest[4096];
    sm120_module *module = NULL;
    sm120_device_info info = {.size = sizeof info};
    sm120_variable_info got = {.size = sizeof got};
    snprintf(rest, sizeof rest, "%s.global .u32 table[4] = {7};\n.const .b8 five = 5;\n%s", ".address_size 64\n",
             body + strlen(".address_size 64\n"));
    write_ptx(device, text, sizeof text, rest);
    OK(sm120_device_query(device, &info));
    OK(sm120_module_load(device, text, strlen(text), "variables.ptx", &module));
    for (int32_t i = 0; i < 2 && info.is_virtual; ++i) {
        uint32_t first = 0;
        OK(sm120_module_variable(module, i, &got));
        OK(sm120_copy_to_host(device, &first, got.address, got.bytes < 4 ? got.bytes : 4, NULL));
        OK(sm120_device_synchronize(device));
        TRUE(strcmp(got.name, want[i].name) == 0 && strcmp(got.type, want[i].type) == 0);
        TRUE(got.is_constant == want[i].is_constant && got.bytes == want[i].bytes && first == want[i].first);
    }
    BAD(UNSUPPORTED, "past the last variable", sm120_module_variable(module, info.is_virtual ? 2 : 0, &got));
    BAD(INVALID_ARGUMENT, "index = -1", sm120_module_variable(module, -1, &got));
    BAD(INVALID_ARGUMENT, "info is NULL", sm120_module_variable(module, 0, NULL));
    OK(sm120_module_unload(module));
}

static void test_images(sm120_device *device) {
    char text[4096];
    sm120_module *module = NULL;
    const void *cubin = NULL;
    size_t bytes = 0;
    write_ptx(device, text, sizeof text, ".address_size 64\n.visible .entry bad()\n{\n    no.such.instruction;\n}\n");
    BAD(INVALID_PROGRAM, "broken.ptx", sm120_module_load(device, text, strlen(text), "broken.ptx", &module));
    TRUE(sm120_last_driver_error() != 0);
    write_ptx(device, text, sizeof text, ".address_size 64\n.visible .entry bad( .param .u64");
    BAD(INVALID_PROGRAM, "cut.ptx", sm120_module_load(device, text, strlen(text), "cut.ptx", &module));
    BAD(INVALID_PROGRAM, "", sm120_module_load(device, "hello", 5, "x", &module));
    BAD(INVALID_PROGRAM, "NUL", sm120_module_load(device, "a\0b", 3, "x", &module));
    BAD(INVALID_PROGRAM, "cubin", sm120_module_load(device, "\177ELF", 4, "x", &module));
    BAD(INVALID_PROGRAM, "fat", sm120_module_load(device, "\x50\xed\x55\xba", 4, "x", &module));
    OK(sm120_builtin_image(0, "sm_90", "cubin", &cubin, &bytes));
    BAD(INVALID_PROGRAM, "cut short", sm120_module_load(device, cubin, bytes - 1, "x", &module));
    BAD(INVALID_PROGRAM, "cut short", sm120_module_load(device, cubin, 100, "x", &module));
    sm120_device_info info = {.size = sizeof info};
    OK(sm120_device_query(device, &info));
    const char *const foreign = info.capability_major == 12 ? "sm_90" : "sm_120f";
    OK(sm120_builtin_image(0, foreign, "cubin", &cubin, &bytes));
    BAD(INVALID_PROGRAM, "other.cubin", sm120_module_load(device, cubin, bytes, "other.cubin", &module));
    TRUE(module == NULL);
}

static void test_kernel(sm120_kernel *kernel) {
    sm120_kernel_info info = {.size = sizeof info};
    OK(sm120_kernel_query(kernel, &info));
    TRUE(info.parameters == 4 && strcmp(info.entry, "scale") == 0 && info.max_threads >= 128);
    BAD(INVALID_ARGUMENT, "info", sm120_kernel_query(kernel, NULL));
    info.size = 4;
    BAD(INVALID_ARGUMENT, "info->size", sm120_kernel_query(kernel, &info));
    static const sm120_parameter_info want[] = {
        {0, 0, 8, "u64", "x"}, {0, 8, 4, "u32", "n"}, {0, 12, 4, "f32", "a"}, {0, 16, 24, "b8[24]", "pair"}};
    sm120_parameter_info got = {.size = sizeof got};
    for (int i = 0; i < 4; ++i) {
        OK(sm120_kernel_parameter(kernel, i, &got));
        TRUE(got.offset == want[i].offset && got.bytes == want[i].bytes && strcmp(got.type, want[i].type) == 0 &&
             strcmp(got.name, want[i].name) == 0);
    }
    BAD(UNSUPPORTED, "index = 4", sm120_kernel_parameter(kernel, 4, &got));
    BAD(INVALID_ARGUMENT, "index", sm120_kernel_parameter(kernel, -1, &got));
    BAD(INVALID_ARGUMENT, "info", sm120_kernel_parameter(kernel, 0, NULL));
    int32_t blocks = -1;
    OK(sm120_kernel_occupancy(kernel, 128, 0, &blocks));
    TRUE(blocks >= 1);
    OK(sm120_kernel_occupancy(kernel, 128, 90000, &blocks));
    TRUE(blocks >= 1);
    BAD(INVALID_ARGUMENT, "threads", sm120_kernel_occupancy(kernel, 0, 0, &blocks));
    BAD(INVALID_ARGUMENT, "threads", sm120_kernel_occupancy(kernel, 2048, 0, &blocks));
    BAD(INVALID_ARGUMENT, "shared_bytes", sm120_kernel_occupancy(kernel, 32, 1 << 30, &blocks));
    BAD(INVALID_ARGUMENT, "blocks", sm120_kernel_occupancy(kernel, 32, 0, NULL));
}

static void test_launch(sm120_device *device, sm120_kernel *kernel) {
    sm120_address x = 0;
    uint32_t n = 300;
    float a = 0.5f;
    float host[300];
    const char pair[24] = {0};
    const void *arguments[] = {&x, &n, &a, pair};
    size_t sizes[] = {8, 4, 4, 24};
    const uint32_t one[3] = {1, 1, 1};
    const uint32_t zero[3] = {1, 0, 1};
    const uint32_t wide[3] = {1, 65536, 1};
    const uint32_t many[3] = {1025, 1, 1};
    const uint32_t deep[3] = {1, 1, 65};
    const uint32_t huge[3] = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
    OK(sm120_alloc(device, sizeof host, &x));
    for (int i = 0; i < 300; ++i) {
        host[i] = (float)i;
    }
    OK(sm120_copy_to_device(device, x, host, sizeof host, NULL));
    OK(launch_scale(kernel, x, n, a, NULL));
    OK(sm120_launch(kernel, one, one, 60000, NULL, arguments, sizes, 4)); /* halves element 0 again */
    OK(sm120_copy_to_host(device, host, x, sizeof host, NULL));
    OK(sm120_device_synchronize(device));
    TRUE(host[0] == 0.0f && host[1] == 0.5f && host[299] == 149.5f);
    const uint32_t crowd[3] = {INT32_MAX, 1, 1};
    a = 4.0f;
    OK(sm120_launch_cooperative(kernel, one, (const uint32_t[3]){300, 1, 1}, 0, NULL, arguments, sizes, 4));
    OK(sm120_copy_to_host(device, host, x, sizeof host, NULL));
    OK(sm120_device_synchronize(device));
    TRUE(host[1] == 2.0f && host[299] == 598.0f);
    BAD(UNSUPPORTED, "grid = 2147483647 x 1 x 1; ",
        sm120_launch_cooperative(kernel, crowd, one, 0, NULL, arguments, sizes, 4));
    BAD(INVALID_ARGUMENT, "grid", sm120_launch_cooperative(kernel, NULL, one, 0, NULL, arguments, sizes, 4));
    BAD(INVALID_ARGUMENT, "has 4", sm120_launch_cooperative(kernel, one, one, 0, NULL, arguments, sizes, 3));
    BAD(INVALID_ARGUMENT, "grid", sm120_launch(kernel, NULL, one, 0, NULL, arguments, sizes, 4));
    BAD(INVALID_ARGUMENT, "block", sm120_launch(kernel, one, NULL, 0, NULL, arguments, sizes, 4));
    BAD(INVALID_ARGUMENT, "grid", sm120_launch(kernel, zero, one, 0, NULL, arguments, sizes, 4));
    BAD(INVALID_ARGUMENT, "grid", sm120_launch(kernel, wide, one, 0, NULL, arguments, sizes, 4));
    BAD(INVALID_ARGUMENT, "block", sm120_launch(kernel, one, zero, 0, NULL, arguments, sizes, 4));
    BAD(INVALID_ARGUMENT, "block", sm120_launch(kernel, one, many, 0, NULL, arguments, sizes, 4));
    BAD(INVALID_ARGUMENT, "block", sm120_launch(kernel, one, deep, 0, NULL, arguments, sizes, 4));
    BAD(INVALID_ARGUMENT, "block", sm120_launch(kernel, one, huge, 0, NULL, arguments, sizes, 4));
    BAD(INVALID_ARGUMENT, "shared_bytes", sm120_launch(kernel, one, one, 1 << 20, NULL, arguments, sizes, 4));
    BAD(INVALID_ARGUMENT, "shared_bytes", sm120_launch(kernel, one, one, UINT32_MAX, NULL, arguments, sizes, 4));
    BAD(INVALID_ARGUMENT, "has 4", sm120_launch(kernel, one, one, 0, NULL, arguments, sizes, 3));
    BAD(INVALID_ARGUMENT, "has 4", sm120_launch(kernel, one, one, 0, NULL, arguments, sizes, SIZE_MAX));
    BAD(INVALID_ARGUMENT, "arguments", sm120_launch(kernel, one, one, 0, NULL, NULL, sizes, 4));
    BAD(INVALID_ARGUMENT, "argument_bytes", sm120_launch(kernel, one, one, 0, NULL, arguments, NULL, 4));
    sizes[1] = 8;
    BAD(INVALID_ARGUMENT, "(.u32)", sm120_launch(kernel, one, one, 0, NULL, arguments, sizes, 4));
    sizes[1] = 4;
    arguments[2] = NULL;
    BAD(INVALID_ARGUMENT, "arguments[2]", sm120_launch(kernel, one, one, 0, NULL, arguments, sizes, 4));
    OK(sm120_free(device, x));
}

/* A kernel that writes where nothing is: a fault, on the virtual device one that can be survived. */
static void test_fault(sm120_device *device, sm120_kernel *kernel) {
    sm120_device_info info = {.size = sizeof info};
    sm120_address x = 0;
    OK(sm120_device_query(device, &info));
    if (info.is_virtual == 0) {
        return; /* the context of a GPU does not survive it */
    }
    OK(sm120_alloc(device, 256, &x));
    OK(sm120_fill(device, x, 0, 256, NULL));
    sm120_status status = launch_scale(kernel, x + 192, 64, 2.0f, NULL);
    status = status == SM120_OK ? sm120_device_synchronize(device) : status;
    BAD(FAULT, "scale", status);
    TRUE(sm120_last_driver_error() != 0);
    OK(launch_scale(kernel, x, 64, 2.0f, NULL));
    OK(sm120_device_synchronize(device));
    OK(sm120_free(device, x));
}

/* ---- operations ---- */

enum { BATCH = 2, HEADS = 4, KV_HEADS = 2, Q_ROWS = 5, KV_ROWS = 7, D = 24 };

/* A field of a struct set to a wrong value, the status that this is, and a word of the message. */
struct wrong_field {
    const char *word;
    sm120_status status;
    size_t offset, bytes;
    int64_t value; /* or the bits of a float */
};

#define FIELD(type, field, value, status, word)                                                                        \
    {word, SM120_##status, offsetof(type, field), sizeof(((type *)NULL)->field), value}
#define A(field, value, status, word) FIELD(sm120_attention_args, field, value, status, word)
#define Q(field, value, status, word) FIELD(sm120_quantize_mxfp8_args, field, value, status, word)

static const struct wrong_field wrong_attention[] = {
    A(size, 0, INVALID_ARGUMENT, "args->size = 0"),
    A(size, sizeof(sm120_attention_args) - 8, INVALID_ARGUMENT, "args->size"),
    A(size, 1 << 20, INVALID_ARGUMENT, "args->size"),
    A(precision, 0, INVALID_ARGUMENT, "precision = 0x0"),
    A(precision, 9, INVALID_ARGUMENT, "precision = 0x9"),
    A(batch, 0, INVALID_ARGUMENT, "batch = 0"),
    A(batch, -1, INVALID_ARGUMENT, "batch = -1"),
    A(batch, INT64_MAX, UNSUPPORTED, "batch"),
    A(batch, 1 << 30, UNSUPPORTED, "batch * heads"),
    A(heads, 0, INVALID_ARGUMENT, "heads = 0"),
    A(heads, 3, INVALID_ARGUMENT, "kv_heads = 2 does not divide heads = 3"),
    A(kv_heads, 0, INVALID_ARGUMENT, "kv_heads = 0"),
    A(kv_heads, 8, INVALID_ARGUMENT, "kv_heads = 8"),
    A(q_rows, 0, INVALID_ARGUMENT, "q_rows = 0"),
    A(q_rows, 1 << 30, UNSUPPORTED, "q_rows"),
    A(kv_rows, 0, INVALID_ARGUMENT, "kv_rows = 0"),
    A(kv_rows, INT64_MAX, UNSUPPORTED, "kv_rows"),
    A(head_dim, 0, INVALID_ARGUMENT, "head_dim = 0"),
    A(head_dim, 20, UNSUPPORTED, "head_dim = 20"),
    A(head_dim, 136, UNSUPPORTED, "head_dim = 136"),
    A(q.dtype, 0, INVALID_ARGUMENT, "q.dtype"),
    A(k.dtype, SM120_E4M3, UNSUPPORTED, "k.dtype"),
    A(v.dtype, SM120_F16, INVALID_ARGUMENT, "v.dtype"),
    A(o.dtype, SM120_E8M0, UNSUPPORTED, "o.dtype"),
    A(q.reserved, 1, INVALID_ARGUMENT, "q.reserved = 1"),
    A(q.address, 0, INVALID_ARGUMENT, "q.address = 0"),
    A(k.address, 8, MISALIGNED, "k.address"),
    A(q.batch_stride, -4, INVALID_ARGUMENT, "q.batch_stride = -4"),
    A(q.head_stride, 2, MISALIGNED, "q.head_stride = 2"),
    A(k.row_stride, 0, INVALID_ARGUMENT, "k.row_stride = 0"),
    A(k.row_stride, INT64_MAX / 2, UNSUPPORTED, "k.row_stride"),
    A(k.row_stride, (int64_t)1 << 60, UNSUPPORTED, "63 bits"),
    A(v.row_stride, 1 << 28, INVALID_ARGUMENT, "past the end"),
    A(o.row_stride, 4, INVALID_ARGUMENT, "overlap"),
    A(o.head_stride, 0, INVALID_ARGUMENT, "o.head_stride = 0"),
    A(o.batch_stride, 64, INVALID_ARGUMENT, "overlap"),
    A(o.address, 0, INVALID_ARGUMENT, "o.address = 0"),
    A(lse, 2, MISALIGNED, "lse"),
    A(scale, 0x7f800000, INVALID_ARGUMENT, "scale = inf"),
    A(scale, 0x7fc00000, INVALID_ARGUMENT, "scale"),
    A(scale, 0x7f7fffff, INVALID_ARGUMENT, "scale = 3.40282e+38"),
    A(causal, 3, INVALID_ARGUMENT, "causal = 3"),
};

static const struct wrong_field wrong_quantize[] = {
    Q(size, 7, INVALID_ARGUMENT, "args->size = 7"),
    Q(axis, 2, INVALID_ARGUMENT, "axis = 2"),
    Q(rounding, 2, INVALID_ARGUMENT, "rounding = 2"),
    Q(reserved, 5, INVALID_ARGUMENT, "reserved = 5"),
    Q(batch, 0, INVALID_ARGUMENT, "batch = 0"),
    Q(heads, -7, INVALID_ARGUMENT, "heads = -7"),
    Q(rows, 0, INVALID_ARGUMENT, "rows = 0"),
    Q(rows, (int64_t)1 << 40, UNSUPPORTED, "rows"),
    Q(head_dim, 12, UNSUPPORTED, "head_dim = 12"),
    Q(x.dtype, SM120_E4M3, UNSUPPORTED, "x.dtype"),
    Q(x.address, 4, MISALIGNED, "x.address"),
    Q(x.row_stride, 0, INVALID_ARGUMENT, "x.row_stride"),
    Q(x.row_stride, 1 << 20, INVALID_ARGUMENT, "past the end"),
    Q(elements, 0, INVALID_ARGUMENT, "elements = 0"),
    Q(elements, 24, MISALIGNED, "elements"),
    Q(scales, 0, INVALID_ARGUMENT, "scales = 0"),
};

/* Copy a struct of `bytes` bytes with one field set wrongly. */
static void set_field(void *to, const void *from, size_t bytes, const struct wrong_field *field) {
    memcpy(to, from, bytes);
    memcpy((char *)to + field->offset, &field->value, field->bytes); /* little-endian, as the library's images are */
}

/* Arguments of an attention in f32 whose five arrays lie one behind the other at `memory`. */
static sm120_attention_args attention_args(sm120_address memory) {
    enum { PART = 1 << 14 };
    const sm120_tensor q = {memory, SM120_F32, 0, HEADS * Q_ROWS * D, Q_ROWS * D, D};
    const sm120_tensor kv = {memory + PART, SM120_F32, 0, KV_HEADS * KV_ROWS * D, KV_ROWS * D, D};
    sm120_attention_args args = {.size = sizeof args, .precision = SM120_MXFP8, .batch = BATCH, .heads = HEADS};
    args.kv_heads = KV_HEADS;
    args.q_rows = Q_ROWS;
    args.kv_rows = KV_ROWS;
    args.head_dim = D;
    args.q = q;
    args.k = kv;
    args.v = kv;
    args.v.address += PART;
    args.o = q;
    args.o.address += 3 * PART;
    args.lse = memory + 4 * PART;
    args.scale = -0.25f;
    args.causal = SM120_CAUSAL_BOTTOM_RIGHT;
    return args;
}

static void test_attention(sm120_device *device) {
    enum { BYTES = 1 << 18 };
    sm120_address memory = 0;
    sm120_address workspace = 0;
    size_t bytes = 0;
    OK(sm120_alloc(device, BYTES, &memory));
    OK(sm120_fill(device, memory, 0, BYTES, NULL));
    const sm120_attention_args right = attention_args(memory);
    OK(sm120_attention(device, &right, 0, &bytes));
    TRUE(bytes > 0);
    OK(sm120_alloc(device, bytes, &workspace));
    for (size_t i = 0; i < sizeof wrong_attention / sizeof wrong_attention[0]; ++i) {
        sm120_attention_args args;
        set_field(&args, &right, sizeof args, &wrong_attention[i]);
        expect(__LINE__, wrong_attention[i].word, sm120_attention(device, &args, workspace, &bytes),
               wrong_attention[i].status, wrong_attention[i].word);
    }
    size_t less = bytes - 1;
    BAD(INVALID_ARGUMENT, "args", sm120_attention(device, NULL, workspace, &bytes));
    BAD(INVALID_ARGUMENT, "workspace_bytes", sm120_attention(device, &right, workspace, NULL));
    BAD(WORKSPACE_TOO_SMALL, "workspace_bytes", sm120_attention(device, &right, workspace, &less));
    BAD(MISALIGNED, "workspace", sm120_attention(device, &right, workspace + 16, &bytes));
    BAD(INVALID_ARGUMENT, "overlap", sm120_attention(device, &right, right.lse, &bytes));
    BAD(INVALID_ARGUMENT, "past the end", sm120_attention(device, &right, workspace + 256, &bytes));
    sm120_attention_args args = right;
    args.lse = args.o.address;
    BAD(INVALID_ARGUMENT, "overlap", sm120_attention(device, &args, workspace, &bytes));
    OK(sm120_attention(device, &right, workspace, &bytes)); /* of zeros: the mean of zeros, and log of the keys */
    float lse = 0.0f;
    OK(sm120_copy_to_host(device, &lse, right.lse, sizeof lse, NULL));
    OK(sm120_device_synchronize(device));
    TRUE(fabsf(lse - logf(KV_ROWS - Q_ROWS + 1)) < 1e-5f);
    OK(sm120_free(device, workspace));
    OK(sm120_free(device, memory));
}

/* A map of a matrix of f16 with one field wrong. */
#define M(field, value, status, word) FIELD(sm120_tensor_map_args, field, value, status, word)
static const struct wrong_field wrong_map[] = {
    M(size, 7, INVALID_ARGUMENT, "args->size = 7"),
    M(data_type, 16, INVALID_ARGUMENT, "data_type = 16; 0 to 15 are right"),
    M(rank, 0, INVALID_ARGUMENT, "rank = 0"),
    M(rank, 6, INVALID_ARGUMENT, "rank = 6; 1 to 5 are right"),
    M(interleave, 3, INVALID_ARGUMENT, "interleave = 3"),
    M(interleave, 1, INVALID_ARGUMENT, "rank = 2; an interleaved tensor has 3 to 5 dimensions"),
    M(swizzle, 7, INVALID_ARGUMENT, "swizzle = 7"),
    M(swizzle, 1, INVALID_ARGUMENT, "box[0] = 32 elements are 64 bytes; at most 32 are right"),
    M(l2_promotion, 4, INVALID_ARGUMENT, "l2_promotion = 4"),
    M(oob_fill, 2, INVALID_ARGUMENT, "oob_fill = 2"),
    M(reserved, 1, INVALID_ARGUMENT, "reserved = 1"),
    M(address, 0, INVALID_ARGUMENT, "address = 0"),
    M(address, 40, MISALIGNED, "address = 0x28"),
    M(dims[0], 0, INVALID_ARGUMENT, "dims[0] = 0"),
    M(dims[1], (INT64_C(1) << 32) + 1, INVALID_ARGUMENT, "dims[1] = 4294967297; 1 to 2^32"),
    M(strides[0], 136, INVALID_ARGUMENT, "strides[0] = 136 bytes; a multiple of 16"),
    M(strides[0], INT64_C(1) << 40, INVALID_ARGUMENT, "below 2^40"),
    M(box[0], 0, INVALID_ARGUMENT, "box[0] = 0"),
    M(box[1], 257, INVALID_ARGUMENT, "box[1] = 257; 1 to 256"),
    M(box[0], 12, INVALID_ARGUMENT, "box[0] = 12 elements of 16 bits; a multiple of 16 bytes"),
    M(element_strides[1], 9, INVALID_ARGUMENT, "element_strides[1] = 9; 1 to 8"),
    M(element_strides[0], 0, INVALID_ARGUMENT, "element_strides[0] = 0"),
};

/* The same for the types that pack, and of the modes that contradict each other. */
static void test_packed_map(sm120_device *device, sm120_tensor_map_args args) {
    sm120_tensor_map map;
    args.data_type = SM120_TENSOR_MAP_UINT16;
    args.oob_fill = SM120_FILL_NAN;
    BAD(INVALID_ARGUMENT, "oob_fill = 1; NaN is for floating-point types",
        sm120_tensor_map_encode(device, &args, &map));
    args.oob_fill = SM120_FILL_ZERO;
    args.data_type = SM120_TENSOR_MAP_16U4_ALIGN8B;
    args.dims[0] = 63;
    BAD(INVALID_ARGUMENT, "dims[0] = 63; a multiple of 2", sm120_tensor_map_encode(device, &args, &map));
    args.data_type = SM120_TENSOR_MAP_16U6_ALIGN16B;
    BAD(INVALID_ARGUMENT, "dims[0] = 63; a multiple of 128", sm120_tensor_map_encode(device, &args, &map));
    args.dims[0] = 128;
    BAD(INVALID_ARGUMENT, "box[0] = 32; 128 is right", sm120_tensor_map_encode(device, &args, &map));
    args.box[0] = 128;
    args.swizzle = SM120_SWIZZLE_64B;
    BAD(INVALID_ARGUMENT, "at most 64", sm120_tensor_map_encode(device, &args, &map));
    args.swizzle = SM120_SWIZZLE_128B_ATOM_32B_FLIP_8B;
    BAD(INVALID_ARGUMENT, "128B_ATOM_64B", sm120_tensor_map_encode(device, &args, &map));
    args.swizzle = SM120_SWIZZLE_NONE;
    args.strides[0] += 16;
    BAD(INVALID_ARGUMENT, "a multiple of 32", sm120_tensor_map_encode(device, &args, &map));
    args.strides[0] -= 16;
    args.rank = 3;
    args.interleave = SM120_INTERLEAVE_16B;
    BAD(INVALID_ARGUMENT, "interleave = 1; data_type 16U6_ALIGN16B wants none",
        sm120_tensor_map_encode(device, &args, &map));
    args.data_type = SM120_TENSOR_MAP_FLOAT16;
    args.interleave = SM120_INTERLEAVE_32B;
    args.strides[1] += 16;
    BAD(INVALID_ARGUMENT, "strides[1] = 12816 bytes; a multiple of 32", sm120_tensor_map_encode(device, &args, &map));
}

static void test_tensor_map(sm120_device *device) {
    sm120_device_info info = {.size = sizeof info};
    sm120_address memory = 0;
    sm120_tensor_map map = {{0}};
    sm120_tensor_map other = {{0}};
    OK(sm120_device_query(device, &info));
    OK(sm120_alloc(device, 1 << 16, &memory));
    const sm120_tensor_map_args right = {.size = sizeof right,
                                         .data_type = SM120_TENSOR_MAP_FLOAT16,
                                         .rank = 2,
                                         .swizzle = SM120_SWIZZLE_64B,
                                         .box = {32, 8, 1},
                                         .element_strides = {1, 1, 1},
                                         .address = memory,
                                         .dims = {60, 100, 1},
                                         .strides = {128, 12800}};
    for (size_t i = 0; i < sizeof wrong_map / sizeof wrong_map[0]; ++i) {
        sm120_tensor_map_args args;
        set_field(&args, &right, sizeof args, &wrong_map[i]);
        expect(__LINE__, wrong_map[i].word, sm120_tensor_map_encode(device, &args, &map), wrong_map[i].status,
               wrong_map[i].word);
    }
    test_packed_map(device, right);
    BAD(INVALID_ARGUMENT, "args is NULL", sm120_tensor_map_encode(device, NULL, &map));
    BAD(INVALID_ARGUMENT, "map is NULL", sm120_tensor_map_encode(device, &right, NULL));
    BAD(INVALID_ARGUMENT, "map is NULL", sm120_tensor_map_replace_address(device, NULL, memory));
    BAD(MISALIGNED, "address = 0x", sm120_tensor_map_replace_address(device, &map, memory + 8));
    if (info.is_virtual) {
        BAD(INVALID_ARGUMENT, "never encoded", sm120_tensor_map_replace_address(device, &map, memory));
    }
    sm120_tensor_map_args moved = right;
    moved.address += 512;
    OK(sm120_tensor_map_encode(device, &right, &map));
    OK(sm120_tensor_map_encode(device, &moved, &other));
    TRUE(memcmp(&map, &other, sizeof map) != 0);
    OK(sm120_tensor_map_replace_address(device, &map, memory + 512));
    TRUE(memcmp(&map, &other, sizeof map) == 0);
    OK(sm120_free(device, memory));
}

static void test_quantize(sm120_device *device) {
    enum { ROWS = 3, COUNT = ROWS * D };
    sm120_address memory = 0;
    float x[COUNT];
    uint8_t elements[COUNT];
    uint8_t scales[ROWS];
    OK(sm120_alloc(device, 4096, &memory));
    for (int i = 0; i < COUNT; ++i) {
        x[i] = i < D ? 1.0f : i < 2 * D ? -3.5f : 0.0f;
    }
    OK(sm120_copy_to_device(device, memory, x, sizeof x, NULL));
    sm120_quantize_mxfp8_args right = {.size = sizeof right, .batch = 1, .heads = 1, .rows = ROWS, .head_dim = D};
    right.x = (sm120_tensor){memory, SM120_F32, 0, COUNT, COUNT, D};
    right.elements = memory + 1024;
    right.scales = memory + 2048;
    for (size_t i = 0; i < sizeof wrong_quantize / sizeof wrong_quantize[0]; ++i) {
        sm120_quantize_mxfp8_args args;
        set_field(&args, &right, sizeof args, &wrong_quantize[i]);
        expect(__LINE__, wrong_quantize[i].word, sm120_quantize_mxfp8(device, &args), wrong_quantize[i].status,
               wrong_quantize[i].word);
    }
    BAD(INVALID_ARGUMENT, "args", sm120_quantize_mxfp8(device, NULL));
    sm120_quantize_mxfp8_args args = right;
    args.scales = args.elements + 8;
    BAD(INVALID_ARGUMENT, "overlap", sm120_quantize_mxfp8(device, &args));
    OK(sm120_quantize_mxfp8(device, &right));
    OK(sm120_copy_to_host(device, elements, right.elements, sizeof elements, NULL));
    OK(sm120_copy_to_host(device, scales, right.scales, sizeof scales, NULL));
    OK(sm120_device_synchronize(device));
    TRUE(scales[0] == 127 - 8 && elements[0] == 0x78);     /* 1 = 256 * 2^-8 */
    TRUE(scales[1] == 127 - 7 && elements[D + 1] == 0xfe); /* -3.5 = -448 * 2^-7 */
    TRUE(elements[2 * D] == 0);
    OK(sm120_free(device, memory));
}

static void test_builtin_kernels(sm120_device *device) {
    sm120_builtin_info info = {.size = sizeof info};
    sm120_kernel_info about = {.size = sizeof about};
    sm120_kernel *kernel = NULL;
    BAD(INVALID_ARGUMENT, "kernel", sm120_builtin_kernel(device, 0, NULL));
    BAD(INVALID_ARGUMENT, "index", sm120_builtin_kernel(device, -1, &kernel));
    BAD(UNSUPPORTED, "index", sm120_builtin_kernel(device, INT32_MAX, &kernel));
    for (int32_t i = 0; sm120_builtin(i, &info) == SM120_OK; ++i) {
        OK(sm120_builtin_kernel(device, i, &kernel));
        OK(sm120_kernel_query(kernel, &about));
        TRUE(strcmp(about.entry, info.entry) == 0 && about.parameters > 0 &&
             (uint32_t)about.max_threads >= info.threads);
    }
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
    OK(sm120_device_open(device_name, &device));
    if (device == NULL) {
        return EXIT_FAILURE;
    }
    sm120_kernel *const kernel = load_scale(device, &module);
    test_handles(device, module, kernel);
    test_open(device);
    test_query(device);
    test_counters(device, kernel);
    test_profile(device, kernel);
    test_memory(device);
    test_pinned(device, kernel);
    test_streams(device, kernel);
    test_dead_handles(device, kernel);
    test_modules(device);
    test_variables(device);
    test_images(device);
    test_kernel(kernel);
    test_launch(device, kernel);
    test_fault(device, kernel);
    test_attention(device);
    test_quantize(device);
    test_tensor_map(device);
    test_builtin_kernels(device);
    test_threads(device);
    OK(sm120_alloc(device, 100, &left)); /* what is left is freed by the close: a leak checker sees to it */
    OK(sm120_alloc_pinned(device, 100, &left_host, &left));
    OK(sm120_stream_create(device, &left_stream));
    OK(sm120_event_create(device, &left_event));
    OK(sm120_device_close(device));
    test_no_handle(device, module, kernel, "is no");
    if (failures != 0) {
        printf("%d failed\n", failures);
    }
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
