"""The default precision follows the dtype, in every entry point; bf16 takes float32 and rounds it."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pysm120
from pysm120.compat import flash_attn, sdpa

BF16 = np.dtype(ml_dtypes.bfloat16)
DEFAULTS = {"float16": "f16", "bfloat16": "bf16", "float32": "bf16"}
# Head sizes of q and k, and of v; rows. The second is aligned to nothing, the last needs the widest kernel.
SHAPES = [(64, 64, 100), (20, 36, 33), (128, 128, 65), (200, 64, 40)]


def draw(rng: np.random.Generator, shape: tuple[int, int, int]) -> list[Any]:
    """q, k, v and dout, [B, S, H, D]."""
    d, dv, rows = shape
    return [rng.standard_normal((2, rows, 2, n)).astype("f4") for n in (d, d, dv, dv)]


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_is_rounded_to_bf16(
    device: pysm120.Device, rng: np.random.Generator, shape: tuple[int, int, int]
) -> None:
    """Bit for bit the result of operands that NumPy rounded, from the host and on the device."""
    wide = draw(rng, shape)
    *narrow, narrow_dout = (x.astype(BF16) for x in wide)
    q, k, v, dout = wide
    out, lse = pysm120.attention(q, k, v, causal=True, return_lse=True, device=device)
    wanted, sums = pysm120.attention(*narrow, causal=True, return_lse=True, out_dtype="f4", device=device)
    assert out.dtype == np.float32
    assert np.array_equal(out, wanted)
    assert np.array_equal(lse, sums)
    there = [device.array(x) for x in (q, k, v)]
    assert np.array_equal(pysm120.attention(*there, causal=True).numpy(), wanted)
    bq, bk, bv = narrow
    gradients = pysm120.attention_backward(dout, q, k, v, out, lse, causal=True, device=device)
    rounded = pysm120.attention_backward(narrow_dout, bq, bk, bv, out, lse, causal=True, device=device)
    for x, y in zip(gradients, rounded, strict=True):
        assert x.dtype == np.float32
        # dQ is added up in any order.
        assert np.linalg.norm(x - y.astype("f4")) <= 2**-8 * np.linalg.norm(x)


def test_special_values_survive_the_rounding(device: pysm120.Device) -> None:
    """A NaN of v stays one, an infinity too, and ties go to even."""
    q = np.zeros((1, 1, 1, 8), "f4")
    v = np.array([np.nan, np.inf, -np.inf, 1 + 2**-8, 1 + 3 * 2**-8, 2**-130, -0.0, 3.4e38], "f4").reshape(1, 1, 1, 8)
    got = pysm120.attention(q, q, v, device=device)
    np.testing.assert_array_equal(got, v.astype(BF16).astype("f4"))


ENTRIES: dict[str, Callable[..., Any]] = {
    "attention": pysm120.attention,
    "flash_attn_func": flash_attn.flash_attn_func,
    "sdpa": lambda q, k, v, **rest: sdpa.scaled_dot_product_attention(
        q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2), **rest
    ),
    "attention_varlen": lambda q, k, v, **rest: pysm120.attention_varlen(q[0], k[0], v[0], [0, 40], [0, 40], **rest),
}


@pytest.mark.parametrize("dtype", DEFAULTS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_one_default_for_every_entry(device: pysm120.Device, rng: np.random.Generator, entry: str, dtype: str) -> None:
    x = rng.standard_normal((1, 40, 2, 64)).astype(dtype)
    got = ENTRIES[entry](x, x, x, device=device)
    wanted = ENTRIES[entry](x, x, x, precision=DEFAULTS[dtype], device=device)
    other = ENTRIES[entry](x, x, x, precision="mxfp8", device=device)
    assert np.array_equal(got, wanted)
    assert not np.array_equal(got, other)


def test_another_dtype_is_named(device: pysm120.Device) -> None:
    x = np.ones((1, 8, 1, 64), np.float64)
    for call in (pysm120.attention, flash_attn.flash_attn_func):
        with pytest.raises(TypeError, match="q has dtype float64"):
            call(x, x, x, device=device)
