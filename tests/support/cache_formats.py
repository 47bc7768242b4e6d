"""How a cache holds keys and values: quantised and read back by NumPy, in the arithmetic of the kernels."""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from reference import quantize_mxfp8

Array = NDArray[Any]
E4M3, E5M2, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu
NONE = np.empty(0, np.uint8)
LARGEST = {E4M3: np.float32(448), E5M2: np.float32(57344)}


class Held(NamedTuple):
    """Elements as a cache holds them, and their scales in blocks; without blocks these are empty."""

    elements: Array
    blocks: Array


def _pad(x: Array, block: int) -> Array:
    """Return x in blocks of its last dimension, the last one padded with zeros."""
    lacking = -x.shape[-1] % block
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, lacking)])
    return padded.reshape(*x.shape[:-1], -1, block)


def _by_blocks(scales: Array, block: int, columns: int) -> Array:
    """Return a scale for each column."""
    return np.repeat(scales, block, -1)[..., :columns]


def quantise(x: Array, kind: str, factor: Array) -> Held:
    """Quantise x [..., columns]; `factor` [..., 1], f32, is what the caller gives for E4M3, E5M2 and NVFP4."""
    wide, factor = x.astype(np.float32), factor.astype(np.float32)
    with np.errstate(all="ignore"):
        if kind == "copy":
            return Held(x, NONE)
        if kind in {"e4m3", "e5m2"}:
            dtype = {"e4m3": E4M3, "e5m2": E5M2}[kind]
            return Held(np.clip(wide * (np.float32(1) / factor), -LARGEST[dtype], LARGEST[dtype]).astype(dtype), NONE)
        if kind == "mxfp8":
            rows = wide.reshape(1, 1, -1, wide.shape[-1])
            elements, scales = quantize_mxfp8(rows, -1, "up")
            return Held(
                elements.view(E4M3).reshape(x.shape), scales.view(E8M0).reshape(*x.shape[:-1], scales.shape[-1])
            )
        parts = _pad(wide, 16)
        most = np.abs(parts).max(-1)
        most = np.where(np.isinf(most), np.nan, most)
        scales = np.minimum(most / (np.float32(6) * factor), LARGEST[E4M3]).astype(E4M3)
        divisor = scales.astype(np.float32) * factor
        divisor = np.where(divisor == 0, np.float32(np.inf), divisor)
        codes = e2m1(parts * (np.float32(1) / divisor)[..., None]).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
        return Held((codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8), scales)


def e2m1(x: Array) -> Array:
    """Return the codes of numbers, by the distance to each of the values; a tie goes to the even code."""
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    distance = np.abs(np.minimum(np.abs(x), 6).astype(np.float64)[..., None] - values)
    order = np.array([0, 2, 4, 6, 1, 3, 5, 7])  # argmin takes the first of equals
    codes = order[np.argmin(distance[..., order], -1)]
    found: Array = np.where(np.isnan(x), 7, codes | np.signbit(x) << 3).astype(np.uint8)
    return found


def read(held: Held, kind: str, factor: Array, columns: int) -> Array:
    """Return the values of elements in f32."""
    factor = factor.astype(np.float32)
    with np.errstate(all="ignore"):
        if kind == "copy":
            return held.elements.astype(np.float32)
        if kind in {"e4m3", "e5m2"}:
            return held.elements.astype(np.float32) * factor
        if kind == "mxfp8":
            scales = np.exp2(held.blocks.view(np.uint8).astype(np.float64) - 127).astype(np.float32)
            scales = np.where(held.blocks.view(np.uint8) == 255, np.float32(np.nan), scales)
            return held.elements.astype(np.float32) * _by_blocks(scales, 32, columns)
        codes = np.stack([held.elements & 15, held.elements >> 4], -1).reshape(*held.elements.shape[:-1], -1)
        values = codes.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
        found: Array = values * _by_blocks(held.blocks.astype(np.float32) * factor, 16, columns)
        return found


def scale_places(row: int, count: int, *, is_swizzled: bool) -> tuple[Array, Array]:
    """Return the row and the index of each scale of a page's row; swizzled: the order of SM100 kernels."""
    s = np.arange(count)
    if not is_swizzled:
        return np.full(count, row), s
    return 4 * (row // 4) + s // (count // 4), 4 * (s % (count // 4)) + row % 4
