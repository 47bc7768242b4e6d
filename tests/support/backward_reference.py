"""What attention_backward is checked against: gradients in float64 by the definition, and a model of the kernels.

Arrays are [batch, head, row, head size], and lse, dlse and delta [batch, head, row]. A head of k and v belongs to
heads / kv_heads neighbouring heads of q, whose gradients it adds up.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# The least number that is not subnormal, and the rounding of P, relative. float64: the rounded operands of MXFP8, whose
# P is float32 in the gradient of a mask.
LEAST = {"bfloat16": 2.0**-126, "float16": 2.0**-14, "float64": 2.0**-126}
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 0.0}
LOG2_E = float(np.log2(np.e))


class Inputs(NamedTuple):
    """What a call has, in the dtypes that the kernels read.

    `seen` says which row sees which key, and `added` is added to the scores, as ALiBi and a mask are; both broadcast to
    [batch, head, row, key]. A head of `sinks` is one more score of each row, without a value.
    """

    q: Array
    k: Array
    v: Array
    dout: Array
    scale: float
    seen: NDArray[np.bool_]
    softcap: float = 0.0
    added: Array | float = 0.0
    sinks: Array | None = None

    @property
    def sees(self) -> NDArray[np.bool_]:
        """Which row sees which key, [batch, head, row, key]."""
        shape = (*self.q.shape[:3], self.k.shape[2])
        return np.broadcast_to(self.seen & (np.asarray(self.added) > -np.inf), shape)


def inputs(arrays: Iterable[Array], scale: float, seen: NDArray[np.bool_]) -> Inputs:
    """Return the inputs of q, k, v and dout."""
    q, k, v, dout = arrays
    return Inputs(q, k, v, dout, scale, seen)


class Gradients(NamedTuple):
    """Of a loss with respect to q, k and v."""

    dq: Array
    dk: Array
    dv: Array


class Others(NamedTuple):
    """Gradients with respect to the sinks, and to what is added to the scores, [batch, head, row, key]."""

    dsinks: Array | None
    dadded: Array


def seen_keys(
    q_rows: int, kv_rows: int, causal: str | None = None, window: tuple[int | None, int | None] = (None, None)
) -> NDArray[np.bool_]:
    """Which key each row sees; `causal` is None, "bottom-right" or "top-left"."""
    left, right = window
    diagonal = 0 if causal == "top-left" else kv_rows - q_rows
    distance = np.arange(kv_rows)[None, :] - np.arange(q_rows)[:, None] - diagonal
    seen = np.ones((q_rows, kv_rows), bool)
    if left is not None:
        seen &= distance >= -left
    if right is not None:
        seen &= distance <= right
    if causal is not None:
        seen &= distance <= 0
    return seen


def wide(x: Array) -> Array:
    """Return x in float64."""
    return np.asarray(x).astype(np.float64)


def spread(x: Array, heads: int) -> Array:
    """Give each head of q its head of k or v."""
    return np.repeat(wide(x), heads // x.shape[1], axis=1)


def gather(x: Array, kv_heads: int) -> Array:
    """Add up the gradients of the heads of q that share a head."""
    batch, heads, rows, head_dim = x.shape
    return np.asarray(x.reshape(batch, kv_heads, heads // kv_heads, rows, head_dim).sum(2))


# ---- the definition --------------------------------------------------------------


def scores(x: Inputs) -> tuple[Array, Array | float]:
    """The scores before the softmax, -inf where a row does not see a key, and the derivative of softcap."""
    s = x.scale * wide(x.q) @ spread(x.k, x.q.shape[1]).swapaxes(2, 3)
    rise: Array | float = 1.0
    if x.softcap:
        t = np.tanh(s / x.softcap)
        s, rise = x.softcap * t, 1 - t * t
    return np.where(x.sees, s + x.added, -np.inf), rise


def forward(x: Inputs) -> tuple[Array, Array, Array]:
    """P, O and LSE in float64; a row without keys or sink has zeros and -inf."""
    s, _ = scores(x)
    sink = np.full(s.shape[:3], -np.inf) if x.sinks is None else np.broadcast_to(x.sinks[:, None], s.shape[:3])
    highest = np.maximum(s.max(-1, keepdims=True), sink[..., None])
    highest = np.where(np.isneginf(highest), 0, highest)
    e = np.exp(s - highest)
    total = e.sum(-1, keepdims=True) + np.exp(sink[..., None] - highest)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(total > 0, e / total, 0)
        lse = (np.log(total) + highest)[..., 0]
    return p, p @ spread(x.v, x.q.shape[1]), lse


def loss(x: Inputs, dlse: Array | float = 0.0) -> float:
    """The number whose gradients are wanted: sum(dout * O) + sum(dlse * LSE) over the rows that see a key."""
    _, o, lse = forward(x)
    with np.errstate(invalid="ignore"):
        return float((wide(x.dout) * o).sum() + np.where(np.isneginf(lse), 0, dlse * lse).sum())


def gradients(x: Inputs, dlse: Array | float = 0.0) -> Gradients:
    """Of loss(), by the derivative of softmax: dS_ij = P_ij (dP_ij - sum over k of P_ik dP_ik + dLSE_i)."""
    heads, kv_heads = x.q.shape[1], x.k.shape[1]
    p, _, _ = forward(x)
    dout = wide(x.dout)
    ds = x.scale * scores(x)[1] * others(x, dlse).dadded
    return Gradients(
        ds @ spread(x.k, heads),
        gather(ds.swapaxes(2, 3) @ wide(x.q), kv_heads),
        gather(p.swapaxes(2, 3) @ dout, kv_heads),
    )


def others(x: Inputs, dlse: Array | float = 0.0) -> Others:
    """Of loss(), with respect to sinks and to what is added to the scores."""
    p, _, lse = forward(x)
    dp = wide(x.dout) @ spread(x.v, x.q.shape[1]).swapaxes(2, 3)
    rest = np.broadcast_to(dlse, p.shape[:3]) - (p * dp).sum(-1)
    dsinks = None
    if x.sinks is not None:
        dsinks = (np.exp(x.sinks[:, None] - lse) * rest).sum((0, 2))
    return Others(dsinks, p * (dp + rest[..., None]))


def reduced(x: Array, shape: tuple[int, ...]) -> Array:
    """Add up [batch, head, row, key] over the dimensions in which `shape` is 1 or lacks one."""
    padded = (1,) * (x.ndim - len(shape)) + shape
    axes = tuple(axis for axis, n in enumerate(padded) if n == 1)
    return np.asarray(x.sum(axes, keepdims=True).reshape(shape))


# ---- lse and delta from elsewhere ------------------------------------------------


def identity(x: Array) -> Array:
    """Round nothing."""
    return x


def delta_of(x: Inputs, o: Array, dlse: Array | float = 0.0) -> Array:
    """sum(dout * o) - dlse, in float64."""
    return np.asarray((wide(x.dout) * wide(o)).sum(-1) - dlse)


def given(x: Inputs, lse: Array, delta: Array, rounded: Callable[[Array], Array] = identity) -> Gradients:
    """Gradients of given lse and delta in float64; `rounded` rounds P, dP and dS."""
    heads, kv_heads = x.q.shape[1], x.k.shape[1]
    dout, k = wide(x.dout), spread(x.k, heads)
    s, rise = scores(x)
    hidden = np.isneginf(lse)
    p = rounded(np.exp(s - np.where(hidden, np.inf, wide(lse))[..., None]))
    dp = rounded(dout @ spread(x.v, heads).swapaxes(2, 3))
    ds = rounded(rise * p * (dp - np.where(hidden, 0, wide(delta))[..., None]))
    return Gradients(
        x.scale * ds @ k,
        gather(x.scale * ds.swapaxes(2, 3) @ wide(x.q), kv_heads),
        gather(p.swapaxes(2, 3) @ dout, kv_heads),
    )


def given_others(x: Inputs, lse: Array, delta: Array) -> Others:
    """Gradients of sinks and of what is added to the scores, of given lse and delta in float64."""
    hidden = np.isneginf(lse)
    lse, delta = np.where(hidden, np.inf, wide(lse)), np.where(hidden, 0, wide(delta))
    p = np.exp(scores(x)[0] - lse[..., None])
    dp = wide(x.dout) @ spread(x.v, x.q.shape[1]).swapaxes(2, 3)
    dsinks = None if x.sinks is None else -(np.exp(x.sinks[:, None] - lse) * delta).sum((0, 2))
    return Others(dsinks, p * (dp - delta[..., None]))


def to(dtype: Any) -> Callable[[Array], Array]:
    """Return what rounds to a dtype and back to float64."""
    return lambda x: wide(x.astype(np.float32).astype(dtype))


def plain(x: Inputs, lse: Array, delta: Array, out_dtype: Any) -> Gradients:
    """A plain 16-bit backward pass, matrix by matrix: P, dP, dS and the results are rounded, sums are float64."""
    found = given(x, lse, delta, to(x.q.dtype))
    return Gradients(*(to(out_dtype)(y) for y in found))


def model(x: Inputs, lse: Array, delta: Array) -> Gradients:
    """The arithmetic of the kernels: S, P, dP and dS in float32, P and dS rounded to 16 bits, products in float64.

    dS is computed from the rounded P. P = 2^(S * (scale * log2(e)) + bias) with bias = -LSE * log2(e); a row with
    LSE = -inf has bias -inf and delta 0. Features change S * (scale * log2(e)), and round it.
    """
    heads, kv_heads = x.q.shape[1], x.k.shape[1]
    single, half = np.float32, to(x.q.dtype)
    dout, k = wide(x.dout), spread(x.k, heads)
    lse, delta = lse.astype(single), delta.astype(single)
    hidden = np.isneginf(lse)
    bias = np.where(hidden, -np.inf, -lse * single(LOG2_E))
    s = (wide(x.q) @ k.swapaxes(2, 3)).astype(single)
    power = wide(s) * single(x.scale * LOG2_E)
    rise: Array | float = 1.0
    if x.softcap:
        t = np.tanh(wide(s) * (x.scale / x.softcap))
        power, rise = (x.softcap * LOG2_E * t).astype(single), (1 - t * t).astype(single)
    with np.errstate(over="ignore", invalid="ignore"):
        added = np.where(x.sees, np.asarray(x.added) * LOG2_E, 0)
        power = (power + added + bias[..., None]).astype(single)  # without features an fma: rounded once
        p = half(np.where(x.sees, np.exp2(power), single(0))).astype(single)
    dp = (dout @ spread(x.v, heads).swapaxes(2, 3)).astype(single)
    ds = (dp - np.where(hidden, single(0), delta)[..., None]) * p * rise
    scale = float(single(x.scale))
    return Gradients(
        scale * (half(ds) @ k),
        gather(scale * (half(ds).swapaxes(2, 3) @ wide(x.q)), kv_heads),
        gather(wide(p).swapaxes(2, 3) @ dout, kv_heads),
    )


def bounds(x: Inputs, lse: Array, delta: Array) -> tuple[Gradients, Gradients]:
    """Sums of the absolute values of what each gradient adds, and how far the kernels may be from model().

    S, 2^x, dP and delta are off by float32 roundings of what they add. Where that could round a P or dS to the other
    of two neighbours in 16 bits, both are right. A matrix product adds a subnormal as if it had the least exponent.
    A tensor core truncates each of its sums of 16, which a P of 1 beside small ones shows: features make such rows.
    So do more than 1024 queries of a head, for dk and dv.
    """
    half, error, least = to(x.q.dtype), 2.0**-20, LEAST[x.q.dtype.name]
    p, difference, parts = _sizes(x, lse, delta)
    ds = half(p) * difference
    sizes = _sizes_of_scores(x)
    # The derivative of softcap, which is at most 1, follows the error of a score.
    bent = np.minimum(error * (1 + sizes / x.softcap), 1) if x.softcap else error
    off = error * (1 + sizes + np.abs(np.where(np.isneginf(lse), 0, lse))[..., None]) * p
    off += np.where(p < 2.0**-125, p, 0)  # ex2.approx.ftz flushes subnormal results to 0
    either_p = half(p + off) - half(p - off)
    off_ds = (either_p + bent * p) * parts
    either_ds = half(ds + off_ds) - half(ds - off_ds)
    terms = _products(x, abs(x.scale) * p * parts, p)
    flips = _products(x, abs(x.scale) * either_ds, either_p)
    summed = _products(x, abs(x.scale) * np.maximum(p * parts, least), np.maximum(p, least))
    if isinstance(x.added, np.ndarray):
        error *= 1 + x.sees.shape[2] / 128
    long = max(1, x.q.shape[2] / 1024)
    errors = (error, long * error, long * error)
    return terms, Gradients(*(flip + e * term for flip, e, term in zip(flips, errors, summed, strict=True)))


def room_of_added(x: Inputs, lse: Array, delta: Array) -> Array:
    """How far P (dP - delta) of the kernels may be from that of given lse and delta."""
    p, _, parts = _sizes(x, lse, delta)
    hidden = np.isneginf(lse)
    dp = wide(x.dout) @ spread(x.v, x.q.shape[1]).swapaxes(2, 3)
    difference = np.abs(dp - np.where(hidden, 0, wide(delta))[..., None])
    step = ROUNDING[x.q.dtype.name] + 2.0**-20 * (1 + _sizes_of_scores(x) + np.abs(np.where(hidden, 0, lse))[..., None])
    return np.asarray(p * (step * difference + 2.0**-20 * parts) + LEAST[x.q.dtype.name] * parts)


def chance(x: Inputs, lse: Array, delta: Array) -> tuple[float, float, float]:
    """By how much the norms of errors of two backward passes differ by chance, in roundings, for each gradient.

    The square of an error is a sum over the elements of P and dS. So its deviation is the root of a sum of squares,
    where few elements dominate about as large as the sum itself, and small where there are many.
    """
    p, difference, _ = _sizes(x, lse, delta)
    ds = x.scale * p * difference
    k, q, dout = (np.square(wide(y)).sum(-1) for y in (spread(x.k, x.q.shape[1]), x.q, x.dout))
    parts = np.square(ds) * k[:, :, None, :], np.square(ds) * q[..., None], np.square(p) * dout[..., None]
    dq, dk, dv = (float(np.square(part).sum() ** 0.25) for part in parts)
    return dq, dk, dv


def _sizes(x: Inputs, lse: Array, delta: Array) -> tuple[Array, Array, Array]:
    """P, (dP - delta) times the derivative of softcap, and the absolute values that dP - delta adds.

    delta is a sum of products as long as dP.
    """
    heads = x.q.shape[1]
    hidden = np.isneginf(lse)
    s, rise = scores(x)
    p = np.exp(s - np.where(hidden, np.inf, wide(lse))[..., None])
    delta = np.where(hidden, 0, wide(delta))[..., None]
    v = spread(x.v, heads).swapaxes(2, 3)
    parts = np.abs(wide(x.dout)) @ np.abs(v)
    return p, rise * (wide(x.dout) @ v - delta), parts + parts.max(-1, keepdims=True) + np.abs(delta)


def _sizes_of_scores(x: Inputs) -> Array:
    """The absolute values that scores add."""
    sizes = abs(x.scale) * np.abs(wide(x.q)) @ np.abs(spread(x.k, x.q.shape[1])).swapaxes(2, 3)
    return np.asarray(sizes + x.softcap + np.abs(np.where(x.sees, x.added, 0)))


def _products(x: Inputs, ds: Array, p: Array) -> Gradients:
    """Gradients of absolute values."""
    heads, kv_heads = x.q.shape[1], x.k.shape[1]
    return Gradients(
        ds @ np.abs(spread(x.k, heads)),
        gather(ds.swapaxes(2, 3) @ np.abs(wide(x.q)), kv_heads),
        gather(p.swapaxes(2, 3) @ np.abs(wide(x.dout)), kv_heads),
    )
