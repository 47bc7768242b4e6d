"""Things of the C library that are released exactly once."""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pysm120.runtime.errors import ClosedError
from pysm120.runtime.ffi import lib

if TYPE_CHECKING:
    from pysm120.runtime.device import Device


class Handle:
    """The C device; it closes when the last thing that needs it is gone.

    Memory may outlive ``Device.close``: another library can still hold it by
    DLPack, and pinned memory lives as long as the last ndarray over it.
    Whatever releases such memory holds the handle.
    """

    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer
        finalizer = weakref.finalize(self, lib.sm120_device_close, pointer)
        # What is alive when the process ends may still be touched: leave it.
        finalizer.atexit = False


class Resource:
    """Something that belongs to a device.

    Parameters
    ----------
    device : Device
        The device that it belongs to.
    what : str
        What messages call it.
    release : callable, optional
        Gives it back; called once, at the latest when this object dies.

    """

    # What messages say of one that was given back.
    ended = "closed"

    def __init__(self, device: "Device", what: str, release: Callable[[], object] | None) -> None:
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
        """Whether it was given back, by itself or with its device."""
        return self._closed or self.device.closed

    def ensure_open(self) -> None:
        """Raise ClosedError where it was given back."""
        if self.device.closed:
            message = f"the device of this {self._what}, {self.device}, is closed"
            raise ClosedError(message)
        if self._closed:
            message = f"this {self._what} was {self.ended}; make a new one"
            raise ClosedError(message)

    def close(self) -> None:
        """Give it back now; a second call does nothing."""
        self._closed = True
        if self._finalizer is not None and not self._in_use():
            self._finalizer()

    def _in_use(self) -> bool:
        """Whether somebody outside this package still needs it."""
        return False
