"""Attention against jax.nn.dot_product_attention on the CPU, whose arrays come and go by DLPack.

JAX computes in float32 what it is given in 16 bits. By FlashAttention's rule: the error against it is at most twice
that of JAX's own result in 16 bits, plus one rounding of the largest element.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from backward_reference import gradients, inputs, others
from hypothesis import strategies as st
from test_attention_splits import chosen
from test_oracles import judge, repeated

import pysm120

Array = npt.NDArray[Any]
KINDS: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
ROUNDING = {"f16": 2**-11, "bf16": 2**-8}


class Problem(NamedTuple):
    """A shape and rules."""

    precision: str
    shape: tuple[int, int, int, int, int, int]
    causal: bool
    window: tuple[int, int] | None
    bias: bool
    mask: bool
    lengths: bool
    scale: float | None
    values: int


# batch, heads of k and v, heads of q for each of them, rows of q, rows of k and v, head size; JAX compiles for each.
SHAPES = [(2, 2, 3, 20, 100, 64), (1, 3, 1, 80, 50, 13)]
PROBLEMS = st.builds(
    Problem,
    precision=st.sampled_from(list(KINDS)),
    shape=st.sampled_from(SHAPES),
    causal=st.booleans(),
    window=st.sampled_from([None, (5, 0), (20, 7)]),
    bias=st.booleans(),
    mask=st.booleans(),
    lengths=st.booleans(),
    scale=st.sampled_from([None, 0.2]),
    values=st.integers(0, 2**32 - 1),
)


def everything(p: Problem) -> dict[str, Any]:
    """The arrays of a problem as ndarrays."""
    rng = np.random.default_rng(p.values)
    kind, (batch, kv_heads, group, q_rows, kv_rows, head_dim) = KINDS[p.precision], p.shape
    heads = kv_heads * group
    q = rng.standard_normal((batch, q_rows, heads, head_dim)).astype(kind)
    k, v = rng.standard_normal((2, batch, kv_rows, kv_heads, head_dim)).astype(kind)
    bias = rng.standard_normal((1, heads, q_rows, kv_rows)).astype(np.float32)
    mask = rng.random((batch, 1, q_rows, kv_rows)) < 0.8
    lengths = rng.integers(1, kv_rows + 1, batch).astype(np.int32)
    return {"q": q, "k": k, "v": v, "bias": bias, "mask": mask, "lengths": lengths}


@contextmanager
def reference() -> Iterator[None]:
    """Compute on the CPU, where a float32 product is one; operations are compiled for each shape alone."""
    with jax.default_device(jax.devices("cpu")[0]), jax.disable_jit():
        yield


def by_jax(p: Problem, given: dict[str, Any], dtype: Any) -> tuple[Array, Array]:
    """O and LSE [batch, heads, rows] of JAX, computed in a dtype."""
    with reference():
        out, logs = jax.nn.dot_product_attention(
            *(jnp.asarray(given[name], dtype) for name in "qkv"),
            bias=jnp.asarray(given["bias"], dtype) if p.bias else None,
            mask=jnp.asarray(given["mask"]) if p.mask else None,
            scale=p.scale,
            is_causal=p.causal,
            key_value_seq_lengths=jnp.asarray(given["lengths"]) if p.lengths else None,
            local_window_size=p.window,
            implementation="xla",
            return_residual=True,
        )
    return np.asarray(out, np.float64), np.asarray(logs, np.float64).transpose(0, 2, 1)


def hidden(p: Problem, given: dict[str, Any]) -> Array:
    """Which rows see no key, [batch, heads, rows]: JAX has another idea of them."""
    batch, kv_heads, group, q_rows, kv_rows, _ = p.shape
    i, j = np.arange(q_rows)[:, None], np.arange(kv_rows)
    left, right = p.window or (kv_rows + q_rows, kv_rows)
    right = min(right, 0) if p.causal else right
    seen: Array = np.broadcast_to((j >= i - left) & (j <= i + right), (batch, 1, q_rows, kv_rows))
    if p.mask:
        seen = seen & given["mask"]
    if p.lengths:
        seen = seen & (j < given["lengths"][:, None, None, None])
    empty: Array = ~seen.any(-1).repeat(kv_heads * group, 1)
    return empty


def test_jax(device: pysm120.Device, pytestconfig: pytest.Config) -> None:
    """Top-left causal, windows, biases, masks and lengths."""

    def test(p: Problem) -> None:
        given = everything(p)
        mask: Any = None  # one argument here, two there
        if p.bias:
            mask = np.where(given["mask"], given["bias"], -np.inf).astype(np.float32) if p.mask else given["bias"]
        elif p.mask:
            mask = given["mask"]
        there: dict[str, Any] = {name: jnp.asarray(given[name]) for name in "qkv"}
        out, lse = pysm120.attention(
            **there,
            causal=p.causal,
            causal_align="top-left",
            window=p.window or (None, None),
            mask=None if mask is None else jnp.asarray(mask),
            kv_lengths=jnp.asarray(given["lengths"]) if p.lengths else None,
            scale=p.scale,
            precision=p.precision,
            out_dtype=np.float32,
            return_lse=True,
            device=device,
        )
        empty = hidden(p, given)
        got, logs = np.asarray(out), np.asarray(lse)
        exact, exact_logs = by_jax(p, given, jnp.float32)
        plain, _ = by_jax(p, given, KINDS[p.precision])
        rows = ~empty.transpose(0, 2, 1)
        assert not got[~rows].any()
        assert np.isneginf(logs[empty]).all()
        judge(got[rows], exact[rows], plain[rows], ROUNDING[p.precision])
        np.testing.assert_allclose(logs[~empty], exact_logs[~empty], atol=2e-5)

    repeated(test, pytestconfig, examples=30, p=PROBLEMS)


def slopes_of_jax(p: Problem, given: dict[str, Any], dtype: Any) -> list[Array]:
    """O, LSE and gradients by jax.vjp, computed in a dtype; JAX lets no gradient through LSE."""

    def forward(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return jax.nn.dot_product_attention(
            q,
            k,
            v,
            bias=bias if p.bias else None,
            mask=jnp.asarray(given["mask"]) if p.mask else None,
            key_value_seq_lengths=jnp.asarray(given["lengths"]) if p.lengths else None,
            scale=p.scale,
            is_causal=p.causal,
            local_window_size=p.window,
            implementation="xla",
            return_residual=True,
        )

    with reference():
        results, back = jax.vjp(forward, *(jnp.asarray(given[name], dtype) for name in ("q", "k", "v", "bias")))
        found = [*results, *back((jnp.asarray(given["dout"], dtype), jnp.zeros_like(results[1])))]
    return [np.asarray(x, np.float64) for x in found]


def test_gradients_of_jax(device: pysm120.Device, pytestconfig: pytest.Config) -> None:
    """Top-left causal, windows, biases, masks and lengths; the reference of the other tests agrees with JAX, too."""

    def test(p: Problem) -> None:
        rng = np.random.default_rng(p.values + 1)
        kind, (batch, kv_heads, group, q_rows, kv_rows, head_dim) = KINDS[p.precision], p.shape
        q_rows = min(q_rows, kv_rows)
        p = p._replace(shape=(batch, kv_heads, group, q_rows, kv_rows, head_dim))
        given = everything(p)
        given["dout"] = rng.standard_normal(given["q"].shape).astype(kind)
        empty = hidden(p, given)
        given["dout"][empty.transpose(0, 2, 1)] = 0  # JAX has another idea of rows that see no key
        out, logs, *exact = slopes_of_jax(p, given, jnp.float32)
        _, _, *plain = slopes_of_jax(p, given, kind)
        mask = np.zeros((1, 1, 1, 1), np.float32)
        options: dict[str, Any] = {}
        if p.mask:
            mask = np.where(given["mask"], np.float32(0), np.float32(-np.inf))
        if p.bias:
            mask = given["bias"] + mask
        if p.mask or p.bias:
            options = {"mask": jnp.asarray(mask), "return_dmask": True}
        made = pysm120.attention_backward(
            **{name: jnp.asarray(given[name]) for name in ("dout", "q", "k", "v")},
            out=jnp.asarray(out, jnp.float32),
            lse=jnp.asarray(np.ascontiguousarray(logs.transpose(0, 2, 1), np.float32)),
            causal=p.causal,
            causal_align="top-left",
            window=p.window or (None, None),
            kv_lengths=jnp.asarray(given["lengths"]) if p.lengths else None,
            scale=p.scale,
            device=device,
            **options,
        )
        found = [np.array(x) for x in made]
        if p.bias:
            found[3] = found[3].sum(0, keepdims=True)  # the bias has one batch
        # With one key dP equals delta, and the gradients of q and k are rounding alone, in float32.
        size = {name: float(np.abs(given[name].astype(np.float32)).max(initial=0)) for name in ("dout", "q", "k", "v")}
        cancelled = 2.0**-23 * head_dim * size["dout"] * size["v"] * max(size["q"], size["k"])
        for got, best, usual in zip(found[: 4 if p.bias else 3], exact, plain, strict=False):
            judge(got, best, usual, ROUNDING[p.precision], cancelled)
        far = np.arange(kv_rows) - np.arange(q_rows)[:, None]
        left, right = p.window or (q_rows, kv_rows)
        rule = ((far >= -left) & (far <= right) & ((far <= 0) | (not p.causal)))[None, None]
        if p.lengths:
            rule = rule & (np.arange(kv_rows) < given["lengths"][:, None, None, None])
        heads_first = (given[name].swapaxes(1, 2) for name in ("q", "k", "v", "dout"))
        x = inputs(heads_first, head_dim**-0.5 if p.scale is None else p.scale, rule)._replace(added=mask)
        for own, best in zip(gradients(x), exact, strict=False):
            np.testing.assert_allclose(own.swapaxes(1, 2), best, atol=3e-5)
        if p.bias:
            np.testing.assert_allclose(others(x).dadded.sum(0, keepdims=True), exact[3], atol=3e-5)

    repeated(test, pytestconfig, examples=10, p=PROBLEMS)


@pytest.mark.parametrize("rows", [4, 1000])
def test_results_are_arrays_of_jax(device: pysm120.Device, rows: int) -> None:
    """On the CPU, where the inputs are, in every dtype of results."""
    x = jnp.ones((1, rows, 1, 16), jnp.bfloat16)
    _, splits = chosen(device, (1, 4, rows, 1, 1, 16))
    # Results of splits are added up with weights from float32 logarithms, which are rounded by 2^-22.
    error = 2**-20 if splits > 1 else 0.0
    for dtype in (None, np.float32, np.float16):
        out = pysm120.attention(x[:, :4], x, x, out_dtype=dtype, device=device)
        assert isinstance(out, jax.Array)
        assert out.device == x.device
        assert out.dtype == (dtype or jnp.bfloat16)
        assert out.shape == (1, 4, 1, 16)
        assert np.abs(np.asarray(out, np.float64) - 1).max() <= (error if dtype == np.float32 else 0)
    y = jnp.ones((rows, 32), jnp.float32)
    for made, wanted in (
        (pysm120.quantize_mxfp8(y, device=device), pysm120.quantize_mxfp8(np.asarray(y), device=device)),
        (pysm120.quantize_nvfp4(y, device=device), pysm120.quantize_nvfp4(np.asarray(y), device=device)),
    ):
        for got, best in zip(made, wanted, strict=True):
            assert isinstance(got, jax.Array)
            assert got.dtype == best.dtype
            assert np.asarray(got).tobytes() == best.tobytes()


def test_arrays_of_jax_are_never_written(device: pysm120.Device) -> None:
    x = jnp.ones((1, 4, 1, 16), jnp.bfloat16)
    with pytest.raises(TypeError, match="out is a ArrayImpl of jax, whose arrays cannot be written to: leave it"):
        pysm120.attention(x, x, x, out=jnp.zeros_like(x), device=device)
    assert (x == 1).all()
