/* Modules, their kernels and variables, and launches, called wrongly, then rightly: c_kernels [device]. */
#include "c_abi.h"

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

int main(int argc, char **argv) {
    sm120_device *device = NULL;
    sm120_module *module = NULL;
    device_name = argc > 1 ? argv[1] : device_name;
    OK(sm120_device_open(device_name, &device));
    if (device == NULL) {
        return EXIT_FAILURE;
    }
    sm120_kernel *const kernel = load_scale(device, &module);
    test_modules(device);
    test_variables(device);
    test_images(device);
    test_kernel(kernel);
    test_launch(device, kernel);
    test_fault(device, kernel);
    test_builtin_kernels(device);
    OK(sm120_device_close(device));
    return ended();
}
