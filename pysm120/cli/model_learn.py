"""``model --learn``: fit a chip file to a report, and show what changed."""

from pathlib import Path

from pysm120.cli import console
from pysm120.cli.profile import path_of
from pysm120.model import chips, learn
from pysm120.report import parent
from pysm120.runtime.errors import InvalidArgumentError


def run(report: str | None, chip: str | None, to: str | None) -> int:
    """Fit, show, and write the file."""
    if report is None:
        message = f"--to is {to!r}, but there is no --learn REPORT.json to fit the chip to"
        raise InvalidArgumentError(message)
    path = path_of(to, "--to", ".toml")
    if path is not None and path.resolve().parent == chips.FOLDER:
        message = f"--to is {to!r}, a chip file of the package: write to another folder"
        raise InvalidArgumentError(message)
    document = parent.read(Path(report))
    named, _ = learn.measured_of(document)
    base = chips.load(chip or named)
    with console.progress(learn.STEPS, "learning") as step:
        found = learn.learn(document, base, step)
    console.table(
        f"Parameters of {base['name']}, fitted to {report}",
        ("parameter", "old", "new", "error of its loops before", "after"),
        [
            (
                one.name,
                f"{one.old:g}",
                f"{one.new:g}" if one.new != one.old else "same",
                f"{one.before:.1%}",
                f"{one.after:.1%}",
            )
            for one in found.changes
        ],
    )
    for name in found.missing:
        print(f"{name} is as it was: the report has none of its loops.")
    print(
        f"Loops that no parameter was fitted to: median error {found.before[0]:.1%}, largest {found.before[1]:.1%} "
        f"before; {found.after[0]:.1%} and {found.after[1]:.1%} after."
        if found.is_held_out
        else "The report has no loops for validation, so nothing says whether the new values are better."
    )
    if path:
        like = chip or named
        path.write_text(learn.text_of(found, like, Path(report).name), encoding="utf-8")
        print(f"{path} has the fitted chip: model ENTRY --chip {path}")
    return 0
