/* Checks of the lengths, page numbers and slots of a cache, which lie in device memory. */
#include "ops/cache_numbers.h"

#include <inttypes.h>

#include "runtime/error.h"

enum { AT_ONCE = 256 }; /* numbers that are read at once */

bool numbers_are_checked(const struct device *device) {
    return device->driver->checks != NULL && device->driver->checks();
}

/* Read numbers behind the work of the stream. The copy has ended when the virtual device returns. */
static sm120_status read_numbers(const struct cache_numbers *x, const char *name, sm120_address array, int64_t first,
                                 int64_t count, size_t bytes, void *to) {
    const struct driver *const driver = x->device->driver;
    const CUresult result =
        driver->cuMemcpyDtoHAsync(to, array + (uint64_t)first * bytes, (size_t)count * bytes, (CUstream)x->stream);
    return result == CUDA_SUCCESS
               ? SM120_OK
               : driver_fail(driver, result, "checking %s, %" PRId64 " numbers from [%" PRId64 "] on", name, count,
                             first);
}

/* Check page numbers from `begin` to `end` - 1 of a sequence whose page numbers begin at entry `at`; batch -1: of a
 * list. */
static sm120_status check_pages(const struct cache_numbers *x, int64_t batch, int64_t at, int64_t begin, int64_t end) {
    int32_t page[AT_ONCE];
    sm120_status status = SM120_OK;
    for (int64_t n = begin; n < end && status == SM120_OK; n += AT_ONCE) {
        const int64_t count = end - n < AT_ONCE ? end - n : AT_ONCE;
        status = read_numbers(x, "page_table", x->page_table, at + n, count, sizeof *page, page);
        for (int64_t i = 0; i < count && status == SM120_OK; ++i) {
            if (page[i] >= 0 && page[i] < x->pages) {
                continue;
            }
            if (batch < 0) {
                return fail(SM120_FAULT,
                            "page_table[%" PRId64 "] = %" PRId32 "; it must be from 0 to %" PRId64
                            ", a page of the cache",
                            at + n + i, page[i], x->pages - 1);
            }
            return fail(SM120_FAULT,
                        "page_table[%" PRId64 ", %" PRId64 "] = %" PRId32 "; it must be from 0 to %" PRId64
                        ", a page of the cache",
                        batch, n + i, page[i], x->pages - 1);
        }
    }
    return status;
}

/* Check the pages of keys from `first` to `end` - 1. */
static sm120_status check_keys(const struct cache_numbers *x, int64_t batch, int64_t first, int64_t end) {
    const int64_t begin = first > 0 ? first / x->page_rows : 0, pages = (end + x->page_rows - 1) / x->page_rows;
    return x->page_table == 0
               ? SM120_OK
               : check_pages(x, batch, batch * x->table_pages, begin, pages < x->table_pages ? pages : x->table_pages);
}

/* Read and check the length of a sequence; `rows` without lengths. */
static sm120_status read_length(const struct cache_numbers *x, int64_t batch, int64_t *length) {
    int32_t value = 0;
    *length = x->rows;
    if (x->kv_lengths == 0) {
        return SM120_OK;
    }
    const sm120_status status = read_numbers(x, "kv_lengths", x->kv_lengths, batch, 1, sizeof value, &value);
    const int64_t most = x->most - x->new_rows;
    if (status == SM120_OK && (value < 0 || value > most)) {
        return fail(SM120_FAULT,
                    "kv_lengths[%" PRId64 "] = %" PRId32 "; it must be from 0 to %" PRId64 ", the rows of its pages%s",
                    batch, value, most, x->new_rows != 0 ? " without those of the new tokens" : "");
    }
    *length = value;
    return status;
}

/* Check the list of pages of a sequence. */
static sm120_status check_list(const struct cache_numbers *x, int64_t batch) {
    int32_t ends[2], last = 0;
    sm120_status status = read_numbers(x, "page_indptr", x->page_indptr, batch, 2, sizeof *ends, ends);
    for (int i = 0; i < 2 && status == SM120_OK; ++i) {
        const int32_t least = i == 0 ? 0 : ends[0];
        if (ends[i] < least || ends[i] > x->table_pages) {
            return fail(SM120_FAULT,
                        "page_indptr[%" PRId64 "] = %" PRId32 "; it must be from %" PRId32 "%s to %" PRId64
                        ", the page numbers",
                        batch + i, ends[i], least, i == 0 ? "" : ", the one before it,", x->table_pages);
        }
    }
    if (status != SM120_OK || ends[0] == ends[1]) {
        return status;
    }
    status = read_numbers(x, "last_page", x->last_page, batch, 1, sizeof last, &last);
    if (status == SM120_OK && (last < 1 || last > x->page_rows)) {
        return fail(SM120_FAULT,
                    "last_page[%" PRId64 "] = %" PRId32 "; it must be from 1 to %" PRId64 ", the rows of a page", batch,
                    last, x->page_rows);
    }
    return status == SM120_OK ? check_pages(x, -1, ends[0], 0, (int64_t)ends[1] - ends[0]) : status;
}

sm120_status numbers_check_keys(const struct cache_numbers *x, int64_t limit) {
    sm120_status status = SM120_OK;
    for (int64_t batch = 0; batch < x->batch && status == SM120_OK; ++batch) {
        int64_t length = 0;
        if (x->page_indptr != 0) {
            status = check_list(x, batch);
            continue;
        }
        status = read_length(x, batch, &length);
        status = status == SM120_OK ? check_keys(x, batch, 0, length < limit ? length : limit) : status;
    }
    return status;
}

/* Check the positions of `count` tokens from token `first` on, except where slot[i] is below 0; NULL: no slots. */
static sm120_status check_positions(const struct cache_numbers *x, const struct rotary_numbers *rotary, int64_t first,
                                    int64_t count, const int64_t *slot) {
    int32_t position[AT_ONCE];
    sm120_status status = SM120_OK;
    for (int64_t n = 0; n < count && status == SM120_OK; n += AT_ONCE) {
        const int64_t here = count - n < AT_ONCE ? count - n : AT_ONCE;
        status = read_numbers(x, "positions", rotary->positions, first + n, here, sizeof *position, position);
        for (int64_t i = 0; i < here && status == SM120_OK; ++i) {
            if ((slot == NULL || slot[n + i] >= 0) && (position[i] < 0 || position[i] >= rotary->rows)) {
                return fail(SM120_FAULT,
                            "positions[%" PRId64 "] = %" PRId32 "; it must be from 0 to %" PRId64
                            ", a row of rotary_cos",
                            first + n + i, position[i], rotary->rows - 1);
            }
        }
    }
    return status;
}

sm120_status numbers_check_tokens(const struct cache_numbers *x, int64_t tokens, const struct rotary_numbers *rotary) {
    sm120_status status = SM120_OK;
    for (int64_t batch = 0; batch < x->batch && status == SM120_OK; ++batch) {
        int64_t length = 0;
        status = read_length(x, batch, &length);
        const int64_t end = length + x->new_rows, first = end < tokens ? tokens - end : 0;
        status = status == SM120_OK ? check_keys(x, batch, end - tokens, end) : status;
        if (status != SM120_OK || rotary->cosines == 0) {
            continue;
        }
        if (rotary->positions != 0) {
            status = check_positions(x, rotary, batch * tokens + first, tokens - first, NULL);
        } else if (end > rotary->rows) {
            return fail(SM120_FAULT,
                        "kv_lengths[%" PRId64 "] = %" PRId64 "; key %" PRId64
                        " has no position: it must be from 0 to %" PRId64 ", a row of rotary_cos",
                        batch, length, end - 1, rotary->rows - 1);
        }
    }
    return status;
}

sm120_status numbers_check_slots(const struct cache_numbers *x, sm120_address slots, int64_t count,
                                 const struct rotary_numbers *rotary) {
    int64_t slot[AT_ONCE];
    const int64_t end = x->pages * x->page_rows; /* below 2^31 */
    sm120_status status = SM120_OK;
    for (int64_t first = 0; first < count && status == SM120_OK; first += AT_ONCE) {
        const int64_t here = count - first < AT_ONCE ? count - first : AT_ONCE;
        status = read_numbers(x, "slots", slots, first, here, sizeof *slot, slot);
        for (int64_t i = 0; i < here && status == SM120_OK; ++i) {
            if (slot[i] >= end) {
                return fail(SM120_FAULT,
                            "slots[%" PRId64 "] = %" PRId64 "; it must be from 0 to %" PRId64
                            ", the rows of all pages, or below 0 for none",
                            first + i, slot[i], end - 1);
            }
        }
        if (status == SM120_OK && rotary->positions != 0) {
            status = check_positions(x, rotary, first, here, slot);
        }
    }
    return status;
}
