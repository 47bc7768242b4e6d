"""The picture of ``study``: error against speed; needs matplotlib."""

from pathlib import Path
from typing import Any

from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError
from pysm120.study import Outcome

try:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter
except ImportError as error:
    message = "--plot needs matplotlib, which is not installed: pip install 'pysm120[cli]' installs it"
    raise UnsupportedError(message) from error

MARKERS = "osD^vP*X"  # of inputs: they differ without colours too
COLOURS = ("#3b0f70", "#d9660b", "#74d3a2", "#555555", "#c9dcf0", "#000000")  # they also differ in grey
NEAR, ALIKE = 0.1, 2.0  # labels: a share of the axis, a ratio of errors


def front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points (speed, error) that no other point beats in both, the slowest first."""
    kept: list[tuple[float, float]] = []
    for speed, error in sorted(points, key=lambda x: (-x[0], x[1])):
        if not kept or error < kept[-1][1]:
            kept.append((speed, error))
    return kept[::-1]


def labels(found: dict[str, list[Outcome]], speeds: dict[str, float]) -> list[tuple[str, tuple[float, float]]]:
    """Return texts and their places: above the highest error of a precision, one for precisions that lie together."""
    highest: dict[str, float] = {}
    for outcomes in found.values():
        for x in outcomes:
            if x.precision in speeds:
                highest[x.precision] = max(x.kernel.o, highest.get(x.precision, 0.0))
    groups: list[list[str]] = []
    for name in sorted(highest, key=lambda x: (speeds[x], highest[x])):
        last = groups[-1][-1] if groups else name
        is_near = speeds[name] - speeds[last] < NEAR * max(speeds.values()) and (
            max(highest[name], highest[last]) < ALIKE * min(highest[name], highest[last])
        )
        if groups and is_near:
            groups[-1].append(name)
        else:
            groups.append([name])
    return [(", ".join(x), (sum(speeds[y] for y in x) / len(x), max(highest[y] for y in x))) for x in groups]


def draw(found: dict[str, list[Outcome]], times: dict[str, Any], path: Path) -> None:
    """Draw error against predicted speed, with the Pareto front of each input, into a PNG file."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    speeds = {name: time.tflops for name, time in times.items() if time}
    for n, (name, outcomes) in enumerate(found.items()):
        points = {x.precision: (speeds[x.precision], x.kernel.o) for x in outcomes if x.precision in speeds}
        if not points:
            message = "--plot has nothing to draw: no precision of these inputs has a predicted time"
            raise InvalidArgumentError(message)
        colour = COLOURS[n % len(COLOURS)]
        axes.plot(*zip(*points.values(), strict=True), MARKERS[n % len(MARKERS)], color=colour, label=name)
        axes.plot(*zip(*front(list(points.values())), strict=True), "-", color=colour, linewidth=0.8, alpha=0.6)
    for words, place in labels(found, speeds):
        axes.annotate(words, place, xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8)
    axes.set_yscale("log")
    axes.set_xlim(0, 1.1 * max(speeds.values()))
    low, high = axes.get_ylim()
    axes.set_ylim(low, 1.6 * high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.2%}" if y < 0.01 else f"{y:.0%}"))  # noqa: PLR2004
    axes.set_xlabel("TFLOP/s of an RTX 5090, predicted, without the quantisation of q, k and v")
    axes.set_ylabel("relative error of O against float64")
    axes.grid(visible=True, which="major", linewidth=0.3)
    axes.legend(loc="lower right", fontsize=8, title="inputs; line: Pareto front", title_fontsize=8)
    figure.savefig(path, dpi=150)
