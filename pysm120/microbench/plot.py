"""The picture of a report: rate and latency of every form, a row for each group; needs matplotlib."""

from pathlib import Path

from pysm120.microbench.result import Report, Result
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    message = "a picture needs matplotlib, which is not installed: pip install 'pysm120[cli]' installs it"
    raise UnsupportedError(message) from error

WIDTH, ROW = 15.0, 0.19  # inches
COLOUR, LATENCY = "#4477aa", "#cc6677"


def draw(report: Report, path: Path) -> None:
    """Draw a row of two charts for every group: rates by form, latencies by form."""
    timed = [r for r in report.results if r.per_clock or r.latency]  # launches have neither
    if not timed:
        message = "--plot has nothing to draw: no form was timed"
        raise InvalidArgumentError(message)
    groups = list(dict.fromkeys(r.group for r in timed))
    members = {group: [r for r in timed if r.group == group] for group in groups}
    heights = [1.0 + ROW * len(members[group]) for group in groups]
    figure = Figure(figsize=(WIDTH, sum(heights) + 1.0), layout="constrained")
    grid = figure.subplots(
        len(groups), 2, squeeze=False, gridspec_kw={"height_ratios": heights, "width_ratios": [3, 2]}
    )
    for axes, group in zip(grid, groups, strict=True):
        _rates(axes[0], group, members[group])
        _latencies(axes[1], members[group])
    figure.suptitle(f"{report.chip}, driver {report.driver}, {report.date}")
    figure.savefig(path, dpi=100)


def _rates(axes: Axes, group: str, results: list[Result]) -> None:
    places = [(i, r.per_clock.median, r.unit) for i, r in enumerate(results) if r.per_clock]
    axes.set_yticks(range(len(results)), [r.name for r in results], fontsize=6.5)
    axes.set_ylim(-0.5, len(results) - 0.5)
    title = f"{group}: work per multiprocessor and clock"
    if places:
        values = [value for _, value, _ in places]
        axes.plot(values, [i for i, _, _ in places], "o", color=COLOUR, markersize=4)  # a bar would begin at 0
        for i, value, unit in places:
            words = f"{value:,.4g} {unit}"
            axes.annotate(words, (value, i), xytext=(5, 0), textcoords="offset points", va="center", fontsize=6.5)
        axes.grid(axis="y", color="#eeeeee", linewidth=0.6)
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 3, max(values) * 6)
        title += ", logarithmic"
    else:
        axes.set_xticks([])
        title = f"{group}: latencies alone"
    _style(axes, title)


def _latencies(axes: Axes, results: list[Result]) -> None:
    places = [(i, r.latency.median) for i, r in enumerate(results) if r.latency]
    values = [value for _, value in places]
    bars = axes.barh([i for i, _ in places], values, color=LATENCY, height=0.7)
    axes.bar_label(bars, [f"{value:,.1f}" for value in values], padding=3, fontsize=6.5)
    axes.set_yticks([])
    axes.set_ylim(-0.5, len(results) - 0.5)
    axes.set_xlim(0, max(values, default=1.0) * 1.15)
    _style(axes, "latency of a step in clocks")


def _style(axes: Axes, title: str) -> None:
    axes.invert_yaxis()
    axes.set_title(title, fontsize=9)
    axes.tick_params(labelsize=6.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
