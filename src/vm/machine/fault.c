/* Faults: errors that end a launch, with a text that says what happened and where. */
#include "vm/machine/fault.h"

#include <stdarg.h>
#include <stdio.h>

#include "platform/thread.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/launch.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"

static _Thread_local char last[FAULT_BYTES];

/* Record the first fault of a launch and stop its other CTAs. */
void fault_record(struct launch *launch, CUresult code, const char *text) {
    mutex_lock(&launch->lock);
    if (launch->result == CUDA_SUCCESS) {
        launch->result = code;
        snprintf(launch->fault, sizeof launch->fault, "%s", text);
    }
    mutex_unlock(&launch->lock);
    atomic_store(&launch->stop, 1);
}

struct spot spot_of(const struct place *place) {
    struct spot spot;
    const int length = snprintf(spot.text, sizeof spot.text, "%s:%u", place->file, place->line);
    if (place->from_file != NULL && length > 0 && (size_t)length < sizeof spot.text) {
        snprintf(spot.text + length, sizeof spot.text - (size_t)length, ", inlined at %s:%u", place->from_file,
                 place->from_line);
    }
    return spot;
}

/* Format the text of a fault: kernel, source line, message, CTA, warp and lane. */
struct fault_text fault_format(const struct warp *w, uint32_t lane, const char *message) {
    struct fault_text to;
    char who[32] = "", row[32] = "";
    const struct place *at = &w->function->places[w->pc];
    const uint32_t *id = warp_member(w)->id;
    if (lane < WARP) {
        snprintf(who, sizeof who, ", lane %u", lane);
    }
    if (at->is_located) {
        snprintf(row, sizeof row, " (PTX line %u)", at->row);
    }
    snprintf(to.text, sizeof to.text, "%s at %s%s: %s (CTA %u,%u,%u, warp %u%s)", w->function->name, spot_of(at).text,
             row, message, id[0], id[1], id[2], w->number, who);
    return to;
}

/* Record a fault of a warp at its current instruction. lane: WARP if no single lane caused it. */
enum step fault_at(struct warp *w, CUresult code, uint32_t lane, const char *format, ...) {
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    const struct fault_text text = fault_format(w, lane, message);
    fault_record(w->cta->launch, code, text.text);
    return STEP_FAULT;
}

/* Record a fault of a whole CTA. */
void fault_cta(struct cta *cta, CUresult code, const char *format, ...) {
    char message[3500], text[FAULT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    snprintf(text, sizeof text, "%s, %s %u,%u,%u: %s", cta->launch->function->name,
             cta->ranks == 1 ? "CTA" : "the cluster of CTA", cta->member[0].id[0], cta->member[0].id[1],
             cta->member[0].id[2], message);
    fault_record(cta->launch, code, text);
}

/* Set the error text of the calling thread and return the code. */
CUresult fault_set(CUresult code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last, sizeof last, format, arguments);
    va_end(arguments);
    return code;
}

/* Return the error text of the calling thread. */
const char *fault_text(void) {
    return last;
}
