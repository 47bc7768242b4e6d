"""Libraries for other machines and systems: they build, the C programs pass, and results have the same bits.

A platform is tested where its compiler and what runs its programs are installed. PYSM120_PLATFORMS=all, as .ci/run
sets it, makes a missing one an error.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import build_tree
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("c_abi", "c_kernels", "c_operations", "c_watch")
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]


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
    "musl": Target("musl-gcc", (), "linux-x86_64-musl", "elf64-x86-64"),
    "clang": Target("clang", (), "tests-clang", "elf64-x86-64"),
}
TESTED = [name for name, target in TARGETS.items() if target.is_present or os.environ.get("PYSM120_PLATFORMS") == "all"]

pytestmark = pytest.mark.virtual


def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a program that must succeed; return what it prints."""
    whole = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=whole)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def build(target: Target) -> Path:
    """Build the library for a platform."""
    with build_tree.alone():
        options = ["--name", target.folder] if target.folder.startswith("tests-") else []
        command = [sys.executable, ROOT / "tools" / "build.py", *options]
        library = Path(run(*command, environment={"CC": target.cc}).splitlines()[-1])
    assert library.parent == ROOT / "build" / target.folder
    return library


@pytest.fixture(scope="module", params=TESTED)
def built(request: pytest.FixtureRequest) -> tuple[Target, Path]:
    target = TARGETS[request.param]
    return target, build(target)


def run_program(cc: str, runner: tuple[str, ...], library: Path, folder: Path, name: str) -> str:
    """Compile a program of tests/runtime for a platform, run it, and return what it prints."""
    program = folder / name
    source = ROOT / "tests" / "runtime" / f"{name}.c"
    link = ["-L", str(library.parent), "-lsm120", f"-Wl,-rpath,{library.parent}", "-lm", "-pthread"]
    run(cc, *WARNINGS, "-I", str(ROOT / "src"), source, "-o", program, *link)
    return run(*runner, program)


def test_library_is_of_the_target(built: tuple[Target, Path]) -> None:
    target, library = built
    if target.cc.endswith("-gcc") and "linux-gnu" in target.cc:
        objdump = target.cc.removesuffix("gcc") + "objdump"
    else:
        objdump = "objdump"
    assert f"file format {target.format}" in run(objdump, "-f", library)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(built: tuple[Target, Path], tmp_path: Path, name: str) -> None:
    target, library = built
    assert run_program(target.cc, target.runner, library, tmp_path, name) == ""


def test_same_bits(built: tuple[Target, Path], tmp_path: Path) -> None:
    target, library = built
    native = run_program("cc", (), build_tree.built(), tmp_path, "platform_bits")
    assert len(re.findall(r"^.+ [0-9a-f]{16}$", native, re.MULTILINE)) > 60
    assert run_program(target.cc, target.runner, library, tmp_path, "platform_bits") == native
