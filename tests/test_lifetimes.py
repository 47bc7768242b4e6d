"""What one thread or process does to memory while another uses it: each in a process of its own, which must survive."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.virtual

HEAD = """
import os, signal, sys, threading, time
import numpy as np
import pysm120
"""


def survives(program: str, **environment: str) -> None:
    """Run a program that must end with status 0."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}"


def test_free_beside_a_copy() -> None:
    survives(
        """
device = pysm120.Device("virtual")

def copy(x):
    try:
        x.numpy()
    except pysm120.ClosedError:
        pass

for _ in range(25):
    x = device.zeros(32 << 20, np.uint8)
    thread = threading.Thread(target=copy, args=(x,))
    thread.start()
    time.sleep(0.003)
    x.free()
    thread.join()
"""
    )
