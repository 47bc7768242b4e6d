"""``report``: test every operation on the GPU at hand, measure, and write a page to send."""

import argparse
import secrets
from pathlib import Path

from pysm120.cli import console
from pysm120.cli.command import Command, add_device
from pysm120.report import parent
from pysm120.report.page import page
from pysm120.report.tasks import tasks
from pysm120.runtime.errors import InvalidArgumentError

PAGE = "report.html"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_device(parser)
    parser.add_argument("--quick", action="store_true", help="fewer inputs, shapes and instructions")
    parser.add_argument("--resume", action="store_true", help="continue the report in the folder of --out")
    parser.add_argument(
        "--out", metavar="FOLDER", default="pysm120-report", help="where the report goes (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the inputs (default: a new one)")


def run(arguments: argparse.Namespace) -> int:
    """Run all tasks, then write the page; Ctrl-C writes the page of what there is."""
    folder = Path(arguments.out)
    if folder.exists() and not folder.is_dir():
        message = f"--out is {arguments.out!r}, which is not a folder"
        raise InvalidArgumentError(message)
    if arguments.seed is not None and arguments.seed < 0:
        message = f"--seed is {arguments.seed}; it must be at least 0"
        raise InvalidArgumentError(message)
    if arguments.seed is not None and arguments.resume:
        message = f"--seed is {arguments.seed}, but --resume keeps the seed of the report: leave out --seed"
        raise InvalidArgumentError(message)
    seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    report = parent.begin(folder, quick=arguments.quick, resume=arguments.resume, seed=seed)
    chosen = tasks(quick=report.document["quick"])  # --resume keeps it
    try:
        with console.progress(len(chosen), "report") as step:
            parent.run(report, chosen, arguments.device, step)
        report.document["complete"] = True
        report.save()
    finally:
        if report.tasks:
            (folder / PAGE).write_text(page(report.document), encoding="utf-8")
            print(f"{folder / PAGE} and {folder / parent.NAME} have what was found.")
            if not report.document.get("complete"):
                print(f"The report is not complete: --resume --out {folder} continues it.")
    return show(report)


def show(report: parent.Report) -> int:
    """Print what the tasks found; return 1 if a kernel failed."""
    counts: dict[str, int] = {}
    for one in report.tasks.values():
        counts[one["status"]] = counts.get(one["status"], 0) + 1
    print(f"{report.system['chip']}: {', '.join(f'{count} {status}' for status, count in counts.items())}")
    if report.system["virtual"]:
        print("The virtual device measures no time: nothing was timed, and no prediction was compared.")
    bad = [(name, status, report.tasks[name]["message"].splitlines()[0]) for name, status in report.bad.items()]
    if bad:
        console.table("What failed", ("task", "status", "message"), bad, left=3, tail=1)
    return int(bool(bad))


COMMAND = Command("report", "test and time everything on the GPU at hand, and write a page to send", add, run)
