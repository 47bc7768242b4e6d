"""Modules of kernels, and launches."""

import ctypes
import dataclasses
import operator
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from pysm120.runtime import tensor_map
from pysm120.runtime.arrays import Allocation, Array, pinned_address
from pysm120.runtime.context import Context, Handle, Resource
from pysm120.runtime.errors import ClosedError, FaultError, InvalidArgumentError, InvalidProgramError, require_type
from pysm120.runtime.ffi import cast, check, check_running, ffi, lib, new, new_struct, text
from pysm120.runtime.names import demangled, readable
from pysm120.runtime.tensor_map import TensorMap

_ADDRESS_BYTES = 8
_GRID_DIMENSIONS = 3
_SHOWN = 12  # most entries that a message lists
# numpy.dtype.isbuiltin of types that other libraries have registered
_USER_TYPE = 2


@dataclasses.dataclass(frozen=True)
class KernelInfo:
    """The resources of a kernel. ``registers`` is 0 for PTX on the virtual device, which allocates no registers."""

    entry: str
    registers: int
    static_shared_bytes: int
    local_bytes: int
    max_threads: int
    parameters: int


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    ``type`` ("u64", "f32", "b8[128]") and ``name`` are "" if only the size is
    known (in a cubin).
    """

    name: str
    type: str
    offset: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Builtin:
    """A kernel inside the library: its launch, and the record in its template.

    Fields that the record lacks are 0, "" or False. ``src/sm120.h`` says what the fields mean.
    """

    entry: str
    source: str
    threads: int
    shared_bytes: int
    operation: str = ""
    precision: str = ""
    dtype: str = ""
    layout: str = ""
    config: str = ""
    features: bool = False
    element_bytes: int = 0
    head_dim: int = 0
    q_rows: int = 0
    kv_rows: int = 0
    stages: int = 0
    group_heads: int = 0
    group_rows: int = 0
    rows: int = 0
    columns: int = 0
    q_warp_rows: int = 0
    ordered: bool = False
    key_groups: int = 1


class Module(Resource, Mapping[str, "Kernel"]):
    """Kernels by their entry names, or by a part that only one name has. Made by ``Device.load``.

    The entries of a cubin are not listed: it can be indexed, but iterating over
    it yields nothing.
    """

    ended = "unloaded"

    def __init__(self, device: Context, image: bytes, name: str, *, strict: bool = False) -> None:
        handle = device.handle
        pointer = new("sm120_module **")
        data = ffi.from_buffer(image)
        label = name.replace("\0", "?").encode()
        check(lib.sm120_module_load(handle.pointer, data, len(image), label, pointer))
        self._pointer = pointer[0]
        self._name = name
        self._source = None if b"\0" in image[:-1] else image.decode("utf-8", "replace")
        self._kernels: dict[str, Kernel] = {}
        super().__init__(device, "module", partial(_unload, handle, self._pointer))
        self._entries = self._list()
        if strict:
            self._require_all()

    def _require_all(self) -> None:
        """Unload the module and raise InvalidProgramError if an entry cannot run; the message has all reasons."""
        reasons = [reason for entry in self._entries if (reason := self._refusal(entry))]
        if reasons:
            self.unload()
            raise InvalidProgramError("\n".join(reasons))

    def _refusal(self, entry: str) -> str:
        """Return why an entry cannot run, or ""."""
        try:
            self[entry]
        except InvalidProgramError as error:
            return str(error)
        return ""

    def _list(self) -> tuple[str, ...]:
        """Return the entries."""
        names = []
        entry = new("char const **")
        for index in range(1 << 20):
            status = lib.sm120_module_entry(self._pointer, index, entry)
            if status == lib.SM120_UNSUPPORTED:
                break
            check(status)
            names.append(text(entry[0]))
        return tuple(names)

    def __getitem__(self, entry: str) -> "Kernel":
        self.ensure_open()
        require_type(entry, str, "entry", "a str")
        held = self._kernels.get(entry)
        if held is not None:
            return held
        if self._entries and entry not in self._entries:
            return self[self._only_entry_with(entry)]
        pointer = new("sm120_kernel **")
        status = lib.sm120_module_kernel(self._pointer, entry.encode(), pointer)
        if status == lib.SM120_INVALID_ARGUMENT:
            raise KeyError(text(lib.sm120_last_error()))
        check(status)
        kernel = Kernel(self.device, pointer[0], self)
        self._kernels[entry] = kernel
        return kernel

    def _only_entry_with(self, part: str) -> str:
        """Return the entry whose name has this part, as C++ mangles it or as the source writes it."""
        found = [entry for entry in self._entries if part and (part in entry or part in demangled(entry))]
        if len(found) == 1:
            return found[0]
        listed = found or self._entries
        shown = ", ".join(map(demangled, listed[:_SHOWN])) + (", ..." if len(listed) > _SHOWN else "")
        message = (
            f"{self._name} has {len(found)} entries with {part!r} in their names: {shown}"
            if found
            else f"{self._name} has no entry {part!r}; it has {shown}"
        )
        raise KeyError(message)

    def __contains__(self, entry: object) -> bool:
        return entry in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        state = ", unloaded" if self.closed else ""
        return f"<Module {self._name} of {self.device}: {list(map(demangled, self._entries))}{state}>"

    def variables(self) -> dict[str, Array]:
        """Return the ``.global`` and ``.const`` variables; empty for a cubin and on a GPU.

        They are arrays of one dimension, of bytes if NumPy lacks the type. If
        several functions have a variable of one name, "@" and a number are
        appended from the second one on.
        """
        self.ensure_open()
        found = {}
        raw = new_struct("sm120_variable_info")
        for index in range(1 << 20):
            status = lib.sm120_module_variable(self._pointer, index, raw)
            if status == lib.SM120_UNSUPPORTED:
                break
            check(status)
            owner = Allocation(self.device, raw.address, raw.bytes, self._keep)
            dtype = _variable_type(text(raw.type))
            name = text(raw.name)
            found[f"{name}@{index}" if name in found else name] = Array(
                owner, raw.address, (raw.bytes // dtype.itemsize,), (1,), dtype
            )
        return found

    def _keep(self) -> None:
        """Do nothing: a holder of this bound method keeps the module alive."""

    def explain(self, fault: FaultError) -> None:
        """Attach the PTX text of the module to a fault."""
        fault.source = self._source

    def unload(self) -> None:
        """Unload the module and its kernels; a second call does nothing."""
        self.close()


def _variable_type(name: str) -> np.dtype[Any]:
    """Return the dtype of a declared element type: "u32", "f16", "b8"."""
    match = _SCALAR_TYPE.match(name)
    if match is None:
        return np.dtype(np.uint8)
    kind = {"s": "i", "f": "f"}.get(match[1], "u")
    return np.dtype(f"{kind}{int(match[2]) // 8}")


def _unload(_handle: Handle, module: Any) -> None:
    lib.sm120_module_unload(module)


class Kernel:
    """An entry of a module: ``module["name"]``.

    Calling it launches the kernel in stream order.
    """

    def __init__(self, device: Context, pointer: Any, module: Module | None = None) -> None:
        self.device = device
        self._pointer = pointer
        self._module = module
        self._info = _kernel_info(pointer)
        self._parameters = tuple(_parameter(pointer, index) for index in range(self._info.parameters))
        self._packers = tuple(_packer(p) for p in self._parameters)
        self._layout = struct.Struct("=" + "".join(_slot(p.bytes) for p in self._parameters))
        self._sizes = new("size_t[]", [p.bytes for p in self._parameters] or [0])
        starts, at = [], 0
        for parameter in self._parameters:
            starts.append(at)
            at += -(-parameter.bytes // 8) * 8
        self._starts = starts

    @property
    def info(self) -> KernelInfo:
        """The resources of the kernel."""
        return self._info

    @property
    def module(self) -> Module | None:
        """The module of the kernel; None for a kernel of the library."""
        return self._module

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters, in order."""
        return self._parameters

    def open_pointer(self) -> Any:
        """Return the C kernel; ClosedError if its module is gone."""
        if self._module is not None:
            self._module.ensure_open()
        elif self.device.closed:
            message = f"the device of kernel {demangled(self._info.entry)} is closed"
            raise ClosedError(message)
        return self._pointer

    def occupancy(self, threads: int, shared: int = 0) -> int:
        """Return how many CTAs of ``threads`` threads fit on a multiprocessor.

        ``shared`` is the dynamic shared memory of a CTA in bytes.
        """
        pointer = self.open_pointer()
        count = new("int32_t *")
        _unsigned(threads, "threads")
        _unsigned(shared, "shared")
        check(lib.sm120_kernel_occupancy(pointer, threads, shared, count))
        return int(count[0])

    def __call__(
        self,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        *args: Any,
        shared: int = 0,
        stream: Any = None,
        cooperative: bool = False,
    ) -> None:
        """Launch the kernel.

        Parameters
        ----------
        grid, block : int or tuple of up to three ints
            CTAs, and threads of a CTA, along x, y, z.
        *args
            One per parameter: an Array or an ndarray of ``Device.pinned`` for
            an address; a NumPy scalar of the parameter's size and kind; bytes,
            np.void or a ctypes structure for an array of bytes; a TensorMap
            for an array of 128 bytes.
        shared : int
            Dynamic shared memory of a CTA in bytes.
        stream : stream, optional
            Default: the default stream.
        cooperative : bool
            All CTAs are resident at once and may wait for one another, as
            ``grid.sync()`` of cooperative groups needs.

        Raises
        ------
        TypeError
            Too few or too many arguments, or one of the wrong type.
        InvalidArgumentError, UnsupportedError
            A launch that the device cannot do, such as a cooperative launch of
            more CTAs than fit at once.
        FaultError
            The kernel did something wrong. On a GPU a later call may raise
            this.

        """
        pointer = self.open_pointer()
        device = self.device
        if len(args) != len(self._packers):
            raise TypeError(self._count_message(len(args)))
        queue = device.stream_handle(stream)
        number = int(cast("uintptr_t", queue))
        values = [
            pack(value, index, self, number)
            for index, (pack, value) in enumerate(zip(self._packers, args, strict=True))
        ]
        storage = new("char[]", max(1, self._layout.size))
        self._layout.pack_into(ffi.buffer(storage), 0, *values)
        pointers = new("void *[]", [storage + at for at in self._starts] or 1)
        launch = lib.sm120_launch_cooperative if cooperative else lib.sm120_launch
        shape = _triple(grid, "grid"), _triple(block, "block"), _unsigned(shared, "shared")
        try:
            check_running(
                device.handle.pointer,
                lambda: launch(pointer, *shape, queue, pointers, self._sizes, len(args)),
                is_virtual=device.is_virtual,
            )
        except FaultError as fault:
            if self._module is not None:
                self._module.explain(fault)
            raise

    def _count_message(self, count: int) -> str:
        """Return the message about a missing or an additional argument."""
        wanted = len(self._parameters)
        text = f"{demangled(self._info.entry)} takes {wanted} arguments, {count} were given"
        if count < wanted:
            return f"{text}: {self.describe(count)} is missing"
        return f"{text}: the last {count - wanted} are too many"

    def describe(self, index: int) -> str:
        """Return the name of a parameter in messages."""
        parameter = self._parameters[index]
        kind = f".{parameter.type}" if parameter.type else f"{parameter.bytes} bytes"
        name = f" {readable(parameter.name)}" if parameter.name else ""
        return f"parameter {index}{name} ({kind})"

    def by_name(self, values: Mapping[str, Any]) -> list[Any]:
        """Return the arguments in order, from values by parameter name without "param_".

        Values without a parameter are ignored.
        """
        names = [parameter.name.removeprefix("param_") for parameter in self._parameters]
        missing = [index for index, name in enumerate(names) if name not in values]
        if missing:
            message = f"{demangled(self._info.entry)}: no value was given for {self.describe(missing[0])}"
            raise InvalidArgumentError(message)
        return [values[name] for name in names]

    def __repr__(self) -> str:
        kinds = ", ".join(p.type or f"{p.bytes} bytes" for p in self._parameters)
        name = demangled(self._info.entry)  # of C++ it ends with the types of its parameters
        return f"<Kernel {name if name != self._info.entry else f'{name}({kinds})'} of {self.device}>"


def _kernel_info(pointer: Any) -> KernelInfo:
    """Ask the library for the resources of a kernel."""
    raw = new_struct("sm120_kernel_info")
    check(lib.sm120_kernel_query(pointer, raw))
    return KernelInfo(
        entry=text(raw.entry),
        registers=raw.registers,
        static_shared_bytes=raw.static_shared_bytes,
        local_bytes=raw.local_bytes,
        max_threads=raw.max_threads,
        parameters=raw.parameters,
    )


def _parameter(pointer: Any, index: int) -> Parameter:
    """Ask the library for a parameter."""
    raw = new_struct("sm120_parameter_info")
    check(lib.sm120_kernel_parameter(pointer, index, raw))
    return Parameter(text(raw.name), text(raw.type), raw.offset, raw.bytes)


# ---- arguments ------------------------------------------------------------------

_Packer = Callable[[Any, int, Kernel, int], Any]
_SCALAR_TYPE = re.compile(r"^([usfb])(8|16|32|64)$")
_KINDS = {"u": "iu", "s": "iu", "f": "f", "b": "iufb"}
_EXAMPLES = {
    ("i", 1): "np.uint8(3)",
    ("i", 2): "np.uint16(3)",
    ("i", 4): "np.uint32(3)",
    ("i", 8): "np.uint64(3)",
    ("f", 2): "np.float16(3)",
    ("f", 4): "np.float32(3)",
    ("f", 8): "np.float64(3)",
}


def _slot(nbytes: int) -> str:
    """Return the format of a value, padded to the next multiple of 8."""
    return f"{nbytes}s{-nbytes % 8}x"


def _packer(parameter: Parameter) -> _Packer:
    """Return the function that turns an argument into the parameter's bytes."""
    match = _SCALAR_TYPE.match(parameter.type)
    if match:
        kinds, takes_address = _KINDS[match[1]], match[1] != "f"
    elif parameter.type in {"f16x2", "b128"} or not parameter.type:
        kinds, takes_address = "iufbcV", not parameter.type
    else:
        kinds, takes_address = "", False
    takes_address = takes_address and parameter.bytes == _ADDRESS_BYTES
    return partial(_pack, parameter.bytes, kinds, takes_address)


def _pack(
    nbytes: int,
    kinds: str,
    takes_address: bool,  # noqa: FBT001
    value: Any,
    index: int,
    kernel: Kernel,
    stream: int,
) -> bytes:
    """Return the bytes of an argument; TypeError if its type is wrong."""
    if takes_address and isinstance(value, Array):
        address = value.address
        if not kernel.device.shares_memory_with(value.device):
            place = kernel.device.name_of(value.device)
            message = f"{kernel.describe(index)} is on {place}, but the kernel is on {kernel.device}"
            raise InvalidArgumentError(message)
        value.owner.stream = stream
        return address.to_bytes(8, "little")
    if takes_address and isinstance(value, np.ndarray):
        seen = pinned_address(kernel.device, value)
        if seen is not None:
            return seen.to_bytes(8, "little")
        message = f"{kernel.describe(index)} is an ndarray in ordinary host memory: use Device.array or Device.pinned"
        raise TypeError(message)
    if isinstance(value, TensorMap) and nbytes == tensor_map.NBYTES:
        return _pack_map(value, index, kernel, stream)
    if isinstance(value, np.void | bytes | bytearray | ctypes.Structure):
        raw = bytes(value) if not isinstance(value, np.void) else value.tobytes()
        if len(raw) == nbytes and (not kinds or "V" in kinds):
            return raw
    elif isinstance(value, np.generic) and value.itemsize == nbytes and _kind(value) in kinds:
        return value.tobytes()
    raise TypeError(_mismatch(value, index, kernel, nbytes, kinds, takes_address))


def _pack_map(value: TensorMap, index: int, kernel: Kernel, stream: int) -> bytes:
    """Return the bytes of a tensor map."""
    if not kernel.device.shares_memory_with(value.device):
        place = kernel.device.name_of(value.device)
        message = f"{kernel.describe(index)} is a tensor map of {place}, but the kernel is on {kernel.device}"
        raise InvalidArgumentError(message)
    value.array.owner.ensure_open()
    value.array.owner.stream = stream
    return bytes(value)


def _kind(value: np.generic) -> str:
    """Return the kind of a scalar: "f" also for the floats of ml_dtypes, whose own kind is "V"."""
    return "f" if value.dtype.isbuiltin == _USER_TYPE else value.dtype.kind


def _mismatch(
    value: Any,
    index: int,
    kernel: Kernel,
    nbytes: int,
    kinds: str,
    takes_address: bool,  # noqa: FBT001
) -> str:
    """Return the message about an argument of a wrong type."""
    given = type(value).__name__
    if isinstance(value, bytes | bytearray | np.void | ctypes.Structure):
        size = value.itemsize if isinstance(value, np.void) else len(bytes(value))
        given = f"{given} of {size} bytes"
    if isinstance(value, int | float) and not isinstance(value, np.generic):
        given = f"Python {given}, whose width would be a guess"
    wanted = []
    if takes_address:
        wanted.append("an Array")
    for kind in "if":
        example = _EXAMPLES.get((kind, nbytes))
        if kind in kinds and example:
            wanted.append(f"a NumPy scalar such as {example}")
    if not wanted or "V" in kinds:
        wanted.append("a TensorMap" if nbytes == tensor_map.NBYTES else f"{nbytes} bytes")
    return f"{kernel.describe(index)} is a {given}: give {' or '.join(wanted)}"


def _unsigned(value: Any, name: str) -> int:
    """Return a value as an unsigned number of 32 bits."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        message = f"{name} is {value!r}, not an int"
        raise TypeError(message)
    number = operator.index(value)
    if not 0 <= number < 1 << 32:
        message = f"{name} is {number}, not a number from 0 to 2^32 - 1"
        raise InvalidArgumentError(message)
    return number


def _triple(value: Any, name: str) -> list[int]:
    """Return the x, y and z of a grid or block."""
    parts = value if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(parts) <= _GRID_DIMENSIONS:
        message = f"{name} is {value!r}, not an int or up to three of them"
        raise InvalidArgumentError(message)
    numbers = [_unsigned(part, name) for part in parts]
    if 0 in numbers:
        message = f"{name} is {value!r}, but each dimension must be at least 1"
        raise InvalidArgumentError(message)
    return numbers + [1] * (_GRID_DIMENSIONS - len(numbers))


# ---- the kernels of the library -------------------------------------------------


_PRECISIONS = {
    0: "",
    lib.SM120_MXFP8: "mxfp8",
    lib.SM120_MXFP8_BF16: "mxfp8_bf16",
    lib.SM120_MXFP8_F16: "mxfp8_f16",
    lib.SM120_NVFP4: "nvfp4",
    lib.SM120_NVFP4_MXFP8: "nvfp4_mxfp8",
    lib.SM120_FP8: "fp8",
    lib.SM120_BF16: "bf16",
    lib.SM120_F16: "f16",
}
_DTYPES = {0: "", lib.SM120_F32: "f32", lib.SM120_F16: "f16", lib.SM120_BF16: "bf16", lib.SM120_E4M3: "e4m3"}
_WORDS = ("entry", "source", "operation", "layout", "config")
_SIZES = (
    "element_bytes",
    "head_dim",
    "q_rows",
    "kv_rows",
    "stages",
    "group_heads",
    "group_rows",
    "rows",
    "columns",
    "q_warp_rows",
    "key_groups",
)
_NUMBERS = ("threads", "shared_bytes", *_SIZES)


@cache
def builtins() -> tuple[Builtin, ...]:
    """Return the kernels inside the library."""
    found = []
    raw = new_struct("sm120_builtin_info")
    for index in range(1 << 20):
        status = lib.sm120_builtin(index, raw)
        if status == lib.SM120_UNSUPPORTED:
            break
        check(status)
        values: dict[str, Any] = {name: text(getattr(raw, name)) for name in _WORDS}
        values |= {name: getattr(raw, name) for name in _NUMBERS}
        precision, dtype = _PRECISIONS[raw.precision], _DTYPES[raw.dtype]
        found.append(
            Builtin(**values, precision=precision, dtype=dtype, features=bool(raw.features), ordered=bool(raw.ordered))
        )
    return tuple(found)


def find_builtin(entry: str) -> Builtin | None:
    """Return the kernel of the library with this entry, or None."""
    index = builtin_index(entry)
    return None if index is None else builtins()[index]


def builtin_index(entry: str) -> int | None:
    """Return the index of the kernel of the library with this entry, or None."""
    return _indices().get(entry)


@cache
def constants() -> dict[str, int]:
    """Return the numbers that kernels and their callers share, by name: "ATTENTION_FEATURE_LEFT"."""
    found = {}
    name, value = new("char const **"), new("int32_t *")
    for index in range(1 << 20):
        status = lib.sm120_builtin_constant(index, name, value)
        if status == lib.SM120_UNSUPPORTED:
            break
        check(status)
        found[text(name[0])] = int(value[0])
    return found


def builtin_kernels(device: Context) -> dict[str, Kernel]:
    """Return the kernels inside the library, loaded on a device."""
    kernels = {}
    for index, builtin in enumerate(builtins()):
        pointer = new("sm120_kernel **")
        check(lib.sm120_builtin_kernel(device.handle.pointer, index, pointer))
        kernels[builtin.entry] = Kernel(device, pointer[0])
    return kernels


def builtin_kernel(device: Context, entry: str) -> Kernel:
    """Return one kernel of the library, loaded on a device."""
    pointer = new("sm120_kernel **")
    check(lib.sm120_builtin_kernel(device.handle.pointer, _indices()[entry], pointer))
    return Kernel(device, pointer[0])


@cache
def _indices() -> dict[str, int]:
    return {builtin.entry: index for index, builtin in enumerate(builtins())}


def builtin_image(index: int, target: str, form: str) -> bytes:
    """Return the PTX or cubin of a kernel inside the library; it holds only this kernel.

    ``target`` is "sm_120f" or "sm_90", ``form`` "ptx" or "cubin".
    """
    image, size = new("void const **"), new("size_t *")
    check(lib.sm120_builtin_image(index, target.encode(), form.encode(), image, size))
    return bytes(ffi.buffer(image[0], size[0]))
