/* The memory of a call: what it reads, what it writes, and its workspace. */
#include "runtime/places.h"

#include <inttypes.h>

#include "runtime/check.h"
#include "runtime/error.h"
#include "runtime/memory.h"

struct place place_array(const char *name, sm120_address address, int64_t bytes, uint64_t alignment,
                         enum access access) {
    return (struct place){.name = name, .address = address, .bytes = bytes, .alignment = alignment, .access = access};
}

struct place place_tensor(const struct tensor *tensor, const struct shape *shape, enum access access) {
    return (struct place){.name = tensor->name,
                          .address = tensor->address,
                          .bytes = tensor->bytes,
                          .access = access,
                          .tensor = tensor,
                          .shape = shape};
}

struct place place_workspace(const struct workspace *workspace, int64_t needed) {
    struct place place = place_array("workspace", workspace->address, needed, WORKSPACE_ALIGNMENT, PLACE_WRITTEN);
    place.workspace = workspace;
    return place;
}

struct workspace workspace_of(sm120_address address, size_t bytes) {
    return (struct workspace){.address = address, .bytes = bytes};
}

struct workspace workspace_question(size_t *answer) {
    return (struct workspace){.is_question = true, .answer = answer};
}

bool workspace_place(int64_t bytes, int64_t *begin, int64_t *end) {
    *begin = *end;
    return add(bytes, WORKSPACE_ALIGNMENT - 1, &bytes) &&
           add(*end, bytes / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT, end);
}

sm120_status workspace_check_question(const struct workspace *workspace) {
    return workspace->is_question ? check_pointer(workspace->answer, "workspace_bytes") : SM120_OK;
}

sm120_status workspace_check(struct device *device, const struct workspace *workspace, int64_t needed) {
    if (needed == 0) {
        return SM120_OK;
    }
    if (workspace->address == 0) {
        return fail(SM120_WORKSPACE_TOO_SMALL,
                    "workspace = 0 and workspace_bytes = %zu; this call needs a workspace of %" PRId64 " bytes",
                    workspace->bytes, needed);
    }
    sm120_status status = check_address("workspace", workspace->address, WORKSPACE_ALIGNMENT);
    if (status == SM120_OK && workspace->bytes < (uint64_t)needed) {
        status = fail(SM120_WORKSPACE_TOO_SMALL, "workspace_bytes = %zu; this call needs %" PRId64, workspace->bytes,
                      needed);
    }
    return status == SM120_OK ? memory_check(device, workspace->address, (uint64_t)needed, "workspace") : status;
}

/* Check that a place is aligned and lies in one allocation. */
static sm120_status check_address_of(struct device *device, const struct place *place) {
    if (place->tensor != NULL) {
        return tensor_check_address(device, place->tensor);
    }
    if (place->workspace != NULL) {
        return workspace_check(device, place->workspace, place->bytes);
    }
    if (place->address == 0) {
        return SM120_OK;
    }
    const sm120_status status = check_address(place->name, place->address, place->alignment);
    return status == SM120_OK ? memory_check(device, place->address, (uint64_t)place->bytes, place->name) : status;
}

/* Whether two places share a byte. */
static bool meet(const struct place *a, const struct place *b) {
    if (a->address == 0 || b->address == 0 || a->bytes == 0) {
        return false;
    }
    if (a->shape != NULL && b->shape != NULL) {
        return tensor_meets(a->tensor, a->shape, b->tensor, b->shape);
    }
    return a->address < b->address + (uint64_t)b->bytes && b->address < a->address + (uint64_t)a->bytes;
}

/* Check that a written place shares no byte with what is read, or with what was listed before it. */
static sm120_status check_written(const struct place *places, size_t count, size_t written) {
    const struct place *const out = places + written;
    for (size_t i = 0; i < count; ++i) {
        const struct place *const other = places + i;
        if ((other->access == PLACE_READ || i < written) && meet(out, other)) {
            return fail(SM120_INVALID_ARGUMENT,
                        "%s (0x%" PRIx64 ", %" PRId64 " bytes) and %s (0x%" PRIx64 ", %" PRId64 " bytes) overlap%s",
                        out->name, out->address, out->bytes, other->name, other->address, other->bytes,
                        out->rule != NULL ? out->rule : "");
        }
    }
    return SM120_OK;
}

sm120_status places_check(struct device *device, const struct place *places, size_t count) {
    sm120_status status = SM120_OK;
    for (size_t i = 0; i < count && status == SM120_OK; ++i) {
        status = check_address_of(device, places + i);
    }
    for (size_t i = 0; i < count && status == SM120_OK; ++i) {
        status = places[i].access == PLACE_WRITTEN ? check_written(places, count, i) : status;
    }
    return status;
}
