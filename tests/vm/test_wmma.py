"""wmma on the virtual device: loads, stores and products of every form, bit for bit."""

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wmma_forms
from test_mma import assemble
from wmma_forms import FORMS, Codes, Form, Inputs, Layout

import pysm120

pytestmark = pytest.mark.virtual
ROUNDED = [form for form in FORMS if form.modifier in {".rz", ".rm", ".rp"}]
NEAREST = [form for form in FORMS if form not in ROUNDED]


def name_of(form: Form) -> str:
    """Name a form for the report."""
    return form.mnemonic.removeprefix("wmma.mma.").replace("sync.aligned.", "")


def source(entries: list[str], target: str = "sm_120f") -> str:
    """Make one PTX text of some entries."""
    return wmma_forms.HEAD.format(target=target) + "".join(entries)


def run(device: pysm120.Device, kernel: Any, form: Form, operands: Inputs, layout: Layout) -> Codes:
    """Run a kernel, one warp per tile, and return D: codes [tile, m, n]."""
    m, n, _ = form.shape
    orders = (form.layout_a, form.layout_b, layout.c)
    kinds = (form.inputs, form.inputs, form.c)
    arrays = [
        device.array(wmma_forms.store(x, order, kind)) for x, order, kind in zip(operands, orders, kinds, strict=True)
    ]
    room = wmma_forms.store(np.zeros((len(operands.c), m, n), np.uint64), layout.d, form.d)
    d = device.array(np.full_like(room, 0xA5))
    kernel(len(operands.c), 32, *arrays, d)
    return wmma_forms.load(d.numpy(), m, n, layout.d, form.d)


@pytest.mark.parametrize("form", NEAREST, ids=name_of)
def test_equals_the_model(device: pysm120.Device, rng: np.random.Generator, form: Form) -> None:
    """Every kind of number; C and D by rows and by columns, strides in registers and not."""
    operands = wmma_forms.inputs(form, rng)
    want = wmma_forms.expected(form, operands)
    for c, d, in_registers in itertools.product(("row", "col"), ("row", "col"), (False, True)):
        layout = Layout(c, d, in_registers)
        kernel = device.load(source([wmma_forms.entry(form, "k", layout)]))["k"]
        got = run(device, kernel, form, operands, layout)
        same = got == want
        if form.c == "f64":
            same |= np.isnan(got.view(np.float64)) & np.isnan(want.view(np.float64))
        assert same.all(), f"{np.count_nonzero(~same)} differ with C by {c} and D by {d}"


@pytest.mark.parametrize("form", ROUNDED, ids=name_of)
def test_directed_rounding(device: pysm120.Device, rng: np.random.Generator, form: Form) -> None:
    """Sums of doubles that need rounding lie on the side that the instruction names."""
    m, n, k = form.shape
    a, b = rng.standard_normal((4, m, k)), rng.standard_normal((4, k, n))
    a[:, :, 1:] = 0  # one product: rounded once
    c = rng.standard_normal((4, m, n))
    operands = Inputs(*(x.view(np.uint64) for x in (a, b, c)))
    kernel = device.load(source([wmma_forms.entry(form, "k", Layout())]))["k"]
    got = run(device, kernel, form, operands, Layout()).view(np.float64)
    inexact = 0
    for t, i, j in np.ndindex(*c.shape):
        x = Fraction(float(a[t, i, 0])) * Fraction(float(b[t, 0, j])) + Fraction(float(c[t, i, j]))
        rest = Fraction(float(got[t, i, j])) - x
        side = {".rm": -1, ".rp": 1, ".rz": -1 if x > 0 else 1}[form.modifier]
        assert 0 <= rest * side < np.spacing(abs(float(x)))
        inexact += rest != 0
    assert inexact > c.size // 2


@pytest.mark.parametrize("form", [f for f in NEAREST if f.layout_a == f.layout_b == "row"], ids=name_of)
def test_element_by_element(device: pysm120.Device, rng: np.random.Generator, form: Form) -> None:
    """What is done to every register of the sums is done to every element."""
    operands = wmma_forms.inputs(form, rng)
    add = {"f32": "add.f32", "f16": "add.f16x2", "s32": "add.s32", "f64": "add.f64"}[form.d]
    between = "".join(f"    {add} d_{i}, d_{i}, d_{i};\n" for i in range(form.registers("d")))
    kernels = device.load(
        source([wmma_forms.entry(form, "plain", Layout()), wmma_forms.entry(form, "twice", Layout(), between)])
    )
    plain, twice = (run(device, kernels[name], form, operands, Layout()) for name in ("plain", "twice"))
    kind: Any = {"f32": np.float32, "f16": np.float16, "s32": np.uint32, "f64": np.float64}[form.d]
    x, y = (np.ascontiguousarray(z).view(kind) for z in (plain, twice))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(x + x, y)


SHARED = """.version 8.8
.target sm_120f
.address_size 64
.visible .entry k(.param .u64 param_x, .param .u64 param_y)
{
    .shared .align 32 .b8 tile[512];
    .reg .b32 a_<8>, lane, s;
    .reg .b64 x, y, at;
    .reg .f32 d_<8>;
    ld.param.u64 x, [param_x];
    ld.param.u64 y, [param_y];
    mov.u32 lane, %laneid;
    mad.wide.u32 at, lane, 16, x;
    ld.global.v4.b32 {a_0, a_1, a_2, a_3}, [at];
    mul.lo.u32 s, lane, 16;
    mov.u32 a_4, tile;
    add.u32 s, s, a_4;
    st.shared.v4.b32 [s], {a_0, a_1, a_2, a_3};
    bar.warp.sync 0xffffffff;
    wmma.load.a.sync.aligned.m16n16k16.shared.row.f16 {a_0, a_1, a_2, a_3, a_4, a_5, a_6, a_7}, [tile];
    mov.f32 d_0, 0f00000000;
    wmma.mma.sync.aligned.m16n16k16.row.row.f32.f32 {d_7, d_6, d_5, d_4, d_3, d_2, d_1, d_0},
        {a_0, a_1, a_2, a_3, a_4, a_5, a_6, a_7}, {a_0, a_1, a_2, a_3, a_4, a_5, a_6, a_7},
        {d_0, d_0, d_0, d_0, d_0, d_0, d_0, d_0};
    wmma.store.d.sync.aligned.m16n16k16.global.row.f32 [y], {d_7, d_6, d_5, d_4, d_3, d_2, d_1, d_0};
    ret;
}
"""


def test_shared_memory(device: pysm120.Device, rng: np.random.Generator) -> None:
    """A tile in shared memory, the default stride, and D in a register of C.

    What was loaded as A is not B, so all elements are one number.
    """
    x = np.full((16, 16), rng.integers(1, 9), np.float16)
    y = device.array(np.zeros((16, 16), np.float32))
    device.load(SHARED)["k"](1, 32, device.array(x), y)
    np.testing.assert_array_equal(y.numpy(), x.astype(np.float32) @ x.astype(np.float32))


PLACE = """.version 8.8
.target sm_120f
.address_size 64
.visible .entry k(.param .u64 param_x, .param .u32 param_s)
{
    .reg .b32 r_<8>, s, lane;
    .reg .b64 x, more;
    .reg .pred p;
    ld.param.u64 x, [param_x];
    ld.param.u32 s, [param_s];
    mov.u32 lane, %laneid;
    %CHANGE%
    %USE%
    ret;
}
"""
REGISTERS = "{r_0, r_1, r_2, r_3, r_4, r_5, r_6, r_7}"
LOAD = f"wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {REGISTERS}, [x], s;"
STORE = "wmma.store.d.sync.aligned.row.m16n16k16.global.f16 [x], {s, s, s, s}, s;"


@pytest.mark.parametrize(
    ("change", "use", "stride", "wants"),
    [
        ("add.u64 x, x, 16;", LOAD, 16, "a matrix at 0x[0-9a-f]+; expected a multiple of 32"),
        ("", LOAD, 20, "a matrix with stride 20, in elements of 16 bits; expected a multiple of 8"),
        (
            "cvt.u64.u32 more, lane; shl.b64 more, more, 5; add.u64 x, x, more;",
            LOAD,
            16,
            "expected one address and one",
        ),
        ("mad.lo.u32 s, lane, 8, s;", LOAD, 16, "a matrix at .* stride 24, in lane 0 .* stride 16; expected one"),
        ("", STORE, 8, "stored with stride 8; expected at least its row length 16"),
        ("", LOAD, 4096, "read of 4 bytes at global address"),
        ("setp.lt.u32 p, lane, 16;", "@p " + LOAD, 16, "aligned"),
    ],
    ids=["address", "stride", "lanes", "strides", "short", "outside", "divergent"],
)
def test_faults(device: pysm120.Device, change: str, use: str, stride: int, wants: str) -> None:
    """Addresses and strides that the manual leaves undefined."""
    text = PLACE.replace("%CHANGE%", change).replace("%USE%", use)
    x = device.array(np.zeros((16, 64), np.float16))
    with pytest.raises(pysm120.Error, match=wants):
        device.load(text)["k"](1, 32, x, np.uint32(stride))


REFUSED = [
    "wmma.load.a.sync.aligned.row.m16n16k16.f32 {a,a,a,a,a,a,a,a}, [x];",
    "wmma.load.a.sync.aligned.row.m16n16k8.f16 {a,a,a,a,a,a,a,a}, [x];",
    "wmma.load.a.sync.aligned.row.m16n16k16.f16 {a,a,a,a}, [x];",
    "wmma.load.a.sync.aligned.row.m16n16k16.local.f16 {a,a,a,a,a,a,a,a}, [x];",
    "wmma.load.a.sync.row.m16n16k16.f16 {a,a,a,a,a,a,a,a}, [x];",
    "wmma.load.a.sync.aligned.col.m8n8k32.s4 {a}, [x];",
    "wmma.load.b.sync.aligned.row.m8n8k128.b1 {a}, [x];",
    "wmma.load.a.sync.aligned.row.m16n16k16.f16 {a,a,a,a,a,a,a,a}, [x], x;",
    "wmma.store.d.sync.aligned.row.m16n16k16.bf16 [x], {a,a,a,a};",
    "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.u8.s32 {a,a,a,a,a,a,a,a}, {a,a}, {a,a}, {a,a,a,a,a,a,a,a};",
    "wmma.mma.sync.aligned.row.row.m8n8k32.s32.s4.s4.s32 {a,a}, {a}, {a}, {a,a};",
    "wmma.mma.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {a,a}, {a}, {a}, {a,a};",
    "wmma.mma.xor.popc.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32 {a,a}, {a}, {a}, {a,a};",
    "wmma.mma.sync.aligned.row.col.m16n16k16.f16.bf16.bf16.f16 {a,a,a,a}, {a,a,a,a}, {a,a,a,a}, {a,a,a,a};",
    "wmma.mma.sync.aligned.m16n16k16.f32.f32 {a,a,a,a}, {a,a,a,a}, {a,a,a,a}, {a,a,a,a};",
]


@pytest.mark.parametrize("line", REFUSED)
def test_what_the_assembler_refuses(device: pysm120.Device, tmp_path: Path, line: str) -> None:
    """The virtual device refuses it too, when it is loaded."""
    body = f".visible .entry k(.param .u64 p) {{\n.reg .b32 a;\n.reg .b64 x;\nld.param.u64 x, [p];\n{line}\nret;\n}}\n"
    text = source([body])
    assert assemble(text, tmp_path).returncode != 0
    with pytest.raises((pysm120.InvalidProgramError, pysm120.UnsupportedError)):
        device.load(text)


def test_every_form_assembles(tmp_path: Path) -> None:
    """The assembler takes what the virtual device takes."""
    entries = [wmma_forms.entry(form, f"k_{i}", Layout("col", "row", i % 2 == 0)) for i, form in enumerate(FORMS)]
    done = assemble(source(entries), tmp_path)
    assert done.returncode == 0, done.stderr
