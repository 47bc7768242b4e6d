"""Arrays of other libraries: their host memory as ndarrays, and results as arrays of their library.

Nothing is imported here: who has an array of a library has imported that library.
"""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pysm120.runtime.arrays import Array, host_view
from pysm120.runtime.device import Device
from pysm120.runtime.dlpack import CPU, HostArray
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.ffi import check, lib

_IMMUTABLE = {"jax", "jaxlib", "tensorflow"}
_FAILURES = (BufferError, RuntimeError, TypeError, ValueError)  # what libraries raise for a dtype that they do not take
_UNSIGNED: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}


def is_foreign(x: Any) -> bool:
    """Whether x is an array of another library."""
    return not isinstance(x, np.ndarray | Array) and hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")


def is_traced(x: Any) -> bool:
    """Whether x stands for an array inside a transformation of JAX."""
    return isinstance(x, getattr(sys.modules.get("jax.core"), "Tracer", ()))


def library_of(x: Any) -> Any:
    """Return the module whose ``from_dlpack`` makes arrays of the kind of x.

    It is that of the array API standard, else the top module of the type or of one of its bases. None for ndarrays,
    Arrays, and types whose library has no ``from_dlpack``.
    """
    if not is_foreign(x):
        return None
    found = [x.__array_namespace__()] if hasattr(x, "__array_namespace__") else []
    found += [sys.modules.get(root) for root in _roots(x)]
    return next((module for module in found if callable(getattr(module, "from_dlpack", None))), None)


def _roots(x: Any) -> list[str]:
    """Return the names of the top modules of the type of x and of its bases."""
    return [kind.__module__.partition(".")[0] for kind in type(x).__mro__]


def on_host(x: Any) -> bool:
    """Whether x is an ndarray, or an array in host memory of a library that takes results."""
    if isinstance(x, np.ndarray):
        return True
    return is_foreign(x) and int(x.__dlpack_device__()[0]) == CPU and library_of(x) is not None


def are_on_host(arrays: Iterable[Any]) -> bool:
    """Whether all arrays are in host memory; what is no array does not count."""
    return all(on_host(x) for x in arrays if isinstance(x, np.ndarray | Array) or is_foreign(x))


def as_ndarray(x: Any, name: str) -> Any:
    """Return an array in host memory as an ndarray over the same memory; ndarrays and what is no array as they are."""
    if not is_foreign(x):
        return x
    with named(name):
        return host_view(x)


def as_result(x: Any, name: str) -> Any:
    """Return an array in host memory that is to be written as an ndarray over the same memory."""
    refuse_immutable(x, name)
    return as_ndarray(x, name)


def refuse_immutable(x: Any, name: str) -> None:
    """Raise if the library of x promises that its arrays never change."""
    roots = _IMMUTABLE.intersection(_roots(x))
    if roots:
        message = (
            f"{name} is a {type(x).__name__} of {min(roots)}, whose arrays cannot be written to: "
            "leave it out for a new one, or give an Array"
        )
        raise TypeError(message)


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Let errors about ``x`` name the argument."""
    try:
        yield
    except (InvalidArgumentError, TypeError) as error:
        subject, space, rest = str(error).partition(" ")
        if subject != "x":
            raise
        raise type(error)(name + space + rest) from None


def face_of(device: Device, x: Any, name: str, stream: Any) -> Array:
    """Return an input as an Array on the device; errors name the argument."""
    with named(name):
        return device.from_dlpack(x, stream=stream)


def result_face_of(device: Device, x: Any, name: str, stream: Any) -> Any:
    """Return an array that is to be written as an Array over the same memory; what is not foreign as it is."""
    if not is_foreign(x):
        return x
    refuse_immutable(x, name)
    if int(x.__dlpack_device__()[0]) == CPU:
        try:
            return device.from_dlpack(x, copy=False, stream=stream)
        except InvalidArgumentError:
            message = f"{name} is in host memory, not on {device}: leave it out, or give an array on {device}"
            raise InvalidArgumentError(message) from None
    return face_of(device, x, name, stream)


def wait_for(device: Device, stream: Any, *arrays: Any) -> None:
    """Wait for the work on arrays of other libraries, which may reuse their memory; without any, do not wait."""
    if any(is_foreign(x) for x in arrays):
        check(lib.sm120_stream_synchronize(device.handle.pointer, device.stream_handle(stream)))


def handed_to(library: Any, x: npt.NDArray[Any] | Array, name: str) -> Any:
    """Return a new result as an array of a library that shares its memory."""
    if library is None:
        return x
    try:
        return library.from_dlpack(_source(x))
    except _FAILURES as error:
        theirs = getattr(library, x.dtype.name, None)
        if theirs is None or x.dtype.isbuiltin == 1 or x.itemsize not in _UNSIGNED:
            message = f"{name} has dtype {x.dtype}, which {library.__name__} does not take by DLPack: give Arrays"
            raise TypeError(message) from error
    # The library has the dtype, but its DLPack lacks it.
    return library.from_dlpack(_source(_bits_of(x))).view(theirs)


def _source(x: npt.NDArray[Any] | Array) -> Any:
    """Return an array that speaks DLPack in every dtype."""
    return HostArray(x) if isinstance(x, np.ndarray) else x


def _bits_of(x: npt.NDArray[Any] | Array) -> npt.NDArray[Any] | Array:
    """Return the same memory as unsigned integers."""
    unsigned = _UNSIGNED[x.itemsize]
    if isinstance(x, np.ndarray):
        bits: npt.NDArray[Any] = x.view(unsigned)
        return bits
    return Array(x.owner, x.address, x.shape, x.strides, unsigned)
