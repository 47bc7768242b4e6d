"""attention_bf16 and attention_f16 against float64 and against a model of their arithmetic, between guard bands."""

import os

import numpy as np
import pytest
from attention_cases import (
    CAUSALS,
    EDGES,
    GROUPS,
    P_ERROR,
    STEP,
    Case,
    check_empty_rows,
    check_poison,
    name,
    pitched,
    random_case,
    random_inputs,
    rows_first,
    run,
    run_twice,
)
from harness import CODES, DTYPES, Buffer, OpenDevice, check, lib, new_struct, tensor
from reference import attention_16bit, attention_float64, relative_error

PRECISION = {"bfloat16": "bf16", "float16": "f16"}


# What the library takes for few CTAs, by the head size of the kernel.
OF_FEW = {32: "r16", 64: "k4", 96: "r16", 128: "k2", 256: "w4"}
# Rows of a CTA and of a warp, keys of a tile, groups of warps that visit tiles in turn.
SHAPES = {"r16": (128, 16, 64, 1), "r32": (128, 32, 64, 1), "w4": (64, 16, 64, 1)}
SHAPES |= {"k4": (32, 16, 32, 4), "k2": (32, 16, 32, 2), "walk": (128, 16, 64, 1)}


def verify(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Compare one problem with both references; PYSM120_ATTENTION_CONFIG chooses the kernel, else CTAs are few."""
    width = next(d for d in OF_FEW if d >= case.head_dim)
    config = os.environ.get("PYSM120_ATTENTION_CONFIG", OF_FEW[width])
    cta_rows, warp_rows, tile, key_groups = SHAPES[config]
    tile = 128 if (config, width) == ("r32", 64) else tile
    inputs = random_inputs(rng, case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSM120_ATTENTION_CONFIG", config)
        o, lse = run_twice(opened, PRECISION[case.dtype], case, inputs)
    q, k, v = rows_first(inputs)
    scale = case.factor

    # The kernel differs from the model by float32 in S and 2^x (1e-6 of a score), so a P near a tie may be rounded to
    # the other side.
    score = abs(scale) * np.abs(q).max() * np.abs(k).max() * case.head_dim
    p_error = 2e-6 * (4 + score)
    model_o, model_lse, ties = attention_16bit(
        *(q, k, v, scale, case.causal, case.dtype, warp_rows, tile),
        cta_rows=cta_rows, key_groups=key_groups, always=config == "walk", p_error=p_error,
    )  # fmt: skip
    nearest = np.clip(o, model_o - ties, model_o + ties)
    assert relative_error(o, nearest) <= 1e-5 + 1e-6 * score + STEP[case.o_dtype]
    seen = check_empty_rows(o, lse, model_lse)

    exact_o, exact_lse = attention_float64(q, k, v, scale, case.causal)
    assert relative_error(o, exact_o) <= P_ERROR[case.dtype] + 1e-6 * score + STEP[case.o_dtype]
    assert np.abs(lse[seen] - exact_lse[seen]).max(initial=0) <= 2e-6 * (4 + score)


WIDE = [
    *(Case(1, 1, 1, q, k, 256) for q, k in ((63, 31), (64, 32), (65, 33), (130, 97))),
    *(Case(1, 1, 1, 100, 150, 256, causal) for causal in ("bottom-right", "top-left")),
]
# Edges of tiles of 32 rows, and of the tiles of two and four groups.
OF_GROUPS = [
    *(Case(1, 1, 1, q, k, 64) for q in (31, 32, 33) for k in (31, 32, 33, 127, 128, 129, 255, 257)),
    *(Case(1, 1, 1, q, k, 128, "bottom-right") for q in (31, 32, 33) for k in (33, 63, 64, 65, 129)),
]
HEAD_SIZES = [Case(1, 2, 1, 40, 70, d, "bottom-right", dtype) for d in range(8, 257, 8) for dtype in P_ERROR]
TYPES = [Case(1, 2, 1, 50, 100, 72, None, dtype, o_dtype) for dtype in P_ERROR for o_dtype in DTYPES]
SCALES = [
    Case(1, 1, 1, 64, 128, 64, "bottom-right", dtype, "float32", scale)
    for scale in (0.0, -0.125, 1.0, 1e-30)
    for dtype in P_ERROR
]
SPREADS = [
    Case(1, 1, 1, 100, 300, 64, None, dtype, "float32", None, spread) for dtype in P_ERROR for spread in (0.01, 8)
]


ALL = EDGES + OF_GROUPS + CAUSALS + WIDE + HEAD_SIZES + GROUPS + TYPES + SCALES + SPREADS


@pytest.mark.parametrize("case", ALL, ids=name)
def test_matches_both_references(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Every edge of the tiles, both causal forms, every head size, groups, dtypes, scales, flat and steep softmax."""
    verify(opened, rng, case)


@pytest.mark.parametrize("case", [*CAUSALS, *GROUPS, *HEAD_SIZES[7:32:8], *TYPES, *SCALES, *SPREADS], ids=name)
def test_warps_of_32_rows(
    opened: OpenDevice, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    """The kernels that an H200 uses for large problems, on every device."""
    monkeypatch.setenv("PYSM120_ATTENTION_CONFIG", "r32" if case.head_dim <= 128 else "r16")
    verify(opened, rng, case)


@pytest.mark.parametrize("config", ["r16", "walk", "w4"])
@pytest.mark.parametrize("case", [*EDGES, *CAUSALS, *GROUPS, *TYPES, *SCALES, *SPREADS], ids=name)
def test_other_tiles(
    opened: OpenDevice, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, case: Case, config: str
) -> None:
    """The kernels between those for few CTAs and those for many."""
    width = next(d for d in OF_FEW if d >= case.head_dim)
    is_there = config == "r16" or width in {"walk": (64, 96, 128), "w4": (64, 128, 256)}[config]
    monkeypatch.setenv("PYSM120_ATTENTION_CONFIG", config if is_there else "r16")
    verify(opened, rng, case)


@pytest.mark.virtual
@pytest.mark.parametrize(
    "case", [*(x for x in CAUSALS if x.head_dim > 32), *SCALES, Case(1, 2, 1, 300, 40, 128, "bottom-right")], ids=name
)
def test_walk_without_its_instruction(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """On a virtual device that states Hopper's capability, a CTA has one tile, maybe without a key."""
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", "9")
    monkeypatch.setenv("PYSM120_ATTENTION_CONFIG", "walk")
    opened = OpenDevice("virtual:0")
    verify(opened, rng, case)
    opened.close()


@pytest.mark.parametrize("dtype", list(P_ERROR))
@pytest.mark.parametrize("case", [*WIDE, *(Case(1, 2, 1, 150, 201, d, "bottom-right") for d in (136, 200))], ids=name)
def test_eight_warps_of_wide_heads(
    opened: OpenDevice, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, case: Case, dtype: str
) -> None:
    """The kernel that large problems use above head size 128, on small problems: also with fewer keys than stages."""
    monkeypatch.setenv("PYSM120_ATTENTION_CONFIG", "r16")
    for factor in (1.0, -1.0, 0.0):  # the sign of Q changes in shared memory
        verify(opened, rng, case._replace(dtype=dtype, scale=factor * case.factor))
    verify(opened, rng, case._replace(dtype=dtype, scale=1.0, spread=3.0))  # which runs again


@pytest.mark.parametrize("trial", range(8))
def test_random_problems(opened: OpenDevice, rng: np.random.Generator, trial: int) -> None:
    """Random shapes."""
    del trial
    verify(opened, rng, random_case(rng, list(P_ERROR), 256))


def test_every_warp_shape(opened: OpenDevice, rng: np.random.Generator) -> None:
    """More CTAs than an H200 has multiprocessors, and fewer."""
    verify(opened, rng, Case(5, 30, 10, 129, 65, 64, "bottom-right"))
    verify(opened, rng, Case(1, 150, 1, 64, 100, 128))


@pytest.mark.parametrize("dtype", list(P_ERROR))
def test_scores_that_grow_with_the_keys(opened: OpenDevice, rng: np.random.Generator, dtype: str) -> None:
    """The maximum of every row grows in each tile beyond the limit of P: O is rescaled in each tile."""
    case = Case(1, 2, 2, 70, 400, 64, None, dtype, "float32", 1.0)
    q = np.abs(rng.standard_normal((1, 2, 70, 64))) + 0.5
    k = np.linspace(0.0, 4.0, 400)[None, None, :, None] * np.ones((1, 2, 400, 64)) + rng.standard_normal((1, 2, 400, 1))
    v = rng.standard_normal((1, 2, 400, 64))
    inputs = [x.astype(DTYPES[dtype]) for x in (q, k, v)]
    try:
        o, lse = run(opened, PRECISION[dtype], case, inputs[0], inputs[1], inputs[2], 1.0)
    finally:
        opened.release()
    exact_o, exact_lse = attention_float64(*rows_first(inputs), 1.0, None)
    assert relative_error(o.swapaxes(1, 2), exact_o) <= 2 * P_ERROR[dtype]
    np.testing.assert_allclose(lse, exact_lse, rtol=1e-6)


@pytest.mark.parametrize("dtype", list(P_ERROR))
@pytest.mark.parametrize(("heads", "leap"), [(2, 6.0), (2, 12.0), (2, 40.0), (2, 200.0), (135, 60.0)])
def test_scores_that_leap_above_the_first_keys(
    opened: OpenDevice, rng: np.random.Generator, dtype: str, heads: int, leap: float
) -> None:
    """A late key exceeds all earlier ones by e^leap in every third row: within P's range, beyond it, beyond f32."""
    case = Case(1, heads, 1, 70, 300, 64, "bottom-right", dtype, "float32", 1.0)
    q = 0.125 * rng.standard_normal((1, heads, 70, 64))
    k = rng.standard_normal((1, 1, 300, 64))
    v = rng.standard_normal((1, 1, 300, 64))
    q[..., 0] = np.where(np.arange(70) % 3 == 0, 1.0, 0.0)
    k[..., 0] = 0.0
    k[:, :, 205, 0] = leap
    inputs = [x.astype(DTYPES[dtype]) for x in (q, k, v)]
    try:
        o, lse = run(opened, PRECISION[dtype], case, inputs[0], inputs[1], inputs[2], 1.0)
    finally:
        opened.release()
    exact_o, exact_lse = attention_float64(*rows_first(inputs), 1.0, case.causal)
    assert relative_error(o.swapaxes(1, 2), exact_o) <= P_ERROR[dtype]
    np.testing.assert_allclose(lse, exact_lse, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("scale", [1e10, -1e12, 1e30])
def test_scores_beyond_float32_are_not_silent(opened: OpenDevice, rng: np.random.Generator, scale: float) -> None:
    """A row whose scores are too large is its largest key's value, NaN or Inf, but never another number."""
    case = Case(1, 2, 2, 70, 150, 64, "bottom-right", "bfloat16", "float32", scale)
    q, k, v = (rng.standard_normal((1, 2, rows, 64)).astype(DTYPES["bfloat16"]) for rows in (70, 150, 150))
    try:
        o, _ = run(opened, "bf16", case, q, k, v, scale)
    finally:
        opened.release()
    exact_o, _ = attention_float64(*rows_first([q, k, v]), scale, case.causal)
    finite = np.isfinite(o.swapaxes(1, 2))
    np.testing.assert_allclose(o.swapaxes(1, 2)[finite], exact_o[finite], rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_and_infinity_reach_the_rows_that_meet_them(
    opened: OpenDevice, rng: np.random.Generator, poison: float
) -> None:
    """A NaN or Inf in a row of q affects only that row; one in v affects only its column."""
    check_poison(opened, rng, "bf16", "bfloat16", poison)


@pytest.mark.parametrize("which", range(3))
def test_broadcast_inputs(opened: OpenDevice, rng: np.random.Generator, which: int) -> None:
    """Batch and head strides of 0 broadcast one batch and one head."""
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
        check(lib.sm120_attention(opened.handle, args, 0, 0))
        got = o.download()
    finally:
        opened.release()
    q, k, v = (np.broadcast_to(x, s).astype(np.float32).swapaxes(1, 2) for x, s in zip(inputs, shapes, strict=True))
    exact, _ = attention_float64(q, k, v, 0.125, None)
    assert relative_error(got.swapaxes(1, 2), exact) <= P_ERROR["bfloat16"]
