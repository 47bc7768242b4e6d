/* Decode .lzma files, whole and damaged: lzma FILE [whole]. The second word leaves the damaged ones out. The file holds
 * pairs: the bytes of a .lzma file and of what it holds, both as 8 bytes little-endian, then the two. Every copy has
 * its own allocation, so that a sanitizer sees the first byte that is read or written outside. */
#include "runtime/lzma.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned refused, accepted;

static void fail(const char *what, size_t at) {
    fprintf(stderr, "%s, at %zu\n", what, at);
    exit(EXIT_FAILURE);
}

static void *copy_of(const unsigned char *from, size_t bytes) {
    void *const copy = malloc(bytes);
    if (copy == NULL) {
        fail("host memory is used up", bytes);
    }
    return bytes == 0 ? copy : memcpy(copy, from, bytes);
}

/* Decode a copy of `packed` into `bytes` bytes. */
static bool decodes(const unsigned char *packed, size_t packed_bytes, const unsigned char *wanted, size_t bytes,
                    bool *is_same) {
    void *const in = copy_of(packed, packed_bytes);
    unsigned char *const out = copy_of(wanted, bytes);
    memset(out, 0xa5, bytes);
    const bool is_good = lzma_decode(in, packed_bytes, out, bytes);
    *is_same = is_good && memcmp(out, wanted, bytes) == 0;
    free(in);
    free(out);
    return is_good;
}

/* Decode a damaged file. There is no checksum: few are accepted, for which the range coder ends as it should. */
static void damage(const unsigned char *packed, size_t packed_bytes, const unsigned char *wanted, size_t bytes) {
    bool is_same = false;
    const bool is_good = decodes(packed, packed_bytes, wanted, bytes, &is_same);
    refused += !is_good;
    accepted += is_good;
}

static void check(const unsigned char *packed, size_t packed_bytes, const unsigned char *wanted, size_t bytes,
                  bool is_whole) {
    bool is_same = false;
    if (!decodes(packed, packed_bytes, wanted, bytes, &is_same) || !is_same) {
        fail("a whole file was not decoded", packed_bytes);
    }
    if (decodes(packed, packed_bytes, wanted, bytes + (bytes == 0), &is_same) != (bytes != 0) ||
        (bytes != 0 && decodes(packed, packed_bytes, wanted, bytes - 1, &is_same))) {
        fail("a file was decoded to another number of bytes", bytes);
    }
    if (is_whole) {
        return;
    }
    unsigned char *const damaged = copy_of(packed, packed_bytes);
    const size_t step = packed_bytes / 200 + 1;
    for (size_t at = 0; at < packed_bytes; at += at < 32 ? 1 : step) {
        if (decodes(packed, at, wanted, bytes, &is_same)) {
            fail("a file that is cut short was decoded", at);
        }
        damaged[at] ^= (unsigned char)(1u << at % 8);
        damage(damaged, packed_bytes, wanted, bytes);
        damaged[at] = (unsigned char)(packed[at] + 1 + at % 255);
        damage(damaged, packed_bytes, wanted, bytes);
        damaged[at] = packed[at];
    }
    free(damaged);
}

static uint64_t read_size(FILE *file) {
    unsigned char raw[8];
    uint64_t size = 0;
    if (fread(raw, 1, sizeof raw, file) != sizeof raw) {
        return UINT64_MAX;
    }
    for (int i = 0; i < 8; ++i) {
        size |= (uint64_t)raw[i] << 8 * i;
    }
    return size;
}

int main(int argc, char **argv) {
    FILE *const file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL) {
        fail("usage: lzma FILE", 0);
        return EXIT_FAILURE;
    }
    unsigned count = 0;
    for (uint64_t packed_bytes; (packed_bytes = read_size(file)) != UINT64_MAX; ++count) {
        const uint64_t bytes = read_size(file);
        unsigned char *const packed = malloc(packed_bytes);
        unsigned char *const wanted = malloc(bytes + 1);
        if (packed == NULL || wanted == NULL || fread(packed, 1, packed_bytes, file) != packed_bytes ||
            fread(wanted, 1, bytes, file) != bytes) {
            fail("the pair is not whole", count);
        }
        wanted[bytes] = 0;
        check(packed, packed_bytes, wanted, bytes, argc > 2);
        free(packed);
        free(wanted);
    }
    fclose(file);
    printf("%u files, %u damaged ones refused, %u accepted\n", count, refused, accepted);
    return EXIT_SUCCESS;
}
