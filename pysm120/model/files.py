"""Kernels in files that others compiled: cubins, and PTX, which is assembled for its own target."""

import math
from pathlib import Path
from typing import NamedTuple

from pysm120.machine_code import sass
from pysm120.machine_code.cubin import Cubin
from pysm120.model.chips import Chip
from pysm120.runtime.errors import InvalidArgumentError

_MOST_THREADS = 1024
_ELF, _FATBIN = b"\x7fELF", b"\x50\xed\x55\xba"


class File(NamedTuple):
    """A cubin, and the PTX that it was made from if that is known."""

    image: bytes
    ptx: str | None


def target_of(chip: Chip) -> str:
    """Return the target that the library's kernels have on a chip."""
    return "sm_120f" if chip["target"] == "sm_120" else str(chip["target"])


def read(path: Path, ptx: str | None, target: str) -> File | None:
    """Return the kernels in a file; None if there is no such file.

    Parameters
    ----------
    path : Path
        A cubin or PTX.
    ptx : str, optional
        The file of a cubin's PTX. Default: the .ptx file beside it, if there is one.
    target : str
        Which PTX is assembled for, if its own .target leaves that open.

    """
    if not path.is_file():
        return None
    image = path.read_bytes()
    if image.startswith(_FATBIN):
        message = f"{path} is a fatbin: take a cubin out of it with `cuobjdump -xelf all {path}`"
        raise InvalidArgumentError(message)
    if image.startswith(_ELF):
        beside = path.with_suffix(".ptx")
        source = Path(ptx) if ptx else beside if beside.is_file() else None
        if source is None or source.is_file():
            return File(image, source.read_text(encoding="utf-8", errors="replace") if source else None)
        message = f"--ptx is {str(source)!r}, which is not a file"
        raise InvalidArgumentError(message)
    text = image.decode(errors="replace")
    if sass.version_of(text) == (0, 0):
        message = f"{path} is neither a cubin nor PTX: it has no ELF header for CUDA and no .version"
        raise InvalidArgumentError(message)
    if ptx:
        message = f"--ptx is {ptx!r}, but {path} is PTX itself: leave out --ptx"
        raise InvalidArgumentError(message)
    return File(sass.assemble(text, sass.targets(text, target)[0]), text)


def threads_of(image: bytes, name: str | None, block: tuple[int, ...] | None) -> int:
    """Return the threads of a CTA of a kernel: those of a block, else what the cubin states.

    ``block``: the dimensions of a CTA.
    """
    entry = Cubin(image).entry(name)
    if block is None:
        return entry.threads
    threads = math.prod(block)
    if threads > _MOST_THREADS:
        message = (
            f"--block is {','.join(map(str, block))}, which is {threads} threads; a CTA has at most {_MOST_THREADS}"
        )
        raise InvalidArgumentError(message)
    if entry.threads and (threads > entry.threads or (entry.fixed and threads != entry.threads)):
        least = "" if entry.fixed else "at most "
        message = (
            f"--block is {','.join(map(str, block))}, but {entry.name} is compiled for {least}{entry.threads} threads"
        )
        raise InvalidArgumentError(message)
    return threads
