"""attention_backward against gradients in float64 and against a model of its own arithmetic, between guard bands."""

import itertools
from typing import Any

import numpy as np
import pytest
from backward_cases import (
    ALIGNED,
    MIXED,
    ODD,
    PRECISION,
    TILES,
    Case,
    Places,
    judge,
    kernel,
    name,
    norm,
    odd_cases,
    plan,
    random_case,
    ready,
    run,
    run_virtual,
    verify,
)
from backward_reference import delta_of, gradients
from harness import DTYPES, OpenDevice

import pysm120
from pysm120.runtime.module import builtins

HEAD_SIZES = (32, 64, 96, 128, 192, 256)  # of the kernels


# ---- shapes ----------------------------------------------------------------------

EDGES = [
    *(Case(1, 1, 1, q, k, 64) for q, k in itertools.product((1, 63, 64, 65), (1, 31, 33, 127, 128, 129))),
    *(Case(1, 1, 1, q, k, 128) for q, k in ((1, 1), (63, 65), (64, 64), (65, 63), (129, 31), (128, 127))),
    *(Case(1, 1, 1, q, k, 256) for q, k in ((1, 1), (31, 33), (32, 32), (33, 31), (97, 65), (64, 96))),
    *(Case(1, 1, 1, q, k, 192) for q, k in ((1, 1), (31, 65), (32, 64), (33, 63), (97, 129))),
]
CAUSALS = [
    Case(1, 1, 1, q, k, d, causal)
    for causal in ("bottom-right", "top-left")
    for q, k, d in (
        *((128, 128, 64), (129, 129, 128), (1, 100, 64), (100, 1, 64), (65, 200, 128), (200, 65, 64)),
        *((127, 191, 96), (256, 257, 32), (300, 129, 128), (33, 70, 256), (70, 33, 192)),
    )
]
WINDOWS = [
    Case(1, 2, 1, q, k, d, causal, window=window)
    for q, k, d, causal, window in (
        (150, 150, 64, None, (20, None)),
        (150, 150, 64, None, (None, 20)),
        (150, 150, 128, None, (20, 7)),
        (150, 150, 64, "bottom-right", (33, None)),
        (100, 170, 32, "top-left", (40, 5)),
        (170, 100, 96, None, (0, 0)),
        (200, 60, 64, "top-left", (10, None)),  # rows behind the last key see none
        (60, 300, 128, None, (5, 5)),  # keys that no row sees
        (40, 40, 256, None, (1 << 40, 1 << 40)),
    )
]


def on_tiles(left: Any, right: Any) -> list[Case]:
    """Cases of every head size with a window that depends on the tile."""
    return [
        Case(1, 1, 1, n, n, d, None, window=(left(q, k), right(q, k)))
        for d, (q, k) in TILES.items()
        for n in (2 * max(q, k),)
    ]


# One row of a tile sees all of its keys but one; of a tile, one row alone sees any key.
LEFT_EDGES = on_tiles(lambda q, _: q - 2, lambda *_: None)
RIGHT_EDGES = on_tiles(lambda *_: None, lambda _, k: k - 2)
BANDS = on_tiles(lambda *_: 1, lambda *_: 1)
SIZES = [
    Case(1, 2, 1, 40, 70, d, "bottom-right", dtype)
    for d in (1, 7, 8, 31, 32, 33, 64, 65, 96, 100, 104, 128, 129, 191, 192, 193, 200, 255, 256)
    for dtype in PRECISION
]
VALUES = [
    Case(1, 2, 2, 70, 66, d, "bottom-right", v_head_dim=v)
    for d, v in ((64, 128), (128, 64), (192, 128), (32, 33), (7, 256), (256, 1), (96, 40))
]
GROUPS = [
    Case(2, 4, 2, 70, 90, 64, "bottom-right"),
    Case(1, 6, 1, 33, 65, 128),
    Case(3, 3, 3, 20, 129, 32, "top-left"),
    Case(2, 8, 2, 1, 300, 128),
    Case(1, 4, 1, 130, 70, 192, "bottom-right"),
    Case(1, 4, 2, 128, 70, 64),  # heads end where tiles end
    Case(1, 40, 40, 20, 150, 32, "top-left"),  # more than the heads whose tiles take turns
]
TYPES = [
    Case(1, 2, 1, 50, 100, 72, "bottom-right", dtype, out, o_dtype=o)
    for dtype, out, o in itertools.product(PRECISION, DTYPES, DTYPES)
]
SCALES = [
    Case(1, 1, 1, 64, 130, 64, "bottom-right", dtype, scale=scale)
    for scale in (0.0, -0.125, 1.0, 1e-30, 4.0)
    for dtype in PRECISION
]
CASES = {
    "edges": EDGES,
    "causal": CAUSALS,
    "windows": WINDOWS,
    "left edges": LEFT_EDGES,
    "right edges": RIGHT_EDGES,
    "bands": BANDS,
    "sizes": SIZES,
    "values": VALUES,
    "groups": GROUPS,
    "types": TYPES,
    "scales": SCALES,
}


@pytest.mark.sampled(3, each=("kind",))
@pytest.mark.parametrize(
    ("kind", "case"),
    [pytest.param(kind, case, id=f"{kind}-{name(case)}") for kind, cases in CASES.items() for case in cases],
)
def test_matches_both_references(opened: OpenDevice, rng: np.random.Generator, kind: str, case: Case) -> None:
    """Every edge of the tiles, causal forms, windows, head sizes, groups, dtypes, scales."""
    del kind
    verify(opened, rng, case)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("trial", range(8))
def test_random_problems(opened: OpenDevice, rng: np.random.Generator, trial: int) -> None:
    """Shapes nobody chose."""
    del trial
    verify(opened, rng, random_case(rng, PRECISION, 256, 3))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("places", [ODD, MIXED], ids=["odd", "mixed"])
@pytest.mark.parametrize("case", odd_cases(PRECISION), ids=name)
def test_odd_strides(opened: OpenDevice, rng: np.random.Generator, case: Case, places: Places) -> None:
    """Rows that begin at no multiple of 16 bytes are copied; results are stored where they belong."""
    verify(opened, rng, case, places)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("head_dim", [33, 34, 35])
def test_aligned_rows_of_an_odd_head_size(opened: OpenDevice, rng: np.random.Generator, head_dim: int) -> None:
    """Rows begin at multiples of 16 bytes; nothing is stored behind the last column."""
    gap = 40 - head_dim
    places: Places = tuple((order, gap) for order in ("BSHD", "BHSD") * 4)
    verify(opened, rng, Case(1, 4, 2, 70, 90, head_dim, None, "bfloat16", "bfloat16"), places)


@pytest.mark.sampled(2)
@pytest.mark.virtual
@pytest.mark.parametrize("dtype", list(PRECISION))
@pytest.mark.parametrize(("causal", "window"), [(None, (None, None)), ("bottom-right", (None, None)), (None, (45, 17))])
@pytest.mark.parametrize(
    ("head_dim", "q_rows", "kv_rows"),
    [(32, 257, 130), (64, 129, 257), (64, 770, 130), (96, 130, 129), (128, 130, 257), (192, 130, 129), (256, 65, 130)],
)
def test_tiles_that_need_the_shared_memory_of_hopper(
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    causal: str | None,
    window: tuple[int | None, int | None],
    head_dim: int,
    q_rows: int,
    kv_rows: int,
) -> None:
    """The kernels that an H200 takes of these head sizes, on a virtual device that states its capability."""
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", "9")
    hopper = OpenDevice("virtual:0?checks=full")
    try:
        verify(hopper, rng, Case(1, 2, 1, q_rows, kv_rows, head_dim, causal, dtype, window=window))
    finally:
        hopper.close()


# ---- tiles of 96 keys ------------------------------------------------------------

# What a device with one multiprocessor computes with tiles of 96 keys.
OF_96_KEYS = [
    *(Case(1, 1, 1, q, k, 128) for q, k in ((1, 95), (63, 96), (64, 96), (65, 95), (129, 191), (128, 192), (200, 280))),
    *(
        Case(1, 2, 1, q, k, d, "bottom-right", "float16")
        for q, k, d in ((300, 288, 128), (190, 190, 97), (100, 192, 104))
    ),
    *(Case(1, 2, 2, q, k, 128, "top-left") for q, k in ((96, 96), (192, 192), (250, 190), (70, 280))),
    Case(1, 1, 1, 192, 192, 128, None, window=(62, None)),  # one row of a tile sees all of its keys but one
    Case(1, 1, 1, 192, 192, 128, None, window=(None, 94)),
    Case(1, 1, 1, 192, 192, 128, None, window=(1, 1)),
    Case(1, 2, 1, 150, 190, 128, None, window=(20, 7)),
    Case(2, 6, 2, 70, 190, 128, None, "bfloat16", "bfloat16"),  # heads that share keys
    Case(1, 2, 2, 70, 96, 128, None, "float16", "float16", v_head_dim=40),
    Case(1, 2, 2, 70, 96, 60, "bottom-right", v_head_dim=128),
]


def of_96_keys(case: Case, options: str = "") -> OpenDevice:
    """Open a device that computes a case with tiles of 96 keys."""
    opened = OpenDevice(f"virtual:0?multiprocessors=1{options}")
    assert builtins()[plan(opened, case).kernel].kv_rows == 96
    return opened


@pytest.mark.sampled(4)
@pytest.mark.virtual
@pytest.mark.parametrize("case", OF_96_KEYS, ids=name)
def test_tiles_of_96_keys(rng: np.random.Generator, case: Case) -> None:
    """Edges of the tiles, causal forms, windows, groups, sizes and dtypes between guard bands, in any order of CTAs."""
    x, o, lse = ready(rng, case)
    dk, dv = [], []
    for seed in (1, 2):
        opened = of_96_keys(case, f"&checks=full&seed={seed}")
        try:
            found = run(opened, case, x, o, lse)
        finally:
            opened.close()
        judge(found, gradients(x), x, lse, delta_of(x, o), case.out_dtype)
        dk.append(found.dk)
        dv.append(found.dv)
    np.testing.assert_array_equal(dk[0], dk[1])
    np.testing.assert_array_equal(dv[0], dv[1])


@pytest.mark.sampled(2)
@pytest.mark.virtual
@pytest.mark.parametrize("places", [ALIGNED, ODD, MIXED], ids=["aligned", "odd", "mixed"])
@pytest.mark.parametrize("dtype", list(PRECISION))
def test_splits_of_96_keys(rng: np.random.Generator, dtype: str, places: Places) -> None:
    """CTAs share a tile of 96 keys, and its last rows are behind the last key."""
    case = Case(1, 4, 1, 700, 85, 128, None, dtype, dtype, o_dtype=dtype)
    opened = OpenDevice("virtual:0?multiprocessors=3&checks=full")
    try:
        found = plan(opened, case)
        assert builtins()[found.kernel].kv_rows == 96
        assert found.splits > 1
        verify(opened, rng, case, places)
    finally:
        opened.close()


LARGE = [
    *(Case(4, 32, kv, 2048, 2048, 128, causal) for kv in (8, 32) for causal in (None, "bottom-right")),
    *(Case(1, 32, 32, s, s, 128) for s in (64, 100, 4096, 16384)),
    Case(1, 16, 16, 1000, 1000, 100, "top-left", "float16"),
    Case(4, 32, 32, 2048, 2048, 128, deterministic=True),
]


@pytest.mark.virtual
def test_keys_of_a_tile() -> None:
    """Calls that take less time with 96 keys, others that take less with 64, and those that can only have 64."""
    found = {}
    for sms, case in itertools.product((128, 170, 188), LARGE):
        opened = OpenDevice(f"virtual:0?multiprocessors={sms}")
        try:
            mine = builtins()[plan(opened, case).kernel]
            with pysm120.Device(f"virtual:0?multiprocessors={sms}") as same:
                assert mine == kernel(same, case), (sms, case)
        finally:
            opened.close()
        found[sms, case] = mine.kv_rows
    assert set(found.values()) == {64, 96}
    assert {found[key] for key in found if key[1].deterministic} == {64}


# ---- the same bits, in any order -------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_two_launches(opened: OpenDevice, rng: np.random.Generator, head_dim: int) -> None:
    """dk and dv are the same bits; dq is within the rounding of its sum."""
    case = Case(2, 4, 2, 150, 300, head_dim, "bottom-right")
    x, o, lse = ready(rng, case)
    first, second = (run(opened, case, x, o, lse) for _ in range(2))
    np.testing.assert_array_equal(first.dk, second.dk)
    np.testing.assert_array_equal(first.dv, second.dv)
    assert norm(first.dq - second.dq) <= 1e-6 * norm(first.dq)


@pytest.mark.sampled(2)
@pytest.mark.virtual
@pytest.mark.parametrize(
    "case",
    [
        *(Case(1, 2, 1, 70, 140, d, "bottom-right", dtype) for d in HEAD_SIZES for dtype in PRECISION),
        Case(2, 2, 2, 130, 50, 33, "top-left", v_head_dim=20, out_dtype="bfloat16", o_dtype="bfloat16"),
    ],
    ids=name,
)
def test_every_order_of_ctas(rng: np.random.Generator, case: Case) -> None:
    """All checks of the virtual device, races and undefined values among them, and the same dk and dv for each seed."""
    x, o, lse = ready(rng, case)
    found = [run_virtual(f"checks=full&seed={seed}", case, x, o, lse) for seed in (1, 2, 3)]
    judge(found[0], gradients(x), x, lse, delta_of(x, o), case.out_dtype)
    for other in found[1:]:
        np.testing.assert_array_equal(other.dk, found[0].dk)
        np.testing.assert_array_equal(other.dv, found[0].dv)
        assert norm(other.dq - found[0].dq) <= 1e-6 * norm(found[0].dq)
