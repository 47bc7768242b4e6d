"""Our own kernels as they are expanded for sm_90, on inputs from a seed: what a GPU made of them is kept, whole or as
a checksum, and the virtual device has to make the same of the same PTX.

Quantisation has no approximate instruction: every bit agrees. Attention has ex2.approx, rcp.approx and lg2.approx.
"""

import hashlib
import re
import sys
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import pysm120

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "ptx")]

import expand  # noqa: E402

TYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
NO_DIAGONAL = 2**30
TOLERANCE = 2.0**-18  # of O and LSE, which are below 8 here: 8 ulp
Bytes = NDArray[np.uint8]


@cache
def expansion(template: str) -> expand.Expansion:
    """Expand a template for sm_90."""
    return expand.Expansion(ROOT / "ptx" / template, "sm_90")


def code(template: str) -> str:
    """Return what a template does: its PTX without comments and markers."""
    lines = (re.sub(r"\s*//.*", "", line) for line in expansion(template).lines)
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def noted(template: str, variant: str) -> dict[str, Any]:
    """Return what a template notes of a kernel."""
    return next(note for note in expansion(template).notes if note["variant"] == variant)


def ceil(x: int, y: int) -> int:
    """Divide and round up."""
    return -(-x // y)


class Quantized(NamedTuple):
    """A launch of quantize_mxfp8: x [batch, heads, rows, head_dim] of a type, into a layout."""

    dtype: str
    layout: str
    shape: tuple[int, int, int, int]
    floor: int = 0
    factor: float = 1.0
    wild: bool = False  # rows of all sizes, with subnormals, infinities and NaN

    @property
    def name(self) -> str:
        """The id of its test."""
        size = "x".join(map(str, self.shape))
        return f"quantize {self.dtype} {self.layout} {size} floor={self.floor} factor={self.factor} wild={self.wild}"

    @property
    def exact(self) -> bool:
        """Whether every bit agrees."""
        return True

    @property
    def templates(self) -> tuple[str, ...]:
        """The files that it depends on."""
        return ("quantize/mxfp8.ptx",)

    def input(self) -> NDArray[Any]:
        """Draw x, of the same seed for every launch of this name."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        x = rng.standard_normal(self.shape)
        if self.wild:
            x *= np.exp2(rng.integers(-12, 12, (*self.shape[:3], 1)))
            strange = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 1e-45, 1e-39, 3e38, 448, 464, 2.0**-130])
            x = np.where(rng.random(self.shape) < 0.02, rng.choice(strange, self.shape), x)
        with np.errstate(over="ignore", invalid="ignore"):
            return x.astype(np.float32).astype(TYPES[self.dtype])

    def launch(self, device: pysm120.Device) -> tuple[pysm120.Array, pysm120.Array]:
        """Run it; return elements and scales, with zeros behind them."""
        batch, heads, rows, columns = self.shape
        note = noted(self.templates[0], f"{self.dtype}_{self.layout}")
        tile = {"q": 128, "k": 64, "v": 64}.get(self.layout.partition("_d")[0], 1)
        padded = ceil(rows, tile) * tile
        padded_columns = int(self.layout[3:]) if tile > 1 else columns
        row_tiles, column_tiles = ceil(padded, note["rows"]), ceil(padded_columns, note["columns"])
        x = device.array(self.input())
        area = batch * heads * padded * padded_columns
        elements, scales = device.zeros(2 * area, np.uint8), device.zeros(area, np.uint8)
        strides = np.array((*x.shape[1:], 1))[::-1].cumprod()[::-1] * np.dtype(TYPES[self.dtype]).itemsize
        kernel = device.load(expansion(self.templates[0]).text)[note["entry"]]
        kernel(
            batch * heads * row_tiles * column_tiles,
            note["threads"],
            x,
            elements,
            scales,
            *(np.int64(s) for s in strides[:3]),
            *(np.uint32(v) for v in (heads, rows, columns, row_tiles, column_tiles, self.floor)),
            np.float32(self.factor),
        )
        return elements, scales

    def run(self, device: pysm120.Device) -> Bytes:
        """Return a checksum of the results."""
        digest = hashlib.sha256()
        for array in self.launch(device):
            digest.update(array.numpy().tobytes())
        return np.frombuffer(digest.digest(), np.uint8)


class Attention(NamedTuple):
    """A launch of attention_mxfp8 on operands that were quantised before it."""

    head_dim: int
    q_rows: int
    kv_rows: int
    causal: bool
    heads: int = 2

    @property
    def name(self) -> str:
        """The id of its test."""
        return f"attention d{self.head_dim} {self.heads}x{self.q_rows}x{self.kv_rows} causal={self.causal}"

    @property
    def exact(self) -> bool:
        """Whether every bit agrees."""
        return False

    @property
    def templates(self) -> tuple[str, ...]:
        """The files that it depends on."""
        return ("quantize/mxfp8.ptx", "attention/mxfp8.ptx")

    def run(self, device: pysm120.Device) -> Bytes:
        """Return O and LSE of f32."""
        note = noted(self.templates[1], f"d{64 if self.head_dim <= 64 else 128}_r16")
        shapes = {"q": (1, self.heads, self.q_rows, self.head_dim), "k": (1, 1, self.kv_rows, self.head_dim)}
        packed = {
            part: Quantized("f32", f"{part}_d{note['head_dim']}", shapes.get(part, shapes["k"])).launch(device)
            for part in "qkv"
        }
        tiles = ceil(self.q_rows, note["q_rows"])
        o = device.zeros((self.heads, self.q_rows, self.head_dim), np.float32)
        lse = device.zeros((self.heads, self.q_rows), np.float32)
        row = 4 * self.head_dim
        kernel = device.load(expansion(self.templates[1]).text)[note["entry"]]
        kernel(
            self.heads * tiles,
            note["threads"],
            *packed["q"],
            packed["k"][0],
            packed["v"][0],
            o,
            lse,
            *(np.int64(s) for s in (row * self.q_rows * self.heads, row * self.q_rows, row)),
            *(np.uint32(v) for v in (self.heads, 1, self.q_rows, self.kv_rows, self.head_dim, tiles, 0)),
            np.float32(np.log2(np.e) / np.sqrt(self.head_dim)),
            np.int32(self.kv_rows - self.q_rows if self.causal else NO_DIAGONAL),
            shared=note["shared"],
        )
        return np.concatenate([o.numpy().ravel(), lse.numpy().ravel()]).view(np.uint8)


Kernel = Quantized | Attention


def kernels() -> Iterator[Kernel]:
    """List them all."""
    for dtype in TYPES:
        for floor in (0, 1):
            yield Quantized(dtype, "d", (2, 3, 77, 80), floor, wild=True)
            yield Quantized(dtype, "rows", (2, 3, 77, 80), floor, wild=True)
        for layout in ("q_d64", "k_d64", "v_d64"):
            yield Quantized(dtype, layout, (2, 2, 150, 48), factor=-1.0, wild=True)
        for layout in ("q_d128", "k_d128", "v_d128"):
            yield Quantized(dtype, layout, (1, 2, 130, 104))
    for head_dim in (64, 80, 128):
        yield Attention(head_dim, 40, 150, causal=False)
        yield Attention(head_dim, 33, 70, causal=True)
    yield Attention(64, 3, 1, causal=True)  # rows that see no key
    yield Attention(64, 130, 513, causal=True, heads=1)


def key(kernel: Kernel) -> str:
    """Return its key in the recording, which changes with the code and with the launch."""
    text = "".join(code(template) for template in kernel.templates) + repr(kernel)
    return f"{zlib.crc32(text.encode()):08x}"


KERNELS = tuple(kernels())
