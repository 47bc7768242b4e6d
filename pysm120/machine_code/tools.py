"""NVIDIA's own tools: found in PATH, in CUDA_HOME or among the Python packages, and run."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError

WHEELS = {"ptxas": "nvidia-cuda-nvcc", "nvdisasm": "nvidia-cuda-nvdisasm"}
_IN_WHEELS = ("nvidia/cu13", "nvidia/cu12", "nvidia/cuda_nvcc")


def locate(name: str) -> Path | None:
    """Return the path of a tool, "nvdisasm" or "ptxas", or None."""
    candidates = [shutil.which(name)]
    if home := os.environ.get("CUDA_HOME"):
        candidates.append(str(Path(home) / "bin" / name))
    folders = [*sys.path, sysconfig.get_path("purelib")]
    candidates += [str(Path(folder) / wheel / "bin" / name) for folder in folders for wheel in _IN_WHEELS]
    return next((Path(x) for x in candidates if x and os.access(x, os.X_OK)), None)


def find(name: str) -> Path:
    """Return the path of a tool; UnsupportedError if it is not found."""
    if found := locate(name):
        return found
    message = (
        f"{name} was not found in PATH, in CUDA_HOME or among the Python packages: install CUDA 13, or "
        f"`pip install {WHEELS[name]}`"
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
