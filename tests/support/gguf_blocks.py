"""Weights in blocks of GGUF, and what the gguf package makes of them."""

from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Block(NamedTuple):
    """Where the scales of a block lie."""

    columns: int
    bytes: int
    d: int = -1  # an f16; -1: none
    dmin: int = -1  # the same
    codes: tuple[int, int, int] = (0, 0, 0)  # scales of one byte: the first, their number, the end of usual codes


BLOCKS = {
    "Q2_K": Block(256, 84, 80, 82),
    "Q3_K": Block(256, 110, 108),
    "Q4_K": Block(256, 144, 0, 2),
    "Q5_K": Block(256, 176, 0, 2),
    "Q6_K": Block(256, 210, 208),
    "Q8_0": Block(32, 34, 0),
    "MXFP4": Block(32, 17, codes=(0, 1, 130)),
    "NVFP4": Block(64, 36, codes=(0, 4, 0x50)),
}


def halves(raw: Bytes, at: int) -> NDArray[np.float16]:
    """Return the f16 of each block at an offset, as a view."""
    return np.ndarray(raw.shape[:-1], np.float16, raw, at, raw.strides[:-1])


def random_blocks(rng: np.random.Generator, name: str, rows: int, columns: int) -> Bytes:
    """Return blocks [rows][blocks][bytes] with random quants and scales around 0.01, of both signs."""
    block = BLOCKS[name]
    raw = rng.integers(0, 256, (rows, columns // block.columns, block.bytes), dtype=np.uint8)
    for at in (block.d, block.dmin):
        if at >= 0:
            halves(raw, at)[...] = 0.01 * rng.standard_normal(raw.shape[:2])
    first, count, end = block.codes
    if count:
        raw[..., first : first + count] = rng.integers(end - 10, end, (*raw.shape[:2], count))
    return raw


def values(raw: Bytes, name: str) -> NDArray[np.float32]:
    """Return the values by the gguf package, f32 [rows][columns]."""
    with np.errstate(all="ignore"):
        found: NDArray[np.float32] = dequantize(raw.reshape(len(raw), -1), gguf.GGMLQuantizationType[name])
    return found


def magnitudes(raw: Bytes, name: str) -> NDArray[np.float64]:
    """Return bounds of |d * scale * quant| + |dmin * minimum| for each weight."""
    if BLOCKS[name].dmin < 0:
        return abs(values(raw, name).astype(float))
    raw = raw.copy()
    d, dmin = halves(raw, BLOCKS[name].d), halves(raw, BLOCKS[name].dmin)
    d[...], dmin[...] = abs(d), -abs(dmin)
    return values(raw, name).astype(float)


def quantized(x: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the scales and the quants of vectors in blocks of 32 int8, as the kernels compute them."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    amax = abs(blocks).max(-1, keepdims=True)
    is_zero = amax < np.float32(2.0**-100)
    scale = np.where(is_zero, np.float32(0), amax / np.float32(127))
    inverse = np.where(is_zero, np.float32(0), np.float32(127) / np.where(is_zero, np.float32(1), amax))
    return scale, np.rint(blocks * inverse)
