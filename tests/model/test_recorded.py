"""Which way warps go: what the virtual device counted, joined to machine code by lines, and what is left to rules."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from sass_text import Op, of_lines

from pysm120 import Device, __main__
from pysm120.machine_code import sass
from pysm120.model import block_counts, chips, kernel_model, predict, validation
from pysm120.model import problem as problem_module
from pysm120.model import record as record_module
from pysm120.model import work as work_module
from pysm120.model.recorded import Launch, Recording, Share
from pysm120.runtime.module import builtin_image, builtins

pytestmark = pytest.mark.virtual

# A loop whose branches lead over line 30, which is rare, and over 40; the code of line 50 is there twice.
CODE = [
    (10, Op("MOV R1, RZ")),
    (20, Op("ISETP.NE.AND P0, PT, R0, RZ, PT", label=".L_x_1")),
    (20, Op("@P0 BRA `(.L_x_2)")),
    (30, Op("FADD R2, R2, R3")),
    (50, Op("FADD R4, R4, R3")),
    (50, Op("FADD R4, R4, R3", label=".L_x_2")),
    (40, Op("@P1 BRA `(.L_x_3)")),
    (50, Op("FMUL R4, R4, R3")),
    (60, Op("HMMA.16816.F32 R4, R8, R12, R4", label=".L_x_3")),
    (60, Op("@P2 BRA `(.L_x_1)")),
    (70, Op("EXIT")),
]


def function() -> sass.Function:
    return of_lines(CODE)


def counts(ctas: int, rounds: int, *, rare: int) -> Launch:
    """What two warps of each CTA do: ``rare`` rounds do not skip line 30; nothing tells of the second branch."""
    warps = 2 * ctas
    executed = {10: warps, 20: warps * rounds, 30: warps * rare, 40: warps * rounds, 50: 3, 60: warps * rounds}
    return Launch({**executed, 70: warps}, ctas, rounds)


def branches(of: sass.Function) -> list[int]:
    return [one.address for one in of.instructions if one.is_branch]


def test_a_barrier_says_how_often_a_block_ran_with_more_code_of_an_arm() -> None:
    code = [
        (10, Op("MOV R1, RZ")),
        (20, Op("BAR.SYNC.DEFER_BLOCKING 0x0", label=".L_x_1")),
        (30, Op("FADD R2, R2, R3")),  # of an arm that no warp takes, like the guarded store
        (40, Op("FADD R4, R4, R3")),
        (50, Op("@P0 STS [R4], R2")),
        (60, Op("@P2 BRA `(.L_x_1)")),
        (70, Op("EXIT")),
    ]
    executed = {10: 6, 20: 48, 30: 0, 40: 0, 50: 0, 60: 48, 70: 6}
    assert list(block_counts.blocks(of_lines(code), executed).values()) == [6, 48, 6]
    twice = [*code[:5], (20, Op("BAR.SYNC.DEFER_BLOCKING 0x0")), *code[5:]]  # an unrolled round has it twice
    assert list(block_counts.blocks(of_lines(twice), executed).values()) == [6, 24, 6]
    guarded = [(line, Op("@P1 BAR.SYNC.DEFER_BLOCKING 0x0", label=".L_x_1") if line == 20 else op) for line, op in code]
    executed_elsewhere = executed | {10: 0, 70: 0}  # a guarded barrier says no more than any other statement
    assert list(block_counts.blocks(of_lines(guarded), executed_elsewhere).values()) == [0, 0, 0]


def test_guarded_instructions_do_not_say_how_often_a_block_ran() -> None:
    """Most statements of a block may come from an arm whose branch ptxas turned into guards."""
    arm = [(line, Op(f"@P0 MOV R{line}, R3")) for line in (30, 31, 32)]
    code = [
        (10, Op("MOV R1, RZ")),
        (20, Op("ISETP.NE.AND P0, PT, R0, RZ, PT", label=".L_x_1")),
        *arm,
        (33, Op("FADD R8, R2, R3")),  # with one instruction that always runs, and one that is guarded
        (33, Op("@P0 FADD R9, R8, R3")),
        (40, Op("@P2 BRA `(.L_x_1)")),
        (50, Op("EXIT")),
    ]
    executed = {10: 6, 20: 48, 30: 12, 31: 12, 32: 12, 33: 48, 40: 48, 50: 6}
    assert block_counts.blocks(of_lines(code), executed) == {0: 6, 1: 48, 2: 6}
    only_guarded = [code[0], (20, Op("@P0 MOV R20, R3", label=".L_x_1")), *arm, *code[-2:]]  # then most of these say it
    assert block_counts.blocks(of_lines(only_guarded), {**executed, 20: 12, 40: 12}) == {0: 6, 1: 12, 2: 6}


def test_a_block_runs_at_least_as_often_as_what_leads_to_it_alone() -> None:
    """Most statements of a block may come from an arm behind it, which ran less often, and say too little."""
    arm = [(30, Op("FADD R2, R2, R3")), (31, Op("FADD R4, R2, R3")), (32, Op("FADD R5, R4, R3"))]
    code = [
        (10, Op("MOV R1, RZ")),
        (20, Op("ISETP.NE.AND P0, PT, R0, RZ, PT", label=".L_x_1")),
        *arm,
        (20, Op("@P0 BRA `(.L_x_2)")),
        (40, Op("FMUL R4, R4, R3")),
        (33, Op("FMUL R6, R4, R3", label=".L_x_2")),  # of the same arm, guarded
        (60, Op("@P2 BRA `(.L_x_1)")),
        (70, Op("EXIT")),
    ]
    executed = {10: 6, 20: 48, 30: 12, 31: 12, 32: 12, 40: 36, 33: 12, 60: 48, 70: 6}
    assert block_counts.blocks(of_lines(code), executed) == {0: 6, 1: 48, 2: 36, 3: 48, 4: 6}


def test_a_loop_that_is_one_block_may_have_every_statement_several_times() -> None:
    """Where the end of the loop has one copy for n rounds, the accesses of memory tell n."""
    load, add = (20, Op("LDG.E R2, [R8.64]")), (30, Op("FADD R4, R4, R2"))
    code = [
        (10, Op("MOV R1, RZ")),
        (20, Op("LDG.E R2, [R8.64]", label=".L_x_1")),
        *[add, load] * 3,
        add,
        (40, Op("IADD3 R1, R1, 0x4, RZ")),
        (40, Op("@P2 BRA `(.L_x_1)")),
        (50, Op("EXIT")),
    ]
    executed = {10: 6, 20: 192, 30: 192, 40: 192, 50: 6}
    assert block_counts.blocks(of_lines(code), executed, {20}) == {0: 6, 1: 48, 2: 6}
    assert block_counts.blocks(of_lines(code), executed) == {0: 6, 1: 192, 2: 6}  # line 20 may be four instructions
    less = [*code[:4], *code[5:]]  # a copy of a load is missing
    assert block_counts.blocks(of_lines(less), executed, {20}) == {0: 6, 1: 192, 2: 6}


def test_bytes_of_an_arm_count_in_the_rounds_that_take_it() -> None:
    """Two warps load in one of four rounds, and store in the others."""
    code = [
        (10, Op("MOV R1, RZ")),
        (20, Op("ISETP.NE.AND P0, PT, R0, RZ, PT", label=".L_x_1")),
        (20, Op("@P0 BRA `(.L_x_2)")),
        (30, Op("LDG.E.128 R4, [R8.64]")),
        (30, Op("BRA `(.L_x_3)")),
        (40, Op("STG.E.128 [R8.64], R4", label=".L_x_2")),
        (60, Op("HMMA.16816.F32 R4, R8, R12, R4", label=".L_x_3")),
        (60, Op("@P2 BRA `(.L_x_1)")),
        (70, Op("EXIT")),
    ]
    executed = {10: 2, 20: 32, 30: 8, 40: 24, 60: 32, 70: 2}
    recording = Recording(of_lines(code), [Launch(executed, 1, 16)], 2)
    model = kernel_model.build(chips.load("h200"), recording.function, 64, 1, recording=recording)
    assert predict.stored_bytes(model, [16]) == 2 * 12 * 512
    assert predict.l2_bytes(model, [16]) == 2 * 16 * 512


def test_blocks_run_as_often_as_statements_of_their_own() -> None:
    k = function()
    launch = counts(3, 8, rare=2)
    found = block_counts.blocks(k, launch.executed)
    first = [k.instructions[block.first].line for block in k.blocks]
    # The block that only line 50 is in says nothing.
    assert {first[n]: count for n, count in found.items()} == {10: 6, 20: 48, 30: 12, 50: 48, 60: 48, 70: 6}
    flow = block_counts.edges(k, found)
    by_line = {(first[a], first[b]): count for (a, b), count in flow.items()}
    assert by_line[20, 30] == 12
    assert by_line[20, 50] == 36
    assert by_line[60, 20] == 42
    assert by_line[60, 70] == 6


# A loop with two roles: eight warps, of which those with P3 wait in each round for a partner that has 20 exponentials.
# R5 alone says which two warps meet at the barrier of 64 threads.
ROLES = [
    (10, Op("MOV R1, RZ")),
    (20, Op("ISETP.NE.AND P0, PT, R0, RZ, PT", label=".L_x_1")),
    (20, Op("@P3 BRA `(.L_x_2)")),
    *[(30, Op("MUFU.EX2 R2, R3", stall=8))] * 20,
    (30, Op("BAR.ARV R5, 0x40")),
    (30, Op("BRA `(.L_x_3)")),
    (40, Op("BAR.SYNC.DEFER_BLOCKING R5, 0x40", label=".L_x_2")),
    (40, Op("FADD R4, R4, R3")),
    (60, Op("@P0 BRA `(.L_x_1)", label=".L_x_3")),
    (70, Op("EXIT")),
]


def of_roles(code: list[tuple[int, Op]], *, waiting: int = 4) -> Recording:
    """Return the recording of eight warps, of which so many have P3 in every round."""
    launches = [
        Launch({10: 8, 20: 8 * n, 30: (8 - waiting) * n, 40: waiting * n, 60: 8 * n, 70: 8}, 1, n) for n in (8, 16)
    ]
    return Recording(of_lines(code), launches, 8)


def test_warps_have_roles() -> None:
    """Half of the warps take a branch in every round, and the others never."""
    recording = of_roles(ROLES)
    (branch, *_) = branches(recording.function)
    assert recording.roles == {branch: 4}
    build = functools.partial(kernel_model.build, chips.load("rtx5090"), threads=256, slots=1)
    model = build(recording.function, recording=recording)
    assert model.paths.has_roles
    lengths = [[len(way) for way in model.paths.of_warp(warp, 3)] for warp in range(8)]
    assert lengths == [[25] * 3] * 4 + [[5] * 3] * 4
    clocks = [model.run([rounds], 1).clocks for rounds in (8, 16)]
    assert 8 * 160 <= clocks[1] - clocks[0] < 8 * 240, "a round is the exponentials, beside which the others wait"
    stalls = model.run([8], 1).stalls.items()
    waited = sum(clocks for (place, _), clocks in stalls if model.paths.sources[place].base == "FADD")
    assert waited >= 4 * 8 * 120, "four warps wait behind the barrier in each round"


@pytest.mark.parametrize(
    ("changed", "waiting"),
    [
        ({1: (20, Op("ISETP.NE.AND P3, PT, R0, RZ, PT", label=".L_x_1"))}, 4),  # another decision in each round
        ({1: (20, Op("R2P PR, R0, 0x8", label=".L_x_1"))}, 4),
        ({2: (20, Op("BRA.U UP0, `(.L_x_2)"))}, 4),  # no guard
        ({}, 0),
        ({}, 8),
    ],
)
def test_warps_have_no_roles(changed: dict[int, tuple[int, Op]], waiting: int) -> None:
    code = [changed.get(n, line) for n, line in enumerate(ROLES)]
    assert not of_roles(code, waiting=waiting).roles


def test_roles_that_do_not_meet_are_not_simulated() -> None:
    """Nobody arrives where the others wait: all warps then take each arm in turn, as if they had no roles."""
    code = [line for line in ROLES if "BAR.ARV" not in line[1].text]
    recording = of_roles(code)
    assert recording.roles
    model = kernel_model.build(chips.load("rtx5090"), recording.function, 256, 1, recording=recording)
    assert not model.paths.has_roles
    assert model.run([8], 1).clocks > 0


def copies(count: int, label: str = "") -> list[tuple[int, Op]]:
    """Return a part of a round of a loop: the code of lines 20 and 30, several times."""
    body = [(20, Op("FFMA R4, R4, R3, R2")), (30, Op("FADD R4, R4, R3"))] * count
    return [(20, Op("FFMA R4, R4, R3, R2", label=label)), *body[1:]] if label else body


def test_a_round_with_all_rounds_of_an_inner_loop() -> None:
    """Six rounds of two warps; ptxas wrote the four rounds of the loop inside one after the other."""
    latch = [(40, Op("BAR.SYNC.DEFER_BLOCKING 0x0")), (50, Op("@P0 BRA `(.L_x_1)")), (60, Op("EXIT"))]
    k = of_lines([(10, Op("MOV R1, RZ")), *copies(4, ".L_x_1"), *latch])
    launch = Launch({10: 2, 20: 48, 30: 48, 40: 12, 50: 12, 60: 2}, 1, 0)
    assert list(block_counts.blocks(k, launch.executed).values()) == [2, 12, 2]
    assert Recording(k, [launch], 2).rounds == 6
    # As many instructions of one statement, and no statement that ran a fourth as often: 64-bit sums, for instance.
    assert list(block_counts.blocks(k, {**launch.executed, 40: 48, 50: 48}).values()) == [2, 48, 2]


@pytest.mark.parametrize(("passes", "rounds"), [(11, (2, 3)), (12, (3, 0)), (3, (0, 3))])
def test_a_loop_takes_what_an_unrolled_one_leaves(passes: int, rounds: tuple[int, int]) -> None:
    first = [*copies(4, ".L_x_1"), (40, Op("@P0 BRA `(.L_x_1)"))]
    second = [*copies(1, ".L_x_2"), (40, Op("@P1 BRA `(.L_x_2)"))]
    k = of_lines([(10, Op("MOV R1, RZ")), *first, (15, Op("MOV R2, RZ")), *second, (60, Op("EXIT"))])
    launch = Launch({10: 6, 15: 6, 20: 6 * passes, 30: 6 * passes, 40: 6 * passes, 60: 6}, 3, 0)
    recording = Recording(k, [launch], 2)
    assert [recording.executed(loop) for loop in k.loops] == [2 * count for count in rounds]
    # Two loops with as many copies: nobody knows which of them ran.
    third = [*copies(4, ".L_x_2"), (40, Op("@P1 BRA `(.L_x_2)"))]
    k = of_lines([(10, Op("MOV R1, RZ")), *first, (15, Op("MOV R2, RZ")), *third, (60, Op("EXIT"))])
    assert [Recording(k, [launch], 2).executed(loop) for loop in k.loops] == [None, None]


def test_an_unrolled_loop_with_its_rest_in_a_loop_around() -> None:
    """Two warps come five times to a loop of eleven rounds: two by four copies, and three copies behind them."""
    inner = [*copies(4, ".L_x_2"), (40, Op("@P0 BRA `(.L_x_2)"))]
    outer = [
        (15, Op("MOV R2, RZ", label=".L_x_1")),
        *inner,
        *copies(3),
        (40, Op("MOV R5, RZ")),
        (50, Op("@P1 BRA `(.L_x_1)")),
    ]
    k = of_lines([(10, Op("MOV R1, RZ")), *outer, (60, Op("EXIT"))])
    launch = Launch({10: 2, 15: 10, 20: 110, 30: 110, 40: 110, 50: 10, 60: 2}, 1, 0)
    loop = min(k.loops, key=lambda one: len(one.blocks))
    assert Recording(k, [launch], 2).executed(loop) == 20


def test_what_belongs_to_a_cta_and_what_to_a_round() -> None:
    k = function()
    skip, unknown, _ = branches(k)
    recording = Recording(k, [counts(3, 8, rare=2), counts(5, 16, rare=2)], 2)
    assert recording.rounds == 16
    share = recording.shares[skip]
    # Two rounds of a CTA, however many it has.
    assert [share.of(rounds) for rounds in (4, 8, 32)] == pytest.approx([0.5, 0.75, 0.9375])
    assert unknown not in recording.shares
    assert recording.by_rules == [unknown]
    growing = Recording(k, [counts(3, 8, rare=2), counts(5, 16, rare=4)], 2).shares[skip]
    assert [growing.of(rounds) for rounds in (4, 32)] == pytest.approx([0.75, 0.75])
    assert Recording(k, [counts(3, 8, rare=2)], 2).shares[skip].of(100) == 0.75
    assert Share((0, 0), (0, 0)).of(4) == 0
    assert Share((0, 1), (4, 1)).of(1) == 1


@pytest.mark.parametrize(
    ("taken", "least"),
    [
        ((0.0, 0.5), 0),  # every other round
        ((1.0, 0.0), 1),  # once
        ((5.5, 0.25), 8),  # nearly always at first: 5.5 + 0.25 * 7 is more than 7
        ((-5.5, 0.75), 8),  # nearly never at first: 0.75 * 7 is less than 5.5
        ((2.0, 1.0), 0),  # more often than it is reached, whatever the length: noise of a count that no length cures
    ],
)
def test_shares_that_short_ctas_do_not_have(taken: tuple[float, float], least: int) -> None:
    share = Share((0.0, 1.0), taken)
    assert share.least == least
    recorded = [share.of(rounds) * rounds for rounds in range(max(1, least), 40)]
    if taken[1] < 1:
        assert recorded == pytest.approx([taken[0] + taken[1] * rounds for rounds in range(max(1, least), 40)])
    if least > 1:
        assert share.of(least - 1) in {0.0, 1.0}


def test_shares_as_recorded_from_some_length_on() -> None:
    """Eight of ten rounds do what is rare, and ten of twenty: all of the first six, and every fifth."""
    k = function()
    launches = [counts(3, 10, rare=8), counts(3, 20, rare=10)]
    assert Recording(k, launches, 2).least == 8
    assert Recording(k, [counts(3, 6, rare=6), counts(3, 7, rare=6)], 2).least == 6
    assert Recording(k, [counts(3, 8, rare=2)], 2).least == 0


def test_choices_come_out_in_the_sum() -> None:
    k = function()
    skip, unknown, latch = (k.instructions[address // 16] for address in branches(k))
    recording = Recording(k, [counts(3, 8, rare=2), counts(5, 16, rare=2)], 2)
    for rounds in (4, 5, 16, 33):
        takes = recording.choices(rounds)
        assert sum(not takes(skip) for _ in range(rounds)) == 2
        assert takes(unknown) is None
        assert takes(latch) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("entry", ["attention_bf16_128x64_d128_r32", "attention_f16_64x32_d256_w4"])
@pytest.mark.parametrize("rows", [1024, 1536])
def test_a_causal_launch_does_what_the_device_did(entry: str, rows: int) -> None:
    """The products on the simulated ways are those that the virtual device counted, and so are masked tiles."""
    chip = chips.load("rtx5090")
    index, builtin = next((i, b) for i, b in enumerate(builtins()) if b.entry == entry)
    problem = problem_module.parse(f"1,{rows},1,{builtin.head_dim},causal")
    ptx = builtin_image(index, "sm_120f", "ptx").decode()
    model = validation.builtin_model(chip, entry, record=validation.recorder(ptx, "sm_120f", problem, builtin))
    assert model.recording is not None
    assert model.recording.by_rules == []
    with Device("virtual") as device:
        work = work_module.Attention(device, builtin, problem)
        with device.profile() as profile:
            work.launch()
            device.synchronize()
    rounds = problem.rounds(builtin)
    sources = model.paths.sources
    ways = [way for count in rounds for way in model.paths.rounds(count)]
    flops = model.warps * sum(predict.flops_of(sources[step.place].opcode) for way in ways for step in way)
    # Warps above the diagonal of a last tile leave it out on the device; every CTA has at most one such round of each.
    assert 0 <= flops / profile.total.tensor_flops - 1 <= len(rounds) / sum(rounds)
    selects = [sum(sources[step.place].base in {"FSEL", "SEL"} for step in way) for way in ways]
    masked = sum(count >= 8 for count in selects)
    assert len(rounds) <= masked <= 5 * len(rounds)
    assert masked < len(ways)


LOOP = """.version 8.0
.target sm_80
.address_size 64
.visible .entry third(.param .u64 out, .param .u32 rounds)
.reqntid 64
{
    .reg .b64 p, at;
    .reg .b32 n, i, tid, t;
    .reg .f32 a, b;
    .reg .pred more, skips;
    ld.param.u64 p, [out];
    ld.param.u32 n, [rounds];
    mov.u32 tid, %tid.x;
    mul.wide.u32 at, tid, 4;
    add.u64 p, p, at;
    mov.f32 a, 0f3F800000;
    mov.u32 i, 0;
again:
    rem.u32 t, i, 3;
    setp.ne.u32 skips, t, 0;
@skips bra join;
    bar.sync 0;
    ld.volatile.global.f32 b, [p];
    add.f32 a, a, b;
    st.volatile.global.f32 [p], a;
    bar.sync 0;
join:
    add.u32 i, i, 1;
    setp.lt.u32 more, i, n;
@more bra again;
    st.global.f32 [p], a;
    ret;
}
"""


def test_a_profile_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `profile --json` wrote says how a kernel's branches go, and how many rounds it has."""
    (tmp_path / "k.ptx").write_text(LOOP)
    (tmp_path / "k.cubin").write_bytes(sass.assemble(LOOP, "sm_90"))
    words = ["profile", f"{tmp_path}/k.ptx", "--grid", "3", "--block", "64", "--json", f"{tmp_path}/p.json"]
    assert __main__.main([*words, "f32[64]:zeros", "u32:30"]) == 0
    capsys.readouterr()

    def model(*more: str) -> dict[str, Any]:
        assert __main__.main(["model", f"{tmp_path}/k.cubin", "--chip", "h200", "--json", "--ctas", "3", *more]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    found = model("--profile", f"{tmp_path}/p.json")
    assert found["rounds"] == 30
    assert found["branches"]["by"] == "recording"
    assert list(found["branches"]["recorded"].values()) == [pytest.approx(2 / 3, abs=1e-3)]
    by_rules = model("--rules", "--rounds", "30")
    assert by_rules["branches"]["by"] == "rules"
    assert found["clocks"] > 1.2 * by_rules["clocks"]  # the rules skip what is no product
    (tmp_path / "k.ptx").write_text(LOOP.replace("0f3F800000", "0f40000000"))
    words = ["model", f"{tmp_path}/k.cubin", "--chip", "h200", "--profile", f"{tmp_path}/p.json"]
    assert __main__.main(words) == 2
    assert "ptxas assembles its PTX to other code" in capsys.readouterr().err
    assert __main__.main(["model", f"{tmp_path}/k.cubin", "--chip", "h200", "--ptx", f"{tmp_path}/none.ptx"]) == 2
    assert "none.ptx', which is not a file" in capsys.readouterr().err
    (tmp_path / "k.ptx").write_text(LOOP)
    (tmp_path / "p.json").write_text("{}")
    assert __main__.main(words) == 2
    assert "which is not a file of `profile --json`" in capsys.readouterr().err


@pytest.mark.slow
def test_comments_and_other_entries_make_no_other_kernel() -> None:
    """What was kept with figures is recorded as the library's, where its statements are; one statement more is not."""
    entry = "attention_bf16_128x64_d32_any_r16"
    index, builtin = next((i, b) for i, b in enumerate(builtins()) if b.entry == entry)
    text = builtin_image(index, "sm_90", "ptx").decode()
    moved = "// said before\n" + text.replace(".reqntid", "// said\n.reqntid").replace("#line 1", "#line 2")
    beside = moved + ".visible .entry attention_other()\n{\n    ret;\n}\n"
    first = "    mov.u32                 tid, %tid.x;\n"
    more = text.replace(first, first + first)
    assert len({text, moved, beside, more}) == 4
    problem = problem_module.parse("1,512,1,32")
    found = []
    for kept in (text, moved, beside):
        record = validation.recorder(kept, "sm_90", problem, builtin)
        model = validation.builtin_model(chips.load("h200"), entry, record=record)
        found.append(predict.predict(model, problem.rounds(builtin)).clocks)
        assert model.recording is not None
        assert model.recording.handovers is not None
    assert found[0] == found[1] == found[2]
    record = validation.recorder(more, "sm_90", problem, builtin)
    with pytest.raises(record_module.NotRecordedError, match="not the library's"):
        validation.builtin_model(chips.load("h200"), entry, record=record)
