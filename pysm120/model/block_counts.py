"""How often the blocks of machine code ran, from the counts of the PTX statements whose lines they have."""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from pysm120.machine_code.sass import Function, Instruction

_OF_PTXAS = ("BSSY", "BSYNC", "WARPSYNC", "YIELD", "NOP", "BMOV")  # opcodes whose lines are not reliable
_ALIKE = 3  # fewest statements whose instructions are in the same blocks

Edge = tuple[int, int]


def row_of(rows: Sequence[int], one: Instruction) -> int:
    """Return the line of the statement that an instruction belongs to, or -1; ``rows`` are the lines of statements."""
    at = bisect_right(rows, one.line)
    return rows[at - 1] if at and one.line and one.base not in _OF_PTXAS else -1


def copies_of(rows: Sequence[int], code: Iterable[Instruction]) -> dict[int, int]:
    """Return how often code has the instructions of each statement, by line: as often as its rarest one."""
    found = defaultdict[int, Counter[str]](Counter)
    for one in code:
        found[row_of(rows, one)][one.base] += 1
    return {row: min(bases.values()) for row, bases in found.items() if row >= 0}


def own_rows(function: Function, executed: Mapping[int, int]) -> dict[int, list[int]]:
    """Return the statements of each block, by line, without those that have instructions in several blocks."""
    starts = sorted(executed)
    found = {
        n: [row_of(starts, one) for one in function.instructions[block.first : block.last]]
        for n, block in enumerate(function.blocks)
    }
    homes = Counter(row for rows in found.values() for row in set(rows) if row >= 0)
    return {n: [row for row in rows if homes[row] == 1] for n, rows in found.items()}


def blocks(function: Function, executed: Mapping[int, int], single: Collection[int] = ()) -> dict[int, int]:
    """Return how often blocks ran, for the blocks that have statements of their own.

    A block with all rounds of a loop, each of which has the code of most statements n times, ran an nth as often as
    they. It has other statements too, which say so. If the block alone is the loop, and all statements may be copied,
    those of ``single`` say so: the lines of accesses of memory that are one instruction each.

    ptxas moves statements of a branch's arm into the block before it, where they may outnumber its own. A barrier
    without a guard does not move: where a block has some, they alone say how often it ran.

    ptxas also turns an arm into guarded instructions of the block around it. They are issued in every pass, but their
    statements ran only where the arm was taken. So statements whose instructions are all guarded say nothing, if the
    block has others of its own.

    ptxas moves statements of a loop before it, too. So what only leads to a loop, and what is in no loop, says nothing
    where its statements ran more often than it can have.

    A block that leads to another one alone, or to it around another block, ran no more often than that one. If most of
    its statements say otherwise, others of them are asked: the first ones come from arms behind the block.
    """
    found = _told(function, executed, single)
    once, before = next((executed[row] for row in sorted(executed) if executed[row]), 0), _before(function)
    inside, headers = {b for loop in function.loops for b in loop.blocks}, {loop.header for loop in function.loops}
    for n in sorted(found):
        after, counts = function.blocks[n].successors, [found.get(b) for b in before[n]]
        leads = len(after) == 1 and after[0] in headers - {n} and n and counts and None not in counts
        most = sum(count or 0 for count in counts) if leads else math.inf if n in inside else once
        if found[n] > most:
            del found[n]
    _raise_to_neighbours(function, executed, found)
    return found


def _before(function: Function) -> list[list[int]]:
    """Return the blocks that lead to each block."""
    found: list[list[int]] = [[] for _ in function.blocks]
    for n, block in enumerate(function.blocks):
        for s in block.successors:
            found[s].append(n)
    return found


def _least(function: Function, told: Mapping[int, int], before: Sequence[Sequence[int]], block: int) -> int:
    """Return how often a block ran at least: as often as what only it leads to, and what leads to it alone."""
    # Of the warps that a block with a guarded EXIT leads on, some may have ended.
    ends = [function.instructions[block.last - 1].base == "EXIT" for block in function.blocks]
    ways = [() if end else block.successors for end, block in zip(ends, function.blocks, strict=True)]
    after = (told.get(s, 0) for s in ways[block] if before[s] == [block])
    into = (
        told.get(n, 0)
        for n in before[block]
        if n != block and ways[n] and all(s == block or (before[s] == [n] and set(ways[s]) == {block}) for s in ways[n])
    )
    return max((*after, *into), default=0)


def _raise_to_neighbours(function: Function, executed: Mapping[int, int], told: dict[int, int]) -> None:
    """Correct the counts of blocks that ran less often than their neighbours say, or leave them to the flow."""
    before, rows = _before(function), own_rows(function, executed)
    changed = True
    while changed:
        changed = False
        for n in [*told]:
            least = _least(function, told, before, n)
            if told[n] >= least:
                continue
            changed = True
            if counts := Counter(executed[row] for row in rows[n] if executed[row] >= least):
                told[n] = counts.most_common(1)[0][0]
            else:
                del told[n]


def _told(function: Function, executed: Mapping[int, int], single: Collection[int]) -> dict[int, int]:
    """Return how often blocks ran, by what their own statements say."""
    found, starts = {}, sorted(executed)
    for n, own in own_rows(function, executed).items():
        if not own:
            continue
        block = function.blocks[n]
        code = function.instructions[block.first : block.last]
        fixed = Counter(row_of(starts, one) for one in code if one.base == "BAR" and not one.predicate)
        told = Counter(executed[row] // fixed[row] for row in set(own) if fixed[row])
        if told:
            found[n] = told.most_common(1)[0][0]
            continue
        always = {row_of(starts, one) for one in code if not one.predicate}
        rows = [row for row in own if row in always] or own
        counts = Counter(executed[row] for row in rows)
        count = counts.most_common(1)[0][0]
        copies = copies_of(starts, code)
        each = Counter(copies[row] for row in set(rows) if executed[row] == count).most_common(1)[0][0]
        alone = n in block.successors and each > 1
        accesses = {row for row in rows if row in single}
        is_copied = count // each in counts or (alone and accesses and {copies[row] for row in accesses} == {each})
        found[n] = count // each if count and count % each == 0 and is_copied else count
    return found


def edges(function: Function, known: Mapping[int, int]) -> dict[Edge, int]:
    """Return how often warps went from block to block, as far as the counts of blocks determine it."""
    counts = dict(known)
    after = {n: [(n, s) for s in block.successors] for n, block in enumerate(function.blocks)}
    before: dict[int, list[Edge]] = {n: [] for n in after}
    for ways in after.values():
        for edge in ways:
            before[edge[1]].append(edge)
    leaves = {n for n, block in enumerate(function.blocks) if function.instructions[block.last - 1].base == "EXIT"}
    sides = [(n, ways) for n, ways in after.items() if ways and n not in leaves]
    sides += [(n, ways) for n, ways in before.items() if ways and n]
    found: dict[Edge, int] = {}
    changed = True
    while changed:
        changed = False
        for n, ways in sides:
            open_ = [edge for edge in ways if edge not in found]
            total = sum(found[edge] for edge in ways if edge in found)
            if open_ and counts.get(n) == 0:
                found.update(dict.fromkeys(open_, 0))
                changed = True
            elif not open_ and n not in counts:
                counts[n], changed = total, True
            elif len(open_) == 1 and n in counts and counts[n] >= total:
                found[open_[0]], changed = counts[n] - total, True
    return found


def of_copies(function: Function, executed: Mapping[int, int], counts: Mapping[int, int | None]) -> dict[int, int]:
    """Return how often blocks ran whose statements have instructions in several of them.

    ``counts``: how often each block ran, None if that is unknown.

    ptxas unrolls a loop: a round of it has n copies of the statements, and blocks behind it have fewer, for the rounds
    that remain. The block with the most copies comes first and takes all rounds that it can. Of arms with the same
    statements, the first one takes all. Which of two loops with as many copies ran, nobody knows.
    """
    starts = sorted(executed)
    copies = {
        n: copies_of(starts, function.instructions[block.first : block.last]) for n, block in enumerate(function.blocks)
    }
    homes = defaultdict[int, list[int]](list)
    for n, rows in copies.items():
        for row in rows:
            homes[row].append(n)
    shared = defaultdict[tuple[int, ...], list[int]](list)  # by unknown blocks, their statements
    for row, blocks_ in homes.items():
        if unknown := tuple(n for n in blocks_ if counts[n] is None):
            shared[unknown].append(row)
    found: dict[int, int] = {}
    for group, lines in sorted(shared.items(), key=lambda one: -len(one[1])):
        if len(lines) >= _ALIKE and not found.keys() & set(group):
            left = [executed[row] - sum((counts[n] or 0) * copies[n][row] for n in homes[row]) for row in lines]
            each = {n: _most([copies[n][row] for row in lines]) for n in group}
            found |= _shared_out(function, each, Counter(left).most_common(1)[0][0], counts)
    return found


def _most(copies: Sequence[int]) -> int:
    """Return the number of copies that most instructions of a block have."""
    return max(set(copies), key=lambda count: count * copies.count(count))


def _shared_out(
    function: Function, copies: Mapping[int, int], executed: int, counts: Mapping[int, int | None]
) -> dict[int, int]:
    """Return how often each of some blocks ran, of the executions that they have together.

    ``copies``: how often a block has the code of their statements.
    """
    before = (n for n in reversed(range(min(copies))) if all(function.dominates(n, b) for b in copies))
    first = next((n for n in before if counts[n]), None)
    entered = counts[first] if first is not None else None
    if not entered or executed < 0:
        return {}
    found, left = dict[int, int](), executed
    looped = {n for loop in function.loops if first not in loop.blocks for n in loop.blocks}
    rounds = [each for n, each in copies.items() if n in looped]
    if len(set(rounds)) < len(rounds):
        return {}
    for n, each in sorted(copies.items(), key=lambda one: -one[1]):
        repeats = n in looped
        passes = left / entered / each
        whole = math.floor(passes) if repeats or each > 1 else passes
        found[n] = round(entered * (whole if repeats else min(whole, 1.0)))
        left -= found[n] * each
    return found
