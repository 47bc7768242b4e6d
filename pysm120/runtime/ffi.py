"""The only module that uses the C library directly: declarations, loading, statuses."""

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cffi

from pysm120.runtime.errors import BY_STATUS, DriverError, Error

PACKAGE = Path(__file__).resolve().parent.parent
LIBRARY_NAME = "libsm120.so.0"
# The ABI of a 0.x library may change with its minor version.
ABI = 1  # major and minor version, 100 * major + minor: 0.1


def include_directory() -> Path:
    """Return the folder that holds ``sm120.h``."""
    for folder in (PACKAGE, PACKAGE.parent / "src"):
        if (folder / "sm120.h").is_file():
            return folder
    message = f"sm120.h is neither in {PACKAGE} nor in src beside it: install again"
    raise ImportError(message)


def library_path() -> Path:
    """Return the library to load: $PYSM120_LIBRARY, the wheel's, the build's."""
    named = os.environ.get("PYSM120_LIBRARY")
    if named:
        return Path(named)
    candidates = (PACKAGE / LIBRARY_NAME, PACKAGE.parent / "build" / LIBRARY_NAME)
    for path in candidates:
        if path.is_file():
            return path
    message = (
        f"{LIBRARY_NAME} is neither in {PACKAGE} nor in build beside it: "
        "run ./build.sh, or name the library in $PYSM120_LIBRARY"
    )
    raise ImportError(message)


def declarations(header: str) -> str:
    """Return the declarations of ``sm120.h`` in the form that cffi reads."""
    begin, end = "/* cffi: begin */", "/* cffi: end */"
    text = header[header.index(begin) + len(begin) : header.index(end)]
    return re.sub(r"\bSM120_API\b", "", text)


def _load() -> tuple[Any, Any]:
    """Open the library and check its version."""
    interface: Any = cffi.FFI()
    header = (include_directory() / "sm120.h").read_text(encoding="utf-8")
    interface.cdef(declarations(header))
    path = library_path()
    try:
        library = interface.dlopen(str(path))
    except OSError as error:
        message = f"the library {path} does not load: {error}"
        raise ImportError(message) from error
    try:
        version = library.sm120_version()
    except AttributeError as error:
        message = f"{path} is not libsm120: it has no sm120_version"
        raise ImportError(message) from error
    if version // 100 != ABI:
        message = (
            f"{path} has version {version}, but this package needs {ABI // 100}.{ABI % 100}.x: build the library again"
        )
        raise ImportError(message)
    return interface, library


ffi, lib = _load()


def text(pointer: Any) -> str:
    """Return the Python string of a C string; NULL is empty."""
    if pointer == ffi.NULL:
        return ""
    raw: bytes = ffi.string(pointer)
    return raw.decode("utf-8", "replace")


def check(status: int) -> None:
    """Raise the exception of a status other than OK."""
    if status == lib.SM120_OK:
        return
    message = text(lib.sm120_last_error()) or text(lib.sm120_status_string(status))
    error = BY_STATUS.get(status, Error)(message, status)
    if isinstance(error, DriverError):
        error.driver_error = lib.sm120_last_driver_error()
    raise error


def check_running(device: Any, call: Callable[[], int], *, is_virtual: bool) -> None:
    """Check a call that executes kernels; on the virtual device Ctrl-C stops them.

    On the virtual device the call returns only when the kernel has ended, and Python handles no signal before that. So
    the call runs in a separate thread while the main thread waits.
    """
    if not is_virtual or threading.current_thread() is not threading.main_thread():
        check(call())
        return
    work = _Work(call)
    try:
        threading.Thread(target=work.run, daemon=True).start()
        while not work.ended.wait(0.1):
            pass  # a signal that another thread caught is handled in the next iteration
    except BaseException:
        work.stop(device)
        raise
    if work.failure is not None:
        raise work.failure


class _Work:
    """A call in a separate thread.

    It signals its own begin and end. Before Python 3.13 a thread counts as dead as soon as an exception interrupts a
    join of it.
    """

    def __init__(self, call: Callable[[], int]) -> None:
        self.call = call
        self.begun, self.stopping, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Make the call, unless it was told to stop before."""
        self.begun.set()
        try:
            if not self.stopping.is_set():
                check(self.call())
        except BaseException as failure:  # noqa: BLE001 - raised again by check_running
            self.failure = failure
        finally:
            self.ended.set()

    def stop(self, device: Any) -> None:
        """Interrupt the device until the call has ended, whatever signals come meanwhile.

        An interrupt stops only launches that are running. It has no effect if the call has not reached its first
        launch, or is between two launches. This returns only after the call has ended, because the caller then frees
        the memory that the launches use.
        """
        while True:
            try:
                self.stopping.set()
                while self.begun.is_set() and not self.ended.is_set():
                    lib.sm120_device_interrupt(device)
                    self.ended.wait(0.1)
            except BaseException:  # noqa: BLE001, S112 - a second Ctrl-C; the first one is raised after the end
                continue
            return


def new_struct(name: str) -> Any:
    """Return a zeroed struct with its first member, the size, set."""
    struct = ffi.new(f"{name} *")
    struct.size = ffi.sizeof(name)
    return struct


def version() -> str:
    """Return the version of the library."""
    return text(lib.sm120_version_string())


def device_count(kind: str) -> int:
    """Return how many devices of a kind, "cuda" or "virtual", there are."""
    count = ffi.new("int32_t *")
    check(lib.sm120_device_count(kind.encode(), count))
    return int(count[0])
