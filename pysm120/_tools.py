"""NVIDIA's own tools: found in PATH, in CUDA_HOME or among the Python packages, and run."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from pysm120.errors import InvalidArgumentError, UnsupportedError

_WHEELS = {"nvdisasm": "nvidia-cuda-nvdisasm", "ptxas": "nvidia-cuda-nvcc"}


def find(name: str) -> Path:
    """Return where a tool is: "nvdisasm" or "ptxas"."""
    candidates = [shutil.which(name)]
    if home := os.environ.get("CUDA_HOME"):
        candidates.append(str(Path(home) / "bin" / name))
    folders = [*sys.path, sysconfig.get_path("purelib")]
    candidates += [str(Path(folder) / "nvidia/cu13/bin" / name) for folder in folders]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    message = (
        f"{name} was not found in PATH, in CUDA_HOME or among the Python packages: install CUDA 13, or "
        f"`pip install {_WHEELS[name]}`"
    )
    raise UnsupportedError(message)


def run(name: str, *words: str | Path) -> str:
    """Run a tool; return what it prints."""
    done = subprocess.run([find(name), *words], capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    if done.returncode != 0:
        first = (done.stderr or done.stdout).strip().split("\n")[0]
        message = f"{name} failed with status {done.returncode}: {first}"
        raise InvalidArgumentError(message)
    return done.stdout
