"""docs/how-to/add-an-operation.md: a copy of the tree gets the operation, step by step."""

import re
from pathlib import Path

import guide
import pytest

pytestmark = [pytest.mark.virtual, pytest.mark.slow]

GUIDE = guide.ROOT / "docs" / "how-to" / "add-an-operation.md"


def test_the_guide(tmp_path: Path) -> None:
    root = guide.copy_of_tree(tmp_path)
    assert guide.follow(guide.blocks(GUIDE), root) == 1


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """Without its row, the operation fails a test of all operations with a sentence."""
    root = guide.copy_of_tree(tmp_path)
    steps = [block for block in guide.blocks(GUIDE) if block.language != "sh" and "test_rmsnorm" not in block.file]
    guide.follow(steps, root)
    status, printed = guide.run_in_tree(
        "python tools/build.py && python -m pytest -q -n 0 tests/ops/test_operations.py", root
    )
    assert status != 0
    assert re.search(r"sm120_rmsnorm of sm120.h has no row for the tests of all operations", printed), printed
