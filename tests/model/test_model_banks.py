"""Bank conflicts in the timing model: those that the virtual device counted, in clocks as an H200 takes them."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pysm120 import Device, __main__
from pysm120.machine_code import sass
from pysm120.model import chips, kernel_model, predict
from pysm120.model.chips import Chip
from pysm120.model.predict import Prediction
from pysm120.model.recorded import Banks, Launch, Recording, banks_of, executed_of

pytestmark = pytest.mark.virtual

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 8
TIMES = 8  # accesses of a round

# Every lane has an offset of its own, where it is stored; {body} is done again and again.
KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 offsets, .param .u64 out, .param .u32 rounds)
.reqntid {threads}
{{
    .reg .b64 p, skip;
    .reg .b32 n, lane, tid, at, first, t<4>, r<32>, sum;
    .reg .pred more;
    .shared .align 1024 .b8 block[8192];
    ld.param.u64 p, [offsets];
    mov.u32 tid, %tid.x;
    and.b32 lane, tid, 31;
    mul.wide.u32 skip, lane, 4;
    add.u64 p, p, skip;
    ld.global.b32 at, [p];
    mov.u32 n, block;
    add.u32 at, at, n;
    mov.u32 first, at;
    st.volatile.shared.b32 [at], at;
    mov.u32 sum, 0;
    bar.sync 0;
    ld.param.u32 n, [rounds];
again:
    .pragma "nounroll";
{body}
    sub.u32 n, n, 1;
    setp.ne.u32 more, n, 0;
@more bra again;
    add.u32 sum, sum, at;
    ld.param.u64 p, [out];
    mul.wide.u32 skip, tid, 4;
    add.u64 p, p, skip;
    st.global.b32 [p], sum;
    ret;
}}
"""
# One load after another: each brings the address of the next.
CHAIN = "\n".join(["    ld.volatile.shared.b32 at, [at];"] * TIMES)
# Loads that wait for nothing, and then for all of them.
ROW = "\n".join(f"    ld.volatile.shared.b32 r{k}, [at];" for k in range(TIMES)) + "\n" + "\n".join(
    f"    add.u32 sum, sum, r{k};" for k in range(TIMES)
)  # fmt: skip
MATRICES = "    xor.b32 at, at, 4096;\n" + "\n".join(
    f"    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{r{k}, r{k + 8}, r{k + 16}, r{k + 24}}}, [at + {128 * k}];"
    for k in range(TIMES)
) + "\n" + "\n".join(f"    add.u32 sum, sum, r{k};" for k in range(4 * TIMES))  # fmt: skip
LANE = np.arange(32)


def known(body: str, warps: int) -> tuple[str, sass.Function]:
    """Return the PTX and the code of a kernel."""
    ptx = KERNEL.format(body=body, threads=32 * warps)
    return ptx, sass.disassemble(sass.assemble(ptx, "sm_90"))["k"]


def launched(ptx: str, offsets: npt.NDArray[np.int64], warps: int) -> Launch:
    """Return what the virtual device records."""
    with Device("virtual") as device:
        kernel = device.load(ptx.replace("sm_90", "sm_120"))["k"]
        place, out = device.array(offsets.astype(np.uint32)), device.zeros(32 * warps, np.uint32)
        with device.profile() as p:
            kernel(1, 32 * warps, place, out, np.uint32(ROUNDS))
            device.synchronize()
    return Launch(executed_of(p.statements, "k"), 1, ROUNDS, banks_of(p.statements, "k"))


def predicted(chip: Chip, body: str, offsets: npt.NDArray[np.int64], warps: int) -> Prediction:
    """Return the prediction of a kernel of one CTA on each SM."""
    ptx, function = known(body, warps)
    recording = Recording(function, [launched(ptx, offsets, warps)], warps)
    model = kernel_model.build(chip, function, 32 * warps, 1, recording=recording)
    return predict.predict(model, [ROUNDS] * int(chip["sms"]))


@pytest.fixture(scope="module")
def h200() -> Chip:
    return chips.load("h200")


@pytest.mark.parametrize("stride", [2, 8, 32])
def test_conflicts_cost_what_an_h200_took(h200: Chip, stride: int) -> None:
    """A chain of loads: two clocks for every other lane on the bank."""
    document = json.loads((ROOT / "results" / "h200" / "microbench.json").read_text())
    measured = {row["name"]: row["latency"]["median"] for row in document["results"] if row["latency"]}
    expected = measured[f"ld.shared.b32, {stride} lanes on a bank"] - measured["ld.shared.b32"]
    clocks = [predicted(h200, CHAIN, 4 * n * LANE, 1).round_clocks / TIMES for n in (1, stride)]
    assert clocks[1] - clocks[0] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("stride", [2, 8, 32])
def test_an_sm_takes_a_clock_for_each_wavefront(h200: Chip, stride: int) -> None:
    found = predicted(h200, ROW, 4 * stride * LANE, 16)
    assert found.round_clocks == pytest.approx(16 * TIMES * stride, rel=0.08)
    # Beside the loads, the store before the loop has them.
    assert found.conflicts == pytest.approx(1 - 1 / stride, abs=0.001)


def test_matrices_in_rows_of_128_bytes(h200: Chip) -> None:
    """Eight rows of 16 bytes on the same banks, and swizzled: 32 wavefronts and 4."""
    rows = 128 * (LANE % 8)
    for offsets, wavefronts in ((rows + 16 * (LANE // 8), 32), (rows + 16 * ((LANE // 8) ^ (LANE % 8)), 4)):
        found = predicted(h200, MATRICES, offsets, 16)
        assert found.round_clocks == pytest.approx(16 * TIMES * wavefronts, rel=0.08)


@pytest.mark.parametrize(("pitch", "wavefronts"), [(16, 8), (32, 16), (64, 32), (40, 4)])
def test_fragments_of_wmma(h200: Chip, pitch: int, wavefronts: int) -> None:
    """A wmma.load counts as several accesses, and becomes one LDSM.x4. `pitch`: elements of 2 bytes from row to row."""
    load = "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {{{}}}, [first], {};"
    loads = "\n".join(
        "    bar.sync 0;\n    "
        + load.format(", ".join(f"r{j}" for j in range(8)), pitch)
        + "".join(f"\n    add.u32 sum, sum, r{j};" for j in range(8))
        for _ in range(TIMES)
    )
    loads = f"    mov.u32 first, block;\n{loads}"
    _, function = known(loads, 16)
    assert sum(one.base == "LDSM" for one in function.of_loop(function.main_loop())) == TIMES
    found = predicted(h200, loads, 4 * LANE, 16)
    assert found.shares["shared"] * found.round_clocks == pytest.approx(16 * TIMES * wavefronts, rel=0.01)


@pytest.mark.parametrize("body", [CHAIN, ROW])
@pytest.mark.parametrize("warps", [1, 8])
def test_what_has_no_conflicts_stays_as_it_is(h200: Chip, body: str, warps: int) -> None:
    """Stride 1 and stride 33, and the same without what was recorded of the banks."""
    ptx, function = known(body, warps)
    for stride in (1, 33):
        launch = launched(ptx, 4 * stride * LANE, warps)
        assert not launch.banks
    without = kernel_model.build(h200, function, 32 * warps, 1)
    clocks = predict.predict(without, [ROUNDS] * int(h200["sms"])).clocks
    found = predicted(h200, body, 4 * 33 * LANE, warps)
    assert found.clocks == clocks
    assert found.conflicts == 0


def test_conflicts_of_a_part_of_the_rounds(h200: Chip) -> None:
    """The lanes' stride is 1 or 2 by turns: half as much as if it were always 2."""
    body = (
        f"{ROW}\n    xor.b32 lane, lane, 32;\n"
        "    and.b32 t1, tid, 31;\n    shr.u32 t2, lane, 5;\n    shl.b32 t1, t1, 2;\n    shl.b32 t1, t1, t2;\n"
        "    mov.u32 at, block;\n    add.u32 at, at, t1;"
    )
    ptx, _ = known(body, 16)
    launch = launched(ptx, 4 * LANE, 16)
    rows = [row for row, banks in launch.banks.items() if banks == Banks(1.5, 1)]
    assert len(rows) == TIMES
    assert predicted(h200, body, 4 * LANE, 16).round_clocks == pytest.approx(16 * TIMES * 1.5, rel=0.08)


@pytest.mark.parametrize(("stride", "wavefronts"), [(4, 4), (8, 8), (32, 32), (12, 4)])
def test_accesses_that_ptxas_makes_one(h200: Chip, stride: int, wavefronts: int) -> None:
    """Four words side by side, which one LDS.128 reads: no conflicts of its own where the lanes' words lie in a row."""
    loads = f"    mad.lo.u32 t0, lane, {4 * stride}, t1;\n" + "\n".join(
        "    bar.sync 0;\n"
        + "\n".join(f"    ld.shared.b32 r{j}, [t0 + {4 * j}];" for j in range(4))
        + "".join(f"\n    add.u32 sum, sum, r{j};" for j in range(4))
        for _ in range(TIMES)
    )
    loads = f"    mov.u32 t1, block;\n{loads}"
    _, function = known(loads, 16)
    assert sum(one.opcode == "LDS.128" for one in function.of_loop(function.main_loop())) == TIMES
    found = predicted(h200, loads, 4 * stride * LANE, 16)
    assert found.shares["shared"] * found.round_clocks == pytest.approx(16 * TIMES * wavefronts, rel=0.01)


def test_parts_and_sums_of_accesses() -> None:
    banks = Banks(6, 2)
    assert [banks.of(passes) for passes in (1, 2, 4, 8)] == [3, 6, 6, 8]
    assert Banks(1.5, 1).of(1) == 1.5
    # Loads by pairs of lanes: of 4 bytes, which a machine instruction may merge; and of 16 bytes, two groups at once.
    assert [Banks(1, 1, is_paired=True).of(passes) for passes in (1, 2, 4)] == [1, 1, 2]
    assert [Banks(conflicts, 2, is_paired=True).of(4) for conflicts in (2, 6)] == [2, 6]


def test_attention_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel of ours: no row, no share."""
    entry = "attention_bf16_128x64_d64_r16"
    assert __main__.main(["model", entry, "--problem", "1,512,4,64"]) == 0
    assert "bank conflicts" not in capsys.readouterr().out
    assert __main__.main(["model", entry, "--problem", "1,512,4,64", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bank_conflicts"] == 0


def test_a_profile_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`model --profile` shows conflicts, and what they cost."""
    ptx, _ = known(ROW, 4)
    (tmp_path / "k.ptx").write_text(ptx)
    (tmp_path / "k.cubin").write_bytes(sass.assemble(ptx, "sm_90"))
    clocks = {}
    for stride in (1, 8):
        np.save(tmp_path / "offsets.npy", (4 * stride * LANE).astype(np.uint32))
        words = ["profile", f"{tmp_path}/k.ptx", "--grid", "1", "--block", "128", "--json", f"{tmp_path}/p.json"]
        assert __main__.main([*words, f"{tmp_path}/offsets.npy", "u32[128]", f"u32:{ROUNDS}"]) == 0
        capsys.readouterr()
        words = ["model", f"{tmp_path}/k.cubin", "--chip", "h200", "--ctas", "132", "--profile", f"{tmp_path}/p.json"]
        assert __main__.main(words) == 0
        shown = capsys.readouterr().out
        assert ("bank conflicts" in shown) == (stride == 8)
        assert ("87.5%" in shown) == (stride == 8)
        assert __main__.main([*words, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["bank_conflicts"] == (0.875 if stride == 8 else 0)
        clocks[stride] = found["clocks_per_round"]
    assert clocks[8] - clocks[1] == pytest.approx(7 * 4 * TIMES, rel=0.2)
