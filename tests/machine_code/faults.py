"""Faults in machine code: another register, another constant, the opposite predicate, the other half."""

import dataclasses
import re
import struct
from collections.abc import Callable

import numpy as np

from pysm120.machine_code import sass
from pysm120.machine_code.sass import Instruction

NEAR = 40  # instructions before and after the faulty one, whose registers it may get
_REGISTER = re.compile(r"\bR\d+\b")
_PREDICATE = re.compile(r"!?U?P\d")
_HALVES = {"H0_H0": "H1_H1", "H1_H1": "H0_H0", "H1": "", "B1": "B2", "B2": "B3", "B3": "B1"}

Fault = Callable[[sass.Function, int, np.random.Generator], "Instruction | None"]


def _sources(one: Instruction) -> range:
    """Return the places of operands that are read: all but the first, and all of a store."""
    return range(0 if one.base in {"STG", "STS", "STSM", "REDG"} else 1, len(one.operands))


def _with(one: Instruction, place: int, operand: str, word: int | None = None) -> Instruction:
    operands = [*one.operands]
    operands[place] = operand
    return dataclasses.replace(one, operands=tuple(operands), word=one.word if word is None else word)


def register(function: sass.Function, i: int, rng: np.random.Generator) -> Instruction | None:
    """Read another register, one that instructions near it name."""
    one = function.instructions[i]
    places = [n for n in _sources(one) if _REGISTER.search(one.operands[n])]
    near = function.instructions[max(0, i - NEAR) : i + NEAR]
    names = sorted({name for other in near for operand in other.operands for name in _REGISTER.findall(operand)})
    if not places or one.base == "FCHK":  # both ways of a division give the same quotient
        return None
    place = int(rng.choice(places))
    old = _REGISTER.findall(one.operands[place])[0]
    others = [name for name in names if name != old]
    return _with(one, place, _REGISTER.sub(str(rng.choice(others)), one.operands[place], count=1)) if others else None


def constant(function: sass.Function, i: int, rng: np.random.Generator) -> Instruction | None:
    """Read another immediate: one bit of an integer, or a float an eighth smaller.

    Limits and masks stay: a neighbour of a limit is rarely met, and most bits of a mask meet zeros.
    """
    one = function.instructions[i]
    if one.base.removeprefix("U") in {"ISETP", "LOP3"}:
        return None
    for n in _sources(one):
        operand = one.operands[n]
        if re.fullmatch(r"0x[0-9a-f]+", operand) and one.target is None and "BAR" not in one.opcode:
            value = int(operand, 16)
            return _with(one, n, f"{value ^ 1 << int(rng.integers(max(1, value.bit_length()))):#x}")
        if one.base in {"FMUL", "FADD", "FFMA", "FSEL"} and re.fullmatch(r"-?\d[\d.]*(e[-+]\d+)?", operand):
            smaller = np.float32(float(operand) * 0.875)
            bits = struct.unpack("<I", struct.pack("<f", smaller))[0]
            return _with(one, n, f"{float(smaller)!r}", one.word & ~(0xFFFFFFFF << 32) | bits << 32)
    return None


def _opposite(name: str) -> str:
    return name[1:] if name.startswith("!") else f"!{name}"


def predicate(function: sass.Function, i: int, rng: np.random.Generator) -> Instruction | None:
    """Execute where the guard does not hold, or read the opposite of a predicate."""
    one = function.instructions[i]
    if one.predicate:
        return dataclasses.replace(one, predicate=_opposite(one.predicate))
    places = [n for n in _sources(one) if n > 1 and _PREDICATE.fullmatch(one.operands[n])]
    if not places:
        return None
    place = int(rng.choice(places))
    return _with(one, place, _opposite(one.operands[place]))


def half(function: sass.Function, i: int, _: np.random.Generator) -> Instruction | None:
    """Read the other half or byte of a register."""
    one = function.instructions[i]
    for n in _sources(one):
        name, _dot, part = one.operands[n].rpartition(".")
        if part in _HALVES:
            return _with(one, n, f"{name}.{_HALVES[part]}".rstrip("."))
        if one.base == "PRMT" and n == 2 and re.fullmatch(r"0x[0-9a-f]+", one.operands[n]):
            return _with(one, n, f"{int(one.operands[n], 16) ^ 0x2222:#x}")
    return None


FAULTS: dict[str, Fault] = {"register": register, "constant": constant, "predicate": predicate, "half": half}


def with_instruction(function: sass.Function, i: int, one: Instruction) -> sass.Function:
    """Return a function with another instruction."""
    changed = [*function.instructions]
    changed[i] = one
    return sass.Function(function.name, changed)
