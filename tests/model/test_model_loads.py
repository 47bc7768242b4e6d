"""What memory and clock rates do to a prediction: requests, L1 of a CTA, tiles from DRAM, DRAM under load."""

import dataclasses
import json
from pathlib import Path

import pytest
from sass_text import Op, listing

from pysm120.machine_code import sass
from pysm120.model import chips, memory, streams
from pysm120.model.recorded import PROFILED_L1, Launch, Sectors, lost
from pysm120.model.simulator import Simulator
from pysm120.model.steps import Paths, Pipes, waits_of_dram

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def h100() -> chips.Chip:
    return chips.load("h100")


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (Sectors(16, 4, 16, 1), 512),  # rows of 128 bytes: their bytes
        (Sectors(16, 8, 16, 1), 512),  # of 64
        (Sectors(16, 16, 16, 1), 1024),  # of 32: each as a request of 64
        (Sectors(16, 16, 4, 1), 256),  # a quarter of them comes from L2
        (Sectors(0, 0, 0, 0), 0),
    ],
)
def test_a_request_of_few_bytes_costs_as_much_as_one_of_64(h100: chips.Chip, found: Sectors, wanted: float) -> None:
    assert Pipes(h100).requested(found) == wanted


def test_l1_of_the_ctas_of_an_sm(h100: chips.Chip) -> None:
    # 16 CTAs of 512 bytes: 256 KiB less 24 of shared memory, 1 KiB of each CTA reserved.
    assert memory.l1_bytes(h100, 16, 512) == (256 * 1024 - 16 * 1536) / 16
    assert memory.l1_bytes(chips.load("rtx5090"), 2, 48 * 1024) == (128 - 98) * 1024 / 2
    assert memory.l1_bytes(h100, 1, 1 << 20) == 0


def test_reuse_beyond_the_l1_of_a_cta_comes_from_l2() -> None:
    """Of 16 sectors a load touches 8 again after 16 to 23 KiB, and 4 after 46 to 65, which the profile's L1 lost."""
    found = Sectors(16, 4, 8, 0.5, 4, {16384: 8, 46341: 4})
    assert found.within(PROFILED_L1) is found
    assert found.within(16 * 1024)[2:4] == (16, 1.0)
    assert found.within(24 * 1024)[2:4] == (8, 0.5)
    assert found.within(128 * 1024)[2:4] == (4, 0.25)
    assert 8 < found.within(20 * 1024).fetched < 16
    launch = Launch({1: 1}, 1, 1.0, sectors={1: found}).within(16 * 1024)
    assert launch.sectors[1].fetched == 16


@pytest.mark.parametrize(("held", "wanted"), [(1000, 1), (4096, 1), (4096 * 2**0.5, 0), (8192, 0)])
def test_share_that_a_cache_loses(held: float, wanted: float) -> None:
    assert lost(4096, held) == pytest.approx(wanted)


def test_tiles_of_a_product_come_from_dram() -> None:
    assert memory.is_streamed(32e9, 1e9)
    assert not memory.is_streamed(64e9, 1e9)


@pytest.mark.parametrize(
    ("busy", "clocks"), [(0, 684), (0.23, 740), (0.46, 797), (0.68, 880), (0.78, 925), (0.91, 1009)]
)
def test_latency_of_dram_under_load_is_that_of_an_h100(h100: chips.Chip, busy: float, clocks: float) -> None:
    """Relative to an idle DRAM, as a chain of loads beside others that read took it."""
    idle, loaded = (streams.from_dram(h100, share).timing("load_global").latency for share in (0, busy))
    assert loaded / idle == pytest.approx(clocks / 684, rel=0.06)
    assert streams.from_dram(h100, busy)["async_latency"] > h100["async_latency"]


@pytest.mark.parametrize(("lines", "clocks"), [(1, 768), (2, 826), (4, 880), (8, 933), (16, 1002), (32, 1055)])
def test_slowest_of_several_lines_is_that_of_an_h100(h100: chips.Chip, lines: int, clocks: float) -> None:
    """Warps that load a line of DRAM each and meet at a barrier, less what the same takes from L2 beside one warp."""
    cold = streams.from_dram(h100, share=1)
    assert Pipes(cold, warps=lines).late(1, meets=True) == pytest.approx(clocks - 768, abs=12)
    assert Pipes(h100, warps=lines).late(1, meets=True) == 0  # of L2


@pytest.mark.parametrize(("lanes", "clocks"), [(1, 26), (2, 28), (32, 88)])
def test_atomics_of_shared_memory_take_what_an_h100_took(h100: chips.Chip, lanes: int, clocks: int) -> None:
    """A chain of them by one warp; ``lanes`` add to the same word, a pass for each."""
    ops = [Op("ATOMS.ADD R5, [R4], R5", writes=0, waits=1, label=".L_x_1"), Op("@P0 BRA `(.L_x_1)"), Op("EXIT")]
    function = sass.parse(listing("k", ops))["k"]
    path = list(function.instructions[:1])
    pipes = Pipes(h100, wavefronts=lambda _: lanes)
    steps = pipes.steps(path * 16, {}, [])
    paths = Paths(steps, [], [], steps, [], (), None, path)
    ends = [Simulator(h100, pipes, dataclasses.replace(paths, before=one, load_before=one), 1).run([0], 1).clocks
            for one in (steps, steps[:8])]  # fmt: skip
    assert (ends[0] - ends[1]) / 8 == clocks


def test_bandwidth_of_dram_by_what_is_written(h100: chips.Chip) -> None:
    assert [h100.dram_bandwidth(written) for written in (0, 0.5, 1)] == [3130, 2830, 3130]


def test_what_ctas_in_step_wait_for_dram_is_that_of_an_h200() -> None:
    """Loops whose CTAs load a tile in each round, alone or as one of several, from DRAM or from L2."""
    loops = json.loads((ROOT / "results" / "h200" / "step.json").read_text())["loops"]
    waits = {(one["load"], one["tiles"], one["sharing"]): one["wait_clocks"] for one in loops if one["fma"] == 1000}
    for sharing in (1, 2, 8, 32, 64, 256):
        parts = []
        for load in ("cp.async.cg", "ld.global.v4 and st.shared.v4"):
            of_l2, of_dram = waits[load, "in L2", None], waits[load, "from DRAM", 1]
            parts.append((waits[load, "from DRAM", sharing] - of_l2) / (of_dram - of_l2))
        assert waits_of_dram(1 / sharing) == pytest.approx(sum(parts) / 2, abs=0.005)
    assert waits_of_dram(1e-6) == pytest.approx(waits_of_dram(1 / 256))
    assert waits_of_dram(0.5) > waits_of_dram(0.3) > waits_of_dram(0.25)


def test_clock_rate_of_kernels_without_products(h100: chips.Chip) -> None:
    assert h100.running(has_products=True)["mhz"] == 1755
    assert h100.running(has_products=False)["mhz"] == 1980
    stated = h100.at(1500)
    assert [stated.running(has_products=x)["mhz"] for x in (True, False)] == [1500, 1500]
    assert memory.share(stated) == pytest.approx(memory.share(h100) * 1755 / 1500)
    for name in ("rtx5090", "rtx5080", "rtxpro6000"):
        chip = chips.load(name)
        assert chip.running(has_products=False)["mhz"] == chip["mhz"]
        assert chip["dram_read_gbs"] == chip["dram_gbs"]
