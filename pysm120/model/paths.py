"""The path of a warp through a kernel: recorded, or by rules. No values are computed.

The rules assume that a conditional branch of the main loop skips work that is rare or belongs to another warp:
- forward over matrix products: not taken, because the loop exists for them;
- forward over copies by the copy engine: not taken by the producer warp, taken by all others;
- forward over other code (masks of edge tiles, rescaling after a new maximum): taken;
- to code after the loop's last branch (ptxas puts retries of waits and diverged warps there): not taken;
- backward to itself (a wait, or a uniform value that differs between lanes): not taken, so it executes once.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pysm120.machine_code.sass import Function, Instruction, Loop
from pysm120.model.recorded import Recording

_NEXT = "UGETNEXTWORKID"  # clusterlaunchcontrol.try_cancel
_RETRY = 4  # instructions of a loop that waits for an mbarrier are fewer

Choice = Callable[[Function, int], bool]


def rules(function: Function, loop: Loop, *, loads: bool, stated: Mapping[int, bool] | None = None) -> Choice:
    """Return the choice for the main loop.

    Parameters
    ----------
    function, loop : Function, Loop
        The kernel and its main loop.
    loads : bool
        Whether this is a producer warp, which issues copies.
    stated : mapping, optional
        Whether branches are taken, by address; overrides the rules.

    """
    ends = [function.blocks[b].last - 1 for b in loop.blocks if loop.header in function.blocks[b].successors]
    conditional = [end for end in ends if function.instructions[end].is_conditional]
    latch = function.instructions[max(conditional or ends)].address

    def takes(_: Function, index: int) -> bool:
        branch = function.instructions[index]
        if stated and branch.address in stated:
            return stated[branch.address]
        if branch.target is None or ".DIV" in branch.opcode:
            return False
        if branch.target <= branch.address or branch.target > latch:
            return False
        skipped = [one for one in function.instructions if branch.address < one.address < branch.target]
        if any(one.is_tensor for one in skipped):
            return False
        if any(one.is_copy for one in skipped):
            return not loads
        return True

    return takes


def rounds_of(
    function: Function,
    loop: Loop,
    recording: Recording | None,
    rounds: int,
    *,
    loads: bool = False,
    stated: Mapping[int, bool] | None = None,
    warp: int | None = None,
) -> list[list[Instruction]]:
    """Return the instructions that each round of the main loop executes, in a CTA with a number of rounds.

    ``stated`` decides a branch, else the recording, else the rules. ``warp``: of this warp, if warps have roles.
    """
    otherwise = rules(function, loop, loads=loads, stated=stated)
    recorded = recording.choices(rounds, warp) if recording else None

    def takes(of: Function, index: int) -> bool:
        branch = of.instructions[index]
        said = recorded(branch) if recorded and branch.address not in (stated or {}) else None
        return otherwise(of, index) if said is None else said

    repeats = recording.repeats if recording and recording.loop == loop else {}
    return [function.path(loop, takes, repeats) for _ in range(rounds)]


def compute_warps(threads: int) -> int:
    """Return the number of computing warps of a CTA: warps beyond a multiple of four are producers."""
    warps = -(-threads // 32)
    return warps - warps % 4 if warps > 4 else warps  # noqa: PLR2004 - the quarters of an SM


def before(function: Function, loop: Loop, *, loads: bool, through: bool = False) -> list[Instruction]:
    """Return the shortest path from the start to the main loop; with ``loads``, of those with the most copies.

    It goes around other loops. If it cannot, it is empty, or with ``through`` leads through them once.
    """
    around = _beside(function, loop) - {loop.header}
    found = _shortest(function, 0, lambda b: b == loop.header, around, loads=loads)
    if found or not through:
        return found
    return _any_way(function, [0], lambda b: b == loop.header, set(loop.blocks) - {loop.header})


def behind(function: Function, loop: Loop, *, through: bool = False) -> list[Instruction]:
    """Return the shortest path from the main loop to the end; ``through`` as for ``before``."""
    inside = _beside(function, loop)
    out = [s for b in loop.blocks for s in function.blocks[b].successors if s not in loop.blocks]
    starts = [s for s in out if s not in inside]
    ways = [
        _shortest(function, s, lambda b: not function.blocks[b].successors, inside, loads=False, last=True)
        for s in starts
    ]
    found = [way for way in ways if way]
    if found or not through:
        return min(found, key=len) if found else []
    return _any_way(function, out, lambda b: not function.blocks[b].successors, set(loop.blocks), last=True)


def between(
    function: Function, loop: Loop, before: Sequence[Instruction], behind: Sequence[Instruction]
) -> list[Instruction]:
    """Return the path from the main loop to its next entry of a kernel whose CTAs go on; empty for another kernel.

    A CTA that goes on takes the work of one that has not started. The path is what the loop around the main loop has
    of the paths ``behind`` and ``before`` it.
    """
    if not any(one.base == _NEXT for one in function.instructions):
        return []
    outer = [other for other in function.loops if set(other.blocks) > set(loop.blocks)]
    code = [one.address for other in outer for one in function.of_loop(other)]
    return [one for one in (*behind, *before) if one.address in code]


def around(function: Function, loop: Loop) -> list[Instruction]:
    """Return the shortest path from the start to an EXIT, guarded or not, that does not enter the main loop."""
    blocks, inside = function.blocks, _beside(function, loop)
    leaves = {b for b, block in enumerate(blocks) if function.instructions[block.last - 1].base == "EXIT"}
    return _shortest(function, 0, leaves.__contains__, inside, loads=False, last=True)


def recorded(
    function: Function, loop: Loop, passed: Callable[[int], bool]
) -> tuple[list[Instruction], list[Instruction]]:
    """Return the longest paths to the main loop and from it to the end over blocks that a warp ``passed``.

    They go around other loops. A path is empty if the known blocks do not make one.
    """
    around = [other for other in function.loops if set(other.blocks) >= set(loop.blocks) and other != loop]
    inside = {b for other in function.loops if other not in around for b in other.blocks}
    out = [s for b in loop.blocks for s in function.blocks[b].successors if s not in inside]
    ends = {b for b, block in enumerate(function.blocks) if not block.successors and passed(b)}
    ways = (_longest(function, [0], {loop.header}, inside, passed), _longest(function, out, ends, inside, passed))
    before, behind = (_code_of(function, way) for way in (ways[0][:-1], ways[1]))
    return before, behind


def walked(
    function: Function,
    starts: Iterable[int],
    goals: Collection[int],
    passed: Callable[[int, int], float | None],
    warp: int,
) -> list[Instruction]:
    """Return the path that a warp takes to a goal, over blocks that the warps of a CTA were seen to take.

    Of what n warps of a CTA take on average, the first n take it, and warp 0 what fewer take: it loads and counts. If
    as many take each way, warps have roles. Then it is the first way, and later on the one that goes with it, as far as
    the guarded EXIT of its role. Loops are passed once. The path is empty if it leads to no goal.

    Parameters
    ----------
    function : Function
        The kernel.
    starts, goals : iterable of int
        Blocks. The path includes the first one and no goal, unless nothing follows the goal.
    passed : callable
        How many warps of a CTA went from one block to another, on average; None if that is unknown.
    warp : int
        The warp.

    """
    order, roles = list[int](), dict[str, bool]()
    ways = [s for s in starts if not _retries(function, s)]
    b = ways[0] if ways else -1
    while b >= 0 and (b not in goals or not function.blocks[b].successors):
        order.append(b)
        code = function.instructions[function.blocks[b].first : function.blocks[b].last]
        for one in code:
            for name in {*one.operands[:2]} & {*roles}:
                del roles[name]
        guard, negated = _guard_of(code[-1])
        if code[-1].base == "EXIT" and guard in roles and roles[guard] != negated:
            return _code_of(function, order)
        ahead = [s for s in function.blocks[b].successors if s > b or s < order[0]]
        b = _taken(b, [s for s in ahead if not _retries(function, s)] or ahead, code[-1], passed, roles, warp)
    reached = b >= 0 or (bool(order) and order[-1] in goals)
    return _code_of(function, order) if reached else []


def _taken(
    block: int,
    ways: Sequence[int],
    end: Instruction,
    passed: Callable[[int, int], float | None],
    roles: dict[str, bool],
    warp: int,
) -> int:
    """Return the block that a warp goes to, or -1; ``roles``: the predicates by which warps went different ways."""
    if len(ways) < 2:  # noqa: PLR2004 - nothing to choose
        return ways[0] if ways else -1
    counts = [passed(block, s) for s in ways]
    known = [(count, s) for count, s in zip(counts, ways, strict=True) if count is not None and count >= warp + 0.5]
    if not known:
        unknown = [s for count, s in zip(counts, ways, strict=True) if count is None]
        return unknown[0] if unknown else -1
    if len(known) > 1 and known[0][0] == known[1][0]:
        guard, negated = _guard_of(end)
        value = roles.setdefault(guard, negated)
        return ways[1] if value != negated else ways[0]
    return min(known)[1] if warp == 0 else max(known)[1]


def _guard_of(one: Instruction) -> tuple[str, bool]:
    """Return the predicate of a guard, or "", and whether it is negated."""
    return one.predicate.lstrip("!"), one.predicate.startswith("!")


def _retries(function: Function, block: int) -> bool:
    """Whether a block waits once more for what a block before it has waited for."""
    return (
        block in function.blocks[block].successors
        and function.blocks[block].last - function.blocks[block].first < _RETRY
    )


def _longest(
    function: Function, starts: Iterable[int], goals: Collection[int], forbidden: set[int], ran: Callable[[int], bool]
) -> list[int]:
    """Return the blocks of the path with the most instructions to a goal, over forward edges and blocks that ran."""
    blocks, found = function.blocks, dict[int, tuple[int, int]]()  # by block: instructions to the goal, the next block
    for b in reversed(range(len(blocks))):
        ways = [(found[s][0], s) for s in blocks[b].successors if s > b and s in found]
        if b in goals:
            found[b] = (blocks[b].last - blocks[b].first, -1)
        elif ways and b not in forbidden and ran(b):
            length, following = max(ways)
            found[b] = (length + blocks[b].last - blocks[b].first, following)
    order, b = list[int](), max((s for s in starts if s in found), key=lambda s: found[s][0], default=-1)
    while b >= 0:
        order.append(b)
        b = found[b][1]
    return order


def whole(function: Function, ran: Callable[[int], bool] = lambda _: True) -> list[Instruction]:
    """Return the path with the most instructions through a kernel without loops, over blocks that ``ran``."""
    blocks = function.blocks
    longest: dict[int, tuple[int, int]] = {}  # by block: instructions up to the end, and the next block
    for b in reversed(range(len(blocks))):
        ways = [(longest[s][0], s) for s in blocks[b].successors if s > b and s in longest and ran(s)]
        length, following = max(ways, default=(0, -1))
        longest[b] = (length + blocks[b].last - blocks[b].first, following)
    order, b = [], 0
    while b >= 0:
        order.append(b)
        b = longest[b][1]
    return _code_of(function, order)


def _code_of(function: Function, order: Iterable[int]) -> list[Instruction]:
    """Return the instructions of blocks."""
    ways = (function.instructions[function.blocks[b].first : function.blocks[b].last] for b in order)
    return [one for way in ways for one in way]


def _any_way(
    function: Function,
    starts: Sequence[int],
    is_goal: Callable[[int], bool],
    forbidden: set[int],
    *,
    last: bool = False,
) -> list[Instruction]:
    """Return the shortest path over all edges, also through other loops and backward."""
    came: dict[int, int] = {}
    work = [(0, s, -1) for s in starts]
    heapq.heapify(work)
    while work:
        length, b, before_it = heapq.heappop(work)
        if b in came or b in forbidden:
            continue
        came[b] = before_it
        if is_goal(b):
            order = [b] if last else []
            while came[b] >= 0:
                b = came[b]
                order.append(b)
            return _code_of(function, reversed(order))
        block = function.blocks[b]
        for s in block.successors:
            heapq.heappush(work, (length + block.last - block.first, s, b))
    return []


def _beside(function: Function, main: Loop) -> set[int]:
    """Return the blocks of the main loop and of the loops beside it.

    Loops around it are excluded, because they execute once, and loops of one block: waits, and values that differ
    between lanes.
    """
    around = [loop for loop in function.loops if set(loop.blocks) >= set(main.blocks) and loop != main]
    others = [loop for loop in function.loops if len(loop.blocks) > 1 and loop not in around]
    return {b for loop in others for b in loop.blocks}


def _shortest(
    function: Function,
    start: int,
    is_goal: Callable[[int], bool],
    forbidden: set[int],
    *,
    loads: bool,
    last: bool = False,
) -> list[Instruction]:
    """Return the path with the fewest instructions from a block to a goal; it includes the goal only with ``last``."""
    # Only forward edges: a path does not repeat a loop.
    best: dict[int, tuple[int, int, int]] = {start: (0, 0, -1)}
    goal = -1
    for b in range(len(function.blocks)):
        if b not in best or b in forbidden:
            continue
        if is_goal(b):
            if goal < 0 or best[b][:2] < best[goal][:2]:
                goal = b
            continue
        block = function.blocks[b]
        code = function.instructions[block.first : block.last]
        copies = sum(one.is_copy for one in code)
        cost = best[b][0] + (-copies if loads else copies), best[b][1] + len(code)
        for s in block.successors:
            if s > b and s not in forbidden and (s not in best or cost < best[s][:2]):
                best[s] = (*cost, b)
    if goal < 0:
        return []
    order = [goal] if last else []
    b = best[goal][2]
    while b >= 0:
        order.append(b)
        b = best[b][2]
    return _code_of(function, reversed(order))
