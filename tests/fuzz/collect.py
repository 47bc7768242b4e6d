"""A pytest plugin that keeps the PTX that tests load, entry by entry, as seeds: $PYSM120_SEEDS names the folder."""

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import pysm120

LONGEST = 1 << 14
FOLDER = Path(os.environ["PYSM120_SEEDS"])


def pieces(text: str) -> list[str]:
    """Cut a module into modules of one entry each, where they are too long together and no function is shared."""
    starts = [found.start() for found in re.finditer(r"^\s*(\.visible\s+)?\.entry\b", text, re.MULTILINE)]
    if len(starts) < 2 or ".func" in text:
        return [text]
    ends = [*starts[1:], len(text)]
    return [text[: starts[0]] + text[a:b] for a, b in zip(starts, ends, strict=True)]


def bare(text: str) -> str:
    """Leave comments, line markers and indentation out."""
    text = re.sub(r"//.*|^#.*|^\s*\.loc\b.*", "", text, flags=re.MULTILINE)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"\s*\n\s*", "\n", re.sub(r"[ \t]+", " ", text)).strip() + "\n"


def keep(text: str) -> None:
    """Write the pieces that are short enough, each once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for piece in pieces(text):
        data = bare(piece).encode()
        if len(data) < LONGEST:
            (FOLDER / hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]).write_bytes(data)


load = pysm120.Device.load


def load_and_keep(
    self: pysm120.Device, ptx: str | bytes | os.PathLike[str], *, name: str | None = None, strict: bool = False
) -> Any:
    """Load as ever."""
    if isinstance(ptx, str):
        keep(ptx)
    elif isinstance(ptx, Path):
        keep(ptx.read_text())
    return load(self, ptx, name=name, strict=strict)


pysm120.Device.load = load_and_keep  # type: ignore[method-assign]
