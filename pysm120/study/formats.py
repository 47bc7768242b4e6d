"""Models of the number formats of attention's operands: what each format rounds float64 values to.

A model knows the format alone, not the order of a kernel's sums, nor which of a row's scores its weights refer to
before the highest is known.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

E4M3_MAX, E2M1_MAX = 448.0, 6.0
MX_BLOCK, NV_BLOCK = 32, 16


def _rounded(x: Floats, dtype: Any) -> Floats:
    """Round to a dtype by way of float32, as kernels do."""
    return x.astype(np.float32).astype(dtype).astype(np.float64)


def bf16(x: Floats) -> Floats:
    """Round to bfloat16."""
    return _rounded(x, ml_dtypes.bfloat16)


def f16(x: Floats) -> Floats:
    """Round to float16."""
    return _rounded(x, np.float16)


def e4m3(x: Floats) -> Floats:
    """Round to float8_e4m3fn."""
    return _rounded(x, ml_dtypes.float8_e4m3fn)


def _in_blocks(x: Floats, axis: int, size: int, function: Callable[[Floats], Floats]) -> Floats:
    """Apply a function to blocks of neighbours along an axis; the last one is filled up with zeros."""
    x = np.moveaxis(x, axis, -1)
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % size)])
    blocks = function(padded.reshape(*x.shape[:-1], -1, size))
    return np.moveaxis(blocks.reshape(padded.shape)[..., : x.shape[-1]], -1, axis)


def mxfp8(x: Floats, axis: int = -1) -> Floats:
    """Round to e4m3 with a power-of-two scale for every 32 elements along an axis, rounded up (OCP MX)."""

    def of_blocks(blocks: Floats) -> Floats:
        largest = np.abs(blocks).max(-1, keepdims=True)
        scale = np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1) / E4M3_MAX)))
        return e4m3(blocks / scale) * scale

    return _in_blocks(x, axis, MX_BLOCK, of_blocks)


def nvfp4(x: Floats, axis: int = -1) -> Floats:
    """Round to e2m1 with an e4m3 scale, amax / 6, for every 16 elements along an axis."""

    def of_blocks(blocks: Floats) -> Floats:
        scale = e4m3(np.minimum(np.abs(blocks).max(-1, keepdims=True) / E2M1_MAX, E4M3_MAX))
        return _e2m1(blocks / np.where(scale > 0, scale, 1)) * scale

    return _in_blocks(x, axis, NV_BLOCK, of_blocks)


def _e2m1(x: Floats) -> Floats:
    """Round to float4_e2m1fn; elements saturate at 6."""
    return _rounded(np.clip(x, -E2M1_MAX, E2M1_MAX), ml_dtypes.float4_e2m1fn)


def codes_of_heads(x: Floats) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Return e4m3 codes of x (B, S, H, D), and the scale of each batch and head, amax / 448."""
    largest = np.abs(x).max((1, 3))
    scale = np.where(largest > 0, largest / E4M3_MAX, 1).astype(np.float32)
    codes = np.clip(x / scale[:, None, :, None], -E4M3_MAX, E4M3_MAX).astype(np.float32)
    return codes.astype(ml_dtypes.float8_e4m3fn), scale


def fp8(x: Floats, axis: int = -1) -> Floats:
    """Round x (B, S, H, D) to e4m3 with one scale for each batch and head."""
    del axis
    codes, scale = codes_of_heads(x)
    return codes.astype(np.float64) * scale[:, None, :, None]


# ---- weights: P, whose highest of a row is 1 --------------------------------------------


def weights_e4m3(p: Floats) -> Floats:
    """Round weights to e4m3, the highest of a row at 2^7."""
    return e4m3(p * 128) / 128


def weights_nvfp4(p: Floats) -> Floats:
    """Round weights to e2m1 with an e4m3 scale for 16 keys, the highest of a row at 6 * 2^7."""
    return nvfp4(p * (E2M1_MAX * 128)) / (E2M1_MAX * 128)


class Combination(NamedTuple):
    """How a precision rounds its operands.

    Attributes
    ----------
    scores, values : function of an array and an axis
        The rounding of q and k along the head, and of v along the keys.
    weights : function
        The rounding of P.
    sums_rounded : bool
        Whether the sum of a row is of the rounded weights.
    smooths : bool
        Whether means are taken off q and k before they are rounded, and their scores added.
    words : (str, str)
        The formats of q and k, and of P and v, for tables.
    clocks : float
        Time of the tensor pipe for both products, in units of bf16's: what decides between precisions of the same
        error if no GPU measures.

    """

    scores: Callable[[Floats, int], Floats]
    values: Callable[[Floats, int], Floats]
    weights: Callable[[Floats], Floats]
    sums_rounded: bool
    smooths: bool
    words: tuple[str, str]
    clocks: float


def _along(function: Callable[[Floats], Floats]) -> Callable[[Floats, int], Floats]:
    """Return a rounding that does not depend on an axis."""
    return lambda x, _: function(x)


EXACT, ROUNDED = False, True  # of the sums of a row's weights
AS_GIVEN, SMOOTHED = False, True  # q and k

# The combinations of formats that have a kernel, by precision of `attention`. A GeForce multiplies block-scaled e4m3
# at four times the rate of bf16, and e2m1 at twice that. Of equal clocks the first is the faster kernel.
COMBINATIONS: dict[str, Combination] = {
    "f16": Combination(_along(f16), _along(f16), f16, EXACT, AS_GIVEN, ("f16", "f16"), 1.0),
    "bf16": Combination(_along(bf16), _along(bf16), bf16, EXACT, AS_GIVEN, ("bf16", "bf16"), 1.0),
    "mxfp8_f16": Combination(mxfp8, _along(f16), f16, EXACT, AS_GIVEN, ("MXFP8", "f16"), 0.625),
    "mxfp8_bf16": Combination(mxfp8, _along(bf16), bf16, EXACT, AS_GIVEN, ("MXFP8", "bf16"), 0.625),
    "fp8": Combination(fp8, fp8, weights_e4m3, ROUNDED, AS_GIVEN, ("FP8", "FP8"), 0.25),
    "mxfp8": Combination(mxfp8, mxfp8, weights_e4m3, ROUNDED, AS_GIVEN, ("MXFP8", "MXFP8"), 0.25),
    "nvfp4_mxfp8": Combination(nvfp4, mxfp8, weights_e4m3, ROUNDED, SMOOTHED, ("NVFP4", "MXFP8"), 0.1875),
    "nvfp4": Combination(nvfp4, nvfp4, weights_nvfp4, ROUNDED, SMOOTHED, ("NVFP4", "NVFP4"), 0.125),
}


def smoothed(q: Floats, k: Floats, rounded: Callable[[Floats, int], Floats], tile: int = 128) -> tuple[Floats, Floats]:
    """Return vectors whose products are the scores of q and k (B, S, H, D), of which only differences are rounded.

    q k = (q - q_mean) (k - k_mean) + q_mean (k - k_mean) + q k_mean. k_mean is the mean of a head's keys, q_mean that
    of a tile of rows.
    """
    k_mean = np.broadcast_to(k.mean(1, keepdims=True), k.shape)
    tiles = [q[:, first : first + tile] for first in range(0, q.shape[1], tile)]
    q_mean = np.concatenate([np.broadcast_to(x.mean(1, keepdims=True), x.shape) for x in tiles], 1)
    return (
        np.concatenate([rounded(q - q_mean, -1), q_mean, q], -1),
        np.concatenate([rounded(k - k_mean, -1), k - k_mean, k_mean], -1),
    )


class Result(NamedTuple):
    """O (B, Sq, H, Dv), LSE (B, H, Sq), scores (B, H, Sq, Sk) with -inf for hidden keys."""

    o: Floats
    lse: Floats
    scores: Floats


def reference(
    q: Floats, k: Floats, v: Floats, combination: Combination | None = None, *, causal: bool, scale: float | None = None
) -> Result:
    """Return attention of arrays (B, S, H, D) in float64, with operands rounded by a combination or not at all."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if combination:
        v = combination.values(v, 1)
        if combination.smooths:
            q, k = smoothed(q, k, combination.scores)
        else:
            q, k = combination.scores(q, -1), combination.scores(k, -1)
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, 2) for x in (k, v))
    scores = scale * np.einsum("bqhd,bkhd->bhqk", q, k, optimize=True)
    if causal:
        rows, keys = scores.shape[2:]
        scores = np.where(np.arange(keys) <= np.arange(rows)[:, None] + keys - rows, scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    highest = np.where(np.isneginf(highest), 0, highest)
    p = np.exp(scores - highest)
    rounded = combination.weights(p) if combination else p
    total = (rounded if combination and combination.sums_rounded else p).sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        o = np.where(total > 0, np.einsum("bhqk,bkhd->bhqd", rounded, v, optimize=True) / total, 0)
        lse = highest[..., 0] + np.log(total[..., 0])
    return Result(np.moveaxis(o, 1, 2), lse, scores)
