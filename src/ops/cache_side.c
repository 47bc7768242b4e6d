/* The form in which a cache holds K or V, by the dtypes that the caller gives. */
#include "ops/cache_side.h"

#include <inttypes.h>

#include "generated/constants.h"
#include "runtime/error.h"

enum { MX_BLOCK = 32, NV_BLOCK = 16, SWIZZLE = 4 };

/* Find the form by the dtype of the elements and the scales that there are. */
static sm120_status find_form(struct cache_side *side, uint32_t plain, const char *plain_name) {
    const sm120_tensor *const elements = side->given[CACHE_ELEMENTS];
    const sm120_tensor *const blocks = side->given[CACHE_BLOCKS], *const scale = side->given[CACHE_SCALE];
    const bool has_blocks = blocks->address != 0;
    if (elements->dtype == plain) {
        side->form = KV_FORMAT_COPY;
    } else if (side->casts && (elements->dtype == SM120_BF16 || elements->dtype == SM120_F16)) {
        side->form = KV_FORMAT_CAST;
    } else if (elements->dtype == SM120_E4M3) {
        side->form = has_blocks ? KV_FORMAT_MXFP8 : KV_FORMAT_E4M3;
    } else if (elements->dtype == SM120_E5M2) {
        side->form = KV_FORMAT_E5M2;
    } else if (elements->dtype == SM120_U8) {
        side->form = KV_FORMAT_NVFP4;
    } else if (side->casts) {
        return fail(SM120_INVALID_ARGUMENT, "%s.dtype = %s; it must be %s, %s, %s, %s or %s",
                    side->name[CACHE_ELEMENTS], dtype_text(elements->dtype).text, dtype_text(SM120_BF16).text,
                    dtype_text(SM120_F16).text, dtype_text(SM120_E4M3).text, dtype_text(SM120_E5M2).text,
                    dtype_text(SM120_U8).text);
    } else {
        return fail(SM120_INVALID_ARGUMENT, "%s.dtype = %s; it must be that of %s, %s, or %s, %s or %s",
                    side->name[CACHE_ELEMENTS], dtype_text(elements->dtype).text, plain_name, dtype_text(plain).text,
                    dtype_text(SM120_E4M3).text, dtype_text(SM120_E5M2).text, dtype_text(SM120_U8).text);
    }
    const bool is_blocked = side->form == KV_FORMAT_MXFP8 || side->form == KV_FORMAT_NVFP4;
    const uint32_t wanted = side->form == KV_FORMAT_NVFP4 ? SM120_E4M3 : SM120_E8M0;
    if (has_blocks != is_blocked) {
        return fail(SM120_INVALID_ARGUMENT, "%s.address = 0x%" PRIx64 "; %s.dtype = %s %s", side->name[CACHE_BLOCKS],
                    blocks->address, side->name[CACHE_ELEMENTS], dtype_text(elements->dtype).text,
                    is_blocked ? "needs scales in blocks" : "has no scales in blocks");
    }
    if (is_blocked && blocks->dtype != wanted) {
        return fail(SM120_INVALID_ARGUMENT, "%s.dtype = %s; with %s.dtype = %s it must be %s", side->name[CACHE_BLOCKS],
                    dtype_text(blocks->dtype).text, side->name[CACHE_ELEMENTS], dtype_text(elements->dtype).text,
                    dtype_text(wanted).text);
    }
    const bool is_scaled =
        side->form == KV_FORMAT_E4M3 || side->form == KV_FORMAT_E5M2 || side->form == KV_FORMAT_NVFP4;
    if (scale->address != 0 && !is_scaled) {
        return fail(SM120_INVALID_ARGUMENT,
                    "%s.address = 0x%" PRIx64 "; only E4M3 and E5M2 without scales in blocks, and NVFP4 have it",
                    side->name[CACHE_SCALE], scale->address);
    }
    if (scale->address != 0 && scale->dtype != SM120_F32) {
        return fail(SM120_INVALID_ARGUMENT, "%s.dtype = %s; it must be %s", side->name[CACHE_SCALE],
                    dtype_text(scale->dtype).text, dtype_text(SM120_F32).text);
    }
    return SM120_OK;
}

sm120_status cache_side_check(struct cache_side *side, const struct shape *whole, uint32_t plain,
                              const char *plain_name, enum tensor_role role) {
    sm120_status status = find_form(side, plain, plain_name);
    if (status != SM120_OK) {
        return status;
    }
    const int64_t columns = whole->head_dim;
    const bool is_4_bits = side->form == KV_FORMAT_NVFP4;
    const int64_t block = is_4_bits ? NV_BLOCK : MX_BLOCK;
    if (is_4_bits && columns % 2 != 0) {
        return fail(SM120_INVALID_ARGUMENT,
                    "%s.dtype = U8 holds pairs of elements; the head size %" PRId64 " must be even",
                    side->name[CACHE_ELEMENTS], columns);
    }
    const int64_t widths[CACHE_ROLES] = {is_4_bits ? columns / 2 : columns, (columns + block - 1) / block, 1};
    for (int i = 0; i < CACHE_ROLES; ++i) {
        side->shape[i] = *whole;
        side->shape[i].head_dim = widths[i];
        side->tensor[i] = (struct tensor){.name = side->name[i]};
        if (status == SM120_OK && (i == CACHE_ELEMENTS || side->given[i]->address != 0)) {
            status = tensor_check_strides(side->name[i], side->given[i], &side->shape[i],
                                          i == CACHE_SCALE ? TENSOR_SPREAD : role, side->tensor + i);
        }
    }
    return status;
}

sm120_status cache_side_check_swizzle(const struct cache_side *v, uint32_t v_swizzled, const struct shape *whole) {
    if (v_swizzled > 1) {
        return fail(SM120_INVALID_ARGUMENT, "v_swizzled = %" PRIu32 "; it must be 0 or 1", v_swizzled);
    }
    if (v_swizzled == 1 &&
        (v->form != KV_FORMAT_NVFP4 || whole->head_dim % (SWIZZLE * NV_BLOCK) != 0 || whole->rows % SWIZZLE != 0)) {
        return fail(SM120_INVALID_ARGUMENT,
                    "v_swizzled = 1; it needs %s in NVFP4, a head size that is a multiple of %d, not %" PRId64
                    ", and page_rows a multiple of %d, not %" PRId64,
                    v->name[CACHE_ELEMENTS], SWIZZLE * NV_BLOCK, whole->head_dim, SWIZZLE, whole->rows);
    }
    return SM120_OK;
}
