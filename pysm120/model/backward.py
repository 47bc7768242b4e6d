"""The whole backward pass: delta, the kernel that computes dK, dV and the sums of dQ, and dq, one after the other."""

import dataclasses
from typing import NamedTuple

from pysm120.machine_code import sass
from pysm120.model import predict, record, streams
from pysm120.model.chips import Chip
from pysm120.model.kernel_model import KernelModel
from pysm120.model.problem import Problem
from pysm120.model.splits import Splits
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import Builtin, builtin_image, builtin_index, builtins

DELTA, DQ = "attention_backward_delta", "attention_backward_dq"
_ROWS = 512  # of the recorded problem
# Bytes of an element of q that a kernel reads or writes: delta reads o and dout and writes the sums of dQ, all zero;
# dq reads the sums and writes dq.
_READ, _SUM, _WRITTEN = 2 + 2, 4, 2


class Part(NamedTuple):
    """A kernel of the pass: its entry, its clocks, what bounds it, and the bytes from and to DRAM."""

    entry: str
    clocks: float
    bound: str
    dram_bytes: float


@dataclasses.dataclass(frozen=True)
class Pass:
    """The kernels of a pass in the order of their launches."""

    parts: tuple[Part, ...]

    @property
    def clocks(self) -> float:
        """The time of all kernels."""
        return sum(part.clocks for part in self.parts)


def companions(main: Builtin) -> tuple[Builtin, Builtin]:
    """Return the kernels of delta and dq that the library launches before and after a main kernel."""
    found = []
    for operation in (DELTA, DQ):
        one = next((b for b in builtins() if b.operation == operation and b.precision in {"", main.precision}), None)
        if one is None:
            message = f"the library has no kernel of {operation} for {main.entry}"
            raise InvalidArgumentError(message)
        found.append(one)
    return found[0], found[1]


def stream_of(
    kernel: Builtin,
    main: Builtin,
    problem: Problem,
    executed: dict[int, int],
    rows: int,
    splits: Splits | None = None,
) -> streams.Stream:
    """Return the launch of delta or dq; ``executed`` was counted in a problem of one head with so many rows.

    ``splits``: how the library divides the pass; without it, all sums of dQ are kept until dq reads them.
    """
    elements = problem.batch * problem.heads * problem.rows * problem.head_dim
    ctas = problem.batch * problem.heads * -(-problem.rows // main.q_rows)
    sums, left = (splits.sums, splits.left) if splits else (1.0, 1.0)
    if kernel.operation == DELTA:
        held = round((_READ + _SUM * sums) * elements)
    else:
        ctas, held = round(left * ctas), round(left * (_SUM + _WRITTEN) * elements)
    return streams.Stream(ctas, held, executed, -(-rows // main.q_rows))


def recorded_problem(problem: Problem) -> Problem:
    """Return the problem of one head in which the statements of delta and dq are counted."""
    return Problem(1, min(_ROWS, problem.rows), 1, problem.head_dim)


def predict_pass(
    model: KernelModel, main: Builtin, problem: Problem, prediction: predict.Prediction, splits: Splits | None = None
) -> Pass:
    """Predict the whole pass from the prediction of its main kernel, and from how the library divides it."""
    chip = model.chip
    target = "sm_120f" if chip["target"] == "sm_120" else str(chip["target"])
    kernels = companions(main)
    small = recorded_problem(problem)
    executed = record.executed(target, [one.entry for one in kernels], main, small)
    delta, dq = (
        _part(chip, target, one, stream_of(one, main, problem, executed[one.entry], small.rows, splits))
        for one in kernels
    )
    return Pass((delta, Part(main.entry, prediction.clocks, prediction.bound, prediction.dram_bytes), dq))


def _part(chip: Chip, target: str, kernel: Builtin, stream: streams.Stream) -> Part:
    """Predict delta or dq."""
    index = builtin_index(kernel.entry)
    if index is None:
        message = f"the library lacks {kernel.entry}"
        raise InvalidArgumentError(message)
    ptx, image = builtin_image(index, target, "ptx").decode(), builtin_image(index, target, "cubin")
    function = record.with_lines(sass.disassemble(image, kernel.entry)[kernel.entry], ptx, target)
    found = streams.predict(chip, image, function, stream)
    return Part(kernel.entry, found.clocks, found.bound, found.dram_bytes)


def tensor_flops(chip: Chip) -> float:
    """Return the flop of a chip's tensor pipes in a clock, for bf16 with f32 sums."""
    return 4 * int(chip["sms"]) * predict.flops_of("HMMA.16816.F32") / chip.timing("hmma_16816_f32").interval
