"""The tests of the Python package once more, on a library built with ASan and UBSan."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from build_tree import built

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    *(f"runtime/test_{name}.py" for name in ("device", "arrays", "errors", "tensor_map")),
    *(f"model/test_{name}.py" for name in ("simulate", "simulator", "fetch")),
)


def output(*command: str | Path) -> str:
    """Run a program that must succeed; return what it printed."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.virtual
def test_python_under_sanitizers(pytestconfig: pytest.Config) -> None:
    library = str(built("--sanitize", "address,undefined"))
    compiler = shlex.split(os.environ.get("CC") or "cc")
    runtimes = [output(*compiler, f"-print-file-name={name}") for name in ("libasan.so", "libubsan.so")]
    environment = {
        **os.environ,
        "PYSM120_LIBRARY": library,
        "LD_PRELOAD": " ".join(runtimes),
        # Python itself never frees some of its memory; what the library leaks, the tests of the C ABI show.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "halt_on_error=1",
    }
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--capture=sys",
        "--seed",
        str(pytestconfig.option.seed),
    ]
    files = [ROOT / "tests" / name for name in TESTS]
    done = subprocess.run([*words, *files], capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-10000:] + done.stderr[-10000:]
