"""Devices, modules, kernels, streams and events, through the Python package."""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from processes import survives
from programs import BYTES, FOREVER, SAXPY

import pysm120
from pysm120.runtime import ffi


def test_info_describes_the_device(device: pysm120.Device, device_name: str) -> None:
    info = device.info
    assert info.is_virtual == device_name.startswith("virtual")
    assert info.name
    assert info.warp_size == 32
    assert info.multiprocessors >= 1
    assert info.max_threads_per_block == 1024
    assert str(device).startswith("virtual" if info.is_virtual else "cuda")
    assert info.name in repr(device)


@pytest.mark.virtual
def test_the_virtual_device_is_an_sm120(device: pysm120.Device) -> None:
    assert device.info.capability[0] == 12
    assert device.info.shared_bytes_per_block == 101376


def test_closed_device_refuses_everything(device_name: str, rng: np.random.Generator) -> None:
    device = pysm120.Device(device_name)
    array = device.array(rng.standard_normal(4))
    kernel = device.load(SAXPY)["saxpy"]
    stream, event = device.stream(), device.event()
    device.close()
    device.close()
    x = np.zeros((1, 8, 1, 64), np.float32)
    uses = (
        lambda: device.empty(3),
        lambda: device.array(x),
        lambda: device.pinned(3),
        lambda: device.load(SAXPY),
        device.stream,
        device.event,
        device.synchronize,
        device.counters,
        device.__enter__,
        array.numpy,
        lambda: array[1:],
        lambda: array.copy_from(np.zeros(4)),
        array.__dlpack__,
        lambda: kernel(1, 1, array, array, np.float32(1), np.uint32(4)),
        lambda: kernel.occupancy(32),
        stream.synchronize,
        event.record,
        lambda: pysm120.attention(x, x, x, device=device),
    )
    for use in uses:
        with pytest.raises(pysm120.ClosedError, match="closed"):
            use()
    assert "closed" in repr(device)
    assert device.info.warp_size == 32


def test_open_close_many_times(device_name: str) -> None:
    for _ in range(20):
        with pysm120.Device(device_name) as device:
            device.zeros(1000)


def test_forgotten_device_closes(device_name: str) -> None:
    device = pysm120.Device(device_name)
    array = device.zeros(4)
    handle = weakref.ref(device.handle)
    del device
    assert array.numpy().sum() == 0
    del array
    gc.collect()
    assert handle() is None


def test_saxpy(device: pysm120.Device, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((2, 1000)).astype(np.float32)
    on_x, on_y = device.array(x), device.array(y)
    kernel = device.load(SAXPY)["saxpy"]
    kernel(-(-1000 // 128), 128, on_x, on_y, np.float32(0.5), np.uint32(1000))
    device.synchronize()
    assert np.array_equal(on_y.numpy(), np.float32(0.5) * x + y)


def test_launch_on_views_and_pinned_memory(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 64)).astype(np.float32)
    y = device.pinned((2, 64))
    y[:] = 1
    kernel = device.load(SAXPY)["saxpy"]
    kernel(1, (64, 1), device.array(x)[2], y[1], np.float32(2), np.uint32(64))
    device.synchronize()
    assert np.array_equal(y[0], np.ones(64))
    assert np.array_equal(y[1], 2 * x[2] + 1)


def test_parameters_of_every_kind(device: pysm120.Device) -> None:
    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_uint64), ("b", ctypes.c_uint64))

    kernel = device.load(BYTES)["bytes"]
    assert [p.type for p in kernel.parameters] == ["u64", "b8[16]", "u16", "u8"]
    assert kernel.parameters[1].name == "param_pair"
    record = np.array([(5, 6)], [("a", np.uint64), ("b", np.uint64)])[0]
    for pair in (np.array([5, 6], np.uint64).tobytes(), Pair(5, 6), record):
        out = device.zeros(4, np.uint64)
        kernel(1, 1, out, pair, np.int16(-1), np.uint8(200))
        assert out.numpy().tolist() == [5, 6, 65535, 200]


def test_module_is_a_mapping(device: pysm120.Device, tmp_path: Path) -> None:
    path = tmp_path / "saxpy.ptx"
    path.write_text(SAXPY)
    for source in (SAXPY, SAXPY.encode(), path):
        module = device.load(source)
        assert list(module) == ["saxpy", "nothing"]
        assert len(module) == 2
        assert "saxpy" in module
        assert "other" not in module
        assert module["saxpy"] is module["saxpy"]
        module["nothing"](1, 32)
    device.synchronize()
    assert str(path) in repr(device.load(path))


def test_kernel_outlives_the_name_of_its_module(device: pysm120.Device) -> None:
    kernel = device.load(SAXPY)["nothing"]
    gc.collect()
    kernel((1, 2, 3), 32)
    device.synchronize()


def test_unloaded_module_refuses(device: pysm120.Device) -> None:
    module = device.load(SAXPY)
    kernel = module["nothing"]
    module.unload()
    module.unload()
    with pytest.raises(pysm120.ClosedError, match="module was unloaded"):
        kernel(1, 1)
    with pytest.raises(pysm120.ClosedError, match="module was unloaded"):
        module["nothing"]


def test_kernel_info(device: pysm120.Device) -> None:
    kernel = device.load(SAXPY)["saxpy"]
    assert kernel.info.entry == "saxpy"
    assert kernel.info.parameters == 4
    assert 1 <= kernel.info.max_threads <= 1024
    assert kernel.occupancy(128) >= 1
    assert kernel.occupancy(128, device.info.shared_bytes_per_block) == 1
    assert "saxpy(u64, u64, f32, u32)" in repr(kernel)


def test_builtin_kernels_load(device: pysm120.Device) -> None:
    kernels = device.builtin_kernels()
    assert any(name.startswith("attention_mxfp8") for name in kernels)
    assert any(name.startswith("quantize_mxfp8") for name in kernels)


def test_streams_and_events(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.standard_normal(256).astype(np.float32)
    first, second = device.stream(), device.stream()
    on_x, on_y = device.array(x), device.zeros(256)
    kernel = device.load(SAXPY)["saxpy"]
    arguments = (1, 256, on_x, on_y, np.float32(1), np.uint32(256))
    start = device.event().record(first)
    kernel(*arguments, stream=first)
    end = device.event().record(first)
    second.wait(end)
    kernel(*arguments, stream=second.number)
    second.synchronize()
    end.synchronize()
    assert end.elapsed_since(start) >= 0
    assert np.array_equal(on_y.numpy(stream=second), 2 * x)
    first.close()
    with pytest.raises(pysm120.ClosedError, match="stream was closed"):
        kernel(*arguments, stream=first)


def test_streams_of_other_libraries(device: pysm120.Device) -> None:
    class Foreign:
        def __init__(self, stream: pysm120.Stream) -> None:
            self.stream = stream

        def __cuda_stream__(self) -> tuple[int, int]:
            return self.stream.__cuda_stream__()

    kernel = device.load(SAXPY)["nothing"]
    stream = device.stream()
    kernel(1, 1, stream=Foreign(stream))
    kernel(1, 1, stream=0)
    stream.synchronize()
    with pytest.raises(TypeError, match="stream is a str"):
        kernel(1, 1, stream="0")
    with pytest.raises(ValueError, match="not a CUstream"):
        kernel(1, 1, stream=-5)


@pytest.mark.virtual
def test_counters_count(device: pysm120.Device) -> None:
    device.reset_counters()
    assert not any(device.counters().values())
    device.load(SAXPY)["nothing"](1, 32)
    device.synchronize()
    assert any(device.counters().values())
    device.reset_counters()
    assert not any(device.counters().values())


@pytest.mark.virtual
def test_counters_begin_at_the_first_opening() -> None:
    """In a process of its own, where no other test holds the device open."""
    survives(
        f"""
import pysm120

with pysm120.Device("virtual") as first:
    first.load({SAXPY!r})["nothing"](1, 32)
    with pysm120.Device("virtual") as second:
        assert second.counters() == first.counters()
        assert any(second.counters().values())
with pysm120.Device("virtual") as again:
    assert not any(again.counters().values())
"""
    )


def test_default_device_is_shared(device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSM120_DEVICE", device_name)
    from pysm120.runtime.device import as_device, shared_device

    assert shared_device() is shared_device()
    assert as_device(device_name) is shared_device()
    shared_device().close()
    assert not shared_device().closed


FIRST_CALLS = """
import warnings
import numpy as np, pysm120
x = np.ones((1, 4, 1, 16), np.float32)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        pysm120.attention(x, x, x, **NAMED)
print(len(caught), *(f"{w.category.__name__}: {w.message} ({w.filename}:{w.lineno})" for w in caught))
"""


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("named", "environment", "count"),
    [("", None, 1), ("", "virtual", 0), ('device="virtual"', None, 0), ("device=pysm120.Device()", None, 0)],
)
def test_a_call_says_once_that_it_is_virtual(named: str, environment: str | None, count: int) -> None:
    """In a process of its own, without a driver of a GPU."""
    variables = {name: value for name, value in os.environ.items() if name != "PYSM120_DEVICE"}
    variables["CUDA_VISIBLE_DEVICES"] = ""
    if environment:
        variables["PYSM120_DEVICE"] = environment
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALLS.replace("**NAMED", named)],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(count)), done.stdout
    assert ("VirtualDeviceWarning: no usable GPU was found" in done.stdout) == bool(count)
    assert ("(<string>:8)" in done.stdout) == bool(count)  # where the program calls


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_attention_stays_on_the_device(device: pysm120.Device, rng: np.random.Generator, dtype: Any) -> None:
    q, k = (rng.standard_normal((2, rows, 2, 64)).astype(dtype) for rows in (33, 70))
    on_q, on_k = device.array(q), device.array(k)
    out, lse = pysm120.attention(on_q, on_k, on_k, causal=True, return_lse=True)
    assert isinstance(out, pysm120.Array)
    assert out.dtype == dtype
    again, sums = pysm120.attention(q, k, k, causal=True, return_lse=True, device=device)
    assert isinstance(again, np.ndarray)
    assert np.array_equal(out.numpy(), again)
    assert np.array_equal(lse.numpy(), sums)
    assert sums.shape == (2, 2, 33)


def test_attention_layouts_outputs_and_workspace_agree(device: pysm120.Device, rng: np.random.Generator) -> None:
    q, k, v = (
        rng.standard_normal((2, rows, heads, 64)).astype(np.float32) for rows, heads in ((9, 4), (40, 2), (40, 2))
    )
    expected = pysm120.attention(q, k, v, device=device)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    got = pysm120.attention(*turned, layout="BHSD", device=device)
    assert np.array_equal(got.swapaxes(1, 2), expected)
    strided = pysm120.attention(*(x.swapaxes(1, 2) for x in turned), device=device)
    assert np.array_equal(strided, expected)
    out = np.full((2, 4, 9, 64), np.nan, np.float32).swapaxes(1, 2)
    lse = np.empty((2, 4, 9), np.float32)
    assert pysm120.attention(q, k, v, out=out, lse=lse, device=device) is out
    assert np.array_equal(out, expected)
    assert np.isfinite(lse).all()
    views = [device.array(x).transpose(0, 2, 1, 3) for x in turned]
    on_out = device.empty(q.shape, ml_dtypes.bfloat16)
    workspace = device.empty(1 << 20, np.uint8)
    result = pysm120.attention(*views, out=on_out, workspace=workspace, stream=device.stream())
    assert result is on_out
    device.synchronize()
    assert np.array_equal(on_out.numpy(), expected.astype(ml_dtypes.bfloat16))


def test_quantize_of_any_rank_and_stride(device: pysm120.Device, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 2, 4, 33, 40)).astype(np.float32)
    elements, scales = pysm120.quantize_mxfp8(x, axis=-2, device=device)
    assert elements.dtype == ml_dtypes.float8_e4m3fn
    assert scales.dtype == ml_dtypes.float8_e8m0fnu
    assert elements.shape == x.shape
    assert scales.shape == (3, 2, 4, 2, 40)
    on_x = device.array(x)
    for index in (..., (slice(None), 1), (1, 0, 2), (slice(None, None, 2), slice(1, None), slice(None, None, 3))):
        part, part_scales = pysm120.quantize_mxfp8(on_x[index], axis=-2)
        assert np.array_equal(part.numpy().view(np.uint8), elements[index].view(np.uint8))
        assert np.array_equal(part_scales.numpy().view(np.uint8), scales[index].view(np.uint8))


@pytest.mark.virtual
@pytest.mark.usefixtures("control_c")
def test_control_c_stops_a_kernel(device: pysm120.Device) -> None:
    forever = device.load(FOREVER)["forever"]
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        forever(1, 32)
    timer.join()
    assert device.array(np.arange(3)).numpy().tolist() == [0, 1, 2]


@pytest.mark.virtual
@pytest.mark.usefixtures("control_c")
def test_control_c_between_two_launches(device: pysm120.Device) -> None:
    forever = device.load(FOREVER)["forever"]

    def call() -> int:
        time.sleep(0.4)  # no launch runs when the signal comes
        forever(1, 32)
        return 0

    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ffi.check_running(device.handle.pointer, call, is_virtual=True)
    timer.join()


@pytest.mark.virtual
@pytest.mark.usefixtures("control_c")
def test_a_second_control_c_does_not_leave_the_work_behind(device: pysm120.Device) -> None:
    ended: list[bool] = []

    def call() -> int:
        time.sleep(0.7)
        ended.append(True)
        return 0

    timers = [threading.Timer(0.1 * turn, signal.raise_signal, [signal.SIGINT]) for turn in (1, 3, 4)]
    for timer in timers:
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        ffi.check_running(device.handle.pointer, call, is_virtual=True)
    assert ended
    for timer in timers:
        timer.join()


@pytest.mark.virtual
def test_a_thread_can_be_interrupted(device: pysm120.Device) -> None:
    forever = device.load(FOREVER)["forever"]
    failures: list[str] = []

    def launch() -> None:
        try:
            forever(1, 32)
        except pysm120.Error as error:
            failures.append(str(error))

    thread = threading.Thread(target=launch)
    thread.start()
    while thread.is_alive():
        device.interrupt()
        thread.join(0.05)
    (failure,) = failures
    assert "the launch was interrupted" in failure
