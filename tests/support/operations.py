"""The operations of the library: a row for each, in its own test file, and helpers for the tests of all operations.

An operation is a function of sm120.h whose arguments are a struct of its name: ``sm120_attention`` has
``sm120_attention_args``. Its row is ``OPERATION = Operation(...)`` in tests/ops/test_NAME.py. From the rows come wrong
calls (tests/ops/test_operations.py), calls of a failing driver (tests/runtime/cuda_failures.c), inputs of the fuzzer
(tests/fuzz/abi.c), launches whose bits a GPU recorded (tests/hardware), and the check that tests launch every kernel.
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import pysm120
from pysm120.runtime.ffi import ffi, include_directory, lib, new_struct

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "tests" / "ops"
ROOM = 1 << 18  # bytes of device memory for the arrays of the smallest call
BASE = 1 << 40  # where they begin when the call is written as C


class Wrong(NamedTuple):
    """A member of the struct, a wrong value of it, and the library's status and message."""

    member: str  # "q.row_stride"
    value: int | float
    status: str  # "INVALID_ARGUMENT"
    words: str  # part of its message

    def __str__(self) -> str:
        return f"{self.member}={self.value}"


Refused = tuple[type[Exception], str, tuple[Sequence[Any], Mapping[str, Any]]]  # exception, message, arguments


class Operation(NamedTuple):
    """A row."""

    name: str  # name of the Python function; the C function has the prefix sm120_
    fill: Callable[[Any, int], None]  # write the smallest valid call to a struct; its arrays are in ROOM bytes
    wrong: Sequence[Wrong]  # wrong C calls: the smallest valid one with one wrong member
    refused: Mapping[str, Refused]  # wrong Python calls
    launch: Callable[[pysm120.Device], None]  # launch every kernel that the operation is the first to need
    recorded: Sequence[Any]  # Quantized, Attention or Recorded of tests/hardware/kernels.py

    @property
    def function(self) -> Any:
        """The C function."""
        return getattr(lib, f"sm120_{self.name}")

    @property
    def has_workspace(self) -> bool:
        """Whether calls take a workspace and its size."""
        return hasattr(lib, f"sm120_{self.name}_workspace")

    def arguments(self, address: int) -> Any:
        """Return the struct of the smallest valid call."""
        struct = new_struct(f"sm120_{self.name}_args")
        self.fill(struct, address)
        return struct

    def ask(self, device: Any, struct: Any, size: Any) -> int:
        """Write the size of the workspace to a size_t; return the status."""
        status: int = getattr(lib, f"sm120_{self.name}_workspace")(device, struct, size)
        return status

    def call(self, device: Any, struct: Any, workspace: int = 0, size: int = 0) -> int:
        """Call the C function; return the status."""
        status: int = self.function(device, struct, *((workspace, size) if self.has_workspace else ()))
        return status


# ---- the rows --------------------------------------------------------------------


def declared() -> list[str]:
    """Name the operations of sm120.h."""
    structs = [name for name in ffi.list_types()[0] if re.fullmatch(r"sm120_\w+_args", name)]
    return [name[6:-5] for name in structs if hasattr(lib, name.removesuffix("_args"))]


@cache
def operations() -> dict[str, Operation]:
    """Return the rows by name."""
    needed = [str(ROOT / "tests" / name) for name in ("support", "ops", "runtime", "hardware")]
    sys.path[:0] = [folder for folder in needed if folder not in sys.path]
    files = [
        path for path in sorted(ROWS.glob("test_*.py")) if re.search(r"^OPERATION = ", path.read_text(), re.MULTILINE)
    ]
    rows = [importlib.import_module(path.stem).OPERATION for path in files]
    return {row.name: row for row in rows}


def missing(name: str) -> str:
    """Return the message about an operation without a row."""
    return (
        f"sm120_{name} of sm120.h has no row for the tests of all operations: "
        f"add OPERATION = Operation(name={name!r}, ...) to tests/ops/test_{name}.py, as tests/ops/test_quantize.py has"
    )


def recorded() -> tuple[Any, ...]:
    """Return all launches whose bits a GPU records."""
    return tuple(launch for row in operations().values() for launch in row.recorded)


def set_member(struct: Any, member: str, value: float) -> None:
    """Set a member of a struct, of a struct in it ("q.address") or of an array ("box[1]")."""
    *path, last = re.findall(r"\w+", member)
    for name in path:
        struct = struct[int(name)] if name.isdigit() else getattr(struct, name)
    if last.isdigit():
        struct[int(last)] = value
        return
    setattr(struct, last, value)


# ---- as C ------------------------------------------------------------------------


class Leaf(NamedTuple):
    """A number in a struct."""

    path: str
    kind: str  # "primitive" or "pointer"
    value: Any


def leaves(struct: Any, path: str = "") -> Iterator[Leaf]:
    """List the numbers of a struct."""
    kind = ffi.typeof(struct)
    for name, field in (kind.item if kind.kind == "pointer" else kind).fields:
        value, where = getattr(struct, name), f"{path}{name}"
        if field.type.kind == "struct":
            yield from leaves(value, f"{where}.")
        elif field.type.kind == "array":
            yield from (Leaf(f"{where}[{i}]", "primitive", x) for i, x in enumerate(value))
        else:
            yield Leaf(where, field.type.kind, value)


def _literal(value: Any) -> str:
    """Write a number as C."""
    if isinstance(value, float):
        return f"{float(np.float32(value)).hex()}f"
    if BASE <= value < BASE + ROOM:
        return f"memory + {value - BASE}"
    return f"INT64_C({value})" if abs(value) >= 1 << 31 else str(value)


def _c_functions(row: Operation) -> str:
    """Write the smallest call of an operation as C."""
    struct, name = row.arguments(BASE), row.name
    header = (include_directory() / "sm120.h").read_text(encoding="utf-8")
    addresses = set(re.findall(r"\w+", " ".join(re.findall(r"\bsm120_address ([\w, ]+);", header))))
    lines = [f"static void fill_{name}(void *to, sm120_address memory, sm120_stream stream) {{"]
    lines += [f"    sm120_{name}_args *const args = to;", "    memset(args, 0, sizeof *args);"]
    members = []
    for leaf in leaves(struct):
        if leaf.path == "stream":
            lines.append("    args->stream = stream;")
        if leaf.kind == "primitive":
            is_address = int(leaf.path.split(".")[-1] in addresses)
            at = f"offsetof(sm120_{name}_args, {leaf.path}), sizeof(((sm120_{name}_args *)0)->{leaf.path})"
            members.append(f"    {{{at}, {is_address}}},")
            if leaf.value:
                lines.append(f"    args->{leaf.path} = {_literal(leaf.value)};")
    lines += ["}", ""]
    call = f"static sm120_status call_{name}(sm120_device *device, const void *args, sm120_address workspace,"
    ask = f"static sm120_status ask_{name}(sm120_device *device, const void *args, size_t *bytes) {{"
    if row.has_workspace:
        lines += [ask, f"    return sm120_{name}_workspace(device, args, bytes);", "}", ""]
        lines += [call, "    size_t bytes) {", f"    return sm120_{name}(device, args, workspace, bytes);"]
    else:
        lines += [ask, "    (void)device, (void)args;", "    *bytes = 0;", "    return SM120_OK;", "}", ""]
        lines += [call, "    size_t bytes) {", "    (void)workspace, (void)bytes;"]
        lines += [f"    return sm120_{name}(device, args);"]
    lines += ["}", "", f"static const struct operation_member members_{name}[] = {{", *members, "};", ""]
    return "\n".join(lines)


C_HEAD = """/* Written by tests/support/operations.py: every operation of sm120.h, and its smallest call. */
#include <sm120.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A number in the struct of an operation. */
struct operation_member {
    size_t offset, bytes;
    int is_address;
};

struct operation {
    const char *name;
    size_t bytes; /* of the struct */
    /* Write the smallest right call, whose arrays lie in OPERATION_ROOM bytes at `memory`. */
    void (*fill)(void *args, sm120_address memory, sm120_stream stream);
    sm120_status (*ask)(sm120_device *device, const void *args, size_t *bytes); /* of the workspace; 0: none */
    sm120_status (*call)(sm120_device *device, const void *args, sm120_address workspace, size_t bytes);
    const struct operation_member *members;
    size_t member_count;
};
"""


def c_header() -> str:
    """Write the operations as a C header."""
    rows = operations().values()
    largest = max(ffi.sizeof(f"sm120_{row.name}_args") for row in rows)
    parts = [C_HEAD, f"enum {{ OPERATION_ROOM = {ROOM}, OPERATION_BYTES_MAX = {largest} }};\n"]
    parts += [_c_functions(row) for row in rows]
    parts += ["static const struct operation operations[] = {"]
    for row in rows:
        n = row.name
        count = f"sizeof members_{n} / sizeof members_{n}[0]"
        parts += [f'    {{"{n}", sizeof(sm120_{n}_args), fill_{n}, ask_{n}, call_{n}, members_{n}, {count}}},']
    parts += ["};", f"enum {{ OPERATION_COUNT = {len(rows)} }};", ""]
    return "\n".join(parts)


def write_header(folder: Path) -> Path:
    """Write operations.h to a folder if it has changed; return the folder."""
    path, text = folder / "operations.h", c_header()
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return folder


if __name__ == "__main__":
    write_header(Path(sys.argv[1]))
