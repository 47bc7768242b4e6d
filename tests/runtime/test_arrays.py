"""Arrays in device memory: copies, views, lifetimes, DLPack and pinned memory."""

import ctypes
import gc
import itertools
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pysm120
from pysm120.runtime import dlpack, shapes

NATIVE = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?"]
SMALL = [
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e8m0fnu,
]
DTYPES = [np.dtype(name) for name in [*NATIVE, *SMALL]]


class Exporter:
    """Another library: exports what it is given."""

    def __init__(self, capsule: Any, place: tuple[int, int] = (1, 0)) -> None:
        self.capsule, self.place = capsule, place

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_keep_every_bit(device: pysm120.Device, rng: np.random.Generator, dtype: np.dtype[Any]) -> None:
    raw = rng.integers(0, 2 if dtype == np.bool_ else 256, (5, 7 * dtype.itemsize), np.uint8)
    values = raw.view(dtype)
    array = device.array(values)
    assert array.dtype == dtype
    assert array.shape == values.shape
    assert array.numpy().tobytes() == raw.tobytes()
    assert array.copy().numpy().tobytes() == raw.tobytes()
    assert array.nbytes == raw.nbytes


def test_shapes_without_elements_or_dimensions(device: pysm120.Device) -> None:
    assert device.array(np.float32(3)).numpy() == 3
    empty = device.zeros((4, 0, 2))
    assert empty.numpy().shape == (4, 0, 2)
    assert empty[2:].numpy().shape == (2, 0, 2)
    assert empty.copy().size == 0
    assert empty.reshape(0, 5).shape == (0, 5)
    assert device.from_dlpack(device.zeros(())).shape == ()


def test_zeros_and_a_bad_shape(device: pysm120.Device) -> None:
    assert not device.zeros((3, 5), np.int64).numpy().any()
    with pytest.raises(ValueError, match="negative"):
        device.empty((3, -1))
    with pytest.raises(TypeError, match="not an int"):
        device.empty(2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not supported in device memory"):
        device.empty(3, object)
    with pytest.raises(TypeError, match="byte order"):
        device.array(np.zeros(3, ">f4"))


def test_out_of_memory_is_an_exception(device: pysm120.Device) -> None:
    for count in (1 << 46, 1 << 62, 1 << 80):
        with pytest.raises(MemoryError):
            device.empty(count, np.uint8)
        with pytest.raises(MemoryError):
            device.pinned(count, np.uint8)
    assert device.zeros(4).numpy().sum() == 0


INDICES = [
    (0,),
    (-1, slice(None, None, -1)),
    (..., 2),
    (slice(1, 3), None, slice(None, None, 2), ...),
    (slice(5, 2),),
    (1, 2, 3),
    (slice(None, None, -2), slice(-1, None, -3), slice(1, 4)),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_views_index_as_numpy_does(device: pysm120.Device, index: tuple[Any, ...]) -> None:
    values = np.arange(4 * 5 * 6, dtype=np.int32).reshape(4, 5, 6)
    array = device.array(values)
    view = array[index]
    assert np.array_equal(view.numpy(), values[index])
    new = -1 - np.arange(view.size, dtype=np.int32).reshape(view.shape)
    view.copy_from(new)
    values[index] = new
    assert np.array_equal(array.numpy(), values)
    assert np.array_equal(view.copy().numpy(), new)


def test_views_transpose_and_reshape_as_numpy_does(device: pysm120.Device) -> None:
    values = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    array = device.array(values)
    for axes in itertools.permutations(range(4)):
        turned = array.transpose(*axes)
        assert np.array_equal(turned.numpy(), values.transpose(axes))
        assert np.array_equal(turned.T.T.numpy(), values.transpose(axes))
    assert np.array_equal(array.reshape(6, -1).numpy(), values.reshape(6, 20))
    assert np.array_equal(array[:, :, ::2].reshape(6, 2, 5).numpy(), values[:, :, ::2].reshape(6, 2, 5))
    with pytest.raises(ValueError, match="copy"):
        array.transpose(1, 0, 2, 3).reshape(-1)
    with pytest.raises(ValueError, match="has 120 elements"):
        array.reshape(7, -1)
    with pytest.raises(ValueError, match="axes"):
        array.transpose(0, 0, 1, 2)


@given(data=st.data())
def test_reshape_strides_are_numpys(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    values = np.arange(np.prod(shape), dtype=np.int8).reshape(shape)
    view = values.transpose(data.draw(st.permutations(range(len(shape)))))
    view = view[tuple(slice(None, None, data.draw(st.integers(1, 2))) for _ in shape)]
    split: list[int] = []
    for extent in view.shape:
        factors = [f for f in range(1, extent + 1) if extent % f == 0]
        first = data.draw(st.sampled_from(factors))
        split += [first, extent // first]
    wanted = tuple(split) if data.draw(st.booleans()) else (view.size,)
    got = shapes.reshaped(view.shape, tuple(s for s in view.strides), wanted)
    copied = view.reshape(wanted)
    if got is None:
        assert not np.shares_memory(copied, values) or view.size == 1
    elif np.shares_memory(copied, values):
        again = np.lib.stride_tricks.as_strided(view, wanted, got)
        assert np.array_equal(again, copied)


def test_indices_that_are_no_views_are_refused(device: pysm120.Device) -> None:
    array = device.zeros((3, 4))
    for index in (True, [0, 1], np.array([True, False, True]), 1.0, "x"):
        with pytest.raises(TypeError, match="indexed by"):
            array[index]
    for outside in (3, (0, 4), (0, 0, 0), (..., ...)):
        with pytest.raises(IndexError):
            array[outside]


def test_copy_from_refuses_what_does_not_fit(device: pysm120.Device) -> None:
    array = device.zeros((3, 4))
    with pytest.raises(TypeError, match="float64"):
        array.copy_from(np.zeros((3, 4)))
    with pytest.raises(ValueError, match=r"shape \(4, 3\)"):
        array.copy_from(np.zeros((4, 3), np.float32))
    assert not array.numpy().any()


def test_copy_from_pinned_memory_without_waiting(device: pysm120.Device) -> None:
    values = device.pinned((4, 6), np.int32)
    values[:] = np.arange(24).reshape(4, 6)
    array, stream = device.zeros((3, 6), np.int32), device.stream()
    assert array.copy_from(values[1:], stream=stream, blocking=False) is array
    assert np.array_equal(array.numpy(stream=stream), values[1:])
    array[:, ::-1].copy_from(values[:3], blocking=False)
    assert np.array_equal(array.numpy(), values[:3, ::-1])
    assert device.zeros((0, 6), np.int32).copy_from(np.zeros((0, 6), np.int32), blocking=False).size == 0


def test_copy_from_without_waiting_refuses_memory_that_may_go(device: pysm120.Device) -> None:
    array, values = device.zeros((3, 4)), device.pinned((4, 3))
    values[:] = 1
    for wrong, said in ((np.ones((3, 4), np.float32), "not in pinned memory"), (values.T, "must be C-contiguous")):
        with pytest.raises(ValueError, match=said):
            array.copy_from(wrong, blocking=False)
    assert not array.numpy().any()


@pytest.mark.cuda
def test_copy_from_returns_before_the_copy_is_done(device: pysm120.Device) -> None:
    array, values = device.zeros(1 << 28, np.uint8), device.pinned(1 << 28, np.uint8)
    values[:] = 1
    device.synchronize()
    begin = time.perf_counter()
    array.copy_from(values, blocking=False)
    returned = time.perf_counter()
    device.synchronize()
    assert returned - begin < (time.perf_counter() - begin) / 2


def test_views_keep_the_memory_and_free_takes_it(device: pysm120.Device) -> None:
    view = device.array(np.arange(10))[3:]
    gc.collect()
    assert view.numpy().tolist() == list(range(3, 10))
    other = view[1:]
    view.free()
    view.free()
    for array in (view, other):
        with pytest.raises(pysm120.ClosedError, match="freed"):
            array.numpy()
        assert "freed" in repr(array)
    kernel_argument = other
    with pytest.raises(ValueError, match="freed"):
        pysm120.attention(kernel_argument, kernel_argument, kernel_argument)


# ---- DLPack ---------------------------------------------------------------------


@pytest.mark.virtual
@pytest.mark.parametrize("dtype", [np.dtype(name) for name in NATIVE], ids=str)
def test_numpy_reads_our_capsules(device: pysm120.Device, dtype: np.dtype[Any]) -> None:
    values = np.arange(24).reshape(2, 3, 4).astype(dtype)
    array = device.array(values)
    shared = np.from_dlpack(array.transpose(2, 0, 1))
    assert shared.dtype == dtype
    assert np.array_equal(shared, values.transpose(2, 0, 1))
    address = shared.__array_interface__["data"][0]
    assert address == array.address


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (2, 0)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip_through_a_capsule(
    device: pysm120.Device, dtype: np.dtype[Any], max_version: tuple[int, int] | None
) -> None:
    array = device.array(np.arange(30).reshape(5, 6).astype(dtype))[1:, ::2]
    imported = dlpack.Imported(array.__dlpack__(max_version=max_version))
    assert imported.dtype == dtype
    assert imported.shape == (4, 3)
    assert imported.strides == (6, 2)
    assert imported.address == array.address
    assert imported.device == array.__dlpack_device__()
    assert not imported.readonly
    assert dlpack.is_exported(array.owner)
    imported.release()
    assert not dlpack.is_exported(array.owner)


def test_a_capsule_is_consumed_once(device: pysm120.Device) -> None:
    capsule = device.zeros(4).__dlpack__()
    first = device.from_dlpack(Exporter(capsule, device.zeros(1).__dlpack_device__()))
    assert first.numpy().tolist() == [0] * 4
    with pytest.raises(ValueError, match="used already"):
        device.from_dlpack(Exporter(capsule, first.__dlpack_device__()))
    for wrong in (None, 5, object()):
        with pytest.raises((ValueError, TypeError)):
            device.from_dlpack(Exporter(wrong))


def test_unclaimed_capsules_let_go(device: pysm120.Device) -> None:
    array = device.zeros(1000, ml_dtypes.bfloat16)
    owner = array.owner
    if device.is_virtual:
        # NumPy refuses the dtype, and says so, although the capsule dies while its exception is set.
        with pytest.raises((RuntimeError, BufferError), match=r"[dD]type|DLTensor"):
            np.from_dlpack(array)
    capsule = array.__dlpack__()
    assert dlpack.is_exported(owner)
    del capsule
    assert not dlpack.is_exported(owner)


@pytest.mark.virtual
def test_exported_memory_outlives_array_and_device(device_name: str) -> None:
    device = pysm120.Device(device_name)
    shared = np.from_dlpack(device.array(np.arange(1000)))
    gc.collect()
    assert shared.sum() == 499500
    array = device.array(np.arange(1000))
    other = np.from_dlpack(array)
    array.free()
    device.close()
    assert other.sum() == 499500
    other[:] = 1
    assert other.sum() == 1000
    with pytest.raises(pysm120.ClosedError):
        array.numpy()
    del other, shared
    gc.collect()
    assert not dlpack.is_exported(array.owner)


def test_exports_to_somewhere_else_are_refused(device: pysm120.Device) -> None:
    array = device.zeros(3)
    with pytest.raises(BufferError, match="dl_device"):
        array.__dlpack__(dl_device=(99, 0))
    with pytest.raises(BufferError, match="no DLPack type"):
        device.empty(3, "M8[s]").__dlpack__()
    imported = dlpack.Imported(array.__dlpack__(copy=True, max_version=(1, 0)))
    assert imported.address != array.address
    imported.release()


@pytest.mark.virtual
def test_read_only_memory_stays_so(device: pysm120.Device) -> None:
    values = np.arange(5, dtype=np.float32)
    array = device.array(values)
    array.readonly = True
    assert not np.from_dlpack(array).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        array.__dlpack__()
    with pytest.raises(ValueError, match="read-only"):
        array.copy_from(values)
    again = device.from_dlpack(np.from_dlpack(array))
    assert again.address == array.address
    assert again.readonly


def test_import_from_host_memory_copies(device: pysm120.Device) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = device.from_dlpack(values.T)
    assert np.array_equal(array.numpy(), values.T)
    with pytest.raises(ValueError, match="copy is False"):
        device.from_dlpack(values, copy=False)
    with pytest.raises(TypeError, match="DLPack"):
        device.from_dlpack([1, 2])  # type: ignore[arg-type]
    assert device.from_dlpack(array) is array
    assert device.from_dlpack(array, copy=True).address != array.address


def test_import_from_another_library_calls_its_deleter(device: pysm120.Device) -> None:
    values = np.arange(6, dtype=np.int16).reshape(2, 3)
    calls: list[int] = []
    managed = dlpack._Managed()
    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(calls.append)
    shape = (ctypes.c_int64 * 2)(2, 3)
    managed.tensor.data = values.__array_interface__["data"][0]
    managed.tensor.device_type, managed.tensor.ndim = 1, 2
    managed.tensor.code, managed.tensor.bits, managed.tensor.lanes = 0, 16, 1
    managed.tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    managed.tensor.byte_offset = 0
    managed.deleter = ctypes.cast(deleter, ctypes.c_void_p).value
    where = ctypes.addressof(managed)
    capsule = dlpack._python.PyCapsule_New(where, dlpack._NAMES[0][0], None)
    assert np.array_equal(device.from_dlpack(Exporter(capsule)).numpy(), values)
    assert calls == [where]


def test_another_device_is_refused(device: pysm120.Device) -> None:
    array = device.zeros(4)
    with pytest.raises(ValueError, match="not on"):
        device.from_dlpack(Exporter(array.__dlpack__(), (2, 77)))
    with pytest.raises(ValueError, match="type 9"):
        device.from_dlpack(Exporter(array.__dlpack__(), (9, 0)))


@pytest.mark.virtual
def test_arrays_of_two_virtual_devices_do_not_mix(device: pysm120.Device, device_name: str) -> None:
    with pysm120.Device(device_name) as other:
        theirs = other.zeros((1, 8, 1, 64))
        ours = device.zeros((1, 8, 1, 64))
        with pytest.raises(ValueError, match="k is on"):
            pysm120.attention(ours, theirs, theirs)
        with pytest.raises(ValueError, match="not on"):
            device.from_dlpack(theirs)
        with pytest.raises(ValueError, match="q is on"):
            pysm120.attention(ours, ours, ours, device=other)


@pytest.mark.virtual
def test_no_cuda_array_interface_here(device: pysm120.Device) -> None:
    assert not hasattr(device.zeros(3), "__cuda_array_interface__")


@pytest.mark.cuda
def test_cuda_array_interface(device: pysm120.Device) -> None:
    array = device.zeros((3, 4), np.float32)
    face = array[:, ::2].__cuda_array_interface__
    assert face == {
        "shape": (3, 2),
        "typestr": "<f4",
        "data": (array.address, False),
        "strides": (16, 8),
        "version": 3,
        "stream": 1,
    }
    assert array.__cuda_array_interface__["strides"] is None
    assert not hasattr(device.zeros(3, ml_dtypes.bfloat16), "__cuda_array_interface__")


# ---- pinned memory --------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pinned_memory_is_an_ndarray(device: pysm120.Device, dtype: np.dtype[Any]) -> None:
    values = device.pinned((3, 5), dtype)
    assert type(values) is np.ndarray
    assert values.dtype == dtype
    values[...] = np.ones((3, 5), dtype)
    assert np.array_equal(device.array(values).numpy(), values)
    assert device.pinned((0, 3), dtype).shape == (0, 3)


def test_pinned_memory_lives_as_long_as_a_view(device_name: str) -> None:
    device = pysm120.Device(device_name)
    table = device.pinned_table()
    view = device.pinned(100, np.int32)[10:20]
    gc.collect()
    view[:] = 7
    assert len(table) == 1
    device.close()
    gc.collect()
    assert view.sum() == 70
    del view
    gc.collect()
    assert not table


@pytest.mark.parametrize(
    "call",
    [
        np.asarray,
        np.array,
        lambda x: np.array_equal(x, x.numpy()),
        lambda x: np.allclose(x, x.numpy()),
        lambda x: np.array([x, x]),
        lambda x: np.concatenate([x, x]),
        lambda x: x.device.array(x),
        lambda x: x.copy_from(x),
    ],
)
def test_numpy_does_not_take_arrays_for_objects(device: pysm120.Device, call: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"use x.numpy\(\)"):
        call(device.array(np.arange(3)))


def test_ndarrays_do_not_compute_with_arrays(device: pysm120.Device) -> None:
    x = device.array(np.arange(3))
    with pytest.raises(TypeError):
        _ = x.numpy() + x
    with pytest.raises(TypeError):
        np.add(x, x)


def test_masked_arrays_are_refused(device: pysm120.Device) -> None:
    masked = np.ma.masked_equal(np.arange(3), 1)
    for call in (device.array, device.from_dlpack, device.zeros(3, masked.dtype).copy_from):
        with pytest.raises(TypeError, match="masked array, whose mask would be lost"):
            call(masked)


def test_dlpack_does_not_depend_on_what_others_say_of_python(
    device: pysm120.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jax.ffi.pycapsule gives ctypes.pythonapi.PyCapsule_New other argument types."""
    monkeypatch.setattr(ctypes.pythonapi.PyCapsule_New, "argtypes", (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p))
    x = device.array(np.arange(3, dtype=np.int32))
    assert device.from_dlpack(np.from_dlpack(x)).shape == (3,) if device.is_virtual else x.__dlpack__() is not None
