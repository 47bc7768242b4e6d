"""The command line that ``run``, ``profile``, ``trace`` and ``check`` share: a kernel, its launch and its arguments.

FILE --grid X[,Y,Z] --block X[,Y,Z] ARG..., one ARG for every parameter of the kernel.
"""

import argparse
import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pysm120.observe.argument import TYPES, Argument, parse_arguments
from pysm120.runtime.arrays import Array
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import Builtin, Kernel, Parameter, builtin_kernel, builtins
from pysm120.runtime.names import demangled

ADDRESS_BYTES = 8
ADDRESS_TYPES = ("u64", "s64", "b64", "")
DIMENSIONS = 3
# A complete command: one CTA of a kernel of the library.
EXAMPLE = (
    "quantize_mxfp8_f32_d --grid 1 f32[64,64]:normal e4m3[64,64] ue8m0[64,2] "
    "s64:0 s64:0 s64:256 u32:1 u32:64 u32:64 u32:1 u32:1 u32:0 f32:1"
)
ARGUMENTS_HELP = """\
ARG, one for every parameter of the kernel:
  u32:3  f32:0.5  s64:-1         a scalar: s8 u8 b8 ... s64 u64 b64, f16 bf16 f32 f64, e4m3 e5m2 e2m3 e3m2 e2m1 ue8m0
  f32[1024]  f16[4,128]:normal   an array in device memory, in C order, filled by normal, uniform (0 to 1), random
                                 (bytes), arange, zeros, ones, nan or a number; without one of these every byte is
                                 0xff (NaN), which shows what the kernel did not write
  s32[4]:1,2,3,4                an array of these numbers; in a structure the list has brackets: s32[4]:[1,2,3,4]
  q.npy  q.npy:bf16              the array of a file; with the type of its elements if NumPy has no name for it
  o.npy=f32[1024]  x.npy=x.npy   any array: after the run its contents are written to the file before the "="
  'struct(u32:3,f32[8]:zeros)'   a structure by value, laid out as in C: scalars, and the addresses of arrays
Quote brackets if your shell expands them. A parameter that is an array of bytes takes such an array by value."""


def add_arguments(parser: argparse.ArgumentParser, command: str, *, device: str | None = None) -> None:
    """Add the options of a kernel and its launch to a command's parser; the remaining words are its ARGs."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = f"python -m pysm120 {command} FILE --grid X[,Y,Z] --block X[,Y,Z] [OPTION ...] ARG ..."
    parser.epilog = f"{ARGUMENTS_HELP}\n\nexample: python -m pysm120 {command} {EXAMPLE}"
    default = f'"{device}"' if device else '$PYSM120_DEVICE, else the first usable GPU, else "virtual"'
    parser.add_argument("file", metavar="FILE", help="PTX, a cubin, or the name of a kernel in the library (see info)")
    for option, metavar, text in (
        ("--kernel", "NAME", "the entry, or a part of its name, if FILE has several"),
        ("--grid", "X[,Y,Z]", "CTAs along each dimension"),
        ("--block", "X[,Y,Z]", "threads of a CTA (default, for a kernel of the library: its own)"),
        ("--shared", "BYTES", "dynamic shared memory of a CTA (default: 0; for a kernel of the library: its own)"),
        ("--device", "NAME", f'"cuda", "cuda:1", "virtual" (default: {default})'),
        ("--checks", "LEVEL", "checks of the virtual device: off, default or full"),
        ("--seed", "N", "seed of the order of events on the virtual device"),
        ("--inputs", "N", "seed of the generated arrays (default: 0)"),
    ):
        parser.add_argument(option, metavar=metavar, help=text)
    parser.add_argument(
        "--cooperative", action="store_true", help="make all CTAs resident at once, as grid.sync() needs"
    )


def number(word: str | None, name: str, default: int) -> int:
    """Return the value of an option as a number."""
    if word is None:
        return default
    try:
        value = int(word, 0)
    except ValueError:
        value = -1
    if value < 0:
        message = f"{name} is {word!r}, not a number of at least 0"
        raise InvalidArgumentError(message)
    return value


def triple(word: str, name: str) -> tuple[int, ...]:
    """Return the value of --grid or --block as dimensions."""
    parts = word.split(",")
    if not 1 <= len(parts) <= DIMENSIONS or not all(part.isdecimal() and int(part) for part in parts):
        message = f"{name} is {word!r}, not one to three numbers of at least 1 such as 128 or 16,8"
        raise InvalidArgumentError(message)
    return tuple(map(int, parts))


def find_builtin(name: str) -> Builtin | None:
    """Return the kernel of the library that FILE names; None if FILE is a file."""
    if Path(name).is_file():
        return None
    known = {builtin.entry: builtin for builtin in builtins()}
    if name not in known:
        message = f"FILE is {name!r}, which is neither a file nor a kernel of the library (`info` lists them)"
        raise InvalidArgumentError(message)
    return known[name]


@dataclasses.dataclass(frozen=True)
class Output:
    """An array of a launch, with its contents before and after. A variable of the module has no index."""

    index: int | None
    parameter: Parameter
    before: npt.NDArray[Any]
    after: npt.NDArray[Any]
    path: Path | None

    def changed(self) -> npt.NDArray[np.bool_]:
        """Return which elements, in C order, have changed bytes."""
        before, after = (
            np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, x.itemsize)
            for x in (self.before, self.after)
        )
        different: npt.NDArray[np.bool_] = (before != after).any(axis=1)
        return different

    def save(self) -> None:
        """Write the array to its file, if it has one."""
        if self.path is not None:
            np.save(self.path, self.after, allow_pickle=False)


class Launch:
    """A kernel on a device with its arguments in place. Made by ``Program.open``."""

    def __init__(self, program: "Program", device: Device, kernel: Kernel) -> None:
        self.program = program
        self.device = device
        self.kernel = kernel
        self._arrays: list[tuple[Argument, Parameter, Array]] = []
        self._values = [self._place(argument) for argument in self._paired()]
        self._variables = kernel.module.variables() if kernel.module is not None else {}
        self._initial = {name: value.numpy() for name, value in self._variables.items()}

    def _paired(self) -> tuple[Argument, ...]:
        """Return the arguments; their number must be that of the parameters."""
        given, wanted = self.program.arguments, self.kernel.parameters
        if len(given) != len(wanted):
            text = f"{demangled(self.kernel.info.entry)} takes {len(wanted)} arguments, {len(given)} were given"
            rest = (
                f"{self.kernel.describe(len(given))} is missing"
                if len(given) < len(wanted)
                else f"{given[len(wanted)].word!r} is too many"
            )
            message = f"{text}: {rest}"
            raise InvalidArgumentError(message)
        return given

    def _place(self, argument: Argument) -> Any:
        """Return the value that the launch passes for an argument."""
        parameter = self.kernel.parameters[argument.index]
        value = argument.value
        if argument.members:
            return self._structure(argument, parameter)
        is_address = parameter.bytes == ADDRESS_BYTES and parameter.type in ADDRESS_TYPES
        is_bytes = not parameter.type or "[" in parameter.type
        if isinstance(value, np.ndarray):
            if is_address:
                return self._array(argument, parameter)
            if is_bytes and value.nbytes == parameter.bytes:
                return value.tobytes()
        elif value.itemsize == parameter.bytes and fits(argument.type, parameter.type):
            return value.tobytes() if is_bytes else value
        message = f"argument {argument.index} is {argument.word!r}, but {self.kernel.describe(argument.index)} takes "
        raise InvalidArgumentError(message + right_for(parameter, is_address=is_address, is_bytes=is_bytes))

    def _array(self, argument: Argument, parameter: Parameter) -> Array:
        """Copy an array to the device."""
        array = self.device.array(argument.value.reshape(-1).view(np.uint8))
        self._arrays.append((argument, parameter, array))
        return array

    def _structure(self, argument: Argument, parameter: Parameter) -> bytes:
        """Return the bytes of a structure: its members at the offsets that C gives them, arrays as addresses."""
        raw, most = b"", 1
        for number, member in enumerate(argument.members):
            if isinstance(member.value, np.ndarray):
                name = f"{parameter.name}.{number}".lstrip(".")
                part = self._array(member, Parameter(name, "", 0, ADDRESS_BYTES)).address.to_bytes(8, "little")
            else:
                part = member.value.tobytes()
            raw += bytes(-len(raw) % len(part)) + part
            most = max(most, len(part))
        raw += bytes(-len(raw) % most)
        if len(raw) == parameter.bytes:
            return raw
        message = f"argument {argument.index} is {argument.word!r}, which has {len(raw)} bytes, but "
        raise InvalidArgumentError(f"{message}{self.kernel.describe(argument.index)} has {parameter.bytes}")

    def run(self) -> None:
        """Launch the kernel and wait for its end."""
        program = self.program
        self.kernel(program.grid, program.block, *self._values, shared=program.shared, cooperative=program.cooperative)
        self.device.synchronize()

    def array(self, output: Output) -> Array:
        """Return the array in device memory of an output, of this launch or another one of the same program."""
        if output.index is None:
            return self._variables[output.parameter.name]
        wanted = (output.index, output.parameter.name)
        return next(array for argument, parameter, array in self._arrays if (argument.index, parameter.name) == wanted)

    def variables(self) -> list[Output]:
        """Return the variables of the module, as they were before the launch and as they are now."""
        return [
            Output(None, Parameter(name, "", 0, ADDRESS_BYTES), self._initial[name], value.numpy(), None)
            for name, value in self._variables.items()
        ]

    def outputs(self) -> list[Output]:
        """Return all arrays in device memory, as they were before the launch and as they are now."""
        found = []
        for argument, parameter, array in self._arrays:
            before = argument.value
            after = array.numpy().view(before.dtype).reshape(before.shape)
            found.append(Output(argument.index, parameter, before, after, argument.output))
        return found


def fits(kind: str, wanted: str) -> bool:
    """Whether a scalar of one type may be passed to a parameter of another type of the same size."""
    if wanted not in TYPES or wanted.startswith("b"):
        return True
    return (wanted[0] in "us") == (TYPES[kind].kind in "iu")


def right_for(parameter: Parameter, *, is_address: bool, is_bytes: bool) -> str:
    """Return the text of the arguments that a parameter accepts."""
    choices = []
    if is_address:
        choices.append("an array such as f32[1024]:normal or x.npy")
    if is_bytes:
        choices.append(f"an array of {parameter.bytes} bytes such as u8[{parameter.bytes}]:zeros or x.npy")
    else:
        choices.append(f"a number such as {parameter.type}:1")
    return " or ".join(choices)


@dataclasses.dataclass(frozen=True)
class Program:
    """A kernel, its launch and its arguments, not yet on a device."""

    file: str
    builtin: Builtin | None
    entry: str | None
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    cooperative: bool
    device: str | None
    options: dict[str, str]  # of the virtual device: checks, seed
    arguments: tuple[Argument, ...]

    def device_name(self, **options: object) -> str | None:
        """Return the name of the device to open; options such as ``seed=3`` replace those of the command line."""
        chosen = self.options | {name: str(value) for name, value in options.items()}
        if not chosen:
            return self.device
        name = self.device or os.environ.get("PYSM120_DEVICE") or "virtual"
        if not name.startswith("virtual"):
            option, value = next(iter(chosen.items()))
            message = f"--{option} is {value!r}, but only the virtual device supports it; the device is {name!r}"
            raise InvalidArgumentError(message)
        levels, seed = ("off", "default", "full"), chosen.get("seed")
        if chosen.get("checks", levels[0]) not in levels:
            message = f"--checks is {chosen['checks']!r}, not one of {', '.join(levels)}"
            raise InvalidArgumentError(message)
        if seed is not None:
            number(seed, "--seed", 0)
        base, _, query = name.partition("?")
        parts = [part for part in query.split("&") if part and part.partition("=")[0] not in chosen]
        return f"{base}?{'&'.join(parts + [f'{key}={value}' for key, value in chosen.items()])}"

    @contextlib.contextmanager
    def open(self, **options: object) -> Iterator[Launch]:
        """Open the device, load the kernel and copy its arguments there; options as in ``device_name``."""
        with Device(self.device_name(**options)) as device:
            yield Launch(self, device, self._kernel(device))

    def _kernel(self, device: Device) -> Kernel:
        """Load the kernel."""
        if self.builtin is not None:
            return builtin_kernel(device, self.builtin.entry)
        module = device.load(Path(self.file))
        entries = tuple(module)
        if self.entry is None and len(entries) != 1:
            there = ", ".join(map(demangled, entries)) or "no list of entries"
            message = f"--kernel is missing: {self.file} has {there}"
            raise InvalidArgumentError(message)
        try:
            return module[self.entry or entries[0]]
        except KeyError as error:
            message = f"--kernel is {self.entry!r}: {error.args[0]}"
            raise InvalidArgumentError(message) from error


def parse(arguments: argparse.Namespace, words: list[str], *, device: str | None = None) -> Program:
    """Return the program of a command line; ``device`` is the default device."""
    builtin = find_builtin(arguments.file)
    if builtin is not None and arguments.kernel not in {None, builtin.entry}:
        message = f"--kernel is {arguments.kernel!r}, but FILE is the kernel {builtin.entry}"
        raise InvalidArgumentError(message)
    for name in ("grid", "block"):
        if getattr(arguments, name) is None and (name == "grid" or builtin is None):
            message = f"--{name} is missing: it is one to three numbers such as 128 or 16,8"
            raise InvalidArgumentError(message)
    block = arguments.block or str(builtin.threads if builtin else 1)
    return Program(
        file=arguments.file,
        builtin=builtin,
        entry=arguments.kernel,
        grid=triple(arguments.grid, "--grid"),
        block=triple(block, "--block"),
        shared=number(arguments.shared, "--shared", builtin.shared_bytes if builtin else 0),
        cooperative=arguments.cooperative,
        device=arguments.device or device,
        options={name: getattr(arguments, name) for name in ("checks", "seed") if getattr(arguments, name) is not None},
        arguments=parse_arguments(words, number(arguments.inputs, "--inputs", 0)),
    )
