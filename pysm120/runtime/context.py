"""An open device and its resources, streams and events.

Arrays, modules and tensor maps know their device as a Context. Users open a `Device`: a Context with methods that make
arrays, modules and tensor maps.
"""

import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from pysm120.runtime import dlpack
from pysm120.runtime.errors import ClosedError, InvalidArgumentError, require_type
from pysm120.runtime.ffi import cast, check, ffi, lib, new, new_struct, text

if TYPE_CHECKING:
    from typing_extensions import Self


@runtime_checkable
class CudaStream(Protocol):
    """A stream of another library, by the protocol of cuda.core."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol, 0, and the CUstream."""


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """The properties of a device.

    Sizes are in bytes, the clock in kHz; ``driver_version`` is
    1000 * major + 10 * minor, as the driver reports it.
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
    """Ask the library for the properties of a device."""
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


class Handle:
    """The C device; it closes when the last reference to it is gone.

    Memory may outlive ``Device.close``: another library can still hold it by
    DLPack, and pinned memory lives as long as the last ndarray over it.
    The functions that release such memory hold the handle.
    """

    _numbers = itertools.count(1)

    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer
        self.number = next(self._numbers)  # no other handle has it
        finalizer = weakref.finalize(self, lib.sm120_device_close, pointer)
        # At the end of the process, memory that is still alive may still be used: do not free it.
        finalizer.atexit = False


class Resource:
    """An object that belongs to a device.

    Parameters
    ----------
    device : Context
        The device that it belongs to.
    what : str
        Its name in messages.
    release : callable, optional
        Frees it; called once, at the latest when this object is deleted.

    """

    # how messages say that it is gone
    ended = "closed"

    def __init__(self, device: "Context", what: str, release: Callable[[], object] | None) -> None:
        self.device = device
        self._what = what
        self._closed = False
        self._finalizer: weakref.finalize[..., Resource] | None = None
        if release is not None:
            self._finalizer = weakref.finalize(self, release)
            self._finalizer.atexit = False
        device.adopt(self)

    @property
    def closed(self) -> bool:
        """Whether it was freed, by itself or with its device."""
        return self._closed or self.device.closed

    def ensure_open(self) -> None:
        """Raise ClosedError if it was freed."""
        if self.device.closed:
            message = f"the device of this {self._what}, {self.device}, is closed"
            raise ClosedError(message)
        if self._closed:
            message = f"this {self._what} was {self.ended}; make a new one"
            raise ClosedError(message)

    def close(self) -> None:
        """Free it now; a second call does nothing."""
        self._closed = True
        if self._finalizer is not None and not self._in_use():
            self._finalizer()

    def _in_use(self) -> bool:
        """Whether another library or an ndarray still uses it."""
        return False


class Context:
    """An open device; see Device."""

    def __init__(self, name: str | None = None) -> None:
        self._handle: Handle | None = None
        if name is not None:
            require_type(name, str, "name", "a str such as 'cuda:0'")
        if name is not None and "\0" in name:
            message = f"name is {name!r}, not 'cuda', 'cuda:1', 'virtual'"
            raise InvalidArgumentError(message)
        pointer = new("sm120_device **")
        encoded = ffi.NULL if name is None else new("char[]", name.encode())
        check(lib.sm120_device_open(encoded, pointer))
        self._handle = Handle(pointer[0])
        self._resources: weakref.WeakSet[Resource] = weakref.WeakSet()
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._pinned: dict[int, tuple[int, int]] = {}
        self.workspaces: dict[int, Resource] = {}  # workspaces of operations, by the number of their stream
        self.workspace_lock = threading.RLock()
        self.looker = 0  # the thread that runs a watch callback now
        self._lock = threading.RLock()
        self._info = _query(pointer[0])

    # ---- life ---------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._handle is None

    @property
    def handle(self) -> Handle:
        """The C device; ClosedError after ``close``."""
        if self._handle is None:
            message = f"the device {self} is closed; open another one"
            raise ClosedError(message)
        return self._handle

    def ensure_open(self) -> None:
        """Raise ClosedError if the device was closed."""
        _ = self.handle

    def adopt(self, resource: Resource) -> None:
        """Register a resource, to be freed when the device closes."""
        with self._lock:
            self._resources.add(resource)

    def resources(self) -> list[Resource]:
        """Return the resources of the device that are still alive."""
        with self._lock:
            return list(self._resources)

    def close(self) -> None:
        """Free everything that belongs to the device; a second call does nothing.

        Any later use of the device or of its objects raises ClosedError. Memory
        that another library holds by DLPack, and pinned memory that an ndarray
        holds, is freed when the library or the last ndarray releases it.
        """
        if self._handle is None:
            return
        if self.looker == threading.get_ident():
            message = f"{self} is in use: a watch callback must not close its device"
            raise InvalidArgumentError(message)
        dlpack.sweep()
        resources = self.resources()
        self.workspaces.clear()
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

    # ---- properties ---------------------------------------------------------

    @property
    def info(self) -> DeviceInfo:
        """The properties of the device."""
        return self._info

    @property
    def kind(self) -> str:
        """Either "cuda" or "virtual"."""
        return "virtual" if self._info.is_virtual else "cuda"

    @property
    def is_virtual(self) -> bool:
        """Whether it is the virtual SM120."""
        return self._info.is_virtual

    def shares_memory_with(self, other: "Context") -> bool:
        """Whether kernels of one device may use memory of the other."""
        if self is other:
            return True
        same = self._info.ordinal == other.info.ordinal
        return same and not (self.is_virtual or other.is_virtual)

    def name_of(self, other: "Context") -> str:
        """Return how a message about this device names another device, which may have the same name."""
        if str(other) != str(self):
            return str(other)
        return f"another Device object for {other}, which has memory and streams of its own (use one Device)"

    def counters(self) -> dict[str, int]:
        """Return the counters of the virtual device, by name, since it was opened or reset.

        Empty on a GPU. Devices with the same name, such as two of ``Device("virtual:0")``, share their counters. These
        start at 0 when the first of the devices is opened.
        """
        counts = {}
        name, value = new("char const **"), new("uint64_t *")
        pointer = self.handle.pointer
        for index in range(1 << 20):
            status = lib.sm120_device_counter(pointer, index, name, value)
            if status == lib.SM120_UNSUPPORTED:
                break
            check(status)
            counts[text(name[0])] = int(value[0])
        return counts

    def reset_counters(self) -> None:
        """Set the counters to 0; on a GPU this does nothing."""
        status = lib.sm120_device_counters_reset(self.handle.pointer)
        if status != lib.SM120_UNSUPPORTED:
            check(status)

    def interrupt(self) -> None:
        """Stop the kernels that other threads are running on the virtual device; each of their calls raises FaultError.

        Ctrl-C does this for the main thread. On a GPU: NotImplementedError.
        """
        check(lib.sm120_device_interrupt(self.handle.pointer))

    # ---- streams ------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait for all work that was started on the device."""
        check(lib.sm120_device_synchronize(self.handle.pointer))

    def stream(self) -> "Stream":
        """Return a new stream."""
        return Stream(self)

    def event(self) -> "Event":
        """Return a new event."""
        return Event(self)

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
            message = f"stream is {number}, which is not a CUstream of {self}"
            raise InvalidArgumentError(message)
        return cast("void *", number)

    def register_stream(self, stream: "Stream") -> None:
        """Remember a stream of the device: the virtual device accepts no other CUstream."""
        self._streams.add(stream)

    def forget_workspace(self, number: int) -> None:
        """Free the workspace of a destroyed stream."""
        with self.workspace_lock:
            self.workspaces.pop(number, None)

    # ---- pinned memory ------------------------------------------------------

    def register_pinned(self, host: int, nbytes: int, address: int) -> None:
        """Remember the device address of pinned memory."""
        self._pinned[host] = (nbytes, address)

    def pinned_table(self) -> dict[int, tuple[int, int]]:
        """Return the pinned memory as a mapping: host pointer to (bytes, device address)."""
        return self._pinned


class Stream(Resource):
    """Work that runs in order. Made by ``Device.stream``.

    Every argument ``stream`` may be None (the default stream), a Stream, an
    object with ``__cuda_stream__``, or a CUstream as an int.
    """

    def __init__(self, device: Context) -> None:
        require_type(device, Context, "device", "a Device")
        pointer = new("sm120_stream *")
        handle = device.handle
        check(lib.sm120_stream_create(handle.pointer, pointer))
        self._pointer = pointer[0]
        super().__init__(device, "stream", partial(_destroy_stream, handle, self._pointer))
        device.register_stream(self)

    @property
    def pointer(self) -> Any:
        """The CUstream as a cffi pointer."""
        self.ensure_open()
        return self._pointer

    @property
    def number(self) -> int:
        """The CUstream as an int."""
        return int(cast("uintptr_t", self._pointer))

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol, 0, and the CUstream."""
        self.ensure_open()
        return 0, self.number

    def synchronize(self) -> None:
        """Wait for all work that was started on the stream."""
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

    def __init__(self, device: Context) -> None:
        require_type(device, Context, "device", "a Device")
        pointer = new("sm120_event *")
        handle = device.handle
        check(lib.sm120_event_create(handle.pointer, pointer))
        self._pointer = pointer[0]
        super().__init__(device, "event", partial(_destroy_event, handle, self._pointer))

    @property
    def pointer(self) -> Any:
        """The CUevent as a cffi pointer."""
        self.ensure_open()
        return self._pointer

    def record(self, stream: Any = None) -> "Event":
        """Record the event behind the work that a stream has now; return the event."""
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

        Both must have been recorded and reached.
        """
        require_type(start, Event, "start", "an Event")
        milliseconds = new("float *")
        end = self.pointer
        check(lib.sm120_event_elapsed(self.device.handle.pointer, start.pointer, end, milliseconds))
        return float(milliseconds[0])


def _destroy_event(handle: Handle, event: Any) -> None:
    lib.sm120_event_destroy(handle.pointer, event)
