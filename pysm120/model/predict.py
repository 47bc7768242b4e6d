"""From simulated CTAs to a launch: how long all of its CTAs take on all SMs, and what memory allows."""

import dataclasses
import heapq
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pysm120.machine_code import pipes
from pysm120.machine_code.sass import Instruction
from pysm120.model import kernel_model, memory, streams
from pysm120.model import paths as warp_paths
from pysm120.model.kernel_model import TYPICAL, KernelModel
from pysm120.model.recorded import SECTOR_BYTES
from pysm120.model.roles import Other
from pysm120.model.simulator import QUARTERS, Event, Outcome
from pysm120.model.steps import Step

_LANES = 32
_SHORT, _MORE = 4, 6  # rounds: fewest in the first simulation; additional ones in the second
# Additional ones at most, if the warps wait for tiles of a ring: in the first rounds they are further apart than later.
_MORE_OF_RINGS = 24
_LEAVES = -1  # the rounds of a CTA that leaves before the main loop
_LEAST = 0.001  # least part of its own speed that a CTA keeps beside older CTAs
_POWER = 5  # of the bounds that add up, with loads that wait as long as DRAM's load makes them
_MOSTLY = 0.9  # of an SM's time that its additions take, if they bound it
_STAGGER = 700  # clocks between the starts of CTAs on an SM, so that they do not run in step
_SHAPE = re.compile(r"[HQOI]MMA\.(?:SF\.)?(?:SP\.)?(\d+)\b")
_FLOPS = {
    "1684": 1024, "8816": 2048, "1688": 2048, "16816": 4096, "16832": 8192, "16864": 16384, "168128": 32768,
    "168256": 65536,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Reason:
    """A reason why warps waited at an instruction, with the clocks for a warp and round."""

    clocks: float
    reason: str
    address: int
    line: int
    text: str


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The prediction of a launch.

    Attributes
    ----------
    clocks : float
        Time of the launch.
    l2_bytes, dram_bytes, add_bytes : float
        Bytes that the launch moves from or to L2, and DRAM, and adds to L2.
    leaving : int
        CTAs that leave before the main loop.
    dram_busy : float
        The share of the time in which DRAM is busy.
    reread_bytes : float
        Those of ``dram_bytes`` that moved before, and that L2 has lost.
    bound : str
        What takes longest: "l2", "stores" to L2, "dram", "adds", "code" that each CTA fetches, "issue" of the recorded
        instructions if the simulation has fewer, or "sm" if memory is faster.
    conflicts : float
        Bank conflicts as a share of the wavefronts of shared memory.
    round_clocks : float
        Time of a round of the main loop of one CTA on a fully occupied SM; ``sm_round_clocks`` is this time divided by
        the number of resident CTAs.
    overhead_clocks : float
        Time of a CTA outside its rounds.
    shares : dict
        For each unit of the SM, the share of the main loop in which it is busy.
    reasons : list of Reason
        The longest wait first.
    flops : float
        Flop of the matrix instructions of the launch.
    events : list of Event
        Input of a timeline.

    """

    clocks: float
    round_clocks: float
    sm_round_clocks: float
    overhead_clocks: float
    shares: dict[str, float]
    reasons: list[Reason]
    flops: float
    events: list[Event]
    l2_bytes: float
    dram_bytes: float
    bound: str
    conflicts: float
    add_bytes: float
    reread_bytes: float
    dram_busy: float
    leaving: int


def flops_of(opcode: str) -> int:
    """Return the multiplications and additions of a matrix instruction, 0 for others."""
    found = _SHAPE.match(opcode)
    return _FLOPS.get(found[1], 0) if found else 0


@dataclasses.dataclass(frozen=True)
class _Time:
    """The clocks of a CTA, ``begin + rounds * each``, for a number of resident CTAs.

    Of CTAs that go on to other Q tiles they are the clocks of a Q tile; its first one takes ``first`` more.
    """

    begin: float
    each: float
    first: float = 0.0

    def of(self, rounds: float) -> float:
        return self.begin + rounds * self.each


def _least(model: KernelModel, rounds: Sequence[int]) -> int:
    """Return the rounds of the shorter simulation: enough for the recorded shares of branches.

    Work of only some first rounds, such as rescaling, would be in every round of a shorter simulation.
    """
    recorded = model.recording.least if model.recording else 0
    return max(_SHORT, min(recorded, max(rounds) - _MORE))


def _more(model: KernelModel, least: int, rounds: Sequence[int]) -> int:
    """Return the additional rounds of the longer simulation; a ring's are no more than those of the launch."""
    return max(_MORE, min(_MORE_OF_RINGS, max(rounds) - least)) if model.paths.rings else _MORE


def simulated_rounds(model: KernelModel, rounds: Sequence[int]) -> dict[int, float]:
    """Return the simulations by whose rounds the time of an average CTA is made up, and how often it has each.

    A simulation of more rounds less one of fewer is the time of the rounds between them, as in ``_time``.
    """
    most, mean = max(rounds), sum(rounds) / len(rounds)
    least = _least(model, rounds)
    more, base = _more(model, least, rounds), most if most <= _SHORT and not model.paths.between else least
    found: dict[int, float] = defaultdict(float)
    for count, times in ((base, 1.0), (least + more, (mean - base) / more), (least, (base - mean) / more)):
        found[count] += times
    return dict(found)


def _time(model: KernelModel, resident: int, least: int, more: int, most: int) -> tuple[_Time, Outcome]:
    """Simulate twice as many CTAs as are resident, with two numbers of rounds; ``most`` are those of the launch.

    The first CTAs start one after the other, within the time of one. So that the distances between them do not count,
    twice as many are simulated once more: a CTA takes the time from its end to that of its successor.
    """
    least = least if model.paths.around else 0
    base = most if most <= _SHORT and not model.paths.between else least
    close = min(_STAGGER, model.run([base], 1).clocks // resident)

    def run(rounds: int, waves: int = 2) -> Outcome:
        return model.run([rounds] * waves * resident, resident, close)

    def succession(rounds: int, of: Outcome) -> float:
        return (run(rounds, 4).clocks - of.clocks) / 2

    short = run(least)
    one = succession(base, short if base == least else run(base))
    if not model.paths.around:
        return _Time(one, 0.0), short
    long = run(least + more)
    if model.paths.between:
        each = (succession(least + more, long) - one) / more
        return _Time(one - base * each, each, max(0.0, short.clocks - 2 * one)), long
    each = (long.clocks - short.clocks) / 2 / more
    return _Time(one - base * each, each), long


def _times(
    model: KernelModel, slots: int, least: int, more: int, most: int, others: Sequence[Other]
) -> tuple[list[_Time], Outcome]:
    """Return the clocks of a CTA for each number of resident ones, with its other loops, and the last simulation."""
    known, outcome = dict[int, _Time](), None
    for resident in _simulated(slots):
        time, outcome = _time(model, resident, least, more, most)
        of_others = sum(other.passes * _time(other.model, resident, _SHORT, _MORE, _MORE)[0].each for other in others)
        known[resident] = _Time(max(0.0, time.begin + of_others), time.each, time.first)
    assert outcome is not None  # noqa: S101 - there is at least one slot
    return [_interpolated(known, resident) for resident in range(1, slots + 1)], outcome


def _simulated(slots: int) -> list[int]:
    """Return the numbers of resident CTAs that are simulated: all up to four, then each half as large again."""
    found = [1]
    while found[-1] < slots:
        found.append(min(slots, max(found[-1] + 1, found[-1] * 3 // 2)))
    return found


def _interpolated(known: Mapping[int, _Time], resident: int) -> _Time:
    """Return the clocks of a CTA from those of the next smaller and the next larger simulated number of CTAs.

    They are the same while latency bounds the SM, and proportional to the number of CTAs where a unit does.
    """
    below, above = max(n for n in known if n <= resident), min(n for n in known if n >= resident)
    share = (resident - below) / (above - below) if above > below else 0.0
    pairs = zip(dataclasses.astuple(known[below]), dataclasses.astuple(known[above]), strict=True)
    return _Time(*(a + share * (b - a) for a, b in pairs))


def l2_bytes(model: KernelModel, rounds: Sequence[float], *, requests: bool = False) -> float:
    """Return the bytes that the CTAs of a launch load from L2, and store.

    A ring loads a tile in every round. Other instructions move the sectors that were recorded for their statements, or
    the bytes of all lanes. The tiles that are loaded before the first round are not loaded in the last rounds.

    ``requests``: a load or cp.async counts as what its requests cost L2, as if they were for so many bytes.
    """
    paths, global_memory = model.paths, {"load_global", "store_global"}
    moved = partial(_moved, model, requests=requests)
    beside = partial(_beside, model, requests=requests)
    once = moved([*paths.before, *paths.behind], global_memory) + beside(global_memory)
    rings = () if model.handovers.guessed else paths.rings  # a guess bounds nothing
    if _copied(model) is not None:
        rings = ()  # all_l2_bytes() has them
    once += sum(ring.bytes * ring.once for ring in rings)
    each = _of_round(model, lambda way: moved(way, {*global_memory, "copy_async"}))
    each += sum(ring.bytes * ring.each for ring in rings)
    if not paths.around:
        once += moved(paths.before, {"copy_async"})
    once += beside({"copy_async"})
    return float(once * len(rounds) + each * sum(rounds))


def stored_bytes(model: KernelModel, rounds: Sequence[float]) -> float:
    """Return the bytes that the CTAs of a launch store, without bulk copies."""
    paths = model.paths
    once = _moved(model, [*paths.before, *paths.behind], {"store_global"})
    each = _of_round(model, lambda way: _moved(model, way, {"store_global"}))
    return (once + _beside(model, {"store_global"})) * len(rounds) + each * sum(rounds)


def _of_launch(model: KernelModel, rounds: Sequence[float], count: Callable[[Sequence[Step]], float]) -> float:
    """Return what the steps of all warps of a launch count to."""
    paths = model.paths
    once = model.warps * count([*paths.before, *paths.behind]) + sum(map(count, paths.beside))
    return float(once * len(rounds) + model.warps * _of_round(model, count) * sum(rounds))


def _of_round(model: KernelModel, count: Callable[[Sequence[Step]], float]) -> float:
    """Return what the steps of a round count to on average: rounds take different branches."""
    if not model.paths.around:
        return 0.0
    ways = model.paths.rounds(TYPICAL)
    known = {id(way): count(way) for way in ways}
    return sum(known[id(way)] for way in ways) / len(ways)


def _beside(model: KernelModel, kinds: set[str], *, requests: bool = False) -> float:
    """Return the bytes that the warps of a CTA that go around the main loop move."""
    return sum(_moved(model, way, kinds, requests=requests) for way in model.paths.beside) / model.warps


def _moved(model: KernelModel, steps: Sequence[Step], kinds: set[str], *, requests: bool = False) -> float:
    """Return the bytes that the warps of a CTA move with instructions of some classes; ``requests`` as ``l2_bytes``."""

    def bytes_of(one: Instruction) -> float:
        recorded = model.recording.sectors(one) if model.recording else None
        if recorded is None:
            return _LANES * pipes.lane_bytes(one)
        is_store = pipes.class_of(one.opcode) == "store_global"  # whose requests have a bound of their own
        return model.pipes.requested(recorded) if requests and not is_store else SECTOR_BYTES * recorded.fetched

    ones = [model.paths.sources[step.place] for step in steps]
    return model.warps * sum(bytes_of(one) for one in ones if pipes.class_of(one.opcode) in kinds)


def _besides(others: Sequence[Other], rounds: Sequence[int]) -> list[tuple[KernelModel, list[float]]]:
    """Return the other loops with their rounds in all CTAs; nothing is before or behind them."""
    return [(other.model, [other.passes * len(rounds)]) for other in others]


def _copied(model: KernelModel) -> float | None:
    """Return the recorded bytes of the bulk copies of a CTA."""
    return model.recording.launches[-1].copied if model.recording else None


def all_l2_bytes(
    model: KernelModel, rounds: Sequence[int], others: Sequence[Other] = (), *, requests: bool = False
) -> float:
    """Return the bytes that the CTAs of a launch load from L2, and store, in all loops; ``requests``: as l2_bytes."""
    copied, launches = (_copied(model) or 0.0) * len(rounds), ((model, rounds), *_besides(others, rounds))
    return max(0.0, copied + sum(l2_bytes(*launch, requests=requests) for launch in launches))


def add_bytes(model: KernelModel, rounds: Sequence[float]) -> float:
    """Return the bytes that the CTAs of a launch add to L2."""
    return _of_launch(model, rounds, lambda way: sum(step.added for step in way))


def _add_clocks(model: KernelModel, adds: float, ctas: int) -> float:
    """Return the clocks that L2 takes for the additions of a launch, so many bytes, while all SMs add."""
    chip = model.chip
    clocks = adds / (int(chip["sms"]) * float(chip["add_bytes_per_clock"]))
    few = model.recording.launches[-1].adds if model.recording else None
    if few is None:
        return clocks
    rate = memory.add_requests(chip, few.lines(ctas), few.lanes)  # few lines take fewer of them
    return max(clocks, few.requests * ctas / rate)


def _code_bound(model: KernelModel, rounds: Sequence[int]) -> dict[str, float]:
    """Return the clocks in which SMs fetch the code of a kernel without rounds, if they do not keep it.

    The CTAs of an SM drift apart after the first ones, so each fetches its code alone.
    """
    paths, chip = model.paths, model.chip
    if paths.around or paths.fit(chip):
        return {}
    of_cta = float(chip["code_interval"]) * len({step.line for step in (*paths.before, *paths.behind)})
    return {"code": float(chip["launch_clocks"]) + of_cta * len(rounds) / int(chip["sms"])}


def _requested(model: KernelModel, rounds: Sequence[float]) -> float:
    """Return the bytes of the requests with which the CTAs of a launch store."""
    return _of_launch(model, rounds, lambda way: sum(step.stored for step in way))


def _of_frames(model: KernelModel, rounds: Sequence[float]) -> tuple[float, float]:
    """Return the bytes of local memory that the CTAs of a launch move from and to L2, and from and to DRAM."""

    def of_l2(way: Sequence[Step]) -> float:
        kinds = {"load_local", "store_local"}
        ones = ((step, pipes.class_of(model.paths.sources[step.place].opcode)) for step in way)
        return sum(step.loaded + step.stored for step, kind in ones if kind in kinds)

    return _of_launch(model, rounds, of_l2), _of_launch(model, rounds, lambda way: sum(step.spilled for step in way))


def conflicts(model: KernelModel, rounds: Sequence[int]) -> float:
    """Return the bank conflicts of a launch as a share of its wavefronts of shared memory."""
    paths = model.paths

    def passes(steps: Sequence[Step]) -> tuple[float, float]:
        taken = [step for step in steps if step.wavefronts and pipes.wavefronts(paths.sources[step.place])]
        ideal = sum(pipes.wavefronts(paths.sources[step.place]) for step in taken)
        return sum(step.wavefronts for step in taken), ideal

    once = passes([*paths.before, *paths.behind])
    each = passes([step for way in paths.rounds(TYPICAL) for step in way])
    taken, ideal = (a * len(rounds) + b * sum(rounds) / TYPICAL for a, b in zip(once, each, strict=True))
    return 1 - ideal / taken if taken > ideal else 0.0


def flops(model: KernelModel, rounds: Sequence[float]) -> float:
    """Return the multiplications and additions of the matrix instructions of a launch."""
    paths = model.paths

    def of(steps: Sequence[Step]) -> int:
        return model.warps * sum(flops_of(paths.sources[step.place].opcode) for step in steps)

    around = sum(of(way) for way in paths.rounds(TYPICAL)) // TYPICAL
    once = of(paths.before) + of(paths.behind)
    return float(once * len(rounds) + around * sum(rounds))


def shared(model: KernelModel) -> KernelModel:
    """Return the kernel on an SM that gets its share of L2; ``predict`` simulates nothing twice of such a model."""
    chip = memory.shared(model.chip)
    return model if chip is model.chip else dataclasses.replace(model, chip=chip)


def predict(
    model: KernelModel,
    rounds: Sequence[int],
    *,
    warps: Sequence[int] = (),
    others: Sequence[Other] = (),
    tensor_bytes: float = 0,
    dram_bytes: float | None = None,
    reread_bytes: float = 0,
    issues: float = 0,
    leaving: int = 0,
    work: Sequence[float] = (),
    keep_events: bool = False,
) -> Prediction:
    """Predict a launch.

    Parameters
    ----------
    model : KernelModel
        The kernel.
    rounds : sequence of int
        The rounds of each CTA, in order; 0 if the kernel has no loop.
    warps : sequence of int
        The warps of each CTA that have rows, in this order; the others only take part in hand-overs. Default: all.
    others : sequence of Other
        What every CTA executes besides.
    tensor_bytes : float
        The size of all tensors that the launch reads or writes; bytes that do not fit in L2 move from or to DRAM once.
    dram_bytes : float, optional
        The bytes that the launch moves from or to DRAM, if they are known.
    reread_bytes : float
        The bytes that DRAM delivers again besides.
    issues : float
        The instructions that the warps of a CTA were seen to execute, of which a scheduler issues one a clock.
    leaving : int
        Additional CTAs, spread evenly over the launch, that leave before the main loop.
    work : sequence of float
        The work of each CTA as a share of the average, if not all CTAs are alike.
    keep_events : bool
        Keep the events for a timeline.

    """
    moved, model = all_l2_bytes(model, rounds, others), shared(model)
    chip, slots = model.chip, max(1, min(model.slots, -(-len(rounds) // int(model.chip["sms"]))))
    least = _least(model, rounds)
    more = _more(model, least, rounds)
    times, outcome = _times(model, slots, least, more, max(rounds), others)
    launch = _as_long(model, rounds, warps, lambda few: _time(few, slots, least, more, max(rounds))[0])
    leaves = _leaves(model, slots) if leaving else 0.0
    sms = _Sms(
        _spread(_shared_out(launch, work), leaving),
        times,
        int(chip["sms"]),
        leaves,
        even=not model.has_products,
    )
    clocks = sms.run() + times[-1].first + float(chip["launch_clocks"])
    per_clock = 1e9 / (float(chip["mhz"]) * 1e6)  # bytes per clock at 1 GB/s
    besides = _besides(others, rounds)
    held = tensor_bytes if tensor_bytes > float(chip["l2_bytes"]) else 0.0
    frames_l2, frames_dram = (
        max(0.0, sum(of_launches))
        for of_launches in zip(*(_of_frames(*launch) for launch in ((model, rounds), *besides)), strict=True)
    )
    dram = (held if dram_bytes is None else dram_bytes) + reread_bytes + frames_dram
    start = float(chip["launch_clocks"])
    stored = max(0.0, sum(stored_bytes(*launch) for launch in ((model, rounds), *besides)))
    dram_rate = chip.dram_bandwidth(min(1.0, stored / dram) if dram else 0.0)
    # A request for one sector keeps L2 as long as one for more.
    asked = frames_l2 + all_l2_bytes(model, rounds, others, requests=bool(chip["l2_binds"]))
    l2_clocks, dram_clocks = (
        start + count / (rate * per_clock) if count else 0.0
        for count, rate in ((asked, chip.l2_limit), (dram, dram_rate))
    )
    requested = max(0.0, sum(_requested(*launch) for launch in ((model, rounds), *besides)))
    store_clocks = start + requested / (int(chip["sms"]) * float(chip["store_bytes_per_clock"]))
    adds = max(0.0, sum(add_bytes(*launch) for launch in ((model, rounds), *besides)))
    add_clocks = start + _add_clocks(model, adds, len(rounds)) if adds and chip["adds_bind"] else 0.0
    of_stores = chip["l2_binds"] and store_clocks > l2_clocks  # L2 takes stores at a rate of their own
    l2 = {"stores": store_clocks} if of_stores else {"l2": l2_clocks}
    issue_clocks = start + issues * len(rounds) / (int(chip["sms"]) * QUARTERS)
    bounds = {
        "sm": max(clocks, issue_clocks),
        "dram": dram_clocks,
        **l2,
        "adds": add_clocks,
        **_code_bound(model, rounds),
    }
    bound = max(bounds, key=lambda name: bounds[name])
    bound = "issue" if bound == "sm" and issue_clocks > clocks else bound
    clocks = max(bounds.values())
    if bound == "sm" and add_clocks - start > _MOSTLY * (clocks - start):
        bound = "adds"  # which the SM's time contains
    if dram_bytes and not model.has_products:
        clocks = streams.together(start, bounds, _POWER)
    elif dram_bytes and memory.is_streamed(moved, dram_bytes):  # of products, the SM's time has the wait for L2
        clocks = max(clocks, streams.together(start, {name: bounds[name] for name in ("sm", "dram")}, _POWER))
    busy_share = max(0.0, dram_clocks - start) / max(1.0, clocks - start)
    full = times[-1]
    steps = [step for way in model.paths.rounds(TYPICAL) for step in way]
    per = TYPICAL
    if not steps:  # without a main loop, all of the kernel is the round
        steps, per, full = model.paths.before, 1, _Time(0.0, full.begin)
    busy: dict[str, float] = defaultdict(float)
    for step in steps:
        busy[model.pipes.names[step.pipe]] += step.interval * model.warps / QUARTERS / per
        busy["shared"] += step.wavefronts * model.warps / per
        busy["adds"] += step.added * model.warps / per / float(chip["add_bytes_per_clock"])
    busy["issue"], per_round = len(steps) * model.warps / QUARTERS / per, full.each / slots
    shares = {name: clocks_ / per_round for name, clocks_ in busy.items() if name not in {"lsu", "branch"}}
    events = _events(model, slots) if keep_events else []
    return Prediction(
        clocks, full.each, per_round, full.begin, dict(sorted(shares.items(), key=lambda x: -x[1])),
        _reasons(model, outcome, 2 * slots, least + more),
        max(0.0, sum(flops(*launch) for launch in ((model, rounds), *besides))), events, moved, dram, bound,
        conflicts(model, rounds), adds, reread_bytes, min(1.0, busy_share), leaving,
    )  # fmt: skip


def _events(model: KernelModel, slots: int) -> list[Event]:
    """Return the events of three rounds of an SM full of CTAs, for a timeline."""
    return model.run([3 if model.paths.around else 0] * slots, slots, _STAGGER, keep_events=True).events


def _as_long(
    model: KernelModel, rounds: Sequence[int], warps: Sequence[int], time_of: Callable[[KernelModel], _Time]
) -> Sequence[float]:
    """Return for each CTA the rounds in which it would take as long if all of its warps had rows."""
    few = set(warps) - {model.warps}
    if not few or not model.paths.around:
        return rounds
    of_all = time_of(model)
    of_few = {
        count: time_of(dataclasses.replace(model, paths=dataclasses.replace(model.paths, working=count)))
        for count in few
    }
    return [
        max(0.0, (of_few[count].of(n) - of_all.begin) / of_all.each) if count in few else n
        for n, count in zip(rounds, warps, strict=True)
    ]


def _shared_out(rounds: Sequence[float], shares: Sequence[float]) -> Sequence[float]:
    """Return the rounds of each CTA, which are as many as its share of the average work says."""
    return [n * share for n, share in zip(rounds, shares, strict=True)] if shares else rounds


def _spread(rounds: Sequence[float], leaving: int) -> list[float]:
    """Return the rounds of all CTAs of a launch, with those that leave evenly between the others."""
    total = len(rounds) + leaving
    stays = iter(rounds)
    first = ((n + 1) * len(rounds) // total > n * len(rounds) // total for n in range(total))
    return [next(stays) if stay else _LEAVES for stay in first]


def _leaves(model: KernelModel, slots: int) -> float:
    """Return the time of a CTA that leaves before the main loop, until its successor starts in its slot."""
    path = warp_paths.around(model.function, model.loop) if model.loop else []
    alone = kernel_model.straight(model.chip, model.function, path, model.warps, 1, model.recording)
    alone_clocks = alone.run([0], 1).clocks + float(model.chip["cta_start"])
    return max(alone_clocks, slots * float(model.chip["cta_interval"]))


def _reasons(model: KernelModel, outcome: Outcome, ctas: int, rounds: int) -> list[Reason]:
    """Return the reasons inside the main loop, in clocks for a warp and round."""
    ways = [*model.paths.rounds(rounds), *model.paths.rounds(rounds, loads=True)]
    if not model.paths.around:
        ways, rounds = [model.paths.before], 1
    places = {step.place for way in ways for step in way}
    per = ctas * model.warps * rounds
    found = []
    for (place, reason), clocks in outcome.stalls.items():
        if place in places:
            one = model.paths.sources[place]
            found.append(Reason(clocks / per, reason, one.address, one.line, str(one)))
    return sorted(found, key=lambda r: -r.clocks)


class _Sms:
    """SMs that start the next CTA of a launch as soon as they have room.

    CTAs on one SM slow each other down. The oldest runs as if alone; each younger one gets the additional throughput
    that one more CTA brings. So the CTAs of an SM end one after the other. With ``even``, and if all CTAs start at
    once, they share the throughput evenly and end together. Others leave before the main loop, after ``leaves`` clocks.
    """

    def __init__(
        self, rounds: Sequence[float], times: Sequence[_Time], sms: int, leaves: float = 0.0, *, even: bool = False
    ) -> None:
        self.ahead, self.leaves, self.even = list(reversed(rounds)), leaves, even and len(rounds) <= sms * len(times)
        self.times = times
        # The unfinished share of each CTA, the oldest first, and the time of each beside the others since the plan.
        self.resident: list[dict[int, float]] = [{} for _ in range(sms)]
        self.clocks: list[list[float]] = [[] for _ in range(sms)]
        self.rounds: dict[int, float] = {}
        self.since = [0.0] * sms
        self.plans: list[
            tuple[float, int, int, int]
        ] = []  # end of the next CTA, its SM, its index, version of the plan
        self.latest = [0] * sms
        self.known = dict[tuple[int, float], float]()  # times of a CTA by the number of older ones, and its rounds

    def take(self, sm: int) -> None:
        """Start the next CTA."""
        if self.ahead:
            cta = len(self.rounds)
            self.rounds[cta] = self.ahead.pop()
            self.resident[sm][cta] = 1.0

    def all_clocks(self, sm: int) -> list[float]:
        """Return the time of each CTA of an SM beside the others."""
        of_all = [self.rounds[cta] for cta in self.resident[sm]]
        others = len(of_all) - of_all.count(_LEAVES)
        older, found = 0, []
        for rounds in of_all:
            if rounds == _LEAVES:
                found.append(max(self.leaves, 1.0))
            elif self.even:
                found.append(self.times[others - 1].of(rounds))
            else:
                found.append(self.behind(older, rounds))
                older += 1
        return found

    def behind(self, older: int, rounds: float) -> float:
        """Return the time of a CTA beside a number of older ones."""
        clocks = self.known.get((older, rounds))
        if clocks is None:
            rate = self.rate(older + 1, rounds) - self.rate(older, rounds)
            clocks = self.known[older, rounds] = 1 / max(rate, _LEAST * self.rate(1, rounds))
        return clocks

    def rate(self, resident: int, rounds: float) -> float:
        """Return the throughput of an SM, in CTAs per clock, for a number of rounds and of resident CTAs."""
        return resident / self.times[resident - 1].of(rounds) if resident else 0.0

    def plan(self, sm: int) -> None:
        """Find which CTA of an SM ends next."""
        self.latest[sm] += 1
        self.clocks[sm] = self.all_clocks(sm)
        left = [
            max(0.0, share) * clocks for share, clocks in zip(self.resident[sm].values(), self.clocks[sm], strict=True)
        ]
        if left:
            least = min(left)
            cta = [*self.resident[sm]][left.index(least)]
            heapq.heappush(self.plans, (self.since[sm] + least, sm, cta, self.latest[sm]))

    def run(self) -> float:
        """Return when the last CTA ends."""
        everywhere = range(len(self.resident))
        for _ in self.times:
            for sm in everywhere:
                self.take(sm)
        for sm in everywhere:
            self.plan(sm)
        now = 0.0
        while self.plans:
            at, sm, ended, number = heapq.heappop(self.plans)
            if number != self.latest[sm]:
                continue
            now, passed = at, at - self.since[sm]
            for cta, clocks in zip(self.resident[sm], self.clocks[sm], strict=True):
                self.resident[sm][cta] -= passed / clocks
            self.since[sm] = now
            del self.resident[sm][ended]
            self.take(sm)
            self.plan(sm)
        return now
