"""Loops that are mostly code: they hold as much of it as they say, and every warp goes through all of it."""

import numpy as np
import pytest

from pysm120 import Device
from pysm120.machine_code import sass
from pysm120.model import code_loops, validation

pytestmark = pytest.mark.virtual

LOOPS = {(loop.name, loop.warps): loop for loop in code_loops.loops()}
ROUNDS, CTAS = 3, 3


def test_names() -> None:
    assert len(LOOPS) == len(code_loops.loops())
    assert {loop.ctas for loop in LOOPS.values() if loop.name.endswith("_alone")} == {1}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "warps"),
    [("code_step_32k", 1), ("code_met_32k", 4), ("code_all_32k", 8), ("code_apart_24k", 16), ("code_mma_16k", 4),
     ("code_jump_32x1152", 1), ("code_jump_64x384", 1)],
)  # fmt: skip
def test_size_of_the_machine_code(name: str, warps: int) -> None:
    function = sass.disassemble(sass.assemble(LOOPS[name, warps].ptx("sm_90"), "sm_90"))["loop"]
    code = [one.address for one in function.of_loop(validation.timed_loop(function))]
    count, _, size = name.split("_")[2].partition("x")
    wanted = int(count) * int(size) if size else int(count.removesuffix("k")) << 10
    assert wanted <= max(code) - min(code) + 16 <= wanted + 1024
    if size:  # what is skipped was not laid out elsewhere, and each jump is one branch
        branches = [one for one in function.of_loop(validation.timed_loop(function)) if one.base == "BRA"]
        assert len(branches) == int(count) + 1


@pytest.mark.parametrize(
    ("name", "warps"),
    [("code_step_16k", 2), ("code_apart_16k", 16), ("code_met_16k", 4), ("code_sms_32k", 8), ("code_all_32k", 8)],
)
def test_every_warp_goes_through_all_of_the_code(name: str, warps: int) -> None:
    """But for what is before the place where it begins."""
    loop = LOOPS[name, warps]
    begins = [_begin(name, warp, warps, cta) for cta in range(CTAS) for warp in range(warps)]
    with Device("virtual") as device:
        kernel = device.load(loop.ptx("sm_120f"))["loop"]
        out = device.zeros(1 << 18, np.uint64)
        with device.profile() as profile:
            kernel(CTAS, 32 * warps, out, np.uint32(ROUNDS))
        clocks = out.numpy()[: 3 * CTAS * warps].reshape(-1, 3)
    assert (clocks[:, 1] > clocks[:, 0]).all()
    counts = profile.opcodes
    around = sum(line.count(" fma.rn.f32") for line in loop.body)
    prologue = sum(line.count(" fma.rn.f32") for line in loop.ptx("sm_120f").splitlines()) - around
    wanted = sum(ROUNDS * around - begin * around // 8 for begin in begins) + prologue * len(begins)
    assert counts["fma"].executed == wanted
    # Two barriers of all loops, and where they meet as many for each warp.
    meet = 8 * ROUNDS if name.startswith(("code_met", "code_all")) else 0
    assert counts["bar.sync"].executed == len(begins) * (2 + meet)


def _begin(name: str, warp: int, warps: int, cta: int) -> int:
    """Return the eighth where a warp begins."""
    kind = name.split("_")[1]
    own = 0 if kind in {"step", "sms"} else warp * max(1, 8 // warps)
    spread = (cta * 0x9E3779B1 & 0xFFFFFFFF) >> 29 if kind in {"sms", "all"} else 0
    return (own + spread) % 8
