/* Counters of the virtual device: warp instructions by opcode, tensor operations, bytes by path. */
#include "vm/machine/counters.h"

#include <stdio.h>
#include <string.h>

#include "platform/thread.h"
#include "vm/machine/device.h"
#include "vm/machine/launch.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"

static struct mutex lock = MUTEX_INITIALIZER;
static char names[MAX_COUNTERS][32];
static uint32_t used;

/* Return the index of an opcode's counter. When the table is full, all further opcodes share the last counter. */
uint32_t counter_index(const char *name, size_t length) {
    uint32_t k;
    if (length > sizeof names[0] - 1) {
        length = sizeof names[0] - 1;
    }
    mutex_lock(&lock);
    for (k = 0; k < used; ++k) {
        if (strncmp(names[k], name, length) == 0 && names[k][length] == '\0') {
            break;
        }
    }
    if (k == used && used < MAX_COUNTERS) {
        memcpy(names[used++], name, length);
    }
    mutex_unlock(&lock);
    return k < MAX_COUNTERS ? k : MAX_COUNTERS - 1;
}

/* Return the name of a counter. */
const char *counter_name(uint32_t index) {
    return names[index];
}

static const char *const paths[TRAFFIC_COUNT] = {[TRAFFIC_LD_GLOBAL] = "bytes ld.global",
                                                 [TRAFFIC_ST_GLOBAL] = "bytes st.global",
                                                 [TRAFFIC_LD_SHARED] = "bytes ld.shared",
                                                 [TRAFFIC_ST_SHARED] = "bytes st.shared",
                                                 [TRAFFIC_LD_LOCAL] = "bytes ld.local",
                                                 [TRAFFIC_ST_LOCAL] = "bytes st.local",
                                                 [TRAFFIC_ATOM_GLOBAL] = "bytes atom.global",
                                                 [TRAFFIC_ATOM_SHARED] = "bytes atom.shared",
                                                 [TRAFFIC_LDMATRIX] = "bytes ldmatrix",
                                                 [TRAFFIC_STMATRIX] = "bytes stmatrix",
                                                 [TRAFFIC_BULK_LOAD] = "bytes bulk global->shared",
                                                 [TRAFFIC_BULK_STORE] = "bytes bulk shared->global",
                                                 [TRAFFIC_BULK_REDUCE] = "bytes bulk reduce shared->global",
                                                 [TRAFFIC_ASYNC] = "bytes cp.async global->shared"};

/* Return the name of a path, without the "bytes " that its counter's name starts with. */
const char *counter_path(uint32_t traffic) {
    return paths[traffic] + strlen("bytes ");
}

/* Add a worker's counts from running one function to the device's counters. */
void counters_add(struct device *device, const struct worker *worker, const struct CUfunc_st *f) {
    mutex_lock(&device->counter_lock);
    for (uint32_t pc = 0; pc < f->length; ++pc) {
        if (f->places[pc].opcode != UINT32_MAX) {
            device->opcode_count[f->places[pc].opcode] += worker->counts[pc];
        }
    }
    for (uint32_t k = 0; k < TRAFFIC_COUNT; ++k) {
        device->bytes[k] += worker->bytes[k];
    }
    device->tensor_flops += worker->tensor_flops;
    mutex_unlock(&device->counter_lock);
}

void counters_lock(void) {
    mutex_lock(&lock);
}

void counters_unlock(void) {
    mutex_unlock(&lock);
}
