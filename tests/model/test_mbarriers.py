"""What warps hand each other: a ring of tiles as it was recorded, in the simulator; and what is not understood."""

import dataclasses
from functools import cache

import numpy as np
import pytest

from pysm120 import Device
from pysm120.machine_code import sass
from pysm120.model import chips, kernel_model, mbarriers, validation
from pysm120.model.handovers import Deed, Ring
from pysm120.model.mbarriers import NotUnderstoodError, Recorded, Seen
from pysm120.model.problem import Problem
from pysm120.model.recorded import Launch, Recording, executed_of
from pysm120.runtime.module import builtin_image, builtins

pytestmark = pytest.mark.virtual

# Two warps multiply, of tiles of 256 bytes in STAGES stages: full[s] at 1024 + 8 s, empty[s] at 1152 + 8 s.
RING = """.version 9.0
.target sm_120f
.address_size 64
.visible .entry ring(.param .u64 param_tiles, .param .u64 param_sums, .param .u32 param_rounds)
.reqntid 64
{
    .shared .align 128 .b8 stages[1024];
    .shared .align 8 .b64 full[16];
    .shared .align 8 .b64 empty[16];
    .reg .pred is_other, more, done;
    .reg .b64 at, from, out;
    .reg .b32 tid, rounds, n, stage, phase, asked, to, barrier, leaving, a_<4>, b_<2>;
    .reg .f32 s_<4>;
    ld.param.u64 at, [param_tiles];
    ld.param.u64 out, [param_sums];
    ld.param.u32 rounds, [param_rounds];
    mov.u32 tid, %tid.x;
    setp.ne.u32 is_other, tid, 0;
@is_other bra ready;
    INITS
    fence.mbarrier_init.release.cluster;
    FILLS
ready:
    bar.sync 0;
    mov.f32 s_0, 0f00000000;
    mov.f32 s_1, s_0;
    mov.f32 s_2, s_0;
    mov.f32 s_3, s_0;
    mov.u32 n, 0;
    mov.u32 stage, 0;
    mov.u32 phase, 0;
round:
    mov.u32 barrier, full;
    mad.lo.u32 barrier, stage, 8, barrier;
full_wait:
    mbarrier.try_wait.parity.shared::cta.b64 done, [barrier], phase;
@!done bra full_wait;
    mov.u32 to, stages;
    mad.lo.u32 to, stage, 256, to;
    ld.shared.v4.b32 {a_0, a_1, a_2, a_3}, [to];
    mov.b32 b_0, a_0;
    mov.b32 b_1, a_1;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
        {s_0, s_1, s_2, s_3}, {a_0, a_1, a_2, a_3}, {b_0, b_1}, {s_0, s_1, s_2, s_3};
    mov.u32 leaving, empty;
    mad.lo.u32 leaving, stage, 8, leaving;
    mbarrier.arrive.shared::cta.b64 _, [leaving];
@is_other bra asked_for;
    add.u32 asked, n, STAGES;
    setp.ge.u32 more, asked, rounds;
@more bra asked_for;
empty_wait:
    mbarrier.try_wait.parity.shared::cta.b64 done, [leaving], phase;
@!done bra empty_wait;
    mad.wide.u32 from, asked, 256, at;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 256;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [to], [from], 256, [barrier];
asked_for:
    bar.warp.sync -1;
    add.u32 stage, stage, 1;
    setp.lt.u32 more, stage, STAGES;
@!more mov.u32 stage, 0;
@!more xor.b32 phase, phase, 1;
    add.u32 n, n, 1;
    setp.lt.u32 more, n, rounds;
@more bra round;
    mad.wide.u32 out, tid, 4, out;
    st.global.f32 [out], s_0;
    ret;
}
"""
CALIBRATED = "h200"


def text_of(stages: int) -> str:
    """Return the kernel with so many stages."""
    inits = [f"mbarrier.init.shared::cta.b64 [{name} + {8 * s}], {count};" for s in range(stages) for name, count in
             (("full", 1), ("empty", 64))]  # fmt: skip
    fills = []
    for s in range(stages):
        fills += [
            f"mov.u32 barrier, full; add.u32 barrier, barrier, {8 * s};",
            f"mov.u32 to, stages; add.u32 to, to, {256 * s}; add.u64 from, at, {256 * s};",
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 256;",
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [to], [from], 256, [barrier];",
        ]
    return RING.replace("STAGES", str(stages)).replace("INITS", "\n".join(inits)).replace("FILLS", "\n".join(fills))


def run(ptx: str, rounds: int, target: str = "sm_120f") -> tuple[Recording, list[Seen], dict[int, str]]:
    """Run the kernel twice: how its branches went, what it did to mbarriers, and the statements about them."""
    function = sass.disassemble(sass.assemble(ptx, target))["ring"]
    with Device("virtual") as device:
        kernel = device.load(ptx)["ring"]
        arguments = device.zeros(64 * rounds, np.float32), device.empty(64, np.float32), np.uint32(rounds)
        with device.profile() as profile:
            kernel(1, 64, *arguments)
            device.synchronize()
        recording = Recording(function, [Launch(executed_of(profile.statements, "ring"), 1, rounds)], 2)
        with mbarriers.watching(device, "ring", recording.marker) as seen:
            kernel(1, 64, *arguments)
            device.synchronize()
        from pysm120.observe import watch

        kinds = {one.text_line: mbarriers.kind_of(one.text) for one in watch.instructions(kernel)}
    return recording, seen, kinds


def model_of(entry: str, target: str, rows: int) -> kernel_model.KernelModel:
    """Return the model of a kernel of the library, whose hand-overs are recorded with so many rows."""
    chip = chips.load("rtx5090" if target == "sm_120f" else "h200")
    index, builtin = next((i, b) for i, b in enumerate(builtins()) if b.entry == entry)
    ptx = builtin_image(index, target, "ptx").decode()
    record = validation.recorder(ptx, target, Problem(1, rows, 1, builtin.head_dim), builtin)
    model = validation.builtin_model(chip, entry, record=record)
    assert model.handovers.why == ""
    return model


@pytest.mark.parametrize("stages", [2, 3])
def test_a_ring(stages: int) -> None:
    ptx = text_of(stages)
    recording, seen, kinds = run(ptx, 11)
    found = Recorded(recording.function, kinds, seen)
    assert (found.rounds, found.stages, found.loaders) == (11, stages, frozenset({0}))
    assert found.rings == [Ring(1, 1, 0, 1, 256), Ring(64, 0, 0, 1, 0, left=stages)]
    line = {word: ptx[: ptx.rindex(word)].count("\n") + 1 for word in
            ("done, [barrier]", "_, [leaving]", "done, [leaving]", "_, [barrier], 256", "[to], [from]")}  # fmt: skip
    deeds = [Deed("wait", 0, 0), Deed("arrive", 1, 0, 32), Deed("wait", 1, 0), Deed("arrive", 0, stages, 1),
             Deed("copy", 0, stages, 256)]  # fmt: skip
    code = recording.function.instructions
    done = {one.line: deed for one in code if (deed := found.around(code, code).get(one.address))}
    assert {deed for row, deed in done.items() if min(line.values()) - 2 <= row <= max(line.values())} == set(deeds)

    # The simulated warps do the same, and wait for it: a tile is asked for when the one `stages` before has been left.
    recording.handovers = found
    chip = chips.load(CALIBRATED)

    def clocks(latency: int) -> float:
        changed = dataclasses.replace(chip, values=chip.values | {"copy_latency": latency, "target": "sm_120"})
        model = kernel_model.build(changed, recording.function, 64, 1, recording=recording)
        assert model.handovers is found
        assert model.paths.loaders == {0}
        short, long = (model.run([rounds], 1).clocks for rounds in (12, 36))
        return (long - short) / 24

    assert clocks(9000) - clocks(6000) == pytest.approx(3000 / stages, abs=1)


def test_bytes_that_are_announced_apart() -> None:
    """An expect_tx before the arrival: the phase has the bytes of both, and the same actions as without it."""
    whole, part = "b64 _, [barrier], 256;", "b64 _, [barrier], 96;"
    ptx = text_of(3).replace(
        f"mbarrier.arrive.expect_tx.shared::cta.{whole}",
        f"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [barrier], 160;\nmbarrier.arrive.expect_tx.shared::cta.{part}",
    )
    recording, seen, kinds = run(ptx, 11)
    assert {160, 96} == {one.announced for one in seen if one.announced}
    found = Recorded(recording.function, kinds, seen)
    assert found.rings == [Ring(1, 1, 0, 1, 256), Ring(64, 0, 0, 1, 0, left=3)]
    recording.handovers = found
    chip = dataclasses.replace(chips.load(CALIBRATED), values=chips.load(CALIBRATED).values | {"target": "sm_120"})
    model = kernel_model.build(chip, recording.function, 64, 1, recording=recording)
    assert model.handovers is found


def test_turns_of_loaders() -> None:
    assert mbarriers._turns({(r, 3 - r % 2) for r in range(7)}) == [3, 2]
    assert not mbarriers._turns({(r, 0) for r in range(7)})
    assert not mbarriers._turns({(r, warp) for r in range(7) for warp in (0, 1)})
    with pytest.raises(NotUnderstoodError, match="several warps load, but not one after the other"):
        mbarriers._turns({(0, 3), (1, 2), (2, 2)})


def test_loaders_of_nvfp4_take_turns() -> None:
    """Eight warps load, one in each round, as recorded; warp 0 fills the ring, half of its stages."""
    paths = model_of("attention_nvfp4_128x64_d64", "sm_120f", 512).paths
    assert list(paths.turns) == [4, 1, 6, 3, 0, 5, 2, 7]
    assert set(paths.starters) == {0}
    loads = {
        warp: [n for n, way in enumerate(paths.of_warp(warp, 12)) if any(step.special == "copy" for step in way)]
        for warp in range(8)
    }
    assert loads == {4: [0, 8], 1: [1, 9], 6: [2, 10], 3: [3, 11], 0: [4], 5: [5], 2: [6], 7: [7]}


def test_ways_that_do_something_else_are_refused() -> None:
    recording, seen, kinds = run(text_of(3), 11)
    function = recording.function
    # A warp that arrives once less, and one that is a round behind.
    without = [one for one in seen if (one.warp, one.round, one.kind) != (1, 4, "arrive")]
    with pytest.raises(NotUnderstoodError, match=r"arrived at in two phases at once|about another phase"):
        Recorded(function, kinds, without)
    found = Recorded(function, kinds, seen)
    before = [Deed("copy", 0, 0, 256)]
    with pytest.raises(NotUnderstoodError, match=r"only .* executes"):
        found.require(True, before, [])  # noqa: FBT003
    recording.handovers = found
    recording.handovers.rounds = 12
    chip = dataclasses.replace(chips.load(CALIBRATED), values=chips.load(CALIBRATED).values | {"target": "sm_120"})
    model = kernel_model.build(chip, function, 64, 1, recording=recording)
    assert "executes '" in model.handovers.why
    assert model.run([8], 1).clocks > 0


def test_what_is_not_understood() -> None:
    ptx = text_of(3).replace("b64 _, [leaving]", "b64 token, [leaving]").replace("from, out;", "from, out, token;")
    ptx = ptx.replace(
        "try_wait.parity.shared::cta.b64 done, [leaving], phase", "try_wait.shared::cta.b64 done, [leaving], token"
    )
    with pytest.raises(NotUnderstoodError, match=r"line \d+ of the PTX, 'mbarrier.try_wait.shared.* is not simulated"):
        run(ptx, 4)


def seen(*events: tuple[int, int, int, str, int, int]) -> list[Seen]:
    """Return (warp, row, round, kind, address, amount) as what was seen; a copy's bytes are announced by 'expect'."""
    return [
        Seen(w, row, r, kind if kind != "expect" else "arrive", at, amount if kind != "expect" else 1,
             amount if kind == "expect" else 0, met=True)
        for w, row, r, kind, at, amount in events
    ]  # fmt: skip


@cache
def ring_of_two() -> sass.Function:
    """Return the machine code of the kernel with two stages."""
    return sass.disassemble(sass.assemble(text_of(2), "sm_120f"))["ring"]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (seen((0, 1, -1, "init", 8, 2), (0, 2, -1, "init", 8, 2)), "address 0x8 is initialised again .line 2"),
        (seen((0, 1, -1, "arrive", 8, 1)), "was not initialised"),
        (seen((0, 1, -1, "init", 8, 3), (0, 2, 0, "arrive", 8, 2), (1, 2, 0, "arrive", 8, 2)), "in two phases at once"),
        (seen((0, 1, -1, "init", 8, 1), (0, 2, 0, "copy", 8, 0)), "takes a copy whose bytes were not announced"),
        (seen((0, 1, -1, "init", 8, 1), (0, 2, -1, "expect", 8, 64), (0, 3, -1, "copy", 8, 0), (1, 4, 0, "wait", 8, 0)),
         "the producer warps do not execute the main loop"),
        (seen((0, 1, -1, "init", 8, 1)), "there are no hand-overs"),
        (seen((0, 1, -1, "init", 8, 1), (0, 4, 0, "wait", 8, 0)), "no warp arrives at the mbarrier that line 4"),
        (seen((0, 1, -1, "init", 8, 1), *((0, 2, r, "arrive", 8, 1) for r in (0, 1, 2, 2, 3))), "about another phase"),
        (seen((0, 1, -1, "init", 8, 1), (0, 1, -1, "init", 16, 2), *((0, 2, r, "arrive", a, a // 8) for r, a in
         enumerate((8, 16, 8, 16)))), "the phases of the mbarrier at shared address 0x8 differ"),
    ],
)  # fmt: skip
def test_what_no_ring_does(events: list[Seen], message: str) -> None:
    function = ring_of_two()
    with pytest.raises(NotUnderstoodError, match=message):
        Recorded(function, {1: "init", 2: "arrive", 3: "copy", 4: "wait"}, events)


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("mbarrier.init.shared::cta.b64 [a], 1", "init"),
        ("@p mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [a], 64", "arrive"),
        ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [a], 64", "expect"),
        ("mbarrier.try_wait.parity.shared::cta.b64 p, [a], 0", "wait"),
        ("mbarrier.test_wait.shared::cta.b64 p, [a], state", "other"),
        ("mbarrier.arrive.noComplete.b64 s, [a], 1", "other"),
        ("mbarrier.inval.shared.b64 [a]", "other"),
        ("cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [d], [m, {x, y}], [b]", "copy"),
        ("cp.async.bulk.global.shared::cta.bulk_group [d], [s], 16", ""),
        ("cp.async.bulk.commit_group", ""),
        ("cp.async.mbarrier.arrive.shared.b64 [a]", "other"),
        ("@!p bra there", ""),
        ("bar.sync pair, 64", "meet"),
        ("barrier.cta.sync.aligned 1, 64", "meet"),
        ("@p bar.arrive 1, 64", "reach"),
        ("bar.warp.sync -1", ""),
        ("barrier.cluster.arrive", ""),
    ],
)
def test_kinds_of_statements(statement: str, kind: str) -> None:
    assert mbarriers.kind_of(statement) == kind


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("entry", "target", "rings"),
    [
        # By the headers of the templates: Q, then K and V of each stage, which one thread announces; all threads leave.
        ("attention_bf16_128x64_d128_r16", "sm_120f",
         [Ring(1, 2, 1, 0, 32768), Ring(1, 2, 0, 1, 16384), Ring(1, 2, 0, 1, 16384), Ring(256, 0, 0, 1)]),
        ("attention_f16_64x32_d256_w4", "sm_90",
         [Ring(1, 4, 1, 0, 32768), Ring(1, 4, 0, 1, 16384), Ring(1, 4, 0, 1, 16384), Ring(128, 0, 0, 1)]),
    ],
)  # fmt: skip
def test_rings_of_attention(entry: str, target: str, rings: list[Ring]) -> None:
    model = model_of(entry, target, 256)
    assert list(model.handovers.rings) == rings
    # In a round the stage that is left gets K of `stages` later, and the one before it V of `stages` - 1.
    deeds = model.handovers.around(model.function.instructions, [])
    copies = {(deed.ring, deed.ahead) for deed in deeds.values() if deed.kind == "copy"}
    assert copies == {(1, model.handovers.stages), (2, model.handovers.stages - 1)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("entry", "stages"),  # as the configs of the templates have them
    [("attention_mxfp8_128x64_d64", 5), ("attention_bf16_128x64_d64_any_r16", 2)],
)
@pytest.mark.parametrize("target", ["sm_120f", "sm_90"])
def test_kernels_that_the_library_launches(entry: str, stages: int, target: str) -> None:
    """Of MXFP8 and with features, on either chip: the device states the capability that takes this PTX."""
    chip = chips.load("rtx5090" if target == "sm_120f" else "h200")
    index, builtin = next((i, b) for i, b in enumerate(builtins()) if b.entry == entry)
    ptx = builtin_image(index, target, "ptx").decode()
    record = validation.recorder(ptx, target, Problem(1, 256, 1, 64, causal=True), builtin)
    model = validation.builtin_model(chip, entry, record=record)
    assert model.recording is not None
    assert model.handovers.why == ""
    assert model.handovers.stages == stages
