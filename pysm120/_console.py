"""Tables and a progress bar: with rich where it is installed, else plain text."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

try:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    RICH = True
except ImportError:
    RICH = False

Row = Sequence[str]


def table(title: str, columns: Row, rows: Sequence[Row], *, left: int = 1) -> None:
    """Print a table; the first ``left`` columns are text, the others numbers."""
    if RICH:
        grid = Table()
        for i, name in enumerate(columns):
            grid.add_column(name, justify="left" if i < left else "right")
        for row in rows:
            grid.add_row(*row)
        # A pipe has no width: do not cut what goes there.
        console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
        console.print(f"[bold]{title}[/bold]")
        console.print(grid)
        return
    print(title)
    for line in plain(columns, rows, left):
        print(f"  {line}")


def plain(columns: Row, rows: Sequence[Row], left: int) -> list[str]:
    """Return the lines of a table in plain text."""
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    lines = []
    for row in (columns, ["-" * width for width in widths], *rows):
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


@contextlib.contextmanager
def progress(total: int, title: str) -> Iterator[Callable[[str], None]]:
    """Show a progress bar on standard error; yield what ends a step, given the next one's name."""
    if RICH and sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=total)
            yield lambda text: bar.update(task, advance=1, description=text)
        return
    done = 0

    def step(text: str) -> None:
        nonlocal done
        done += 1
        filled = 30 * done // total
        line = f"[{'#' * filled}{'.' * (30 - filled)}] {done}/{total} {text}"
        if sys.stderr.isatty():
            print(f"\r{line:<78}", end="" if done < total else "\n", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    yield step
