"""Builds of this tree for tests. One process builds at a time, because the workers of a run share build/."""

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def alone() -> Iterator[None]:
    """Lock build/ against other processes until the end of the block. It must not be nested."""
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    with (folder / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def built(*options: str) -> Path:
    """Build the library, or a variant of it; return its path."""
    with alone():
        command = [sys.executable, str(ROOT / "tools" / "build.py"), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.splitlines()[-1])
