"""The verdict of ptxas on many functions in few runs."""

import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tools")]

import statements  # noqa: E402

import build  # noqa: E402

FIRST = statements.HEAD.count("\n") + 1
ERROR = re.compile(r"line (\d+); (?:error|fatal)\s*:\s*([^\n]*)")
SYNTAX = "Parsing error"
MEMORY = 2 << 30  # bytes: some statements make ptxas 13.0 allocate without end


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))


def reasons(functions: Sequence[str], folder: Path) -> list[str]:
    """Return why ptxas refuses each function, each on one line; "" if it takes it.

    ptxas ends at the first error of syntax, and may then complain of lines that are right. So runs repeat without what
    was refused, and nothing counts that ptxas says after an error of syntax.
    """
    path = folder / "functions.ptx"
    command: list[Any] = [x for x in build.assembler(build.find_nvcc(), "sm_120f") if "Werror" not in x]
    command += ["-O0", "-c", "-o", folder / "o", path]
    left, refused = list(range(len(functions))), [""] * len(functions)
    while left:
        path.write_text(statements.HEAD + "\n".join(functions[k] for k in left) + "\n")
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, preexec_fn=_limit)
        if done.returncode == 0:
            break
        found = [(int(line) - FIRST, reason) for line, reason in ERROR.findall(done.stderr)]
        found = [(k, reason) for k, reason in found if 0 <= k < len(left)]
        if not found:  # it names no line: half of the functions at a time
            if len(left) == 1:
                refused[left[0]] = f"ptxas fails with status {done.returncode}"
                break
            half = len(left) // 2
            for part in (left[:half], left[half:]):
                for k, reason in zip(part, reasons([functions[k] for k in part], folder), strict=True):
                    refused[k] = reason
            break
        for k, reason in found:
            refused[left[k]] = refused[left[k]] or reason
            if reason.startswith(SYNTAX):
                break
        left = [k for k in left if not refused[k]]
    return refused
