"""Dependency chains: a latency is measured only if the instructions of a loop wait for each other."""

import re
from collections.abc import Iterable, Sequence

from pysm120.machine_code.sass import Instruction

_REGISTER = re.compile(r"\b(U?[RP])(\d+)\b")
_PREDICATE = re.compile(r"!?U?P(\d+|T)")
_FOUR = re.compile(r".*\.128\b.*|[HIQOD]MMA\..*|LDSM\..*")
_TWO = re.compile(r".*\.64\b.*|IMAD\.WIDE.*|D[A-Z]+(\..*)?")


def chained(instructions: Sequence[Instruction], patterns: Iterable[str]) -> int:
    """Return how many of the opcodes a trip of the loop adds to their longest dependency chain.

    The chain continues from trip to trip. A register that may be written counts as written.
    """
    wanted = [re.compile(pattern) for pattern in patterns]
    depth: dict[str, int] = {}
    lengths = []
    for _ in range(3):  # the first trip enters the chain; all later trips are alike
        for one in instructions:
            sources = _REGISTER.findall(" ".join((one.predicate, *one.operands[len(_results(one)) :])))
            longest = max((depth.get(kind + number, 0) for kind, number in sources), default=0)
            longest += any(pattern.fullmatch(one.opcode) for pattern in wanted)
            for name in _written(one):
                depth[name] = max(longest, depth.get(name, 0)) if one.predicate else longest
        lengths.append(max(depth.values(), default=0))
    return lengths[2] - lengths[1]


def _results(one: Instruction) -> tuple[str, ...]:
    """Return the operands that an instruction writes: the first, with a predicate before or behind it."""
    if one.is_branch or not one.operands or one.operands[0].startswith(("[", "desc")):
        return ()
    pair = one.operands[:2]
    return pair if any(_PREDICATE.fullmatch(operand) for operand in pair) else pair[:1]


def _written(one: Instruction) -> list[str]:
    """Return the registers that an instruction writes; for a vector, as many as it may have."""
    count = 4 if _FOUR.fullmatch(one.opcode) else 2 if _TWO.fullmatch(one.opcode) else 1
    names = []
    for operand in _results(one):
        for kind, number in _REGISTER.findall(operand):
            names += [f"{kind}{int(number) + i}" for i in range(count if kind.endswith("R") else 1)]
    return names
