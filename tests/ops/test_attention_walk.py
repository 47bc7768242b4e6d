"""Kernels whose CTAs go on to the Q tiles of CTAs that have not started: walks of all lengths, in every order."""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from reference import attention_float64, relative_error

import pysm120
from pysm120.runtime.module import builtins

Array = NDArray[Any]


class Kind(NamedTuple):
    """What a precision is tested with: dtype of q, k and v, bounds of errors, the kernel's config and rows."""

    dtype: Any
    error: float  # relative, of O against float64
    lse_error: float  # root of the mean square
    head_dim: int = 128
    config: str = "r16"
    rows: int = 192  # of a Q tile


KINDS = {
    "mxfp8": Kind(ml_dtypes.bfloat16, 0.08, 0.06),
    "mxfp8_bf16": Kind(ml_dtypes.bfloat16, 0.06, 0.06, rows=128),
    "nvfp4": Kind(ml_dtypes.bfloat16, 0.3, 0.2),
    "nvfp4_mxfp8": Kind(ml_dtypes.bfloat16, 0.2, 0.2),
    "fp8": Kind(ml_dtypes.float8_e4m3fn, 0.06, 0.03),
    "bf16": Kind(ml_dtypes.bfloat16, 0.004, 1e-5, 128, "walk", 128),
    "f16": Kind(np.float16, 0.0006, 1e-5, 64, "walk", 128),
}
NEXT = "get_first_ctaid"  # what a warp executes for each Q tile that its CTA takes over

attention: Any = pysm120.attention


def drawn(rng: np.random.Generator, precision: str, sizes: tuple[int, int, int, int, int]) -> list[Array]:
    """q, k and v of batch, rows, keys, heads and kv heads."""
    batch, rows, keys, heads, kv_heads = sizes
    head_dim = KINDS[precision].head_dim
    shapes = [(batch, rows, heads, head_dim)] + 2 * [(batch, keys, kv_heads, head_dim)]
    return [rng.standard_normal(shape).astype(KINDS[precision].dtype) for shape in shapes]


def exact(q: Array, k: Array, v: Array, *, causal: bool) -> tuple[Array, Array]:
    """O and LSE in float64."""
    wide_q, wide_k, wide_v = (x.astype(np.float64) for x in (q, k, v))
    return attention_float64(wide_q, wide_k, wide_v, q.shape[-1] ** -0.5, "bottom-right" if causal else None)


def walked(seed: int, *arrays: Array, precision: str, **options: Any) -> tuple[Array, Array, int]:
    """O, LSE and how many Q tiles were taken over, with full checks."""
    options |= {"precision": precision, "config": KINDS[precision].config}
    with pysm120.Device(f"virtual?checks=full&seed={seed}") as device, device.profile() as p:
        out, lse = attention(*arrays, device=device, return_lse=True, out_dtype=np.float32, **options)
    return out, lse, sum(one.counts.executed for one in p.statements if NEXT in one.text)


@pytest.mark.virtual
@pytest.mark.parametrize("precision", list(KINDS))
def test_the_tile_of_the_kernels_that_go_on(precision: str) -> None:
    """The tests below choose rows and keys by it."""
    kind = KINDS[precision]
    found = [one for one in builtins() if one.operation == "attention" and one.precision == precision]
    found = [one for one in found if one.head_dim == kind.head_dim and one.config == kind.config and not one.features]
    assert [one.q_rows for one in found] == [kind.rows]


@pytest.mark.virtual
@pytest.mark.sampled(16)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [1, 64, 65, 128, 191, 193, 257, 320, 449, 577, 833])
@pytest.mark.parametrize("precision", list(KINDS))
def test_every_walk_gives_the_same_bits(rng: np.random.Generator, precision: str, keys: int, causal: bool) -> None:
    """Fewer tiles of keys than stages, as many, and more; tiles of queries with few rows; rows without a key.

    Seeds give other orders, in which requests of other Q tiles fail at random.
    """
    tile = KINDS[precision].rows
    rows = int(rng.choice([tile - 1, tile, tile + 1, 2 * tile + 16]))
    batch = 16 if causal and keys == 1 else 2  # one row of a head has a key: few of them vary by more than the bound
    arrays = drawn(rng, precision, (batch, rows, keys, 6, 2))
    outs, lses, taken = zip(
        *(walked(seed, *arrays, precision=precision, causal=causal) for seed in range(3)), strict=True
    )
    for out, lse in zip(outs[1:], lses[1:], strict=True):
        np.testing.assert_array_equal(out, outs[0])
        np.testing.assert_array_equal(lse, lses[0])
    assert max(taken) > 0, f"no CTA went on: {taken}"
    wanted, sums = exact(*arrays, causal=causal)
    assert relative_error(outs[0].astype(np.float64), wanted) < KINDS[precision].error
    seen = np.isfinite(sums)
    np.testing.assert_array_equal(np.isneginf(lses[0]), ~seen)
    assert np.sqrt(np.mean((lses[0][seen] - sums[seen]) ** 2)) < KINDS[precision].lse_error


@pytest.mark.virtual
@pytest.mark.parametrize("precision", list(KINDS))
def test_walks_over_split_keys(rng: np.random.Generator, precision: str) -> None:
    """A CTA goes on from whole Q tiles to parts of the keys of others, and from part to part."""
    arrays = drawn(rng, precision, (1, 3 * KINDS[precision].rows + 5, 640, 3, 1))
    outs, lses, taken = zip(
        *(walked(seed, *arrays, precision=precision, num_splits=3) for seed in range(3)), strict=True
    )
    np.testing.assert_array_equal(outs[1], outs[0])
    np.testing.assert_array_equal(lses[2], lses[0])
    assert max(taken) > 0, f"no CTA went on: {taken}"
    assert relative_error(outs[0].astype(np.float64), exact(*arrays, causal=False)[0]) < KINDS[precision].error
