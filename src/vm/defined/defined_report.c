/* Origins of undefined values (births), and the texts of reports. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/thread.h"
#include "vm/defined/defined.h"
#include "vm/machine/base.h"
#include "vm/machine/cta.h"
#include "vm/machine/device.h"
#include "vm/machine/fault.h"
#include "vm/machine/program.h"
#include "vm/machine/types.h"
#include "vm/machine/watch.h"

enum { MOST_BIRTHS = 1 << 20, UNKNOWN = 1, FOUND = 1 << 12, MOST_STORED = 1 << 16, TEXT = 400 };

/* ---- births -------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Clear all births. Number 1 stands for all births beyond the limit. Return false when out of memory. */
bool births_start(struct defined *d) {
    if (d->birth == NULL) {
        d->birth = malloc(64 * sizeof *d->birth);
        d->birth_space = d->birth != NULL ? 64 : 0;
    }
    if (d->found == NULL) {
        d->found = malloc(FOUND * sizeof *d->found);
    }
    if (d->found_stored == NULL) {
        d->found_stored = malloc(FOUND * sizeof *d->found);
    }
    if (d->birth == NULL || d->found == NULL || d->found_stored == NULL) {
        return false;
    }
    memset(d->found, 0, FOUND * sizeof *d->found);
    memset(d->found_stored, 0, FOUND * sizeof *d->found);
    memset(d->birth, 0, 2 * sizeof *d->birth);
    d->births = 2;
    return true;
}

uint32_t birth_make(struct defined *d, enum born born, uint32_t pc, uint32_t slot, uint64_t address) {
    const uint64_t key = mix(mix(mix((uint64_t)pc << 8 | (uint64_t)born) + slot) + address) | 1u;
    if (d->found[key >> 1 & (FOUND - 1)].key == key) {
        return d->found[key >> 1 & (FOUND - 1)].number;
    }
    if (d->births == d->birth_space && d->birth_space < MOST_BIRTHS) {
        struct birth *grown = realloc(d->birth, 2 * d->birth_space * sizeof *grown);
        d->birth = grown != NULL ? grown : d->birth;
        d->birth_space = grown != NULL ? 2 * d->birth_space : d->birth_space;
    }
    if (d->births == d->birth_space) {
        return UNKNOWN;
    }
    d->birth[d->births] = (struct birth){.address = address, .pc = pc, .slot = slot, .born = born};
    d->found[key >> 1 & (FOUND - 1)].key = key;
    d->found[key >> 1 & (FOUND - 1)].number = d->births;
    return d->births++;
}

uint32_t birth_of(struct defined *d, const struct event *e, uint32_t slot, uint32_t lane) {
    const struct defined_warp *u = &d->warp[e->warp->index];
    if ((u->whole[slot / 128] >> lane & 1u) != 0) {
        return birth_make(d, BORN_REGISTER, e->pc, slot, 0);
    }
    return u->birth[slot / 128 * WARP + lane];
}

uint32_t birth_of_predicate(struct defined *d, const struct event *e, uint32_t number, uint32_t lane) {
    const uint32_t birth = d->warp[e->warp->index].predicate_birth[number * WARP + lane];
    return birth != 0 ? birth : birth_make(d, BORN_PREDICATE, e->pc, number, 0);
}

/* ---- names --------------------------------------------------------------------------------------------------- */

/* Return the name of a register or predicate in the operands of an instruction, or NULL. */
static const char *name_at(const struct place *at, uint32_t slot, bool predicate) {
    for (uint32_t k = 0; k < at->uses; ++k) {
        if (at->use[k].slot == slot && (at->use[k].type == T_PRED) == predicate) {
            return at->use[k].name;
        }
    }
    return NULL;
}

/* Return the name of a register: in the statement of this instruction, else anywhere in the program. */
static const char *name_of(const struct CUfunc_st *f, uint32_t pc, uint32_t slot, bool predicate) {
    const char *name = NULL;
    for (uint32_t k = pc; k < f->length && name == NULL; ++k) {
        name = name_at(&f->places[k], slot, predicate);
        if (predicate && f->code[k].guard == slot && f->places[k].guard != NULL) {
            name = f->places[k].guard;
        }
        if (f->places[k].opcode != UINT32_MAX) {
            break;
        }
    }
    for (uint32_t k = 0; k < f->length && name == NULL; ++k) {
        name = name_at(&f->places[k], slot, predicate);
        if (predicate && f->code[k].guard == slot && f->places[k].guard != NULL) {
            name = f->places[k].guard;
        }
    }
    return name != NULL || !predicate || slot != 1 ? name : "CC.CF";
}

/* Return the register or predicate that a statement reads and that is undefined in a lane. Used when the undefined
 * value is in a temporary. */
static const struct use *use_in(const struct defined_warp *u, const struct CUfunc_st *f, uint32_t pc, uint32_t lane) {
    while (f->places[pc].opcode == UINT32_MAX && pc + 1 < f->length) {
        ++pc;
    }
    const struct place *at = &f->places[pc];
    for (uint32_t k = 0; k < at->uses; ++k) {
        const struct use *use = &at->use[k];
        const uint32_t lanes = use->type == T_PRED ? u->predicate[use->slot] : some_of(u, use->slot);
        if (use->is_write == 0 && (lanes >> lane & 1u) != 0) {
            return use;
        }
    }
    return NULL;
}

/* ---- texts --------------------------------------------------------------------------------------------------- */

void birth_text(const struct defined *d, const struct warp *w, uint32_t birth, char *to, size_t bytes) {
    const struct CUfunc_st *f = w->function;
    const struct birth *b = &d->birth[birth];
    if (birth <= UNKNOWN) {
        snprintf(to, bytes, "it came from a register or memory that was never written");
        return;
    }
    const struct place *at = &f->places[b->pc];
    const char *name, *spaces[] = {[BORN_SHARED] = "shared", [BORN_LOCAL] = "local", [BORN_GLOBAL] = "global"};
    switch (b->born) {
    case BORN_REGISTER:
    case BORN_PREDICATE:
        name = name_of(f, b->pc, b->slot, b->born == BORN_PREDICATE);
        snprintf(to, bytes, "%s %s was never written before it was read at %s",
                 b->born == BORN_REGISTER ? "register" : "predicate", name != NULL ? name : "of a temporary",
                 spot_of(at).text);
        break;
    case BORN_LANE:
        snprintf(to, bytes, "it was read at %s from lane %u, which is inactive", spot_of(at).text, b->slot);
        break;
    case BORN_QUOTIENT:
        snprintf(to, bytes, "it is the quotient or remainder of a division by zero at %s", spot_of(at).text);
        break;
    case BORN_STORED:
        snprintf(to, bytes, "%s", stored_text(d->device, (uint32_t)b->address));
        break;
    default:
        snprintf(to, bytes, "%s address 0x%llx was never written before it was read at %s", spaces[b->born],
                 (unsigned long long)b->address, spot_of(at).text);
    }
}

/* ---- values stored by kernels -------------------------------------------------------------------------------- */

/* The texts of a device, and their hashes. */
struct stored {
    uint64_t hash[2 * MOST_STORED];
    uint32_t number[2 * MOST_STORED];
    char *text[MOST_STORED];
    uint32_t count;
};

void stored_free(struct stored *s) {
    for (uint32_t k = 0; s != NULL && k < s->count; ++k) {
        free(s->text[k]);
    }
    free(s);
}

const char *stored_text(struct device *device, uint32_t number) {
    mutex_lock(&device->running_lock);
    const struct stored *s = device->stored;
    const char *const text =
        s != NULL && number != 0 && number <= s->count ? s->text[number - 1] : "a kernel stored it";
    mutex_unlock(&device->running_lock);
    return text;
}

static uint64_t hash_text(const char *text) {
    uint64_t hash = 14695981039346656037u;
    for (; *text != '\0'; ++text) {
        hash = (hash ^ (uint8_t)*text) * 1099511628211u;
    }
    return hash | 1u;
}

/* Return the number of a text. A new text gets `where` appended. The lock is held. Return 0 when out of memory. */
static uint32_t stored_number(struct device *device, const char *text, const char *where) {
    if (device->stored == NULL && (device->stored = calloc(1, sizeof *device->stored)) == NULL) {
        return 0;
    }
    struct stored *s = device->stored;
    const uint64_t hash = hash_text(text);
    uint32_t k = (uint32_t)(hash >> 1) % (2 * MOST_STORED);
    for (; s->hash[k] != 0; k = (k + 1) % (2 * MOST_STORED)) {
        if (s->hash[k] == hash) {
            return s->number[k];
        }
    }
    const size_t length = strlen(text) + strlen(where) + 1;
    char *copy = s->count < MOST_STORED ? malloc(length) : NULL;
    if (copy == NULL) {
        return 0;
    }
    snprintf(copy, length, "%s%s", text, where);
    s->hash[k] = hash;
    s->text[s->count] = copy;
    return s->number[k] = ++s->count;
}

uint32_t birth_stored(struct defined *d, const struct warp *w, uint32_t lane, uint32_t birth) {
    char text[FAULT_BYTES], from[TEXT], where[100];
    const struct place *at = &w->function->places[w->pc];
    const uint32_t *cta = warp_member(w)->id;
    if (d->birth[birth].born == BORN_STORED && birth > UNKNOWN) {
        return (uint32_t)d->birth[birth].address;
    }
    const uint64_t key = mix((uint64_t)w->pc << 32 | birth) | 1u;
    struct found *cached = &d->found_stored[key >> 1 & (FOUND - 1)];
    if (cached->key == key) {
        return cached->number;
    }
    birth_text(d, w, birth, from, sizeof from);
    if (d->birth[birth].born == BORN_DISCARDED && birth > UNKNOWN) {
        snprintf(text, sizeof text, "%s discarded it at %s", w->function->name, spot_of(at).text);
    } else {
        snprintf(text, sizeof text, "%s stored it at %s, and %s", w->function->name, spot_of(at).text, from);
    }
    snprintf(where, sizeof where, " (CTA %u,%u,%u, warp %u, lane %u)", cta[0], cta[1], cta[2], w->number, lane);
    mutex_lock(&d->device->running_lock);
    const uint32_t number = stored_number(d->device, text, where);
    mutex_unlock(&d->device->running_lock);
    cached->key = key;
    return cached->number = number;
}

/* ---- reports ------------------------------------------------------------------------------------------------- */

/* Report that an undefined value decides something. */
static enum step report(struct defined *d, const struct event *e, const char *what, const char *kind, const char *name,
                        uint32_t lane, uint32_t birth) {
    char from[2 * TEXT];
    birth_text(d, e->warp, birth, from, sizeof from);
    return fault_at(e->warp, CUDA_ERROR_LAUNCH_FAILED, lane,
                    "%s is decided by %s %s, which is undefined: %s; expected a defined value", what, kind, name, from);
}

enum step decided_by(struct defined *d, const struct event *e, const char *what, uint32_t slot) {
    const uint32_t lanes = some_of(defined_of(d, e), slot) & e->mask;
    if (LIKELY(!lanes)) {
        return STEP_NEXT;
    }
    const uint32_t lane = lowest_bit(lanes);
    const char *name = name_of(e->warp->function, e->pc, slot, false), *kind = "register";
    const struct use *use = name != NULL ? NULL : use_in(defined_of(d, e), e->warp->function, e->pc, lane);
    if (use != NULL) {
        name = use->name;
        kind = use->type == T_PRED ? "predicate" : kind;
    }
    return report(d, e, what, kind, name != NULL ? name : "of a temporary", lane, birth_of(d, e, slot, lane));
}

enum step decided_by_predicate(struct defined *d, const struct event *e, const char *what, uint32_t number,
                               uint32_t taking_part) {
    const uint32_t lanes = defined_of(d, e)->predicate[number] & taking_part;
    if (LIKELY(!lanes)) {
        return STEP_NEXT;
    }
    const uint32_t lane = lowest_bit(lanes);
    return report(d, e, what, "predicate", name_of(e->warp->function, e->pc, number, true), lane,
                  birth_of_predicate(d, e, number, lane));
}
