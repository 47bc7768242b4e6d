"""Fetching instructions: lines of code that are counted by hand, and loops of code as an H200 was seen to run them."""

import dataclasses
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from sass_text import Op, listing

from pysm120.machine_code import sass
from pysm120.model import chips, code_loops, kernel_model, predict, validation
from pysm120.model import fetch as fetch_module
from pysm120.model.chips import Chip
from pysm120.model.kernel_model import KernelModel
from pysm120.model.simulator import Simulator
from pysm120.model.steps import Paths, Pipes, Step

pytestmark = pytest.mark.virtual

MEASURED = Path(__file__).resolve().parents[2] / "results" / "h200" / "code.json"
H200 = chips.load("h200")


def chip(**values: Any) -> Chip:
    """Return an H200 without ports of registers, and with other caches of code."""
    changed = {f"code_{name}": value for name, value in values.items()}
    return dataclasses.replace(H200, values=H200.values | {"port_window": 0} | changed)


def reached(
    of: Chip, path: list[tuple[int, int]], others: tuple[int, ...] = (), warps: int = 1
) -> tuple[dict[int, list[int]], int]:
    """Return when each warp issues the steps of its path, and how many lines were fetched.

    A step of ``path`` is its line of code and its stall count, and ``warps`` follow it. Each of ``others`` is a line
    that a further warp reaches at the start.
    """
    pipes = Pipes(of)

    def step(line: int, stall: int = 1) -> Step:
        return Step(pipes.number("alu"), 1.0, 1, 0.0, stall, 0, -1, -1, "", 0, line=line)

    steps, code = [step(*one) for one in path], [step(line) for line in range(1000)]  # code that is not kept
    beside = [[step(line)] for line in others]
    paths = Paths(steps, code, [], steps, code, (), None, [], beside=beside)
    found = Simulator(of, pipes, paths, warps).run([0], 1, keep_events=True)
    begins: dict[int, list[int]] = defaultdict(list)
    for event in found.events:
        begins[event.warp].append(event.begin)
    return begins, found.lines


def test_lines_come_one_after_the_other_and_stay() -> None:
    # Warps reach lines 0, 1 and 2 at first. Then one of them reaches line 1, which is there, and line 3, which is not.
    path = [(0, 15), (0, 1), (1, 134), (1, 1), (3, 1)]
    begins, lines = reached(chip(bytes=1024, ways=2, ahead=0, latency=50, interval=10), path, (1, 2))
    assert [begins[warp][0] for warp in range(3)] == [50, 60, 70]
    assert begins[0] == [50, 65, 66, 200, 250]
    assert lines == 4


def test_the_line_that_was_used_least_recently_makes_room() -> None:
    of = chip(bytes=256, ways=2, ahead=0, latency=50, interval=10)
    begins, lines = reached(of, [(0, 1), (1, 1), (0, 1), (2, 1), (0, 1), (1, 1)])
    assert begins[0] == [50, 100, 101, 151, 152, 202]
    assert lines == 4


def test_lines_are_asked_for_ahead() -> None:
    of = chip(bytes=4096, ways=4, ahead=3, latency=50, interval=10)
    begins, lines = reached(of, [(0, 10), (0, 1), (1, 1), (2, 1), (3, 1)])
    # Two with the first, the third as that is there; then two of three are under way already.
    assert begins[0] == [50, 60, 61, 70, 100]
    assert lines == 6


def test_more_warps_of_a_quarter_have_more_lines_under_way() -> None:
    of = chip(bytes=4096, ways=4, ahead=2, latency=50, interval=10)
    for warps, lines in ((1, 2), (2, 4), (4, 8)):
        assert reached(of, [(0, 1)], warps=4 * warps)[1] == lines


def test_sets() -> None:
    for first in (0, 64, 64 * 7, 8192):
        assert {fetch_module.set_of(first + i, 64) for i in range(64)} == set(range(64))
    assert len({fetch_module.set_of(64 * i, 64) for i in range(64)}) == 64
    keeps = chip(bytes=32768, ways=4, ahead=4)
    assert fetch_module.fits(keeps, range(128, 128 + 252))  # and four behind them
    assert not fetch_module.fits(keeps, range(128, 128 + 253))


def loop(lines: int) -> sass.Function:
    """Return a loop of FFMA that is so many lines of code."""
    body = [Op(f"FFMA R{i % 8}, R{i % 8}, R20, R21") for i in range(8 * lines - 2)]
    body[0] = dataclasses.replace(body[0], label=".L_x_1")
    end = [Op("ISETP.NE.AND P0, PT, R0, RZ, PT", stall=13), Op("@P0 BRA `(.L_x_1)", stall=5), Op("EXIT")]
    return sass.parse(listing("k", [*body, *end]))["k"]


def per_round(of: Chip, lines: int, warps: int) -> float:
    model = kernel_model.build(of, loop(lines), 32 * warps, 1)
    short, long = (model.run([rounds], 1).clocks for rounds in (10, 30))
    return (long - short) / 20


@pytest.mark.parametrize("warps", [1, 4])
def test_every_line_is_waited_for(warps: int) -> None:
    # Of a line, 7 clocks from its first instruction to its last, and 50 until the next is there; 12 for the comparison.
    # What one warp waits for is there for those of the other quarters.
    code = chip(bytes=2048, ways=4, ahead=0, latency=50, interval=1)
    assert per_round(code, 40, warps) == 40 * 57 + 12


def test_bound_by_the_way_to_the_next_level() -> None:
    # 40 lines, and three behind the end of the loop that were asked for in vain.
    code = chip(bytes=2048, ways=4, ahead=3, latency=50, interval=20)
    assert per_round(code, 40, 1) == 43 * 20


def test_bound_by_lines_under_way() -> None:
    # Four lines in 80 clocks; the last four take 31, and 12 for the comparison, until the branch asks for the first.
    code = chip(bytes=2048, ways=4, ahead=4, latency=80, interval=1)
    assert per_round(code, 40, 1) == 10 * 80 + 31 + 12


def test_slow_instructions_hide_it() -> None:
    fast, slow = (chip(bytes=2048, ways=4, ahead=4, latency=n, interval=n / 10) for n in (1, 60))
    alone = dataclasses.replace(fast, timings=fast.timings | {"fma": chips.Timing("fma", 4, 4)})
    hidden = dataclasses.replace(slow, timings=alone.timings)
    # But for the first line of a round.
    assert per_round(hidden, 40, 1) - per_round(alone, 40, 1) == pytest.approx(60, abs=15)


def test_code_that_is_kept_costs_nothing() -> None:
    assert per_round(chip(bytes=8192, latency=1000), 40, 1) == 318 + 13 + 10
    kept, brought = (
        {reason for _, reason in kernel_model.build(chip(bytes=n), loop(40), 32, 1).run([4], 1).stalls}
        for n in (8192, 2048)
    )
    assert "no instruction" in brought - kept


# ---- as an H200 was seen to run it -----------------------------------------------------------


def model_of(name: str, warps: int) -> tuple[KernelModel, float]:
    """Return the model of a loop, and its clocks on an H200."""
    rows = json.loads(MEASURED.read_text())["loops"]
    (measured,) = (row["clocks"] for row in rows if (row["name"], row["warps"]) == (name, warps))
    (found,) = (x for x in code_loops.loops() if (x.name, x.warps) == (name, warps))
    return validation.loop_model(H200, found), measured


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "warps"),
    [("code_step_24k", 8), ("code_step_64k", 1), ("code_step_64k", 8), ("code_imad_64k", 4), ("code_mma_48k", 1)],
)
def test_warps_in_step_as_measured(name: str, warps: int) -> None:
    model, measured = model_of(name, warps)
    short, long = (model.run([rounds], 1).clocks for rounds in (3, 7))
    assert (long - short) / 4 == pytest.approx(measured, rel=0.08)


def apart(model: KernelModel, warps: int) -> Paths:
    """Return paths of warps of which each begins at another part of the rounds."""
    around = model.paths.around
    firsts = [len(around) * warp // warps for warp in range(warps)]
    ways = [around[first:] + around[:first] for first in firsts]
    return dataclasses.replace(
        model.paths, has_roles=True, ways=lambda count, _, warp: [ways[0 if warp is None else warp]] * count
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("warps", [2, 4])
def test_warps_in_different_places_as_measured(warps: int) -> None:
    """Each has to have all of the code brought for itself: the way to the next level is shared."""
    model, measured = model_of("code_met_64k", warps)
    simulator = Simulator(H200, model.pipes, apart(model, warps), warps)
    short, long = (simulator.run([rounds], 1).clocks for rounds in (2, 5))
    assert (long - short) / 3 == pytest.approx(measured, rel=0.07)


@pytest.mark.parametrize("lines", [16, 1024])
def test_each_cta_of_a_kernel_without_rounds_fetches_its_code(lines: int) -> None:
    """CTAs of one warp execute 8 instructions of a line in 8 clocks; a line comes every 16.65 clocks."""
    ops = [*[Op("MOV R1, R2", stall=1)] * (8 * lines), Op("EXIT")]
    model = kernel_model.build(H200, sass.parse(listing("k", ops))["k"], 32, 4)
    some, more = (predict.predict(model, [0] * 132 * ctas) for ctas in (8, 16))
    assert model.paths.fit(H200) == (lines == 16)
    assert more.bound == ("sm" if lines == 16 else "code")
    if lines > 16:
        assert (more.clocks - some.clocks) / 8 / lines == pytest.approx(float(H200["code_interval"]), rel=0.01)
