"""attention_backward in MXFP8 and mixed precisions: float64, the format's error, a model of the kernels' arithmetic."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_cases import STEP
from backward_cases import (
    ALIGNED,
    LEAST,
    MIXED,
    ODD,
    PRECISION,
    Case,
    Places,
    Shares,
    backward,
    chosen,
    draw,
    gaps,
    judge,
    kernel,
    name,
    norm,
    odd_cases,
    one_for_all,
    padded,
    plan,
    random_case,
    run,
    run_virtual,
    workspace_bytes,
)
from backward_mxfp8 import Counts, blocks, delta_of_rounded, format_error, model, rounded
from backward_reference import Array, Gradients, Inputs, delta_of, forward, given, gradients, inputs, seen_keys, wide
from harness import DTYPES, OpenDevice
from reference import mx

import pysm120
from pysm120.runtime.module import builtins

attention: Any = pysm120.attention
attention_varlen: Any = pysm120.attention_varlen
attention_backward: Any = pysm120.attention_backward
attention_varlen_backward: Any = pysm120.attention_varlen_backward
BF16 = DTYPES["bfloat16"]
HEAD_SIZES = (64, 96, 128)  # of the kernels
FEATURES = ("softcap", "mask", "kv_lengths", "alibi_slopes", "diagonals", "sinks", "dmask")
MIXED_PRECISIONS = [("mxfp8_bf16", "bfloat16"), ("mxfp8_f16", "float16")]


def ready(rng: np.random.Generator, case: Case) -> tuple[Inputs, Array, Array]:
    """Draw a problem, with O and LSE of its rounded q, k and v."""
    x = draw(rng, case)
    return x, *results_of_forward(x, case)


def results_of_forward(x: Inputs, case: Case) -> tuple[Array, Array]:
    """O and LSE as a forward pass in MXFP8 would return them."""
    _, o, lse = forward(rounded(x))
    return o.astype(DTYPES[case.o_dtype]), lse.astype(np.float32)


def tiles(x: Array, rows: int) -> Array:
    """The Frobenius norm of each tile of rows of each head."""
    starts = np.arange(0, x.shape[2], rows)
    return np.sqrt(np.add.reduceat(np.square(x).sum(3), starts, 2))


def agree(
    got: Gradients,
    x: Inputs,
    lse: Array,
    delta: Array,
    out: str = "float32",
    *,
    is_ordered: bool = False,
    shares: Shares | None = None,
) -> Counts:
    """Compare with the model of the kernels.

    In each tile of rows or keys, the norm of the difference is at most 2^-11 of the gradient's, and what the other
    rounding of single P and dS explains. 2^-11 is above the float32 roundings of sums and 2^x; the rounding of the
    result is added. A scale off by two, a missing row or key, or another P exceeds it.
    """
    first, splits = shares or (0, 1)
    wanted, room, counts = model(x, lse, delta, is_ordered=is_ordered, first_split=first, splits=splits)
    for member, mine, near, free, rows in zip(Gradients._fields, got, wanted, room, (64, 128, 128), strict=True):
        assert mine.shape == near.shape
        subnormal = LEAST[out] * (rows * near.shape[3]) ** 0.5  # half of the least step in each number
        allowed = (2**-11 + STEP[out]) * tiles(near, rows) + tiles(free, rows) + subnormal
        off = (tiles(mine - near, rows) / allowed).max()
        assert off <= 1, f"{member} is {off:.2g} times its bound off the model"
    heads = x.q.shape[1] // x.k.shape[1]
    sees = x.sees
    assert not got.dq[~sees.any(3)].any()
    unseen = ~sees.any(2).reshape(x.k.shape[0], x.k.shape[1], heads, -1).any(2)
    assert not got.dk[unseen].any()
    assert not got.dv[unseen].any()
    return counts


def verify(opened: OpenDevice, rng: np.random.Generator, case: Case, places: Places = ALIGNED) -> Counts:
    """Compare one problem with the model."""
    x, o, lse = ready(rng, case)
    got = run(opened, case, x, o, lse, places=places, precision="mxfp8")
    shares = chosen(opened, case, "mxfp8")
    return agree(got, x, lse, delta_of_rounded(x, o), case.out_dtype, is_ordered=case.deterministic, shares=shares)


# ---- shapes ----------------------------------------------------------------------

EDGES = [
    *(Case(1, 1, 1, q, k, 64) for q, k in itertools.product((1, 31, 33, 63, 64, 65), (1, 31, 33, 127, 128, 129))),
    *(Case(1, 1, 1, q, k, 96) for q, k in ((1, 1), (32, 32), (63, 65), (64, 128), (65, 129))),
    *(Case(1, 1, 1, q, k, 128) for q, k in ((1, 1), (31, 33), (64, 128), (65, 127), (129, 16), (127, 17), (128, 129))),
]
CAUSALS = [
    Case(1, 1, 1, q, k, d, causal)
    for causal in ("bottom-right", "top-left")
    for q, k, d in (
        *((128, 128, 64), (129, 129, 128), (1, 100, 64), (100, 1, 64), (65, 200, 128), (200, 65, 64)),
        *((127, 191, 96), (130, 257, 32), (300, 129, 128)),
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
        (256, 256, 64, None, (62, None)),  # one row of a tile sees all of its keys but one
        (256, 256, 64, None, (None, 126)),
        (256, 256, 64, None, (1, 1)),  # of a tile, one row alone sees any key
        (40, 40, 128, None, (1 << 40, 1 << 40)),
    )
]
SIZES = [
    Case(1, 2, 1, 40, 70, d, "bottom-right", dtype)
    for d in (1, 7, 8, 31, 32, 33, 63, 64, 65, 72, 95, 96, 97, 100, 127, 128)
    for dtype in DTYPES
]
VALUES = [
    Case(1, 2, 2, 70, 66, d, "bottom-right", v_head_dim=v)
    for d, v in ((64, 128), (128, 64), (32, 33), (7, 96), (128, 1), (96, 40), (33, 65))
]
GROUPS = [
    Case(2, 4, 2, 70, 90, 64, "bottom-right"),
    Case(1, 6, 1, 33, 65, 128),
    Case(3, 3, 3, 20, 129, 32, "top-left"),
    Case(2, 8, 2, 1, 300, 128),
    Case(1, 4, 1, 130, 70, 96, "bottom-right"),
    Case(1, 4, 2, 128, 70, 64),  # heads end where tiles end
    Case(1, 40, 40, 20, 150, 32, "top-left"),  # more than the heads whose tiles take turns
]
TYPES = [
    Case(1, 2, 1, 50, 100, 72, "bottom-right", dtype, out, o_dtype=o)
    for dtype, out, o in itertools.product(DTYPES, DTYPES, DTYPES)
]
SCALES = [
    Case(1, 1, 1, 64, 130, 64, causal, dtype, scale=scale)
    for scale, causal in ((0.0, None), (0.0, "top-left"), (-0.125, "bottom-right"), (1.0, None), (1e-30, "top-left"))
    for dtype in DTYPES
]
ORDERED = [
    Case(1, 4, 2, q, k, d, causal, dtype, deterministic=True)
    for q, k, d, causal, dtype in (
        *((130, 260, 64, None, "bfloat16"), (200, 140, 96, "top-left", "float32")),
        *((129, 257, 128, "bottom-right", "float16"), (1, 300, 128, None, "bfloat16"), (300, 1, 33, None, "bfloat16")),
    )
]
CASES = {
    "edges": EDGES,
    "causal": CAUSALS,
    "windows": WINDOWS,
    "sizes": SIZES,
    "values": VALUES,
    "groups": GROUPS,
    "types": TYPES,
    "scales": SCALES,
    "deterministic": ORDERED,
}


@pytest.mark.sampled(3, each=("kind",))
@pytest.mark.parametrize(
    ("kind", "case"),
    [pytest.param(kind, case, id=f"{kind}-{name(case)}") for kind, cases in CASES.items() for case in cases],
)
def test_matches_the_model(opened: OpenDevice, rng: np.random.Generator, kind: str, case: Case) -> None:
    """Every edge of tiles and blocks, causal forms, windows, head sizes, groups, dtypes, scales."""
    del kind
    verify(opened, rng, case)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("trial", range(8))
def test_random_problems(opened: OpenDevice, rng: np.random.Generator, trial: int) -> None:
    """Shapes nobody chose."""
    del trial
    verify(opened, rng, random_case(rng, DTYPES, 128, 2))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("places", [ODD, MIXED], ids=["odd", "mixed"])
@pytest.mark.parametrize("case", odd_cases(DTYPES), ids=name)
def test_odd_strides(opened: OpenDevice, rng: np.random.Generator, case: Case, places: Places) -> None:
    """Rows that begin at no multiple of 16 bytes are copied; results are stored where they belong."""
    verify(opened, rng, case, places)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("which", range(4))
def test_broadcast_inputs(opened: OpenDevice, rng: np.random.Generator, which: int, gap: int) -> None:
    """A batch and a head stride of 0 stand for one batch and one head that all use, copied or not."""
    case = Case(2, 4, 2, 50, 70, 64)
    x = one_for_all(draw(rng, case), which)
    o, lse = results_of_forward(x, case)
    got = run(opened, case, x, o, lse, places=gaps(gap), precision="mxfp8", broadcast=which)
    agree(got, x, lse, delta_of_rounded(x, o))


# ---- the error of the format -----------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "case",
    [Case(1, 4, 4, 512, 512, 64, "bottom-right"), Case(1, 2, 1, 256, 512, 96), Case(1, 1, 1, 512, 384, 128)],
    ids=name,
)
def test_the_error_is_that_of_the_format(device: pysm120.Device, rng: np.random.Generator, case: Case) -> None:
    """With O and LSE of the forward pass in MXFP8; at most 1.1 times the error of the format, against float64."""
    x = draw(rng, case)
    x = x._replace(**{member: getattr(x, member) - BF16(0.25) for member in ("q", "k", "v", "dout")})
    causal = case.causal is not None
    options: dict[str, Any] = {"precision": "mxfp8", "layout": "BHSD", "causal": causal, "device": device}
    o, lse = attention(x.q, x.k, x.v, return_lse=True, out_dtype=np.float32, **options)
    got, exact = backward(x, o, lse, device, causal=causal, precision="mxfp8"), gradients(x)
    for mine, usual, best in zip(got, format_error(x), exact, strict=True):
        assert 0.02 * norm(best) < norm(usual - best)
        assert norm(mine - best) <= 1.1 * norm(usual - best)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("precision", "dtype"), MIXED_PRECISIONS)
@pytest.mark.parametrize("head_dim", [64, 100, 128, 200, 256])
def test_mixed_precisions_recompute_the_scores_of_the_forward_pass(
    opened: OpenDevice, device: pysm120.Device, rng: np.random.Generator, precision: str, dtype: str, head_dim: int
) -> None:
    """From attention's own O and LSE: as exact as a 16-bit backward pass of the rounded q and k.

    Q and k are rounded in blocks of 1 x 32 along the head. S of other q or k would not fit LSE, by more than 16 bits.
    """
    case = Case(1, 2, 1, 70, 90, head_dim, "bottom-right", dtype)
    x = draw(rng, case)
    o, lse = attention(
        *(x.q, x.k, x.v),
        precision=precision,
        layout="BHSD",
        causal=True,
        return_lse=True,
        out_dtype=np.float32,
        device=device,
    )
    y = x._replace(q=mx(x.q, -1).astype(x.q.dtype), k=mx(x.k, -1).astype(x.q.dtype))
    _, _, exact_lse = forward(y)
    assert np.abs(lse - exact_lse).max() < 1e-5
    assert np.abs(lse - forward(x)[2]).max() > 1e-3
    for places in (ALIGNED, ODD):
        got = run(opened, case, x, o, lse, places=places, precision=precision)
        judge(got, gradients(y), y, lse, delta_of(y, o))


@pytest.mark.virtual
@pytest.mark.parametrize(("precision", "dtype"), MIXED_PRECISIONS)
def test_mixed_precisions_with_tiles_of_96_keys(rng: np.random.Generator, precision: str, dtype: str) -> None:
    """On one multiprocessor one tile of keys takes less time than two."""
    case = Case(1, 2, 2, 70, 96, 128, "bottom-right", dtype)
    x = draw(rng, case)
    y = x._replace(q=mx(x.q, -1).astype(x.q.dtype), k=mx(x.k, -1).astype(x.q.dtype))
    _, o, lse = forward(y)
    o, lse = o.astype(np.float32), lse.astype(np.float32)
    opened = OpenDevice("virtual:0?multiprocessors=1&checks=full")
    try:
        assert builtins()[plan(opened, case, precision).kernel].kv_rows == 96
        got = run(opened, case, x, o, lse, precision=precision)
    finally:
        opened.close()
    judge(got, gradients(y), y, lse, delta_of(y, o))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("precision", "dtype", "feature"), [(*mixed, feature) for mixed in MIXED_PRECISIONS for feature in FEATURES]
)
def test_features_are_those_of_16_bits_with_rounded_q_and_k(
    device: pysm120.Device, rng: np.random.Generator, precision: str, dtype: str, feature: str
) -> None:
    """Bit for bit. One tile of keys, because then the sums of dq have one order."""
    case = Case(2, 4, 2, 70, 60, 72, None, dtype)
    x = draw(rng, case)
    o, lse = rng.standard_normal(x.dout.shape).astype(np.float32), np.full((2, 4, 70), 4, np.float32)
    argument = "mask" if feature == "dmask" else feature
    value: Any = {
        "softcap": 3.0,
        "mask": rng.standard_normal((2, 1, 70, 60)).astype(np.float32),
        "kv_lengths": np.array([33, 60], np.int32),
        "alibi_slopes": np.array([0.5, 0.25, 0.125, 0.0625], np.float32),
        "diagonals": np.array([-4, 3], np.int32),
        "sinks": rng.standard_normal(4).astype(np.float32),
    }[argument]
    options = {argument: value, "causal": feature == "diagonals", "return_dsinks": feature == "sinks"}
    options["return_dmask"] = feature == "dmask"
    y = x._replace(q=mx(x.q, -1).astype(x.q.dtype), k=mx(x.k, -1).astype(x.q.dtype))
    wanted = backward(y, o, lse, device, precision=PRECISION[dtype], **options)
    for mine, other in zip(backward(x, o, lse, device, precision=precision, **options), wanted, strict=True):
        np.testing.assert_array_equal(mine, other)
    unrounded = backward(x, o, lse, device, precision=PRECISION[dtype], **options)
    assert norm(unrounded.dk - wanted.dk) > 0.01 * norm(wanted.dk)


@pytest.mark.parametrize(("precision", "dtype"), MIXED_PRECISIONS)
def test_packed_sequences_against_float64(
    device: pysm120.Device, rng: np.random.Generator, precision: str, dtype: str
) -> None:
    """Two sequences, each compared by itself: the gradients of its rounded q and k, for O and LSE of attention."""
    starts = np.array([0, 40, 110], np.int32)
    q, k, v, dout = rng.standard_normal((4, 110, 2, 64)).astype(DTYPES[dtype])
    options: dict[str, Any] = {"causal": True, "precision": precision, "device": device}
    o, lse = attention_varlen(q, k, v, starts, starts, return_lse=True, out_dtype=np.float32, **options)
    results = {member: np.zeros(q.shape, np.float32) for member in ("dq", "dk", "dv")}
    made = attention_varlen_backward(dout, q, k, v, o, lse, starts, starts, **results, **options)
    for first, end in itertools.pairwise(starts):
        pieces = (y[None, first:end].swapaxes(1, 2) for y in (mx(q, -1), mx(k, -1), v, dout))
        x = inputs(pieces, 0.125, seen_keys(end - first, end - first, "bottom-right"))
        its_o, its_lse = o[None, first:end].swapaxes(1, 2), lse[None, :, first:end]
        for mine, exact in zip(made, given(x, its_lse, delta_of(x, its_o)), strict=True):
            assert norm(wide(mine[None, first:end]).swapaxes(1, 2) - exact) <= 3 * STEP[dtype] * norm(exact)


# ---- scales ----------------------------------------------------------------------


def grown(x: Inputs, member: str, rows: slice, factor: float) -> Inputs:
    """Multiply rows of a tensor by a number, in its dtype."""
    y = wide(getattr(x, member))
    y[:, :, rows] *= factor
    changed: dict[str, Any] = {member: y.astype(x.q.dtype)}
    return x._replace(**changed)


FIRST, SECOND, REST, ALL = slice(0, 64), slice(64, 128), slice(64, None), slice(None)
GROWN: dict[str, list[tuple[str, slice, float]]] = {
    "tiny": [("dout", ALL, 2.0**-60)],
    "huge": [("dout", ALL, 2.0**60)],
    "scales of 0": [("dout", ALL, 2.0**-121), ("v", ALL, 2.0**60)],  # bytes: 2^-127
    "growing tiles": [("dout", FIRST, 2.0**-20), ("dout", SECOND, 2.0**-10)],
    "far growing tiles": [("dout", FIRST, 2.0**-60), ("dout", REST, 2.0**60)],
    "shrinking tiles": [("dout", REST, 2.0**-14)],
    "rows of every size": [("dout", slice(n, None, 7), 4.0**n) for n in range(7)],
    "keys of every size": [("v", slice(n, None, 5), 4.0**n) for n in range(5)],
    "a first block of zeros": [("dout", slice(0, 32), 0.0)],
    "a first tile of zeros": [("dout", FIRST, 0.0)],
    "values that begin with zeros": [("v", slice(0, 32), 0.0)],
    "one large row": [("dout", slice(100, 101), 2.0**12)],
    "one large key": [("v", slice(45, 46), 2.0**8)],
    "no gradient": [("dout", ALL, 0.0)],
}


@pytest.mark.sampled(1, each=("kind",))
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("kind", GROWN)
def test_scales_follow(opened: OpenDevice, rng: np.random.Generator, kind: str, head_dim: int) -> None:
    """Scales of dS that differ between tiles, warps and heads."""
    case = Case(1, 2, 1, 200, 150, head_dim, "bottom-right")
    x = draw(rng, case)
    for change in GROWN[kind]:
        x = grown(x, *change)
    o, lse = results_of_forward(x, case)
    got = run(opened, case, x, o, lse, precision="mxfp8")
    agree(got, x, lse, delta_of_rounded(x, o))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("causal", [None, "bottom-right"])
def test_ctas_that_share_the_queries_of_a_tile_of_keys(
    opened: OpenDevice, rng: np.random.Generator, causal: str | None, *, deterministic: bool
) -> None:
    """Each CTA has scales of its own."""
    case = Case(1, 8, 1, 130, 300, 64, causal, deterministic=deterministic)
    x = draw(rng, case)
    dout = wide(x.dout) * 2.0 ** -np.arange(0, 32, 4).reshape(1, 8, 1, 1)
    x = x._replace(dout=dout.astype(x.q.dtype))
    o, lse = results_of_forward(x, case)
    got = run(opened, case, x, o, lse, precision="mxfp8")
    shares = chosen(opened, case, "mxfp8")
    assert shares.splits > 1
    agree(got, x, lse, delta_of_rounded(x, o), is_ordered=deterministic, shares=shares)


@pytest.mark.virtual
@pytest.mark.parametrize("head_dim", HEAD_SIZES)
def test_sums_of_dq_in_a_ring(rng: np.random.Generator, head_dim: int) -> None:
    """On two multiprocessors few heads are many, and the main kernel writes dq of most of them."""
    case = Case(1, 12, 12, 200, 150, head_dim, out_dtype="bfloat16")
    opened = OpenDevice("virtual:0?multiprocessors=2")
    try:
        assert plan(opened, case, "mxfp8").first_head > 0
        verify(opened, rng, case)
        verify(opened, rng, case, ODD)
    finally:
        opened.close()


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("case", "sms", "tiles"),
    [
        (Case(1, 2, 2, 300, 900, 64, deterministic=True), 4, 2),
        (Case(1, 4, 2, 330, 900, 128, deterministic=True), 4, 2),
        (Case(1, 2, 1, 260, 200, 96, deterministic=True), 1, 4),
    ],
)
def test_a_turn_of_several_tiles(rng: np.random.Generator, case: Case, sms: int, tiles: int) -> None:
    """No bit depends on the number of SMs, which says for how many tiles of queries a tile of keys waits once."""
    x = draw(rng, case)
    o, lse = results_of_forward(x, case)
    alone = run_virtual("seed=1", case, x, o, lse, precision="mxfp8")
    for seed in (1, 2):
        options = f"checks=full&seed={seed}&multiprocessors={sms}"
        opened = OpenDevice(f"virtual:0?{options}")
        try:
            assert plan(opened, case, "mxfp8").turn_tiles == tiles
        finally:
            opened.close()
        for one, other in zip(alone, run_virtual(options, case, x, o, lse, precision="mxfp8"), strict=True):
            np.testing.assert_array_equal(one, other)


def test_both_products_of_dq(opened: OpenDevice, rng: np.random.Generator) -> None:
    """Tiles whose warps share a scale and tiles whose warps do not, each many times, give the model's dq."""
    case = Case(1, 2, 1, 256, 256, 64)
    x = grown(grown(draw(rng, case), "dout", FIRST, 2.0**-12), "dout", slice(128, 192), 2.0**5)
    o, lse = results_of_forward(x, case)
    counts = agree(run(opened, case, x, o, lse, precision="mxfp8"), x, lse, delta_of_rounded(x, o))
    assert counts.tiles == 16
    assert counts.uneven >= 4
    assert counts.outgrown >= 4
    assert counts.tiles - counts.uneven >= 4


@pytest.mark.parametrize("size", [1.0, 2.0**40])
def test_a_loss_of_lse_alone(opened: OpenDevice, rng: np.random.Generator, size: float) -> None:
    """dout = 0: delta is -dlse, and its size alone decides the scale of dS."""
    case = Case(1, 2, 1, 130, 90, 64, "bottom-right")
    x = grown(draw(rng, case), "dout", ALL, 0.0)
    o, lse = results_of_forward(x, case)
    dlse = (size * rng.standard_normal(lse.shape)).astype(np.float32)
    got = run(opened, case, x, o, lse, dlse=dlse, precision="mxfp8")
    agree(got, x, lse, delta_of_rounded(x, o, dlse))
    assert not got.dv.any()
    for mine, best in zip(got[:2], gradients(x, dlse), strict=False):
        assert norm(mine - best) <= 0.1 * norm(best)


def test_keys_behind_the_last_have_no_weight(opened: OpenDevice, rng: np.random.Generator) -> None:
    """exp(score - LSE) of a key of zeros, such as the last tile has, would set the scale of 16 keys' dS."""
    case = Case(1, 2, 1, 70, 100, 64, scale=0.25)
    x = draw(rng, case)
    x = x._replace(q=1 + np.abs(x.q), k=-1 - np.abs(x.k))
    o, lse = results_of_forward(x, case)
    agree(run(opened, case, x, o, lse, precision="mxfp8"), x, lse, delta_of_rounded(x, o))


def test_given_delta_and_dlse(opened: OpenDevice, rng: np.random.Generator) -> None:
    """delta with dlse in it gives what dlse gives; O is then not read. A row with LSE below -2^100 has no gradient."""
    case = Case(2, 4, 2, 70, 140, 64, "bottom-right")
    x, o, lse = ready(rng, case)
    dlse = (3 * rng.standard_normal(lse.shape)).astype(np.float32)
    delta = delta_of_rounded(x, o, dlse)
    agree(run(opened, case, x, o, lse, dlse=dlse, precision="mxfp8"), x, lse, delta)
    noise = np.full_like(o, np.nan)
    agree(run(opened, case, x, noise, lse, delta=delta, precision="mxfp8"), x, lse, delta)
    none = np.zeros_like(delta)  # the scales of V and dO alone keep dS finite
    agree(run(opened, case, x, noise, lse, delta=none, precision="mxfp8"), x, lse, none)
    lse[:, 1, 7], delta[:, 1, 7] = -np.inf, np.nan
    got = run(opened, case, x, noise, lse, delta=delta, precision="mxfp8")
    agree(got, x, lse, delta)
    assert not got.dq[:, 1, 7].any()
    assert got.dq[:, 1, 6].any()
    lse[:, 1, 7] = -(2.0**101)
    again = run(opened, case, x, noise, lse, delta=delta, precision="mxfp8")
    for mine, same in zip(again, got, strict=True):
        np.testing.assert_array_equal(mine, same)


@pytest.mark.parametrize("case", [Case(1, 4, 2, 70, 60, 64), Case(2, 2, 1, 70, 200, 100, "top-left")], ids=name)
def test_accumulation_adds_once(device: pysm120.Device, rng: np.random.Generator, case: Case) -> None:
    """The float32 sum of what was there and what a call without it gives; rows and keys without a part stay."""
    x, o, lse = ready(rng, case)
    options: dict[str, Any] = {"precision": "mxfp8", "causal": case.causal is not None}
    options["causal_align"] = case.causal or "top-left"
    alone = backward(x, o, lse, device, **options)
    before = Gradients(*(rng.standard_normal(y.shape).astype(np.float32) for y in alone))
    sums = {member: y.copy() for member, y in before._asdict().items()}
    got = backward(x, o, lse, device, accumulate=True, **sums, **options)
    np.testing.assert_array_equal(got.dk, before.dk + alone.dk)
    np.testing.assert_array_equal(got.dv, before.dv + alone.dv)
    np.testing.assert_allclose(got.dq, before.dq + alone.dq, atol=0 if case.kv_rows <= 128 else 1e-5)


# ---- what is not a number --------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("member", ["q", "k", "v", "dout"])
def test_nan_and_infinity_reach_their_block_and_tile(
    opened: OpenDevice, rng: np.random.Generator, member: str, poison: float
) -> None:
    """As the reference page says; the gradients of other tiles and heads are those without the poison.

    Two heads of q share a head of k; the poison lies in the first of two tiles of queries of head 0, or in the first
    of two tiles of keys of the only head of k and v.
    """
    case = Case(1, 4, 2, 100, 150, 64)
    x, o, lse = ready(rng, case)
    clean = run(opened, case, x, o, lse, precision="mxfp8")
    y = getattr(x, member).copy()
    y[0, 0, 5, 40] = poison
    spoiled = x._replace(**{member: y})
    delta = delta_of_rounded(x, o) if member == "dout" else None
    got = run(opened, case, spoiled, o, lse, delta=delta, precision="mxfp8")
    nan = Gradients(*(np.zeros(z.shape, bool) for z in got))
    if member in {"q", "dout"}:
        nan.dq[0, 0, :64] = True
        nan.dk[0, 0] = True
        nan.dv[0, 0, :, slice(32, None) if member == "dout" else slice(None)] = True
    else:
        nan.dq[0, :2] = True
        nan.dk[0, 0, :32] = True
        nan.dv[0, 0, :32] = member == "k"
    for mine, same, where in zip(got, clean, nan, strict=True):
        assert np.array_equal(np.isnan(mine), where)
        assert np.all(np.isfinite(mine) | where)
        rest = ~where
        assert norm(mine[rest] - same[rest]) <= 2**-10 * norm(same[rest])
        assert np.array_equal(mine[:, -1:][rest[:, -1:]], same[:, -1:][rest[:, -1:]]) or case.kv_rows > 128


def test_tiles_behind_a_nan_keep_finite_scales(opened: OpenDevice, rng: np.random.Generator) -> None:
    """A tile that is NaN throughout leaves no scale; the next one is as large as the first would be."""
    case = Case(1, 1, 1, 200, 100, 128)
    x, o, lse = ready(rng, case)
    x = grown(x, "dout", ALL, 2.0**20)
    delta = delta_of_rounded(x, o)
    y = x.dout.copy()
    y[0, 0, 3, 3] = np.nan
    got = run(opened, case, x._replace(dout=y), o, lse, delta=delta, precision="mxfp8")
    wanted, _, _ = model(x, lse, delta)
    assert np.isnan(got.dq[:, :, :64]).all()
    assert norm(got.dq[:, :, 64:] - wanted.dq[:, :, 64:]) <= 2**-9 * norm(wanted.dq[:, :, 64:])


# ---- the same bits, in any order -------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("head_dim", HEAD_SIZES)
def test_two_launches(opened: OpenDevice, rng: np.random.Generator, head_dim: int) -> None:
    """dk and dv are the same bits; dq is within the rounding of its sum."""
    case = Case(2, 4, 2, 150, 300, head_dim, "bottom-right")
    x, o, lse = ready(rng, case)
    first, second = (run(opened, case, x, o, lse, precision="mxfp8") for _ in range(2))
    np.testing.assert_array_equal(first.dk, second.dk)
    np.testing.assert_array_equal(first.dv, second.dv)
    assert norm(first.dq - second.dq) <= 1e-6 * norm(first.dq)


@pytest.mark.sampled(2)
@pytest.mark.virtual
@pytest.mark.parametrize(
    "case",
    [
        *(
            Case(1, 2, 1, 140, 140, d, "bottom-right", dtype, deterministic=deterministic)
            for d in HEAD_SIZES
            for dtype in DTYPES
            for deterministic in (False, True)
        ),
        Case(2, 2, 2, 130, 50, 33, "top-left", v_head_dim=20, out_dtype="bfloat16", o_dtype="bfloat16"),
    ],
    ids=name,
)
def test_every_order_of_ctas(rng: np.random.Generator, case: Case) -> None:
    """All checks of the virtual device, races and undefined values among them.

    Each seed gives the same dk and dv, and the same dq if the call is deterministic.
    """
    x = grown(draw(rng, case), "dout", FIRST, 2.0**-6)
    o, lse = results_of_forward(x, case)
    found = [run_virtual(f"checks=full&seed={seed}", case, x, o, lse, precision="mxfp8") for seed in (1, 2, 3)]
    agree(found[0], x, lse, delta_of_rounded(x, o), case.out_dtype, is_ordered=case.deterministic)
    for other in found[1:]:
        assert not case.deterministic or np.array_equal(other.dq, found[0].dq)
        np.testing.assert_array_equal(other.dk, found[0].dk)
        np.testing.assert_array_equal(other.dv, found[0].dv)
        assert norm(other.dq - found[0].dq) <= 1e-6 * norm(found[0].dq) + STEP[case.out_dtype] * norm(found[0].dq)


@pytest.mark.sampled(1)
@pytest.mark.virtual
@pytest.mark.parametrize("head_dim", HEAD_SIZES)
def test_on_hopper(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, head_dim: int) -> None:
    """The kernels that an H200 takes, on a virtual device that states its capability."""
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", "9")
    hopper = OpenDevice("virtual:0?checks=full")
    try:
        verify(hopper, rng, Case(1, 2, 1, 70, 130, head_dim, "bottom-right"))
    finally:
        hopper.close()


# ---- the workspace ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "copied"),
    [
        (Case(1, 2, 1, 65, 70, 64), ()),
        (Case(3, 5, 1, 1, 1, 8), ()),
        (Case(1, 2, 1, 65, 129, 96), ()),
        (Case(2, 4, 2, 33, 70, 100), (4 * 33 * 104, 2 * 70 * 104, 2 * 70 * 104, 4 * 33 * 104)),
        (Case(2, 4, 2, 33, 70, 64, v_head_dim=121), (2 * 70 * 128, 4 * 33 * 128)),
    ],
)
@pytest.mark.parametrize("precision", ["mxfp8", "mxfp8_bf16"])
def test_size_of_the_workspace(
    opened: OpenDevice, device: pysm120.Device, precision: str, case: Case, copied: tuple[int, ...]
) -> None:
    """It is what the reference page says, and addresses do not matter for it."""
    areas = [2 * case.batch * n for n in copied]
    width = next(d for d in HEAD_SIZES if d >= max(case.head_dim, case.width))
    q_rows = 64
    tiles = case.batch * case.heads * -(-case.q_rows // q_rows)
    if precision == "mxfp8":
        kv_tiles = case.batch * case.kv_heads * -(-case.kv_rows // 128)
        pitch = 64 if width == 64 else 128
        q_bytes, kv_bytes = 64 * pitch + 16, 128 * pitch + 16
        areas += [(q_bytes + 528) * tiles, q_bytes * tiles, kv_bytes * kv_tiles, kv_bytes * kv_tiles]
    else:
        if not copied or case.head_dim % 8 == 0:  # q and k are copied in any case
            counts = (case.heads * case.q_rows, case.kv_heads * case.kv_rows)
            areas += [2 * case.batch * n * case.head_dim for n in counts]
        chosen = kernel(device, case)
        width, q_rows = chosen.head_dim, chosen.q_rows
        tiles = case.batch * case.heads * -(-case.q_rows // q_rows)
        areas.append((8 * q_rows + 16) * tiles)
    areas.append(4 * q_rows * width * tiles)
    assert workspace_bytes(opened, case, precision) == sum(padded(area) for area in areas)


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            Case(1, 2, 1, 5, 7, 136),
            r"^head_dim = 136; gradients in MXFP8 \(0x\w+\) support at most 128, those in MXFP8_BF16",
        ),
        (
            Case(1, 2, 1, 5, 7, 64, v_head_dim=129),
            r"^v_head_dim = 129; gradients in MXFP8 .* and MXFP8_F16 \(0x\w+\) 256$",
        ),
    ],
)
def test_gradients_of_wider_heads_are_refused(opened: OpenDevice, case: Case, words: str) -> None:
    """In C, with the precisions that support them."""
    with pytest.raises(pysm120.UnsupportedError, match=words):
        workspace_bytes(opened, case, "mxfp8")
    assert workspace_bytes(opened, case, "mxfp8_bf16") > 0


# ---- the kernel that rounds ------------------------------------------------------


@pytest.mark.sampled(1, each=("dtype",))
@pytest.mark.parametrize("dtype", list(PRECISION))
@pytest.mark.parametrize(("columns", "to_columns"), [(1, 8), (32, 32), (100, 104), (128, 128), (129, 136)])
def test_copy_rows_rounded(
    device: pysm120.Device, rng: np.random.Generator, dtype: str, columns: int, to_columns: int
) -> None:
    """Bit for bit what NumPy rounds, in f16 up to 65504; columns behind the last are 0, and nothing else is written."""
    kernel = device.builtin_kernels()[f"copy_rows_rounded_{PRECISION[dtype]}"]
    batch, heads, rows, pitch = 2, 3, 11, columns + 3
    limit = 13 if dtype == "float16" else 126  # no element overflows
    x = rng.standard_normal((batch, heads, rows, pitch)) * 2.0 ** rng.integers(-limit, limit, (batch, heads, rows, 1))
    x = x.astype(DTYPES[dtype])
    limits: Any = ml_dtypes.finfo  # untyped
    greatest, least = (float(y) for y in (limits(DTYPES[dtype]).max, limits(DTYPES[dtype]).smallest_subnormal))
    x[0, 0, 0, 0], x[0, 0, 1], x[0, 0, 2] = greatest, 0, greatest
    x[0, 0, 3] = rng.choice([-least, least], pitch)
    x[0, 1, 0, columns - 1], x[0, 1, 1, 0] = np.nan, np.inf
    there, to_pitch = device.array(x), to_columns + 4
    y = device.array(np.full((batch, heads, rows, to_pitch), 9, DTYPES[dtype]))
    strides = [2 * n * p for p in (pitch, to_pitch) for n in (heads * rows, rows, 1)]
    for groups in (1, 2):
        y.copy_from(np.full(y.shape, 9, DTYPES[dtype]))
        counts = [np.uint32(n) for n in (heads, rows, columns, to_columns)]
        kernel((batch * heads, groups), 256, there, y, *(np.int64(n) for n in strides), *counts)
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = mx(x[..., :columns].astype(np.float32), -1)
            wanted = (np.clip(wanted, -65504, 65504) if dtype == "float16" else wanted).astype(DTYPES[dtype])
        got, is_nan = y.numpy(), np.isnan(wide(wanted))
        assert np.all(got[..., to_columns:] == 9)
        padding = got[..., columns:to_columns]
        assert not np.any(padding[~is_nan.any(-1)])  # it may share a block with a NaN
        assert np.array_equal(np.isnan(wide(got[..., :columns])), is_nan)
        mine, best = (np.ascontiguousarray(z).view(np.uint16)[~is_nan] for z in (got[..., :columns], wanted))
        np.testing.assert_array_equal(mine, best)
    assert is_nan[0, 1, 0, (columns - 1) // 32 * 32 :].all()
    assert is_nan[0, 1, 1, : min(columns, 32)].all()
    assert is_nan.sum() == columns - (columns - 1) // 32 * 32 + min(columns, 32)


# ---- the model itself ------------------------------------------------------------


def test_blocks_are_those_of_mxfp8(rng: np.random.Generator) -> None:
    """A block of equal rows has the scale and the elements of one row in blocks of 1 x 32."""
    x = np.repeat(rng.standard_normal((3, 70)) * 2.0 ** rng.integers(-20, 20, (3, 1)), 32, 0)
    np.testing.assert_array_equal(blocks(x)[0], mx(x, -1))
    np.testing.assert_array_equal(blocks(x.T)[0], mx(x.T, 0))
