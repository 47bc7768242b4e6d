"""A task in a process of its own: ``python -m pysm120.report.child TASK FILE``.

TASK is JSON: function ("module:name"), options, device, seed, limit. FILE gets a line of JSON for each row, as soon as
it is known, and a last one that says how the task ended.
"""

import faulthandler
import importlib
import inspect
import json
import sys
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pysm120.report.bench import rows_of
from pysm120.runtime.errors import Error, FaultError, UnsupportedError


def rows(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run a task. A function with a parameter "bench" is a check; others take the name of the device."""
    module, _, name = task["function"].partition(":")
    function = getattr(importlib.import_module(module), name)
    bound = partial(function, **task["options"])
    if "bench" in inspect.signature(function).parameters:
        return rows_of(bound, task["device"], task["seed"])
    return iter(bound(task["device"]))


def end_of(error: BaseException) -> dict[str, str]:
    """Return how a task ended that raised an error."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, Error):
        status = {FaultError: "fault", UnsupportedError: "unsupported"}.get(type(error), "error")
        return {"end": status, "kind": type(error).__name__, "message": text}
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(where.filename).name}:{where.lineno}"
    return {"end": "error", "kind": type(error).__name__, "message": f"{type(error).__name__}: {text} ({place})"}


def main(words: list[str]) -> int:
    """Run the task of the command line."""
    task, path = json.loads(words[0]), Path(words[1])
    faulthandler.enable()
    # Standard error says where a task was that its parent is about to kill.
    faulthandler.dump_traceback_later(max(0.2, 0.9 * task["limit"]))
    with path.open("w", encoding="utf-8") as file:
        end = {"end": "done", "message": ""}
        try:
            for row in rows(task):
                print(json.dumps(row), file=file, flush=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, the report says it
            end = end_of(error)
        print(json.dumps(end), file=file, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
