/* LZMA: matches and literals. A range coder codes each of their bits with an adaptive probability.
 *
 * A .lzma file is a header (1 byte: 45 pb + 9 lp + lc; 4: the dictionary's size; 8: the size of the data, all bits set
 * if only the end marker tells it), then the range coder's bytes. The output itself is the dictionary. */
#include "lzma.h"

#include <stdint.h>
#include <string.h>

enum {
    HEADER_BYTES = 13,
    PROPERTIES = 9 * 5 * 5, /* lc 0..8, lp 0..4, pb 0..4 */
    LITERAL_BITS_MAX = 4,   /* lc + lp */
    LITERAL_PROBABILITIES = 0x300,
    STATES = 12,
    LITERAL_STATES = 7, /* a state below this follows a literal */
    POSITIONS_MAX = 16, /* 1 << pb */
    PROBABILITY_BITS = 11,
    HALF = 1 << (PROBABILITY_BITS - 1),
    ADAPTION_SHIFT = 5,
    MATCH_MIN = 2,
    LENGTH_STATES = 4, /* distances have separate slots for match lengths 2, 3, 4, and 5 or more */
    SLOT_BITS = 6,
    ALIGN_BITS = 4,
    DIRECT_SLOT = 14, /* from this slot on, the middle bits of a distance have probability one half */
    DISTANCES = 115   /* probabilities of the low bits of slots 4 to 13 */
};
#define TOP        (1u << 24) /* below this range, the decoder reads another byte */
#define END_MARKER UINT32_MAX

typedef uint16_t probability; /* probability that a bit is 0, in 1 / 2048 */

struct lengths {
    probability is_mid, is_high;
    probability low[POSITIONS_MAX][1 << 3], mid[POSITIONS_MAX][1 << 3], high[1 << 8];
};

struct model {
    probability is_match[STATES][POSITIONS_MAX], is_repeat[STATES], is_older[STATES], is_older_1[STATES];
    probability is_older_2[STATES], is_long[STATES][POSITIONS_MAX];
    probability slot[LENGTH_STATES][1 << SLOT_BITS], distance[DISTANCES], align[1 << ALIGN_BITS];
    struct lengths match, repeat;
    probability literal[LITERAL_PROBABILITIES << LITERAL_BITS_MAX];
};

struct decoder {
    const unsigned char *next, *end;
    uint32_t range, code;
    bool is_short; /* the decoder read beyond the last byte */
    unsigned lc, lp, pb;
    struct model model;
};

/* ---- the range coder ---- */

/* Read another byte if the range is small. */
static inline void normalize(struct decoder *d) {
    if (d->range < TOP) {
        d->range <<= 8;
        d->code <<= 8;
        if (d->next < d->end) {
            d->code |= *d->next++;
        } else {
            d->is_short = true;
        }
    }
}

/* Decode a bit. */
static inline unsigned bit(struct decoder *d, probability *p) {
    const uint32_t bound = (d->range >> PROBABILITY_BITS) * *p;
    unsigned found = 0;
    if (d->code < bound) {
        d->range = bound;
        *p = (probability)(*p + (((1 << PROBABILITY_BITS) - *p) >> ADAPTION_SHIFT));
    } else {
        d->range -= bound;
        d->code -= bound;
        *p = (probability)(*p - (*p >> ADAPTION_SHIFT));
        found = 1;
    }
    normalize(d);
    return found;
}

/* Decode bits of probability one half, the highest first. */
static uint32_t direct(struct decoder *d, unsigned count) {
    uint32_t found = 0;
    while (count-- > 0) {
        d->range >>= 1;
        const uint32_t is_one = d->code >= d->range;
        d->code -= is_one ? d->range : 0;
        found = found << 1 | is_one;
        normalize(d);
    }
    return found;
}

/* Decode bits, the highest first; each has the probability of those before it. */
static inline uint32_t tree(struct decoder *d, probability *p, unsigned count) {
    uint32_t at = 1;
    for (unsigned i = 0; i < count; ++i) {
        at = at << 1 | bit(d, p + at);
    }
    return at - (1u << count);
}

/* Decode bits, the lowest first. `p` counts from 1. */
static uint32_t reverse_tree(struct decoder *d, probability *p, unsigned count) {
    uint32_t at = 1, found = 0;
    for (unsigned i = 0; i < count; ++i) {
        const uint32_t one = bit(d, p + at);
        at = at << 1 | one;
        found |= one << i;
    }
    return found;
}

/* ---- symbols ---- */

/* Decode the literal at `place`; `matched` is the byte at the last distance, or -1 after a literal. */
static inline unsigned char literal(struct decoder *d, size_t place, unsigned before, int matched) {
    const size_t row = (((place & ((1u << d->lp) - 1)) << d->lc) + (before >> (8 - d->lc)));
    probability *const p = d->model.literal + LITERAL_PROBABILITIES * row;
    unsigned symbol = 1;
    if (matched >= 0) {
        unsigned other = (unsigned)matched;
        while (symbol < 0x100) {
            const unsigned wanted = other >> 7 & 1;
            const unsigned found = bit(d, p + ((1 + wanted) << 8) + symbol);
            other <<= 1;
            symbol = symbol << 1 | found;
            if (wanted != found) {
                break;
            }
        }
    }
    while (symbol < 0x100) {
        symbol = symbol << 1 | bit(d, p + symbol);
    }
    return (unsigned char)symbol;
}

/* Decode a length. */
static uint32_t length(struct decoder *d, struct lengths *l, size_t position) {
    if (bit(d, &l->is_mid) == 0) {
        return MATCH_MIN + tree(d, l->low[position], 3);
    }
    if (bit(d, &l->is_high) == 0) {
        return MATCH_MIN + 8 + tree(d, l->mid[position], 3);
    }
    return MATCH_MIN + 16 + tree(d, l->high, 8);
}

/* Decode the distance of a match, less 1. */
static uint32_t distance(struct decoder *d, uint32_t count) {
    struct model *const m = &d->model;
    const uint32_t state = count - MATCH_MIN;
    const uint32_t slot = tree(d, m->slot[state < LENGTH_STATES ? state : LENGTH_STATES - 1], SLOT_BITS);
    if (slot < 4) {
        return slot;
    }
    const unsigned low_bits = (slot >> 1) - 1;
    const uint32_t high = (2 | (slot & 1)) << low_bits;
    if (slot < DIRECT_SLOT) {
        return high + reverse_tree(d, m->distance + (high - slot), low_bits);
    }
    const uint32_t middle = direct(d, low_bits - ALIGN_BITS) << ALIGN_BITS;
    return high + middle + reverse_tree(d, m->align, ALIGN_BITS);
}

/* The state of the decoder beside the probabilities. */
struct history {
    uint32_t distances[4]; /* distances of the last matches, less 1, the latest first */
    unsigned state;
};

/* Decode which of the last distances a match repeats and put it first. Returns the match's length, 1 for a short
 * repeat. */
static uint32_t repeated(struct decoder *d, struct history *h, size_t position) {
    struct model *const m = &d->model;
    unsigned which = 0;
    if (bit(d, m->is_older + h->state) == 0) {
        if (bit(d, m->is_long[h->state] + position) == 0) {
            h->state = h->state < LITERAL_STATES ? 9 : 11;
            return 1;
        }
    } else if (bit(d, m->is_older_1 + h->state) == 0) {
        which = 1;
    } else {
        which = 2 + bit(d, m->is_older_2 + h->state);
    }
    const uint32_t chosen = h->distances[which];
    memmove(h->distances + 1, h->distances, which * sizeof *h->distances);
    h->distances[0] = chosen;
    h->state = h->state < LITERAL_STATES ? 8 : 11;
    return length(d, &m->repeat, position);
}

/* Decode a match with a new distance. Returns its length. */
static uint32_t matched(struct decoder *d, struct history *h, size_t position) {
    const uint32_t count = length(d, &d->model.match, position);
    memmove(h->distances + 1, h->distances, 3 * sizeof *h->distances);
    h->distances[0] = distance(d, count);
    h->state = h->state < LITERAL_STATES ? 7 : 10;
    return count;
}

/* Decode until the end marker. */
static bool decode(struct decoder *d, unsigned char *to, size_t bytes) {
    struct history h = {{0}, 0};
    size_t at = 0;
    while (!d->is_short) {
        const size_t position = at & ((1u << d->pb) - 1);
        if (bit(d, d->model.is_match[h.state] + position) == 0) {
            if (at == bytes) {
                return false;
            }
            const int other = h.state < LITERAL_STATES ? -1 : to[at - h.distances[0] - 1];
            to[at] = literal(d, at, at > 0 ? to[at - 1] : 0, other);
            at += 1;
            h.state = h.state < 4 ? 0 : h.state < 10 ? h.state - 3 : h.state - 6;
            continue;
        }
        const bool is_repeat = bit(d, d->model.is_repeat + h.state) != 0;
        const uint32_t count = is_repeat ? repeated(d, &h, position) : matched(d, &h, position);
        if (!is_repeat && h.distances[0] == END_MARKER) {
            return at == bytes && d->code == 0 && d->next == d->end && !d->is_short;
        }
        if (h.distances[0] >= at || count > bytes - at) {
            return false;
        }
        for (const size_t end = at + count; at < end; ++at) {
            to[at] = to[at - h.distances[0] - 1]; /* byte by byte: the two may overlap */
        }
    }
    return false;
}

bool lzma_decode(const void *packed, size_t packed_bytes, void *to, size_t bytes) {
    const unsigned char *const in = packed;
    struct decoder d;
    uint64_t size = 0;
    /* The range coder begins with a 0 byte and the 4 bytes of its first code. */
    if (packed_bytes < HEADER_BYTES + 5 || in[0] >= PROPERTIES || in[HEADER_BYTES] != 0) {
        return false;
    }
    for (unsigned i = 0; i < 8; ++i) {
        size |= (uint64_t)in[5 + i] << 8 * i;
    }
    d.lc = in[0] % 9u;
    d.lp = in[0] / 9u % 5u;
    d.pb = in[0] / 45u;
    if (d.lc + d.lp > LITERAL_BITS_MAX || (size != UINT64_MAX && size != bytes)) {
        return false;
    }
    d.range = UINT32_MAX;
    d.code = 0;
    for (unsigned i = 1; i < 5; ++i) {
        d.code = d.code << 8 | in[HEADER_BYTES + i];
    }
    d.next = in + HEADER_BYTES + 5;
    d.end = in + packed_bytes;
    d.is_short = false;
    probability *const all = (probability *)&d.model;
    for (size_t i = 0; i < sizeof d.model / sizeof *all; ++i) {
        all[i] = HALF;
    }
    return decode(&d, to, bytes);
}
