"""The features of attention_backward against float64, between guard bands.

Every problem is a batch of sequences; the reference computes the gradients of each by itself. Rows and keys of no
sequence are NaN, in the inputs and in the results before the call.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from attention_cases import PRECISIONS, pitched
from backward_cases import PRECISION, judge
from backward_reference import (
    Array,
    Gradients,
    Inputs,
    delta_of,
    forward,
    given,
    given_others,
    gradients,
    loss,
    others,
    reduced,
    room_of_added,
    wide,
)
from feature_cases import Case, Problem, fill_features, places, random_case
from harness import CODES, DTYPES, Buffer, OpenDevice, check, ffi, lib, new_struct, tensor
from test_attention_backward import PART, fill

import pysm120

BF16 = DTYPES["bfloat16"]
attention: Any = pysm120.attention
attention_varlen: Any = pysm120.attention_varlen
attention_backward: Any = pysm120.attention_backward
attention_varlen_backward: Any = pysm120.attention_varlen_backward
EVERY = np.ones((1, 1), bool)  # each row sees each key
HEAD_SIZES = (32, 64, 96, 128, 192, 256)  # of the kernels


class Results(NamedTuple):
    """What a launch wrote, in float64."""

    gradients: Gradients
    dsinks: Array | None
    dmask: Array | None


class Backward:
    """The arrays of a problem and of its backward pass; `pieces` has the inputs of each sequence, as a batch of 1."""

    def __init__(self, rng: np.random.Generator, case: Case, seen_as: Callable[[Inputs], Inputs] = lambda x: x) -> None:
        """O and LSE are those of the inputs as they are seen: rounded, for example."""
        self.case, self.seen_as = case, seen_as
        self.problem = problem = Problem(rng, case)
        self.dout = np.full((*problem.q.shape[:3], problem.v_dim), np.nan).astype(problem.q.dtype)
        self.o = np.full(self.dout.shape, np.nan, np.float32)
        self.lse = np.full(problem.q.shape[:3], np.nan, np.float32)
        self.dlse = np.full(problem.q.shape[:3], np.nan, np.float32)
        self.rows = places(case.q_lengths, packed=case.q_packed)
        self.keys = places(case.kv_lengths, packed=case.kv_packed)
        self.pieces: list[Inputs] = []
        for b, ((at, rows), (kv_at, keys)) in enumerate(zip(self.rows, self.keys, strict=True)):
            shape = self.dout[at, :, rows].shape
            self.dout[at, :, rows] = rng.standard_normal(shape) + 0.25
            self.dlse[at, :, rows] = rng.standard_normal(shape[:2])
            q, dout = problem.q[at, :, rows], self.dout[at, :, rows]
            k, v = problem.k[kv_at, :, keys], problem.v[kv_at, :, keys]
            added = problem.added(b)[None]
            sinks = wide(problem.sinks) if case.sinks else None
            seen = problem.in_window(b)
            x = Inputs(q[None], k[None], v[None], dout[None], problem.scale, seen, case.softcap, added, sinks)
            self.pieces.append(x)
            if q.shape[1]:
                p, o, lse = forward(seen_as(x)) if k.shape[1] else (None, np.zeros((1, *shape)), self.empty(x, shape))
                del p
                self.o[at, :, rows], self.lse[at, :, rows] = o[0], lse[0]

    @staticmethod
    def empty(x: Inputs, shape: tuple[int, ...]) -> Array:
        """LSE of rows without keys."""
        sinks = np.full(shape[0], -np.inf) if x.sinks is None else x.sinks
        return np.broadcast_to(sinks[:, None], shape[:2])[None]

    def packed(self, x: Array) -> Array:
        """A value of each row, in the shape that a call takes."""
        return x[0] if self.case.q_packed else x


def run(
    opened: OpenDevice,
    backward: Backward,
    *,
    out: str = "float32",
    wants_others: bool = True,
    has_dlse: bool = False,
    accumulate: tuple[Array, Array, Array] | None = None,
    deterministic: bool = False,
    precision: str | None = None,
) -> Results:
    """Launch between guard bands, on NaN in the results and in the workspace."""
    problem, case = backward.problem, backward.case
    args = new_struct("sm120_attention_backward_args")
    args.precision = PRECISIONS[precision or PRECISION[case.dtype]]
    gap = case.gap
    try:
        fill_features(opened, args, problem)
        inputs = (
            (args.q, problem.q, "BSHD", 8),
            (args.k, problem.k, "BHSD", 0),
            (args.v, problem.v, "BSHD", 16),
            (args.dout, backward.dout, "BHSD", 8),
            (args.o, backward.o, "BSHD", 8),
        )
        for struct, x, order, between in inputs:
            tensor(struct, Buffer(opened, x.shape, x.dtype, pitched(x.shape, order, between + gap), x))
        for member, numbers in (("lse", backward.lse), *((("dlse", backward.dlse),) if has_dlse else ())):
            x = backward.packed(numbers)
            setattr(args, member, Buffer(opened, x.shape, np.float32, None, x).address)
        results = []
        shapes = (problem.q.shape, problem.k.shape, problem.v.shape)
        for n, (struct, shape) in enumerate(zip((args.dq, args.dk, args.dv), shapes, strict=True)):
            strides = pitched(shape, "BSHD", 4 + gap)
            first = [] if accumulate is None else [accumulate[n].astype(DTYPES[out])]
            results.append(Buffer(opened, shape, DTYPES[out], strides, *first))
            results[-1].is_output = True
            tensor(struct, results[-1])
        args.accumulate, args.deterministic = accumulate is not None, deterministic
        dsinks = dmask = None
        if case.sinks and wants_others:
            dsinks = Buffer(opened, (case.heads,), np.float32)
            args.dsinks = dsinks.address
        if case.mask not in (None, "bool") and wants_others:
            shape = problem.mask.shape
            dmask = Buffer(opened, shape, np.float32, pitched(shape, "BSHD" if gap else "BHSD", gap))
            args.dmask.address, args.dmask.dtype = dmask.address, lib.SM120_F32
            steps = [int(s) if n > 1 else 0 for s, n in zip(dmask.strides, shape, strict=True)]
            args.dmask.batch_stride, args.dmask.head_stride = steps[:2]
            args.dmask.row_stride, args.dmask.column_stride = steps[2:]
        size = ffi.new("size_t *")
        check(lib.sm120_attention_backward_workspace(opened.handle, args, size))
        workspace = Buffer(opened, (int(size[0]),), np.uint8)
        check(lib.sm120_attention_backward(opened.handle, args, workspace.address, size[0]))
        return Results(
            Gradients(*(wide(y.download()) for y in results)),
            None if dsinks is None else wide(dsinks.download()),
            None if dmask is None else wide(dmask.download()),
        )
    finally:
        opened.release()


def judge_exactly(mine: Gradients, x: Inputs, o: Array, lse: Array, dlse: Array | float, out: str) -> None:
    """Compare with float64, and with the model of the kernels in 16 bits."""
    judge(mine, gradients(x, dlse), x, lse, delta_of(x, o, dlse), out)


def judge_all(
    backward: Backward,
    got: Results,
    out: str = "float32",
    *,
    has_dlse: bool = False,
    judged: Callable[[Gradients, Inputs, Array, Array, Array | float, str], object] = judge_exactly,
) -> None:
    """Compare each sequence, and what the sequences add up to."""
    case, problem = backward.case, backward.problem
    covered = [np.zeros(x.shape[:3], bool) for x in (problem.q, problem.k)]
    shape = (problem.batch, case.heads, max(case.q_lengths), problem.keys_max)
    dadded, room = np.zeros(shape), np.zeros(shape)
    dsinks, terms = np.zeros(case.heads), np.zeros(case.heads)
    sees_keys = False
    for b, x in enumerate(backward.pieces):
        (at, rows), (kv_at, keys) = backward.rows[b], backward.keys[b]
        mine = Gradients(got.gradients.dq[at, :, rows][None], *(y[kv_at, :, keys][None] for y in got.gradients[1:]))
        covered[0][at, :, rows] = covered[1][kv_at, :, keys] = True
        if not x.q.shape[2] or not x.k.shape[2]:
            assert not any(y.any() for y in mine), b
            continue
        o, lse = backward.o[at, :, rows][None], backward.lse[at, :, rows][None]
        dlse: Array | float = wide(backward.dlse[at, :, rows][None]) if has_dlse else 0.0
        judged(mine, x, o, lse, dlse, out)
        z = backward.seen_as(x)
        sees_keys |= bool(np.any(z.sees & ~np.isneginf(z.added)))
        delta = delta_of(z, o, dlse)
        own = (slice(b, b + 1), slice(None), slice(0, z.q.shape[2]), slice(0, z.k.shape[2]))
        rest = given_others(z, lse, delta)
        if got.dmask is not None:
            dadded[own], room[own] = rest.dadded, room_of_added(z, lse, delta)
        if z.sinks is not None:
            sink = np.exp(z.sinks[:, None] - lse)
            assert rest.dsinks is not None
            dsinks += rest.dsinks
            terms += (sink * (np.abs(wide(z.dout) * wide(o)).sum(-1) + np.abs(dlse)) * (1 + np.abs(lse))).sum((0, 2))
    if got.dsinks is not None:
        assert np.all(np.abs(got.dsinks - dsinks) <= 2.0**-18 * terms + 1e-30)
        assert np.abs(dsinks).max() > 2.0**-14 * terms.max() or not terms.any()  # no row sees a key
    if got.dmask is not None:
        expected = reduced(dadded, got.dmask.shape)
        allowed = reduced(room, got.dmask.shape) + 2.0**-20 * reduced(np.abs(dadded), got.dmask.shape)
        assert np.all(np.abs(got.dmask - expected) <= 1.1 * allowed)
        if got.dmask.shape[3] > 1:  # a sum over the keys of a row is 0, and the result is what rounding leaves
            if sees_keys:
                assert np.any(np.abs(expected) > 2 * allowed), "a result of zeros would pass"
            else:
                assert not got.dmask.any()
    for y, there, is_packed in zip(
        got.gradients,
        (covered[0], covered[1], covered[1]),
        (case.q_packed, case.kv_packed, case.kv_packed),
        strict=True,
    ):
        outside = y[~there]
        assert np.isnan(outside).all() if is_packed else not outside.any(), "rows of no sequence"


def verify(opened: OpenDevice, rng: np.random.Generator, case: Case, out: str = "float32") -> None:
    """Compare one problem with float64."""
    backward = Backward(rng, case)
    judge_all(backward, run(opened, backward, out=out), out)


# ---- the reference itself --------------------------------------------------------


def test_the_reference_is_the_slope_of_the_loss(rng: np.random.Generator) -> None:
    """Central differences of every element of q, k, v, of the sinks and of what is added to the scores."""
    shapes = [(2, 4, 5, 4), (2, 2, 6, 4), (2, 2, 6, 3), (2, 4, 5, 3)]
    q, k, v, dout = (rng.standard_normal(s) for s in shapes)
    added = rng.standard_normal((2, 4, 5, 6))
    added[:, :, 1] = added[0, 1, 2, 3] = -np.inf
    x = Inputs(q, k, v, dout, -0.7, np.arange(6) <= np.arange(5)[:, None] + 1, 1.5, added, rng.standard_normal(4))
    dlse = rng.standard_normal((2, 4, 5))
    exact, rest, step = gradients(x, dlse), others(x, dlse), 1e-5
    wanted = (*zip(("q", "k", "v"), exact, strict=True), ("sinks", rest.dsinks), ("added", rest.dadded))
    for field, slope in wanted:
        assert slope is not None
        found = np.zeros_like(slope)
        for at in np.ndindex(slope.shape):
            ends = []
            for sign in (1, -1):
                moved: Any = np.array(getattr(x, field))
                moved[at] += sign * step
                ends.append(loss(x._replace(**{field: moved}), dlse))
            found[at] = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(found, slope, atol=1e-8)


def test_the_two_forms_of_the_reference_agree(rng: np.random.Generator) -> None:
    """With lse and delta of its own forward pass."""
    q, k, v, dout = (rng.standard_normal(s) for s in ((2, 4, 7, 5), (2, 2, 6, 5), (2, 2, 6, 3), (2, 4, 7, 3)))
    x = Inputs(q, k, v, dout, 0.9, EVERY, 2.0, rng.standard_normal((1, 4, 1, 6)), rng.standard_normal(4))
    dlse = rng.standard_normal((2, 4, 7))
    _, o, lse = forward(x)
    for own, other in zip(gradients(x, dlse), given(x, lse, delta_of(x, o, dlse)), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-13)
    rest, same = others(x, dlse), given_others(x, lse, delta_of(x, o, dlse))
    np.testing.assert_allclose(rest.dadded, same.dadded, atol=1e-13)
    np.testing.assert_allclose(np.asarray(rest.dsinks), np.asarray(same.dsinks), atol=1e-13)


# ---- every feature ---------------------------------------------------------------

LENGTHS = [
    *(Case((70, 70), (100, 33), head_dim=d, dtype=dtype) for d in HEAD_SIZES for dtype in PRECISION),
    Case((60, 60, 60, 60), (1, 64, 65, 130)),
    Case((60, 60, 60), (0, 63, 127), causal=True, head_dim=128, heads=4, kv_heads=2),
    Case((130, 130), (40, 200), window=(20, 20), head_dim=256),
    Case((130, 130), (200, 40), causal=True, align="top-left", head_dim=100, v_head_dim=33, gap=3),
]
DIAGONALS = [
    Case((100, 100, 100), (150, 150, 150), causal=True, diagonals=(0, 50, -30)),
    Case((70, 70), (90, 90), window=(10, 3), diagonals=(200, -(2**31)), head_dim=128),
    Case((70, 70), (90, 90), causal=True, diagonals=(2**31 - 1, 15)),
]
PACKED = [
    Case((10, 1, 130, 64), (20, 33, 130, 1), q_packed=True, kv_packed=True),
    Case((10, 1, 130, 64), (20, 33, 130, 1), q_packed=True, kv_packed=True, causal=True, head_dim=128, heads=4),
    Case((5, 0, 200), (0, 70, 200), q_packed=True, kv_packed=True, causal=True, align="top-left"),
    Case((100, 30), (80, 80), q_packed=True),
    Case((40, 40), (80, 17), kv_packed=True, window=(9, None)),
    Case((129, 255), (129, 255), q_packed=True, kv_packed=True, causal=True, head_dim=96, v_head_dim=32, heads=3),
    Case((60, 70), (70, 60), q_packed=True, kv_packed=True, head_dim=33, gap=3, sinks=True, slopes="batch"),
    *(Case((70, 3, 60), (65, 40, 130), q_packed=True, kv_packed=True, head_dim=d) for d in HEAD_SIZES),
]
SOFTCAPS = [
    *(
        Case((100,), (140,), softcap=cap, dtype=dtype, scale=scale)
        for cap in (1e-38, 1.0, 50.0, 1024.0)
        for dtype in PRECISION
        for scale in (None, -0.5, 0.0)
    ),
    *(Case((70,), (140,), softcap=1.5, causal=True, window=(50, 0), head_dim=d) for d in HEAD_SIZES),
    Case((70,), (90,), softcap=2.0, heads=4, kv_heads=2, sinks=True, head_dim=100, gap=1),
]
SLOPES = [
    *(
        Case((100, 100), (140, 140), slopes=kind, causal=causal, align=align, heads=4, kv_heads=2)
        for kind in ("heads", "batch")
        for causal, align in ((False, "bottom-right"), (True, "bottom-right"), (True, "top-left"), (False, "top-left"))
    ),
    Case((30, 70), (140, 90), slopes="batch", causal=True, q_packed=True, kv_packed=True),
    Case((100,), (140,), slopes="heads", softcap=4.0, scale=-0.3, head_dim=128, dtype="float16"),
]
SINKS = [
    Case((100,), (140,), sinks=True, heads=4),
    Case((100, 100), (140, 90), sinks=True, causal=True, align="top-left", head_dim=128),
    Case((100,), (40,), sinks=True, causal=True),
    Case((520,), (40,), sinks=True, heads=2),  # more rows than a CTA of dsinks has threads
    Case((10, 1, 0, 64), (20, 33, 130, 1), sinks=True, q_packed=True, kv_packed=True, causal=True, heads=3),
]
MASKS = [
    *(
        Case((70, 70), (100, 100), mask=kind, mask_axes=axes, heads=4, kv_heads=2)
        for kind in ("bool", *CODES)
        for axes in ("bhqk", "qk", "bk", "hq", "k", "")
    ),
    *(Case((70,), (130,), mask="float32", mask_axes="hqk", head_dim=d, causal=True) for d in HEAD_SIZES),
    Case((70, 70), (99, 40), mask="bfloat16", causal=True, softcap=3.0, sinks=True, head_dim=128),
    Case((70, 70), (99, 40), mask="float16", window=(20, 9), slopes="batch", scale=-0.2, head_dim=64, dtype="float16"),
    Case((33,), (31,), mask="float32", mask_axes="qk", head_dim=7, v_head_dim=9),
    Case((70, 70), (99, 40), mask="float32", gap=5, head_dim=96, heads=4, kv_heads=2),
]
EVERYTHING = [
    Case(
        (130, 130),
        (99, 140),
        heads=4,
        kv_heads=2,
        head_dim=d,
        causal=True,
        window=(90, None),
        softcap=5.0,
        sinks=True,
        slopes="batch",
        mask="float32",
        mask_axes="hqk",
        dtype=dtype,
    )
    for d, dtype in ((64, "bfloat16"), (128, "float16"), (40, "bfloat16"))
]
CASES = {
    "lengths": LENGTHS,
    "diagonals": DIAGONALS,
    "packed": PACKED,
    "softcap": SOFTCAPS,
    "slopes": SLOPES,
    "sinks": SINKS,
    "masks": MASKS,
    "everything": EVERYTHING,
}


@pytest.mark.sampled(3, each=("kind",))
@pytest.mark.parametrize(
    ("kind", "case"),
    [pytest.param(kind, case, id=f"{kind}{n}") for kind in CASES for n, case in enumerate(CASES[kind])],
)
def test_matches_both_references(opened: OpenDevice, rng: np.random.Generator, kind: str, case: Case) -> None:
    """Gradients of q, k and v, of sinks and of masks; NaN behind every length."""
    del kind
    verify(opened, rng, case)


@pytest.mark.parametrize("trial", range(12))
def test_random_combinations(opened: OpenDevice, rng: np.random.Generator, trial: int) -> None:
    """Combinations of features that nobody chose."""
    del trial
    verify(opened, rng, random_case(rng, list(PRECISION), 256, has_past=False), str(rng.choice(list(DTYPES))))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("out", list(DTYPES))
@pytest.mark.parametrize("gap", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_results_of_every_dtype(
    opened: OpenDevice, rng: np.random.Generator, out: str, gap: int, *, packed: bool
) -> None:
    """Rows that are aligned and rows that are not; nothing is written beside them."""
    verify(
        opened,
        rng,
        Case((40, 70), (70, 30), q_packed=packed, kv_packed=packed, gap=gap)
        if packed
        else Case((70, 70), (70, 30), softcap=3.0, gap=gap),
        out,
    )


@pytest.mark.parametrize("case", [EVERYTHING[0], PACKED[1]], ids=["dense", "packed"])
def test_a_loss_of_lse(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """dlse reaches every gradient."""
    backward = Backward(rng, case)
    judge_all(backward, run(opened, backward, has_dlse=True), has_dlse=True)


@pytest.mark.parametrize("case", [LENGTHS[-4], PACKED[0]], ids=["lengths", "packed"])
def test_accumulation(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """The float32 sum of what was there and of the gradients; rows behind a length and of no sequence stay."""
    backward = Backward(rng, case)
    alone = run(opened, backward).gradients
    before = [rng.standard_normal(y.shape).astype(np.float32) for y in alone]
    got = run(opened, backward, accumulate=(before[0], before[1], before[2])).gradients
    for first, y, sum_of_both in zip(before, alone, got, strict=True):
        np.testing.assert_allclose(sum_of_both, first + np.where(np.isnan(y), 0, y), atol=1e-5)


@pytest.mark.virtual
@pytest.mark.sampled(2, each=("kind",))
@pytest.mark.parametrize(
    ("kind", "case"),
    [
        *(("lengths", case) for case in LENGTHS[:12]),
        *(("packed", case) for case in PACKED[7:]),
        *(("everything", case) for case in EVERYTHING),
    ],
)
def test_every_order_of_ctas(rng: np.random.Generator, kind: str, case: Case) -> None:
    """All checks of the virtual device, and the same dk, dv and dsinks for each seed."""
    del kind
    backward, found = Backward(rng, case), []
    for seed in (1, 2):
        ordered = OpenDevice(f"virtual:0?checks=full&seed={seed}")
        try:
            found.append(run(ordered, backward))
        finally:
            ordered.close()
    judge_all(backward, found[0])
    np.testing.assert_array_equal(found[0].gradients.dk, found[1].gradients.dk)
    np.testing.assert_array_equal(found[0].gradients.dv, found[1].gradients.dv)
    np.testing.assert_array_equal(found[0].dsinks, found[1].dsinks)


@pytest.mark.virtual
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "case",
    [
        *(case._replace(causal=True) for case in LENGTHS[:12]),
        *PACKED,
        *DIAGONALS,
        EVERYTHING[1]._replace(mask_axes="bhqk"),
        Case((200, 130), (130, 200), q_packed=True, kv_packed=True, window=(40, 30), heads=4),
    ],
)
def test_deterministic(rng: np.random.Generator, case: Case) -> None:
    """The same bits of every gradient for each seed, with every check of the virtual device."""
    backward, found = Backward(rng, case), []
    for options in ("checks=full&seed=1", "seed=2", "seed=3"):
        ordered = OpenDevice(f"virtual:0?{options}")
        try:
            found.append(run(ordered, backward, deterministic=True))
        finally:
            ordered.close()
    judge_all(backward, found[0])
    for other in found[1:]:
        for mine, theirs in zip((*found[0].gradients, *found[0][1:]), (*other.gradients, *other[1:]), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_sequence_of_nan_spoils_no_other(opened: OpenDevice, rng: np.random.Generator, poison: float) -> None:
    """Q, K, V, dO, O and LSE of the middle one of three packed sequences are NaN or infinite."""
    backward = Backward(rng, Case((40, 50, 60), (30, 60, 40), q_packed=True, kv_packed=True, heads=2, sinks=True))
    good = run(opened, backward)
    rows, keys = backward.rows[1][1], backward.keys[1][1]
    for x in (backward.problem.q, backward.dout, backward.o, backward.lse):
        x[:, :, rows] = poison
    for x in (backward.problem.k, backward.problem.v):
        x[:, :, keys] = poison
    bad = run(opened, backward)
    for mine, best, spoilt in zip(bad.gradients, good.gradients, (rows, keys, keys), strict=True):
        kept = np.ones(mine.shape[2], bool)
        kept[spoilt] = False
        np.testing.assert_array_equal(mine[:, :, kept], best[:, :, kept])


def test_rows_whose_mask_is_the_least_number(opened: OpenDevice, rng: np.random.Generator) -> None:
    """LSE cannot hold the sum of P there: such rows count as rows without keys."""
    backward = Backward(rng, Case((40, 40), (50, 50), mask="float32", mask_axes="bq"))
    x = backward.problem.mask
    x[:] = 0
    x[:, :, 7] = np.finfo(np.float32).min
    pieces = []
    for b, piece in enumerate(backward.pieces):
        added = np.array(np.broadcast_to(x[b : b + 1], (1, 2, 40, 50)), float)
        added[:, :, 7] = -np.inf
        pieces.append(piece._replace(added=added))
        _, o, lse = forward(pieces[-1])
        backward.o[b], backward.lse[b] = o[0], lse[0]
    backward.pieces = pieces
    backward.lse[:, :, 7] = np.finfo(np.float32).min * np.float32(np.log(2))
    got = run(opened, backward, wants_others=False).gradients
    assert not got.dq[:, :, 7].any()
    backward.lse[:, :, 7] = -np.inf
    judge_all(backward, Results(got, None, None))


# ---- in Python -------------------------------------------------------------------


def test_python_takes_what_attention_took(device: pysm120.Device, rng: np.random.Generator) -> None:
    """The keywords of attention, on device arrays in both layouts; the results have the shapes that are promised."""
    case = Case(
        (60, 60), (50, 90), heads=4, kv_heads=2, causal=True, softcap=4.0, sinks=True, slopes="heads", mask="float16",
        mask_axes="qk",
    )  # fmt: skip
    backward = Backward(rng, case)
    problem = backward.problem
    tensors = [
        np.nan_to_num(x.astype(np.float32)).astype(BF16) for x in (problem.q, problem.k, problem.v, backward.dout)
    ]
    for layout in ("BHSD", "BSHD"):
        there = [device.array(x if layout == "BHSD" else np.ascontiguousarray(x.swapaxes(1, 2))) for x in tensors]
        options = {
            "causal": True,
            "softcap": 4.0,
            "sinks": device.array(problem.sinks),
            "alibi_slopes": device.array(problem.slopes[0]),
            "mask": device.array(problem.mask[0, 0]),
            "kv_lengths": device.array(np.array(case.kv_lengths, np.int32)),
            "scale": problem.scale,
            "layout": layout,
        }
        out, lse = attention(*there[:3], precision="bf16", out_dtype=np.float32, return_lse=True, **options)
        new = attention_backward(there[3], *there[:3], out, lse, return_dsinks=True, return_dmask=True, **options)
        assert [x.dtype for x in new] == [BF16] * 3 + [np.float32] * 2
        assert new[4].shape == (60, 90)
        first = [x.numpy() if layout == "BHSD" else x.numpy().swapaxes(1, 2) for x in (out, *new[:3])]
        backward.o, backward.lse = first[0], lse.numpy()
        results = Results(Gradients(*map(wide, first[1:])), wide(new[3].numpy()), wide(new[4].numpy())[None, None])
        judge_all(backward, results, "bfloat16")
        assert len(attention_backward(there[3], *there[:3], out, lse, return_dsinks=True, **options)) == 4
        assert len(attention_backward(there[3], *there[:3], out, lse, **options)) == 3


@pytest.mark.parametrize("on_host", [True, False])
def test_python_packed(device: pysm120.Device, rng: np.random.Generator, *, on_host: bool) -> None:
    """attention_varlen and its gradients; rows of no sequence are 0 in new arrays, and stay in given ones."""
    case = Case((40, 70), (60, 33), heads=4, kv_heads=2, causal=True, sinks=True, q_packed=True, kv_packed=True)
    backward = Backward(rng, case)
    problem = backward.problem
    put: Any = np.asarray if on_host else device.array
    arrays = [np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in (problem.q, problem.k, problem.v, backward.dout)]
    starts = [put(np.cumsum((0, *x)).astype(np.int32)) for x in (case.q_lengths, case.kv_lengths)]
    q, k, v, dout = map(put, arrays)
    options = {
        "causal": True,
        "sinks": put(problem.sinks),
        "scale": problem.scale,
        "device": device if on_host else None,
    }
    out, lse = attention_varlen(q, k, v, *starts, return_lse=True, out_dtype=np.float32, **options)
    new = attention_varlen_backward(dout, q, k, v, out, lse, *starts, return_dsinks=True, **options)
    dq = put(np.full(arrays[0].shape, 7, np.float32))
    attention_varlen_backward(dout, q, k, v, out, lse, *starts, 70, 60, dq=dq, **options)
    out, lse, dq, *new = (x if on_host else x.numpy() for x in (out, lse, dq, *new))
    assert np.all(dq[110:] == 7)
    assert not new[0][110:].any()
    assert np.abs(dq[:110] - new[0][:110].astype(np.float32)).max() < 0.05
    backward.o, backward.lse = out.swapaxes(0, 1)[None].copy(), lse[None]
    for x, y in zip(new[:3], (110, 93, 93), strict=True):
        x[y:] = np.nan
    found = Gradients(*(wide(x).swapaxes(0, 1)[None] for x in new[:3]))
    judge_all(backward, Results(found, wide(new[3]), None), "bfloat16")


def test_wrong_calls_of_python(device: pysm120.Device) -> None:
    """Each error names the argument."""
    x, lse = np.ones((1, 5, 2, 64), BF16), np.zeros((1, 2, 5), np.float32)
    rows, logs, starts, unsupported = x[0], lse[0], np.array([0, 5], np.int32), pysm120.UnsupportedError
    for options, kind, message in (
        ({"return_dsinks": True}, ValueError, "sinks is None"),
        ({"return_dmask": True}, ValueError, "mask is None"),
        ({"return_dmask": True, "mask": np.ones((5, 5), bool)}, TypeError, "mask has dtype bool"),
        ({"return_dmask": True, "mask": np.ones((1, 5, 5)), "deterministic": True}, unsupported, "dmask.*determ"),
        ({"return_dmask": 1, "mask": np.ones((5, 5))}, TypeError, "return_dmask is 1"),
        ({"mask": np.ones((4, 5), bool)}, ValueError, r"mask has shape \(4, 5\)"),
        ({"softcap": 2000.0}, unsupported, "softcap = 2000"),
        ({"softcap": 1e-60}, ValueError, "softcap is 1e-60"),
        ({"kv_lengths": np.array([6], np.int32)}, ValueError, "kv_lengths is"),
        ({"alibi_slopes": np.ones(3, np.float32)}, ValueError, "alibi_slopes has shape"),
        ({"sinks": np.ones((2, 1), np.float32)}, ValueError, "sinks has shape"),
        ({"diagonals": np.ones(2, np.int32)}, ValueError, "diagonals has shape"),
    ):
        with pytest.raises(kind, match=message):
            attention_backward(x, x, x, x, x, lse, device=device, **options)
    for changed, kind, message in (
        ({"cu_seqlens_q": np.array([0, 6], np.int32)}, ValueError, "cu_seqlens_q is"),
        ({"max_seqlen_k": 4}, ValueError, "max_seqlen_k is 4"),
        ({"lse": lse}, ValueError, "lse has shape"),
        ({"return_dsinks": True}, ValueError, "sinks is None"),
        ({"accumulate": True}, ValueError, "dq is None"),
    ):
        whole: dict[str, Any] = dict.fromkeys(("dout", "q", "k", "v", "out"), rows)
        whole |= {"lse": logs, "cu_seqlens_q": starts, "cu_seqlens_k": starts, "device": device, **changed}
        with pytest.raises(kind, match=message):
            attention_varlen_backward(**whole)


@pytest.mark.parametrize("member", ["dsinks", "dmask.address"])
def test_other_results_lie_nowhere_that_is_read(opened: OpenDevice, member: str) -> None:
    """On an input, on a gradient, on an array of rows, on the workspace: nothing is launched."""
    args, size = new_struct("sm120_attention_backward_args"), ffi.new("size_t *")
    memory = Buffer(opened, (9 * PART,), np.uint8, None, np.zeros(9 * PART, np.uint8))
    try:
        fill(args, memory.address)
        args.sinks, args.dsinks = memory.address + 8 * PART + 3072, memory.address + 8 * PART + 4096
        check(lib.sm120_attention_backward_workspace(opened.handle, args, size))
        room = Buffer(opened, (int(size[0]),), np.uint8)
        places = {"q": args.q.address, "dq": args.dq.address, "dv": args.dv.address, "o": args.o.address}
        places |= {"lse": args.lse, "sinks": args.sinks, "mask.address": args.mask.address, "workspace": room.address}
        owner, _, name = member.rpartition(".")
        for other, address in places.items():
            setattr(getattr(args, owner) if owner else args, name, address)
            status = lib.sm120_attention_backward(opened.handle, args, room.address, size[0])
            message = ffi.string(lib.sm120_last_error()).decode()
            assert status == lib.SM120_INVALID_ARGUMENT, (other, message)
            assert "overlap" in message, (other, message)
            assert member in message, (other, message)
            assert other in message, (other, message)
    finally:
        opened.release()


@pytest.mark.parametrize("precision", ["bf16", "mxfp8"])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("window", [(None, None), (20, 5)])
@pytest.mark.parametrize(
    ("q_starts", "k_starts"),
    [
        ((-5, 400, 20, 1 << 30), (3, 2, -1, 90)),
        ((0, 130, 130, 100), (-(1 << 31), (1 << 31) - 1, 50, 7)),
        ((0, 130, 0, 130), (0, 90, 0, 90)),  # sequences that share a tile
        ((30, 130, 0, 130), (0, 90, 0, 80)),
    ],
)
def test_starts_of_any_value(
    device: pysm120.Device,
    rng: np.random.Generator,
    q_starts: tuple[int, ...],
    k_starts: tuple[int, ...],
    window: tuple[int | None, int | None],
    precision: str,
    *,
    deterministic: bool,
) -> None:
    """On a device cu_seqlens is not checked: nothing outside of the arrays and of the workspace is touched."""
    q, dout = (device.array(x) for x in rng.standard_normal((2, 130, 4, 128)).astype(BF16))
    k, v = (device.array(x) for x in rng.standard_normal((2, 90, 2, 128)).astype(BF16))
    lse = device.array(np.full((4, 130), 9, np.float32))
    starts = [device.array(np.array(x, np.int32)) for x in (q_starts, k_starts)]
    for longest in ((), (70, 40)):
        options = {"deterministic": deterministic, "window": window, "softcap": 3.0, "precision": precision}
        made = attention_varlen_backward(dout, q, k, v, dout, lse, *starts, *longest, **options)
        device.synchronize()
        assert [x.shape for x in made] == [q.shape, k.shape, v.shape]
        for x in made:
            x.numpy()
