/* Sorted arrays of records with binary search. */
#include "driver/registry.h"

#include <stdlib.h>
#include <string.h>

/* Return the index of the first record whose key is greater than `key`. */
static size_t above(const struct registry *registry, uint64_t key) {
    size_t low = 0;
    size_t high = registry->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (registry->records[middle].key <= key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool registry_reserve(struct registry *registry) {
    if (registry->count + registry->promised < registry->capacity) {
        registry->promised += 1;
        return true;
    }
    const size_t capacity = registry->capacity == 0 ? 16 : 2 * registry->capacity;
    struct record *const records = realloc(registry->records, capacity * sizeof *records);
    if (records == NULL) {
        return false;
    }
    registry->records = records;
    registry->capacity = capacity;
    registry->promised += 1;
    return true;
}

void registry_cancel(struct registry *registry) {
    registry->promised -= 1;
}

void registry_add(struct registry *registry, struct record record) {
    const size_t i = above(registry, record.key);
    memmove(registry->records + i + 1, registry->records + i, (registry->count - i) * sizeof record);
    registry->records[i] = record;
    registry->count += 1;
    registry->promised -= 1;
}

const struct record *registry_find(const struct registry *registry, uint64_t key) {
    const size_t i = above(registry, key);
    return i == 0 ? NULL : registry->records + i - 1;
}

bool registry_remove(struct registry *registry, uint64_t key, struct record *record) {
    const size_t i = above(registry, key);
    if (i == 0 || registry->records[i - 1].key != key) {
        return false;
    }
    *record = registry->records[i - 1];
    memmove(registry->records + i - 1, registry->records + i, (registry->count - i) * sizeof *record);
    registry->count -= 1;
    registry->promised += 1;
    return true;
}

void registry_free(struct registry *registry) {
    free(registry->records);
    *registry = (struct registry){0};
}
