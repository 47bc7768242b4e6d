"""Results of measurements on a chip, and their JSON file."""

import dataclasses
import datetime as dt
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Spread:
    """The median, minimum and maximum of runs."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise runs."""
        return cls(statistics.median(values), min(values), max(values))

    @property
    def relative(self) -> float:
        """The difference between maximum and minimum, relative to the median."""
        return (self.greatest - self.least) / self.median if self.median else 0.0


@dataclasses.dataclass(frozen=True)
class Cell:
    """The rate with a number of chains and warps: work per multiprocessor and clock."""

    chains: int
    warps: int
    per_clock: float


@dataclasses.dataclass
class Result:
    """The result of a form.

    ``status``: "measured", "unproven" (measured without a check of the machine code), "checked" (right on the virtual
    device, which measures no time), "objected" (the machine code is not as expected), "absent" (not on this chip, or
    rejected), "wrong". ``latency`` is in clocks of a step, ``per_clock`` in units per multiprocessor and clock,
    ``per_second`` in units of the whole chip. ``instructions``: machine instructions of a step, including the loop's.
    """

    name: str
    group: str
    unit: str
    status: str
    message: str = ""
    note: str = ""
    sass: str = ""
    instructions: float = 0.0
    latency: Spread | None = None
    per_clock: Spread | None = None
    per_second: Spread | None = None
    megahertz: Spread | None = None
    chains: int = 0
    warps: int = 0
    cells: list[Cell] = dataclasses.field(default_factory=list)

    def withdraw(self, status: str, message: str) -> None:
        """Remove all figures, and set the reason."""
        self.status, self.message = status, message
        self.latency = self.per_clock = self.per_second = self.megahertz = None
        self.cells = []


@dataclasses.dataclass
class Report:
    """All results of a run, with its chip, driver and date."""

    chip: str
    capability: tuple[int, int]
    multiprocessors: int
    driver: str
    date: str
    is_virtual: bool
    version: str
    results: list[Result]
    format: int = FORMAT

    def save(self, path: Path) -> None:
        """Write JSON, a line for each form."""
        raw = _rounded(dataclasses.asdict(self))
        lines = ",\n  ".join(json.dumps(item) for item in raw.pop("results"))
        head = json.dumps(raw, indent=1).removesuffix("\n}")
        path.write_text(f'{head},\n "results": [\n  {lines}\n ]\n}}\n', encoding="utf-8")


def _rounded(value: Any) -> Any:
    """Return numbers with six digits: clocks are not more accurate."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def load(path: Path) -> Report:
    """Read a file of ``save``; InvalidArgumentError if it is something else."""
    wrong = f"{path} is not a file that `microbench --json` wrote: "
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgumentError(f"{wrong}it is not JSON, or not all of it") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("results"), list):
        raise InvalidArgumentError(f"{wrong}it has no list of results")
    if raw.get("format") != FORMAT:
        raise InvalidArgumentError(f"{path} has format {raw.get('format')}, but this version reads {FORMAT}")
    try:
        results = [_result(item) for item in raw.pop("results")]
        major, minor = raw["capability"]
        report = Report(**{**raw, "capability": (int(major), int(minor))}, results=results)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"{wrong}one of its entries is missing, too much or of another type") from error
    return report


def _result(item: dict[str, Any]) -> Result:
    spreads = {name: Spread(**item[name]) for name in ("latency", "per_clock", "per_second", "megahertz") if item[name]}
    found = Result(**{**item, **spreads, "cells": [Cell(**cell) for cell in item["cells"]]})
    numbers = [found.instructions, *(cell.per_clock for cell in found.cells)]
    numbers += [number for spread in spreads.values() for number in dataclasses.astuple(spread)]
    words = [found.name, found.group, found.unit, found.status, found.message, found.note, found.sass]
    if not all(isinstance(x, int | float) for x in numbers) or not all(isinstance(x, str) for x in words):
        raise TypeError
    return found


def report(device: Device, results: list[Result], version: str) -> Report:
    """Return a report of results, with the chip, driver and date."""
    info = device.info
    return Report(
        chip=info.name,
        capability=info.capability,
        multiprocessors=info.multiprocessors,
        driver=_driver(device),
        date=dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d"),
        is_virtual=info.is_virtual,
        version=version,
        results=results,
    )


def _driver(device: Device) -> str:
    """Return the version of the driver, and of the CUDA version that it supports."""
    major, minor = device.info.driver_version // 1000, device.info.driver_version % 1000 // 10
    cuda = f"CUDA {major}.{minor}"
    if device.is_virtual:
        return cuda
    try:
        found = re.search(r"\b(\d+\.\d+(\.\d+)?)\b", Path("/proc/driver/nvidia/version").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return f"{found[1]}, {cuda}" if found else cuda
