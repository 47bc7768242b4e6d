"""Chips of the timing model: a file ``chips/*.toml`` for each, with the source of every value."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

from pysm120.runtime.errors import InvalidArgumentError

FOLDER = Path(__file__).resolve().parent / "chips"
_WARP = 32
_REGISTER_GRANULE = 256  # registers of a warp are allocated in units of
_QUARTERS = 4  # quarters of an SM; each has a quarter of the registers


@dataclasses.dataclass(frozen=True)
class Timing:
    """The timing of a class of instructions: how long one occupies its pipe, and the latency of its result."""

    pipe: str
    interval: float
    latency: float


@dataclasses.dataclass(frozen=True)
class Chip:
    """A chip: sizes, rates and the timings of instructions."""

    key: str
    values: dict[str, Any]
    timings: dict[str, Timing]
    sources: dict[str, str]

    def __getitem__(self, name: str) -> Any:
        if self.values.get(name) is None:
            message = f'the file of chip {self.key} lacks {name}: add it, or inherit it with like = "rtx5090"'
            raise InvalidArgumentError(message)
        return self.values[name]

    def at(self, mhz: float) -> "Chip":
        """Return the chip at another clock rate of its SMs; memory keeps its bytes per second."""
        return dataclasses.replace(self, values={**self.values, "mhz": mhz, "mhz_plain": mhz})

    def running(self, *, has_products: bool) -> "Chip":
        """Return the chip at the clock rate of a kernel with or without matrix instructions."""
        return self if has_products else self.at(float(self.values.get("mhz_plain", self["mhz"])))

    @property
    def l2_limit(self) -> float:
        """The bandwidth of L2 that bounds a launch, in GB/s: the measured one, or what its slices can give at most."""
        known = float(self["l2_gbs"])
        return known if self["l2_binds"] else float(self.values.get("l2_most_gbs") or math.inf)

    def dram_bandwidth(self, written: float) -> float:
        """Return the bandwidth of DRAM in GB/s if a share of the bytes is written; least at a half."""
        reading, copying = float(self["dram_read_gbs"]), float(self["dram_gbs"])
        return reading - (reading - copying) * 4 * written * (1 - written)

    def timing(self, kind: str) -> Timing:
        """Return the timing of a class of instructions; classes that the file lacks have the timing of "alu"."""
        found = self.timings.get(kind) or self.timings.get("alu")
        if found is None:
            message = f"the file of chip {self.key} lacks [instruction.{kind}], and its default [instruction.alu]"
            raise InvalidArgumentError(message)
        return found

    def ctas_per_sm(self, registers: int, threads: int, shared_bytes: int) -> int:
        """Return how many CTAs fit on an SM; 0 if none fits."""
        warps = -(-threads // _WARP)
        per_warp = -(-max(registers, 1) * _WARP // _REGISTER_GRANULE) * _REGISTER_GRANULE
        per_quarter = self["registers_per_sm"] // _QUARTERS // per_warp
        return min(
            int(self["ctas_per_sm"]),
            int(self["threads_per_sm"] // (warps * _WARP)),
            int(per_quarter * _QUARTERS // warps if per_quarter >= -(-warps // _QUARTERS) else 0),
            int(self["shared_bytes_per_sm"] // (shared_bytes + self["shared_bytes_reserved"])),
        )


def names() -> list[str]:
    """Return the names of the chips that have a file."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str, depth: int = 8) -> Chip:
    """Return a chip by its name, or from a file that ends in .toml."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        message = f"the chip is {name!r}, which is neither one of {', '.join(names())} nor an existing .toml file"
        raise InvalidArgumentError(message)
    try:
        document = read(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8 text: {error}"
        raise InvalidArgumentError(message) from None
    if "like" in document and depth == 0:
        message = f"{path}: the keys like = ... of the chips form a cycle"
        raise InvalidArgumentError(message)
    base = load(str(document["like"]), depth - 1) if "like" in document else None
    values: dict[str, Any] = dict(base.values) if base else {}
    values["target"] = document.get("target", values.get("target"))
    timings = dict(base.timings) if base else {}
    sources = dict(base.sources) if base else {}
    for section, content in document.items():
        if not isinstance(content, dict):
            continue
        sources[section] = _source(content, section, path)
        if section.startswith("instruction."):
            timing = _timing(content, section, path)
            timings[section.removeprefix("instruction.")] = timing
        else:
            values.update({key: value for key, value in content.items() if key != "source"})
    return Chip(path.stem, values, timings, sources)


def _timing(table: dict[str, Any], section: str, path: Path) -> Timing:
    """Return the timing in a table."""
    numbers = [table.get(key) for key in ("interval", "latency")]
    if "pipe" not in table or not all(isinstance(n, int | float) for n in numbers):
        message = f"{path}: [{section}] must have a pipe, and numbers interval and latency"
        raise InvalidArgumentError(message)
    return Timing(str(table["pipe"]), *(float(n) for n in numbers if n is not None))


def _source(table: dict[str, Any], section: str, path: Path) -> str:
    """Return the source of a table's values; every table must have one."""
    if not table.get("source"):
        message = f"{path}: [{section}] lacks the key source"
        raise InvalidArgumentError(message)
    return str(table["source"])


# ---- the part of TOML that these files use ------------------------------------------------
# Python 3.10 has no tomllib. This reads tables, and keys with strings and numbers on one line.

_TABLE = re.compile(r"\[([\w.-]+)\]\s*(?:#.*)?$")
_PAIR = re.compile(r"([\w-]+)\s*=\s*(?:\"([^\"\\]*)\"|([-+\w.]+))\s*(?:#.*)?$")


def read(text: str, name: str) -> dict[str, Any]:
    """Return tables by their dotted names; keys before the first table are at the top level."""
    document: dict[str, Any] = {}
    table = document
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if found := _TABLE.match(stripped):
            table = document.setdefault(found[1], {})
        elif found := _PAIR.match(stripped):
            table[found[1]] = found[2] if found[2] is not None else _number(found[3], f"{name}:{number}")
        else:
            message = f'{name}:{number}: {stripped!r} is neither [table] nor key = number or "text"'
            raise InvalidArgumentError(message)
    return document


def _number(word: str, place: str) -> int | float:
    """Return a number."""
    try:
        return int(word) if re.fullmatch(r"[-+]?\d+", word) else float(word)
    except ValueError:
        message = f"{place}: {word!r} is not a number"
        raise InvalidArgumentError(message) from None
