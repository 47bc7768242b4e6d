"""A model of tensor copies, byte by byte, with the swizzle tables of the PTX manual and NumPy arrays."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# The order of the 16-byte chunks in each line of 128 bytes, from section "Swizzling modes".
TABLES = {
    "none": ["01234567"],
    "32B": ["01234567", "10325476"],
    "64B": ["01234567", "10325476", "23016745", "32107654"],
    "128B": ["01234567", "10325476", "23016745", "32107654", "45670123", "54761032", "67452301", "76543210"],
    "128B_ATOM_32B": ["01234567", "23016745", "45670123", "67452301"],
    "128B_ATOM_32B_FLIP_8B": ["01234567", "23016745", "45670123", "67452301"],
    "128B_ATOM_64B": ["01234567", "45670123"],
}
SPANS = {name: 0 if name == "none" else int(name.split("B")[0]) for name in TABLES}
# The NaN of arithmetic; and the NaN that a load writes for elements outside of a tensor, as on an H200.
NAN = {2: 0x7FFF, 4: 0x7FFFFFFF, 8: 0x7FFFFFFFFFFFFFFF}
FILLER = {2: 0x7FF7, 4: 0x7FF77FF7, 8: 0x7FF77FF77FF77FF7}


class Tile(NamedTuple):
    """A tensor map of a test: dimensions are in the order of the array."""

    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: str = "none"
    fill: str = "zero"

    def counts(self) -> tuple[int, ...]:
        """Elements of a box along each dimension; the innermost has no step."""
        return (*(math.ceil(b / s) for b, s in zip(self.box[:-1], self.steps[:-1], strict=True)), self.box[-1])

    def indices(self, shape: Sequence[int], at: Sequence[int]) -> tuple[list[NDArray[Any]], NDArray[np.bool_]]:
        """Return the index of every element of a box in the array, clipped, and whether it is inside."""
        steps = (*self.steps[:-1], 1)
        grid = np.meshgrid(
            *(a + s * np.arange(n) for a, s, n in zip(at, steps, self.counts(), strict=True)), indexing="ij"
        )
        inside = np.ones(self.counts(), bool)
        for g, n in zip(grid, shape, strict=True):
            inside &= (g >= 0) & (g < n)
        return [np.clip(g, 0, n - 1) for g, n in zip(grid, shape, strict=True)], inside


def places(swizzle: str, base: int, nbytes: int, row: int) -> NDArray[np.int64]:
    """Return the shared address of every byte of a box at ``base`` whose rows have ``row`` bytes.

    Rows narrower than the swizzle are spaced by the swizzle's width, as on an H200.
    """
    out = np.empty(nbytes, np.int64)
    table, pitch = TABLES[swizzle], max(row, SPANS[swizzle])
    for k in range(nbytes):
        at = base + k // row * pitch + k % row
        line, chunk, byte = at // 128, at // 16 % 8, at % 16
        if swizzle.endswith("FLIP_8B") and line % 2:
            byte = (byte + 8) % 16
        out[k] = 128 * line + 16 * table[line % len(table)].index(str(chunk)) + byte
    return out


def to_tf32(bits: int) -> int:
    """Round the bits of a float32 to 10 bits of fraction, ties to even."""
    if bits & 0x7FFFFFFF > 0x7F800000:
        return 0x7FFFE000
    low, high = bits & 0x1FFF, bits - (bits & 0x1FFF)
    up = low > 0x1000 or (low == 0x1000 and high & 0x2000)
    return high + (0x2000 if up else 0)


def load(tensor: NDArray[Any], tile: Tile, at: Sequence[int], data_type: str = "") -> Bytes:
    """Return the bytes that a load of a box writes, before the swizzle."""
    index, inside = tile.indices(tensor.shape, at)
    filler = FILLER[tensor.itemsize] if tile.fill == "nan" else 0
    if data_type.startswith("TFLOAT32"):
        tensor = np.vectorize(to_tf32, otypes=[np.uint32])(tensor.view(np.uint32))
    unsigned = np.dtype(f"u{tensor.itemsize}")
    bits = np.where(inside, tensor.view(unsigned)[tuple(index)], unsigned.type(filler))
    return np.frombuffer(bits.tobytes(), np.uint8)


def scatter(
    shape: Sequence[int], tile: Tile, at: Sequence[int], values: NDArray[Any]
) -> tuple[tuple[NDArray[Any], ...], NDArray[Any]]:
    """Return where in the array a box's elements are stored, and which elements are stored at all.

    An H200 writes 16 bytes at a time: beyond the end of a row, up to the next multiple of 16 bytes.
    """
    whole = 16 // values.itemsize
    index, inside = tile.indices((*shape[:-1], math.ceil(shape[-1] / whole) * whole), at)
    return tuple(i[inside] for i in index), values.reshape(tile.counts())[inside]


def flush(x: NDArray[Any]) -> NDArray[Any]:
    """Flush subnormal float32 numbers to zeros of the same sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def add(old: NDArray[Any], new: NDArray[Any], data_type: str) -> NDArray[Any]:
    """Add like a reduction of floats: rounded to nearest, with a canonical NaN."""
    if data_type.endswith("_FTZ"):
        old, new = flush(old), flush(new)
    with np.errstate(invalid="ignore", over="ignore"):  # rounding to 53 bits first does not change the result
        total = (old.astype(float) + new.astype(float)).astype(old.dtype)
    total = flush(total) if data_type.endswith("_FTZ") else total
    bits = total.view(np.dtype(f"u{old.itemsize}")).copy()
    bits[np.isnan(total)] = NAN[old.itemsize]
    return bits.view(old.dtype)


def reduce(old: NDArray[Any], new: NDArray[Any], op: str, data_type: str) -> NDArray[Any]:
    """Return the array after a reduction."""
    if op == "add" and old.dtype.kind not in "iu":
        return add(old, new, data_type)
    one = old.dtype.type(1)
    simple = {"add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    if op in simple:
        with np.errstate(over="ignore"):
            return np.asarray(simple[op](old, new))
    if op == "inc":
        return np.where(old >= new, 0, old + one).astype(old.dtype)
    if op == "dec":
        return np.where((old == 0) | (old > new), new, old - one).astype(old.dtype)
    smaller = np.less if op == "min" else np.greater
    return np.where(smaller(new, old), new, old)


DTYPES: dict[str, Any] = {
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "INT32": np.int32, "UINT64": np.uint64,
    "INT64": np.int64, "FLOAT16": np.float16, "FLOAT32": np.float32, "FLOAT64": np.float64,
    "BFLOAT16": ml_dtypes.bfloat16, "FLOAT32_FTZ": np.float32, "TFLOAT32": np.float32, "TFLOAT32_FTZ": np.float32,
}  # fmt: skip
FLOATS = [name for name in DTYPES if "FLOAT" in name]


def random_bits(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> NDArray[Any]:
    """Make an array of random bits."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(nbytes), dtype).reshape(shape).copy()
