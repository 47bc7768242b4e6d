/* A sorted table of what a device has handed out and must take back: allocations, streams, events. */
#ifndef SM120_REGISTRY_H
#define SM120_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct record {
    uint64_t key;   /* an address or a handle */
    uint64_t bytes; /* 0 for what has no extent */
};

struct registry {
    struct record *records; /* by ascending key */
    size_t count, capacity;
    size_t promised; /* records that registry_add will find room for */
};

/* Promise room for one more record, so that a later registry_add cannot fail. False: out of host memory. */
bool registry_reserve(struct registry *registry);

/* Give a promise back. */
void registry_cancel(struct registry *registry);

/* Add a record on a promise. The key is not there yet. */
void registry_add(struct registry *registry, struct record record);

/* Take a record out and return true, with a promise to put it back on; or false where no record has this key. */
bool registry_remove(struct registry *registry, uint64_t key, struct record *record);

/* The record with the greatest key that is not above `key`, or NULL. */
const struct record *registry_find(const struct registry *registry, uint64_t key);

/* Free the table, not what it names. */
void registry_free(struct registry *registry);

#endif
