"""Every mma.sync.m16n8k* of sm_120f: its PTX, its fragments, and inputs that hurt.

A kernel runs one mma per warp on fragments that lie in memory as the warp holds them:
[tile, register, lane] of b32.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import mma_model
import numpy as np
from numpy.typing import NDArray

BYTE_FLOATS = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
DTYPES: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
Codes = NDArray[Any]  # uint32


class Form(NamedTuple):
    """One instruction, without its operands."""

    k: int
    a: str
    b: str
    accumulator: str
    kind: str = ""
    scale: str = ""
    scale_vec: int = 0
    modifier: str = ""  # .satfinite, or a .scale_vec that is left out
    operation: str = ""  # of b1: and, xor

    @property
    def mnemonic(self) -> str:
        """The whole instruction name."""
        kind = f".kind::{self.kind}" if self.kind else ""
        if self.scale:
            kind += ".block_scale"
            if self.modifier != "default":
                kind += f".scale_vec::{self.scale_vec}X"
        saturate = ".satfinite" if self.modifier == "satfinite" else ""
        tail = f".{self.scale}" if self.scale else ""
        tail += f".{self.operation}.popc" if self.operation else ""
        acc = self.accumulator
        return f"mma.sync.aligned.m16n8k{self.k}.row.col{kind}{saturate}.{acc}.{self.a}.{self.b}.{acc}{tail}"

    @property
    def width(self) -> int:
        """Bits of an element of A and B."""
        if self.a in mma_model.INTEGERS:
            return mma_model.INTEGERS[self.a]
        return mma_model.FORMATS[self.model_type].width

    @property
    def model_type(self) -> str:
        """The model's name of A's type."""
        return "packed e2m1" if self.k == 64 and self.scale else self.a

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers of A, B, and C or D."""
        row_bits = self.k * self.width
        return row_bits // 64, row_bits // 128, 2 if self.accumulator == "f16" else 4


def float_forms() -> Iterator[Form]:
    """List the forms of floats, without and with block scales."""
    for k in (8, 16):
        yield Form(k, "bf16", "bf16", "f32")
        for acc in ("f32", "f16"):
            yield Form(k, "f16", "f16", acc)
    for k in (4, 8):
        yield Form(k, "tf32", "tf32", "f32")
    for k, acc in itertools.product((16, 32), ("f32", "f16")):
        for a, b in itertools.product(BYTE_FLOATS[:2], repeat=2):
            yield Form(k, a, b, acc)
            if k == 16:
                yield Form(k, a, b, acc, "f8f6f4")
    for a, b in itertools.product(BYTE_FLOATS, repeat=2):
        for acc in ("f32", "f16"):
            yield Form(32, a, b, acc, "f8f6f4")
        yield Form(32, a, b, "f32", "mxf8f6f4", "ue8m0", 1)
    yield Form(32, "e4m3", "e4m3", "f32", "mxf8f6f4", "ue8m0", 1, "default")
    yield Form(64, "e2m1", "e2m1", "f32", "mxf4", "ue8m0", 2)
    yield Form(64, "e2m1", "e2m1", "f32", "mxf4", "ue8m0", 2, "default")
    yield Form(64, "e2m1", "e2m1", "f32", "mxf4nvf4", "ue8m0", 2)
    yield Form(64, "e2m1", "e2m1", "f32", "mxf4nvf4", "ue4m3", 4)


def integer_forms() -> Iterator[Form]:
    """List the forms of integers."""
    for names, ks in ((("s8", "u8"), (16, 32)), (("s4", "u4"), (32, 64))):
        for k, a, b in itertools.product(ks, names, names):
            for modifier in ("", "satfinite"):
                yield Form(k, a, b, "s32", modifier=modifier)
    for k, operation in itertools.product((128, 256), ("and", "xor")):
        yield Form(k, "b1", "b1", "s32", operation=operation)


# Every form that ptxas takes for sm_120f.
FORMS = (*float_forms(), *integer_forms())
# Some that it refuses.
REFUSED = (
    Form(16, "bf16", "bf16", "f16"),
    Form(32, "bf16", "bf16", "f32"),
    Form(8, "tf32", "tf32", "f16"),
    Form(16, "tf32", "tf32", "f32"),
    Form(32, "e4m3", "e2m1", "f32"),
    Form(16, "e4m3", "e2m1", "f32", "f8f6f4"),
    Form(64, "s8", "s8", "s32"),
    Form(32, "s8", "s4", "s32"),
    Form(32, "e4m3", "e4m3", "f32", "mxf8f6f4", "ue8m0", 2),
    Form(32, "e4m3", "e4m3", "f16", "mxf8f6f4", "ue8m0", 1),
    Form(32, "e4m3", "e4m3", "f32", "mxf8f6f4", "ue4m3", 1),
    Form(64, "e2m1", "e2m1", "f32", "mxf4", "ue8m0", 4),
    Form(64, "e2m1", "e2m1", "f32", "mxf4", "ue4m3", 4),
    Form(64, "e2m1", "e2m1", "f32", "mxf4nvf4", "ue8m0", 2, "default"),
    Form(64, "e2m1", "e2m1", "f32", "mxf4nvf4", "ue8m0", 4),
    Form(64, "e2m1", "e2m1", "f32", "mxf4nvf4", "ue4m3", 2),
)

# ---- PTX --------------------------------------------------------------------

HEAD = ".version 8.8\n.target sm_120f\n.address_size 64\n"
ENTRY = """
.visible .entry {entry}(.param .u64 param_A, .param .u64 param_B, .param .u64 param_C,
    .param .u64 param_D, .param .u64 param_sA, .param .u64 param_sB)
{{
    .reg .b32   lane, tile, offset, sA, sB;
    .reg .b16   byte_a, thread_a, byte_b, thread_b;
    .reg .b64   base, at;
    .reg .b32   a_<{na}>, b_<{nb}>;
    .reg .{type} c_<{nc}>, d_<{nc}>;
    mov.u32     lane, %laneid;
    mov.u32     tile, %ctaid.x;
{load}
    {mnemonic}
        {{{to}}}, {{{a}}}, {{{b}}}, {{{c}}}{scales};
{store}
    ret;
}}
"""


def addresses(parameter: str, registers: int) -> str:
    """Write the code that points `at` to this lane's first register of the tile."""
    return f"""
    mad.lo.u32  offset, tile, {32 * registers}, lane;
    ld.param.u64 base, [param_{parameter}];
    mad.wide.u32 at, offset, 4, base;"""


def entry(
    form: Form,
    name: str,
    selectors: tuple[int, ...],
    *,
    dynamic: bool = False,
    result: str = "d",
) -> str:
    """Write a kernel for one form.

    Dynamic selectors are registers; D goes to the registers `result`, which may be c.
    """
    na, nb, nc = form.registers
    register = "f32" if form.accumulator == "f32" else "b32"
    load = ""
    for parameter, prefix, n in (("A", "a", na), ("B", "b", nb), ("C", "c", nc)):
        load += addresses(parameter, n)
        value = register if prefix == "c" else "b32"
        for i in range(n):
            load += f"\n    ld.global.{value} {prefix}_{i}, [at + {128 * i}];"
    store = addresses("D", nc)
    for i in range(nc):
        store += f"\n    st.global.{register} [at + {128 * i}], {result}_{i};"
    scales = ""
    if form.scale:
        for side in "AB":
            load += addresses(f"s{side}", 1)
            load += f"\n    ld.global.b32 s{side}, [at];"
        names: list[object] = ["byte_a", "thread_a", "byte_b", "thread_b"]
        if dynamic:
            for selector, number in zip(names, selectors, strict=True):
                load += f"\n    mov.b16     {selector}, {number};"
        else:
            names = list(selectors)
        scales = ", sA, {%s, %s}, sB, {%s, %s}" % tuple(names)  # noqa: UP031
    vectors = {p: ", ".join(f"{p}_{i}" for i in range(n)) for p, n in (("a", na), ("b", nb), ("c", nc), (result, nc))}
    return ENTRY.format(
        entry=name,
        mnemonic=form.mnemonic,
        type=register,
        load=load,
        store=store,
        scales=scales,
        na=na,
        nb=nb,
        nc=nc,
        to=vectors[result],
        **vectors,
    )


# ---- fragments, by the formulas of the manual ---------------------------------

LANE = np.arange(32)
GROUP, QUAD = LANE >> 2, LANE & 3


def pack(elements: NDArray[Any], width: int) -> Codes:
    """Pack elements [..., n, 32] into registers [..., 32], element 0 lowest."""
    n = 32 // width
    shifts = (np.arange(n) * width).astype(np.uint64)[:, None]
    words: Codes = (elements.astype(np.uint64) << shifts).sum(-2).astype(np.uint32)
    return words


def fragments_a(a: Codes, width: int) -> Codes:
    """Give lanes their elements of A [tile, 16, K]: [tile, register, lane]."""
    n = 32 // width
    registers = []
    for i in range(0, a.shape[2] // 2, n):  # 16 K elements for 32 lanes
        row = GROUP + 8 * (i // n % 2)
        k = n * QUAD + np.arange(n)[:, None] + 4 * n * (i // n // 2)
        registers.append(pack(a[:, row, k], width))
    return np.stack(registers, 1)


def fragments_b(b: Codes, width: int) -> Codes:
    """Give lanes their elements of B [tile, K, 8]: [tile, register, lane]."""
    n = 32 // width
    registers = []
    for i in range(0, b.shape[1] // 4, n):  # 8 K elements for 32 lanes
        k = n * QUAD + np.arange(n)[:, None] + 4 * n * (i // n)
        registers.append(pack(b[:, k, GROUP], width))
    return np.stack(registers, 1)


def fragments_c(c: Codes, accumulator: str) -> Codes:
    """Give lanes their elements of C [tile, 16, 8]: [tile, register, lane]."""
    element = [c[:, GROUP + 8 * (i >> 1), 2 * QUAD + (i & 1)] for i in range(4)]
    if accumulator == "f16":
        return np.stack([element[0] | element[1] << 16, element[2] | element[3] << 16], 1)
    return np.stack(element, 1)


def tile_of(d: Codes, accumulator: str) -> Codes:
    """Put the fragments of D back: [tile, 16, 8]."""
    if accumulator == "f16":
        d = np.stack([d[:, 0] & 0xFFFF, d[:, 0] >> 16, d[:, 1] & 0xFFFF, d[:, 1] >> 16])
        d = d.transpose(1, 0, 2)
    tile = np.empty((len(d), 16, 8), np.uint32)
    for i in range(4):
        tile[:, GROUP + 8 * (i >> 1), 2 * QUAD + (i & 1)] = d[:, i]
    return tile


def scale_words(scale_a: Codes, scale_b: Codes, selectors: tuple[int, ...]) -> tuple[Codes, Codes]:
    """Put scales where the selectors point, and noise everywhere else."""
    byte_a, thread_a, byte_b, thread_b = selectors
    rng = np.random.default_rng(7)
    tiles, _, blocks = scale_a.shape
    word_a, word_b = rng.integers(0, 256, (2, tiles, 32, 4), dtype=np.uint32)
    for block in range(blocks):
        for row in range(16):
            lane = 4 * (row % 8) + 2 * thread_a + row // 8
            word_a[:, lane, byte_a + block] = scale_a[:, row, block]
        for column in range(8):
            lane = 4 * column + thread_b
            word_b[:, lane, byte_b + block] = scale_b[:, block, column]
    return (
        pack(word_a.transpose(0, 2, 1), 8)[:, None],
        pack(word_b.transpose(0, 2, 1), 8)[:, None],
    )


# ---- inputs -------------------------------------------------------------------

KINDS = ("normal", "codes", "finite", "zeros", "subnormal", "special", "cancel", "zero")
C_KINDS = ("normal", "codes", "large", "zero", "tiny", "special", "zero", "tiny")


class Inputs(NamedTuple):
    """Operands of some tiles, as codes in their containers."""

    a: Codes
    b: Codes
    c: Codes
    scale_a: Codes | None = None
    scale_b: Codes | None = None


def draw(rng: np.random.Generator, name: str, kind: str, shape: tuple[int, ...]) -> Codes:
    """Draw containers of a float type."""
    form = mma_model.FORMATS[name]
    bits = 1 + form.exponent + form.fraction
    codes: Codes = rng.integers(0, 1 << bits, shape, dtype=np.uint32)
    if kind in {"normal", "cancel"}:
        x = rng.standard_normal(shape).astype(np.float32)
        if name in DTYPES:
            size = np.uint8 if bits <= 8 else np.uint16
            return x.astype(DTYPES[name]).view(size).astype(np.uint32) << form.right
        if name in {"tf32", "f32"}:  # tf32 with noise below, which does not count
            return x.view(np.uint32)
        codes = codes & 0xF
    elif kind == "zeros":
        codes = np.where(rng.random(shape) < 0.8, codes >> (bits - 1) << (bits - 1), codes)
    elif kind == "zero":
        codes = codes >> (bits - 1) << (bits - 1)
    elif kind in {"subnormal", "tiny"}:
        exponent = rng.integers(0, 1 if kind == "subnormal" else 3, shape)
        sign = codes >> (bits - 1) << (bits - 1)
        fraction = codes & ((1 << form.fraction) - 1)
        codes = sign | exponent.astype(np.uint32) << form.fraction | fraction
    elif kind == "large":
        top = ((1 << form.exponent) - 2) << form.fraction
        codes = (codes & ~np.uint32(top)) | np.uint32(top)
    if kind != "codes":
        codes = np.where(is_special(form, codes), codes & 1, codes)
        if kind == "special" and form.specials:
            top = ((1 << form.exponent) - 1) << form.fraction
            low = rng.choice([0, 0, 0, 1, (1 << form.fraction) - 1], shape)
            sign = codes >> (bits - 1) << (bits - 1)
            strange = (sign | top | low).astype(np.uint32)
            codes = np.where(rng.random(shape) < 0.01, strange, codes)
    return codes << form.right


def is_special(form: mma_model.Format, codes: Codes) -> NDArray[np.bool_]:
    """Tell which codes are NaN or infinite."""
    magnitude = codes & ((1 << (form.exponent + form.fraction)) - 1)
    ones = (1 << form.exponent) - 1
    found: NDArray[np.bool_] = (magnitude >> form.fraction == ones) & (form.specials != "")
    if form.specials == "nan":
        found = magnitude == ((ones + 1) << form.fraction) - 1
    return found


def draw_scales(rng: np.random.Generator, form: Form, kind: str, shape: tuple[int, ...]) -> Codes:
    """Draw scales: moderate, of every code, or extreme."""
    if kind in {"normal", "cancel"}:
        low, high = (119, 136) if form.scale == "ue8m0" else (0x20, 0x50)
        return rng.integers(low, high, shape, dtype=np.uint32)
    codes: Codes = rng.integers(0, 256, shape, dtype=np.uint32)
    if kind in {"zeros", "subnormal", "zero"}:
        codes = rng.choice([0x00, 0x01, 0x7E, 0x80, 0xFE], shape).astype(np.uint32)
    if kind not in {"codes", "special"}:
        nan = (codes & (0x7F if form.scale == "ue4m3" else 0xFF)) == (0x7F if form.scale == "ue4m3" else 0xFF)
        codes = np.where(nan, 3, codes)
    return codes


def inputs(form: Form, rng: np.random.Generator, tiles: int = 2 * len(KINDS)) -> Inputs:
    """Make operands: a kind of numbers per tile."""
    shapes = ((16, form.k), (form.k, 8), (16, 8))
    if form.accumulator == "s32":
        a, b, c = (
            rng.integers(0, 1 << width, (tiles, *shape), dtype=np.uint64)
            for width, shape in zip((form.width, form.width, 32), shapes, strict=True)
        )
        c[::2] = np.where(c[::2] & 1, 0x7FFFFFFF - c[::2] % 4000, 0x80000000 + c[::2] % 4000)
        return Inputs(*(x.astype(np.uint32) for x in (a, b, c)))
    tile: list[list[Codes]] = [[], [], [], [], []]
    for t in range(tiles):
        kind = KINDS[t % len(KINDS)]
        c_kind = C_KINDS[(t + t // len(KINDS)) % len(C_KINDS)]
        a_type = form.model_type
        b_type = a_type if a_type == "packed e2m1" else form.b
        a = draw(rng, a_type, kind, shapes[0])
        b = draw(rng, b_type, "codes" if kind == "zero" and t % 2 else kind, shapes[1])
        if kind == "cancel":
            half = form.k // 2
            sign = 1 << FORMAT_SIGN[a_type]
            a[:, half:], b[half:] = a[:, :half] ^ sign, b[:half]
        operands = [a, b, draw(rng, form.accumulator, c_kind, shapes[2])]
        if form.scale:
            n = form.scale_vec
            operands.append(draw_scales(rng, form, kind, (16, n)))
            operands.append(draw_scales(rng, form, kind, (n, 8)))
        for column, x in zip(tile, operands, strict=False):
            column.append(x.astype(np.uint32))
    return Inputs(*(np.stack(x) for x in tile if x))


FORMAT_SIGN = {name: form.right + form.exponent + form.fraction for name, form in mma_model.FORMATS.items()}


def expected(form: Form, operands: Inputs) -> Codes:
    """Compute D by the model: [tile, 16, 8]."""
    result = []
    for t in range(len(operands.a)):
        a, b, c, *scales = (x[t] for x in operands if x is not None)
        if form.accumulator == "s32":
            saturate = form.modifier == "satfinite"
            d = mma_model.multiply_integers(a, b, c, form.a, form.b, saturate, form.operation)
        else:
            b_type = form.model_type if form.model_type != form.a else form.b
            d = mma_model.multiply_floats(a, b, c, form.model_type, b_type, form.accumulator, form.scale, *scales)
        result.append(d)
    return np.stack(result)
