"""``microbench``: measure single instructions, compare two reports, or plot one."""

import argparse
import secrets
from pathlib import Path

from pysm120 import __version__
from pysm120.cli import console
from pysm120.cli import microbench_table as table
from pysm120.cli.command import Command, add_device
from pysm120.cli.microbench_compare import compare
from pysm120.cli.profile import path_of
from pysm120.microbench import groups, result, toolchain
from pysm120.microbench.form import Form
from pysm120.microbench.launch import Launcher
from pysm120.microbench.measure import Choice, measure
from pysm120.microbench.prepare import prepare
from pysm120.observe.program import number
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError

RUNS = 7
FILES = 2


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.usage = (
        "python -m pysm120 microbench [GROUP ...] [options]\n"
        "       python -m pysm120 microbench compare A.json B.json\n"
        "       python -m pysm120 microbench plot A.json A.png"
    )
    parser.epilog = f"groups: {', '.join(groups.GROUPS)} (default: all)"
    add_device(parser)
    parser.add_argument("--only", metavar="TEXT", default="", help="run only forms whose name contains TEXT")
    parser.add_argument("--runs", metavar="N", default=str(RUNS), help=f"timed runs of each figure (default: {RUNS})")
    parser.add_argument("--ms", metavar="T", default="2", help="milliseconds of each run (default: 2)")
    parser.add_argument("--list", action="store_true", help="print the forms and measure nothing")
    parser.add_argument("--json", metavar="FILE", help="write all figures to a file")
    parser.add_argument("--plot", metavar="FILE.png", help="draw rates and latencies (needs matplotlib)")
    parser.add_argument("--save", metavar="FOLDER", help="write the PTX, the cubins and their listings to a folder")
    parser.add_argument("--cells", action="store_true", help="also print the rates by chains and warps")
    parser.add_argument(
        "--unproven",
        action="store_true",
        help="time a GPU without reading the machine code, if ptxas or nvdisasm is missing",
    )
    parser.add_argument("--seed", metavar="N", help="seed of the operands of timed runs (default: a new one)")


def run(arguments: argparse.Namespace) -> int:
    """Measure, compare or draw."""
    words = arguments.words
    if words and words[0] == "compare":
        if len(words) != FILES + 1:
            message = f"compare takes two files of `microbench --json`, but {len(words) - 1} were given"
            raise InvalidArgumentError(message)
        compare(Path(words[1]), Path(words[2]))
        return 0
    if words and words[0] == "plot":
        if len(words) != FILES + 1:
            message = f"plot takes a file of `microbench --json` and a .png file, but {len(words) - 1} words were given"
            raise InvalidArgumentError(message)
        path = path_of(words[2], "the picture", ".png")
        from pysm120.microbench.plot import draw  # noqa: PLC0415 - matplotlib is an extra, and slow to import

        if path:
            _writable(path, "the picture")
            draw(result.load(Path(words[1])), path)
        return 0
    forms = [form for form in groups.chosen(words) if arguments.only in form.name]
    if not forms:
        message = f"--only is {arguments.only!r}, but no form has this text in its name; --list prints the names"
        raise InvalidArgumentError(message)
    if arguments.list:
        for form in forms:
            print(f"{form.group:8} {form.name}")
        return 0
    return _measure(arguments, forms)


def _measure(arguments: argparse.Namespace, forms: list[Form]) -> int:
    """Measure forms and show them; returns 1 if a form computed a wrong result."""
    runs, ms = number(arguments.runs, "--runs", 1), number(arguments.ms, "--ms", 1)
    if not runs or not ms:
        message = f"--runs is {runs} and --ms {ms}: both must be at least 1"
        raise InvalidArgumentError(message)
    seed = number(arguments.seed, "--seed", 0) if arguments.seed is not None else secrets.randbelow(1 << 32)
    to_json, to_plot, folder = _outputs(arguments)
    if to_plot:
        from pysm120.microbench.plot import draw  # noqa: PLC0415 - matplotlib is an extra, and slow to import
    with Device(arguments.device) as device:
        _refuse(arguments, device)
        ready = prepare(device, forms, is_short=device.is_virtual, folder=folder)
        launcher, choice = Launcher(device, seed), Choice(runs, ms * 1e-3, arguments.unproven)
        results = []
        with console.progress(len(ready), "microbench") as step:
            for one in ready:
                results.append(measure(launcher, one, choice))
                step(one.form.name)
        report = result.report(device, results, __version__)
    table.show(report)
    if arguments.cells:
        table.show_cells(report)
    _summary(report, seed)
    if to_json:
        report.save(to_json)
        print(f"{to_json} has all numbers.")
    if to_plot:
        draw(report, to_plot)
        print(f"{to_plot} shows them.")
    return int(any(r.status == "wrong" for r in results))


def _outputs(arguments: argparse.Namespace) -> tuple[Path | None, Path | None, Path | None]:
    """Return the files of --json and --plot and the folder of --save, after checking that they can be written."""
    to_json, to_plot = path_of(arguments.json, "--json", ".json"), path_of(arguments.plot, "--plot", ".png")
    folder = Path(arguments.save) if arguments.save is not None else None
    if folder and not folder.is_dir():
        message = f"--save is {arguments.save!r}, not an existing folder"
        raise InvalidArgumentError(message)
    if folder and toolchain.missing():
        message = f"--save has nothing to write: {toolchain.missing()}"
        raise InvalidArgumentError(message)
    for path, name in ((to_json, "--json"), (to_plot, "--plot"), (folder and folder / "chain_0.ptx", "--save")):
        if path:
            _writable(path, name)
    return to_json, to_plot, folder


def _refuse(arguments: argparse.Namespace, device: Device) -> None:
    """Raise if figures could not be proven, or if there would be nothing to plot."""
    if not device.is_virtual and toolchain.missing() and not arguments.unproven:
        message = f"figures are proven from machine code: {toolchain.missing()}; --unproven measures without proof"
        raise InvalidArgumentError(message)
    if arguments.plot and device.is_virtual:
        message = f"--plot is {arguments.plot!r}, but there is nothing to plot: the virtual device measures no time"
        raise InvalidArgumentError(message)


def _writable(path: Path, name: str) -> None:
    """Raise if a file cannot be written, before anything is measured."""
    is_there = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        message = f"{name} is {str(path)!r}, which cannot be written: {error.strerror}"
        raise InvalidArgumentError(message) from error
    if not is_there:
        path.unlink()


def _summary(report: result.Report, seed: int) -> None:
    """Print the number of forms by status."""
    statuses = [r.status for r in report.results]
    parts = [f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses)]
    unread = f"; nothing is proven: {toolchain.missing()}" if toolchain.missing() else ""
    print(f"{len(statuses)} forms: {', '.join(parts)}; seed {seed}{unread}")


COMMAND = Command("microbench", "measure the latency and the rate of single instructions", add, run, takes_words=True)
