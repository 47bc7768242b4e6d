"""Tables and a progress bar: with rich where it is installed, else plain text."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

try:
    from rich.console import Console as _Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
    from rich.text import Text

    class Console(_Console):
        """A console that raises BrokenPipeError for a closed pipe, as print does."""

        def on_broken_pipe(self) -> None:
            """Raise the BrokenPipeError; rich would exit with status 1."""
            raise BrokenPipeError

    RICH = True
except ImportError:
    RICH = False

Row = Sequence[str]


def table(title: str, columns: Row, rows: Sequence[Row], *, left: int = 1, tail: int = 0) -> None:
    """Print a table; the first ``left`` columns and the last ``tail`` are text, the others numbers.

    With a tail no cell has several lines: if the terminal is too narrow, the last column is cut.
    """
    if not RICH:
        print(title)
        for line in plain(columns, rows, left, tail):
            print(f"  {line}")
        return
    # A pipe has no width: do not cut its lines.
    console = (
        Console(highlight=False) if sys.stdout.isatty() else Console(width=1 << 16 if tail else 160, highlight=False)
    )
    grid = Table()
    for i, name in enumerate(columns):
        is_text = i < left or i >= len(columns) - tail
        grid.add_column(name, justify="left" if is_text else "right", no_wrap=tail > 0)
    room = console.width - sum(max(len(row[i]) for row in (columns, *rows)) + 3 for i in range(len(columns) - 1)) - 4
    for row in rows:
        cells = (*row[:-1], row[-1][: max(room, 10)]) if tail else row
        grid.add_row(*map(Text, cells))
    console.print(Text(title, style="bold"))
    console.print(grid)


def plain(columns: Row, rows: Sequence[Row], left: int, tail: int = 0) -> list[str]:
    """Return the lines of a table in plain text."""
    first_tail = len(columns) - tail
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    lines = []
    for row in (columns, ["-" * width for width in widths], *rows):
        cells = [
            cell.ljust(width) if i < left or i >= first_tail else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


@contextlib.contextmanager
def patience(seconds: float = 10) -> Iterator[None]:
    """Say once on standard error that a launch still runs, and what ends it."""
    text = (
        f"pysm120: the launch still runs after {seconds:g} s; Ctrl-C ends it, and so does "
        "PYSM120_INSTRUCTION_LIMIT=N after N instructions of warps (default: 2^40)"
    )
    timer = threading.Timer(seconds, lambda: print(text, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def progress(total: int, title: str, *, log: bool = True) -> Iterator[Callable[[str], None]]:
    """Show a progress bar on standard error; yield a function that ends a step and takes the next one's name.

    If standard error is not a terminal, print a line for each step, or nothing without ``log``.
    """
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
        elif log:
            print(line, file=sys.stderr, flush=True)

    yield step
