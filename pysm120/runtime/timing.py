"""Seconds of calls on a GPU, by events."""

from collections.abc import Callable, Sequence
from typing import Any

Calls = Sequence[Callable[[], object]]
WARM_SECONDS, RUN_SECONDS, MOST_CALLS = 0.05, 0.003, 2000  # of one figure


def time_calls(device: Any, calls: Calls, runs: int) -> list[float]:
    """Return seconds of a call for each run; calls rotate through their buffers. ``device`` makes the events."""
    start, end = device.event(), device.event()

    def run(count: int) -> float:
        start.record()
        for n in range(count):
            calls[n % len(calls)]()
        end.record()
        end.synchronize()
        return float(end.elapsed_since(start)) / 1e3 / count

    run(len(calls))
    each = max(run(len(calls)), 1e-7)
    run(min(MOST_CALLS, max(1, int(WARM_SECONDS / each))))
    count = min(MOST_CALLS, max(len(calls), int(RUN_SECONDS / max(run(len(calls)), 1e-7))))
    return [run(count) for _ in range(runs)]
