"""The host runs out of memory, address space or threads, at every call of the library in turn."""

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from test_c_abi import compiled

ROOT = Path(__file__).resolve().parents[2]
LEAST = {"malloc": 100, "mmap": 7, "mprotect": 14, "pthread_create": 2}  # calls of a run, at least

pytestmark = pytest.mark.virtual


def exhaust(folder: Path, kind: str, level: str, first: int, step: int) -> None:
    """Fail calls first, first + step, ... of a run."""
    library = Path(os.environ.get("PYSM120_LIBRARY") or ROOT / "build" / "libsm120.so").resolve()
    program = compiled(ROOT / "tests" / "runtime" / "exhausted.c", library, folder, "-std=c11", "-ldl")
    environment = {**os.environ, "PYSM120_THREADS": "3" if kind == "pthread_create" else "1"}
    command: list[str | Path] = [program, kind, str(first), str(step), f"virtual?checks={level}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    last = re.fullmatch(rf"{first} to (\d+) of {kind}\n", done.stdout)
    assert last is not None, done.stdout
    assert int(last[1]) > LEAST[kind]


@pytest.mark.parametrize("kind", LEAST)
def test_some_calls_fail(tmp_path: Path, rng: np.random.Generator, kind: str) -> None:
    """Every call that maps, protects or starts a thread; one of twelve that allocate, from a random one on."""
    step = 12 if kind == "malloc" else 1
    exhaust(tmp_path, kind, "default", 1 + int(rng.integers(step)), step)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["default", "full"])
@pytest.mark.parametrize("kind", ["malloc", "mmap", "mprotect"])
def test_every_call_fails(tmp_path: Path, kind: str, level: str) -> None:
    exhaust(tmp_path, kind, level, 1, 1)
