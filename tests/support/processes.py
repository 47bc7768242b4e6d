"""Programs that a test starts in a process of their own, some of which it interrupts."""

import os
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 120  # limit in seconds for a program, or for loading the library on a busy machine
USED = 1.0  # after this much more processor time it executes the kernel


def survives(program: str, **environment: str) -> None:
    """Run a Python program that must end with status 0."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}"


def _used(process: "subprocess.Popen[str]") -> float:
    """Return the processor time of a process, in seconds."""
    words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100


def wait_until_it_runs(process: "subprocess.Popen[str]") -> None:
    """Wait until a process is executing its endless kernel."""
    end = time.monotonic() + PATIENCE
    while "libsm120" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        assert time.monotonic() < end, "the process does not load the library"
        time.sleep(0.05)
    before = _used(process)
    while _used(process) < before + USED:
        assert process.poll() is None
        assert time.monotonic() < end, "the process does not execute the kernel"
        time.sleep(0.05)
