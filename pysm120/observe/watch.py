"""Watch the virtual SM120 execute a kernel, instruction by instruction."""

import contextlib
import dataclasses
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pysm120.runtime.arrays import Array
from pysm120.runtime.context import Context
from pysm120.runtime.errors import FaultError, InvalidArgumentError, UnsupportedError
from pysm120.runtime.ffi import cast, check, ffi, lib, new, new_struct, text, types
from pysm120.runtime.module import Kernel

WARP = 32
MOST_BYTES = 64
_WIDE = 16
_GUARD = re.compile(r"@\s*!?\s*\S+\s+")

# The dtype of a register's bits, by its declared type.
DTYPES: dict[str, np.dtype[Any]] = {
    "pred": np.dtype(np.bool_),
    **{f"{c}{8 * n}": np.dtype(f"{k}{n}") for c, k in (("b", "u"), ("u", "u"), ("s", "i")) for n in (1, 2, 4, 8)},
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
BYTES = {"b128": _WIDE, "f16x2": 4, "bf16x2": 4, "tf32": 4, "f32x2": 8} | {k: v.itemsize for k, v in DTYPES.items()}


def place_of(file: str, line: int, origin: str) -> str:
    """Return FILE:LINE as faults write it, of inlined code with the line of the kernel that called it."""
    return f"{file}:{line}" + (f", inlined at {origin}" if origin else "")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """The source of an instruction.

    ``line`` is a line of ``file``, which ``#line`` markers name ("<ptx>" without them). ``text_line`` is the line of
    the PTX text itself. ``text`` is the statement with its guard, without the semicolon; white space and comments in it
    are single blanks. ``origin`` is the line of the kernel that called inlined code, "sum.cu:24", and else "".
    """

    file: str
    line: int
    text: str
    text_line: int
    origin: str = ""

    @property
    def opcode(self) -> str:
        """The opcode with its modifiers, such as "ld.global.f32"."""
        return _GUARD.sub("", self.text).partition(" ")[0]

    @property
    def place(self) -> str:
        """FILE:LINE, of inlined code also the line that called it."""
        return place_of(self.file, self.line, self.origin)


@dataclasses.dataclass(frozen=True)
class Register:
    """A register in all lanes of a warp.

    ``bits`` are its bits by lane, and ``high`` the upper 64 bits of a .b128. ``lanes`` is the set of lanes that have
    written it since the CTA began.
    """

    name: str
    type: str
    is_write: bool
    lanes: int
    bits: npt.NDArray[np.uint64]
    high: npt.NDArray[np.uint64]

    @cached_property
    def values(self) -> npt.NDArray[Any]:
        """The values by lane in the declared type; unsigned integers if NumPy lacks the type."""
        return as_type(self.bits, self.type)


@dataclasses.dataclass(frozen=True)
class Lanes:
    """Lanes of a warp that are at one instruction; no lanes if the warp has exited."""

    warp: int
    lanes: int
    is_here: bool
    waits_for: str
    next: Instruction


@dataclasses.dataclass(frozen=True)
class Step:
    """An instruction that a warp executes.

    Attributes
    ----------
    entry, function : str
        The kernel, and the function that the warp is in; "" for the kernel itself.
    cta, warp, active, mask : ints
        ``active`` is the set of lanes at the instruction, ``mask`` the active
        lanes whose guard is true: these execute it.
    guard : str
        "%p1", "!%p1", or "" without a guard.
    index : int
        Index of the instruction in ``instructions(kernel)``.
    is_asynchronous : bool
        True: a copy lands, and ``instruction`` is the one that issued it.
    reads, writes : tuple of Register
        Its source registers, and its destination registers.
    variables : dict of str to int
        The addresses of variables that the instruction names in brackets.

    """

    entry: str
    function: str
    cta: tuple[int, int, int]
    warp: int
    active: int
    mask: int
    guard: str
    index: int
    is_asynchronous: bool
    instruction: Instruction
    reads: tuple[Register, ...]
    writes: tuple[Register, ...]
    variables: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Stop:
    """The state at which ``break_at`` stopped a launch.

    Attributes
    ----------
    step : Step
        The instruction that would have been executed next.
    registers : tuple of Register
        The registers of the function that some lane has written.
    lanes : tuple of Lanes
        The instructions at which the lanes of the CTA are.
    shared : bytes
        The requested window of shared memory.

    """

    step: Step
    registers: tuple[Register, ...]
    lanes: tuple[Lanes, ...]
    shared: bytes


def as_type(bits: npt.NDArray[np.uint64], kind: str) -> npt.NDArray[Any]:
    """Return bits as values of a PTX type."""
    dtype = DTYPES.get(kind)
    if dtype is None:
        return bits
    if kind == "pred":
        return bits.astype(np.bool_)
    return bits.astype(f"u{dtype.itemsize}").view(dtype)


def lanes_of(mask: int) -> list[int]:
    """Return the lanes of a set."""
    return [lane for lane in range(WARP) if mask >> lane & 1]


# ---- queries of the C library ---------------------------------------------------


def _clean(source: str) -> str:
    """Return a statement without comments and superfluous white space."""
    parts = []
    while source:
        code, mark, rest = source.partition("/*")
        line, slashes, tail = source.partition("//")
        if slashes and len(line) < len(code):
            parts.append(line)
            source = tail.partition("\n")[2]
        else:
            parts.append(code)
            source = rest.partition("*/")[2] if mark else ""
    return " ".join(" ".join(parts).split())


def origin_of(raw: Any) -> str:
    """Return FILE:LINE of the line of the kernel that called inlined code, as a struct of C has it, else ""."""
    return f"{text(raw.from_file)}:{raw.from_line}" if raw.from_line else ""


def _instruction(raw: Any) -> Instruction:
    source = ffi.buffer(raw.text, raw.text_bytes)[:].decode("utf-8", "replace")
    statement = "ret" if source == "}" else _clean(source)
    return Instruction(text(raw.file), raw.line, statement, raw.text_line, origin_of(raw))


def _register(raw: Any) -> Register:
    bits, high = (np.frombuffer(ffi.buffer(x), np.uint64).copy() for x in (raw.value, raw.high))
    return Register(text(raw.name), text(raw.type), bool(raw.is_write), raw.lanes, bits, high)


def _listed(name: str, ask: Callable[[int, Any], int], make: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield items 0, 1, ... until the library has no more."""
    raw = new_struct(name)
    for index in range(1 << 30):
        status = ask(index, raw)
        if status == lib.SM120_UNSUPPORTED:
            return
        check(status)
        yield make(raw)


def step_of(pointer: Any) -> Step:
    """Return the step that a callback was called with."""
    raw = new_struct("sm120_step_info")
    check(lib.sm120_step_query(pointer, raw))
    registers = tuple(
        _listed(
            "sm120_register_info",
            lambda index, into: lib.sm120_step_register(pointer, lib.SM120_OF_INSTRUCTION, index, into),
            _register,
        )
    )
    variables = _listed(
        "sm120_variable_info",
        lambda index, into: lib.sm120_step_variable(pointer, index, into),
        lambda raw: (text(raw.name), int(raw.address)),
    )
    return Step(
        entry=text(raw.entry),
        function=text(raw.function),
        cta=tuple(raw.cta),
        warp=raw.warp,
        active=raw.active,
        mask=raw.mask,
        guard=("!" if raw.is_guard_negated else "") + text(raw.guard),
        index=raw.index,
        is_asynchronous=bool(raw.is_asynchronous),
        instruction=_instruction(raw.instruction),
        reads=tuple(r for r in registers if not r.is_write),
        writes=tuple(r for r in registers if r.is_write),
        variables=dict(variables),
    )


def _stop(pointer: Any, window: tuple[int, int] | None) -> Stop:
    registers = _listed(
        "sm120_register_info",
        lambda index, into: lib.sm120_step_register(pointer, lib.SM120_OF_FUNCTION, index, into),
        _register,
    )
    lanes = _listed(
        "sm120_lanes_info",
        lambda index, into: lib.sm120_step_lanes(pointer, index, into),
        lambda raw: Lanes(raw.warp, raw.lanes, bool(raw.is_step), text(raw.waits_for), _instruction(raw.instruction)),
    )
    shared = b""
    if window is not None:
        held = new("char[]", max(1, window[1]))
        check(lib.sm120_step_shared(pointer, window[0], held, window[1]))
        shared = ffi.buffer(held, window[1])[:]
    return Stop(step_of(pointer), tuple(r for r in registers if r.lanes), tuple(lanes), shared)


def instructions(kernel: Kernel) -> list[Instruction]:
    """Return the instructions of a kernel and of its functions; empty on a GPU."""
    pointer = kernel.open_pointer()
    return list(
        _listed(
            "sm120_instruction_info",
            lambda index, into: lib.sm120_kernel_instruction(pointer, index, into),
            _instruction,
        )
    )


# ---- watching -------------------------------------------------------------------


class _Watcher:
    """The watcher of a device."""

    def __init__(self, device: Context, see: Callable[[Any], bool]) -> None:
        self.device = device
        self.see = see
        self.ended = False
        self.failure: BaseException | None = None
        self.number = next(_numbers)

    def look(self, pointer: Any) -> int:
        """Call the watcher with a step; 1 ends the launch."""
        self.device.looker = threading.get_ident()
        try:
            self.ended = bool(self.see(pointer))
        except BaseException as failure:  # noqa: BLE001 - raised again when the launch returns
            self.failure = failure
            return 1
        finally:
            self.device.looker = 0
        return int(self.ended)


# A launch of another thread may outlive the with block, so its callback and strings must stay alive.
_numbers = itertools.count(1)
_watchers: dict[int, _Watcher] = {}
_names: dict[str, Any] = {}


@ffi.callback(dict(types["sm120_watch"].fields)["see"].type)  # type: ignore[untyped-decorator]
def _look(context: Any, pointer: Any) -> int:
    watcher = _watchers.get(int(cast("uintptr_t", context)))
    return watcher.look(pointer) if watcher is not None else 0


@contextlib.contextmanager
def watching(
    device: Context,
    see: Callable[[Any], bool],
    *,
    moment: int,
    cta: tuple[int, ...] | None = None,
    warp: int | None = None,
    file: str | None = None,
    lines: tuple[int, int] = (0, 0),
    memory: tuple[Array, int, int] | None = None,
) -> Iterator[None]:
    """Call ``see`` with each matching step, in the launches of the block; if it returns True, the launch ends."""
    if not device.is_virtual:
        message = f"{device} cannot be watched; only the virtual device can"
        raise UnsupportedError(message)
    raw = new_struct("sm120_watch")
    raw.moment = moment
    for k in range(3):
        raw.cta[k] = _coordinate(cta[k] if k < len(cta) else 0, "cta") if cta is not None else -1
    raw.warp = _coordinate(warp, "warp") if warp is not None else -1
    if file is not None:
        raw.file = _names.setdefault(file, new("char[]", file.encode()))
    raw.first_line, raw.last_line = lines
    if memory is not None:
        raw.address, raw.bytes = _range(*memory)
    watcher = _Watcher(device, see)
    raw.see = _look
    raw.context = cast("void *", watcher.number)
    pointer = device.handle.pointer
    if any(other.device is device for other in list(_watchers.values())):
        message = f"{device} is watched already; a device has one watcher at a time"
        raise InvalidArgumentError(message)
    check(lib.sm120_device_watch(pointer, raw))
    _watchers[watcher.number] = watcher
    try:
        yield
    except FaultError:
        if watcher.failure is not None:
            raise watcher.failure from None
        if not watcher.ended:
            raise
    finally:
        del _watchers[watcher.number]
        if not device.closed:
            check(lib.sm120_device_watch(pointer, ffi.NULL))


def _range(array: Array, offset: int, nbytes: int) -> tuple[int, int]:
    """Return address and number of the bytes to watch, after checking that they can be watched."""
    if not 0 < nbytes <= MOST_BYTES or not 0 <= offset <= array.nbytes - nbytes:
        message = f"offset is {offset} and nbytes {nbytes}, not 1 to {MOST_BYTES} bytes of {array.nbytes} in array"
        raise InvalidArgumentError(message)
    return array.address + offset, nbytes


def _coordinate(value: int, name: str) -> int:
    """Return a value as the number of a CTA or a warp."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        message = f"{name} is {value!r}, not a number from 0 to 2^31 - 1"
        raise InvalidArgumentError(message)
    return value


def _lines(line: int | None, last: int | None = None) -> tuple[int, int]:
    """Return a range of lines in the form of the C library."""
    if line is None:
        return 0, 0
    end = line if last is None else last
    if not 0 < line <= end < 1 << 32:
        message = f"lines are {line} to {end}, not two ascending numbers of at least 1"
        raise InvalidArgumentError(message)
    return line, end


class Trace:
    """The result of ``Device.trace``: a list of steps, and whether it was cut."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.is_cut = False

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)


@contextlib.contextmanager
def trace(
    device: Context,
    *,
    cta: tuple[int, ...] | None,
    warp: int | None,
    file: str | None,
    lines: tuple[int, int] | None,
    limit: int | None,
    see: Callable[[Step], object] | None,
    keep: bool,
) -> Iterator[Trace]:
    """See ``Device.trace``."""
    found = Trace()

    def look(pointer: Any) -> bool:
        if limit is not None and len(found.steps) >= limit:
            found.is_cut = True
            return True
        step = step_of(pointer)
        if keep:
            found.steps.append(step)
        return see is not None and see(step) is True

    with watching(
        device, look, moment=lib.SM120_AFTER, cta=cta, warp=warp, file=file, lines=_lines(*lines) if lines else (0, 0)
    ):
        yield found


class Break:
    """The result of ``Device.break_at``; ``stop`` is None if the line was not reached (often enough)."""

    def __init__(self) -> None:
        self.stop: Stop | None = None
        self.hits = 0


@contextlib.contextmanager
def break_at(
    device: Context,
    line: int,
    *,
    file: str | None,
    cta: tuple[int, ...] | None,
    warp: int | None,
    hits: int,
    shared: tuple[int, int] | None,
) -> Iterator[Break]:
    """See ``Device.break_at``."""
    found = Break()
    if hits < 1:
        message = f"hits is {hits}, not a number of at least 1"
        raise InvalidArgumentError(message)
    if shared is not None and not (0 <= shared[0] < 1 << 32 and 0 <= shared[1] < 1 << 32):
        message = f"shared is {shared}, not an address and a number of bytes"
        raise InvalidArgumentError(message)

    def look(pointer: Any) -> bool:
        found.hits += 1
        if found.hits < hits:
            return False
        found.stop = _stop(pointer, shared)
        return True

    with watching(device, look, moment=lib.SM120_BEFORE, cta=cta, warp=warp, file=file, lines=_lines(line)):
        yield found


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of memory: the step that made it, and the bytes after it."""

    step: Step
    value: bytes


@contextlib.contextmanager
def changes(device: Context, array: Array, offset: int, nbytes: int) -> Iterator[list[Change]]:
    """See ``Device.changes``."""
    found: list[Change] = []
    held = new("char[]", nbytes)

    def look(pointer: Any) -> bool:
        check(lib.sm120_copy_to_host(device.handle.pointer, held, array.address + offset, nbytes, ffi.NULL))
        found.append(Change(step_of(pointer), ffi.buffer(held, nbytes)[:]))
        return False

    with watching(device, look, moment=lib.SM120_AFTER, memory=(array, offset, nbytes)):
        yield found
