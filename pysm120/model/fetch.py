"""Where instructions come from: the code that an SM keeps, for all of its warps, and the way to it from the next level.

A warp goes on where the line of its next instruction is there. As it comes to a line, those that follow are asked for,
too, so that code that is gone through in order waits only where it is gone through faster than lines come. What one
warp brought is there for the others, until as many other lines of its set have been used.
"""

from collections import Counter
from collections.abc import Iterable

from pysm120.model.chips import Chip

LINE_BYTES = 128


def _sets(chip: Chip) -> int:
    """Return the number of sets that lines of code are kept in."""
    return max(1, int(chip["code_bytes"]) // LINE_BYTES // int(chip["code_ways"]))


def set_of(line: int, sets: int) -> int:
    """Return the set of a line: those of code in order take turns, and as many lines apart as there are sets differ."""
    return (line ^ line // sets) % sets


def fits(chip: Chip, lines: Iterable[int]) -> bool:
    """Whether an SM keeps so many lines of code, and those that are asked for behind each."""
    sets, ahead = _sets(chip), int(chip["code_ahead"])
    wanted = {following for line in lines for following in range(line, line + ahead + 1)}
    return max(Counter(set_of(line, sets) for line in wanted).values(), default=0) <= int(chip["code_ways"])


class Fetch:
    """The code that an SM of a chip keeps: nothing at first.

    ``warps``: of a quarter of the SM; the more there are, the more lines are asked for ahead.
    """

    def __init__(self, chip: Chip, warps: int = 1) -> None:
        self.ways, self.ahead = int(chip["code_ways"]), int(chip["code_ahead"]) * warps
        self.latency, self.interval = float(chip["code_latency"]), float(chip["code_interval"])
        # When each line of a set is there; the one that was used least recently first.
        self.kept: list[dict[int, int]] = [{} for _ in range(_sets(chip))]
        self.free = 0.0
        self.brought = 0

    def come_to(self, line: int, now: int) -> int:
        """Return when a line is there that a warp comes to now; ask for all but the last of those that follow it."""
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
        """Ask for the last of the lines that follow one whose first instruction is issued now."""
        self._ask(line + self.ahead, now)

    def _ask(self, line: int, now: int) -> None:
        if line not in self.kept[set_of(line, len(self.kept))]:
            self._bring(line, now)

    def _bring(self, line: int, now: int) -> int:
        """Bring a line in the place of another; return when it is there."""
        begin = max(self.free, now)
        self.free = begin + self.interval
        self.brought += 1
        kept = self.kept[set_of(line, len(self.kept))]
        if len(kept) == self.ways:
            del kept[next(iter(kept))]
        kept[line] = at = int(begin + self.latency)
        return at
