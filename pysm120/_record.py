"""Record on the virtual device what the warps of a kernel do: small launches of the shape of a problem."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from pysm120 import _measure, sass
from pysm120._attention_problem import Problem
from pysm120._paths import compute_warps
from pysm120._recorded import Launch, Recording, banks_of, executed_of
from pysm120.attention import attention
from pysm120.device import Device
from pysm120.errors import InvalidArgumentError, UnsupportedError
from pysm120.module import builtin_image, builtins
from pysm120.profile import Counts, Statement

ROWS = 2048  # of a problem that is recorded, at most
_STEP = 128  # rows that a shorter problem has less, or a multiple
_COUNTS = ("executed", "shared_accesses", "shared_wavefronts", "shared_ideal_wavefronts")  # of a file
_PRECISION = re.compile(r"attention_(mxfp8_bf16|mxfp8_f16|mxfp8|bf16|f16)_\d+x\d+_d\d+")


class NotRecordedError(Exception):
    """Why the rules must say all."""


def only(ptx: str, entry: str) -> str:
    """Return a PTX text with the other entries blanked out: the lines stay where they are."""
    starts = [m.start() for m in re.finditer(r"^\.visible \.entry ", ptx, re.MULTILINE)] + [len(ptx)]
    parts = [ptx[: starts[0]]]
    for begin, end in pairwise(starts):
        body = ptx[begin:end]
        keep = body.startswith(f".visible .entry {entry}(")
        last = body.rfind("\n}") + 3
        parts.append(body if keep else "\n" * body[:last].count("\n") + body[last:])
    return "".join(parts)


def with_lines(function: sass.Function, ptx: str, target: str) -> sass.Function:
    """Return a kernel with the lines of its PTX: of the same code, which ptxas makes again."""
    name = function.name
    try:
        again = sass.disassemble(sass.assemble(only(ptx, name), target)).get(name)
    except (UnsupportedError, InvalidArgumentError) as error:
        raise NotRecordedError(str(error)) from error
    words = [one.word for one in function.instructions]
    if again is None or [one.word for one in again.instructions] != words:
        message = "ptxas makes other code of its PTX than is there: another version, or other options"
        raise NotRecordedError(message)
    return again


def recording(function: sass.Function, ptx: str, threads: int, problem: Problem) -> Recording:
    """Record a kernel of attention with its problem, of one head and not too many rows, and a shorter one.

    ``function`` has the lines of ``ptx``.
    """
    longest = problem.rows if problem.rows <= ROWS else ROWS - ROWS % _STEP + problem.rows % _STEP
    shorter = longest - _STEP * max(1, longest // _STEP // 2)
    launches = [
        _launch(function.name, ptx, Problem(1, rows, 1, problem.head_dim, problem.causal))
        for rows in (shorter, longest)
        if rows > 0
    ]
    return Recording(function, launches, compute_warps(threads))


def _launch(entry: str, ptx: str, problem: Problem) -> Launch:
    """Launch a kernel once."""
    rounds = problem.rounds(entry)
    with Device("virtual") as device:
        if re.search(r"attention_(bf16|f16)_\d+x\d+_d\d+_r\d+$", entry):
            kernel = device.load(ptx, name=entry)[entry]
            work = _measure.Attention(device, entry, problem, kernel=kernel, ptx=ptx)
            with device.profile() as p:
                work.launch()
                device.synchronize()
        else:
            _require_text_of_the_library(entry, ptx)
            found = _PRECISION.match(entry)
            precision = found[1] if found else "f16"
            dtype = ml_dtypes.bfloat16 if "bf16" in precision else np.float16
            x = np.random.default_rng(1).standard_normal((1, problem.rows, 1, problem.head_dim)).astype(dtype)
            with device.profile() as p:
                attention(x, x, x, causal=problem.causal, precision=precision, device=device)
        if entry not in p.kernels:
            message = f"attention without features takes {list(p.kernels)[-1]} for this problem, not {entry}"
            raise NotRecordedError(message)
        executed, banks = executed_of(p.statements, entry), banks_of(p.statements, entry)
        return Launch(executed, len(rounds), sum(rounds) / len(rounds), banks)


def _require_text_of_the_library(entry: str, ptx: str) -> None:
    """Refuse a PTX that is not what the virtual device will run."""
    index = next((i for i, builtin in enumerate(builtins()) if builtin.entry == entry), None)
    own = builtin_image(index, "sm_120f", "ptx").decode() if index is not None else ""
    if _code(own) != _code(ptx):
        message = "the virtual device runs the PTX of sm_120f, and this chip other PTX"
        raise NotRecordedError(message)


def _code(ptx: str) -> str:
    return re.sub(r"^\.target .*$", "", ptx, flags=re.MULTILINE)


def of_file(function: sass.Function, path: Path, threads: int) -> Recording:
    """Return what `profile --json` wrote of a kernel, whose machine code has the lines of the PTX that was profiled."""
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        fields = ("kernel", "row", "opcode", *_COUNTS)
        rows = [{name: one[name] for name in fields} for one in document["statements"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"--profile is {str(path)!r}, not what `profile --json` writes: {error!r}"
        raise InvalidArgumentError(message) from error
    statements = [_statement(row) for row in rows]
    executed = executed_of(statements, function.name)
    first = max(1, executed[min(row for row, count in executed.items() if count)])
    ctas = max(1, first // -(-threads // 32))
    launch = Launch(executed, ctas, 0, banks_of(statements, function.name))
    return Recording(function, [launch], compute_warps(threads))


def _statement(row: dict[str, Any]) -> Statement:
    counts: dict[str, Any] = {name: int(row[name]) for name in _COUNTS}
    return Statement(str(row["kernel"]), 0, "", 0, int(row["row"]), "", str(row["opcode"]), Counts(**counts))
