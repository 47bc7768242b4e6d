"""``trace``: print the instructions that a warp executes, with the values of its registers."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from pysm120.cli import break_at
from pysm120.cli import place as places
from pysm120.cli.command import Command
from pysm120.observe import program as programs
from pysm120.observe.values import address_text, addresses, lane_texts, register_text, type_of
from pysm120.observe.watch import Step, instructions, lanes_of
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.names import readable

TEXT_WIDTH = 44
LANES_PER_ROW = 8


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    programs.add_arguments(parser, "trace", device="virtual")
    break_at.add_warp(parser, "0")
    parser.add_argument("--lanes", action="store_true", help="also print the value of every lane")
    parser.add_argument("--from", metavar="[FILE:]LINE", dest="first", help="begin when the warp reaches this line")
    parser.add_argument("--limit", metavar="N", help="end after N instructions (default: 1000; 0: no limit)")
    parser.add_argument("--output", metavar="FILE", help="write the trace to a file")
    break_at.add_arguments(parser)


def step_text(step: Step, path: str) -> str:
    """Return the line of a step: place, mask of executing lanes, instruction, read -> written registers."""
    instruction = step.instruction
    place = places.shown(instruction, path)
    line = f"{place:<14} {step.mask:08x} {readable(instruction.text):<{TEXT_WIDTH}}"
    if not step.mask:
        return f"{line} | not executed"
    reads = [f"{r.name} = {register_text(r, type_of(r, instruction), step.mask)}" for r in step.reads]
    reads += [
        f"{text} = {address_text(values, step.mask)}"
        for text, values in addresses(step)
        if text[1:-1] not in names(step)
    ]
    writes = [f"{r.name} = {register_text(r, type_of(r, instruction), step.mask)}" for r in step.writes]
    values = "; ".join(reads) + (" -> " if writes else "") + "; ".join(writes)
    return f"{line} | {values.strip()}" if values else line.rstrip()


def names(step: Step) -> set[str]:
    """Return the registers that a step read; an address that equals one of them is not printed again."""
    return {register.name for register in step.reads}


def lanes_text(step: Step) -> list[str]:
    """Return lines with the value of every lane that executed a step."""
    lines = []
    lanes = lanes_of(step.mask)
    for sign, registers in (("<", step.reads), (">", step.writes)):
        for register in registers:
            texts = lane_texts(register, type_of(register, step.instruction), step.mask)
            for at in range(0, len(lanes), LANES_PER_ROW):
                row = "  ".join(
                    f"{lane}:{text}"
                    for lane, text in zip(lanes[at : at + LANES_PER_ROW], texts[at : at + LANES_PER_ROW], strict=True)
                )
                lines.append(f"    {sign} {register.name} {row}")
    return lines


def run(arguments: argparse.Namespace) -> int:
    """Trace the warp."""
    program = programs.parse(arguments, arguments.words, device="virtual")
    if arguments.output is None:
        return trace(program, arguments, print)
    with Path(arguments.output).open("w", encoding="utf-8") as file:
        status = trace(program, arguments, lambda line: print(line, file=file))
    print(f"the trace is in {arguments.output}", file=sys.stderr)
    return status


def trace(program: programs.Program, arguments: argparse.Namespace, write: Callable[[str], object]) -> int:
    """Run the kernel and write a line for every instruction of the warp; with --break, show where it stopped."""
    cta = break_at.parse_cta(arguments.cta or "0", program.grid) or (0, 0, 0)
    warp = break_at.parse_warp(arguments.warp or "0", program.block) or 0
    limit = programs.number(arguments.limit, "--limit", 1000)
    with program.open() as launch:
        code = instructions(launch.kernel)
        entry = launch.kernel.info.entry
        if not code:
            message = f'--device is {program.device!r}, which cannot be traced: use "virtual"'
            raise InvalidArgumentError(message)
        first, stop = (
            places.parse(word, option, program.file, code, entry) if word else None
            for word, option in ((arguments.first, "--from"), (arguments.__dict__["break"], "--break"))
        )
        printer = Printer(program.file, first, stop, programs.number(arguments.hits, "--hits", 1), limit, write)
        printer.lanes = arguments.lanes
        with launch.device.trace(cta=cta, warp=warp, limit=None, see=printer.see, keep=False):
            launch.run()
    where = f"CTA {','.join(map(str, cta))}, warp {warp}"
    if printer.is_cut:
        print(f"trace: ended after {limit} instructions of {where}; --limit 0 prints them all", file=sys.stderr)
    elif first is not None and not printer.has_begun:
        print(f"trace: {where} never reached {arguments.first}", file=sys.stderr)
        return 1
    else:
        print(f"trace: {printer.count} instructions of {where}", file=sys.stderr)
    if stop is None:
        return 0
    arguments.cta, arguments.warp = ",".join(map(str, cta)), str(warp)
    with program.open() as launch:
        return break_at.run(launch, arguments)


class Printer:
    """Writes the steps from a first place on."""

    def __init__(
        self,
        path: str,
        first: places.Place | None,
        stop: places.Place | None,
        hits: int,
        limit: int,
        write: Callable[[str], object],
    ) -> None:
        self.path = path
        self.first = first
        self.stop = stop
        self.hits = hits
        self.limit = limit
        self.write = write
        self.lanes = False
        self.has_begun = first is None
        self.is_cut = False
        self.count = 0

    def see(self, step: Step) -> bool:
        """Write a step; True: the limit is reached."""
        self.has_begun = self.has_begun or places.is_at(step.instruction, self.first)
        if self.has_begun and self.limit and self.count >= self.limit:
            self.is_cut = True
            return True
        if self.stop is not None and places.is_at(step.instruction, self.stop):
            self.hits -= 1
            if not self.hits:
                return True
        if self.has_begun:
            self.count += 1
            self.write(step_text(step, self.path))
            if self.lanes:
                for line in lanes_text(step):
                    self.write(line)
        return False


COMMAND = Command(
    "trace",
    "print the instructions of a warp as they execute, with the values of its registers",
    add,
    run,
    takes_words=True,
)
