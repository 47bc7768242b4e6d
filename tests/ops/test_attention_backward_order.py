"""attention_backward with deterministic=True: the same bits in every run, added up in the order of the keys."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from backward_cases import (
    PRECISION,
    Case,
    backward,
    judge,
    kernel,
    name,
    padded,
    plan,
    ready,
    run,
    run_virtual,
    verify,
    workspace_bytes,
)
from backward_reference import Gradients, delta_of, gradients
from harness import OpenDevice

import pysm120


def assert_same(one: Gradients, other: Gradients) -> None:
    """Compare all bits."""
    for member in Gradients._fields:
        np.testing.assert_array_equal(getattr(one, member), getattr(other, member), err_msg=member)


CASES = [
    Case(1, 2, 1, 150, 300, 64, "bottom-right", deterministic=True),
    Case(2, 2, 2, 100, 260, 64, deterministic=True, out_dtype="bfloat16"),
    Case(1, 4, 2, 200, 200, 64, "top-left", "float16", deterministic=True),
    Case(1, 3, 3, 130, 190, 128, "bottom-right", "float16", deterministic=True),
    Case(1, 4, 1, 70, 200, 128, deterministic=True),
    Case(1, 1, 1, 70, 130, 256, deterministic=True, dtype="float16"),
    Case(1, 1, 1, 100, 100, 200, "bottom-right", deterministic=True),
    Case(1, 2, 2, 300, 400, 64, window=(40, 17), deterministic=True),
    Case(1, 2, 2, 400, 200, 33, window=(None, 30), v_head_dim=20, deterministic=True),
    Case(1, 2, 2, 150, 300, 96, window=(50, None), deterministic=True),
    Case(1, 2, 1, 90, 500, 32, "top-left", window=(10, None), deterministic=True),  # keys that no row sees
    Case(1, 1, 1, 500, 150, 7, "bottom-right", deterministic=True),  # rows that see no key
    Case(1, 40, 40, 70, 150, 64, deterministic=True),  # more than the heads whose tiles take turns
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES, ids=name)
def test_matches_both_references(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Causal forms, windows, groups, odd sizes, dtypes; the kernels of a head size serve smaller ones."""
    verify(opened, rng, case)


@pytest.mark.sampled(3)
@pytest.mark.virtual
@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_order_of_ctas(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """All bits are the same for each seed, with all checks, and for each number of CTAs that run at once."""
    x, o, lse = ready(rng, case)
    found = []
    for threads, options in ((1, "checks=full&seed=1"), (2, "checks=full&seed=2"), (1, "seed=0"), (7, "seed=3")):
        monkeypatch.setenv("PYSM120_THREADS", str(threads))
        found.append(run_virtual(options, case, x, o, lse))
    judge(found[0], gradients(x), x, lse, delta_of(x, o), case.out_dtype)
    for other in found[1:]:
        assert_same(other, found[0])


@pytest.mark.sampled(2)
@pytest.mark.virtual
@pytest.mark.parametrize("dtype", list(PRECISION))
@pytest.mark.parametrize(("head_dim", "q_rows", "kv_rows"), [(64, 260, 390), (128, 130, 400), (256, 65, 200)])
def test_tiles_that_need_the_shared_memory_of_hopper(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, dtype: str, head_dim: int, q_rows: int, kv_rows: int
) -> None:
    """The kernels that an H200 takes, on a virtual device that states its capability."""
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", "9")
    case = Case(1, 2, 1, q_rows, kv_rows, head_dim, "bottom-right", dtype, deterministic=True)
    x, o, lse = ready(rng, case)
    found = [run_virtual(f"checks=full&seed={seed}", case, x, o, lse) for seed in (1, 2)]
    judge(found[0], gradients(x), x, lse, delta_of(x, o))
    assert_same(*found)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("causal", [None, "bottom-right"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_many_launches(opened: OpenDevice, rng: np.random.Generator, head_dim: int, causal: str | None) -> None:
    """All bits are the same in every one of several runs."""
    case = Case(2, 8, 4, 200, 600, head_dim, causal, deterministic=True)
    x, o, lse = ready(rng, case)
    first = run(opened, case, x, o, lse)
    for _ in range(3 if opened.name.startswith("virtual") else 50):
        assert_same(run(opened, case, x, o, lse), first)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", list(PRECISION))
@pytest.mark.parametrize(("head_dim", "heads", "kv_heads"), [(64, 4, 2), (128, 2, 2), (256, 2, 1)])
def test_dq_is_the_sum_in_the_order_of_the_keys(
    device: pysm120.Device,
    rng: np.random.Generator,
    dtype: str,
    head_dim: int,
    heads: int,
    kv_heads: int,
    *,
    causal: bool,
) -> None:
    """Each tile of keys alone gives its part of dq; NumPy adds these parts up in float32, and every bit agrees.

    The scale is a power of two, so that it commutes with the roundings of the sum.
    """
    tile = kernel(device, Case(1, heads, kv_heads, 1, 1, head_dim, None, dtype, deterministic=True))
    keys, tiles = 5 * tile.kv_rows - 3, range(0, 5 * tile.kv_rows, tile.kv_rows)
    assert tile.kv_rows % tile.q_rows == 0
    case = Case(1, heads, kv_heads, keys, keys, head_dim, "top-left" if causal else None, dtype, scale=0.125)
    x, o, lse = ready(rng, case)
    delta = delta_of(x, o).astype(np.float32)
    options: dict[str, Any] = {"causal": causal, "causal_align": "top-left", "deterministic": True}
    nothing, parts = np.zeros(x.dout.shape, np.float32), []  # O is not read where delta is given
    for first in tiles:
        # Causal: rows before the tile see none of its keys.
        rows, here = slice(first if causal else 0, None), slice(first, first + tile.kv_rows)
        part = x._replace(q=x.q[:, :, rows].copy(), dout=x.dout[:, :, rows].copy())
        part = part._replace(k=x.k[:, :, here].copy(), v=x.v[:, :, here].copy())
        own = np.zeros(x.q.shape, np.float32)
        options["delta"] = delta[:, :, rows].copy()
        own[:, :, rows] = backward(part, nothing[:, :, rows].copy(), lse[:, :, rows].copy(), device, **options).dq
        parts.append(own)
    forwards, backwards = np.zeros_like(parts[0]), np.zeros_like(parts[0])
    for up, down in zip(parts, reversed(parts), strict=True):
        forwards += up
        backwards += down
    assert not np.array_equal(forwards, backwards)
    options["delta"] = delta
    np.testing.assert_array_equal(backward(x, nothing, lse, device, **options).dq, forwards)


@pytest.mark.virtual
@pytest.mark.parametrize("head_dim", [20, 64, 100, 130])
def test_the_workspace_has_the_turns(opened: OpenDevice, device: pysm120.Device, head_dim: int) -> None:
    """Its size is what the reference page says: rows, sums of dq, and 32 bytes for each tile and one more."""
    case = Case(2, 4, 2, 150, 70, head_dim, deterministic=True)
    chosen = kernel(device, case)
    tiles = 2 * 4 * -(-150 // chosen.q_rows)
    areas = [(8 * chosen.q_rows + 16) * tiles, 4 * chosen.q_rows * chosen.head_dim * tiles, 32 * (1 + tiles)]
    shapes = ((4, 150), (2, 70), (2, 70), (4, 150))
    copies = [2 * 2 * heads * rows * -(-head_dim // 8) * 8 for heads, rows in shapes if head_dim % 8]
    assert workspace_bytes(opened, case) == sum(padded(n) for n in areas + copies)


class Turns(NamedTuple):
    """A case, the SMs of a virtual device, and the tiles of queries for which a tile of keys waits once there."""

    case: Case
    sms: int
    tiles: int

    def __str__(self) -> str:
        return f"{name(self.case)}-{self.sms}-{self.tiles}"


# Several CTAs of a head run at once, but in those with as few SMs as heads.
TURNS = [
    Turns(Case(1, 2, 2, 300, 900, 64, deterministic=True), 4, 2),
    Turns(Case(1, 4, 2, 321, 900, 64, deterministic=True, dtype="float16"), 4, 2),  # the last tile has a row
    Turns(Case(1, 2, 2, 449, 1600, 64, deterministic=True), 3, 4),  # 8 tiles
    Turns(Case(1, 2, 1, 260, 200, 128, deterministic=True, out_dtype="bfloat16"), 1, 4),  # 5 tiles
    Turns(Case(1, 2, 2, 380, 500, 100, deterministic=True), 4, 2),
    Turns(Case(1, 2, 2, 210, 260, 256, deterministic=True), 4, 2),
    Turns(Case(2, 1, 1, 290, 260, 256, deterministic=True, dtype="float16"), 4, 4),
    Turns(Case(1, 2, 2, 300, 900, 64, "bottom-right", deterministic=True), 4, 1),
    Turns(Case(1, 2, 2, 300, 900, 64, window=(500, None), deterministic=True), 4, 1),
]


@pytest.mark.sampled(3)
@pytest.mark.virtual
@pytest.mark.parametrize("turns", TURNS, ids=str)
def test_a_turn_of_several_tiles(rng: np.random.Generator, turns: Turns) -> None:
    """No bit depends on the number of SMs, which says how many tiles a turn has; all checks are on."""
    x, o, lse = ready(rng, turns.case)
    alone = run_virtual("seed=1", turns.case, x, o, lse)
    judge(alone, gradients(x), x, lse, delta_of(x, o), turns.case.out_dtype)
    for seed in (1, 2, 3):
        options = f"checks=full&seed={seed}&multiprocessors={turns.sms}"
        opened = OpenDevice(f"virtual:0?{options}")
        try:
            assert plan(opened, turns.case).turn_tiles == turns.tiles
        finally:
            opened.close()
        assert_same(run_virtual(options, turns.case, x, o, lse), alone)


@pytest.mark.sampled(1)
@pytest.mark.virtual
@pytest.mark.parametrize(
    "turns",
    [
        Turns(Case(1, 2, 2, 600, 900, 64, deterministic=True), 4, 2),
        Turns(Case(1, 2, 1, 321, 900, 128, deterministic=True, dtype="float16"), 2, 2),
        Turns(Case(1, 2, 2, 330, 460, 256, deterministic=True), 4, 2),
        Turns(Case(1, 2, 2, 500, 430, 256, deterministic=True, dtype="float16"), 3, 4),
    ],
    ids=str,
)
def test_a_turn_of_several_tiles_on_hopper(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, turns: Turns
) -> None:
    """The kernels that an H200 takes."""
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", "9")
    test_a_turn_of_several_tiles(rng, turns)


L2_BYTES = 96 << 20  # of the virtual device


@pytest.mark.virtual
@pytest.mark.parametrize(
    "case",
    [
        Case(4, 32, 32, 2048, 2048, 128, deterministic=True),
        Case(4, 32, 32, 2048, 2048, 64, "top-left", deterministic=True),
        Case(1, 24, 24, 16384, 16384, 128, deterministic=True),
        Case(1, 24, 24, 16384, 16384, 128, "bottom-right", deterministic=True),
        Case(4, 32, 8, 4096, 4096, 128, deterministic=True),
        Case(1, 4, 2, 1 << 20, 4096, 256, deterministic=True),
    ],
    ids=name,
)
def test_heads_that_take_turns_fit_l2(opened: OpenDevice, device: pysm120.Device, case: Case) -> None:
    """Groups are as even and as few as the reference page says."""
    assert device.info.l2_bytes == L2_BYTES
    tile, heads, found = kernel(device, case), case.batch * case.kv_heads, plan(opened, case)
    sums = case.heads // case.kv_heads * -(-case.q_rows // tile.q_rows) * tile.q_rows * tile.head_dim * 4
    most = min(max(int(0.7 * L2_BYTES / (sums if case.causal else 2 * sums)), 1), 32)
    groups = -(-heads // most)
    assert found.group == -(-heads // groups)
