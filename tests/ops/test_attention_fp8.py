"""attention in fp8 against float64 and a model of the kernels' arithmetic; its scales, amax and e4m3 results."""

import os
from typing import Any

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
from harness import ALL_CODES, CODES, Buffer, OpenDevice, check, ffi, lib, new_struct, tensor
from reference import Array, attention_float64, attention_scaled, relative_error

import pysm120

E4M3 = ml_dtypes.float8_e4m3fn
FLIP = 1 / 16  # the relative change of a P next to a tie
# Keys of a tile by head size, and groups of warps that visit tiles in turn.
SHAPES = {"r16": ({64: 64, 128: 64}, 1), "k4": ({64: 64, 128: 32}, 4)}


@pytest.fixture(params=SHAPES, autouse=True)
def config(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Choose the kernel of calls without features: the usual one, and the one for few CTAs."""
    monkeypatch.setenv("PYSM120_ATTENTION_CONFIG", request.param)
    return str(request.param)


def model(opened: OpenDevice, inputs: list[Array], scale: float, causal: str | None) -> tuple[Array, Array]:
    """Return what the model of the chosen kernel gives for inputs [batch][head][row][head_dim]."""
    tiles, key_groups = SHAPES[os.environ["PYSM120_ATTENTION_CONFIG"]]
    tile = next(keys for width, keys in tiles.items() if width >= inputs[0].shape[-1])
    precision = "fp8" if opened.is_sm120 and key_groups == 1 else "fp8, sums by products"
    return attention_scaled(*rows_first(inputs), scale, causal, precision, tile=tile, key_groups=key_groups)


def of_e4m3(case: Case) -> Case:
    """Return the case with inputs in e4m3."""
    return case._replace(dtype="float8_e4m3fn")


def compare(
    opened: OpenDevice, case: Case, got: tuple[Array, Array], inputs: list[Array], exponent: float = 0.0
) -> Array:
    """Compare with the model; return its O. exponent: the largest |score|, in units of log2, which float32 rounds."""
    o, lse = got
    model_o, model_lse = model(opened, inputs, case.factor, case.causal)
    # Nearly every row agrees closely. In a few rows 2^x is rounded differently in float32: a P gets the next code.
    flip = FLIP + STEP[case.o_dtype]
    off = np.linalg.norm(o - model_o, axis=-1) / np.maximum(np.linalg.norm(model_o, axis=-1), 1e-30)
    assert (off > 1e-5 + 3e-7 * exponent + STEP[case.o_dtype]).sum() <= 1 + 0.03 * off.size
    assert off.max() <= flip
    seen = check_empty_rows(o, lse, model_lse)
    off = np.abs(lse[seen] - model_lse[seen])
    assert (off > 1e-5 + 1e-6 * np.abs(model_lse[seen])).sum() <= 1 + 0.03 * off.size
    assert off.max(initial=0) <= flip
    return model_o


def verify(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Compare one problem with both references: only P is rounded."""
    inputs = random_inputs(rng, case)
    got = run_twice(opened, "fp8", case, inputs)
    model_o = compare(opened, case, got, inputs)
    exact_o, _ = attention_float64(*rows_first(inputs), case.factor, case.causal)
    assert relative_error(got[0], exact_o) <= 1.02 * relative_error(model_o, exact_o) + 1e-3 + STEP[case.o_dtype]
    assert relative_error(model_o, exact_o) <= 0.04


HEAD_SIZES = [Case(1, 2, 1, 40, 70, d, "bottom-right") for d in range(16, 129, 16)]
TYPES = [Case(1, 2, 1, 50, 100, 80, None, o_dtype=o_dtype) for o_dtype in CODES]
SCALES = [Case(1, 1, 1, 64, 128, 64, "bottom-right", "", "float32", s) for s in (0.0, -0.125, 1.0, 1e-30, 2.0)]
TILES = [Case(1, 1, 1, q, k, 128) for q in (191, 192, 193) for k in (127, 128, 129)]
# Edges of tiles of 32 rows, and of the tiles of four groups.
OF_GROUPS = [
    *(Case(1, 1, 1, q, k, 64, "bottom-right") for q in (31, 32, 33) for k in (63, 64, 65, 255, 256, 257, 513)),
    *(Case(1, 1, 1, q, k, 128) for q in (31, 33) for k in (31, 32, 33, 127, 128, 129, 161, 257)),
]


@pytest.mark.parametrize("case", EDGES + CAUSALS + HEAD_SIZES + GROUPS + TYPES + SCALES + TILES + OF_GROUPS, ids=name)
def test_matches_both_references(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Every edge of the tiles, both causal forms, head sizes, groups, dtypes of the result, scales of the softmax."""
    usual = case.head_dim**-0.5
    spread = min(1.0, (usual / abs(case.scale)) ** 0.5) if case.scale else 1.0
    verify(opened, rng, of_e4m3(case)._replace(spread=spread))


@pytest.mark.parametrize("trial", range(8))
def test_random_problems(opened: OpenDevice, rng: np.random.Generator, trial: int) -> None:
    """Random shapes of tensors that are used in place."""
    del trial
    case = random_case(rng, ["float8_e4m3fn"], 128)
    verify(opened, rng, case._replace(head_dim=-(-case.head_dim // 16) * 16))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [None, "bottom-right"])
@pytest.mark.parametrize("step", [0.4, 0.9, 1.6, 8.5, 60.0, 1e5, -1e5])
def test_scores_that_rise(
    opened: OpenDevice, rng: np.random.Generator, step: float, causal: str | None, head_dim: int
) -> None:
    """Each tile of 64 keys exceeds the previous one by powers of 2, up to the range where P comes from differences."""
    scale = step / (32 * 64 * np.log2(np.e))
    case = Case(1, 2, 1, 100, 430, head_dim, causal, "float8_e4m3fn", "float32", scale)
    q, k, v = random_inputs(rng, case)
    q, k = (np.clip(np.rint(x.astype(np.float32)), -2, 2) for x in (q, k))
    q[..., :32] = 1
    k[..., :32] = 64.0 * (np.arange(430) // 64)[:, None]
    inputs = [x.astype(E4M3) for x in (q, k, v)]
    got = run_twice(opened, "fp8", case, inputs)
    compare(opened, case, got, inputs, 7 * abs(step))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("sign", [1, -1])
def test_large_scores_that_differ_by_little(
    opened: OpenDevice, rng: np.random.Generator, head_dim: int, sign: int
) -> None:
    """Scores near 2^22, in powers of 2, differ by multiples of 0.7: P and the sums of groups keep the differences."""
    case = Case(1, 2, 1, 70, 530, head_dim, None, "float8_e4m3fn", "float32", 0.7 * sign / np.log2(np.e))
    q, k, v = random_inputs(rng, case)
    q[..., :32], k[..., :32] = 448 * sign, 448
    q[..., 32:], k[..., 32:] = 0, 0
    q[..., 40], k[..., 40] = 1, np.rint(4 * rng.standard_normal((1, 1, 530))).clip(-12, 12)
    inputs = [x.astype(E4M3) for x in (q, k, v)]
    o, lse = run_twice(opened, "fp8", case, inputs)
    model_o, model_lse = model(opened, inputs, case.factor, case.causal)
    assert relative_error(o, model_o) <= 1e-3
    np.testing.assert_allclose(lse, model_lse, rtol=2e-7)


@pytest.mark.parametrize("scale", [1e4, -3e6, 1e8, 1e30])
def test_enormous_scales_choose_the_largest_score(opened: OpenDevice, rng: np.random.Generator, scale: float) -> None:
    """Scores too large for float32 to resolve: each row is the value of its largest key, never empty."""
    case = Case(1, 2, 2, 70, 150, 64, "bottom-right", "float8_e4m3fn", "float32", scale)
    inputs = [rng.standard_normal((1, 2, rows, 64)).astype(E4M3) for rows in (70, 150, 150)]
    o, lse = run_twice(opened, "fp8", case, inputs)
    model_o, model_lse = model(opened, inputs, scale, case.causal)
    assert relative_error(o, model_o) <= 1e-2
    np.testing.assert_allclose(lse, model_lse, rtol=1e-6)


def test_nan_reaches_the_rows_that_meet_it(opened: OpenDevice, rng: np.random.Generator) -> None:
    """A NaN in a row of q affects only that row; one in v affects only its column."""
    check_poison(opened, rng, "fp8", "float8_e4m3fn", np.nan)


def test_a_spoilt_key_reaches_the_rows_that_see_it(opened: OpenDevice, rng: np.random.Generator) -> None:
    """Every score of a key with a NaN is NaN."""
    case = Case(1, 1, 1, 100, 100, 64, "bottom-right", "float8_e4m3fn")
    q, k, v = random_inputs(rng, case)
    k[0, 0, 70, 40] = np.nan
    try:
        o, lse = run(opened, "fp8", case, q, k, v, 0.125)
    finally:
        opened.release()
    assert np.array_equal(np.isnan(lse[0, 0]), np.arange(100) >= 70)
    assert np.array_equal(np.isnan(o[0, 0]).any(-1), np.arange(100) >= 70)


@pytest.mark.parametrize("repeated", ["k", "past_k", "v", "past_v"])
@pytest.mark.parametrize("dimension", ["batch", "head"])
def test_tensors_repeat_along_dimensions(
    opened: OpenDevice, rng: np.random.Generator, repeated: str, dimension: str
) -> None:
    """k, v or the past with a stride of 0 along batches or heads, the others without."""
    shapes = {"q": 20, "k": 70, "v": 70, "past_k": 30, "past_v": 30}
    arrays = {key: rng.standard_normal((2, 2, rows, 64)).astype(E4M3) for key, rows in shapes.items()}
    args = new_struct("sm120_attention_args")
    args.precision, args.scale = lib.SM120_FP8, 0.125
    args.batch = args.heads = args.kv_heads = 2
    args.q_rows, args.kv_rows, args.past_rows, args.head_dim = 20, 70, 30, 64
    for key, x in arrays.items():
        tensor(getattr(args, key), Buffer(opened, x.shape, x.dtype, None, x))
    setattr(getattr(args, repeated), f"{dimension}_stride", 0)
    x = arrays[repeated]
    x[:] = x[:1] if dimension == "batch" else x[:, :1]
    o = Buffer(opened, (2, 2, 20, 64), np.float32)
    tensor(args.o, o)
    try:
        check(lib.sm120_attention(opened.handle, args, 0, 0))
        got = o.download()
    finally:
        opened.release()
    k, v = (np.concatenate([arrays[f"past_{key}"], arrays[key]], 2) for key in "kv")
    exact, _ = attention_float64(*rows_first([arrays["q"], k, v]), 0.125, None)
    assert relative_error(got.swapaxes(1, 2).astype(np.float64), exact) <= 0.04


def test_every_code(opened: OpenDevice, rng: np.random.Generator) -> None:
    """All 254 finite codes as values; one key decides each row, so that O is a code exactly."""
    codes = np.arange(256, dtype=np.uint8).view(E4M3)
    codes = np.concatenate([codes[~np.isnan(codes.astype(np.float32))], np.zeros(2, E4M3)])
    v = rng.permutation(codes).reshape(1, 1, 4, 64)
    k = np.zeros((1, 1, 4, 64), E4M3)
    k[0, 0, range(4), range(4)] = 448
    case = Case(1, 1, 1, 4, 4, 64, None, "float8_e4m3fn", "float32", 1.0)
    o, _ = run_twice(opened, "fp8", case, [k, k, v])
    assert np.array_equal(o[0, :, 0], v[0, 0].astype(np.float64))


# ---- scales, amax, results in e4m3 -----------------------------------------------------


def scaled(opened: OpenDevice, case: Case, inputs: list[Array], o_dtype: str, **scales: Array) -> tuple[Array, Array]:
    """Launch with scales and amax [batch][heads] or with fewer; return O [batch, head, row, head_dim] and amax."""
    args = new_struct("sm120_attention_args")
    args.precision, args.scale = lib.SM120_FP8, case.factor
    args.batch, args.heads, args.kv_heads = case.batch, case.heads, case.kv_heads
    args.q_rows, args.kv_rows, args.head_dim = case.q_rows, case.kv_rows, case.head_dim
    for struct, x in zip((args.q, args.k, args.v), inputs, strict=True):
        tensor(struct, Buffer(opened, x.shape, x.dtype, None, x))
    o = Buffer(opened, inputs[0].shape, np.float32 if o_dtype == "float32" else E4M3)
    tensor(args.o, o)
    assert args.o.dtype == ALL_CODES[o_dtype]
    amax = Buffer(opened, (case.batch, case.heads), np.float32, None, np.zeros((case.batch, case.heads)))
    amax.is_output = True
    for key, x in scales.items():
        buffer = Buffer(opened, x.shape, np.float32, None, x.astype(np.float32))
        struct = getattr(args, key)
        struct.address, struct.dtype = buffer.address, lib.SM120_F32
        struct.head_stride = 1 if x.shape[-1] > 1 else 0
        struct.batch_stride = x.shape[-1] if x.ndim > 1 and x.shape[0] > 1 else 0
    args.amax.address, args.amax.dtype = amax.address, lib.SM120_F32
    args.amax.batch_stride, args.amax.head_stride = case.heads, 1
    try:
        check(lib.sm120_attention(opened.handle, args, 0, 0))
        return o.download(), amax.download()
    finally:
        opened.release()


@pytest.mark.parametrize("head_dim", [64, 128])
def test_scales_of_powers_of_two_change_nothing_else(
    opened: OpenDevice, rng: np.random.Generator, head_dim: int
) -> None:
    """Scales of a head: exactly what the scale of the softmax and a factor of O give."""
    case = Case(2, 4, 2, 70, 90, head_dim, None, "float8_e4m3fn")
    inputs = random_inputs(rng, case)
    q_scale, k_scale, v_scale = (2.0 ** rng.integers(-3, 4, (2, heads)) for heads in (4, 2, 2))
    o, amax = scaled(opened, case, inputs, "float32", q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)
    for b in range(2):
        for h in range(4):
            one = Case(1, 1, 1, 70, 90, head_dim, None, "float8_e4m3fn")
            factor = q_scale[b, h] * k_scale[b, h // 2]
            alone = one._replace(scale=float(np.float32(case.factor) * factor))
            part = [inputs[0][b : b + 1, h : h + 1], *(x[b : b + 1, h // 2 : h // 2 + 1] for x in inputs[1:])]
            wanted, _ = scaled(opened, alone, part, "float32")
            # Of an O below the least normal number, the factor that comes later rounds the last bit once more.
            last_bit = np.finfo(np.float32).smallest_subnormal
            assert np.abs(o[b, h] - wanted[0, 0] * v_scale[b, h // 2]).max() <= last_bit
            assert amax[b, h] == np.abs(o[b, h]).max()


@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
def test_q_scale_of_kv_heads(device: pysm120.Device, rng: np.random.Generator, layout: str) -> None:
    """q_scale may have one element for each head of k, as in FlashAttention 3."""
    q, k, v = python_inputs(rng)
    q, k, v = (x.swapaxes(1, 2).copy() if layout == "BHSD" else x for x in (q, k, v))
    for shape in ((2,), (2, 2)):
        q_scale = rng.uniform(0.01, 0.1, shape).astype(np.float32)
        got, wanted = (
            pysm120.attention(q, k, v, q_scale=x, layout=layout, out_dtype="float32", device=device)
            for x in (q_scale, np.repeat(q_scale, 2, -1))
        )
        assert np.array_equal(got, wanted)


@pytest.mark.parametrize("magnitude", [1.0, 40.0])
def test_results_in_e4m3(opened: OpenDevice, rng: np.random.Generator, magnitude: float) -> None:
    """Codes are those of the float32 result over o_scale, bit for bit; beyond 448 they saturate; amax is exact."""
    case = Case(2, 2, 1, 50, 70, 80, None, "float8_e4m3fn")
    inputs = random_inputs(rng, case)
    inputs[2] = (inputs[2].astype(np.float32) * magnitude).astype(E4M3)
    o, amax = scaled(opened, case, inputs, "float32", v_scale=np.full(1, 4.0))
    for o_scale in (np.full(1, 0.003), np.full((2, 2), 0.3) * rng.uniform(0.5, 2, (2, 2)), np.full((1, 2), 0.01)):
        codes, again = scaled(opened, case, inputs, "float8_e4m3fn", v_scale=np.full(1, 4.0), o_scale=o_scale)
        inverse = np.float32(1) / o_scale.astype(np.float32)
        wanted = o * np.broadcast_to(inverse, (2, 2))[..., None, None]
        wanted = np.clip(wanted, -448, 448).astype(E4M3)
        assert np.array_equal(codes.view(np.uint8), wanted.view(np.uint8))
        assert np.array_equal(again, amax)
        assert np.array_equal(amax, np.abs(o).max((2, 3)))


def test_amax_leaves_out_rows_behind_the_end(opened: OpenDevice) -> None:
    """Those of a tile, whose scores are 0: they would give the mean of v, which is far above every row of O."""
    x = np.zeros((1, 1, 70, 64), E4M3)
    x[:, :, 0] = 8
    q, v = np.full((1, 1, 5, 64), 8, E4M3), np.full((1, 1, 70, 64), 4, E4M3)
    v[:, :, 0] = 0.125
    case = Case(1, 1, 1, 5, 70, 64, None, "float8_e4m3fn", "float32", 1.0)
    o, amax = scaled(opened, case, [q, x, v], "float32")
    assert np.array_equal(o, np.full((1, 1, 5, 64), 0.125))
    assert amax[0, 0] == 0.125


def test_a_scale_of_zero_and_of_nan(opened: OpenDevice, rng: np.random.Generator) -> None:
    """A scale of 0 makes all scores 0, even of codes that are NaN; a scale that is NaN makes O NaN."""
    case = Case(1, 2, 2, 20, 70, 64, None, "float8_e4m3fn")
    q, k, v = random_inputs(rng, case)
    q[0, 0, 3, 5] = np.nan
    o, amax = scaled(opened, case, [q, k, v], "float32", q_scale=np.array([[0.0, np.nan]]))
    np.testing.assert_allclose(o[0, 0], np.tile(v[0, 0].astype(np.float64).mean(0), (20, 1)), rtol=1e-5, atol=1e-6)
    assert np.isnan(o[0, 1]).all()
    assert np.isnan(amax[0, 1])
    assert amax[0, 0] == np.abs(o[0, 0]).max()


@pytest.mark.parametrize("scale", ["q_scale", "k_scale", "v_scale", "o_scale"])
@pytest.mark.parametrize("written", ["o", "amax"])
def test_what_is_written_is_apart_from_scales(opened: OpenDevice, scale: str, written: str) -> None:
    """A scale in the memory of o or of amax is refused, and the message names both."""
    args = new_struct("sm120_attention_args")
    args.precision, args.scale = lib.SM120_FP8, 1.0
    args.batch = args.heads = args.kv_heads = args.q_rows = args.kv_rows = 1
    args.head_dim = 16
    x = np.zeros((1, 1, 1, 16), E4M3)
    for struct in (args.q, args.k, args.v):
        tensor(struct, Buffer(opened, x.shape, x.dtype, None, x))
    tensor(args.o, Buffer(opened, x.shape, x.dtype))
    amax = Buffer(opened, (1,), np.float32)
    args.amax.address, args.amax.dtype = amax.address, lib.SM120_F32
    struct = getattr(args, scale)
    struct.address, struct.dtype = getattr(args, written).address, lib.SM120_F32
    try:
        assert lib.sm120_attention(opened.handle, args, 0, 0) == lib.SM120_INVALID_ARGUMENT
        message = ffi.string(lib.sm120_last_error()).decode()
    finally:
        opened.release()
    assert f"{scale} (0x" in message
    assert f"{written}" in message
    assert message.split(";")[0].endswith("overlap")


# ---- the Python function --------------------------------------------------------------


def python_inputs(rng: np.random.Generator, rows: int = 20) -> list[Any]:
    """Draw q, k and v (B, S, H, D) with twice as many heads of q."""
    shapes = ((2, rows, 4, 64), (2, 33, 2, 64), (2, 33, 2, 64))
    return [(rng.standard_normal(shape) * 16).astype(E4M3) for shape in shapes]


def test_shapes_of_scales(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Numbers, (1,), (heads,) and (B, heads), in both layouts, on the host and on the device, give the same O."""
    q, k, v = python_inputs(rng)
    # One P may lie next to a tie, so all forms use scales whose values are equal.
    wanted = pysm120.attention(q, k, v, q_scale=1 / 16, k_scale=1 / 16, v_scale=0.25, device=device)
    assert wanted.dtype == ml_dtypes.bfloat16
    values = [x.astype(np.float32) * scale for x, scale in ((q, 1 / 16), (k, 1 / 16), (v, 0.25))]
    exact, _ = attention_float64(values[0], values[1], values[2], 0.125, None)
    assert relative_error(wanted.astype(np.float64), exact) <= 0.04
    for of_q, of_k in (((1,), (1,)), ((4,), (2,)), ((2, 4), (2, 2)), ((1, 4), (2, 1)), ((), ())):
        scales: dict[str, Any] = {
            "q_scale": np.full(of_q, 1 / 16, np.float32),
            "k_scale": np.full(of_k, 1 / 16, np.float32),
        }
        scales["v_scale"] = np.full(of_k, 0.25, np.float32)
        got = pysm120.attention(q, k, v, **scales, device=device)
        assert np.array_equal(got.view(np.uint16), wanted.view(np.uint16))
        turned: list[Any] = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
        got = pysm120.attention(*turned, **scales, layout="BHSD", device=device)
        assert np.array_equal(got.swapaxes(1, 2).view(np.uint16), wanted.view(np.uint16))
        there: dict[str, Any] = {name: device.array(x) for name, x in scales.items() if x.ndim}
        if there:
            on_device = pysm120.attention(device.array(q), device.array(k), device.array(v), **there)
            assert np.array_equal(on_device.numpy().view(np.uint16), wanted.view(np.uint16))


def test_amax_is_raised(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A given array keeps what is larger; one element serves all heads."""
    q, k, v = python_inputs(rng)
    heads, one = np.zeros(4, np.float32), np.full(1, 5000, np.float32)
    heads[2] = 9999
    o = pysm120.attention(q, k, v, out_dtype="float32", amax=heads, device=device)
    pysm120.attention(q, k, v, amax=one, device=device)
    wanted = np.abs(o).max((0, 1, 3))
    wanted[2] = 9999
    assert np.array_equal(heads, wanted)
    assert one == 5000
    q, k, v = (x[0] for x in (q, k, v))
    starts_q, starts_k, packed = (
        np.array([0, 5, 20], np.int32),
        np.array([0, 30, 33], np.int32),
        np.zeros(1, np.float32),
    )
    o = pysm120.attention_varlen(
        q, k, v, starts_q, starts_k, k_scale=np.full(2, 0.1, np.float32), v_scale=2.0, out_dtype="float32",
        amax=packed, device=device,
    )  # fmt: skip
    assert packed == np.abs(o).max()
    # (B, heads): scales of each sequence
    q_scale = rng.uniform(0.01, 0.1, (2, 4)).astype(np.float32)
    o = pysm120.attention_varlen(q, k, v, starts_q, starts_k, q_scale=q_scale, out_dtype="float32", device=device)
    for b in range(2):
        rows, keys = slice(*starts_q[b : b + 2]), slice(*starts_k[b : b + 2])
        alone = pysm120.attention(
            q[None, rows], k[None, keys], v[None, keys], q_scale=q_scale[b], out_dtype="float32", device=device
        )
        assert relative_error(o[rows], alone[0]) <= 0.03


@pytest.mark.parametrize("shape", [(1, 3, 2, 20), (2, 7, 1, 33), (1, 40, 3, 128)])
def test_misaligned_tensors_are_copied(
    device: pysm120.Device, rng: np.random.Generator, shape: tuple[int, ...]
) -> None:
    """Tensors that no tensor map can describe: odd head sizes, and addresses between multiples of 16."""
    given = [rng.standard_normal(shape).astype(E4M3) for _ in range(3)]
    placed = []
    for x in given:
        room = device.array(np.zeros(x.size + 3, E4M3))
        part = room[3:].reshape(*shape)
        part.copy_from(x)
        placed.append(part)
    q, k, v = (x.astype(np.float32) for x in given)
    exact, _ = attention_float64(q, k, v, shape[-1] ** -0.5, None)
    got = pysm120.attention(*placed, out_dtype="float32").numpy()
    assert relative_error(got, exact) <= 0.04
    codes = pysm120.attention(*placed, out_dtype=E4M3).numpy()
    assert np.array_equal(codes.view(np.uint8), got.astype(E4M3).view(np.uint8))


@pytest.mark.parametrize("head_dim", [8, 24, 72, 120])
def test_head_sizes_between_multiples_of_16(device: pysm120.Device, rng: np.random.Generator, head_dim: int) -> None:
    """Rows of aligned strides, with NaN behind them, which must not reach O; nothing behind rows of O is written."""
    width = -(-head_dim // 16) * 16
    wide = [np.full((1, 40, 2, width), np.nan).astype(E4M3) for _ in range(3)]
    for x in wide:
        x[..., :head_dim] = rng.standard_normal((1, 40, 2, head_dim)).astype(E4M3)
    q, k, v = (device.array(x)[..., :head_dim] for x in wide)
    room = device.array(np.full((1, 40, 2, width), 7, np.float32))
    pysm120.attention(q, k, v, out=room[..., :head_dim])
    got = room.numpy()
    assert np.all(got[..., head_dim:] == 7)
    values = [x[..., :head_dim].astype(np.float32) for x in wide]
    exact, _ = attention_float64(values[0], values[1], values[2], head_dim**-0.5, None)
    assert relative_error(got[..., :head_dim].astype(np.float64), exact) <= 0.04


def test_what_is_refused(rng: np.random.Generator) -> None:
    """One sentence for each: the argument, its value, what would be right."""
    q, k, v = python_inputs(rng)
    half = [x.astype(np.float16) for x in (q, k, v)]
    lse: Any = np.zeros((2, 4, 20), np.float32)

    def refused(error: type[Exception], words: str, *arrays: Any, **options: Any) -> None:
        with pytest.raises(error, match=words):
            pysm120.attention(*arrays, device="virtual", **options)

    refused(TypeError, "dtype float16, but precision 'fp8' needs float8_e4m3fn", *half, precision="fp8")
    refused(TypeError, "float8_e4m3fn, but precision 'bf16' needs bfloat16 or float32", q, k, v, precision="bf16")
    refused(ValueError, r"q_scale is given, which only precision = FP8 \(0x\w+\) has", *half, q_scale=2.0)
    refused(ValueError, "amax is given", *half, amax=np.zeros(1, np.float32))
    refused(ValueError, "o_scale is given, but out.dtype", q, k, v, o_scale=2.0)
    refused(TypeError, "q_scale has dtype float64, not float32", q, k, v, q_scale=np.ones(1))
    refused(ValueError, r"k_scale has shape .*which does not broadcast", q, k, v, k_scale=np.ones(4, np.float32))
    refused(ValueError, r"v_scale is of shape \(1, 1, 1\)", q, k, v, v_scale=np.ones((1, 1, 1), np.float32))
    refused(TypeError, "v_scale is a str, not an array", q, k, v, v_scale="1")
    refused(ValueError, "head size 144, above 128", *(np.zeros((1, 4, 1, 144), E4M3),) * 3)
    refused(TypeError, "out has dtype float8_e5m2", q, k, v, out=np.zeros(q.shape, ml_dtypes.float8_e5m2))
    with pytest.raises(pysm120.UnsupportedError, match=r"out.dtype = E4M3 \(0x\w+\), which only precision = FP8"):
        pysm120.attention(*half, out=np.zeros(q.shape, E4M3), device="virtual")
    with pytest.raises(TypeError, match="precision 'fp8' needs"):
        pysm120.attention_backward(half[0], half[0], half[1], half[2], half[0], lse, precision="fp8", device="virtual")
