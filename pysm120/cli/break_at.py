"""``--break``: stop a kernel at a line and show the registers of a warp there."""

import argparse
import struct
import sys
from collections.abc import Sequence

from pysm120.cli import console
from pysm120.cli import place as places
from pysm120.observe.program import Launch, number
from pysm120.observe.values import register_text
from pysm120.observe.watch import Instruction, Register, Stop, instructions
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.names import demangled, readable

AROUND = 2  # instructions to show before and after
ROW = 16  # bytes in a row of the window
SHARED_BASE = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --break and its options."""
    group = parser.add_argument_group("stopping (virtual device)")
    for option, metavar, text in (
        (
            "--break",
            "[FILE:]LINE",
            "stop before this line, show registers and the place of every warp, and end the launch",
        ),
        ("--hits", "N", "stop when a warp reaches the line for the N-th time (default: 1)"),
        ("--shared-window", "ADDRESS,BYTES", "also show shared memory, in hexadecimal and as f32; it begins at 0x400"),
    ):
        group.add_argument(option, metavar=metavar, help=text)


def add_warp(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --cta and --warp."""
    parser.add_argument("--cta", metavar="X[,Y,Z]", help=f"the CTA (default: {default})")
    parser.add_argument("--warp", metavar="W", help=f"the warp (default: {default})")


def parse_cta(word: str | None, grid: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return the CTA that --cta names."""
    if word is None:
        return None
    parts = word.split(",")
    if not 1 <= len(parts) <= len("xyz") or not all(part.isdecimal() for part in parts):
        message = f"--cta is {word!r}, not one to three numbers of at least 0 such as 5 or 5,0,2"
        raise InvalidArgumentError(message)
    x, y, z = [*map(int, parts), 0, 0][:3]
    if any(a >= b for a, b in zip((x, y, z), (*grid, 1, 1), strict=False)):
        message = f"--cta is {word!r}, but the grid is {','.join(map(str, grid))}"
        raise InvalidArgumentError(message)
    return x, y, z


def parse_warp(word: str | None, block: tuple[int, ...]) -> int | None:
    """Return the warp that --warp names."""
    if word is None:
        return None
    threads = 1
    for extent in block:
        threads *= extent
    warp = number(word, "--warp", 0)
    if warp >= (threads + 31) // 32:
        message = f"--warp is {word!r}, but a CTA of {threads} threads has {(threads + 31) // 32} warps, from 0"
        raise InvalidArgumentError(message)
    return warp


def parse_window(word: str | None) -> tuple[int, int] | None:
    """Return address and bytes that --shared-window names."""
    if word is None:
        return None
    try:
        address, size = (int(part, 0) for part in word.split(","))
    except ValueError:
        address = -1
        size = 0
    if address < SHARED_BASE or size < 1 or address + size > 1 << 32:
        message = f"--shared-window is {word!r}, not ADDRESS,BYTES such as 0x400,256; shared memory begins at 0x400"
        raise InvalidArgumentError(message)
    return address, size


def run(launch: Launch, arguments: argparse.Namespace) -> int:
    """Launch until the line is reached; show the registers. Returns the exit status: 1 if no warp reached the line."""
    program = launch.program
    code = instructions(launch.kernel)
    if not code:
        message = (
            f"--break is {arguments.__dict__['break']!r}, but {launch.device} cannot: "
            "only the virtual device stops at a line"
        )
        raise InvalidArgumentError(message)
    entry = launch.kernel.info.entry
    place = places.parse(arguments.__dict__["break"], "--break", program.file, code, entry)
    hits = number(arguments.hits, "--hits", 1)
    with (
        launch.device.break_at(
            place.line,
            file=place.file,
            cta=parse_cta(arguments.cta, program.grid),
            warp=parse_warp(arguments.warp, program.block),
            hits=hits,
            shared=parse_window(arguments.shared_window),
        ) as found,
        console.patience(),
    ):
        launch.run()
    if found.stop is None:
        times = f"{found.hits} times, not {hits}" if found.hits else "by no warp"
        print(f"{demangled(entry)} ended, and {arguments.__dict__['break']} was reached {times}", file=sys.stderr)
        return 1
    show(found.stop, code, program.file, parse_window(arguments.shared_window))
    return 0


def show(stop: Stop, code: Sequence[Instruction], path: str, window: tuple[int, int] | None) -> None:
    """Print where a launch was stopped."""
    step = stop.step
    inside = f" in function {demangled(step.function)}" if step.function else ""
    print(
        f"{demangled(step.entry)} stopped before {places.shown(step.instruction, path)}{inside}: CTA "
        f"{','.join(map(str, step.cta))}, warp {step.warp}, active lanes 0x{step.active:08x}"
        + (f", of them {step.guard}: 0x{step.mask:08x}" if step.guard else "")
    )
    for index in range(max(0, step.index - AROUND), min(len(code), step.index + AROUND + 1)):
        mark = ">" if index == step.index else " "
        print(f"  {mark} {places.shown(code[index], path):<16} {readable(code[index].text)}")
    show_registers(stop)
    if window is not None:
        show_shared(window[0], stop.shared)
    show_lanes(stop, path)


def show_registers(stop: Stop) -> None:
    """Print the registers that have been written, and the predicates."""

    def row(register: Register) -> tuple[str, str, str, str]:
        lanes = register.lanes & stop.step.active
        return register.name, register.type, f"0x{lanes:08x}", register_text(register, register.type, lanes)

    for title, want in (("Registers", False), ("Predicates", True)):
        rows = [row(r) for r in stop.registers if (r.type == "pred") == want and r.lanes & stop.step.active]
        if rows:
            show_rows(f"{title} that were written", ("name", "type", "lanes", "value"), rows)


def show_rows(title: str, columns: console.Row, rows: Sequence[console.Row]) -> None:
    """Print a table in plain text, so that its rows can be searched."""
    print(title)
    for line in console.plain(columns, rows, len(columns)):
        print(f"  {line}")


def show_shared(address: int, held: bytes) -> None:
    """Print a window of shared memory: bytes, and words as f32."""
    print(f"Shared memory from 0x{address:x}, {len(held)} bytes")
    for at in range(0, len(held), ROW):
        part = held[at : at + ROW]
        words = " ".join(part[k : k + 4].hex() for k in range(0, len(part), 4))
        floats = " ".join(f"{x:>13.6g}" for (x,) in struct.iter_unpack("<f", part[: len(part) // 4 * 4]))
        print(f"  0x{address + at:05x}  {words:<36} {floats}".rstrip())


def show_lanes(stop: Stop, path: str) -> None:
    """Print the next instruction of each warp of the CTA."""
    rows = [
        (
            f"{'>' if lanes.is_here else ' '} {lanes.warp}",
            f"0x{lanes.lanes:08x}",
            places.shown(lanes.next, path) if lanes.lanes else "-",
            readable(lanes.next.text) if lanes.lanes else "-",
            ("exited" if not lanes.lanes else f"for {lanes.waits_for}") if lanes.waits_for else "-",
        )
        for lanes in stop.lanes
    ]
    show_rows("Warps of the CTA", ("warp", "lanes", "place", "next", "waits"), rows)
