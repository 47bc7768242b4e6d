/* A small coverage-guided engine with libFuzzer's options, for machines that have gcc alone. The targets are compiled
 * with -fsanitize-coverage=trace-pc,trace-cmp; the calls that this makes the compiler insert end up here.
 *
 *   TARGET [-runs=N] [-seed=N] [-timeout=SECONDS] [-max_total_time=SECONDS] [-artifact_prefix=PATH] [-words=FILE]
 *          [-merge=1] FOLDER...
 *
 * Inputs that reach something new are written to the first folder. The work is bounded by -runs, so that a run with the
 * same seed and folders makes the same inputs. -merge=1 copies to the first folder what the others add to it: the
 * smallest inputs that reach every edge. An input that crashes, hangs or leaks is written to PATH as crash-, timeout-
 * or leak-HASH. */
#define _DEFAULT_SOURCE
#include "fuzz.h"
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

enum { FEATURES = 1 << 16, MOST_INPUTS = 1 << 16 };

struct input {
    uint8_t *data;
    size_t size;
    uint32_t rare; /* features that it was the first to show */
};

static struct {
    uint64_t runs, seed, timeout, total;
    const char *prefix, *folders[64];
    size_t folder_count;
    int merge;
} options = {.runs = UINT64_MAX, .seed = 1, .timeout = 20, .prefix = "./"};

static struct input inputs[MOST_INPUTS];
static size_t input_count;
static uint64_t state;

/* ---- coverage ------------------------------------------------------------------------------------------------ */

/* Edges in the first half, comparisons in the second: how often each was met in this run, and which powers of two of
 * that have been seen in any. */
static uint8_t met[FEATURES], seen[FEATURES];
static uintptr_t previous;
extern const char __executable_start;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
    const uintptr_t here = ((uintptr_t)__builtin_return_address(0) - (uintptr_t)&__executable_start) * 0x9e3779b1u;
    uint8_t *const count = &met[((here >> 8) ^ previous) % (FEATURES / 2)];
    *count = (uint8_t)(*count + (*count < 255));
    previous = here >> 9;
}

/* In how many of their leading bits two compared values agree is a feature of the place. */
static inline void compared(uintptr_t place, uint64_t a, uint64_t b) {
    const uint64_t differs = a ^ b;
    const unsigned bits = differs ? 1 + (unsigned)__builtin_clzll(differs) / 2 : 0;
    const uintptr_t here = (place - (uintptr_t)&__executable_start) * 0x9e3779b1u + bits * 0x85ebca6bu;
    met[FEATURES / 2 + (here >> 8) % (FEATURES / 2)] = 1;
}

#define TRACE(name, type)                                                                                              \
    void __sanitizer_cov_trace_##name(type a, type b);                                                                 \
    void __sanitizer_cov_trace_##name(type a, type b) {                                                                \
        compared((uintptr_t)__builtin_return_address(0), (uint64_t)a, (uint64_t)b);                                    \
    }
#define IGNORE(name, type)                                                                                             \
    void __sanitizer_cov_trace_##name(type a, type b);                                                                 \
    void __sanitizer_cov_trace_##name(type a, type b) {                                                                \
        (void)a;                                                                                                       \
        (void)b;                                                                                                       \
    }
TRACE(const_cmp1, uint8_t)
TRACE(const_cmp2, uint16_t)
TRACE(const_cmp4, uint32_t)
TRACE(const_cmp8, uint64_t)
IGNORE(cmp1, uint8_t)
IGNORE(cmp2, uint16_t)
TRACE(cmp4, uint32_t)
TRACE(cmp8, uint64_t)
IGNORE(cmpf, float)
IGNORE(cmpd, double)
IGNORE(switch, uint64_t)

/* What a count is worth: 1, 2, 3, 4-7, 8-15, 16-31, 32-127, more; one bit each. */
static uint8_t worth(uint8_t count) {
    static const uint8_t limits[] = {1, 2, 3, 7, 15, 31, 127};
    unsigned k = 0;
    while (k < sizeof limits && count > limits[k]) {
        k++;
    }
    return (uint8_t)(1u << k);
}

/* Count the features that were never seen before, and remember them. A merge asks for edges alone. */
static uint32_t new_features(void) {
    uint32_t found = 0;
    for (size_t at = 0; at < (options.merge ? FEATURES / 2 : FEATURES); at += 8) {
        uint64_t eight;
        memcpy(&eight, met + at, 8);
        for (size_t k = at; eight && k < at + 8; k++) {
            const uint8_t bit = !met[k] ? 0 : options.merge ? 1 : worth(met[k]);
            found += (bit & ~seen[k]) != 0;
            seen[k] |= bit;
        }
    }
    return found;
}

static size_t features_seen(void) {
    size_t n = 0;
    for (size_t k = 0; k < FEATURES; k++) {
        n += (size_t)__builtin_popcount(seen[k]);
    }
    return n;
}

/* ---- one input ----------------------------------------------------------------------------------------------- */

static const uint8_t *running;
static size_t running_size;
static volatile uint64_t ticks; /* seconds of processor time since it began */

static uint64_t hash(const uint8_t *data, size_t size) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t k = 0; k < size; k++) {
        h = (h ^ data[k]) * 0x100000001b3u;
    }
    return h;
}

/* Write bytes to PREFIX KIND HASH; by system calls alone, as signal handlers must. */
static void save(const char *prefix, const char *kind, const uint8_t *data, size_t size) {
    char path[4096];
    snprintf(path, sizeof path, "%s%s%016llx", prefix, kind, (unsigned long long)hash(data, size));
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f)) {
        fprintf(stderr, "fuzz: %s cannot be written\n", path);
    } else if (*kind) {
        fprintf(stderr, "fuzz: the input is %s\n", path);
    }
}

static void died(void) {
    if (running) {
        save(options.prefix, "crash-", running, running_size);
    }
    running = NULL;
}

static void aborted(int number) {
    died();
    signal(number, SIG_DFL);
    raise(number);
}

static void tick(int number) {
    (void)number;
    if (++ticks < options.timeout || !running) {
        return;
    }
    fprintf(stderr, "fuzz: an input takes longer than %llu s\n", (unsigned long long)options.timeout);
    save(options.prefix, "timeout-", running, running_size);
    _exit(1);
}

/* What the sanitizers offer, if the program has them. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));
size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

static void watch(void) {
    const struct itimerval second = {{1, 0}, {1, 0}};
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(died);
    } else {
        signal(SIGSEGV, aborted);
    }
    signal(SIGABRT, aborted);
    signal(SIGPROF, tick);
    setitimer(ITIMER_PROF, &second, NULL);
}

static size_t allocated(void) {
    return __sanitizer_get_current_allocated_bytes ? __sanitizer_get_current_allocated_bytes() : 0;
}

/* Run an input once; what it leaves allocated. */
static size_t run_once(const uint8_t *data, size_t size) {
    const size_t before = allocated();
    running = data;
    running_size = size;
    ticks = 0;
    memset(met, 0, sizeof met);
    previous = 0;
    LLVMFuzzerTestOneInput(data, size);
    running = NULL;
    const size_t after = allocated();
    return after > before ? after - before : 0;
}

static void check_leaks(const uint8_t *data, size_t size) {
    if (!__lsan_do_recoverable_leak_check || !__lsan_do_recoverable_leak_check()) {
        return;
    }
    save(options.prefix, "leak-", data, size);
    _exit(1);
}

/* Run an input. What it left allocated a second time, too, is no cache: look for a leak. */
static void run(const uint8_t *data, size_t size) {
    if (run_once(data, size) && run_once(data, size)) {
        check_leaks(data, size);
    }
}

/* ---- the corpus ---------------------------------------------------------------------------------------------- */

static int add(const uint8_t *data, size_t size, uint32_t rare) {
    uint8_t *copy = malloc(size + 1);
    if (!copy || input_count == MOST_INPUTS) {
        free(copy);
        return 0;
    }
    memcpy(copy, data, size);
    inputs[input_count++] = (struct input){copy, size, rare};
    return 1;
}

static int compare_inputs(const void *x, const void *y) {
    const struct input *const a = x, *const b = y;
    if (a->size != b->size) {
        return a->size < b->size ? -1 : 1;
    }
    return memcmp(a->data, b->data, a->size);
}

/* Read the files of a folder, small ones first, or one file. */
static void read_inputs(const char *path) {
    static uint8_t data[LONGEST + 1];
    char name[4096];
    const size_t first = input_count;
    DIR *d = opendir(path);
    const struct dirent *e = NULL;
    while (!d || (e = readdir(d))) {
        snprintf(name, sizeof name, "%s%s%s", path, d ? "/" : "", d ? e->d_name : "");
        FILE *f = d && e->d_name[0] == '.' ? NULL : fopen(name, "rb");
        if (f) {
            add(data, fread(data, 1, sizeof data, f), 0);
            fclose(f);
        }
        if (!d) {
            break;
        }
    }
    if (d) {
        closedir(d);
    }
    qsort(inputs + first, input_count - first, sizeof *inputs, compare_inputs);
}

/* Run all inputs of the folders; of those that show nothing new none is kept. */
static void replay(void) {
    char prefix[4096];
    snprintf(prefix, sizeof prefix, "%s/", options.folder_count ? options.folders[0] : ".");
    for (size_t k = 0; k < options.folder_count; k++) {
        const size_t first = input_count;
        read_inputs(options.folders[k]);
        const size_t end = input_count;
        for (size_t n = input_count = first; n < end; n++) {
            struct input input = inputs[n];
            run(input.data, input.size);
            input.rare = new_features();
            if (!input.rare) {
                free(input.data);
                continue;
            }
            if (options.merge && k) {
                save(prefix, "", input.data, input.size);
            }
            inputs[input_count++] = input;
        }
    }
}

/* ---- the search ---------------------------------------------------------------------------------------------- */

static uint64_t draw(void) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* An input to change: every other time one of the latest, and rather one that showed much. */
static const struct input *choose(void) {
    const size_t recent = input_count < 64 ? input_count : 64;
    const size_t a = (size_t)(draw() & 1 ? input_count - 1 - draw() % recent : draw() % input_count);
    const size_t b = (size_t)(draw() % input_count);
    return inputs[a].rare * inputs[b].size >= inputs[b].rare * inputs[a].size ? &inputs[a] : &inputs[b];
}

static double seconds(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)use.ru_utime.tv_sec + (double)use.ru_stime.tv_sec +
           1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

static void tell(uint64_t runs, double since) {
    fprintf(stderr, "fuzz: %llu runs, %.0f a second of processor time, %zu features, %zu inputs\n",
            (unsigned long long)runs, (double)runs / (seconds() - since + 1e-9), features_seen(), input_count);
}

/* Change inputs and run them; keep those that show something new. */
static void search(void) {
    static uint8_t data[LONGEST];
    const char *const folder = options.folder_count ? options.folders[0] : NULL;
    const double since = seconds();
    char prefix[4096];
    uint64_t n = 0;
    snprintf(prefix, sizeof prefix, "%s/", folder ? folder : ".");
    for (; n < options.runs && input_count; n++) {
        const struct input *parent = choose();
        size_t size = parent->size < sizeof data ? parent->size : sizeof data;
        memcpy(data, parent->data, size);
        size = LLVMFuzzerCustomMutator(data, size, sizeof data, (unsigned)draw());
        run(data, size);
        const uint32_t found = new_features();
        if (found && add(data, size, found) && folder) {
            save(prefix, "", data, size);
        }
        if ((n & 0xffff) == 0xffff) {
            tell(n + 1, since);
        }
        if (options.total && seconds() - since > (double)options.total) {
            break;
        }
    }
    tell(n, since);
}

static void read_options(int count, char **arguments) {
    const struct {
        const char *name;
        uint64_t *to;
    } numbers[] = {{"-runs=", &options.runs},
                   {"-seed=", &options.seed},
                   {"-timeout=", &options.timeout},
                   {"-max_total_time=", &options.total}};
    for (int k = 1; k < count; k++) {
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
            if (!strncmp(arguments[k], numbers[n].name, strlen(numbers[n].name))) {
                *numbers[n].to = strtoull(strchr(arguments[k], '=') + 1, NULL, 10);
            }
        }
        if (!strncmp(arguments[k], "-artifact_prefix=", 17)) {
            options.prefix = arguments[k] + 17;
        }
        options.merge |= !strcmp(arguments[k], "-merge=1");
        if (arguments[k][0] != '-' && options.folder_count < sizeof options.folders / sizeof *options.folders) {
            options.folders[options.folder_count++] = arguments[k];
        }
    }
}

int main(int count, char **arguments) {
    read_options(count, arguments);
    LLVMFuzzerInitialize(&count, &arguments);
    watch();
    state = options.seed;
    replay();
    fprintf(stderr, "fuzz: %zu inputs show %zu features\n", input_count, features_seen());
    if (!options.merge) {
        search();
    }
    for (size_t k = 0; k < input_count; k++) {
        free(inputs[k].data);
    }
    check_leaks(NULL, 0);
    return 0;
}
