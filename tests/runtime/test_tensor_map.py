"""Tensor maps from Python: what they take, what they refuse, and as arguments of kernels."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pysm120

COPY = """.version 8.8
.target {target}
.address_size 64
.visible .entry copy(.param .align 64 .b8 from[128], .param .align 64 .b8 to[128])
{{
    .reg .pred p;
    .reg .b32 x, y;
    .reg .b64 a, b;
    .shared .align 1024 .b8 tile[4096];
    .shared .align 8 .b64 bar;
    mov.u32     x, %tid.x;
    setp.ne.u32 p, x, 0;
@p  exit;
    mov.b64     a, from;
    cvta.param.u64 a, a;
    mov.b64     b, to;
    cvta.param.u64 b, b;
    mov.u32     x, %ctaid.x;
    shl.b32     x, x, 6;
    mov.u32     y, %ctaid.y;
    shl.b32     y, y, 5;
    mbarrier.init.shared.b64 [bar], 1;
    fence.proxy.async;
    mbarrier.arrive.expect_tx.shared.b64 _, [bar], 4096;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [a, {{x, y}}], [bar];
wait:
    mbarrier.try_wait.parity.shared.b64 p, [bar], 0;
@!p bra wait;
    fence.proxy.async;
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [b, {{x, y}}], [tile];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    exit;
}}
"""


@pytest.fixture
def kernel(device: pysm120.Device) -> pysm120.Kernel:
    return device.load(COPY.format(target="sm_120f" if device.is_virtual else "sm_90"))["copy"]


@pytest.mark.parametrize("swizzle", ["none", "128B"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.uint16, np.int16])
def test_copy_of_a_matrix(
    device: pysm120.Device, kernel: pysm120.Kernel, rng: np.random.Generator, dtype: Any, swizzle: str
) -> None:
    values = rng.integers(0, 1 << 16, (100, 200)).astype(np.uint16).view(dtype)
    x, y = device.array(values)[3:98, 8:171], device.zeros((95, 168), dtype)[:, :163]
    box = (32, 64)
    kernel((3, 3), 32, device.tensor_map(x, box, swizzle=swizzle), device.tensor_map(y, box, swizzle=swizzle))
    assert y.numpy().tobytes() == values[3:98, 8:171].tobytes()


def test_raw_dimensions_and_strides(device: pysm120.Device, kernel: pysm120.Kernel, rng: np.random.Generator) -> None:
    """Rows of another pitch, and a stride of 0, which repeats a row."""
    values = rng.standard_normal(64 * 80).astype(np.float16)
    x, y = device.array(values), device.zeros((32, 64), np.float16)
    target = device.tensor_map(y, (32, 64))
    for stride in (160, 0):
        kernel(1, 32, device.tensor_map(x, (32, 64), dims=(32, 64), strides=(stride,)), target)
        rows = [values[stride // 2 * row :][:64] for row in range(32)]
        assert np.array_equal(y.numpy(), np.stack(rows))
    for dims, strides, message in (
        ((32, 64), None, "strides is None"),
        (None, (160,), "without dims"),
        ((32, 64), (160, 2), "not one number from 0 to 2\\^40 - 1 for each of 1 dimensions"),
        ((1,) * 6, (16,) * 5, "dims has 6 dimensions"),
        ((32, 0), (160,), "dims"),
        ((32, 64), (8,), "multiple of 16"),
    ):
        with pytest.raises((pysm120.InvalidArgumentError, pysm120.MisalignedError), match=message):
            device.tensor_map(x, (32, 64), dims=dims, strides=strides)


def test_another_array(device: pysm120.Device, kernel: pysm120.Kernel, rng: np.random.Generator) -> None:
    values = [rng.standard_normal((32, 64)).astype(np.float16) for _ in range(2)]
    arrays = [device.array(v) for v in values]
    y = device.zeros((32, 64), np.float16)
    source, target = device.tensor_map(arrays[0], (32, 64)), device.tensor_map(y, (32, 64))
    for array, value in zip(arrays, values, strict=True):
        source.replace_address(array)
        assert source.array is array
        kernel(1, 32, source, target)
        assert np.array_equal(y.numpy(), value)
    with pytest.raises(pysm120.InvalidArgumentError, match="not one like"):
        source.replace_address(device.zeros((32, 65), np.float16))


def test_as_bytes(device: pysm120.Device, kernel: pysm120.Kernel) -> None:
    x, y = device.array(np.ones((32, 64), np.float16)), device.zeros((32, 64), np.float16)
    maps = [device.tensor_map(a, (32, 64)) for a in (x, y)]
    assert [len(bytes(m)) for m in maps] == [128, 128]
    kernel(1, 32, *(bytes(m) for m in maps))
    assert (y.numpy() == 1).all()
    assert "FLOAT16" in repr(maps[0])


def test_the_array_lives_as_long_as_the_map(device: pysm120.Device, kernel: pysm120.Kernel) -> None:
    y = device.zeros((32, 64), np.float16)
    source = device.tensor_map(device.array(np.ones((32, 64), np.float16)), (32, 64))
    kernel(1, 32, source, device.tensor_map(y, (32, 64)))
    assert (y.numpy() == 1).all()
    source.array.free()
    with pytest.raises(pysm120.ClosedError):
        kernel(1, 32, source, device.tensor_map(y, (32, 64)))


def test_wrong_arguments_of_kernels(device: pysm120.Device, kernel: pysm120.Kernel) -> None:
    y = device.zeros((32, 64), np.float16)
    right = device.tensor_map(y, (32, 64))
    with pytest.raises(TypeError, match=r"parameter 1 to \(\.b8\[128\]\) is a Array: give a TensorMap"):
        kernel(1, 32, right, y)
    with pytest.raises(TypeError, match="bytes of 64 bytes"):
        kernel(1, 32, right, bytes(64))


@pytest.mark.virtual
def test_a_map_of_another_device(device: pysm120.Device, kernel: pysm120.Kernel) -> None:
    y = device.tensor_map(device.zeros((32, 64), np.float16), (32, 64))
    with pysm120.Device("virtual:0?seed=3") as other:
        x = other.zeros((32, 64), np.float16)
        with pytest.raises(
            pysm120.InvalidArgumentError, match=r"parameter 0 from .* is a tensor map of another Device"
        ):
            kernel(1, 32, other.tensor_map(x, (32, 64)), y)
        with pytest.raises(pysm120.InvalidArgumentError, match="array is on another Device"):
            device.tensor_map(x, (32, 64))


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"box": (32,)}, pysm120.InvalidArgumentError, r"box is \(32,\), not one number .* each of 2 dimensions"),
    ({"box": (32, 6.5)}, TypeError, "box is"),
    ({"box": (32, -1)}, pysm120.InvalidArgumentError, "box is"),
    ({"box": (300, 8)}, pysm120.InvalidArgumentError, r"box\[0\] = 300; expected 1 to 256 elements"),
    (
        {"box": (32, 60)},
        pysm120.InvalidArgumentError,
        r"box\[1\] = 60 elements of 16 bits; expected a multiple of 16 bytes",
    ),
    ({"swizzle": "16B"}, pysm120.InvalidArgumentError, "swizzle is '16B', not one of 'none', '32B'"),
    ({"swizzle": "64B"}, pysm120.InvalidArgumentError, "are 128 bytes; expected at most 64"),
    ({"element_strides": (1, 1, 1)}, pysm120.InvalidArgumentError, "element_strides is"),
    ({"element_strides": (9, 1)}, pysm120.InvalidArgumentError, r"element_strides\[0\] = 9"),
    ({"data_type": "FLOAT8"}, pysm120.InvalidArgumentError, "data_type is 'FLOAT8', not one of 'UINT8'"),
    ({"data_type": "16U4_ALIGN16B"}, TypeError, "must be uint8, the packed bytes"),
    ({"interleave": "8B"}, pysm120.InvalidArgumentError, "interleave is '8B'"),
    ({"interleave": "16B"}, pysm120.InvalidArgumentError, "an interleaved tensor has 3 to 5 dimensions"),
    ({"l2_promotion": 3}, pysm120.InvalidArgumentError, "l2_promotion is 3"),
    ({"oob_fill": "one"}, pysm120.InvalidArgumentError, "oob_fill is 'one'"),
    ({"oob_fill": "nan", "data_type": "UINT16"}, pysm120.InvalidArgumentError, "NaN needs a floating-point type"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG)
def test_wrong_arguments(device: pysm120.Device, given: dict[str, Any], error: type[Exception], message: str) -> None:
    x = device.zeros((64, 64), np.float16)
    with pytest.raises(error, match=message):
        device.tensor_map(x, **({"box": (32, 64)} | given))


def test_wrong_arrays(device: pysm120.Device) -> None:
    x = device.zeros((64, 64), np.float16)
    with pytest.raises(TypeError, match="array is a ndarray, not an Array"):
        device.tensor_map(np.zeros((64, 64)), (8, 8))  # type: ignore[arg-type]
    with pytest.raises(pysm120.InvalidArgumentError, match="stride 64 along its last dimension"):
        device.tensor_map(x.transpose((1, 0)), (8, 8))
    with pytest.raises(pysm120.InvalidArgumentError, match="stride -64 along dimension 0"):
        device.tensor_map(x[::-1], (8, 8))
    with pytest.raises(pysm120.MisalignedError, match="address = 0x"):
        device.tensor_map(x[:, 4:], (8, 8))
    with pytest.raises(pysm120.MisalignedError, match="a stride of 60 elements, 120 bytes, along dimension 0"):
        device.tensor_map(device.zeros((64, 60), np.float16), (8, 8))
    with pytest.raises(pysm120.InvalidArgumentError, match="array has 6 dimensions"):
        device.tensor_map(device.zeros((2,) * 5 + (8,), np.float16), (1,) * 6)
    with pytest.raises(TypeError, match="dtype complex64, which tensor maps do not have"):
        device.tensor_map(device.zeros((8, 8), np.complex64), (8, 8))
    with pytest.raises(pysm120.InvalidArgumentError, match="array has no elements"):
        device.tensor_map(device.zeros((0, 8), np.float16), (8, 8))


@pytest.mark.virtual
def test_interleaved_layouts_are_refused(device: pysm120.Device) -> None:
    with pytest.raises(pysm120.UnsupportedError, match="interleaved layouts are not supported"):
        device.tensor_map(device.zeros((8, 8, 8), np.float16), (8, 8, 8), interleave="16B")
