"""attention_backward where tiles of keys leave multiprocessors idle: CTAs share the queries of one."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from backward_cases import (
    ODD,
    Case,
    Shares,
    chosen,
    judge,
    kernel,
    name,
    padded,
    plan,
    ready,
    rule,
    run,
    run_virtual,
    verify,
    workspace_bytes,
)
from backward_reference import Gradients, delta_of, gradients
from harness import OpenDevice

import pysm120

attention_backward: Any = pysm120.attention_backward


def shares(device: pysm120.Device, case: Case) -> Shares:
    """The rule of docs/reference/attention_backward.md."""
    return rule(device, case, kernel(device, case))[0]


def parts_of(device: pysm120.Device, case: Case) -> int:
    """The bytes of the parts of dk and dv."""
    tile, (first, count) = kernel(device, case), shares(device, case)
    rows = (case.batch * case.kv_heads * -(-case.kv_rows // tile.kv_rows) - first) * count * tile.kv_rows
    return sum(padded(4 * rows * width) for width in (case.head_dim, case.width))


SPLIT = [
    Case(1, 8, 1, 130, 300, 64, "bottom-right"),
    Case(1, 8, 1, 130, 100, 64, deterministic=True),
    Case(2, 12, 2, 200, 150, 100, None, "float16", "float16", 33),
    Case(1, 6, 2, 600, 90, 64, "top-left", out_dtype="bfloat16"),
    Case(1, 8, 1, 130, 70, 128, window=(40, 17), deterministic=True, out_dtype="bfloat16"),
    Case(1, 5, 1, 270, 33, 20, None, "float16", "bfloat16"),
    Case(1, 4, 1, 200, 65, 256, "bottom-right"),
    Case(2, 8, 1, 150, 200, 192, "bottom-right", v_head_dim=64),
    Case(1, 1, 1, 3000, 40, 64),
]
# On three multiprocessors a wave of whole tiles comes first.
TAILS = [
    Case(1, 4, 4, 2000, 100, 64),
    Case(1, 14, 7, 1100, 40, 128, out_dtype="bfloat16"),
    Case(1, 2, 1, 700, 500, 64, None, "float16", "float16", 40, window=(90, None)),
    Case(4, 1, 1, 1700, 30, 33),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", SPLIT, ids=name)
@pytest.mark.parametrize("places", [None, ODD], ids=["aligned", "odd"])
def test_matches_both_references(opened: OpenDevice, rng: np.random.Generator, case: Case, places: Any) -> None:
    """Groups, odd sizes, dtypes and strides of calls that are split."""
    assert chosen(opened, case).splits > 1
    verify(opened, rng, case, *(() if places is None else (places,)))


@pytest.mark.sampled(1)
@pytest.mark.virtual
@pytest.mark.parametrize("case", SPLIT[:5], ids=name)
def test_every_order_of_ctas(rng: np.random.Generator, case: Case) -> None:
    """With all checks; dk and dv have the same bits for each seed, and dq if deterministic."""
    x, o, lse = ready(rng, case)
    found = [run_virtual(f"checks=full&seed={seed}", case, x, o, lse) for seed in (1, 2)]
    judge(found[0], gradients(x), x, lse, delta_of(x, o), case.out_dtype)
    for member in Gradients._fields if case.deterministic else ("dk", "dv"):
        np.testing.assert_array_equal(getattr(found[1], member), getattr(found[0], member))


@pytest.mark.sampled(1)
@pytest.mark.virtual
@pytest.mark.parametrize("case", TAILS, ids=name)
def test_tiles_behind_a_whole_wave(rng: np.random.Generator, case: Case) -> None:
    """The tiles of the first waves have a CTA each, and several CTAs share each of the others."""
    opened = OpenDevice("virtual:0?multiprocessors=3")
    try:
        first, count = chosen(opened, case)
        assert first > 0
        assert first % 3 == 0
        assert count > 1
        x, o, lse = ready(rng, case)
        judge(run(opened, case, x, o, lse), gradients(x), x, lse, delta_of(x, o), case.out_dtype)
    finally:
        opened.close()


def order(q_rows: int, heads: range, tile: int, *, deterministic: bool) -> Iterator[tuple[int, slice]]:
    """Return the heads and the rows of the tiles of a walk."""
    rows = [slice(first, min(first + tile, q_rows)) for first in range(0, q_rows, tile)]
    if deterministic:
        yield from ((head, some) for some in rows[::-1] for head in heads)
    else:
        yield from ((head, some) for head in heads for some in rows)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_dk_and_dv_are_sums_in_the_order_of_the_walk(
    opened: OpenDevice,
    device: pysm120.Device,
    rng: np.random.Generator,
    kv_heads: int,
    *,
    deterministic: bool,
    accumulate: bool,
) -> None:
    """Calls of the queries of one CTA give its parts of dk and dv; NumPy adds them up, and every bit agrees."""
    tile = kernel(device, Case(1, 1, 1, 1, 1, 64, deterministic=deterministic)).q_rows
    case = Case(2, 8 * kv_heads, kv_heads, 3 * tile - 50, 90, 64, deterministic=deterministic)
    assert chosen(opened, case) == (0, 24)  # a tile of queries for each CTA
    x, out, lse = ready(rng, case)
    delta = delta_of(x, out).astype(np.float32)
    options: dict[str, Any] = {"scale": x.scale, "layout": "BHSD", "deterministic": deterministic}

    def call(q_heads: Any, rows: Any, heads: Any, dk: Any, dv: Any, *, accumulate: bool) -> None:
        q, dout, own_out = (y[:, q_heads, rows].copy() for y in (x.q, x.dout, out))
        k, v = (y[:, heads].copy() for y in (x.k, x.v))
        known = {"lse": lse[:, q_heads, rows].copy(), "delta": delta[:, q_heads, rows].copy()}
        results = {"dq": np.zeros(q.shape, np.float32), "dk": dk, "dv": dv, "accumulate": accumulate}
        attention_backward(dout, q, k, v, own_out, **known, **results, **options, device=device)

    before = [rng.standard_normal(y.shape).astype(np.float32) for y in (x.k, x.v)]
    got = [y.copy() for y in before]
    call(slice(None), slice(None), slice(None), *got, accumulate=accumulate)
    for head in range(kv_heads):
        sums: list[Any] = []
        for n, rows in order(case.q_rows, range(8 * head, 8 * head + 8), tile, deterministic=deterministic):
            part = [np.full((2, 1, *y.shape[2:]), np.nan, np.float32) for y in before]
            call(slice(n, n + 1), rows, slice(head, head + 1), *part, accumulate=False)
            sums = [a + b for a, b in zip(sums, part, strict=True)] if sums else part
        for mine, there, wanted in zip(got, before, sums, strict=True):
            old = there[:, head] if accumulate else 0
            np.testing.assert_array_equal(mine[:, head], wanted[:, 0] + old)


LARGE = [
    *(Case(1, 32, 1, s, s, 128, deterministic=d) for s in (1, 64, 512, 2048, 4096, 8192, 30000) for d in (False, True)),
    *(Case(b, 32, 8, s, s, 64, deterministic=d) for b in (1, 4) for s in (100, 1024, 4096) for d in (False, True)),
    *(Case(1, 32, kv, s, s, 128, "bottom-right") for kv in (1, 8) for s in (1024, 2048, 4096, 8192)),
    Case(1, 40, 8, 1000, 1000, 128),
    Case(1, 7, 1, 3000, 500, 64),
    Case(3, 12, 2, 200, 9000, 256, deterministic=True),
    Case(1, 8, 8, 4096, 64, 128),
]


@pytest.mark.parametrize("case", LARGE, ids=name)
def test_the_number_of_splits(opened: OpenDevice, device: pysm120.Device, case: Case) -> None:
    """It is that of the rule on the reference page, and the workspace has room for the parts."""
    assert chosen(opened, case) == shares(device, case)
    parts = parts_of(device, case)
    assert (parts > 0) == (shares(device, case).splits > 1)
    tile = kernel(device, case)
    tiles = case.batch * case.heads * -(-case.q_rows // tile.q_rows)
    sums = plan(opened, case).sums  # tests/ops/test_attention_backward_ring.py
    areas = [(8 * tile.q_rows + 16) * tiles, 4 * tile.q_rows * tile.head_dim * sums]
    areas += [32 * (1 + tiles)] * case.deterministic + [4 * (1 + tiles)] * (sums < tiles)
    assert workspace_bytes(opened, case) == sum(padded(area) for area in areas) + parts


def test_some_calls_are_split_and_some_are_not(device: pysm120.Device) -> None:
    """The rule has both outcomes among the cases above."""
    found = {shares(device, case).splits for case in LARGE}
    assert len(found) > 3
    assert 1 in found


def test_heads_without_a_split_of_their_number(opened: OpenDevice, rng: np.random.Generator) -> None:
    """Seven heads of q, whose walk no number of CTAs divides evenly."""
    verify(opened, rng, Case(1, 7, 1, 200, 70, 64, "bottom-right"))
