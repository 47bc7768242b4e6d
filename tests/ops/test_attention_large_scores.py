"""Numbers up to the limits that docs/reference/attention.md states: scores, values, windows and diagonals."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pysm120

LIMIT = 93_000_000
LARGEST_V = 4e18
FAR = 2**30 - 1
SHAPE = (1, 40, 2, 64)
GRID = np.array([-6, -4, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 6])  # of e2m1: exact in every precision
PRECISIONS = ("bf16", "f16", "mxfp8", "mxfp8_bf16", "mxfp8_f16", "nvfp4", "nvfp4_mxfp8")
LARGEST = {"bf16": 3.3e38, "f16": 65504.0}  # of a gradient


def operand(rng: np.random.Generator) -> Any:
    """Return numbers of the grid; every 16th of a head is 6, so that all block scales are powers of two."""
    x = rng.choice(GRID, SHAPE)
    x[..., ::16] = 6
    return x


def features(feature: str, rng: np.random.Generator, top: float) -> tuple[dict[str, Any], Any, Any]:
    """Return the arguments of a feature, what it adds to scores, and the sink of each head."""
    rows, heads = SHAPE[1], SHAPE[2]
    i, j = np.ogrid[:rows, :rows]
    if feature == "lengths":
        return {"kv_lengths": np.array([29], np.int32)}, np.where(j < 29, 0.0, -np.inf), None
    if feature == "causal":
        return {"causal": True}, np.where(j <= i, 0.0, -np.inf), None
    if feature == "mask":
        mask = (0.05 * top * rng.uniform(-1, 1, (1, 1, rows, rows))).astype(np.float32)
        return {"mask": mask}, mask.astype(np.float64), None
    if feature == "sinks":
        sinks = np.array([0.5 * top, -1], np.float32)
        return {"sinks": sinks}, 0.0, sinks.astype(np.float64).reshape(1, heads, 1, 1)
    return {}, 0.0, None


@pytest.mark.sampled(1, each=("precision",))
@pytest.mark.parametrize("feature", ["none", "lengths", "causal", "mask", "sinks"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_largest_scores(device: pysm120.Device, rng: np.random.Generator, precision: str, feature: str) -> None:
    q, k, v = operand(rng), operand(rng), operand(rng)
    products = np.einsum("bihd,bjhd->bhij", q, k)
    top = 0.9 * LIMIT
    scale = float(np.float32(top / np.abs(products).max()))
    arguments, added, sink = features(feature, rng, top)
    x = products * scale + added
    assert np.abs(x[np.isfinite(x)]).max() < LIMIT
    most = x.max(-1, keepdims=True) if sink is None else np.maximum(x.max(-1, keepdims=True), sink)
    p = np.exp(x - most)
    total = p.sum(-1, keepdims=True) + (0 if sink is None else np.exp(sink - most))
    expected = np.einsum("bhij,bjhd->bihd", p / total, v)
    lse = (most + np.log(total))[..., 0]
    dtype = np.float16 if precision in {"f16", "mxfp8_f16"} else ml_dtypes.bfloat16
    given: dict[str, Any] = {name: device.array(a) if isinstance(a, np.ndarray) else a for name, a in arguments.items()}
    if precision.startswith("nvfp4"):
        given["smoothing"] = False  # differences from a mean are not on the grid
    out, got = pysm120.attention(
        *(device.array(t.astype(dtype)) for t in (q, k, v)),
        scale=scale, precision=precision, out_dtype=np.float32, return_lse=True, device=device, **given,
    )  # fmt: skip
    np.testing.assert_allclose(got.numpy(), lse, rtol=1e-6, err_msg="lse")
    # of two scores that differ by less than f32's steps, either may be the larger one
    second = np.sort(np.where(x < most, x, -np.inf), -1)[..., -1]
    is_clear = np.moveaxis((most[..., 0] - second > 1e-5 * LIMIT), 1, 2)
    assert is_clear.mean() > 0.9
    np.testing.assert_allclose(out.numpy()[is_clear], expected[is_clear], atol=0.3, err_msg="o")


@pytest.mark.parametrize(("top", "most"), [(1e5, 0.01), (1e6, 0.1)])
@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_gradients_of_large_scores(
    device: pysm120.Device, rng: np.random.Generator, precision: str, top: float, most: float
) -> None:
    dtype: Any = np.float16 if precision == "f16" else ml_dtypes.bfloat16
    q, k, v, dout = (rng.normal(size=(1, 128, 2, 64)).astype(dtype) for _ in range(4))
    x = np.einsum("bihd,bjhd->bhij", q.astype(np.float64), k.astype(np.float64))
    scale = float(np.float32(top / np.abs(x).max()))
    p = np.exp(scale * (x - x.max(-1, keepdims=True)))
    p /= p.sum(-1, keepdims=True)
    expected = np.einsum("bhij,bihd->bjhd", p, dout.astype(np.float64))
    dp = np.einsum("bihd,bjhd->bhij", dout.astype(np.float64), v.astype(np.float64))
    ds = scale * p * (dp - (p * dp).sum(-1, keepdims=True))
    dq = np.einsum("bhij,bjhd->bihd", ds, k.astype(np.float64))
    dk = np.einsum("bhij,bihd->bjhd", ds, q.astype(np.float64))
    a, b, c = device.array(q), device.array(k), device.array(v)
    out, lse = pysm120.attention(a, b, c, scale=scale, precision=precision, return_lse=True, device=device)
    gradients = pysm120.attention_backward(
        device.array(dout), a, b, c, out, lse, scale=scale, precision=precision, device=device
    )
    error = np.linalg.norm(gradients[2].numpy().astype(np.float64) - expected) / np.linalg.norm(expected)
    assert error < most
    for gradient, exact in zip(gradients, (dq, dk, expected), strict=True):
        got = gradient.numpy().astype(np.float64)
        assert not np.isnan(got).any()
        # Two scores that nearly tie make gradients of q and k of the size of scale: f16 ends at 65504.
        assert np.isfinite(got[abs(exact) < LARGEST[precision] / 4]).all()


EDGES = (
    (2**30, (2**30, 2**30)),
    (2**30, (2**31 - 1, None)),
    (2**31 - 1, (2**31 - 1, 0)),
    (-(2**30), (0, 2**30)),
    (-(2**30), (None, 2**30 + 3)),
    (-(2**31), (0, 2**31 - 1)),
    (2**30 + 5, (2**30, 2**31 - 1)),
)


@pytest.mark.parametrize("precision", ["bf16", "mxfp8", "nvfp4"])
@pytest.mark.parametrize(("diagonal", "window"), EDGES)
def test_edges_do_not_overflow(
    device: pysm120.Device,
    rng: np.random.Generator,
    precision: str,
    diagonal: int,
    window: tuple[int | None, int | None],
) -> None:
    """Zero scores: the LSE is the logarithm of the number of keys that a row sees."""
    rows = SHAPE[1]
    q = device.array(np.zeros(SHAPE, ml_dtypes.bfloat16))
    v = device.array(rng.normal(size=SHAPE).astype(ml_dtypes.bfloat16))
    _, lse = pysm120.attention(
        q, q, v, diagonals=device.array(np.array([diagonal], np.int32)), window=window, precision=precision,
        return_lse=True, device=device,
    )  # fmt: skip
    i, j = (x.astype(object) for x in np.ogrid[:rows, :rows])
    diagonal = max(-FAR, min(diagonal, FAR))
    left = j >= i + diagonal - min(window[0], FAR) if window[0] is not None else j > -1
    right = j <= i + diagonal + min(window[1], FAR) if window[1] is not None else j > -1
    count = (left & right & np.ones((rows, rows), bool)).sum(-1).astype(np.float64)
    with np.errstate(divide="ignore"):
        expected = np.log(count)
    np.testing.assert_allclose(lse.numpy()[0], np.broadcast_to(expected, (SHAPE[2], rows)), rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("rise", [5, 20, 40, 60, 80, 1000])
@pytest.mark.parametrize("feature", ["none", "causal", "sinks"])
def test_large_values_after_scores_that_rise(device: pysm120.Device, feature: str, rise: int) -> None:
    shape = (1, 512, 1, 64)
    q, k = np.zeros(shape), np.zeros(shape)
    q[..., 0] = 1
    k[0, :, 0, 0] = np.linspace(0, rise, shape[1])
    v = np.full(shape, LARGEST_V).astype(ml_dtypes.bfloat16)
    arguments: dict[str, Any] = {"causal": True} if feature == "causal" else {}
    if feature == "sinks":
        arguments["sinks"] = device.array(np.array([-20], np.float32))
    out = pysm120.attention(
        *(device.array(x.astype(ml_dtypes.bfloat16)) for x in (q, k, v)),
        scale=1.0, out_dtype=np.float32, device=device, **arguments,
    )  # fmt: skip
    np.testing.assert_allclose(out.numpy(), float(v.flat[0]), rtol=0.01)
