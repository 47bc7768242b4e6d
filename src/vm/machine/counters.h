/* Counters of the virtual device. */
#ifndef SM120_VM_MACHINE_COUNTERS_H
#define SM120_VM_MACHINE_COUNTERS_H

#include <stddef.h>
#include <stdint.h>

struct CUfunc_st;
struct device;
struct worker;

uint32_t counter_index(const char *name, size_t length); /* of an opcode; the same in the whole process */
const char *counter_path(uint32_t traffic);
const char *counter_name(uint32_t index);
/* Lock before a fork, unlock after it. */
void counters_lock(void);
void counters_unlock(void);
void counters_add(struct device *device, const struct worker *worker, const struct CUfunc_st *function);

#endif
