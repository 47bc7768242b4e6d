"""Matrices of quantised weights, in blocks of GGUF."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pysm120.ops import foreign, operands
from pysm120.ops.call import Operation
from pysm120.ops.options import MOST, integer, one_of
from pysm120.ops.table import FLOATS, Dtype, Input, Output
from pysm120.runtime.arrays import Array, dtype_of
from pysm120.runtime.context import Context
from pysm120.runtime.device import Device, as_device
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError
from pysm120.runtime.ffi import check, ffi, lib
from pysm120.runtime.module import constants
from pysm120.runtime.shapes import Shape
from pysm120.runtime.untraced import untraced

U8: tuple[Dtype, ...] = (np.dtype(np.uint8),)
TYPES: dict[str, int] = {
    name: getattr(lib, f"SM120_GGUF_{name}")
    for name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4", "NVFP4")
}
LAYOUTS: dict[str, int] = {"native": lib.SM120_WEIGHTS_NATIVE, "packed": lib.SM120_WEIGHTS_PACKED}
_TILE = 16  # rows of a packed piece
_RANKS = (2, 3)
_PADDING = 16  # a buffer ends at a multiple of this many bytes


class _Type(NamedTuple):
    """Members of the C structs."""

    type: int


_DEQUANTIZE = Operation(
    "sm120_dequantize",
    (Input("weights", "weight_bytes", U8), Output("out", "rows columns", FLOATS, member="y")),
)


_DTYPE = Output("dtype", "", FLOATS)


class _Shape(NamedTuple):
    """Members of the C struct of a repack."""

    type: int
    rows: int
    columns: int


_REPACK = Operation(
    "sm120_repack",
    (Input("weights", "weight_bytes", U8), Output("packed", "packed_bytes", U8)),
)


class QuantizedMatrix:
    """A matrix of quantised weights in device memory; `from_gguf` makes one.

    Attributes
    ----------
    type : str
        "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4" or "NVFP4".
    shape : tuple of int
        Rows and columns; of several matrices their number, rows and columns.
    layout : str
        "native": blocks as in a GGUF file. "packed": what `repack` writes.
    data : Array, uint8
        The buffer.

    """

    def __init__(self, data: Array, type: str, shape: Shape, layout: str) -> None:  # noqa: A002 # GGUF's word
        given: Any = data
        if not isinstance(given, Array):
            message = f"data is a {given.__class__.__name__}, not an Array: make a matrix by QuantizedMatrix.from_gguf"
            raise TypeError(message)
        one_of(type, "type", tuple(TYPES))
        one_of(layout, "layout", tuple(LAYOUTS))
        self.data, self.type, self.shape, self.layout = data, type, _shape_of(shape), layout

    @classmethod
    @untraced
    def from_gguf(
        cls,
        raw: Any,
        type: Any,  # noqa: A002 # GGUF's word
        shape: Sequence[int],
        *,
        device: Device | str | None = None,
        layout: str = "native",
    ) -> "QuantizedMatrix":
        """Copy the blocks of a GGUF tensor to a device.

        Parameters
        ----------
        raw : bytes or array, uint8
            The blocks of all rows, as in the file. Its shape does not matter.
        type : str or gguf.GGMLQuantizationType
            "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4" or "NVFP4".
        shape : (rows, columns) or (experts, rows, columns)
            Columns are a multiple of the block: 256; 32 for Q8_0 and MXFP4, 64
            for NVFP4. GGUF files list columns first.
        device : Device or str, optional
            Where the matrix goes.
        layout : {"native", "packed"}
            "packed" reorders the blocks once, on the device. `matvec` then loads
            them faster. `dequantize` needs "native".

        Returns
        -------
        QuantizedMatrix

        Raises
        ------
        TypeError
            An argument of the wrong type or dtype.
        ValueError
            A wrong number of bytes, columns that are no multiple of the block,
            or an unknown type or layout.

        """
        name = one_of(getattr(type, "name", type), "type", tuple(TYPES))
        one_of(layout, "layout", tuple(LAYOUTS))
        sizes = _shape_of(shape)
        blocks = _bytes_of(raw)
        size = weights_bytes(name, "native", sizes)
        exact = math.prod(sizes) // constants()[f"GGUF_{name}_BLOCK"] * constants()[f"GGUF_{name}_BYTES"]
        if blocks.size != exact:
            message = f"raw has {blocks.size} bytes, but {' x '.join(map(str, sizes))} of {name} have {exact}"
            raise InvalidArgumentError(message)
        place = as_device(device)
        padded = np.zeros(-(-size // _PADDING) * _PADDING, np.uint8)
        padded[: blocks.size] = blocks
        matrix = cls(place.array(padded), name, sizes, "native")
        return matrix if layout == "native" else repack(matrix)

    @property
    def device(self) -> Context:
        """The device that holds the matrix."""
        return self.data.device

    @property
    def nbytes(self) -> int:
        """The bytes of the buffer."""
        return self.data.nbytes

    def dequantize(self, dtype: npt.DTypeLike = np.float32, *, stream: Any = None) -> Array:
        """Return the values of the matrix on its device; see `pysm120.dequantize`."""
        return dequantize(self, dtype, stream=stream)

    def free(self) -> None:
        """Free the device memory."""
        self.data.free()

    def __repr__(self) -> str:
        return f"QuantizedMatrix({' x '.join(map(str, self.shape))}, {self.type}, {self.layout}, on {self.device})"


@untraced
def dequantize(
    w: QuantizedMatrix,
    dtype: npt.DTypeLike = np.float32,
    *,
    out: Array | None = None,
    device: Device | str | None = None,
    stream: Any = None,
) -> Array:
    """Return the values of a matrix of quantised weights.

    Parameters
    ----------
    w : QuantizedMatrix
        Its layout is "native".
    dtype : dtype
        float32, float16 or bfloat16.
    out : Array, shape of w, optional
        Where the result goes, on the device of w. It has `dtype`.
    device : Device or str, optional
        The device of w.
    stream : stream, optional
        The call returns before the work is done.

    Returns
    -------
    Array, shape of w

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype.
    ValueError
        An argument of the wrong shape, stride, alignment or value.

    Notes
    -----
    float32 has the bits of the ``gguf`` package. The other dtypes are rounded
    to nearest even from these.

    """
    place = device_of(w, device)
    kind = dtype_of(dtype, "dtype")
    _DTYPE.check_dtype(kind)
    if w.layout != "native":
        message = f"w has layout {w.layout!r}; dequantize supports 'native'"
        raise UnsupportedError(message)
    made = place.empty(w.shape, kind) if out is None else foreign.result_face_of(place, out, "out", stream)
    check_array(made, "out", w.shape, kind)
    flat = made if len(w.shape) == len(("rows", "columns")) else made.reshape(-1, w.shape[-1])
    _DEQUANTIZE({"weights": w.data}, {"out": flat}, _Type(TYPES[w.type]), stream=stream)
    foreign.wait_for(place, stream, out)
    return made if out is None else out


@untraced
def repack(w: QuantizedMatrix, *, device: Device | str | None = None, stream: Any = None) -> QuantizedMatrix:
    """Return a matrix of quantised weights in the packed layout, which `matvec` reads faster.

    Parameters
    ----------
    w : QuantizedMatrix
        Its layout is "native".
    device : Device or str, optional
        The device of w.
    stream : stream, optional
        The call returns before the work is done.

    Returns
    -------
    QuantizedMatrix
        On the same device. Rows are padded to 16, columns to 256. The rows of
        several matrices must be a multiple of 16.

    Raises
    ------
    TypeError
        w is no QuantizedMatrix.
    ValueError
        w is packed already, or is on another device.

    """
    place = device_of(w, device)
    if w.layout != "native":
        message = f"w has layout {w.layout!r}, not 'native'"
        raise InvalidArgumentError(message)
    *experts, rows, columns = w.shape
    if experts and rows % _TILE:
        message = f"w has shape {w.shape}; several matrices are packed if rows are a multiple of {_TILE}"
        raise UnsupportedError(message)
    packed = place.empty((weights_bytes(w.type, "packed", w.shape),), np.uint8)
    options = _Shape(TYPES[w.type], math.prod((*experts, rows)), columns)
    _REPACK({"weights": w.data}, {"packed": packed}, options, stream=stream)
    return QuantizedMatrix(packed, w.type, w.shape, "packed")


def device_of(w: Any, device: Device | str | None, name: str = "w") -> Any:
    """Return the device of a matrix after checking that it is one, and that `device` is that device."""
    if not isinstance(w, QuantizedMatrix):
        message = f"{name} is a {type(w).__name__}, not a QuantizedMatrix: make one by QuantizedMatrix.from_gguf"
        raise TypeError(message)
    operands.device_of({name: w.data}, device)
    return w.device


def check_array(x: Any, name: str, shape: Shape, dtype: Dtype | None = None) -> None:
    """Check that a result is an Array of a shape and, if one is given, of a dtype."""
    if not isinstance(x, Array):
        message = f"{name} is a {type(x).__name__}, not an Array"
        raise TypeError(message)
    if x.shape != shape:
        message = f"{name} has shape {x.shape}, not {shape}"
        raise InvalidArgumentError(message)
    if dtype is not None and x.dtype != dtype:
        message = f"{name} has dtype {x.dtype}, not {dtype}"
        raise TypeError(message)


def weights_bytes(type: str, layout: str, shape: Shape) -> int:  # noqa: A002 # GGUF's word
    """Return the bytes of a buffer for a matrix, or for several."""
    size = ffi.new("int64_t *")
    check(lib.sm120_weights_bytes(TYPES[type], LAYOUTS[layout], math.prod(shape[:-1]), shape[-1], size))
    return int(size[0])


def _shape_of(shape: Any) -> Shape:
    """Return rows and columns, or experts, rows and columns."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) not in _RANKS:
        message = f"shape is {shape!r}, not (rows, columns) or (experts, rows, columns)"
        raise TypeError(message)
    sizes = tuple(integer(n, "shape") for n in shape)
    if min(sizes) < 1 or math.prod(sizes) > MOST:
        message = f"shape is {sizes}: each size must be at least 1, and all together below 2**63 elements"
        raise InvalidArgumentError(message)
    return sizes


def _bytes_of(raw: Any) -> npt.NDArray[np.uint8]:
    """Return the bytes of blocks."""
    if isinstance(raw, bytes | bytearray | memoryview):
        return np.frombuffer(raw, np.uint8)
    if not isinstance(raw, np.ndarray) or raw.dtype != np.uint8:
        kind = f"has dtype {raw.dtype}" if isinstance(raw, np.ndarray) else f"is a {type(raw).__name__}"
        message = f"raw {kind}, not bytes or an ndarray of uint8"
        raise TypeError(message)
    return np.ascontiguousarray(raw).reshape(-1)
