"""The selection of tests for a run: the default part, the rest, or all; and the marks ``slow`` and ``sampled``.

The default part leaves out tests marked ``slow``, and keeps some cases of a test marked ``sampled``::

    @pytest.mark.sampled(2)                       # two of its cases
    @pytest.mark.sampled(1, each=("planted",))    # one case for every value of the parameter `planted`

The seed of the run chooses the cases, so that many runs together take all cases. A run that names its tests (a path,
``-k``, ``-m``, ``--lf``) takes all of the named tests.
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import pytest

PARTS = ("default", "rest", "all")
NAMING_OPTIONS = ("keyword", "markexpr", "lf", "failedfirst", "stepwise", "deselect")


class Selection(NamedTuple):
    """The tests that a run takes, and the number of tests that it leaves out, by reason."""

    taken: list[pytest.Item]
    left_out: list[pytest.Item]
    reasons: dict[str, int]


def part_of(config: pytest.Config) -> str:
    """Return the part of the tests that the command line selects."""
    if config.option.all and config.option.rest:
        raise pytest.UsageError("--all and --rest exclude each other")
    if config.option.all or config.option.rest:
        return "all" if config.option.all else "rest"
    is_named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    return "all" if is_named or any(getattr(config.option, name, None) for name in NAMING_OPTIONS) else "default"


def _value(item: pytest.Function, name: str) -> Hashable:
    """Return a key for the value of a parameter: the value, or its index if it has no hash."""
    value = item.callspec.params[name]
    try:
        hash(value)
    except TypeError:
        return item.callspec.indices[name]
    return value


def _sampled_out(items: Iterable[pytest.Item], seed: int) -> set[pytest.Item]:
    """Return the cases that the seed leaves out."""
    groups: dict[tuple[Any, ...], list[tuple[int, pytest.Item]]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is None or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        count, each = mark.args[0], mark.kwargs.get("each", ())
        test = item.nodeid.partition("[")[0]
        key = (test, count, *(_value(item, name) for name in each))
        groups[key].append((zlib.crc32(f"{seed} {item.nodeid}".encode()), item))
    return {item for key, cases in groups.items() for _, item in sorted(cases, key=lambda one: one[0])[key[1] :]}


def select(items: Sequence[pytest.Item], part: str, seed: int) -> Selection:
    """Choose the tests of a part."""
    if part == "all":
        return Selection([*items], [], {})
    sampled_out = _sampled_out(items, seed)
    reason = {
        item: "slow" if item.get_closest_marker("slow") else "sampled out" if item in sampled_out else ""
        for item in items
    }
    if part == "rest":
        reason = {item: "" if why else "in the default part" for item, why in reason.items()}
    left_out = [item for item in items if reason[item]]
    return Selection(
        [item for item in items if not reason[item]], left_out, dict(Counter(reason[item] for item in left_out))
    )


def describe(taken: int, reasons: dict[str, int], part: str, seed: int) -> str:
    """Return how many tests a run took, and the command that runs the others."""
    total = taken + sum(reasons.values())
    why = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
    how = f"./build.sh test --rest --seed {seed} runs those" if part == "default" else "--all runs every test"
    return f"{taken:,} of {total:,} tests were taken; {why or 'none'} (seed {seed}): {how}"
