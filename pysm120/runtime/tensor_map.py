"""Tensor maps: descriptions of arrays, by which cp.async.bulk.tensor copies boxes."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from pysm120.runtime.arrays import Array
from pysm120.runtime.context import Context
from pysm120.runtime.errors import Error, InvalidArgumentError, MisalignedError, require_type
from pysm120.runtime.ffi import check, ffi, lib, new, new_struct

NBYTES = 128
RANK_MAX = 5
ALIGNMENT = 16

DATA_TYPES: Mapping[str, int] = {
    "UINT8": lib.SM120_TENSOR_MAP_UINT8,
    "UINT16": lib.SM120_TENSOR_MAP_UINT16,
    "UINT32": lib.SM120_TENSOR_MAP_UINT32,
    "INT32": lib.SM120_TENSOR_MAP_INT32,
    "UINT64": lib.SM120_TENSOR_MAP_UINT64,
    "INT64": lib.SM120_TENSOR_MAP_INT64,
    "FLOAT16": lib.SM120_TENSOR_MAP_FLOAT16,
    "FLOAT32": lib.SM120_TENSOR_MAP_FLOAT32,
    "FLOAT64": lib.SM120_TENSOR_MAP_FLOAT64,
    "BFLOAT16": lib.SM120_TENSOR_MAP_BFLOAT16,
    "FLOAT32_FTZ": lib.SM120_TENSOR_MAP_FLOAT32_FTZ,
    "TFLOAT32": lib.SM120_TENSOR_MAP_TFLOAT32,
    "TFLOAT32_FTZ": lib.SM120_TENSOR_MAP_TFLOAT32_FTZ,
    "16U4_ALIGN8B": lib.SM120_TENSOR_MAP_16U4_ALIGN8B,
    "16U4_ALIGN16B": lib.SM120_TENSOR_MAP_16U4_ALIGN16B,
    "16U6_ALIGN16B": lib.SM120_TENSOR_MAP_16U6_ALIGN16B,
}
PACKED_BITS = {"16U4_ALIGN8B": 4, "16U4_ALIGN16B": 4, "16U6_ALIGN16B": 6}
BY_DTYPE: Mapping[np.dtype[Any], str] = {
    np.dtype(np.uint16): "UINT16",
    np.dtype(np.int16): "UINT16",
    np.dtype(np.uint32): "UINT32",
    np.dtype(np.int32): "INT32",
    np.dtype(np.uint64): "UINT64",
    np.dtype(np.int64): "INT64",
    np.dtype(np.float16): "FLOAT16",
    np.dtype(np.float32): "FLOAT32",
    np.dtype(np.float64): "FLOAT64",
    np.dtype(ml_dtypes.bfloat16): "BFLOAT16",
}
INTERLEAVES = ("none", "16B", "32B")
SWIZZLES = ("none", "32B", "64B", "128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B")
L2_PROMOTIONS = ("none", "64B", "128B", "256B")
OOB_FILLS = ("zero", "nan")


def _index(value: Any, name: str, choices: Sequence[str]) -> int:
    """Return the index of a string among the allowed ones."""
    if not isinstance(value, str) or value not in choices:
        message = f"{name} is {value!r}, not one of {', '.join(map(repr, choices))}"
        raise InvalidArgumentError(message)
    return list(choices).index(value)


def _numbers(value: Any, name: str, rank: int, bits: int = 32) -> list[int]:
    """Return a value as one number per dimension."""
    parts = tuple(value) if isinstance(value, tuple | list) else (value,)
    for part in parts:
        if isinstance(part, bool) or not hasattr(part, "__index__"):
            message = f"{name} is {value!r}, not a tuple of ints"
            raise TypeError(message)
    if len(parts) != rank or not all(0 <= int(part) < 1 << bits for part in parts):
        message = f"{name} is {value!r}, not one number from 0 to 2^{bits} - 1 for each of {rank} dimensions"
        raise InvalidArgumentError(message)
    return [int(part) for part in parts]


def _data_type(array: Array, data_type: str | None) -> str:
    """Return the name of the elements' type."""
    if data_type is None:
        found = "UINT8" if array.itemsize == 1 else BY_DTYPE.get(array.dtype)
        if found is None:
            message = f"array has dtype {array.dtype}, which tensor maps do not have: give data_type"
            raise TypeError(message)
        return found
    _index(data_type, "data_type", tuple(DATA_TYPES))
    return data_type


def _extents(array: Array, data_type: str, raw: Any) -> None:
    """Write shape and strides, innermost first."""
    bits = PACKED_BITS.get(data_type, 8 * array.itemsize)
    shape = list(array.shape[::-1])
    if data_type in PACKED_BITS and array.itemsize != 1:
        message = f"array has dtype {array.dtype}; with data_type {data_type} it must be uint8, the packed bytes"
        raise TypeError(message)
    if shape[0] * array.itemsize * 8 % bits:
        message = f"array has {shape[0]} bytes along its last dimension, not a whole number of elements of {bits} bits"
        raise InvalidArgumentError(message)
    raw.dims[0] = shape[0] * array.itemsize * 8 // bits
    if shape[0] > 1 and array.strides[-1] != 1:
        message = (
            f"array has stride {array.strides[-1]} along its last dimension, whose elements must lie next to each other"
        )
        raise InvalidArgumentError(message)
    for k in range(1, array.ndim):
        stride = array.strides[-1 - k] * array.itemsize
        if shape[k] == 1 and stride % ALIGNMENT:
            stride = 0  # the stride of a dimension of 1 is not used
        if stride < 0:
            message = f"array has the negative stride {array.strides[-1 - k]} along dimension {array.ndim - 1 - k}"
            raise InvalidArgumentError(message)
        if stride % ALIGNMENT:
            message = (
                f"array has a stride of {array.strides[-1 - k]} elements, {stride} bytes, along dimension "
                f"{array.ndim - 1 - k}, which is not a multiple of {ALIGNMENT}"
            )
            raise MisalignedError(message)
        raw.dims[k], raw.strides[k - 1] = shape[k], stride


def _raw_extents(dims: Any, strides: Any, raw: Any) -> None:
    """Write dimensions in elements and strides in bytes as they are given, outermost first."""
    rank = len(dims) if isinstance(dims, tuple | list) else 1
    if not 1 <= rank <= RANK_MAX:
        message = f"dims has {rank} dimensions; a tensor map has 1 to {RANK_MAX}"
        raise InvalidArgumentError(message)
    raw.rank = rank
    raw.dims[0:rank] = _numbers(dims, "dims", rank, 33)[::-1]
    if strides is None and rank > 1:
        message = f"strides is None; with dims it is the bytes from one element to the next along {rank - 1} dimensions"
        raise InvalidArgumentError(message)
    raw.strides[0 : rank - 1] = _numbers(() if strides is None else strides, "strides", rank - 1, 40)[::-1]


@contextlib.contextmanager
def _order(rank: int) -> Iterator[None]:
    """Let errors count dimensions as Python does, the outermost first."""
    try:
        yield
    except Error as error:
        lasts = {"box": rank - 1, "element_strides": rank - 1, "dims": rank - 1, "strides": rank - 2}
        pattern = rf"\b({'|'.join(lasts)})\[(\d)\]"
        error.args = (re.sub(pattern, lambda found: f"{found[1]}[{lasts[found[1]] - int(found[2])}]", str(error)),)
        raise


class TensorMap:
    """A tensor map: an argument of a kernel, of 128 bytes.

    Made by ``Device.tensor_map``. ``bytes(map)`` is the value of the kernel's parameter.

    Attributes
    ----------
    device : Device
    array : Array
        The array, which lives as long as the map.
    data_type : str
        Type of the elements, as ``CUtensorMapDataType`` calls it.

    """

    def __init__(
        self,
        device: Context,
        array: Array,
        box: int | Sequence[int],
        *,
        element_strides: int | Sequence[int] | None = None,
        data_type: str | None = None,
        swizzle: str = "none",
        interleave: str = "none",
        l2_promotion: str = "none",
        oob_fill: str = "zero",
        dims: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> None:
        require_type(array, Array, "array", "an Array")
        if not device.shares_memory_with(array.device):
            message = f"array is on {device.name_of(array.device)}, not on {device}"
            raise InvalidArgumentError(message)
        rank = array.ndim
        if dims is None and not 1 <= rank <= RANK_MAX:
            message = f"array has {rank} dimensions; a tensor map has 1 to {RANK_MAX}"
            raise InvalidArgumentError(message)
        if array.size == 0:
            message = f"array has no elements: its shape is {array.shape}"
            raise InvalidArgumentError(message)
        self.device = device
        self.array = array
        self.data_type = _data_type(array, data_type)
        raw = new_struct("sm120_tensor_map_args")
        raw.data_type = DATA_TYPES[self.data_type]
        raw.rank = rank
        if dims is not None:
            _raw_extents(dims, strides, raw)
            rank = raw.rank
        elif strides is None:
            _extents(array, self.data_type, raw)
        else:
            message = f"strides is {strides!r} without dims: give both, or neither"
            raise InvalidArgumentError(message)
        raw.address = array.address
        raw.swizzle = _index(swizzle, "swizzle", SWIZZLES)
        raw.interleave = _index(interleave, "interleave", INTERLEAVES)
        raw.l2_promotion = _index(l2_promotion, "l2_promotion", L2_PROMOTIONS)
        raw.oob_fill = _index(oob_fill, "oob_fill", OOB_FILLS)
        steps = (1,) * rank if element_strides is None else element_strides
        raw.box[0:rank] = _numbers(box, "box", rank)[::-1]
        raw.element_strides[0:rank] = _numbers(steps, "element_strides", rank)[::-1]
        self._map = new("sm120_tensor_map *")
        with _order(rank):
            check(lib.sm120_tensor_map_encode(device.handle.pointer, raw, self._map))

    def replace_address(self, array: Array) -> None:
        """Point the map to another array of the same shape, strides and dtype."""
        same = (array.shape, array.strides, array.dtype) == (self.array.shape, self.array.strides, self.array.dtype)
        if not same or not self.device.shares_memory_with(array.device):
            message = f"array is {array!r}, not one like {self.array!r}"
            raise InvalidArgumentError(message)
        check(lib.sm120_tensor_map_replace_address(self.device.handle.pointer, self._map, array.address))
        self.array = array

    def __bytes__(self) -> bytes:
        return bytes(ffi.buffer(self._map))

    def __repr__(self) -> str:
        return f"<TensorMap of {self.array!r} as {self.data_type}>"
