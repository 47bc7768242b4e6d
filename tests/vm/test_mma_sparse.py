"""mma.sp on the virtual device: every form, bit for bit, with every vector width."""

from pathlib import Path
from typing import Any

import mma_forms
import numpy as np
import pytest
import sparse_forms
from mma_forms import Codes
from sparse_forms import FORMS, REFUSED, Inputs, Sparse
from test_mma import FIRST, LAST, WIDTHS, assemble, expect_equal

import pysm120

pytestmark = pytest.mark.virtual


def name_of(form: Sparse) -> str:
    """Name a form for the report."""
    return form.mnemonic.removeprefix("mma.").replace("sync.aligned.", "")


def source(entries: list[str], target: str = "sm_120a") -> str:
    """Make one PTX text of some entries."""
    return mma_forms.HEAD.replace("sm_120f", target) + "".join(entries)


def run(device: pysm120.Device, kernel: Any, form: Sparse, operands: Inputs, words: Codes) -> Codes:
    """Run a kernel, one warp per tile, and return D: [tile, 16, 8]."""
    dense, width = operands.dense, form.dense.width
    c = mma_forms.fragments_c(dense.c, form.dense.accumulator)
    scales: tuple[Codes, ...] = (c, c)
    if dense.scale_a is not None and dense.scale_b is not None:
        scales = mma_forms.scale_words(dense.scale_a, dense.scale_b, LAST[form.dense.scale_vec])
    a, b = mma_forms.fragments_a(dense.a, width), mma_forms.fragments_b(operands.b, width)
    arrays = [device.array(np.ascontiguousarray(x)) for x in (a, b, c, words, *scales)]
    d = device.array(np.full(c.shape, 0xA5A5A5A5, np.uint32))
    kernel(len(dense.c), 32, *arrays[:3], d, *arrays[3:])
    return mma_forms.tile_of(d.numpy(), form.dense.accumulator)


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_equals_the_model(
    device: pysm120.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, form: Sparse
) -> None:
    """Every kind of number, every selector, places drawn among all that are allowed."""
    operands = sparse_forms.inputs(form, rng)
    want = sparse_forms.expected(form, operands)
    for width, selector in zip(WIDTHS, [*form.selectors, *form.selectors, *form.selectors], strict=False):
        monkeypatch.setenv("PYSM120_VM_ISA", width)
        text = source([sparse_forms.entry(form, "mma", selector, LAST.get(form.dense.scale_vec, FIRST))])
        words = sparse_forms.metadata_words(form, operands.pairs, selector, rng)
        expect_equal(run(device, device.load(text)["mma"], form, operands, words), want, operands.dense)


def test_infinity_that_nothing_meets(device: pysm120.Device, rng: np.random.Generator) -> None:
    """What A leaves out is no zero: it makes no NaN of an infinity in B."""
    form = next(x for x in FORMS if x.dense.a == "f16" and x.k == 32 and x.dense.accumulator == "f32")
    operands = sparse_forms.inputs(form, rng, 1)
    pairs = np.full_like(operands.pairs, 0b0100)
    a, c = np.full_like(operands.dense.a, 0x3C00), np.zeros_like(operands.dense.c)
    b = np.where(np.arange(32)[:, None] % 4 < 2, 0x3C00, 0x7C00).astype(np.uint32)
    operands = Inputs(operands.dense._replace(a=a, c=c), np.broadcast_to(b, operands.b.shape), pairs)
    words = sparse_forms.metadata_words(form, pairs, 0, rng)
    kernel = device.load(source([sparse_forms.entry(form, "mma", 0)]))["mma"]
    got = run(device, kernel, form, operands, words)
    assert (got.view(np.float32) == 16).all()


@pytest.mark.parametrize(
    ("name", "pair", "wants"),
    [
        ("sp.m16n8k32.row.col.f32.f16.f16.f32", 0b1111, "expected two different indices"),
        ("sp::ordered_metadata.m16n8k32.row.col.f32.f16.f16.f32", 0b0001, "expected the lower index first"),
        ("sp.m16n8k16.row.col.f32.tf32.tf32.f32", 0b1000, "expected 0x4 or 0xe"),
    ],
)
def test_bad_metadata(device: pysm120.Device, rng: np.random.Generator, name: str, pair: int, wants: str) -> None:
    """Places that the manual leaves undefined are a fault that names the lane."""
    form = next(x for x in FORMS if name_of(x) == name)
    operands = sparse_forms.inputs(form, rng, 1)
    pairs = operands.pairs.copy()
    pairs[0, 3, 6] = pair
    words = sparse_forms.metadata_words(form, pairs, 1, rng)
    kernel = device.load(source([sparse_forms.entry(form, "mma", 1)]))["mma"]
    message = rf"bits 8 to 11 of the metadata 0x[0-9a-f]+ are 0x{pair:x}: .*{wants} .*lane 15"
    with pytest.raises(pysm120.Error, match=message):
        run(device, kernel, form, operands, words)


@pytest.mark.parametrize("form", [x for x in FORMS if x.dense.kind == "" and x.dense.modifier == ""], ids=name_of)
def test_selector_range(device: pysm120.Device, form: Sparse) -> None:
    """The last sparsity selector is taken and the next one is not."""
    last = len(form.selectors) - 1
    device.load(source([sparse_forms.entry(form, "mma", last)]))
    with pytest.raises(pysm120.InvalidProgramError, match=f"{last + 1} is out of range; expected 0 to {last}"):
        device.load(source([sparse_forms.entry(form, "mma", last + 1)]))


@pytest.mark.parametrize("target", ["sm_120f", "sm_120a"])
def test_every_form_assembles(device: pysm120.Device, tmp_path: Path, target: str) -> None:
    """The assembler takes what the virtual device takes."""
    entries = [
        sparse_forms.entry(form, f"mma_{i}_{selector}", selector)
        for i, form in enumerate(FORMS)
        for selector in form.selectors
        if form.target in {target, "sm_120f"}
    ]
    done = assemble(source(entries, target), tmp_path, target)
    assert done.returncode == 0, done.stderr
    device.load(source(entries, target))


@pytest.mark.parametrize("form", [*REFUSED, *(x for x in FORMS if x.target == "sm_120a")], ids=name_of)
def test_what_the_assembler_refuses(device: pysm120.Device, tmp_path: Path, form: Sparse) -> None:
    """The virtual device refuses it too, when it is loaded."""
    text = source([sparse_forms.entry(form, "mma", 0)], "sm_120f")
    assert assemble(text, tmp_path).returncode != 0
    with pytest.raises((pysm120.InvalidProgramError, pysm120.UnsupportedError)):
        device.load(text)
