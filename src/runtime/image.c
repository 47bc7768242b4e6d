/* Recognise an image and check that it is whole. */
#include "runtime/image.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/error.h"

/* Read a little-endian number of up to 8 bytes. */
static uint64_t number(const unsigned char *at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;) {
        value = value << 8 | at[i];
    }
    return value;
}

/* Is [offset, offset + bytes) within `count` bytes? */
static bool within(uint64_t offset, uint64_t bytes, size_t count) {
    return offset <= count && bytes <= count - offset;
}

/* Does a section of this type take bytes of the file? Sections that only reserve memory do not: zero-initialised
 * memory, and CUDA's global, local and shared memory. */
static bool has_bytes(uint64_t type) {
    return type != 8 && type != 0x70000008 && type != 0x7000000a && type != 0x7000000e && type != 0x7000000f;
}

/* Does a 64-bit ELF file hold all its headers and sections? */
static bool elf_is_whole(const unsigned char *elf, size_t count) {
    enum { HEADER_BYTES = 64, CLASS_64 = 2, LITTLE = 1, SECTION_BYTES = 64, SEGMENT_BYTES = 56 };
    if (count < HEADER_BYTES || elf[4] != CLASS_64 || elf[5] != LITTLE) {
        return false;
    }
    const uint64_t segments = number(elf + 32, 8);
    const uint64_t sections = number(elf + 40, 8);
    const uint64_t segment_count = number(elf + 56, 2);
    const uint64_t section_count = number(elf + 60, 2);
    if (!within(segments, segment_count * SEGMENT_BYTES, count) ||
        !within(sections, section_count * SECTION_BYTES, count)) {
        return false;
    }
    if ((segment_count != 0 && number(elf + 54, 2) != SEGMENT_BYTES) ||
        (section_count != 0 && number(elf + 58, 2) != SECTION_BYTES)) {
        return false;
    }
    for (uint64_t i = 0; i < section_count; ++i) {
        const unsigned char *const section = elf + sections + i * SECTION_BYTES;
        if (has_bytes(number(section + 4, 4)) && !within(number(section + 24, 8), number(section + 32, 8), count)) {
            return false;
        }
    }
    return true;
}

/* Is a fat binary as long as its header says? */
static bool fat_is_whole(const unsigned char *fat, size_t count) {
    enum { HEADER_BYTES = 16 };
    return count >= HEADER_BYTES && within(number(fat + 6, 2), number(fat + 8, 8), count);
}

/* Check that a PTX text contains no NUL. */
static sm120_status check_text(const char *text, size_t count, const char *name) {
    const char *const end = memchr(text, '\0', count);
    if (end != NULL) {
        return fail(
            SM120_INVALID_PROGRAM,
            "%s: byte %zu of %zu is NUL, so this is not PTX text, and it has no header of a cubin or a fat binary",
            name, (size_t)(end - text), count);
    }
    return SM120_OK;
}

sm120_status image_copy(const void *bytes, size_t count, const char *name, struct image *image) {
    static const unsigned char elf[] = {0x7f, 'E', 'L', 'F'};
    static const unsigned char fat[] = {0x50, 0xed, 0x55, 0xba};
    const unsigned char *const start = bytes;
    sm120_status status = SM120_OK;
    image->is_ptx = false;
    if (count >= sizeof elf && memcmp(start, elf, sizeof elf) == 0) {
        if (!elf_is_whole(start, count)) {
            status = fail(SM120_INVALID_PROGRAM, "%s: the cubin of bytes = %zu is cut short or damaged", name, count);
        }
    } else if (count >= sizeof fat && memcmp(start, fat, sizeof fat) == 0) {
        if (!fat_is_whole(start, count)) {
            status = fail(SM120_INVALID_PROGRAM, "%s: the fat binary of bytes = %zu is cut short", name, count);
        }
    } else {
        while (count > 0 && start[count - 1] == '\0') {
            --count;
        }
        image->is_ptx = true;
        status = check_text(bytes, count, name);
    }
    if (status != SM120_OK) {
        return status;
    }
    image->bytes = malloc(count + 1);
    if (image->bytes == NULL) {
        return fail(SM120_OUT_OF_MEMORY, "%s: out of host memory", name);
    }
    memcpy(image->bytes, bytes, count);
    image->bytes[count] = '\0';
    return SM120_OK;
}
