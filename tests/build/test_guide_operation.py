"""docs/how-to/add-an-operation.md: a copy of the tree gets the operation, step by step."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import guide
import pytest

pytestmark = [pytest.mark.virtual, pytest.mark.slow]

GUIDE = guide.ROOT / "docs" / "how-to" / "add-an-operation.md"
BLOCKS = guide.blocks(GUIDE)


def files(ending: str) -> str:
    """Return the files of a kind that the guide writes, as words of a command."""
    names = [block.file for block in BLOCKS if block.file.endswith(ending)]
    assert names, f"the guide writes no {ending}"
    return shlex.join(names)


def linters() -> str:
    """Return the linters of build.sh, for the files that the guide writes: build.sh would make an environment first."""
    python, clang_format = files(".py"), Path(sys.executable).with_name("clang-format")
    modules = os.pathsep.join(f"tests/{name}" for name in ("support", "ops", "runtime", "hardware"))
    return " && ".join(
        [
            f"python -m ruff check {python}",
            f"python -m ruff format --check {python}",
            f"MYPYPATH={modules} python -m mypy --strict --follow-imports silent {python}",
            f"{shlex.quote(str(clang_format))} --dry-run -Werror {files('.c')}",
        ]
    )


def run(text: str, root: Path) -> tuple[int, str]:
    """Run a block of shell in a copy of the tree."""
    return guide.run_in_tree(text.replace("./build.sh lint", linters()), root)


def test_the_guide(tmp_path: Path) -> None:
    root = guide.copy_of_tree(tmp_path)
    assert any(block.text == "./build.sh lint\n" for block in BLOCKS)
    assert guide.follow(BLOCKS, root, run) == 1


def test_another_operation_changes_nothing(tmp_path: Path) -> None:
    """The guide's edits fit a tree to which the same edits have added another operation."""
    diffs = [block.text for block in BLOCKS if block.language == "diff"]
    edited = re.findall(r"^--- a/(\S+)$", "".join(diffs), re.MULTILINE)
    assert len(edited) == 5
    for name in edited:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(guide.ROOT / name, tmp_path / name)
    for operation in ("another", "rmsnorm"):
        for diff in diffs:
            guide.apply(diff.replace("rmsnorm", operation), tmp_path)
    for name in edited:
        text = (tmp_path / name).read_text()
        assert "another" in text, name
        assert "rmsnorm" in text, name


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """Without its row, the operation fails a test of all operations with a sentence."""
    root = guide.copy_of_tree(tmp_path)
    steps = [block for block in BLOCKS if block.language != "sh" and "test_rmsnorm" not in block.file]
    guide.follow(steps, root)
    status, printed = guide.run_in_tree(
        "python tools/build.py && python -m pytest -q -n 0 tests/ops/test_operations.py -k 'not every_kernel'", root
    )
    assert status != 0
    assert re.search(r"sm120_rmsnorm of sm120.h has no row for the tests of all operations", printed), printed
