"""Prove from machine code that a timed loop holds what it claims to time."""

import dataclasses
import re

from pysm120.machine_code.sass import Function
from pysm120.microbench.chain import chained
from pysm120.microbench.form import Counts
from pysm120.microbench.kernel import BenchKernel
from pysm120.microbench.loop import Loop, NoLoopError, timed_loop

SHOWN = 6  # opcodes in a message
LOOP = 10  # instructions of the loop itself: counter, branch, moves of predicates


@dataclasses.dataclass(frozen=True)
class Proof:
    """The contents of a loop; ``objection`` says why a figure would be wrong, "" if it would be right."""

    objection: str
    opcodes: dict[str, int]
    patterns: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the loop holds what it claims."""
        return not self.objection

    @property
    def summary(self) -> str:
        """The opcodes: the expected ones, then the others, the most frequent first."""

        def rank(item: tuple[str, int]) -> tuple[bool, int]:
            return not any(re.fullmatch(pattern, item[0]) for pattern in self.patterns), -item[1]

        ordered = sorted(self.opcodes.items(), key=rank)
        text = ", ".join(f"{count} {name}" for name, count in ordered[:SHOWN])
        return text + (f", {len(ordered) - SHOWN} more" if ordered[SHOWN:] else "")


def prove(kernel: BenchKernel, function: Function | None, family: str) -> Proof:
    """Compare the timed loop of a kernel with its form, opcode by opcode."""
    if function is None:
        return Proof(f"the machine code has no entry {kernel.entry}", {})
    try:
        loop = timed_loop(function)
    except NoLoopError as error:
        return Proof(str(error), {})
    opcodes = dict(loop.opcodes)
    wanted = kernel.form.counts(family)
    return Proof(_objection(kernel, loop, wanted, family), opcodes, tuple(wanted))


def _objection(kernel: BenchKernel, loop: Loop, wanted: Counts, family: str) -> str:
    """Return what is wrong in a loop, or "": wrong counts of opcodes, conditions, or other instructions."""
    form = kernel.form
    if not wanted:
        return f"the form {form.name} has no expected machine code for sm_{family}"
    if said := _miscounted(kernel, loop, wanted) or _crowded(kernel, loop, wanted, family):
        return said
    if one := loop.repeated(wanted):
        return f"the timed loop may repeat {one} at {one.address:#x}"
    if not form.is_conditional and (one := loop.conditional(wanted)):
        return f"the timed loop may skip or repeat {one} at {one.address:#x}"
    is_call = any(pattern.startswith("CALL") for pattern in wanted)  # its registers are not visible here
    if form.is_chained and kernel.chains == 1 and not is_call:
        length = chained(loop.instructions, wanted)
        if length < form.unroll:
            return (
                f"only {length} of {form.unroll} steps wait for the previous one: the time of a step is not its latency"
            )
    return ""


def _miscounted(kernel: BenchKernel, loop: Loop, wanted: Counts) -> str:
    """Return which opcode of a form has a wrong count, as text."""
    for pattern, count in wanted.items():
        per_step, more = count if isinstance(count, tuple) else (count, 0)
        least = round(per_step * kernel.steps)
        found = sum(count for name, count in loop.opcodes.items() if re.fullmatch(pattern, name))
        if not least <= found <= least + more:
            right = f"{least}" if not more else f"{least} to {least + more}"
            return f"the timed loop holds {found} of {pattern}, not {right}"
    return ""


def _crowded(kernel: BenchKernel, loop: Loop, wanted: Counts, family: str) -> str:
    """Return which other instructions must not be in a loop, or are too many, as text."""
    opcodes = loop.opcodes
    if spills := sum(count for name, count in opcodes.items() if name.split(".")[0] in {"LDL", "STL"}):
        return f"the timed loop spills registers: {spills} accesses of local memory"
    rest = {name: count for name, count in opcodes.items() if not any(re.fullmatch(p, name) for p in wanted)}
    if called := next((name for name in rest if name.split(".")[0] == "CALL"), ""):
        return f"the timed loop calls a subroutine that the form does not expect: {called}"
    others = sum(count for name, count in rest.items() if name != "NOP")
    most = kernel.form.others(family) * kernel.steps + LOOP
    if others > most:
        name = max(rest, key=lambda name: (name != "NOP", rest[name]))
        return f"the timed loop holds {others} other instructions, such as {rest[name]} {name}, not {most:.0f} at most"
    return ""
