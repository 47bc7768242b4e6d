"""NVIDIA's own tools: found in PATH, in CUDA_HOME, among the Python packages or where CUDA is installed, and run."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError

WHEELS = {"ptxas": "nvidia-cuda-nvcc", "nvdisasm": "nvidia-cuda-nvdisasm"}
_IN_WHEELS = ("nvidia/cu13/bin", "nvidia/cu12/bin", "nvidia/cuda_nvcc/bin", "triton/backends/nvidia/bin")
_OTHER_NAMES = {"ptxas": ("ptxas-blackwell",)}  # Triton has a second ptxas for newer chips
_CUDA = Path("/usr/local")  # the folder of CUDA's own installations
_RELEASE = re.compile(r"release (\d+)\.(\d+)")

Version = tuple[int, int]


def locations(name: str) -> list[Path]:
    """Return every installed version of a tool, "nvdisasm" or "ptxas", in the order in which they are preferred."""
    names = (name, *_OTHER_NAMES.get(name, ()))
    candidates = [shutil.which(name)]
    if home := os.environ.get("CUDA_HOME"):
        candidates.append(str(Path(home) / "bin" / name))
    folders = [*sys.path, sysconfig.get_path("purelib")]
    candidates += [str(Path(folder) / wheel / one) for folder in folders for wheel in _IN_WHEELS for one in names]
    candidates += [str(folder / "bin" / name) for folder in sorted(_CUDA.glob("cuda*"), reverse=True)]
    found = (Path(x) for x in candidates if x and os.access(x, os.X_OK))
    return list({path.resolve(): path for path in reversed(list(found))}.values())[::-1]


def locate(name: str) -> Path | None:
    """Return the path of a tool, "nvdisasm" or "ptxas", or None."""
    return next(iter(locations(name)), None)


def find(name: str) -> Path:
    """Return the path of a tool; UnsupportedError if it is not found."""
    if found := locate(name):
        return found
    message = (
        f"{name} was not found in PATH, in CUDA_HOME, in {_CUDA}/cuda* or among the Python packages: install CUDA 13, "
        f"or `pip install {WHEELS[name]}`"
    )
    raise UnsupportedError(message)


@cache
def isa_of(ptxas: Path) -> Version:
    """Return the newest .version of PTX that a ptxas reads; (0, 0) if it does not say its release."""
    done = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    found = _RELEASE.search(done.stdout)
    if found is None:
        return 0, 0
    major, minor = int(found[1]), int(found[2])
    # CUDA 12.6 read the PTX of 12.5, so each later release of CUDA 12 is one behind.
    return major - 4, minor - (major == 12 and minor > 5)  # noqa: PLR2004


def assemblers(version: Version) -> list[Path]:
    """Return every ptxas that reads a .version of PTX; UnsupportedError if there is none."""
    find("ptxas")
    known = {path: isa_of(path) for path in locations("ptxas")}
    found = [path for path, newest in known.items() if newest >= version]
    if not found:
        listed = ", ".join(f"{path} up to {newest[0]}.{newest[1]}" for path, newest in known.items())
        message = (
            f"the PTX has .version {version[0]}.{version[1]}, which no ptxas here reads ({listed}): install a newer "
            f"CUDA, or `pip install -U {WHEELS['ptxas']}`"
        )
        raise UnsupportedError(message)
    return found


def run(name: str, *words: str | Path, at: Path | None = None) -> str:
    """Run a tool, the first one found or that of a path; return what it prints."""
    done = subprocess.run([at or find(name), *words], capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    if done.returncode != 0:
        first = (done.stderr or done.stdout).strip().split("\n")[0]
        message = f"{name} failed with status {done.returncode}: {first}"
        raise InvalidArgumentError(message)
    return done.stdout
