"""Every wmma.mma of sm_120f: PTX that loads, multiplies and stores, and what it computes.

Matrices lie in memory by rows or by columns with some room between them; which lane
holds what is nobody's business.
"""

import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import mma_forms
import mma_model
import numpy as np
from numpy.typing import NDArray

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1, "f64": 64, "f32": 32, "s32": 32}
ROUNDINGS = ("", ".rn", ".rz", ".rm", ".rp")
Codes = NDArray[Any]


class Form(NamedTuple):
    """One wmma.mma."""

    shape: tuple[int, int, int]
    inputs: str
    d: str
    c: str
    layout_a: str
    layout_b: str
    modifier: str = ""  # .satfinite, .and.popc, a rounding

    @property
    def name(self) -> str:
        """The shape as PTX has it."""
        return "m{}n{}k{}".format(*self.shape)

    @property
    def mnemonic(self) -> str:
        """The name of the multiplication."""
        types = f"{self.d}.{self.c}" if self.inputs == "f16" else f"{self.d}.{self.inputs}.{self.inputs}.{self.c}"
        before = self.modifier if self.inputs == "b1" else ""
        rounding = self.modifier if self.inputs == "f64" else ""
        after = self.modifier if self.modifier == ".satfinite" else ""
        layouts = f"{self.layout_a}.{self.layout_b}"
        return f"wmma.mma{before}.sync.aligned.{layouts}.{self.name}{rounding}.{types}{after}"

    def registers(self, part: str) -> int:
        """The registers of a fragment, by the tables of the manual."""
        m, n, k = self.shape
        kind = {"a": self.inputs, "b": self.inputs, "c": self.c, "d": self.d}[part]
        size = {"a": m * k, "b": k * n, "c": m * n, "d": m * n}[part]
        if kind == "f16" and part in "ab":
            return 8
        return size * min(BITS[kind], 32) // 1024


def forms() -> Iterator[Form]:
    """List them all."""
    both = [(a, b) for a in ("row", "col") for b in ("row", "col")]
    for shape, (la, lb) in itertools.product(((16, 16, 16), (8, 32, 16), (32, 8, 16)), both):
        for d, c in itertools.product(("f16", "f32"), repeat=2):
            yield Form(shape, "f16", d, c, la, lb)
        yield Form(shape, "bf16", "f32", "f32", la, lb)
        for inputs, modifier in itertools.product(("s8", "u8"), ("", ".satfinite")):
            yield Form(shape, inputs, "s32", "s32", la, lb, modifier)
    for la, lb in both:
        yield Form((16, 16, 8), "tf32", "f32", "f32", la, lb)
        for modifier in ROUNDINGS:
            yield Form((8, 8, 4), "f64", "f64", "f64", la, lb, modifier)
    for inputs, modifier in itertools.product(("s4", "u4"), ("", ".satfinite")):
        yield Form((8, 8, 32), inputs, "s32", "s32", "row", "col", modifier)
    for modifier in (".and.popc", ".xor.popc"):
        yield Form((8, 8, 128), "b1", "s32", "s32", "row", "col", modifier)


FORMS = tuple(forms())


# ---- matrices in memory -------------------------------------------------------


def stride(rows: int, columns: int, layout: str, kind: str) -> int:
    """Choose the distance of two rows (of two columns), with room between them."""
    length = columns if layout == "row" else rows
    return length + max(16 * 8 // BITS[kind], 1) * 2


def store(x: Codes, layout: str, kind: str) -> NDArray[np.uint8]:
    """Put codes [tile, row, column] into bytes, 0xA5 between them: [tile, bytes]."""
    lines = x if layout == "row" else x.transpose(0, 2, 1)
    room = stride(x.shape[1], x.shape[2], layout, kind) * BITS[kind] // 8
    if BITS[kind] < 8:
        n = 8 // BITS[kind]
        shifts = (np.arange(n) * BITS[kind]).astype(np.uint8)
        packed = (lines.reshape(*lines.shape[:2], -1, n).astype(np.uint8) << shifts).sum(-1).astype(np.uint8)
    else:
        packed = np.ascontiguousarray(lines.astype(f"u{BITS[kind] // 8}")).view(np.uint8)
    out = np.full((*lines.shape[:2], room), 0xA5, np.uint8)
    out[:, :, : packed.shape[2]] = packed
    return out.reshape(len(x), -1)


def load(memory: NDArray[np.uint8], rows: int, columns: int, layout: str, kind: str) -> Codes:
    """Take codes [tile, row, column] out of bytes, and see that what is between is whole."""
    lines, length = (rows, columns) if layout == "row" else (columns, rows)
    size = BITS[kind] // 8
    whole = memory.reshape(len(memory), lines, -1)
    assert (whole[:, :, length * size :] == 0xA5).all()
    inner = np.ascontiguousarray(whole[:, :, : length * size]).view(f"u{size}")
    return inner if layout == "row" else inner.transpose(0, 2, 1)


# ---- PTX ------------------------------------------------------------------------

HEAD = ".version 8.8\n.target {target}\n.address_size 64\n"
ENTRY = """
.visible .entry {entry}(.param .u64 param_a, .param .u64 param_b, .param .u64 param_c, .param .u64 param_d)
{{
    .reg .b32   tile, s_<4>;
    .reg .b64   at, a, b, c, d;
    .reg .{ta}  a_<{na}>, b_<{nb}>;
    .reg .{tc}  c_<{nc}>;
    .reg .{td}  d_<{nd}>;
    mov.u32     tile, %ctaid.x;
{addresses}
    wmma.load.a.sync.aligned.{la}.{shape}.global.{inputs} {{{va}}}, [a], {sa};
    wmma.load.b.sync.aligned.{lb}.{shape}{generic}.{inputs} {{{vb}}}, [b], {sb};
    wmma.load.c.sync.aligned.{lc}.{shape}.global.{c} {{{vc}}}, [c], {sc};
    {mnemonic}
        {{{vd}}}, {{{va}}}, {{{vb}}}, {{{vc}}};
{between}
    wmma.store.d.sync.aligned.{ld}.{shape}.global.{d} [d], {{{vd}}}, {sd};
    ret;
}}
"""


class Layout(NamedTuple):
    """How C and D lie, and how the strides are given."""

    c: str = "row"
    d: str = "row"
    in_registers: bool = True


def entry(form: Form, name: str, layout: Layout, between: str = "") -> str:
    """Write a kernel: one warp, one tile."""
    m, n, k = form.shape
    parts = {
        "a": (m, k, form.layout_a, form.inputs),
        "b": (k, n, form.layout_b, form.inputs),
        "c": (m, n, layout.c, form.c),
        "d": (m, n, layout.d, form.d),
    }
    addresses, values = "", {}
    for i, (part, (rows, columns, order, kind)) in enumerate(parts.items()):
        length = stride(rows, columns, order, kind)
        size = length * (rows if order == "row" else columns) * BITS[kind] // 8
        addresses += f"    ld.param.u64 at, [param_{part}];\n    mad.wide.u32 {part}, tile, {size}, at;\n"
        addresses += f"    mov.u32     s_{i}, {length};\n"
        values[f"s{part}"] = f"s_{i}" if layout.in_registers else str(length)
        count = form.registers(part)
        values[f"n{part}"] = str(count)
        values[f"v{part}"] = ", ".join(f"{part}_{i}" for i in range(count))
    types = {"f16": "b32", "f32": "f32", "s32": "b32", "f64": "f64"}
    return ENTRY.format(
        entry=name,
        addresses=addresses,
        ta="f64" if form.inputs == "f64" else "b32",
        tc=types[form.c],
        td=types[form.d],
        la=form.layout_a,
        lb=form.layout_b,
        lc=layout.c,
        ld=layout.d,
        generic="" if layout.in_registers else ".global",
        shape=form.name,
        inputs=form.inputs,
        c=form.c,
        d=form.d,
        mnemonic=form.mnemonic,
        between=between,
        **values,
    )


# ---- what it computes -----------------------------------------------------------


class Inputs(NamedTuple):
    """Operands of some tiles, as codes."""

    a: Codes
    b: Codes
    c: Codes


def inputs(form: Form, rng: np.random.Generator, tiles: int = len(mma_forms.KINDS)) -> Inputs:
    """Make operands: a kind of numbers per tile."""
    m, n, k = form.shape
    shapes = ((m, k), (k, n), (m, n))
    if form.c == "f64":
        a, b, c = (rng.standard_normal((tiles, *shape)) for shape in shapes)
        a[-1, 0, 0], b[-2, 0, 0], c[-3] = np.inf, np.nan, 0
        return Inputs(*(x.view(np.uint64) for x in (a, b, c)))
    if form.c == "s32":
        bits = BITS[form.inputs]
        x, y, z = (rng.integers(0, 1 << w, (tiles, *s)) for w, s in zip((bits, bits, 32), shapes, strict=True))
        z[::2] = np.where(z[::2] & 1, 0x7FFFFFFF - z[::2] % 4000, 0x80000000 + z[::2] % 4000)
        return Inputs(*(codes.astype(np.uint32) for codes in (x, y, z)))
    drawn: list[list[Codes]] = [[], [], []]
    for t in range(tiles):
        kind = mma_forms.KINDS[t % len(mma_forms.KINDS)].replace("cancel", "normal")
        c_kind = mma_forms.C_KINDS[t % len(mma_forms.C_KINDS)]
        for to, name, of, shape in zip(
            drawn, (form.inputs, form.inputs, form.c), (kind, kind, c_kind), shapes, strict=True
        ):
            to.append(mma_forms.draw(rng, name, of, shape).astype(np.uint32))
    return Inputs(*(np.stack(x) for x in drawn))


def chained(a: Codes, b: Codes, c: Codes) -> Codes:
    """Multiply doubles: one fused multiply-add for each k, rounded from fractions."""
    result = np.empty(c.shape)
    for i, j in np.ndindex(*c.shape):
        total = float(c[i, j])
        for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True):
            if not np.isfinite([x, y, total]).all():
                total = x * y + total
            else:
                total = float(Fraction(x) * Fraction(y) + Fraction(total))
        result[i, j] = total
    return result


def expected(form: Form, operands: Inputs) -> Codes:
    """Compute D by the model: codes [tile, m, n]."""
    result = []
    for a, b, c in zip(*operands, strict=True):
        if form.c == "f64":
            d: Codes = chained(a.view(np.float64), b.view(np.float64), c.view(np.float64)).view(np.uint64)
        elif form.c == "s32":
            operation = form.modifier.removesuffix(".popc").removeprefix(".") if form.inputs == "b1" else ""
            saturate = form.modifier == ".satfinite"
            d = mma_model.multiply_integers(a, b, c, form.inputs, form.inputs, saturate, operation)
        elif form.inputs == "tf32":  # in two steps
            half = mma_model.multiply_floats(a[:, :4], b[:4], c, "tf32", "tf32", "f32")
            d = mma_model.multiply_floats(a[:, 4:], b[4:], half, "tf32", "tf32", "f32")
        else:
            d = mixed(form, a, b, c)
        result.append(d)
    return np.stack(result)


def mixed(form: Form, a: Codes, b: Codes, c: Codes) -> Codes:
    """Multiply f16 or bf16; with two types of sums, in f32."""
    if form.c == form.d:
        return mma_model.multiply_floats(a, b, c, form.inputs, form.inputs, form.c)
    with np.errstate(over="ignore", invalid="ignore"):
        wide = c.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32) if form.c == "f16" else c
        d = mma_model.multiply_floats(a, b, wide, form.inputs, form.inputs, "f32")
        if form.d == "f16":
            x = d.view(np.float32)
            d = np.where(np.isnan(x), 0x7FFF, x.astype(np.float16).view(np.uint16)).astype(np.uint32)
    return d
