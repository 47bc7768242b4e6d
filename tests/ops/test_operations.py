"""Every operation, by its row: the row is complete, wrong calls fail and write nothing, kernels are launched."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import operations
import pytest
import test_copy_batch
from harness import OpenDevice
from operations import ROOM, Operation, Wrong

import pysm120
from pysm120.runtime.ffi import check, ffi, lib
from pysm120.runtime.module import builtins

ROOT = Path(__file__).resolve().parents[2]
ROWS = operations.operations()
NAMES = operations.declared()
FILLING = 0x3E  # codes that are below 1 in every float format


def test_every_operation_has_a_row() -> None:
    lacking = [operations.missing(name) for name in NAMES if name not in ROWS]
    assert not lacking, "; ".join(lacking)
    unknown = sorted(ROWS.keys() - set(NAMES))
    assert not unknown, f"tests/ops has a row for {unknown}, but sm120.h declares no such function and struct"


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_complete(name: str) -> None:
    row = ROWS[name]
    assert callable(getattr(pysm120, name, None)), f"pysm120 has no function {name}: add it to pysm120/__init__.py"
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    described = any(f"pysm120.{name}(" in page.read_text() for page in pages)
    assert described, f"neither README.md nor a page of docs/ describes pysm120.{name}()"
    for field in ("wrong", "refused", "recorded"):
        assert len(getattr(row, field)) > 0, f"OPERATION.{field} of {name} is empty"
    members = {leaf.path.partition("[")[0] for leaf in operations.leaves(row.arguments(operations.BASE))}
    unknown = {wrong.member.partition("[")[0] for wrong in row.wrong} - members
    assert not unknown, f"OPERATION.wrong of {name} names {unknown}, no members of sm120_{name}_args"


# ---- C ---------------------------------------------------------------------------


class Place:
    """Device memory for the smallest call of an operation, and its workspace."""

    def __init__(self, opened: OpenDevice, row: Operation) -> None:
        self.opened, self.row = opened, row
        self.memory = self.allocate(ROOM)
        check(lib.sm120_fill(opened.handle, self.memory, FILLING, ROOM, ffi.NULL))
        self.arguments = row.arguments(self.memory)
        self.size, self.workspace = ffi.new("size_t *"), 0
        if row.has_workspace:
            check(row.ask(opened.handle, self.arguments, self.size))
            self.workspace = self.allocate(int(self.size[0])) if self.size[0] else 0

    def allocate(self, size: int) -> int:
        address = ffi.new("sm120_address *")
        check(lib.sm120_alloc(self.opened.handle, size, address))
        return int(address[0])

    def contents(self) -> bytes:
        data = bytearray(ROOM)
        check(lib.sm120_copy_to_host(self.opened.handle, ffi.from_buffer(data), self.memory, ROOM, ffi.NULL))
        check(lib.sm120_device_synchronize(self.opened.handle))
        return bytes(data)

    def call(self) -> int:
        return self.row.call(self.opened.handle, self.arguments, self.workspace, int(self.size[0]))

    def close(self) -> None:
        for address in filter(None, (self.memory, self.workspace)):
            check(lib.sm120_free(self.opened.handle, address))


@pytest.fixture
def place(opened: OpenDevice, name: str) -> Iterator[Place]:
    made = Place(opened, ROWS[name])
    yield made
    made.close()


def refuses(place: Place, status: str, words: str) -> None:
    """Make a call that must fail with a message that has these words, and write nothing."""
    got = place.call()
    message = ffi.string(lib.sm120_last_error()).decode()
    assert got == getattr(lib, f"SM120_{status}"), f"status {got}, wanted {status}: {message}"
    assert words in message
    assert place.contents() == bytes([FILLING]) * ROOM


@pytest.mark.parametrize("name", ROWS)
def test_without_a_workspace(place: Place) -> None:
    """A call that needs a workspace and has none says how many bytes; a question needs a place for its answer."""
    row, needed = place.row, int(place.size[0])
    if row.has_workspace:
        status = row.ask(place.opened.handle, place.arguments, ffi.NULL)
        assert status == lib.SM120_INVALID_ARGUMENT
        assert "workspace_bytes is NULL" in ffi.string(lib.sm120_last_error()).decode()
    for nbytes in (0, needed) if needed else ():
        place.workspace, kept = 0, place.workspace
        place.size[0] = nbytes
        words = f"workspace_bytes = {nbytes}; this call needs a workspace of {needed} bytes"
        refuses(place, "WORKSPACE_TOO_SMALL", words)
        place.workspace, place.size[0] = kept, needed
    check(place.call())


@pytest.mark.parametrize("name", ROWS)
def test_the_smallest_call(place: Place) -> None:
    """The smallest call succeeds and writes results."""
    check(place.call())
    assert place.contents() != bytes([FILLING]) * ROOM


WRONG = [(name, wrong) for name, row in ROWS.items() for wrong in row.wrong]


@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=[f"{name}-{wrong}" for name, wrong in WRONG])
def test_wrong_members_are_named(place: Place, wrong: Wrong) -> None:
    operations.set_member(place.arguments, wrong.member, wrong.value)
    refuses(place, wrong.status, wrong.words)


@pytest.mark.parametrize("name", ROWS)
def test_sizes_of_the_struct(place: Place) -> None:
    """A struct that is too short, one that is too long, and one of a later library with a new option."""
    right = place.arguments
    whole = ffi.sizeof(right[0])
    for size in (0, whole - 8, 1 << 20):
        right.size = size
        refuses(place, "INVALID_ARGUMENT", f"args->size = {size}")
    longer = ffi.new("char[]", whole + 16)
    ffi.memmove(longer, right, whole)
    place.arguments = ffi.cast(f"sm120_{place.row.name}_args *", longer)
    place.arguments.size = whole + 16
    longer[whole + 8] = b"\1"
    refuses(place, "INVALID_ARGUMENT", "args")
    longer[whole + 8] = b"\0"
    check(place.call())


@pytest.mark.parametrize("name", ROWS)
def test_no_arguments_and_no_device(place: Place) -> None:
    right, place.arguments = place.arguments, ffi.NULL
    refuses(place, "INVALID_ARGUMENT", "args")
    device, place.arguments = place.opened.handle, right
    try:
        place.opened.handle = ffi.NULL
        assert place.call() == lib.SM120_INVALID_ARGUMENT
        assert "device" in ffi.string(lib.sm120_last_error()).decode()
    finally:
        place.opened.handle = device


def reserved(row: Operation) -> Iterator[str]:
    """Return the reserved members that the smallest call reads; those of omitted tensors are not read."""
    numbers = {leaf.path: leaf.value for leaf in operations.leaves(row.arguments(operations.BASE))}
    for path in numbers:
        if path.endswith("reserved") and numbers.get(path.replace("reserved", "address"), 1):
            yield path


RESERVED = [(name, member) for name, row in ROWS.items() for member in reserved(row)]


@pytest.mark.parametrize(("name", "member"), RESERVED)
def test_reserved_members_are_zero(place: Place, member: str) -> None:
    operations.set_member(place.arguments, member, 1)
    refuses(place, "INVALID_ARGUMENT", f"{member} = 1")


# ---- Python ----------------------------------------------------------------------


REFUSED = [(name, case) for name, row in ROWS.items() for case in row.refused]


@pytest.mark.parametrize(("name", "case"), REFUSED)
def test_python_refuses(device: pysm120.Device, name: str, case: str) -> None:
    kind, message, (arguments, options) = ROWS[name].refused[case]
    out: Any = options.get("out")
    before = repr(out)
    with pytest.raises(kind, match=message):
        getattr(pysm120, name)(*arguments, **{"device": device, **options})
    assert repr(out) == before


# ---- kernels ---------------------------------------------------------------------


@pytest.mark.virtual
def test_every_kernel_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """As profiles say of the launches of all rows and of copy_batch, on SM120 and on a device that states Hopper's."""
    launched: set[str] = set()
    launches = [*(row.launch for row in ROWS.values()), test_copy_batch.launch]
    for capability, launch in itertools.product(("12", "9"), launches):
        monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", capability)
        with pysm120.Device("virtual?checks=off") as device, device.profile() as profile:
            launch(device)
        launched |= {statement.kernel for statement in profile.statements}
    never = sorted({builtin.entry for builtin in builtins()} - launched)
    assert not never, f"OPERATION.launch of no row in tests/ops launches {', '.join(never)}"


def test_the_c_of_the_smallest_calls_is_whole() -> None:
    """What is written for C programs has every number of every struct."""
    text = operations.c_header()
    for name, row in ROWS.items():
        for leaf in operations.leaves(row.arguments(operations.BASE)):
            assert leaf.kind == "pointer" or f"offsetof(sm120_{name}_args, {leaf.path})" in text
            assert not leaf.value or leaf.kind == "pointer" or f"args->{leaf.path} = " in text
