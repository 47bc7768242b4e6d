/* A sorted table of resources that a device has handed out: allocations, streams, events. */
#ifndef SM120_REGISTRY_H
#define SM120_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct record {
    uint64_t key;   /* an address or a handle */
    uint64_t bytes; /* 0 for resources without a size */
};

struct registry {
    struct record *records; /* by ascending key */
    size_t count, capacity;
    size_t promised; /* reserved places, which registry_add will use */
};

/* Reserve a place for one more record, so that a later registry_add cannot fail. Return false when out of host
 * memory. */
bool registry_reserve(struct registry *registry);

/* Release a reserved place. */
void registry_cancel(struct registry *registry);

/* Add a record in a reserved place. The key must be new. */
void registry_add(struct registry *registry, struct record record);

/* Remove a record, keep its place reserved, and return true. Return false if no record has this key. */
bool registry_remove(struct registry *registry, uint64_t key, struct record *record);

/* Return the record with the greatest key that is not above `key`, or NULL. */
const struct record *registry_find(const struct registry *registry, uint64_t key);

/* Free the table, but not the resources. */
void registry_free(struct registry *registry);

#endif
