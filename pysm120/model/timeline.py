"""The picture of warps on the pipes of a quarter of an SM; needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path

from pysm120.model.simulator import Event
from pysm120.runtime.errors import UnsupportedError

try:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
except ImportError as error:
    message = "--timeline needs matplotlib, which is not installed: pip install 'pysm120[cli]' installs it"
    raise UnsupportedError(message) from error

# The pipes to draw; the colours also differ in grey.
PIPES = {
    "tensor": ("#3b0f70", "matrix products"),
    "xu": ("#d9660b", "exponentials"),
    "lsu": ("#74d3a2", "shared memory"),
    "fma": ("#c9dcf0", "FP32, IMAD"),
    "alu": ("#555555", "integers, comparisons"),
    "copy": ("#000000", "copies"),
}
_CLOCKS = 4000  # clocks that are drawn
_SHARE = 0.35  # share of the time before the drawn clocks: then the pipeline is full


def draw(events: Sequence[Event], title: str, path: Path) -> None:
    """Draw a row for each warp and one for each pipe of the first quarter."""
    mine = [event for event in events if event.quarter == 0 and event.pipe in PIPES]
    end = max((event.end for event in mine), default=0)
    begin = min(int(_SHARE * end), max(0, end - _CLOCKS))
    shown = [event for event in mine if event.end > begin and event.begin < begin + _CLOCKS]
    warps = sorted({event.warp for event in shown})
    pipes = [pipe for pipe in PIPES if any(event.pipe == pipe for event in shown)]
    names = [f"warp {warp}" for warp in warps] + [PIPES[pipe][1] for pipe in pipes]
    figure = Figure(figsize=(15, 1.2 + 0.45 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    for pipe in pipes:
        colour = PIPES[pipe][0]
        row = len(warps) + pipes.index(pipe)
        of_pipe = [event for event in shown if event.pipe == pipe]
        bars = [(event.begin, event.end - event.begin) for event in of_pipe]
        axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=colour, linewidth=0)
        for warp in warps:
            bars = [(event.begin, event.end - event.begin) for event in of_pipe if event.warp == warp]
            axes.broken_barh(bars, (warps.index(warp) - 0.4, 0.8), facecolors=colour, linewidth=0)
    axes.axhline(len(warps) - 0.5, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(begin, begin + _CLOCKS)
    axes.set_xlabel("clocks")
    axes.set_title(title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        handles=[Patch(color=PIPES[pipe][0], label=PIPES[pipe][1]) for pipe in pipes],
        loc="outside lower center", ncols=len(pipes), frameon=False, fontsize=9,
    )  # fmt: skip
    figure.savefig(path, dpi=110)
