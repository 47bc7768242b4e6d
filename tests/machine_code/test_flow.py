"""The data flow of machine code and of its PTX: the kernels of the library, and wrong registers that are planted."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from pysm120.machine_code import registers, sass
from pysm120.machine_code.cubin import Cubin
from pysm120.machine_code.flow import Comparison
from pysm120.model import record
from pysm120.runtime.module import builtin_image, builtin_index, builtins

pytestmark = pytest.mark.virtual

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
TOGETHER = 8  # kernels that are assembled together
SITES = 2  # of each kind in each kernel
PLANTS = 6  # of each kind: a tenth of them may be missed, and a few would vary by more


# ptxas 13.0 makes no instruction for fma and ex2, which change s_0 and s_7 in place: the conversions read s_0 as it was
# before the loop, and R1, which nothing writes. The volatile load keeps the number of rounds unknown.
IN_PLACE = """.version 8.8
.target sm_120f
.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry in_place(.param .u64 param_o)
{
    .reg .b64 o;
    .reg .b32 p_<4>, b_<4>, t;
    .reg .f32 s_<8>, o_<4>, scale, bias;
    .reg .pred more;
    ld.param.u64            o, [param_o];
    ld.shared.v4.f32        {s_0, s_1, s_2, s_3}, [smem];
    ld.shared.v4.f32        {s_4, s_5, s_6, s_7}, [smem + 16];
    ld.shared.v4.f32        {o_0, o_1, o_2, o_3}, [smem + 32];
    ld.shared.v4.b32        {p_0, p_1, p_2, p_3}, [smem + 48];
    ld.shared.v4.b32        {b_0, b_1, b_2, b_3}, [smem + 64];
    ld.shared.v2.f32        {scale, bias}, [smem + 80];
tile_loop:
    fma.rn.f32              s_0, s_0, scale, bias;
    ex2.approx.ftz.f32      s_7, s_7;
    {
    .reg .b8 byte_<4>;
    cvt.rn.satfinite.e2m1x2.f32 byte_0, s_1, s_0;
    cvt.rn.satfinite.e2m1x2.f32 byte_1, s_3, s_2;
    cvt.rn.satfinite.e2m1x2.f32 byte_2, s_5, s_4;
    cvt.rn.satfinite.e2m1x2.f32 byte_3, s_7, s_6;
    mov.b32                 p_0, {byte_0, byte_1, byte_2, byte_3};
    }
    mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3
        {o_0, o_1, o_2, o_3}, {p_0, p_1, p_2, p_3}, {b_0, b_1}, {o_0, o_1, o_2, o_3},
        b_2, {0, 0}, b_3, {0, 0};
    ld.volatile.shared.u32  t, [smem + 96];
    setp.ne.u32             more, t, 0;
@more bra                   tile_loop;
    st.global.v4.f32        [o], {o_0, o_1, o_2, o_3};
    ret;
}
"""


def words_of(entry: str, target: str) -> tuple[str, list[int]]:
    """Return the PTX of a kernel of the library and the words of its machine code."""
    n = builtin_index(entry)
    assert n is not None
    ptx, code = builtin_image(n, target, "ptx").decode(), Cubin(builtin_image(n, target, "cubin")).code(entry)
    return ptx, [int.from_bytes(code[at : at + 16], "little") for at in range(0, len(code), 16)]


def with_rows(entry: str, target: str) -> tuple[sass.Function, str]:
    """Return the machine code of a kernel of the library with the rows of its PTX, and the PTX."""
    ptx, words = words_of(entry, target)
    return record.lines_of(entry, words, ptx, target), ptx


def all_with_rows(entries: Sequence[str], target: str) -> Iterator[tuple[sass.Function, str]]:
    """Do the same for kernels of one template, assembled together, because nvdisasm takes most of its time to start."""
    heads: dict[str, list[tuple[str, str, list[int]]]] = {}
    for entry in entries:
        ptx, words = words_of(entry, target)
        heads.setdefault(ptx[: ptx.index(".visible .entry")], []).append((entry, ptx, words))
    for head, kernels in heads.items():
        bodies = [ptx.removeprefix(head) for _, ptx, _ in kernels]
        functions = sass.disassemble(sass.assemble(head + "".join(bodies), target))
        before = itertools.accumulate([0, *(body.count("\n") for body in bodies)])
        for (entry, ptx, words), lines in zip(kernels, before, strict=False):
            found = [
                dataclasses.replace(one, line=one.line and one.line - lines) for one in functions[entry].instructions
            ]
            if [one.word for one in found] == words:
                yield sass.Function(entry, found), ptx
            else:
                yield with_rows(entry, target)


def by_template() -> list[list[str]]:
    """Return the kernels of the library, up to TOGETHER of one template in a list."""
    members: dict[str, list[str]] = {}
    for builtin in builtins():
        members.setdefault(builtin.source, []).append(builtin.entry)
    return [kernels[at : at + TOGETHER] for kernels in members.values() for at in range(0, len(kernels), TOGETHER)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("entries", by_template(), ids=lambda entries: f"{entries[0]}-{len(entries)}")
def test_kernels_read_the_registers_of_their_ptx(entries: list[str]) -> None:
    """No device here runs this code; that of sm_90 is run on a GPU."""
    for function, ptx in all_with_rows(entries, "sm_120f"):
        compared = Comparison(function, ptx)
        assert compared.anchors, function.name
        assert not compared.findings, "\n".join([function.name, *map(str, compared.findings)])


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
        tried = ((i, plant(right, function, int(i), operands, rng)) for i in rng.permutation(sites))
        for i, planted in itertools.islice(((i, one) for i, one in tried if one), PLANTS):
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


def test_values_that_change_in_place_and_are_packed() -> None:
    """Where ptxas loses the exponential, the comparison says so; in registers of its own ptxas keeps it."""
    function = sass.disassemble(sass.assemble(IN_PLACE, "sm_120f"))["in_place"]
    is_lost = not any(one.opcode.startswith("MUFU.EX2") for one in function.instructions)
    findings = Comparison(function, IN_PLACE).findings
    assert bool(findings) == is_lost
    exponential = next(i for i, line in enumerate(IN_PLACE.splitlines(), 1) if "ex2" in line)
    assert all(exponential in finding.wanted for finding in findings)

    apart = IN_PLACE.replace("ex2.approx.ftz.f32      s_7,", "ex2.approx.ftz.f32      e_7,").replace(
        "byte_3, s_7", "byte_3, e_7"
    )
    apart = apart.replace("s_0, s_0, scale", "e_0, s_0, scale").replace("s_1, s_0;", "s_1, e_0;")
    apart = apart.replace("scale, bias;\n    .reg .pred", "scale, bias, e_0, e_7;\n    .reg .pred")
    function = sass.disassemble(sass.assemble(apart, "sm_120f"))["in_place"]
    assert not Comparison(function, apart).findings
