"""What operations compute, in float64 NumPy, written apart from the kernels."""

from importlib import resources
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


class Scores(NamedTuple):
    """Probabilities (B, H, Sq, Sk), log-sum-exp (B, H, Sq), and the derivative of the softcap."""

    p: Floats
    lse: Floats
    slope: Floats


def _heads(x: npt.NDArray[Any], count: int) -> Floats:
    """Return (B, S, Hkv, D) as (B, H, S, D), each head repeated for the heads of q that share it."""
    wide = np.moveaxis(x.astype(np.float64), 2, 1)
    return np.repeat(wide, count // wide.shape[1], axis=1)


def scores(
    q: npt.NDArray[Any],
    k: npt.NDArray[Any],
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    sinks: Any = None,
    alibi_slopes: Any = None,
    mask: Any = None,
    kv_lengths: Any = None,
) -> Scores:
    """Return the softmax of scaled scores; arguments as in ``pysm120.attention``, rows without a key are 0."""
    heads, rows, keys = q.shape[2], q.shape[1], k.shape[1]
    product = _heads(q, heads) @ _heads(k, heads).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    slope = np.ones_like(product)
    if softcap:
        product = softcap * np.tanh(product / softcap)
        slope = 1 - (product / softcap) ** 2
    # How far each key is behind the diagonal, which ends at the last row and the last key.
    far = np.arange(rows)[:, None] + (keys - rows) - np.arange(keys)
    if alibi_slopes is not None:
        product = product - np.asarray(alibi_slopes, np.float64)[:, None, None] * np.abs(far)
    if mask is not None:
        product = product + mask.astype(np.float64)
    hidden = np.zeros((len(q), 1, rows, keys), np.bool_)
    hidden |= (far < 0) if causal else False
    hidden |= False if window[0] is None else far > window[0]
    hidden |= False if window[1] is None else far < -window[1]
    if kv_lengths is not None:
        hidden |= np.arange(keys) >= np.asarray(kv_lengths)[:, None, None, None]
    product = np.where(hidden, -np.inf, product)
    extra = np.full((1, heads, 1), -np.inf) if sinks is None else np.asarray(sinks, np.float64)[None, :, None]
    highest = np.maximum(product.max(-1), extra)
    highest = np.where(np.isfinite(highest), highest, 0)
    with np.errstate(divide="ignore"):
        lse = highest + np.log(np.exp(product - highest[..., None]).sum(-1) + np.exp(extra - highest))
    p = np.exp(product - np.where(np.isfinite(lse), lse, 0)[..., None])
    return Scores(p, lse, slope)


def attention(q: npt.NDArray[Any], k: npt.NDArray[Any], v: npt.NDArray[Any], **options: Any) -> tuple[Floats, Floats]:
    """Return attention (B, Sq, H, Dv) and its log-sum-exp (B, H, Sq)."""
    found = scores(q, k, **options)
    return np.moveaxis(found.p @ _heads(v, q.shape[2]), 1, 2), found.lse


def gradients(
    dout: npt.NDArray[Any], q: npt.NDArray[Any], k: npt.NDArray[Any], v: npt.NDArray[Any], **options: Any
) -> tuple[Floats, Floats, Floats]:
    """Return dq, dk and dv of attention."""
    heads, kv_heads = q.shape[2], k.shape[2]
    found = scores(q, k, **options)
    d = _heads(dout, heads)
    wide_v = _heads(v, heads)
    dv = found.p.swapaxes(-1, -2) @ d
    dp = d @ wide_v.swapaxes(-1, -2)
    ds = found.p * (dp - (d * (found.p @ wide_v)).sum(-1, keepdims=True)) * found.slope / np.sqrt(q.shape[-1])
    dq, dk = ds @ _heads(k, heads), ds.swapaxes(-1, -2) @ _heads(q, heads)

    def shared(x: Floats) -> Floats:
        """Add the heads that share keys, and return (B, S, Hkv, D)."""
        grouped = x.reshape(len(x), kv_heads, heads // kv_heads, *x.shape[2:])
        return np.moveaxis(grouped.sum(2), 1, 2)

    return np.moveaxis(dq, 1, 2), shared(dk), shared(dv)


def mx(x: npt.NDArray[Any], axis: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return e4m3 elements and ue8m0 scales of blocks of 32 along an axis; scales are rounded up."""
    wide = np.moveaxis(x.astype(np.float64), axis, -1)
    padded = np.pad(wide, [(0, 0)] * (wide.ndim - 1) + [(0, -wide.shape[-1] % 32)])
    blocks = padded.reshape(*wide.shape[:-1], -1, 32)
    largest = np.abs(blocks).max(-1, keepdims=True)
    scale = np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1) / 448)))
    elements = (blocks / scale).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).reshape(padded.shape)
    elements = np.moveaxis(elements[..., : wide.shape[-1]], -1, axis)
    return elements, np.moveaxis(scale[..., 0], -1, axis).astype(np.float32).astype(ml_dtypes.float8_e8m0fnu)


def minilm() -> dict[str, npt.NDArray[Any]]:
    """Return real data: q0, k0, v0, q3, ... of shape (heads, tokens, head size); ``cli/demo.py`` says what they are."""
    path = resources.files("pysm120") / "data" / "minilm_qkv.npz"
    with path.open("rb") as file, np.load(file) as archive:
        return dict(archive)


# ---- blocks of GGUF -----------------------------------------------------------------------

# Columns and bytes of a block, and the offsets of its f16 scales.
GGUF: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "Q2_K": (256, 84, (80, 82)),
    "Q3_K": (256, 110, (108,)),
    "Q4_K": (256, 144, (0, 2)),
    "Q5_K": (256, 176, (0, 2)),
    "Q6_K": (256, 210, (208,)),
    "Q8_0": (32, 34, (0,)),
    "MXFP4": (32, 17, ()),
    "NVFP4": (64, 36, ()),
}
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _half(b: Bytes, at: int) -> Floats:
    """Return the f16 at an offset of each block, as a column."""
    found: Floats = np.ascontiguousarray(b[:, at : at + 2]).view(np.float16).astype(np.float64)
    return found


def _fields(b: Bytes, shifts: tuple[int, ...], bits: int) -> npt.NDArray[np.int64]:
    """Return the fields of each byte: all bytes at the first shift, then all at the next one."""
    return np.concatenate([(b >> shift) & ((1 << bits) - 1) for shift in shifts], axis=-1).astype(np.int64)


def _six(b: Bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the 8 scales and 8 minimums, of six bits, of Q4_K and Q5_K."""
    low, high, rest = (b[:, i : i + 4].astype(np.int64) for i in (0, 4, 8))
    scale = np.concatenate([low & 63, (rest & 15) | (low >> 6) << 4], axis=1)
    return scale, np.concatenate([high & 63, (rest >> 4) | (high >> 6) << 4], axis=1)


def _parts(quants: npt.NDArray[np.int64], scale: Any) -> Floats:
    """Multiply equal parts of a block by their scales."""
    scale = np.asarray(scale, np.float64)
    parts = quants.reshape(len(quants), scale.shape[1], -1)
    found: Floats = (parts * scale[:, :, None]).reshape(len(quants), -1)
    return found


def _ones(quants: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.ones_like(quants)


def _by_parts(b: Bytes, size: int, shifts: tuple[int, ...], bits: int) -> npt.NDArray[np.int64]:
    """Return the fields of a block whose parts of ``size`` bytes are unpacked one after the other."""
    return _fields(b.reshape(len(b), -1, size), shifts, bits).reshape(len(b), -1)


def _q2_k(b: Bytes) -> Floats:
    quants, scales = _by_parts(b[:, 16:80], 32, (0, 2, 4, 6), 2), b[:, :16]
    return _parts(quants, _half(b, 80) * (scales & 15)) - _parts(_ones(quants), _half(b, 82) * (scales >> 4))


def _q3_k(b: Bytes) -> Floats:
    packed = b[:, 96:108].astype(np.int64)
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    scale = (low | _fields(b[:, 104:108], (0, 2, 4, 6), 2) << 4) - 32
    quants = _by_parts(b[:, 32:96], 32, (0, 2, 4, 6), 2) | _fields(b[:, :32], tuple(range(8)), 1) << 2
    return _parts(quants - 4, _half(b, 108) * scale)


def _q4_k(b: Bytes) -> Floats:
    scale, least = _six(b[:, 4:16])
    quants = _by_parts(b[:, 16:], 32, (0, 4), 4)
    return _parts(quants, _half(b, 0) * scale) - _parts(_ones(quants), _half(b, 2) * least)


def _q5_k(b: Bytes) -> Floats:
    scale, least = _six(b[:, 4:16])
    quants = _by_parts(b[:, 48:], 32, (0, 4), 4) | _fields(b[:, 16:48], tuple(range(8)), 1) << 4
    return _parts(quants, _half(b, 0) * scale) - _parts(_ones(quants), _half(b, 2) * least)


def _q6_k(b: Bytes) -> Floats:
    quants = _by_parts(b[:, :128], 64, (0, 4), 4) | _by_parts(b[:, 128:192], 32, (0, 2, 4, 6), 2) << 4
    return _parts(quants - 32, _half(b, 208) * np.ascontiguousarray(b[:, 192:208]).view(np.int8))


def _q8_0(b: Bytes) -> Floats:
    found: Floats = _half(b, 0) * np.ascontiguousarray(b[:, 2:]).view(np.int8)
    return found


def _mxfp4(b: Bytes) -> Floats:
    found: Floats = np.exp2(b[:, :1].astype(np.float64) - 127) * _E2M1[_fields(b[:, 1:], (0, 4), 4)]
    return found


def _nvfp4(b: Bytes) -> Floats:
    scale = np.ascontiguousarray(b[:, :4]).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    quants = _by_parts(b[:, 4:], 8, (0, 4), 4)
    found: Floats = (_E2M1[quants].reshape(len(b), 4, 16) * scale[:, :, None]).reshape(len(b), 64)
    return found


_DECODE = {
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q8_0": _q8_0,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}


def gguf_blocks(rng: np.random.Generator, name: str, rows: int, columns: int) -> Bytes:
    """Return random blocks (rows, bytes of a row) with scales around 0.01."""
    width, size, halves = GGUF[name]
    raw = rng.integers(0, 256, (rows * columns // width, size), np.uint8)
    for at in halves:
        raw[:, at : at + 2] = (0.01 * rng.standard_normal((len(raw), 1))).astype(np.float16).view(np.uint8)
    if name == "MXFP4":
        raw[:, 0] = rng.integers(118, 124, len(raw))
    if name == "NVFP4":
        raw[:, :4] = rng.integers(0x08, 0x30, (len(raw), 4))
    return raw.reshape(rows, -1)


def gguf_values(raw: Bytes, name: str) -> Floats:
    """Return the weights of rows of blocks."""
    return _DECODE[name](raw.reshape(-1, GGUF[name][1])).reshape(len(raw), -1)
