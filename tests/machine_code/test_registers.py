"""Registers that machine instructions read and write, against the life ranges that nvdisasm prints."""

import re
from pathlib import Path

import pytest

from pysm120.machine_code import registers, sass, tools
from pysm120.machine_code.registers import access
from pysm120.machine_code.sass import Instruction
from pysm120.runtime.module import builtin_image, builtins

pytestmark = pytest.mark.virtual

ADDRESS = re.compile(r"\s*/\*([0-9a-f]{4,})\*/")
MARK = re.compile(r"[\^vx]")  # it writes, reads, or does both
KNOWN = 62  # uniform registers that nvdisasm shows; those above are left out of its columns
# nvdisasm counts more registers as read: descriptors in memory, what calls keep, and 64 bits of what leads to code.
OTHERWISE = re.compile(r"UTMA|UBLKCP|SYNCS\.EXCH|CALL|RET|BRX")


def life_ranges(text: str) -> dict[int, tuple[set[str], set[str]]]:
    """Return the registers that the instruction at each address writes and reads, from the columns of nvdisasm."""
    titles = next(line for line in text.splitlines() if " GPR " in line).split("//", 1)[1].split("|")
    numbers = next(line for line in text.splitlines() if re.search(r"// \|\s*#\s", line)).split("//", 1)[1].split("|")
    names: dict[int, str] = {}
    offset = 0
    for title, part in zip(titles, numbers, strict=False):
        kind = "UR" if "UGPR" in title else "R" if "GPR" in title else ""
        names |= {offset + found.end() - 1: f"{kind}{found[0]}" for found in re.finditer(r"\d+", part) if kind}
        offset += len(part) + 1
    found = {}
    for line in text.splitlines():
        if (at := ADDRESS.match(line)) and "//" in line:
            marks = line.split("//", 1)[1]
            held = [(one[0], names[one.start()]) for one in MARK.finditer(marks) if one.start() in names]
            found[int(at[1], 16)] = ({n for m, n in held if m in "^x"}, {n for m, n in held if m in "vx"})
    return found


@pytest.mark.sampled(4, each=("target",))
@pytest.mark.parametrize("target", ["sm_120f", "sm_90"])
@pytest.mark.parametrize("n", range(0, len(builtins()), 11))
def test_registers_are_those_of_nvdisasm(n: int, target: str, tmp_path: Path) -> None:
    path = tmp_path / "kernel.cubin"
    path.write_bytes(builtin_image(n, target, "cubin"))
    text = tools.run("nvdisasm", "-c", "-plr", path)
    wanted = life_ranges(text)
    (function,) = sass.parse(re.sub(r"//.*", "", text)).values()
    assert len(wanted) > len(function.instructions) / 2
    for one in function.instructions:
        use = access(one)
        above = [name for name in (*use.writes, *use.reads) if name.startswith("UR") and int(name[2:]) > KNOWN]
        if one.address in wanted and not above and not OTHERWISE.match(one.opcode):
            assert (set(use.writes), set(use.reads)) == wanted[one.address], one


@pytest.mark.parametrize(
    ("opcode", "operands", "writes", "reads"),
    [
        ("IMAD.WIDE.U32", "R2, R5, 0x4, R8", "R2 R3", "R5 R8 R9"),
        ("IMAD.HI.U32", "R4, P2, R3, R7, R4", "R4", "R3 R7 R4 R5"),
        ("LDG.E.128", "R4, desc[UR4][R2.64+0x10]", "R4 R5 R6 R7", "UR4 UR5 R2 R3"),
        ("STS.64", "[R3+UR6], R10", "", "R3 UR6 R10 R11"),
        ("LDSM.8.MT1616.2", "R4, [R9]", "R4 R5 R6 R7", "R9"),
        ("REDG.E.ADD.F32x4.FTZ.RN.STRONG.GPU", "desc[UR4][R2.64], R8", "", "UR4 UR5 R2 R3 R8 R9 R10 R11"),
        ("ISETP.GE.AND", "P0, PT, R1, R2, PT", "", "R1 R2"),
        ("FADD", "R1, -R2, |R3|", "R1", "R2 R3"),
        ("HADD2.F32", "R1, -RZ, R3.H1_H1", "R1", "R3"),
    ],
)
def test_registers(opcode: str, operands: str, writes: str, reads: str) -> None:
    parts = tuple(part.strip() for part in re.split(r",(?![^\[]*\])", operands))
    use = registers.access(Instruction(0, "", opcode, parts, 0))
    assert (use.writes, use.reads) == (tuple(writes.split()), tuple(reads.split()))
