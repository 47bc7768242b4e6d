"""The parts of .ci/run: it installs tools for tests of other systems, or says which system was not tested and why."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from platforms import TARGETS

ROOT = Path(__file__).resolve().parents[2]
TOOLS = [word for target in TARGETS.values() for word in (target.cc, *target.runner[:1])]
PARTS = ["test --durations 20: none", "test --rest --durations 20: none", "lint: none"]
SYSTEMS = [f"test tests/runtime/test_platforms.py: {name}" for name in TARGETS]
USED = ("dirname", "date", "timeout", "sh", "cp", "paste", "sleep")

pytestmark = pytest.mark.virtual


def program(folder: Path, name: str, text: str) -> None:
    """Write a shell script."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def run(
    folder: Path,
    *,
    without: tuple[str, ...] = (),
    user: int = 0,
    apt: str | None = None,
    build: str = "",
    hurried: bool = False,
) -> tuple[int, list[str], list[str], list[str]]:
    """Run a copy of .ci/run where some tools are missing; return its status, what ran, what passed and what was not.

    `apt` is what apt-get does. build.sh prints its arguments and PYSM120_PLATFORMS, and then does `build`.
    A hurried run has 4 seconds for the other systems, and begins with none in the last 3.
    """
    home, programs = folder / "project", folder / "bin"
    (home / ".ci").mkdir(parents=True)
    programs.mkdir()
    text = (ROOT / ".ci" / "run").read_text()
    (home / ".ci" / "run").write_text(
        text.replace("SECONDS=480", "SECONDS=4").replace("SECONDS=60", "SECONDS=3") if hurried else text
    )
    program(home, "build.sh", f'echo "$*: $PYSM120_PLATFORMS"\n{build}')
    for name in USED:
        (programs / name).symlink_to(shutil.which(name) or pytest.fail(f"there is no {name}"))
    program(programs, "id", f"echo {user}")
    for name in TOOLS:
        if name not in without:
            program(programs, name, "")
    if apt is not None:
        program(programs, "apt-get", f'echo noise\necho noise >&2\necho "$*" >>{folder}/apt\ncd {programs}\n{apt}')
    done = subprocess.run(
        [shutil.which("sh") or "sh", home / ".ci" / "run"],
        capture_output=True,
        text=True,
        check=False,
        env={name: x for name, x in os.environ.items() if name != "PYSM120_PLATFORMS"} | {"PATH": str(programs)},
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    notes = [line for line in lines if " was not tested: " in line]
    results = [line.split(" s  ")[1] for line in lines if " min " in line and line not in notes]
    if notes:
        assert results[3].endswith("; some were not tested")
        results[3] = results[3].partition(";")[0]
    return done.returncode, lines[: len(lines) - len(results) - len(notes)], results, notes


def test_all_tools_are_there(tmp_path: Path) -> None:
    """Then nothing is installed."""
    assert run(tmp_path, apt="") == (0, [*PARTS, *SYSTEMS], ["passed"] * 4, [])
    assert not (tmp_path / "apt").exists()


def test_tools_are_installed(tmp_path: Path) -> None:
    """Those of systems whose tools are missing, in two steps."""
    apt = """[ "$DEBIAN_FRONTEND" = noninteractive ] || exit 1
case $* in
*--no-download*wine*) cp id wine ;;
*--no-download*clang*) cp id clang ;;
esac"""
    found = run(tmp_path, without=("wine", "clang"), apt=apt)
    assert found == (0, [*PARTS, *SYSTEMS], ["passed"] * 4, [])
    calls = (tmp_path / "apt").read_text().splitlines()
    assert [[word for word in call.split() if "download" in word] for call in calls] == [
        [],
        *[["--download-only"], ["--no-download"]] * 2,
    ]
    assert [call.split()[-1] for call in calls] == ["update", "wine64", "wine64", "clang", "clang"]


@pytest.mark.parametrize(
    ("user", "apt", "why"),
    [
        (0, "exit 100", "apt-get update failed"),
        (0, '[ "${*##* }" = update ]', "apt-get did not install it"),
        (0, None, "there is no apt-get to install it"),
        (1000, "cp id wine", "only root installs it"),
    ],
)
def test_tools_are_missing(tmp_path: Path, user: int, apt: str | None, why: str) -> None:
    """One line says so, and the other systems are tested."""
    status, ran, results, notes = run(tmp_path, without=("wine", "x86_64-w64-mingw32-gcc-posix"), user=user, apt=apt)
    assert (status, ran, results) == (0, [*PARTS, *(x for x in SYSTEMS if "windows" not in x)], ["passed"] * 4)
    tools = "x86_64-w64-mingw32-gcc-posix,wine"
    assert notes == [f".ci/run: windows was not tested: there is no {tools}; {why}"]


@pytest.mark.parametrize(("what", "failed"), [("lint", 2), ("test tests/runtime/test_platforms.py", 3)])
def test_a_part_fails(tmp_path: Path, what: str, failed: int) -> None:
    """The others run all the same."""
    status, ran, results, notes = run(tmp_path, build=f'[ "$*" != "{what}" ]')
    assert (status, ran, notes) == (1, [*PARTS, *SYSTEMS], [])
    assert results == ["failed" if k == failed else "passed" for k in range(4)]


def test_the_time_is_over(tmp_path: Path) -> None:
    """Tests that are cut off are no failure, and those that could not begin are not begun."""
    build = "case $PYSM120_PLATFORMS in windows) exec sleep 60 ;; esac"
    status, ran, results, notes = run(tmp_path, build=build, hurried=True)
    assert (status, ran, results) == (0, [*PARTS, *SYSTEMS[:2]], ["passed"] * 4)
    assert notes == [
        ".ci/run: windows was not tested: its tests did not end before 4 seconds were over",
        *(f".ci/run: {name} was not tested: 4 seconds were over" for name in ("musl", "clang")),
    ]
