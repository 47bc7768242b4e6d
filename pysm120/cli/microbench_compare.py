"""Comparison of two reports."""

from pathlib import Path

from pysm120.cli import console
from pysm120.cli.microbench_table import number
from pysm120.microbench.result import Report, Result, Spread, load
from pysm120.runtime.errors import InvalidArgumentError

COLUMNS = ("form", "latency A", "latency B", "B / A", "per SM and clock A", "B", "B / A", "chip B / A", "unit")


def compare(first: Path, second: Path) -> None:
    """Print the forms that two files of ``--json`` share, and the number of forms that only one has."""
    a, b = load(first), load(second)
    for path, report in ((first, a), (second, b)):
        if report.is_virtual:
            message = f"{path} is a report of the virtual device, which measures no time: give a report of a GPU"
            raise InvalidArgumentError(message)
    for letter, report in zip("AB", (a, b), strict=True):
        print(f"{letter}: {title(report)}")
    left, right = (_timed(report) for report in (a, b))
    common = [key for key in left if key in right]
    if not common:
        message = f"{first} and {second} have no timed form in common"
        raise InvalidArgumentError(message)
    for group in dict.fromkeys(group for group, _ in common):
        rows = [_row(left[key], right[key]) for key in common if key[0] == group]
        console.table(group, COLUMNS, rows, tail=1)
    print(f"{len(common)} forms in both; {len(left) - len(common)} only in A, {len(right) - len(common)} only in B")
    for letter, timed in (("A", left), ("B", right)):
        if count := sum(one.status == "unproven" for one in timed.values()):
            print(f"UNPROVEN: the machine code of {count} forms of {letter} was not checked")


def title(report: Report) -> str:
    """Return the chip, driver and date of a report."""
    return f"{report.chip}, driver {report.driver}, {report.date}"


def _timed(report: Report) -> dict[tuple[str, str], Result]:
    return {(r.group, r.name): r for r in report.results if r.latency or r.per_clock or r.per_second}


def _row(a: Result, b: Result) -> tuple[str, ...]:
    return (
        a.name,
        *_pair(a.latency, b.latency, 1),
        *_pair(a.per_clock, b.per_clock, 2),
        _pair(a.per_second, b.per_second, 1)[2],
        a.unit,
    )


def _pair(a: Spread | None, b: Spread | None, digits: int) -> tuple[str, str, str]:
    cells = tuple(number(x.median, digits) if x else "" for x in (a, b))
    ratio = f"{b.median / a.median:.3f}" if a and b and a.median else ""
    return cells[0], cells[1], ratio
