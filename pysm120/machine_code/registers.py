"""Registers that a machine instruction reads and writes, one name for each 32 bits: "R5", "UR4"."""

import re
from functools import cache
from typing import NamedTuple

from pysm120.machine_code.sass import Instruction

# Instructions without a result in a register: those that write predicates alone, memory, or nothing.
_NO_RESULT = re.compile(
    r"U?[IFDH]SETP|HSETP2|U?PLOP3|FCHK|R2P|ST[GSL]?\b|STSM|REDG?\b|BAR|BR[AX]|RET|CALL|WARPSYNC|UTMA|UBLK|LDGSTS|SYNCS\.PHASECHK"
    r"|NANOSLEEP|CCTL|BSSY|BSYNC|EXIT|DEPBAR|KILL|BPT|JM[PX]|MEMBAR|FENCE|BMOV"
)
_PLAIN = re.compile(r"[-~|!]*(U?R)(\d+|Z)\b")
_PREDICATE = re.compile(r"!?U?P(\d|T)\b")
_IN_ADDRESS = re.compile(r"\b(U?R)(\d+)(\.64)?\b")
_MATRICES = re.compile(r"\.([124])(?:\.|$)")
_VECTOR = re.compile(r"\.(?:F32|F16|BF16_V2|F16_V2)x(\d)\b")
_ADDEND = 2  # the place of c in a * b + c
_WIDTHS = {".64": 2, ".128": 4, ".256": 8}

# The registers of D, A, B and C of a matrix product.
_PRODUCTS = (
    (r"HMMA\.16816\.F32", (4, 4, 2, 4)),
    (r"HMMA\.16816\.F16", (2, 4, 2, 2)),
    (r"HMMA\.1688\.F32\.TF32", (4, 4, 2, 4)),
    (r"HMMA\.1688\.F32", (4, 2, 1, 4)),
    (r"HMMA\.1688\.F16", (2, 2, 1, 2)),
    (r"HMMA\.1684\.F32\.TF32", (4, 2, 1, 4)),
    (r"IMMA\.16832", (4, 4, 2, 4)),
    (r"IMMA\.16816", (4, 2, 1, 4)),
    (r"QMMA(\.SF)?\.16832\.F32", (4, 4, 2, 4)),
    (r"QMMA(\.SF)?\.16832\.F16", (2, 4, 2, 2)),
    (r"OMMA(\.SF)?\.16864\.F32", (4, 4, 2, 4)),
)
_COMPILED = tuple((re.compile(pattern), widths) for pattern, widths in _PRODUCTS)


class Slot(NamedTuple):
    """An operand: its registers, none if it is a constant or a special register, and whether it is an address."""

    registers: tuple[str, ...]
    is_address: bool = False


class Access(NamedTuple):
    """The registers that an instruction writes, and its sources in the order of nvdisasm; predicates are left out."""

    writes: tuple[str, ...]
    sources: tuple[Slot, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """Every register that it reads."""
        return tuple(register for slot in self.sources for register in slot.registers)


def access(one: Instruction) -> Access:
    """Return the registers that an instruction reads and writes."""
    operands = list(one.operands)
    writes: tuple[str, ...] = ()
    if _has_result(one.opcode):
        while operands and _PREDICATE.fullmatch(operands[0]):
            operands.pop(0)
        if operands and "[" not in operands[0]:
            writes = _run(operands.pop(0), _result_width(one.opcode))
    sources = []
    for operand in operands:
        if _PREDICATE.fullmatch(operand):
            continue
        if "[" in operand:
            sources.append(Slot(_of_address(operand, is_wide=one.opcode.startswith("CCTL.E")), is_address=True))
        else:
            sources.append(Slot(_run(operand, _source_width(one.opcode, len(sources)))))
    return Access(writes, tuple(sources))


@cache
def _has_result(opcode: str) -> bool:
    return _NO_RESULT.match(opcode) is None


def _run(operand: str, width: int) -> tuple[str, ...]:
    """Return consecutive registers from the one that an operand names."""
    found = _PLAIN.match(operand)
    if found is None or found[2] == "Z":
        return ()
    wide = 2 if operand.endswith(".64") else width
    return tuple(f"{found[1]}{int(found[2]) + i}" for i in range(wide))


def _of_address(operand: str, *, is_wide: bool) -> tuple[str, ...]:
    """Return the registers of an address; CCTL.E has 64 bits in two registers without a mark."""
    found = []
    rest = operand
    if operand.startswith(("desc[", "gdesc[")):
        descriptor, _, rest = operand.partition("][")
        found += [*_run(descriptor.partition("[")[2], 2)]
    wide = ".64" in rest
    for kind, number, mark in _IN_ADDRESS.findall(rest):
        width = 2 if mark or is_wide or (wide and kind == "UR") else 1
        found += [f"{kind}{int(number) + i}" for i in range(width)]
    return tuple(found)


@cache
def of_product(opcode: str) -> tuple[int, int, int, int] | None:
    """Return the registers of D, A, B and C of a matrix product; None for other opcodes."""
    return next((widths for pattern, widths in _COMPILED if pattern.match(opcode)), None)


def _memory_width(opcode: str) -> int:
    """Return the registers of data that a load, store or addition moves."""
    if opcode.startswith(("LDSM", "STSM")):
        count = _MATRICES.search(opcode[4:].replace(".16.", ".").replace(".8.", "."))
        return (int(count[1]) if count else 1) * (2 if "MT1616" in opcode else 1)
    if vector := _VECTOR.search(opcode):
        return int(vector[1]) if ".F32x" in opcode else -(-int(vector[1]) // 2)
    return next((width for mark, width in _WIDTHS.items() if mark in opcode), 1)


@cache
def _result_width(opcode: str) -> int:
    base = opcode.split(".", 1)[0].removeprefix("U")
    if product := of_product(opcode):
        return product[0]
    if base == "CS2R":
        return 1 if ".32" in opcode else 2
    if base in {"DADD", "DMUL", "DFMA"}:
        return 2
    if base.startswith(("LD", "ATOM", "SYNCS")) or base in {"MOV", "SEL", "IADD", "IADD3", "LDC"}:
        return _memory_width(opcode)
    wide = (
        ".WIDE" in opcode
        or (base == "IMNMX" and "64" in opcode)
        or (base == "F2I" and re.search(r"\.[US]64", opcode))
        or (base in {"I2F", "F2F"} and ".F64" in opcode)
    )
    return 2 if wide else 1


@cache
def _source_width(opcode: str, index: int) -> int:
    base = opcode.split(".", 1)[0].removeprefix("U")
    if product := of_product(opcode):
        return (*product[1:], 1, 1, 1)[index]
    if base.startswith(("ST", "RED", "ATOM")) and base != "REDUX":
        return _memory_width(opcode)
    if ".WIDE" in opcode or (".HI" in opcode and base == "IMAD"):
        return 2 if index == _ADDEND else 1
    wide = (
        base in {"DADD", "DMUL", "DFMA", "DSETP"}
        or (base in {"MOV", "SEL", "IADD", "IADD3", "IMNMX", "ISETP"} and "64" in opcode)
        or (base == "I2F" and re.search(r"\.[US]64", opcode))
    )
    return 2 if wide else 1
