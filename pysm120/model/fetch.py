"""Instruction fetch: the instruction cache of an SM, which all of its warps share, and fetches from the next level.

A warp continues when the line of its next instruction is in the cache. When it reaches a line, the following lines are
prefetched. So code that is executed in order waits only if warps execute it faster than lines arrive. A line stays in
the cache for all warps until its set is full of lines that were used more recently.
"""

from collections import Counter
from collections.abc import Iterable

from pysm120.model.chips import Chip

LINE_BYTES = 128


def _sets(chip: Chip) -> int:
    """Return the number of sets of the instruction cache."""
    return max(1, int(chip["code_bytes"]) // LINE_BYTES // int(chip["code_ways"]))


def set_of(line: int, sets: int) -> int:
    """Return the set of a line; consecutive lines have different sets, and so have lines at a distance of ``sets``."""
    return (line ^ line // sets) % sets


def fits(chip: Chip, lines: Iterable[int]) -> bool:
    """Whether lines of code fit in the instruction cache of an SM, together with the lines prefetched behind each."""
    sets, ahead = _sets(chip), int(chip["code_ahead"])
    wanted = {following for line in lines for following in range(line, line + ahead + 1)}
    return max(Counter(set_of(line, sets) for line in wanted).values(), default=0) <= int(chip["code_ways"])


class Fetch:
    """The instruction cache of an SM, empty at first.

    ``warps``: warps of a quarter of the SM; with more warps, more lines are prefetched.
    """

    def __init__(self, chip: Chip, warps: int = 1) -> None:
        self.ways, self.ahead = int(chip["code_ways"]), int(chip["code_ahead"]) * warps
        self.latency, self.interval = float(chip["code_latency"]), float(chip["code_interval"])
        # for each set, the arrival time of each line, the least recently used line first
        self.kept: list[dict[int, int]] = [{} for _ in range(_sets(chip))]
        self.free = 0.0
        self.brought = 0

    def come_to(self, line: int, now: int) -> int:
        """Return when the line that a warp reaches now is available; prefetch the following lines but the last."""
        kept = self.kept[set_of(line, len(self.kept))]
        at = kept.pop(line, None)
        if at is None:
            at = self._bring(line, now)
        else:
            kept[line] = at
        for following in range(line + 1, line + self.ahead):
            self._ask(following, now)
        return at

    def enter(self, line: int, now: int) -> None:
        """Prefetch the last of the lines behind a line whose first instruction is issued now."""
        self._ask(line + self.ahead, now)

    def _ask(self, line: int, now: int) -> None:
        if line not in self.kept[set_of(line, len(self.kept))]:
            self._bring(line, now)

    def _bring(self, line: int, now: int) -> int:
        """Fetch a line, which replaces another one; return when it arrives."""
        begin = max(self.free, now)
        self.free = begin + self.interval
        self.brought += 1
        kept = self.kept[set_of(line, len(self.kept))]
        if len(kept) == self.ways:
            del kept[next(iter(kept))]
        kept[line] = at = int(begin + self.latency)
        return at
