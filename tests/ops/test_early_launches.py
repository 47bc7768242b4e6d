"""Calls one behind the other: on a GPU each begins before the one in front has ended, and reads what that wrote."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from cache_reference import attention_cached, check_close
from harness import DTYPES, is_on_cpu

import pysm120

BATCH, HEADS, KV_HEADS, PAGE, STEPS = 2, 8, 2, 16, 6
BF16 = DTYPES["bfloat16"]
Array = np.ndarray[Any, Any]


class Steps(NamedTuple):
    """What a loop of decoding left behind."""

    k: Array  # [pages, PAGE, KV_HEADS, D]
    v: Array
    qs: list[Array]
    outs: list[Array]
    lses: list[Array]
    lengths: list[Array]


def decode(
    device: pysm120.Device,
    start: tuple[Array, ...],
    table: Array | None,
    first: int,
    splits: int | None,
    *,
    waits: bool,
) -> Steps:
    """Append a token of each sequence, attend, and take the result as q, k and v of the next token.

    ``waits``: synchronize after each launch.
    """
    q, k, v = (device.array(x) for x in start)
    there = None if table is None else device.array(table)
    lengths = [device.array(np.full(BATCH, first, np.int32))]
    qs, outs, lses = [q], [], []
    for _ in range(STEPS):
        new = qs[-1][:, :, :KV_HEADS]
        lengths.append(device.empty((BATCH,), np.int32))
        options: dict[str, Any] = {"kv_lengths": lengths[-2], "page_table": there, "new_lengths": lengths[-1]}
        pysm120.kv_cache_append(new, new, k, v, **options)
        if waits:
            device.synchronize()
        out, lse = pysm120.attention_with_kv_cache(
            qs[-1], k, v, lengths[-1], page_table=there, num_splits=splits, scale=1.0, return_lse=True
        )
        if waits:
            device.synchronize()
        outs.append(out)
        lses.append(lse)
        qs.append(out)
    device.synchronize()
    return Steps(k.numpy(), v.numpy(), *([x.numpy() for x in arrays] for arrays in (qs, outs, lses, lengths)))


@pytest.mark.parametrize("splits", [None, 1, 3, 16])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("is_paged", [False, True])
@pytest.mark.sampled(3, each=("is_paged",))
def test_each_launch_reads_what_the_one_in_front_writes(
    device: pysm120.Device, rng: np.random.Generator, splits: int | None, head_dim: int, is_paged: bool
) -> None:
    """Keys, lengths and q come from the launch in front; float64 gives what each step should have found."""
    rows = 272 if is_on_cpu(device) else 1040
    first = rows - STEPS - int(rng.integers(0, 20))
    pages = BATCH * rows // PAGE
    table = rng.permutation(pages).astype(np.int32).reshape(BATCH, -1) if is_paged else None
    shape = (pages, PAGE, KV_HEADS, head_dim) if is_paged else (BATCH, rows, KV_HEADS, head_dim)
    start = tuple(rng.standard_normal(x).astype(BF16) for x in ((BATCH, 1, HEADS, head_dim), shape, shape))
    waited = decode(device, start, table, first, splits, waits=True)
    for n in range(STEPS):
        exact = attention_cached(
            waited.qs[n], waited.k, waited.v, waited.lengths[n + 1], page_table=table, scale=1.0, out_dtype=BF16
        )
        check_close(exact, waited.outs[n], waited.lses[n])
    for _ in range(1 if is_on_cpu(device) else 30):
        found = decode(device, start, table, first, splits, waits=False)
        for name, a, b in zip(Steps._fields, waited, found, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), name
