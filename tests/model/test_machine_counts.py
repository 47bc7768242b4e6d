"""That the counts of blocks are right: the virtual device executes the machine code itself, and counts, too."""

import re
from collections import Counter

import numpy as np
import pytest

from pysm120 import Device
from pysm120.machine_code import sass
from pysm120.machine_code.execute.kernel import as_ptx
from pysm120.model import record, validation
from pysm120.model.problem import Problem
from pysm120.model.recorded import Launch, Recording, executed_of
from pysm120.observe.profile import Statement
from pysm120.runtime.module import builtin_image, builtin_index, builtins

pytestmark = pytest.mark.virtual

ROUNDS, WARPS, CTAS = 32, 2, 3
MANY = 32
# A running maximum, as that of attention: a warp adapts its sums in the rounds in which a lane's maximum rises. ptxas
# copies the arm, with its shuffles, for warps whose lanes have diverged: it does not know
# that all lanes have as many rounds.
RESCALES = f""".version 8.8
.target sm_120f
.address_size 64
.visible .entry rescales(.param .u64 in, .param .u64 out)
.reqntid {32 * WARPS}
{{
    .reg .b64 x, y, wide;
    .reg .b32 i, at, cta, rounds;
    .reg .f32 new, highest, other, alpha, sum_<16>;
    .reg .pred rises, more;
    ld.param.u64 x, [in];
    ld.param.u64 y, [out];
    mov.u32 at, %tid.x;
    mov.u32 cta, %ctaid.x;
    mad.lo.u32 at, cta, {32 * WARPS}, at;
    mul.wide.u32 wide, at, 4;
    add.u64 x, x, wide;
    add.u64 y, y, wide;
    mov.f32 highest, 0fC0000000;
    {" ".join(f"mov.f32 sum_{n}, 0f3F800000;" for n in range(16))}
    ld.global.u32 rounds, [y];
    mov.u32 i, 0;
round:
    ld.global.f32 new, [x];
    setp.gt.f32 rises, new, highest;
    vote.sync.any.pred rises, rises, -1;
@!rises bra weigh;
    shfl.sync.bfly.b32 other, new, 1, 31, -1;
    max.f32 new, new, other;
    shfl.sync.bfly.b32 other, new, 2, 31, -1;
    max.f32 new, new, other;
    shfl.sync.bfly.b32 other, new, 4, 31, -1;
    max.f32 new, new, other;
    max.f32 new, new, highest;
    sub.f32 alpha, highest, new;
    ex2.approx.f32 alpha, alpha;
    mov.f32 highest, new;
    {" ".join(f"mul.f32 sum_{n}, sum_{n}, alpha;" for n in range(16))}
weigh:
    {" ".join(f"fma.rn.f32 sum_{n}, new, new, sum_{n};" for n in range(16))}
    add.u64 x, x, {4 * 32 * WARPS * CTAS};
    add.u32 i, i, 1;
    setp.lt.u32 more, i, rounds;
@more bra round;
    {" ".join(f"add.f32 highest, highest, sum_{n};" for n in range(16))}
    st.global.f32 [y], highest;
    ret;
}}
"""


def statements_of(device: Device, ptx: str) -> list[Statement]:
    """Launch the kernel with random numbers, and return what was executed."""
    numbers = np.random.default_rng(7).standard_normal((ROUNDS, CTAS * WARPS * 32)).astype(np.float32)
    arrays = device.array(numbers), device.array(np.full(CTAS * WARPS * 32, ROUNDS, np.uint32))
    kernel = device.load(ptx)["rescales"]
    with device.profile() as p:
        kernel(CTAS, 32 * WARPS, *arrays)
        device.synchronize()
    return [one for one in p.statements if one.kernel == "rescales" and one.opcode]


def of_machine_code(function: sass.Function, text: str, statements: list[Statement]) -> dict[int, int]:
    """Return how often most instructions of each block were executed; ``text`` is the machine code as PTX."""
    marks, mark = [], 0
    for line in text.splitlines():
        found = re.match(r"#line (\d+) ", line)
        mark = int(found[1]) - 1 if found else mark
        marks.append(mark)
    counts: dict[int, int] = {}
    for one in statements:
        at = marks[one.row - 1]
        counts[at] = max(counts.get(at, 0), one.counts.executed)
    ran = {n: [counts[at] for at in range(b.first, b.last) if at in counts] for n, b in enumerate(function.blocks)}
    return {n: Counter(found).most_common(1)[0][0] for n, found in ran.items() if found}


def test_an_arm_that_ptxas_copies(device: Device) -> None:
    """Every known count is that of the machine code, and that of the arm is known."""
    image = sass.assemble(RESCALES, "sm_120f")
    function = record.with_lines(sass.disassemble(image)["rescales"], RESCALES, "sm_120f")
    executed = executed_of(statements_of(device, RESCALES), "rescales")
    recording = Recording(function, [Launch(executed, CTAS, ROUNDS)], WARPS)
    text = as_ptx(function, image)
    machine = of_machine_code(function, text, statements_of(device, text))
    known = {n: count for n in machine if (count := recording.count(n)) is not None}
    assert known == {n: machine[n] for n in known}
    arms = [
        n for n, b in enumerate(function.blocks)
        if any(one.base == "SHFL" for one in function.instructions[b.first : b.last])
    ]  # fmt: skip
    assert len(arms) > 1, "ptxas copies the shuffles"
    most = max(machine[n] for n in arms)
    assert 0 < most < ROUNDS * WARPS * CTAS
    assert max(known[n] for n in arms) == most
    assert not recording.by_rules
    taken = pytest.approx(1 - most / (ROUNDS * WARPS * CTAS))
    assert any(share.of(ROUNDS) == taken for share in recording.shares.values())


def test_long_problems_are_recorded_with_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """In MXFP8 a warp adapts its sums the more rarely, the more keys it has seen: no line through few rounds."""
    kernel = next(one for one in builtins() if one.entry == "attention_mxfp8_192x64_d128")
    index = builtin_index(kernel.entry)
    assert index is not None
    ptx = builtin_image(index, "sm_120f", "ptx").decode()
    code = sass.disassemble(builtin_image(index, "sm_120f", "cubin"))[kernel.entry]

    def recorded(rows: int) -> Recording:
        monkeypatch.setattr(record, "ROWS", rows)
        found = validation.recorder(ptx, "sm_120f", Problem(1, 1024, 1, 128), kernel)(code, kernel.threads)[1]
        assert found
        return found

    few, whole = recorded(256), recorded(2048)
    assert [(one.ctas, one.rounds) for one in few.launches] == [(2, 8), (2, 16)]
    assert [(one.ctas, one.rounds) for one in whole.launches] == [(3, 8), (6, 16)]
    (branch,) = (at for at, share in whole.shares.items() if 0 < share.of(16) < 1 and adapts(code, at))
    assert few.shares[branch].of(16) == pytest.approx(whole.shares[branch].of(16), abs=0.05)


def adapts(code: sass.Function, address: int) -> bool:
    """Whether a branch skips many multiplications and no product of matrices."""
    to = next(one.target for one in code.instructions if one.address == address)
    skipped = [one for one in code.instructions if address < one.address < (to or 0)]
    return sum(one.base == "FMUL" for one in skipped) > MANY and not any(one.is_tensor for one in skipped)
