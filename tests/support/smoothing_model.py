"""The smoothing of q and k as the kernels compute it: means of samples, and products that are exact.

q k = (q - q_mean) (k - k_mean) + q_mean (k - k_mean) + q k_mean; only the first product is rounded to NVFP4.
"""

import ml_dtypes
import numpy as np
from reference import Array, nvfp4

KEY_SAMPLES, QUERY_SAMPLES, PASSES = 256, 64, 8
MEANS_MAX = 128  # of a head


def mean_rows(head_dim: int, rows: int) -> int:
    """Return the queries that share a mean: the rows of a CTA, doubled until a head has few means."""
    step = 192 if head_dim > 64 else 128
    while step * MEANS_MAX < rows:
        step *= 2
    return step


def sample_mean(x: Array, samples: int, dtype: str) -> Array:
    """Mean [..., 1, D] of a sample of the rows of x [..., rows, D], in the order of the kernel's sums, in 16 bits."""
    rows, numbers = x.shape[-2], np.arange(min(x.shape[-2], samples))
    divisor = max(len(numbers), 1)
    chosen = x[..., numbers * (rows // divisor) + numbers * (rows % divisor) // divisor, :].astype(np.float32)
    total = np.zeros((*x.shape[:-2], x.shape[-1]), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(PASSES):
            part = np.zeros_like(total)
            for i in numbers[first::PASSES]:
                part = part + chosen[..., i, :]
            total = total + part
        mean = (total / np.float32(divisor)).astype("float16" if dtype == "float16" else ml_dtypes.bfloat16)
    mean = mean.astype(np.float32)
    return np.where(np.isfinite(mean), mean, np.float32(0))[..., None, :]


def in_two_bf16(x: Array) -> Array:
    """float32 as the sum of two bfloat16, in float64."""
    high = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        low = (x - high).astype(ml_dtypes.bfloat16)
    return high.astype(np.float64) + low.astype(np.float64)


def smoothed(q: Array, k: Array, dtype: str, v_dim: int = 0) -> tuple[Array, Array]:
    """Return vectors [..., heads, rows, 3 D] whose products are the scores of q and k [..., heads, rows, D].

    They are the rounded differences, the means of q and the differences of k, and q and the means of k. v_dim: the head
    size of v, if it is larger, which decides the kernel's tile too.
    """
    q, k = q.astype(np.float32), k.astype(np.float32)
    step = mean_rows(max(q.shape[-1], v_dim), q.shape[-2])
    tiles = [q[..., first : first + step, :] for first in range(0, q.shape[-2], step)]
    means = [np.broadcast_to(sample_mean(tile, QUERY_SAMPLES, dtype), tile.shape) for tile in tiles]
    q_mean = np.concatenate(means, -2) if means else q
    k_mean = np.broadcast_to(sample_mean(k, KEY_SAMPLES, dtype), k.shape)
    keys = in_two_bf16(k) if dtype == "float32" else k.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return (
            np.concatenate([nvfp4(q - q_mean, -1), q_mean, q], -1, dtype=np.float64),
            np.concatenate([nvfp4(k - k_mean, -1), keys - k_mean, k_mean], -1, dtype=np.float64),
        )
