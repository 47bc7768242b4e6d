"""``run``: launch a kernel and show its results."""

import argparse
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pysm120.cli import break_at, console
from pysm120.cli.command import Command
from pysm120.observe import program as programs
from pysm120.observe.argument import TYPES
from pysm120.observe.program import Output
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.names import demangled, readable

COLUMNS = ("argument", "parameter", "type", "changed", "min", "max", "mean", "NaN")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    programs.add_arguments(parser, "run")
    parser.add_argument("--print", metavar="N", dest="shown", help="print the first N elements of every array")
    break_at.add_arguments(parser)
    break_at.add_warp(parser, "the first one to reach the line")


def statistics(values: npt.NDArray[Any]) -> tuple[str, str, str, str]:
    """Return the minimum, maximum and mean of an array, and its number of NaN."""
    if values.dtype.kind in "iub":
        if not values.size:
            return "-", "-", "-", "0"
        return str(values.min()), str(values.max()), f"{float(values.mean(dtype=np.float64)):.6g}", "0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            wide = values.astype(np.float64)
        except (TypeError, ValueError):  # raw bytes: the file does not name their type
            return "-", "-", "-", "-"
        numbers = wide[~np.isnan(wide)]
        nans = f"{wide.size - numbers.size:,}"
        if not numbers.size:
            return "-", "-", "-", nans
        return f"{numbers.min():.6g}", f"{numbers.max():.6g}", f"{numbers.mean():.6g}", nans


def type_text(values: npt.NDArray[Any]) -> str:
    """Return the type and the shape of an array in the notation of arguments."""
    name = next((name for name, dtype in TYPES.items() if dtype == values.dtype), str(values.dtype))
    return f"{name}[{','.join(map(str, values.shape))}]"


def show(outputs: Sequence[Output], count: int) -> None:
    """Print a row for every array, and its first ``count`` elements."""
    rows = [
        (
            str(output.index),
            readable(output.parameter.name) or "-",
            type_text(output.after),
            f"{output.changed().sum():,} of {output.after.size:,}",
            *statistics(output.after),
        )
        for output in outputs
    ]
    console.table("Arrays after the run", COLUMNS, rows, left=3)
    if not count:
        return
    for output in outputs:
        elements = " ".join(map(str, output.after.reshape(-1)[:count].tolist()))
        print(f"argument {output.index}: {elements}{' ...' if output.after.size > count else ''}")


def run(arguments: argparse.Namespace) -> int:
    """Run the kernel."""
    program = programs.parse(arguments, arguments.words)
    count = programs.number(arguments.shown, "--print", 0)
    for option in ("hits", "shared_window", "cta", "warp") if arguments.__dict__["break"] is None else ():
        if (word := getattr(arguments, option)) is not None:
            message = f"--{option.replace('_', '-')} is {word!r}, but there is no --break that it belongs to"
            raise InvalidArgumentError(message)
    with program.open() as launch:
        if arguments.__dict__["break"] is not None:
            return break_at.run(launch, arguments)
        with console.patience():
            launch.run()
        outputs = launch.outputs()
        print(f"{demangled(launch.kernel.info.entry)} ran on {launch.device} ({launch.device.info.name})")
    show(outputs, count)
    for output in outputs:
        if output.path is not None:
            output.save()
            print(f"argument {output.index} is in {output.path}")
    return 0


COMMAND = Command(
    "run", "run a kernel on generated arrays or arrays of files, and show its results", add, run, takes_words=True
)
