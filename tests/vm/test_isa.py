"""The same results with narrower vectors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.virtual


@pytest.mark.sampled(1)
@pytest.mark.parametrize("isa", ["base", "v3"])
def test_narrower_vectors(isa: str, request: pytest.FixtureRequest) -> None:
    here = Path(__file__).parent
    names = [str(here / f"test_{name}.py") for name in ("arithmetic", "conversions", "memory", "warps")]
    command = [sys.executable, "-m", "pytest", "-q", "-x", f"--seed={request.config.option.seed}", *names]
    done = subprocess.run(
        command, env={**os.environ, "PYSM120_VM_ISA": isa}, cwd=here.parents[1], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout.decode()[-3000:]
