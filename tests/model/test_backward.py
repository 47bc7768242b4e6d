"""The timing model of the backward pass: its problems, its recordings, the kernels beside it, and measured launches."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pysm120 import __main__
from pysm120.machine_code import sass
from pysm120.model import backward, chips, problem, record, streams, validation, work
from pysm120.model.handovers import Ring
from pysm120.model.kernel_model import KernelModel
from pysm120.model.problem import Problem
from pysm120.model.recorded import Recording
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import Builtin, builtin_image, builtin_index, builtins

pytestmark = pytest.mark.virtual

MEASURED = Path(__file__).resolve().parents[2] / "results" / "h200" / "backward.json"
FORWARD = next(b for b in builtins() if b.operation == "attention")
MAIN = {
    target: next(
        b
        for b in builtins()
        if (b.operation, b.precision, b.head_dim, b.q_rows, b.kv_rows) == ("attention_backward", "bf16", 128, 64, keys)
    )
    for target, keys in (("sm_120f", 64), ("sm_90", 128))
}


def made(q_rows: int, kv_rows: int, **fields: Any) -> Builtin:
    """Return the record of a kernel of the backward pass."""
    return Builtin("k", "", 256, 0, operation="attention_backward", q_rows=q_rows, kv_rows=kv_rows, **fields)


def test_problems_with_fewer_kv_heads() -> None:
    found = problem.parse("4,2048,32/8,128,causal")
    assert found == Problem(4, 2048, 32, 128, causal=True, kv_heads=8)
    assert str(found) == "4,2048,32/8,128,causal"
    assert problem.parse("4,2048,32/32,128") == Problem(4, 2048, 32, 128)
    with pytest.raises(InvalidArgumentError, match="32 heads are not a multiple of 5 kv heads"):
        problem.parse("4,2048,32/5,128")
    with pytest.raises(InvalidArgumentError, match="at least 1 each"):
        problem.parse("4,2048,32/0,128")
    # Keys and values of a quarter of the heads: q and o of 8 MiB each, k and v of 2 MiB.
    assert Problem(1, 1024, 32, 128, kv_heads=8).tensor_bytes(FORWARD) == 2 * (8 << 20) + 2 * (2 << 20)


def test_rounds_of_the_backward_pass() -> None:
    # 300 rows: five tiles of 64 queries, three of 128 keys.
    assert Problem(1, 300, 2, 64).rounds(made(64, 128)) == [5] * 6
    # Causal: the keys from 128 on are seen from the third tile of queries on. Two heads take turns.
    together = made(64, 128, group_heads=32, group_rows=1 << 17)
    assert Problem(1, 300, 2, 64, causal=True).rounds(together) == [5, 5, 3, 3, 1, 1]
    # A CTA walks the tiles of both heads of q that share its keys.
    assert Problem(1, 300, 4, 64, causal=True, kv_heads=2).rounds(together) == [10, 10, 6, 6, 2, 2]
    assert Problem(2, 64, 4, 32).flops_of(made(64, 64)) == 10 * 2 * 4 * 64**2 * 32
    assert Problem(2, 64, 4, 32, causal=True).flops_of(made(64, 64)) == 5 * 2 * 4 * 64**2 * 32


@pytest.mark.parametrize("words", ["1,512,2,128", "1,600,2,128,causal", "1,448,4/2,128,causal"])
def test_rounds_are_those_that_the_virtual_device_counts(words: str) -> None:
    kernel, of = MAIN["sm_90"], problem.parse(words)
    ptx = builtin_image(builtin_index(kernel.entry) or 0, "sm_90", "ptx").decode()
    image = builtin_image(builtin_index(kernel.entry) or 0, "sm_90", "cubin")
    function = record.with_lines(sass.disassemble(image, kernel.entry)[kernel.entry], ptx, "sm_90")
    launch = record.count(kernel, ptx, of)
    counted = Recording(function, [launch], kernel.threads // 32).rounds
    assert counted == pytest.approx(sum(of.rounds(kernel)) / len(of.rounds(kernel)))


def model_of(target: str) -> KernelModel:
    """Return the model of a target's kernel, with what the virtual device records of it."""
    kernel = MAIN[target]
    ptx = builtin_image(builtin_index(kernel.entry) or 0, target, "ptx").decode()
    found = validation.recorder(ptx, target, Problem(1, 256, 1, 128), kernel)
    return validation.builtin_model(
        chips.load("rtx5090" if target == "sm_120f" else "h200"), kernel.entry, record=found
    )


def test_hand_overs() -> None:
    """With one stage of dO, lane 0 loads while the other lanes of its warp go on: rounds are counted by lane."""
    handovers = model_of("sm_120f").handovers
    assert handovers.why == ""
    # K and V once; a tile of Q with its rows; a tile of dO, which has one stage.
    assert list(handovers.rings) == [Ring(1, 4, 1, 0, 32768), Ring(1, 3, 0, 1, 16912), Ring(1, 2, 0, 1, 16384)]


def test_hand_overs_between_halves_of_the_warps() -> None:
    """Their mbarriers and named barriers are recorded, and each warp is simulated with its own."""
    model = model_of("sm_90")
    paths, rounds = model.paths, 4
    assert model.handovers.why == ""
    # K and V; a tile of Q and dO with its rows; dS is ready, by the threads that have it; all threads have left a tile.
    kv, q = Ring(1, 4, 1, 0, 65536), Ring(2, 5, 0, 1, 33296)
    assert list(model.handovers.rings) == [kv, q, Ring(128, 0, 0, 1), Ring(256, 0, 0, 1, left=1)]
    # A thread with P loads the first tiles, one with dS all further ones: three stages.
    assert (set(paths.starters), set(paths.loaders)) == ({0}, {4})
    ways = [paths.of_warp(warp, rounds)[-1] for warp in range(8)]
    copies = [{step.ahead for step in way if step.special == "copy"} for way in ways]
    assert copies == [{2} if warp == 4 else set() for warp in range(8)]
    # Each warp with P arrives for the one with the same keys, at a barrier of their own.
    meetings = [[(step.special, step.ring) for step in way if step.special in {"barrier", "reach"}] for way in ways]
    assert meetings == [[("reach", 1 + w) if w < 4 else ("barrier", w - 3)] for w in range(8)]
    # Behind the rounds a warp waits for dS, multiplies it by K, adds dQ, and stores dK or dV in 16 bits.
    waits = [step.ring for step in paths.behind if step.special == "wait"]
    assert waits == [2]
    assert sum(step.added for step in paths.behind) == 64 * 128 * 4 // 8
    assert sum(step.stored for step in paths.behind) == 2 * 128 * 128 * 2 // 8


@pytest.mark.parametrize(
    ("section", "results"),
    [("The kernels of 2026-11-30", "backward_roles"), ("Tiles of SM120 on a Hopper", "backward_sm120_tiles")],
)
def test_the_document_has_the_measured_launches(section: str, results: str) -> None:
    launches = json.loads(MEASURED.with_name(f"{results}.json").read_text())["launches"]
    of_main = {(one["entry"], one["problem"]): one["clocks"] for one in launches if one["entry"].count("_") > 3}
    page = MEASURED.parents[2] / "docs" / "explanation" / "model-validation.md"
    table = page.read_text(encoding="utf-8").split(f"### {section}")[1].split("\n\n")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:6]] for line in table.splitlines()[2:]]
    assert {
        (f"attention_backward_bf16_{tiles}", shown.replace(", ", ",")): int(clocks.replace(",", ""))
        for tiles, shown, _, clocks, _ in rows
    } == of_main
    for *_, predicted, clocks, error in rows:
        assert error == f"{int(predicted.replace(',', '')) / int(clocks.replace(',', '')) - 1:+.1%}".replace("%", " %")


@pytest.mark.parametrize("wanted", ["_d128 4,2048,32,128,causal", "_d256 4,2048,16,256"])
def test_measured_launches_of_halves_of_the_warps(wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The document has the errors of all 15."""
    document = json.loads(MEASURED.with_name("backward_roles.json").read_text())
    row = next(one for one in document["launches"] if f"{one['entry']} {one['problem']}".endswith(wanted))
    words = ["--chip", document["chip"], "--problem", row["problem"], "--mhz", str(row["mhz"])]
    assert __main__.main(["model", row["entry"], *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["handovers"]["by"] == "recording"
    assert abs(found["clocks"] / row["clocks"] - 1) < 0.09


def test_the_whole_pass(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["model", MAIN["sm_120f"].entry, "--problem", "1,512,8,128,causal"]
    assert __main__.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    whole, chip = found["pass"], chips.load("rtx5090")
    delta, main, dq = whole["kernels"]
    assert [one["kernel"] for one in whole["kernels"]] == [
        "attention_backward_delta_bf16", MAIN["sm_120f"].entry, "attention_backward_dq",
    ]  # fmt: skip
    assert main["clocks"] == found["clocks"]
    assert min(delta["clocks"], dq["clocks"]) > chip["launch_clocks"]
    assert whole["clocks"] == pytest.approx(sum(one["clocks"] for one in whole["kernels"]), abs=2)
    flops = 5 * 8 * 512**2 * 128
    assert whole["tflops"] == pytest.approx(flops / whole["microseconds"] / 1e6, abs=0.1)
    assert whole["tensor_share"] == pytest.approx(flops / whole["clocks"] / (512 * 170), abs=1e-4)
    # A tile of 64 x 64 adds 64 x 128 numbers; 36 of 64 tiles of a head are seen.
    assert found["add_gbs"] == pytest.approx(36 * 8 * 64 * 128 * 4 / found["microseconds"] / 1e3, abs=1)
    assert __main__.main(command) == 0
    shown = capsys.readouterr().out
    assert f"{whole['tensor_share']:.1%} of the tensor pipe" in shown
    assert "or more: the limit is unknown" in next(line for line in shown.splitlines() if "adds in L2" in line)


def test_the_whole_pass_in_mxfp8(capsys: pytest.CaptureFixture[str]) -> None:
    """The operands are packed first: what the library launches is what is predicted, in its order."""
    main = next(b for b in builtins() if b.operation == "attention_backward" and b.precision == "mxfp8")
    words = f"1,256,4/2,{main.head_dim}"
    assert __main__.main(["model", main.entry, "--problem", words, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)["pass"]
    with Device("virtual") as device:
        launch = work.of_backward(device, main, problem.parse(words))
        with device.profile() as p:
            launch()
    assert [one["kernel"] for one in whole["kernels"]] == list(p.kernels)
    assert whole["clocks"] == pytest.approx(sum(one["clocks"] for one in whole["kernels"]), abs=3)
    queries, keys, _, _ = whole["kernels"]
    start = chips.load("rtx5090")["launch_clocks"]
    assert start < keys["clocks"] < queries["clocks"]
    # 2048 operations of a block-scaled product for an SM and clock.
    assert whole["tensor_share"] == pytest.approx(
        10 * 4 * 256**2 * main.head_dim / whole["clocks"] / (2048 * 170), abs=1e-4
    )


def test_streams_of_the_packing_kernels() -> None:
    main = next(
        b for b in builtins() if b.operation == "attention_backward" and (b.precision, b.head_dim) == ("mxfp8", 128)
    )
    before, after = backward.companions(main)
    assert [one.entry for one in (*before, *after)] == [
        "attention_backward_pack_queries_f16_d128", "attention_backward_pack_keys_f16_d128", "attention_backward_dq",
    ]  # fmt: skip
    of = problem.parse("2,1000,8/2,128")
    queries, keys = (backward.stream_of(one, main, of, {}, 512) for one in before)
    # 16 tiles of 64 queries of 16 heads and 8 tiles of 128 keys of 4 heads; a CTA has 32 rows.
    assert (queries.ctas, queries.recorded_ctas) == (16 * 16 * 2, 8 * 2)
    assert (keys.ctas, keys.recorded_ctas) == (4 * 8 * 4, 4 * 4)
    assert queries.tensor_bytes == (2 + 2 + 2 + 1 + 1 + 4) * 2 * 8 * 1000 * 128
    assert keys.tensor_bytes == (2 + 2 + 1 + 1) * 2 * 2 * 1000 * 128


def _stream(rows: int = 2048) -> tuple[bytes, sass.Function, streams.Stream]:
    """Return delta of a problem on an H200."""
    kernel, of = MAIN["sm_90"], Problem(4, rows, 32, 128)
    delta = backward.companions(kernel)[0][0]
    small = backward.recorded_problem(of)
    executed = record.executed("sm_90", [delta.entry], kernel, small)[delta.entry]
    index = builtin_index(delta.entry) or 0
    image = builtin_image(index, "sm_90", "cubin")
    ptx = builtin_image(index, "sm_90", "ptx").decode()
    function = record.with_lines(sass.disassemble(image, delta.entry)[delta.entry], ptx, "sm_90")
    return image, function, backward.stream_of(delta, kernel, of, executed, small.rows)


def test_what_bounds_a_kernel_without_products() -> None:
    chip = chips.load("h200")
    image, function, stream = _stream()
    usual = streams.predict(chip, image, function, stream)
    assert usual.bound == "dram"
    # Two bytes of o and dout and four of sums for each element; 4055 GB/s.
    assert usual.dram_bytes == 8 * 4 * 2048 * 32 * 128
    assert usual.dram_clocks == pytest.approx(usual.dram_bytes / 4055e9 * chip["mhz"] * 1e6)
    assert usual.clocks > usual.start + usual.dram_clocks
    fast = dataclasses.replace(chip, values=chip.values | {"dram_gbs": 1e9})
    found = streams.predict(fast, image, function, stream)
    assert found.bound == "sm"
    assert usual.sm_clocks == found.sm_clocks < found.clocks - found.start < usual.clocks
    # What fits in half of L2 comes from there, and sooner.
    large = dataclasses.replace(chip, values=chip.values | {"l2_bytes": 1 << 30})
    found = streams.predict(large, image, function, stream)
    assert (found.dram_bytes, found.dram_clocks) == (0, 0)
    assert found.sm_clocks < usual.sm_clocks
    # Twice the CTAs take twice as long.
    twice = dataclasses.replace(stream, ctas=2 * stream.ctas)
    assert streams.predict(chip, image, function, twice).sm_clocks == pytest.approx(2 * usual.sm_clocks)
    nothing = dataclasses.replace(stream, executed=dict.fromkeys(stream.executed, 0))
    with pytest.raises(InvalidArgumentError, match="no loop of attention_backward_delta_bf16 was executed"):
        streams.predict(chip, image, function, nothing)


LAUNCHES = ("_d256 4,2048,16,256", "delta_bf16 1,16384,32,128", "dq 4,2048,32,128", "_d128 1,4096,32,128,causal")


@pytest.mark.parametrize("wanted", LAUNCHES)
def test_measured_launches_are_predicted_as_documented(wanted: str) -> None:
    document = validation.read(MEASURED)
    row = next(row for row in document["launches"] if validation.name_of(row).endswith(wanted))
    # The main kernels stay: delta and dq need the record of theirs. They come behind the row, and are not predicted.
    document |= {"loops": [], "launches": [row, *(one for one in document["launches"] if "of" not in one)]}
    first = next(validation.compare(document, MEASURED.parent))
    assert first.name.endswith(wanted)
    assert abs(first.error) < 0.09, first
