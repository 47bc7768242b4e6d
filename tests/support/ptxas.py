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

ERROR = re.compile(r"line \d+; (?:error|fatal)\s*:\s*([^\n]*)")
IN_FILE = re.compile(r"ptxas (\d+)\.ptx, " + ERROR.pattern)
SYNTAX = "Parsing error"
MEMORY = 2 << 30  # bytes: some statements make ptxas 13.0 allocate without end


def exists() -> bool:
    """Return whether this machine has ptxas."""
    try:
        build.assembler(build.find_nvcc(), "sm_120f")
    except (build.BuildError, OSError):
        return False
    return True


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))


def reasons(functions: Sequence[str], folder: Path) -> list[str]:
    """Return why ptxas refuses each function; "" if it takes it.

    Each function is a file of its own, because ptxas leaves a file at the first error of syntax and reads the next one.
    It may then complain of files that are right. So after an error of syntax only others of these count, and the run
    repeats without what was refused.
    """
    for k, function in enumerate(functions):
        (folder / f"{k}.ptx").write_text(f"{statements.HEAD}{function}\n")
    refused = [""] * len(functions)
    work = [list(range(len(functions)))]
    while work:
        left = work.pop()
        while left and (failed := _run(left, folder)):
            if found := _refused(failed):
                for k, reason in found:
                    refused[k] = refused[k] or reason
                left = [k for k in left if not refused[k]]
            elif len(left) == 1:
                refused[left[0]] = _alone(failed)
                break
            else:  # it names no file: half of the functions at a time
                half = len(left) // 2
                work += [left[half:], left[:half]]
                break
    return refused


def _run(left: Sequence[int], folder: Path) -> "subprocess.CompletedProcess[str] | None":
    """Assemble some of the files; return what ptxas says, None if it takes them."""
    command: list[Any] = [x for x in build.assembler(build.find_nvcc(), "sm_120f") if "Werror" not in x]
    command += ["-O0", "-c", "-o", "o", *(f"{k}.ptx" for k in left)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, errors="replace", check=False, preexec_fn=_limit
    )
    return done if done.returncode else None


def _refused(failed: "subprocess.CompletedProcess[str]") -> list[tuple[int, str]]:
    """Return the files that ptxas complains of, each with the reason, as far as its complaints count."""
    found = [(int(k), reason) for k, reason in IN_FILE.findall(failed.stderr)]
    first = next((n for n, (_, reason) in enumerate(found) if reason.startswith(SYNTAX)), len(found))
    return found[:first] + [(k, reason) for k, reason in found[first:] if reason.startswith(SYNTAX)]


def _alone(failed: "subprocess.CompletedProcess[str]") -> str:
    """Return why ptxas fails on one file that it does not name."""
    found = ERROR.search(failed.stderr)
    return found[1] if found else f"ptxas fails with status {failed.returncode}"
