"""Arrays of other libraries: results are arrays of their library, and given results are written in place.

The library here speaks DLPack as torch does: before 1.0, without float8, and with dtypes of its own.
"""

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import pysm120
from pysm120.ops import foreign
from pysm120.runtime import dlpack
from pysm120.runtime.arrays import host_view

api: Any = pysm120  # the types of its arguments are what is tested
BF16, E4M3 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)


class Dtype(NamedTuple):
    """A dtype of the library."""

    name: str

    def __str__(self) -> str:
        return f"tensors.{self.name}"


class Tensor:
    """An array of the library, over an ndarray or over an Array of a GPU."""

    def __init__(self, values: Any) -> None:
        self.values = values

    @property
    def dtype(self) -> Dtype:
        return Dtype(self.values.dtype.name)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        values = self.values
        there: tuple[int, int] = values.__dlpack_device__() if isinstance(values, pysm120.Array) else (1, 0)
        return there

    def __dlpack__(self, *, stream: Any = None) -> Any:
        values = self.values
        return (dlpack.HostArray(values) if isinstance(values, np.ndarray) else values).__dlpack__(stream=stream)

    def __getitem__(self, key: Any) -> "Tensor":
        return Tensor(self.values[key])

    def reshape(self, *shape: Any) -> "Tensor":
        return Tensor(self.values.reshape(*shape))

    def transpose(self, one: int, other: int) -> "Tensor":
        return Tensor(self.values.swapaxes(one, other))

    def permute(self, *axes: int) -> "Tensor":
        return Tensor(self.values.transpose(*axes))

    def view(self, dtype: Dtype) -> "Tensor":
        return Tensor(self.values.view(np.dtype(getattr(ml_dtypes, dtype.name))))

    def numpy(self) -> Any:
        return self.values if isinstance(self.values, np.ndarray) else self.values.numpy()


class Parameter(Tensor):
    """A type of another module, as users derive them."""


def from_dlpack(x: Any) -> Tensor:
    if x.__dlpack_device__()[0] != 1:
        return Tensor(x)
    values = host_view(x)
    if values.dtype.isbuiltin != 1 and values.itemsize == 1:
        message = "float8 types are not supported by dlpack"
        raise BufferError(message)
    return Tensor(values)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """The library, as its user imported it."""
    module: Any = types.ModuleType("tensors")
    module.from_dlpack, module.Tensor = from_dlpack, Tensor
    module.float8_e4m3fn, module.float8_e8m0fnu = Dtype("float8_e4m3fn"), Dtype("float8_e8m0fnu")
    monkeypatch.setitem(sys.modules, "tensors", module)
    monkeypatch.setattr(Tensor, "__module__", "tensors.core")
    before = len(dlpack._exports)
    yield module
    dlpack.sweep()
    assert len(dlpack._exports) == before  # whatever was lent is back


def numbers(rng: np.random.Generator, *shape: int, dtype: Any = BF16) -> Any:
    return rng.standard_normal(shape).astype(dtype)


# ---- every operation ---------------------------------------------------------------


def _weights(device: pysm120.Device) -> pysm120.QuantizedMatrix:
    return pysm120.QuantizedMatrix.from_gguf(bytes(range(144)) * 2, "Q4_K", (2, 256), device=device)


def _attention(rng: np.random.Generator) -> dict[str, Any]:
    return {"q": numbers(rng, 1, 5, 2, 32), "k": numbers(rng, 1, 7, 1, 32), "v": numbers(rng, 1, 7, 1, 32)}


def _backward(rng: np.random.Generator, *packed: int) -> dict[str, Any]:
    given = _attention(rng)
    out, lse = api.attention(**given, return_lse=True, device="virtual")
    given |= {"dout": numbers(rng, *out.shape), "out": out, "lse": lse}
    return {name: x[0] for name, x in given.items()} if packed else given


def _starts(rows: int) -> Any:
    return np.array([0, rows - 2, rows], np.int32)


PAGES = np.array([[1, 0]], np.int32)
# The arguments of each operation; arrays are given as ndarrays and as tensors.
CALLS: dict[str, tuple[Callable[..., Any], Callable[[Any], dict[str, Any]]]] = {
    "attention": (api.attention, lambda rng: {**_attention(rng), "return_lse": True}),
    "attention of float8": (
        api.attention,
        lambda rng: {n: x.astype(E4M3) for n, x in _attention(rng).items()} | {"out_dtype": E4M3, "q_scale": 0.5},
    ),
    "varlen": (
        api.attention_varlen,
        lambda rng: {
            **{name: x[0] for name, x in _attention(rng).items()},
            "cu_seqlens_q": _starts(5),
            "cu_seqlens_k": _starts(7),
            "return_lse": True,
        },
    ),
    "backward": (api.attention_backward, lambda rng: {**_backward(rng), "deterministic": True}),
    "varlen backward": (
        api.attention_varlen_backward,
        lambda rng: {
            **_backward(rng, 1),
            "cu_seqlens_q": _starts(5),
            "cu_seqlens_k": _starts(7),
            "deterministic": True,
        },
    ),
    "cache": (
        api.attention_with_kv_cache,
        lambda rng: {
            "q": numbers(rng, 1, 1, 2, 64),
            **{f"{x}_cache": numbers(rng, 2, 16, 1, 64) for x in "kv"},
            "kv_lengths": np.array([20], np.int32),
            "page_table": PAGES,
            "return_lse": True,
        },
    ),
    "merge": (
        api.merge_states,
        lambda rng: {"outs": numbers(rng, 2, 1, 3, 2, 8), "lses": numbers(rng, 2, 1, 2, 3, dtype=np.float32)},
    ),
    "mxfp8": (api.quantize_mxfp8, lambda rng: {"x": numbers(rng, 3, 64)}),
    "nvfp4": (
        api.quantize_nvfp4,
        lambda rng: {"x": numbers(rng, 3, 64), "axis": -2, "global_scale": np.array([0.25], np.float32)},
    ),
    "scales": (
        api.repack_scales,
        lambda rng: {"scales": rng.integers(0, 256, (3, 5)).astype(np.uint8), "source": "linear", "target": "64x4"},
    ),
    "gather": (
        api.kv_cache_gather,
        lambda rng: {
            **{f"{x}_cache": numbers(rng, 2, 4, 1, 64).astype(E4M3) for x in "kv"},
            "slots": np.array([3, -1, 7], np.int64),
            "k_scale": 0.5,
        },
    ),
    "gather of HND": (
        api.kv_cache_gather,
        lambda rng: {
            **{f"{x}_cache": numbers(rng, 2, 1, 4, 64) for x in "kv"},
            "page_table": PAGES,
            "cache_layout": "HND",
        },
    ),
    "matvec": (
        api.matvec,
        lambda rng: {"x": numbers(rng, 3, 256), "bias": numbers(rng, 2, dtype=np.float32)},
    ),
    "matvec_glu": (api.matvec_glu, lambda rng: {"x": numbers(rng, 256)}),
    "flash": (
        api.flash_attn_qkvpacked_func,
        lambda rng: {"qkv": numbers(rng, 1, 5, 3, 2, 32)},
    ),
    "sdpa": (
        api.scaled_dot_product_attention,
        lambda rng: dict(zip(("query", "key", "value"), numbers(rng, 3, 2, 5, 32), strict=True)),
    ),
}


def weights_of(device: pysm120.Device, name: str) -> dict[str, Any]:
    names = {"matvec": ["w"], "matvec_glu": ["gate", "up"]}.get(name, [])
    return dict.fromkeys(names, _weights(device)) if names else {"device": device}


def each(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("where", ["host", "device"])
def test_results_are_arrays_of_the_library(
    device: pysm120.Device, rng: np.random.Generator, name: str, where: str
) -> None:
    """And have the bits of the results of ndarrays. On the virtual device, memory of the device is host memory."""
    function, arguments = CALLS[name]
    given, beside = arguments(rng), weights_of(device, name)
    wanted = each(function(**given, **beside))
    put = device.array if where == "device" else np.asarray
    if where == "device":
        given |= {n: np.full(1, x, np.float32) for n, x in given.items() if n.endswith("_scale")}
    tensors = {n: Tensor(put(x)) if isinstance(x, np.ndarray) else x for n, x in given.items()}
    if where == "device" and name == "varlen":
        tensors |= {"max_seqlen_q": 3, "max_seqlen_k": 5}
    made = each(function(**tensors, **beside))
    assert [type(x) for x in made] == [Tensor] * len(wanted)
    for x, best in zip(made, wanted, strict=True):
        assert x.numpy().dtype == best.dtype
        assert x.numpy().tobytes() == best.tobytes()


# ---- given results -------------------------------------------------------------------


def hole(shape: tuple[int, ...], dtype: Any) -> Any:
    """An ndarray of NaNs whose rows lie apart, and the memory between them."""
    wide = np.full((*shape[:-1], shape[-1] + 8), np.nan, np.float32).astype(dtype)
    return wide, wide[..., : shape[-1]]


@pytest.mark.parametrize("beside", ["tensors", "ndarrays"])
def test_out_and_lse_are_written_in_place(device: pysm120.Device, rng: np.random.Generator, beside: str) -> None:
    """Also beside ndarrays; nothing around them is written."""
    given = _attention(rng)
    wanted, sums = api.attention(**given, return_lse=True, device=device)
    around, values = hole(wanted.shape, BF16)
    out, lse = Tensor(values), Tensor(np.full(sums.shape, np.nan, np.float32))
    inputs = {n: Tensor(x) for n, x in given.items()} if beside == "tensors" else given
    made = api.attention(**inputs, out=out, lse=lse, return_lse=True, device=device)
    assert made[0] is out
    assert made[1] is lse
    assert values.tobytes() == wanted.tobytes()
    assert np.isnan(around[..., wanted.shape[-1] :].astype(float)).all()
    assert lse.values.tobytes() == sums.tobytes()
    given_dtype = api.attention(**inputs, out=out, out_dtype=BF16, device=device)
    assert given_dtype is out
    with pytest.raises(pysm120.InvalidArgumentError, match="out_dtype is float32, but out has dtype bfloat16"):
        api.attention(**inputs, out=out, out_dtype=np.float32, device=device)


def test_gradients_are_added_in_place(device: pysm120.Device, rng: np.random.Generator) -> None:
    given = _backward(rng)
    wanted = api.attention_backward(**given, deterministic=True, device=device)
    sums = {f"d{x}": Tensor(np.ones(given[x].shape, np.float32)) for x in "qkv"}
    tensors = {n: Tensor(x) for n, x in given.items()}
    api.attention_backward(**tensors, **sums, accumulate=True, deterministic=True, device=device)
    for x, best in zip(sums.values(), wanted, strict=True):
        np.testing.assert_allclose(x.values - 1, best.astype(np.float32), atol=0.02)


def test_caches_are_written_in_place(device: pysm120.Device, rng: np.random.Generator) -> None:
    """By an append, and by FlashAttention's function, whose lengths may be a number."""
    k, v = numbers(rng, 2, 1, 2, 1, 64)
    caches = [np.zeros((2, 16, 1, 64), BF16) for _ in "kv"]
    theirs = [Tensor(x.copy()) for x in caches]
    lengths, told = np.array([3], np.int32), Tensor(np.zeros(1, np.int32))
    api.kv_cache_append(k, v, *caches, kv_lengths=lengths, page_table=PAGES, device=device)
    api.kv_cache_append(
        *(Tensor(k), Tensor(v), *theirs),
        kv_lengths=Tensor(lengths - 2),
        page_table=Tensor(PAGES),
        new_lengths=told,
        device=device,
    )
    assert told.values.tolist() == [3]
    for x, best in zip(theirs, caches, strict=True):
        assert x.values.any()
        np.testing.assert_array_equal(x.values, best)
    q = numbers(rng, 1, 2, 2, 64)
    wanted = api.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=3, block_table=PAGES, device=device)
    out = api.flash_attn_with_kvcache(
        *(Tensor(q), *theirs, Tensor(k), Tensor(v)), cache_seqlens=3, block_table=Tensor(PAGES), device=device
    )
    assert out.values.tobytes() == wanted.tobytes()
    for x, best in zip(theirs, caches, strict=True):
        np.testing.assert_array_equal(x.values, best)


def test_products_of_weights_are_written_in_place(device: pysm120.Device, rng: np.random.Generator) -> None:
    w, x = _weights(device), numbers(rng, 3, 256, dtype=np.float32)
    out = Tensor(np.full((3, 2), np.nan, np.float32))
    assert api.matvec(w, Tensor(x), out=out) is out
    np.testing.assert_array_equal(out.values, api.matvec(w, x))
    there = Tensor(device.zeros((2, 256)))
    assert api.dequantize(w, out=there) is there
    np.testing.assert_array_equal(there.numpy(), api.dequantize(w).numpy())


# ---- what is refused, and what has no library -------------------------------------------


class Immutable(Tensor):
    """An array of a library that promises not to change it."""


Immutable.__module__ = "jaxlib.fake"


def test_results_that_cannot_be_written(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Nothing is written to a copy that nobody sees."""
    given = _attention(rng)
    tensors, there = ({n: put(x) for n, x in given.items()} for put in (Tensor, device.array))
    fixed = np.zeros((1, 5, 2, 32), BF16)
    fixed.setflags(write=False)
    wrong: list[tuple[dict[str, Any], Any, type[Exception], str]] = [
        (tensors, Immutable(fixed.copy()), TypeError, "out is a Immutable of jaxlib, whose arrays cannot be written"),
        (there, Immutable(fixed.copy()), TypeError, "leave it out for a new one, or give an Array$"),
        (given, fixed, pysm120.InvalidArgumentError, "out is a read-only ndarray"),
        (there, Tensor(fixed.copy()), pysm120.InvalidArgumentError, f"out is in host memory, not on {device}: leave"),
        (tensors, [1.0], TypeError, "out is a list, not an array"),
        (tensors, Tensor(np.zeros((1, 5, 2, 31), BF16)), pysm120.InvalidArgumentError, "out has shape"),
        (tensors, Tensor(np.zeros((1, 5, 2, 32), np.int8)), TypeError, "out has dtype int8"),
        (tensors, Tensor(as_strided(np.zeros(64, BF16), (1, 5, 2, 32), (0,) * 4)), ValueError, "must not overlap"),
    ]
    for inputs, out, kind, message in wrong:
        with pytest.raises(kind, match=message):
            api.attention(**inputs, out=out, device=device)
    with pytest.raises(TypeError, match=r"pieces\[0\].dst is a Immutable of jaxlib"):
        api.copy_batch([(Immutable(fixed.copy()), there["q"], 4)], device=device)
    with pytest.raises(TypeError, match="k_cache is a Immutable of jaxlib"):
        api.kv_cache_append(
            *(Tensor(np.zeros((1, 1, 64), BF16)) for _ in "kv"),
            *(Immutable(x) for x in np.zeros((2, 1, 16, 1, 64), BF16)),
            np.zeros(1, np.int64),
            device=device,
        )


def test_values_in_host_memory_are_checked(device: pysm120.Device, rng: np.random.Generator) -> None:
    tensors = {n: Tensor(x) for n, x in _attention(rng).items()}
    with pytest.raises(pysm120.InvalidArgumentError, match=r"kv_lengths is .*, but each length must be from 0 to 7"):
        api.attention(**tensors, kv_lengths=Tensor(np.array([8], np.int32)), device=device)


class Unexported(Tensor):
    """A tensor whose library exports no memory of this kind, as torch none of tensors that require gradients."""

    requires_grad = False

    def __dlpack__(self, *, stream: Any = None) -> Any:
        message = f"can't export on stream {stream}"
        raise BufferError(message)


def test_tensors_that_are_not_exported(device: pysm120.Device, rng: np.random.Generator) -> None:
    """The error names the argument, and where gradients are required what computes them."""
    given = {n: Tensor(x) for n, x in _attention(rng).items()}
    k = Unexported(given["k"].values)
    with pytest.raises(ValueError, match=r"^k does not export its memory by DLPack: can't export on stream None$"):
        api.attention(**given | {"k": k}, device=device)
    k.requires_grad = True
    message = r"^k requires gradients: give \.detach\(\) of it, or call pysm120\.torch, which computes gradients$"
    with pytest.raises(ValueError, match=message):
        api.attention(**given | {"k": k}, device=device)


class Negative(Tensor):
    """A tensor that stands for its negation, as views of conjugates in torch do."""

    def is_neg(self) -> bool:
        return True


def test_tensors_that_stand_for_their_negation(device: pysm120.Device, rng: np.random.Generator) -> None:
    """DLPack hands over the numbers without the bit."""
    given = {n: Tensor(x) for n, x in _attention(rng).items()}
    with pytest.raises(ValueError, match=r"^v has the negative bit, which DLPack drops: give \.resolve_neg\(\) of it$"):
        api.attention(**given | {"v": Negative(given["v"].values)}, device=device)


def test_types_of_a_user_have_the_library_of_their_base(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = Parameter(numbers(rng, 1, 4, 1, 32))
    assert type(api.attention(x, x, x, device=device)) is Tensor


class Standard(Tensor):
    """An array of the array API standard."""

    def __array_namespace__(self) -> Any:
        return types.SimpleNamespace(__name__="standard", from_dlpack=lambda x: Standard(host_view(x)))


def test_the_namespace_of_the_array_api_is_used_first(device: pysm120.Device, rng: np.random.Generator) -> None:
    """If it has no name for a dtype that it does not take, the error says what to give."""
    x = Standard(numbers(rng, 1, 4, 1, 32))
    assert type(api.attention(x, x, x, device=device)) is Standard

    class Narrow(Standard):
        def __array_namespace__(self) -> Any:
            return types.SimpleNamespace(__name__="narrow", from_dlpack=np.from_dlpack)

    y = Narrow(x.values)
    assert type(api.attention(y, y, y, out_dtype=np.float32, device=device)) is np.ndarray
    with pytest.raises(TypeError, match="out has dtype bfloat16, which narrow does not take by DLPack: give Arrays"):
        api.attention(y, y, y, device=device)


def test_without_a_library_the_result_is_an_array(
    device: pysm120.Device, rng: np.random.Generator, library: types.ModuleType
) -> None:
    del library.from_dlpack
    x = Tensor(numbers(rng, 1, 4, 1, 32))
    assert foreign.library_of(x) is None
    assert type(api.attention(x, x, x, device=device)) is pysm120.Array
