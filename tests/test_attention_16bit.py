"""attention_bf16 and attention_f16 against float64 and against a model of their own arithmetic, between guard bands."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from harness import CODES, DTYPES, Buffer, OpenDevice, check, ffi, lib, new_struct, tensor
from reference import Array, attention_16bit, attention_float64, relative_error
from test_attention import CAUSAL, pitched

# Relative error of O (Frobenius norm) that rounding P to 16 bits causes, and the step of a dtype.
P_ERROR = {"float16": 4e-4, "bfloat16": 3e-3}
STEP = {"float32": 0.0, "float16": 2**-11, "bfloat16": 2**-8}


class Case(NamedTuple):
    """One problem."""

    batch: int
    heads: int
    kv_heads: int
    q_rows: int
    kv_rows: int
    head_dim: int
    causal: str | None = None
    dtype: str = "bfloat16"
    o_dtype: str = "float32"
    scale: float | None = None
    spread: float = 1.0


@pytest.fixture(scope="module")
def opened(device_name: str) -> Iterator[OpenDevice]:
    """Open the device under test."""
    device = OpenDevice(device_name)
    yield device
    device.close()


def run(opened: OpenDevice, case: Case, q: Array, k: Array, v: Array, scale: float) -> tuple[Array, Array]:
    """Launch on [batch, head, row, head_dim] arrays; O and LSE as [batch, head, row, ...]."""
    dtype = DTYPES[case.dtype]
    q_shape = (case.batch, case.heads, case.q_rows, case.head_dim)
    args = new_struct("sm120_attention_args")
    args.precision, args.causal, args.scale = CODES[case.dtype], CAUSAL[case.causal], scale
    args.batch, args.heads, args.kv_heads = case.batch, case.heads, case.kv_heads
    args.q_rows, args.kv_rows, args.head_dim = case.q_rows, case.kv_rows, case.head_dim
    inputs = [
        Buffer(opened, x.shape, dtype, pitched(x.shape, order, gap), x)
        for x, order, gap in ((q, "BSHD", 8), (k, "BHSD", 0), (v, "BSHD", 16))
    ]
    for struct, buffer in zip((args.q, args.k, args.v), inputs, strict=True):
        tensor(struct, buffer)
    o = Buffer(opened, q_shape, DTYPES[case.o_dtype], pitched(q_shape, "BSHD", 8))
    lse = Buffer(opened, q_shape[:3], np.float32)
    tensor(args.o, o)
    args.lse = lse.address
    size = ffi.new("size_t *", 1)
    check(lib.sm120_attention(opened.handle, args, 0, size))
    assert size[0] == 0
    check(lib.sm120_attention(opened.handle, args, 0, ffi.NULL))
    return o.download().astype(np.float64), lse.download().astype(np.float64)


def verify(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Compare one problem with both references."""
    # As the library chooses: warps of 32 rows on Hopper where there are more CTAs than multiprocessors.
    ctas = case.batch * case.heads * -(-case.q_rows // 128)
    warp_rows = 32 if opened.name.startswith("cuda") and ctas > 132 and case.head_dim <= 128 else 16
    dtype = DTYPES[case.dtype]
    q, k, v = (
        (case.spread * rng.standard_normal((case.batch, heads, rows, case.head_dim)) + 0.25).astype(dtype)
        for heads, rows in ((case.heads, case.q_rows), (case.kv_heads, case.kv_rows), (case.kv_heads, case.kv_rows))
    )
    scale = float(np.float32(case.head_dim**-0.5 if case.scale is None else case.scale))
    try:
        o, lse = run(opened, case, q, k, v, scale)
        again, _ = run(opened, case, q, k, v, scale)
    finally:
        opened.release()
    assert np.array_equal(o, again, equal_nan=True), "two launches gave different bits"
    q, k, v = (x.astype(np.float32).swapaxes(1, 2) for x in (q, k, v))
    o = o.swapaxes(1, 2)

    # The model differs by float32 in S and 2^x (1e-6 of a score), and where that rounds a P the other way.
    model_o, model_lse = attention_16bit(q, k, v, scale, case.causal, case.dtype, warp_rows)
    score = abs(scale) * np.abs(q).max() * np.abs(k).max() * case.head_dim
    assert relative_error(o, model_o) <= 1e-5 + 1e-6 * score + P_ERROR[case.dtype] / 10 + STEP[case.o_dtype]
    seen = np.isfinite(model_lse)
    assert np.array_equal(np.isneginf(lse), ~seen)
    assert np.all(o.swapaxes(1, 2)[~seen] == 0)

    exact_o, exact_lse = attention_float64(q, k, v, scale, case.causal)
    assert relative_error(o, exact_o) <= P_ERROR[case.dtype] + 1e-6 * score + STEP[case.o_dtype]
    assert np.abs(lse[seen] - exact_lse[seen]).max(initial=0) <= 2e-6 * (4 + score)


EDGES = [
    *(Case(1, 1, 1, q, k, 64) for q in (1, 127, 128, 129) for k in (1, 63, 64, 65)),
    *(Case(1, 1, 1, q, k, 128) for q, k in ((16, 33), (17, 191), (130, 257), (255, 320))),
    *(Case(1, 1, 1, q, k, 256) for q, k in ((63, 31), (64, 32), (65, 33), (130, 97))),
]
CAUSALS = [
    Case(1, 1, 1, q, k, d, causal)
    for causal in ("bottom-right", "top-left")
    for q, k, d in (
        *((128, 128, 64), (129, 129, 128), (1, 100, 64), (100, 1, 64), (65, 200, 128), (200, 65, 64)),
        *((127, 191, 96), (256, 257, 32), (300, 129, 128), (100, 150, 256)),
    )
]
HEAD_SIZES = [Case(1, 2, 1, 40, 70, d, "bottom-right", dtype) for d in range(8, 257, 8) for dtype in P_ERROR]
GROUPS = [
    Case(2, 4, 2, 70, 90, 64, "bottom-right"),
    Case(1, 6, 1, 33, 65, 128),
    Case(3, 3, 3, 20, 129, 32, "top-left"),
    Case(2, 8, 4, 1, 300, 128),
]
TYPES = [Case(1, 2, 1, 50, 100, 72, None, dtype, o_dtype) for dtype in P_ERROR for o_dtype in DTYPES]
SCALES = [
    Case(1, 1, 1, 64, 128, 64, "bottom-right", dtype, "float32", scale)
    for scale in (0.0, -0.125, 1.0, 1e-30)
    for dtype in P_ERROR
]
SPREADS = [
    Case(1, 1, 1, 100, 300, 64, None, dtype, "float32", None, spread) for dtype in P_ERROR for spread in (0.01, 8)
]


def name(case: Case) -> str:
    """Name a case for the report."""
    return "-".join(str(x) for x in case if x is not None)


@pytest.mark.parametrize("case", EDGES + CAUSALS + HEAD_SIZES + GROUPS + TYPES + SCALES + SPREADS, ids=name)
def test_matches_both_references(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Every edge of the tiles, both causal forms, every head size, groups, dtypes, scales, flat and steep softmax."""
    verify(opened, rng, case)


@pytest.mark.parametrize("trial", range(8))
def test_random_problems(opened: OpenDevice, rng: np.random.Generator, trial: int) -> None:
    """Shapes nobody chose."""
    del trial
    kv_heads = int(rng.integers(1, 3))
    case = Case(
        int(rng.integers(1, 3)),
        kv_heads * int(rng.integers(1, 4)),
        kv_heads,
        int(rng.integers(1, 300)),
        int(rng.integers(1, 300)),
        8 * int(rng.integers(1, 33)),
        [None, "bottom-right", "top-left"][rng.integers(3)],
        str(rng.choice(list(P_ERROR))),
        str(rng.choice(list(CODES))),
    )
    verify(opened, rng, case)


def test_every_warp_shape(opened: OpenDevice, rng: np.random.Generator) -> None:
    """Enough CTAs that an H200 takes warps of 32 rows; other tests take those of 16."""
    verify(opened, rng, Case(5, 30, 10, 129, 65, 64, "bottom-right"))
    verify(opened, rng, Case(1, 150, 1, 64, 100, 128))


@pytest.mark.parametrize("dtype", list(P_ERROR))
def test_scores_that_grow_with_the_keys(opened: OpenDevice, rng: np.random.Generator, dtype: str) -> None:
    """The maximum of every row grows in each tile, by more than P may: O is rescaled again and again."""
    case = Case(1, 2, 2, 70, 400, 64, None, dtype, "float32", 1.0)
    q = np.abs(rng.standard_normal((1, 2, 70, 64))) + 0.5
    k = np.linspace(0.0, 4.0, 400)[None, None, :, None] * np.ones((1, 2, 400, 64)) + rng.standard_normal((1, 2, 400, 1))
    v = rng.standard_normal((1, 2, 400, 64))
    inputs = [x.astype(DTYPES[dtype]) for x in (q, k, v)]
    try:
        o, lse = run(opened, case, inputs[0], inputs[1], inputs[2], 1.0)
    finally:
        opened.release()
    rows_first = [x.astype(np.float32).swapaxes(1, 2) for x in inputs]
    exact_o, exact_lse = attention_float64(rows_first[0], rows_first[1], rows_first[2], 1.0, None)
    assert relative_error(o.swapaxes(1, 2), exact_o) <= 2 * P_ERROR[dtype]
    np.testing.assert_allclose(lse, exact_lse, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e10, -1e12, 1e30])
def test_scores_beyond_float32_are_not_silent(opened: OpenDevice, rng: np.random.Generator, scale: float) -> None:
    """A row whose scores are too large is its largest key's value, NaN or Inf, but never another number."""
    case = Case(1, 2, 2, 70, 150, 64, "bottom-right", "bfloat16", "float32", scale)
    q, k, v = (rng.standard_normal((1, 2, rows, 64)).astype(DTYPES["bfloat16"]) for rows in (70, 150, 150))
    try:
        o, _ = run(opened, case, q, k, v, scale)
    finally:
        opened.release()
    rows_first = [x.astype(np.float32).swapaxes(1, 2) for x in (q, k, v)]
    exact_o, _ = attention_float64(rows_first[0], rows_first[1], rows_first[2], scale, case.causal)
    finite = np.isfinite(o.swapaxes(1, 2))
    np.testing.assert_allclose(o.swapaxes(1, 2)[finite], exact_o[finite], rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_and_infinity_reach_the_rows_that_meet_them(
    opened: OpenDevice, rng: np.random.Generator, poison: float
) -> None:
    """A NaN or Inf in a row of q spoils that row alone; one in v its column."""
    case = Case(1, 1, 1, 40, 96, 64)
    q, k, v = (rng.standard_normal((1, 1, rows, 64)).astype(DTYPES["bfloat16"]) for rows in (40, 96, 96))
    q[0, 0, 7, 3] = poison
    v[0, 0, 50, 20] = poison
    try:
        o, lse = run(opened, case, q, k, v, 0.125)
    finally:
        opened.release()
    expected = np.zeros((40, 64), bool)
    expected[7, :] = expected[:, 20] = True
    assert np.array_equal(~np.isfinite(o[0, 0]), expected)
    assert np.array_equal(np.isnan(lse[0, 0]), np.arange(40) == 7)


@pytest.mark.parametrize("which", range(3))
def test_broadcast_inputs(opened: OpenDevice, rng: np.random.Generator, which: int) -> None:
    """A batch and a head stride of 0 stand for one batch and one head that all use."""
    shapes = [(2, 4, 50, 64), (2, 2, 70, 64), (2, 2, 70, 64)]
    inputs = [rng.standard_normal(s).astype(DTYPES["bfloat16"]) for s in shapes]
    inputs[which] = inputs[which][:1, :1]
    args = new_struct("sm120_attention_args")
    args.precision, args.causal, args.scale = CODES["bfloat16"], lib.SM120_NOT_CAUSAL, 0.125
    args.batch, args.heads, args.kv_heads, args.q_rows, args.kv_rows, args.head_dim = 2, 4, 2, 50, 70, 64
    try:
        for n, (struct, x) in enumerate(zip((args.q, args.k, args.v), inputs, strict=True)):
            tensor(struct, Buffer(opened, x.shape, x.dtype, pitched(x.shape, "BHSD", 0), x))
            if n == which:
                struct.batch_stride = struct.head_stride = 0
        o = Buffer(opened, shapes[0], np.float32, pitched(shapes[0], "BSHD", 8))
        tensor(args.o, o)
        check(lib.sm120_attention(opened.handle, args, 0, ffi.NULL))
        got = o.download()
    finally:
        opened.release()
    q, k, v = (np.broadcast_to(x, s).astype(np.float32).swapaxes(1, 2) for x, s in zip(inputs, shapes, strict=True))
    exact, _ = attention_float64(q, k, v, 0.125, None)
    assert relative_error(got.swapaxes(1, 2), exact) <= P_ERROR["bfloat16"]
