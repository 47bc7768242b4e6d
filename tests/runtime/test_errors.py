"""Bad input: one clear exception each, raised before anything is written."""

from collections.abc import Callable
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from programs import BYTES, HEAD, SAXPY

import pysm120

Q = np.ones((2, 5, 4, 64), np.float32)
KV = np.ones((2, 7, 2, 64), np.float32)


def changed(x: Any, shape: tuple[int, ...] | None = None, dtype: Any = None) -> Any:
    """Ones like an array, but for its shape or dtype."""
    return np.ones(x.shape if shape is None else shape, x.dtype if dtype is None else dtype)


# Run by tests/ops/test_operations.py. name: (exception, words of its message, arguments that differ from right ones)
BAD: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "rank of q": (ValueError, r"q has shape \(5, 4, 64\), not \[batch, q_rows, heads, head_dim\]", {"q": Q[0]}),
    "rank of k": (ValueError, "k has shape", {"k": KV[None]}),
    "dtype of q": (TypeError, "q has dtype float64", {"q": Q.astype(float)}),
    "dtype of all": (
        TypeError,
        "q has dtype int32",
        {n: x.astype("i4") for n, x in {"q": Q, "k": KV, "v": KV}.items()},
    ),
    "byte order": (TypeError, "q has dtype >f4", {"q": Q.astype(">f4")}),
    "fp8": (TypeError, "float8_e4m3fn", {"q": Q.astype(ml_dtypes.float8_e4m3fn)}),
    "dtypes differ": (TypeError, "v has dtype float16, but q has float32", {"v": KV.astype("f2")}),
    "list": (TypeError, "k is a list", {"k": KV.tolist()}),
    "mask": (TypeError, r"k is a masked array.*k.filled", {"k": np.ma.masked_less(KV, 0)}),
    "mask of out": (TypeError, "out is a masked array", {"out": np.ma.zeros(Q.shape, np.float32)}),
    "none": (TypeError, "v is a NoneType", {"v": None}),
    "head size 136": (
        ValueError,
        "q has head size 136, above 128, the most in precision",
        {"q": changed(Q, (2, 5, 4, 136)), "k": changed(KV, (2, 7, 2, 136)), "precision": "nvfp4"},
    ),
    "head size 264": (
        ValueError,
        "q has head size 264, above 256, the most in precision 'bf16'",
        {"q": changed(Q, (2, 5, 4, 264)), "k": changed(KV, (2, 7, 2, 264))},
    ),
    "head sizes differ": (
        ValueError,
        r"k has shape \(2, 7, 2, 32\), .*, head_dim\], but q has head_dim = 64",
        {"k": changed(KV, (2, 7, 2, 32))},
    ),
    "head size of v": (
        ValueError,
        "v has head size 257, above 256, the most in precision 'mxfp8'",
        {"v": changed(KV, (2, 7, 2, 257)), "precision": "mxfp8"},
    ),
    "batch": (
        ValueError,
        r"k has shape \(3, 7, 2, 64\), .* but q has batch = 2",
        {n: changed(KV, (3, 7, 2, 64)) for n in "kv"},
    ),
    "heads": (ValueError, "kv_heads = 3 does not divide heads = 4", {n: changed(KV, (2, 7, 3, 64)) for n in "kv"}),
    "more kv heads": (
        ValueError,
        "kv_heads = 8 does not divide heads = 4",
        {n: changed(KV, (2, 7, 8, 64)) for n in "kv"},
    ),
    "rows of k and v": (ValueError, "v has shape .* but k has kv_rows = 7", {"v": changed(KV, (2, 8, 2, 64))}),
    "heads of k and v": (ValueError, "v has shape .* but k has kv_heads = 2", {"v": changed(KV, (2, 7, 1, 64))}),
    "no keys": (ValueError, "k has shape .2, 0, 2, 64.", {n: changed(KV, (2, 0, 2, 64)) for n in "kv"}),
    "no queries": (ValueError, "q has shape .2, 0, 4, 64.", {"q": changed(Q, (2, 0, 4, 64))}),
    "no batch": (ValueError, "at least 1", {"q": changed(Q, (0, 5, 4, 64))}),
    "layout": (ValueError, "layout is 'SBHD', not one of 'BSHD', 'BHSD'", {"layout": "SBHD"}),
    "precision": (ValueError, "precision is 'fp4'", {"precision": "fp4"}),
    "dtype of mxfp8_bf16": (
        TypeError,
        "have dtype float32, but precision .mxfp8_bf16. needs bfloat16",
        {"precision": "mxfp8_bf16"},
    ),
    "causal": (TypeError, "causal is 'yes'", {"causal": "yes"}),
    "causal_align": (ValueError, "causal_align is 'left'", {"causal_align": "left"}),
    "scale nan": (ValueError, "scale is nan", {"scale": float("nan")}),
    "scale inf": (ValueError, "scale is -inf", {"scale": -np.inf}),
    "scale of float64": (ValueError, "scale is 1e[+]300", {"scale": 1e300}),
    "scale of many digits": (ValueError, "scale is beyond float64, not a number that is", {"scale": 10**400}),
    "scale type": (TypeError, "scale is '1', not a real number", {"scale": "1"}),
    "scale complex": (TypeError, "scale is 1j", {"scale": 1j}),
    "out dtype": (TypeError, "out_dtype has dtype float64", {"out_dtype": float}),
    "out shape": (ValueError, "out has shape .5, 4, 64.", {"out": np.empty(Q.shape[1:], np.float32)}),
    "out type": (TypeError, "out is a list", {"out": []}),
    "out dtype of out": (TypeError, "out has dtype int64", {"out": np.empty(Q.shape, np.int64)}),
    "out and out_dtype": (
        ValueError,
        "out_dtype is float16, but out has dtype float32",
        {"out": np.empty(Q.shape, np.float32), "out_dtype": "f2"},
    ),
    "out stride 0": (
        ValueError,
        "out has a stride of 0 bytes across 4 bytes: its elements must not overlap",
        {"out": np.lib.stride_tricks.as_strided(np.empty(64 * 8, np.float32), Q.shape, (1024, 0, 256, 4))},
    ),
    "out overlaps": (
        ValueError,
        "out has a stride of 512 bytes across 1024 bytes: its elements must not overlap",
        {"out": np.lib.stride_tricks.as_strided(np.empty(64 * 32, np.float32), Q.shape, (4096, 512, 256, 4))},
    ),
    "lse dtype": (TypeError, "lse has dtype float64", {"lse": np.empty((2, 4, 5))}),
    "lse shape": (
        ValueError,
        r"lse has shape \(2, 5, 4\), \[batch, heads, q_rows\], but q has heads = 4",
        {"lse": np.empty((2, 5, 4), np.float32)},
    ),
    "window type": (TypeError, "window is 3, not .left, right.", {"window": 3}),
    "window float": (TypeError, "window is 1.5, not an integer", {"window": (None, 1.5)}),
    "window below 0": (ValueError, "window is .-1, 2.: each end must be None or at least 0", {"window": (-1, 2)}),
    "softcap": (ValueError, "softcap = -1; it must be 0 .off., or above 0", {"softcap": -1.0}),
    "softcap nan": (ValueError, "softcap is nan", {"softcap": np.nan}),
    "softcap of float64": (ValueError, "softcap is 1e-46, which is 0 in float32", {"softcap": 1e-46}),
    "softcap above": (NotImplementedError, "softcap = 1025; at most 1024", {"softcap": 1025}),
    "softcap type": (TypeError, "softcap is None, not a real number", {"softcap": None}),
    "sinks shape": (ValueError, r"sinks has shape \(3,\), \[heads\], but q has heads = 4", {"sinks": [1.0, 2.0, 3.0]}),
    "sinks type": (TypeError, "sinks has dtype <U1, not float32", {"sinks": ["a"] * 4}),
    "sinks beyond float32": (ValueError, "sinks holds 1e[+]300, beyond float32", {"sinks": [0, 1, 1e300, np.inf]}),
    "slopes beyond float32": (ValueError, "alibi_slopes holds -1e[+]39", {"alibi_slopes": [0, 1, -1e39, 0]}),
    "no lengths": (ValueError, r"kv_lengths has shape \(0,\), \[batch\], but q has batch = 2", {"kv_lengths": []}),
    "config": (TypeError, "config is '.udc80', not the name of a config", {"config": "\udc80"}),
    "out dtype's name": (TypeError, "out_dtype is 'f33', not a dtype", {"out_dtype": "f33"}),
    "out dtype's type": (TypeError, "out_dtype is 3, not a dtype", {"out_dtype": 3}),
    "slopes shape": (
        ValueError,
        r"alibi_slopes has shape \(4, 2\), \[batch, heads\], but q has batch = 2",
        {"alibi_slopes": np.ones((4, 2))},
    ),
    "lengths dtype": (TypeError, "kv_lengths has dtype float64, not int32", {"kv_lengths": [1.0, 2.0]}),
    "lengths too long": (
        ValueError,
        "kv_lengths is .1 8., but each length must be from 0 to 7",
        {"kv_lengths": [1, 8]},
    ),
    "lengths below 0": (ValueError, "kv_lengths is .-1  1.", {"kv_lengths": [-1, 1]}),
    "diagonals beyond int32": (ValueError, "diagonals holds 0 to 4294967296, beyond int32", {"diagonals": [0, 2**32]}),
    "mask shape": (ValueError, "mask has shape .3, 7., which does not broadcast", {"mask": np.ones((3, 7), bool)}),
    "mask rank": (ValueError, "mask has shape .1, 1, 1, 1, 7.", {"mask": np.ones((1, 1, 1, 1, 7), bool)}),
    "mask dtype": (TypeError, "mask has dtype int64, not bool, float32", {"mask": np.ones((5, 7), int)}),
    "mask type": (TypeError, "mask is a str", {"mask": "causal"}),
    "half a past": (ValueError, "past_v is None, but past_k is given", {"past_k": KV}),
    "past heads": (
        ValueError,
        r"past_k has shape \(2, 3, 4, 64\), .* but k has kv_heads = 2",
        {n: np.ones((2, 3, 4, 64), np.float32) for n in ("past_k", "past_v")},
    ),
    "stream": (TypeError, "stream is a float", {"stream": 1.5}),
    "device type": (TypeError, "device is a int", {"device": 3}),
    "device name": (ValueError, "tpu", {"device": "tpu"}),
    "device name with NUL": (ValueError, "name is", {"device": "cuda\0"}),
    "workspace type": (TypeError, "workspace is a ndarray", {"workspace": np.empty(1 << 20, np.uint8)}),
}


class OnDevice:
    """Right arguments on a device, with a poisoned output."""

    def __init__(self, device: pysm120.Device) -> None:
        self.device = device
        self.q, self.k, self.v = device.array(Q), device.array(KV), device.array(KV)
        self.out = device.array(np.full(Q.shape, np.nan, np.float32))
        self.lse = device.array(np.full((2, 4, 5), np.nan, np.float32))

    def call(self, **differing: Any) -> None:
        arguments = {name: getattr(self, name) for name in ("q", "k", "v", "out", "lse")}
        pysm120.attention(**{**arguments, **differing})

    def strided(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> pysm120.Array:
        """Zeros of any strides, in elements."""
        base = self.device.zeros(1 << 16)
        return pysm120.Array(base.owner, base.address + 4 * offset, shape, strides, base.dtype)


S, T = Q.shape, KV.shape
# What a function of OnDevice changes, and what the message says.
BAD_ARRAYS: dict[str, tuple[type[Exception], str, Callable[[OnDevice], dict[str, Any]]]] = {
    "mixed": (TypeError, "mixed .q ndarray, k Array", lambda _: {"q": Q}),
    "freed": (ValueError, "freed", lambda a: {"q": freed(a.device)}),
    "freed out": (ValueError, "freed", lambda a: {"out": freed(a.device)}),
    "negative stride": (
        ValueError,
        "q.row_stride = -256; a stride must not be negative",
        lambda a: {"q": a.q[:, ::-1]},
    ),
    "negative batch stride": (
        ValueError,
        "k.batch_stride = -896; a stride must not be negative",
        lambda a: {"k": a.k[::-1]},
    ),
    "row stride 0": (
        ValueError,
        "q.row_stride = 0; it must be positive",
        lambda a: {"q": a.strided(S, (1280, 0, 64, 1))},
    ),
    "last stride": (ValueError, "q has stride 2 along its last", lambda a: {"q": a.strided(S, (2560, 512, 128, 2))}),
    "out stride 0": (
        ValueError,
        "out.head_stride = 0; it must be positive",
        lambda a: {"out": a.strided(S, (1280, 256, 0, 1))},
    ),
    "out ndarray": (TypeError, "out is a ndarray", lambda _: {"out": np.empty(S, np.float32)}),
    "lse ndarray": (TypeError, "lse is a ndarray", lambda _: {"lse": np.empty((2, 4, 5), np.float32)}),
    "lse strides": (ValueError, "lse has strides", lambda a: {"lse": a.strided((2, 4, 5), (40, 10, 2))}),
    "workspace size": (
        pysm120.WorkspaceTooSmallError,
        "workspace.nbytes = 256; this call needs [0-9]+$",
        lambda a: {"workspace": a.device.empty(256, np.uint8)},
    ),
    "workspace 0": (ValueError, "workspace has 0 bytes", lambda a: {"workspace": a.device.empty(0, np.uint8)}),
    "workspace address": (
        ValueError,
        "workspace = 0x[0-9a-f]+; it must be a multiple of 256",
        lambda a: {"workspace": a.device.empty(1 << 20, "u1")[16:]},
    ),
    "workspace strides": (
        ValueError,
        "workspace has strides",
        lambda a: {"workspace": a.device.empty(1 << 20, "u1")[::2]},
    ),
}


def freed(device: pysm120.Device) -> pysm120.Array:
    """Make an array that was freed."""
    array = device.zeros(S)
    array.free()
    return array


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_attention_refuses_arrays(device: pysm120.Device, name: str) -> None:
    kind, message, change = BAD_ARRAYS[name]
    arrays = OnDevice(device)
    with pytest.raises(kind, match=message):
        arrays.call(**change(arrays))
    for untouched in (arrays.out, arrays.lse):
        assert np.isnan(untouched.numpy()).all()


def test_attention_takes_the_right_ones(device: pysm120.Device) -> None:
    arrays = OnDevice(device)
    arrays.call()
    assert np.allclose(arrays.out.numpy(), 1, atol=0.01)
    arrays.call(q=arrays.strided(S, (0, 256, 0, 1)))
    assert np.allclose(arrays.out.numpy(), 1, atol=0.01)
    assert np.isfinite(arrays.lse.numpy()).all()


QUANTIZE: dict[str, tuple[type[Exception], str, tuple[Any, dict[str, Any]]]] = {
    "rank": (ValueError, r"x has shape \(64,\), not \[\.\.\., rows, head_dim\]", (Q[0, 0, 0], {})),
    "dtype": (TypeError, "x has dtype int8", (Q.astype("i1"), {})),
    "empty": (ValueError, "at least 1", (Q[:, :0], {})),
    "head size": (
        ValueError,
        r"x has shape \(4, 20\), whose last dimension is not a multiple of 8",
        (np.ones((4, 20), "f4"), {}),
    ),
    "axis": (ValueError, "axis is 0", (Q, {"axis": 0})),
    "axis type": (TypeError, "axis is 1.5", (Q, {"axis": 1.5})),
    "rounding": (ValueError, "rounding is 'nearest', not one of 'up', 'floor'", (Q, {"rounding": "nearest"})),
    "list": (TypeError, "x is a list", ([1.0], {})),
    "mask": (TypeError, "x is a masked array", (np.ma.masked_less(Q, 0), {})),
}


# ---- devices, programs, launches ------------------------------------------------


@pytest.mark.parametrize("name", ["", "gpu", "cuda:x", "cuda:-1", "virtual:9", "cuda:99", "cuda:1:2", " cuda", "é"])
def test_no_such_device(name: str) -> None:
    with pytest.raises(pysm120.Error, match=r"\S"):
        pysm120.Device(name)


def test_device_name_of_another_type() -> None:
    with pytest.raises(TypeError, match="name is a int"):
        pysm120.Device(0)  # type: ignore[arg-type]


PROGRAMS = {
    "nothing": "",
    "no PTX": "this is no PTX",
    "syntax": SAXPY.replace("fma.rn.f32              v, a, u, v;", "fma.rn.f32 v, a u, v;"),
    "unknown instruction": SAXPY.replace("fma.rn.f32 ", "fmaa.rn.f32 "),
    "unknown register": SAXPY.replace("fma.rn.f32              v, a", "fma.rn.f32 v, b"),
    "unknown label": SAXPY.replace("bra                done", "bra dune"),
    "cut off": SAXPY[:600],
    "no header": SAXPY.replace(HEAD, ""),
    "a cubin cut off": b"\x7fELF\x02\x01\x01",
    "NUL": SAXPY[:300] + "\0" + SAXPY[300:],
    "bytes": bytes(range(1, 128)) * 10,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_do_not_load(device: pysm120.Device, name: str) -> None:
    with pytest.raises(pysm120.Error, match=r"\S") as caught:
        device.load(PROGRAMS[name], name="bad.ptx", strict=True)  # type: ignore[arg-type]
    assert isinstance(caught.value, ValueError | NotImplementedError | RuntimeError)
    device.load(SAXPY)["nothing"](1, 1)
    device.synchronize()


@pytest.mark.virtual
def test_a_syntax_error_is_shown_where_it_is(device: pysm120.Device) -> None:
    source = PROGRAMS["unknown instruction"]
    assert isinstance(source, str)
    line = source[: source.index("fmaa")].count("\n") + 1
    for strict in (False, True):
        with pytest.raises(pysm120.InvalidProgramError, match=f"bad.ptx:{line}:.*fmaa"):
            device.load(source, name="bad.ptx", strict=strict)["saxpy"]


def test_sources_of_another_type(device: pysm120.Device) -> None:
    with pytest.raises(TypeError, match="ptx is a int"):
        device.load(3)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="no entry 'zaxpy'; it has saxpy, nothing"):
        device.load(SAXPY)["zaxpy"]
    with pytest.raises(TypeError, match="entry is a int, not a str"):
        device.load(SAXPY)[0]  # type: ignore[index]


ONE = np.float32(1)
COUNT = np.uint32(4)
# What differs from a right launch, and what the message says.
ARGUMENTS: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    "none": ("4 arguments, 0 were given: parameter 0 param_x .* is missing", lambda _: ()),
    "too few": ("parameter 3 param_n .* is missing", lambda x: (x, x, ONE)),
    "too many": ("the last 2 are too many", lambda x: (x, x, ONE, COUNT, x, x)),
    "python int": ("parameter 3 param_n .*Python int.*np.uint32", lambda x: (x, x, ONE, 4)),
    "python float": ("parameter 2 param_a .*Python float.*np.float32", lambda x: (x, x, 1.0, COUNT)),
    "float64": ("param_a .*float64", lambda x: (x, x, np.float64(1), COUNT)),
    "int for float": ("param_a .*int32", lambda x: (x, x, np.int32(1), COUNT)),
    "float for int": ("param_n .*float32", lambda x: (x, x, ONE, ONE)),
    "uint64 for u32": ("param_n .*uint64", lambda x: (x, x, ONE, np.uint64(4))),
    "scalar for address": ("param_x .*uint32", lambda x: (COUNT, x, ONE, COUNT)),
    "ndarray": ("param_y .*ordinary host memory", lambda x: (x, np.zeros(4), ONE, COUNT)),
    "array for scalar": ("param_n .*Array", lambda x: (x, x, ONE, x)),
    "str": ("param_x .*str", lambda x: ("x", x, ONE, COUNT)),
    "none as address": ("param_x .*NoneType", lambda x: (None, x, ONE, COUNT)),
    "bytes": ("param_n .*bytes of 4 bytes", lambda x: (x, x, ONE, b"\0\0\0\0")),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_do_not_fit(device: pysm120.Device, name: str) -> None:
    message, arguments = ARGUMENTS[name]
    x = device.array(np.arange(4, dtype=np.float32))
    with pytest.raises(TypeError, match=message):
        device.load(SAXPY)["saxpy"](1, 4, *arguments(x))
    device.synchronize()
    assert x.numpy().tolist() == [0, 1, 2, 3]


def test_arrays_of_bytes_have_one_size(device: pysm120.Device) -> None:
    kernel = device.load(BYTES)["bytes"]
    out = device.zeros(4, np.uint64)
    for pair in (bytes(15), bytes(17), np.uint64(3), out):
        with pytest.raises(TypeError, match="param_pair"):
            kernel(1, 1, out, pair, np.uint16(1), np.uint8(1))
    assert not out.numpy().any()


LAUNCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "threads": ("1025", {"block": 1025}),
    "threads in three": ("32 x 32 x 2|2048", {"block": (32, 32, 2)}),
    "z": ("65", {"block": (1, 1, 65)}),
    "no threads": ("each dimension must be at least 1", {"block": 0}),
    "no grid": ("each dimension must be at least 1", {"grid": (1, 0)}),
    "four dimensions": ("up to three", {"grid": (1, 1, 1, 1)}),
    "grid y": ("65536", {"grid": (1, 65536)}),
    "negative": ("-1", {"grid": -1}),
    "huge": ("2.32", {"block": 1 << 32}),
    "shared": ("shared", {"shared": 1 << 20}),
    "negative shared": ("shared is -4", {"shared": -4}),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches_that_do_not_fit(device: pysm120.Device, name: str) -> None:
    message, differing = LAUNCHES[name]
    x = device.array(np.arange(4, dtype=np.float32))
    launch: dict[str, Any] = {"grid": 1, "block": 4, "shared": 0, **differing}
    kernel = device.load(SAXPY)["saxpy"]
    with pytest.raises((ValueError, NotImplementedError), match=message):
        kernel(launch["grid"], launch["block"], x, x, ONE, COUNT, shared=launch["shared"])
    for wrong in ("1", 1.5, True, None):
        with pytest.raises(TypeError, match="grid is"):
            kernel(cast("Any", wrong), 4, x, x, ONE, COUNT)
    device.synchronize()
    assert x.numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.virtual
def test_a_kernel_out_of_bounds_is_a_fault(device: pysm120.Device) -> None:
    x, y = device.zeros(4), device.zeros(400)
    kernel = device.load(SAXPY)["saxpy"]

    def launch() -> None:
        kernel(1, 128, x, y, ONE, np.uint32(128))
        device.synchronize()

    with pytest.raises(pysm120.FaultError, match="saxpy"):
        launch()
    with pysm120.Device("virtual") as other:
        other.load(SAXPY)["nothing"](1, 1)
        other.synchronize()


@pytest.mark.virtual
def test_another_device_s_array_is_no_argument(device: pysm120.Device) -> None:
    with pysm120.Device("virtual") as other:
        x = other.zeros(4)
        with pytest.raises(ValueError, match=r"param_x .* is on"):
            device.load(SAXPY)["saxpy"](1, 4, x, x, ONE, COUNT)


@pytest.mark.parametrize("kind", [pysm120.Stream, pysm120.Event])
def test_a_stream_of_no_device(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"^device is a str, not a Device$"):
        kind("virtual")


def test_errors_know_their_status() -> None:
    with pytest.raises(pysm120.InvalidArgumentError) as caught:
        pysm120.Device("gpu")
    assert caught.value.status == 1
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, pysm120.Error)


@pytest.mark.virtual
def test_two_devices_of_one_name_are_told_apart(device: pysm120.Device, device_name: str) -> None:
    with pysm120.Device(device_name) as other:
        x, y = device.zeros((1, 8, 1, 64)), other.zeros((1, 8, 1, 64))
        calls: list[Callable[[], Any]] = [
            lambda: pysm120.attention(x, y, x),
            lambda: pysm120.attention(x, x, x, out=y),
            lambda: device.from_dlpack(y),
            lambda: device.load(SAXPY)["saxpy"](1, 4, x, y, ONE, COUNT),
            lambda: pysm120.attention(x, x, x, stream=other.stream()),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=f"is on another Device object for {device}, .*, (not|but)"):
                call()


def test_a_path_as_a_str_is_said_to_be_one(device: pysm120.Device) -> None:
    for path in ("kernel.ptx", "/some/where/kernel.cubin"):
        with pytest.raises(pysm120.InvalidProgramError, match=rf"ptx is '{path}', .*pathlib.Path\('{path}'\)"):
            device.load(path)


def test_a_bad_default_device_is_the_variables_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in (("foo", pysm120.InvalidArgumentError), ("virtual:9", pysm120.NoDeviceError)):
        monkeypatch.setenv("PYSM120_DEVICE", name)
        with pytest.raises(kind, match=f'PYSM120_DEVICE = "{name}"'):
            pysm120.attention(Q, KV, KV)
