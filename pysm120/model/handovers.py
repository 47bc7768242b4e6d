"""Hand-overs between warps and the copy engine through mbarriers: which instruction does what to which phase.

The mbarriers of the stages, used in turn, form a ring. The phases of a ring are numbered in the order of their use. A
phase ends when all its arrivals and copies are done. The hand-overs of a kernel are recorded on the virtual device
(mbarriers.py), or derived by these rules:

- A ring holds tiles of keys. In each round a warp waits for a tile, or for its parts in turn, and releases it once.
- A wait that only the producer warp executes is for a tile that all warps have released. The copies after it load the
  tile that replaces it.
- Before the main loop, copies beyond those of all stages but one load Q, and a wait before the loop is for Q.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from pysm120.machine_code import pipes
from pysm120.machine_code.sass import Function, Instruction

_BYTES = re.compile(r"0x[0-9a-f]+$")
_TILE_BYTES = 32768  # if the code does not tell


class Deed(NamedTuple):
    """The action of an instruction: "wait" for a phase, "arrive" in it, or "copy" into it.

    The phase of ``ring`` is ``ahead`` phases ahead of the round's own; before the first round, it is phase ``ahead``.
    ``amount`` is the number of arrivals of a warp, or of bytes.
    """

    kind: str
    ring: int
    ahead: int
    amount: int = 0


@dataclasses.dataclass(frozen=True)
class Ring:
    """Mbarriers that are used in turn. Arrivals and copies end a phase; a CTA uses ``once + each * rounds`` phases.

    No warp waits for the last ``left`` phases.
    """

    arrivals: int
    copies: int
    once: int
    each: int
    bytes: int = 0  # of a phase
    left: int = 0

    def phases(self, rounds: int) -> int:
        """Return how many phases a CTA uses in a number of rounds."""
        return self.once + self.each * rounds


class Filler(NamedTuple):
    """Producer warps that are not simulated: when a phase of ``emptied`` ends, they load the one ``stages`` later."""

    stages: int
    emptied: int
    filled: Sequence[int]


class Handovers(Protocol):
    """The hand-overs of a kernel. ``why`` says why they come from the rules; it is "" if they were recorded.

    ``guessed``: nothing tells the bytes of a tile.
    """

    stages: int
    filler: Filler | None
    why: str
    guessed: bool

    @property
    def rings(self) -> Sequence[Ring]:
        """The rings, by their numbers."""

    @property
    def loaders(self) -> Collection[int]:
        """The warps that load besides."""

    @property
    def starters(self) -> Collection[int]:
        """Those of them that load before the main loop."""

    @property
    def turns(self) -> Sequence[int]:
        """The loaders, if they take turns: the first loads in the first round. Else empty: all load in every round."""

    def before(self) -> dict[int, Deed]:
        """Return the actions of the instructions before the main loop, by address."""

    def around(self, way: Sequence[Instruction], others: Sequence[Instruction]) -> dict[int, Deed]:
        """Return the actions of the instructions of a round, from a warp's path and the other warps' path in it."""


class ByRules:
    """Hand-overs derived by the rules.

    Parameters
    ----------
    function : Function
        The kernel.
    warps : int
        Of a CTA that compute.
    around, load_before, load_around : sequence of Instruction
        The path through the main loop; the producer warp's paths to the main loop and through it.
    stages : int, optional
        Tiles that a ring holds. Default: from the number of mbarriers, else one more than the tiles that are copied
        before the main loop.
    why : str
        Why they were not recorded.

    """

    loaders: Collection[int]
    turns: Sequence[int] = ()
    guessed = False

    def __init__(
        self,
        function: Function,
        warps: int,
        around: Sequence[Instruction],
        load_before: Sequence[Instruction],
        load_around: Sequence[Instruction],
        stages: int | None = None,
        *,
        why: str = "",
    ) -> None:
        self.loaders, self.why = (0,), why
        self.starters = self.loaders
        first, each = (sum(one.is_copy for one in way) for way in (load_before, load_around))
        self.stages = stages or _stages(function, around) or (first // each + 1 if each else 2)
        self.rings: Sequence[Ring] = []
        self.filler: Filler | None = None
        self._load_before, self._copies = load_before, each or 1
        self._of_q = max(0, first - (self.stages - 1) * each) if each else 0
        if not any(one.is_copy for one in function.instructions):
            return
        announced = _tile_bytes(load_around) or _announced(function)
        self.guessed = not announced
        self._bytes = (announced or _TILE_BYTES) // self._copies
        self._parts = parts = max(1, sum(map(_is_wait, around)))
        copies = [sum(self._part(n) == part for n in range(self._copies)) for part in range(parts)]
        tiles = [Ring(0, n, 0, 1, n * self._bytes) for n in copies]
        self.rings = [*tiles, Ring(warps, 0, 0, 1), Ring(0, self._of_q, 1, 0, self._of_q * self._bytes)]
        if not each:
            self.filler = Filler(self.stages, parts, [part for part in range(parts) if copies[part]])

    def before(self) -> dict[int, Deed]:
        """Return the actions of the instructions before the main loop, by address."""
        found: dict[int, Deed] = {}
        copied = -self._of_q
        last = max((i for i, one in enumerate(self._load_before) if one.is_copy), default=-1)
        for i, one in enumerate(self._load_before if self.rings else ()):
            if one.is_copy:
                of_q = Deed("copy", self._parts + 1, 0, self._bytes)
                found[one.address] = of_q if copied < 0 else self._copy(copied, 0)
                copied += 1
            elif _is_wait(one) and i > last and self._of_q:  # earlier waits are for stages that are empty
                found[one.address] = Deed("wait", self._parts + 1, 0)
        return found

    def around(self, way: Sequence[Instruction], others: Sequence[Instruction]) -> dict[int, Deed]:
        """Return the actions of the instructions of a round, from a warp's path and the other warps' path in it."""
        if not self.rings:
            return {}
        found: dict[int, Deed] = {}
        common = {one.address for one in others}
        waits = sum(_is_wait(one) and one.address in common for one in way)
        copied = waited = 0
        for one in way:
            if one.is_copy:
                found[one.address] = self._copy(copied, self.stages - 1)
                copied += 1
            elif _is_wait(one) and one.address in common:
                waited += 1
                found[one.address] = Deed("wait", self._part(-(-self._copies * waited // waits) - 1), 0)
            elif _is_wait(one):
                found[one.address] = Deed("wait", self._parts, -1)
        arrivals = [one.address for one in others if pipes.class_of(one.opcode) == "arrive"]
        if arrivals:
            found[arrivals[-1]] = Deed("arrive", self._parts, 0, 1)
        return found

    def _part(self, copy: int) -> int:
        """Return which part of a tile a copy loads."""
        return copy * self._parts // self._copies

    def _copy(self, number: int, ahead: int) -> Deed:
        """Return the action of a copy; copies are counted from the first one of a tile."""
        tile, copy = divmod(number, self._copies)
        return Deed("copy", self._part(copy), ahead + tile, self._bytes)


class InTime:
    """Hand-overs that hold no warp up: every wait is met at once.

    Copies cost the instructions that issue them. ``rings`` tell the bytes of a round.
    """

    filler: Filler | None = None
    loaders: Collection[int] = ()
    starters: Collection[int] = ()
    turns: Sequence[int] = ()

    def __init__(self, rules: ByRules | None = None) -> None:
        self.guessed = rules.guessed if rules else False
        self.stages = rules.stages if rules else 0
        self.why = "the rules do not fit this kernel: every tile is there in time" if rules else ""
        self.rings: Sequence[Ring] = [Ring(0, 0, 0, one.each, one.bytes) for one in (rules.rings if rules else ())]

    def before(self) -> dict[int, Deed]:
        """Return the actions of the instructions before the main loop: none."""
        return {}

    def around(self, way: Sequence[Instruction], others: Sequence[Instruction]) -> dict[int, Deed]:  # noqa: ARG002
        """Return the actions of the instructions of a round: none."""
        return {}


def _is_wait(one: Instruction) -> bool:
    return pipes.class_of(one.opcode) == "try_wait"


def _stages(function: Function, around: Sequence[Instruction]) -> int:
    """Return the stages of a ring from the number of mbarriers: a stage has one for each wait and each arrival."""
    made = sum(one.base == "SYNCS" and "EXCH" in one.opcode for one in function.instructions)
    used = sum(pipes.class_of(one.opcode) in {"try_wait", "arrive"} for one in around)
    return max(2, made // used) if used and made >= used else 0


def _tile_bytes(path: Sequence[Instruction]) -> int:
    """Return the bytes that arrivals on a path announce, as far as they are constants."""
    return sum(_constants(path))


def _announced(function: Function) -> int:
    """Return the bytes that most arrivals of a kernel announce: those of the producers' tiles; 0 if one is unknown."""
    code = [one for one in function.instructions if "EXCH" not in one.opcode]
    found = _constants(code)
    return Counter(found).most_common(1)[0][0] if len(found) == sum(map(_announces, code)) > 0 else 0


def _announces(one: Instruction) -> bool:
    """Whether an instruction arrives and announces bytes."""
    return pipes.class_of(one.opcode) == "arrive" and "A1T0" not in one.opcode


def _constants(path: Sequence[Instruction]) -> list[int]:
    """Return the bytes that each arrival on a path announces, if they are a constant."""
    found_bytes = []
    for i, one in enumerate(path):
        if not _announces(one):
            continue
        register = one.operands[-1]
        for earlier in reversed(path[:i]):
            if earlier.operands and earlier.operands[0] == register:
                found = _BYTES.match(earlier.operands[-1])
                found_bytes += [int(found[0], 16)] if found and "MOV" in earlier.opcode else []
                break
    return found_bytes
