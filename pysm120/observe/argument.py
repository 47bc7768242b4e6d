"""Arguments of kernels, written as words: ``u32:3``, ``f16[4,128]:normal``, ``out.npy=f32[1024]``."""

import dataclasses
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pysm120.runtime.errors import InvalidArgumentError

Values = npt.NDArray[Any]

TYPES: dict[str, np.dtype[Any]] = {
    **{
        f"{kind}{bits}": np.dtype(f"{base}{bits}")
        for kind, base in (("u", "uint"), ("s", "int"), ("b", "uint"))
        for bits in (8, 16, 32, 64)
    },
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "e2m3": np.dtype(ml_dtypes.float6_e2m3fn),
    "e3m2": np.dtype(ml_dtypes.float6_e3m2fn),
    "e2m1": np.dtype(ml_dtypes.float4_e2m1fn),
    "ue8m0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
WITHOUT_NAN = ("e2m3", "e3m2", "e2m1")
# What C, NumPy and PyTorch call these types: the letters before the bits, or the whole name.
LETTERS = {"i": "s", "int": "s", "uint": "u", "float": "f", "fp": "f", "bfloat": "bf"}
NAMES = {"char": "s8", "short": "s16", "int": "s32", "long": "s64", "half": "f16", "float": "f32", "double": "f64"}
BITS = {"e2m3": 6, "e3m2": 6, "e2m1": 4}  # bits of an element, which is stored in a byte
FORMS = (
    "a scalar such as u32:3, an array such as f32[1024]:normal or s32[3]:[1,2,3], x.npy, out.npy=f32[1024], "
    "or a structure such as 'struct(u32:3,f32[1024]:normal)'"
)
_STRUCTURE = re.compile(r"struct\((.*)\)")
_COMMA = re.compile(r",(?![^\[]*\])")  # outside of brackets; a list in a structure has them
_ARRAY = re.compile(r"(\w+)\[([^\]]*)\](?::(.*))?")
_SCALAR = re.compile(r"(\w+):(.*)")
_FILE = re.compile(r"(.*\.npy)(?::(\w+))?")


@dataclasses.dataclass(frozen=True)
class Argument:
    """A scalar or an array, and the file that receives the array after the run."""

    index: int
    word: str
    type: str
    value: Any  # np.generic or ndarray; None for a structure
    output: Path | None = None
    members: tuple["Argument", ...] = ()  # of a structure; an array is its address


class Words:
    """The word that is being read; messages name it."""

    def __init__(self, index: int, word: str, seed: int) -> None:
        self.index = index
        self.word = word
        self.rng = np.random.default_rng([seed, index])

    def fail(self, why: str) -> InvalidArgumentError:
        """Return the error for the word; ``why`` says what is wrong."""
        return InvalidArgumentError(f"argument {self.index} is {self.word!r}{why}")

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of a type name."""
        if name not in TYPES:
            near = meant(name)
            advice = f" (did you mean {near}?)" if near else ""
            raise self.fail(f", but {name!r} is not a type{advice}; the types are {', '.join(TYPES)}")
        return TYPES[name]

    def scalar(self, kind: str, text: str) -> Any:
        """Return the scalar of a type."""
        dtype = self.dtype(kind)
        try:
            if dtype.kind not in "iu":
                return dtype.type(float(text))
            value = int(text, 0)
        except ValueError:
            raise self.fail(f", but {text!r} is not a number of type {kind}") from None
        limits = np.iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise self.fail(f", but {kind} holds numbers from {limits.min} to {limits.max}")
        return dtype.type(value)

    def shape(self, text: str, itemsize: int) -> tuple[int, ...]:
        """Return the shape between brackets."""
        parts = [part.strip() for part in text.split(",")]
        if not all(part.isdecimal() for part in parts):
            raise self.fail(": a shape is numbers between brackets such as [1024] or [4,128]")
        shape = tuple(map(int, parts))
        size = itemsize
        for extent in shape:
            size *= extent
        most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if size > most:
            raise self.fail(f", an array of {size} bytes, but this machine has {most} bytes of memory")
        return shape

    def array(self, kind: str, shape: str, fill: str | None) -> Values:
        """Return a generated array."""
        dtype = self.dtype(kind)
        extents = self.shape(shape, dtype.itemsize)
        if fill is None:
            return self._bytes(kind, extents, np.uint8(0xFF))
        if "," in fill or fill.startswith("["):
            return self.listed(kind, extents, fill)
        make = FILLS.get(fill)
        if make is not None:
            return make(self, kind, extents)
        try:
            float(fill)
        except ValueError:
            try:
                int(fill, 0)
            except ValueError:
                raise self.fail(f", but an array is filled with {CHOICES} or a number, not {fill!r}") from None
        return np.full(extents, self.scalar(kind, fill), dtype)

    def listed(self, kind: str, shape: tuple[int, ...], fill: str) -> Values:
        """Return the array of a list such as [1,2,3], in C order; the brackets may be missing."""
        inner = fill.removeprefix("[").removesuffix("]").strip()
        numbers = [self.scalar(kind, part.strip()) for part in inner.split(",")] if inner else []
        count = int(np.prod(shape, dtype=np.int64))
        if len(numbers) != count:
            raise self.fail(f", but its list has {len(numbers)} numbers and its shape {count} elements")
        return np.array(numbers, TYPES[kind]).reshape(shape)

    def _bytes(self, kind: str, shape: tuple[int, ...], value: Any) -> Values:
        """Return an array of given bytes: one value for all, or one for each."""
        dtype = TYPES[kind]
        raw = np.empty((int(np.prod(shape, dtype=np.int64)), dtype.itemsize), np.uint8)
        raw[...] = value & ((1 << BITS.get(kind, 8)) - 1)
        return raw.reshape(-1).view(dtype).reshape(shape)

    def random(self, kind: str, shape: tuple[int, ...]) -> Values:
        """Return an array of random bytes."""
        count = int(np.prod(shape, dtype=np.int64))
        return self._bytes(kind, shape, self.rng.integers(0, 256, (count, TYPES[kind].itemsize), np.uint8))

    def real(self, kind: str, shape: tuple[int, ...], fill: str) -> Values:
        """Return an array of random floating-point numbers."""
        dtype = TYPES[kind]
        if dtype.kind in "iu":
            raise self.fail(f", but {fill} is for floating-point types: for {kind} take random, arange or a number")
        draw = self.rng.standard_normal if fill == "normal" else self.rng.random
        return np.asarray(draw(shape)).astype(dtype)

    def nan(self, kind: str, shape: tuple[int, ...]) -> Values:
        """Return an array of NaN."""
        if TYPES[kind].kind in "iu" or kind in WITHOUT_NAN:
            raise self.fail(f", but {kind} has no NaN")
        return np.full(shape, np.nan, np.float64).astype(TYPES[kind])

    def file(self, path: str, kind: str | None) -> Values:
        """Return the array of a file, seen as a type."""
        try:
            with Path(path).open("rb") as file:
                found = np.load(file, allow_pickle=False)
        except (OSError, ValueError, TypeError, OverflowError, MemoryError, EOFError, zipfile.BadZipFile) as error:
            raise self.fail(f", which cannot be read: {' '.join(str(error).split())}") from None
        if not isinstance(found, np.ndarray):
            found.close()
            raise self.fail(", which is an archive, not a .npy file")
        found = np.ascontiguousarray(found.astype(found.dtype.newbyteorder("="), copy=False))
        if kind is None:
            return found
        dtype = self.dtype(kind)
        if found.itemsize != dtype.itemsize:
            raise self.fail(f", whose elements have {found.itemsize} bytes, but {kind} has {dtype.itemsize}")
        return found.view(dtype)


FILLS: dict[str, Callable[[Words, str, tuple[int, ...]], Values]] = {
    "normal": lambda w, kind, shape: w.real(kind, shape, "normal"),
    "uniform": lambda w, kind, shape: w.real(kind, shape, "uniform"),
    "random": Words.random,
    "arange": lambda _, kind, shape: np.arange(int(np.prod(shape, dtype=np.int64))).astype(TYPES[kind]).reshape(shape),
    "zeros": lambda _, kind, shape: np.zeros(shape, TYPES[kind]),
    "ones": lambda _, kind, shape: np.ones(shape, TYPES[kind]),
    "nan": Words.nan,
}
CHOICES = f"a list such as [1,2,3], {', '.join(FILLS)}"


def meant(name: str) -> str | None:
    """Return the type that another language calls by a name; None if there is none."""
    parts = re.fullmatch(r"([a-z]+)(\d+)(_t)?", name.lower())
    near = LETTERS.get(parts[1], parts[1]) + parts[2] if parts else NAMES.get(name.lower(), "")
    return near if near in TYPES else None


def parse_argument(index: int, word: str, seed: int = 0) -> Argument:
    """Return the argument of a word; ``seed`` is that of generated arrays."""
    if match := _STRUCTURE.fullmatch(word):
        parts = [part.strip() for part in _COMMA.split(match[1])]
        if any(_STRUCTURE.fullmatch(part) for part in parts):
            raise Words(index, word, seed).fail(": a structure has no structure in it; write its members one by one")
        members = tuple(parse_argument(index, part, seed + number) for number, part in enumerate(parts))
        return Argument(index, word, "", None, None, members)
    words = Words(index, word, seed)
    left, equals, rest = word.partition("=")
    output = None
    if equals:
        if not left.endswith(".npy"):
            raise words.fail(f": before the = there must be a .npy file to write, not {left!r}")
        output = Path(left)
        if not output.parent.is_dir():
            raise words.fail(f", but the folder {str(output.parent)!r} does not exist")
        word = rest
    if match := _ARRAY.fullmatch(word):
        return Argument(index, words.word, match[1], words.array(match[1], match[2], match[3]), output)
    if match := _FILE.fullmatch(word):
        return Argument(index, words.word, match[2] or "", words.file(match[1], match[2]), output)
    match = _SCALAR.fullmatch(word)
    if match is None or output is not None:
        raise words.fail(f", not {FORMS}" if output is None else ": only an array can be written to a file")
    return Argument(index, words.word, match[1], words.scalar(match[1], match[2]))


def parse_arguments(words: Sequence[str], seed: int = 0) -> tuple[Argument, ...]:
    """Return the arguments of words."""
    found = tuple(parse_argument(index, word, seed) for index, word in enumerate(words))
    every = [argument for top in found for argument in (top.members or (top,))]
    files = [argument.output for argument in every if argument.output is not None]
    for argument in every:
        if argument.output is not None and files.count(argument.output) > 1:
            message = f"argument {argument.index} is {argument.word!r}, but another one is written to the same file"
            raise InvalidArgumentError(message)
    return found
