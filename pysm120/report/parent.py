"""Run tasks, each in a process of its own with a time limit, and keep their results in a file after each one."""

import dataclasses
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pysm120 import __version__
from pysm120.report.tasks import SYSTEM, Task
from pysm120.runtime import errors
from pysm120.runtime.errors import Error, FaultError, InvalidArgumentError

FORMAT = 1
KIND = "pysm120 report"
NAME = "report.json"
BAD = ("wrong", "hung", "crashed", "fault", "error", "lost")
_KILL_SECONDS = 10  # how long a killed process may take to end; one that the driver holds may never end
_LOG = 4000  # characters of standard error that are kept


@dataclasses.dataclass
class Report:
    """The results so far, and the folder that holds them."""

    folder: Path
    document: dict[str, Any]

    @property
    def tasks(self) -> dict[str, dict[str, Any]]:
        """The results by the names of the tasks."""
        found: dict[str, dict[str, Any]] = self.document["tasks"]
        return found

    @property
    def system(self) -> dict[str, Any]:
        """The row about the device."""
        return dict(self.tasks[SYSTEM.name]["rows"][0])

    @property
    def bad(self) -> dict[str, str]:
        """The names and statuses of tasks that failed."""
        return {name: one["status"] for name, one in self.tasks.items() if one["status"] in BAD}

    def save(self) -> None:
        """Replace the file in one step, so that a crash of the machine leaves the last one."""
        path, new = self.folder / NAME, self.folder / f"{NAME}.new"
        with new.open("w", encoding="utf-8") as file:
            file.write(json.dumps(self.document, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)


def begin(folder: Path, *, quick: bool, resume: bool, seed: int) -> Report:
    """Return a new report, or the one in a folder."""
    path = folder / NAME
    if not resume:
        if path.exists():
            message = f"--out is {str(folder)!r}, which has a report: give --resume to continue it, or another folder"
            raise InvalidArgumentError(message)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / NAME).touch()
        except OSError as error:
            message = f"--out is {str(folder)!r}, where no files can be written: {error.strerror}"
            raise InvalidArgumentError(message) from error
        (folder / NAME).unlink()
        date = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
        head = {"format": FORMAT, "kind": KIND, "version": __version__, "date": date, "quick": quick, "seed": seed}
        return Report(folder, {**head, "tasks": {}})
    if not path.exists():
        message = f"--out is {str(folder)!r}, where there is no {NAME} to resume: leave out --resume"
        raise InvalidArgumentError(message)
    report = Report(folder, read(path))
    if report.document["version"] != __version__:
        message = f"{path} is of pysm120 {report.document['version']}, but this is {__version__}: begin a new report"
        raise InvalidArgumentError(message)
    if quick and not report.document["quick"]:
        message = f"--quick, but {path} is a full report: leave out --quick, or begin a new report"
        raise InvalidArgumentError(message)
    for one in report.tasks.values():
        if one["status"] == "running":  # the task ran when the machine or this program ended
            one |= {"status": "lost", "message": "the machine stopped, or the report was killed, during this task"}
    return report


def read(path: Path) -> dict[str, Any]:
    """Return a report's document; InvalidArgumentError if it is something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{path} is not a report: {error}"
        raise InvalidArgumentError(message) from error
    if not isinstance(found, dict) or found.get("kind") != KIND or not isinstance(found.get("tasks"), dict):
        message = f'{path} is not a report: it has no kind "{KIND}" with tasks'
        raise InvalidArgumentError(message)
    if found.get("format") != FORMAT:
        message = f"{path} has format {found.get('format')}, but this version reads {FORMAT}"
        raise InvalidArgumentError(message)
    return found


def run_task(task: Task, device: str | None, seed: int) -> dict[str, Any]:
    """Run a task in a child; return its result, whatever becomes of the child."""
    words = {"function": task.function, "options": task.options, "device": device, "seed": seed, "limit": task.limit}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder) / "rows", Path(folder) / "log"
        with log.open("wb") as errors_file:
            # -u and a session of its own: Ctrl-C reaches this process alone, which then ends the child.
            command = [sys.executable, "-m", "pysm120.report.child", json.dumps(words), str(path)]
            child = subprocess.Popen(  # noqa: S603 - no shell
                command, stdin=subprocess.DEVNULL, stdout=errors_file, stderr=errors_file, start_new_session=True
            )
            is_late = False
            try:
                child.wait(task.limit)
            except subprocess.TimeoutExpired:
                is_late = True
            finally:
                ended = _end(child)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        rows, end = _parse(lines)
        said = log.read_text(encoding="utf-8", errors="replace").replace(str(Path.home()), "~")[-_LOG:]
    status, message = _status(task, child.returncode, rows, end, is_late=is_late, ended=ended)
    result: dict[str, Any] = {"section": task.section, "status": status, "message": message, "rows": rows}
    result |= {"seconds": round(time.monotonic() - begun, 2), "log": said if status in BAD else ""}
    return result | ({"kind": end["kind"]} if "kind" in end else {})


def _end(child: "subprocess.Popen[bytes]") -> bool:
    """End a child that still runs; return whether it ended."""
    if child.poll() is None:
        child.kill()
        try:
            child.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            return False
    return True


def _parse(lines: list[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of a task, and its end. Rows of one name are one row: a later one adds to it."""
    rows: dict[str, dict[str, Any]] = {}
    end: dict[str, Any] = {}
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:  # the child was killed while it wrote
            break
        if "end" in found:
            end = found
        else:
            rows.setdefault(found["name"], {}).update(found)
    return list(rows.values()), end


def _status(
    task: Task, code: int | None, rows: list[dict[str, Any]], end: dict[str, Any], *, is_late: bool, ended: bool
) -> tuple[str, str]:
    """Return the status of a task and a sentence."""
    after = f", after {rows[-1]['name']!r}" if rows else ""
    if is_late:
        rest = "" if ended else "; the driver holds its process, which did not end when it was killed"
        return "hung", f"no end in {task.limit:g} s{after}{rest}"
    if not end:
        what = f"status {code}"
        if code is not None and code < 0:
            what = f"signal {signal.Signals(-code).name}"
        return "crashed", f"its process ended with {what}{after}"
    if end["end"] != "done":
        return end["end"], end["message"] + (after if end["end"] == "fault" else "")
    wrong = [row for row in rows if row.get("status") == "wrong"]
    if wrong:
        return "wrong", f"{len(wrong)} of {len(rows)}: {wrong[0]['name']}: {wrong[0].get('message', '')}"
    return "right" if task.section == "checks" else "measured", ""


def run(report: Report, tasks: Sequence[Task], device: str | None, step: Callable[[str], None]) -> None:
    """Run the tasks that have no result yet; save after each. Ctrl-C leaves the task at hand to the next time."""
    if SYSTEM.name not in report.tasks or report.tasks[SYSTEM.name]["status"] in BAD:
        found = run_task(SYSTEM, device, 0)
        if found["status"] in BAD or not found["rows"]:
            kind = getattr(errors, found.get("kind", ""), FaultError)
            raise (kind if isinstance(kind, type) and issubclass(kind, Error) else FaultError)(found["message"])
        report.tasks[SYSTEM.name] = found
        report.save()
    one = report.system
    named = str(one["value"])
    if device is not None and device.partition(":")[0] != named.partition(":")[0]:
        message = f"--device is {device!r}, but the report in {report.folder} is about {named}: begin a new report"
        raise InvalidArgumentError(message)
    for number, task in enumerate(tasks):
        if task.name in report.tasks and report.tasks[task.name]["status"] != "skipped":
            step(task.name)
            continue
        if task.on_gpu and one["virtual"]:
            why = "the virtual device measures no time"
            report.tasks[task.name] = {"section": task.section, "status": "skipped", "message": why, "rows": []}
            step(task.name)
            continue
        report.tasks[task.name] = {"section": task.section, "status": "running", "message": "", "rows": []}
        report.save()
        try:
            report.tasks[task.name] = run_task(task, named, report.document["seed"] + number)
        except KeyboardInterrupt:
            del report.tasks[task.name]
            report.save()
            raise
        report.save()
        step(task.name)
