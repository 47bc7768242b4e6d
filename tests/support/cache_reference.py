"""Attention over a cache of keys and values in float64, from its definition: one sequence after the other.

Key n of a sequence is row n % page_rows of page table[n // page_rows]. Rows that the sequence does not have are not
touched, so they may hold anything.
"""

from typing import Any, NamedTuple

import numpy as np
from reference import Array

# The unit roundoff of P, and the error of a score that is computed in float32, relative to the largest one.
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SCORE_ERROR = 2e-6


class Attention(NamedTuple):
    """What a call should return, and how far from it a kernel may be."""

    o: Array  # [B, T, H, Dv]
    lse: Array  # [B, H, T]
    most: Array  # [B, T, H, Dv]: the error of o when each P has the largest rounding error
    usual: Array  # [B, T, H, Dv]: the standard deviation of o, when the rounding errors of P are independent
    lse_error: Array  # [B, H, T]


def sequence(k: Array, v: Array, batch: int, lengths: Array | None, table: Any) -> tuple[Array, Array, Array]:
    """Keys [n, Hkv, D] and values of a sequence in float64, and which of them there are; the others are 0."""
    pages, rows = k.shape[:2]
    if table is None:
        numbers, most = np.array([batch]), rows
    elif isinstance(table, tuple):
        indptr, indices, last = table
        numbers = indices[indptr[batch] : indptr[batch + 1]]
        most = max(0, (len(numbers) - 1) * rows + min(int(last[batch]), rows)) if len(numbers) else 0
    else:
        numbers, most = table[batch], rows * table.shape[1]
    count = most if lengths is None else min(max(int(lengths[batch]), 0), most)
    at = np.arange(count)
    page = numbers[at // rows]
    there = (page >= 0) & (page < pages)
    found = [np.zeros((count, *x.shape[2:])) for x in (k, v)]
    for to, x in zip(found, (k, v), strict=True):
        to[there] = x[page[there], at[there] % rows].astype(np.float64)
    return found[0], found[1], there


def visible(tokens: int, keys: int, causal: bool, window: tuple[int | None, int | None]) -> tuple[Array, Array]:
    """Which key each token sees, and the distance i + d - key; d = keys - tokens."""
    distance = np.arange(tokens)[:, None] + (keys - tokens) - np.arange(keys)
    sees = np.ones(distance.shape, bool)
    left, right = window
    if causal:
        sees &= distance >= 0
    if left is not None:
        sees &= distance <= left
    if right is not None:
        sees &= distance >= -right
    return sees, distance


def attention_cached(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    kv_lengths: Array | None = None,
    *,
    page_table: Any = None,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    tree_mask: Array | None = None,
    scale: float | None = None,
    out_dtype: Any = np.float32,
) -> Attention:
    """Compute attention; the arguments are those of pysm120.attention_with_kv_cache, caches as NHD."""
    batch, tokens, heads, head_dim = q.shape
    kv_heads, v_head_dim = v_cache.shape[2:]
    factor = head_dim**-0.5 if scale is None else float(np.float32(scale))
    unit, out_unit = ROUNDOFF[q.dtype.name], ROUNDOFF[np.dtype(out_dtype).name]
    tiny = 2.0**-24 if q.dtype == np.float16 else 0.0  # a P below the normal numbers of float16
    o, most, usual = (np.zeros((batch, heads, tokens, v_head_dim)) for _ in range(3))
    lse, lse_error = np.full((batch, heads, tokens), -np.inf), np.zeros((batch, heads, tokens))
    head = np.arange(heads) // (heads // kv_heads)
    for b in range(batch):
        k, v, there = sequence(k_cache, v_cache, b, kv_lengths, page_table)
        sees, distance = visible(tokens, len(k), causal, window)
        products = np.einsum("thd,nhd->htn", q[b].astype(np.float64), k[:, head]) * factor
        s = softcap * np.tanh(products / softcap) if softcap else products
        if alibi_slopes is not None:
            slopes = alibi_slopes if alibi_slopes.ndim == 1 else alibi_slopes[b]
            s = s - slopes[:, None, None].astype(np.float64) * np.abs(distance)
        if tree_mask is not None:
            first = len(k) - tokens  # the key of the first token, below 0 if there are fewer keys than tokens
            mine = tree_mask if tree_mask.ndim == 2 else tree_mask[b]
            sees[:, max(first, 0) :] &= mine[:, max(-first, 0) :] != 0
        s = np.where(sees & there, s, -np.inf)
        sink = np.full((heads, 1, 1), -np.inf) if sinks is None else sinks.astype(np.float64)[:, None, None]
        highest = np.maximum(s.max(-1, keepdims=True, initial=-np.inf), sink)
        highest = np.where(np.isneginf(highest), 0, highest)
        p, of_sink = np.exp(s - highest), np.exp(sink - highest)
        total = p.sum(-1, keepdims=True) + of_sink
        has = total[..., 0] > 0
        p = p / np.where(total > 0, total, 1)
        lse[b, has] = np.log(total[..., 0][has]) + highest[..., 0][has]
        parts = np.einsum("thd,nhd->htn", np.abs(q[b].astype(np.float64)), np.abs(k[:, head])) * factor
        # Scores in float32: their products, sums and biases err by parts of the largest of them, and a product that
        # cancels by parts of what it adds.
        size = np.abs(np.where(np.isfinite(s), s, 0)).max(-1, initial=0) + np.abs(products).max(-1, initial=0) + softcap
        # It is the larger of the two, so that a product that does not cancel has no more room than it had.
        large = SCORE_ERROR * (1 + size + np.abs(np.where(has, lse[b], 0)))
        lse_error[b] = np.maximum(large, 2.0**-25 * np.abs(parts).max(-1, initial=0))
        value = v[:, head].transpose(1, 0, 2)
        o[b], spread = p @ value, p @ np.abs(value)
        exact = 2 * lse_error[b][..., None] * spread + 1.01 * out_unit * np.abs(o[b]) + 1e-30
        most[b] = 1.01 * unit * spread + exact + tiny * np.abs(value).sum(1, keepdims=True)
        usual[b] = unit / 3**0.5 * np.sqrt(p**2 @ value**2) + exact + tiny * np.abs(value).sum(1, keepdims=True)
    if np.dtype(out_dtype) == np.float16:
        most += 2.0**-24  # subnormal results
    o, most, usual = (x.swapaxes(1, 2) for x in (o, most, usual))
    return Attention(o, lse, most, usual, lse_error)


def check_close(wanted: Attention, o: Array, lse: Array | None = None) -> None:
    """Compare a result with the reference: every element, and the norm, within twice that of independent roundings."""
    off = np.abs(o.astype(np.float64) - wanted.o)
    worst = np.unravel_index(np.argmax(np.nan_to_num(off / wanted.most, nan=np.inf)), off.shape) if off.size else ()
    assert np.all(off <= wanted.most), f"o{worst} is {o[worst]}, not {wanted.o[worst]} within {wanted.most[worst]}"
    if off.size >= 4096:
        assert np.linalg.norm(off) <= 2 * np.linalg.norm(wanted.usual)
    if lse is not None:
        seen = np.isfinite(wanted.lse)
        assert np.array_equal(np.isneginf(lse), ~seen), "rows without a key have an LSE of -inf, and only these"
        off = np.abs(lse[seen].astype(np.float64) - wanted.lse[seen])
        assert np.all(off <= wanted.lse_error[seen]), f"LSE is off by {off.max()}"
        assert np.all(o.swapaxes(1, 2)[~seen] == 0), "rows without a key are 0"
