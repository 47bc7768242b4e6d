/* Faults: errors that end a launch, with a text that says what happened and where. */
#ifndef SM120_VM_MACHINE_FAULT_H
#define SM120_VM_MACHINE_FAULT_H

#include <stdint.h>

#include "driver/driver.h"
#include "platform/compiler.h"
#include "vm/machine/program.h"

struct cta;
struct launch;

/* Source position of an instruction: "FILE:LINE", of inlined code also the line that called it. */
struct spot {
    char text[320];
};
struct spot spot_of(const struct place *place);

/* Record the fault of a launch (the first one wins) and return STEP_FAULT. lane: 32 if no single lane caused it. */
enum step fault_at(struct warp *w, CUresult code, uint32_t lane, const char *format, ...) PRINTF_LIKE(4, 5);
/* fault_at() in two steps: format the text, record it later. Names of C++ kernels have thousands of characters, and
 * only whole ones can be demangled. */
enum { FAULT_BYTES = 8192 };
struct fault_text {
    char text[FAULT_BYTES];
};
struct fault_text fault_format(const struct warp *w, uint32_t lane, const char *message);
void fault_record(struct launch *launch, CUresult code, const char *text);
void fault_cta(struct cta *cta, CUresult code, const char *format, ...) PRINTF_LIKE(3, 4);
/* Set and read the error text of the calling thread. */
CUresult fault_set(CUresult code, const char *format, ...) PRINTF_LIKE(2, 3);
const char *fault_text(void);

#endif
