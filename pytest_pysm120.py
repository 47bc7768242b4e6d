"""Test PTX without a GPU: the fixture ``sm120``, seeds, and short reports of faults.

pytest loads this file wherever pysm120 is installed, so it imports pysm120 only when a test asks for a device.
"""

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _pytest._code.code import TerminalRepr
    from _pytest._io import TerminalWriter

    from pysm120 import Device

OPTIONS = ("--sm120-device", "--sm120-checks", "--sm120-seeds")
LEVELS = ("off", "default", "full")
MOST_SEEDS = 1 << 20
AROUND = 2  # lines of PTX before and after one that is at fault
_ROW = re.compile(r"\(PTX line (\d+)\)")
_PLACE = re.compile(r"\bat ((?:(?!\bat )[^:\n])+):(\d+)")
_MARKER = re.compile(r"#\s*(?:line)?\s*(\d+)(?:\s+\"([^\"]*)\")?")
_PREFIX = re.compile(r"launching .*?: the driver answered \w+ \([^)]*\): ")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("sm120", "PTX on a GPU or on the virtual SM120 (pysm120)")
    group.addoption(
        "--sm120-device",
        metavar="NAME",
        help='device of the fixture sm120: "virtual", "cuda", "cuda:1" (default: $PYSM120_DEVICE, else virtual)',
    )
    group.addoption(
        "--sm120-checks",
        metavar="LEVEL",
        choices=LEVELS,
        help="checks of the virtual device: off, default or full (default: $PYSM120_CHECKS, else default)",
    )
    group.addoption(
        "--sm120-seeds",
        metavar="N",
        type=int,
        help="run every test that uses sm120 N times, with seeds 0 to N - 1, each with another order of events "
        "(default: once, with $PYSM120_SEED or 0)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the options and declare the markers."""
    seeds = config.getoption("--sm120-seeds")
    if seeds is not None and not 1 <= seeds <= MOST_SEEDS:
        message = f"--sm120-seeds is {seeds}, not a number from 1 to {MOST_SEEDS}"
        raise pytest.UsageError(message)
    config.addinivalue_line("markers", "sm120(seeds=N, checks=LEVEL): seeds and checks for this test")
    config.addinivalue_line("markers", "sm120_gpu: skip the test if the device of sm120 is not a GPU")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Show the options that were given."""
    chosen = [f"{name} {config.getoption(name)}" for name in OPTIONS if config.getoption(name) is not None]
    return f"sm120: {' '.join(chosen)}" if chosen else None


# ---- the device -----------------------------------------------------------------


def device_name(config: pytest.Config) -> str:
    """Return the name of the device without its seed and level."""
    return config.getoption("--sm120-device") or os.environ.get("PYSM120_DEVICE") or "virtual"


def marked(item: Any, key: str) -> Any:
    """Return what the marker sm120 of a test says, or None."""
    for marker in item.iter_markers("sm120"):
        unknown = [*map(repr, marker.args), *(name for name in marker.kwargs if name not in {"seeds", "checks"})]
        if unknown:
            message = f"the marker sm120 takes seeds=N and checks=LEVEL, not {', '.join(unknown)}"
            raise pytest.UsageError(message)
        if key in marker.kwargs:
            return marker.kwargs[key]
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for every seed."""
    if "sm120" not in metafunc.fixturenames or not device_name(metafunc.config).startswith("virtual"):
        return
    seeds = metafunc.config.getoption("--sm120-seeds")
    if seeds is None:
        seeds = marked(metafunc.definition, "seeds")
    if seeds is None:
        return
    if isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= MOST_SEEDS:
        message = f"the marker sm120 has seeds={seeds!r}, not a number from 1 to {MOST_SEEDS}"
        raise pytest.UsageError(message)
    metafunc.parametrize("sm120", range(seeds), indirect=True, ids=[f"seed{n}" for n in range(seeds)])


@pytest.fixture
def sm120(request: pytest.FixtureRequest) -> "Iterator[Device]":
    """Open the device for a test; afterwards close it and free its resources."""
    import pysm120  # noqa: PLC0415 - importing is slow, and most test suites need no device

    name = device_name(request.config)
    if name.startswith("virtual"):
        level = request.config.getoption("--sm120-checks") or marked(request.node, "checks")
        chosen = [("checks", level), ("seed", getattr(request, "param", None))]
        options = [f"{key}={value}" for key, value in chosen if value is not None]
        if options:
            name += ("&" if "?" in name else "?") + "&".join(options)
    with pysm120.Device(name) as device:
        yield device


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs a GPU if the device is not one."""
    if item.get_closest_marker("sm120_gpu") is not None:
        name = device_name(item.config)
        if name.startswith("virtual"):
            pytest.skip(f"needs a GPU, but the device is {name!r}: use --sm120-device cuda")


# ---- faults ---------------------------------------------------------------------


def text_lines(source: str, file: str, line: int) -> list[int]:
    """Return the indices of the PTX lines that belong to a line of a file, by ``#line`` markers or their own number."""
    found = []
    name, number = None, 0
    lines = source.splitlines()
    named = {match[2] for match in map(_MARKER.match, map(str.strip, lines)) if match}
    for index, content in enumerate(lines):
        number += 1
        match = _MARKER.match(content.strip())
        if match:
            number = int(match[1]) - 1
            name = match[2] if match[2] is not None else name
        elif number == line and (name == file or (name is None and file not in named)):
            found.append(index)
    return found


def excerpt(source: str, message: str) -> list[str]:
    """Return the PTX lines around those that a fault names; the named ones are marked."""
    lines = source.splitlines()
    at = [int(row) - 1 for row in _ROW.findall(message) if int(row) <= len(lines)]
    if not at:  # lines of another source have their PTX line in the message
        at = [index for file, line in _PLACE.findall(message) for index in text_lines(source, file, int(line))[:1]]
    shown = sorted({k for index in at for k in range(max(0, index - AROUND), min(len(lines), index + AROUND + 1))})
    text = []
    for previous, k in zip([None, *shown], shown, strict=False):
        if previous is not None and k != previous + 1:
            text.append("      ...")
        text.append(f"{'>' if k in at else ' '} {k + 1:>5} {lines[k].rstrip()}")
    return text


def _make_report(sentence: str, body: list[str], crash: Any) -> "TerminalRepr":
    """Return what pytest shows instead of a traceback."""
    from _pytest._code.code import ReprFileLocation, TerminalRepr  # noqa: PLC0415 - only where something failed

    class Fault(TerminalRepr):
        reprcrash = ReprFileLocation(str(crash.path), crash.lineno + 1, sentence.partition("\n")[0])

        def toterminal(self, tw: "TerminalWriter") -> None:
            tw.line(f"E   {sentence}", red=True, bold=True)
            for line in body:
                tw.line(line, red=line.startswith(">"))

        def __str__(self) -> str:
            return "\n".join([f"E   {sentence}", *body])

    return Fault()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Iterator[None]:
    """Show a fault, or PTX that does not load: its message, the PTX around it and the line of the test."""
    outcome: Any = yield
    report = outcome.get_result()
    if call.excinfo is None or not report.failed or not sm120_is_used(call.excinfo.value):
        return
    if item.config.getoption("tbstyle") in {"long", "native", "no"} or item.config.getoption("fulltrace"):
        return
    from pysm120.runtime.errors import FaultError, InvalidProgramError  # noqa: PLC0415 - see above

    error = call.excinfo.value
    if not isinstance(error, FaultError | InvalidProgramError):
        return
    sentence = _PREFIX.sub("", str(error)).rstrip()
    source = getattr(error, "source", None)
    body = excerpt(source, sentence) if source else []
    own = [entry for entry in call.excinfo.traceback if str(entry.path) == str(item.path)]
    crash = own[-1] if own else call.excinfo.traceback[-1]
    statement = str(crash.statement).strip().splitlines()
    body += ["", f"{item.path.name}:{crash.lineno + 1}: in {crash.name}", f"    {statement[0] if statement else ''}"]
    report.longrepr = _make_report(sentence, body, crash)


def sm120_is_used(error: BaseException) -> bool:
    """Whether an exception is one of pysm120; does not import pysm120."""
    return any(kind.__module__ == "pysm120.runtime.errors" for kind in type(error).__mro__)
