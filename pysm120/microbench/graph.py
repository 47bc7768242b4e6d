"""CUDA graphs of launches on a GPU, by the driver's own functions: the library has no functions for graphs."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pysm120.runtime.context import Stream
from pysm120.runtime.device import Device
from pysm120.runtime.errors import DriverError

_RELAXED = 2  # capture mode: other threads may do as they like


def _call(name: str, *arguments: object) -> None:
    result = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    if result != 0:
        message = f"{name} answered {result} while a graph was made or launched"
        raise DriverError(message)


@contextmanager
def _current(device: Device) -> Iterator[None]:
    """Make the device's context current in this thread."""
    context, popped = ctypes.c_void_p(), ctypes.c_void_p()
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device.info.ordinal)
    try:
        _call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            _call("cuCtxPopCurrent_v2", ctypes.byref(popped))
    finally:
        _call("cuDevicePrimaryCtxRelease_v2", device.info.ordinal)


@contextmanager
def graph_of(device: Device, stream: Stream, launch: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Capture the work of ``launch`` on a stream; yield a function that launches the graph without waiting."""
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    number = ctypes.c_void_p(stream.number)
    with _current(device):
        _call("cuStreamBeginCapture_v2", number, _RELAXED)
        try:
            try:
                launch()
            finally:
                _call("cuStreamEndCapture", number, ctypes.byref(graph))
            _call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        finally:
            if graph.value:
                _call("cuGraphDestroy", graph)
        start = ctypes.CDLL("libcuda.so.1").cuGraphLaunch

        def again() -> None:
            result = start(executable, number)
            if result != 0:
                message = f"cuGraphLaunch answered {result}"
                raise DriverError(message)

        try:
            yield again
        finally:
            device.synchronize()
            _call("cuGraphExecDestroy", executable)
