"""Options and fixtures of every test: the device and the seed."""

import gc
import importlib.util
import os
import secrets
import signal
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import platforms
import pytest
import selection
from harness import OpenDevice

import pysm120

# Triton's half of the corpus, JAX and PyTorch are run where they are installed (the extras `corpus`, `oracles` and
# `torch`); the header says which.
HAS_TRITON, HAS_JAX, HAS_TORCH = (importlib.util.find_spec(name) is not None for name in ("triton", "jax", "torch"))
collect_ignore = (
    [] if HAS_TRITON else [f"corpus/{name}.py" for name in ("test_triton", "triton_kernels", "triton_compile")]
)
collect_ignore += (
    [] if HAS_JAX else [f"ops/{name}.py" for name in ("test_jax", "test_jax_handlers", "test_jax_transformations")]
)
collect_ignore += [] if HAS_TORCH else ["ops/test_torch.py", "ops/test_torch_graphs.py"]
collect_ignore += [] if platforms.chosen() else ["runtime/test_platforms.py"]


LEFT_OUT = pytest.StashKey[dict[str, Any]]()
MOST_WORKERS = 8
COLLECT_AFTER = 10_000  # new objects; after 700, which is usual, some tests spend a fifth of their time on it


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this project."""
    default = os.environ.get("PYSM120_DEVICE") or "virtual"
    parser.addoption("--device", default=default, help="virtual, cuda, cuda:1 (default: %(default)s)")
    parser.addoption("--seed", type=int, default=None, help="seed of inputs and samples (default: a new one)")
    parser.addoption("--all", action="store_true", help="run every test, slow ones and all cases of sampled ones")
    parser.addoption("--rest", action="store_true", help="run what the default run of the same seed left out")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the tests and the seed."""
    os.environ.setdefault("PYSM120_PATIENCE", "0")  # kernels do not wait for host threads, unless a test says so
    given = getattr(config, "workerinput", {}).get("pysm120")  # the choices of the process that starts the workers
    if given:
        config.option.part, config.option.seed = given
        return
    config.option.part = part = selection.part_of(config)
    cache = getattr(config, "cache", None)
    if config.option.seed is None and part == "rest":
        config.option.seed = cache.get("pysm120/seed", None) if cache else None
        if config.option.seed is None:
            raise pytest.UsageError("--rest needs the seed of the run that it completes: --seed N")
    if config.option.seed is None:
        config.option.seed = secrets.randbelow(1 << 32)
    if part == "default" and cache:
        cache.set("pysm120/seed", config.option.seed)


def pytest_report_header(config: pytest.Config) -> str:
    """Show the options that repeat the run."""
    triton, jax, torch = ("with" if has else "without" for has in (HAS_TRITON, HAS_JAX, HAS_TORCH))
    systems = ", ".join(platforms.chosen()) or "none but this one"
    what = f"corpus {triton} Triton, oracles {jax} JAX, {torch} PyTorch, systems {systems}"
    part = {"default": "", "rest": " --rest", "all": " --all"}[config.option.part]
    return f"pysm120: --device {config.option.device} --seed {config.option.seed}{part}, {what}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from the tests that are found: it would search all of them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that the device under test does not support, and tests that are not in this part of the run."""
    other = "virtual" if config.option.device.startswith("cuda") else "cuda"
    left_out = [item for item in items if item.get_closest_marker(other)]
    chosen = selection.select(
        [item for item in items if not item.get_closest_marker(other)], config.option.part, config.option.seed
    )
    config.stash[LEFT_OUT] = {"taken": len(chosen.taken), "reasons": chosen.reasons}
    left_out += chosen.left_out
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen.taken


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report how many tests were left out, and the seed of a run without a header (-q) that has failed."""
    if config.option.verbose < 0 and {"failed", "error"} & terminalreporter.stats.keys():
        terminalreporter.write_line(pytest_report_header(config))
    found = config.stash.get(LEFT_OUT, None)
    if found and found["reasons"]:
        terminalreporter.write_line(
            selection.describe(found["taken"], found["reasons"], config.option.part, config.option.seed)
        )


# ---- several processes: pytest-xdist, which ./build.sh test asks for -----------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Use every core; on a GPU use one process, because all share its memory."""
    if config.option.device.startswith("cuda"):
        return 0
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker the choices of the process that starts it."""
    node.workerinput["pysm120"] = (node.config.option.part, node.config.option.seed)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Give the counts of a worker to the process that started it."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["pysm120"] = session.config.stash.get(LEFT_OUT, None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the counts of a worker; all of them collect the same tests."""
    found = getattr(node, "workeroutput", {}).get("pysm120")
    if found:
        node.config.stash[LEFT_OUT] = found


# ---- fixtures ------------------------------------------------------------------------


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


@pytest.fixture(scope="session")
def unchecked_name(device_name: str) -> str:
    """Name of the device without checks: a call skips wrong lengths, page numbers and slots, as on a GPU."""
    return f"{device_name}{'&' if '?' in device_name else '?'}checks=off" if "virtual" in device_name else device_name


@pytest.fixture
def unchecked(unchecked_name: str) -> Iterator[pysm120.Device]:
    """Open the device without checks; close it after the test."""
    with pysm120.Device(unchecked_name) as opened:
        yield opened


@pytest.fixture
def opened_unchecked(unchecked_name: str) -> Iterator[OpenDevice]:
    """Open the device without checks through the C ABI only."""
    device = OpenDevice(unchecked_name)
    yield device
    device.close()


@pytest.fixture
def control_c(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make SIGINT raise KeyboardInterrupt, here and in child processes.

    A shell ignores SIGINT in background jobs, and a run inherits that.
    """
    monkeypatch.setenv("PYSM120_INSTRUCTION_LIMIT", str(1 << 33))  # a limit, in case the test fails
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def opened(device_name: str) -> Iterator[OpenDevice]:
    """Open the device under test through the C ABI only."""
    device = OpenDevice(device_name)
    yield device
    device.close()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend only on the seed and on the test."""
    name = zlib.crc32(request.node.nodeid.encode())
    return np.random.default_rng([request.config.option.seed, name])
