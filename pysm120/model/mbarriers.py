"""Hand-overs between warps and the copy engine through mbarriers, recorded on the virtual device in one CTA.

The recording has every statement about an mbarrier in the order of execution, with the round of the main loop of its
warp. From it follow: which mbarriers form a ring, the phase of each statement (rounds ahead), the arrivals and copies
that end a phase, and the producer warps. Kernels that use mbarriers in other patterns are not supported.

It has bar.sync and bar.arrive, too: where warps have roles, the number of such a barrier may depend on the warp.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pysm120.machine_code import pipes
from pysm120.machine_code.sass import Function, Instruction
from pysm120.model.handovers import Deed, Filler, Ring
from pysm120.observe import watch
from pysm120.observe.values import addresses
from pysm120.runtime.device import Device
from pysm120.runtime.ffi import check, lib, new_struct, text

_KINDS = (
    (r"mbarrier\.init\.", "init"),
    (r"mbarrier\.arrive\.(?!.*(noComplete|cluster\.b64))", "arrive"),
    (r"mbarrier\.expect_tx\.", "expect"),
    (r"mbarrier\.(try|test)_wait\.parity\.", "wait"),
    (r"cp\.async\.bulk\.(?!commit|wait|prefetch)(?!.*bulk_group)", "copy"),
    (r"mbarrier\.|cp\.async\.mbarrier\.", "other"),
    (r"(bar|barrier)\.(cta\.)?sync\b", "meet"),
    (r"(bar|barrier)\.(cta\.)?arrive\b", "reach"),
)
_MEETINGS = {"meet": "barrier", "reach": "reach"}  # the actions of the simulator
_OPERANDS = re.compile(r"[\s,]+")
_LANES = 32
_LAST = re.compile(r".*\][^\]]*?,\s*([\w.$%]+)\s*$")  # the operand after the last address


class NotUnderstoodError(Exception):
    """The reason why the hand-overs must come from the rules."""


class Seen(NamedTuple):
    """The statement of line ``row`` that a warp executed in a round; the round is -1 before the first.

    ``amount``: the expected arrivals of an init, or the arrivals of an arrive. ``announced``: bytes, also of an expect.
    ``parity``: the parity that a wait is for. ``met``: whether the wait was met. Of a bar.sync or bar.arrive,
    ``address`` is the number of the barrier, and ``amount`` its threads, 0 for all.
    """

    warp: int
    row: int
    round: int
    kind: str
    address: int
    amount: int = 0
    announced: int = 0
    parity: int = 0
    met: bool = False


Phase = tuple[str, int, int]  # the action; the ring and the number of the phase


def kind_of(statement: str) -> str:
    """Return the action of a statement on an mbarrier, or ""."""
    words = [word for word in statement.split() if not word.startswith("@")]
    mnemonic = words[0] if words else ""
    return next((kind for pattern, kind in _KINDS if re.match(pattern, mnemonic)), "")


@contextmanager
def watching(device: Device, entry: str, marker: int) -> Iterator[list[Seen]]:
    """Record the first CTA of a kernel in a launch of the with block; a round begins with the line ``marker``."""
    found: list[Seen] = []
    rounds: Counter[tuple[int, int]] = Counter()
    raw = new_struct("sm120_step_info")
    kinds: dict[int, str] = {}

    def see(pointer: Any) -> bool:
        check(lib.sm120_step_query(pointer, raw))
        row = int(raw.instruction.text_line)
        if row not in kinds:
            step = watch.step_of(pointer)
            if step.entry != entry or step.function:
                return False
            kinds[row] = kind_of(step.instruction.text)
        if row == marker and text(raw.entry) == entry:
            # By lane: while one lane loads, the others may go on to the next round.
            for lane in watch.lanes_of(raw.active):
                rounds[raw.warp, lane] += 1
        if kinds[row] and raw.mask and text(raw.entry) == entry:
            at = rounds[raw.warp, watch.lanes_of(raw.mask)[0]] - 1
            found.append(_seen(watch.step_of(pointer), row, at, kinds[row]))
        return False

    with watch.watching(device, see, moment=lib.SM120_AFTER, cta=(0, 0, 0)):
        yield found


def _seen(step: watch.Step, row: int, at: int, kind: str) -> Seen:
    """Return the record of a step."""
    source, lanes = step.instruction.text, watch.lanes_of(step.mask)
    if kind in _MEETINGS:
        words = _OPERANDS.split(source.split(maxsplit=1)[1].strip().removesuffix(";").strip())
        barrier, *threads = (_value(step, word, lanes[0]) or 0 for word in words)
        return Seen(step.warp, row, at, kind, barrier, amount=threads[0] if threads else 0)
    found = [values for _, values in addresses(step)]
    if kind == "other" or not found or len({int(found[-1][lane]) for lane in lanes}) > 1:
        message = f"line {row} of the PTX, {source!r}, is not simulated"
        raise NotUnderstoodError(message)
    address = int(found[-1][lanes[0]])
    last = _LAST.match(source)
    number = _value(step, last[1], lanes[0]) if last else None
    if kind == "arrive" and ".expect_tx" in source:
        return Seen(step.warp, row, at, kind, address, amount=len(lanes), announced=len(lanes) * (number or 0))
    if kind == "expect":
        return Seen(step.warp, row, at, kind, address, announced=len(lanes) * (number or 0))
    if kind in {"arrive", "init"}:
        each = 1 if number is None else number
        return Seen(step.warp, row, at, kind, address, amount=each * (len(lanes) if kind == "arrive" else 1))
    if kind == "wait":
        flags = [int(r.bits[lanes[0]]) for r in step.writes if r.type == "pred"]
        return Seen(step.warp, row, at, kind, address, parity=number or 0, met=bool(flags and flags[0]))
    return Seen(step.warp, row, at, kind, address)


def _value(step: watch.Step, operand: str, lane: int) -> int | None:
    """Return the value of an operand."""
    held = next((r for r in step.reads if r.name == operand), None)
    if held is not None:
        return int(held.bits[lane])
    return int(operand.removesuffix("U"), 0) if re.match(r"\d", operand) else None


class _Ledger:
    """The phases of each mbarrier, followed from the actions on it in order."""

    def __init__(self, seen: Iterable[Seen]) -> None:
        self.expected: dict[int, int] = {}
        self.bytes: Counter[tuple[int, int]] = Counter()
        self.copies: Counter[tuple[int, int]] = Counter()
        self.arrivals: Counter[int] = Counter()
        self.first: dict[int, int] = {}  # the round of the first use of each mbarrier, other than by a wait
        self._announced: dict[int, int] = {}
        self._waited: dict[tuple[int, int], tuple[int, int]] = {}
        self.entries = [(one, self._phase(one)) for one in seen if one.kind != "init" or self._init(one)]
        # In order of first use; where several warps use them, one may be rounds ahead of another.
        self.order = sorted(self.first, key=lambda address: self.first[address])

    def _init(self, one: Seen) -> bool:
        if one.address in self.expected:
            self._fail(one, "is initialised again")
        self.expected[one.address] = one.amount
        return False

    def _phase(self, one: Seen) -> int:
        """Return the phase of its mbarrier that a statement is about."""
        if one.address not in self.expected:
            self._fail(one, "was not initialised")
        if one.kind != "wait":
            self.first.setdefault(one.address, one.round)
        if one.kind == "arrive":
            number, before = divmod(self.arrivals[one.address], self.expected[one.address])
            if before + one.amount > self.expected[one.address]:
                self._fail(one, "is arrived at in two phases at once")
            self.arrivals[one.address] += one.amount
            self._announce(one, number)
        elif one.kind == "expect":
            number = self.arrivals[one.address] // self.expected[one.address]
            self._announce(one, number)
        elif one.kind == "copy":
            if one.address not in self._announced:
                self._fail(one, "takes a copy whose bytes were not announced")
            number = self._announced[one.address]
            self.copies[one.address, number] += 1
        else:
            parity, number = self._waited.get((one.warp, one.address), (one.parity, self._first_awaited(one)))
            number += parity != one.parity
            self._waited[one.warp, one.address] = one.parity, number
        return number

    def _first_awaited(self, one: Seen) -> int:
        """Return the phase of a warp's first wait for an mbarrier: phase 0 or the one before, if copies end its phases.

        Arrivals alone are seen in order: then it is the phase that has not ended, or the last one that has.
        """
        if one.address in self._announced:
            return -one.parity
        number = self.arrivals[one.address] // self.expected[one.address]
        return number - ((number ^ one.parity) & 1)

    def _announce(self, one: Seen, number: int) -> None:
        """Add the bytes that a statement announces to a phase."""
        if one.announced:
            self.bytes[one.address, number] += one.announced
            self._announced[one.address] = number

    @staticmethod
    def _fail(one: Seen, what: str) -> None:
        message = f"the mbarrier at shared address {one.address:#x} {what} (line {one.row} of the PTX)"
        raise NotUnderstoodError(message)


class Recorded:
    """Recorded hand-overs.

    Parameters
    ----------
    function : Function
        The kernel, with the lines of its PTX.
    kinds : mapping of int to str
        The action of each statement of the PTX on an mbarrier, by the line at which it begins.
    seen : iterable of Seen
        The statements that the warps of a CTA executed.
    has_roles : bool
        Whether warps have roles in the main loop. Then one may load before it and another one in it.

    """

    filler: Filler | None = None
    why = ""
    guessed = False
    loaders: frozenset[int]
    starters: frozenset[int]
    turns: Sequence[int]

    def __init__(
        self, function: Function, kinds: Mapping[int, str], seen: Sequence[Seen], *, has_roles: bool = False
    ) -> None:
        self._function, self._has_roles = function, has_roles
        self._kinds, self._rows = kinds, sorted(kinds)
        self._meetings = _meetings(one for one in seen if one.kind in _MEETINGS)
        seen = [one for one in seen if one.kind not in _MEETINGS]
        self.rounds = 1 + max((one.round for one in seen), default=-1)
        self._ledger = ledger = _Ledger(seen)
        copies = [one for one in seen if one.kind == "copy"]
        self.loaders = frozenset(one.warp for one in copies)
        self.starters = frozenset(one.warp for one in copies if one.round < 0) or self.loaders
        self.turns = _turns({(one.round, one.warp) for one in copies if one.round >= 0})
        if has_roles:
            self.loaders = frozenset(one.warp for one in copies if one.round >= 0)
        self._computing = {one.warp for one in seen if one.round >= 0}
        if self.rounds < 1 or not self.loaders <= self._computing:
            message = "the producer warps do not execute the main loop" if self.loaders else "there are no hand-overs"
            raise NotUnderstoodError(message)
        unused = next((one for one, _ in ledger.entries if one.address not in ledger.order), None)
        if unused is not None:
            message = f"no warp arrives at the mbarrier that line {unused.row} of the PTX waits for"
            raise NotUnderstoodError(message)
        members = _taking_turns(ledger.order, seen)
        self.stages = max(map(len, members))
        self._place = {address: (ring, n) for ring, group in enumerate(members) for n, address in enumerate(group)}
        self._length = [len(group) for group in members]
        self.rings: Sequence[Ring] = [self._ring(ring, group) for ring, group in enumerate(members)]
        self._before: dict[int, Deed] = {}
        self._around: dict[int, Deed] = {}
        # Rings that only some rounds use, as for a partial last tile, are left out: rare paths are spread evenly.
        rare = {n for n, ring in enumerate(self.rings) if ring.each and ring.once < -len(members[n])}
        # Bytes that are announced apart from an arrival end no phase.
        ending = [(one, phase) for one, phase in ledger.entries if one.kind != "expect"]
        self._entries = [(one, phase) for one, phase in ending if self._place[one.address][0] not in rare]
        for one, phase in self._entries:
            self._learn(one, phase)

    def before(self) -> dict[int, Deed]:
        """Return the actions of the instructions before the main loop, by address."""
        return self._by_address(self._function.instructions, self._before)

    def around(self, way: Sequence[Instruction], others: Sequence[Instruction]) -> dict[int, Deed]:  # noqa: ARG002
        """Return the actions of the instructions of a round."""
        return self._by_address(way, self._around)

    def behind(self, code: Iterable[Instruction]) -> dict[int, Deed]:
        """Return the actions of the instructions behind the main loop, where the last round is the one before."""
        found = self._by_address(code, self._around)
        return {address: deed._replace(ahead=deed.ahead - 1) for address, deed in found.items()}

    def meetings(self, way: Iterable[Instruction], warp: int) -> dict[int, Deed]:
        """Return the barriers at which a warp meets some of the others, or that it reaches for them, by address."""
        found = {}
        for one in way:
            deed = self._meetings.get((self._row(one), warp)) if one.base == "BAR" else None
            if deed is not None:
                found[one.address] = deed
        return found

    def in_round(self, way: Sequence[Instruction], nth: int) -> dict[int, Deed]:
        """Return the actions of the nth round, without loads of what was loaded before the first round."""
        loaded = Counter[int]()
        for deed in self._before.values():
            if deed.kind == "copy":
                loaded[deed.ring] = max(loaded[deed.ring], 1 + deed.ahead)
        found = self.around(way, way)
        return {address: deed for address, deed in found.items()
                if deed.kind not in {"copy", "arrive"} or nth + deed.ahead >= loaded[deed.ring]}  # fmt: skip

    @property
    def computing(self) -> frozenset[int]:
        """The warps that execute the main loop."""
        return frozenset(self._computing)

    def require(self, loads: bool, before: Sequence[Deed], rounds: Iterable[Sequence[Deed]]) -> None:  # noqa: FBT001
        """Raise if the actions on the simulated paths differ from the recorded ones, in a CTA with as many rounds."""
        self.require_of(self.loaders if loads else self._computing - self.loaders, before, rounds)

    def require_of(self, warps: Collection[int], before: Sequence[Deed], rounds: Iterable[Sequence[Deed]]) -> None:
        """Raise if the actions on a path differ from those that warps were seen to execute."""
        did = {warp: self._done(warp) for warp in sorted(warps)}
        if self.turns and warps == self.loaders:
            did = {self.turns[0]: set[Phase]().union(*did.values())}
        deeds = [(0, deed) for deed in before] + [(r, deed) for r, way in enumerate(rounds) for deed in way]
        numbers = {(deed.kind, deed.ring, r + deed.ahead if n >= len(before) else deed.ahead)
                   for n, (r, deed) in enumerate(deeds)}  # fmt: skip
        simulated = {phase for phase in numbers if self._is_done(*phase)}
        for warp, phases in did.items():
            # Rare paths are spread evenly, so a round in the middle may lack a wait, which the next one makes up for.
            missing = {(kind, *phase) for kind, *phase in phases - simulated
                       if kind != "wait" or (kind, phase[0], phase[1] + 1) not in simulated}  # fmt: skip
            if different := missing | simulated - phases:
                kind, ring, number = min(different)
                who = "the simulated warp" if (kind, ring, number) in simulated else f"warp {warp}"
                message = f"only {who} executes '{kind}' of phase {number} of ring {ring}"
                raise NotUnderstoodError(message)

    def _is_done(self, kind: str, ring: int, number: int) -> bool:
        """Whether an action is done in a CTA with this number of rounds."""
        of = self.rings[ring]
        return 0 <= number < of.phases(self.rounds) - (of.left if kind == "wait" else 0)

    def _done(self, warp: int) -> set[Phase]:
        """Return the actions of a warp on phases; waits only if they were met."""
        return {
            (one.kind, self._place[one.address][0], number)
            for one, phase in self._entries
            if one.warp == warp and (one.kind != "wait" or one.met) and (number := self._number(one, phase)) >= 0
        }

    def _number(self, one: Seen, phase: int) -> int:
        """Return a phase's number in its ring."""
        ring, place = self._place[one.address]
        return phase * self._length[ring] + place

    def _ring(self, ring: int, group: Sequence[int]) -> Ring:
        """Return the arrivals and copies that end the phases of a ring."""
        ledger = self._ledger
        arrivals = {ledger.expected[address] for address in group}
        used = sum(-(-ledger.arrivals[address] // ledger.expected[address]) for address in group)
        copies = {ledger.copies[key] for key in ledger.bytes if key[0] in group} or {0}
        announced = {count for key, count in ledger.bytes.items() if key[0] in group} or {0}
        if not len(arrivals) == len(copies) == len(announced) == 1:
            message = f"the phases of the mbarrier at shared address {group[0]:#x} differ"
            raise NotUnderstoodError(message)
        each = int(any(one.round >= 0 and self._place[one.address][0] == ring for one, _ in ledger.entries))
        waited = (self._number(one, phase) for one, phase in ledger.entries if one.met and one.address in group)
        left = used - 1 - max(waited, default=-1)
        return Ring(arrivals.pop(), copies.pop(), used - each * self.rounds, each, announced.pop(), left)

    def _learn(self, one: Seen, phase: int) -> None:
        """Learn the action of a statement from one execution."""
        ring, number = self._place[one.address][0], self._number(one, phase)
        of = self.rings[ring]
        amount = of.bytes // max(1, of.copies) if one.kind == "copy" else one.amount
        deed = Deed(one.kind, ring, number - max(0, one.round), amount)
        known = self._before if one.round < 0 else self._around
        if known.setdefault(one.row, deed) != deed:
            message = f"line {one.row} of the PTX is about another phase in round {one.round} than in earlier rounds"
            raise NotUnderstoodError(message)

    def _by_address(self, code: Iterable[Instruction], known: Mapping[int, Deed]) -> dict[int, Deed]:
        found = {}
        for one in code:
            deed = known.get(self._row(one))
            if deed is not None:
                found[one.address] = deed
        return found

    def _row(self, one: Instruction) -> int:
        """Return the statement about an mbarrier that an instruction belongs to, or -1.

        It is the statement of the instruction's line if the action fits, else the next one with this action: ptxas
        gives the first try of a wait the line of the address computation before it.
        """
        kind = "copy" if one.is_copy else {"try_wait": "wait"}.get(name := pipes.class_of(one.opcode), name)
        if one.base == "BAR":
            kind = "reach" if ".ARV" in one.opcode else "meet"
        if kind not in {"copy", "wait", "arrive", *_MEETINGS} or re.search("EXCH|A0TR", one.opcode) or not one.line:
            return -1
        at = bisect_right(self._rows, one.line) - 1
        following = self._rows[max(at, 0) :]
        return next((row for row in following if self._kinds[row] == kind), -1)


def _meetings(seen: Iterable[Seen]) -> dict[tuple[int, int], Deed]:
    """Return the barriers of some of the warps of a CTA, by line and warp, if it is the same one in every round."""
    found, others = dict[tuple[int, int], Deed](), set[tuple[int, int]]()
    for one in seen:
        if one.amount and one.address:
            deed = Deed(_MEETINGS[one.kind], one.address, 0, one.amount // _LANES)
            others |= {(one.row, one.warp)} if found.setdefault((one.row, one.warp), deed) != deed else set()
    return {key: deed for key, deed in found.items() if key not in others}


def _turns(loads: Collection[tuple[int, int]]) -> Sequence[int]:
    """Return the warps that load in turn, one in each round, from ``loads``, rounds with the warps that load in them.

    Empty if one warp loads in every round, or several do.
    """
    by_round = dict(sorted(loads))
    warps = list(dict.fromkeys(by_round.values()))
    if len(warps) < 2 or len(by_round) < len(loads):  # noqa: PLR2004 - one warp does not take turns
        return ()
    if any(warp != warps[n % len(warps)] for n, warp in by_round.items()):
        message = "several warps load, but not one after the other"
        raise NotUnderstoodError(message)
    return warps


def _taking_turns(order: Sequence[int], seen: Iterable[Seen]) -> list[list[int]]:
    """Return groups of mbarriers in the order of first use: a statement uses the mbarriers of a group in turn."""
    groups: dict[int, set[int]] = {address: {address} for address in order}
    of_row: defaultdict[int, set[int]] = defaultdict(set)
    for one in seen:
        if one.round >= 0 and one.address in groups:
            of_row[one.row].add(one.address)
    for together in of_row.values():
        merged = set[int]().union(*(groups[address] for address in together))
        for address in merged:
            groups[address] = merged
    found: list[list[int]] = []
    for address in order:
        if not any(address in group for group in found):
            found.append([other for other in order if other in groups[address]])
    return found
