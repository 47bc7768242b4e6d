"""What .ci/run does before the tests: it installs the tools for tests of other systems, or says which are missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from test_platforms import TARGETS

ROOT = Path(__file__).resolve().parents[2]
TOOLS = [word for target in TARGETS.values() for word in (target.cc, *target.runner[:1])]
PARTS = ["test", "test --rest", "lint"]

pytestmark = pytest.mark.virtual


def program(folder: Path, name: str, text: str) -> None:
    """Write a shell script."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def run(folder: Path, *, tools: list[str], user: int, apt: str | None, build: str = "") -> tuple[int, list[str]]:
    """Run a copy of .ci/run where only these tools are; return its status and the lines it prints.

    `apt` is what apt-get does. build.sh prints its arguments and PYSM120_PLATFORMS.
    """
    home, programs = folder / "project", folder / "bin"
    (home / ".ci").mkdir(parents=True)
    programs.mkdir()
    shutil.copy(ROOT / ".ci" / "run", home / ".ci")
    program(home, "build.sh", f'echo "$*: ${{PYSM120_PLATFORMS-none}}"\n{build}')
    for name in ("dirname", "date", "timeout", "sh", "cp"):
        (programs / name).symlink_to(shutil.which(name) or pytest.fail(f"there is no {name}"))
    program(programs, "id", f"echo {user}")
    for name in tools:
        program(programs, name, "")
    if apt is not None:
        program(programs, "apt-get", f"echo noise\necho noise >&2\ncd {programs}\n{apt}")
    variables = {name: x for name, x in os.environ.items() if name != "PYSM120_PLATFORMS"} | {"PATH": str(programs)}
    done = subprocess.run(
        [shutil.which("sh") or "sh", home / ".ci" / "run"], capture_output=True, text=True, check=False, env=variables
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_all_tools_are_there(tmp_path: Path) -> None:
    """Then nothing is installed."""
    status, lines = run(tmp_path, tools=TOOLS, user=0, apt="cp sh installed")
    assert not (tmp_path / "bin" / "installed").exists()
    assert status == 0
    assert lines[:3] == [f"{part}: all" for part in PARTS]
    assert [line.rsplit(None, 1)[1] for line in lines[3:]] == ["passed"] * 3


def test_tools_are_installed(tmp_path: Path) -> None:
    missing = ["wine", "clang"]
    apt = '[ "$DEBIAN_FRONTEND" = noninteractive ] || exit 1\nfor tool in wine clang; do cp id "$tool"; done'
    status, lines = run(tmp_path, tools=[x for x in TOOLS if x not in missing], user=0, apt=apt)
    assert status == 0
    assert lines[:3] == [f"{part}: all" for part in PARTS]


@pytest.mark.parametrize(
    ("user", "apt"), [(0, "exit 100"), (0, None), (1000, "cp id wine")], ids=["no network", "no apt", "not root"]
)
def test_tools_are_missing(tmp_path: Path, user: int, apt: str | None) -> None:
    """One line says so, and the tests run without them."""
    status, lines = run(tmp_path, tools=[x for x in TOOLS if x != "wine"], user=user, apt=apt)
    assert status == 0
    assert lines[0] == ".ci/run: systems that need these tools are not tested: wine"
    assert lines[1:4] == [f"{part}: none" for part in PARTS]


def test_a_part_fails(tmp_path: Path) -> None:
    """The others run all the same."""
    status, lines = run(tmp_path, tools=TOOLS, user=0, apt=None, build='[ "$1" != lint ]')
    assert status == 1
    assert [line.rsplit(None, 1)[1] for line in lines[3:]] == ["passed", "passed", "failed"]
