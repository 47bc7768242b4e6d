"""Copies of many pieces of device memory in one launch."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from pysm120.ops.foreign import named, refuse_immutable
from pysm120.ops.operands import device_of
from pysm120.ops.options import integer
from pysm120.runtime.arrays import Array
from pysm120.runtime.device import Device, as_device, shared_device
from pysm120.runtime.errors import Error, InvalidArgumentError
from pysm120.runtime.ffi import cast, check, check_running, lib
from pysm120.runtime.untraced import untraced

_PIECE = np.dtype([("to", "u8"), ("from", "u8"), ("bytes", "u8"), ("first", "u8")])  # sm120_copy_piece
_PARTS = ("dst", "src", "nbytes")
_NAMES = {"to": "dst", "from": "src", "bytes": "nbytes"}  # of the C struct, in Python
_ADDRESSES = 1 << 64
_CTAS_MAX = 1 << 20


class CopyList:
    """Pieces to copy, in a list on the device that `copy_batch` uses any number of times.

    Parameters
    ----------
    pieces : iterable of (dst, src, nbytes)
        As in `copy_batch`. The list keeps arrays alive; memory of an address given as
        an int is the caller's to keep.
    device : Device or str, optional
        Default: the device of the arrays.

    Attributes
    ----------
    device : Device
    nbytes : int
        Bytes of all pieces.

    """

    @untraced
    def __init__(self, pieces: Iterable[tuple[Any, Any, int]], *, device: Device | str | None = None) -> None:
        listed: Any = pieces
        if not isinstance(listed, Iterable):
            message = f"pieces is a {type(pieces).__name__}, not an iterable of (dst, src, nbytes)"
            raise TypeError(message)
        given = [_piece(n, piece) for n, piece in enumerate(listed)]
        if not given:
            message = "pieces is empty: give at least one (dst, src, nbytes)"
            raise InvalidArgumentError(message)
        arrays = {
            f"pieces[{n}].{part}": x
            for n, piece in enumerate(given)
            for part, x in zip(_PARTS, piece[:2], strict=False)
            if not isinstance(x, int)
        }
        found = as_device(device) if device is not None else None
        self.device = device_of(arrays, found) if arrays else found or shared_device()
        self._held: list[Array] = []  # keeps the memory
        rows = np.zeros(len(given), _PIECE)
        for n, (dst, src, nbytes) in enumerate(given):
            to, source = (self._address(x, nbytes, f"pieces[{n}].{part}") for part, x in (("dst", dst), ("src", src)))
            rows[n] = (to, source, nbytes, 0)
        self.nbytes = int(rows["bytes"].sum(dtype=object))
        pointer = cast("sm120_copy_piece *", rows.__array_interface__["data"][0])
        with _names():
            check(lib.sm120_copy_batch_prepare(self.device.handle.pointer, pointer, len(rows)))
        self._rows = self.device.array(rows.view(np.uint64))

    def __len__(self) -> int:
        return self._rows.size * self._rows.itemsize // _PIECE.itemsize

    def __repr__(self) -> str:
        return f"<CopyList of {len(self)} pieces, {self.nbytes} bytes, on {self.device}>"

    def _address(self, x: Any, nbytes: int, name: str) -> int:
        """Return the address of a piece after checking that an array holds it."""
        if isinstance(x, int):
            return x
        face = _face_of(self.device, x, name)
        if name.endswith("dst"):
            face.ensure_writable(name)
        if not face.is_contiguous:
            message = f"{name} has strides {face.strides}, but it must be contiguous: give a piece for each row"
            raise InvalidArgumentError(message)
        if nbytes > face.nbytes:
            message = f"{name} has {face.nbytes} bytes, but nbytes is {nbytes}"
            raise InvalidArgumentError(message)
        self._held.append(face)
        return face.address

    def start(self, ctas: int, stream: Any) -> None:
        """Launch the copies."""
        place, queue = self.device, self.device.stream_handle(stream)
        pointer, rows, count = place.handle.pointer, self._rows.address, len(self)
        for x in (*self._held, self._rows):
            _ = x.address  # raises if it was freed
            x.owner.stream = int(cast("uintptr_t", queue))
        with _names():
            check_running(
                pointer,
                lambda: lib.sm120_copy_batch(pointer, rows, count, ctas, queue),
                is_virtual=place.is_virtual,
            )


@untraced
def copy_batch(
    pieces: CopyList | Iterable[tuple[Any, Any, int]],
    *,
    ctas: int | None = None,
    device: Device | str | None = None,
    stream: Any = None,
) -> None:
    """Copy any number of pieces of device memory in one launch.

    Parameters
    ----------
    pieces : CopyList, or iterable of (dst, src, nbytes)
        nbytes bytes from src to dst, at any alignment; 0 is allowed. dst and src are
        contiguous arrays on one device, or addresses as ints. Pieces that write what
        another piece reads or writes give undefined bytes.
    ctas : int, optional
        CTAs of 256 threads that copy. Default: two for each multiprocessor. Fewer
        leave more of the device to kernels of other streams.
    device : Device or str, optional
        Default: the device of the arrays.
    stream
        As in `attention`.

    Raises
    ------
    TypeError
        An argument of the wrong type.
    ValueError
        A piece that its array does not hold, or that overlaps itself.

    Notes
    -----
    A call with a `CopyList` only launches, so a CUDA graph can capture it. Other calls
    also copy the list to the device, and wait for the copies.

    """
    count = 0 if ctas is None else integer(ctas, "ctas")
    if ctas is not None and not 1 <= count <= _CTAS_MAX:
        message = f"ctas is {ctas}, but it must be from 1 to {_CTAS_MAX}, or None"
        raise InvalidArgumentError(message)
    if isinstance(pieces, CopyList):
        if device is not None and as_device(device) is not pieces.device:
            message = f"pieces is on {as_device(device).name_of(pieces.device)}, but device is {as_device(device)}"
            raise InvalidArgumentError(message)
        pieces.start(count, stream)
        return
    made = CopyList(pieces, device=device)
    made.start(count, stream)
    check(lib.sm120_stream_synchronize(made.device.handle.pointer, made.device.stream_handle(stream)))


def _piece(n: int, piece: Any) -> tuple[Any, Any, int]:
    """Check the types of a piece."""
    if not isinstance(piece, tuple | list) or len(piece) != len(_PARTS):
        shown = f"a {type(piece).__name__}" if hasattr(piece, "shape") else repr(piece)
        message = f"pieces[{n}] is {shown}, not (dst, src, nbytes)"
        raise TypeError(message)
    nbytes = integer(piece[2], f"pieces[{n}].nbytes")
    if nbytes < 0:
        message = f"pieces[{n}].nbytes is {nbytes}, but it must be at least 0"
        raise InvalidArgumentError(message)
    found: list[Any] = []
    for part, x in zip(_PARTS, piece[:2], strict=False):
        name = f"pieces[{n}].{part}"
        is_array = isinstance(x, Array) or hasattr(x, "__dlpack__")
        if isinstance(x, np.ndarray) or (not is_array and not hasattr(x, "__index__")):
            message = f"{name} is a {type(x).__name__}, not an array on a device or an address"
            raise TypeError(message)
        found.append(x if is_array else integer(x, name))
        if not is_array and not 0 <= found[-1] < _ADDRESSES:
            message = f"{name} is {x}, not an address: 0 to 2^64 - 1"
            raise InvalidArgumentError(message)
    return found[0], found[1], nbytes


def _face_of(device: Device, x: Any, name: str) -> Array:
    """Return an array of any library as an Array on its memory."""
    if name.endswith("dst"):
        refuse_immutable(x, name)
    with named(name):
        return device.from_dlpack(x, copy=False)


@contextlib.contextmanager
def _names() -> Iterator[None]:
    """Let errors have Python's names of the parts of a piece."""
    try:
        yield
    except Error as error:
        error.args = (re.sub(r"\]\.(to|from|bytes)", lambda found: f"].{_NAMES[found[1]]}", str(error)),)
        raise
