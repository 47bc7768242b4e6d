"""Callers that mean no good: what the functions of caches, merges and quantised weights say to them."""

import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pysm120

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
HUGE = 2**70


def zeros(*shape: int, dtype: Any = BF16) -> Any:
    return np.zeros(shape, dtype)


def attend(device: pysm120.Device, **options: Any) -> Any:
    given = {"q": zeros(2, 3, 4, 64), "k_cache": zeros(2, 40, 2, 64), "v_cache": zeros(2, 40, 2, 64), **options}
    return pysm120.attention_with_kv_cache(**given, device=device)


def append(device: pysm120.Device, slots: Any = None, tokens: int = 3, **options: Any) -> None:
    front = (tokens,) if slots is not None else (2, tokens)
    k, v = zeros(*front, 2, 64), zeros(*front, 2, 64)
    pages = 5 if slots is not None or "page_table" in options else 2
    caches = {"k_cache": zeros(pages, 16, 2, 64), "v_cache": zeros(pages, 16, 2, 64), **options}
    pysm120.kv_cache_append(k, v, slots=slots, device=device, **caches)


def gather(device: pysm120.Device, **options: Any) -> Any:
    return pysm120.kv_cache_gather(zeros(2, 16, 2, 64), zeros(2, 16, 2, 64), device=device, **options)


def matrix(device: pysm120.Device, **members: Any) -> pysm120.QuantizedMatrix:
    given = {"data": device.zeros((4608,), np.uint8), "type": "Q4_K", "shape": (32, 256), "layout": "native", **members}
    return pysm120.QuantizedMatrix(**given)


TOGETHER = zeros(5, 16, 2, 64)
ROOM = zeros(2000, dtype=np.float32)
REFUSED: dict[str, tuple[type[Exception], str, Callable[[pysm120.Device], Any]]] = {
    "values without columns": (
        ValueError,
        "v_head_dim of v_cache is 0; it must be at least 1",
        lambda d: attend(d, v_cache=zeros(2, 40, 2, 0)),
    ),
    "huge num_splits": (ValueError, "it must be from 1 to 1024", lambda d: attend(d, num_splits=HUGE)),
    "huge num_splits of attention": (
        ValueError,
        "it must be from 1 to 32",
        lambda d: pysm120.attention(*[zeros(1, 3, 2, 64)] * 3, num_splits=HUGE, device=d),
    ),
    "out and lse share memory": (
        ValueError,
        "out and lse overlap",
        lambda d: attend(d, out=ROOM[:1536].reshape(2, 3, 4, 64), lse=ROOM[1530:1554].reshape(2, 4, 3)),
    ),
    "two tokens in one place": (
        ValueError,
        r"slots\[2\] is 7, as slots\[0\] is: two tokens must not have one place",
        lambda d: append(d, np.array([7, -1, 7])),
    ),
    "K and V in one cache": (
        ValueError,
        "k_cache and v_cache overlap",
        lambda d: append(d, np.array([1, 2, 3]), k_cache=TOGETHER, v_cache=TOGETHER),
    ),
    "K and V share a row": (
        ValueError,
        "k_cache and v_cache overlap",
        lambda d: append(
            d,
            np.array([1, 2, 3]),
            k_cache=(flat := zeros(2 * 5 * 2048))[:10240].reshape(5, 16, 2, 64),
            v_cache=flat[10176:20416].reshape(5, 16, 2, 64),
        ),
    ),
    "more tokens than rows": (
        ValueError,
        "k has 17 tokens of each sequence, but its pages have 16 rows",
        lambda d: append(d, tokens=17),
    ),
    "more tokens than pages": (
        ValueError,
        "k has 33 tokens of each sequence, but its pages have 32 rows",
        lambda d: append(d, tokens=33, page_table=np.array([[0, 1], [2, 3]], np.int32)),
    ),
    "rows of a table differ": (
        ValueError,
        "page_table is a list whose rows have different lengths, not an array",
        lambda d: gather(d, page_table=[[0], [1, 0]]),
    ),
    "a table of words": (TypeError, "page_table has dtype <U2, not int32", lambda d: gather(d, page_table="ab")),
    "rows of cu_seqlens differ": (
        ValueError,
        "cu_seqlens is a list whose rows have different lengths, not an array",
        lambda d: pysm120.quantize_mxfp8_tiles(zeros(40, 2, 64), "k", cu_seqlens=[[0], [1, 2]], device=d),
    ),
    "no rows to gather": (ValueError, "rows is 0; it must be at least 1", lambda d: gather(d, rows=0)),
    "negative rows to gather": (ValueError, "rows is -1; it must be at least 1", lambda d: gather(d, rows=-1)),
    "huge rows to gather": (ValueError, r"rows is \d+; it must be below 2\*\*63", lambda d: gather(d, rows=HUGE)),
    "gather to one array": (
        ValueError,
        "k and v overlap",
        lambda d: gather(d, k=(x := zeros(2, 16, 2, 64)), v=x),
    ),
    "states in a list": (
        TypeError,
        "outs is a list, not an array",
        lambda d: pysm120.merge_states([zeros(1, 1, 1, 64)], zeros(1, 1, 1, 1, dtype=np.float32), device=d),
    ),
    "lses in a list": (
        TypeError,
        "lses is a list, not an array",
        lambda d: pysm120.merge_states(zeros(1, 1, 1, 1, 64), [0.0], device=d),
    ),
    "bytes of weights on the host": (
        TypeError,
        "data is a ndarray, not an Array: make a matrix by QuantizedMatrix.from_gguf",
        lambda d: matrix(d, data=zeros(4608, dtype=np.uint8)),
    ),
    "type of weights": (ValueError, "type is 'Q4_X', not one of", lambda d: matrix(d, type="Q4_X")),
    "layout of weights": (ValueError, "layout is 'tiles', not one of", lambda d: matrix(d, layout="tiles")),
    "shape of weights": (TypeError, r"shape is \(32,\), not \(rows, columns\)", lambda d: matrix(d, shape=(32,))),
    "huge weights": (
        ValueError,
        "all together below",
        lambda d: pysm120.QuantizedMatrix.from_gguf(b"", "Q4_K", (HUGE, 256), device=d),
    ),
    "huge max_seqlen": (
        ValueError,
        "max_seqlen is 7, but cu_seqlens has a sequence of 40 rows",
        lambda d: pysm120.quantize_mxfp8(
            zeros(2, 40, 64), axis=-2, cu_seqlens=np.array([0, 40], np.int32), max_seqlen=7, device=d
        ),
    ),
}


@pytest.mark.parametrize("begin", [16, 300, 750])
def test_a_result_without_gaps_over_rows_with_gaps(device: pysm120.Device, begin: int) -> None:
    """Whatever the strides of the other: its first or last row lies in the result."""
    flat = device.zeros((2048,), BF16)
    gaps = flat[400:784].reshape(1, 4, 2, 48)[..., :32]
    k = flat[begin : begin + 192].reshape(3, 2, 32)
    free = [device.zeros((1, 4, 2, 32), BF16), device.zeros((3, 2, 32), BF16)]
    slots = device.array(np.array([0, 1, 2]))

    def call() -> None:
        pysm120.kv_cache_gather(free[0], gaps, slots, k=k, v=free[1])

    if begin == 16:  # before the cache
        call()
        return
    with pytest.raises(ValueError, match=r"k .* and v_cache .* overlap"):
        call()


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_calls(device: pysm120.Device, case: str) -> None:
    kind, message, call = REFUSED[case]
    with pytest.raises(kind, match=message):
        call(device)


def test_a_huge_max_seqlen_is_that_of_all_rows(device: pysm120.Device) -> None:
    ends = np.array([0, 40], np.int32)
    elements, _ = pysm120.quantize_mxfp8(zeros(2, 40, 64), axis=-2, cu_seqlens=ends, max_seqlen=HUGE, device=device)
    assert elements.shape == (2, 40, 64)


def test_tokens_without_a_place_may_share_it(device: pysm120.Device) -> None:
    append(device, np.array([-1, -1, 3]))


def test_k_and_v_in_one_array_of_the_host(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Views that lie between one another do not overlap."""
    cache = zeros(5, 2, 16, 2, 64)
    k, v = (rng.standard_normal((3, 2, 64)).astype(BF16) for _ in "kv")
    pysm120.kv_cache_append(k, v, cache[:, 0], cache[:, 1], np.array([1, 2, 3]), device=device)
    assert np.array_equal(cache[0, 0, 1:4], k)
    assert np.array_equal(cache[0, 1, 1:4], v)


@pytest.mark.parametrize("rows", [16, 7])
def test_gather_to_given_ndarrays(device: pysm120.Device, rng: np.random.Generator, rows: int) -> None:
    """Without slots, the number of rows is that of the given arrays."""
    k, v = (rng.standard_normal((2, 16, 2, 64)).astype(BF16) for _ in "kv")
    to = [zeros(2, rows, 2, 64) for _ in "kv"]
    made = pysm120.kv_cache_gather(k, v, k=to[0], v=to[1], device=device)
    assert made[0] is to[0]
    assert np.array_equal(to[0], k[:, :rows])
    assert np.array_equal(to[1], v[:, :rows])


def test_tables_in_lists(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A list beside ndarrays is a table of all its columns."""
    k_cache, v_cache = zeros(5, 16, 2, 64), zeros(5, 16, 2, 64)
    k, v = (rng.standard_normal((2, 20, 2, 64)).astype(BF16) for _ in "kv")
    table = [[0, 3], [4, 1]]
    pysm120.kv_cache_append(k, v, k_cache, v_cache, page_table=table, device=device)
    keys, values = pysm120.kv_cache_gather(k_cache, v_cache, page_table=table, device=device)
    assert keys.shape == (2, 32, 2, 64)
    assert np.array_equal(keys[:, :20], k)
    assert np.array_equal(values[:, :20], v)


def test_threads_with_one_device(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Splits and copies have workspaces; threads on one stream and on streams of their own get their own results."""
    jobs: list[tuple[list[Any], dict[str, Any]]] = []
    for tokens, rows, splits in ((1, 700, None), (3, 500, 4), (130, 200, None)):
        lengths = np.array([rows, rows // 2], np.int32)
        shapes = ((2, tokens, 4, 64), (2, rows, 2, 64), (2, rows, 2, 64))
        arrays = [device.array(rng.standard_normal(shape).astype(BF16)) for shape in shapes]
        jobs.append(([*arrays, device.array(lengths)], {"causal": True, "num_splits": splits}))
    wanted = [pysm120.attention_with_kv_cache(*arrays, **options).numpy() for arrays, options in jobs]
    wrong: list[int] = []

    def work(n: int, stream: Any) -> None:
        arrays, options = jobs[n]
        for _ in range(4):
            out = pysm120.attention_with_kv_cache(*arrays, **options, stream=stream)
            got = out.numpy() if stream is None else out.numpy(stream=stream)
            if not np.array_equal(got.view(np.uint16), wanted[n].view(np.uint16)):
                wrong.append(n)

    for has_streams in (False, True):
        streams = [device.stream() if has_streams else None for _ in jobs]
        threads = [threading.Thread(target=work, args=x) for x in enumerate(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
