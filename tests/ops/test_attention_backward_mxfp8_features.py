"""The features of attention_backward in MXFP8 against the model of its kernels, between guard bands."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from backward_cases import norm
from backward_mxfp8 import delta_of_rounded, rounded
from backward_reference import Array, Gradients, Inputs, others, reduced, seen_keys
from feature_cases import Case, random_case
from harness import DTYPES, OpenDevice
from test_attention_backward_features import CASES, LENGTHS, PACKED, Backward, judge_all, run
from test_attention_backward_mxfp8 import agree

import pysm120

attention: Any = pysm120.attention
attention_varlen: Any = pysm120.attention_varlen
attention_backward: Any = pysm120.attention_backward
attention_varlen_backward: Any = pysm120.attention_varlen_backward
WIDEST = 128
MXFP8: dict[str, Any] = {"precision": "mxfp8"}


def fits(case: Case) -> bool:
    """Whether the kernels have the head sizes of a case."""
    return max(case.head_dim, case.v_head_dim or 0) <= WIDEST


def judge_model(
    mine: Gradients, x: Inputs, o: Array, lse: Array, dlse: Array | float, out: str, *, is_ordered: bool = False
) -> None:
    """Compare with the model of the kernels; `is_ordered`: of those that add in order."""
    agree(mine, x, lse, delta_of_rounded(x, o, dlse), out, is_ordered=is_ordered)


@pytest.mark.sampled(3, each=("kind",))
@pytest.mark.parametrize(
    ("kind", "case"),
    [pytest.param(kind, case, id=f"{kind}{n}") for kind in CASES for n, case in enumerate(CASES[kind]) if fits(case)],
)
def test_matches_the_model(opened: OpenDevice, rng: np.random.Generator, kind: str, case: Case) -> None:
    """Gradients of q, k and v, of sinks and of masks; NaN behind every length."""
    del kind
    backward = Backward(rng, case, rounded)
    judge_all(backward, run(opened, backward, **MXFP8), judged=judge_model)


@pytest.mark.parametrize("trial", range(12))
def test_random_combinations(opened: OpenDevice, rng: np.random.Generator, trial: int) -> None:
    """Combinations of features that nobody chose."""
    del trial
    backward = Backward(rng, random_case(rng, list(DTYPES), WIDEST, has_past=False), rounded)
    out = str(rng.choice(list(DTYPES)))
    judge_all(backward, run(opened, backward, out=out, **MXFP8), out, judged=judge_model)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("out", list(DTYPES))
@pytest.mark.parametrize("gap", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_results_of_every_dtype(
    opened: OpenDevice, rng: np.random.Generator, out: str, gap: int, *, packed: bool
) -> None:
    """Rows that are aligned and rows that are not; dlse; nothing is written beside the results."""
    packing: dict[str, Any] = {"q_packed": packed, "kv_packed": packed, "softcap": 0.0 if packed else 3.0}
    case = Case((40 if packed else 70, 70), (70, 30), gap=gap, **packing)
    backward = Backward(rng, case, rounded)
    got = run(opened, backward, out=out, has_dlse=True, **MXFP8)
    judge_all(backward, got, out, has_dlse=True, judged=judge_model)


@pytest.mark.virtual
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "case",
    [
        *(case for kind in ("lengths", "packed", "diagonals") for case in CASES[kind] if fits(case)),
        *(case._replace(mask_axes="bhqk") for case in CASES["everything"]),
    ],
)
def test_every_order_of_ctas(rng: np.random.Generator, case: Case) -> None:
    """All checks of the virtual device; the same bits for each seed, of dq if it is deterministic.

    dmask has the same bits too, because the mask broadcasts along no dimension.
    """
    backward = Backward(rng, case, rounded)
    for deterministic in (False, True):
        found = []
        for seed in (1, 2):
            ordered = OpenDevice(f"virtual:0?checks=full&seed={seed}")
            try:
                found.append(run(ordered, backward, deterministic=deterministic, **MXFP8))
            finally:
                ordered.close()
        judge_all(backward, found[0], judged=functools.partial(judge_model, is_ordered=deterministic))
        mine, other = ((*x.gradients, *x[1:]) for x in found)
        for first, second in list(zip(mine, other, strict=True))[not deterministic :]:
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("case", [LENGTHS[-4], PACKED[0]], ids=["lengths", "packed"])
def test_accumulation(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """The float32 sum of what was there and of the gradients; rows behind a length and of no sequence stay."""
    backward = Backward(rng, case, rounded)
    alone = run(opened, backward, **MXFP8).gradients
    before = [rng.standard_normal(y.shape).astype(np.float32) for y in alone]
    got = run(opened, backward, accumulate=(before[0], before[1], before[2]), **MXFP8).gradients
    for first, y, sum_of_both in zip(before, alone, got, strict=True):
        np.testing.assert_allclose(sum_of_both, first + np.where(np.isnan(y), 0, y), atol=1e-5)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_sequence_of_nan_spoils_no_other(opened: OpenDevice, rng: np.random.Generator, poison: float) -> None:
    """Q, K, V, dO, O and LSE of the middle one of three packed sequences are NaN or infinite."""
    backward = Backward(rng, Case((40, 50, 60), (30, 60, 40), q_packed=True, kv_packed=True, heads=2), rounded)
    good = run(opened, backward, **MXFP8)
    rows, keys = backward.rows[1][1], backward.keys[1][1]
    for x in (backward.problem.q, backward.dout, backward.o, backward.lse):
        x[:, :, rows] = poison
    for x in (backward.problem.k, backward.problem.v):
        x[:, :, keys] = poison
    bad = run(opened, backward, **MXFP8)
    for mine, best, spoilt in zip(bad.gradients, good.gradients, (rows, keys, keys), strict=True):
        kept = np.ones(mine.shape[2], bool)
        kept[spoilt] = False
        np.testing.assert_array_equal(mine[:, :, kept], best[:, :, kept])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_other_gradients_change_no_bit(opened: OpenDevice, rng: np.random.Generator, dtype: str, head_dim: int) -> None:
    """dq, dk and dv of a call that wants dsinks and dmask too; one tile of keys, so that dq has one order."""
    case = Case((130, 130), (99, 120), 4, 2, head_dim, softcap=4.0, sinks=True, mask="float32", dtype=dtype)
    backward = Backward(rng, case, rounded)
    alone, both = (run(opened, backward, wants_others=wants, **MXFP8) for wants in (False, True))
    for mine, other in zip(alone.gradients, both.gradients, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mask_shape", [(2, 2, 256, 300), (1, 2, 256, 300), (2, 1, 1, 300)], ids=str)
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_the_error_is_that_of_the_format(
    device: pysm120.Device, rng: np.random.Generator, head_dim: int, mask_shape: tuple[int, ...]
) -> None:
    """dmask with O and LSE of the forward pass in MXFP8, against float64. A sum over all keys would cancel."""
    q, dout = rng.standard_normal((2, 2, 2, 256, head_dim)).astype(np.float32)
    k, v = rng.standard_normal((2, 2, 1, 300, head_dim)).astype(np.float32)
    mask = rng.standard_normal(mask_shape).astype(np.float32)
    given: dict[str, Any] = {"causal": True, "mask": mask, "softcap": 5.0}
    given |= {"precision": "mxfp8", "layout": "BHSD", "device": device}
    out, lse = attention(q, k, v, return_lse=True, **given)
    got = attention_backward(dout, q, k, v, out, lse, return_dmask=True, **given)[3]
    seen = seen_keys(256, 300, "bottom-right")
    x = Inputs(q, k, v, dout, head_dim**-0.5, seen, 5.0, np.where(seen, mask, -np.inf))
    exact, usual = (reduced(y.dadded, mask_shape) for y in (others(x), others(rounded(x))))
    assert norm(got - exact) <= 1.1 * norm(usual - exact)
    assert 0.02 * norm(exact) < norm(usual - exact)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_a_packed_sequence_has_the_gradients_that_it_has_alone(
    device: pysm120.Device, rng: np.random.Generator, head_dim: int, *, deterministic: bool
) -> None:
    """Bit for bit: the tiles, their scales and their order are those of a call with that sequence alone."""
    lengths, dtype = (40, 100, 1, 0, 126), DTYPES["bfloat16"]
    starts = np.cumsum((0, *lengths)).astype(np.int32)
    q, dout = (rng.standard_normal((267, 4, head_dim)).astype(dtype) for _ in range(2))
    k, v = (rng.standard_normal((267, 2, head_dim)).astype(dtype) for _ in range(2))
    options: dict[str, Any] = {"causal": True, "precision": "mxfp8", "device": device}
    out, lse = attention_varlen(q, k, v, starts, starts, return_lse=True, out_dtype=np.float32, **options)
    options["deterministic"] = deterministic
    whole = attention_varlen_backward(dout, q, k, v, out, lse, starts, starts, **options)
    for begin, end in itertools.pairwise(starts):
        if begin < end:
            own = (x[None, begin:end] for x in (dout, q, k, v, out))
            alone = attention_backward(*own, lse[None, :, begin:end], **options)
            for mine, other in zip(whole, alone, strict=True):
                np.testing.assert_array_equal(mine[begin:end], other[0])
