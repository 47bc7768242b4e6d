"""What the operations share: arguments in, checked, and as the C library sees them."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from pysm120.runtime.arrays import Array, refuse_mask
from pysm120.runtime.device import Device, as_device, shared_device
from pysm120.runtime.dlpack import CUDA, CUDA_HOST, CUDA_MANAGED
from pysm120.runtime.errors import InvalidArgumentError, MisalignedError
from pysm120.runtime.ffi import check, ffi, lib

CODES: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): lib.SM120_F32,
    np.dtype(np.float16): lib.SM120_F16,
    np.dtype(ml_dtypes.bfloat16): lib.SM120_BF16,
}
PRECISIONS_16BIT = {"float16": "f16", "bfloat16": "bf16"}
ALIGNMENT = 16
HEAD_STEP = 8


class Rows(NamedTuple):
    """Strides of rows of ``head_dim`` elements, and how many there are."""

    batch: int
    heads: int
    rows: int
    head_dim: int
    batch_stride: int
    head_stride: int
    row_stride: int


def one_of(value: Any, name: str, choices: tuple[str, ...]) -> str:
    """Return a value that is one of a few strings."""
    if not isinstance(value, str) or value not in choices:
        message = f"{name} is {value!r}, not one of {', '.join(map(repr, choices))}"
        raise InvalidArgumentError(message)
    return value


def check_dtype(dtype: np.dtype[Any], name: str) -> np.dtype[Any]:
    """Return a dtype that operations read and write."""
    if dtype not in CODES:
        message = f"{name} has dtype {dtype}, not float32, float16 or bfloat16"
        raise TypeError(message)
    return dtype


def dtype_name(x: Any, name: str) -> str:
    """Return the name of an array's dtype, of whatever library it is."""
    if not hasattr(x, "dtype"):
        message = f"{name} is a {type(x).__name__}, not an array"
        raise TypeError(message)
    return str(x.dtype).rpartition(".")[2]  # some write their own name before it


def precision_of(x: Any, name: str, precision: str | None) -> str:
    """Return the precision of 16 bits that the dtype of an array means, unless one is given."""
    if precision is not None:
        return precision
    dtype = dtype_name(x, name)
    if dtype not in PRECISIONS_16BIT:
        message = f"{name} has dtype {dtype}, not float16 or bfloat16: cast it, or give a precision that takes it"
        raise TypeError(message)
    return PRECISIONS_16BIT[dtype]


def check_head_dim(head_dim: int, name: str, most: int | None = None) -> None:
    """Raise where no kernel takes this head size."""
    if head_dim % HEAD_STEP or head_dim > (most or head_dim):
        limit = f" up to {most}" if most else ""
        message = f"{name} has head size {head_dim}, not a multiple of {HEAD_STEP}{limit}"
        raise InvalidArgumentError(message)


def check_strides(shape: tuple[int, ...], strides: tuple[int, ...], name: str, *, output: bool = False) -> None:
    """Raise where kernels cannot follow the strides.

    Of an input, all but the last two dimensions may have the stride 0.
    """
    if shape[-1] > 1 and strides[-1] != 1:
        message = (
            f"{name} has stride {strides[-1]} along its last dimension, whose elements must lie next to each other"
        )
        raise InvalidArgumentError(message)
    for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        if extent > 1 and (stride < 0 or (stride == 0 and output)):
            message = (
                f"{name} has stride {stride} along dimension {axis}, where only a "
                f"{'positive' if output else 'non-negative'} one is right"
            )
            raise InvalidArgumentError(message)


def check_alignment(x: Array, strides: tuple[int, ...], name: str) -> None:
    """Raise where an address or stride is no multiple of 16 bytes."""
    if x.address % ALIGNMENT:
        message = f"{name} is at address {x.address:#x}, not at a multiple of {ALIGNMENT}"
        raise MisalignedError(message)
    for stride in strides:
        if stride * x.itemsize % ALIGNMENT:
            message = (
                f"{name} has a stride of {stride} elements, {stride * x.itemsize} "
                f"bytes, which is no multiple of {ALIGNMENT}"
            )
            raise MisalignedError(message)


def rows_of(x: Array, axes: tuple[int, int, int], name: str, *, output: bool) -> Rows:
    """Return the rows of an array whose batch, head and row axes are given."""
    extents = [x.shape[axis] for axis in axes]
    strides = [x.strides[axis] for axis in axes]
    check_strides(x.shape, x.strides, name, output=output)
    if extents[2] > 1 and strides[2] == 0:
        message = f"{name} has stride 0 along its rows, where only a positive one works"
        raise InvalidArgumentError(message)
    # A stride along one element means nothing: make it one that is right.
    fixed = [s if n > 1 else 0 for n, s in zip(extents, strides, strict=True)]
    if extents[2] == 1:
        fixed[2] = x.shape[-1]
    check_alignment(x, tuple(fixed), name)
    return Rows(extents[0], extents[1], extents[2], x.shape[-1], *fixed)


def words_of(axes: tuple[int | None, int, int]) -> list[str]:
    """Return what the dimensions of a tensor are, from its batch, head and row axes."""
    words = ["head size"] * (len(axes) + (axes[0] is not None))
    for axis, word in zip(axes, ("batch", "heads", "rows"), strict=True):
        if axis is not None:
            words[axis] = word
    return words


def fill_form(tensor: Any, x: Any, axes: tuple[int | None, int, int], name: str, *, output: bool) -> None:
    """Write dtype and strides of something with a shape, strides and a dtype to a ``sm120_tensor``."""
    check_strides(x.shape, x.strides, name, output=output)
    extents = [1 if axis is None else x.shape[axis] for axis in axes]
    strides = [0 if axis is None else x.strides[axis] for axis in axes]
    if extents[2] > 1 and strides[2] == 0:
        message = f"{name} has stride 0 along its rows, where only a positive one works"
        raise InvalidArgumentError(message)
    # A stride along one element means nothing: make it one that is right.
    batch, heads, rows = (s if n > 1 else 0 for n, s in zip(extents, strides, strict=True))
    tensor.dtype = CODES[x.dtype]
    tensor.batch_stride, tensor.head_stride = batch, heads
    tensor.row_stride = rows if extents[2] > 1 else x.shape[-1]


def fill_tensor(tensor: Any, x: Array, rows: Rows) -> None:
    """Write an array to a ``sm120_tensor``."""
    tensor.address = x.address
    tensor.dtype = CODES[x.dtype]
    tensor.batch_stride = rows.batch_stride
    tensor.head_stride = rows.head_stride
    tensor.row_stride = rows.row_stride


def is_host(inputs: Mapping[str, Any]) -> bool:
    """Whether all inputs are ndarrays (True) or none is (False)."""
    on_host = {name: isinstance(x, np.ndarray) for name, x in inputs.items()}
    for name, x in inputs.items():
        refuse_mask(x, name)
        if not isinstance(x, np.ndarray | Array) and not hasattr(x, "__dlpack__"):
            message = f"{name} is a {type(x).__name__}, not an ndarray, an Array or an array that speaks DLPack"
            raise TypeError(message)
    if len(set(on_host.values())) > 1:
        kinds = ", ".join(f"{name} {type(x).__name__}" for name, x in inputs.items())
        message = f"ndarrays and device arrays are mixed ({kinds}): give one kind"
        raise TypeError(message)
    return all(on_host.values())


def device_of(inputs: Mapping[str, Any], device: Device | str | None) -> Device:
    """Return the device on which inputs are, or ``device`` where they may go."""
    found = None if device is None else as_device(device)
    for name, x in inputs.items():
        place: Device | None = None
        if isinstance(x, Array):
            _ = x.address
            place = x.device
        elif not isinstance(x, np.ndarray):
            kind, ordinal = x.__dlpack_device__()
            if int(kind) in {CUDA, CUDA_HOST, CUDA_MANAGED} and found is None:
                place = shared_device(f"cuda:{int(ordinal)}")
        if place is None:
            continue
        if found is None:
            found = place
        if not place.shares_memory_with(found):
            message = f"{name} is on {found.name_of(place)}, not on {found} like the others"
            raise InvalidArgumentError(message)
    return found or shared_device()


def face_of(device: Device, x: Any, name: str, stream: Any) -> Array:
    """Return an input on the device, in whose messages it has its name."""
    try:
        return device.from_dlpack(x, stream=stream)
    except (InvalidArgumentError, TypeError) as error:
        subject, space, rest = str(error).partition(" ")
        if subject != "x":
            raise
        raise type(error)(name + space + rest) from None


def require_array(x: Any, name: str, device: Device) -> Array:
    """Return an output: an Array of the device that may be written."""
    if not isinstance(x, Array):
        message = f"{name} is a {type(x).__name__}, not an Array like the inputs"
        raise TypeError(message)
    _ = x.address
    if not x.device.shares_memory_with(device):
        message = f"{name} is on {device.name_of(x.device)}, not on {device} like the inputs"
        raise InvalidArgumentError(message)
    x.ensure_writable(name)
    return x


def require_shape(shape: tuple[int, ...], wanted: tuple[int, ...], name: str) -> None:
    """Raise where a shape is not the one that is right."""
    if tuple(shape) != tuple(wanted):
        message = f"{name} has shape {tuple(shape)}, not {tuple(wanted)}"
        raise InvalidArgumentError(message)


@contextlib.contextmanager
def temporary(arrays: list[Array]) -> Iterator[None]:
    """Free staging memory when its work is done, or when it fails."""
    try:
        yield
    finally:
        for array in arrays:
            array.free()


def touch(stream: Any, *arrays: Array | None) -> None:
    """Remember which stream used the arrays last."""
    number = int(ffi.cast("uintptr_t", stream))
    for array in arrays:
        if array is not None:
            array.owner.stream = number


def finish(device: Device, stream: Any) -> None:
    """Wait for a stream."""
    check(lib.sm120_stream_synchronize(device.handle.pointer, stream))
