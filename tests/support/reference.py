"""References for the kernels: plain attention in float64, and an exact model of the kernels' arithmetic.

They are written from the definitions (OCP MX 1.0, the online softmax) and differ in form from the kernels: whole rows
instead of fragments, frexp instead of bit tricks, ml_dtypes instead of cvt.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
BLOCK, NV_BLOCK = 32, 16
KV_TILE = 64


def visible(q_rows: int, kv_rows: int, causal: str | None) -> NDArray[np.bool_]:
    """Which key each query sees; `causal` is None, "bottom-right" or "top-left"."""
    if causal is None:
        return np.ones((q_rows, kv_rows), bool)
    offset = kv_rows - q_rows if causal == "bottom-right" else 0
    return np.arange(kv_rows)[None, :] <= np.arange(q_rows)[:, None] + offset


def repeat_heads(x: Array, heads: int) -> Array:
    """[B, S, Hkv, D] to [B, S, heads, D]: query head h uses head h // (heads / Hkv)."""
    return np.repeat(x, heads // x.shape[2], axis=2)


def attention_float64(q: Array, k: Array, v: Array, scale: float, causal: str | None) -> tuple[Array, Array]:
    """O [B, Sq, H, D] and LSE [B, H, Sq] in float64; a row without a key gives 0 and -inf."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = repeat_heads(k, q.shape[2]), repeat_heads(v, q.shape[2])
    s = np.matmul(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1)) * scale
    s = np.where(visible(q.shape[1], k.shape[1], causal), s, -np.inf)
    highest = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isneginf(highest), 0, highest))
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = (np.log(total) + np.where(np.isneginf(highest), 0, highest))[..., 0]
        o = np.where(total > 0, p / total, 0)
    return np.ascontiguousarray(np.matmul(o, v.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)), lse


def attention_dense(
    q: Array, k: Array, v: Array, scale: float, bias: Array, softcap: float = 0.0, sinks: Array | None = None
) -> tuple[Array, Array]:
    """O and LSE in float64 of one sequence: q [H, Sq, D], k and v [Hkv, Sk, D], bias that broadcasts to [H, Sq, Sk].

    A bias of -inf hides a key; a row that sees none gives 0 and, without a sink, -inf.
    """
    k, v = (np.repeat(x, q.shape[0] // x.shape[0], axis=0) for x in (k, v))
    s = np.einsum("hqd,hkd->hqk", q, k) * scale
    if softcap:
        s = softcap * np.tanh(s / softcap)
    s = s + bias
    if sinks is not None:
        s = np.concatenate([s, np.broadcast_to(sinks.astype(np.float64)[:, None, None], (*s.shape[:2], 1))], -1)
    highest = s.max(-1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(np.isneginf(highest), 0, highest))
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = (np.log(total) + highest)[..., 0]
        p = np.where(total > 0, p / total, 0)[..., : k.shape[1]]
    return np.einsum("hqk,hkd->hqd", p, v), np.where(total[..., 0] > 0, lse, -np.inf)


def quantize_mxfp8(x: Array, axis: int, rounding: str = "up") -> tuple[Array, Array]:
    """e4m3 elements (shape of x) and ue8m0 bytes (blocks of 32 along `axis`, the last one may be short)."""
    x = np.moveaxis(np.asarray(x, np.float32), axis, -1)
    length = x.shape[-1]
    blocks = -(-length // BLOCK)
    padded = np.zeros((*x.shape[:-1], blocks * BLOCK), np.float64)
    padded[..., :length] = x
    padded = padded.reshape(*x.shape[:-1], blocks, BLOCK)
    poisoned = ~np.isfinite(padded).all(-1)
    amax = np.abs(np.where(np.isfinite(padded), padded, 0)).max(-1)
    significand, exponent = np.frexp(amax)  # amax = significand * 2^exponent, 0.5 <= significand < 1
    # The smallest s with amax <= 448 * 2^s, 448 = 0.875 * 2^9; or floor(log2 amax) - 8.
    up = np.where(significand <= 0.875, exponent - 9, exponent - 8)
    shift = up if rounding == "up" else exponent - 1 - 8
    byte = np.where(amax == 0, 0, np.clip(shift + 127, 0, 254))
    scaled = padded * np.exp2(127.0 - byte)[..., None]
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.clip(scaled, -448, 448).astype(np.float32)
        elements = scaled.astype(ml_dtypes.float8_e4m3fn)
    elements = np.where(np.expand_dims(poisoned, -1), np.uint8(0x7F), elements.view(np.uint8))
    byte = np.where(poisoned, 255, byte).astype(np.uint8)
    elements = elements.reshape(*x.shape[:-1], blocks * BLOCK)[..., :length]
    return (
        np.moveaxis(elements, -1, axis).view(ml_dtypes.float8_e4m3fn),
        np.moveaxis(byte, -1, axis).view(ml_dtypes.float8_e8m0fnu),
    )


def dequantize_mxfp8(elements: Array, scales: Array, axis: int) -> Array:
    """float64 values of e4m3 elements and their ue8m0 scales."""
    e = np.moveaxis(elements, axis, -1).astype(np.float64)
    byte = np.moveaxis(scales.view(np.uint8), axis, -1)
    factor = np.where(byte == 255, np.nan, np.exp2(byte.astype(np.float64) - 127))
    return np.moveaxis(e * np.repeat(factor, BLOCK, axis=-1)[..., : e.shape[-1]], -1, axis)


def mx(x: Array, axis: int) -> Array:
    """float64 values of x after MXFP8."""
    return dequantize_mxfp8(*quantize_mxfp8(x, axis), axis)


def nvfp4(x: Array, axis: int, order: NDArray[np.intp] | None = None) -> Array:
    """float64 values of x after NVFP4: e2m1 elements, and an e4m3 scale amax / 6 for each 16 of them.

    order: which elements of each group of len(order) lie beside each other; groups are filled up with zeros.
    """
    order = np.arange(NV_BLOCK) if order is None else order
    x = np.moveaxis(np.asarray(x, np.float32), axis, -1)
    length = x.shape[-1]
    groups = -(-length // len(order))
    padded = np.zeros((*x.shape[:-1], groups, len(order)), np.float32)
    flat = (*x.shape[:-1], groups * len(order))
    padded.reshape(flat)[..., :length] = x
    blocks = padded[..., order].reshape(*x.shape[:-1], groups, len(order) // NV_BLOCK, NV_BLOCK)
    amax = np.abs(blocks).max(-1)
    is_bad = ~np.isfinite(amax)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scale = np.minimum(amax / np.float32(6), np.float32(448)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)[..., None]
        elements = np.clip(blocks * inverse, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float64)
    values = np.where(is_bad[..., None], np.nan, elements * scale[..., None].astype(np.float64))
    result = np.empty(padded.shape)
    result[..., order] = values.reshape(padded.shape)
    return np.moveaxis(result.reshape(flat)[..., :length], -1, axis)


# The keys of a tile in the order of P's fragment: key 8 j + 2 t + i of each 32 is element 8 t + 2 j + i.
NV_ORDER = np.array(
    [32 * h + 8 * j + 2 * t + i for h, t, j, i in itertools.product(range(2), range(4), range(4), range(2))]
)


def nvfp4_keys(x: Array, axis: int) -> Array:
    """float64 values of v after NVFP4 as attention packs it: in blocks of 16 keys of each tile of 64."""
    return nvfp4(x, axis, NV_ORDER)


TOP, P_LIMIT = 7, 464.0  # log2 of a row's largest P when its bias follows; what e4m3 would round beyond 448


def e4m3_weights(x: Array) -> Array:
    """P in e4m3 of scores in units of log2 below the largest one, whose P is 2^7."""
    rounded: Array = np.exp2(x + TOP).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return rounded


def e4m3_sums(p: Array, odd: int = 0) -> Array:
    """Sums of P in e4m3 of a tile: a lane adds keys 8 n + 2 t + i over n in f16; these sums are added exactly.

    odd: in odd n, 2 t + i ^ odd stands for 2 t + i.
    """
    keys = p.shape[-1]
    tile = np.zeros((*p.shape[:-1], -(-keys // 8) * 8), np.float16)
    tile[..., :keys] = p
    sums = np.zeros((*p.shape[:-1], 8), np.float16)
    for n in range(tile.shape[-1] // 8):
        sums += tile[..., 8 * n + (np.arange(8) ^ odd * (n % 2))]
    total: Array = sums.astype(np.float64).sum(-1)
    return total


def fp8_sums(p: Array) -> Array:
    """Sums of P as the kernels of SM120 in fp8 add them."""
    return e4m3_sums(p, 4)


def exact_sums(p: Array) -> Array:
    """Sums of P of a tile."""
    total: Array = p.sum(-1)
    return total


def nvfp4_weights(x: Array) -> Array:
    """P / 6 in NVFP4 in two levels: e4m3 scales of the blocks' largest P, elements relative to the unrounded scale."""
    keys = x.shape[-1]
    tile = np.full((*x.shape[:-1], len(NV_ORDER)), -np.inf)
    tile[..., :keys] = x
    blocks = tile[..., NV_ORDER].reshape(*x.shape[:-1], -1, NV_BLOCK)
    most = blocks.max(-1, keepdims=True)
    scale = np.exp2(most + TOP).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    elements = 6 * np.exp2(blocks - np.where(np.isneginf(most), 0, most))
    p = np.clip(elements, 0, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float64) * scale / 6
    result = np.empty(tile.shape)
    result[..., NV_ORDER] = p.reshape(tile.shape)
    return result[..., :keys]


def as_given(x: Array, axis: int) -> Array:
    """Return float64 values of what is not rounded."""
    del axis
    return np.asarray(x, np.float64)


class Rounding(NamedTuple):
    """How a kernel with scaled blocks rounds: q and k, v, P, and the sums of P of a tile."""

    scores: Callable[[Array, int], Array]
    values: Callable[[Array, int], Array]
    weights: Callable[[Array], Array]
    sums: Callable[[Array], Array]


ROUNDINGS = {
    "mxfp8": Rounding(mx, mx, e4m3_weights, e4m3_sums),
    "mxfp8, sm_90": Rounding(mx, mx, e4m3_weights, exact_sums),
    "nvfp4": Rounding(nvfp4, nvfp4_keys, nvfp4_weights, exact_sums),
    "nvfp4_mxfp8": Rounding(nvfp4, mx, e4m3_weights, exact_sums),
    "fp8": Rounding(as_given, as_given, e4m3_weights, fp8_sums),
    "fp8, sums by products": Rounding(as_given, as_given, e4m3_weights, exact_sums),
}


def attention_scaled(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    causal: str | None,
    precision: str,
    *,
    is_packed: bool = False,
    tile: int = KV_TILE,
    key_groups: int = 1,
) -> tuple[Array, Array]:
    """Model a kernel: Q, K in scaled blocks along head_dim, V along keys, tiles of keys, sums of the rounded P.

    is_packed: q and k hold values that were rounded already.

    P = 2^x, x = S log2(e) scale + bias. If a P of 16 rows would pass P_LIMIT, the bias of all 16 rows changes so that
    the largest score so far gets 2^TOP. Once a |bias| of the 16 is above 2^16, bias follows in every tile. Groups of
    warps visit tiles in turn, each with its own bias and sums, which are added up at the largest score. Exponents and
    other sums are float64: the difference from the kernel's float32 and the tensor core's 25 bits is far below the step
    of P.
    """
    heads, warp_rows = q.shape[2], 16
    of_scores, of_values, weights, sums = ROUNDINGS[precision]
    of_scores = as_given if is_packed else of_scores
    q, k, v = of_scores(q, -1), repeat_heads(of_scores(k, -1), heads), repeat_heads(of_values(v, 1), heads)
    seen = visible(q.shape[1], k.shape[1], causal)
    s_all = np.einsum("bqhd,bkhd->bhqk", q, k) * np.sign(scale)
    factor = float(np.float32(abs(scale) * np.log2(np.e))) if scale else 1.0
    s_all = np.where(seen, s_all, -np.inf)
    rows = s_all.shape[:3]

    def from_to(before: Array, after: Array) -> Array:
        return np.where(np.isneginf(before), 0, np.exp2((before - after) * factor))

    def run_group(group: int) -> tuple[Array, Array, Array]:
        used = np.full(rows, -np.inf)  # the score with P = 2^TOP
        total = np.zeros(rows)
        o = np.zeros((*rows, v.shape[-1]))
        for first in range(group * tile, k.shape[1], key_groups * tile):
            s = s_all[..., first : first + tile]
            highest = np.maximum(used, s.max(-1))
            passed = (highest - used) * factor + TOP > np.log2(P_LIMIT)
            passed |= np.isneginf(used) & ~np.isneginf(highest)
            passed |= ~np.isneginf(used) & (np.abs(used * factor - TOP) > 2.0**16)
            follows = passed.copy()
            for row in range(0, rows[2], warp_rows):
                follows[..., row : row + warp_rows] = passed[..., row : row + warp_rows].any(-1, keepdims=True)
            before, used = used, np.where(follows, highest, used)
            alpha = from_to(before, used)
            p = weights((s - np.where(np.isneginf(used), 0, used)[..., None]) * factor)
            total = total * alpha + sums(p)
            o = o * alpha[..., None] + np.einsum("bhqk,bkhd->bhqd", p, v[:, first : first + tile])
        return used, total, o

    with np.errstate(divide="ignore", invalid="ignore"):
        groups = [run_group(group) for group in range(key_groups)]
        used = np.max([one[0] for one in groups], axis=0)
        total = np.sum([one[1] * from_to(one[0], used) for one in groups], axis=0)
        o = np.sum([one[2] * from_to(one[0], used)[..., None] for one in groups], axis=0)
        o = np.where(total[..., None] > 0, o / total[..., None], 0)
        lse = (np.log2(total) - TOP + np.where(np.isneginf(used), 0, used) * factor) * np.log(2)
    return np.moveaxis(o, 1, 2), lse


def attention_mxfp8(
    q: Array, k: Array, v: Array, scale: float, causal: str | None, *, is_sm120: bool
) -> tuple[Array, Array]:
    """Model the kernels all in MXFP8, for SM120 or for sm_90."""
    return attention_scaled(q, k, v, scale, causal, "mxfp8" if is_sm120 else "mxfp8, sm_90")


def attention_16bit(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    causal: str | None,
    dtype: str,
    warp_rows: int = 16,
    tile: int = 64,
    *,
    cta_rows: int = 128,
    key_groups: int = 1,
    always: bool = False,
    p_error: float = 0.0,
) -> tuple[Array, Array, Array]:
    """Model the kernel: P = 2^x, x = S log2(e) scale + bias, rounded to 16 bits; sums add P before rounding.

    Return O, LSE and how far O may be from the kernel's because a P with a relative error of `p_error` lies on the
    other side of a tie.

    If a warp checks a tile and a score exceeds its row's bias by 8, the bias of all rows follows the maximum. A warp
    checks tiles until each of its rows has had a key. If a lane's sum exceeds the limit of P, the CTA runs again and
    checks all tiles; some kernels always check them, in tiles of 64 keys. Groups of warps visit tiles in turn, each
    with its own bias and sums, which are added up at the lowest bias. Exponents and sums are float64.
    """
    heads, head_dim = q.shape[2:]
    tile = 32 if head_dim > 128 and not always else tile  # of keys
    margin, limit = (6, 65504.0) if dtype == "float16" and not always else (0, 2.0**64)
    q, k, v = (np.asarray(x, np.float64) for x in (q, repeat_heads(k, heads), repeat_heads(v, heads)))
    factor = float(np.float32(abs(scale) * np.log2(np.e))) if scale else 1.0
    s = np.einsum("bqhd,bkhd->bhqk", q, k) * np.sign(scale) * factor
    s = np.where(visible(q.shape[1], k.shape[1], causal), s, -np.inf)

    def rounded(p: Array) -> Array:
        return p.astype(np.float32).astype(np.dtype(dtype)).astype(np.float64)

    def run_group(watched: Array, group: int) -> tuple[Array, Array, Array]:
        bias = np.full(s.shape[:3], np.inf)  # no key yet
        o = np.zeros((2, *s.shape[:3], v.shape[-1]))  # and how far ties may move it
        lanes = np.zeros((*s.shape[:3], 4))  # a lane of four sums columns 2 lane and 2 lane + 1 of each 8
        for first in range(group * tile, s.shape[3], key_groups * tile):
            part = s[..., first : first + tile]
            highest = part.max(-1)
            far = ~np.isneginf(highest) & (highest + bias > 8)
            before = bias.copy()
            for row in range(0, s.shape[2], warp_rows):
                rows = (slice(None), slice(None), slice(row, row + warp_rows))
                follows = far[rows].any(-1) & (watched[rows] | np.isinf(bias[rows])).any(-1)
                bias[rows] = np.where(follows[..., None], np.minimum(bias[rows], -highest[rows] - margin), bias[rows])
            alpha = np.where(np.isinf(before), 0, np.exp2(bias - np.where(np.isinf(before), bias, before)))[..., None]
            p = np.exp2(part + np.where(np.isinf(bias), 0, bias)[..., None])
            steps = rounded(p * (1 + p_error)) - rounded(p * (1 - p_error))
            values = v[:, first : first + tile]
            o[0] = o[0] * alpha + np.einsum("bhqk,bkhd->bhqd", rounded(p), values)
            o[1] = o[1] * alpha + np.einsum("bhqk,bkhd->bhqd", steps, np.abs(values))
            lanes *= alpha
            for column in range(p.shape[-1]):
                lanes[..., column % 8 // 2] += p[..., column]
        return o, lanes, bias

    def run(watched: Array) -> tuple[Array, Array, Array]:
        groups = [run_group(watched, group) for group in range(key_groups)]
        bias = np.min([x[2] for x in groups], axis=0)
        weights = [np.exp2(np.where(np.isinf(x[2]), 0, bias - x[2]))[..., None] for x in groups]
        o = np.sum([x[0] * weight for x, weight in zip(groups, weights, strict=True)], axis=0)
        total = np.sum([x[1] * weight for x, weight in zip(groups, weights, strict=True)], axis=0).sum(-1)
        with np.errstate(divide="ignore"):
            lse = np.log(total) - np.where(np.isinf(bias), 0, bias) * np.log(2)
        broken = np.any([np.any(x[1] > limit, axis=-1) for x in groups], axis=0)
        return np.where(total[..., None] > 0, o / total[..., None], 0), lse, broken

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        o, lse, broken = run(np.full(s.shape[:3], always))
        again = np.zeros_like(broken)
        for row in range(0, s.shape[2], cta_rows):
            again[..., row : row + cta_rows] = broken[..., row : row + cta_rows].any(-1, keepdims=True)
        if again.any() and not always:
            other_o, other_lse, _ = run(again)
            o, lse = np.where(again[..., None], other_o, o), np.where(again, other_lse, lse)
    return np.moveaxis(o[0], 1, 2), lse, np.moveaxis(o[1], 1, 2)


def attention_mxfp8_16bit(
    q: Array, k: Array, v: Array, scale: float, causal: str | None, dtype: str
) -> tuple[Array, Array]:
    """Model the kernel: Q, K in MX along head_dim, everything else as in attention_16bit."""
    return attention_16bit(mx(q, -1), mx(k, -1), v, scale, causal, dtype, always=True)[:2]


def relative_error(got: Array, want: Array) -> float:
    """Relative Frobenius norm of the difference."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.linalg.norm(got - want)) / max(float(np.linalg.norm(want)), 1e-300)
