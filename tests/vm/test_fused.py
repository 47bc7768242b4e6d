"""The fused multiply-add of integers has the bits of the C library's, which this machine's CPU computes."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-std=c11", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]


@pytest.mark.virtual
def test_fused_multiply_add(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    program = tmp_path / "fused"
    source = ROOT / "tests" / "vm" / "fused.c"
    cc = shlex.split(os.environ.get("CC", "cc"))
    subprocess.run([*cc, *FLAGS, f"-I{ROOT / 'src'}", source, "-o", program, "-lm"], check=True)
    done = subprocess.run([program, str(pytestconfig.option.seed)], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.returncode == 0
