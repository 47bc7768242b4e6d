"""Guides that are followed: their files are written, their edits applied, their commands run in a copy of the tree."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import build_tree

from pysm120.runtime.ffi import LIBRARY_NAME

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:^`([\w./-]+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What a copy of the tree does without: the history, environments, and in build/ what tests have made.
LEFT_OUT = (".git", ".venv", ".*_cache", "__pycache__", "*.egg-info", "results", "build")
HANDLERS = "libsm120_xla.so"
BUILT = (
    "generated",
    "kernels",
    "objects",
    "nvcc.json",
    *(name + end for name in (LIBRARY_NAME, HANDLERS) for end in ("", ".key")),
)

# Run in a copy: the keys of build/ hold the path of the tree, so they are written anew, and nothing is made again.
ADOPT = """
import sys
sys.path.insert(0, "tools")
import build

def adopt(self, output, key, action, found=tuple):
    words = list(key)
    if not output.exists():
        sys.exit(f"{output} is not in the copy")
    output.with_name(output.name + ".key").write_text(self.key([*words, *found()]))
    return output

build.Cache.make = adopt
build.build()
"""


class Block(NamedTuple):
    """A fenced block: the file that it is, its language, its text."""

    file: str
    language: str
    text: str


def blocks_of(text: str) -> list[Block]:
    """Return the fenced blocks of a text. A line "`NAME`:" before a block makes it the file NAME."""
    return [Block(*match.groups(default="")) for match in BLOCK.finditer(text)]


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a guide."""
    return blocks_of(path.read_text())


def copy_of_tree(folder: Path) -> Path:
    """Copy the tree with its build to folder/tree. A build there makes only what has changed since."""
    build_tree.built()
    root = folder.resolve() / "tree"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*LEFT_OUT))
    with build_tree.alone():
        (root / "build").mkdir()
        for name in BUILT:
            source = ROOT / "build" / name
            copy = shutil.copytree if source.is_dir() else shutil.copy2
            copy(source, root / "build" / name)
    # The compiler's lists of headers name the files of the original.
    for listed in (root / "build" / "objects").rglob("*.d"):
        listed.write_text(listed.read_text().replace(f"{ROOT}/", f"{root}/"))
    done = subprocess.run([sys.executable, "-c", ADOPT], capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    return root


def apply(diff: str, root: Path) -> None:
    """Apply a unified diff to the files below root.

    A hunk begins with "@@"; its line numbers are not read. Its lines must be in the file exactly once.
    A diff from /dev/null makes a file.
    """
    files = re.findall(r"^--- (\S+)\n\+\+\+ b/(\S+)\n(.*?)(?=^--- |\Z)", diff, re.MULTILINE | re.DOTALL)
    assert files, f"a diff without the lines --- and +++:\n{diff}"
    for before, name, text in files:
        path = root / name
        made = before == "/dev/null"
        assert made != path.exists(), f"{name} is {'' if path.exists() else 'not '}there"
        assert made or before == f"a/{name}", f"{before} is not a/{name}"
        whole = "" if made else path.read_text()
        hunks = re.split(r"^@@.*\n", text, flags=re.MULTILINE)
        assert not hunks[0], f"lines of {name} before the first @@:\n{hunks[0]}"
        assert hunks[1:], f"no @@ for {name}"
        for hunk in hunks[1:]:
            lines = [line or " " for line in hunk.splitlines()]
            assert all(line[0] in " +-" for line in lines), (
                f"a hunk of {name} has other lines than ' ', + and -:\n{hunk}"
            )
            old = "".join(line[1:] + "\n" for line in lines if line[0] != "+")
            new = "".join(line[1:] + "\n" for line in lines if line[0] != "-")
            assert old != new, f"a hunk of {name} changes nothing:\n{hunk}"
            count = ("\n" + whole).count("\n" + old) if old else int(made)
            assert count == 1, f"these lines are {count} times in {name}, not once:\n{old}"
            whole = ("\n" + whole).replace("\n" + old, "\n" + new)[1:] if old else new
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(whole)


def nvcc_folder() -> str:
    """Return the folder of the nvcc that builds the library."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import build
    finally:
        sys.path.pop(0)
    return str(Path(build.find_nvcc()).parent)


def run(text: str, folder: Path, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a block of shell in a folder; its exit status and all that it printed.

    `python` is this Python, nvcc's folder is in PATH, and no variable of this project or of pytest is set but those of
    `environment`.
    """
    tools = folder.resolve() / ".guide" / "bin"
    tools.mkdir(parents=True, exist_ok=True)
    python = tools / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYSM120", "PYTEST"))}
    variables["PATH"] = os.pathsep.join([str(tools), nvcc_folder(), os.environ["PATH"]])
    done = subprocess.run(
        [shutil.which("bash") or "sh", "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=folder,
        env={**variables, **(environment or {})},
        timeout=600,
    )
    return done.returncode, done.stdout


def run_in_tree(text: str, root: Path) -> tuple[int, str]:
    """Run a block of shell in a copy of the tree, with the package and the library of the copy."""
    library = root / "build" / LIBRARY_NAME
    return run(text, root, {"PYTHONPATH": str(root), "PYSM120_LIBRARY": str(library)})


def matches(wanted: str, printed: str) -> bool:
    """Whether the lines are printed in this order; three dots stand for anything."""
    lines = iter(" ".join(line.split()) for line in printed.splitlines())
    patterns = [
        ".*".join(re.escape(part) for part in " ".join(line.split()).split("...")) for line in wanted.splitlines()
    ]
    return all(any(re.fullmatch(pattern.replace(r"\ .*\ ", ".*"), line) for line in lines) for pattern in patterns)


Run = Callable[[str, Path], tuple[int, str]]


def follow(steps: Sequence[Block], root: Path, run: Run = run_in_tree) -> int:
    """Do in a folder, a copy of the tree for instance, what the blocks say; how many commands were compared.

    A file is written and a diff applied. A command must succeed, unless a block `text` follows: then it must print
    those lines.
    """
    compared = 0
    for block, after in zip(steps, [*steps[1:], Block("", "", "")], strict=True):
        if block.file:
            (root / block.file).parent.mkdir(parents=True, exist_ok=True)
            (root / block.file).write_text(block.text)
        elif block.language == "diff":
            apply(block.text, root)
        elif block.language == "sh":
            status, printed = run(block.text, root)
            if after.language == "text":
                assert matches(after.text, printed), f"{block.text}\nprinted\n{printed}\nnot\n{after.text}"
                compared += 1
            else:
                assert status == 0, f"{block.text}\n{printed}"
    return compared
