"""Launches of kernels in files, listed in JSON: what is launched, with which arguments, and how long it took.

    {"image": "k.cubin.xz", "entry": "k", "grid": [32, 32], "threads": 128, "shared_bytes": 32768, "rounds": [128],
     "arguments": ["f16[4096,4096]:normal", "f32[4096]", "s32:4096"], "clocks": 1000.0}

Images are in the folder of the list. Arguments are words as in ``run``. ``rounds`` lists the rounds of the main loop by
CTA and repeats. Arrays without a fill are NaN before the launch, and must not have NaN afterwards.
"""

import lzma
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from pysm120.observe import argument
from pysm120.observe import program as programs
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError

_ARRAY = re.compile(r"(\w+)\[([\d,]+)\]")
_KEYS = {"image", "entry", "grid", "threads", "shared_bytes", "rounds", "arguments"}


def image_of(folder: Path, row: dict[str, Any]) -> bytes:
    """Return the code of a row."""
    data = (folder / str(row["image"])).read_bytes()
    return lzma.decompress(data) if str(row["image"]).endswith(".xz") else data


def check(rows: list[dict[str, Any]], path: Path) -> None:
    """Raise if a row lacks a key."""
    for row in rows:
        missing = sorted(_KEYS - set(row))
        if missing:
            message = f"{path}: the launch of {row.get('entry')} has no {missing[0]}"
            raise InvalidArgumentError(message)


def rounds_of(row: dict[str, Any]) -> list[int]:
    """Return the rounds of every CTA of a row."""
    ctas, pattern = math.prod(row["grid"]), [int(rounds) for rounds in row["rounds"]]
    return [pattern[i % len(pattern)] for i in range(ctas)]


def tensor_bytes(row: dict[str, Any]) -> int:
    """Return the bytes of the arrays of a row."""
    found = (_ARRAY.match(word) for word in row["arguments"])
    return sum(argument.TYPES[array[1]].itemsize * math.prod(map(int, array[2].split(","))) for array in found if array)


class Launch:
    """A launch of a list, with its arguments on the device."""

    def __init__(self, device: Device, row: dict[str, Any], image: bytes) -> None:
        self._row = row
        program = programs.Program(
            file=str(row["image"]), builtin=None, entry=str(row["entry"]), grid=tuple(row["grid"]),
            block=(int(row["threads"]),), shared=int(row["shared_bytes"]), cooperative=False, device=None, options={},
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
