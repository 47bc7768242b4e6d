"""docs/tutorials/testing-without-a-gpu.md: its files are written, its commands run, and they print what it says."""

import importlib.util
import re
from pathlib import Path

import guide
import pytest
from guide import Block

pytestmark = pytest.mark.virtual

GUIDE = guide.ROOT / "docs" / "tutorials" / "testing-without-a-gpu.md"


def blocks(heading: str | None) -> list[Block]:
    """Return the blocks of one section, or of all sections except the one that needs Triton."""
    parts = re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE)[1:]
    chosen = [p for p in parts if (p.startswith(heading) if heading else not p.startswith("From Triton"))]
    return [block for part in chosen for block in guide.blocks_of(part)]


def run(text: str, folder: Path) -> tuple[int, str]:
    """Run a block of shell with this package, also if it is not installed."""
    return guide.run(
        text,
        folder,
        {
            "PYTHONPATH": str(guide.ROOT),
            "PYTEST_PLUGINS": "pytest_pysm120",
            "TRITON_CACHE_DIR": str(folder / "triton"),
        },
    )


def follow(steps: list[Block], folder: Path) -> int:
    return guide.follow(steps, folder, run)


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
        assert guide.matches(wanted, printed) == right
    assert not guide.matches("thre", printed)


def test_the_workflow_runs_what_the_guide_runs() -> None:
    (workflow,) = (b.text for b in blocks(None) if b.language == "yaml")
    commands = re.findall(r"- run: (.*)", workflow)
    assert commands[1] in "".join(b.text for b in blocks(None) if b.language == "sh")
    assert "wheels/*.whl" in commands[0]
    assert "pip wheel --no-deps -w wheels" in GUIDE.read_text()
