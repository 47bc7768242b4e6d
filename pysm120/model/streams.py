"""Kernels without matrix products, which stream tensors through the SMs: delta and dq of the backward pass.

Such a kernel has short loops, and most of its time goes to memory. Its launch is bound by

- its instructions and the latency of its loads, by the simulator, with as many CTAs on an SM as it holds;
- the bytes of its tensors at the bandwidth of DRAM, unless all of them fit in half of L2;
- the same bytes at the bandwidth of L2.

Loads wait longer the busier memory is. So a launch that two bounds limit almost equally takes longer than either: the
cube root of the sum of the cubes of the bounds, which was chosen with 30 launches on an H200.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from pysm120.machine_code.cubin import Cubin
from pysm120.machine_code.sass import Function, Loop
from pysm120.model import kernel_model
from pysm120.model.chips import Chip, Timing
from pysm120.model.recorded import Launch, Recording
from pysm120.runtime.errors import InvalidArgumentError

_SHORT, _MORE = 4, 6  # rounds: fewest in the first simulation; additional ones in the second
_KEPT = 0.5  # of L2 that still holds what the kernel before read or wrote
_POWER = 3  # of the bounds that add up, with loads that find DRAM idle


@dataclasses.dataclass(frozen=True)
class Stream:
    """A launch: its CTAs, and the bytes that it reads and writes.

    ``executed``: how often warps executed the statement of each PTX line in a launch of ``recorded_ctas`` CTAs.
    """

    ctas: int
    tensor_bytes: float
    executed: Mapping[int, int]
    recorded_ctas: int


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The clocks of a launch: ``start``, and those of each of its bounds."""

    start: float
    sm_clocks: float
    dram_clocks: float
    l2_clocks: float
    dram_bytes: float

    @property
    def bounds(self) -> dict[str, float]:
        """The clocks by what bounds them."""
        return {"sm": self.sm_clocks, "dram": self.dram_clocks, "l2": self.l2_clocks}

    @property
    def clocks(self) -> float:
        """The time of the launch."""
        return together(self.start, {name: self.start + clocks for name, clocks in self.bounds.items()})

    @property
    def bound(self) -> str:
        """What bounds the launch: "sm", "dram" or "l2"."""
        return max(self.bounds, key=lambda name: self.bounds[name])


def together(start: float, bounds: Mapping[str, float], power: float = _POWER) -> float:
    """Return the clocks of a launch without matrix products, from those of its bounds, which all begin at ``start``."""
    found = (max(0.0, clocks - start) for clocks in bounds.values())
    return start + math.pow(sum(clocks**power for clocks in found), 1 / power)


def predict(chip: Chip, image: bytes, function: Function, stream: Stream) -> Prediction:
    """Predict a launch of a kernel of a cubin; ``function`` has the lines of its PTX."""
    entry = Cubin(image).entry(function.name)
    warps = -(-entry.threads // 32)
    per_sm = -(-stream.ctas // int(chip["sms"]))
    slots = min(per_sm, chip.ctas_per_sm(entry.registers, entry.threads, entry.static_shared_bytes))
    launch = Launch(stream.executed, stream.recorded_ctas, 1.0)
    loops = {loop: rounds for loop in _outer(function.loops) if (rounds := _rounds(function, loop, launch, warps)) > 0}
    if function.loops and not loops:
        message = f"no loop of {function.name} was executed in the recorded launch"
        raise InvalidArgumentError(message)
    kept = fits(chip, stream.tensor_bytes)
    cold = chip if kept else from_dram(chip)
    clocks = 0.0
    for n, (loop, rounds) in enumerate(loops.items()):
        recording = Recording(function, [launch], warps, loop)
        model = kernel_model.build(cold, function, entry.threads, slots, loop=loop, recording=recording)
        short, long = (model.run([r] * 2 * slots, slots).clocks / 2 for r in (_SHORT, _SHORT + _MORE))
        each = (long - short) / _MORE
        clocks += each * rounds + (short - _SHORT * each if n == 0 else 0)  # what is outside of loops counts once
    if not loops:  # one CTA after the other
        model = kernel_model.build(cold, function, entry.threads, slots)
        clocks = (model.run([0] * 4 * slots, slots).clocks - model.run([0] * 2 * slots, slots).clocks) / 2
    per_clock = 1e3 / float(chip["mhz"])  # bytes a clock at 1 GB/s
    dram = 0.0 if kept else stream.tensor_bytes
    return Prediction(
        float(chip["launch_clocks"]),
        clocks * max(1.0, stream.ctas / (int(chip["sms"]) * slots)),
        dram / (float(chip["dram_gbs"]) * per_clock),
        stream.tensor_bytes / (float(chip["l2_gbs"]) * per_clock) if chip["l2_binds"] else 0.0,
        dram,
    )


def _outer(loops: Sequence[Loop]) -> list[Loop]:
    """Return the loops that lie in no other loop, without copies of a header."""
    return [loop for loop in loops if not any(set(loop.blocks) < set(other.blocks) for other in loops)]


def _rounds(function: Function, loop: Loop, launch: Launch, warps: int) -> float:
    """Return how often a warp executed a loop."""
    return Recording(function, [launch], warps, loop).rounds


def fits(chip: Chip, tensor_bytes: float) -> bool:
    """Whether L2 keeps the tensors of a launch from one launch to the next."""
    return tensor_bytes <= _KEPT * float(chip["l2_bytes"])


def from_dram(chip: Chip, busy: float = 0.0, share: float = 0.0, *, some: bool = False) -> Chip:
    """Return the chip with the latency of DRAM for loads, those of cp.async among them.

    ``busy``: the share of the time in which DRAM is busy. The latency grows with it: on an H100 from 684 clocks to 760
    at 0.34, 880 at 0.68, 930 at 0.78, 1009 at 0.91 and about 1240 where all wait. ``share``: of the lines that come
    from DRAM; what waits for several of them waits for the slowest. ``some``: a load waits for DRAM only if one of the
    lines that the warp waits for comes from there.
    """
    load, linear, steep = chip.timing("load_global"), 0.3, 0.35
    longer = 1 + linear * busy + steep * busy**4
    cold = Timing(load.pipe, load.interval, float(chip["dram_latency"]) * longer)
    later = int(chip["async_latency"] + cold.latency - load.latency)
    values = {**chip.values, "async_latency": later, "line_spread": chip["dram_spread"], "line_share": share}
    values["l2_async_latency"] = chip["async_latency"]
    values["l2_latency"] = load.latency
    values |= {"cold_share": share} if some else {}
    return dataclasses.replace(chip, values=values, timings={**chip.timings, "load_global": cold})
