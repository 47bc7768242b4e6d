"""A device that runs kernels of the library twice: their PTX, and their machine code.

driver.c is its CUDA driver, so the library loads cubins and launches them as on a GPU. It must be opened before the
process asks for another CUDA driver.
"""

import ctypes
import dataclasses
import gc
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pysm120.machine_code import sass
from pysm120.machine_code.cubin import Cubin
from pysm120.machine_code.execute.kernel import as_ptx
from pysm120.runtime.module import builtin_image, builtin_index

TARGET = "sm_120f"
OTHER_SEEDS = 3  # driver.c has it too
# What another order of additions may change in an allocation: so many times the largest difference that other seeds
# make, or so much of its largest f32.
MORE, ROUNDING = 16.0, 2.0**-18
Bytes = NDArray[np.uint8]


# ---- the texts ---------------------------------------------------------------------


def image_of(entry: str, form: str) -> bytes:
    """Return the PTX or the cubin of a kernel of the library."""
    index = builtin_index(entry)
    assert index is not None, entry
    return builtin_image(index, TARGET, form)


def functions_of(entries: Iterable[str]) -> dict[str, sass.Function]:
    """Return the machine code of kernels of the library."""
    return sass.disassemble_all({entry: image_of(entry, "cubin") for entry in entries})


def write_texts(folder: Path, entries: Iterable[str]) -> None:
    """Write the machine code of kernels as PTX: a file for each."""
    for entry, function in functions_of(entries).items():
        (folder / f"{entry}.ptx").write_text(as_ptx(function, image_of(entry, "cubin")))


# ---- launches ----------------------------------------------------------------------


class Launch(NamedTuple):
    """What came of a launch: bytes that the PTX changed, bytes that differ, the fault of the machine code or "".

    ``rounded`` counts f32 that differ no more than another order of additions explains, in kernels that add to global
    memory in any order. They are not among ``different``.
    """

    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    changed: int
    different: int
    rounded: int
    fault: str

    @property
    def is_right(self) -> bool:
        """Whether the machine code wrote what the PTX wrote."""
        return not self.different and not self.fault


@dataclasses.dataclass
class Total:
    """The launches of a kernel: their number, bytes that the PTX changed, f32 that differ in rounding."""

    launches: int = 0
    changed: int = 0
    rounded: int = 0

    def add(self, launch: Launch) -> None:
        """Count a launch."""
        self.launches += 1
        self.changed += launch.changed
        self.rounded += launch.rounded


# ---- the driver --------------------------------------------------------------------


class _Texts(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_char_p),
        ("ptx", ctypes.c_char_p),
        ("machine", ctypes.c_char_p),
        ("in_any_order", ctypes.c_int),
    )


class _Region(ctypes.Structure):
    _fields_ = (
        ("now", ctypes.c_void_p),
        ("wanted", ctypes.c_void_p),
        ("before", ctypes.c_void_p),
        ("again", ctypes.c_void_p * OTHER_SEEDS),
        ("bytes", ctypes.c_size_t),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("regions", ctypes.POINTER(_Region)),
        ("count", ctypes.c_size_t),
        ("fault", ctypes.c_char_p),
    )


_FIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Texts))
_REPORT = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Launch))


class Machine:
    """The driver of this process, and the launches that it has made.

    ``texts`` says what a kernel's machine code is, as PTX. Kernels that it lacks run as PTX alone.
    """

    def __init__(self, library: Path, folder: Path) -> None:
        self.folder = folder
        self.texts: dict[str, str] = {}
        self._launches: list[Launch] = []
        self._errors: list[str] = []
        self._kept: list[bytes] = []
        self._find, self._report = _FIND(self._find_texts), _REPORT(self._launched)
        self._driver = ctypes.CDLL(str(library))
        self._driver.machine_open(self._find, self._report)

    def take(self) -> tuple[list[Launch], list[str]]:
        """Return the launches and the errors since the last call."""
        found = self._launches, self._errors
        self._launches, self._errors = [], []
        return found

    def _text(self, entry: str) -> str:
        path = self.folder / f"{entry}.ptx"
        return self.texts[entry] if entry in self.texts else path.read_text() if path.exists() else ""

    def _find_texts(self, image: int, texts: "ctypes._Pointer[_Texts]") -> int:
        try:
            entry = Cubin(image_at(image)).entries[0].name
            text, found = self._text(entry), texts.contents
            self._kept = [entry.encode(), image_of(entry, "ptx"), text.encode()]
            found.entry, found.ptx, machine = self._kept
            found.machine = machine or None
            found.in_any_order = "red.relaxed.gpu.global.add." in text and ".f32 [" in text
        except BaseException as error:  # noqa: BLE001 - it must not pass through C
            self._errors.append(str(error))
            return 0
        return 1

    def _launched(self, launch: "ctypes._Pointer[_Launch]") -> None:
        is_collecting = gc.isenabled()
        gc.disable()  # which might free an array that is compared
        try:
            self._launches.append(_compare(launch.contents))
        except BaseException as error:  # noqa: BLE001 - it must not pass through C
            self._errors.append(str(error))
        finally:
            if is_collecting:
                gc.enable()


def image_at(address: int) -> bytes:
    """Return the cubin at an address."""
    header = ctypes.string_at(address, 64)
    programs, sections = struct.unpack_from("<QQ", header, 32)
    program_bytes, program_count, section_bytes, section_count = struct.unpack_from("<HHHH", header, 54)
    size = max(sections + section_bytes * section_count, programs + program_bytes * program_count)
    return ctypes.string_at(address, size)


# ---- comparison --------------------------------------------------------------------


def _bytes(address: int, count: int) -> Bytes:
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), (count,))


def _numbers(memory: Bytes, places: NDArray[np.bool_]) -> NDArray[np.float64]:
    return memory[: memory.size // 4 * 4].view(np.float32)[places].astype(np.float64)


def _rounded(region: _Region, now: Bytes, wanted: Bytes, before: Bytes) -> int:
    """Count the f32 that differ, if they differ as they do with another order of additions; else return 0."""
    words = now.size // 4 * 4
    places = now[:words].view(np.uint32) != wanted[:words].view(np.uint32)
    is_new = before[:words].view(np.uint32) != wanted[:words].view(np.uint32)
    if not region.again[0] or (places & ~is_new).any() or (now[words:] != wanted[words:]).any():
        return 0
    right = _numbers(wanted, is_new)
    again = [_numbers(_bytes(at, now.size), is_new) for at in region.again]
    with np.errstate(invalid="ignore"):
        spread = max(float(np.max(np.abs(one - right), where=np.isfinite(one - right), initial=0.0)) for one in again)
        largest = float(np.max(np.abs(right), where=np.isfinite(right), initial=0.0))
        apart = np.abs(_numbers(now, places) - _numbers(wanted, places))
    return int(places.sum()) if (apart <= max(MORE * spread, ROUNDING * largest)).all() else 0


def _compare(launch: _Launch) -> Launch:
    entry, changed, different, rounded = launch.entry.decode(), 0, 0, 0
    for region in launch.regions[: launch.count]:
        if not region.bytes:
            continue
        now, wanted, before = (_bytes(at, region.bytes) for at in (region.now, region.wanted, region.before))
        changed += int(np.count_nonzero(wanted != before))
        others = int(np.count_nonzero(now != wanted))
        near = _rounded(region, now, wanted, before) if others else 0
        rounded += near
        different += 0 if near else others
    fault = (launch.fault or b"").decode()
    return Launch(entry, tuple(launch.grid), tuple(launch.block), changed, different, rounded, fault)
