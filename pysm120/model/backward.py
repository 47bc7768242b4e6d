"""The whole backward pass, one kernel after the other.

In 16 bits delta, the kernel that computes dK, dV and the sums of dQ, and dq. In MXFP8 two kernels pack the operands
instead of delta: Q and dO, with delta, and K and V.
"""

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
PACK_QUERIES, PACK_KEYS = "attention_backward_pack_queries", "attention_backward_pack_keys"
_ROWS = 512  # of the recorded problem
_PACKED_ROWS = 32  # of a CTA that packs operands
# Bytes of an element of q, or of k, that a kernel reads or writes: delta reads o and dout and writes the sums of dQ,
# all zero; dq reads the sums and writes dq. The packing kernels read two tensors in 16 bits and write them in e4m3;
# that of Q and dO reads o and writes the sums, too.
# _SUMS are of the sums of dQ, _BYTES of everything else.
_BYTES = {DELTA: 2 + 2, DQ: 2, PACK_QUERIES: 2 * (2 + 1) + 2, PACK_KEYS: 2 * (2 + 1)}
_SUMS = {DELTA: 4, DQ: 4, PACK_QUERIES: 4, PACK_KEYS: 0}
_OF_MXFP8 = "mxfp8"


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


def companions(main: Builtin) -> tuple[list[Builtin], list[Builtin]]:
    """Return the kernels that the library launches before and after a main kernel. In MXFP8, tensors are in f16."""
    before = [PACK_QUERIES, PACK_KEYS] if main.precision == _OF_MXFP8 else [DELTA]
    return [_companion(operation, main) for operation in before], [_companion(DQ, main)]


def _companion(operation: str, main: Builtin) -> Builtin:
    """Return the kernel of an operation that fits a main kernel."""
    name = f"{operation}_f16_d{main.head_dim}"
    for one in builtins():
        fits = one.entry == name if operation in {PACK_QUERIES, PACK_KEYS} else one.precision in {"", main.precision}
        if one.operation == operation and fits:
            return one
    message = f"the library has no kernel of {operation} for {main.entry}"
    raise InvalidArgumentError(message)


def stream_of(
    kernel: Builtin,
    main: Builtin,
    problem: Problem,
    executed: dict[int, int],
    rows: int,
    splits: Splits | None = None,
) -> streams.Stream:
    """Return the launch of a companion; ``executed`` was counted in a problem of one head with so many rows.

    ``splits``: how the library divides the pass; without it, all sums of dQ are kept until dq reads them.
    """
    of_keys = kernel.operation == PACK_KEYS
    heads = problem.batch * (problem.groups if of_keys else problem.heads)
    tile = main.kv_rows if of_keys else main.q_rows
    parts = tile // _PACKED_ROWS if kernel.operation in {PACK_QUERIES, PACK_KEYS} else 1  # CTAs of a tile
    elements = heads * problem.rows * problem.head_dim
    ctas, recorded = (-(-count // tile) * parts for count in (problem.rows, rows))
    sums, left = (splits.sums, splits.left) if splits else (1.0, 1.0)
    part = left if kernel.operation == DQ else 1.0  # of the gradients that dq still has to write
    sums = left if kernel.operation == DQ else sums
    held = round((part * _BYTES[kernel.operation] + sums * _SUMS[kernel.operation]) * elements)
    return streams.Stream(round(part * heads * ctas), held, executed, recorded)


def recorded_problem(problem: Problem) -> Problem:
    """Return the problem of one head in which the statements of the companions are counted."""
    return Problem(1, min(_ROWS, problem.rows), 1, problem.head_dim)


def predict_pass(
    model: KernelModel, main: Builtin, problem: Problem, prediction: predict.Prediction, splits: Splits | None = None
) -> Pass:
    """Predict the whole pass from the prediction of its main kernel, and from how the library divides it."""
    chip = model.chip
    target = "sm_120f" if chip["target"] == "sm_120" else str(chip["target"])
    before, after = companions(main)
    small = recorded_problem(problem)
    executed = record.executed(target, [one.entry for one in (*before, *after)], main, small)

    def parts(kernels: list[Builtin]) -> list[Part]:
        of = [(one, stream_of(one, main, problem, executed[one.entry], small.rows, splits)) for one in kernels]
        return [_part(chip, target, *one) for one in of]

    itself = Part(main.entry, prediction.clocks, prediction.bound, prediction.dram_bytes)
    return Pass((*parts(before), itself, *parts(after)))


def _part(chip: Chip, target: str, kernel: Builtin, stream: streams.Stream) -> Part:
    """Predict a companion."""
    index = builtin_index(kernel.entry)
    if index is None:
        message = f"the library lacks {kernel.entry}"
        raise InvalidArgumentError(message)
    ptx, image = builtin_image(index, target, "ptx").decode(), builtin_image(index, target, "cubin")
    function = record.with_lines(sass.disassemble(image, kernel.entry)[kernel.entry], ptx, target)
    found = streams.predict(chip, image, function, stream)
    return Part(kernel.entry, found.clocks, found.bound, found.dram_bytes)


def tensor_flops(chip: Chip, main: Builtin) -> float:
    """Return the flop of a chip's tensor pipes in a clock: in MXFP8 if a chip has it, else in bf16 with f32 sums."""
    scaled = main.precision == _OF_MXFP8 and "qmma_sf_16832" in chip.timings
    opcode, kind = ("QMMA.SF.16832", "qmma_sf_16832") if scaled else ("HMMA.16816.F32", "hmma_16816_f32")
    return 4 * int(chip["sms"]) * predict.flops_of(opcode) / chip.timing(kind).interval
