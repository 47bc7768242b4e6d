"""A form: one instruction to measure, with its operands, its work, and its expected machine code."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

LANES = 32
Words = npt.NDArray[np.uint32]  # [word][lane]
# The state after a number of steps.
Model = Callable[[Words, int], Words]
# Patterns of opcodes, and the count of each in the machine code of a step; a pair adds a count for the trip.
Counts = Mapping[str, float | tuple[float, int]]


@dataclasses.dataclass(frozen=True)
class Operand:
    """Registers that hold an operand.

    ``kind`` is "b16", "b32", "b64" or "pred"; ``value`` the bits of each register, or of each register and lane.
    ``is_own``: every chain has its own registers. ``random`` draws the bits of the timed runs; default: ``value``.
    """

    kind: str
    count: int = 1
    value: int | Sequence[int] | npt.NDArray[Any] = 0
    is_own: bool = False
    is_vector: bool = False
    random: Callable[[np.random.Generator, tuple[int, int]], Words] | None = None

    @property
    def words(self) -> int:
        """Words of 32 bits."""
        return self.count * (2 if self.kind == "b64" else 1)

    def initial(self, rng: np.random.Generator | None = None) -> Words:
        """Return the words; with a generator, the words of a timed run."""
        if rng is not None and self.random is not None:
            return self.random(rng, (self.words, LANES))
        value = np.asarray(self.value, np.uint64)
        if value.ndim in {0, 1}:
            value = np.broadcast_to(value.reshape(-1, 1), (self.count, LANES))
        if self.kind != "b64":
            return value.astype(np.uint32)
        halves = np.stack([value & np.uint64(0xFFFFFFFF), value >> np.uint64(32)], axis=1)
        return halves.reshape(self.words, LANES).astype(np.uint32)


@dataclasses.dataclass(frozen=True)
class Form:
    """An instruction to measure.

    Parameters
    ----------
    name, group : str
        Its name: the PTX without the parts that all forms of a group share.
    lines : sequence of str
        The PTX of one step; a capital letter is an operand, a capital and a digit one register of it.
    sass : str or Counts, or a mapping of "90", "120" to them
        The machine code of a step by chip family; a missing family uses the entry "".
    state : Operand
        The operand that each step passes to the next: letter X.
    inputs : mapping of letter to Operand
        Constants.
    besides : float, or a mapping of "90", "120" to it
        The number of other instructions allowed per step in a chip family's machine code; NOP are not counted.
    is_conditional : bool
        Whether a part of a step is predicated, after a branch or in a wait loop.
    amount, unit : float, str
        The work of a step of a warp: "flop", "op" or "byte".
    model : Model
        Computes the state after a number of steps.
    rtol : float
        0: bit-exact. Else the words are numbers of type ``number``, and this is their relative tolerance.
    needs : tuple of int, optional
        The families of compute capabilities that have it: (120,), (90,); () means all.
    lacks : str
        What a chip that lacks it does.
    oldest : int
        The first compute capability that has it.
    chains, warps : tuples of int
        The numbers of chains and warps with which the rate is measured.
    unroll : int
        Steps of a chain in a trip of the loop.
    """

    name: str
    group: str
    lines: tuple[str, ...]
    sass: str | Mapping[str, Any]
    state: Operand
    model: Model
    inputs: Mapping[str, Operand] = dataclasses.field(default_factory=dict)
    besides: float | Mapping[str, float] = 0.0
    is_conditional: bool = False
    amount: float = LANES
    unit: str = "op"
    rtol: float = 0.0
    number: Any = np.float32
    needs: tuple[int, ...] = ()
    lacks: str = "has no such instruction"
    oldest: int = 80
    chains: tuple[int, ...] = (1, 2, 4, 8)
    warps: tuple[int, ...] = (1, 4, 8, 16, 32)
    unroll: int = 32
    note: str = ""
    has_latency: bool = True
    has_rate: bool = True
    template: str = "chain"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def counts(self, family: str) -> Counts:
        """Return the opcodes of a step in the machine code of a family ("90", "120")."""
        found: Any = self.sass
        if not isinstance(found, str) and ("" in found or any(key.isdigit() for key in found)):
            found = found.get(family, found.get(""))
        if found is None:
            return {}
        return {found: 1} if isinstance(found, str) else found

    @property
    def is_chained(self) -> bool:
        """Whether each step needs a register of the previous step, so that a latency can be measured."""
        return self.has_latency and self.chains[0] == 1 and self.template in {"chain", "shared", "chase"}

    def others(self, family: str) -> float:
        """Return the number of other instructions allowed per step in the machine code of a family."""
        return self.besides if isinstance(self.besides, int | float) else self.besides.get(family, 0.0)

    def exists_on(self, capability: tuple[int, int]) -> bool:
        """Whether a chip of this compute capability has it."""
        number = 10 * capability[0] + capability[1]
        return number >= self.oldest and (not self.needs or 10 * capability[0] in self.needs)
