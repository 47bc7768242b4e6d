"""The picture of a profile's hottest lines; needs matplotlib."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pysm120.observe.profile import Counts, Line, Profile
from pysm120.runtime.errors import UnsupportedError

try:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
except ImportError as error:
    message = "--plot needs matplotlib, which is not installed: pip install 'pysm120[cli]' installs it"
    raise UnsupportedError(message) from error

LINES = 25  # default number of lines
WIDTH = 13.0
SOURCE = 66  # most characters of a line of source
# Kinds of statements; the first match counts. The colours also differ in grey.
KINDS: dict[str, tuple[str, Callable[[Counts], bool]]] = {
    "tensor cores": ("#3b0f70", lambda c: c.tensor_flops > 0),
    "global memory, copies": ("#d9660b", lambda c: c.global_accesses > 0 or any("bulk" in path for path in c.bytes)),
    "shared memory": ("#74d3a2", lambda c: c.shared_accesses > 0),
    "branches": ("#555555", lambda c: c.branches > 0),
    "arithmetic and the rest": ("#c9dcf0", lambda _: True),
}


def kind_of(line: Line) -> str:
    """Return the kind of statements that costs a line the most clocks."""
    clocks = dict.fromkeys(KINDS, 0.0)
    for one in line.statements:
        clocks[next(name for name, (_, holds) in KINDS.items() if holds(one.counts))] += one.clocks
    return max(clocks, key=lambda name: clocks[name])


def note(line: Line, whole: float) -> str:
    """Return the text behind a bar."""
    c = line.counts
    parts = [f"{line.clocks / max(1.0, whole):.1%}"]
    if c.shared_accesses:
        parts.append(f"{c.bank_conflicts:,} conflicts")
    if c.global_accesses:
        parts.append(f"{c.sectors_per_access:.1f} sectors/access")
    if c.divergent_branches:
        parts.append(f"{c.divergent_branches:,} divergent")
    return ", ".join(parts)


def hottest_lines(profile: Profile, title: str, count: int, path: Path) -> None:
    """Draw the lines that cost the most clocks, in descending order, into a PNG file."""
    lines, whole = profile.hottest(count), sum(line.clocks for line in profile.lines)
    figure = Figure(figsize=(WIDTH, 1.5 + 0.3 * max(4, len(lines))), layout="constrained")
    axes = figure.add_subplot()
    kinds = [kind_of(line) for line in lines]
    axes.barh(
        range(len(lines)),
        [line.clocks for line in lines],
        color=[KINDS[kind][0] for kind in kinds],
        height=0.75,
    )
    for y, line in enumerate(lines):  # beside the axes, where the layout makes room for them
        axes.text(1.01, y, note(line, whole), transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.set_yticks(range(len(lines)), labels(lines), fontfamily="monospace", fontsize=7.5)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlim(0, max((line.clocks for line in lines), default=1))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("clocks of the busiest unit of one SM (issue, shared memory, sectors, tensor cores)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    covered = sum(line.clocks for line in lines) / max(1.0, whole)
    subtitle = f"{len(lines)} of {len(profile.lines)} lines, {covered:.0%} of {whole:,.0f} clocks"
    figure.suptitle(f"{title}\n{subtitle}", fontsize=11)
    figure.legend(
        handles=[Patch(color=colour, label=name) for name, (colour, _) in KINDS.items() if name in kinds],
        loc="outside lower center", frameon=False, fontsize=9, ncols=len(KINDS),
    )  # fmt: skip
    figure.savefig(path, dpi=150)


def labels(lines: Sequence[Line]) -> list[str]:
    """Return place and source of each line, in columns."""
    places = [line.short_place for line in lines]
    sources = [" ".join(line.source.split()) for line in lines]
    cut = [source if len(source) <= SOURCE else f"{source[: SOURCE - 3]}..." for source in sources]
    widths = [max((len(text) for text in column), default=0) for column in (places, cut)]
    return [f"{place:<{widths[0]}}  {source:<{widths[1]}}" for place, source in zip(places, cut, strict=True)]
