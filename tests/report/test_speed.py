"""The timed calls of a report: they run, on shapes that the virtual device executes quickly."""

from collections.abc import Callable
from typing import Any

import pytest

from pysm120.model import chips
from pysm120.report import predictions, speed, system
from pysm120.runtime import timing

TASKS = (speed.forward, speed.backward, speed.decode, speed.products, speed.copies)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "FORWARD", [(1, 64, 2, 64, False), (1, 64, 1, 64, True)])
    monkeypatch.setattr(speed, "DECODE", [(2, 64, 4, 2, 64)])
    monkeypatch.setattr(speed, "MATRICES", [(64, 512)])
    monkeypatch.setattr(speed, "COPIES", [(2, 64), (3, 16)])
    monkeypatch.setattr(speed, "TOKENS", 32)
    monkeypatch.setattr(timing, "MOST_CALLS", 2)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_every_speed_is_measured(device_name: str, task: Callable[..., Any]) -> None:
    rows = list(task(device_name, quick=True))
    assert {row["status"] for row in rows if row["by"].startswith("pysm120")} == {"measured"}
    assert all(row["least"] <= row["value"] <= row["greatest"] for row in rows if row["status"] == "measured")
    assert len({row["name"] for row in rows}) == len(rows)


def test_nvidia_smi_that_fails_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "nvidia-smi was not found" in str(system.smi("name"))
    monkeypatch.setattr("shutil.which", lambda _: "/bin/false")
    assert "failed with status 1" in str(system.smi("name"))
    monkeypatch.setattr("shutil.which", lambda _: "/bin/echo")
    assert system.smi("a", "b") == [["--query-gpu=a", "b --format=csv", "noheader"]]
    assert speed.Clock().mhz is None


def test_facts_of_the_machine(device_name: str) -> None:
    facts = {row["name"]: row for row in system.rows(device_name)}
    assert facts["device"]["virtual"] == device_name.startswith("virtual")
    assert {"pysm120", "Python", "processor", "numpy", "ptxas"} <= set(facts)


def test_launches_are_predicted() -> None:
    chip = chips.load("h200")
    entry, problem = next(case for case in predictions.LAUNCHES if "d64" in case[0] and case[1].rows == 512)
    assert predictions._is_uniform(entry)
    assert 1e4 < predictions._predicted(chip, entry, problem) < 1e6
