"""examples/gguf_matvec.py: a file that it writes, and its command line."""

import subprocess
import sys
from pathlib import Path

import gguf_matvec
import numpy as np
import pytest

import pysm120

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("layout", ["native", "packed"])
def test_products_of_a_file(device: pysm120.Device, rng: np.random.Generator, tmp_path: Path, layout: str) -> None:
    """Both matrices are multiplied; x in int8 costs less than 1 %."""
    gguf_matvec.write(tmp_path / "small.gguf", rng)
    found = list(gguf_matvec.products(tmp_path / "small.gguf", device, 2, layout))
    assert [(x.name, x.type, x.rows, x.columns) for x in found] == [
        ("up.weight", "Q8_0", 192, 512),
        ("down.weight", "MXFP4", 512, 192),
    ]
    assert all(0 < x.error < 0.01 for x in found)


@pytest.mark.virtual
def test_command_line() -> None:
    command = [sys.executable, "examples/gguf_matvec.py", "--device", "virtual"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["up.weight", "Q8_0"], ["down.weight", "MXFP4"]]
