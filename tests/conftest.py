"""Options and fixtures of every test: which device, which seed."""

import importlib.util
import os
import secrets
import signal
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from harness import OpenDevice

import pysm120

# Triton's half of the corpus and JAX as an oracle are run where they are installed (the extras `corpus` and `oracles`);
# the header says which.
HAS_TRITON, HAS_JAX = (importlib.util.find_spec(name) is not None for name in ("triton", "jax"))
collect_ignore = (
    [] if HAS_TRITON else [f"corpus/{name}.py" for name in ("test_triton", "triton_kernels", "triton_compile")]
)
collect_ignore += [] if HAS_JAX else ["ops/test_jax.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this project."""
    default = os.environ.get("PYSM120_DEVICE") or "virtual"
    parser.addoption("--device", default=default, help="virtual, cuda, cuda:1 (default: %(default)s)")
    parser.addoption("--seed", type=int, default=None, help="seed of the random inputs (default: a new one)")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed; no thread of the host answers a kernel, but where a test says so."""
    os.environ.setdefault("PYSM120_PATIENCE", "0")
    if config.option.seed is None:
        config.option.seed = secrets.randbelow(1 << 32)


def pytest_report_header(config: pytest.Config) -> str:
    """Show what it takes to repeat the run."""
    triton, jax = ("with" if has else "without" for has in (HAS_TRITON, HAS_JAX))
    what = f"corpus {triton} Triton, oracles {jax} JAX"
    return f"pysm120: --device {config.option.device} --seed {config.option.seed}, {what}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the device under test cannot show."""
    other = "virtual" if config.option.device.startswith("cuda") else "cuda"
    left_out = [item for item in items if item.get_closest_marker(other)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def device_name(pytestconfig: pytest.Config) -> str:
    """Name of the device under test."""
    name: str = pytestconfig.option.device
    return name


@pytest.fixture
def device(device_name: str) -> Iterator[pysm120.Device]:
    """Open the device under test; close it after the test."""
    with pysm120.Device(device_name) as opened:
        yield opened


@pytest.fixture
def control_c(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, here and in what is started from here.

    A run in the background of a shell inherits that it is ignored.
    """
    monkeypatch.setenv("PYSM120_INSTRUCTION_LIMIT", str(1 << 33))  # an end, should it fail
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def opened(device_name: str) -> Iterator[OpenDevice]:
    """Open the device under test by the C ABI alone."""
    device = OpenDevice(device_name)
    yield device
    device.close()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the seed and on the test alone."""
    name = zlib.crc32(request.node.nodeid.encode())
    return np.random.default_rng([request.config.option.seed, name])
