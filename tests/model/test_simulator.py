"""The simulated SM on small programs whose clocks are counted by hand, and how launches are made of CTAs."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from sass_text import Op, listing

from pysm120.machine_code import pipes, sass
from pysm120.model import chips, kernel_model, loops, memory, ports, predict, problem, validation
from pysm120.model.chips import Chip
from pysm120.model.handovers import Filler, Ring
from pysm120.model.predict import _interpolated, _shared_out, _simulated, _Sms, _Time
from pysm120.model.recorded import Launch, Sectors
from pysm120.model.steps import Pipes
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import builtins

RESULTS = Path(__file__).resolve().parents[2] / "results" / "h200"
pytestmark = pytest.mark.virtual

CHIP = """
target = "sm_90"
[all]
name = "test"
sms = 4
registers_per_sm = 65536
threads_per_sm = 2048
ctas_per_sm = 32
shared_bytes_per_sm = 233472
shared_bytes_reserved = 1024
mhz = 1000
l2_gbs = 1000
l2_binds = 1
dram_gbs = 500
dram_read_gbs = 500
l2_bytes = 1000000
scheduler = "greedy"
queue_depth = 8
taken_branch = 10
reconverge = 14
launch_clocks = 0
cta_start = 0
cta_interval = 0
code_bytes = 65536
code_ways = 4
code_latency = 50
code_interval = 10
code_ahead = 2
port_window = 0
port_xu = 2
port_returned = 1
mbarrier_wake = 40
barrier_interval = 2
barrier_latency = 7
copy_latency = 5000
copy_bytes_per_clock = 64
async_latency = 4000
adds_bind = 1
add_bytes_per_clock = 16
add_queue_bytes = 4096
store_bytes_per_clock = 32
drain_bytes_per_clock = 1000000
load_request_bytes = 64
store_request_bytes = 54
dram_latency = 900
dram_spread = 50
source = "made up"
"""
TIMINGS = {
    "hmma_16816_f32": ("tensor", 10, 20), "mufu": ("xu", 8, 17), "fma": ("fma", 1, 4), "alu": ("alu", 2, 5),
    "ldmatrix": ("lsu", 2, 26), "branch": ("branch", 1, 1), "barrier": ("lsu", 1, 1), "try_wait": ("lsu", 1, 36),
    "arrive": ("lsu", 1, 20), "copy": ("copy", 34, 34), "copy_async": ("lsu", 2, 30),
    "add_global": ("lsu", 1, 30), "load_global": ("lsu", 1, 300), "load_local": ("lsu", 1, 40),
    "store_global": ("lsu", 1, 30), "fence": ("lsu", 1, 10), "uniform": ("uniform", 1, 1),
}  # fmt: skip


MXFP8 = next(b for b in builtins() if b.precision == "mxfp8" and b.head_dim == 128)


@pytest.fixture
def chip(tmp_path: Path) -> Chip:
    text = CHIP + "".join(
        f'[instruction.{name}]\npipe = "{pipe}"\ninterval = {interval}\nlatency = {latency}\nsource = "made up"\n'
        for name, (pipe, interval, latency) in TIMINGS.items()
    )
    (tmp_path / "test.toml").write_text(text)
    return chips.load(str(tmp_path / "test.toml"))


def per_round(chip: Chip, body: list[Op], warps: int) -> float:
    """Return the clocks of a round: the body, a comparison, a branch back."""
    first = dataclasses.replace(body[0], label=".L_x_1")
    ops = [
        first,
        *body[1:],
        Op("ISETP.NE.AND P0, PT, R0, RZ, PT", stall=13),
        Op("@P0 BRA `(.L_x_1)", stall=5),
        Op("EXIT"),
    ]
    function = sass.parse(listing("k", ops))["k"]
    model = kernel_model.build(chip, function, 32 * warps, 1)
    short, long = (model.run([rounds], 1).clocks for rounds in (10, 30))
    return (long - short) / 20


def test_chain_of_results_of_variable_latency(chip: Chip) -> None:
    # Each waits 17 clocks for the one before; behind the last: 2, then 13 for the comparison, 10 for the branch.
    body = [Op(f"MUFU.EX2 R{i}, R{i}", stall=2, writes=0, waits=1) for i in range(4)]
    assert per_round(chip, body, 1) == 3 * 17 + 2 + 13 + 10


def test_stall_counts(chip: Chip) -> None:
    assert per_round(chip, [Op("NOP", stall=5)] * 4, 1) == 4 * 5 + 13 + 10


def test_bound_by_a_pipe(chip: Chip) -> None:
    # Two warps on each quarter, eight products of ten clocks each.
    assert per_round(chip, [Op("HMMA.16816.F32 R4, R8, R12, R4")] * 8, 8) == 2 * 8 * 10


def test_bound_by_issue(chip: Chip) -> None:
    # Four warps on each quarter; 32 FFMA, the comparison and the branch of each.
    assert per_round(chip, [Op("FFMA R1, R1, R2, R3")] * 32, 16) == 4 * 34


def test_bound_by_the_banks_of_shared_memory(chip: Chip) -> None:
    # One warp on each quarter, eight loads of four passes each.
    body = [Op(f"LDSM.16.M88.4 R{4 * i}, [R100]", writes=i % 6) for i in range(8)]
    assert per_round(chip, body, 4) == 4 * 8 * 4
    # One warp alone: a quarter's own way to the banks takes two clocks for each pass.
    assert per_round(chip, body, 1) == pytest.approx(8 * 8, abs=30)


def test_a_full_queue_holds_a_warp(chip: Chip) -> None:
    # Nothing waits for the results, but the queue holds eight: the round cannot be shorter than the pipe's time.
    assert per_round(chip, [Op("MUFU.EX2 R1, R2")] * 32, 1) == 32 * 8


ADD = "REDG.E.ADD.F32x4.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R4"


def test_additions_leave_the_sm_at_the_rate_of_the_chip(chip: Chip) -> None:
    # Two warps on each quarter, four additions of 512 bytes each, 16 bytes a clock.
    assert per_round(chip, [Op(ADD)] * 4, 8) == 8 * 4 * 512 / 16
    # Where L2's rate is not known, only their way through the path of shared memory counts: four clocks each.
    free = dataclasses.replace(chip, values=chip.values | {"adds_bind": 0})
    assert per_round(free, [Op(ADD)] * 4, 8) == 8 * 4 * 4


def test_additions_beside_products(chip: Chip) -> None:
    # A warp on each quarter: 24 products take 240 clocks, four additions of each warp 512.
    products = [Op("HMMA.16816.F32 R4, R8, R12, R4")] * 24
    both = per_round(chip, [*products, *[Op(ADD)] * 4], 4)
    assert both == pytest.approx(4 * 4 * 512 / 16, rel=0.03)
    # Nothing waits for one addition of each warp.
    assert per_round(chip, [*products, Op(ADD)], 4) == pytest.approx(per_round(chip, products, 4), abs=8)


def test_a_full_queue_of_additions_holds_what_follows(chip: Chip) -> None:
    # In a round, 160 products take 1600 clocks, twelve additions of each warp 1536, and all warps meet once.
    body = [Op("BAR.SYNC 0x0", stall=8), *[Op("HMMA.16816.F32 R4, R8, R12, R4")] * 160, *[Op(ADD)] * 12]
    wide = dataclasses.replace(chip, values=chip.values | {"add_queue_bytes": 1 << 20})
    assert 1600 <= per_round(wide, body, 4) < 1700  # with the way of the additions to the queue
    # The pipe of a quarter holds eight additions, L2's queue 4096 bytes. The barrier waits behind the others.
    assert per_round(chip, body, 4) == 1600 + ((12 - 8) * 4 * 512 - 4096) / 16


HMMA = Op("HMMA.16816.F32 R4, R8, R12, R4")
LOAD, STORE = Op("LDG.E.128 R16, desc[UR4][R2.64]", writes=0), Op("STG.E.128 desc[UR4][R2.64], R4")


def test_stores_leave_the_sm_at_the_rate_of_l2(chip: Chip) -> None:
    # Two warps on each quarter, four stores of 512 bytes each, 32 bytes a clock.
    assert per_round(chip, [HMMA, *[STORE] * 4], 8) == pytest.approx(8 * 4 * 512 / 32, rel=0.01)
    # Kernels without products are bounded by memory as a whole.
    assert per_round(chip, [STORE] * 4, 8) < 100


def test_loads_have_their_share_of_l2(chip: Chip) -> None:
    body = [dataclasses.replace(HMMA, waits=1), *[LOAD] * 4]  # a round waits for its loads
    # 64 bytes a clock for one SM, 1000 for all four; with 100 for all, 25.
    shared, scarce = (
        memory.shared(dataclasses.replace(chip, values=chip.values | {"l2_gbs": gbs})) for gbs in (1000, 100)
    )
    assert memory.share(scarce) == scarce["load_bytes_per_clock"] == 25
    usual = per_round(shared, body, 8)
    assert usual == pytest.approx(300 + 4 * 512 / 64, rel=0.02)  # a warp's own loads and their latency
    assert per_round(scarce, body, 8) == pytest.approx(8 * 4 * 512 / 25, rel=0.02)
    # cp.async has the same share, bulk copies have that of one SM alone.
    alone, beside = (per_round(one, groups(0), 1) for one in (shared, scarce))
    assert beside - alone == pytest.approx(512 * (1 / 25 - 1 / 64), abs=1)
    assert shared["copy_bytes_per_clock"] == scarce["copy_bytes_per_clock"] == 64


def test_latency_of_what_l1_holds(chip: Chip) -> None:
    one = sass.parse(listing("k", [LOAD]))["k"].instructions[0]

    def latency(found: Sectors | None) -> tuple[float, float, float]:
        return Pipes(chip, sectors=lambda _: found).of_memory(one, 300)

    assert latency(None) == (300, 512, 0)
    assert latency(Sectors(16, 4, 16, 1)) == (300, 512, 0)
    assert latency(Sectors(16, 4, 0, 0)) == (40, 0, 0)
    assert latency(Sectors(16, 4, 4, 0.25)) == (40 + 0.25 * 260, 128, 0)


def test_latency_of_the_slowest_line(chip: Chip) -> None:
    one = sass.parse(listing("k", [LOAD]))["k"].instructions[0]
    cold = dataclasses.replace(chip, values=chip.values | {"line_spread": 50, "line_share": 1})

    def latency(found: Sectors | None, warps: int, rounds: int = 0, *, meets: bool = True) -> float:
        pipes = Pipes(cold, sectors=lambda _: found, warps=warps, rounds=rounds)
        return pipes.of_memory(one, 300, meets=meets)[0]

    assert latency(None, 1) == 300 + 2 * 50  # 16 bytes of each lane: four lines, two doublings
    assert latency(Sectors(16, 4, 16, 1), 1) == 300 + 2 * 50
    assert latency(Sectors(16, 4, 16, 1), 16) == 300 + 6 * 50  # 64 lines
    # Without barriers, the warps meet once, at the end of the CTA: three rounds and the rest spread by twice as much.
    assert latency(Sectors(16, 4, 16, 1), 16, meets=False) == 300 + 6 * 50
    assert latency(Sectors(16, 4, 16, 1), 16, 3, meets=False) == 300 + (2 + 4 / 2) * 50
    # L1 lacks four lines in one access of four.
    assert latency(Sectors(16, 4, 4, 0.25), 1) == 40 + 0.25 * (300 + 2 * 50 - 40)
    assert latency(Sectors(16, 4, 0, 0), 16) == 40


def test_warps_meet_at_the_barriers_behind_a_load(chip: Chip) -> None:
    """A load waits for the lines of all four warps where a barrier follows, in a round also that of the next one."""
    cold = dataclasses.replace(chip, values=chip.values | {"line_spread": 50, "line_share": 1})
    ops = [LOAD, Op("BAR.SYNC 0x0", waits=1), LOAD, Op("EXIT")]
    function = sass.parse(listing("k", ops))["k"]
    straight = kernel_model.build(cold, function, 128, 1).paths.before
    assert [step.latency for step in straight if step.loaded] == [300 + 4 * 50] * 2  # the CTA's end is a barrier, too
    first = dataclasses.replace(LOAD, label=".L_x_1")
    function = sass.parse(listing("k", [first, *ops[1:3], Op("@P0 BRA `(.L_x_1)", stall=5), Op("EXIT")]))["k"]
    around = kernel_model.build(cold, function, 128, 1).paths.around
    assert [step.latency for step in around if step.loaded] == [300 + 4 * 50] * 2


def test_loads_that_a_warp_waits_for_together_wait_for_the_slowest_of_all(chip: Chip) -> None:
    """Two loads of four lines each before the first wait, and one behind it."""
    cold = dataclasses.replace(chip, values=chip.values | {"line_spread": 50, "line_share": 1})
    ops = [LOAD, LOAD, Op("FADD R16, R16, R17", waits=1), LOAD, Op("EXIT")]
    path = list(sass.parse(listing("k", ops))["k"].instructions)

    def latencies(chip: Chip) -> list[int]:
        return [step.latency for step in Pipes(chip).steps(path, {}, []) if step.loaded]

    assert latencies(cold) == [300 + 3 * 50, 300 + 3 * 50, 300 + 2 * 50]
    # Kernels with products wait for L2 in the simulation: only the lines of the load itself are late.
    of_products = dataclasses.replace(cold, values=cold.values | {"cold_share": 0.0, "l2_latency": 200})
    assert latencies(of_products) == [300 + 2 * 50] * 3
    # A share of the lines comes from DRAM: one of eight, of which either load waits, or of four.
    some = dataclasses.replace(cold, values=cold.values | {"cold_share": 0.1, "l2_latency": 200, "line_spread": 0})
    eight, four = (math.ceil(200 + 100 * (1 - 0.9**lines)) for lines in (8, 4))
    assert latencies(some) == [eight, eight, four]


def test_what_a_warp_has_waited_for_is_not_on_its_way(chip: Chip) -> None:
    """Loads of sectors that another one asked for: before the first wait they are on their way, behind it they hit L1.

    PTX has all three together. ptxas may put a wait between them, so that registers are used again.
    """
    ops = [LOAD, LOAD, Op("FADD R16, R16, R17", waits=1), LOAD, Op("EXIT")]
    path = list(sass.parse(listing("k", ops))["k"].instructions)
    found = {path[0].address: Sectors(16, 4, 16, 1)}  # the other two have the same sectors
    pipes = Pipes(chip, sectors=lambda one: found.get(one.address, Sectors(16, 4, 0, 0, pending=1)))
    assert [step.latency for step in pipes.steps(path, {}, []) if step.latency >= 40] == [300, 300, 40]


def test_dram_gives_two_sectors_at_once(chip: Chip) -> None:
    """Half of the accesses find their four lines in L2, so that twice the share of the others comes from DRAM."""
    one = sass.parse(listing("k", [LOAD]))["k"].instructions[0]
    values = chip.values | {"line_share": 1, "line_spread": 0, "cold_share": 0.1, "l2_latency": 200}
    some = dataclasses.replace(chip, values=values)

    def latency(cold: float, chip: Chip = some) -> float:
        return Pipes(chip, sectors=lambda _: Sectors(16, 4, 16, 1, cold=cold)).of_memory(one, 300)[0]

    assert latency(1.0) == pytest.approx(200 + 100 * (1 - 0.9**4))
    assert latency(0.5) == pytest.approx(200 + 100 * (1 - 0.8**4) / 2)
    assert latency(0.05) == pytest.approx(200 + 100 * 0.05)  # all of them come from DRAM
    assert latency(0.0) == 200
    # In kernels without products L2 may have lost what the CTA touched before.
    streaming = dataclasses.replace(chip, values={k: v for k, v in values.items() if k != "cold_share"})
    assert latency(0.5, streaming) == 300


def test_ctas_start_at_a_rate(chip: Chip) -> None:
    """Of 24 CTAs that do nothing 8 are there at first; of the 16 others one starts every 1000 clocks."""
    slow = dataclasses.replace(chip, values=chip.values | {"cta_interval": 1000})
    function = sass.parse(listing("k", [Op("EXIT")]))["k"]
    clocks = kernel_model.build(slow, function, 32, 8).run([0] * 24, 8).clocks
    assert 15 * 1000 <= clocks < 15 * 1000 + 100


def test_a_cta_keeps_its_place_until_its_stores_have_left(chip: Chip) -> None:
    """Four warps store 512 bytes each, of which one leaves in a clock."""
    slow = dataclasses.replace(chip, values=chip.values | {"drain_bytes_per_clock": 1})
    function = sass.parse(listing("k", [STORE, Op("EXIT")]))["k"]
    clocks = kernel_model.build(slow, function, 128, 1).run([0] * 3, 1).clocks
    assert 2 * 4 * 512 <= clocks < 2 * 4 * 512 + 100


@pytest.mark.parametrize(("slots", "wanted"), [(1, [1]), (3, [1, 2, 3]), (32, [1, 2, 3, 4, 6, 9, 13, 19, 28, 32])])
def test_numbers_of_resident_ctas_that_are_simulated(slots: int, wanted: list[int]) -> None:
    assert _simulated(slots) == wanted


def test_clocks_between_simulated_numbers_of_ctas() -> None:
    known = {4: _Time(100, 10), 8: _Time(200, 30)}
    assert _interpolated(known, 4) == known[4]
    assert _interpolated(known, 5) == _Time(125, 15)


@pytest.mark.parametrize("rounds", [1, 16])
def test_ctas_follow_each_other(chip: Chip, rounds: int) -> None:
    """The distances between the first CTAs of an SM are no part of a CTA's time."""
    ops = [Op("MUFU.EX2 R0, R1", writes=0, label=".L_x_1"), *[Op("MUFU.EX2 R0, R1", writes=0)] * 7]
    function = sass.parse(listing("k", [*ops, Op("@P0 BRA `(.L_x_1)", stall=5), Op("EXIT")]))["k"]
    model = kernel_model.build(chip, function, 128, 8)
    found = predict.predict(model, [rounds] * 4 * 8 * 20)
    # 32 CTAs at a time, 20 times; the XU takes 64 clocks for each round of a CTA of an SM.
    assert found.clocks == pytest.approx(8 * 20 * 64 * rounds, rel=0.1)


@pytest.mark.parametrize(
    ("opcode", "kind", "lane_bytes", "passes"),
    [
        ("REDG.E.ADD.F32x4.FTZ.RN.STRONG.GPU", "add_global", 16, 4),
        ("REDG.E.ADD.F32x2.FTZ.RN.STRONG.GPU", "add_global", 8, 2),
        ("REDG.E.ADD.F32.FTZ.RN.STRONG.GPU", "add_global", 4, 1),
        ("REDG.E.ADD.F16x2.RN.STRONG.GPU", "add_global", 4, 1),
        ("RED.E.ADD.STRONG.GPU", "add_global", 4, 1),
        ("REDG.E.ADD.64.STRONG.GPU", "add_global", 8, 2),
        ("ATOMG.E.ADD.STRONG.GPU", "store_global", 4, 0),
        ("STG.E.128", "store_global", 16, 0),
        ("REDUX.SUM", "vote", 0, 0),
    ],
)
def test_bytes_that_an_instruction_adds(opcode: str, kind: str, lane_bytes: int, passes: int) -> None:
    (one,) = sass.parse(listing("k", [Op(f"{opcode} [R2.64], R4")]))["k"].instructions
    assert (pipes.class_of(opcode), pipes.lane_bytes(one), pipes.add_passes(one)) == (kind, lane_bytes, passes)


def test_barrier_of_a_cta(chip: Chip) -> None:
    # Four warps arrive at once; the unit takes two clocks for each, and seven more.
    alone = per_round(chip, [Op("BAR.SYNC 0x0", stall=8)], 1)
    four = per_round(chip, [Op("BAR.SYNC 0x0", stall=8)], 4)
    assert alone == 2 + 7 + 13 + 10
    assert four == 4 * 2 + 7 + 13 + 10


def test_contention_slows_the_busy_pipe(chip: Chip) -> None:
    body = [Op("HMMA.16816.F32 R4, R8, R12, R4"), Op("FFMA R1, R1, R2, R3")] * 32
    slowed = dataclasses.replace(chip, values=chip.values | {"tensor_by_fma": 0.5})
    # Half a clock for each of two warps' 32, but for those issued while no product is underway.
    assert 24 <= per_round(slowed, body, 8) - per_round(chip, body, 8) <= 32


# What an FFMA asks of the even bank's port and of the odd one's; RZ, constants and uniform registers are no registers.
FMAS = {
    "R0, R1, R2, R4": (2, 1),
    "R0, R1, R2, RZ": (1, 1),
    "R0, R1.reuse, R2, RZ": (1, 1),
    "R0, |R1|, -R3, c[0x0][0x8]": (0, 2),
    "R0, UR4, R2, 2": (1, 0),
}


@pytest.mark.parametrize(("operands", "banks"), FMAS.items())
def test_registers_are_read_through_ports(operands: str, banks: tuple[int, int]) -> None:
    code = sass.parse(listing("k", [Op(f"FFMA {operands}"), Op("EXIT")]))["k"].instructions
    assert ports.demand(code[0], code[1], 2, 1) == banks


def test_ports_of_products_and_of_what_returns() -> None:
    ops = [
        Op("HMMA.16816.F32.BF16 R8, R4.reuse, R40.reuse, R8", reuse=3),
        Op("HMMA.16816.F32.BF16 R12, R4, R40, R12"),
        Op("HMMA.1688.F32.BF16 R12, R4, R41, R12"),
        Op("LDSM.16.M88.4 R56, [R0+UR4]", writes=0),
        Op("LDS R56, [R0]", writes=0),
        Op("MUFU.EX2 R65, R65", writes=0),
        Op("ISETP.NE.U32.AND P0, PT, R2, UR4, PT"),
        Op("STG.E.64 desc[UR4][R2.64], R5"),
        Op("EXIT"),
    ]
    code = sass.parse(listing("k", ops))["k"].instructions
    found = [ports.demand(one, before, 2, 1) for before, one in zip([code[-1], *code[:-1]], code, strict=True)]
    # A, B and the sums are 4, 2 and 4 registers; of the second product A and B are kept, a pair of each.
    assert found == [(5, 5), (3, 3), (3, 4), (4, 4), (1, 1), (2, 2), (1, 0), (1, 1), (0, 0)]


@pytest.mark.parametrize(("sources", "clocks"), [("R2, R5, R8", 2), ("R2, R5, R7", 2), ("R2, R5, RZ", 1)])
def test_bound_by_ports(chip: Chip, sources: str, clocks: int) -> None:
    # Two of three registers are in one bank, or each of two in its own; 4 clocks more may be behind at the end.
    ported = dataclasses.replace(chip, values=chip.values | {"port_window": 2})
    body = [Op(f"FFMA R{10 + i}, {sources}") for i in range(64)]
    assert per_round(ported, body, 4) == pytest.approx(64 * clocks + 13 + 10, abs=4)
    assert per_round(chip, body, 4) == 64 + 13 + 10


@pytest.mark.sampled(4)
@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize(
    "name", ["fma3", "fma2", "16fma3", "32fma3", "16fma2", "32add2", "4ldmatrix_16fma3", "8ex2_16fma3"]
)
def test_ports_as_measured(name: str, warps: int) -> None:
    """Loops that nothing was read from, on an H200: two registers a clock, beside products and alone."""
    document = json.loads((RESULTS / "model_later.json").read_text())
    (measured,) = (r["clocks"] for r in document["loops"] if (r["name"], r["warps"]) == (f"ports_{name}", warps))
    loop = next(x for x in loops.calibration() if (x.name, x.warps) == (f"ports_{name}", warps))
    assert validation.loop_clocks(chips.load("h200"), loop) == pytest.approx(measured, rel=0.13)


# A warp that loads for itself: wait for the tile, ask for the next one, leave the stage.
RING = [
    Op("MOV R1, RZ"),
    Op("UTMALDG.4D [UR24], [UR8]"),
    Op("UTMALDG.4D [UR24], [UR8]"),
    Op("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2], R3", stall=2, writes=0),
    Op("@!P0 BRA `(.L_x_9)", stall=5, waits=1),
    Op("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2+0x8], R3", stall=2, writes=0, label=".L_x_1"),
    Op("@!P0 BRA `(.L_x_8)", stall=5, waits=1),
    Op("HMMA.16816.F32 R4, R8, R12, R4"),
    Op("@P1 BRA `(.L_x_2)", stall=5),
    Op("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2+0x10], R3", stall=2, writes=0),
    Op("MOV R7, 0x4000", waits=1),
    Op("SYNCS.ARRIVE.TRANS64 RZ, [R2+0x8], R7"),
    Op("UTMALDG.4D [UR24], [UR8]"),
    Op("SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R2+0x10], RZ", label=".L_x_2"),
    Op("ISETP.NE.AND P2, PT, R0, RZ, PT", stall=13),
    Op("@P2 BRA `(.L_x_1)", stall=5),
    Op("EXIT"),
    Op("BRA `(.L_x_1)", label=".L_x_8"),
    Op("BRA `(.L_x_1)", label=".L_x_9"),
]


def test_hand_over_of_tiles(chip: Chip) -> None:
    function = sass.parse(listing("k", RING))["k"]

    def clocks(latency: int) -> float:
        changed = dataclasses.replace(chip, values=chip.values | {"copy_latency": latency})
        model = kernel_model.build(changed, function, 32, 1)
        tiles, left, q = model.paths.rings
        assert (model.handovers.stages, tiles, left) == (3, Ring(0, 1, 0, 1, 0x4000), Ring(1, 0, 0, 1))
        assert q.copies == 0
        short, long = (model.run([rounds], 1) for rounds in (10, 30))
        assert max(long.stalls.items(), key=lambda item: item[1])[0][1] == "mbarrier"
        return (long.clocks - short.clocks) / 20

    # Two tiles are ahead: a copy is asked for two rounds before its tile is waited for.
    assert clocks(7000) - clocks(5000) == pytest.approx(1000, abs=1)


def test_a_warp_that_loads_goes_another_way(chip: Chip) -> None:
    model = kernel_model.build(chip, sass.parse(listing("k", RING))["k"], 128, 1)
    done = [(step.special, step.ring, step.ahead) for step in model.paths.around if step.special]
    assert done == [("wait", 0, 0), ("arrive", 1, 0)]
    done = [(step.special, step.ring, step.ahead) for step in model.paths.load_around if step.special]
    assert done == [("wait", 0, 0), ("wait", 1, -1), ("copy", 0, 2), ("arrive", 1, 0)]
    branch = next(one for one in model.function.instructions if one.predicate == "P1")
    stated = kernel_model.build(chip, model.function, 128, 1, stated={branch.address: False})
    assert len(stated.paths.around) == len(model.paths.load_around)


# Eight warps compute, a ninth asks for the copies.
FILLED = [
    *(Op("SYNCS.EXCH.64 URZ, [UR4], UR6") for _ in range(12)),
    Op("@P0 BRA `(.L_x_5)", stall=5),
    Op("UBLKCP.S.G [UR24], [UR8], UR10", label=".L_x_3"),
    Op("@P1 BRA `(.L_x_3)", stall=5),
    Op("EXIT"),
    Op("MOV R1, RZ", label=".L_x_5"),
    Op("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2], R3", stall=2, writes=0, label=".L_x_1"),
    Op("@!P0 BRA `(.L_x_8)", stall=5, waits=1),
    Op("HMMA.16816.F32 R4, R8, R12, R4"),
    Op("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2+0x8], R3", stall=2, writes=0),
    Op("@!P0 BRA `(.L_x_8)", stall=5, waits=1),
    Op("SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R2+0x10], RZ"),
    Op("@P2 BRA `(.L_x_1)", stall=5),
    Op("EXIT"),
    Op("BRA `(.L_x_1)", label=".L_x_8"),
]


def test_a_ring_that_another_warp_fills(chip: Chip) -> None:
    model = kernel_model.build(chip, sass.parse(listing("k", FILLED))["k"], 288, 1)
    assert (model.warps, model.handovers.stages) == (8, 4)
    assert model.paths.filler == Filler(4, 2, [0])
    assert [step.special for step in model.paths.around if step.special] == ["wait", "wait", "arrive"]
    assert model.run([10], 1).clocks > model.run([5], 1).clocks


def groups(ahead: int) -> list[Op]:
    """Return a loop that loads a group of 512 bytes a round and waits for all but the last ``ahead``."""
    load = [Op("LDGSTS.E.BYPASS.128 [R4], desc[UR4][R2.64]"), Op("LDGDEPBAR", writes=0)]
    return [*load, Op(f"DEPBAR.LE SB0, {ahead:#x}"), Op("HMMA.16816.F32 R4, R8, R12, R4")]


def test_groups_of_copies(chip: Chip) -> None:
    # Of none ahead, a round is its own copy: 8 clocks of the way from L2, 4000 until it is there. Of three, a quarter.
    alone, ahead = per_round(chip, groups(0), 1), per_round(chip, groups(3), 1)
    assert alone == pytest.approx(4008, abs=40)
    assert ahead == pytest.approx(alone / 4, abs=20)


def test_an_instruction_that_is_never_executed_is_issued(chip: Chip) -> None:
    assert per_round(chip, [Op("@!PT LDS RZ, [RZ]", stall=1)] * 32, 1) == 32 + 13 + 10


def test_memory_bounds_a_launch(chip: Chip) -> None:
    ops = groups(0)
    loop = [dataclasses.replace(ops[0], label=".L_x_1"), *ops[1:]]
    end = [Op("@P0 BRA `(.L_x_1)", stall=5), Op("STG.E.64 desc[UR4][R2.64], R4"), Op("EXIT")]
    function = sass.parse(listing("k", [*loop, *end]))["k"]
    model = kernel_model.build(chip, function, 32, 1)
    rounds = [2, 3] * 6
    assert predict.l2_bytes(model, rounds) == 30 * 512 + 12 * 32 * 8
    free = predict.predict(model, rounds, tensor_bytes=1000000)
    assert (free.bound, free.dram_bytes) == ("sm", 0)  # L2 holds all of it
    by_dram = predict.predict(model, rounds, tensor_bytes=60_000_000)
    assert (by_dram.bound, by_dram.clocks) == ("dram", 60_000_000 / 500)  # 500 bytes a clock at 1 GHz
    # An SM waits for its own copies, not for its stores.
    stores = [Op("STG.E.64 desc[UR4][R2.64], R4", label=".L_x_1"), *end]
    function = sass.parse(listing("k", stores))["k"]
    slow = dataclasses.replace(chip, values=chip.values | {"l2_gbs": 0.5})
    guess = dataclasses.replace(chip, values=chip.values | {"l2_gbs": 0.5, "l2_binds": 0})
    assert predict.predict(kernel_model.build(guess, function, 32, 1), rounds).bound == "sm"
    by_l2 = predict.predict(kernel_model.build(slow, function, 32, 1), rounds)
    assert (by_l2.bound, by_l2.clocks) == ("l2", (30 + 12) * 32 * 8 / 0.5)


def test_launches_are_made_of_ctas() -> None:
    alone, together = _Time(0, 100), _Time(0, 150)
    assert _Sms([1] * 10, [alone], 4).run() == 300
    # Two on the SM, who get done 2 in 150: the older ends after 100, the younger has a third then and is the older one
    # for 66.7; the third, which has 22 % by then, is alone for 77.8.
    assert _Sms([1] * 3, [alone, together], 1).run() == pytest.approx(100 + 200 / 3 + 700 / 9)
    # The longest first: 4 and 3 rounds on two SMs, then 2 and 1.
    assert _Sms([4, 3, 2, 1], [alone], 2).run() == 500
    assert _Sms([1], [_Time(30, 5)], 132).run() == 35


def test_ctas_have_shares_of_the_average_rounds() -> None:
    assert _shared_out([16, 16], [0.5, 1.5]) == [8, 24]
    assert _shared_out([16, 16], []) == [16, 16]


@pytest.mark.parametrize(
    ("each", "ctas", "wanted"),
    [
        ((), 3, []),
        ((0.995, 1.005), 2, []),
        ((0.5, 1.5), 4, [0.5, 1.5, 0.5, 1.5]),
        ((0.5, 1.5), 3, [0.6, 1.8, 0.6]),  # of the average of the launch
    ],
)
def test_recorded_ctas_follow_each_other(each: tuple[float, ...], ctas: int, wanted: list[float]) -> None:
    assert Launch({}, 2, 1.0, each=each).shares(ctas) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("opcode", "flops"),
    [
        ("HMMA.16816.F32.BF16", 2 * 16 * 8 * 16), ("HMMA.1688.F32.TF32", 2 * 16 * 8 * 8),
        ("QMMA.SF.16832.F32.E4M3.E4M3.E8", 2 * 16 * 8 * 32), ("OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X", 2 * 16 * 8 * 64),
        ("IMMA.16832.S8.S8", 2 * 16 * 8 * 32), ("IMMA.8816.S8.S8", 2 * 8 * 8 * 16), ("FFMA", 0),
        ("HMMA.1684.F32.TF32", 2 * 16 * 8 * 4), ("OMMA.SF.SP.168128.F32.E2M1.E2M1.UE4M3.4X", 2 * 16 * 8 * 128),
    ],
)  # fmt: skip
def test_operations_of_matrix_instructions(opcode: str, flops: int) -> None:
    assert predict.flops_of(opcode) == flops


def test_rounds_of_a_problem() -> None:
    kernel = next(b for b in builtins() if b.entry == "attention_bf16_128x64_d128_r16")
    assert problem.parse("2,512,3,128").rounds(kernel) == [8] * (2 * 3 * 4)
    # Longest first: rows 384 to 511 see 512 keys, rows 0 to 127 see 128.
    assert problem.parse("1,512,1,128,causal").rounds(kernel) == [8, 6, 4, 2]
    assert problem.parse("1,130,1,64,causal").rounds(kernel) == [3, 2]
    # ... and of all heads first.
    assert problem.parse("1,256,2,128,causal").rounds(kernel) == [4, 4, 2, 2]
    assert problem.parse("1,256,2,128,causal").rounds(kernel, 1) == [4, 2, 4, 2]
    assert problem.parse("1,384,2,128,causal").rounds(MXFP8) == [6, 6, 3, 3]  # tiles of 192 rows
    assert problem.parse("1,1024,2,64").flops == 4 * 2 * 1024 * 1024 * 64
    assert problem.parse("1,1024,2,64").tensor_bytes(kernel) == 4 * 2 * 1024 * 64 * 2
    assert problem.parse("1,1024,2,64").tensor_bytes(MXFP8) == (3 * 33 / 32 + 2) * 2 * 1024 * 64
    copy = next(b for b in builtins() if b.operation == "copy_rows")
    with pytest.raises(InvalidArgumentError, match="copy_rows_b16 is not a kernel of attention with Q and K tiles"):
        problem.parse("1,1,1,1").rounds(copy)
    for word in ("1,2,3", "1,2,3,4,5", "0,1,1,1", "a,b,c,d"):
        with pytest.raises(InvalidArgumentError, match=f"--problem is '{word}'"):
            problem.parse(word)
