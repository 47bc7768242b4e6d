"""docs/tutorials/testing-without-a-gpu.md: its files are written, its commands run, and they print what it says."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.virtual

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "tutorials" / "testing-without-a-gpu.md"
BLOCK = re.compile(r"(?:^`([\w.]+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: the file that it is, its language, its text."""

    file: str
    language: str
    text: str


def blocks(heading: str | None) -> list[Block]:
    """Return the blocks of one section, or of all but those that need Triton."""
    parts = re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE)[1:]
    chosen = [p for p in parts if (p.startswith(heading) if heading else not p.startswith("From Triton"))]
    return [Block(*match.groups(default="")) for part in chosen for match in BLOCK.finditer(part)]


def nvcc_folder() -> str:
    """Return the folder of the nvcc that builds the library."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import build
    finally:
        sys.path.pop(0)
    return str(Path(build.find_nvcc()).parent)


def run(text: str, folder: Path) -> tuple[int, str]:
    """Run a block of shell; its exit status and all that it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYSM120", "PYTEST"))}
    environment["PATH"] = os.pathsep.join([str(folder / "bin"), nvcc_folder(), os.environ["PATH"]])
    environment["PYTHONPATH"] = str(ROOT)
    environment["PYTEST_PLUGINS"] = "pytest_pysm120"  # where the package is not installed
    environment["TRITON_CACHE_DIR"] = str(folder / "triton")
    done = subprocess.run(
        [shutil.which("bash") or "sh", "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
        timeout=600,
    )
    return done.returncode, done.stdout


def matches(wanted: str, printed: str) -> bool:
    """Whether the lines are printed in this order; three dots stand for anything."""
    lines = iter(" ".join(line.split()) for line in printed.splitlines())
    patterns = [
        ".*".join(re.escape(part) for part in " ".join(line.split()).split("...")) for line in wanted.splitlines()
    ]
    return all(any(re.fullmatch(pattern.replace(r"\ .*\ ", ".*"), line) for line in lines) for pattern in patterns)


def follow(steps: list[Block], folder: Path) -> int:
    """Do what the blocks say; how many commands were compared."""
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    compared = 0
    for block, after in zip(steps, [*steps[1:], Block("", "", "")], strict=True):
        if block.file:
            (folder / block.file).write_text(block.text)
        if block.language != "sh":
            continue
        status, printed = run(block.text, folder)
        if after.language == "text":
            assert matches(after.text, printed), f"{block.text}\nprinted\n{printed}\nnot\n{after.text}"
            compared += 1
        else:
            assert status == 0, f"{block.text}\n{printed}"
    return compared


def test_from_cuda_to_a_test(tmp_path: Path) -> None:
    assert follow(blocks(None), tmp_path) == 8


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_from_triton(tmp_path: Path) -> None:
    assert follow(blocks("From Triton"), tmp_path) == 2


def test_matching() -> None:
    printed = "one   two\nthree 4 five\nsix\n"
    for wanted, right in (
        ("one two\nsix", True),
        ("six\none two", False),
        ("three ... five", True),
        ("three ...", True),
    ):
        assert matches(wanted, printed) == right
    assert not matches("thre", printed)


def test_the_workflow_runs_what_the_guide_runs() -> None:
    (workflow,) = (b.text for b in blocks(None) if b.language == "yaml")
    commands = re.findall(r"- run: (.*)", workflow)
    assert commands[1] in "".join(b.text for b in blocks(None) if b.language == "sh")
    assert "wheels/*.whl" in commands[0]
    assert "pip wheel --no-deps -w wheels" in GUIDE.read_text()
