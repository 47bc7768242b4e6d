"""Instruction fetch: the instruction cache of an SM, which all of its warps share, and fetches from the next level.

A warp continues when the line of its next instruction is in the cache. When it reaches a line, the following lines are
prefetched. So code that is executed in order waits only if warps execute it faster than lines arrive. A line stays in
the cache for all warps until its set is full of lines that were used more recently.
"""

from collections import Counter
from collections.abc import Iterable

from pysm120.model.chips import Chip

LINE_BYTES = 128


def sets(chip: Chip) -> int:
    """Return the number of sets of the instruction cache."""
    return max(1, int(chip["code_bytes"]) // LINE_BYTES // int(chip["code_ways"]))


def set_of(line: int, count: int) -> int:
    """Return the set of a line of ``count`` sets; consecutive lines have different sets, and lines so far apart too."""
    return (line ^ line // count) % count


def fits(chip: Chip, lines: Iterable[int]) -> bool:
    """Whether lines of code fit in the instruction cache of an SM, together with the lines prefetched behind each."""
    ahead = int(chip["code_ahead"])
    wanted = {following for line in lines for following in range(line, line + ahead + 1)}
    return max(Counter(set_of(line, sets(chip)) for line in wanted).values(), default=0) <= int(chip["code_ways"])
