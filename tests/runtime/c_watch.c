/* The entries of sm120.h that look on, called wrongly, then rightly: c_watch [device].
 *
 * Prints what is wrong and counts it; ends with 0 where nothing is. Runs under sanitizers too. */
#include "c_abi.h"

/* What a callback saw. */
struct seen {
    sm120_device *device;
    sm120_kernel *kernel;
    sm120_address x;
    const sm120_step *last;
    int steps, ends_at;
};

static int32_t never(void *context, const sm120_step *step) {
    (void)context, (void)step;
    wrong(__LINE__, "never", "is called");
    return 1;
}

static void test_instructions(sm120_kernel *kernel, int is_virtual) {
    sm120_instruction_info info = {.size = sizeof info};
    int32_t count = 0;
    BAD(INVALID_ARGUMENT, "index = -1", sm120_kernel_instruction(kernel, -1, &info));
    BAD(INVALID_ARGUMENT, "info is NULL", sm120_kernel_instruction(kernel, 0, NULL));
    BAD(UNSUPPORTED, "past the last", sm120_kernel_instruction(kernel, INT32_MAX, &info));
    while (sm120_kernel_instruction(kernel, count, &info) == SM120_OK) {
        TRUE(info.line > 0 && info.text_line > 0 && info.text_bytes > 0 && strcmp(info.file, "body.ptx") == 0);
        TRUE(count != 7 || (info.text_bytes == 11 && strncmp(info.text, "@p bra done", 11) == 0));
        ++count;
    }
    TRUE(count == (is_virtual ? 16 : 0));
    info.size = 7;
    BAD(INVALID_ARGUMENT, "info->size", sm120_kernel_instruction(kernel, 0, &info));
}

static void test_watches(sm120_device *device) {
    const sm120_watch good = {.size = sizeof good, .moment = SM120_AFTER, .see = never};
    sm120_watch watch = good;
    watch.size = 1;
    BAD(INVALID_ARGUMENT, "watch->size", sm120_device_watch(device, &watch));
    watch = good;
    watch.see = NULL;
    BAD(INVALID_ARGUMENT, "watch->see", sm120_device_watch(device, &watch));
    watch = good;
    watch.moment = 2;
    BAD(INVALID_ARGUMENT, "watch->moment", sm120_device_watch(device, &watch));
    watch = good;
    watch.bytes = 65;
    BAD(INVALID_ARGUMENT, "watch->bytes", sm120_device_watch(device, &watch));
    watch.bytes = 64;
    watch.moment = SM120_BEFORE;
    BAD(INVALID_ARGUMENT, "watch->moment", sm120_device_watch(device, &watch));
    watch = good;
    watch.first_line = 1;
    BAD(INVALID_ARGUMENT, "watch->last_line", sm120_device_watch(device, &watch));
    OK(sm120_device_watch(device, &good));
    OK(sm120_device_watch(device, NULL));
}

/* The registers of `mul.f32 v, v, factor`, before it in lane 0 of a warp. */
static void check_registers(const sm120_step *step) {
    sm120_register_info info = {.size = sizeof info};
    int32_t count = 0, reads = 0;
    BAD(INVALID_ARGUMENT, "which = 2", sm120_step_register(step, 2, 0, &info));
    BAD(INVALID_ARGUMENT, "index = -1", sm120_step_register(step, SM120_OF_INSTRUCTION, -1, &info));
    BAD(INVALID_ARGUMENT, "info is NULL", sm120_step_register(step, SM120_OF_INSTRUCTION, 0, NULL));
    while (sm120_step_register(step, SM120_OF_INSTRUCTION, count, &info) == SM120_OK) {
        const float one = 1.0f, two = 2.0f;
        uint32_t bits[2];
        memcpy(bits, &one, 4);
        memcpy(bits + 1, &two, 4);
        TRUE(strcmp(info.type, "f32") == 0);
        TRUE(info.is_write || info.value[0] == bits[strcmp(info.name, "factor") == 0]);
        reads += !info.is_write;
        ++count;
    }
    TRUE(count == 3 && reads == 2);
    BAD(UNSUPPORTED, "no register has index 3", sm120_step_register(step, SM120_OF_INSTRUCTION, 3, &info));
    for (count = 0; sm120_step_register(step, SM120_OF_FUNCTION, count, &info) == SM120_OK; ++count) {
        TRUE(info.lanes == 0xffffffffu);
    }
    TRUE(count == 11); /* p, six of the body's, and the three hardware registers, and count */
}

static int32_t look(void *context, const sm120_step *step) {
    struct seen *const seen = context;
    sm120_step_info info = {.size = sizeof info};
    sm120_lanes_info lanes = {.size = sizeof lanes};
    float host = 0.0f;
    char shared[4];
    int32_t groups = 0;
    OK(sm120_step_query(step, &info));
    BAD(INVALID_ARGUMENT, "info is NULL", sm120_step_query(step, NULL));
    TRUE(strcmp(info.entry, "scale") == 0 && info.function[0] == '\0' && info.guard[0] == '\0');
    TRUE(info.active == 0xffffffffu && info.mask == info.active && !info.is_asynchronous);
    TRUE(strncmp(info.instruction.text, "mul.f32 v, v, factor", info.instruction.text_bytes) == 0);
    check_registers(step);
    for (; sm120_step_lanes(step, groups, &lanes) == SM120_OK; ++groups) {
        TRUE(lanes.is_step == (lanes.warp == info.warp && lanes.lanes != 0));
    }
    TRUE(groups >= 4);
    sm120_variable_info variable = {.size = sizeof variable};
    BAD(UNSUPPORTED, "has no variable with index 0", sm120_step_variable(step, 0, &variable));
    BAD(INVALID_ARGUMENT, "index = -1", sm120_step_variable(step, -1, &variable));
    BAD(INVALID_ARGUMENT, "info is NULL", sm120_step_variable(step, 0, NULL));
    BAD(UNSUPPORTED, "no lanes with this index", sm120_step_lanes(step, INT32_MAX, &lanes));
    BAD(INVALID_ARGUMENT, "index = -1", sm120_step_lanes(step, -1, &lanes));
    BAD(INVALID_ARGUMENT, "info is NULL", sm120_step_lanes(step, 0, NULL));
    BAD(INVALID_ARGUMENT, "to is NULL", sm120_step_shared(step, 1024, NULL, 0));
    BAD(INVALID_ARGUMENT, "the CTA has 0 bytes", sm120_step_shared(step, 1024, shared, 1));
    BAD(INVALID_ARGUMENT, "from address 0x400 on", sm120_step_shared(step, 0, shared, 0));
    OK(sm120_step_shared(step, 1024, shared, 0));
    OK(sm120_copy_to_host(seen->device, &host, seen->x, sizeof host, NULL));
    TRUE(host == 1.0f || host == 2.0f);
    BAD(INVALID_ARGUMENT, "cannot start a launch", launch_scale(seen->kernel, seen->x, 1, 1.0f, NULL));
    BAD(INVALID_ARGUMENT, "a watch callback must not close an object that is in use", sm120_device_close(seen->device));
    seen->last = step;
    return ++seen->steps == seen->ends_at;
}

static void test_looking(sm120_device *device, sm120_kernel *kernel) {
    float host[256];
    struct seen seen = {.device = device, .kernel = kernel};
    sm120_watch watch = {.size = sizeof watch,
                         .cta = {-1, -1, -1},
                         .warp = -1,
                         .file = "body.ptx",
                         .first_line = 27,
                         .last_line = 27,
                         .see = look,
                         .context = &seen};
    sm120_step_info info = {.size = sizeof info};
    OK(sm120_alloc(device, sizeof host, &seen.x));
    for (int i = 0; i < 256; ++i) {
        host[i] = 1.0f;
    }
    OK(sm120_copy_to_device(device, seen.x, host, sizeof host, NULL));
    OK(sm120_device_watch(device, &watch));
    OK(launch_scale(kernel, seen.x, 256, 2.0f, NULL));
    TRUE(seen.steps == 8);
    BAD(INVALID_ARGUMENT, "the step is not valid", sm120_step_query(seen.last, &info));
    BAD(INVALID_ARGUMENT, "the step is not valid", sm120_step_query(NULL, &info));
    OK(sm120_copy_to_device(device, seen.x, host, sizeof host, NULL));
    seen.ends_at = 10;
    BAD(FAULT, "ended by the watching callback", launch_scale(kernel, seen.x, 256, 2.0f, NULL));
    watch.file = "dy.ptx";
    watch.see = never;
    OK(sm120_device_watch(device, &watch));
    OK(launch_scale(kernel, seen.x, 256, 2.0f, NULL));
    watch.file = NULL;
    watch.warp = 4;
    OK(sm120_device_watch(device, &watch));
    OK(launch_scale(kernel, seen.x, 256, 2.0f, NULL));
    OK(sm120_device_watch(device, NULL));
    OK(sm120_free(device, seen.x));
}

int main(int argc, char **argv) {
    sm120_device *device = NULL;
    sm120_module *module = NULL;
    sm120_device_info info = {.size = sizeof info};
    device_name = argc > 1 ? argv[1] : device_name;
    OK(sm120_device_open(device_name, &device));
    if (device == NULL) {
        return EXIT_FAILURE;
    }
    sm120_kernel *const kernel = load_scale(device, &module);
    OK(sm120_device_query(device, &info));
    test_instructions(kernel, info.is_virtual);
    if (info.is_virtual != 0) {
        test_watches(device);
        test_looking(device, kernel);
    } else {
        const sm120_watch watch = {.size = sizeof watch, .see = never};
        BAD(UNSUPPORTED, "cannot be watched", sm120_device_watch(device, &watch));
        BAD(UNSUPPORTED, "cannot be watched", sm120_device_watch(device, NULL));
    }
    OK(sm120_device_close(device));
    return ended();
}
