"""What L2 gives an SM while all SMs ask."""

import dataclasses

from pysm120.model.chips import Chip


def share(chip: Chip) -> float:
    """Return the bytes a clock that L2 gives an SM while all ask: as measured, or what its slices give at most."""
    return chip.l2_limit / float(chip["mhz"]) * 1e3 / int(chip["sms"])


def shared(chip: Chip) -> Chip:
    """Return the chip with loads and cp.async that get no more than an SM's share of L2."""
    rate = min(float(chip["copy_bytes_per_clock"]), share(chip))
    return dataclasses.replace(chip, values={**chip.values, "load_bytes_per_clock": rate})
