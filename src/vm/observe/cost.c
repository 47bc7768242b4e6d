/* Cost of a warp's memory access, by the model in cost.h. */
#include "vm/observe/cost.h"

#include <string.h>

#include "vm/machine/base.h"
#include "vm/machine/types.h"

enum { BANKS = 32, WORD = 4, SECTOR = 32, LINE = 128, LINES = 4 /* of a pass of L1 */ };

/* Return whether every active lane has the same address as its partner, lane ^ distance, if that is active. */
static bool pairs_agree(uint32_t mask, const uint64_t *address, uint32_t distance) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest), partner = lane ^ distance;
        if ((mask >> partner & 1u) != 0 && address[partner] != address[lane]) {
            return false;
        }
    }
    return true;
}

/* Words that the lanes of one group access in each bank. */
struct wanted {
    uint32_t count[BANKS];
    uint64_t word[BANKS][WARP];
};

/* Add a word. A word that lanes may share is added only once. */
static void want(struct wanted *wanted, uint64_t word, bool is_shared) {
    const uint32_t bank = (uint32_t)(word % BANKS);
    for (uint32_t k = 0; is_shared && k < wanted->count[bank]; ++k) {
        if (wanted->word[bank][k] == word) {
            return;
        }
    }
    wanted->word[bank][wanted->count[bank]++] = word;
}

/* Return the number of wavefronts of one group. */
static uint32_t group_wavefronts(enum cost_kind kind, uint32_t bytes, uint32_t mask, const uint64_t *address) {
    struct wanted wanted;
    uint32_t most = 0;
    memset(wanted.count, 0, sizeof wanted.count);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint64_t first = address[lowest_bit(rest)] / WORD;
        for (uint32_t k = 0; k < (bytes + WORD - 1) / WORD; ++k) {
            want(&wanted, first + k, kind != ACCESS_IS_ATOMIC);
        }
    }
    for (uint32_t bank = 0; bank < BANKS; ++bank) {
        most = wanted.count[bank] > most ? wanted.count[bank] : most;
    }
    return most;
}

/* Return the lanes that one wavefront serves, if their words lie in different banks. */
static uint32_t lanes_of(uint32_t bytes, bool is_paired) {
    const uint32_t lanes = bytes <= WORD ? WARP : BANKS * WORD / bytes;
    return is_paired && lanes < WARP ? 2 * lanes : lanes;
}

static bool is_paired(enum cost_kind kind, uint32_t mask, const uint64_t *address) {
    return kind == ACCESS_IS_LOAD && (pairs_agree(mask, address, 1) || pairs_agree(mask, address, 2));
}

static uint32_t group_from(uint32_t first, uint32_t lanes, uint32_t mask) {
    return mask & (lanes == WARP ? FULL : ((1u << lanes) - 1) << first);
}

struct bank_cost cost_shared(enum cost_kind kind, uint32_t bytes, uint32_t mask, const uint64_t *address) {
    struct bank_cost cost = {0, 0, is_paired(kind, mask, address)};
    const uint32_t lanes = lanes_of(bytes, cost.is_paired);
    for (uint32_t first = 0; first < WARP; first += lanes) {
        const uint32_t group = group_from(first, lanes, mask);
        cost.ideal += group != 0;
        cost.wavefronts += group_wavefronts(kind, bytes, group, address);
    }
    return cost;
}

uint32_t cost_add_different(uint64_t *list, uint32_t count, uint64_t value) {
    for (uint32_t k = count; k-- > 0;) {
        if (list[k] == value) {
            return count;
        }
    }
    list[count] = value;
    return count + 1;
}

struct sector_cost cost_global(uint32_t bytes, uint32_t mask, const uint64_t *address) {
    uint64_t places[WARP], sectors[WARP], lines[WARP];
    struct sector_cost cost = {0};
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint64_t at = address[lowest_bit(rest)];
        cost.places = cost_add_different(places, cost.places, at);
        cost.sectors = cost_add_different(sectors, cost.sectors, at / SECTOR);
        cost.lines = cost_add_different(lines, cost.lines, at / LINE);
    }
    cost.ideal_sectors = (cost.places * bytes + SECTOR - 1) / SECTOR;
    cost.ideal_lines = (cost.places * bytes + LINE - 1) / LINE;
    return cost;
}

uint32_t cost_l1(uint32_t bytes, uint32_t mask, const uint64_t *address) {
    const uint32_t lanes = lanes_of(bytes, is_paired(ACCESS_IS_LOAD, mask, address));
    uint32_t passes = 0;
    for (uint32_t first = 0; first < WARP; first += lanes) {
        const uint32_t group = group_from(first, lanes, mask);
        const uint32_t by_banks = group_wavefronts(ACCESS_IS_LOAD, bytes, group, address);
        const uint32_t by_lines = (cost_global(bytes, group, address).lines + LINES - 1) / LINES;
        passes += by_banks > by_lines ? by_banks : by_lines;
    }
    return passes;
}

uint32_t cost_copy(uint32_t mask, const uint64_t *from, const uint64_t *to) {
    uint64_t sectors[WARP], blocks[WARP];
    uint32_t count = 0;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint32_t lane = lowest_bit(rest);
        const uint64_t sector = from[lane] / SECTOR, block = to[lane] / SECTOR;
        uint32_t k = 0;
        while (k < count && (sectors[k] != sector || blocks[k] != block)) {
            ++k;
        }
        sectors[k] = sector;
        blocks[k] = block;
        count += k == count;
    }
    return count;
}
