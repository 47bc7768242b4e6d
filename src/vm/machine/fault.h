/* Faults: values that end a launch, with a text that says where and why. */
#ifndef SM120_VM_MACHINE_FAULT_H
#define SM120_VM_MACHINE_FAULT_H

#include <stdint.h>

#include "driver/driver.h"
#include "platform/compiler.h"
#include "vm/machine/program.h"

struct cta;
struct launch;

/* Record the fault of a launch (the first one wins) and return STEP_FAULT. lane: 32 for none in particular. */
enum step fault_at(struct warp *w, CUresult code, uint32_t lane, const char *format, ...) PRINTF_LIKE(4, 5);
/* The same in two steps: the text of a fault, and its record. */
struct fault_text {
    char text[2048];
};
struct fault_text fault_format(const struct warp *w, uint32_t lane, const char *message);
void fault_record(struct launch *launch, CUresult code, const char *text);
void fault_cta(struct cta *cta, CUresult code, const char *format, ...) PRINTF_LIKE(3, 4);
/* The text of the calling thread. */
CUresult fault_set(CUresult code, const char *format, ...) PRINTF_LIKE(2, 3);
const char *fault_text(void);

#endif
