"""attention_backward of many heads: sums of dq live in a ring, and the main kernel writes dq of most heads."""

import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from backward_cases import (
    ALIGNED,
    ODD,
    Case,
    Places,
    judge,
    kernel,
    name,
    padded,
    plan,
    ready,
    run,
    workspace_bytes,
)
from backward_reference import delta_of, gradients
from harness import DTYPES, OpenDevice, check, lib, new_struct

import pysm120
from pysm120.runtime.module import Builtin, builtin_index

attention_backward: Any = pysm120.attention_backward
CASES = [
    Case(1, 12, 12, 130, 64, 64, out_dtype="bfloat16"),
    Case(2, 12, 6, 100, 200, 128, out_dtype="bfloat16"),
    Case(3, 6, 6, 70, 130, 100, None, "float16", "float16", 33),
    Case(1, 16, 16, 65, 40, 256, out_dtype="bfloat16"),
    Case(1, 28, 14, 90, 30, 192, v_head_dim=64, out_dtype="float16"),
    Case(2, 7, 7, 300, 100, 32, window=(30, None), out_dtype="float16"),
    Case(1, 15, 15, 40, 400, 64, window=(30, None), out_dtype="bfloat16"),  # keys that no query sees
    Case(1, 26, 13, 1, 1, 8, out_dtype="bfloat16"),
    Case(1, 13, 13, 1600, 100, 64, out_dtype="bfloat16"),  # several CTAs share the last tiles
    Case(1, 26, 26, 130, 200, 64, "top-left", out_dtype="bfloat16"),
    Case(3, 40, 20, 150, 100, 128, "bottom-right", out_dtype="bfloat16"),
    Case(1, 40, 20, 50, 1935, 128, "bottom-right", out_dtype="bfloat16"),  # groups of four heads of keys
]
COPIED: Places = (*ODD[:5], *ALIGNED[5:])  # inputs at odd places; results at such places have no ring


def sms(case: Case) -> int:
    """The multiprocessors of a device on which the heads of a case are many."""
    return 32 if case.kv_rows > 1000 else 2


@pytest.fixture
def few(case: Case) -> Iterator[OpenDevice]:
    opened = OpenDevice(f"virtual:0?multiprocessors={sms(case)}")
    yield opened
    opened.close()


def held(tile: Builtin) -> int:
    """The CTAs that an SM120 holds."""
    info = new_struct("sm120_builtin_info")
    check(lib.sm120_builtin(builtin_index(tile.entry), info))
    registers = -(-info.registers_sm120 // 8) * 8
    limits = (1536 // tile.threads, 65536 // (registers * tile.threads), 102400 // (tile.shared_bytes + 1024))
    return int(min(limits))


def heads_of_ring(opened: OpenDevice, case: Case, precision: str | None = None) -> int:
    """The heads whose dq the main kernel writes."""
    found = plan(opened, case, precision)
    assert 0 < found.sums < found.q_tiles
    assert 0 < found.first_head < case.batch * case.heads
    return int(found.first_head)


@pytest.mark.sampled(4)
@pytest.mark.virtual
@pytest.mark.parametrize("places", [ALIGNED, COPIED], ids=["aligned", "copied"])
@pytest.mark.parametrize("case", CASES, ids=name)
def test_matches_both_references(few: OpenDevice, rng: np.random.Generator, case: Case, places: Places) -> None:
    """Sums, workspace and results are NaN before the call."""
    heads_of_ring(few, case)
    x, o, lse = ready(rng, case)
    judge(run(few, case, x, o, lse, places=places), gradients(x), x, lse, delta_of(x, o), case.out_dtype)


@pytest.mark.sampled(1)
@pytest.mark.virtual
@pytest.mark.parametrize("case", CASES[:5] + CASES[-2:], ids=name)
def test_every_order_of_ctas(rng: np.random.Generator, case: Case) -> None:
    """With all checks, CTAs begin in an order of the seed, and no access races with another."""
    x, o, lse = ready(rng, case)
    for seed in (1, 2, 3):
        opened = OpenDevice(f"virtual:0?multiprocessors={sms(case)}&checks=full&seed={seed}")
        try:
            heads_of_ring(opened, case)
            judge(run(opened, case, x, o, lse), gradients(x), x, lse, delta_of(x, o), case.out_dtype)
        finally:
            opened.close()


@pytest.mark.virtual
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_head_has_the_gradient_that_it_has_alone(rng: np.random.Generator, dtype: str) -> None:
    """dq of a single tile of keys has no other order of sums, so that every bit agrees."""
    case = Case(2, 14, 14, 150, 60, 64, out_dtype=dtype)
    x, out, lse = ready(rng, case)
    options: dict[str, Any] = {"scale": x.scale, "layout": "BHSD"}
    with pysm120.Device(f"virtual:0?multiprocessors={sms(case)}") as device:
        results = [np.full(y.shape, np.nan, DTYPES[dtype]) for y in (x.q, x.k, x.v)]
        names = dict(zip(("dq", "dk", "dv"), results, strict=True))
        attention_backward(x.dout, x.q, x.k, x.v, out, lse, **names, **options, device=device)
        for head in range(14):
            one = np.s_[:, head : head + 1]
            own = [np.full(y[one].shape, np.nan, DTYPES[dtype]) for y in (x.q, x.k, x.v)]
            given = (y[one].copy() for y in (x.dout, x.q, x.k, x.v, out, lse))
            attention_backward(*given, dq=own[0], dk=own[1], dv=own[2], **options, device=device)
            for whole, part in zip(results, own, strict=True):
                np.testing.assert_array_equal(whole[one], part)


@pytest.mark.virtual
@pytest.mark.parametrize("case", CASES, ids=name)
def test_size_of_the_workspace(few: OpenDevice, case: Case) -> None:
    """It holds the sums of a few heads; the formulas are those of the reference page."""
    with pysm120.Device(f"virtual:0?multiprocessors={sms(case)}") as device:
        tile, found = kernel(device, case), plan(few, case)
    assert found.group == (4 if sms(case) == 32 else 1)
    kv_tiles, group = found.group * -(-case.kv_rows // tile.kv_rows), found.group * case.heads // case.kv_heads
    q_tiles = -(-case.q_rows // tile.q_rows)
    others = sms(case) * held(tile) * (1 if case.causal is None else 2)
    reach = 1 + -(-others // kv_tiles)
    assert found.sums == 2 * reach * group * q_tiles
    assert found.first_head == (found.first_split // kv_tiles - reach) * group
    if case.head_dim % 8 or case.width % 8:
        return  # copies are added
    tiles = case.batch * case.heads * q_tiles
    areas = [(8 * tile.q_rows + 16) * tiles, 4 * tile.q_rows * tile.head_dim * found.sums, 4 * (1 + tiles)]
    parts = (case.batch * case.kv_heads * kv_tiles // found.group - found.first_split) * found.splits * tile.kv_rows
    areas += [4 * parts * width for width in (case.head_dim, case.width)]
    assert workspace_bytes(few, case) == sum(padded(area) for area in areas)


@pytest.mark.virtual
@pytest.mark.parametrize(
    "case",
    [
        CASES[0]._replace(deterministic=True),
        CASES[0]._replace(out_dtype="float32"),
        CASES[0]._replace(head_dim=62),  # rows of dq that are not aligned
        CASES[-1]._replace(heads=14, kv_heads=7),  # with a group as small as the ring wants, long walks would end late
        CASES[0]._replace(heads=3, kv_heads=3),  # as few heads as the ring would hold
    ],
    ids=name,
)
def test_calls_without_a_ring(few: OpenDevice, case: Case) -> None:
    found = plan(few, case)
    assert found.sums == found.q_tiles
    assert found.first_head == 0


def waits(case: Case, tile: Builtin, group: int, reach: int, slots: int) -> float:
    """The time that CTAs wait for the ring, of that of all CTAs.

    They begin in order, one wherever one has finished. A tile of queries takes 1, what else a CTA does 2.
    """
    kv_tiles, heads = -(-case.kv_rows // tile.kv_rows), case.batch * case.kv_heads
    free, ends, waited, busy = [0.0] * slots, dict[int, float](), 0.0, 0.0
    for number in range(-(-heads // group)):
        for key_tile in range(kv_tiles):
            first = 0 if case.causal is None else max(0, key_tile * tile.kv_rows + case.q_rows - case.kv_rows)
            walk = case.heads // case.kv_heads * (-(-case.q_rows // tile.q_rows) - first // tile.q_rows) + 2
            for _ in range(min(group, heads - number * group)):
                begin = heapq.heappop(free)
                go = max(begin, ends.get(number - reach, 0))
                heapq.heappush(free, go + walk)
                ends[number] = max(ends.get(number, 0), go + walk)
                waited, busy = waited + go - begin, busy + walk
    return waited / busy


@pytest.mark.virtual
@pytest.mark.parametrize("causal", [None, "bottom-right"])
@pytest.mark.parametrize("multiprocessors", [84, 170, 188])
def test_ctas_hardly_wait(multiprocessors: int, causal: str | None) -> None:
    """What a CTA waits for has finished when it begins, in problems whose longest walk is twice the mean too."""
    shapes = [(8, 512, 32, 32), (8, 1024, 16, 16), (16, 1024, 16, 16), (4, 2048, 32, 32), (4, 2048, 32, 8)]
    shapes += [(1, 4096, 32, 32), (2, 3000, 24, 24), (1, 16384, 32, 32), (16, 512, 16, 4)]
    opened, used = OpenDevice(f"virtual:0?multiprocessors={multiprocessors}"), 0
    try:
        for batch, rows, heads, kv_heads in shapes:
            case = Case(batch, heads, kv_heads, rows, rows, 128, causal, out_dtype="bfloat16")
            found = plan(opened, case)
            with pysm120.Device(f"virtual:0?multiprocessors={multiprocessors}") as device:
                tile = kernel(device, case)
            if found.first_head:
                used += 1
                queries = found.group * heads // kv_heads * -(-rows // tile.q_rows)
                slots = multiprocessors * held(tile)
                assert waits(case, tile, found.group, found.sums // queries // 2, slots) < 0.01, case
    finally:
        opened.close()
    assert used > 4
