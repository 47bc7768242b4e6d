"""mma.sync on the virtual device: every form, bit for bit, with every vector width."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import mma_forms
import numpy as np
import pytest
from micro import run
from mma_forms import FORMS, REFUSED, Codes, Form, Inputs

import pysm120

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools")]

import build  # noqa: E402

pytestmark = pytest.mark.virtual
Selectors = tuple[int, int, int, int]

FIRST: Selectors = (0, 0, 0, 0)
LAST: dict[int, Selectors] = {1: (3, 1, 2, 3), 2: (2, 1, 2, 3), 4: (0, 1, 0, 3)}
BYTES = {1: (0, 1, 2, 3), 2: (0, 2), 4: (0,)}
WIDTHS = ("base", "v3", "v4")
SCALED = [form for form in FORMS if form.scale]
VECTORS = np.load(ROOT / "tests" / "data" / "mma_vectors.npz")


def name_of(form: Form) -> str:
    """Name a form for the report."""
    return form.mnemonic.removeprefix("mma.sync.aligned.")


def run(
    device: pysm120.Device,
    kernel: Any,
    form: Form,
    operands: Inputs,
    selectors: Selectors,
) -> Codes:
    """Run a kernel, one warp per tile, and return D: [tile, 16, 8]."""
    tiles = len(operands.a)
    a = mma_forms.fragments_a(operands.a, form.width)
    b = mma_forms.fragments_b(operands.b, form.width)
    c = mma_forms.fragments_c(operands.c, form.accumulator)
    assert (a.shape[1], b.shape[1], c.shape[1]) == form.registers
    words: tuple[Codes, ...] = (c, c)
    if operands.scale_a is not None and operands.scale_b is not None:
        words = mma_forms.scale_words(operands.scale_a, operands.scale_b, selectors)
    arrays = [device.array(np.ascontiguousarray(x)) for x in (a, b, c, *words)]
    d = device.array(np.full(c.shape, 0xA5A5A5A5, np.uint32))
    kernel(tiles, 32, *arrays[:3], d, *arrays[3:])
    return mma_forms.tile_of(d.numpy(), form.accumulator)


def expect_equal(got: Codes, want: Codes, operands: Inputs) -> None:
    """Compare bits, naming the first difference."""
    differ = np.argwhere(got != want)
    if differ.size:
        tile, row, column = differ[0]
        c = operands.c[tile, row, column]
        pytest.fail(
            f"{len(differ)} of {want.size} differ, first tile {tile}, row {row}, "
            f"column {column}: {got[tile, row, column]:#x} instead of "
            f"{want[tile, row, column]:#x}, c is {c:#x}"
        )


def source(entries: Iterator[str] | list[str]) -> str:
    """Make one PTX text of some entries."""
    return mma_forms.HEAD + "".join(entries)


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_equals_the_model(
    device: pysm120.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, form: Form
) -> None:
    """Normal numbers, every code, zeros, subnormals, NaN, infinities, cancellation."""
    operands = mma_forms.inputs(form, rng)
    want = mma_forms.expected(form, operands)
    selectors = LAST.get(form.scale_vec, FIRST)
    text = source([mma_forms.entry(form, "mma", selectors)])
    for width in WIDTHS:
        monkeypatch.setenv("PYSM120_VM_ISA", width)
        expect_equal(run(device, device.load(text)["mma"], form, operands, selectors), want, operands)


@pytest.mark.parametrize("dynamic", [False, True], ids=["immediate", "register"])
@pytest.mark.parametrize("form", SCALED, ids=name_of)
def test_selectors(device: pysm120.Device, rng: np.random.Generator, form: Form, *, dynamic: bool) -> None:
    """Scales from every byte and thread that the instruction can name."""
    operands = mma_forms.inputs(form, rng, 2)
    want = mma_forms.expected(form, operands)
    places = BYTES[form.scale_vec]
    choices = list(itertools.product(places, range(2), places, range(4)))
    if form.a != "e4m3" or form.b != "e4m3":
        choices = choices[:: max(1, len(choices) // 16)]
    names = ["mma_" + "".join(map(str, choice)) for choice in choices]
    module = device.load(
        source(
            mma_forms.entry(form, name, choice, dynamic=dynamic) for name, choice in zip(names, choices, strict=True)
        )
    )
    for name, choice in zip(names, choices, strict=True):
        expect_equal(run(device, module[name], form, operands, choice), want, operands)


def vector_form(kind: str) -> Form:
    """Find the form of one of the published kinds."""
    if kind.startswith("mxf8f6f4"):
        _, a, b = kind.split("_")
        return Form(32, a, b, "f32", "mxf8f6f4", "ue8m0", 1)
    if kind.startswith("mxf4nvf4"):
        scale = kind.split("_")[2]
        vec = {"ue8m0": 2, "ue4m3": 4}[scale]
        return Form(64, "e2m1", "e2m1", "f32", "mxf4nvf4", scale, vec)
    shape, accumulator, a, b, _ = kind.split(".")
    return Form(int(shape.removeprefix("m16n8k")), a, b, accumulator)


@pytest.mark.parametrize("kind", sorted({name.rpartition(".")[0] for name in VECTORS}))
def test_equals_the_public_model(device: pysm120.Device, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Results of MMA-Sim itself; a few rows were confirmed on a chip."""
    form = vector_form(kind)
    arrays = {name.rpartition(".")[2]: VECTORS[name] for name in VECTORS if name.rpartition(".")[0] == kind}
    bits = np.uint16 if form.accumulator == "f16" else np.uint32
    c, d = (arrays[name].view(bits).astype(np.uint32) for name in "cd")
    a, b = arrays["a"], arrays["b"]
    if form.k == 64:
        a = np.stack([a & 15, a >> 4], 3).reshape(len(a), 16, 64)
        b = np.stack([b & 15, b >> 4], 2).reshape(len(b), 64, 8)
    operands = Inputs(a, b, c, arrays.get("sa"), arrays.get("sb"))
    assert form in FORMS
    text = source([mma_forms.entry(form, "mma", FIRST)])
    for width in WIDTHS:
        monkeypatch.setenv("PYSM120_VM_ISA", width)
        expect_equal(run(device, device.load(text)["mma"], form, operands, FIRST), d, operands)


def test_accumulates_in_place(device: pysm120.Device) -> None:
    """D in the registers of C, as every kernel writes it: x + 2 * 32 * 1."""
    form = Form(32, "e4m3", "e4m3", "f32", "mxf8f6f4", "ue8m0", 1)
    text = source([mma_forms.entry(form, "mma", FIRST, result="c")])
    one = np.array(1, ml_dtypes.float8_e4m3fn).view(np.uint8)
    a, b = np.full((1, 16, 32), one, np.uint32), np.full((1, 32, 8), one, np.uint32)
    x = np.arange(128, dtype=np.float32).reshape(1, 16, 8)
    scales = np.full((1, 16, 1), 128, np.uint32), np.full((1, 1, 8), 127, np.uint32)
    operands = Inputs(a, b, x.view(np.uint32), *scales)
    got = run(device, device.load(text)["mma"], form, operands, FIRST)
    expect_equal(got, (x + 64).view(np.uint32), operands)


def assemble(text: str, folder: Path, target: str = "sm_120f") -> subprocess.CompletedProcess[str]:
    """Give PTX to NVIDIA's assembler."""
    path = folder / "mma.ptx"
    path.write_text(text)
    command: list[Any] = [*build.assembler(build.find_nvcc(), target), "-o", folder / "o", path]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_form_assembles(tmp_path: Path) -> None:
    """The assembler takes what the virtual device takes."""
    entries = [
        mma_forms.entry(form, f"mma_{i}_{dynamic:d}", FIRST, dynamic=dynamic)
        for i, form in enumerate(FORMS)
        for dynamic in ((False, True) if form.scale else (False,))
    ]
    done = assemble(source(entries), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("form", REFUSED, ids=name_of)
def test_what_the_assembler_refuses(device: pysm120.Device, tmp_path: Path, form: Form) -> None:
    """The virtual device refuses it too, when it is loaded."""
    text = source([mma_forms.entry(form, "mma", FIRST)])
    assert assemble(text, tmp_path).returncode != 0
    with pytest.raises((pysm120.InvalidProgramError, pysm120.UnsupportedError)):
        device.load(text)


def test_same_bits_of_other_types(device: pysm120.Device, rng: np.random.Generator) -> None:
    """What was decoded of A for one type is not taken for another, nor for another depth."""
    forms = {
        "e4m3": "m16n8k32.row.col.f32.e4m3.e4m3.f32 {d0, d1, d2, d3}, {in0, in1, in2, in3}, {in4, in5}",
        "e5m2": "m16n8k32.row.col.f32.e5m2.e4m3.f32 {d0, d1, d2, d3}, {in0, in1, in2, in3}, {in4, in5}",
        "short": "m16n8k16.row.col.f32.e4m3.e4m3.f32 {d0, d1, d2, d3}, {in0, in1}, {in4}",
        "bf16": "m16n8k16.row.col.f32.bf16.bf16.f32 {d0, d1, d2, d3}, {in0, in1, in2, in3}, {in4, in5}",
        "f16": "m16n8k16.row.col.f32.f16.f16.f32 {d0, d1, d2, d3}, {in0, in1, in2, in3}, {in4, in5}",
    }
    inputs = [rng.integers(0, 1 << 32, 32, np.uint32) & np.uint32(0x33333333) for _ in range(6)]

    def results(*names: str) -> np.ndarray:
        body = ".reg .f32 d<4>, zero; mov.f32 zero, 0f00000000;\n"
        for name in names:
            body += f"mma.sync.aligned.{forms[name]}, {{zero, zero, zero, zero}};\n"
        body += "".join(f"mov.b32 out{k}, d{k};" for k in range(4))
        return np.stack(run(device, body, inputs, ["u4"] * 4, threads=32))

    alone = {name: results(name) for name in forms}
    assert len({a.tobytes() for a in alone.values()}) == len(forms)
    for first in forms:
        for second in forms:
            np.testing.assert_array_equal(results(first, second, first, second), alone[second])
