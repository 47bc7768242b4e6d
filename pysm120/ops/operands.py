"""The device of an operation's arrays, and ndarrays as its inputs and results."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pysm120.ops.foreign import is_foreign, is_traced
from pysm120.ops.table import FLOATS, Dtype
from pysm120.runtime.arrays import Array, refuse_mask
from pysm120.runtime.device import Device, as_device, shared_device
from pysm120.runtime.dlpack import CUDA, CUDA_HOST, CUDA_MANAGED
from pysm120.runtime.errors import InvalidArgumentError

_MOST_WORK: Any = 10_000  # of a search for shared memory


def is_host(inputs: Mapping[str, Any]) -> bool:
    """Whether all inputs are ndarrays (True) or none is (False)."""
    on_host = {name: isinstance(x, np.ndarray) for name, x in inputs.items()}
    for name, x in inputs.items():
        refuse_mask(x, name)
        if not isinstance(x, np.ndarray | Array) and not is_foreign(x):
            message = f"{name} is a {type(x).__name__}, not an ndarray, an Array or an array that supports DLPack"
            if is_traced(x):
                message += "; inside a transformation of JAX: call pysm120.jax.attention"
            raise TypeError(message)
    if len(set(on_host.values())) > 1:
        kinds = ", ".join(f"{name} {type(x).__name__}" for name, x in inputs.items())
        message = f"ndarrays and device arrays are mixed ({kinds}): give one kind"
        raise TypeError(message)
    return all(on_host.values())


def device_of(inputs: Mapping[str, Any], device: Device | str | None) -> Device:
    """Return the device of the inputs; for ndarrays and host memory, ``device``."""
    found = None if device is None else as_device(device)
    for name, x in inputs.items():
        place: Any = None  # a Device; Arrays only declare a Context
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


def narrowed(x: Any, name: str, dtype: Dtype) -> npt.NDArray[Any]:
    """Return numbers, given together with ndarrays, in the dtype that kernels need: float32 or int32."""
    refuse_mask(x, name)
    try:
        values: npt.NDArray[Any] = np.asarray(x)
    except ValueError:
        message = f"{name} is a {type(x).__name__} whose rows have different lengths, not an array"
        raise InvalidArgumentError(message) from None
    if values.size == 0 and not isinstance(x, np.ndarray):
        values = values.astype(dtype)  # [] has a wrong shape; its dtype is no error
    is_right = values.dtype.kind in "iu" or (dtype.kind == "f" and (values.dtype.kind == "f" or values.dtype in FLOATS))
    if not is_right:
        message = f"{name} has dtype {values.dtype}, not {dtype}"
        raise TypeError(message)
    if dtype.kind == "i" and values.size and not -(2**31) <= values.min() <= values.max() < 2**31:
        message = f"{name} holds {values.min()} to {values.max()}, beyond int32"
        raise InvalidArgumentError(message)
    with np.errstate(over="ignore"):
        narrow: npt.NDArray[Any] = values.astype(dtype)
    lost = np.isinf(narrow) & np.isfinite(values)
    if lost.any():
        message = f"{name} holds {values[lost][0]}, beyond float32"
        raise InvalidArgumentError(message)
    return narrow


def check_result(x: Any, name: str) -> npt.NDArray[Any]:
    """Return an ndarray after checking that a result can be copied to it."""
    if not isinstance(x, np.ndarray):
        message = f"{name} is a {type(x).__name__}, not an ndarray like the inputs"
        raise TypeError(message)
    refuse_mask(x, name)
    if not x.flags.writeable:
        message = f"{name} is a read-only ndarray; it must be writable"
        raise InvalidArgumentError(message)
    if 0 in x.shape:
        message = f"{name} has shape {x.shape}, but no size may be 0"
        raise InvalidArgumentError(message)
    span = x.itemsize
    for step, extent in sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
        if step < span:
            message = f"{name} has a stride of {step} bytes across {span} bytes: its elements must not overlap"
            raise InvalidArgumentError(message)
        span += step * (extent - 1)
    return x


def check_apart(results: Mapping[str, Any]) -> None:
    """Check that no two ndarrays for results share memory: each is copied from the device as a whole."""
    arrays = [(name, x) for name, x in results.items() if isinstance(x, np.ndarray)]
    for (one, a), (other, b) in itertools.combinations(arrays, 2):
        try:
            is_shared = np.shares_memory(a, b, max_work=_MOST_WORK)
        except np.exceptions.TooHardError:  # strides of many dimensions: unknown
            is_shared = False
        if is_shared:
            message = f"{one} and {other} overlap"
            raise InvalidArgumentError(message)


@contextlib.contextmanager
def temporary(arrays: list[Array]) -> Iterator[None]:
    """Free staging memory after the work that uses it, also if the work fails."""
    try:
        yield
    finally:
        for array in arrays:
            array.free()
