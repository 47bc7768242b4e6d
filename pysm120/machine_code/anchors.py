"""Anchors: statements of PTX that ptxas makes one machine instruction each, and the instruction of each."""

import re
from functools import cache
from typing import NamedTuple

from pysm120.machine_code.statements import Statement


class Anchor(NamedTuple):
    """A class of anchors: the opcodes of its statements and instructions, and how their sources correspond.

    With the layout "ordered" the sources are in the same places, with "swapped" the first two may be exchanged, with
    "first" only the first ones are compared, and with "any" each source is one of the instruction's.
    """

    statement: re.Pattern[str]
    instruction: re.Pattern[str]
    layout: str
    parts: re.Pattern[str]  # instructions of which a statement becomes several

    @property
    def stays(self) -> bool:
        """Whether ptxas makes its instruction if the result is needed; loads, for one, it may combine."""
        return bool(_STAYS.match(self.instruction.pattern))


_STAYS = re.compile(r"MUFU|\[HI?QO\]MMA|U\?(FFMA|FADD)")


def _class(statement: str, instruction: str, layout: str, parts: str = r"(?!)") -> Anchor:
    return Anchor(re.compile(statement), re.compile(instruction), layout, re.compile(parts))


_CLASSES = (
    _class(r"cvt\.\S*x2\.f32$", r"F2FP\.\S*PACK", "ordered"),
    _class(r"cvt\.\S*x2\.e\dm\dx2$", r"F2FP\.\S*UNPACK", "ordered"),
    _class(r"cvt\.\S*\.b?f16\.f32$", r"F2FP\b", "any"),
    _class(r"cvt\.f32\.f16$", r"HADD2\.F32", "any"),
    _class(r"cvt\.(\w+\.)*f32\.[us]\d+$", r"U?I2FP?\b", "any"),
    _class(r"cvt\.(\w+\.)*[us]\d+\.f32$", r"U?F2I\b", "any"),
    _class(r"(ex2|lg2|rcp|rsqrt)\.approx", r"MUFU", "ordered"),
    _class(r"mma\.\S*\.f32\.e\dm\d\.", r"[HQO]MMA", "ordered", r"HMMA"),
    _class(r"mma\.", r"[HIQO]MMA", "ordered"),
    _class(r"ldmatrix", r"LDSM", "ordered"),
    _class(r"movmatrix", r"MOVM", "ordered"),
    _class(r"ld\.(volatile\.)?shared", r"LDS\b", "any"),
    _class(r"ld\.(\w+\.)*global", r"LDG?\b", "any"),
    _class(r"st(matrix)?\.(\S+\.)*shared", r"STSM?\b", "ordered"),
    _class(r"st\.(\w+\.)*global", r"STG?\b", "ordered"),
    _class(r"red\.", r"REDG?\b|ATOM", "ordered"),
    _class(r"atom\.", r"ATOM", "any"),
    _class(r"shfl\.", r"SHFL", "first"),
    _class(r"fma\.rn\.(ftz\.)?f32$", r"U?FFMA", "swapped"),
    _class(r"mul\.rn\.(ftz\.)?f32$", r"U?FMUL", "swapped"),
    _class(r"(add|sub)\.rn\.(ftz\.)?f32$", r"U?FADD", "swapped"),
    _class(r"(max|min)\.(NaN\.)?f32$", r"FMNMX\b", "swapped"),
)


@cache
def _class_of(opcode: str) -> Anchor | None:
    return next((one for one in _CLASSES if one.statement.match(opcode)), None)


def class_of(statement: Statement) -> Anchor | None:
    """Return the class of a statement, or None if it is no anchor."""
    return _class_of(statement.opcode)
