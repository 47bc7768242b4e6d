"""The names of FlashAttention 2 and of torch, against float64, and their arguments against their signatures."""

import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from reference import Array, attention_dense, relative_error

import pysm120
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError

ERROR = {"float16": 1e-3, "bfloat16": 6e-3}  # of products, softmax and result in 16 bits
DTYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
WHERE = ["host", "device"]


def normal(rng: np.random.Generator, *shape: int, dtype: str = "bfloat16") -> Array:
    return rng.standard_normal(shape).astype(DTYPES[dtype])


def here(x: Any) -> Array:
    """Return an ndarray of float64."""
    values: Array = x if isinstance(x, np.ndarray) else x.numpy()
    return values.astype(np.float64)


def call(device: pysm120.Device, where: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call with ndarrays, or with arrays on the device."""

    def put(x: Any) -> Any:
        return device.array(x) if where == "device" and isinstance(x, np.ndarray) else x

    return function(*map(put, arguments), **{name: put(x) for name, x in options.items()}, device=device)


def flash(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    slopes: Array | None = None,
) -> tuple[Array, Array]:
    """O [rows, heads, head size] and LSE [heads, rows] of a sequence, from what FlashAttention documents."""
    q, k, v = (x.astype(np.float64).swapaxes(0, 1) for x in (q, k, v))
    place, key = np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1], np.arange(k.shape[1])
    left, right = (10**6 if side < 0 else side for side in window)
    right = 0 if causal else right
    bias: Array = np.where((key >= place - left) & (key <= place + right), 0.0, -np.inf)[None]
    if slopes is not None:
        bias = bias - slopes[:, None, None] * np.abs(place - key)
    o, lse = attention_dense(q, k, v, q.shape[2] ** -0.5 if scale is None else scale, bias, softcap)
    return o.swapaxes(0, 1), lse


def agrees(out: Any, lse: Any, want: list[tuple[Array, Array]], dtype: str) -> None:
    """Compare batches of O and LSE."""
    o, logs = (np.stack(x) for x in zip(*want, strict=True))
    assert here(out).shape == o.shape
    assert relative_error(here(out), o) < ERROR[dtype]
    np.testing.assert_allclose(here(lse), logs, atol=2e-5)


# What is said by position in the order of FlashAttention, and what it means.
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((0.0, 0.3), {"scale": 0.3}),
    ((0.0, None, True), {"causal": True}),
    ((0, None, False, (10, 3)), {"window": (10, 3)}),
    ((0.0, None, True, (10, -1)), {"causal": True, "window": (10, -1)}),
    ((0.0, None, True, (-1, -1), 2.5), {"causal": True, "softcap": 2.5}),
]


@pytest.mark.sampled(2, each=("positional",))
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(("positional", "meaning"), CALLS, ids=[str(p) for p, _ in CALLS])
def test_flash_attn_func(
    device: pysm120.Device,
    rng: np.random.Generator,
    where: str,
    dtype: str,
    positional: tuple[Any, ...],
    meaning: dict[str, Any],
) -> None:
    q, k, v = (normal(rng, 2, rows, heads, 40, dtype=dtype) for rows, heads in ((30, 4), (70, 2), (70, 2)))
    out, lse, probabilities = call(
        device, where, pysm120.flash_attn_func, q, k, v, *positional, return_attn_probs=True, deterministic=True
    )
    assert isinstance(out, np.ndarray if where == "host" else pysm120.Array)
    assert (out.dtype, lse.dtype, probabilities) == (q.dtype, np.float32, None)
    agrees(out, lse, [flash(q[b], k[b], v[b], **meaning) for b in range(2)], dtype)
    alone = call(device, where, pysm120.flash_attn_func, q, k, v, *positional)
    assert np.array_equal(here(alone), here(out))


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("per_batch", [False, True])
def test_alibi(device: pysm120.Device, rng: np.random.Generator, where: str, per_batch: bool) -> None:
    q, k, v = (normal(rng, 2, rows, 2, 64) for rows in (30, 70, 70))
    slopes = (2.0 ** -rng.uniform(1, 5, (2, 2) if per_batch else 2)).astype(np.float32)
    arguments = (q, k, v, 0.0, None, True, (-1, -1), 0.0, slopes, False, True)  # all that there are, by position
    out, lse, _ = call(device, where, pysm120.flash_attn_func, *arguments)
    each = slopes if per_batch else np.stack([slopes, slopes])
    agrees(out, lse, [flash(q[b], k[b], v[b], causal=True, slopes=each[b]) for b in range(2)], "bfloat16")


@pytest.mark.parametrize("where", WHERE)
def test_packed_tensors(device: pysm120.Device, rng: np.random.Generator, where: str) -> None:
    qkv = normal(rng, 2, 50, 3, 2, 64)
    out, lse, _ = call(
        device, where, pysm120.flash_attn_qkvpacked_func, qkv, causal=True, window_size=(20, 0), return_attn_probs=True
    )
    want = [flash(*(qkv[b, :, i] for i in range(3)), causal=True, window=(20, 0)) for b in range(2)]
    agrees(out, lse, want, "bfloat16")
    q, kv = normal(rng, 2, 30, 4, 64), normal(rng, 2, 50, 2, 2, 64)
    arguments = (q, kv, 0.0, 0.2, True, (-1, -1), 3.0, None, True, True)
    out, lse, _ = call(device, where, pysm120.flash_attn_kvpacked_func, *arguments)
    want = [flash(q[b], kv[b, :, 0], kv[b, :, 1], scale=0.2, causal=True, softcap=3.0) for b in range(2)]
    agrees(out, lse, want, "bfloat16")


@pytest.mark.parametrize("where", WHERE)
def test_flash_attn_varlen_func(device: pysm120.Device, rng: np.random.Generator, where: str) -> None:
    q_lengths, kv_lengths = (10, 1, 64), (20, 33, 40)
    q, k, v = normal(rng, 75, 4, 64), normal(rng, 93, 2, 64), normal(rng, 93, 2, 64)
    starts_q, starts_k = (np.cumsum((0, *n)).astype(np.int32) for n in (q_lengths, kv_lengths))
    arguments = (q, k, v, starts_q, starts_k, 64, 40, 0.0, None, True, (15, -1), 0.0, None, False, True, None)
    out, lse, probabilities = call(device, where, pysm120.flash_attn_varlen_func, *arguments)
    assert probabilities is None
    assert lse.shape == (4, 75)
    for b in range(3):
        rows, keys = slice(*starts_q[b : b + 2]), slice(*starts_k[b : b + 2])
        o, logs = flash(q[rows], k[keys], v[keys], causal=True, window=(15, -1))
        assert relative_error(here(out)[rows], o) < ERROR["bfloat16"]
        seen = np.isfinite(logs)
        assert np.array_equal(np.isneginf(here(lse)[:, rows]), ~seen)
        np.testing.assert_allclose(here(lse)[:, rows][seen], logs[seen], atol=2e-5)


def test_another_precision(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Of a dtype that means none of 16 bits, or instead of it."""
    q, k, v = rng.standard_normal((3, 1, 70, 2, 64)).astype(np.float32)
    exact, _ = flash(q[0], k[0], v[0], causal=True)
    for dtype in (np.float32, np.float16):
        a, b, c = (x.astype(dtype) for x in (q, k, v))
        out = pysm120.flash_attn_func(a, b, c, causal=True, precision="mxfp8", device=device)
        assert out.dtype == dtype
        assert 0.02 < relative_error(out[0], exact) < 0.08
        a, b, c = (x.swapaxes(1, 2) for x in (a, b, c))
        same = pysm120.scaled_dot_product_attention(a, b, c, is_causal=True, precision="mxfp8", device=device)
        assert np.array_equal(same.swapaxes(1, 2), out)


SIGNATURES = {
    "flash_attn_func": "q k v",
    "flash_attn_kvpacked_func": "q kv",
    "flash_attn_qkvpacked_func": "qkv",
    "flash_attn_varlen_func": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k",
}
OPTIONS = "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs"


@pytest.mark.parametrize("name", list(SIGNATURES))
def test_signatures_are_those_of_flash_attention(name: str) -> None:
    """Names and order; what is ours comes by name alone."""
    parameters = inspect.signature(getattr(pysm120, name)).parameters.values()
    wanted = f"{SIGNATURES[name]} {OPTIONS}" + (" block_table" if "varlen" in name else "")
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == wanted.split()
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == ["precision", "device", "stream"]


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dropout_p": 0.1}, UnsupportedError, "dropout_p is 0.1, but dropout is not supported: it must be 0"),
    ({"dropout_p": None}, TypeError, "dropout_p is None, not a real number"),
    ({"softmax_scale": np.nan}, InvalidArgumentError, "softmax_scale is nan, not a number that is finite"),
    ({"window_size": 3}, TypeError, "window_size is 3, not (left, right), each an integer"),
    ({"window_size": (1.5, 0)}, TypeError, "window_size is 1.5, not an integer"),
    ({"window_size": (-2, 0)}, InvalidArgumentError, "window_size is (-2, 0): each end must be -1 or at least 0"),
    ({"softcap": -1.0}, InvalidArgumentError, "softcap = -1"),
    ({"causal": 1}, TypeError, "causal is 1, not True or False"),
    (
        {"alibi_slopes": np.ones(3, np.float32)},
        InvalidArgumentError,
        "alibi_slopes has shape (3,), [heads], but q has heads = 2",
    ),
    ({"precision": "fp16"}, InvalidArgumentError, "precision is 'fp16', not one of"),
    (
        {"q": np.ones((1, 4, 2, 8), np.float64)},
        TypeError,
        "q has dtype float64, not float32, float16 or bfloat16: cast",
    ),
    ({"q": [1.0]}, TypeError, "q is a list, not an array"),
    ({"k": np.ones((1, 4, 2, 8), np.float32)}, TypeError, "k has dtype float32, but q has float16"),
]


@pytest.mark.parametrize(("given", "kind", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_wrong_arguments_are_named(
    device: pysm120.Device, given: dict[str, Any], kind: type[Exception], words: str
) -> None:
    x = np.ones((1, 4, 2, 8), np.float16)
    with pytest.raises(kind) as caught:
        pysm120.flash_attn_func(**{"q": x, "k": x, "v": x, **given}, device=device)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_packed_tensors_are_named() -> None:
    x = np.ones((1, 4, 2, 8), np.float16)
    with pytest.raises(InvalidArgumentError, match=r"qkv has shape \(1, 4, 2, 8\), not \(B, S, 3, H, D\)"):
        pysm120.flash_attn_qkvpacked_func(x)
    with pytest.raises(InvalidArgumentError, match=r"kv has shape \(1, 4, 3, 2, 8\), not \(B, Sk, 2, Hkv, D\)"):
        pysm120.flash_attn_kvpacked_func(x, np.ones((1, 4, 3, 2, 8), np.float16))
    with pytest.raises(TypeError, match="kv is a NoneType, not an array"):
        pysm120.flash_attn_kvpacked_func(x, None)
    starts = np.array([0, 4], np.int32)
    with pytest.raises(UnsupportedError, match="block_table is given, but paged keys and values"):
        pysm120.flash_attn_varlen_func(x[0], x[0], x[0], starts, starts, 4, 4, block_table=starts)
    lengths: Any = np.array([4, 4])
    with pytest.raises(TypeError, match=r"^max_seqlen_q is a ndarray, not an integer$"):
        pysm120.flash_attn_varlen_func(x[0], x[0], x[0], starts, starts, lengths, 4)


# ---- torch ----------------------------------------------------------------------


def torch_says(
    q: Array, k: Array, v: Array, bias: Any = 0.0, *, is_causal: bool = False, scale: float | None = None
) -> Array:
    """Return what torch documents, in float64; k and v have the heads of q."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s: Array = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    if is_causal:
        s = np.where(np.tril(np.ones(s.shape[-2:], bool)), s, -np.inf)
    highest = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isneginf(highest), 0, highest))
    o: Array = p / np.maximum(p.sum(-1, keepdims=True), 1e-300) @ v
    return o


@pytest.mark.sampled(2, each=("lead",))
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("is_causal", [False, True])
def test_scaled_dot_product_attention(
    device: pysm120.Device,
    rng: np.random.Generator,
    where: str,
    lead: tuple[int, ...],
    dtype: str,
    is_causal: bool,
) -> None:
    """Any number of dimensions before the rows; causal is top-left."""
    q, k, v = (normal(rng, *lead, rows, d, dtype=dtype) for rows, d in ((30, 24), (50, 24), (50, 40)))
    out = call(
        device, where, pysm120.scaled_dot_product_attention, q, k, v, None, 0.0, is_causal, scale=None if lead else 0.1
    )
    want = torch_says(q, k, v, is_causal=is_causal, scale=None if lead else 0.1)
    assert out.shape == want.shape
    assert out.dtype == q.dtype
    assert relative_error(here(out), want) < ERROR[dtype]


# The shape of a mask, which dimensions stand before heads, whether arrays on a device do it.
MASKS = [
    ((50,), (2,)),
    ((30, 1), (2,)),
    ((3, 1, 50), (2,)),
    ((2, 1, 30, 50), (2,)),
    ((30, 50), ()),
    ((2, 4, 3, 30, 50), (2, 4)),
    ((1, 1, 3, 1, 50), (2, 4)),
    ((3, 30, 50), (2, 4)),
    ((4, 1, 30, 50), (2, 4)),
]


@pytest.mark.sampled(2, each=("shape", "lead"))
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", ["bool", "bfloat16", "float32"])
@pytest.mark.parametrize(("shape", "lead"), MASKS, ids=str)
def test_masks_of_torch(
    device: pysm120.Device,
    rng: np.random.Generator,
    where: str,
    kind: str,
    shape: tuple[int, ...],
    lead: tuple[int, ...],
) -> None:
    """True keeps a key; numbers are added; a row without any key is 0."""
    q, k, v = (normal(rng, *lead, 3, rows, 16) for rows in (30, 50, 50))
    numbers = rng.standard_normal(shape)
    mask: Array = numbers > -0.5 if kind == "bool" else numbers.astype(DTYPES.get(kind, kind))
    mask[(0,) * mask.ndim] = False if kind == "bool" else -np.inf
    if mask.ndim > 1 and mask.shape[-2] == 30:
        mask[..., 7, :] = False if kind == "bool" else -np.inf
    arguments = (pysm120.scaled_dot_product_attention, q, k, v, mask)
    if where == "device" and shape == (4, 1, 30, 50):
        with pytest.raises(
            UnsupportedError, match=r"attn_mask has shape \(4, 1, 30, 50\): on a device, dimensions before"
        ):
            call(device, where, *arguments)
        return
    out = here(call(device, where, *arguments))
    want = torch_says(q, k, v, np.where(mask, 0, -np.inf) if kind == "bool" else mask.astype(np.float64))
    assert relative_error(out, want) < ERROR["bfloat16"]


@pytest.mark.parametrize("where", WHERE)
def test_enable_gqa(device: pysm120.Device, rng: np.random.Generator, where: str) -> None:
    q, k, v = normal(rng, 2, 6, 30, 16), normal(rng, 2, 2, 50, 16), normal(rng, 2, 2, 50, 16)
    out = call(device, where, pysm120.scaled_dot_product_attention, q, k, v, enable_gqa=True)
    assert relative_error(here(out), torch_says(q, k.repeat(3, 1), v.repeat(3, 1))) < ERROR["bfloat16"]


WRONG_TORCH: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"query": np.ones(8, np.float16)},
        InvalidArgumentError,
        "query has shape (8,), but query, key and value must have equally many",
    ),
    (
        {"key": np.ones((4, 8), np.float16)},
        InvalidArgumentError,
        "key has shape (4, 8), but query, key and value must have equally many",
    ),
    ({"key": np.ones((1, 2, 4, 9), np.float16)}, InvalidArgumentError, "key has shape (1, 2, 4, 9), not (1, 2, 4, 8)"),
    ({"value": np.ones((1, 2, 5, 8), np.float16)}, InvalidArgumentError, "value has shape (1, 2, 5, 8), not (1, 2, 4"),
    ({"query": np.ones((1, 4, 4, 8), np.float16)}, InvalidArgumentError, "key has 2 heads, but query has 4, which ena"),
    (
        {"query": np.ones((1, 3, 4, 8), np.float16), "enable_gqa": True},
        InvalidArgumentError,
        "query has 3 heads, not a multiple of the 2 of key and value",
    ),
    ({"query": np.ones((1, 2, 4, 8), np.float64)}, TypeError, "query has dtype float64, not float32, float16 or bfl"),
    ({"query": None}, TypeError, "query is a NoneType, not an array"),
    ({"query": np.ones((1, 2, 0, 8), np.float16)}, InvalidArgumentError, "query has shape (1, 2, 0, 8), but every dim"),
    ({"value": np.ones((1, 2, 4, 8), np.float32)}, TypeError, "value has dtype float32, but query has float16"),
    ({"attn_mask": np.ones((4, 4), np.int32)}, TypeError, "attn_mask has dtype int32, not bool, float32, float16 or"),
    ({"dropout_p": 0.5}, UnsupportedError, "dropout_p is 0.5, but dropout is not supported: it must be 0"),
    ({"is_causal": "yes"}, TypeError, "is_causal is 'yes', not True or False"),
    ({"attn_mask": np.ones((4, 4), bool), "is_causal": True}, InvalidArgumentError, "attn_mask is given and is_causal"),
    (
        {"attn_mask": np.ones((4, 5), bool)},
        InvalidArgumentError,
        "attn_mask has shape (4, 5), which does not broadcast",
    ),
    ({"attn_mask": np.ones((1, 1, 1, 4, 4), bool)}, InvalidArgumentError, "attn_mask has shape (1, 1, 1, 4, 4), which"),
    ({"attn_mask": True}, TypeError, "attn_mask is a bool, not an array"),
    ({"scale": "big"}, TypeError, "scale is 'big', not a real number"),
]


@pytest.mark.parametrize(("given", "kind", "words"), WRONG_TORCH, ids=[words for *_, words in WRONG_TORCH])
def test_wrong_arguments_of_torch_are_named(
    device: pysm120.Device, given: dict[str, Any], kind: type[Exception], words: str
) -> None:
    x = np.ones((1, 2, 4, 8), np.float16)
    with pytest.raises(kind) as caught:
        pysm120.scaled_dot_product_attention(**{"query": x, "key": x, "value": x, **given}, device=device)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
