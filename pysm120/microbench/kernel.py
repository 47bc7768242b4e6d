"""Kernels of a form: one per number of chains, written into the templates of ptx/bench."""

import dataclasses
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pysm120.microbench.form import Form, Operand, Words
from pysm120.runtime.errors import UnsupportedError
from pysm120.runtime.ffi import PACKAGE

TOKEN = re.compile(r"\b([A-Z])(\d?)\b")
PTX_VERSION = "8.8"


@lru_cache(maxsize=1)
def _expander() -> Any:
    """Load ptx/expand.py, which is beside this package in a source tree and inside it when installed."""
    for folder in (PACKAGE / "ptx", PACKAGE.parent / "ptx"):
        path = folder / "expand.py"
        if path.is_file():
            spec = importlib.util.spec_from_file_location("pysm120_expand", path)
            if spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                sys.modules["pysm120_expand"] = module
                spec.loader.exec_module(module)
                return module
    message = f"ptx/expand.py is missing beside {PACKAGE}: this installation is not complete"
    raise UnsupportedError(message)


@dataclasses.dataclass(frozen=True)
class BenchKernel:
    """An entry: a form with a number of chains."""

    form: Form
    chains: int
    entry: str

    @property
    def words(self) -> int:
        """Words of a state."""
        return self.form.state.words

    @property
    def steps(self) -> int:
        """Steps of a trip, over all chains."""
        return self.chains * self.form.unroll

    def sets(self, letter: str) -> int:
        """Return the number of register sets of an operand."""
        operand = self.operand(letter)
        return self.chains if letter == "X" or operand.is_own else 1

    def operand(self, letter: str) -> Operand:
        """Return the operand of a letter."""
        return self.form.state if letter == "X" else self.form.inputs[letter]

    def _letters(self) -> list[str]:
        return ["X", *self.form.inputs]

    def registers(self) -> list[tuple[str, str]]:
        """Return names and kinds of all registers."""
        return [(name, operand.kind) for name, operand, _ in self._all()]

    def _all(self) -> Iterator[tuple[str, Operand, int]]:
        """Yield every register with its operand and its place in the inputs."""
        index = 0
        for letter in self._letters():
            operand = self.operand(letter)
            for chain in range(self.sets(letter)):
                for i in range(operand.count):
                    yield f"{self._prefix(letter, chain)}_{i}", operand, index
                    index += 2 if operand.kind == "b64" else 1

    def _prefix(self, letter: str, chain: int) -> str:
        if letter == "X":
            return f"x_{chain}"
        return f"input_{letter}" + (f"_{chain}" if self.operand(letter).is_own else "")

    def loads(self) -> list[tuple[str, str, int]]:
        """Return every register, its kind and its word in the inputs."""
        return [(name, operand.kind, index) for name, operand, index in self._all()]

    def inputs(self, rng: np.random.Generator | None = None) -> Words:
        """Return the inputs; with a generator, the inputs of a timed run."""
        sets = []
        for letter in self._letters():
            sets += [self.operand(letter).initial(rng) for _ in range(self.sets(letter))]
        return np.concatenate(sets)

    def body(self) -> list[str]:
        """Return the lines of a trip."""
        return [self.line(text, chain) for _ in range(self.form.unroll) for chain in range(self.chains)
                for text in self.form.lines]  # fmt: skip

    def line(self, text: str, chain: int) -> str:
        """Return a line with the registers of a chain."""

        def register(match: re.Match[str]) -> str:
            letter, digit = match[1], match[2]
            if letter != "X" and letter not in self.form.inputs:
                return match[0]
            operand, prefix = self.operand(letter), self._prefix(letter, chain)
            if digit:
                return f"{prefix}_{digit}"
            if operand.count == 1 and not operand.is_vector:
                return f"{prefix}_0"
            return "{" + ", ".join(f"{prefix}_{i}" for i in range(operand.count)) + "}"

        return TOKEN.sub(register, text)

    def finals(self) -> list[tuple[str, str]]:
        """Return the registers of all states, in words: the register and "b32", "low" or "high"."""
        halves = ("low", "high") if self.form.state.kind == "b64" else ("b32",)
        return [(f"x_{chain}_{i}", half) for chain in range(self.chains) for i in range(self.form.state.count)
                for half in halves]  # fmt: skip


def kernels_of(form: Form, index: int, chains: Sequence[int] | None = None) -> list[BenchKernel]:
    """Return the kernels of a form; ``index`` makes their entries unique."""
    name = re.sub(r"\W+", "_", form.name).strip("_")
    return [BenchKernel(form, count, f"b{index}_{name}_{count}") for count in chains or form.chains]


def write(kernels: Sequence[BenchKernel], target: str) -> str:
    """Write the PTX of kernels of one template."""
    expander = _expander()
    template = Path(expander.ROOT) / "bench" / f"{kernels[0].form.template}.ptx"
    return str(expander.Expansion(template, target, kernels=kernels).text)
