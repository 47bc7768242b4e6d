"""The demand of an instruction on the register ports of a quarter: two banks, even and odd, one register a clock each.

A register of 32 lanes is read through the port of its bank. An operand that the previous instruction kept (its reuse
bit) saves the reads of a register pair. Results that return through a queue take both ports: one clock for each
register from shared memory, two clocks for a result of the XU.
"""

import re

from pysm120.machine_code import pipes
from pysm120.machine_code.registers import of_product
from pysm120.machine_code.sass import Instruction

BANKS = 2
_PAIR = 2  # registers of an operand that the reuse bit keeps
_RETURNED = ("ldmatrix", "load_shared", "store_shared", "shuffle")
_XU = ("mufu", "convert")
_NONE = ("BRA", "EXIT", "NOP", "BAR", "SYNCS", "WARPSYNC")
_WITHOUT_RESULT = ("STS", "STG", "ST")
_REGISTER = re.compile(r"(?<![A-Z])R(\d+)\b")

Demand = tuple[float, float]


def sources(one: Instruction) -> list[tuple[int, ...]]:
    """Return the registers that an instruction reads, by operand; empty for an operand that is not a register."""
    wide = (of_product(one.opcode) or (0,))[1:]
    first = 0 if one.base in _WITHOUT_RESULT else 2 if one.base.endswith("SETP") else 1
    found = []
    for n, operand in enumerate(one.operands[first:]):
        count = wide[n] if n < len(wide) else 1
        found.append(tuple(int(r) + k for r in _REGISTER.findall(operand) for k in range(count)))
    return found


def demand(one: Instruction, before: Instruction, xu: float, returned: float) -> Demand:
    """Return the clocks that an instruction occupies the port of each bank.

    ``before``: the warp's previous instruction. ``xu``: clocks for a result of the XU. ``returned``: clocks for a
    register that returns from shared memory.
    """
    kind = pipes.class_of(one.opcode)
    if one.base in _NONE:
        return 0.0, 0.0
    if kind in _XU or kind in _RETURNED:
        clocks = xu if kind in _XU else returned * max(1, pipes.wavefronts(one))
        return clocks, clocks
    kept = sources(before)
    banks = [0.0] * BANKS
    for n, registers in enumerate(sources(one)):
        is_kept = before.reuse >> n & 1 and n < len(kept) and kept[n] == registers
        for register in registers[_PAIR if is_kept else 0 :]:
            banks[register % BANKS] += 1
    return banks[0], banks[1]
