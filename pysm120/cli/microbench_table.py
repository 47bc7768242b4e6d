"""Results as tables, one for a group."""

from pysm120.cli import console
from pysm120.microbench.result import Report, Result, Spread

COLUMNS = (
    "form",
    "latency",
    "per SM and clock",
    "spread",
    "chains x warps",
    "whole chip",
    "MHz",
    "unit",
    "instructions",
    "timed loop, or why not",
)
WORDS = {
    "measured": "",
    "unproven": "UNPROVEN: ",
    "checked": "right; ",
    "objected": "NO FIGURE: ",
    "absent": "absent: ",
    "wrong": "WRONG: ",
}
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def show(report: Report) -> None:
    """Print all results."""
    kind = "which measures no time" if report.is_virtual else f"{report.multiprocessors} multiprocessors"
    print(f"{report.chip}, {kind}; driver {report.driver}; {report.date}")
    for group in dict.fromkeys(result.group for result in report.results):
        rows = [row(result) for result in report.results if result.group == group]
        console.table(group, COLUMNS, rows, tail=2)


def show_cells(report: Report) -> None:
    """Print the rates of every form by chains and warps."""
    for group in dict.fromkeys(result.group for result in report.results):
        members = [result for result in report.results if result.group == group and result.cells]
        warps = sorted({cell.warps for result in members for cell in result.cells})
        rows = []
        for result in members:
            for chains in dict.fromkeys(cell.chains for cell in result.cells):
                rates = {cell.warps: number(cell.per_clock, 2) for cell in result.cells if cell.chains == chains}
                rows.append((result.name, str(chains), *(rates.get(count, "") for count in warps), result.unit))
        if rows:
            columns = ("form", "chains", *(f"{count} warps" for count in warps), "unit")
            console.table(f"{group}, per SM and clock by chains and warps", columns, rows, tail=1)


def row(result: Result) -> tuple[str, ...]:
    """Return the cells of a result."""
    rate, clock = result.per_clock, result.megahertz
    text = result.message or result.sass
    if result.note:
        text = f"{text} ({result.note})"
    return (
        result.name,
        number(result.latency.median, 1) if result.latency else "",
        number(rate.median, 2) if rate else "",
        f"{rate.relative:.1%}" if rate else "",
        f"{result.chains} x {result.warps}" if rate else "",
        scaled(result.per_second) if result.per_second else "",
        f"{clock.median:.0f}" if clock else "",
        result.unit,
        number(result.instructions, 1) if result.instructions else "",
        (WORDS[result.status] + text).removesuffix("; "),
    )


def number(value: float, digits: int) -> str:
    """Return a number with fewer digits if it is large."""
    return f"{value:,.{digits if value < 1000 else 0}f}"  # noqa: PLR2004 - four digits are enough


def scaled(spread: Spread) -> str:
    """Return a rate in powers of a thousand."""
    for factor, prefix in PREFIXES:
        if spread.median >= factor:
            return f"{spread.median / factor:.1f} {prefix}/s"
    return f"{spread.median:.1f} /s"
