/* Shades: which bytes of device memory are defined. An allocation without a shade counts as defined. */
#ifndef SM120_VM_MACHINE_SHADE_H
#define SM120_VM_MACHINE_SHADE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct allocation;
struct device;

struct shade {
    uint8_t *defined;
    /* origin: a word for each 4 bytes. Bits 4 and up: number of the store. Bits 0 to 3: the bytes it left undefined. */
    uint32_t *origin;
    size_t bytes;
    atomic_int lost;   /* a launch that does not maintain it has run: all bytes count as defined */
    atomic_int stored; /* undefined bytes have been stored */
};
struct shade *shade_open(size_t bytes); /* NULL: out of memory */
void shade_free(struct shade *shade);
void shade_lose_all(struct device *device);
/* Record what the host does to [address, address + bytes). The memory lock is held. */
void shade_written(struct device *device, uint64_t address, size_t bytes);
void shade_copied(struct device *device, uint64_t to, uint64_t from, size_t bytes);
/* Return the allocation that holds an address if it has a valid shade. NULL: all bytes count as defined. */
const struct allocation *shade_find(const struct device *device, uint64_t address);

#endif
