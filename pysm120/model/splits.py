"""How the library splits the walks of CTAs of attention or its gradients, and the launch that adds up the splits."""

import dataclasses
import itertools
from typing import Any

from pysm120.model.chips import Chip
from pysm120.model.files import target_of
from pysm120.model.problem import BACKWARD, Problem
from pysm120.model.record import capability
from pysm120.ops.attention_call import PRECISIONS
from pysm120.runtime.device import Device
from pysm120.runtime.ffi import check, lib, new, new_struct
from pysm120.runtime.module import Builtin, builtin_index, builtins

_F32 = 4  # bytes


@dataclasses.dataclass(frozen=True)
class Splits:
    """Of the tiles, in the order of the launch, those from ``first`` on have ``splits`` CTAs each.

    The tiles are those that a CTA keeps: of queries, or backward of keys.
    """

    first: int
    splits: int
    sums: float = 1.0  # backward: the share of the tiles of queries whose sums of dq the workspace holds at once
    left: float = 1.0  # and of the heads whose dq the main kernel leaves to a further one
    group: int | None = None  # backward: the heads of keys whose tiles take turns in the order of the launch

    def rounds(self, kernel: Builtin, problem: Problem) -> list[int]:
        """Return the rounds of every CTA, in the order in which the CTAs start."""
        whole = problem.rounds(kernel, self.group)
        if self.splits == 1:
            return whole
        if kernel.operation == BACKWARD:
            shares = [
                [rounds // self.splits + (nth < rounds % self.splits) for nth in range(self.splits)]
                for rounds in whole[self.first :]
            ]
            return whole[: self.first] + list(itertools.chain.from_iterable(shares))
        tiles, groups = -(-problem.rows // kernel.kv_rows), max(1, kernel.key_groups)
        ends = [tiles * split // self.splits for split in range(self.splits + 1)]
        of_tile = [-(-(end - begin) // groups) for begin, end in itertools.pairwise(ends)]
        return whole[: self.first] + of_tile * (len(whole) - self.first)

    def warps(self, kernel: Builtin, problem: Problem) -> list[int]:
        """Return the warps of every CTA that have rows, in the order in which the CTAs start; empty: all of them.

        Where every row sees all keys, the tiles with fewer rows come last.
        """
        whole = problem.warps(kernel, self.group)
        whole = whole if problem.causal else sorted(whole, reverse=True)
        return whole[: self.first] + [warps for warps in whole[self.first :] for _ in range(self.splits)]

    def clocks(self, kernel: Builtin, problem: Problem, chip: Chip) -> float:
        """Return the clocks of the launch that adds up the splits: it starts, and reads them from L2."""
        if self.splits == 1:
            return 0.0
        tiles, width = len(problem.rounds(kernel)) - self.first, kernel.head_dim
        rows, width = (kernel.kv_rows, 2 * width) if kernel.operation == BACKWARD else (kernel.q_rows, width)
        per_clock = chip.l2_limit * 1e9 / (float(chip["mhz"]) * 1e6)
        return float(chip["launch_clocks"]) + tiles * rows * width * (_F32 * self.splits + _F32 / 2) / per_clock


def described(struct: str, precision: str, problem: Problem) -> Any:
    """Return the arguments of a call in a precision, without tensors."""
    args = new_struct(struct)
    args.precision = PRECISIONS[precision][0]
    args.batch, args.heads, args.kv_heads = problem.batch, problem.heads, problem.groups
    args.q_rows = args.kv_rows = problem.rows
    args.head_dim, args.scale = problem.head_dim, 1.0
    args.causal = lib.SM120_CAUSAL_TOP_LEFT if problem.causal else lib.SM120_NOT_CAUSAL
    return args


def of_backward(kernel: Builtin, problem: Problem, chip: Chip) -> Splits:
    """Return how the library splits a call of the backward pass with a kernel on a chip."""
    args = described("sm120_attention_backward_args", kernel.precision, problem)
    of_rows = problem.head_dim
    for tensor, heads in ((args.q, problem.heads), (args.k, problem.groups)):
        tensor.dtype = lib.SM120_F16 if kernel.precision == "f16" else lib.SM120_BF16
        tensor.address, tensor.row_stride = 1 << 20, of_rows
        tensor.head_stride, tensor.batch_stride = of_rows * problem.rows, of_rows * problem.rows * heads
    args.v, args.dk, args.dv = args.k, args.k, args.k
    args.dout, args.o, args.dq = args.q, args.q, args.q
    plan = new_struct("sm120_attention_backward_plan")
    with capability(target_of(chip)), Device(f"virtual?multiprocessors={int(chip['sms'])}") as device:
        check(lib.sm120_attention_backward_chosen(device.handle.pointer, args, plan))
    if plan.kernel != builtin_index(kernel.entry):  # the kernel is for other calls
        return Splits(len(problem.rounds(kernel)), 1)
    heads = problem.batch * problem.heads
    sums, left = plan.sums / plan.q_tiles, 1 - plan.first_head / heads
    return Splits(plan.first_split, plan.splits, sums, left, plan.group)


def chosen(device: Device, args: Any) -> int:
    """Return the index of the kernel that the library chooses for a call."""
    config, index = new("char const **"), new("int32_t *")
    check(lib.sm120_attention_chosen(device.handle.pointer, args, config, index))
    return int(index[0])


def kernel_of_library(precision: str, problem: Problem, chip: Chip) -> Builtin:
    """Return the kernel that the library chooses for a call of attention on a chip."""
    with capability(target_of(chip)), Device(f"virtual?multiprocessors={int(chip['sms'])}") as device:
        return builtins()[chosen(device, described("sm120_attention_args", precision, problem))]


def of_library(kernel: Builtin, problem: Problem, chip: Chip) -> Splits:
    """Return how the library splits a call of a kernel on a chip."""
    args = described("sm120_attention_args", kernel.precision, problem)
    config = new("char[]", kernel.config.encode())
    args.config = config
    first, splits = new("int64_t *"), new("int64_t *")
    with capability(target_of(chip)), Device(f"virtual?multiprocessors={int(chip['sms'])}") as device:
        if chosen(device, args) != builtin_index(kernel.entry):  # the kernel is for other head sizes
            return Splits(len(problem.rounds(kernel)), 1)
        check(lib.sm120_attention_splits(device.handle.pointer, args, first, splits))
    return Splits(first[0], splits[0])
