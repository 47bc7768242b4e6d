"""The C compiler says for which machine and system the library is built."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools")]

import build as builder  # noqa: E402 # sys.path must have the folder first

pytestmark = pytest.mark.virtual


def compiler(folder: Path, machine: str, *macros: str) -> str:
    """Write a program that answers as a compiler with these predefined macros does."""
    program = folder / "cc"
    lines = "".join(f"echo '#define {macro} 1'\n" for macro in macros)
    program.write_text(f'#!/bin/sh\n[ "$1" != -dumpmachine ] || {{ echo {machine}; exit; }}\n{lines}')
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("macros", "name"),
    [
        (("__linux__", "__x86_64__", "__GLIBC__"), "linux-x86_64"),
        (("__linux__", "__aarch64__"), "linux-aarch64-musl"),
        (("__APPLE__", "__aarch64__"), "macos-aarch64"),
        (("_WIN32", "__x86_64__"), "windows-x86_64"),
    ],
)
def test_target(tmp_path: Path, macros: tuple[str, ...], name: str) -> None:
    assert builder.target_platform([compiler(tmp_path, "any", *macros)]).name == name


def test_no_such_target(tmp_path: Path) -> None:
    with pytest.raises(builder.BuildError, match="compiles for riscv64-linux-gnu, but the library is for x86_64 and"):
        builder.target_platform([compiler(tmp_path, "riscv64-linux-gnu", "__linux__", "__GLIBC__")])
