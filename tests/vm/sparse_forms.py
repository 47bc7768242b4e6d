"""Every mma.sp of sm_120f and sm_120a: its PTX, its metadata, and what it computes.

A is stored as half of each row, with the places of what is stored beside it. The model
picks the rows of B that these places name; nothing is laid out with zeros.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import mma_forms
import numpy as np
from mma_forms import BYTE_FLOATS, Codes, Form

ORDERED = (0b0100, 0b1000, 0b1001, 0b1100, 0b1101, 0b1110)
ANY = tuple(x for x in range(16) if x & 3 != x >> 2)
TF32 = (0b0100, 0b1110)


class Sparse(NamedTuple):
    """One instruction: the dense form with as many products, and what is sparse."""

    dense: Form
    ordered: bool

    @property
    def k(self) -> int:
        """The depth, with what A leaves out."""
        return 2 * self.dense.k

    @property
    def mnemonic(self) -> str:
        """The whole instruction name."""
        name = self.dense.mnemonic.replace(f"m16n8k{self.dense.k}.", f"m16n8k{self.k}.")
        return name.replace("mma.", "mma.sp::ordered_metadata." if self.ordered else "mma.sp.", 1)

    @property
    def chunk(self) -> int:
        """Elements of a row that share four bits of metadata."""
        return {32: 2, 4: 8}.get(self.dense.width, 4)

    @property
    def chunks(self) -> int:
        """Such groups in a row."""
        return self.k // self.chunk

    @property
    def selectors(self) -> range:
        """Values of the sparsity selector."""
        return range(16 // self.chunks)

    @property
    def pairs(self) -> tuple[int, ...]:
        """Values of four bits of metadata."""
        return TF32 if self.dense.width == 32 else ORDERED if self.ordered else ANY

    @property
    def target(self) -> str:
        """The least target."""
        return "sm_120a" if self.dense.kind.startswith("mxf4") else "sm_120f"


def dense_forms() -> Iterator[tuple[Form, bool]]:
    """List the dense counterparts, and whether unordered metadata will do."""
    for form in mma_forms.FORMS:
        if form.a == "b1" or (form.k == 16 and form.a in BYTE_FLOATS):
            continue
        narrow = form.a in BYTE_FLOATS and form.accumulator == "f16"
        yield form, not form.kind and not narrow


FORMS = tuple(Sparse(form, ordered) for form, both in dense_forms() for ordered in ((False, True) if both else (True,)))
# Some that the assembler refuses.
REFUSED = (
    Sparse(Form(16, "e4m3", "e4m3", "f32"), ordered=True),
    Sparse(Form(32, "e4m3", "e4m3", "f16"), ordered=False),
    Sparse(Form(32, "e4m3", "e4m3", "f32", "f8f6f4"), ordered=False),
    Sparse(Form(32, "e4m3", "e4m3", "f32", "mxf8f6f4", "ue8m0", 1), ordered=False),
    Sparse(Form(32, "bf16", "bf16", "f32"), ordered=True),
    Sparse(Form(4, "f16", "f16", "f32"), ordered=True),
    Sparse(Form(128, "b1", "b1", "s32", operation="and"), ordered=True),
)


def entry(form: Sparse, name: str, selector: int, scales: tuple[int, ...] = (0, 0, 0, 0)) -> str:
    """Write a kernel for one form: that of the dense one, with twice the registers of B."""
    dense = form.dense
    _, nb, nc = dense.registers
    text = mma_forms.entry(dense, name, scales)
    text = text.replace(f"b_<{nb}>", f"b_<{2 * nb}>").replace(dense.mnemonic, form.mnemonic)
    text = text.replace(".param .u64 param_sA,", ".param .u64 param_E, .param .u64 param_sA,")
    registers = [", ".join(f"b_{i}" for i in range(n)) for n in (nb, 2 * nb)]
    text = text.replace("{" + registers[0] + "},", "{" + registers[1] + "},")
    plain = mma_forms.addresses("B", nb) + "".join(f"\n    ld.global.b32 b_{i}, [at + {128 * i}];" for i in range(nb))
    assert plain in text
    loads = mma_forms.addresses("B", 2 * nb) + "".join(
        f"\n    ld.global.b32 b_{i}, [at + {128 * i}];" for i in range(2 * nb)
    )
    loads += "\n    .reg .b32 metadata;" + mma_forms.addresses("E", 1) + "\n    ld.global.b32 metadata, [at];"
    c = "{" + ", ".join(f"c_{i}" for i in range(nc)) + "}"
    operands = text.replace(plain, loads)
    head, tail = operands.rsplit(c, 1)
    return f"{head}{c}, metadata, {selector}{tail}"


def draw_pairs(rng: np.random.Generator, form: Sparse, tiles: int) -> Codes:
    """Draw the places of what A holds: [tile, 16, chunks], four bits each."""
    return rng.choice(form.pairs, (tiles, 16, form.chunks)).astype(np.uint32)


def metadata_words(form: Sparse, pairs: Codes, selector: int, rng: np.random.Generator) -> Codes:
    """Put the places where the manual's figures have them, noise elsewhere: [tile, 1, 32].

    Figures 119 and 127: one lane of four has the 4 groups of row g in its lower half, of
    row g + 8 in its upper one. Figures 122 and 125: a second lane continues. Figures 129
    and 138: one lane has the 8 groups of row g, the next those of row g + 8. Figures 136,
    137 and 142, 143: two more lanes continue.
    """
    words = rng.integers(0, 1 << 32, (len(pairs), 32), dtype=np.uint64).astype(np.uint32)
    nibbles = pairs.astype(np.uint64)
    for g in range(8):
        top, bottom = nibbles[:, g], nibbles[:, g + 8]
        if form.dense.width >= 16:
            runs = [np.concatenate([top[:, c : c + 4], bottom[:, c : c + 4]], 1) for c in range(0, form.chunks, 4)]
        else:
            runs = [half[:, c : c + 8] for c in range(0, form.chunks, 8) for half in (top, bottom)]
        for k, run in enumerate(runs):
            lane = 4 * g + len(runs) * selector + k
            words[:, lane] = (run << (4 * np.arange(8, dtype=np.uint64))).sum(1).astype(np.uint32)
    return words[:, None]


def places(form: Sparse, pairs: Codes) -> Codes:
    """Return for every element of A which k it is: [tile, 16, k / 2]."""
    first, second = pairs & 3, pairs >> 2
    if form.dense.width == 32:  # 0100: the first of two, 1110: the second
        index = (first // 2)[..., None]
    elif form.dense.width == 4:  # indices of pairs of elements
        index = np.stack([2 * first, 2 * first + 1, 2 * second, 2 * second + 1], 3)
    else:
        index = np.stack([first, second], 3)
    start = form.chunk * np.arange(form.chunks)[:, None]
    return (index + start).reshape(*pairs.shape[:2], -1)


class Inputs(NamedTuple):
    """Operands of some tiles; B has the whole depth."""

    dense: mma_forms.Inputs
    b: Codes
    pairs: Codes


def inputs(form: Sparse, rng: np.random.Generator, tiles: int = len(mma_forms.KINDS)) -> Inputs:
    """Make operands: those of the dense form, and more of B."""
    both = [mma_forms.inputs(form.dense, rng, tiles) for _ in range(2)]
    order = rng.permutation(form.k)
    b = np.concatenate([x.b for x in both], 1)[:, order]
    return Inputs(both[0], b, draw_pairs(rng, form, tiles))


def expected(form: Sparse, operands: Inputs) -> Codes:
    """Compute D by the model, row by row: [tile, 16, 8]."""
    result = np.empty_like(operands.dense.c)
    at = places(form, operands.pairs)
    for t, i in itertools.product(range(len(at)), range(16)):
        chosen: dict[str, Any] = {"b": operands.b[t, at[t, i]][None]}
        for name in ("a", "c", "scale_a"):
            value = getattr(operands.dense, name)
            chosen[name] = None if value is None else value[t : t + 1, i : i + 1]
        scale_b = operands.dense.scale_b
        chosen["scale_b"] = None if scale_b is None else scale_b[t : t + 1]
        result[t, i] = mma_forms.expected(form.dense, mma_forms.Inputs(**chosen))[0, 0]
    return result
