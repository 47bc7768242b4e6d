"""The only module that uses the C library directly: declarations, loading, statuses."""

import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cffi

from pysm120.runtime.errors import BY_STATUS, DriverError, Error
from pysm120.runtime.names import readable

PACKAGE = Path(__file__).resolve().parent.parent
# Types that the package uses beside those of sm120.h and pointers to its structs.
_PLAIN = (
    *(
        "char *",
        "char const **",
        "double *",
        "float *",
        "int32_t *",
        "int64_t *",
        "size_t *",
        "uint64_t *",
        "uintptr_t",
        "void *",
        "void **",
    ),
    *("void const **", "sm120_address *", "sm120_device **", "sm120_event *", "sm120_kernel **", "sm120_module **"),
    "sm120_stream *",
)
_ARRAYS = ("char", "size_t", "void *")  # of any length


def include_directory() -> Path:
    """Return the folder that holds ``sm120.h``."""
    for folder in (PACKAGE, PACKAGE.parent / "src"):
        if (folder / "sm120.h").is_file():
            return folder
    message = f"sm120.h is neither in {PACKAGE} nor in src beside it: install again"
    raise ImportError(message)


def _abi() -> tuple[int, int]:
    """Return major and minor version of ``sm120.h``: while major is 0, the ABI may change with both."""
    text = (include_directory() / "sm120.h").read_text(encoding="utf-8")
    major, minor = re.findall(r"^#define SM120_VERSION_M(?:AJOR|INOR) (\d+)$", text, re.MULTILINE)
    return int(major), int(minor)


ABI = _abi()
LIBRARY_NAME = {
    "win32": "sm120.dll",
    "darwin": f"libsm120.{ABI[0]}.{ABI[1]}.dylib",
}.get(sys.platform, f"libsm120.so.{ABI[0]}.{ABI[1]}")


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


def companion(name: str) -> Path:
    """Return a library that the build makes beside libsm120."""
    for folder in (PACKAGE, PACKAGE.parent / "build"):
        if (folder / name).is_file():
            return folder / name
    message = f"{name} is neither in {PACKAGE} nor in build beside it: run ./build.sh"
    raise ImportError(message)


def declarations(header: str) -> str:
    """Return the declarations of ``sm120.h`` in the form that cffi reads."""
    begin, end = "/* cffi: begin */", "/* cffi: end */"
    text = header[header.index(begin) + len(begin) : header.index(end)]
    return re.sub(r"\bSM120_API\b", "", text)


def _carriers(names: list[str]) -> str:
    """Declare structs whose members have the types of the package: cffi parses them together, in a few milliseconds."""
    members = "".join(f"{name} member_{k}; " for k, name in enumerate(names))
    arrays = "".join(f"struct pysm120_array_{k} {{ int32_t n; {name} items[]; }};" for k, name in enumerate(_ARRAYS))
    return f"struct pysm120_types {{ {members} }}; {arrays}"


def _load() -> tuple[Any, Any, dict[str, Any]]:
    """Open the library, check its version, look up all of its functions and all types.

    cffi looks up names and parses types under a lock that is not reentrant. A finalizer or a signal handler can run
    while the lock is held, and would wait for it for ever. So nothing is looked up or parsed after this.
    """
    interface: Any = cffi.FFI()
    header = (include_directory() / "sm120.h").read_text(encoding="utf-8")
    structs = re.findall(r"^(?:}|typedef sm120_\w+) (sm120_\w+);", header, re.MULTILINE)
    names = [*_PLAIN, *structs, *(f"{name} *" for name in structs)]
    interface.cdef(declarations(header))
    interface.cdef(_carriers(names))
    members = interface.typeof("struct pysm120_types").fields
    types = {name: field.type for name, (_, field) in zip(names, members, strict=True)}
    for k, name in enumerate(_ARRAYS):
        types[f"{name}[]"] = dict(interface.typeof(f"struct pysm120_array_{k}").fields)["items"].type
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
    if divmod(version // 100, 100) != ABI:
        message = f"{path} has version {version}, but this package needs {ABI[0]}.{ABI[1]}.x: build the library again"
        raise ImportError(message)
    try:
        for name in dir(library):
            getattr(library, name)
    except AttributeError as error:
        message = f"{path} does not fit sm120.h in {include_directory()}: {error}; build the library again"
        raise ImportError(message) from error
    return interface, library, types


ffi, lib, types = _load()


def new(kind: str, value: Any = None) -> Any:
    """Allocate as ``ffi.new`` does; the type is one of ``types``."""
    return ffi.new(types[kind], value)


def cast(kind: str, value: Any) -> Any:
    """Convert as ``ffi.cast`` does; the type is one of ``types``."""
    return ffi.cast(types[kind], value)


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
    message = readable(text(lib.sm120_last_error())) or text(lib.sm120_status_string(status))
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
    struct = new(f"{name} *")
    struct.size = ffi.sizeof(types[name])
    return struct


def version() -> str:
    """Return the version of the library."""
    return text(lib.sm120_version_string())


def device_count(kind: str) -> int:
    """Return how many devices of a kind, "cuda" or "virtual", there are."""
    count = new("int32_t *")
    check(lib.sm120_device_count(kind.encode(), count))
    return int(count[0])
