"""matvec against float64 products of the dequantised weights and of x in int8."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gguf_blocks import BLOCKS, Bytes, halves, magnitudes, quantized, random_blocks, values
from harness import DTYPES, lib
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels import Recorded
from numpy.typing import NDArray
from operations import Operation, Wrong

import pysm120
from pysm120 import QuantizedMatrix
from pysm120.ops.weights import TYPES
from pysm120.runtime.ffi import check, ffi
from pysm120.runtime.module import builtin_kernel, constants

LAYOUTS = ("native", "packed")
BLOCK_SCALED = {"MXFP4": "mxfp8x2", "NVFP4": "nvfp4x3"}
SINGLE_COLUMNS = 1 << 17  # of one vector: too many for shared memory


def fill(args: Any, memory: int) -> None:
    """Two rows of Q4_K, two vectors in f32."""
    args.type, args.rows, args.columns, args.vectors = lib.SM120_GGUF_Q4_K, 2, 256, 2
    args.weights, args.weight_bytes = memory, 288
    args.x.address, args.x.dtype, args.x.row_stride = memory + 1024, lib.SM120_F32, 256
    args.y.address, args.y.dtype, args.y.row_stride = memory + 4096, lib.SM120_F32, 2


def matrix(device: pysm120.Device, raw: Bytes, name: str, layout: str = "native") -> QuantizedMatrix:
    """Return blocks on a device."""
    shape = (len(raw), raw.shape[1] * BLOCKS[name].columns)
    return QuantizedMatrix.from_gguf(raw, name, shape, device=device, layout=layout)


def launch(device: pysm120.Device) -> None:
    """Every type and layout, one vector and several: tiles of 8 and of 16."""
    for name, block in BLOCKS.items():
        for layout in LAYOUTS:
            w = matrix(device, np.zeros((1, 1, block.bytes), np.uint8), name, layout)
            for vectors in (1, 2, 9):
                pysm120.matvec(w, np.ones((vectors, block.columns), "f4"))
            if name in BLOCK_SCALED:
                pysm120.matvec(w, np.ones(block.columns, "f4"), activations=BLOCK_SCALED[name])


def compute_mxfp8x2(device: pysm120.Device, rng: np.random.Generator) -> NDArray[Any]:
    """33 rows of MXFP4 with values around 1, 9 vectors."""
    raw, x = random_blocks(rng, "MXFP4", 33, 512), rng.standard_normal((9, 512)).astype("f4")
    return pysm120.matvec(matrix(device, raw, "MXFP4", "packed"), 2.0**-10 * x, activations="mxfp8x2").reshape(-1)


def compute_nvfp4x3(device: pysm120.Device, rng: np.random.Generator) -> NDArray[Any]:
    """33 rows of NVFP4 with values around 1, 9 vectors."""
    raw, x = random_blocks(rng, "NVFP4", 33, 512), rng.standard_normal((9, 512)).astype("f4")
    return pysm120.matvec(matrix(device, raw, "NVFP4", "packed"), 2.0**-8 * x, activations="nvfp4x3").reshape(-1)


def compute(device: pysm120.Device, rng: np.random.Generator) -> NDArray[Any]:
    """33 rows of each type and layout, 1 and 9 vectors."""
    found = []
    for name in BLOCKS:
        raw = random_blocks(rng, name, 33, 512)
        for vectors in (1, 9):
            x = rng.standard_normal((vectors, 512)).astype("f4")
            found += [pysm120.matvec(matrix(device, raw, name, layout), x).reshape(-1) for layout in LAYOUTS]
    return np.concatenate(found)


OPERATION = Operation(
    name="matvec",
    fill=fill,
    wrong=[
        Wrong("type", 0, "INVALID_ARGUMENT", "type = 0"),
        Wrong("layout", 2, "INVALID_ARGUMENT", "layout = 2"),
        Wrong("layout", 1, "INVALID_ARGUMENT", "weight_bytes = 288"),
        Wrong("rows", 0, "INVALID_ARGUMENT", "rows = 0"),
        Wrong("columns", 300, "INVALID_ARGUMENT", "columns = 300"),
        Wrong("vectors", 0, "INVALID_ARGUMENT", "vectors = 0"),
        Wrong("vectors", 1 << 20, "UNSUPPORTED", "vectors = 1048576"),
        Wrong("vectors", 8 * 65534 + 1, "UNSUPPORTED", "vectors = 524273"),
        Wrong("weights", 0, "INVALID_ARGUMENT", "weights = 0"),
        Wrong("weights", 24, "MISALIGNED", "weights"),
        Wrong("weight_bytes", 284, "INVALID_ARGUMENT", "weight_bytes = 284"),
        Wrong("x.dtype", lib.SM120_E4M3, "UNSUPPORTED", "x.dtype"),
        Wrong("x.address", 0, "INVALID_ARGUMENT", "x"),
        Wrong("x.address", 4, "MISALIGNED", "x.address"),
        Wrong("x.row_stride", 0, "INVALID_ARGUMENT", "x.row_stride"),
        Wrong("x.row_stride", 258, "MISALIGNED", "x.row_stride"),
        Wrong("y.dtype", 7, "INVALID_ARGUMENT", "y.dtype"),
        Wrong("y.address", 2, "MISALIGNED", "y"),
        Wrong("y.row_stride", 1, "INVALID_ARGUMENT", "y"),
        Wrong("bias", 6, "MISALIGNED", "bias"),
        Wrong("experts", 6, "INVALID_ARGUMENT", "expert_count = 0"),
        Wrong("expert_count", 2, "INVALID_ARGUMENT", "experts = 0 with expert_count = 2"),
        Wrong("up", 6, "INVALID_ARGUMENT", "up_bytes = 0"),
        Wrong("up_bytes", 288, "INVALID_ARGUMENT", "up_bytes = 288; without up it must be 0"),
        Wrong("activation", 1, "INVALID_ARGUMENT", "activation = 1"),
        Wrong("activations", 4, "INVALID_ARGUMENT", "activations = 4"),
        Wrong("activations", 2, "UNSUPPORTED", "activations = ACTIVATIONS_MXFP8X2 with type = 12"),
        Wrong("activations", 3, "UNSUPPORTED", "activations = ACTIVATIONS_NVFP4X3 with type = 12"),
        Wrong("chosen", 1, "INVALID_ARGUMENT", "experts = 0 with expert_count = 0 and chosen = 1"),
    ],
    refused={
        "w": (TypeError, "w is a ndarray, not a QuantizedMatrix", ([np.ones(3), np.ones(3)], {})),
    },
    launch=launch,
    recorded=[
        Recorded("matvec", "matvec(?!.*(_mx|activations_nvfp4|p8x2|p4x3)$).*", compute),
        Recorded("matvec mxfp8x2", "matvec.*_mx(fp8x2)?", compute_mxfp8x2, is_exact=False, step=2.0**-7),
        Recorded("matvec nvfp4x3", "matvec.*(ons_nvfp4|p4x3)", compute_nvfp4x3, is_exact=False, step=2.0**-7),
    ],
)


def expect_near(got: NDArray[Any], raw: Bytes, name: str, x: NDArray[np.float32], half_step: float = 0.0) -> None:
    """Compare with float64. What is left is the rounding of f32 sums, and of a result in 16 bits.

    A sum passes at most four roundings for each of its spans, one for each of the warps, and ten more.
    """
    scale, quants = quantized(x)
    rounded = (scale.astype(float) * quants).reshape(x.shape)
    wanted = rounded @ values(raw, name).astype(float).T
    terms = abs(rounded) @ magnitudes(raw, name).T
    roundings = 4 * -(-x.shape[-1] // 2048) * 8 + 18
    bound = roundings * 2.0**-24 * terms + half_step * abs(wanted)
    wrong = np.argwhere(~(abs(got.astype(float) - wanted) <= bound))
    assert wrong.size == 0, (
        f"{len(wrong)} wrong, first {wrong[0]}: {got[tuple(wrong[0])]}, not {wanted[tuple(wrong[0])]}"
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BLOCKS)
def test_against_float64(device: pysm120.Device, rng: np.random.Generator, name: str, layout: str) -> None:
    """Rows around a tile, columns around the spans of eight warps, vectors around a tile."""
    block = BLOCKS[name].columns
    for rows, columns, vectors in [(1, block, 1), (17, 2304, 1), (15, 2048 - block, 2), (33, block, 9), (16, 512, 8)]:
        raw = random_blocks(rng, name, rows, columns)
        x = rng.standard_normal((vectors, columns)).astype("f4") * np.exp2(rng.integers(-8, 8, (vectors, columns)))
        out = np.full((vectors, rows), np.nan, "f4")
        pysm120.matvec(matrix(device, raw, name, layout), x.astype("f4"), out=out)
        expect_near(out, raw, name, x.astype("f4"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("vectors", [1, 3])
def test_exact(device: pysm120.Device, rng: np.random.Generator, name: str, layout: str, vectors: int) -> None:
    """Integers up to 127 and scales that are powers of two: no rounding at all."""
    raw = random_blocks(rng, name, 19, 512)
    for at in (BLOCKS[name].d, BLOCKS[name].dmin):
        if at >= 0:
            halves(raw, at)[...] = 0.5
    first, count, _ = BLOCKS[name].codes
    raw[..., first : first + count] = {"MXFP4": 127, "NVFP4": 0x38}.get(name, raw[..., first : first + count])
    x = rng.integers(-3, 4, (vectors, 512)).astype("f4")
    x[:, ::32] = rng.choice([-127, 127], (vectors, 16))
    got = pysm120.matvec(matrix(device, raw, name, layout), x)
    np.testing.assert_array_equal(got.astype(float), x.astype(float) @ values(raw, name).astype(float).T)


@given(data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_shape(device: pysm120.Device, data: st.DataObject) -> None:
    """Types, layouts, rows, columns, vectors; x in other dtypes; a bias."""
    name, layout = data.draw(st.sampled_from(sorted(BLOCKS))), data.draw(st.sampled_from(LAYOUTS))
    rows = data.draw(st.integers(1, 40))
    columns = BLOCKS[name].columns * data.draw(st.integers(1, 9))
    vectors = data.draw(st.integers(1, 40))
    dtype = data.draw(st.sampled_from(sorted(DTYPES)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    raw = random_blocks(rng, name, rows, columns)
    x = rng.standard_normal((vectors, columns)).astype(DTYPES[dtype])
    bias = rng.standard_normal(rows).astype("f4")
    got = pysm120.matvec(matrix(device, raw, name, layout), x, bias=bias, out_dtype=np.float32)
    plain = pysm120.matvec(matrix(device, raw, name, layout), x, out_dtype=np.float32)
    np.testing.assert_array_equal(got, plain + bias)
    expect_near(plain, raw, name, x.astype("f4"))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("vectors", [1, 4])
def test_dtypes_of_results(device: pysm120.Device, rng: np.random.Generator, dtype: Any, vectors: int) -> None:
    """A result in 16 bits is the f32 one, rounded; bytes beside the rows of a result stay."""
    w = matrix(device, random_blocks(rng, "Q6_K", 21, 768), "Q6_K")
    x = device.array(rng.standard_normal((vectors, 800)).astype(dtype))[:, :768]
    room = device.array(np.full((vectors, 24), np.nan, dtype))
    wide = pysm120.matvec(w, x, out_dtype=np.float32).numpy()
    got = pysm120.matvec(w, x, out=room[:, :21])
    np.testing.assert_array_equal(got.numpy(), wide.astype(dtype))
    assert np.isnan(room.numpy()[:, 21:].astype("f4")).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_long_vector(device: pysm120.Device, rng: np.random.Generator, layout: str) -> None:
    """A vector that shared memory cannot hold has the kernel of several ones."""
    raw = random_blocks(rng, "Q2_K", 1, SINGLE_COLUMNS + 256)
    x = rng.standard_normal((1, SINGLE_COLUMNS + 256)).astype("f4")
    expect_near(pysm120.matvec(matrix(device, raw, "Q2_K", layout), x), raw, "Q2_K", x)


@pytest.mark.parametrize(
    ("name", "rows", "columns", "nbytes"),
    [("Q8_0", 1, 32, 36), ("Q8_0", 2, 32, 68), ("MXFP4", 3, 32, 52), ("Q6_K", 1, 256, 212), ("Q4_K", 5, 256, 720)],
)
def test_bytes_of_a_matrix(name: str, rows: int, columns: int, nbytes: int) -> None:
    """Kernels read native blocks to a multiple of 4 bytes, and no further."""
    size = ffi.new("int64_t *")
    check(lib.sm120_weights_bytes(TYPES[name], lib.SM120_WEIGHTS_NATIVE, rows, columns, size))
    assert size[0] == nbytes


def test_special_vectors(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Zeros and tiny blocks are 0; a NaN or an infinity makes its own vector NaN; -0 and the largest are ordinary."""
    raw = random_blocks(rng, "Q4_K", 16, 512)
    w = matrix(device, raw, "Q4_K")
    x = np.zeros((6, 512), "f4")
    x[1, 7], x[2, 300], x[3, :32], x[4], x[5, 9] = np.nan, -np.inf, 1e-31, -0.0, 1e30
    results = [pysm120.matvec(w, x), np.stack([pysm120.matvec(w, row) for row in x])]
    results.append(pysm120.matvec(w, x, activations="int16"))
    for got in results:
        assert np.isnan(got[1:3]).all()
        assert (got[[0, 3, 4]] == 0).all()
        expect_near(got[5:], raw, "Q4_K", x[5:])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BLOCKS)
def test_int16(device: pysm120.Device, rng: np.random.Generator, name: str, layout: str) -> None:
    """x as two int8, against their model and against x itself; vectors around a tile of four."""
    columns = 2304
    raw = random_blocks(rng, name, 17, columns)
    for vectors in (1, 4, 5):
        x = rng.standard_normal((vectors, columns)).astype("f4")
        scale, quants = quantized(x)
        first = (scale.astype(float) * quants).reshape(x.shape)
        rest = (x.astype(float) - first).astype("f4")
        second_scale, second = quantized(rest)
        rounded = first + (second_scale.astype(float) * second).reshape(x.shape)
        blocks = abs(x).reshape(vectors, -1, 32).max(-1, keepdims=True)
        assert (abs(rounded - x).reshape(vectors, -1, 32) <= blocks / 127 / 254 * 0.51).all()
        got = pysm120.matvec(matrix(device, raw, name, layout), x, activations="int16").astype(float)
        terms = (abs(first) + abs(rest)) @ magnitudes(raw, name).T
        wanted = rounded @ values(raw, name).astype(float).T
        assert (abs(got - wanted) <= 90 * 2.0**-24 * terms).all()


def test_int16_of_glu(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Gate and up have the residual, too; experts refuse it."""
    gate, up = (matrix(device, random_blocks(rng, "Q5_K", 19, 768), "Q5_K") for _ in range(2))
    x = (0.02 * rng.standard_normal((5, 768))).astype("f4")
    a, b = (pysm120.matvec(w, x, activations="int16").astype(float) for w in (gate, up))
    got = pysm120.matvec_glu(gate, up, x, activations="int16")
    np.testing.assert_allclose(got, a / (1 + np.exp(-a)) * b, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="activations is 'int4', not one of"):
        pysm120.matvec(gate, x, activations="int4")
    one = QuantizedMatrix(gate.data, "Q5_K", (1, 19, 768), "native")
    with pytest.raises(pysm120.UnsupportedError, match="with experts it must be ACTIVATIONS_INT8"):
        pysm120.matvec(one, x, activations="int16", experts=[[0]] * 5)


def test_one_vector_of_several(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A vector has the same bits whatever the others are, and in every launch."""
    w = matrix(device, random_blocks(rng, "Q5_K", 40, 1024), "Q5_K", "packed")
    x = rng.standard_normal((35, 1024)).astype("f4")
    whole = pysm120.matvec(w, x)
    np.testing.assert_array_equal(whole, pysm120.matvec(w, x))
    for part in (slice(3, 5), slice(0, 8), slice(1, 17), slice(9, 25), slice(30, 35)):
        np.testing.assert_array_equal(whole[part], pysm120.matvec(w, x[part]))
    several: list[dict[str, Any]] = [{"activations": "int16"}, {"bias": np.ones(40, np.float32)}]
    for options in several:
        more = pysm120.matvec(w, x, **options)
        np.testing.assert_array_equal(more[30:33], pysm120.matvec(w, x[30:33], **options))


@pytest.mark.parametrize("vectors", [8, 9, 16, 17, 33, 64])
@pytest.mark.parametrize("name", BLOCKS)
def test_tiles_of_16_vectors(device: pysm120.Device, rng: np.random.Generator, name: str, vectors: int) -> None:
    """Packed weights have tiles of 16 vectors, native ones of 8: the bits are the same."""
    columns = BLOCKS[name].columns * 9
    raw, other = (random_blocks(rng, name, 37, columns) for _ in range(2))
    x = rng.standard_normal((vectors, columns)).astype("f4")
    native, packed = (matrix(device, raw, name, layout) for layout in ("native", "packed"))
    native_up, packed_up = (matrix(device, other, name, layout) for layout in ("native", "packed"))
    got = pysm120.matvec(packed, x)
    np.testing.assert_array_equal(got, pysm120.matvec(native, x))
    expect_near(got[-3:], raw, name, x[-3:])
    products = [pysm120.matvec_glu(packed, packed_up, x), pysm120.matvec_glu(native, native_up, x)]
    np.testing.assert_array_equal(products[0], products[1])
    products = [pysm120.matvec(w, x, activations="int16") for w in (packed, native)]
    np.testing.assert_array_equal(products[0], products[1])


@pytest.mark.parametrize("name", ["Q3_K", "Q6_K"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("vectors", [1, 2, 12])
def test_many_tiles_of_a_cta(
    device: pysm120.Device, rng: np.random.Generator, name: str, layout: str, vectors: int
) -> None:
    """A grid of two CTAs, as on a device with few multiprocessors, has the bits of a large one.

    Two tiles of 16 rows share x in the kernel of 8 vectors of packed Q3_K, which has none of 16.
    """
    raw = random_blocks(rng, name, 150, 2560)
    w = matrix(device, raw, name, layout)
    x = rng.standard_normal((vectors, 2560)).astype("f4")
    wanted = pysm120.matvec(w, x)
    out = device.array(np.full((vectors, 150), np.nan, "f4"))
    source = device.array(x)
    is_wide = vectors > 8 and layout == "packed" and name == "Q6_K"
    if vectors > 1:
        records = 2 if vectors > 8 else 1
        source = device.empty((10 * records * constants()["MATVEC_RECORD_BYTES"],), np.uint8)
        quantize = builtin_kernel(device, "matvec_activations")
        words = map(np.uint32, (vectors, 2560, 0, 0, is_wide))
        quantize((10, records), 256, device.array(x), source, np.int64(4 * 2560), *words)
        tiles, form = (1, 16) if is_wide else (records, 8)
    else:
        tiles, form = 1, 1
    row_tiles = 5 if name == "Q3_K" and layout == "packed" and vectors > 1 else 10
    kernel = builtin_kernel(device, f"matvec_{name.lower()}_{layout}_{form}")
    none, strides = np.uint64(0), map(np.int64, (0, 0, 4 * 150))
    numbers = map(np.uint32, (150, 2560, vectors, 10, row_tiles, 0, 0, 0, 0, 0))
    kernel((2, tiles), 256, w.data, source, out, none, none, none, *strides, *numbers, shared=90_000)
    np.testing.assert_array_equal(out.numpy(), wanted)


@pytest.mark.virtual
def test_tiles_of_a_multiprocessor(device: pysm120.Device) -> None:
    """If CTAs go to multiprocessors in turn, none has more than one tile of rows more than another."""
    sms, tiles = device.info.multiprocessors, 400
    w = matrix(device, np.zeros((16 * tiles, 1, BLOCKS["Q2_K"].bytes), np.uint8), "Q2_K", "packed")
    with device.profile() as profile:
        pysm120.matvec(w, np.ones(256, "f4"))
    ctas = profile.statements[0].counts.executed // 8  # of the first statement, by eight warps
    tiles_of = [len(range(cta, tiles, ctas)) for cta in range(ctas)]
    of_sm = [sum(tiles_of[sm::sms]) for sm in range(sms)]
    assert ctas > sms
    assert max(of_sm) - min(of_sm) <= 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["Q2_K", "Q3_K"])
@pytest.mark.parametrize("sign", [1, -1])
def test_largest_sums(device: pysm120.Device, rng: np.random.Generator, name: str, layout: str, sign: int) -> None:
    """The largest codes, scales and x: sums of 16 products still are s16, which dp2a multiplies, and all is exact."""
    raw = random_blocks(rng, name, 35, 512)
    # value = 15 * 3 - 15 of Q2_K, -32 * -4 of Q3_K, with d = dmin = 1
    raw[...] = {"Q2_K": 0xFF, "Q3_K": 0}[name]
    for at in (BLOCKS[name].d, BLOCKS[name].dmin):
        if at >= 0:
            halves(raw, at)[...] = 1.0
    x = np.full((9, 512), 127.0 * sign, "f4")
    x[3:] *= rng.choice([-1, 1], (6, 512))
    wanted = x.astype(float) @ values(raw, name).astype(float).T
    assert wanted[0, 0] == sign * 127 * 512 * {"Q2_K": 30, "Q3_K": 128}[name]
    w = matrix(device, raw, name, layout)
    for vectors in (1, 8, 9):
        np.testing.assert_array_equal(pysm120.matvec(w, x[:vectors]).astype(float), wanted[:vectors])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BLOCKS)
def test_experts(device: pysm120.Device, rng: np.random.Generator, name: str, layout: str) -> None:
    """Each pair of a vector and an expert has the bits of its own product; unknown experts give NaN."""
    rows, columns = 32 if layout == "packed" else 19, 2 * BLOCKS[name].columns
    raw = random_blocks(rng, name, 3 * rows, columns)
    w = QuantizedMatrix.from_gguf(raw, name, (3, rows, columns), device=device, layout=layout)
    x, bias = (rng.standard_normal(shape).astype("f4") for shape in ((2, columns), rows))
    experts = np.array([[2, 0, 2], [1, -1, 3]], np.int32)
    got = pysm120.matvec(w, x, experts=experts, bias=bias)
    assert got.shape == (2, 3, rows)
    for (i, k), e in np.ndenumerate(experts):
        if e not in range(3):
            assert np.isnan(got[i, k]).all()
            continue
        one = matrix(device, raw[e * rows : (e + 1) * rows].copy(), name, layout)
        np.testing.assert_array_equal(got[i, k], pysm120.matvec(one, x[i], bias=bias))
    np.testing.assert_array_equal(pysm120.matvec(w, x[1], experts=[1], bias=bias)[0], got[1, 0])


def test_wrong_experts(device: pysm120.Device) -> None:
    w = QuantizedMatrix.from_gguf(bytes(4 * 144), "Q4_K", (2, 2, 256), device=device)
    x = np.zeros((3, 256), "f4")
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({}, ValueError, "experts is None, but w has 2: give their indices"),
        ({"experts": [0]}, ValueError, r"experts has shape \(1,\), not \(3, n\)"),
        ({"experts": np.zeros((2, 1), "i4")}, ValueError, r"experts has shape \(2, 1\)"),
        ({"experts": np.zeros((3, 1))}, TypeError, "experts has dtype float64, not int32"),
        ({"experts": np.zeros((3, 1), "i4"), "out": np.zeros((3, 2), "f4")}, ValueError, r"not \(3, 1, 2\)"),
    ]
    for options, kind, message in wrong:
        with pytest.raises(kind, match=message):
            pysm120.matvec(w, x, **options)
    with pytest.raises(ValueError, match="experts is given, but w has no experts"):
        pysm120.matvec(matrix(device, np.zeros((2, 1, 144), np.uint8), "Q4_K"), x, experts=[[0]] * 3)
    with pytest.raises(pysm120.UnsupportedError, match="rows are a multiple of 16"):
        pysm120.repack(w)
    long = SINGLE_COLUMNS + 256
    w = QuantizedMatrix.from_gguf(bytes(long // 256 * 84), "Q2_K", (1, 1, long), device=device)
    with pytest.raises(
        pysm120.UnsupportedError, match="columns = 131328; with experts of this type and layout at most"
    ):
        pysm120.matvec(w, np.zeros(long, "f4"), experts=[0])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_glu(device: pysm120.Device, rng: np.random.Generator, activation: str, layout: str) -> None:
    """Against the two products; more tiles than CTAs, so that a CTA alternates between the matrices."""
    name, rows, columns = "Q5_K", 48, 768
    gate, up = (matrix(device, random_blocks(rng, name, rows, columns), name, layout) for _ in range(2))
    for vectors in (1, 3):
        x = (0.02 * rng.standard_normal((vectors, columns))).astype("f4")
        a, b = (pysm120.matvec(w, x).astype(float) for w in (gate, up))
        inner = a if activation == "silu" else np.sqrt(8 / np.pi) * (a + 0.044715 * a**3)
        with np.errstate(over="ignore"):
            wanted = a / (1 + np.exp(-inner)) * b
        got = pysm120.matvec_glu(gate, up, x, activation=activation)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    one_gate, one_up = (QuantizedMatrix(w.data, name, (1, rows, columns), layout) for w in (gate, up))
    chosen = pysm120.matvec_glu(one_gate, one_up, x, activation=activation, experts=[[0]] * 3)
    one = np.stack([pysm120.matvec_glu(gate, up, row, activation=activation) for row in x])
    np.testing.assert_array_equal(chosen[:, 0], one)


def test_glu_on_few_ctas(device: pysm120.Device, rng: np.random.Generator) -> None:
    """Two CTAs for ten tiles: the sums of gate wait in shared memory while those of up are computed."""
    raw = [random_blocks(rng, "Q4_K", 150, 2560) for _ in range(2)]
    gate, up = (matrix(device, x, "Q4_K", "packed") for x in raw)
    x = rng.standard_normal((1, 2560)).astype("f4")
    wanted = pysm120.matvec_glu(gate, up, x)
    out = device.array(np.full((1, 150), np.nan, "f4"))
    kernel = builtin_kernel(device, "matvec_q4_k_packed_1")
    none, strides = np.uint64(0), map(np.int64, (0, 0, 4 * 150))
    numbers = map(np.uint32, (150, 2560, 1, 10, 10, 0, 0, 0, 0, 0))
    kernel(2, 256, gate.data, device.array(x), out, none, up.data, none, *strides, *numbers, shared=90_000)
    np.testing.assert_array_equal(out.numpy(), wanted)


def test_wrong_glu(device: pysm120.Device) -> None:
    gate = matrix(device, np.zeros((2, 1, 144), np.uint8), "Q4_K")
    other = matrix(device, np.zeros((2, 1, 176), np.uint8), "Q5_K")
    x = np.zeros(256, "f4")
    with pytest.raises(ValueError, match="up has type Q5_K, but gate has Q4_K"):
        pysm120.matvec_glu(gate, other, x)
    with pytest.raises(ValueError, match="up has layout packed, but gate has native"):
        pysm120.matvec_glu(gate, pysm120.repack(gate), x)
    with pytest.raises(ValueError, match="activation is 'relu', not one of"):
        pysm120.matvec_glu(gate, gate, x, activation="relu")
    with pytest.raises(TypeError, match="up is a NoneType, not a QuantizedMatrix"):
        pysm120.matvec_glu(gate, None, x)  # type: ignore[arg-type]


def test_wrong_calls(device: pysm120.Device) -> None:
    w = matrix(device, np.zeros((2, 1, 144), np.uint8), "Q4_K")
    x = device.zeros((3, 256))
    narrow = ml_dtypes.bfloat16
    wrong: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (device.zeros((3, 255)), {}, ValueError, r"x has shape \(3, 255\), not \(256,\) or \(N, 256\)"),
        (device.zeros(()), {}, ValueError, r"x has shape \(\)"),
        (device.zeros((2, 3, 256)), {}, ValueError, "x has shape"),
        (np.zeros((3, 256)), {}, TypeError, "x has dtype float64"),
        ("x", {}, TypeError, "x is a str"),
        (x, {"out": device.zeros((2, 3))}, ValueError, r"out has shape \(2, 3\), not \(3, 2\)"),
        (x, {"out": np.zeros((3, 2), "f4")}, TypeError, "out is a ndarray, not an Array"),
        (x, {"out": device.zeros((3, 2)), "out_dtype": narrow}, TypeError, "out has dtype float32, not bfloat16"),
        (x, {"out_dtype": np.int8}, TypeError, "out has dtype int8"),
        (x, {"bias": np.zeros(3, "f4")}, ValueError, "bias has shape"),
        (x, {"bias": device.zeros(2, np.float16)}, TypeError, "bias has dtype float16"),
        (x, {"workspace": device.empty(16, np.uint8)}, pysm120.WorkspaceTooSmallError, "workspace.nbytes = 16"),
        (x[:, 1:], {}, ValueError, "x has shape"),
        (np.zeros(256, "f4"), {"out": np.zeros(3, "f4")}, ValueError, r"out has shape \(3,\), not \(2,\)"),
        (x, {"out": x[:, :2]}, ValueError, "overlap"),
    ]
    for given_x, options, kind, message in wrong:
        with pytest.raises(kind, match=message):
            pysm120.matvec(w, given_x, **options)
