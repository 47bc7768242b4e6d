"""DLPack in both directions: export and import of arrays.

NumPy neither exports nor imports bfloat16 and float8, so the capsules are made
here. The layouts are those of dlpack.h, versions 0.x (unversioned) and 1.x.
"""

import ctypes
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pysm120.runtime.errors import InvalidArgumentError

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
READ_ONLY, IS_COPIED = 1, 2
VERSION = (1, 1)

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_EXTENSION_TYPES: dict[tuple[int, int], np.dtype[Any]] = {
    (4, 16): np.dtype(ml_dtypes.bfloat16),
    (8, 8): np.dtype(ml_dtypes.float8_e4m3),
    (10, 8): np.dtype(ml_dtypes.float8_e4m3fn),
    (12, 8): np.dtype(ml_dtypes.float8_e5m2),
    (14, 8): np.dtype(ml_dtypes.float8_e8m0fnu),
}
_EXTENSION_CODES = {dtype: code for code, dtype in _EXTENSION_TYPES.items()}


class SupportsDLPack(Protocol):
    """An array of any library that supports DLPack."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """Return a capsule over the array."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device's type and ordinal."""


def type_code(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """Return DLPack's code and bits of a dtype; None if DLPack has no such type."""
    if dtype in _EXTENSION_CODES:
        return _EXTENSION_CODES[dtype]
    if dtype.isbuiltin != 1 or dtype.kind not in _CODES or not dtype.isnative:
        return None
    return _CODES[dtype.kind], 8 * dtype.itemsize


def _dtype_of(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    """Return the dtype of a DLPack type."""
    if lanes == 1 and (code, bits) in _EXTENSION_TYPES:
        return _EXTENSION_TYPES[code, bits]
    kinds = {number: kind for kind, number in _CODES.items()}
    if lanes == 1 and code in kinds and bits % 8 == 0:
        try:
            return np.dtype(f"{kinds[code]}{bits // 8}")
        except TypeError:
            pass
    message = f"x has DLPack type code {code}, {bits} bits, {lanes} lanes, which is not supported"
    raise InvalidArgumentError(message)


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_python = ctypes.PyDLL(None)  # not ctypes.pythonapi, whose argtypes other packages set too, jax.ffi for one
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_python.PyCapsule_IsValid.restype = ctypes.c_int
_python.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_void_p)
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_void_p)
_python.PyCapsule_SetName.restype = ctypes.c_int
_python.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_void_p)


def _immortal(thing: Any) -> Any:
    """Keep an object that C code points to until the process ends."""
    _python.Py_IncRef(ctypes.py_object(thing))
    return thing


def _name(text: bytes) -> int:
    """Return the address of a name that lives as long as any capsule."""
    return ctypes.addressof(_immortal(ctypes.create_string_buffer(text)))


# (fresh, used) names without and with a version.
_NAMES = (
    (_name(b"dltensor"), _name(b"used_dltensor")),
    (_name(b"dltensor_versioned"), _name(b"used_dltensor_versioned")),
)


# ---- export ---------------------------------------------------------------------


class _Export:
    """An exported capsule and the objects that must live as long as it."""

    def __init__(self, managed: Any, dims: Any, owner: object) -> None:
        self.managed = managed
        self.dims = dims
        self.owner = owner
        self.capsule: Any = None


# By the address of the managed tensor. The reference here keeps an exported
# array alive until the consumer calls the deleter.
_exports: dict[int, _Export] = _immortal({})


def _delete(address: int | None, exports: dict[int, _Export] = _exports) -> None:
    """Release an export that its consumer has finished with."""
    if address is not None:
        exports.pop(address, None)


_deleter = _immortal(_DELETER(_delete))


def _references(export: _Export) -> int:
    """Return the reference count of a capsule as seen from here."""
    return sys.getrefcount(export.capsule)


def _unshared() -> int:
    """Return the result of _references for a capsule that nobody else holds."""
    probe = _Export(None, None, None)
    probe.capsule = object()
    return _references(probe)


_UNSHARED = _unshared()


def sweep() -> None:
    """Release capsules that no consumer took.

    Usually the destructor of a capsule does this. But if a consumer rejects the
    capsule (NumPy rejects bfloat16), the destructor runs while the consumer's
    exception is set, where no Python code may run. So the capsules are held here;
    a capsule that nobody else holds was not taken.
    """
    for address, export in list(_exports.items()):
        versioned = isinstance(export.managed, _ManagedVersioned)
        fresh = _NAMES[versioned][0]
        if _references(export) <= _UNSHARED and _python.PyCapsule_IsValid(export.capsule, fresh):
            _exports.pop(address, None)


def is_exported(owner: object) -> bool:
    """Whether another library holds memory of this owner."""
    sweep()
    return any(export.owner is owner for export in list(_exports.values()))


def export(
    *,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    device: tuple[int, int],
    owner: object,
    versioned: bool,
    flags: int = 0,
) -> Any:
    """Return a capsule over memory that ``owner`` keeps alive.

    Strides are in elements.
    """
    sweep()
    code = type_code(dtype)
    if code is None:
        message = f"dtype {dtype} has no DLPack type"
        raise BufferError(message)
    ndim = len(shape)
    dims = (ctypes.c_int64 * max(1, 2 * ndim))(*shape, *strides)
    start = ctypes.addressof(dims)
    at = ctypes.POINTER(ctypes.c_int64)
    managed = _ManagedVersioned() if versioned else _Managed()
    if isinstance(managed, _ManagedVersioned):
        managed.major, managed.minor = VERSION
        managed.flags = flags
    managed.deleter = ctypes.cast(_deleter, ctypes.c_void_p).value
    tensor = managed.tensor
    tensor.data = address
    tensor.device_type, tensor.device_id = device
    tensor.ndim = ndim
    tensor.code, tensor.bits = code
    tensor.lanes = 1
    tensor.shape = ctypes.cast(start, at)
    tensor.strides = ctypes.cast(start + 8 * ndim, at)
    entry = _Export(managed, dims, owner)
    where = ctypes.addressof(managed)
    entry.capsule = _python.PyCapsule_New(where, _NAMES[versioned][0], None)
    capsule = entry.capsule
    _exports[where] = entry
    return capsule


class HostArray:
    """An ndarray that speaks DLPack in every dtype; NumPy itself exports no bfloat16 and no float8."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self._values = values

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (1, 0), the CPU."""
        return CPU, 0

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule that shares the memory."""
        del stream
        if copy or (dl_device is not None and tuple(dl_device) != (CPU, 0)):
            message = f"dl_device is {dl_device} and copy is {copy}, but the array is shared, on the CPU"
            raise BufferError(message)
        values = self._values
        return export(
            address=int(values.__array_interface__["data"][0]),
            shape=values.shape,
            strides=tuple(step // values.itemsize for step in values.strides),
            dtype=values.dtype,
            device=(CPU, 0),
            owner=values,
            versioned=max_version is not None and max_version[0] >= 1,
        )


# ---- import ---------------------------------------------------------------------


class Imported:
    """The tensor of a consumed capsule; ``release`` gives it back to the producer, once."""

    def __init__(self, capsule: Any) -> None:
        valid = [_python.PyCapsule_IsValid(capsule, fresh) for fresh, _ in _NAMES]
        if not any(valid):
            message = "x gave a DLPack capsule that was used already, or no capsule"
            raise InvalidArgumentError(message)
        versioned = bool(valid[1])
        fresh, used = _NAMES[versioned]
        where = _python.PyCapsule_GetPointer(capsule, fresh)
        kind = _ManagedVersioned if versioned else _Managed
        managed = kind.from_address(where)
        if isinstance(managed, _ManagedVersioned) and managed.major > VERSION[0]:
            message = f"x has DLPack version {managed.major}.{managed.minor}; at most 1.x is supported"
            raise InvalidArgumentError(message)
        flags = managed.flags if isinstance(managed, _ManagedVersioned) else 0
        tensor = managed.tensor
        ndim = tensor.ndim
        self.dtype = _dtype_of(tensor.code, tensor.bits, tensor.lanes)
        self.shape = tuple(tensor.shape[i] for i in range(ndim))
        self.strides: tuple[int, ...] | None = None
        if tensor.strides:
            self.strides = tuple(tensor.strides[i] for i in range(ndim))
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.device = (tensor.device_type, tensor.device_id)
        self.readonly = bool(flags & READ_ONLY)
        # From here on we must delete the managed tensor.
        _python.PyCapsule_SetName(capsule, used)
        self.release: Callable[[], None] = partial(_release, where, managed.deleter)


def _release(where: int, deleter: int | None) -> None:
    """Call the producer's deleter."""
    if deleter:
        _DELETER(deleter)(where)


def request(x: Any, stream: int | None) -> Any:
    """Return the capsule of ``x``, versioned if its library supports that."""
    if callable(is_negated := getattr(x, "is_neg", None)) and is_negated():  # a view of PyTorch, such as z.conj().imag
        message = "x has the negative bit, which DLPack drops: give .resolve_neg() of it"
        raise InvalidArgumentError(message)
    try:
        try:
            return x.__dlpack__(stream=stream, max_version=VERSION)
        except TypeError:
            return x.__dlpack__(stream=stream)
    except BufferError as error:
        if getattr(x, "requires_grad", False):  # a tensor of PyTorch
            message = "x requires gradients: give .detach() of it, or call pysm120.torch, which computes gradients"
        else:
            message = f"x does not export its memory by DLPack: {error}"
        raise InvalidArgumentError(message) from None
