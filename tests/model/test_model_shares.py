"""Warps and CTAs that do less than others: those that leave, go around the main loop, or are off by a predicate."""

import dataclasses

import pytest
from sass_text import Op, of_lines

from pysm120.machine_code import sass
from pysm120.model import chips, kernel_model, paths, predict, roles, streams
from pysm120.model.chips import Chip
from pysm120.model.predict import _spread
from pysm120.model.recorded import Launch, Recording, Sectors
from pysm120.model.steps import Pipes

BARRIER = Op("BAR.SYNC.DEFER_BLOCKING 0x0")
EXP = Op("MUFU.EX2 R0, R1", writes=0)


@pytest.fixture(scope="module")
def h100() -> Chip:
    return chips.load("h100")


def kernel(body: list[Op]) -> sass.Function:
    """Return a kernel that some warps leave before its loop."""
    return of_lines(
        [
            (10, Op("MOV R1, RZ")),
            (10, Op("@P1 BRA `(.L_x_2)")),
            (20, dataclasses.replace(EXP, label=".L_x_1")),
            *[(20, op) for op in body],
            (20, Op("@P0 BRA `(.L_x_1)", stall=5)),
            (30, Op("MOV R2, RZ")),
            (40, Op("MOV R3, RZ", label=".L_x_2")),
            (40, Op("EXIT")),
        ]
    )


def counts(ctas: int, warps: int, entered: int, rounds: int) -> Launch:
    """Return the counts of a launch in which ``entered`` of all warps execute the loop."""
    return Launch({10: warps * ctas, 20: entered * rounds, 30: entered, 40: warps * ctas}, ctas, 1.0)


def test_ctas_leave_where_all_warps_of_the_others_meet() -> None:
    found = roles.recording(kernel([BARRIER]), counts(8, 4, entered=8, rounds=16), 128)
    assert (found.warps, found.share, found.beside) == (4, 0.25, 0)
    assert found.launches[-1].ctas == 2
    assert found.rounds == 16


@pytest.mark.parametrize("body", [[], [Op("BAR.SYNC.DEFER_BLOCKING 0x1, 0x20")]])
def test_warps_go_around_a_loop_in_which_not_all_meet(body: list[Op]) -> None:
    found = roles.recording(kernel(body), counts(8, 4, entered=8, rounds=16), 128)
    assert (found.warps, found.share, found.beside) == (1, 1.0, 3)
    assert found.rounds == 16


def test_warps_that_go_around_the_loop_are_simulated(h100: Chip) -> None:
    function = kernel([])
    recording = roles.recording(function, counts(8, 4, entered=8, rounds=16), 128)
    model = kernel_model.build(h100, function, 128, 1, loop=recording.loop, warps=1, recording=recording)
    assert [len(way) for way in model.paths.beside] == [4, 4, 4]
    alone = dataclasses.replace(model, paths=dataclasses.replace(model.paths, beside=()))
    assert model.run([16], 1).issued - alone.run([16], 1).issued == 12


def test_warps_without_a_loop_take_the_blocks_that_they_ran(h100: Chip) -> None:
    """Behind the barrier one of four warps goes on; what it does is no work of the others."""
    code = [(10, BARRIER), (10, Op("@P1 EXIT")), *[(20, EXP)] * 64, (20, BARRIER), (20, Op("EXIT"))]
    function = of_lines(code)
    recording = roles.recording(function, Launch({10: 32, 20: 8}, 8, 1.0), 128)
    model = kernel_model.build(h100, function, 128, 1, recording=recording)
    assert (model.warps, [len(way) for way in model.paths.beside]) == (1, [2, 2, 2])
    assert model.run([0], 1).issued == 68 + 3 * 2  # the second barrier does not wait for warps that have ended


def test_warps_on_shorter_paths_have_the_slowest_line_of_all_that_load(h100: Chip) -> None:
    """Each of four warps loads two lines in front of the barrier, and one of them two others behind it."""
    load = Op("LDG.E R4, [R8.64]", writes=0)
    behind = dataclasses.replace(load, text="LDG.E R5, [R8.64]")
    code = [
        (10, load),
        (10, dataclasses.replace(BARRIER, waits=1)),
        (10, Op("@P1 EXIT")),
        (20, behind),
        (20, Op("EXIT")),
    ]
    recording = roles.recording(function := of_lines(code), Launch({10: 32, 20: 8}, 8, 1.0), 128)
    model = kernel_model.build(streams.from_dram(h100, share=1), function, 128, 1, recording=recording)
    assert (model.warps, len(model.paths.beside)) == (1, 3)
    loads = [step for step in model.paths.before if step.writes == 0]
    assert loads[0].latency - loads[1].latency == 2 * int(h100["dram_spread"]), "two doublings, from 2 lines to 8"
    assert model.paths.beside[0][0].latency == loads[0].latency


def test_ctas_that_leave_are_spread_over_the_launch(h100: Chip) -> None:
    assert _spread([5, 6], 6) == [-1, -1, -1, 5, -1, -1, -1, 6]
    assert _spread([5, 6], 0) == [5, 6]
    function = kernel([BARRIER])
    recording = roles.recording(function, counts(8, 4, entered=8, rounds=16), 128)
    model = kernel_model.build(h100, function, 128, 2, loop=recording.loop, warps=4, recording=recording)
    ctas = 4 * 264
    some = predict.predict(model, [1600] * ctas, leaving=3 * ctas)
    alone, whole = (predict.predict(model, [1600] * n * ctas) for n in (1, 4))
    assert some.leaving == 3 * ctas
    assert some.flops == alone.flops
    # Twelve CTAs of each place leave, each after cta_start and a few clocks; a place may have a CTA more than others.
    assert 12 * h100["cta_start"] < some.clocks - alone.clocks < alone.clocks / 3
    assert some.clocks < whole.clocks / 2


def test_ctas_leave_by_a_guarded_exit(h100: Chip) -> None:
    """Three of four CTAs end at the second instruction, a block from which another path goes on."""
    code = [
        (10, Op("MOV R1, RZ")),
        (10, Op("@P1 EXIT")),
        (20, dataclasses.replace(EXP, label=".L_x_1")),
        (20, BARRIER),
        (20, Op("@P0 BRA `(.L_x_1)", stall=5)),
        (30, Op("EXIT")),
    ]
    function = of_lines(code)
    recording = roles.recording(function, Launch({10: 32, 20: 8 * 16, 30: 8}, 8, 1.0), 128)
    assert (recording.warps, recording.share) == (4, 0.25)
    assert recording.loop
    assert [one.opcode for one in paths.around(function, recording.loop)] == ["MOV", "EXIT"]
    model = kernel_model.build(h100, function, 128, 2, loop=recording.loop, warps=4, recording=recording)
    some, alone = (predict.predict(model, [1600] * 1056, leaving=n) for n in (3 * 1056, 0))
    assert alone.clocks < some.clocks < 1.5 * alone.clocks


def test_an_access_touches_nothing_where_its_predicate_is_false() -> None:
    code = [(10, Op("MOV R1, RZ")), (20, Op("@P0 LDG.E R4, [R2.64]")), (30, Op("LDG.E R5, [R2.64]"))]
    function = of_lines([*code, (40, Op("EXIT"))])
    every = Sectors(4, 1, 4, 1, 1, {4096: 2}, 4)
    launch = Launch(dict.fromkeys((10, 20, 30, 40), 4), 2, 1.0, sectors={20: every._replace(accesses=1), 30: every})
    recording = Recording(function, [launch], 2)
    guarded, always = (recording.sectors(one) for one in function.instructions[1:3])
    assert guarded == Sectors(1, 0.25, 1, 0.25, 0.25, {4096: 0.5}, 1)
    assert always == every


def test_paths_to_and_from_the_loop_pass_the_blocks_that_ran(h100: Chip) -> None:
    """Before the loop, all warps execute line 15 and one executes line 16; behind it, one executes line 35."""
    code = [
        (10, Op("MOV R1, RZ")),
        (10, Op("@P1 BRA `(.L_x_1)")),
        *[(15, EXP)] * 8,
        (17, Op("MOV R2, RZ", label=".L_x_1")),
        (17, Op("@P2 BRA `(.L_x_2)")),
        *[(16, EXP)] * 16,
        (20, Op("MUFU.EX2 R0, R1", writes=0, label=".L_x_2")),
        (20, Op("@P0 BRA `(.L_x_2)", stall=5)),
        (30, Op("@P3 BRA `(.L_x_3)")),
        *[(35, EXP)] * 4,
        (40, Op("EXIT", label=".L_x_3")),
    ]
    function = of_lines(code)
    launch = Launch({10: 32, 15: 32, 16: 8, 17: 32, 20: 32 * 9, 30: 32, 35: 8, 40: 32}, 8, 1.0)
    recording = roles.recording(function, launch, 128)
    model = kernel_model.build(h100, function, 128, 1, loop=recording.loop, warps=4, recording=recording, through=True)
    paths = model.paths
    assert [len(way) for way in (paths.before, paths.load_before, paths.behind)] == [12, 28, 2]
    assert paths.load_behind is not None
    assert len(paths.load_behind) == 6
    assert model.run([9], 1).issued == 4 * 14 + 4 * 9 * 2 + 16 + 4


def test_stores_of_few_bytes_a_line_have_a_rate_of_their_own(h100: Chip) -> None:
    """Of 32 words at a distance of 16 bytes L2 takes 16 sectors, at less than half the rate of loads."""
    code = [(10, Op("STG.E desc[UR4][R2.64], R4")), (20, Op("EXIT"))]
    function = of_lines(code)
    stored = Sectors(16, 4, 16, 1, 0, {}, 32)
    recording = Recording(function, [Launch({10: 32, 20: 32}, 8, 1.0, sectors={10: stored})], 4)
    model = kernel_model.build(h100, function, 128, 16, recording=recording)
    assert model.paths.before[0].wavefronts == 4  # a pass over the data of L1 for each line
    found = predict.predict(model, [0] * 100_000)
    rate = 100_000 * 4 * 16 * 32 / h100["sms"] / h100["store_bytes_per_clock"]
    assert found.bound in {"stores", "sm"}
    assert found.clocks >= h100["launch_clocks"] + rate


@pytest.mark.parametrize(("lines", "request_bytes"), [(32, 64), (8, 0)])
def test_a_launch_is_bound_by_the_requests_of_its_loads(h100: Chip, lines: int, request_bytes: int) -> None:
    """Of 32 sectors each in a line of its own, L2 takes twice the time of 32 sectors in 8 lines."""
    function = of_lines([*[(10, Op("LDG.E R4, desc[UR4][R2.64]"))] * 8, (20, Op("EXIT"))])
    loaded = Sectors(32, lines, 32, 1, lines)
    recording = Recording(function, [Launch({10: 32, 20: 32}, 8, 1.0, sectors={10: loaded})], 4)
    model = kernel_model.build(h100, function, 128, 16, recording=recording)
    found = predict.predict(model, [0] * 20_000)
    per_clock = h100["l2_gbs"] * 1e3 / h100["mhz"]
    moved = 20_000 * 4 * 8 * 32 * 32
    assert found.l2_bytes == moved
    assert found.bound == "l2"
    assert found.clocks == pytest.approx(h100["launch_clocks"] + moved * max(1, request_bytes / 32) / per_clock)


def test_bounds_of_products_that_wait_for_dram_add_up(h100: Chip) -> None:
    """Where the SM and DRAM take the same time alone, both take the fifth root of two times as long."""
    loads, products = Op("LDG.E R4, desc[UR4][R2.64]"), [Op("HMMA.16816.F32 R4, R8, R12, R4")] * 64
    function = of_lines([(10, loads), *[(20, one) for one in products], (30, Op("EXIT"))])
    recording = Recording(
        function, [Launch({10: 32, 20: 32 * 64, 30: 32}, 8, 1.0, sectors={10: Sectors(4, 1, 4, 1)})], 4
    )
    model = kernel_model.build(h100, function, 128, 8, recording=recording)
    start = h100["launch_clocks"]
    alone = predict.predict(model, [0] * 20_000)
    assert alone.bound == "sm"
    of_dram = (alone.clocks - start) * h100["dram_read_gbs"] * 1e3 / h100["mhz"]
    both, beyond = (predict.predict(model, [0] * 20_000, dram_bytes=n) for n in (of_dram, alone.l2_bytes / 100))
    assert both.clocks - start == pytest.approx(2 ** (1 / 5) * (alone.clocks - start))
    assert beyond.clocks == alone.clocks  # L2 serves each of these bytes a hundred times


def test_an_addition_returns_the_old_value_from_l2(h100: Chip) -> None:
    (one, _) = of_lines(
        [(10, Op("ATOMG.E.ADD.STRONG.GPU PT, R3, desc[UR8][R2.64], R31")), (20, Op("EXIT"))]
    ).instructions
    assert Pipes(h100).of_memory(one, 30) == (h100.timing("load_global").latency, 0.0, 0.0)
