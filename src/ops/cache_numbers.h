/* Checks of the lengths, page numbers and slots of a cache, which lie in device memory. */
#ifndef SM120_CACHE_NUMBERS_H
#define SM120_CACHE_NUMBERS_H

#include "runtime/device.h"

/* Where the numbers are, and what they may be. Address 0: not given. */
struct cache_numbers {
    struct device *device;
    sm120_stream stream;
    int64_t batch, pages, page_rows, table_pages;
    sm120_address page_table, page_indptr, last_page, kv_lengths;
    int64_t rows, most, new_rows; /* rows: keys of a sequence without kv_lengths; most: the largest length, with
                                     new_rows keys that lengths do not count */
};

/* What all calls with a cache say of it. */
#define CACHE_NUMBERS(on, args)                                                                                        \
    .device = (on), .stream = (args)->stream, .batch = (args)->batch, .pages = (args)->pages,                          \
    .page_rows = (args)->page_rows, .table_pages = (args)->table_pages, .page_table = (args)->page_table,              \
    .kv_lengths = (args)->kv_lengths

/* Whether calls check numbers in device memory: on the virtual device, unless its checks are off. A call on a GPU does
 * not wait for what is in front of it in the stream, so it cannot read them. */
bool numbers_are_checked(const struct device *device);

/* Check the lengths of all sequences, and the pages of keys from 0 on: at most `limit` of them. */
sm120_status numbers_check_keys(const struct cache_numbers *numbers, int64_t limit);

/* Where a rotation finds the row of a token in its tables; cosines 0: there is none. */
struct rotary_numbers {
    sm120_address cosines, positions; /* positions 0: a token's key */
    int64_t rows;                     /* of the tables */
};

/* Check the lengths of all sequences, and the pages and positions of the last `tokens` keys, new rows included. */
sm120_status numbers_check_tokens(const struct cache_numbers *numbers, int64_t tokens,
                                  const struct rotary_numbers *rotary);

/* Check `count` slots, below the rows of all pages, or below 0 for none, and the positions of tokens that have one. */
sm120_status numbers_check_slots(const struct cache_numbers *numbers, sm120_address slots, int64_t count,
                                 const struct rotary_numbers *rotary);

#endif
