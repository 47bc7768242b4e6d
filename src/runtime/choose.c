/* Read the name of a device, count the devices, and choose one. */
#include "runtime/choose.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "platform/library.h"
#include "runtime/builtin.h"
#include "runtime/check.h"
#include "runtime/error.h"

/* Initialise the CUDA driver and count its GPUs. A machine without a driver or a GPU has 0; `why` then says so. */
static sm120_status count_gpus(const struct driver **driver, int *count, const char **why) {
    enum { STUB_LIBRARY = 34 };
    *count = 0;
    *why = NULL;
    *driver = driver_cuda(why);
    if (*driver == NULL) {
        return SM120_OK;
    }
    CUresult result = (*driver)->cuInit(0);
    if (result == CUDA_ERROR_NO_DEVICE || (int)result == STUB_LIBRARY) {
        *why =
            result == CUDA_ERROR_NO_DEVICE ? "the CUDA driver finds no GPU" : LIBRARY_CUDA " is a stub, not a driver";
        return SM120_OK;
    }
    if (result == CUDA_SUCCESS) {
        result = (*driver)->cuDeviceGetCount(count);
    }
    return result == CUDA_SUCCESS ? SM120_OK : driver_fail(*driver, result, "initialising the CUDA driver");
}

/* Find the first GPU that the kernels of this library run on, or -1. */
static int usable_gpu(const struct driver *driver, int count) {
    for (int ordinal = 0; ordinal < count; ++ordinal) {
        CUdevice device;
        int major = 0;
        if (driver->cuDeviceGet(&device, ordinal) == CUDA_SUCCESS &&
            driver->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) ==
                CUDA_SUCCESS &&
            builtin_target(major) != NULL) {
            return ordinal;
        }
    }
    return -1;
}

/* Choose a GPU. `ordinal` -1: the first one that our kernels run on, else the first one. */
static sm120_status choose_gpu(const char *name, int ordinal, const char *argument, struct choice *choice) {
    int count;
    const char *why;
    const sm120_status status = count_gpus(&choice->driver, &count, &why);
    if (status != SM120_OK) {
        return status;
    }
    if (count == 0) {
        return fail(SM120_NO_DEVICE, "%s = \"%s\", but %s; \"virtual\" works on every machine", argument, name,
                    why != NULL ? why : "the CUDA driver finds no GPU");
    }
    if (ordinal >= count) {
        return fail(SM120_NO_DEVICE, "%s = \"%s\", but there %s %d CUDA GPU%s; the last is \"cuda:%d\"", argument, name,
                    count == 1 ? "is" : "are", count, count == 1 ? "" : "s", count - 1);
    }
    if (ordinal < 0) {
        const int usable = usable_gpu(choice->driver, count);
        ordinal = usable < 0 ? 0 : usable;
    }
    choice->ordinal = ordinal;
    return SM120_OK;
}

/* Choose a virtual device. */
static sm120_status choose_virtual(const char *name, int ordinal, const char *argument, struct choice *choice) {
    int count = 0;
    choice->driver = driver_virtual();
    choice->ordinal = ordinal < 0 ? 0 : ordinal;
    CUresult result = choice->driver->cuInit(0);
    if (result == CUDA_SUCCESS) {
        result = choice->driver->cuDeviceGetCount(&count);
    }
    if (result != CUDA_SUCCESS) {
        return driver_fail(choice->driver, result, "initialising the virtual device");
    }
    if (choice->ordinal >= count) {
        return fail(SM120_NO_DEVICE, "%s = \"%s\", but the last virtual device is \"virtual:%d\"", argument, name,
                    count - 1);
    }
    return SM120_OK;
}

/* Choose the first GPU that our kernels run on, else the virtual device. A GPU that does not work is not an error. */
static sm120_status choose_default(struct choice *choice) {
    int count;
    const char *why;
    if (count_gpus(&choice->driver, &count, &why) == SM120_OK) {
        choice->ordinal = usable_gpu(choice->driver, count);
        if (choice->ordinal >= 0) {
            return SM120_OK;
        }
    }
    error_clear();
    return choose_virtual("virtual", 0, "name", choice);
}

/* Read ":<ordinal>" or nothing. False: it is something else. */
static bool read_ordinal(const char *text, int *ordinal) {
    *ordinal = -1;
    if (text[0] == '\0') {
        return true;
    }
    const size_t digits = strspn(text + 1, "0123456789");
    if (text[0] != ':' || digits == 0 || digits > 4 || text[1 + digits] != '\0') {
        return false;
    }
    *ordinal = atoi(text + 1);
    return true;
}

static sm120_status no_such_name(const char *name, const char *argument) {
    return fail(SM120_INVALID_ARGUMENT, "%s = \"%.200s\" is not a device; give \"cuda\", \"cuda:1\" or \"virtual\"",
                argument, name);
}

/* Read "<name>=<number>", of `length` bytes. False: it is something else. */
static bool read_number(const char *text, size_t length, const char *name, uint64_t *number) {
    enum { DIGITS = 20 };
    const size_t before = strlen(name);
    if (length <= before || length > before + DIGITS || memcmp(text, name, before) != 0 ||
        strspn(text + before, "0123456789") != length - before) {
        return false;
    }
    errno = 0;
    *number = strtoull(text + before, NULL, 10);
    return errno == 0;
}

/* Read an option of `length` bytes: "checks=off", "checks=default", "checks=full", or "seed", "multiprocessors",
 * "resident", "sampled" or "l1" with "=<number>". False: it is none of these. */
static bool read_option(const char *text, size_t length, struct driver_options *options) {
    static const char *const levels[] = {"checks=off", "checks=default", "checks=full"};
    for (int i = 0; i < 3; ++i) {
        if (strlen(levels[i]) == length && memcmp(text, levels[i], length) == 0) {
            options->checks = i;
            return true;
        }
    }
    uint64_t number = 0;
    if (read_number(text, length, "seed=", &number)) {
        options->has_seed = true;
        options->seed = number;
        return true;
    }
    const struct {
        const char *name;
        uint64_t most;
        int *to;
    } numbers[] = {{"multiprocessors=", 1024, &options->multiprocessors},
                   {"resident=", 64, &options->resident},
                   {"sampled=", 1024, &options->sampled},
                   {"l1=", 1 << 22, &options->l1_bytes}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
        if (read_number(text, length, numbers[i].name, &number) && number > 0 && number <= numbers[i].most) {
            *numbers[i].to = (int)number;
            return true;
        }
    }
    return false;
}

/* Choose a virtual device and, after "?", its options with "&" between them. */
static sm120_status choose_virtual_with(const char *name, const char *rest, const char *argument,
                                        struct choice *choice) {
    char place[8];
    const size_t length = strcspn(rest, "?");
    int ordinal = -1;
    if (length >= sizeof place ||
        (length > 0 && (memcpy(place, rest, length), place[length] = '\0', !read_ordinal(place, &ordinal)))) {
        return no_such_name(name, argument);
    }
    for (const char *at = rest + length; *at != '\0';) {
        const size_t n = strcspn(at + 1, "&");
        if (!read_option(at + 1, n, &choice->options)) {
            return fail(SM120_INVALID_ARGUMENT,
                        "%s = \"%.200s\" has the option \"%.*s\"; the options are \"checks=off\", \"checks=default\", "
                        "\"checks=full\", \"seed=7\", \"multiprocessors=84\" (1 to 1024), \"resident=8\" (1 to 64), "
                        "\"sampled=4\" (1 to 1024) and \"l1=262144\" (1 to 4194304), with & between them",
                        argument, name, n < 100 ? (int)n : 100, at + 1);
        }
        at += 1 + n;
    }
    return choose_virtual(name, ordinal, argument, choice);
}

sm120_status choose_device(const char *name, struct choice *choice) {
    const char *const given = name;
    if (name == NULL) {
        name = getenv("PYSM120_DEVICE");
        if (name == NULL || name[0] == '\0') {
            return choose_default(choice);
        }
    }
    const char *const argument = given != NULL ? "name" : "PYSM120_DEVICE";
    int ordinal;
    if (strncmp(name, "cuda", 4) == 0 && read_ordinal(name + 4, &ordinal)) {
        return choose_gpu(name, ordinal, argument, choice);
    }
    if (strncmp(name, "virtual", 7) == 0) {
        return choose_virtual_with(name, name + 7, argument, choice);
    }
    return no_such_name(name, argument);
}

sm120_status sm120_device_count(const char *kind, int32_t *count) {
    error_clear();
    sm120_status status = check_pointer(kind, "kind");
    if (status == SM120_OK) {
        status = check_pointer(count, "count");
    }
    if (status != SM120_OK) {
        return status;
    }
    int n = 0;
    if (strcmp(kind, "cuda") == 0) {
        const struct driver *driver;
        const char *why;
        status = count_gpus(&driver, &n, &why);
    } else if (strcmp(kind, "virtual") == 0) {
        const struct driver *const driver = driver_virtual();
        CUresult result = driver->cuInit(0);
        result = result == CUDA_SUCCESS ? driver->cuDeviceGetCount(&n) : result;
        status = result == CUDA_SUCCESS ? SM120_OK : driver_fail(driver, result, "counting the virtual devices");
    } else {
        return fail(SM120_INVALID_ARGUMENT, "kind = \"%.200s\" is not a kind of device; give \"cuda\" or \"virtual\"",
                    kind);
    }
    *count = n;
    return status;
}
