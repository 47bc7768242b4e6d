"""sm120_simulate: what it refuses, and warps that wait for each other."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pysm120.model import chips
from pysm120.model import simulator as simulator_module
from pysm120.model.handovers import Filler, Ring
from pysm120.model.simulator import Outcome, Simulator, StuckError
from pysm120.model.steps import Paths, Pipes, Step
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.ffi import check, ffi, lib, new_struct

pytestmark = pytest.mark.virtual

H200 = chips.load("h200")
PIPES = Pipes(H200)
PLAIN = Step(PIPES.number("alu"), 1.0, 4, 0.0, 1, 0, -1, -1, "", 0)
RING = Ring(1, 0, 0, 1)


def paths_of(before: list[Step], around: list[Step], behind: list[Step], **more: Any) -> Paths:
    return Paths(before, around, behind, before, around, more.pop("rings", ()), None, [], **more)


def called(change: Callable[[Any, Any], None], simulator: Simulator, rounds: list[int], slots: int) -> Outcome:
    """Simulate, after a change of what the library is given."""
    real = lib.sm120_simulate

    def simulate(given: Any, result: Any) -> int:
        change(given, result)
        return int(real(given, result))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator_module, "lib", type("Library", (), {"sm120_simulate": staticmethod(simulate)}))
        return simulator.run(rounds, slots)


def changed(name: str, value: Any) -> Outcome:
    """Simulate with another value of a member: of the struct, or of the first element of one of its lists."""
    wait = PLAIN._replace(special="wait", writes=0)
    arrive = PLAIN._replace(special="arrive", amount=1)
    paths = paths_of([PLAIN], [arrive, wait, PLAIN._replace(waits=1)], [PLAIN], rings=[RING])

    def change(given: Any, _: Any) -> None:
        of, _, member = name.partition(".")
        if name.endswith("[]"):
            getattr(given, name[:-2])[0] = value
        elif member:
            setattr(getattr(given, of)[0], member, value)
        else:
            setattr(given, name, value)

    return called(change, Simulator(H200, PIPES, paths, 2), [3, 2], 2)


def test_what_is_unchanged_is_simulated() -> None:
    assert changed("is_greedy", 1).issued == 2 * (2 + 3 * 3) + 2 * (2 + 3 * 2)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("pipes", (-1, 257)),
        ("delay_count", (-1,)),
        ("queue_depth", (0, -5, 1 << 21)),
        *((f"{one}_rate", (0.0, -1.0, float("nan"))) for one in ("add", "copy", "drain", "load", "store")),
        *((one, (-1, float("nan"))) for one in ("add_queue", "port_window", "code_latency", "code_interval")),
        *((one, (-1, 1 << 21)) for one in ("mbarrier_wake", "copy_latency", "barrier_interval", "barrier_latency")),
        *((one, (-1, 1 << 21)) for one in ("cta_start", "cta_interval", "code_sets", "code_ahead")),
        ("warps", (0, 65)),
        *((one, (-1,)) for one in ("beside", "step_count", "round_count", "ring_count", "stages", "offset")),
        *((one, (0, -1)) for one in ("path_count", "kinds", "turns", "tiles", "slots", "places")),
        *((one, (-2, 1 << 20)) for one in ("between", "emptied")),
        ("tiles", (1 << 20,)),
        *((one, (ffi.NULL,)) for one in ("is_queued", "steps", "rings", "path_begin", "before", "behind")),
        *((one, (ffi.NULL,)) for one in ("rounds_begin", "path_of_round", "kind_of_tile", "rounds_of_kind")),
        *((f"{one}[]", (-1, 1 << 20)) for one in ("path_begin", "before", "behind", "rounds_begin", "path_of_round")),
        *((f"{one}[]", (-1, 1 << 20)) for one in ("kind_of_tile", "rounds_of_kind")),
    ],
)
def test_numbers_and_lists_are_checked(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(InvalidArgumentError, match=f"simulation->{name.removesuffix('[]')}"):
            changed(name, value)


@pytest.mark.parametrize(
    "name", ["interval", "wavefronts", "even_port", "odd_port", "loaded", "stored", "added", "written", "amount"]
)
def test_works_of_steps_are_checked(name: str) -> None:
    for value in (-1, 1 << 41) if name == "amount" else (-1.0, 2.0**41, float("nan")):
        with pytest.raises(InvalidArgumentError, match=r"simulation->steps\[0\]"):
            changed(f"steps.{name}", value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("action", (-1, 9)),
        ("pipe", (-1, 1)),
        ("latency", (-1, 1 << 21)),
        ("landing", (-1, 1 << 21)),
        ("stall", (0, -1, 1 << 21)),
        ("waits", (-1, 64)),
        ("writes", (-2, 6)),
        ("reads", (-2, 6)),
        ("line", (-1,)),
        ("place", (-1, 1)),
        ("ahead", (-(1 << 21), 1 << 21)),
    ],
)
def test_members_of_steps_are_checked(name: str, values: tuple[int, ...]) -> None:
    for value in values:
        with pytest.raises(InvalidArgumentError, match=r"simulation->steps\[0\]"):
            changed(f"steps.{name}", value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((one, (-1, 1 << 21)) for one in ("arrivals", "copies", "left")),
        *(("once", (-(1 << 21), 1 << 21)), ("each", (-1, 65)), ("bytes", (-1, 1 << 41))),
    ],
)
def test_rings_are_checked(name: str, values: tuple[int, ...]) -> None:
    for value in values:
        with pytest.raises(InvalidArgumentError, match=r"simulation->rings\[0\]"):
            changed(f"rings.{name}", value)


def test_a_ring_that_is_not_there() -> None:
    wait = PLAIN._replace(special="wait", writes=0, ring=1)
    with pytest.raises(InvalidArgumentError, match=r"simulation->steps\[1\].*ring 1"):
        Simulator(H200, PIPES, paths_of([PLAIN], [wait], [], rings=[RING]), 1).run([1], 1)


def test_delays_are_checked() -> None:
    delayed = dataclasses.replace(H200, values=H200.values | {"alu_by_alu": -1.0})
    pipes = Pipes(delayed)
    pipes.number("alu")
    with pytest.raises(InvalidArgumentError, match=r"simulation->delays\[0\]"):
        Simulator(delayed, pipes, paths_of([PLAIN], [], []), 1).run([0], 1)


def test_more_rounds_than_are_simulated() -> None:
    simulator = Simulator(H200, PIPES, paths_of([PLAIN], [PLAIN], []), 1)
    with pytest.raises(InvalidArgumentError, match="have 1050000 rounds"):
        simulator.run([1050] * 1000, 1)


def test_a_warp_without_steps() -> None:
    with pytest.raises(InvalidArgumentError, match="a warp of the simulation has no step"):
        Simulator(H200, PIPES, paths_of([], [], []), 1).run([0], 1)
    assert Simulator(H200, PIPES, paths_of([], [PLAIN], []), 1).run([2], 1).issued == 2


def test_null_and_sizes() -> None:
    given, result = new_struct("sm120_simulation"), new_struct("sm120_simulation_result")
    for arguments in ((ffi.NULL, result), (given, ffi.NULL)):
        with pytest.raises(InvalidArgumentError, match="is NULL"):
            check(lib.sm120_simulate(*arguments))
    for struct in (given, result):
        struct.size -= 8
        with pytest.raises(InvalidArgumentError, match="->size = "):
            check(lib.sm120_simulate(given, result))
        struct.size += 8


@pytest.mark.parametrize("name", ["ends", "busy", "stalls"])
def test_results_have_room(name: str) -> None:
    simulator = Simulator(H200, PIPES, paths_of([PLAIN], [], []), 1)
    with pytest.raises(InvalidArgumentError, match=f"result->{name} is NULL"):
        called(lambda _, result: setattr(result, name, ffi.NULL), simulator, [0], 1)


def test_warps_that_wait_for_each_other() -> None:
    wait = PLAIN._replace(special="wait", writes=0)
    paths = paths_of([PLAIN], [wait, PLAIN._replace(waits=1)], [PLAIN], rings=[RING])
    with pytest.raises(StuckError, match="wait for each other"):
        Simulator(H200, PIPES, paths, 2).run([1], 1)


def test_a_met_mbarrier_does_not_lead_through_a_barrier_of_the_cta() -> None:
    """A warp at a bar.sync whose mbarrier is met meanwhile waits for the other warps all the same."""
    slow = [PLAIN._replace(stall=15)] * 100
    barrier, wait = PLAIN._replace(special="barrier"), PLAIN._replace(special="wait", writes=0)
    copy = PLAIN._replace(special="copy", amount=1024)
    paths = Paths(
        [wait, barrier], [], slow, [*slow[:50], copy, *slow[50:], barrier], [], [Ring(0, 1, 1, 0, 1024)], None, [],
        starters=(0,), loaders=(0,), load_behind=[PLAIN],
    )  # fmt: skip
    assert Simulator(H200, PIPES, paths, 2).run([0], 1).clocks > 2 * 15 * 99


@pytest.mark.parametrize("stages", [1, 3, 4, 5, 11])
def test_warps_that_are_not_simulated_load_the_tiles_of_ctas_that_go_on(stages: int) -> None:
    """A CTA learns of its next Q tile later than its ring has room for the keys of that."""
    wait, arrive = PLAIN._replace(special="wait", writes=0), PLAIN._replace(special="arrive", amount=1, ring=1)
    paths = Paths(
        [PLAIN], [wait, PLAIN._replace(waits=1), arrive], [PLAIN], [PLAIN], [wait, PLAIN._replace(waits=1), arrive],
        [Ring(0, 1, 0, 1, 1024), Ring(2, 0, 0, 1)], Filler(stages, 1, [0]), [], between=[PLAIN],
    )  # fmt: skip
    found = Simulator(H200, PIPES, paths, 2).run([4] * 5, 1)
    assert found.issued == 2 * (1 + 5 * 4 * 3 + 4 + 1)


def test_warps_meet_at_the_barrier_of_a_number() -> None:
    """Warps 0 and 3, and 1 and 2, meet at barriers 1 and 2: warp 0 waits for 3 alone, which is slow."""
    slow = [PLAIN._replace(stall=15)] * 100
    meet, reach = (PLAIN._replace(special=special, amount=2) for special in ("barrier", "reach"))
    rounds = [
        [meet._replace(ring=1)],
        [reach._replace(ring=2)],
        [meet._replace(ring=2)],
        [*slow, reach._replace(ring=1)],
    ]

    def ends(of: list[list[Step]]) -> int:
        paths = paths_of([PLAIN], [PLAIN], [PLAIN], has_roles=True, ways=lambda count, _, warp: [of[warp or 0]] * count)
        return Simulator(H200, PIPES, paths, 4).run([1], 1).clocks

    assert ends(rounds) > 15 * 99
    # Of unknown numbers, warps 0 and 2 meet, which both wait, and 1 and 3, which do not.
    unknown = [[step._replace(ring=0) for step in way] for way in rounds]
    assert ends(unknown) > 0
    twice = [[*way, *way] for way in rounds[:1]] + [[PLAIN]] * 2 + [[reach._replace(ring=1)]]
    with pytest.raises(StuckError):
        ends(twice)
    with pytest.raises(InvalidArgumentError, match=r"simulation->steps\["):
        ends([[meet._replace(ring=16)], *rounds[1:]])


def test_a_barrier_may_be_the_last_step() -> None:
    barrier = PLAIN._replace(special="barrier")
    for warps, count in ((1, 3), (4, 3), (4, 0)):
        found = Simulator(H200, PIPES, paths_of([PLAIN], [PLAIN, barrier], []), warps).run([count, count], 1)
        assert found.issued == 2 * warps * (1 + 2 * count)
        assert len(found.ends) == 2


def test_more_events_than_the_first_room() -> None:
    paths = paths_of([PLAIN] * 70_000, [], [])
    found = Simulator(H200, PIPES, paths, 1).run([0], 1, keep_events=True)
    assert len(found.events) == found.issued == 70_000
    assert [event.begin for event in found.events] == sorted({event.begin for event in found.events})


def test_random_input_never_crashes(rng: np.random.Generator) -> None:
    """Steps with random members: simulated, refused, or stuck. Sums of what was issued are exact."""
    specials = ["", "barrier", "reach", "load", "commit", "drain", "wait", "arrive", "copy"]
    counts = {"run": 0, "stuck": 0}
    for _ in range(300):

        def step() -> Step:
            writes, reads, ahead = (int(rng.integers(low, 6 if low == -1 else 3)) for low in (-1, -1, -2))
            loaded, stored, written = (float(rng.integers(300)) for _ in range(3))
            return Step(
                pipe=int(rng.integers(len(PIPES.names))),
                interval=float(rng.uniform(0, 40)),
                latency=int(rng.integers(300)),
                wavefronts=float(rng.choice([0, 1, 2.5])),
                stall=int(rng.integers(1, 16)),
                waits=int(rng.integers(64)) if rng.random() < 0.3 else 0,
                writes=writes,
                reads=reads,
                special=str(rng.choice(specials, p=[0.6, *[0.05] * 8])),
                place=0,
                amount=int(rng.integers(5)),
                ring=int(rng.integers(2)),
                ahead=ahead,
                ports=(float(rng.uniform(0, 3)), 0.0),
                line=int(rng.integers(400)),
                added=int(rng.integers(300)),
                loaded=loaded,
                stored=stored,
                written=written,
                landing=int(rng.integers(300)),
            )

        before, around, behind, between = ([step() for _ in range(rng.integers(0, 12))] for _ in range(4))
        rings = [Ring(int(rng.integers(0, 4)), int(rng.integers(0, 2)), 0, 1, 1024) for _ in range(2)]
        paths = paths_of(
            before,
            around,
            [*behind, PLAIN],
            rings=rings,
            between=between if rng.random() < 0.3 else (),
            has_roles=bool(rng.random() < 0.3),
            turns=(0, 1) if rng.random() < 0.3 else (),
        )
        tiles = [int(n) for n in rng.integers(0, 5, rng.integers(1, 6))]
        warps, slots = int(rng.integers(2, 9)), int(rng.integers(1, 4))
        try:
            found = Simulator(H200, PIPES, paths, warps, queues=bool(rng.integers(2))).run(tiles, slots)
        except StuckError:
            counts["stuck"] += 1
            continue
        counts["run"] += 1
        assert len(found.ends) <= len(tiles)
        if not paths.between:
            assert found.issued == warps * sum(len(before) + n * len(around) + len(behind) + 1 for n in tiles)
            assert len(found.ends) == len(tiles)
        assert found.clocks >= max(found.ends)
    assert counts["run"] > 30, counts
    assert counts["stuck"] > 30, counts
