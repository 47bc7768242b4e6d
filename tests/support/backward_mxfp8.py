"""A NumPy model of attention_backward in MXFP8: the same roundings, in the same places; sums are float64.

Q, K, V and dO are in e4m3 with one scale for each block of 32 rows x 32 columns. P is rounded to e4m3 as 2^8 P. dS is
rounded to e4m3 with one scale for each warp of 16 keys and tile of 64 queries. A CTA keeps 128 keys and walks the tiles
of queries, head by head, so that the scale of a tile depends on the tiles before it.

Arrays are [batch, head, row, head size], as in backward_reference.
"""

from collections.abc import Iterator
from typing import NamedTuple

import ml_dtypes
import numpy as np
from backward_reference import LOG2_E, Array, Gradients, Inputs, scores, spread, wide

BLOCK, Q_TILE, KV_TILE, WARP_KEYS = 32, 64, 128, 16
P_SCALE = 256  # P is stored as 2^8 P
ERROR = 2.0**-20  # of 2^x and of sums in float32, relative
RISE_ERROR = 2.0**-11  # of the derivative of softcap, absolute
MOST = 448.0  # the largest number of e4m3
LEAST_BYTE, LARGEST_BYTE = 1, 245  # of a scale of dS
# A scale of dS is at least 2^-30 times the product of the largest scales of V and of the tile's dO, and 2^-100 |delta|.
PRODUCT_MARGIN, DELTA_MARGIN = 30, 100


class Counts(NamedTuple):
    """How often the model took a path of the kernel."""

    tiles: int = 0
    outgrown: int = 0  # tiles in which a warp needs a scale above that of the tile before
    uneven: int = 0  # tiles whose warps have different scales: their dQ is two products for each 32 keys


def e4m3(x: Array) -> Array:
    """Round to e4m3, beyond 448 to 448; float64."""
    with np.errstate(invalid="ignore"):
        x = np.clip(np.asarray(x, np.float64), -MOST, MOST).astype(np.float32)
        return x.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


def scale_byte(largest: Array) -> Array:
    """Return the biased exponent of the least power of two s with largest <= 448 s; 255 for NaN and infinity."""
    significand, exponent = np.frexp(np.where(np.isfinite(largest), largest, 0))  # 0.5 <= significand < 1
    byte = np.where(significand <= MOST / 512, exponent - 9, exponent - 8) + 127
    byte = np.where(significand == 0, 0, np.maximum(byte, 0))
    return np.where(np.isfinite(largest), byte, 255)


def factor(byte: Array | int) -> Array:
    """Return the number that the byte of a scale stands for."""
    return np.where(np.equal(byte, 255), np.nan, np.exp2(np.asarray(byte, np.float64) - 127))


def blocks(x: Array) -> tuple[Array, Array]:
    """Round to MXFP8 in blocks of 32 x 32: the values in float64, and [..., row / 32, column / 32] bytes."""
    *lead, rows, columns = x.shape
    down, across = -(-rows // BLOCK), -(-columns // BLOCK)
    padded = np.zeros((*lead, down * BLOCK, across * BLOCK))
    padded[..., :rows, :columns] = x
    parts = padded.reshape(*lead, down, BLOCK, across, BLOCK)
    byte = scale_byte(np.abs(parts).max((-3, -1)))
    scale = factor(byte)[..., :, None, :, None]
    with np.errstate(invalid="ignore"):
        rounded = e4m3(parts / scale) * scale
    return rounded.reshape(padded.shape)[..., :rows, :columns], byte


def rounded(x: Inputs) -> Inputs:
    """Round q, k, v and dout to the numbers that the products see."""
    q, k, v, dout = (blocks(wide(y))[0] for y in (x.q, x.k, x.v, x.dout))
    return x._replace(q=q, k=k, v=v, dout=dout)


def format_error(x: Inputs, dlse: Array | float = 0.0) -> Gradients:
    """The gradients of the format: everything that is stored in MXFP8 is rounded, all else is float64.

    dS has a scale for each 32 x 32 block. O and LSE are those of the rounded q, k and v.
    """
    y = rounded(x)
    heads = x.q.shape[1]
    k, v = spread(y.k, heads), spread(y.v, heads)
    s = np.where(x.sees, x.scale * y.q @ k.swapaxes(2, 3), -np.inf)
    highest = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isneginf(highest), 0, highest))
    total = e.sum(-1, keepdims=True)
    p = np.where(total > 0, e / np.where(total > 0, total, 1), 0)
    p8 = e4m3(p * P_SCALE) / P_SCALE
    dp = y.dout @ v.swapaxes(2, 3)
    delta = (y.dout * (p @ v)).sum(-1) - dlse
    ds = blocks(p * (dp - delta[..., None]))[0]
    return gather_products(x.scale, ds, p8, y, k, x.k.shape[1])


def gather_products(scale: float, ds: Array, p: Array, y: Inputs, k: Array, kv_heads: int) -> Gradients:
    """Multiply the last three products out, and add up the heads that share keys."""

    def shared(z: Array) -> Array:
        batch, heads, rows, width = z.shape
        return np.asarray(z.reshape(batch, kv_heads, heads // kv_heads, rows, width).sum(2))

    return Gradients(scale * ds @ k, shared(scale * ds.swapaxes(2, 3) @ y.q), shared(p.swapaxes(2, 3) @ y.dout))


def delta_of_rounded(x: Inputs, o: Array, dlse: Array | float = 0.0) -> Array:
    """sum(dout * o) - dlse, of the dout that the products see."""
    return np.asarray((blocks(wide(x.dout))[0] * wide(o)).sum(-1) - dlse)


def tiles_of_queries(seen: Array) -> Iterator[int]:
    """Return the first rows of the tiles that a CTA visits: from the first row that sees a key of it to the last."""
    rows = np.flatnonzero(seen.any(1))
    if rows.size:
        yield from range(int(rows[0]) // Q_TILE * Q_TILE, int(rows[-1]) + 1, Q_TILE)


def visits(heads: range, seen: Array, *, is_ordered: bool) -> Iterator[tuple[int, int]]:
    """Return the heads and first rows of the tiles that a CTA visits, one after the other.

    The deterministic kernels walk the tiles from the last, and visit each of them for all heads.
    """
    rows = [*tiles_of_queries(seen)]
    if is_ordered:
        yield from ((h, row) for row in rows[::-1] for h in heads)
    else:
        yield from ((h, row) for h in heads for row in rows)


def share(walk: list[tuple[int, int]], splits: int, nth: int) -> list[tuple[int, int]]:
    """Return what the nth of some CTAs visits of a walk that they divide."""
    each, more = divmod(len(walk), splits)
    begin = nth * each + min(nth, more)
    return walk[begin : begin + each + (nth < more)]


def largest_byte(byte: Array) -> int:
    """Return the largest of some scales that are not NaN."""
    return int(np.where(byte == 255, 0, byte).max())


def flips(x: Array, off: Array) -> Array:
    """Return the step of e4m3 where x off by `off` may round to the other of two neighbours, else 0.

    x is at most 448. Where it could be more, the scale would be another one, which leaves `off` itself.
    """
    return np.where(np.abs(x) + off > MOST, off, e4m3(x + off) - e4m3(x - off))


def changes(x: Inputs, shape: tuple[int, ...]) -> tuple[Array | None, Array]:
    """The scores that softcap, ALiBi and masks change, None without them; the derivative of softcap in float16."""
    if not x.softcap and not np.any(np.asarray(x.added) != np.where(x.seen, 0, -np.inf)):
        return None, np.broadcast_to(1.0, shape)
    y, rise = scores(x)
    return y, np.broadcast_to(np.asarray(rise).astype(np.float16).astype(np.float64), shape)


def walks(
    seen: Array, shape: tuple[int, int, int], *, is_ordered: bool, first_split: int, splits: int
) -> Iterator[tuple[int, int, slice, list[tuple[int, int]]]]:
    """Return the batch, the head and the keys of each CTA, and what it visits; shape: batch, heads, kv_heads."""
    batch, heads, kv_heads = shape
    kv_rows, heads_of = seen.shape[1], heads // kv_heads
    for n, (b, g, first) in enumerate(np.ndindex(batch, kv_heads, -(-kv_rows // KV_TILE))):
        keys = slice(first * KV_TILE, min((first + 1) * KV_TILE, kv_rows))
        walk = [*visits(range(heads_of * g, heads_of * (g + 1)), seen[:, keys], is_ordered=is_ordered)]
        count = splits if n >= first_split else 1
        for nth in range(count):
            yield b, g, keys, share(walk, count, nth)


def of_tile(
    x: Inputs,
    products: tuple[Array, Array, Array, Array],
    bias: Array,
    delta: Array,
    seen: Array,
    changed: Array | None,
    rise: Array,
) -> tuple[Array, Array, Array, Array]:
    """Return 2^8 P and dS of a tile, and how far those of the kernels may be from them.

    `products` are Q K^T and dO V^T, each followed by that of the absolute values.
    """
    qk, qk_size, dov, dov_size = products
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        score = wide(qk.astype(np.float32)) * float(np.float32(x.scale * LOG2_E))
        sizes = 8 + np.abs(bias) + abs(x.scale) * 1.5 * qk_size
        if changed is not None:
            score = changed * LOG2_E
            sizes = sizes + 1.5 * (np.where(np.isfinite(score), np.abs(score), 0) + x.softcap)
        p = wide(np.where(seen, np.exp2((score + bias).astype(np.float32)), np.float32(0)))
        straight = p / P_SCALE * wide(dov.astype(np.float32) - delta)
        off_p = np.where(p > 0, ERROR * sizes * p, 0) + np.where(p < 2.0**-125, p, 0)
        off_ds = off_p * np.abs(wide(dov.astype(np.float32) - delta)) + ERROR * p * (dov_size + np.abs(delta))
        off_ds = off_ds / P_SCALE + (RISE_ERROR if x.softcap else 0) * np.abs(straight)
    return p, straight * rise, off_p, off_ds


def model(
    x: Inputs, lse: Array, delta: Array, *, is_ordered: bool = False, first_split: int = 0, splits: int = 1
) -> tuple[Gradients, Gradients, Counts]:
    """Compute the gradients as the kernels do, given LSE and delta.

    S, P, dP and dS are float32, and dS is computed from the unrounded P. `seen` of the inputs is what causal and
    windows hide: [row, key]; it says which tiles a CTA visits. `is_ordered`: by the deterministic kernels.
    So many `splits` have a CTA each and share the queries of a tile of keys, from tile `first_split` on.

    The second result is how far each element of the kernels may be from the first: their float32 sums and 2^x are
    rounded otherwise, which may round a P or dS to the other of two neighbours in e4m3. The third one counts paths.
    """
    y = rounded(x)
    batch, heads, q_rows, _ = x.q.shape
    kv_heads, kv_rows = x.k.shape[1:3]
    seen = np.broadcast_to(x.seen, (q_rows, kv_rows))
    v_bytes, dout_bytes = blocks(wide(x.v))[1], blocks(wide(x.dout))[1]
    shape = (batch, heads, q_rows, kv_rows)
    given, rise = changes(y, shape)
    hidden = np.isneginf(lse)
    bias = np.where(hidden, -np.inf, -np.where(hidden, 0, wide(lse)) * float(np.float32(LOG2_E)) + 8).astype(np.float32)
    delta = np.where(hidden, 0, wide(delta)).astype(np.float32)
    dq, dk, dv = (np.zeros(z.shape) for z in (x.q, x.k, x.v))
    room = Gradients(*(np.zeros(z.shape) for z in (x.q, x.k, x.v)))
    counts = np.zeros(3, int)
    counted = (batch, heads, kv_heads)
    for b, g, keys, walk in walks(seen, counted, is_ordered=is_ordered, first_split=first_split, splits=splits):
        k, v, used = y.k[b, g, keys], y.v[b, g, keys], LEAST_BYTE
        v_byte = largest_byte(v_bytes[b, g, keys.start // BLOCK : -(-keys.stop // BLOCK)])
        for h, row in walk:
            rows = slice(row, min(row + Q_TILE, q_rows))
            dout_byte = int(dout_bytes[b, h, row // BLOCK : -(-rows.stop // BLOCK)].max())
            delta_byte = int(scale_byte(np.abs(delta[b, h, rows]).max())) + 8  # its exponent, or one more
            least = max(v_byte + dout_byte - 127 - PRODUCT_MARGIN, delta_byte - DELTA_MARGIN)
            used = min(max(used, least), LARGEST_BYTE)
            q, dout, far = y.q[b, h, rows], y.dout[b, h, rows], delta[b, h, rows, None]
            changed = None if given is None else given[b, h, rows, keys]
            products = (q @ k.T, np.abs(q) @ np.abs(k.T), dout @ v.T, np.abs(dout) @ np.abs(v.T))
            its_rise, its_bias = rise[b, h, rows, keys], bias[b, h, rows, None]
            p, ds, off_p, off_ds = of_tile(x, products, its_bias, far, seen[rows, keys], changed, its_rise)
            before, warps, flip = used, [], np.zeros(ds.shape)
            for at in range(0, ds.shape[1], WARP_KEYS):
                cut = np.s_[:, at : at + WARP_KEYS]
                warps.append(max(before, int(scale_byte(np.abs(ds[cut]).max().astype(np.float32)))))
                scale = factor(warps[-1])
                flip[cut] = scale * flips(ds[cut] / scale, off_ds[cut] / scale)
                ds[cut] = scale * e4m3(ds[cut] / scale)
            absent = (KV_TILE - ds.shape[1]) // WARP_KEYS  # warps whose keys are all behind the last
            counts += (1, max(warps) > before, len({*warps, *[before] * (absent > 0)}) > 1)
            used = max(byte for byte in (*warps, before) if byte != 255)
            p8 = e4m3(p) / P_SCALE
            flip_p = flips(p, off_p) / P_SCALE
            dq[b, h, rows] += x.scale * (ds @ k)
            dk[b, g, keys] += x.scale * (ds.T @ q)
            dv[b, g, keys] += p8.T @ dout
            either = flip + (ERROR + (RISE_ERROR if x.softcap else 0)) * np.abs(ds)
            room.dq[b, h, rows] += abs(x.scale) * either @ np.abs(k)
            room.dk[b, g, keys] += abs(x.scale) * either.T @ np.abs(q)
            room.dv[b, g, keys] += (flip_p + ERROR * p8).T @ np.abs(dout)
    return Gradients(dq, dk, dv), room, Counts(*(int(n) for n in counts))
