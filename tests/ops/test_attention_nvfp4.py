"""attention in nvfp4 and nvfp4_mxfp8 against float64 and against a model of the kernels' arithmetic."""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from attention_cases import (
    CAUSALS,
    EDGES,
    GROUPS,
    STEP,
    Case,
    check_empty_rows,
    check_poison,
    name,
    random_case,
    random_inputs,
    rows_first,
    run,
    run_twice,
)
from attention_cases import PRECISIONS as CODES
from harness import DTYPES, OpenDevice, check, ffi, lib, new_struct
from reference import Array, attention_float64, attention_scaled, relative_error
from smoothing_model import smoothed

import pysm120


class Figures(NamedTuple):
    """Errors of a precision: of O for normal inputs, from and to; of O beyond the model's; of a P next to a tie."""

    least: float
    most: float
    flip: float


PRECISIONS = {"nvfp4": Figures(0.175, 0.21, 1 / 3), "nvfp4_mxfp8": Figures(0.125, 0.16, 1 / 16)}
BOTH = pytest.mark.parametrize("precision", PRECISIONS)


def model(precision: str, case: Case, inputs: list[Array], *, smooth: bool = True) -> tuple[Array, Array]:
    """Return O and LSE of the model of the kernels."""
    q, k, v = rows_first(inputs)
    if smooth:
        q, k = (x.swapaxes(1, 2) for x in smoothed(q.swapaxes(1, 2), k.swapaxes(1, 2), case.dtype))
    return attention_scaled(q, k, v, case.factor, case.causal, precision, is_packed=smooth)


def compare(
    precision: str,
    case: Case,
    got: tuple[Array, Array],
    inputs: list[Array],
    exponent: float = 0.0,
    *,
    smooth: bool = True,
) -> Array:
    """Compare with the model; return its O. exponent: the largest |score|, in units of log2, which float32 rounds."""
    o, lse = got
    model_o, model_lse = model(precision, case, inputs, smooth=smooth)
    # Nearly every row agrees closely. In a few rows 2^x is rounded differently in float32, which gives a key's P or a
    # block's scale the next code.
    flip = PRECISIONS[precision].flip + STEP[case.o_dtype]
    off = np.linalg.norm(o - model_o, axis=-1) / np.maximum(np.linalg.norm(model_o, axis=-1), 1e-30)
    assert (off > 1e-5 + 3e-7 * exponent + STEP[case.o_dtype]).sum() <= 1 + 0.03 * off.size
    assert off.max() <= flip
    seen = check_empty_rows(o, lse, model_lse)
    off = np.abs(lse[seen] - model_lse[seen])
    assert (off > 1e-5 + 1e-6 * np.abs(model_lse[seen])).sum() <= 1 + 0.03 * off.size
    assert off.max(initial=0) <= flip
    return model_o


def verify(opened: OpenDevice, rng: np.random.Generator, precision: str, case: Case, *, smooth: bool = True) -> None:
    """Compare one problem with both references."""
    inputs = random_inputs(rng, case)
    got = run_twice(opened, precision, case, inputs, smooth=smooth)
    model_o = compare(precision, case, got, inputs, smooth=smooth)
    exact_o, _ = attention_float64(*rows_first(inputs), case.factor, case.causal)
    # The error of the format is that of the model; its figure for normal inputs has a test of its own.
    of_model = relative_error(model_o, exact_o)
    assert relative_error(got[0], exact_o) <= 1.02 * of_model + 1e-3 + STEP[case.o_dtype]
    assert of_model <= 0.5


HEAD_SIZES = [Case(1, 2, 1, 40, 70, d, "bottom-right") for d in range(8, 129, 8)]
TYPES = [Case(1, 2, 1, 50, 100, 72, None, dtype, o_dtype) for dtype in DTYPES for o_dtype in DTYPES]
LONG = Case(1, 1, 1, 16500, 70, 64)  # more rows than 128 tiles
MEANS = [
    Case(1, 9, 1, 385, 70, 72),
    Case(1, 5, 1, 513, 33, 64, "bottom-right"),
]  # above 16 of a head of k
SCALES = [Case(1, 1, 1, 64, 128, 64, "bottom-right", "float32", "float32", s) for s in (0.0, -0.125, 1.0, 1e-30, 2.0)]
MANY = [case._replace(batch=8) for case in SCALES[:3]]  # with large scores, single keys decide the error of a row


@BOTH
@pytest.mark.parametrize("case", EDGES + CAUSALS + HEAD_SIZES + GROUPS + TYPES + MEANS + SCALES, ids=name)
def test_matches_both_references(opened: OpenDevice, rng: np.random.Generator, case: Case, precision: str) -> None:
    """Every edge of the tiles, both causal forms, every head size, groups, dtypes, scales."""
    usual = case.head_dim**-0.5
    spread = min(1.0, (usual / abs(case.scale)) ** 0.5) if case.scale else 1.0
    verify(opened, rng, precision, case._replace(spread=spread))


@BOTH
@pytest.mark.parametrize("trial", range(6))
def test_random_problems(opened: OpenDevice, rng: np.random.Generator, trial: int, precision: str) -> None:
    """Random shapes."""
    del trial
    verify(opened, rng, precision, random_case(rng, list(DTYPES), 128))


@BOTH
@pytest.mark.parametrize("case", EDGES[::5] + CAUSALS[::3] + GROUPS + TYPES[::2] + MANY, ids=name)
def test_without_smoothing(opened: OpenDevice, rng: np.random.Generator, case: Case, precision: str) -> None:
    """q and k are rounded as they are."""
    verify(opened, rng, precision, case, smooth=False)


@BOTH
@pytest.mark.parametrize("head_dim", [64, 128])
def test_channels_of_one_sign(opened: OpenDevice, rng: np.random.Generator, precision: str, head_dim: int) -> None:
    """Smoothing takes away the error of channels with a mean, which is larger than all others."""
    case = Case(2, 4, 2, 200, 700, head_dim, "bottom-right")
    q, k, v = (x.astype(np.float32) - 0.25 for x in random_inputs(rng, case))
    q[..., 3] += 4
    k[..., 7::16] += 12 * rng.choice([-1, 1], (2, 2, 1, head_dim // 16))
    inputs = [x.astype(ml_dtypes.bfloat16) for x in (q, k, v)]
    exact_o, exact_lse = attention_float64(*rows_first(inputs), case.factor, case.causal)
    errors = []
    for smooth in (False, True):
        o, lse = run_twice(opened, precision, case, inputs, smooth=smooth)
        compare(precision, case, (o, lse), inputs, smooth=smooth)
        seen = np.isfinite(exact_lse)
        errors.append((relative_error(o, exact_o), np.sqrt(np.mean((lse - exact_lse)[seen] ** 2))))
    (plain, plain_lse), (smoothed_o, smoothed_lse) = errors
    assert smoothed_o <= PRECISIONS[precision].most < 1.2 * plain
    assert smoothed_o < 0.85 * plain
    assert smoothed_lse < 0.5 * plain_lse


@BOTH
@pytest.mark.parametrize("head_dim", [64, 128])
def test_errors_of_normal_inputs(opened: OpenDevice, rng: np.random.Generator, precision: str, head_dim: int) -> None:
    """The error that the documentation states, nearly all of it from Q and K, or half of it from P and V."""
    case = Case(1, 8, 8, 128, 1024, head_dim)  # so many heads that 1 standard deviation is 1.5 % of the error
    inputs = [x - np.asarray(0.25, x.dtype) for x in random_inputs(rng, case)]
    o, lse = run_twice(opened, precision, case, inputs)
    exact_o, exact_lse = attention_float64(*rows_first(inputs), case.factor, None)
    least, most, _ = PRECISIONS[precision]
    assert least <= relative_error(o, exact_o) <= most
    assert np.sqrt(np.mean((lse - exact_lse) ** 2)) <= 0.03


@BOTH
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [None, "bottom-right"])
@pytest.mark.parametrize("step", [0.4, 0.9, 1.6, 8.5, 60.0, 1e5, -1e5])
def test_scores_that_rise(
    opened: OpenDevice, rng: np.random.Generator, step: float, causal: str | None, head_dim: int, precision: str
) -> None:
    """Each tile of 64 keys exceeds the previous one by powers of 2, up to the range where P comes from differences."""
    case = Case(1, 2, 1, 100, 430, head_dim, causal, "float32", "float32", 0.125)
    q, k, v = random_inputs(rng, case)
    q, k = (np.clip(np.rint(x), -2, 2) for x in (q, k))  # scores within the range of float32
    q[..., :32] = 1
    # What NVFP4 holds exactly: 6 * 2^n in each block of its own, up to 6 * 2^8.
    rise = np.minimum(abs(step) * np.arange(1, 8) / (32 * 0.125 * np.log2(np.e)), 2688.0)
    exponent = np.clip(np.round(np.log2(rise / 6)), -6, 8)
    rise = np.sign(step) * 6 * 2.0**exponent
    k[..., :32] = rise[np.arange(430) // 64][:, None]
    got = run_twice(opened, precision, case, [q, k, v])
    compare(precision, case, got, [q, k, v], 32 * 0.125 * np.log2(np.e) * np.abs(rise).max())


@BOTH
def test_large_logits_do_not_overflow(opened: OpenDevice, rng: np.random.Generator, precision: str) -> None:
    """Rows whose scores reach thousands, negative and positive, and one dominant key."""
    case = Case(1, 1, 1, 96, 192, 64, None, "float32", "float32", 1.0)
    q = np.full((1, 1, 96, 64), 6.0) * np.sign(rng.standard_normal((1, 1, 96, 1)))
    k = rng.choice([-6.0, 6.0], (1, 1, 192, 1)) * np.ones(64)
    v = rng.standard_normal((1, 1, 192, 64))
    compare(precision, case, run_twice(opened, precision, case, [q, k, v]), [q, k, v], 2304 * np.log2(np.e))
    # NVFP4 holds these numbers, but not their differences from a mean.
    o, lse = run_twice(opened, precision, case, [q, k, v], smooth=False)
    exact_o, exact_lse = attention_float64(*rows_first([q, k, v]), 1.0, None)
    assert relative_error(o, exact_o) <= PRECISIONS[precision].most
    assert np.abs(lse - exact_lse).max() <= 0.02


@BOTH
@pytest.mark.parametrize("scale", [1e4, -3e6, 1e8, 1e30])
def test_enormous_scales_choose_the_largest_score(
    opened: OpenDevice, rng: np.random.Generator, scale: float, precision: str
) -> None:
    """Scores too large for float32 to resolve: each row is the value of its largest key, never empty."""
    case = Case(1, 2, 2, 70, 150, 64, "bottom-right", "float32", "float32", scale)
    inputs = [rng.standard_normal((1, 2, rows, 64)) for rows in (70, 150, 150)]
    o, lse = run_twice(opened, precision, case, inputs)
    model_o, model_lse = model(precision, case, inputs)
    assert relative_error(o, model_o) <= 1e-2
    np.testing.assert_allclose(lse, model_lse, rtol=1e-6)


@BOTH
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_and_infinity_reach_the_rows_that_meet_them(
    opened: OpenDevice, rng: np.random.Generator, poison: float, precision: str
) -> None:
    """A NaN or Inf in a row of q affects only that row; one in v affects only its column."""
    check_poison(opened, rng, precision, "float32", poison)


@BOTH
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_spoilt_key_reaches_the_rows_that_see_it(
    opened: OpenDevice, rng: np.random.Generator, poison: float, precision: str
) -> None:
    """A block that holds a NaN or an Inf is NaN, and so is every score of that key."""
    case = Case(1, 1, 1, 100, 100, 64, "bottom-right")
    q, k, v = random_inputs(rng, case)
    k[0, 0, 70, 40] = poison
    try:
        o, lse = run(opened, precision, case, q, k, v, 0.125)
    finally:
        opened.release()
    assert np.array_equal(np.isnan(lse[0, 0]), np.arange(100) >= 70)
    assert np.array_equal(np.isnan(o[0, 0]).any(-1), np.arange(100) >= 70)


@BOTH
@pytest.mark.parametrize("magnitude", [2.0**-12, 2.0**-8, 2.0**9, 2.0**20])
def test_magnitudes_of_values(opened: OpenDevice, rng: np.random.Generator, magnitude: float, precision: str) -> None:
    """Scales of e4m3 end at 448 and at 2^-9: values beyond 2688 saturate, blocks below 6 * 2^-10 vanish."""
    case = Case(1, 1, 1, 33, 130, 64, None, "float32", "float32")
    q, k, v = random_inputs(rng, case)
    compare(precision, case, run_twice(opened, precision, case, [q, k, v * magnitude]), [q, k, v * magnitude])


def test_gradients_are_refused() -> None:
    """The backward pass has no kernels in NVFP4, and says so."""
    x: Any = np.zeros((1, 4, 1, 16), np.float16)
    lse: Any = np.zeros((1, 1, 4), np.float32)
    with pytest.raises(pysm120.UnsupportedError, match="precision = NVFP4"):
        pysm120.attention_backward(x, x, x, x, x, lse, precision="nvfp4", device="virtual")


@BOTH
def test_long_sequences_share_means(opened: OpenDevice, rng: np.random.Generator, precision: str) -> None:
    """A head has at most 128 means of q, so that the workspace does not grow with the square of the rows."""
    verify(opened, rng, precision, LONG)
    args, size = new_struct("sm120_attention_args"), ffi.new("size_t *")
    args.precision, args.scale, args.batch, args.heads, args.kv_heads = CODES[precision], 0.125, 1, 32, 32
    args.q_rows, args.kv_rows, args.head_dim = 2**17, 2**17, 128
    for struct in (args.q, args.k, args.v, args.o):
        struct.dtype, struct.row_stride, struct.head_stride = lib.SM120_BF16, 32 * 128, 128
        struct.batch_stride = 2**17 * 32 * 128
    check(lib.sm120_attention_workspace(opened.handle, args, size))
    smoothed_size, args.no_smoothing = size[0], 1
    check(lib.sm120_attention_workspace(opened.handle, args, size))
    assert 0.6 * 2**31 <= smoothed_size - size[0] <= 1.1 * 2**31


def test_smoothing_is_an_option(device: pysm120.Device, rng: np.random.Generator) -> None:
    """It is the default of NVFP4; sequences of one tensor are smoothed as they would be alone; others refuse it."""
    q, k, v = (rng.standard_normal((2, 70, 2, 64)).astype("f4") + np.arange(64, dtype="f4") % 5 for _ in range(3))
    smoothed_o = pysm120.attention(q, k, v, precision="nvfp4", device=device)
    assert np.array_equal(smoothed_o, pysm120.attention(q, k, v, precision="nvfp4", smoothing=True, device=device))
    plain = pysm120.attention(q, k, v, precision="nvfp4", smoothing=False, device=device)
    assert not np.array_equal(smoothed_o, plain)
    starts = np.array([0, 70, 140], np.int32)
    q_rows, k_rows, v_rows = (x.reshape(140, 2, 64) for x in (q, k, v))
    for smoothing, wanted in ((True, smoothed_o), (False, plain)):
        options: dict[str, Any] = {"precision": "nvfp4", "smoothing": smoothing, "device": device}
        got = pysm120.attention_varlen(q_rows, k_rows, v_rows, starts, starts, **options)
        # The kernel of sequences rounds its scores in other places. A last bit of P may choose the other e2m1 number.
        errors = np.abs(got.reshape(wanted.shape) - wanted).max(-1)
        assert np.count_nonzero(errors > 1e-5) <= 0.02 * errors.size
        assert errors.max() < 0.1
        # The same kernel gives a sequence the same bits whether it is alone or not.
        for b, rows in enumerate((slice(0, 70), slice(70, 140))):
            own: Any = [x[rows].copy() for x in (q_rows, k_rows, v_rows)]
            alone = pysm120.attention_varlen(own[0], own[1], own[2], starts[:2], starts[:2], **options)
            np.testing.assert_array_equal(got[rows], alone, err_msg=f"sequence {b}")
    for precision in ("mxfp8", None):
        with pytest.raises(ValueError, match=r"smoothing is True, but precision '(mxfp8|bf16)' has none"):
            pysm120.attention(q, k, v, precision=precision, smoothing=True, device=device)
    wrong: Any = "k"
    with pytest.raises(TypeError, match="smoothing"):
        pysm120.attention(q, k, v, precision="nvfp4", smoothing=wrong, device=device)
