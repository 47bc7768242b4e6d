"""Which way a warp goes through a kernel, by rules; no value is computed.

In the main loop a branch that is taken by chance skips work that is rare or another warp's:
- forward over matrix products: not taken, since the products are what the loop is for;
- forward over copies of the copy engine: not taken by the warp that loads, taken by all others;
- forward over other code (masks of edge tiles, rescaling after a new maximum): taken;
- behind the loop's last branch (where ptxas puts waits that go on, and diverged warps): not taken;
- backward onto itself (a wait, a uniform value that differs between lanes): not taken, once is enough.
"""

from collections.abc import Callable, Mapping

from pysm120.sass import Function, Instruction, Loop

Choice = Callable[[Function, int], bool]


def rules(function: Function, loop: Loop, *, loads: bool, stated: Mapping[int, bool] | None = None) -> Choice:
    """Return the choice for the main loop.

    Parameters
    ----------
    function, loop : Function, Loop
        The kernel and its main loop.
    loads : bool
        Whether this is a warp that hands work to the copy engine.
    stated : mapping, optional
        What to do at branches, by address, instead of what the rules say.

    """
    end = max(
        function.blocks[b].last - 1
        for b in loop.blocks
        if loop.header in function.blocks[b].successors and (function.blocks[b].last - function.blocks[b].first > 1)
    )
    latch = function.instructions[end].address

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


def round_of(
    function: Function, loop: Loop, *, loads: bool = False, stated: Mapping[int, bool] | None = None
) -> list[Instruction]:
    """Return what one round of the main loop executes."""
    return function.path(loop, rules(function, loop, loads=loads, stated=stated))


def compute_warps(threads: int) -> int:
    """Return the warps of a CTA that compute: warps beyond a multiple of four load for the others."""
    warps = -(-threads // 32)
    return warps - warps % 4 if warps > 4 else warps  # noqa: PLR2004 - the quarters of an SM
