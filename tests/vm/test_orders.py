"""Modifiers in any order: the device takes a statement if ptxas does, and decodes it as in the order of the manual."""

import itertools
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import statements
from statements import Statement

import pysm120

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools")]

import build  # noqa: E402

pytestmark = pytest.mark.virtual

CORPUS = sorted((ROOT / "tests" / "corpus").glob("*.ptx"))
KERNELS = ("attention_mxfp8_128x64_d128", "quantize_mxfp8_bf16_d", "attention_backward_mxfp8_64x128_d128")
FORMS = ROOT / "tests" / "vm" / "forms.ptx"  # what neither nvcc writes nor the kernels use


def orders(opcode: str, rng: random.Random, most: int) -> Iterator[str]:
    """Yield other orders of the modifiers: all of them, or every move of one and some at random; ``most`` of these."""
    name, *words = opcode.split(".")
    found: set[tuple[str, ...]] = set()
    if len(words) <= 4:
        found = set(itertools.permutations(words))
    else:
        for k, j in itertools.product(range(len(words)), repeat=2):
            moved = [*words[:k], *words[k + 1 :]]
            found.add((*moved[:j], words[k], *moved[j:]))
        found |= {tuple(rng.sample(words, len(words))) for _ in range(12)}
    others = sorted(found - {tuple(words)})
    for order in rng.sample(others, min(most, len(others))):
        yield ".".join((name, *order))


def judge(functions: list[str], folder: Path) -> list[bool]:
    """Return which of the functions the assembler takes: again and again without those it complains of."""
    left, path = dict(enumerate(functions)), folder / "orders.ptx"
    command: list[Any] = [x for x in build.assembler(build.find_nvcc(), "sm_120f") if "Werror" not in x]
    command += ["-O0", "-c", "-o", folder / "o", path]
    while left:
        path.write_text(statements.HEAD + "\n".join(left.values()))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        numbers = list(left)
        first = statements.HEAD.count("\n") + 1
        refused = {int(line) - first for line in re.findall(r"line (\d+); (?:error|fatal)", done.stderr)}
        assert refused, done.stderr
        for k in refused:
            del left[numbers[k]]
    return [k in left for k in range(len(functions))]


def loads(device: pysm120.Device, function: str) -> bool:
    try:
        device.load(statements.HEAD + function).unload()
    except (pysm120.InvalidProgramError, pysm120.UnsupportedError):
        return False
    return True


def corpus(device: pysm120.Device, folder: Path) -> list[Statement]:
    """Return the statements that ptxas and the device take as they are written."""
    kernels = [ROOT / "build" / "kernels" / f"{name}.sm_120f.ptx" for name in KERNELS]
    found = statements.distinct([FORMS, *CORPUS, *kernels])
    good = judge([s.function(k, s.opcode) for k, s in enumerate(found)], folder)
    return [s for s, taken in zip(found, good, strict=True) if taken and loads(device, s.entry(s.opcode))]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("most", [2, pytest.param(1000, id="all")])
def test_orders(device: pysm120.Device, tmp_path: Path, request: pytest.FixtureRequest, most: int) -> None:
    rng = random.Random(request.config.option.seed)  # noqa: S311 - not a secret
    rows = [(s, order) for s in corpus(device, tmp_path) for order in orders(s.opcode, rng, most)]
    assert len(rows) > 500, "the corpus has lost its statements"
    taken = judge([s.function(k, order) for k, (s, order) in enumerate(rows)], tmp_path)
    wrong = []
    for (statement, order), theirs in zip(rows, taken, strict=True):
        mine = loads(device, statement.entry(order))
        if mine != theirs:
            wrong.append(f"{'taken' if mine else 'refused'} here: {order} {statement.operands}")
    assert not wrong, f"{len(wrong)} of {len(rows)}\n" + "\n".join(wrong)
