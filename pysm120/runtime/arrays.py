"""Arrays in device memory, and ndarrays in pinned host memory."""

import math
import operator
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from pysm120.runtime import dlpack, shapes
from pysm120.runtime.context import Context, Handle, Resource
from pysm120.runtime.errors import InvalidArgumentError, OutOfMemoryError
from pysm120.runtime.ffi import cast, check, ffi, lib, new
from pysm120.runtime.shapes import Shape

# Numbers of the forms of arrays, never freed: a form takes a few bytes, and a process uses few forms.
_forms: dict[tuple[Shape, Shape, np.dtype[Any]], int] = {}


class Allocation(Resource):
    """An allocation that arrays are views of."""

    ended = "freed"

    def __init__(
        self,
        device: Context,
        address: int,
        nbytes: int,
        release: Callable[[], object] | None,
    ) -> None:
        self.address = address
        self.nbytes = nbytes
        # The CUstream whose work used the memory last
        self.stream = 0
        super().__init__(device, "array", release)

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether these bytes are part of the memory."""
        start = self.address
        return not self.closed and start <= address and address + nbytes <= start + self.nbytes

    def _in_use(self) -> bool:
        return dlpack.is_exported(self)


class Array:
    """An array in device memory.

    Made by ``Device.array``, ``empty``, ``zeros`` and ``from_dlpack``. Views
    (slices, ``reshape``, ``transpose``) share the memory and keep it alive.

    Attributes
    ----------
    device : Device
    shape : tuple of int
    strides : tuple of int
        In elements, not bytes.
    dtype : numpy.dtype
        NumPy's or one of ml_dtypes.
    readonly : bool
        Whether the library that made it forbids writing to it.

    """

    __slots__ = (
        "__weakref__",
        "_address",
        "_form",
        "_owner",
        "device",
        "dtype",
        "readonly",
        "shape",
        "strides",
    )

    def __init__(
        self,
        owner: Allocation,
        address: int,
        shape: Shape,
        strides: Shape,
        dtype: np.dtype[Any],
        *,
        readonly: bool = False,
    ) -> None:
        self._owner = owner
        self._address = address
        self._form: int | None = None
        self.device = owner.device
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.readonly = readonly

    # ---- properties ---------------------------------------------------------

    @property
    def address(self) -> int:
        """The address of the first element; ClosedError if the memory was freed."""
        self._owner.ensure_open()
        return self._address

    @property
    def form(self) -> int:
        """A number that arrays of the same shape, strides and dtype share."""
        if self._form is None:
            self._form = form_of(self.shape, self.strides, self.dtype)
        return self._form

    @property
    def owner(self) -> Allocation:
        """The memory that this is a view of."""
        return self._owner

    @property
    def closed(self) -> bool:
        """Whether the memory was freed, or its device closed."""
        return self._owner.closed

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie next to each other in C order."""
        return shapes.is_contiguous(self.shape, self.strides)

    def __len__(self) -> int:
        if not self.shape:
            message = "an array without dimensions has no length"
            raise TypeError(message)
        return self.shape[0]

    def __repr__(self) -> str:
        state = ", freed" if self.closed else ""
        return f"<Array {self.dtype}{list(self.shape)} strides {list(self.strides)} on {self.device}{state}>"

    # ---- copies -------------------------------------------------------------

    def numpy(self, *, stream: Any = None) -> npt.NDArray[Any]:
        """Return a copy in host memory, after the work of the stream."""
        address = self.address
        if self.size == 0:
            return np.empty(self.shape, self.dtype)
        low, high = shapes.span(self.shape, self.strides)
        raw = np.empty(high - low + 1, self.dtype)
        start = address + low * self.itemsize
        device, handle = self.device, self.device.handle
        queue = device.stream_handle(stream)
        into = cast("void *", raw.__array_interface__["data"][0])
        check(lib.sm120_copy_to_host(handle.pointer, into, start, raw.nbytes, queue))
        check(lib.sm120_stream_synchronize(handle.pointer, queue))
        if self.is_contiguous:
            return raw.reshape(self.shape)
        steps = tuple(stride * self.itemsize for stride in self.strides)
        return np.lib.stride_tricks.as_strided(raw[-low:], self.shape, steps).copy()

    def copy_from(self, values: npt.ArrayLike, *, stream: Any = None, blocking: bool = True) -> "Array":
        """Copy the elements of an ndarray of the same shape and dtype; return self.

        Parameters
        ----------
        values : ndarray
            The elements, in host memory.
        stream : stream, optional
            The copy comes after the earlier work of this stream.
        blocking : bool
            True: return when the copy is done. False: return at once. ``values``
            is then a C-contiguous ndarray of `Device.pinned`: keep it, and do not
            write to it, until the stream has done the copy.

        Raises
        ------
        TypeError
            Another dtype.
        ValueError
            Another shape, or, without ``blocking``, memory that is not pinned.

        """
        refuse_mask(values, "values")
        source = np.asarray(values)
        if source.dtype != self.dtype:
            message = f"values has dtype {source.dtype}, not {self.dtype}: convert it with astype"
            raise TypeError(message)
        if source.shape != self.shape:
            message = f"values has shape {source.shape}, not {self.shape}"
            raise InvalidArgumentError(message)
        self.ensure_writable("the array")
        address = self.address
        device, handle = self.device, self.device.handle
        if not blocking:
            _check_pinned(device, source)
        source = np.asarray(source, order="C")
        queue = device.stream_handle(stream)
        if self.size == 0:
            return self
        data = cast("char *", source.__array_interface__["data"][0])
        position = 0
        for offset, count in shapes.runs(self.shape, self.strides):
            nbytes = count * self.itemsize
            to = address + offset * self.itemsize
            check(lib.sm120_copy_to_device(handle.pointer, to, data + position, nbytes, queue))
            position += nbytes
        if blocking:
            check(lib.sm120_stream_synchronize(handle.pointer, queue))
        else:
            self._owner.stream = int(cast("uintptr_t", queue))
        return self

    def copy(self, *, stream: Any = None) -> "Array":
        """Return a C-contiguous copy on the same device."""
        address = self.address
        device, handle = self.device, self.device.handle
        queue = device.stream_handle(stream)
        out = empty(device, self.shape, self.dtype)
        out.owner.stream = self._owner.stream = int(cast("uintptr_t", queue))
        to = out.address
        for offset, count in shapes.runs(self.shape, self.strides):
            nbytes = count * self.itemsize
            start = address + offset * self.itemsize
            check(lib.sm120_copy_on_device(handle.pointer, to, start, nbytes, queue))
            to += nbytes
        return out

    def ensure_writable(self, name: str) -> None:
        """Raise if the library that made the array forbids writing to it."""
        if self.readonly:
            message = f"{name} is read-only: its library exported it so"
            raise InvalidArgumentError(message)

    def free(self) -> None:
        """Free the memory now, also that of every view; a second call does nothing.

        Memory that another library holds by DLPack is freed when that library releases it.
        """
        self._owner.close()

    # ---- views --------------------------------------------------------------

    def _view(self, offset: int, shape: Shape, strides: Shape) -> "Array":
        """Return a view that starts ``offset`` elements after this one."""
        address = self.address + offset * self.itemsize
        return Array(self._owner, address, shape, strides, self.dtype, readonly=self.readonly)

    def __getitem__(self, key: Any) -> "Array":
        """Return a view: integers, slices, None and Ellipsis, as in NumPy."""
        keys = key if isinstance(key, tuple) else (key,)
        for part in keys:
            if part is None or part is Ellipsis or isinstance(part, slice):
                continue
            if isinstance(part, bool) or not isinstance(part, int | np.integer):
                message = f"an array is indexed by integers, slices, None and ..., not by a {type(part).__name__}"
                raise TypeError(message)
        return self._view(*shapes.index(self.shape, self.strides, keys))

    def reshape(self, *shape: int | Sequence[int]) -> "Array":
        """Return a view of another shape; one extent may be -1 and is computed from the others.

        ValueError if the elements would have to be copied: use ``copy`` first.
        """
        given = shape[0] if len(shape) == 1 else shape
        wanted = shapes.shape_of(given, self.size, "shape")
        strides = shapes.reshaped(self.shape, self.strides, wanted)
        if strides is None:
            message = (
                f"an array of shape {self.shape} and strides {self.strides} does not "
                f"reshape to {wanted} without a copy: call copy() first"
            )
            raise InvalidArgumentError(message)
        return self._view(0, wanted, strides)

    def transpose(self, *axes: int | Sequence[int]) -> "Array":
        """Return a view with the dimensions in another order; default: reversed."""
        given: Any = axes[0] if len(axes) == 1 else axes
        order: Shape = tuple(map(operator.index, given if isinstance(given, Sequence) else (given,)))
        order = order or tuple(reversed(range(self.ndim)))
        if sorted(a + self.ndim if a < 0 else a for a in order) != list(range(self.ndim)):
            message = f"axes is {order}, not an order of {self.ndim} dimensions"
            raise InvalidArgumentError(message)
        shape = tuple(self.shape[a] for a in order)
        return self._view(0, shape, tuple(self.strides[a] for a in order))

    @property
    def T(self) -> "Array":  # noqa: N802
        """The view with the dimensions reversed."""
        return self.transpose()

    # ---- protocols ----------------------------------------------------------

    # Without these methods NumPy treats an Array as a scalar object, and comparisons with it are False.
    __array_ufunc__ = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:  # noqa: FBT001
        """Raise TypeError: arrays are not copied to the host implicitly."""
        _ = dtype, copy
        message = f"this Array is on {self.device}, not in host memory: use x.numpy()"
        raise TypeError(message)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        """Raise TypeError: some functions of NumPy ignore the error of ``__array__``."""
        _ = types, args, kwargs
        message = f"np.{function.__name__} does not take an Array on {self.device}: use x.numpy()"
        raise TypeError(message)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (2, ordinal) on a GPU; the virtual device's memory is the CPU's."""
        if self.device.is_virtual:
            return dlpack.CPU, 0
        return dlpack.CUDA, self.device.info.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule that shares the memory.

        Parameters
        ----------
        stream : int, optional
            The consumer's CUstream: None or 1 is the default stream, 2 the
            thread's default stream, -1 means no ordering.
        max_version : tuple of int, optional
            Newest DLPack that the consumer knows; None: before 1.0.
        dl_device : tuple of int, optional
            The device that the consumer wants; it must be the array's own.
        copy : bool, optional
            True: share a copy instead.

        """
        address = self.address
        place = self.__dlpack_device__()
        if dl_device is not None and tuple(dl_device) != place:
            message = f"dl_device is {dl_device}, but the array is on {place}"
            raise BufferError(message)
        if dlpack.type_code(self.dtype) is None:
            message = f"dtype {self.dtype} has no DLPack type"
            raise BufferError(message)
        if copy:
            duplicate = self.copy()
            duplicate.device.synchronize()
            return duplicate._export(place, max_version, dlpack.IS_COPIED)  # noqa: SLF001
        versioned = max_version is not None and max_version[0] >= 1
        if self.readonly and not versioned:
            message = "the array is read-only, which DLPack before 1.0 cannot express"
            raise BufferError(message)
        self._order(stream)
        _ = address
        return self._export(place, max_version, 0)

    def _export(self, place: tuple[int, int], max_version: tuple[int, int] | None, flags: int) -> Any:
        """Return a capsule over this array."""
        versioned = max_version is not None and max_version[0] >= 1
        return dlpack.export(
            address=self.address,
            shape=self.shape,
            strides=self.strides,
            dtype=self.dtype,
            device=place,
            owner=self._owner,
            versioned=versioned,
            flags=flags | (dlpack.READ_ONLY if self.readonly else 0),
        )

    def _order(self, consumer: int | None) -> None:
        """Let a consumer's stream wait for our last stream that uses the memory."""
        device, last = self.device, self._owner.stream
        if consumer == -1:
            return
        if device.is_virtual:
            device.synchronize()
            return
        stream = 0 if consumer in {None, 1} else consumer
        if stream == last:
            return
        event = device.event().record(last)
        check(lib.sm120_stream_wait_event(device.handle.pointer, cast("void *", stream), event.pointer))
        event.close()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The interface, version 3: on a GPU, for NumPy's own dtypes."""
        if self.device.is_virtual or self.dtype.isbuiltin != 1:
            message = (
                "__cuda_array_interface__ needs a GPU and a dtype of NumPy's own; this "
                f"is {self.dtype} on {self.device}"
            )
            raise AttributeError(message)
        steps = tuple(stride * self.itemsize for stride in self.strides)
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address if self.size else 0, self.readonly),
            "strides": None if self.is_contiguous else steps,
            "version": 3,
            # In this interface 1 is the default stream, and 0 is forbidden.
            "stream": self._owner.stream or 1,
        }


def form_of(shape: Shape, strides: Shape, dtype: np.dtype[Any]) -> int:
    """Return the number that arrays of the same shape, strides and dtype share."""
    return _forms.setdefault((shape, strides, dtype), len(_forms))


def dtype_of(dtype: npt.DTypeLike, name: str) -> np.dtype[Any]:
    """Return an argument as a dtype."""
    try:
        return np.dtype(dtype)
    except TypeError:
        message = f"{name} is {dtype!r}, not a dtype such as np.float16, 'float32' or ml_dtypes.bfloat16"
        raise TypeError(message) from None


def _dtype_of(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return an argument as a dtype that device memory can hold."""
    kind = dtype_of(dtype, "dtype")
    if kind.hasobject or kind.itemsize == 0:
        message = f"dtype is {kind}, which is not supported in device memory"
        raise TypeError(message)
    return kind


def refuse_mask(values: object, name: str) -> None:
    """Raise if an ndarray is masked: kernels would ignore the mask."""
    # np.ma is imported at its first use: without it there are no masked arrays
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and isinstance(values, masked):
        message = f"{name} is a masked array, whose mask would be lost: use {name}.filled(value)"
        raise TypeError(message)


# ---- making ---------------------------------------------------------------------


def allocate(device: Context, nbytes: int) -> Allocation:
    """Return new device memory."""
    dlpack.sweep()
    handle = device.handle
    if nbytes > sys.maxsize:
        message = f"{nbytes} bytes exceed the address space"
        raise OutOfMemoryError(message)
    if nbytes == 0:
        return Allocation(device, 0, 0, None)
    address = new("sm120_address *")
    check(lib.sm120_alloc(handle.pointer, nbytes, address))
    start = int(address[0])
    return Allocation(device, start, nbytes, partial(_free, handle, start))


def _free(handle: Handle, address: int) -> None:
    lib.sm120_free(handle.pointer, address)


def empty(device: Context, shape: Any, dtype: npt.DTypeLike) -> Array:
    """Return an array whose elements are not set; see Device.empty."""
    extents, kind = shapes.shape_of(shape, None, "shape"), _dtype_of(dtype)
    owner = allocate(device, math.prod(extents) * kind.itemsize)
    return Array(owner, owner.address, extents, shapes.contiguous_strides(extents), kind)


def zeros(device: Context, shape: Any, dtype: npt.DTypeLike) -> Array:
    """Return an array whose bytes are 0; see Device.zeros."""
    out = empty(device, shape, dtype)
    if out.nbytes:
        pointer = device.handle.pointer
        check(lib.sm120_fill(pointer, out.address, 0, out.nbytes, ffi.NULL))
        check(lib.sm120_stream_synchronize(pointer, ffi.NULL))
    return out


def array(device: Context, values: npt.ArrayLike, *, stream: Any = None) -> Array:
    """Return a copy of ``values``; see Device.array."""
    refuse_mask(values, "values")
    source = np.asarray(values)
    if not source.dtype.isnative:
        message = f"values has dtype {source.dtype}, whose byte order is not the CPU's"
        raise TypeError(message)
    return empty(device, source.shape, source.dtype).copy_from(source, stream=stream)


def pinned(device: Context, shape: Any, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an ndarray in pinned host memory; see Device.pinned."""
    extents, kind = shapes.shape_of(shape, None, "shape"), _dtype_of(dtype)
    nbytes = math.prod(extents) * kind.itemsize
    handle = device.handle
    if nbytes > sys.maxsize:
        message = f"{nbytes} bytes exceed the address space"
        raise OutOfMemoryError(message)
    if nbytes == 0:
        return np.empty(extents, kind)
    host, address = new("void **"), new("sm120_address *")
    check(lib.sm120_alloc_pinned(handle.pointer, nbytes, host, address))
    start = int(cast("uintptr_t", host[0]))
    device.register_pinned(start, nbytes, int(address[0]))
    table = device.pinned_table()
    # The chain ndarray -> buffer -> this pointer keeps the memory until the last ndarray is gone.
    memory = ffi.gc(host[0], partial(_free_pinned, handle, table))
    return _over(memory, nbytes, kind).reshape(extents)


def _over(memory: Any, nbytes: int, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an ndarray over C memory, which it keeps alive."""
    buffer: Any = ffi.buffer(memory, nbytes)
    values: npt.NDArray[Any] = np.frombuffer(buffer, kind)
    return values


def _free_pinned(handle: Handle, table: dict[int, tuple[int, int]], host: Any) -> None:
    """Free pinned memory and forget its device address."""
    table.pop(int(cast("uintptr_t", host)), None)
    lib.sm120_free_pinned(handle.pointer, host)


def pinned_address(device: Context, values: npt.NDArray[Any]) -> int | None:
    """Return the device address of an ndarray in pinned memory, else None."""
    device.ensure_open()
    start = int(values.__array_interface__["data"][0])
    for host, (nbytes, address) in list(device.pinned_table().items()):
        if host <= start < host + nbytes:
            return address + start - host
    return None


def _check_pinned(device: Context, values: npt.NDArray[Any]) -> None:
    """Raise unless a copy can read an ndarray after the call that starts it."""
    if values.size and pinned_address(device, values) is None:
        message = f"values is not in pinned memory of {device}, but blocking is False: use Device.pinned"
        raise InvalidArgumentError(message)
    if not values.flags.c_contiguous:
        message = f"values has strides {values.strides}, but blocking is False: it must be C-contiguous"
        raise InvalidArgumentError(message)


def from_dlpack(device: Context, x: Any, *, copy: bool | None = None, stream: Any = None) -> Array:
    """Return the array of another library; see Device.from_dlpack."""
    if isinstance(x, Array) and not x.device.shares_memory_with(device):
        message = f"x is on {device.name_of(x.device)}, not on {device}"
        raise InvalidArgumentError(message)
    if isinstance(x, Array):
        _ = x.address
        return x.copy(stream=stream) if copy else x
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        message = f"x is a {type(x).__name__}, which does not support DLPack"
        raise TypeError(message)
    queue = device.stream_handle(stream)
    if isinstance(x, np.ndarray):
        refuse_mask(x, "x")
        return _from_host(device, x, x.__array_interface__["data"][0], copy, stream)
    place, ordinal = x.__dlpack_device__()
    if int(place) in {dlpack.CUDA, dlpack.CUDA_HOST, dlpack.CUDA_MANAGED}:
        return _from_gpu(device, x, int(place), ordinal, copy, queue)
    if int(place) != dlpack.CPU:
        message = f"x is on a device of DLPack type {int(place)}, not CUDA or the CPU"
        raise InvalidArgumentError(message)
    values = host_view(x)
    return _from_host(device, values, values.__array_interface__["data"][0], copy, stream)


def _allocation_at(device: Context, address: int, nbytes: int) -> Allocation | None:
    """Return the open allocation that holds these bytes, or None."""
    for resource in device.resources():
        if isinstance(resource, Allocation) and resource.holds(address, nbytes):
            return resource
    return None


def host_view(x: Any) -> npt.NDArray[Any]:
    """Return an ndarray over the host memory of another library's array, which it keeps alive."""
    imported = dlpack.Imported(dlpack.request(x, None))
    shape, kind = imported.shape, imported.dtype
    strides = imported.strides or shapes.contiguous_strides(shape)
    if math.prod(shape) == 0:
        imported.release()
        return np.empty(shape, kind)
    low, high = shapes.span(shape, strides)
    start = imported.address + low * kind.itemsize
    nbytes = (high - low + 1) * kind.itemsize
    memory = ffi.gc(cast("char *", start), lambda _: imported.release())
    raw = _over(memory, nbytes, kind)
    steps = tuple(stride * kind.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(raw[-low:], shape, steps, writeable=not imported.readonly)


def _from_host(
    device: Context,
    values: npt.NDArray[Any],
    address: int,
    copy: bool | None,  # noqa: FBT001
    stream: Any,
) -> Array:
    """Return an array from host memory: shared if the memory is ours, else a copy."""
    contiguous = bool(values.flags.c_contiguous)
    owner = _allocation_at(device, address, max(1, values.nbytes)) if contiguous else None
    if owner is not None and not copy:
        strides = shapes.contiguous_strides(values.shape)
        readonly = not values.flags.writeable
        return Array(owner, address, values.shape, strides, values.dtype, readonly=readonly)
    if copy is False:
        message = f"x is in host memory, so {device} needs a copy, but copy is False"
        raise InvalidArgumentError(message)
    return array(device, values, stream=stream)


def _from_gpu(
    device: Context,
    x: Any,
    place: int,
    ordinal: int,
    copy: bool | None,  # noqa: FBT001
    queue: Any,
) -> Array:
    """Return an array that shares the memory of a GPU's array."""
    if device.is_virtual or (place == dlpack.CUDA and int(ordinal) != device.info.ordinal):
        message = f"x is on cuda:{int(ordinal)}, not on {device}"
        raise InvalidArgumentError(message)
    number = int(cast("uintptr_t", queue))
    imported = dlpack.Imported(dlpack.request(x, number or 1))
    strides = imported.strides or shapes.contiguous_strides(imported.shape)
    kind = imported.dtype
    owner = Allocation(device, imported.address, 0, imported.release)
    owner.stream = number
    shared = Array(
        owner,
        imported.address,
        imported.shape,
        strides,
        kind,
        readonly=imported.readonly,
    )
    return shared.copy(stream=number) if copy else shared
