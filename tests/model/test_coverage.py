"""That the simulated warps of a CTA execute what was recorded: loops one after the other, around others, rare code."""

import dataclasses
import json
from pathlib import Path

import pytest
from sass_text import Op, of_lines

from pysm120 import __main__
from pysm120.machine_code import sass
from pysm120.model import block_counts, chips, coverage, kernel_model, predict, record, roles
from pysm120.model.chips import Chip
from pysm120.model.kernel_model import KernelModel
from pysm120.model.recorded import Launch
from pysm120.model.roles import Other

pytestmark = pytest.mark.virtual

EXP = Op("MUFU.EX2 R0, R1", writes=0)
# Two loops one after the other and one around the second, with code between them.
LOOPS = """.version 8.0
.target sm_90
.address_size 64
.visible .entry loops(.param .u64 out, .param .u32 rounds)
.reqntid 128
{
    .reg .b64 p, at;
    .reg .b32 n, i, k, tid, bit;
    .reg .f32 a, b;
    .reg .pred more, rare;
    ld.param.u64 p, [out];
    ld.param.u32 n, [rounds];
    mov.u32 tid, %tid.x;
    mul.wide.u32 at, tid, 4;
    add.u64 p, p, at;
    mov.f32 a, 0f3F800000;
    mov.u32 i, 0;
first:
    ld.volatile.global.f32 b, [p];
    ex2.approx.f32 a, b;
    st.volatile.global.f32 [p], a;
    add.u32 i, i, 1;
    setp.lt.u32 more, i, n;
@more bra first;
    mov.u32 k, 0;
outer:
    bar.sync 0;
    rcp.approx.f32 a, a;
    mov.u32 i, 0;
inner:
    ld.volatile.global.f32 b, [p+4096];
    sqrt.approx.f32 b, b;
    st.volatile.global.f32 [p+4096], b;
    add.u32 i, i, 1;
    setp.lt.u32 more, i, n;
@more bra inner;
    bar.sync 0;
    and.b32 bit, k, 31;
    setp.ne.u32 rare, bit, 7;
@rare bra around;
    bar.sync 0;
    sin.approx.f32 a, a;
    st.volatile.global.f32 [p], a;
    cos.approx.f32 a, a;
    st.volatile.global.f32 [p], a;
    bar.sync 0;
around:
    add.u32 k, k, 1;
    setp.lt.u32 more, k, 64;
@more bra outer;
    st.global.f32 [p], a;
    ret;
}
"""


@pytest.fixture(scope="module")
def h100() -> Chip:
    return chips.load("h100")


def modelled(chip: Chip, function: sass.Function, launch: Launch, threads: int) -> tuple[KernelModel, list[Other]]:
    """Return the model of a kernel, and the loops beside its main loop."""
    recording = roles.recording(function, launch, threads)
    model = kernel_model.build(
        chip, function, threads, 2, loop=recording.loop, warps=recording.warps, recording=recording, through=True
    )
    found = roles.others(model, model.loop, recording.rounds, {})[0] if model.loop else []
    return model, found


def body(line: int, count: int) -> list[tuple[int, Op]]:
    """Return exponentials that wait for each other, with the line of one statement."""
    return [(line, dataclasses.replace(EXP, waits=1))] * count


def looped(line: int, count: int, label: str) -> list[tuple[int, Op]]:
    """Return a loop of so many exponentials."""
    first = (line, dataclasses.replace(EXP, label=label, waits=1))
    return [first, *body(line, count - 1), (line, Op(f"@P0 BRA `({label})", stall=5))]


def test_loops_one_after_the_other_and_around_others(
    h100: Chip, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole kernel: the simulated instructions are those of the profile, within two percent."""
    (tmp_path / "k.ptx").write_text(LOOPS)
    (tmp_path / "k.cubin").write_bytes(sass.assemble(LOOPS, "sm_90"))
    words = ("--grid", "4", "--block", "128", "--json", f"{tmp_path}/p.json", "f32[4096]:uniform", "u32:40")
    assert __main__.main(["profile", f"{tmp_path}/k.ptx", *words]) == 0
    capsys.readouterr()
    words = (f"{tmp_path}/k.cubin", "--profile", f"{tmp_path}/p.json", "--chip", "h100", "--bytes", "65536", "--json")
    status = __main__.main(["model", *words])
    found = json.loads(capsys.readouterr().out)
    assert (status, found["incomplete"]) == (0, [])
    executed = sum(one["executed"] for one in json.loads((tmp_path / "p.json").read_text())["statements"]) / 4
    chip = h100

    function = record.with_lines(sass.disassemble((tmp_path / "k.cubin").read_bytes())["loops"], LOOPS, "sm_90")
    recording = record.of_file(function, tmp_path / "p.json", 128)
    model, others = modelled(chip, function, recording.launches[-1], 128)
    covered = coverage.of(model, [round(recording.rounds)], others)
    assert covered
    assert covered.statements == executed
    assert covered.simulated == pytest.approx(covered.recorded, rel=0.02)
    assert not covered.lacks


def test_code_that_few_rounds_execute_is_a_part_of_its_own(h100: Chip) -> None:
    """One round in fifty takes an arm that is fifty times as long as the rest of a round."""
    code = [
        (10, Op("MOV R1, RZ")),
        (20, Op("MOV R2, RZ", label=".L_x_1")),
        (20, Op("@P1 BRA `(.L_x_2)")),
        *body(30, 200),
        (40, Op("MOV R3, RZ", label=".L_x_2")),
        (40, Op("@P0 BRA `(.L_x_1)", stall=5)),
        (50, Op("EXIT")),
    ]
    function = of_lines(code)
    launch = Launch({10: 4, 20: 400, 30: 8, 40: 400, 50: 4}, 1, 0)
    model, others = modelled(h100, function, launch, 128)
    covered = coverage.of(model, [100], others)
    assert covered
    (part,) = covered.parts
    assert (part.passes, part.model.warps, len(part.model.paths.around)) == (2.0, 4, 200)
    assert covered.simulated == covered.recorded == 4 * (1 + 1 + 100 * 4 + 2 * 200)
    without, whole = (predict.predict(model, [100] * 264, others=parts) for parts in ([], covered.parts))
    assert whole.clocks > 1.5 * without.clocks


def test_a_launch_takes_as_long_as_its_instructions_are_issued(h100: Chip) -> None:
    function = of_lines([(10, Op("MOV R1, RZ")), *looped(20, 2, ".L_x_1"), (30, Op("EXIT"))])
    model, _ = modelled(h100, function, Launch({10: 4, 20: 40, 30: 4}, 1, 0), 128)
    alone, with_more = (predict.predict(model, [10] * 1320, issues=n) for n in (0, 100_000))
    assert alone.bound == "sm"
    assert with_more.bound == "issue"
    assert with_more.clocks == h100["launch_clocks"] + 1320 * 100_000 / (4 * h100["sms"])


def test_what_the_paths_leave_out_is_said() -> None:
    enough, few = (coverage.Coverage(1000, simulated, 1000) for simulated in (850, 849))
    assert not enough.lacks
    assert few.lacks.startswith("the simulated warps of a CTA execute 849 instructions, but 1,000 were recorded")
    assert "but 2,000 were recorded" in coverage.Coverage(900, 900, 2000).lacks  # of PTX, whose place is unknown
    assert not coverage.Coverage(900, 900, 1800).lacks


def test_a_kernel_none_of_whose_loops_was_executed(h100: Chip) -> None:
    """Its path goes around the loops, and has the code between and behind them."""
    code = [
        *body(10, 8),
        (10, Op("@P1 BRA `(.L_x_2)")),
        *looped(20, 4, ".L_x_1"),
        (30, Op("MOV R3, RZ", label=".L_x_2")),
        *body(30, 30),
        (30, Op("EXIT")),
    ]
    launch = Launch({10: 4, 20: 0, 30: 4}, 1, 0)
    assert roles.hottest(of_lines(code), launch) is None
    model, _ = modelled(h100, of_lines(code), launch, 128)
    covered = coverage.of(model, [0], [])
    assert covered
    assert (model.loop, covered.simulated, covered.recorded) == (None, 4 * 41, 4 * 41)


def test_an_arm_that_some_ctas_take(h100: Chip) -> None:
    """A kernel without loops whose CTAs take a long arm, one in four, and a short one behind it, three in four."""
    code = [
        *body(10, 8),
        (10, Op("@P1 BRA `(.L_x_1)")),
        *body(20, 400),
        (30, Op("MOV R3, RZ", label=".L_x_1")),
        (30, Op("@P2 BRA `(.L_x_2)")),
        *body(40, 100),
        (50, Op("MOV R3, RZ", label=".L_x_2")),
        (50, Op("EXIT")),
    ]

    def clocks(long: int, short: int) -> float:
        model, _ = modelled(h100, of_lines(code), Launch({10: 16, 20: long, 30: 16, 40: short, 50: 16}, 16, 0), 32)
        covered = coverage.of(model, [0], [])
        assert covered
        assert model.loop is None
        assert covered.simulated == pytest.approx(covered.recorded)
        assert covered.recorded == pytest.approx(13 + 400 * long / 16 + 100 * short / 16)
        assert [part.passes for part in covered.parts] == [n / 16 - 1 for n in (long, short) if 0 < n < 16]
        return predict.predict(model, [0] * 2640, others=covered.parts).clocks - float(h100["launch_clocks"])

    least, most = clocks(0, 0), clocks(16, 16)
    assert clocks(4, 12) == pytest.approx(least + (most - least) * (0.25 * 400 + 0.75 * 100) / 500, rel=0.05)


def test_statements_before_a_loop_that_ran_as_often_as_the_loop() -> None:
    """ptxas moved code of the loop before it. What is in no loop runs once for each warp."""
    code = [
        (10, Op("MOV R1, RZ")),
        (10, Op("@P1 BRA `(.L_x_3)")),
        *body(20, 5),
        *looped(30, 3, ".L_x_1"),
        (40, Op("EXIT", label=".L_x_3")),
    ]
    function = of_lines(code)
    found = block_counts.blocks(function, {10: 4, 20: 60, 30: 60, 40: 4})
    assert found == {0: 4, 2: 60, 3: 4}


def test_what_remains_of_an_unrolled_loop() -> None:
    """Two rounds of the source's loop: too few for the block with four copies, and one pass of that with two."""
    four, two, one = (
        [line for n in range(copies) for line in ((20 + k, EXP) for k in range(5)) if n >= 0] for copies in (4, 2, 1)
    )
    code = [
        (10, Op("MOV R1, RZ")),
        (10, Op("@P1 BRA `(.L_x_2)")),
        (20, dataclasses.replace(EXP, label=".L_x_1")),
        *four[1:],
        (25, Op("@P0 BRA `(.L_x_1)", stall=5)),
        (25, Op("@P1 BRA `(.L_x_3)", label=".L_x_2")),
        *two,
        (25, Op("@P1 BRA `(.L_x_4)", label=".L_x_3")),
        *one,
        (40, Op("MOV R1, RZ", label=".L_x_4")),
        (40, Op("EXIT")),
    ]
    function = of_lines(code)
    lines = {len(function.instructions[b.first : b.last]): n for n, b in enumerate(function.blocks)}
    counts = block_counts.blocks(function, {10: 4, **dict.fromkeys(range(20, 26), 8), 40: 4})
    known = {n: counts.get(n) for n in range(len(function.blocks))}
    found = block_counts.of_copies(function, {10: 4, **dict.fromkeys(range(20, 26), 8), 40: 4}, known)
    assert {size: found[lines[size]] for size in (21, 10, 5)} == {21: 0, 10: 4, 5: 0}


def test_ctas_that_start_at_once_share_an_sm_evenly(h100: Chip) -> None:
    """Without products, eight CTAs of an SM take what the simulator says, not what older ones first would."""
    function = of_lines([(10, Op("MOV R1, RZ")), *looped(20, 16, ".L_x_1"), (30, Op("EXIT"))])
    recording = roles.recording(function, Launch({10: 4, 20: 400, 30: 4}, 1, 0), 128)
    model = kernel_model.build(h100, function, 128, 8, loop=recording.loop, warps=4, recording=recording)
    sms = int(h100["sms"])
    whole, more = (predict.predict(model, [100] * n) for n in (8 * sms, 8 * sms + 1))
    least = h100["launch_clocks"] + 8 * (whole.overhead_clocks / 8 + 100 * whole.sm_round_clocks)
    assert whole.clocks == pytest.approx(least, rel=0.05)
    assert more.clocks > whole.clocks
