"""The data flow of machine code and of its PTX: the kernels of the library, and wrong registers that are planted."""

import dataclasses
import re

import numpy as np
import pytest

from pysm120.machine_code import registers, sass, tools
from pysm120.machine_code.cubin import Cubin
from pysm120.machine_code.flow import Comparison
from pysm120.runtime.module import builtin_image, builtin_index, builtins

pytestmark = pytest.mark.virtual

TARGETS = ("sm_120f", "sm_90")
# Registers are planted among the sources of these instructions: the operands as nvdisasm numbers them.
PLANTED = {
    "conversion": (re.compile(r"F2FP\.\S*PACK"), range(1, 3)),
    "product": (re.compile(r"[HIQO]MMA"), range(1, 4)),
    "store": (re.compile(r"ST[GS]\b|STSM"), range(1, 2)),
    "exponential": (re.compile(r"MUFU\.EX2"), range(1, 2)),
    "arithmetic": (re.compile(r"FFMA|FMUL|FADD"), range(1, 4)),
    "shuffle": (re.compile(r"SHFL"), range(2, 3)),
}
NEAR = 150  # instructions before and after a planted one, whose registers it may get
SITES = 2  # of each kind in each kernel


def with_rows(entry: str, target: str) -> tuple[sass.Function, str]:
    """Return the machine code of a kernel of the library with the rows of its PTX, and the PTX."""
    n = builtin_index(entry)
    assert n is not None
    ptx, code = builtin_image(n, target, "ptx").decode(), Cubin(builtin_image(n, target, "cubin")).code(entry)
    for at in tools.assemblers(sass.version_of(ptx)):
        image = sass.assemble(ptx, target, at)
        if Cubin(image).code(entry) == code:
            return sass.disassemble(image)[entry], ptx
    pytest.skip("no ptxas here makes the machine code of the library")


@pytest.mark.sampled(20, each=("target",))
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("entry", [builtin.entry for builtin in builtins()])
def test_kernels_read_the_registers_of_their_ptx(entry: str, target: str) -> None:
    compared = Comparison(*with_rows(entry, target))
    assert compared.anchors
    assert not compared.findings, "\n".join(map(str, compared.findings))


def plant(
    right: Comparison, function: sass.Function, i: int, operands: range, rng: np.random.Generator
) -> sass.Function | None:
    """Replace a source register of an instruction by one that others near it read; None if there is none.

    The value of the new one comes from other statements, as far as the comparison knows.
    """
    one = function.instructions[i]
    use = registers.access(one)
    places = [n for n, operand in enumerate(one.operands) if n in operands and re.match(r"[-|]*R\d", operand)]
    if not places:
        return None
    n = rng.choice(places)
    old = re.search(r"R\d+", one.operands[n])
    assert old is not None
    width = next(len(slot.registers) for slot in use.sources if slot.registers[:1] == (old[0],))
    near = (registers.access(other) for other in function.instructions[max(0, i - NEAR) : i + NEAR])
    held = {slot.registers for other in near for slot in other.sources if len(slot.registers) == width}
    origins = right.origins(i, old[0])
    others = sorted(
        names[0]
        for names in held
        if names[0].startswith("R") and not {*names} & {*use.reads} and not origins.agrees(right.origins(i, names[0]))
    )
    if not others:
        return None
    changed = list(one.operands)
    changed[n] = re.sub(r"R\d+", rng.choice(others), changed[n], count=1)
    planted = list(function.instructions)
    planted[i] = dataclasses.replace(one, operands=tuple(changed))
    return sass.Function(function.name, planted)


@pytest.mark.parametrize(
    ("entry", "target"),
    [
        ("attention_nvfp4_mxfp8_128x64_d64", "sm_120f"),
        ("attention_mxfp8_128x64_d64", "sm_120f"),
        ("attention_bf16_128x64_d64_r16", "sm_120f"),
        ("attention_f16_128x64_d64_r16", "sm_90"),
    ],
)
def test_planted_registers_are_found(entry: str, target: str, rng: np.random.Generator) -> None:
    function, ptx = with_rows(entry, target)
    right = Comparison(function, ptx)
    assert not right.findings
    missed, count = [], 0
    for kind, (pattern, operands) in PLANTED.items():
        sites = [i for i in right.anchors if pattern.match(function.instructions[i].opcode)]
        for i in rng.permutation(sites)[:SITES]:
            planted = plant(right, function, int(i), operands, rng)
            if planted is None:
                continue
            count += 1
            if not Comparison(planted, ptx).findings:
                missed.append((kind, str(function.instructions[i]), str(planted.instructions[i])))
    assert count > 10
    assert len(missed) <= count / 10, missed
    assert not [one for one in missed if one[0] in {"conversion", "product"}], missed


def test_lost_instructions_are_found(rng: np.random.Generator) -> None:
    """The exponentials and products of a kernel, whose results are all needed."""
    function, ptx = with_rows("attention_mxfp8_128x64_d64", "sm_120f")
    for opcode in ("MUFU.EX2", "QMMA"):
        sites = [i for i, one in enumerate(function.instructions) if one.opcode.startswith(opcode)]
        for i in rng.permutation(sites)[:SITES]:
            left = list(function.instructions)
            left[i] = dataclasses.replace(left[i], opcode="NOP", operands=())
            assert Comparison(sass.Function(function.name, left), ptx).findings, function.instructions[i]
