"""The features of sm120_attention against float64, between guard bands.

Every problem is a batch of sequences, each with its own rows and keys; the reference computes them one by one, from the
definitions. Invalid keys, in padded tensors and between packed sequences, are NaN.
"""

from typing import Any

import numpy as np
import pytest
from attention_cases import P_ERROR, PRECISIONS, STEP, pitched
from feature_cases import ALIGN, Case, Problem, fill_features, places, random_case
from harness import CODES, DTYPES, Buffer, OpenDevice, check, ffi, lib, new_struct, tensor
from reference import Array

# Relative error of O, and absolute error of LSE, that P in blocks causes. In e4m3 the relative error of a P is at most
# 2^-4. In NVFP4 it is a fifth to a third where P is at least a twelfth of its block's largest; below, P vanishes.
BLOCK_ERRORS = {
    "mxfp8": (0.03, 2.0**-4),
    "nvfp4": (0.15, 0.35),
    "nvfp4_mxfp8": (0.03, 2.0**-4),
    "fp8": (0.03, 2.0**-4),
}
# If a sink is the highest score of a row, every P is a multiple of this, which may be a large part of a small O.
P_STEP = {
    "bfloat16": 0.0,
    "float16": 2.0**-24,
    "mxfp8": 2.0**-17,
    "nvfp4": 2.0**-16,
    "nvfp4_mxfp8": 2.0**-17,
    "fp8": 2.0**-17,
}


def run(opened: OpenDevice, problem: Problem) -> tuple[Array, Array]:
    """Launch; O and LSE as they lie in memory."""
    case = problem.case
    args = new_struct("sm120_attention_args")
    args.precision = PRECISIONS[case.precision] if case.precision else CODES[case.dtype]
    fill_features(opened, args, problem)
    given: list[tuple[Any, Array, str, int]] = [
        (args.q, problem.q, "BSHD", 16),
        (args.k, problem.k, "BHSD", 0),
        (args.v, problem.v, "BSHD", 32),
    ]
    if case.past:
        args.past_rows = case.past
        given += [(args.past_k, problem.past_k, "BHSD", 16), (args.past_v, problem.past_v, "BSHD", 0)]
    for struct, x, order, gap in given:
        tensor(struct, Buffer(opened, x.shape, x.dtype, pitched(x.shape, order, gap + case.gap), x))

    shape = (*problem.q.shape[:3], problem.v_dim)
    o = Buffer(opened, shape, DTYPES[case.o_dtype], pitched(shape, "BSHD", 8 + case.gap))
    lse = Buffer(opened, shape[1:3] if case.q_packed else shape[:3], np.float32)
    tensor(args.o, o)
    args.lse = lse.address
    args.num_splits = 1  # the references know no splits: tests/ops/test_attention_splits.py
    size = ffi.new("size_t *")
    check(lib.sm120_attention_workspace(opened.handle, args, size))
    assert (size[0] > 0) == (case.needs_copies or case.precision not in {None, "fp8"})
    workspace = Buffer(opened, (max(1, int(size[0])),), np.uint8).address if size[0] else 0
    check(lib.sm120_attention(opened.handle, args, workspace, size[0]))
    logs = lse.download().astype(np.float64)
    return o.download().astype(np.float64), logs[None] if case.q_packed else logs


def verify(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Compare each sequence of a problem with float64."""
    problem = Problem(rng, case)
    try:
        o, lse = run(opened, problem)
        again, _ = run(opened, problem)
    finally:
        opened.release()
    assert np.array_equal(o, again, equal_nan=True), "two launches gave different bits"
    covered = np.zeros(lse.shape, bool)
    for b, (at, rows) in enumerate(places(case.q_lengths, packed=case.q_packed)):
        exact_o, exact_lse = problem.exact(b)
        got_o, got_lse = o[at, :, rows], lse[at, :, rows]
        covered[at, :, rows] = True
        score = abs(problem.scale) * np.nanmax(np.abs(problem.q.astype(np.float32))) * case.head_dim * (1 + case.growth)
        p_error, l_error = BLOCK_ERRORS.get(case.precision or "", (P_ERROR.get(case.dtype, 0.0), 0.0))
        # Of the sum of weights times magnitudes, which values of both signs do not cancel; and what is lost of weights
        # that are next to nothing beside a sink.
        step = P_STEP[case.precision if case.precision in BLOCK_ERRORS else case.dtype]
        lost = step * (problem.keys_max * exact_o.size) ** 0.5 if case.sinks else 0.0
        lost += 2**-25 * exact_o.size**0.5 if case.o_dtype == "float16" else 0.0  # the error of a tiny O
        most = float(p_error + 1e-6 * score + STEP[case.o_dtype]) * problem.magnitude(b) + lost
        assert np.linalg.norm(got_o - exact_o) <= most, b
        seen = np.isfinite(exact_lse)
        assert np.array_equal(np.isneginf(got_lse), ~seen)
        assert np.abs(got_lse[seen] - exact_lse[seen]).max(initial=0) <= l_error + 2e-6 * (4 + score + case.softcap)
        assert np.all(got_o[~seen] == 0)
    if case.q_packed:
        assert np.isnan(o[~covered]).all(), "rows of no sequence were written"
        assert np.isnan(lse[~covered]).all()


WINDOWS = [
    Case((q,), (k,), causal=causal, align=align, window=window, head_dim=d)
    for window in ((0, 0), (3, 5), (64, None), (None, 7), (200, 0), (70, 65))
    for q, k, d in ((100, 130, 64), (200, 70, 128), (257, 300, 32))
    for causal, align in ((False, "bottom-right"), (True, "top-left"), (False, "top-left"))
]
DIAGONALS = [
    Case((100, 100, 100), (150, 150, 150), causal=True, diagonals=(0, 50, -30)),
    Case((70, 70), (90, 90), window=(10, 3), diagonals=(200, -(2**31)), head_dim=128),
    Case((70, 70), (90, 90), causal=True, diagonals=(2**31 - 1, 15)),
]
LENGTHS = [
    Case((60, 60, 60, 60), (1, 64, 65, 130)),
    Case((60, 60, 60), (0, 63, 127), causal=True, head_dim=128, heads=4, kv_heads=2),
    Case((130, 130), (40, 200), window=(20, 20), head_dim=256),
]
PACKED = [
    Case((10, 1, 130, 64), (20, 33, 130, 1), q_packed=True, kv_packed=True),
    Case((10, 1, 130, 64), (20, 33, 130, 1), q_packed=True, kv_packed=True, causal=True, head_dim=128, heads=4),
    Case((5, 0, 200), (0, 70, 200), q_packed=True, kv_packed=True, causal=True, align="top-left"),
    Case((100, 30), (80, 80), q_packed=True),
    Case((40, 40), (80, 17), kv_packed=True, window=(9, None)),
    Case(
        (129, 255),
        (129, 255),
        q_packed=True,
        kv_packed=True,
        causal=True,
        head_dim=96,
        v_head_dim=32,
        heads=3,
        kv_heads=3,
    ),
]
SCORES = [
    *(
        Case((100,), (140,), softcap=cap, dtype=dtype, scale=scale)
        for cap in (1e-38, 1.0, 50.0, 1024.0)
        for dtype in P_ERROR
        for scale in (None, -0.5, 0.0)
    ),
    Case((40,), (50,), softcap=2.0**-149, scale=0.0),
    Case((100,), (140,), softcap=5.0, causal=True, window=(50, 0), head_dim=128),
    Case((100,), (140,), sinks=True, heads=4),
    Case((100,), (140,), sinks=True, causal=True, align="top-left", head_dim=128),
    Case((100,), (40,), sinks=True, causal=True),
    *(
        Case((70, 70), (90, 90), sinks=True, slopes="heads", diagonals=(120, 160), dtype=dtype, precision=precision)
        for dtype, precision in (
            ("bfloat16", None),
            ("float16", None),
            ("bfloat16", "mxfp8"),
            ("bfloat16", "mxfp8_bf16"),
            ("float16", "mxfp8_f16"),
        )
    ),
    *(
        Case((100, 100), (140, 140), slopes=kind, causal=causal, align=align)
        for kind in ("heads", "batch")
        for causal, align in ALIGN
    ),
    Case((30, 70), (140, 90), slopes="batch", causal=True, q_packed=True, kv_packed=True),
]
MASKS = [
    *(
        Case((70, 70), (100, 100), mask=kind, mask_axes=axes)
        for kind in ("bool", *CODES)
        for axes in ("bhqk", "qk", "bk", "hq", "")
    ),
    Case((70, 70), (100, 30), mask="bool", causal=True, head_dim=128),
    # masks whose neighbouring keys are loaded together, and masks whose are not: a tile of keys begins at an odd key
    *(Case((64,), (201,), past=past, mask=kind) for kind in ("bool", *CODES) for past in (63, 123)),
    *(
        Case((150,), (264,), mask=kind, mask_axes=axes, dtype="float16")
        for kind in ("bool", "float16")
        for axes in ("bhqk", "qk", "k")
    ),
    *(Case((64,), (264,), mask="bfloat16", head_dim=d) for d in (32, 96, 128, 256)),
    Case((129,), (65,), mask="float32", softcap=3.0, sinks=True, slopes="heads", dtype="float16"),
    Case((65,), (129,), mask="float16", head_dim=256),
]
PASTS = [
    *(
        Case((q,), (k,), past=past, causal=causal)
        for past in (1, 63, 64, 65, 200)
        for q, k in ((1, 1), (70, 70))
        for causal in (False, True)
    ),
    Case((90, 90), (90, 90), past=100, window=(30, 10), heads=4, kv_heads=2, head_dim=128),
    Case((90, 90), (90, 90), past=37, window=(120, None), head_dim=256),
    Case((64,), (64,), past=70, mask="bool", slopes="heads", head_dim=32),
    Case((64,), (10,), past=200, mask="float32", causal=True, align="top-left"),
]
COPIES = [
    *(Case((70,), (90,), head_dim=d, dtype=dtype) for d in (1, 2, 7, 9, 59, 111, 127, 129, 255) for dtype in P_ERROR),
    *(Case((70,), (90,), head_dim=64, gap=gap, o_dtype=o) for gap in (1, 2, 4, 7) for o in CODES),
    Case((70,), (90,), head_dim=32, v_head_dim=33, causal=True),
    Case((70,), (90,), head_dim=33, v_head_dim=32, window=(5, 5)),
    Case((10, 1, 130), (20, 33, 130), head_dim=20, q_packed=True, kv_packed=True, causal=True, heads=4, kv_heads=2),
    Case((64, 64), (30, 30), head_dim=12, past=70, causal=True, gap=3, sinks=True, mask="float32"),
    Case((40, 40), (30, 80), head_dim=100, gap=1, softcap=5.0, slopes="batch"),
]
# Plain tiles: before and behind a past with a partial tile, up to a diagonal, a window or the end of the keys.
WHOLE = [
    *(Case((70,), (333,), past=past, causal=True, heads=1) for past in (63, 64, 65, 190, 191, 192, 193)),
    *(Case((70,), (k,), causal=True, window=(170, 0), heads=1, sinks=True) for k in range(320, 337)),
    *(Case((70,), (k,), past=70, causal=True, window=(190, 0), heads=1, sinks=True) for k in range(250, 267)),
    Case((300,), (500,), causal=True),
    Case((300,), (500,), causal=True, align="top-left", q_packed=True, dtype="float16"),
    Case((40, 40), (700, 577), window=(400, 100), head_dim=128),
    Case((40, 40), (257, 320), sinks=True, head_dim=96),
    Case((40, 150), (300, 450), q_packed=True, kv_packed=True, head_dim=256, causal=True),
    Case((150, 150), (300, 300), past=45, head_dim=256, heads=1),
    Case((40,), (450,), sinks=True, window=(333, None), head_dim=32),
    Case((40,), (450,), softcap=40.0, dtype="float16", head_dim=128),
]
# Scores that exceed the first tile's maximum by far more than 2^128, beyond the limit of P.
RISING = [
    *(
        Case((70, 70), (400, 331), scale=1.0, growth=30.0, head_dim=d, dtype=t)
        for d in (32, 64, 96, 128)
        for t in P_ERROR
    ),
    Case((200, 200), (400, 331), scale=1.0, growth=30.0, head_dim=256, heads=1),
    Case((401,), (401,), scale=1.0, growth=30.0, causal=True, sinks=True),
    Case((100, 100), (301, 301), past=77, scale=1.0, growth=30.0, dtype="float16", heads=1),
    Case((100, 129), (350, 290), scale=-1.0, growth=30.0, q_packed=True, kv_packed=True, window=(200, 90)),
    Case((70,), (400,), scale=1.0, growth=30.0, softcap=900.0),
    Case((70,), (400,), scale=1.0, growth=30.0, slopes="heads", dtype="float16"),
    Case((70,), (400,), scale=1.0, growth=30.0, mask="bfloat16"),
]
V_SIZES = [
    Case((50,), (70,), head_dim=d, v_head_dim=v) for d, v in ((64, 128), (128, 64), (8, 256), (192, 8), (40, 24))
]


NARROW = ("nvfp4", "nvfp4_mxfp8", "fp8")  # up to head size 128
# Every feature in every other precision, in the dtype that it needs.
OWN = {"mxfp8_f16": "float16", "mxfp8_bf16": "bfloat16", "fp8": "float8_e4m3fn"}
MX = [
    case._replace(
        precision=precision,
        dtype=OWN.get(precision, case.dtype),
    )
    for first, precision in enumerate(("mxfp8", "mxfp8_bf16", "mxfp8_f16", "nvfp4", "nvfp4_mxfp8", "fp8"))
    for cases, step in (
        (WINDOWS, 6),
        (DIAGONALS, 1),
        (LENGTHS, 1),
        (PACKED, 1),
        (SCORES, 3),
        (MASKS, 4),
        (PASTS, 3),
        (V_SIZES, 4),
        (COPIES, 7),
    )
    for case in cases[first % step :: step]
    if case.precision is None and (precision not in NARROW or max(case.head_dim, case.v_head_dim or 0) <= 128)
]


def name(case: Case) -> str:
    """Name a case by its features."""
    parts = [f"{'.'.join(map(str, case.q_lengths))}x{'.'.join(map(str, case.kv_lengths))}"]
    parts += [f"{f}={getattr(case, f)}" for f, usual in Case._field_defaults.items() if getattr(case, f) != usual]
    return "-".join(parts)


@pytest.mark.parametrize(
    "case",
    WINDOWS + DIAGONALS + LENGTHS + PACKED + SCORES + MASKS + PASTS + WHOLE + RISING + V_SIZES + COPIES + MX,
    ids=name,
)
def test_matches_float64(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Every feature, at the edges of the tiles and together with others."""
    verify(opened, rng, case)


@pytest.mark.parametrize("is_mx", [False, True], ids=["16 bits", "mx"])
@pytest.mark.parametrize("trial", range(24))
def test_random_combinations(opened: OpenDevice, rng: np.random.Generator, trial: int, *, is_mx: bool) -> None:
    """Random combinations of features."""
    del trial
    precision = str(rng.choice(["mxfp8", "mxfp8_bf16", "mxfp8_f16", "nvfp4", "nvfp4_mxfp8", "fp8"])) if is_mx else None
    own: dict[str | None, list[str]] = {**{of: [dtype] for of, dtype in OWN.items()}, None: list(P_ERROR)}
    dtypes = own.get(precision, list(CODES))
    verify(opened, rng, random_case(rng, dtypes, 128 if precision in NARROW else 256, precision))


def test_a_row_of_nothing_but_lowest_numbers_is_the_mean(opened: OpenDevice, rng: np.random.Generator) -> None:
    """A row masked with -FLT_MAX has equal scores, as in other libraries; a row masked with -inf has none."""
    problem = Problem(rng, Case((20,), (90,), mask="float32"))
    problem.mask[:, :, 3] = np.finfo(np.float32).min
    problem.mask[:, :, 4] = -np.inf
    try:
        o, lse = run(opened, problem)
    finally:
        opened.release()
    mean = problem.v[0, 0].astype(np.float64).mean(0)
    np.testing.assert_allclose(o[0, :, 3], np.stack([mean, mean]), rtol=0.01, atol=1e-3)
    assert np.all(o[0, :, 4] == 0)
    assert np.isneginf(lse[0, :, 4]).all()


@pytest.mark.parametrize("precision", ["bf16", "mxfp8", "mxfp8_bf16"])
@pytest.mark.parametrize("starts", [(0, -5, 40), (30, 10, 20), (0, 1000, 2000), (2**31 - 1, -(2**31), 7)])
def test_starts_that_cannot_be_stay_inside(
    opened: OpenDevice, rng: np.random.Generator, starts: tuple[int, ...], precision: str
) -> None:
    """Whatever starts hold, nothing outside the tensors is read or written: the guard bands and the device check it."""
    problem = Problem(rng, Case((20, 20), (30, 30), q_packed=True, kv_packed=True))
    try:
        args = new_struct("sm120_attention_args")
        args.precision, args.scale, args.causal = PRECISIONS[precision], 0.125, lib.SM120_CAUSAL_BOTTOM_RIGHT
        args.batch, args.heads, args.kv_heads, args.q_rows, args.kv_rows, args.head_dim = 2, 2, 1, 20, 30, 64
        for struct, x in ((args.q, problem.q), (args.k, problem.k), (args.v, problem.v)):
            tensor(struct, Buffer(opened, x.shape, x.dtype, None, x))
        o = Buffer(opened, problem.q.shape, np.float32)
        tensor(args.o, o)
        x = np.asarray(starts, np.int32)
        args.cu_seqlens_q = args.cu_seqlens_k = Buffer(opened, x.shape, x.dtype, None, x).address
        args.q_total, args.kv_total = problem.q.shape[2], problem.k.shape[2]
        size = ffi.new("size_t *")
        check(lib.sm120_attention_workspace(opened.handle, args, size))
        workspace = Buffer(opened, (int(size[0]),), np.uint8).address if size[0] else 0
        check(lib.sm120_attention(opened.handle, args, workspace, size[0]))
    finally:
        opened.release()


# member, value, and a part of the message; the value "ints" is an address in the buffer of ints
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"v_head_dim": -8}, "v_head_dim = -8"),
    ({"v_head_dim": 264}, "v_head_dim = 264"),
    ({"window": 5}, "window = 5"),
    ({"window": 1, "window_left": -1}, "window_left = -1"),
    ({"window": 2, "window_right": -7}, "window_right = -7"),
    ({"softcap": -1.0}, "softcap = -1"),
    ({"softcap": np.nan}, "softcap = nan"),
    ({"softcap": np.inf}, "softcap = inf"),
    ({"softcap": 1e6}, "softcap = 1e+06; at most 1024"),
    ({"softcap": 1e-44}, "softcap = 9.80909e-45"),
    ({"no_smoothing": 2}, "no_smoothing = 2; it must be 0 or 1"),
    ({"diagonals": "ints + 2"}, "diagonals = 0x"),
    ({"diagonals": "end"}, "diagonals"),
    ({"kv_lengths": "end"}, "kv_lengths"),
    ({"cu_seqlens_q": "ints"}, "q_total = 0"),
    ({"cu_seqlens_q": "end", "q_total": 20}, "cu_seqlens_q"),
    ({"cu_seqlens_k": "ints", "kv_total": -3}, "kv_total = -3"),
    ({"kv_total": 30}, "kv_total = 30; without cu_seqlens_k it must be 0"),
    ({"sinks": "end"}, "sinks"),
    ({"alibi_slopes": "ints", "alibi_batch_stride": -1}, "alibi_batch_stride = -1"),
    ({"alibi_slopes": "ints", "alibi_batch_stride": 1 << 20}, "alibi_slopes"),
    ({"past_rows": -1}, "past_rows = -1"),
    ({"past_rows": 1 << 30}, "past_rows = 1073741824"),
    ({"past_rows": 8}, "past_rows = 8 needs past_k"),
    ({"past_rows": 8, "kv_lengths": "ints"}, "kv_lengths"),
    ({"mask.address": "ints"}, "mask.dtype = 0x00000000"),
    ({"mask.address": "ints", "mask.dtype": lib.SM120_F32, "mask.reserved": 1}, "mask.reserved = 1"),
    ({"mask.address": "ints", "mask.dtype": lib.SM120_F32, "mask.row_stride": -1}, "mask.row_stride = -1"),
    ({"mask.address": "ints", "mask.dtype": lib.SM120_F32, "mask.row_stride": 1 << 61}, "mask.row_stride"),
    ({"mask.address": "ints", "mask.dtype": lib.SM120_F32, "mask.row_stride": 1 << 20}, "mask.address"),
    ({"mask.address": "ints + 1", "mask.dtype": lib.SM120_BF16}, "mask.address"),
    (
        {"mask.address": "ints", "mask.dtype": lib.SM120_BOOL, "cu_seqlens_k": "ints", "kv_total": 30},
        "mask with cu_seqlens_k",
    ),
]


@pytest.mark.parametrize(
    ("members", "words"), WRONG, ids=[" ".join(map(str, members)) + f" {i}" for i, (members, _) in enumerate(WRONG)]
)
def test_wrong_arguments_are_named(opened: OpenDevice, members: dict[str, Any], words: str) -> None:
    """Nothing starts, and the message names the member and its value."""
    args = new_struct("sm120_attention_args")
    args.precision, args.scale = lib.SM120_BF16, 0.125
    args.batch, args.heads, args.kv_heads, args.q_rows, args.kv_rows, args.head_dim = 2, 2, 1, 20, 30, 64
    ints = np.zeros(8, np.int32)
    try:
        for struct, heads, rows in ((args.q, 2, 20), (args.k, 1, 30), (args.v, 1, 30)):
            zeros = np.zeros((2, heads, rows, 64), DTYPES["bfloat16"])
            tensor(struct, Buffer(opened, zeros.shape, zeros.dtype, None, zeros))
        tensor(args.o, Buffer(opened, (2, 2, 20, 64), np.float32))
        buffer = Buffer(opened, ints.shape, ints.dtype, None, ints)
        places = {"ints": buffer.address, "ints + 1": buffer.address + 1, "ints + 2": buffer.address + 2}
        places["end"] = buffer.base + buffer.image.nbytes - 4
        for member, value in members.items():
            *path, last = member.split(".")
            setattr(
                getattr(args, path[0]) if path else args,
                last,
                places.get(value, value) if isinstance(value, str) else value,
            )
        assert lib.sm120_attention(opened.handle, args, 0, 0) != lib.SM120_OK
        assert words in ffi.string(lib.sm120_last_error()).decode()
    finally:
        opened.release()
