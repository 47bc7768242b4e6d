"""A plugin of pytest: `--device cuda` is a device that runs machine code beside PTX.

    pytest -p machine_plugin --machine-driver libcuda.so.1 --machine-texts FOLDER --machine-record FILE
        [--machine-tests N] --device cuda tests/ops/...

A test fails if a launch in it wrote other bytes than the PTX of its kernel. FILE gets a line of JSON for each kernel.
"""

import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import machine
import numpy as np
import pytest

_MACHINE = pytest.StashKey[machine.Machine]()
_RECORD = pytest.StashKey[dict[str, machine.Total]]()
_REPEATED = re.compile("test_many_launches")  # the same call again and again, for minutes; others launch those kernels


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--machine-driver", type=Path, help="the library of driver.c")
    parser.addoption("--machine-texts", type=Path, help="the folder of the kernels' machine code as PTX")
    parser.addoption("--machine-record", type=Path, help="the file that gets what was launched")
    parser.addoption("--machine-tests", type=int, help="run so many tests, which the seed chooses (default: all)")


def pytest_configure(config: pytest.Config) -> None:
    """Load the driver before anything asks for another one."""
    config.stash[_MACHINE] = machine.Machine(config.option.machine_driver, config.option.machine_texts)
    config.stash[_RECORD] = defaultdict(machine.Total)


def _starts_programs(item: pytest.Function) -> bool:
    return re.search(r"\bsubprocess\b|\bsurvives\(", inspect.getsource(item.function)) is not None


def _is_run(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and not (_REPEATED.match(item.name) or _starts_programs(item))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose some tests, of those in this process: the programs that others start have no such driver."""
    items[:] = [item for item in items if _is_run(item)]
    count = config.option.machine_tests
    if count is not None and count < len(items):
        chosen = np.random.default_rng(config.option.seed).choice(len(items), count, replace=False)
        items[:] = [items[n] for n in sorted(chosen)]


@pytest.fixture(autouse=True)
def _machine_code(pytestconfig: pytest.Config) -> Iterator[None]:
    """Judge the launches of a test."""
    of_device = pytestconfig.stash[_MACHINE]
    yield
    launches, errors = of_device.take()
    for launch in launches:
        pytestconfig.stash[_RECORD][launch.entry].add(launch)
    assert not errors, "\n".join(errors)
    wrong = [launch for launch in launches if not launch.is_right]
    assert not wrong, "\n".join(map(str, wrong))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was launched."""
    rows = [{"entry": entry, **vars(total)} for entry, total in sorted(session.config.stash[_RECORD].items())]
    session.config.option.machine_record.write_text("".join(json.dumps(row) + "\n" for row in rows))
