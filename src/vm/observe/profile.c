/* Profiles: a watcher counts by instruction in each thread, and tables hold the sums by statement. */
#include "vm/observe/profile.h"

#include <stdlib.h>
#include <string.h>

#include "platform/thread.h"
#include "vm/execute/call.h"
#include "vm/execute/control.h"
#include "vm/execute/lanes.h"
#include "vm/machine/arena.h"
#include "vm/machine/base.h"
#include "vm/machine/counters.h"
#include "vm/machine/cta.h"
#include "vm/machine/device.h"
#include "vm/machine/fault.h"
#include "vm/machine/launch.h"
#include "vm/machine/options.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/machine/watch.h"
#include "vm/observe/cost.h"
#include "vm/observe/first.h"
#include "vm/observe/l1.h"
#include "vm/observe/reach.h"
#include "vm/observe/reuse.h"

enum { TEXT_BYTES = 400 };

/* The counts: the members of sm120_profile_row, in order, then the bytes by path, then the reuse by distance. */
enum {
#define X(member) COUNT_##member,
    PROFILE_COUNTS(X)
#undef X
        COUNT_bytes,
    COUNT_reuse = COUNT_bytes + TRAFFIC_COUNT,
    COUNTS = COUNT_reuse + REUSE_STEPS
};
_Static_assert(TRAFFIC_COUNT < sizeof((sm120_profile_row *)0)->bytes / sizeof(sm120_profile_bytes),
               "a row holds all paths and a terminator");
_Static_assert(REUSE_STEPS == sizeof((sm120_profile_row *)0)->global_reuse / sizeof(uint64_t), "a row holds all steps");

/* ---- tables -------------------------------------------------------------------------------------------------- */

struct profile_row {
    const char *file, *text, *from_file;
    uint32_t line, row, opcode, from_line;
    uint64_t count[COUNTS];
};

/* A kernel that ran. The table has copies of its texts, because the module may be unloaded before the table is read. */
struct profile_kernel {
    struct profile_kernel *next;
    const char *name;
    struct profile_row *rows;
    uint32_t length;
};

/* A CTA that has ended. */
struct profile_cta {
    struct profile_cta *next;
    const char *kernel;
    uint64_t linear, executed;
};

/* A profile, guarded by the device's counter_lock. */
struct profile {
    struct arena arena;
    struct profile_cta *first_cta, **last_cta, *read_cta; /* in the order of their ends; read_cta: of number `read` */
    int read;
    struct profile_kernel *first, **last; /* in the order of their first launches */
    uint32_t launches;                    /* number of launches that use the profile */
    bool has_ended;
};

static void discard(struct profile *profile) {
    arena_free(&profile->arena);
    free(profile);
}

/* Return the end of the instructions of a statement. */
static uint32_t statement_end(const struct CUfunc_st *f, uint32_t pc) {
    const char *const text = f->places[pc].text;
    do {
        ++pc;
    } while (pc < f->length && f->places[pc].text == text);
    return pc;
}

/* Return the instruction of a statement that has its opcode, or `end`. */
static uint32_t statement_head(const struct CUfunc_st *f, uint32_t pc, uint32_t end) {
    while (pc < end && f->places[pc].opcode == UINT32_MAX) {
        ++pc;
    }
    return pc;
}

/* Return the opcode of a statement. UINT32_MAX: the begin or end of a function. */
static uint32_t statement_opcode(const struct CUfunc_st *f, uint32_t pc) {
    const uint32_t end = statement_end(f, pc), head = statement_head(f, pc, end);
    return head < end ? f->places[head].opcode : UINT32_MAX;
}

/* Copy a text up to `end`, shortened. White space and comments become a single space. */
static const char *copy_text(struct arena *arena, const char *text, char end) {
    char copy[TEXT_BYTES];
    /* A brace is the begin or end of a function. */
    const size_t most = *text == '{' || *text == '}' ? 1 : sizeof copy - 2;
    size_t n = 0;
    bool space = false;
    while (*text != '\0' && *text != end && n < most) {
        if (text[0] == '/' && (text[1] == '/' || text[1] == '*')) {
            const char *const after = strstr(text, text[1] == '/' ? "\n" : "*/");
            text = after != NULL ? after + (text[1] == '*' ? 2 : 0) : text + strlen(text);
            space = true;
        } else if (*text == ' ' || *text == '\t' || *text == '\r' || *text == '\n') {
            ++text;
            space = true;
        } else {
            if (space && n != 0) {
                copy[n++] = ' ';
            }
            space = false;
            copy[n++] = *text++;
        }
    }
    copy[n] = 0;
    char *const kept = arena_take(arena, n + 1);
    return kept != NULL ? memcpy(kept, copy, n + 1) : NULL;
}

/* Copy a name whole: two kernels may differ in its last letters. */
static const char *copy_name(struct arena *arena, const char *name) {
    const size_t bytes = strlen(name) + 1;
    char *const kept = arena_take(arena, bytes);
    return kept != NULL ? memcpy(kept, name, bytes) : NULL;
}

/* Return whether a table belongs to a function: the name and the statements are equal. */
static bool is_table_of(const struct profile_kernel *kernel, const struct CUfunc_st *f) {
    uint32_t n = 0;
    if (strcmp(kernel->name, f->name) != 0) {
        return false;
    }
    for (uint32_t pc = 0; pc < f->length; pc = statement_end(f, pc), n++) {
        const struct place *place = &f->places[pc];
        if (n == kernel->length || kernel->rows[n].line != place->line ||
            kernel->rows[n].opcode != statement_opcode(f, pc) || strcmp(kernel->rows[n].file, place->file) != 0 ||
            kernel->rows[n].from_line != place->from_line ||
            (place->from_file != NULL && strcmp(kernel->rows[n].from_file, place->from_file) != 0)) {
            return false;
        }
    }
    return n == kernel->length;
}

/* Create the table of a function. Return NULL when out of memory. */
static struct profile_kernel *make_table(struct profile *profile, const struct CUfunc_st *f) {
    struct profile_kernel *const kernel = arena_take(&profile->arena, sizeof *kernel);
    if (kernel == NULL || (kernel->name = copy_name(&profile->arena, f->name)) == NULL) {
        return NULL;
    }
    for (uint32_t pc = 0; pc < f->length; pc = statement_end(f, pc)) {
        ++kernel->length;
    }
    kernel->rows = arena_take(&profile->arena, kernel->length * sizeof *kernel->rows + 1);
    struct profile_row *row = kernel->rows;
    const char *file = "", *from = NULL;
    for (uint32_t pc = 0; row != NULL && pc < f->length; pc = statement_end(f, pc), row++) {
        const struct place *const place = &f->places[pc];
        if (place->file != from) {
            from = place->file;
            file = copy_name(&profile->arena, from);
        }
        row->file = file;
        row->line = place->line;
        row->row = place->row;
        row->opcode = statement_opcode(f, pc);
        row->text = copy_text(&profile->arena, place->text, ';');
        row->from_file = place->from_file != NULL ? copy_name(&profile->arena, place->from_file) : "";
        row->from_line = place->from_line;
        if (row->file == NULL || row->text == NULL || row->from_file == NULL) {
            return NULL;
        }
    }
    if (row == NULL) {
        return NULL;
    }
    *profile->last = kernel;
    profile->last = &kernel->next;
    return kernel;
}

static struct profile_kernel *find_table(struct profile *profile, const struct CUfunc_st *f) {
    for (struct profile_kernel *kernel = profile->first; kernel != NULL; kernel = kernel->next) {
        if (is_table_of(kernel, f)) {
            return kernel;
        }
    }
    return make_table(profile, f);
}

/* ---- counting ------------------------------------------------------------------------------------------------ */

/* Counts of one thread in one launch. */
struct profile_worker {
    uint64_t (*count)[COUNTS];    /* by pc */
    uint8_t *class;               /* by pc: enum reach_class */
    uint64_t seen[TRAFFIC_COUNT]; /* worker.bytes when last read */
    uint64_t seen_flops;
    uint64_t pending[COUNTS]; /* counts of the current instruction, which may have to run again */
    uint64_t owner, ended;    /* an L1, and the statement at which the last CTA that had it ended */
    struct l1 l1;
    struct first first;
};

static void note_moved(struct worker *worker, uint32_t pc) {
    struct profile_worker *const own = worker->profile;
    for (uint32_t k = 0; k < TRAFFIC_COUNT; ++k) {
        own->count[pc][COUNT_bytes + k] += worker->bytes[k] - own->seen[k];
        own->seen[k] = worker->bytes[k];
    }
}

/* Return whether the lanes of a branch diverge. */
static bool is_divergent(const struct event *e) {
    const struct inst *const i = e->inst;
    if (e->mask == 0) {
        return false;
    }
    if (e->mask != e->active) {
        return true;
    }
    for (uint32_t rest = e->mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest), first = lowest_bit(e->mask);
        if (i->run == control_brx &&
            ((const uint32_t *)source(e->warp, i->a))[lane] != ((const uint32_t *)source(e->warp, i->a))[first]) {
            return true;
        }
        if (i->run == call_indirect &&
            ((const uint64_t *)source(e->warp, i->a))[lane] != ((const uint64_t *)source(e->warp, i->a))[first]) {
            return true;
        }
    }
    return false;
}

/* Return the number of the L1 of a CTA: of its multiprocessor, or of its own. */
static uint64_t owner_of(const struct cta *cta) {
    return cta->launch->resident != 0 ? cta->linear % cta->launch->multiprocessors : cta->linear;
}

/* Return the sectors that a load or store takes from L2 or brings to it. */
static uint32_t l2_sectors(struct profile_worker *own, const struct event *e, const struct reach *side, uint32_t mask,
                           const uint64_t *address, uint32_t touched) {
    const struct inst *const i = e->inst;
    if (own->class[e->pc] == REACH_COPY && i->kind != 0) {
        return cost_copy(mask, address, side[1].address);
    }
    const bool is_cached = side->kind == ACCESS_IS_LOAD && i->run != access_table()[ACCESS_LOAD_STRONG];
    if (!is_cached) {
        return touched;
    }
    const uint64_t statement = e->warp->begun + e->warp->stepped;
    const struct l1_found found = l1_load(&own->l1, owner_of(e->warp->cta), statement, mask, address);
    own->pending[COUNT_global_pending_accesses] += found.is_pending;
    return found.missing;
}

/* Add the cost of one side of an access; behind the global side of a copy is its shared one. */
static void add_side(struct profile_worker *own, const struct event *e, const struct reach *side) {
    uint64_t address[WARP], *const pending = own->pending;
    const uint32_t shared = reach_in(side, SPACE_SHARED, address);
    if (shared != 0) {
        const struct bank_cost cost = cost_shared(side->kind, side->bytes, shared, address);
        ++pending[COUNT_shared_accesses];
        pending[COUNT_shared_wavefronts] += cost.wavefronts;
        pending[COUNT_shared_ideal_wavefronts] += cost.ideal;
        pending[COUNT_shared_paired_accesses] += cost.is_paired;
    }
    const uint32_t global = reach_in(side, SPACE_GLOBAL, address);
    if (global != 0) {
        const struct sector_cost cost = cost_global(side->bytes, global, address);
        ++pending[COUNT_global_accesses];
        pending[COUNT_global_sectors] += cost.sectors;
        pending[COUNT_global_ideal_sectors] += cost.ideal_sectors;
        pending[COUNT_global_lines] += cost.lines;
        pending[COUNT_global_ideal_lines] += cost.ideal_lines;
        if (side->kind == ACCESS_IS_LOAD && own->class[e->pc] != REACH_COPY) {
            pending[COUNT_global_wavefronts] += cost_l1(side->bytes, global, address);
        }
        const uint32_t sectors = l2_sectors(own, e, side, global, address, cost.sectors);
        pending[COUNT_global_l2_accesses] += sectors != 0;
        pending[COUNT_global_l2_sectors] += sectors;
        const struct first_touches touched =
            first_touch(&own->first, owner_of(e->warp->cta), e->warp->cta->linear, e->warp->stepped, global, address);
        pending[COUNT_global_first_lines] += touched.lines;
        pending[COUNT_global_first_accesses] += touched.pairs != 0;
        reuse_touch(e->warp->cta->launch->reuse, e->warp, e->pc, global, address);
        if (own->class[e->pc] == REACH_ATOMIC) {
            pending[COUNT_global_added_lines] += reuse_add(e->warp->cta->launch->reuse, e->warp, global, address);
            pending[COUNT_global_added_words] += cost.places;
        }
    }
}

/* A CTA begins when the last one has ended that had its L1. */
static bool start(struct cta *cta) {
    struct profile_worker *const own = cta->warp[0].worker->profile;
    if (own->owner != owner_of(cta)) {
        own->owner = owner_of(cta);
        own->ended = 0;
    }
    for (uint32_t k = 0; k < cta->warps; ++k) {
        cta->warp[k].stepped = 0;
        cta->warp[k].begun = own->ended;
    }
    reuse_start(cta);
    return true;
}

/* Compute the counts before the instruction runs, because it may overwrite the registers of its addresses. */
static enum step before(const struct event *e) {
    struct profile_worker *const own = e->warp->worker->profile;
    const struct inst *const i = e->inst;
    struct reach sides[2];
    memset(own->pending, 0, sizeof own->pending);
    own->pending[COUNT_executed] = 1;
    own->pending[COUNT_lanes] = bit_count(e->mask);
    own->pending[COUNT_predicated_off] = bit_count(e->active & ~e->mask);
    if (i->run == control_bra || i->run == control_brx || i->run == call_indirect) {
        own->pending[COUNT_branches] = 1;
        own->pending[COUNT_divergent_branches] = (uint64_t)is_divergent(e);
    }
    const uint32_t count = reach_sides(e->warp, i, (enum reach_class)own->class[e->pc], e->mask, sides);
    for (uint32_t k = 0; k < count; ++k) {
        add_side(own, e, &sides[k]);
    }
    return STEP_NEXT;
}

static enum step after(const struct event *e) {
    struct worker *const worker = e->warp->worker;
    struct profile_worker *const own = worker->profile;
    if (e->step == STEP_AGAIN) {
        return STEP_NEXT;
    }
    uint64_t *const count = own->count[e->pc];
    own->pending[COUNT_lanes] = bit_count(e->mask); /* others may have to wait at it */
    ++e->warp->stepped;
    for (uint32_t k = 0; k < COUNT_bytes; ++k) {
        count[k] += own->pending[k];
    }
    count[COUNT_tensor_flops] += worker->tensor_flops - own->seen_flops;
    own->seen_flops = worker->tensor_flops;
    note_moved(worker, e->pc);
    return STEP_NEXT;
}

/* Count the bytes of an asynchronous copy, which moves them after its instruction has run. */
static void moved(struct warp *w, const struct async_op *op) {
    note_moved(w->worker, op->pc);
}

static void fail_without_memory(struct launch *launch);

/* Keep how many instructions a CTA has executed, and when it ended. */
static void end(struct cta *cta) {
    struct launch *const launch = cta->launch;
    struct profile_worker *const own = cta->warp[0].worker->profile;
    for (uint32_t k = 0; k < cta->warps; ++k) {
        const uint64_t ended = cta->warp[k].begun + cta->warp[k].stepped;
        own->ended = own->owner == owner_of(cta) && ended > own->ended ? ended : own->ended;
    }
    mutex_lock(&launch->device->counter_lock);
    struct profile *const profile = launch->profile;
    const struct profile_kernel *const kernel = find_table(profile, launch->function);
    struct profile_cta *const kept = kernel != NULL ? arena_take(&profile->arena, sizeof *kept) : NULL;
    if (kept != NULL) {
        *kept = (struct profile_cta){.kernel = kernel->name, .linear = cta->linear, .executed = cta->executed};
        *profile->last_cta = kept;
        profile->last_cta = &kept->next;
    }
    mutex_unlock(&launch->device->counter_lock);
    if (kept == NULL) {
        fail_without_memory(launch);
    }
}

static const struct watcher watcher = {.start = start, .before = before, .after = after, .end = end, .moved = moved};

/* ---- launches and threads ------------------------------------------------------------------------------------ */

/* Return the L1 that a launch's CTAs have: 32 KiB for each, or what those of a multiprocessor leave to all of them. */
static uint32_t l1_bytes(const struct launch *launch) {
    enum { OF_CTA = 32 << 10, RESERVED = 1024 };
    const uint32_t all = options_l1_bytes(), taken = launch->resident * (launch->cta_shared + RESERVED);
    return launch->resident == 0 ? OF_CTA : taken < all ? all - taken : 0;
}

void profile_join(struct launch *launch) {
    struct device *const device = launch->device;
    mutex_lock(&device->counter_lock);
    launch->profile = device->profile;
    if (launch->profile != NULL) {
        launch->resident = options_resident();
        launch->sampled = options_sampled();
        launch->l1_bytes = l1_bytes(launch);
        ++launch->profile->launches;
        launch->reuse = reuse_open();
        launch->watcher[launch->watchers++] = &watcher;
    }
    mutex_unlock(&device->counter_lock);
}

static void free_counts(struct worker *worker) {
    struct profile_worker *const own = worker->profile;
    worker->profile = NULL;
    if (own == NULL) {
        return;
    }
    free(own->count);
    free(own->class);
    l1_close(&own->l1);
    first_close(&own->first);
    free(own);
}

bool profile_worker_open(struct worker *worker) {
    const struct CUfunc_st *const f = worker->launch->function;
    if (worker->launch->profile == NULL) {
        return true;
    }
    struct profile_worker *const own = worker->profile = calloc(1, sizeof *own);
    if (own != NULL) {
        own->count = calloc(f->length + 1u, sizeof *own->count);
        own->class = calloc(f->length + 1u, 1);
    }
    if (own == NULL || own->count == NULL || own->class == NULL || worker->launch->reuse == NULL ||
        !l1_open(&own->l1, worker->launch->l1_bytes) || !first_open(&own->first)) {
        free_counts(worker);
        return false;
    }
    for (uint32_t pc = 0; pc < f->length; ++pc) {
        own->class[pc] = (uint8_t)reach_class(&f->code[pc]);
    }
    return true;
}

/* Add the counts of the instructions of each statement. A statement is counted when the instruction with its opcode
 * has run. */
static void add_counts(struct profile_kernel *kernel, const struct CUfunc_st *f, uint64_t (*const count)[COUNTS]) {
    struct profile_row *row = kernel->rows;
    for (uint32_t pc = 0; pc < f->length; ++row) {
        const uint32_t end = statement_end(f, pc), head = statement_head(f, pc, end);
        for (; pc < end; ++pc) {
            for (uint32_t k = 0; k < COUNTS; ++k) {
                if (k > COUNT_predicated_off || pc == head) {
                    row->count[k] += count[pc][k];
                }
            }
        }
    }
}

/* End a launch that lacks memory for its counts. */
static void fail_without_memory(struct launch *launch) {
    mutex_lock(&launch->lock);
    if (launch->result == CUDA_SUCCESS) {
        launch->result = CUDA_ERROR_OUT_OF_MEMORY;
        strcpy(launch->fault, "out of host memory for the profile");
    }
    mutex_unlock(&launch->lock);
}

/* Add counts by pc to the table of a launch's kernel. */
static void add_to_table(struct launch *launch, uint64_t (*const count)[COUNTS]) {
    mutex_lock(&launch->device->counter_lock);
    struct profile_kernel *const kernel = count != NULL ? find_table(launch->profile, launch->function) : NULL;
    if (kernel != NULL) {
        add_counts(kernel, launch->function, count);
    }
    mutex_unlock(&launch->device->counter_lock);
    if (kernel == NULL) {
        fail_without_memory(launch);
    }
}

void profile_worker_close(struct worker *worker) {
    if (worker->profile != NULL) {
        add_to_table(worker->launch, worker->profile->first.is_exhausted ? NULL : worker->profile->count);
        free_counts(worker);
    }
}

static void add_reuse(void *to, uint32_t pc, uint32_t step, uint64_t sectors) {
    uint64_t (*const count)[COUNTS] = to;
    count[pc][COUNT_reuse + step] += sectors;
}

/* Add what the CTAs of a launch touched again. */
static void close_reuse(struct launch *launch) {
    struct reuse *const reuse = launch->reuse;
    if (reuse == NULL) {
        return;
    }
    uint64_t (*const count)[COUNTS] =
        reuse_is_exhausted(reuse) ? NULL : calloc(launch->function->length + 1u, sizeof *count);
    if (count != NULL) {
        reuse_read(reuse, launch->ranks, add_reuse, count);
    }
    add_to_table(launch, count);
    free(count);
    reuse_close(reuse);
}

void profile_leave(struct launch *launch) {
    struct profile *const profile = launch->profile;
    if (profile == NULL) {
        return;
    }
    close_reuse(launch);
    mutex_lock(&launch->device->counter_lock);
    if (--profile->launches == 0 && profile->has_ended) {
        discard(profile);
    }
    mutex_unlock(&launch->device->counter_lock);
}

/* ---- the device ---------------------------------------------------------------------------------------------- */

CUresult profile_begin(struct device *device) {
    struct profile *const profile = calloc(1, sizeof *profile);
    if (profile == NULL) {
        return fault_set(CUDA_ERROR_OUT_OF_MEMORY, "out of host memory");
    }
    profile->last = &profile->first;
    profile->last_cta = &profile->first_cta;
    mutex_lock(&device->counter_lock);
    const bool is_free = device->profile == NULL;
    if (is_free) {
        device->profile = profile;
    }
    mutex_unlock(&device->counter_lock);
    if (is_free) {
        return CUDA_SUCCESS;
    }
    discard(profile);
    return fault_set(CUDA_ERROR_PROFILER_ALREADY_STARTED, "a profile of this device is already running");
}

void profile_end(struct device *device) {
    mutex_lock(&device->counter_lock);
    struct profile *const profile = device->profile;
    device->profile = NULL;
    if (profile != NULL && profile->launches != 0) {
        profile->has_ended = true;
    } else if (profile != NULL) {
        discard(profile);
    }
    mutex_unlock(&device->counter_lock);
}

/* Fill a row, except for its size. */
static void fill(sm120_profile_row *row, const struct profile_kernel *kernel, uint32_t index) {
    const struct profile_row *const from = &kernel->rows[index];
    uint32_t n = 0;
    row->kernel = kernel->name;
    row->index = index;
    row->file = from->file;
    row->line = from->line;
    row->row = from->row;
    row->text = from->text;
    row->from_file = from->from_file;
    row->from_line = from->from_line;
    row->opcode = from->opcode == UINT32_MAX ? "" : counter_name(from->opcode);
#define X(member) row->member = from->count[COUNT_##member];
    PROFILE_COUNTS(X)
#undef X
    memcpy(row->global_reuse, from->count + COUNT_reuse, sizeof row->global_reuse);
    memset(row->bytes, 0, sizeof row->bytes);
    for (uint32_t k = 0; k < TRAFFIC_COUNT; ++k) {
        if (from->count[COUNT_bytes + k] != 0) {
            row->bytes[n++] = (sm120_profile_bytes){counter_path(k), from->count[COUNT_bytes + k]};
        }
    }
}

CUresult profile_read(struct device *device, int index, sm120_profile_row *row) {
    CUresult result = CUDA_ERROR_PROFILER_NOT_INITIALIZED;
    mutex_lock(&device->counter_lock);
    if (device->profile != NULL) {
        const struct profile_kernel *kernel = device->profile->first;
        uint32_t at = (uint32_t)index;
        for (; kernel != NULL && at >= kernel->length; kernel = kernel->next) {
            at -= kernel->length;
        }
        result = kernel != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
        if (kernel != NULL) {
            fill(row, kernel, at);
        }
    }
    mutex_unlock(&device->counter_lock);
    return result;
}

CUresult profile_cta(struct device *device, int index, const char **kernel, uint64_t *cta, uint64_t *executed) {
    CUresult result = CUDA_ERROR_PROFILER_NOT_INITIALIZED;
    mutex_lock(&device->counter_lock);
    struct profile *const profile = device->profile;
    if (profile != NULL) {
        if (profile->read_cta == NULL || index < profile->read) { /* a list is read in order, mostly */
            profile->read_cta = profile->first_cta;
            profile->read = 0;
        }
        while (profile->read_cta != NULL && profile->read < index) {
            profile->read_cta = profile->read_cta->next;
            ++profile->read;
        }
        result = profile->read_cta != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
        if (result == CUDA_SUCCESS) {
            *kernel = profile->read_cta->kernel;
            *cta = profile->read_cta->linear;
            *executed = profile->read_cta->executed;
        }
    }
    mutex_unlock(&device->counter_lock);
    return result;
}
