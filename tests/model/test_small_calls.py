"""The predictions of small calls in docs/reference/attention.md are those of the timing model."""

import argparse
from pathlib import Path

import pytest

from pysm120.cli import compare
from pysm120.machine_code import tools
from pysm120.model import chips, problem, splits

ROOT = Path(__file__).resolve().parents[2]
HEADER = "| batch, rows, heads, head size | pysm120, bf16 | FlashAttention 2 | cuDNN | RTX 5090, predicted, bf16 |"
PRECISIONS = ("bf16", "mxfp8", "fp8")  # of the last columns
CHIP = "rtx5090"


def rows() -> dict[str, list[str]]:
    """Return the cells of the table, by the first one."""
    lines = (ROOT / "docs" / "reference" / "attention.md").read_text().splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith(HEADER))
    found: dict[str, list[str]] = {}
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found[name] = cells
    return found


@pytest.mark.virtual
@pytest.mark.sampled(1, each=("precision",))
@pytest.mark.skipif(not tools.locations("nvdisasm"), reason="needs nvdisasm")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", rows())
def test_predictions_of_small_calls(name: str, precision: str) -> None:
    """The kernel that the library chooses on the chip takes as long as the table says, to 1 %."""
    text, chip = name.replace(" ", ""), chips.load(CHIP)
    kernel = splits.kernel_of_library(precision, problem.parse(text), chip)
    options = argparse.Namespace(chip=CHIP, mhz=None, problem=text, flops=None)
    found = compare.row(kernel.entry, options, chip)["microseconds"]
    assert found == pytest.approx(float(rows()[name][PRECISIONS.index(precision) - 3]), rel=0.01)
