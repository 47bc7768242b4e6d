"""What L2 gives an SM while all SMs ask, and what it no longer holds when a CTA reads it again."""

import dataclasses
import math

import numpy as np

from pysm120.model.chips import Chip
from pysm120.model.local import LINE_BYTES, Room
from pysm120.model.recorded import SECTOR_BYTES, Launch, lost

_L1_BESIDE = 28 * 1024  # bytes of L1 that shared memory cannot have: of 256 KiB on Hopper, of 128 KiB on SM120
_LANES = 32
_SHARED = 48  # most times that L2 serves a byte which comes from DRAM each time that it is needed


def share(chip: Chip) -> float:
    """Return the bytes a clock that L2 gives an SM while all ask: as measured, or what its slices give at most."""
    return chip.l2_limit / float(chip["mhz"]) * 1e3 / int(chip["sms"])


def shared(chip: Chip) -> Chip:
    """Return the chip with loads and cp.async that get no more than an SM's share of L2."""
    rate = min(float(chip["copy_bytes_per_clock"]), share(chip))
    if chip.values.get("load_bytes_per_clock") == rate:
        return chip
    return dataclasses.replace(chip, values={**chip.values, "load_bytes_per_clock": rate})


def add_requests(chip: Chip, lines: float, lanes: float) -> float:
    """Return the requests for additions to a line that L2 gets done in a clock; infinity if nobody measured it.

    Parameters
    ----------
    chip : Chip
        The chip.
    lines : float
        Lines of 128 bytes that the launch adds to.
    lanes : float
        Lanes of a request that add to the same word, on average.

    """
    if "add_lines" not in chip.values:
        return math.inf
    of_lines = np.log([float(word) for word in str(chip["add_lines"]).split()])
    measured = sorted(int(key.rpartition("_")[2]) for key in chip.values if key.startswith("add_requests_"))
    rates = [np.log([float(word) for word in str(chip[f"add_requests_{n}"]).split()]) for n in measured]
    at = [np.interp(math.log(max(1.0, lines)), of_lines, row) for row in rates]
    return math.exp(np.interp(math.log(max(1.0, lanes)), np.log(measured), at))


def unified_bytes(chip: Chip) -> int:
    """Return the L1 and shared memory of an SM."""
    return int(chip["shared_bytes_per_sm"]) + _L1_BESIDE


def l1_bytes(chip: Chip, slots: int, shared_bytes: int) -> float:
    """Return the L1 that the resident CTAs of an SM, with an amount of shared memory each, leave to each of them."""
    taken = slots * (shared_bytes + int(chip["shared_bytes_reserved"]))
    return max(0, unified_bytes(chip) - taken) / slots


def of_warp(chip: Chip, slots: int, shared_bytes: int, threads: int) -> Room | None:
    """Return the lines of L1 and L2 for each warp of the resident CTAs, which have so many threads each.

    None where nobody has measured what L2 takes: there L1 is taken to hold all of local memory, and to keep it.
    """
    if not chip["l2_binds"]:
        return None
    warps = -(-threads // _LANES)
    of_l1 = l1_bytes(chip, slots, shared_bytes) / warps
    of_l2 = float(chip["l2_bytes"]) / int(chip["sms"]) / slots / warps
    return Room(int(of_l1 / LINE_BYTES), int(of_l2 / LINE_BYTES))


def is_streamed(l2_bytes: float, dram_bytes: float) -> bool:
    """Whether tiles come from DRAM: L2 serves their bytes so seldom that the CTAs that run together share them.

    Of a matrix product, 16 to 32 CTAs that run together load a tile, all of them when it comes from DRAM. Of attention,
    more CTAs load the tiles of a head, and those of later waves find them in L2.
    """
    return l2_bytes < _SHARED * dram_bytes


def reread_bytes(chip: Chip, recorded: Launch, ctas: int, slots: int, tensor_bytes: float) -> float:
    """Return the bytes that DRAM delivers again, because L2 has lost them when CTAs touch them again.

    The resident CTAs interleave. So L2 holds a line from one touch to the next if all of them together touch no more in
    between than L2 has: if the distance, in bytes of a CTA, is at most ``held``. Distances of a step, from ``least``
    to sqrt(2) times as many bytes, count as evenly distributed.

    Parameters
    ----------
    chip : Chip
        The chip.
    recorded : Launch
        The recorded launch, with the sectors that its CTAs touched again by distance.
    ctas, slots : int
        CTAs of the launch; resident CTAs of an SM.
    tensor_bytes : float
        The size of all tensors: no launch touches more.

    """
    if tensor_bytes <= float(chip["l2_bytes"]):
        return 0.0
    held = float(chip["l2_bytes"]) / min(ctas, slots * int(chip["sms"]))
    again = sum(sectors * lost(least, held) for least, sectors in recorded.reuse.items())
    return SECTOR_BYTES * again * ctas / recorded.ctas
