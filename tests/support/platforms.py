"""Platforms other than this one: their compilers, what runs their programs, and which of them are tested."""

import os
import shutil
from typing import NamedTuple


class Target(NamedTuple):
    """A platform: its compiler, what runs its programs, the folder in build/, and a line of `objdump -f`."""

    cc: str
    runner: tuple[str, ...]
    folder: str
    format: str

    @property
    def is_present(self) -> bool:
        """Whether the tools are installed."""
        return all(shutil.which(word) for word in (self.cc, *self.runner[:1]))


QEMU = ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu")
TARGETS = {
    "aarch64": Target("aarch64-linux-gnu-gcc", QEMU, "linux-aarch64", "elf64-littleaarch64"),
    "windows": Target("x86_64-w64-mingw32-gcc-posix", ("wine",), "windows-x86_64", "pei-x86-64"),
    "musl": Target("musl-gcc", (), "linux-x86_64-musl", "elf64-x86-64"),
    "clang": Target(os.environ.get("PYSM120_CLANG", "clang"), (), "tests-clang", "elf64-x86-64"),
}


def chosen() -> list[str]:
    """Return the platforms to test: those that PYSM120_PLATFORMS names, or `none`; if unset, those with their tools.

    One that is named is tested even if a tool is missing, and fails.
    """
    named = os.environ.get("PYSM120_PLATFORMS")
    if named is None:
        return [name for name, target in TARGETS.items() if target.is_present]
    words = [] if named == "none" else named.split()
    for word in words:
        if word not in TARGETS:
            message = f"PYSM120_PLATFORMS names {word!r}, not one of {', '.join(TARGETS)}, or none alone"
            raise ValueError(message)
    return words
