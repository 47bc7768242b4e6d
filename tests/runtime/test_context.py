"""An engine's own CUDA context: its memory and streams work in a device that adopts it."""

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from harness import check, ffi, lib, new_struct

import pysm120

SHAPE = (1, 100, 2, 64)


class Engine:
    """A context, a stream and memory of the CUDA driver, made without the library."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.context, self.stream, device = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuCtxCreate_v2", ctypes.byref(self.context), 0, device)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def call(self, name: str, *arguments: object) -> None:
        assert getattr(self.driver, name)(*arguments) == 0, name

    def memory(self, size: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def current(self) -> int | None:
        context = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(context))
        return context.value


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.call("cuCtxDestroy_v2", made.context)


@pytest.mark.cuda
@pytest.mark.parametrize("is_current", [True, False])
def test_attention_in_a_context_of_an_engine(
    engine: Engine, rng: np.random.Generator, device: pysm120.Device, is_current: bool
) -> None:
    q, k, v = (rng.standard_normal(SHAPE).astype(np.float16) for _ in range(3))
    handle = ffi.new("sm120_device **")
    popped = ctypes.c_void_p()
    if not is_current:
        engine.call("cuCtxPopCurrent_v2", ctypes.byref(popped))
    context = ffi.NULL if is_current else ffi.cast("void *", engine.context.value)
    check(lib.sm120_device_open_context(b"cuda", context, handle))
    engine.call("cuCtxSetCurrent", engine.context)
    try:
        places = [engine.memory(q.nbytes) for _ in range(4)]
        for address, x in zip(places, (q, k, v), strict=False):
            engine.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), x.tobytes(), ctypes.c_size_t(x.nbytes))
        args = new_struct("sm120_attention_args")
        args.precision, args.scale = lib.SM120_F16, 0.125
        args.batch, args.q_rows, args.heads, args.head_dim = SHAPE
        args.kv_heads, args.kv_rows = args.heads, args.q_rows
        for tensor, address in zip((args.q, args.k, args.v, args.o), places, strict=True):
            tensor.address, tensor.dtype = address, lib.SM120_F16
            tensor.batch_stride, tensor.row_stride, tensor.head_stride = 100 * 2 * 64, 2 * 64, 64
        args.stream = ffi.cast("void *", engine.stream.value)
        check(lib.sm120_attention(handle[0], args, 0, 0))
        assert engine.current() == engine.context.value
        check(lib.sm120_stream_synchronize(handle[0], args.stream))
        got = np.empty_like(q)
        where = got.ctypes.data_as(ctypes.c_void_p)
        engine.call("cuMemcpyDtoH_v2", where, ctypes.c_uint64(places[3]), ctypes.c_size_t(got.nbytes))
    finally:
        check(lib.sm120_device_close(handle[0]))
    assert engine.current() == engine.context.value
    engine.call("cuCtxSynchronize")  # the context lives on
    np.testing.assert_array_equal(got, pysm120.attention(q, k, v, scale=0.125, precision="f16", device=device))
