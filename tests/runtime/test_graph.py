"""Operations captured in a CUDA graph, which runs on inputs that came later; the graph is the driver's own."""

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import reference

import pysm120

pytestmark = pytest.mark.cuda
RELAXED = 2  # capture mode: other threads may do as they like


def driver(name: str, *arguments: Any) -> None:
    """Call the CUDA driver."""
    result = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    assert result == 0, f"{name}: {result}"


def graph_of(stream: pysm120.Stream, call: Any) -> ctypes.c_void_p:
    """Capture what a call starts on a stream."""
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    driver("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.number), RELAXED)
    try:
        call()
    finally:
        driver("cuStreamEndCapture", ctypes.c_void_p(stream.number), ctypes.byref(graph))
    driver("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
    driver("cuGraphDestroy", graph)
    return executable


@pytest.mark.parametrize(
    ("precision", "head_dim", "features"),
    [
        ("bf16", 128, {}),
        ("bf16", 100, {}),
        ("bf16", 64, {"softcap": 3.0, "window": (20, 5)}),
        ("mxfp8", 64, {}),
        ("mxfp8_bf16", 128, {}),
    ],
)
def test_attention(
    device: pysm120.Device, rng: np.random.Generator, precision: str, head_dim: int, features: dict[str, Any]
) -> None:
    def values() -> np.ndarray[Any, Any]:
        return rng.standard_normal((2, 150, 4, head_dim)).astype(ml_dtypes.bfloat16)

    context = ctypes.c_void_p()
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device.info.ordinal)
    driver("cuCtxSetCurrent", context)
    stream = device.stream()
    q, k, v, out = (device.array(values()) for _ in range(4))
    lse = device.empty((2, 4, 150))
    workspace = device.empty(1 << 24, np.uint8)
    options: dict[str, Any] = {"causal": True, "precision": precision, "workspace": workspace, **features}

    def call() -> None:
        pysm120.attention(q, k, v, out=out, lse=lse, stream=stream, **options)

    call()  # loads the kernels, which no graph can hold
    executable = graph_of(stream, call)
    for _ in range(3):
        inputs = [values() for _ in range(3)]
        for x, there in zip(inputs, (q, k, v), strict=True):
            there.copy_from(x)
        out.copy_from(np.full(out.shape, np.nan, out.dtype))
        driver("cuGraphLaunch", executable, ctypes.c_void_p(stream.number))
        device.synchronize()
        wanted, logs = pysm120.attention(
            inputs[0], inputs[1], inputs[2], device=device, return_lse=True, **{**options, "workspace": None}
        )
        assert np.array_equal(out.numpy(), wanted)
        assert np.array_equal(lse.numpy(), logs)
    driver("cuGraphExecDestroy", executable)
    driver("cuDevicePrimaryCtxRelease_v2", device.info.ordinal)


@pytest.mark.parametrize("head_dim", [128, 100])
def test_attention_of_mxfp8_operands(device: pysm120.Device, rng: np.random.Generator, head_dim: int) -> None:
    """Each run of the graph finds other elements and other scales."""

    def values() -> list[Any]:
        q, k, v = (rng.standard_normal((2, 4, 150, head_dim)).astype(ml_dtypes.bfloat16) for _ in range(3))
        return [x for x, axis in ((q, -1), (k, -1), (v, -2)) for x in reference.quantize_mxfp8(x, axis)]

    context = ctypes.c_void_p()
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device.info.ordinal)
    driver("cuCtxSetCurrent", context)
    stream = device.stream()
    there = [device.array(x) for x in values()]
    out = device.empty((2, 4, 150, head_dim), ml_dtypes.bfloat16)
    workspace = device.empty(1 << 24, np.uint8)

    def call(parts: list[Any], **options: Any) -> Any:
        pairs = [(parts[i], parts[i + 1]) for i in (0, 2, 4)]
        return pysm120.attention(pairs[0], pairs[1], pairs[2], causal=True, layout="BHSD", **options)

    def launch() -> None:
        call(there, out=out, stream=stream, workspace=workspace)

    launch()  # loads the kernels, which no graph can hold
    executable = graph_of(stream, launch)
    for _ in range(3):
        parts = values()
        for x, array in zip(parts, there, strict=True):
            array.copy_from(x)
        out.copy_from(np.full(out.shape, np.nan, out.dtype))
        driver("cuGraphLaunch", executable, ctypes.c_void_p(stream.number))
        device.synchronize()
        assert np.array_equal(out.numpy(), call(parts, device=device))
    driver("cuGraphExecDestroy", executable)
    driver("cuDevicePrimaryCtxRelease_v2", device.info.ordinal)


@pytest.mark.parametrize("head_dim", [128, 100])
def test_attention_backward(device: pysm120.Device, rng: np.random.Generator, head_dim: int) -> None:
    """Copies, zeros and all: each run of the graph begins with sums of 0. dq is summed in the order of the CTAs."""

    def values() -> np.ndarray[Any, Any]:
        return rng.standard_normal((2, 150, 4, head_dim)).astype(ml_dtypes.bfloat16)

    context = ctypes.c_void_p()
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device.info.ordinal)
    driver("cuCtxSetCurrent", context)
    stream = device.stream()
    arrays = [device.array(values()) for _ in range(5)]
    lse = device.array(np.full((2, 4, 150), 5, np.float32))
    dq, dk, dv = results = [device.empty((2, 150, 4, head_dim)) for _ in range(3)]
    workspace = device.empty(1 << 24, np.uint8)

    def call() -> None:
        dout, q, k, v, out = arrays
        pysm120.attention_backward(
            dout, q, k, v, out, lse, causal=True, stream=stream, workspace=workspace, dq=dq, dk=dk, dv=dv
        )

    call()  # loads the kernels, which no graph can hold
    executable = graph_of(stream, call)
    for _ in range(3):
        for there in arrays:
            there.copy_from(values())
        for result in results:
            result.copy_from(np.full(result.shape, np.nan, np.float32))
        driver("cuGraphLaunch", executable, ctypes.c_void_p(stream.number))
        device.synchronize()
        got = [result.numpy() for result in results]
        call()
        device.synchronize()
        wanted = [result.numpy() for result in results]
        np.testing.assert_allclose(got[0], wanted[0], atol=1e-5 * np.abs(wanted[0]).max())
        assert np.array_equal(got[1], wanted[1])
        assert np.array_equal(got[2], wanted[2])
    driver("cuGraphExecDestroy", executable)
    driver("cuDevicePrimaryCtxRelease_v2", device.info.ordinal)


@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("float16", "float8_e4m3fn")], ids=str)
@pytest.mark.parametrize(("tokens", "splits"), [(2, 1), (2, 3), (150, None)])
def test_attention_with_kv_cache(
    device: pysm120.Device, rng: np.random.Generator, tokens: int, splits: int | None, dtypes: tuple[str, str]
) -> None:
    """Each run of the graph has other lengths and page numbers; caches of two dtypes are copied in it."""
    context = ctypes.c_void_p()
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device.info.ordinal)
    driver("cuCtxSetCurrent", context)
    stream = device.stream()
    q, k, v = (
        device.array(rng.standard_normal(shape).astype(dtype))
        for shape, dtype in zip(
            ((3, tokens, 8, 128), (20, 16, 2, 128), (20, 16, 2, 128)), ("bfloat16", *dtypes), strict=True
        )
    )
    lengths, table = device.array(np.zeros(3, np.int32)), device.array(np.zeros((3, 9), np.int32))
    out, lse = device.empty((3, tokens, 8, 128), q.dtype), device.empty((3, 8, tokens))
    options: dict[str, Any] = {"causal": True, "num_splits": splits}
    workspace = device.empty(1 << 21, np.uint8)

    def call() -> None:
        pysm120.attention_with_kv_cache(
            *(q, k, v, lengths), page_table=table, out=out, lse=lse, stream=stream, workspace=workspace, **options
        )

    call()  # loads the kernels, which no graph can hold
    executable = graph_of(stream, call)
    for _ in range(4):
        counts, pages = rng.integers(0, 145, 3).astype(np.int32), rng.integers(0, 20, (3, 9)).astype(np.int32)
        lengths.copy_from(counts)
        table.copy_from(pages)
        out.copy_from(np.full(out.shape, np.nan, out.dtype))
        driver("cuGraphLaunch", executable, ctypes.c_void_p(stream.number))
        device.synchronize()
        wanted, logs = pysm120.attention_with_kv_cache(
            *(q.numpy(), k.numpy(), v.numpy(), counts), page_table=pages, device=device, return_lse=True, **options
        )
        assert np.array_equal(out.numpy(), wanted)
        assert np.array_equal(lse.numpy(), logs)
    driver("cuGraphExecDestroy", executable)
    driver("cuDevicePrimaryCtxRelease_v2", device.info.ordinal)


def test_flash_attn_with_kvcache(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Each run of the graph appends a token behind other lengths, and attends to it."""
    context = ctypes.c_void_p()
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device.info.ordinal)
    driver("cuCtxSetCurrent", context)
    stream = device.stream()
    shapes = (3, 1, 8, 128), (20, 16, 2, 128), (20, 16, 2, 128), (3, 1, 2, 128), (3, 1, 2, 128)
    arrays = [device.array(rng.standard_normal(shape).astype(ml_dtypes.bfloat16)) for shape in shapes]
    table = rng.permutation(20)[:18].reshape(3, 6).astype(np.int32)
    seqlens, new_seqlens = (device.array(np.zeros(3, np.int32)) for _ in range(2))
    there, out = device.array(table), device.empty(shapes[0], arrays[0].dtype)
    workspace = device.empty(1 << 20, np.uint8)

    def call() -> None:
        q, k_cache, v_cache, k, v = arrays
        pysm120.flash_attn_with_kvcache(
            *(q, k_cache, v_cache, k, v),
            cache_seqlens=seqlens,
            block_table=there,
            out=out,
            new_seqlens=new_seqlens,
            workspace=workspace,
            stream=stream,
        )

    call()  # loads the kernels, which no graph can hold
    executable = graph_of(stream, call)
    for _ in range(3):
        lengths = rng.integers(0, 96, 3).astype(np.int32)
        seqlens.copy_from(lengths)
        arrays[3].copy_from(rng.standard_normal(shapes[3]).astype(ml_dtypes.bfloat16))
        q, k_cache, v_cache, k, v = (x.numpy() for x in arrays)
        driver("cuGraphLaunch", executable, ctypes.c_void_p(stream.number))
        device.synchronize()
        wanted = pysm120.flash_attn_with_kvcache(
            *(q, k_cache, v_cache, k, v), cache_seqlens=lengths, block_table=table, device=device
        )
        assert np.array_equal(out.numpy(), wanted)
        assert np.array_equal(new_seqlens.numpy(), lengths + 1)
        assert np.array_equal(arrays[1].numpy(), k_cache)
    driver("cuGraphExecDestroy", executable)
    driver("cuDevicePrimaryCtxRelease_v2", device.info.ordinal)
