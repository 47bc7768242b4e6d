"""Our own kernels as they are expanded for sm_90, on inputs from a seed: what a GPU made of them is kept, whole or as
a checksum, and the virtual device has to make the same of the same PTX. It has to state capability 9 for that.

Quantisation has no approximate instruction: every bit agrees. Attention has ex2.approx, rcp.approx and lg2.approx.
"""

import hashlib
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import pysm120
from pysm120.runtime.module import builtin_image, builtins

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "ptx")]

import expand  # noqa: E402

TYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
NARROW = {**TYPES, "fp8": ml_dtypes.float8_e4m3fn}
HEADS = (("q", 4), ("k", 2), ("v", 2))
QUANTIZE = "quantize/mxfp8.ptx"
KEPT, STEPS = 4000, (1, 2, 3, 5, 7, 11, 17, 23, 31, 43, 59, 79, 101)  # of O and LSE: at most so many, every n-th
TOLERANCE = 2.0**-18  # of O and LSE, which are below 8 here: 8 ulp
# Where P is rounded to 16 bits, a last bit of ex2 may change a whole step of it: so few may be further off, by so much.
FEW, STEP = 0.01, {"bf16": 2.0**-9, "f16": 2.0**-12, "nvfp4": 2.0**-7, "fp8": 2.0**-7}
Bytes = NDArray[np.uint8]


@cache
def expansion(template: str) -> expand.Expansion:
    """Expand a template for sm_90."""
    return expand.Expansion(ROOT / "ptx" / template, "sm_90")


def stripped(text: Iterable[str]) -> str:
    """Return PTX without comments and markers."""
    lines = (re.sub(r"\s*//.*", "", line.strip("\0")) for line in text)
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def noted(template: str, **wanted: object) -> dict[str, Any]:
    """Return what a template notes of the first kernel with these fields."""
    return next(note.fields for note in expansion(template).notes if wanted.items() <= note.fields.items())


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
    def is_exact(self) -> bool:
        """Whether every bit agrees."""
        return True

    @property
    def step(self) -> float:
        """How far off a few numbers may be."""
        return 0.0

    @property
    def name(self) -> str:
        """The id of its test."""
        size = "x".join(map(str, self.shape))
        return f"quantize {self.dtype} {self.layout} {size} floor={self.floor} factor={self.factor} wild={self.wild}"

    @property
    def pattern(self) -> str:
        """The names of the kernels that it depends on."""
        return r"quantize_mxfp8_\w+(?<!_any)"

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
        layout, _, width = self.layout.partition("_d")
        note = noted(QUANTIZE, dtype=self.dtype, layout=layout, head_dim=min(int(width or 0), 128), features=False)
        tile = {"q": 128, "k": 64, "v": 64}.get(layout, 1)
        padded = ceil(rows, tile) * tile
        padded_columns = int(width) if tile > 1 else columns
        row_tiles, column_tiles = ceil(padded, note["rows"]), ceil(padded_columns, note["columns"])
        x = device.array(self.input())
        area = batch * heads * padded * padded_columns
        elements, scales = device.zeros(2 * area, np.uint8), device.zeros(area, np.uint8)
        strides = np.array((*x.shape[1:], 1))[::-1].cumprod()[::-1] * np.dtype(TYPES[self.dtype]).itemsize
        kernel = device.load(expansion(QUANTIZE).text)[note["entry"]]
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
    """A call of attention on tensors of 2 batches and 4 heads, 2 of k and v; in blocks of a scale they are of f32."""

    precision: str
    head_dim: int
    q_rows: int
    kv_rows: int
    features: tuple[str, ...] = ()
    config: str | None = None

    @property
    def is_exact(self) -> bool:
        """Whether every bit agrees."""
        return False

    @property
    def name(self) -> str:
        """The id of its test."""
        size = f"d{self.head_dim} {self.q_rows}x{self.kv_rows}"
        return " ".join(["attention", self.precision, size, *self.features, *filter(None, [self.config])])

    @property
    def step(self) -> float:
        """How far off a few numbers may be."""
        return STEP.get(self.precision.removeprefix("mxfp8_"), TOLERANCE)

    @property
    def pattern(self) -> str:
        """The names of the kernels that it depends on."""
        special = bool({*self.features} - {"causal", "window", "splits"})
        stem = rf"attention_{self.precision}_\d\w*_d\d+"
        if not special and self.precision in TYPES:
            pattern = rf"{stem}_{self.config or 'r[0-9]+'}"
        else:
            pattern = rf"{stem}_any(_\w+)?" if special else rf"{stem}(?!_any)\w*"
        if self.precision.startswith("nvfp4"):
            pattern += r"|quantize_nvfp4_f32_[qkv]_\w+|attention_mean\w*_f32"
        elif self.precision.startswith("mxfp8"):
            pattern += r"|quantize_mxfp8_\w+_any" if special else r"|quantize_mxfp8_\w+(?<!_any)"
        if "splits" in self.features:
            pattern += "|attention_splits"
        if self.head_dim % (16 if self.precision == "fp8" else 8):
            pattern += "|copy_rows.*"
        return pattern

    def arguments(self, rng: np.random.Generator) -> dict[str, Any]:
        """Draw what the features ask for."""
        f32, keys = np.float32, self.kv_rows
        mask = rng.standard_normal((1, 4, self.q_rows, keys), f32)
        known: dict[str, dict[str, Any]] = {
            "causal": {"causal": True},
            "window": {"window": (40, 9)},
            "softcap": {"softcap": 3.0},
            "sinks": {"sinks": rng.standard_normal(4, f32)},
            "alibi": {"alibi_slopes": rng.uniform(0.1, 0.5, 4).astype(f32)},
            "bias": {"mask": mask},
            "mask": {"mask": mask > -1},
            "lengths": {"kv_lengths": np.array([keys, keys // 3], np.int32)},
            "splits": {"num_splits": 3},
            "past": {f"past_{t}": rng.standard_normal((2, 45, 2, self.head_dim), f32) for t in "kv"},
        }
        chosen = {name: value for feature in self.features for name, value in known[feature].items()}
        return {"num_splits": 1, **chosen}  # the library's choice depends on the number of multiprocessors

    def run(self, device: pysm120.Device) -> Bytes:
        """Return some numbers of O and LSE in f32, of all rows and columns."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        q, k, v = (
            rng.standard_normal((2, rows, heads, self.head_dim), np.float32)
            for rows, (_, heads) in zip((self.q_rows, self.kv_rows, self.kv_rows), HEADS, strict=True)
        )
        given = self.arguments(rng)
        if (narrow := NARROW.get(self.precision.removeprefix("mxfp8_"))) is not None:
            q, k, v = q.astype(narrow), k.astype(narrow), v.astype(narrow)
            given |= {name: given[name].astype(narrow) for name in ("past_k", "past_v") if name in given}
        if self.precision == "fp8":
            given |= {f"{tensor}_scale": rng.uniform(0.5, 1.0, heads).astype(np.float32) for tensor, heads in HEADS}
        o, lse = pysm120.attention(
            q,
            k,
            v,
            precision=self.precision,
            config=self.config,
            out_dtype=np.float32,
            return_lse=True,
            device=device,
            **given,
        )
        numbers = np.concatenate([o.ravel(), lse.ravel()])
        return numbers[:: next(n for n in STEPS if n * KEPT > numbers.size)].copy().view(np.uint8)


class Recorded:
    """Another launch: `compute` draws inputs and returns the results of a device.

    ``pattern`` matches the names of the kernels that it depends on. ``step`` is how far off a few numbers may be.
    """

    def __init__(
        self,
        name: str,
        pattern: str,
        compute: Callable[[pysm120.Device, np.random.Generator], NDArray[Any]],
        *,
        is_exact: bool = True,
        step: float = TOLERANCE,
    ) -> None:
        self.name, self.pattern, self.compute, self.is_exact = name, pattern, compute, is_exact
        self.step = step

    def __repr__(self) -> str:
        return f"Recorded({self.name!r})"

    def run(self, device: pysm120.Device) -> Bytes:
        """Return the bytes of the results: f32 where they are not exact."""
        found = self.compute(device, np.random.default_rng(zlib.crc32(self.name.encode())))
        return np.ascontiguousarray(found).reshape(-1).view(np.uint8)


Kernel = Quantized | Attention | Recorded


def quantized() -> Iterator[Quantized]:
    """List the launches of quantize_mxfp8."""
    for dtype in TYPES:
        for floor in (0, 1):
            yield Quantized(dtype, "d", (2, 3, 77, 80), floor, wild=True)
            yield Quantized(dtype, "rows", (2, 3, 77, 80), floor, wild=True)
        for layout in ("q_d64", "k_d64", "v_d64"):
            yield Quantized(dtype, layout, (2, 2, 150, 48), factor=-1.0, wild=True)
        for layout in ("q_d128", "k_d128", "v_d128"):
            yield Quantized(dtype, layout, (1, 2, 130, 104))
        for layout in ("q_d256", "k_d256", "v_d256"):
            yield Quantized(dtype, layout, (1, 2, 130, 216), wild=True)


def attention() -> Iterator[Attention]:
    """List the calls of attention."""
    for precision in ("bf16", "f16", "mxfp8", "mxfp8_bf16", "mxfp8_f16", "fp8", "nvfp4", "nvfp4_mxfp8"):
        is_mx = precision.startswith("mxfp8")
        sizes = (32, 64, 96, 128, 256) if precision in TYPES else (64, 128, 256) if is_mx else (64, 128)
        for head_dim in sizes:
            yield Attention(precision, head_dim, 40, 150)
            yield Attention(precision, head_dim, 150, 333, ("causal",))
        yield Attention(precision, 33, 70, 33, ("causal",))  # rows that see no key, padded copies
        yield Attention(precision, 80, 133, 257, ("window",))
        yield Attention(precision, 64, 70, 150, ("causal", "past"))
        yield Attention(precision, 128, 70, 150, ("lengths",))
        yield Attention(precision, 128, 150, 70, ("softcap", "alibi", "sinks"))
        yield Attention(precision, 64, 33, 90, ("bias",))
        yield Attention(precision, 128, 70, 333, ("splits",))
        yield Attention(precision, 96, 33, 90, ("mask",))
        if is_mx:
            yield Attention(precision, 256, 150, 133, ("softcap", "lengths"))
    for precision in ("bf16", "f16"):
        for head_dim, configs in ((32, "r16 r32"), (64, "r16 r32 walk"), (96, "walk"), (128, "r16 r32 walk")):
            for config in configs.split():
                yield Attention(precision, head_dim, 200, 190, ("causal",), config)


@cache
def shipped(entry: str) -> str:
    """Return the statements of a kernel in the library, for sm_90."""
    index = next(k for k, builtin in enumerate(builtins()) if builtin.entry == entry)
    text = stripped(builtin_image(index, "sm_90", "ptx").decode().splitlines())
    found = re.search(rf"^\.visible \.entry {entry}\(.*?^}}$", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{entry} is not in its image"
    return " ".join(found[0].split())


@cache
def statements(pattern: str) -> str:
    """Return those of all kernels of such names, whatever templates and images they come from."""
    entries = sorted(builtin.entry for builtin in builtins() if re.fullmatch(pattern, builtin.entry))
    return "\n".join(shipped(entry) for entry in entries)


def key(kernel: Kernel) -> str:
    """Return its key in the recording, which changes with the statements and with the launch."""
    return f"{zlib.crc32((statements(kernel.pattern) + repr(kernel)).encode()):08x}"
