"""Launches of kernels in files, listed in JSON: what is launched, with which arguments, and how long it took.

    {"image": "k.cubin.xz", "entry": "k", "grid": [32, 32], "threads": 128, "shared_bytes": 32768, "rounds": [128],
     "arguments": ["f16[4096,4096]:normal", "f32[4096]", "s32:4096"], "clocks": 1000.0}

Images are in the folder of the list. ``threads`` of more than one dimension are a list. Arguments are words as in
``run``. Arrays without a fill are NaN before the launch, and must not have NaN afterwards.

A row may have a ``name``. For predictions from the list, ``rounds`` lists the rounds of the main loop by CTA and
repeats. ``predicted`` are clocks that were predicted before, ``code`` is the digest of the instructions for which.
A measurement adds ``clocks``, and the ``error`` of what was predicted, or ``failure``.
"""

import hashlib
import lzma
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from pysm120.machine_code import sass
from pysm120.observe import argument
from pysm120.observe import program as programs
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError

_ARRAY = re.compile(r"(\w+)\[([\d,]+)\]")
_KEYS = {"image", "entry", "grid", "threads", "shared_bytes", "arguments"}


def image_of(folder: Path, row: dict[str, Any]) -> bytes:
    """Return the code of a row."""
    path = folder / str(row["image"])
    if not path.is_file():
        message = f"the launch of {row['entry']}: {path} is missing"
        raise InvalidArgumentError(message)
    data = path.read_bytes()
    return lzma.decompress(data) if str(row["image"]).endswith(".xz") else data


def check(rows: list[dict[str, Any]], path: Path) -> None:
    """Raise if a row lacks a key."""
    for row in rows:
        missing = sorted(_KEYS - set(row))
        if missing:
            message = f"{path}: the launch of {row.get('entry')} has no {missing[0]}"
            raise InvalidArgumentError(message)


def code_of(image: bytes, entry: str) -> str:
    """Return the digest of the instructions of a kernel."""
    words = (one.word.to_bytes(16, "little") for one in sass.disassemble(image, entry)[entry].instructions)
    return hashlib.sha256(b"".join(words)).hexdigest()[:16]


def changed(rows: list[dict[str, Any]], folder: Path) -> list[str]:
    """Return the rows whose machine code is missing or not that of the prediction, a sentence each."""
    found = []
    for row in rows:
        path, name = folder / str(row["image"]), row.get("name", row["entry"])
        if not path.is_file():
            found.append(f"{name}: {path} is missing")
        elif "code" in row and (code := code_of(image_of(folder, row), row["entry"])) != row["code"]:
            found.append(f"{name}: the code of its kernel is {code}, but {row['code']} was predicted")
    return found


def rounds_of(row: dict[str, Any]) -> list[int]:
    """Return the rounds of every CTA of a row."""
    if "rounds" not in row:
        message = f"the launch of {row['entry']} has no rounds, which a prediction needs"
        raise InvalidArgumentError(message)
    ctas, pattern = math.prod(row["grid"]), [int(rounds) for rounds in row["rounds"]]
    return [pattern[i % len(pattern)] for i in range(ctas)]


def tensor_bytes(row: dict[str, Any]) -> int:
    """Return the bytes of the arrays of a row."""
    found = [array for word in row["arguments"] for array in _ARRAY.findall(word)]
    return sum(argument.TYPES[kind].itemsize * math.prod(map(int, shape.split(","))) for kind, shape in found)


class Launch:
    """A launch of a list, with its arguments on the device."""

    def __init__(self, device: Device, row: dict[str, Any], image: bytes) -> None:
        self._row = row
        threads = row["threads"] if isinstance(row["threads"], list) else [row["threads"]]
        program = programs.Program(
            file=str(row["image"]), builtin=None, entry=str(row["entry"]), grid=tuple(row["grid"]),
            block=tuple(threads), shared=int(row["shared_bytes"]), cooperative=False, device=None, options={},
            arguments=argument.parse_arguments(row["arguments"], 1),
        )  # fmt: skip
        self._launch = programs.Launch(program, device, device.load(image, name=str(row["image"]))[str(row["entry"])])

    def launch(self) -> None:
        """Launch it and wait."""
        self._launch.run()

    def check(self) -> None:
        """Raise if an output has NaN: the kernel did not write it, or wrote NaN."""
        for output in self._launch.outputs():
            word = self._row["arguments"][output.index]
            if word.endswith("]") and np.isnan(output.after.astype(np.float32, copy=False)).any():
                message = f"{self._row['entry']} left NaN in argument {output.index}, {word!r}"
                raise InvalidArgumentError(message)
