"""Calls of an operation that is defined for the test: rows, shapes, results, errors."""

import threading
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from reference import Array

import pysm120
from pysm120.ops import plan, table
from pysm120.ops.call import Operation
from pysm120.ops.plan import NEW, New
from pysm120.ops.table import E4M3, E8M0, F32, FLOATS, Input, Leading, Output, Sizes
from pysm120.runtime.ffi import lib

SHAPE = (2, 3, 40, 64)


class Options(NamedTuple):
    """Members of the C struct."""

    axis: int = 0
    rounding: int = 0


def operation(*more: Any) -> Operation:
    rows = (
        Input("x", "... rows head_dim"),
        Output("elements", "... rows head_dim", E4M3),
        Output("scales", "... rows head_dim/32", E8M0),
        *more,
    )
    return Operation("sm120_quantize_mxfp8", rows)


QUANTIZE = operation()
WANTED = {"elements": NEW, "scales": NEW}


@pytest.fixture
def x(rng: np.random.Generator) -> Array:
    return rng.standard_normal(SHAPE).astype(np.float32)


def code(*arrays: Any) -> list[bytes]:
    """Return the bytes of results of any kind."""
    return [(y if isinstance(y, np.ndarray) else y.numpy()).tobytes() for y in arrays]


# ---- results ---------------------------------------------------------------------


def test_results_are_of_the_kind_of_the_inputs(device: pysm120.Device, x: Array) -> None:
    host = QUANTIZE({"x": x}, WANTED, Options(), device=device)
    there = QUANTIZE({"x": device.array(x)}, WANTED, Options())
    assert [y.shape for y in host] == [y.shape for y in there] == [SHAPE, (2, 3, 40, 2)]
    assert [y.dtype for y in host] == [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu]
    assert all(isinstance(y, np.ndarray) for y in host)
    assert all(isinstance(y, pysm120.Array) and y.device is device for y in there)
    assert code(*host) == code(*there) == code(*pysm120.quantize_mxfp8(x, device=device))


def test_results_go_where_they_are_to(device: pysm120.Device, x: Array) -> None:
    wanted = QUANTIZE({"x": x}, WANTED, Options(), device=device)
    elements = np.zeros((2, 40, 3, 64), E4M3[0]).swapaxes(1, 2)  # of any strides on the host
    scales = device.zeros((2, 3, 40, 2), E8M0[0])
    found = QUANTIZE({"x": x}, {"elements": elements, "scales": NEW}, Options(), device=device)
    assert found[0] is elements
    assert code(*found) == code(*wanted)
    found = QUANTIZE({"x": device.array(x)}, {"elements": NEW, "scales": scales}, Options())
    assert found[1] is scales
    assert code(*found) == code(*wanted)


@pytest.mark.parametrize("cut", [np.s_[:, :, ::2], np.s_[:, ::2], np.s_[::2, 1:, 3:], np.s_[0, 0], np.s_[:, :, :1]])
def test_leading_dimensions_may_have_any_strides(device: pysm120.Device, rng: np.random.Generator, cut: Any) -> None:
    """Arrays that the strides cannot describe are copied first."""
    x = rng.standard_normal((4, 3, 5, 8, 32)).astype(np.float32)
    there = QUANTIZE({"x": device.array(x)[cut]}, WANTED, Options())
    assert code(*there) == code(*QUANTIZE({"x": np.ascontiguousarray(x[cut])}, WANTED, Options(), device=device))


def test_an_operation_without_options(device: pysm120.Device, x: Array) -> None:
    """The members of the struct that no option names are 0."""
    there = device.array(x)
    wanted = code(*QUANTIZE({"x": x}, WANTED, Options(axis=0, rounding=0), device=device))
    quantize = operation()
    assert code(*quantize({"x": x}, WANTED, device=device)) == wanted
    assert code(*quantize({"x": there}, WANTED)) == code(*quantize({"x": there}, WANTED)) == wanted


def test_a_result_of_another_dtype(device: pysm120.Device, x: Array) -> None:
    with pytest.raises(TypeError, match="elements_dtype has dtype float16, not float8_e4m3fn"):
        QUANTIZE({"x": x}, {"elements": New(np.dtype(np.float16)), "scales": NEW}, Options(), device=device)


class Attention(NamedTuple):
    """Members of the C struct."""

    precision: int = lib.SM120_F16
    scale: float = 1.0


def attention_with(*outputs: Output) -> Operation:
    inputs = (
        Input("q", "batch heads q_rows head_dim"),
        Input("k", "batch kv_heads kv_rows head_dim", like="q"),
        Input("v", "batch kv_heads kv_rows v_head_dim", like="q"),
    )
    return Operation("sm120_attention", (*inputs, *outputs))


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("converts", [True, False])
def test_a_result_has_the_dtype_of_its_input(device: pysm120.Device, on_host: bool, converts: bool) -> None:
    """Unless the operation converts."""
    attention = attention_with(Output("out", "batch heads q_rows v_head_dim", member="o", like="q", converts=converts))
    x, wide = (np.ones((1, 1, 4, 32), dtype) for dtype in (np.float16, np.float32))
    given, out = (x, wide) if on_host else (device.array(x), device.array(wide))
    inputs = dict.fromkeys("qkv", given)
    (found,) = attention(inputs, {"out": NEW}, Attention(), device=device)
    assert found.dtype == x.dtype
    for wanted, name in ((out, "out"), (New(wide.dtype), "out_dtype")):
        if converts:
            (found,) = attention(inputs, {"out": wanted}, Attention(), device=device)
            assert found.dtype == wide.dtype
            assert code(found) == code(wide)
            continue
        with pytest.raises(TypeError, match=f"^{name} has dtype float32, but q has float16$"):
            attention(inputs, {"out": wanted}, Attention(), device=device)


def test_arrays_of_other_libraries(device: pysm120.Device, x: Array) -> None:
    class Other:
        """An array that supports only DLPack."""

        def __dlpack__(self, **options: Any) -> Any:
            return x.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return x.__dlpack_device__()

    there = QUANTIZE({"x": Other()}, WANTED, Options(), device=device)
    assert all(isinstance(y, pysm120.Array) for y in there)
    assert code(*there) == code(*QUANTIZE({"x": x}, WANTED, Options(), device=device))


def test_calls_of_several_threads(device: pysm120.Device, x: Array) -> None:
    """Calls share plans, but not the values in them."""
    wanted = [code(*QUANTIZE({"x": x[:, :n]}, WANTED, Options(), device=device)) for n in (1, 2, 3)]
    wrong: list[int] = []

    def call(n: int) -> None:
        for _ in range(5):
            y = device.array(x[:, :n])
            if code(*QUANTIZE({"x": y}, WANTED, Options())) != wanted[n - 1]:
                wrong.append(n)

    threads = [threading.Thread(target=call, args=(1 + n % 3,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- errors ----------------------------------------------------------------------

WRONG: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "no array": (TypeError, "x is a NoneType, not an ndarray, an Array or", {"x": None}),
    "dtype": (TypeError, "x has dtype int32, not float32, float16 or bfloat16", {"x": np.ones(SHAPE, np.int32)}),
    "rank": (ValueError, r"x has shape \(64,\), not \[\.\.\., rows, head_dim\]", {"x": np.ones(64, np.float32)}),
    "nothing": (ValueError, r"x has shape \(0, 8\): .* must be at least 1", {"x": np.ones((0, 8), np.float32)}),
    "shape of a result": (
        ValueError,
        r"scales has shape \(2, 3, 40, 3\), \[\.\.\., rows, head_dim/32\], but head_dim/32 is 2: x has head_dim = 64",
        {"scales": np.ones((2, 3, 40, 3), E8M0[0])},
    ),
    "leading shape of a result": (
        ValueError,
        r"scales has shape \(2, 40, 2\), not \[\.\.\., rows, head_dim/32\], where \.\.\. is \(2, 3\)",
        {"scales": np.ones((2, 40, 2), E8M0[0])},
    ),
    "nothing in a result": (
        ValueError,
        r"scales has shape \(2, 3, 0, 2\), but no size may be 0",
        {"scales": np.ones((2, 3, 0, 2), E8M0[0])},
    ),
    "dtype of a result": (TypeError, "scales has dtype uint8", {"scales": np.ones((2, 3, 40, 2), np.uint8)}),
    "kind of a result": (TypeError, "scales is a list, not an ndarray", {"scales": []}),
    "device": (TypeError, "device is a int", {"device": 3}),
    "of C": (ValueError, "axis = 7; it must be ALONG_HEAD_DIM", {"options": Options(axis=7)}),
    "option beyond its member": (ValueError, "axis is -1: ", {"options": Options(axis=-1)}),
    "option of another type": (TypeError, "rounding is 'up': ", {"options": Options(rounding="up")}),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("times", [1, 2])
def test_errors_name_the_argument(device: pysm120.Device, x: Array, name: str, times: int) -> None:
    """Also in the second call, which uses a kept plan."""
    kind, message, changed = WRONG[name]
    given = {"x": x, **WANTED, "options": Options(), "device": device, **changed}
    for _ in range(times):
        with pytest.raises(kind, match=message):
            QUANTIZE(
                {"x": given["x"]},
                {"elements": given["elements"], "scales": given["scales"]},
                given["options"],
                device=given["device"],
            )


def test_a_result_on_a_device_is_checked(device: pysm120.Device, x: Array) -> None:
    there = device.array(x)
    wrong: dict[str, tuple[type[Exception], Any]] = {
        "scales is a ndarray, not an Array": (TypeError, np.ones((2, 3, 40, 2), E8M0[0])),
        "scales has strides .*, but must be contiguous": (ValueError, device.zeros((2, 3, 40, 4), E8M0[0])[..., ::2]),
    }
    for message, (kind, scales) in wrong.items():
        with pytest.raises(kind, match=message):
            QUANTIZE({"x": there}, {"elements": NEW, "scales": scales}, Options())
    scales = device.zeros((2, 3, 40, 2), E8M0[0])
    scales.readonly = True
    with pytest.raises(pysm120.InvalidArgumentError, match="scales is read-only"):
        QUANTIZE({"x": there}, {"elements": NEW, "scales": scales}, Options())
    apart = device.zeros((4, 40, 64), np.float32)
    with pytest.raises(pysm120.InvalidArgumentError, match=r"x has stride 2 along its last dimension"):
        QUANTIZE({"x": apart[..., ::2]}, WANTED, Options())


def test_errors_of_c_call_arguments_as_python_does(device: pysm120.Device, x: Array) -> None:
    """A member of the C struct that has another name."""
    renamed = Operation(
        "sm120_quantize_mxfp8",
        (
            Input("rows", "... rows head_dim", member="x"),
            Output("elements", "... rows head_dim", E4M3),
            Output("scales", "... rows head_dim/32", E8M0),
        ),
    )
    y = device.array(x.reshape(6, 40, 64))
    wide = device.zeros((6, 40, 65), np.float32)[..., :64]
    with pytest.raises(pysm120.MisalignedError, match=r"rows\.row_stride = 65 elements is 260 bytes"):
        renamed({"rows": wide}, WANTED, Options())
    over = pysm120.Array(y.owner, y.address, y.shape, y.strides, E4M3[0])
    with pytest.raises(pysm120.InvalidArgumentError, match=r"elements .* and rows .* overlap"):
        renamed({"rows": y}, {"elements": over, "scales": NEW}, Options())


def test_plans_are_kept_for_forms(device: pysm120.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of kept plans is limited; a call of a forgotten form works again."""
    quantize = operation()
    monkeypatch.setattr(plan, "_MOST_PLANS", 3)
    first = None
    for rows in (1, 2, 3, 4, 5, 1):
        y = device.array(np.ones((rows, 32), np.float32))
        found = code(*quantize({"x": y}, WANTED, Options()))
        first = first or found
        assert found[0] == first[0] * rows


# ---- tables ----------------------------------------------------------------------


def test_sizes_are_those_of_the_first_array_that_has_them() -> None:
    sizes = Sizes()
    sizes.take("q", (2, 5, 4, 64), table.dimensions("batch q_rows heads head_dim"))
    sizes.take("starts", (3,), table.dimensions("batch+1"))
    sizes.take("total", (12,), table.dimensions("past_rows+q_rows"))
    assert sizes.known == {"batch": 2, "q_rows": 5, "heads": 4, "head_dim": 64, "past_rows": 7}
    assert sizes.shape(table.dimensions("batch head_dim/48 past_rows+q_rows+1")) == (2, 2, 13)
    wrong = {
        ("k", (2, 5, 4, 32), "batch kv_rows heads head_dim"): "but q has head_dim = 64",
        ("ends", (4,), "batch+1"): r"but batch\+1 is 3: q has batch = 2",
        (
            "both",
            (11,),
            "past_rows+q_rows",
        ): r"but past_rows\+q_rows is 12: total has past_rows = 7 and q has q_rows = 5",
        ("none", (0,), "others"): r"none has shape \(0,\): \[others\], of which others must be at least 1",
    }
    for (name, shape, dimensions), message in wrong.items():
        with pytest.raises(pysm120.InvalidArgumentError, match=message):
            sizes.take(name, shape, table.dimensions(dimensions))


def test_what_broadcasts() -> None:
    sizes = Sizes()
    sizes.take("q", (2, 5, 4), table.dimensions("batch rows heads"))
    wanted = table.dimensions("batch heads rows")
    right: list[tuple[int, ...]] = [(), (5,), (1, 5), (4, 1), (2, 4, 5)]
    for shape in right:
        sizes.broadcast("mask", shape, wanted)
    wrong: list[tuple[int, ...]] = [(2,), (5, 4), (1, 2, 4, 5), (0, 5)]
    for shape in wrong:
        with pytest.raises(
            pysm120.InvalidArgumentError, match=r"does not broadcast to \[batch, heads, rows\] = \(2, 4, 5"
        ):
            sizes.broadcast("mask", shape, wanted)


@pytest.mark.parametrize(
    ("shape", "strides", "most", "groups"),
    [
        ((2, 3, 4), (12, 4, 1), 2, ((1, None), (24, 2))),
        ((2, 3, 4), (24, 4, 1), 2, ((2, 0), (12, 2))),
        ((2, 3, 4), (24, 8, 1), 2, ((6, 1), (4, 2))),
        ((2, 1, 4), (24, 99, 1), 2, ((2, 0), (4, 2))),
        ((2, 3, 4), (99, 8, 1), 2, None),
        ((2, 3, 4), (0, 0, 0), 1, ((24, 2),)),
        ((), (), 2, ((1, None), (1, None))),
        ((1, 1), (7, 7), 3, ((1, None), (1, None), (1, None))),
    ],
)
def test_leading_dimensions(shape: tuple[int, ...], strides: tuple[int, ...], most: int, groups: Any) -> None:
    found = Leading.of(shape, [strides], most)
    assert (found and found.groups) == groups
    if found is None:
        return
    every = {sum(i * s for i, s in zip(at, strides, strict=True)) for at in np.ndindex(shape)}
    view, steps = found.view((*shape, 7), (*strides, 1))
    assert view[-1] == 7
    assert steps[-1] == 1
    assert {sum(i * s for i, s in zip(at, steps, strict=False)) for at in np.ndindex(view[:-1])} == every


def test_leading_dimensions_of_several_arrays_step_together() -> None:
    found = Leading.of((2, 3, 4), [(12, 4, 1), (24, 4, 1)], 3)
    assert found is not None
    assert found.groups == ((1, None), (2, 0), (12, 2))


def test_a_row_says_its_dtypes() -> None:
    with pytest.raises(TypeError, match=r"x has dtype float64, not float32$"):
        Input("x", "rows", F32).check_dtype(np.dtype(np.float64))
    with pytest.raises(TypeError, match="out_dtype has dtype float64, not float32, float16 or bfloat16"):
        Output("out", "rows", FLOATS).check_dtype(np.dtype(np.float64), "out_dtype")
