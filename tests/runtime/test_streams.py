"""The virtual device keeps the order of each stream, whichever host threads issue its work."""

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pysm120
from pysm120.runtime.ffi import check, ffi, lib

SEVENS = 0x07070707

# wait until *flag is not 0, then copy a word
SPIN = """.version 8.8
.target sm_120f
.address_size 64
.visible .entry spin(.param .u64 flag, .param .u64 from, .param .u64 to) {
    .reg .b64 a; .reg .b32 r; .reg .pred q;
    ld.param.u64 a, [flag];
again:
    ld.volatile.global.u32 r, [a]; setp.eq.u32 q, r, 0; @q bra again;
    ld.param.u64 a, [from]; ld.global.u32 r, [a];
    ld.param.u64 a, [to]; st.global.u32 [a], r; ret;
}"""

pytestmark = pytest.mark.virtual


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[pysm120.Device, pysm120.Device]]:
    monkeypatch.setenv("PYSM120_VIRTUAL_DEVICES", "2")
    with pysm120.Device("virtual:0") as first, pysm120.Device("virtual:1") as second:
        yield first, second


def issue(device: pysm120.Device, x: pysm120.Array, stream: Any, then: Callable[[], Any]) -> int:
    """Let a kernel wait on a stream, call `then` in another thread, and return what the kernel read of x."""
    flag, out = device.pinned(1, np.uint32), device.zeros(1, np.uint32)
    flag[0] = 0
    threads = [
        threading.Thread(target=device.load(SPIN)["spin"], args=(1, 32, flag, x, out), kwargs={"stream": stream}),
        threading.Thread(target=then),
    ]
    threads[0].start()
    threads[0].join(0.1)
    threads[1].start()
    threads[1].join(0.1)  # if it ends, it has not waited
    flag[0] = 1
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return int(out.numpy()[0])


def fill(x: pysm120.Array, stream: Any) -> None:
    device = x.device
    check(lib.sm120_fill(device.handle.pointer, x.address, 7, x.nbytes, device.stream_handle(stream)))


OTHER_WORK: dict[str, Callable[[pysm120.Array, Any], Any]] = {
    "copy to": lambda x, stream: x.copy_from(np.full(64, SEVENS, np.uint32), stream=stream),
    "fill": fill,
}


@pytest.mark.parametrize("is_default", [False, True], ids=["stream", "default stream"])
@pytest.mark.parametrize("what", OTHER_WORK)
def test_work_of_other_threads_waits(
    device: pysm120.Device, monkeypatch: pytest.MonkeyPatch, what: str, is_default: bool
) -> None:
    monkeypatch.setenv("PYSM120_PATIENCE", "20000")
    x = device.array(np.full(64, 3, np.uint32))
    stream = None if is_default else device.stream()
    assert issue(device, x, stream, lambda: OTHER_WORK[what](x, stream)) == 3
    assert set(x.numpy(stream=stream)) == {SEVENS}


def test_work_of_another_stream_does_not_wait(device: pysm120.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSM120_PATIENCE", "20000")
    x = device.array(np.full(64, 3, np.uint32))
    first, second = device.stream(), device.stream()
    assert issue(device, x, first, lambda: fill(x, second)) == SEVENS


@pytest.mark.parametrize("what", ["stream", "event", "device"])
def test_synchronising_waits_for_other_threads(
    device: pysm120.Device, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("PYSM120_PATIENCE", "20000")
    stream, event = device.stream(), device.event()
    seen, x = [], device.array(np.full(64, 3, np.uint32))
    flag, out = device.pinned(1, np.uint32), device.pinned(1, np.uint32)
    flag[0] = out[0] = 0
    waits: dict[str, Callable[[], Any]] = {
        "stream": stream.synchronize,
        "event": lambda: event.record(stream).synchronize(),
        "device": device.synchronize,
    }

    def then() -> None:
        waits[what]()
        seen.append(int(out[0]))

    spin = device.load(SPIN)["spin"]
    threads = [
        threading.Thread(target=spin, args=(1, 32, flag, x, out), kwargs={"stream": stream}),
        threading.Thread(target=then),
    ]
    threads[0].start()
    threads[0].join(0.1)
    threads[1].start()
    threads[1].join(0.1)
    assert not seen
    flag[0] = 1
    for thread in threads:
        thread.join(30)
    assert seen == [3]


def test_streams_and_events_of_another_device(two: tuple[pysm120.Device, pysm120.Device]) -> None:
    """In C; in Python the package compares the devices. An event of another device may be waited for."""
    here, there = (device.handle.pointer for device in two)
    x, host, module = two[0].zeros(64, np.uint32), ffi.new("char[256]"), two[0].load(SPIN)
    streams, events = ffi.new("sm120_stream[2]"), ffi.new("sm120_event[2]")
    for n, device in enumerate((here, there)):
        check(lib.sm120_stream_create(device, streams + n))
        check(lib.sm120_event_create(device, events + n))
        check(lib.sm120_event_record(device, events[n], streams[n]))
    kernel, one, milliseconds = module["spin"]._pointer, ffi.new("uint32_t[3]", [1, 1, 1]), ffi.new("float *")
    pointer = ffi.new("uint64_t *", x.address)
    arguments, sizes = ffi.new("void *[3]", [pointer] * 3), ffi.new("size_t[3]", [8] * 3)
    calls: dict[str, int] = {
        "launch": lib.sm120_launch(kernel, one, one, 0, streams[1], arguments, sizes, 3),
        "copy to device": lib.sm120_copy_to_device(here, x.address, host, 256, streams[1]),
        "copy to host": lib.sm120_copy_to_host(here, host, x.address, 256, streams[1]),
        "copy on device": lib.sm120_copy_on_device(here, x.address, x.address + 128, 128, streams[1]),
        "fill": lib.sm120_fill(here, x.address, 1, 256, streams[1]),
        "synchronise": lib.sm120_stream_synchronize(here, streams[1]),
        "wait": lib.sm120_stream_wait_event(here, streams[1], events[0]),
        "record on its stream": lib.sm120_event_record(here, events[0], streams[1]),
        "record its event": lib.sm120_event_record(here, events[1], streams[0]),
        "elapsed": lib.sm120_event_elapsed(here, events[0], events[1], milliseconds),
    }
    assert calls == dict.fromkeys(calls, lib.SM120_INVALID_ARGUMENT)
    assert "is an event of device 1; the call is on device 0" in ffi.string(lib.sm120_last_error()).decode()
    check(lib.sm120_stream_wait_event(here, streams[0], events[1]))
    assert not x.numpy().any()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # of Python 3.15, in a process with threads
def test_fork_in_a_callback(device: pysm120.Device) -> None:
    """The child goes on with the launch that called back, and with its stream."""
    statuses = []

    def see(_step: Any) -> None:
        child = os.fork()
        if child == 0:
            device.zeros(4).numpy()
            os._exit(0)
        statuses.append(os.waitpid(child, 0)[1])

    flag, out = device.array(np.ones(1, np.uint32)), device.zeros(1, np.uint32)
    module = device.load(SPIN)
    with device.trace(see=see, lines=(10, 10)):
        module["spin"](1, 32, flag, flag, out)
    assert set(statuses) == {0}
    assert out.numpy()[0] == 1
