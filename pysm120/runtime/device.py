"""Devices, streams and events."""

import contextlib
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pysm120.observe import watch
from pysm120.observe.profile import Profile
from pysm120.runtime import arrays, dlpack
from pysm120.runtime.errors import ClosedError, InvalidArgumentError, InvalidProgramError, require_type
from pysm120.runtime.ffi import check, ffi, lib, new_struct, text
from pysm120.runtime.module import Kernel, Module, builtin_kernels
from pysm120.runtime.resource import Handle, Resource
from pysm120.runtime.tensor_map import TensorMap

if TYPE_CHECKING:
    from typing_extensions import Self


@runtime_checkable
class CudaStream(Protocol):
    """A stream of another library, by the protocol of cuda.core."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol, 0, and the CUstream."""


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """What a device is.

    Sizes are in bytes, the clock in kHz; ``driver_version`` is
    1000 * major + 10 * minor, as the driver says it.
    """

    name: str
    is_virtual: bool
    ordinal: int
    driver_version: int
    capability: tuple[int, int]
    multiprocessors: int
    warp_size: int
    max_threads_per_block: int
    max_threads_per_multiprocessor: int
    shared_bytes_per_block: int
    shared_bytes_per_multiprocessor: int
    registers_per_multiprocessor: int
    clock_khz: int
    memory_bytes: int
    l2_bytes: int


def _query(pointer: Any) -> DeviceInfo:
    """Ask the library what a device is."""
    raw = new_struct("sm120_device_info")
    check(lib.sm120_device_query(pointer, raw))
    special = ("name", "is_virtual", "capability")
    fields = [f.name for f in dataclasses.fields(DeviceInfo) if f.name not in special]
    return DeviceInfo(
        name=text(raw.name),
        is_virtual=bool(raw.is_virtual),
        capability=(raw.capability_major, raw.capability_minor),
        **{name: getattr(raw, name) for name in fields},
    )


class Device:
    """A GPU, or the virtual SM120 that runs the same kernels on the CPU.

    Parameters
    ----------
    name : str, optional
        "cuda", "cuda:1", "virtual". Default: $PYSM120_DEVICE, else the first
        usable GPU, else "virtual".

    Raises
    ------
    NoDeviceError
        There is no such device.
    InvalidArgumentError
        The name is none of the above.

    Examples
    --------
    >>> with Device("virtual") as dev:
    ...     x = dev.array(np.ones(4, np.float32))
    ...     x.numpy()
    array([1., 1., 1., 1.], dtype=float32)

    """

    def __init__(self, name: str | None = None) -> None:
        self._handle: Handle | None = None
        if name is not None:
            require_type(name, str, "name", "a str such as 'cuda:0'")
        if name is not None and "\0" in name:
            message = f"name is {name!r}, not 'cuda', 'cuda:1', 'virtual'"
            raise InvalidArgumentError(message)
        pointer = ffi.new("sm120_device **")
        encoded = ffi.NULL if name is None else ffi.new("char[]", name.encode())
        check(lib.sm120_device_open(encoded, pointer))
        self._handle = Handle(pointer[0])
        self._resources: weakref.WeakSet[Resource] = weakref.WeakSet()
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._pinned: dict[int, tuple[int, int]] = {}
        self._workspaces: dict[int, arrays.Array] = {}
        self.looker = 0  # the thread in which a watcher looks at a launch now
        self._lock = threading.RLock()
        self._workspace_lock = threading.RLock()
        self._info = _query(pointer[0])

    # ---- life ---------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._handle is None

    @property
    def handle(self) -> Handle:
        """The C device; ClosedError where there is none any more."""
        if self._handle is None:
            message = f"the device {self} is closed; open another one"
            raise ClosedError(message)
        return self._handle

    def ensure_open(self) -> None:
        """Raise ClosedError where the device was closed."""
        _ = self.handle

    def adopt(self, resource: Resource) -> None:
        """Give a resource back when the device closes."""
        with self._lock:
            self._resources.add(resource)

    def close(self) -> None:
        """Free everything that belongs to the device; a second call does nothing.

        Any later use of the device or of what it made is a ClosedError. Memory
        that another library holds by DLPack, and pinned memory that an ndarray
        holds, is freed when they let it go.
        """
        if self._handle is None:
            return
        if self.looker == threading.get_ident():
            message = f"{self} is in use: what watches a launch does not close its device"
            raise InvalidArgumentError(message)
        dlpack.sweep()
        with self._lock:
            resources = list(self._resources)
            self._workspaces.clear()
        for resource in resources:
            resource.close()
        self._handle = None

    def __enter__(self) -> "Self":
        self.ensure_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __str__(self) -> str:
        return f"{self.kind}:{self._info.ordinal}"

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        major, minor = self._info.capability
        return f"<Device {self}, {self._info.name}, sm_{major}{minor}{state}>"

    # ---- what it is ---------------------------------------------------------

    @property
    def info(self) -> DeviceInfo:
        """What the device is."""
        return self._info

    @property
    def kind(self) -> str:
        """Either "cuda" or "virtual"."""
        return "virtual" if self._info.is_virtual else "cuda"

    @property
    def is_virtual(self) -> bool:
        """Whether it is the virtual SM120."""
        return self._info.is_virtual

    def shares_memory_with(self, other: "Device") -> bool:
        """Whether kernels of one may use the memory of the other."""
        if self is other:
            return True
        same = self._info.ordinal == other.info.ordinal
        return same and not (self.is_virtual or other.is_virtual)

    def name_of(self, other: "Device") -> str:
        """Return what a message about this device calls another, which may have the same name."""
        return f"another Device object, {other}" if str(other) == str(self) else str(other)

    def counters(self) -> dict[str, int]:
        """Return what the virtual device counted since it was opened or reset.

        Empty on a GPU. Devices of one name, such as two of ``Device("virtual:0")``, share their counters, which begin
        at 0 when the first of them is opened.
        """
        counts = {}
        name, value = ffi.new("char const **"), ffi.new("uint64_t *")
        pointer = self.handle.pointer
        for index in range(1 << 20):
            status = lib.sm120_device_counter(pointer, index, name, value)
            if status == lib.SM120_UNSUPPORTED:
                break
            check(status)
            counts[text(name[0])] = int(value[0])
        return counts

    def reset_counters(self) -> None:
        """Set the counters to 0; nothing on a GPU."""
        status = lib.sm120_device_counters_reset(self.handle.pointer)
        if status != lib.SM120_UNSUPPORTED:
            check(status)

    def profile(self) -> Profile:
        """Return a profile of the kernels that run inside a with statement (virtual device).

        ``with device.profile() as p: kernel(grid, block, x)``, then ``p.lines``, ``p.opcodes``, ``p.total``. Kernels
        take about twice as long meanwhile. On a GPU: UnsupportedError.
        """
        return Profile(self)

    def interrupt(self) -> None:
        """Stop the kernels that other threads run on the virtual device now; each call fails with a FaultError.

        Ctrl-C does it for the main thread. A GPU cannot be interrupted: NotImplementedError.
        """
        check(lib.sm120_device_interrupt(self.handle.pointer))

    # ---- looking on ---------------------------------------------------------

    def trace(
        self,
        *,
        cta: tuple[int, ...] | None = (0, 0, 0),
        warp: int | None = 0,
        file: str | None = None,
        lines: tuple[int, int] | None = None,
        limit: int | None = 10000,
        see: Callable[[watch.Step], object] | None = None,
        keep: bool = True,
    ) -> contextlib.AbstractContextManager[watch.Trace]:
        """Record what a warp executes, with its registers, in the launches of a ``with`` block.

        A launch that is watched runs on one thread, its CTAs in the seed's order. One device, one watcher.

        Parameters
        ----------
        cta : tuple of up to three ints, optional
            The CTA; None for all of them.
        warp : int, optional
            The warp; None for all of them.
        file : str, optional
            Only what ``#line`` markers say is in this file (or in one whose path ends so).
        lines : pair of ints, optional
            Only these lines, the last one included.
        limit : int, optional
            After so many instructions the launch ends, and ``is_cut`` is True. None: no limit.
        see : callable, optional
            Called with every step when it has been executed; the launch ends where it returns True.
        keep : bool
            False: only call ``see``.

        Returns
        -------
        context manager of watch.Trace
            The steps in order.

        Raises
        ------
        UnsupportedError
            The device is a GPU.

        Examples
        --------
        >>> with device.trace(warp=1) as steps:
        ...     kernel(grid, block, x)
        >>> steps.steps[0].writes[0].values

        """
        return watch.trace(self, cta=cta, warp=warp, file=file, lines=lines, limit=limit, see=see, keep=keep)

    def break_at(
        self,
        line: int,
        *,
        file: str | None = None,
        cta: tuple[int, ...] | None = None,
        warp: int | None = None,
        hits: int = 1,
        shared: tuple[int, int] | None = None,
    ) -> contextlib.AbstractContextManager[watch.Break]:
        """Stop at a line, in the launches of a ``with`` block, before its instruction executes.

        The launch then ends; what it has written stays.

        Parameters
        ----------
        line : int
            Of the PTX text, or of ``file`` where ``#line`` markers name one.
        file : str, optional
            The file, or the end of its path.
        cta, warp : optional
            Whose; by default the first to come there.
        hits : int
            Stop when it comes there for this time, counted over all warps that are meant.
        shared : pair of ints, optional
            Address and bytes of shared memory to keep. It begins at address 1024.

        Returns
        -------
        context manager of watch.Break
            ``stop`` has the registers, and where all lanes of the CTA are.

        Raises
        ------
        UnsupportedError
            The device is a GPU.

        """
        return watch.break_at(self, line, file=file, cta=cta, warp=warp, hits=hits, shared=shared)

    def changes(
        self, array: arrays.Array, offset: int, nbytes: int
    ) -> contextlib.AbstractContextManager[list[watch.Change]]:
        """Record every change of up to 64 bytes of an array, in the launches of a ``with`` block.

        Parameters
        ----------
        array : Array
            The array.
        offset, nbytes : int
            Which of its bytes.

        Returns
        -------
        context manager of a list of watch.Change
            The instructions that changed them, copies that landed among them.

        Raises
        ------
        UnsupportedError
            The device is a GPU.

        """
        return watch.changes(self, array, offset, nbytes)

    def synchronize(self) -> None:
        """Wait for everything that was started on the device."""
        check(lib.sm120_device_synchronize(self.handle.pointer))

    # ---- what it makes ------------------------------------------------------

    def stream(self) -> "Stream":
        """Return a new stream."""
        return Stream(self)

    def event(self) -> "Event":
        """Return a new event."""
        return Event(self)

    def load(self, ptx: "str | bytes | os.PathLike[str]", *, name: str | None = None) -> Module:
        """Load a module of kernels.

        Parameters
        ----------
        ptx : str, bytes or path
            PTX text, the bytes of PTX or of a cubin, or (os.PathLike only) the
            file that holds either.
        name : str, optional
            What messages call it. Default: the path, else "<ptx>".

        Returns
        -------
        Module
            A mapping: ``dev.load(ptx)["my_kernel"]``.

        Raises
        ------
        InvalidProgramError
            It does not load; the message says where and why.

        """
        require_type(ptx, (str, bytes, os.PathLike), "ptx", "a str or bytes of PTX, nor a pathlib.Path")
        if isinstance(ptx, os.PathLike):
            name = name or os.fspath(ptx)
            ptx = Path(ptx).read_bytes()
        elif isinstance(ptx, str) and "\n" not in ptx and ptx.endswith((".ptx", ".cubin")):
            message = f"ptx is {ptx!r}, a path and no PTX: give pathlib.Path({ptx!r})"
            raise InvalidProgramError(message)
        image = ptx.encode() if isinstance(ptx, str) else ptx
        return Module(self, image, name or "<ptx>")

    def builtin_kernels(self) -> dict[str, Kernel]:
        """Return the kernels inside the library, by entry."""
        return builtin_kernels(self)

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> arrays.Array:
        """Return an array in device memory whose elements are not set."""
        return arrays.empty(self, shape, dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> arrays.Array:
        """Return an array in device memory whose bytes are 0."""
        return arrays.zeros(self, shape, dtype)

    def array(self, values: npt.ArrayLike) -> arrays.Array:
        """Return a C-contiguous copy of ``values`` in device memory."""
        return arrays.array(self, values)

    def pinned(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """Return an ndarray in host memory that kernels can reach too.

        It is freed when the last ndarray over it is gone. It (or any view of
        it) may be an argument of a kernel.
        """
        return arrays.pinned(self, shape, dtype)

    def from_dlpack(self, x: dlpack.SupportsDLPack, *, copy: bool | None = None, stream: Any = None) -> arrays.Array:
        """Return the array of another library, by DLPack.

        Parameters
        ----------
        x : object with ``__dlpack__`` and ``__dlpack_device__``
            The array. Memory of this device is shared; host memory is copied.
        copy : bool, optional
            True: always copy. False: refuse to copy. Default: where needed.
        stream : stream, optional
            The stream that will use the array.

        Raises
        ------
        InvalidArgumentError
            The array is on another device, or would have to be copied.

        """
        return arrays.from_dlpack(self, x, copy=copy, stream=stream)

    def tensor_map(
        self,
        array: arrays.Array,
        box: int | Sequence[int],
        *,
        element_strides: int | Sequence[int] | None = None,
        data_type: str | None = None,
        swizzle: str = "none",
        interleave: str = "none",
        l2_promotion: str = "none",
        oob_fill: str = "zero",
    ) -> TensorMap:
        """Return a tensor map: how ``cp.async.bulk.tensor`` copies boxes of an array.

        It is an argument of a kernel: ``.param .align 64 .b8 map[128]``, in CUDA C++
        ``const __grid_constant__ CUtensorMap map``. All tuples are in the order of the
        array's dimensions; the coordinates in PTX go the other way, innermost first.

        Parameters
        ----------
        array : Array, 1 to 5 dimensions
            Contiguous along the last dimension; the other strides are multiples of 16 bytes.
        box : tuple of int
            Elements that a box spans along each dimension, 1 to 256. The last dimension
            of a box has a multiple of 16 bytes.
        element_strides : tuple of int, optional
            1 to 8: a box holds every so many-th element. Ignored for the last dimension.
        data_type : str, optional
            As ``CUtensorMapDataType`` calls it ("FLOAT32_FTZ", "16U4_ALIGN16B", ...).
            Default: by the array's dtype; one-byte types are "UINT8".
        swizzle : str
            "none", "32B", "64B", "128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B" or "128B_ATOM_64B".
        interleave : str
            "none", "16B" or "32B"; on the virtual device "none" alone.
        l2_promotion : str
            "none", "64B", "128B" or "256B": a hint.
        oob_fill : str
            What a load gives outside the array: "zero" or "nan".

        Raises
        ------
        InvalidArgumentError, MisalignedError
            The driver does not take it; the message says what would be right.

        """
        return TensorMap(
            self,
            array,
            box,
            element_strides=element_strides,
            data_type=data_type,
            swizzle=swizzle,
            interleave=interleave,
            l2_promotion=l2_promotion,
            oob_fill=oob_fill,
        )

    # ---- for the modules of this package ------------------------------------

    def stream_handle(self, stream: Any) -> Any:
        """Return the CUstream of None, a Stream, ``__cuda_stream__`` or an int."""
        if stream is None:
            return ffi.NULL
        if isinstance(stream, Stream):
            stream.ensure_open()
            if not self.shares_memory_with(stream.device):
                message = f"stream is on {self.name_of(stream.device)}, not on {self}"
                raise InvalidArgumentError(message)
            return stream.pointer
        if isinstance(stream, CudaStream):
            stream = stream.__cuda_stream__()[1]
        if isinstance(stream, bool) or not isinstance(stream, int | np.integer):
            message = (
                f"stream is a {type(stream).__name__}, not None, a Stream, an object "
                "with __cuda_stream__ or a CUstream as an int"
            )
            raise TypeError(message)
        number = int(stream)
        known = number in {0, *(s.number for s in list(self._streams) if not s.closed)}
        if not 0 <= number < 1 << 64 or (self.is_virtual and not known):
            message = f"stream is {number}, which is no CUstream of {self}"
            raise InvalidArgumentError(message)
        return ffi.cast("void *", number)

    @contextlib.contextmanager
    def workspace(self, stream: Any, size: int) -> Iterator[arrays.Array]:
        """Hold at least ``size`` bytes that an operation on a stream may use.

        An operation is several launches: only one at a time may use the bytes.
        """
        number = int(ffi.cast("uintptr_t", stream))
        with self._workspace_lock:
            held = self._workspaces.get(number)
            if held is None or held.closed or held.nbytes < size:
                self._workspaces.pop(number, None)
                held = arrays.empty(self, (max(1, size),), np.uint8)
                self._workspaces[number] = held
            yield held

    def register_stream(self, stream: "Stream") -> None:
        """Know the streams of the device: the virtual one accepts no others."""
        self._streams.add(stream)

    def forget_workspace(self, number: int) -> None:
        """Free the workspace of a stream that is gone."""
        with self._workspace_lock:
            self._workspaces.pop(number, None)

    def register_pinned(self, host: int, nbytes: int, address: int) -> None:
        """Remember where the device sees pinned memory."""
        self._pinned[host] = (nbytes, address)

    def pinned_table(self) -> dict[int, tuple[int, int]]:
        """Return host pointer: (bytes, device address) of the pinned memory."""
        return self._pinned

    def allocation_at(self, address: int, nbytes: int) -> arrays.Allocation | None:
        """Return the open allocation that holds these bytes, if any does."""
        with self._lock:
            resources = list(self._resources)
        for resource in resources:
            if isinstance(resource, arrays.Allocation) and resource.holds(address, nbytes):
                return resource
        return None


class Stream(Resource):
    """Work that runs in order. Made by ``Device.stream``.

    Anything that takes a stream takes None (the default stream), a Stream, an
    object with ``__cuda_stream__``, or a CUstream as an int.
    """

    def __init__(self, device: Device) -> None:
        pointer = ffi.new("sm120_stream *")
        handle = device.handle
        check(lib.sm120_stream_create(handle.pointer, pointer))
        self._pointer = pointer[0]
        super().__init__(device, "stream", partial(_destroy_stream, handle, self._pointer))
        device.register_stream(self)

    @property
    def pointer(self) -> Any:
        """The CUstream as cffi sees it."""
        self.ensure_open()
        return self._pointer

    @property
    def number(self) -> int:
        """The CUstream as an int."""
        return int(ffi.cast("uintptr_t", self._pointer))

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol, 0, and the CUstream."""
        self.ensure_open()
        return 0, self.number

    def synchronize(self) -> None:
        """Wait for everything that was started on the stream."""
        pointer = self.pointer
        check(lib.sm120_stream_synchronize(self.device.handle.pointer, pointer))

    def wait(self, event: "Event") -> None:
        """Let later work of the stream wait for an event."""
        require_type(event, Event, "event", "an Event")
        pointer = self.pointer
        check(lib.sm120_stream_wait_event(self.device.handle.pointer, pointer, event.pointer))

    def close(self) -> None:
        """Destroy the stream when its work is done; a second call does nothing."""
        if not self.closed:
            self.device.forget_workspace(self.number)
        super().close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<Stream {self.number:#x} of {self.device}{state}>"


def _destroy_stream(handle: Handle, stream: Any) -> None:
    lib.sm120_stream_destroy(handle.pointer, stream)


class Event(Resource):
    """A point in a stream. Made by ``Device.event``."""

    def __init__(self, device: Device) -> None:
        pointer = ffi.new("sm120_event *")
        handle = device.handle
        check(lib.sm120_event_create(handle.pointer, pointer))
        self._pointer = pointer[0]
        super().__init__(device, "event", partial(_destroy_event, handle, self._pointer))

    @property
    def pointer(self) -> Any:
        """The CUevent as cffi sees it."""
        self.ensure_open()
        return self._pointer

    def record(self, stream: Any = None) -> "Event":
        """Mark the present end of a stream; return the event."""
        device, pointer = self.device, self.pointer
        stream = device.stream_handle(stream)
        check(lib.sm120_event_record(device.handle.pointer, pointer, stream))
        return self

    def synchronize(self) -> None:
        """Wait until the device has reached the event."""
        pointer = self.pointer
        check(lib.sm120_event_synchronize(self.device.handle.pointer, pointer))

    def elapsed_since(self, start: "Event") -> float:
        """Return the milliseconds from another event to this one.

        Both were recorded, and both were reached.
        """
        require_type(start, Event, "start", "an Event")
        milliseconds = ffi.new("float *")
        end = self.pointer
        check(lib.sm120_event_elapsed(self.device.handle.pointer, start.pointer, end, milliseconds))
        return float(milliseconds[0])


def _destroy_event(handle: Handle, event: Any) -> None:
    lib.sm120_event_destroy(handle.pointer, event)


# ---- devices that the package opens by itself -----------------------------------

_shared: dict[str | None, Device] = {}
_shared_lock = threading.Lock()


def shared_device(name: str | None = None) -> Device:
    """Return the process-wide device of a name; None is the default device."""
    key = name if name is not None else os.environ.get("PYSM120_DEVICE") or None
    with _shared_lock:
        device = _shared.get(key)
        if device is None or device.closed:
            device = _shared[key] = Device(name)  # without a name the library reads the variable, and names it
        return device


def as_device(device: "Device | str | None") -> Device:
    """Return the device that an argument ``device`` means."""
    if isinstance(device, Device):
        device.ensure_open()
        return device
    if device is not None:
        require_type(device, str, "device", "a Device, a str or None")
    return shared_device(device)
