"""docs/how-to/add-an-instruction.md: a copy of the tree learns the instruction, step by step."""

from pathlib import Path

import guide
import pytest

pytestmark = [pytest.mark.virtual, pytest.mark.slow]

GUIDE = guide.ROOT / "docs" / "how-to" / "add-an-instruction.md"


def test_the_guide(tmp_path: Path) -> None:
    root = guide.copy_of_tree(tmp_path)
    assert guide.follow(guide.blocks(GUIDE), root) == 5
