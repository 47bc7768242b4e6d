"""The arrays of an operation: a row for each, and the check that their shapes fit each other.

The dimensions of a row are in the order of the C library: "batch heads q_rows head_dim". A dimension is
one of these:
- a name; if the operation's C struct has a member of this name, the size is written to it;
- a sum, "past_rows+kv_rows" or "batch+1";
- a quotient that is rounded up, "head_dim/32";
- a multiple, "rows/128*128": rows rounded up to a multiple of 128.
"..." in front stands for any number of dimensions. They are merged into batch, heads and rows: into as many
as the other dimensions leave of the four of a C tensor. A row without "..." has the last ones of batch,
heads, rows and columns, whatever their names: "rows columns" uses only row_stride. "heads | batch heads"
allows both shapes.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.ffi import lib
from pysm120.runtime.shapes import Shape

Dtype = np.dtype[np.generic]

# The C library's code of a dtype.
CODES: dict[Dtype, int] = {
    np.dtype(np.float32): lib.SM120_F32,
    np.dtype(np.float16): lib.SM120_F16,
    np.dtype(ml_dtypes.bfloat16): lib.SM120_BF16,
    np.dtype(ml_dtypes.float8_e4m3fn): lib.SM120_E4M3,
    np.dtype(ml_dtypes.float8_e5m2): lib.SM120_E5M2,
    np.dtype(ml_dtypes.float8_e8m0fnu): lib.SM120_E8M0,
    np.dtype(np.uint8): lib.SM120_U8,
    np.dtype(np.bool_): lib.SM120_BOOL,
}
F32: tuple[Dtype, ...] = (np.dtype(np.float32),)
I32: tuple[Dtype, ...] = (np.dtype(np.int32),)
I64: tuple[Dtype, ...] = (np.dtype(np.int64),)
E4M3: tuple[Dtype, ...] = (np.dtype(ml_dtypes.float8_e4m3fn),)
E5M2: tuple[Dtype, ...] = (np.dtype(ml_dtypes.float8_e5m2),)
E8M0: tuple[Dtype, ...] = (np.dtype(ml_dtypes.float8_e8m0fnu),)
FP8: tuple[Dtype, ...] = (*E4M3, *E5M2)
U8: tuple[Dtype, ...] = (np.dtype(np.uint8),)
BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS: tuple[Dtype, ...] = (*F32, np.dtype(np.float16), BF16)
LEADING = ("batch", "heads", "rows")


@dataclasses.dataclass(frozen=True)
class Row:
    """An array of an operation.

    Attributes
    ----------
    name : str
        Its name in Python.
    shape : str
        Its dimensions; see the module.
    dtypes : tuple of dtypes
        The supported dtypes. A new result has the first one.
    member : str
        Its name in the C struct, if that is different.

    """

    name: str
    shape: str
    dtypes: tuple[Dtype, ...] = FLOATS
    member: str = ""

    @property
    def field(self) -> str:
        """The member of the C struct."""
        return self.member or self.name

    def check_dtype(self, dtype: Dtype, name: str | None = None) -> Dtype:
        """Return a dtype after checking that the operation supports it here."""
        if dtype not in self.dtypes:
            *most, last = map(str, self.dtypes)
            message = f"{name or self.name} has dtype {dtype}, not {', '.join(most)}{' or ' if most else ''}{last}"
            raise TypeError(message)
        return dtype

    def check_same(self, dtype: Dtype, like: str, wanted: Dtype, name: str | None = None) -> None:
        """Raise where a dtype is not that of the input `like`."""
        if dtype != wanted:
            message = f"{name or self.name} has dtype {dtype}, but {like} has {wanted}"
            raise TypeError(message)


@dataclasses.dataclass(frozen=True)
class Input(Row):
    """An array that an operation reads.

    Attributes
    ----------
    like : str
        The input whose dtype it must have.
    alike : tuple of dtypes
        Those that count as one dtype.
    optional : bool
        Whether it may be None.
    broadcasts : bool
        Whether its dimensions may be 1, or be missing in front, as in NumPy.
    is_ordered : bool
        Whether its dimensions are in C's order, whatever that of other arrays is.

    """

    like: str = ""
    alike: tuple[Dtype, ...] = ()
    optional: bool = False
    broadcasts: bool = False
    is_ordered: bool = False


@dataclasses.dataclass(frozen=True)
class Output(Row):
    """An array that an operation writes.

    Attributes
    ----------
    like : str
        The input whose dtype it has. Without one, a new result has the first of `dtypes`.
    converts : bool
        Whether it may have another one of `dtypes` than the input. A new one then has the input's by default; if that
        has 8 bits, bfloat16.
    raised : bool
        The operation combines a given array with its result; it may broadcast, as an input may.
    fill : float, optional
        The operation writes only a part of the array. The rest of a new array has this value.
    reads : bool
        Whether the operation may read a given array: an ndarray is then copied to the device before the call.
    shape_of : str
        The input whose shape a new result has. Like that input, the result may have dimensions of 1, or lack them in
        front; it is then a sum.

    """

    like: str = ""
    converts: bool = False
    fill: float | None = None
    reads: bool = False
    shape_of: str = ""
    raised: bool = False

    @property
    def broadcasts(self) -> bool:
        """Whether its dimensions may be 1, or be missing in front."""
        return bool(self.shape_of) or self.raised


class Dimension(NamedTuple):
    """A dimension of a row: (names + number) / divisor * factor."""

    names: tuple[str, ...]
    number: int
    divisor: int
    factor: int
    text: str

    @classmethod
    def of(cls, word: str) -> "Dimension":
        """Read one."""
        total, _, divisor = word.partition("/")
        divisor, _, factor = divisor.partition("*")
        terms = total.split("+")
        numbers = [int(term) for term in terms if term.isdecimal()]
        return cls(
            tuple(t for t in terms if not t.isdecimal()), sum(numbers), int(divisor or 1), int(factor or 1), word
        )

    def extent(self, sizes: Mapping[str, int]) -> int:
        """Return its size; a name without a known size counts as 0."""
        return -(-(sum(sizes.get(name, 0) for name in self.names) + self.number) // self.divisor) * self.factor


Dimensions = tuple[Dimension, ...]


def dimensions(text: str) -> Dimensions:
    """Read the dimensions of a row, or of one of its alternatives."""
    return tuple(Dimension.of(word) for word in text.split() if word != "...")


class Sizes:
    """The sizes of dimensions, learned from the arrays that were checked so far."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self._sources: dict[str, str] = {}  # the array that each size comes from

    def give(self, name: str, size: int, source: str) -> None:
        """Return the size of a dimension, and the array that it comes from, as text."""
        self.known[name] = size
        self._sources[name] = source

    def take(self, name: str, shape: Shape, wanted: Dimensions, front: int = 0) -> None:
        """Check the dimensions of an array after the first `front` ones against `wanted`, and learn new sizes."""
        words = words_of(wanted, dots=front > 0)
        for extent, dimension in zip(shape[front:], wanted, strict=True):
            new = [x for x in dimension.names if x not in self.known]
            if len(new) == 1 and dimension.divisor == 1:
                self.give(new[0], extent - dimension.extent(self.known), name)
                if self.known[new[0]] < 1:
                    message = f"{name} has shape {shape}: {words}, of which {new[0]} must be at least 1"
                    raise InvalidArgumentError(message)
            elif extent != dimension.extent(self.known):
                message = f"{name} has shape {shape}, {words}, but {self._says(dimension)}"
                raise InvalidArgumentError(message)

    def broadcast(self, name: str, shape: Shape, wanted: Dimensions) -> None:
        """Check the shape of an array that broadcasts."""
        whole = self.shape(wanted)
        lacking = len(whole) - len(shape)
        if lacking < 0 or any(n not in {1, m} for n, m in zip(shape, whole[lacking:], strict=True)):
            message = f"{name} has shape {shape}, which does not broadcast to {words_of(wanted)} = {whole}"
            raise InvalidArgumentError(message)

    def shape(self, wanted: Dimensions) -> Shape:
        """Return the shape that dimensions have."""
        return tuple(x.extent(self.known) for x in wanted)

    def _says(self, dimension: Dimension) -> str:
        """Return the size of a dimension, and the array that it comes from, as text."""
        if not dimension.names:
            return f"it must be {dimension.number}"
        known = [f"{self._sources[x]} has {x} = {self.known[x]}" for x in dimension.names if x in self._sources]
        total = "" if len(dimension.names) == 1 and dimension.text in self.known else f"{dimension.text} is "
        return f"{total}{dimension.extent(self.known)}: {' and '.join(known)}" if total else known[0]


def words_of(wanted: Dimensions, *, dots: bool = False) -> str:
    """Return dimensions as text for messages."""
    return f"[{'..., ' if dots else ''}{', '.join(x.text for x in wanted)}]"


class Leading(NamedTuple):
    """The dimensions that "..." stands for, and their groups: batch, heads, rows.

    A group is its extent and its last dimension, whose stride is the stride of the group; None for one element.
    """

    shape: Shape
    groups: tuple[tuple[int, int | None], ...]

    @classmethod
    def of(cls, shape: Shape, strides: Sequence[Shape], most: int) -> "Leading | None":
        """Group dimensions so that every array has one stride along a group; None if there are too many groups."""
        groups: list[tuple[int, int | None]] = []
        for axis, extent in enumerate(shape):
            last = groups[-1][1] if groups else None
            if extent == 1:
                continue
            if last is not None and all(steps[last] == extent * steps[axis] for steps in strides):
                groups[-1] = (groups[-1][0] * extent, axis)
            else:
                groups.append((extent, axis))
        if len(groups) > most:
            return None
        return cls(shape, (*((1, None),) * (most - len(groups)), *groups))

    def view(self, shape: Shape, strides: Shape) -> tuple[Shape, Shape]:
        """Return shape and strides of an array with its groups for dimensions."""
        front = len(self.shape)
        steps = (0 if axis is None else strides[axis] for _, axis in self.groups)
        return (*(n for n, _ in self.groups), *shape[front:]), (*steps, *strides[front:])
