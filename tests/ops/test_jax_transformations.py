"""pysm120.jax under jit, grad and vmap: the bits of calls on ndarrays, and the gradients of JAX's own attention."""

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graph_cases import CASES, arrays, gradients

import pysm120
import pysm120.jax

numpy_api: Any = pysm120  # arguments come from tables
sm120: Any = pysm120.jax


def same(got: Any, best: Any) -> None:
    """Check arrays of JAX against ndarrays, bit by bit."""
    assert isinstance(got, jax.Array)
    assert got.dtype == best.dtype
    np.testing.assert_array_equal(np.asarray(got).astype(np.float32), best.astype(np.float32))


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_ndarrays(
    device: pysm120.Device, rng: np.random.Generator, name: str
) -> None:
    """Compiled, with gradients through out and lse."""
    given, rules = arrays(rng, CASES[name])
    with_lse = name != "mxfp8"
    options = {**rules, "device": device}
    out, lse = numpy_api.attention(**given, **options, return_lse=True)
    dout, dlse = rng.standard_normal(out.shape).astype(out.dtype), rng.standard_normal(lse.shape).astype(np.float32)
    floats = {n: x for n, x in given.items() if x.dtype.kind not in "ib"}
    others = {n: x for n, x in given.items() if n not in floats}

    def both(floats: dict[str, Any], dout: Any, dlse: Any) -> Any:
        def attend(floats: dict[str, Any]) -> Any:
            return sm120.attention(**floats, **others, **options, return_lse=True, deterministic=True)

        results, back = jax.vjp(attend, floats)
        return results, back((dout, dlse if with_lse else jnp.zeros_like(dlse)))[0]

    (got, sums), slopes = jax.jit(both)(floats, dout, dlse)
    same(got, out)
    same(sums, lse)
    ends = {"out": out, "lse": lse, "dout": dout, "dlse": dlse if with_lse else np.zeros_like(dlse)}
    for x, best in gradients(given, rules, ends, floats, device).items():
        same(slopes[x], best)
    if "alibi_slopes" in floats:
        assert not np.asarray(slopes["alibi_slopes"]).any()


def test_gradients_are_those_of_jax(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A loss of attention in float16 beside that of jax.nn in float32; a result without lse."""
    given, _ = arrays(rng, {})

    def loss(attend: Any, given: dict[str, Any]) -> Any:
        return (attend(*(given[x] for x in "qkv")).astype(jnp.float32) ** 2).sum()

    def theirs(*x: Any) -> Any:
        q, k, v = (y.astype(jnp.float32) for y in x)
        v = jnp.pad(v, ((0, 0),) * 3 + ((0, 16),))  # JAX wants one head size
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    def ours(*x: Any) -> Any:
        return sm120.attention(*x, causal=True, causal_align="top-left", device=device)

    value, slopes = jax.jit(jax.value_and_grad(lambda x: loss(ours, x)))(given)
    best, wanted = jax.value_and_grad(lambda x: loss(theirs, x))(given)
    assert abs(value - best) < 2e-3 * best
    for name in given:
        got, want = (np.asarray(x[name], np.float32) for x in (slopes, wanted))
        np.testing.assert_allclose(got, want, atol=2e-2)


@pytest.mark.parametrize("name", ["causal", "lengths", "sinks", "bias"])
@pytest.mark.parametrize("shared", [False, True])
def test_vmap(device: pysm120.Device, rng: np.random.Generator, name: str, *, shared: bool) -> None:
    """Nested, also over q alone; results and gradients of each element as in calls of their own."""
    given, rules = arrays(rng, CASES[name], 3, 1)
    if shared:
        given |= {x: given[x][0, 0] for x in "kv"}
    options = {**rules, "device": device, "deterministic": True}
    more = {n: x for n, x in given.items() if n not in "qkv"}

    def slopes(q: Any, k: Any, v: Any) -> Any:
        return jax.grad(lambda x: sm120.attention(*x, **more, **options).astype(jnp.float32).sum())((q, k, v))

    over = (0, None, None) if shared else 0
    found = jax.jit(jax.vmap(jax.vmap(slopes, over), over))(*(given[x] for x in "qkv"))
    for at in range(3):
        own = slopes(*(given[x] if shared and x != "q" else given[x][at, 0] for x in "qkv"))
        for got, best in zip(found, own, strict=True):
            same(got[at, 0], np.asarray(best))


def test_wrong_arguments_are_named_before_anything_is_compiled(device: pysm120.Device) -> None:
    x = jnp.zeros((1, 4, 2, 32), jnp.float16)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"k": x[..., :8]}, ValueError, "k has shape .*, but q has head_dim = 32"),
        ({"k": x.astype(jnp.float32)}, TypeError, "k has dtype float32, but q has float16"),
        ({"q": "x"}, TypeError, "q is a str, not an array of JAX"),
        ({"causal": 1}, TypeError, "causal is 1, not True or False"),
        ({"layout": "SBHD"}, ValueError, "layout is 'SBHD', not one of"),
        ({"precision": "f64"}, ValueError, "precision is 'f64', not one of"),
        ({"window": 3}, TypeError, "window is 3, not"),
        ({"out_dtype": np.int8}, TypeError, "out_dtype has dtype int8"),
        ({"return_lse": 1}, TypeError, "return_lse is 1"),
        ({"kv_lengths": np.zeros(2, np.int32)}, ValueError, "kv_lengths has shape"),
    ]
    for given, kind, message in wrong:
        arguments = {"q": x, "k": x, "v": x, "device": device, **given}
        with pytest.raises(kind, match=message):
            jax.jit(lambda a=arguments: sm120.attention(**a))()
    if x.device.platform == "cpu":  # values on a GPU are not looked at
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"kv_lengths is .*, but each length must be from 0 to 4"):
            jax.block_until_ready(sm120.attention(x, x, x, kv_lengths=np.array([5], np.int32), device=device))
    with pytest.raises(TypeError, match=r"q is a .*Tracer, .* a transformation of JAX: call pysm120.jax.attention"):
        jax.jit(lambda q: pysm120.attention(q, q, q, device=device))(x)


def test_jax_is_imported_only_if_asked() -> None:
    code = "import pysm120, sys; assert 'jax' not in sys.modules; import pysm120.jax; assert 'jax' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
