"""attention on operands that are MXFP8 already: the bits of the call that quantises them, in every form of a call."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_cases import PRECISIONS, pitched
from feature_cases import Case, Problem, fill_features, places
from harness import ALL_CODES, DTYPES, Buffer, OpenDevice, check, ffi, lib, new_struct, tensor
from reference import Array, dequantize_mxfp8, quantize_mxfp8

import pysm120

E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
BLOCK, NAN_SCALE, NAN_CODE = 32, 0xFF, 0x7F
ORDERS = {"q": "BSHD", "k": "BHSD", "v": "BSHD", "past_k": "BSHD", "past_v": "BHSD"}
Pair = tuple[Array, Array]


def along_head(x: Array) -> Pair:
    """Elements and scales of q or k."""
    return quantize_mxfp8(x, -1)


def along_rows(x: Array, lengths: tuple[int, ...] | None = None, *, packed: bool = False) -> Pair:
    """Elements and scales of v, of each sequence by itself. Elements and scales that belong to none are NaN."""
    if lengths is None:
        return quantize_mxfp8(x, -2)
    batch, heads, rows, columns = x.shape
    blocks = -(-rows // BLOCK) + (len(lengths) - 1 if packed else 0)
    elements = np.full(x.shape, NAN_CODE, np.uint8).view(E4M3)
    scales = np.full((batch, heads, blocks, columns), NAN_SCALE, np.uint8).view(E8M0)
    for b, (at, where) in enumerate(places(lengths, packed=packed)):
        if where.stop > where.start:
            codes, factors = quantize_mxfp8(x[at, :, where], -2)
            first = where.start // BLOCK + b if packed else 0
            elements[at, :, where] = codes
            scales[at, :, first : first + factors.shape[1]] = factors
    return elements, scales


def pairs_of(problem: Problem) -> dict[str, Pair]:
    """Every operand of a problem as MXFP8."""
    case = problem.case
    found = {"q": along_head(problem.q), "k": along_head(problem.k)}
    found["v"] = along_rows(problem.v, case.kv_lengths, packed=case.kv_packed)
    if case.past:
        found |= {"past_k": along_head(problem.past_k), "past_v": along_rows(problem.past_v)}
    return found


def write(opened: OpenDevice, struct: Any, x: Array, order: str, gap: int, dtype: int | None = None) -> None:
    """Fill an sm120_tensor with an array in device memory, between guard bands."""
    buffer = Buffer(opened, x.shape, x.dtype, pitched(x.shape, order, gap), x)
    struct.address, struct.dtype = buffer.address, ALL_CODES[x.dtype.name] if dtype is None else dtype
    struct.batch_stride, struct.head_stride, struct.row_stride = buffer.strides[:3]


def run(
    opened: OpenDevice, problem: Problem, pairs: dict[str, Pair], *, code: int = lib.SM120_E8M0
) -> tuple[Array, Array]:
    """Launch with some operands in MXFP8; O and LSE as they lie in memory."""
    case = problem.case
    args = new_struct("sm120_attention_args")
    args.precision = PRECISIONS[str(case.precision)]
    fill_features(opened, args, problem)
    args.past_rows = case.past
    for name, order in ORDERS.items():
        if name in pairs:
            elements, scales = pairs[name]
            write(opened, getattr(args, name), elements, order, 8 + case.gap)
            write(opened, getattr(args, f"{name}_blocks"), scales.view(np.uint8), order, 3, code)
        elif case.past or not name.startswith("past"):
            write(opened, getattr(args, name), getattr(problem, name), order, 16 + case.gap)
    shape = (*problem.q.shape[:3], problem.v_dim)
    o = Buffer(opened, shape, DTYPES[case.o_dtype], pitched(shape, "BSHD", 8))
    lse = Buffer(opened, shape[1:3] if case.q_packed else shape[:3], np.float32)
    tensor(args.o, o)
    args.lse = lse.address
    size = ffi.new("size_t *")
    check(lib.sm120_attention_workspace(opened.handle, args, size))
    workspace = Buffer(opened, (int(size[0]),), np.uint8)
    check(lib.sm120_attention(opened.handle, args, workspace.address, size[0]))
    return o.download(), lse.download()


def expect_same(opened: OpenDevice, problem: Problem, pairs: dict[str, Pair], **options: Any) -> None:
    """Compare the bits of a call with those of the call on the arrays that were quantised."""
    try:
        wanted, sums = run(opened, problem, {})
        got, logs = run(opened, problem, pairs, **options)
    finally:
        opened.release()
    assert np.array_equal(wanted.view(np.uint8), got.view(np.uint8))
    assert np.array_equal(sums.view(np.uint32), logs.view(np.uint32))


SHAPES = [
    *(Case((q,), (k,), head_dim=d) for q, k, d in ((1, 1, 8), (63, 31, 64), (64, 32, 128), (65, 33, 256))),
    *(Case((130,), (129,), head_dim=d, v_head_dim=w) for d, w in ((72, 40), (136, 200), (248, 16), (33, 65))),
    Case((130,), (200,), head_dim=66, v_head_dim=250, heads=4, kv_heads=2, causal=True),
    Case((70, 70), (90, 90), heads=6, kv_heads=2, head_dim=128, causal=True, align="top-left"),
    Case((40,), (70,), gap=4),
    Case((40,), (70,), gap=3, head_dim=128),
    Case((40,), (300,), dtype="float32", o_dtype="float16"),
    Case((40,), (70,), scale=-0.2),
    Case((40,), (70,), scale=0.0, head_dim=128),
]
FEATURES = [
    Case((60, 60, 60, 60), (1, 64, 65, 130)),
    Case((60, 60, 60), (0, 63, 127), causal=True, head_dim=128, heads=4, kv_heads=2),
    Case((60, 60), (40, 200), head_dim=256, window=(20, 20)),
    Case((10, 1, 130, 64), (20, 33, 130, 1), q_packed=True, kv_packed=True),
    Case((10, 1, 130, 64), (31, 32, 1, 64), q_packed=True, kv_packed=True, causal=True, head_dim=128, heads=4),
    Case((5, 0, 200), (0, 70, 200), q_packed=True, kv_packed=True, head_dim=256),
    Case((5, 6), (33, 31), kv_packed=True, v_head_dim=33),
    Case((100, 30), (80, 80), q_packed=True, softcap=3.0, sinks=True),
    Case((30, 30), (40, 40), past=75, causal=True),
    Case((30,), (33,), past=64, head_dim=256, gap=3, slopes="heads"),
    Case((30,), (40,), past=31, head_dim=128, mask="bool"),
]


@pytest.mark.parametrize("case", SHAPES + FEATURES, ids=str)
def test_the_bits_of_the_tensors_that_were_quantised(opened: OpenDevice, rng: np.random.Generator, case: Case) -> None:
    """Every edge of the tiles, copies, groups, signs of the scale, lengths, packed sequences, a past."""
    problem = Problem(rng, case._replace(precision="mxfp8"))
    expect_same(opened, problem, pairs_of(problem))


@pytest.mark.parametrize("names", [("q",), ("k",), ("v",), ("past_k",), ("past_v",), ("q", "v", "past_k")], ids=str)
def test_each_operand_by_itself(opened: OpenDevice, rng: np.random.Generator, names: tuple[str, ...]) -> None:
    """The others are in 16 bits, also those of other head sizes than 8 bits need."""
    problem = Problem(rng, Case((70,), (100,), heads=4, kv_heads=2, head_dim=72, past=40, precision="mxfp8"))
    pairs = pairs_of(problem)
    expect_same(opened, problem, {name: pairs[name] for name in names}, code=lib.SM120_U8)


@pytest.mark.parametrize(
    ("precision", "dtype", "names"),
    [
        ("mxfp8_bf16", "bfloat16", ("q", "k", "past_k")),
        ("mxfp8_f16", "float16", ("k", "past_k")),
        ("mxfp8_f16", "float16", ("q",)),
        ("nvfp4_mxfp8", "bfloat16", ("v", "past_v")),
    ],
)
@pytest.mark.parametrize("past", [0, 50])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_mixed_precisions(
    opened: OpenDevice,
    rng: np.random.Generator,
    precision: str,
    dtype: str,
    names: tuple[str, ...],
    past: int,
    head_dim: int,
) -> None:
    case = Case((70, 70), (100, 100), head_dim=head_dim, past=past, dtype=dtype, precision=precision, causal=True)
    problem = Problem(rng, case)
    pairs = pairs_of(problem)
    expect_same(opened, problem, {name: pairs[name] for name in names if name in pairs})


# ---- the values ------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.125, -0.125, 0.0])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_nan_blocks(opened: OpenDevice, rng: np.random.Generator, head_dim: int, scale: float) -> None:
    """A block with a NaN or an infinity is NaN as a whole, zeros times a scale of 0 too; so are its rows or columns."""
    problem = Problem(rng, Case((40,), (70,), head_dim=head_dim, scale=scale, precision="mxfp8"))
    problem.q[0, 0, 7, 3] = np.nan
    problem.q[0, 1, 9, 60] = np.inf
    problem.v[0, 0, 50, 20] = -np.inf
    pairs = pairs_of(problem)
    assert (pairs["q"][1].view(np.uint8) == NAN_SCALE).sum() == 2
    try:
        wanted, _ = run(opened, problem, {})
        got, _ = run(opened, problem, pairs)
        bare = {name: (np.where(np.isnan(x.astype(np.float32)), E4M3(1), x), s) for name, (x, s) in pairs.items()}
        unmarked, _ = run(opened, problem, bare)
    finally:
        opened.release()
    spoilt = np.zeros(wanted.shape, bool)
    spoilt[0, 0, 7] = spoilt[0, 1, 9] = spoilt[..., 20] = True
    for o in (wanted, got, unmarked):
        assert np.array_equal(np.isnan(o), spoilt)
    assert np.array_equal(wanted[~spoilt], got[~spoilt])


@pytest.mark.parametrize("scale", [0.125, -0.125, 0.0])
def test_nan_elements_of_a_finite_scale(opened: OpenDevice, rng: np.random.Generator, scale: float) -> None:
    """No quantiser of ours writes them; they are NaN by themselves, of either sign."""
    problem = Problem(rng, Case((40,), (70,), scale=scale, precision="mxfp8"))
    pairs = pairs_of(problem)
    pairs["q"][0].view(np.uint8)[0, 0, 7, 3] = NAN_CODE
    pairs["q"][0].view(np.uint8)[0, 1, 9, 33] = NAN_CODE | 0x80
    try:
        got, logs = run(opened, problem, pairs)
    finally:
        opened.release()
    rows = np.zeros((1, 2, 40), bool)
    rows[0, 0, 7] = rows[0, 1, 9] = True
    assert np.array_equal(np.isnan(logs), rows)
    assert np.array_equal(np.isnan(got).all(-1), rows)
    assert np.array_equal(np.isnan(got).any(-1), rows)


@pytest.mark.parametrize("rounding", ["floor", "any"])
def test_scales_of_other_quantisers(opened: OpenDevice, rng: np.random.Generator, rounding: str) -> None:
    """Their scales may be larger or smaller than ours; the values count, which float32 holds exactly."""
    problem = Problem(rng, Case((70,), (100,), head_dim=128, dtype="float32", precision="mxfp8"))
    pairs: dict[str, Pair] = {}
    for name, axis in (("q", -1), ("k", -1), ("v", -2)):
        elements, scales = quantize_mxfp8(getattr(problem, name), axis, "floor")
        if rounding == "any":
            scales = (scales.view(np.uint8) + rng.integers(-6, 6, scales.shape)).astype(np.uint8).view(E8M0)
        pairs[name] = elements, scales
        setattr(problem, name, dequantize_mxfp8(elements, scales, axis).astype(np.float32))
    if rounding == "any":  # some blocks have no large element
        for name, axis in (("q", -1), ("k", -1), ("v", -2)):
            elements, scales = pairs[name]
            small = np.where(rng.random(elements.shape) < 0.5, elements, elements * E4M3(2.0**-5)).astype(E4M3)
            # The exponents of elements tell where a sum is cut off, and those of subnormals depend on the scale.
            small = np.where(np.abs(small.astype(np.float32)) < 2.0**-6, E4M3(0), small).astype(E4M3)
            pairs[name] = small, scales
            setattr(problem, name, dequantize_mxfp8(small, scales, axis).astype(np.float32))
    expect_same(opened, problem, pairs)


def test_scales_from_0_to_the_largest(opened: OpenDevice, rng: np.random.Generator) -> None:
    """2^-127 is below float32's normal numbers. Of the largest, the weighted sum overflows, as that of float32 does."""
    problem = Problem(rng, Case((1,), (32,), heads=1, v_head_dim=256, dtype="float32", precision="mxfp8"))
    scales = np.arange(256, dtype=np.uint8)[None, None, None, :].view(E8M0)
    codes = np.full((1, 1, 32, 256), 1.75).astype(E4M3)
    problem.q[:] = 0
    problem.v = dequantize_mxfp8(codes, scales, -2).astype(np.float32)
    expect_same(opened, problem, {"v": (codes, scales)})
    try:
        got, _ = run(opened, problem, {"v": (codes, scales)})
    finally:
        opened.release()
    wanted = 1.75 * 2.0 ** (np.arange(1.0, 240.0) - 127)
    np.testing.assert_allclose(got[0, 0, 0, 1:240], wanted, rtol=2.0**-20)
    assert np.isnan(got[0, 0, 0, 255])


# ---- broadcasts, addresses, workspace -----------------------------------------------------


def simple(opened: OpenDevice, rng: np.random.Generator) -> Any:
    """A call of C with MXFP8 operands, two batches of two heads, and everything that it needs."""
    case = Case((40, 40), (70, 70), kv_heads=2, precision="mxfp8")
    problem = Problem(rng, case)
    args = new_struct("sm120_attention_args")
    args.precision = lib.SM120_MXFP8
    fill_features(opened, args, problem)
    pairs = pairs_of(problem)
    for name, (elements, scales) in pairs.items():
        write(opened, getattr(args, name), elements, "BHSD", 0)
        write(opened, getattr(args, f"{name}_blocks"), scales.view(np.uint8), "BHSD", 0, lib.SM120_E8M0)
    o = Buffer(opened, problem.q.shape, np.float32)
    tensor(args.o, o)
    workspace = Buffer(opened, (1 << 18,), np.uint8)
    return args, o, workspace.address, pairs


def launch(opened: OpenDevice, made: Any) -> Array:
    args, o, workspace, _ = made
    check(lib.sm120_attention(opened.handle, args, workspace, 1 << 18))
    got: Array = o.download()
    return got


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_broadcast_operands_and_scales(opened: OpenDevice, rng: np.random.Generator, name: str) -> None:
    """Strides of 0 repeat a head, and the scale of a whole tensor is one byte."""
    try:
        made = simple(opened, rng)
        x, blocks = getattr(made[0], name), getattr(made[0], f"{name}_blocks")
        elements, scales = made[3][name]
        one = Buffer(opened, (scales.shape[-1],), np.uint8, None, np.full(scales.shape[-1], 125, np.uint8))
        blocks.address, blocks.batch_stride, blocks.head_stride, blocks.row_stride = one.address, 0, 0, 0
        x.batch_stride = x.head_stride = 0
        got = launch(opened, made)
        write(opened, x, np.broadcast_to(elements[:1, :1], elements.shape), "BHSD", 0)
        write(opened, blocks, np.full(scales.shape, 125, np.uint8), "BHSD", 0, lib.SM120_U8)
        assert np.array_equal(got, launch(opened, made))
    finally:
        opened.release()


def test_the_workspace_is_that_of_16_bits_and_copies_cost_more(opened: OpenDevice, rng: np.random.Generator) -> None:
    size = ffi.new("size_t *")
    try:
        args = simple(opened, rng)[0]
        sizes = {}
        for name, shift in (("aligned", 0), ("in steps of 8", 8), ("misaligned", 4)):
            args.k.row_stride += shift
            check(lib.sm120_attention_workspace(opened.handle, args, size))
            sizes[name] = int(size[0])
            args.k.row_stride -= shift
        for name in "qkv":
            getattr(args, name).dtype = lib.SM120_BF16
            getattr(args, f"{name}_blocks").address = 0
        check(lib.sm120_attention_workspace(opened.handle, args, size))
    finally:
        opened.release()
    assert sizes["aligned"] == sizes["in steps of 8"] == size[0]
    assert sizes["misaligned"] == size[0] + -(-2 * 2 * 70 * 64 // 256) * 256


WRONG = [
    ("k_blocks.dtype", 0, "INVALID_ARGUMENT", "k_blocks.dtype = 0x00000000; k in E4M3 needs scales in E8M0"),
    ("v_blocks.dtype", lib.SM120_E4M3, "INVALID_ARGUMENT", "v in E4M3 needs scales in E8M0 .* for each 32 rows"),
    ("q_blocks.address", 0, "INVALID_ARGUMENT", "q_blocks.address = 0"),
    ("k_blocks.reserved", 1, "INVALID_ARGUMENT", "k_blocks.reserved = 1"),
    ("k_blocks.row_stride", -1, "INVALID_ARGUMENT", "k_blocks.row_stride = -1"),
    ("v_blocks.head_stride", 1 << 20, "INVALID_ARGUMENT", "past the end"),
    ("v_blocks.row_stride", 1 << 62, "UNSUPPORTED", "v_blocks: 2 steps .* exceed 2.63 bytes"),
    ("q.dtype", lib.SM120_BF16, "INVALID_ARGUMENT", "q_blocks is given, but q.dtype = BF16"),
    ("q.dtype", lib.SM120_E5M2, "INVALID_ARGUMENT", "q_blocks is given, but q.dtype"),
    ("precision", lib.SM120_FP8, "INVALID_ARGUMENT", "q_blocks is given"),
    ("precision", lib.SM120_BF16, "INVALID_ARGUMENT", "q_blocks is given"),
    ("precision", lib.SM120_NVFP4, "INVALID_ARGUMENT", "q_blocks is given"),
    ("precision", lib.SM120_MXFP8_BF16, "INVALID_ARGUMENT", "v_blocks is given.* it is for E4M3 in MXFP8 and NVFP4_"),
    ("o.dtype", lib.SM120_E4M3, "UNSUPPORTED", "o.dtype"),
    ("k.row_stride", 60, "WORKSPACE_TOO_SMALL", "workspace_bytes"),
]


@pytest.mark.parametrize(("member", "value", "status", "words"), WRONG, ids=[f"{x[0]}-{x[1]}" for x in WRONG])
def test_wrong_members(
    opened: OpenDevice, rng: np.random.Generator, member: str, value: int, status: str, words: str
) -> None:
    try:
        args, o, workspace, _ = simple(opened, rng)
        size = ffi.new("size_t *")
        check(lib.sm120_attention_workspace(opened.handle, args, size))
        struct, field = member.split(".") if "." in member else ("", member)
        setattr(getattr(args, struct) if struct else args, field, value)
        got = lib.sm120_attention(opened.handle, args, workspace, size[0])
        message = ffi.string(lib.sm120_last_error()).decode()
        assert got == getattr(lib, f"SM120_{status}"), message
        assert np.isnan(o.download()).all()
    finally:
        opened.release()
    with pytest.raises(ValueError, match=words):
        raise ValueError(message)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_results_may_not_overwrite_scales(opened: OpenDevice, rng: np.random.Generator, name: str) -> None:
    try:
        made = simple(opened, rng)
        getattr(made[0], f"{name}_blocks").address = made[1].address
        assert lib.sm120_attention(opened.handle, made[0], made[2], 1 << 18) == lib.SM120_INVALID_ARGUMENT
        assert f"{name}_blocks (0x" in ffi.string(lib.sm120_last_error()).decode()
    finally:
        opened.release()


# ---- Python ----------------------------------------------------------------------------


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)


def quantised(x: Any, axis: int, device: pysm120.Device) -> Pair:
    """BSHD arrays in MXFP8, along the rows (-2 of BHSD) or along the head."""
    if axis == -1:
        elements, scales = pysm120.quantize_mxfp8(x, device=device)
        return elements, scales
    elements, scales = pysm120.quantize_mxfp8(x.transpose(0, 2, 1, 3), axis=-2, device=device)
    return elements.transpose(0, 2, 1, 3), scales.transpose(0, 2, 1, 3)


@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
@pytest.mark.parametrize("where", ["host", "device"])
def test_tuples_of_quantize_mxfp8(device: pysm120.Device, rng: np.random.Generator, where: str, layout: str) -> None:
    """What quantize_mxfp8 returns is taken as it is; the default precision is mxfp8, and that of a result bfloat16."""
    arrays = [normal(rng, 2, rows, heads, 64) for rows, heads in ((40, 4), (70, 2), (70, 2), (33, 2), (33, 2))]
    given: list[Any] = [device.array(x) if where == "device" else x for x in arrays]
    q, k, v, past_k, past_v = (quantised(x, axis, device) for x, axis in zip(given, (-1, -1, -2, -1, -2), strict=True))
    if layout == "BHSD":
        given = [x.transpose(0, 2, 1, 3) for x in given]
        q, k, v, past_k, past_v = (
            (x.transpose(0, 2, 1, 3), y.transpose(0, 2, 1, 3)) for x, y in (q, k, v, past_k, past_v)
        )
    options: dict[str, Any] = {"causal": True, "layout": layout, "device": device, "return_lse": True}
    wanted, sums = pysm120.attention(*given[:3], past_k=given[3], past_v=given[4], precision="mxfp8", **options)
    got, logs = pysm120.attention(q, k, v, past_k=past_k, past_v=past_v, **options)
    if where == "device":
        wanted, sums, got, logs = (x.numpy() for x in (wanted, sums, got, logs))
    assert got.dtype == ml_dtypes.bfloat16
    assert np.array_equal(wanted.view(np.uint16), got.view(np.uint16))
    assert np.array_equal(sums, logs)


def test_the_dtype_of_a_result_is_that_of_the_operand_in_16_bits(
    device: pysm120.Device, rng: np.random.Generator
) -> None:
    q, k, v = (rng.standard_normal((1, 9, 2, 64)).astype(np.float16) for _ in range(3))
    q8, k8 = quantised(q, -1, device), quantised(k, -1, device)
    assert pysm120.attention(q8, k8, v, precision="mxfp8_f16", device=device).dtype == np.float16
    assert pysm120.attention(q, k8, v, precision="mxfp8_f16", device=device).dtype == np.float16
    assert pysm120.attention(q8, k8, v, precision="mxfp8_f16", out_dtype="f4", device=device).dtype == np.float32


@pytest.mark.parametrize("more", [7, 16])
def test_slices_of_larger_arrays(device: pysm120.Device, rng: np.random.Generator, more: int) -> None:
    """Addresses and strides of any alignment, also of addresses alone."""
    q, k, v = (normal(rng, 1, rows, 2, 64) for rows in (40, 70, 70))
    wanted = pysm120.attention(q, k, v, precision="mxfp8", device=device)
    pairs: list[Any] = []
    for x, axis in ((q, -1), (k, -1), (v, -2)):
        pair = []
        for part in quantised(x, axis, device):
            room = np.zeros((*part.shape[:3], part.shape[3] + more), part.dtype)
            room[..., 3 : 3 + part.shape[3]] = part
            pair.append(device.array(room)[..., 3 : 3 + part.shape[3]])
        pairs.append(tuple(pair))
    got = pysm120.attention(pairs[0], pairs[1], pairs[2])
    assert np.array_equal(wanted.view(np.uint16), got.numpy().view(np.uint16))


@pytest.mark.parametrize("columns", [33, 136])
def test_nothing_behind_elements_and_scales_is_read(
    device: pysm120.Device, rng: np.random.Generator, columns: int
) -> None:
    """Each array is an allocation of its own, of odd sizes."""
    q, k, v = (normal(rng, 1, rows, 1, columns) for rows in (5, 37, 37))
    wanted = pysm120.attention(q, k, v, precision="mxfp8", device=device)
    pairs: list[Any] = [quantize_mxfp8(x, axis) for x, axis in ((q, -1), (k, -1), (v, 1))]
    there: list[Any] = [tuple(device.array(x) for x in pair) for pair in pairs]
    got = pysm120.attention(there[0], there[1], there[2])
    assert np.array_equal(wanted.view(np.uint16), got.numpy().view(np.uint16))


@pytest.mark.parametrize("where", ["host", "device"])
def test_packed_sequences(device: pysm120.Device, rng: np.random.Generator, where: str) -> None:
    """The blocks of each sequence begin at its first row, their scales at row cu_seqlens_k[b] // 32 + b."""
    starts = np.array([3, 40, 40, 60, 130], np.int32)
    arrays = normal(rng, 140, 4, 64), normal(rng, 140, 2, 64), normal(rng, 140, 2, 64)
    given: list[Any] = list(arrays)
    options: dict[str, Any] = {"precision": "mxfp8", "causal": True, "device": device}
    wanted = pysm120.attention_varlen(*arrays, starts, starts, **options)
    ends: Any = starts
    if where == "device":
        given, ends = [device.array(x) for x in arrays], device.array(starts)
    q, k, v = given
    columns = pysm120.quantize_mxfp8(v.transpose(1, 0, 2), axis=-2, cu_seqlens=ends, device=device)
    pairs: list[Any] = [pysm120.quantize_mxfp8(x, device=device) for x in (q, k)]
    pairs.append(tuple(x.transpose(1, 0, 2) for x in columns))
    got = pysm120.attention_varlen(pairs[0], pairs[1], pairs[2], ends, ends, **options)
    got = got.numpy() if where == "device" else got
    assert np.array_equal(wanted.view(np.uint16), got.view(np.uint16))


def test_other_values_in_the_same_arrays(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Nothing is kept from call to call, and the workspace of 16 bits suffices."""
    arrays = [[normal(rng, 1, rows, 2, 64) for rows in (40, 70, 70)] for _ in range(2)]
    pairs = [[quantised(x, axis, device) for x, axis in zip(xs, (-1, -1, -2), strict=True)] for xs in arrays]
    there: list[Any] = [tuple(device.array(np.ascontiguousarray(x)) for x in pair) for pair in pairs[0]]
    out, size = device.empty((1, 40, 2, 64), ml_dtypes.bfloat16), 1 << 18
    workspace = device.empty(size, np.uint8)
    for given, pair in zip(arrays, pairs, strict=True):
        for to, values in zip(there, pair, strict=True):
            for x, y in zip(to, values, strict=True):
                x.copy_from(np.ascontiguousarray(y))
        pysm120.attention(there[0], there[1], there[2], precision="mxfp8", out=out, workspace=workspace)
        wanted = pysm120.attention(given[0], given[1], given[2], precision="mxfp8", device=device)
        assert np.array_equal(out.numpy().view(np.uint16), wanted.view(np.uint16))


@pytest.mark.virtual
@pytest.mark.parametrize("precision", ["mxfp8", "mxfp8_bf16"])
def test_kernels_of_hopper(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """On a virtual device that states Hopper's capability; a scale that is NaN marks its row there too."""
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", "9")
    q, k, v = (normal(rng, 1, rows, 2, 128) for rows in (40, 70, 70))
    with pysm120.Device("virtual") as device:
        q8, k8 = quantised(q, -1, device), quantised(k, -1, device)
        v8 = quantised(v, -2, device) if precision == "mxfp8" else v
        wanted = pysm120.attention(q, k, v, precision=precision, device=device)
        got = pysm120.attention(q8, k8, v8, precision=precision, device=device)
        assert np.array_equal(wanted.view(np.uint16), got.view(np.uint16))
        q8[1].view(np.uint8)[0, 7, 1, 2] = NAN_SCALE
        for scale in (0.125, 0.0):
            got = pysm120.attention(q8, k8, v8, precision=precision, scale=scale, device=device)
            assert np.argwhere(np.isnan(got.astype(np.float32)).any(-1)).tolist() == [[0, 7, 1]]


X = np.zeros((1, 40, 2, 64), E4M3)
S, V_S = np.full((1, 40, 2, 2), 127, np.uint8), np.full((1, 2, 2, 64), 127, np.uint8)
REFUSED: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "three arrays": (ValueError, r"k is a tuple of 3; it must be an array, or \(elements, scales\)", {"k": (X, S, S)}),
    "dtype of elements": (TypeError, "k has dtype float32, not float8_e4m3fn", {"k": (X.astype("f4"), S)}),
    "dtype of scales": (
        TypeError,
        r"k\[1\] has dtype float32, not float8_e8m0fnu or uint8",
        {"k": (X, S.astype("f4"))},
    ),
    "shape of scales": (
        ValueError,
        r"k\[1\] has shape \(1, 40, 2, 3\), .*head_dim/32 is 2",
        {"k": (X, np.zeros((1, 40, 2, 3), np.uint8))},
    ),
    "rows of scales of v": (ValueError, r"v\[1\] has shape \(1, 40, 2, 2\), .*kv_rows/32 is 2", {"v": (X, S)}),
    "elements alone": (TypeError, "k has dtype float8_e4m3fn, not float32, float16 or bfloat16", {"k": X}),
    "precision of q": (ValueError, "q has scales, .* but precision is 'bf16'", {"precision": "bf16"}),
    "precision of v": (ValueError, "q has scales, .* but precision is 'nvfp4'", {"precision": "nvfp4"}),
    "v in 16 bits": (ValueError, "v has scales, .* but precision is 'mxfp8_bf16'", {"precision": "mxfp8_bf16"}),
    "dtype of v": (
        TypeError,
        "v has dtype float32, but precision 'mxfp8_bf16' needs bfloat16",
        {"v": X.astype("f4"), "precision": "mxfp8_bf16"},
    ),
    "dtypes in 16 bits differ": (
        TypeError,
        "v has dtype float16, but k has bfloat16",
        {"k": X.astype(ml_dtypes.bfloat16), "v": X.astype("f2")},
    ),
    "scales are None": (TypeError, r"k\[1\] is a NoneType", {"k": (X, None)}),
    "scales of fp8": (ValueError, "k_scale is given", {"k_scale": 1.0}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_tuples(device: pysm120.Device, case: str) -> None:
    kind, message, options = REFUSED[case]
    with pytest.raises(kind, match=message):
        pysm120.attention(**{"q": (X, S), "k": (X, S), "v": (X, V_S), "device": device, **options})


def test_rows_of_packed_scales(device: pysm120.Device) -> None:
    x, ends = X[0], np.array([0, 10, 40], np.int32)
    with pytest.raises(ValueError, match=r"v\[1\] has shape \(2, 2, 64\), but 40 rows of 2 sequences have 3 blocks"):
        pysm120.attention_varlen((x, S[0]), (x, S[0]), (x, V_S[0]), ends, ends, device=device)


def test_packed_scales_that_are_too_few(opened: OpenDevice, rng: np.random.Generator) -> None:
    """Three sequences need two more rows of scales than one has; memory for one row less is refused."""
    args = new_struct("sm120_attention_args")
    case = Case((40, 30, 20), (40, 30, 20), q_packed=True, kv_packed=True, precision="mxfp8")
    problem = Problem(rng, case)
    args.precision = lib.SM120_MXFP8
    size = ffi.new("size_t *")
    try:
        fill_features(opened, args, problem)
        for member, (elements, scales) in pairs_of(problem).items():
            write(opened, getattr(args, member), elements, "BHSD", 0)
            write(opened, getattr(args, f"{member}_blocks"), scales.view(np.uint8), "BHSD", 0, lib.SM120_E8M0)
        tensor(args.o, Buffer(opened, problem.q.shape, np.float32))
        check(lib.sm120_attention_workspace(opened.handle, args, size))
        workspace = Buffer(opened, (int(size[0]),), np.uint8).address
        check(lib.sm120_attention(opened.handle, args, workspace, size[0]))
        rows = pairs_of(problem)["v"][1].shape[2]
        room = ffi.new("sm120_address *")
        check(lib.sm120_alloc(opened.handle, 64 * (rows - 1), room))
        args.v_blocks.address = room[0]
        status = lib.sm120_attention(opened.handle, args, workspace, size[0])
        message = ffi.string(lib.sm120_last_error()).decode()
        check(lib.sm120_free(opened.handle, room[0]))
    finally:
        opened.release()
    assert status == lib.SM120_INVALID_ARGUMENT, message
    assert message.startswith("v_blocks.address")
    assert "past the end" in message
