"""``resources``: what each kernel of the library needs, and what its main loop asks of each unit of an SM."""

import argparse
import dataclasses
import json
from collections import Counter, defaultdict
from typing import Any

from pysm120.cli import console
from pysm120.cli.command import Command
from pysm120.machine_code import pipes as pipe_table
from pysm120.machine_code import sass
from pysm120.machine_code.cubin import Cubin
from pysm120.model import chips, paths
from pysm120.model.chips import Chip
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import builtin_image, builtins

TARGETS = {"sm_120f": "rtx5090", "sm_90": "h200"}  # and the chip that each is counted for, unless told
GROUPS = ("tensor", "mufu", "ldmatrix", "fp32_int", "move", "other")
QUARTERS = 4


@dataclasses.dataclass(frozen=True)
class MainLoop:
    """A round of the main loop, a tile of keys in attention.

    ``counts`` are instructions of one warp; ``clocks`` are those that all warps of a CTA occupy each unit.
    """

    counts: dict[str, int]
    clocks: dict[str, float]

    @property
    def largest(self) -> str:
        """The unit that limits it."""
        return max(self.clocks, key=lambda unit: self.clocks[unit])

    @property
    def margin(self) -> float:
        """How many times as long the largest unit is busy as the second."""
        first, second, *_ = sorted(self.clocks.values(), reverse=True)
        return first / second if second else float("inf")


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a kernel needs."""

    entry: str
    target: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    threads: int
    ctas_per_sm: int
    main_loop: MainLoop | None

    def json(self) -> dict[str, Any]:
        """Return it as what ``json.dumps`` takes."""
        plain = dataclasses.asdict(self)
        if self.main_loop:
            plain["main_loop"] |= {"largest": self.main_loop.largest, "margin": round(self.main_loop.margin, 3)}
        return plain


def spill_bytes(function: sass.Function) -> int:
    """Return the bytes that a thread stores to local memory, as ptxas -v counts its spill stores."""
    return sum(_width(one.opcode) for one in function.instructions if one.base == "STL")


def _width(opcode: str) -> int:
    """Return the bytes that a load or store moves."""
    parts = opcode.split(".")
    wide = next((int(part) // 8 for part in parts if part in {"64", "128"}), 4)
    return next((int(part[1:]) // 8 for part in parts if part in {"U8", "S8", "U16", "S16"}), wide)


def main_loop(function: sass.Function, threads: int, chip: Chip) -> MainLoop | None:
    """Count the main loop of a kernel with matrix products; None for others."""
    if not any(one.is_tensor for one in function.instructions):
        return None
    path = paths.rounds_of(function, function.main_loop(), None, 1)[0]
    warps = paths.compute_warps(threads)
    counts = Counter(pipe_table.group_of(one) for one in path)
    pipes: defaultdict[str, float] = defaultdict(float)
    for one in path:
        timing = chip.timing(pipe_table.class_of(one.opcode))
        pipes[timing.pipe] += timing.interval * warps / QUARTERS
    clocks = {
        "tensor": pipes["tensor"],
        "mufu": pipes["xu"],
        "shared": float(sum(map(pipe_table.wavefronts, path)) * warps),
        "fma": pipes["fma"],
        "alu": pipes["alu"],
        "issue": len(path) * warps / QUARTERS,
    }
    return MainLoop({group: counts[group] for group in GROUPS}, clocks)


def collect(target: str, chip: Chip, names: list[str] | None = None) -> list[Resources]:
    """Return what the kernels of the library need on a target; of all of them, or of those named."""
    known = builtins()
    unknown = [name for name in names or [] if name not in {builtin.entry for builtin in known}]
    if unknown:
        message = f"the entry is {unknown[0]!r}, not a kernel of the library; python -m pysm120 info lists them"
        raise InvalidArgumentError(message)
    wanted = {n: builtin for n, builtin in enumerate(known) if not names or builtin.entry in names}
    images = {builtin.entry: builtin_image(n, target, "cubin") for n, builtin in wanted.items()}
    functions = sass.disassemble_all(images)
    found = []
    for builtin in wanted.values():
        entry, function = Cubin(images[builtin.entry]).entry(builtin.entry), functions[builtin.entry]
        shared = builtin.shared_bytes + entry.static_shared_bytes
        found.append(
            Resources(
                builtin.entry,
                target,
                entry.registers,
                spill_bytes(function),
                shared,
                builtin.threads,
                chip.ctas_per_sm(entry.registers, builtin.threads, shared),
                main_loop(function, builtin.threads, chip),
            )
        )
    return found


def show(found: list[Resources], target: str, chip: Chip) -> None:
    """Print the tables of a target."""
    console.table(
        f"Kernels for {target}; CTAs per SM of {chip['name']}",
        ("entry", "registers", "spill bytes", "shared bytes", "threads", "CTAs/SM"),
        [
            (r.entry, str(r.registers), str(r.spill_bytes), f"{r.shared_bytes:,}", str(r.threads), str(r.ctas_per_sm))
            for r in found
        ],
    )
    loops = [(r.entry, r.main_loop) for r in found if r.main_loop]
    if not loops:
        return
    console.table(
        "Instructions of a warp in a round of the main loop",
        ("entry", *GROUPS, "sum"),
        [(name, *(str(m.counts[g]) for g in GROUPS), str(sum(m.counts.values()))) for name, m in loops],
    )
    units = list(loops[0][1].clocks)
    console.table(
        f"Clocks that a CTA's warps occupy each unit of an SM of {chip['name']} in that round",
        ("entry", *units, "margin", "largest"),
        [(name, *(f"{m.clocks[u]:.0f}" for u in units), f"{m.margin:.2f}", m.largest) for name, m in loops],
        tail=1,
    )


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("entries", metavar="ENTRY", nargs="*", help="kernels of the library (default: all)")
    parser.add_argument(
        "--target", choices=[*TARGETS, "all"], default="all", help="cubins to read (default: %(default)s)"
    )
    parser.add_argument("--chip", metavar="NAME", help=f"count the clocks of this chip: {', '.join(chips.names())}")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Show resources."""
    chip = chips.load(arguments.chip) if arguments.chip else None
    targets = [name for name in TARGETS if arguments.target in {name, "all"}]
    if chip:
        targets = [name for name in targets if name.startswith(chip["target"])]
        if not targets:
            message = (
                f"--chip is {arguments.chip!r}, whose target is {chip['target']}, but --target is {arguments.target}"
            )
            raise InvalidArgumentError(message)
    rows = []
    for target in targets:
        used = chip or chips.load(TARGETS[target])
        found = collect(target, used, arguments.entries)
        rows += [{**r.json(), "chip": used.key} for r in found]
        if not arguments.json:
            show(found, target, used)
    if arguments.json:
        print(json.dumps(rows, indent=1))
    return 0


COMMAND = Command("resources", "show registers, shared memory and main loops of the library's kernels", add, run)
