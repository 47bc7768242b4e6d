"""``python -m pysm120 compare``: kernels of the library beside kernels in files, one problem, one chip, one clock."""

import json
from pathlib import Path
from typing import Any

import pytest

from pysm120 import __main__

pytestmark = pytest.mark.virtual

ENTRY = "attention_bf16_128x64_d64_r16"
# Sixteen products a round, of four warps: a tile of 64 queries and 8 keys at head size 64.
PRODUCTS = (
    """.version 8.0
.target sm_80
.address_size 64
.visible .entry peer(.param .u64 out, .param .u32 rounds)
.maxntid 128
{
    .reg .b64 p;
    .reg .b32 n, i, a<4>, b<2>;
    .reg .f32 c<4>;
    .reg .pred more;
    ld.param.u64 p, [out];
    ld.param.u32 n, [rounds];
    mov.u32 i, 0;
    mov.u32 a0, %tid.x;
    mov.u32 a1, a0;
    mov.u32 a2, a0;
    mov.u32 a3, a0;
    mov.u32 b0, a0;
    mov.u32 b1, a0;
    mov.f32 c0, 0f00000000;
    mov.f32 c1, c0;
    mov.f32 c2, c0;
    mov.f32 c3, c0;
again:
.pragma "nounroll";
"""
    + "    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {c0, c1, c2, c3}, {a0, a1, a2, a3}, {b0, b1}, "
    "{c0, c1, c2, c3};\n"
    * 8
    + """    add.u32 i, i, 1;
    setp.lt.u32 more, i, n;
@more bra again;
    st.global.f32 [p], c0;
    ret;
}
"""
)


@pytest.fixture
def peer(tmp_path: Path) -> str:
    (tmp_path / "peer.ptx").write_text(PRODUCTS)
    return f"{tmp_path}/peer.ptx"


def compare(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    """Return what ``compare --json`` prints."""
    given = __main__.main(["compare", *words, "--json"])
    shown = capsys.readouterr()
    assert given == status, shown.err + shown.out
    found: dict[str, Any] = json.loads(shown.out)
    return found


def test_a_problem(peer: str, capsys: pytest.CaptureFixture[str]) -> None:
    problem = ["--problem", "1,128,2,64"]
    found = compare(capsys, ENTRY, f"{peer},tile=64x8", f"{peer},tile=128x8,block=96,kernel=pee", *problem)
    assert (found["chip"], found["mhz"], found["problem"]) == ("rtx5090", 2407.0, "1,128,2,64")
    ours, theirs, other = found["kernels"]
    assert (ours["ctas"], ours["rounds"], ours["branches"]) == (4, 1, "recorded")  # each tile is split in two
    assert (theirs["ctas"], theirs["rounds"], theirs["warps"], theirs["branches"]) == (2 * 2, 16, 4, "by rules")
    assert (other["ctas"], other["rounds"], other["warps"]) == (2, 16, 3)
    for one in found["kernels"]:  # the same operations for every kernel, whatever it executes
        flops = one["tflops"] * one["microseconds"] * 1e6
        assert flops == pytest.approx(4 * 2 * 128 * 128 * 64, rel=0.02 + 0.05 / one["tflops"])
    # As `model` predicts each of them.
    for words, one in (([ENTRY], ours), ([peer, "--tile", "64x8"], theirs)):
        assert __main__.main(["model", *words, *problem, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["microseconds"] == one["microseconds"]


def test_the_table(peer: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"{peer},ctas=170,rounds=64", f"{peer},ctas=170", "--chip", "rtxpro6000", "--mhz", "2000"]
    assert __main__.main(["compare", *words]) == 3
    shown = capsys.readouterr().out
    assert "Whole launches on RTX PRO 6000" in shown
    assert "at 2000 MHz" in shown
    assert "100.0%" in shown
    assert "peer.ptx: peer (incomplete)" in shown  # two rows are of one file
    assert "incomplete: peer.ptx: peer: 32 rounds of the main loop are assumed" in shown
    found = compare(capsys, f"{peer},ctas=170,rounds=64,bytes=0", "--flops", "1000000000")
    (one,) = found["kernels"]
    assert one["tflops"] == pytest.approx(1e9 / one["microseconds"] / 1e6, rel=0.002)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.cubin"], "none.cubin: the kernel is 'none.cubin', neither a kernel of the library"),
        ([ENTRY], f"{ENTRY} needs --problem"),
        (["PEER", "--problem", "1,256,2,64"], "is not a kernel of attention with Q and K tiles: give --tile, or"),
        (["PEER,tile=64", "--problem", "1,256,2,64"], "--tile is '64', not the rows of queries and of keys such as"),
        (
            [f"{ENTRY},tile=64x8", "--problem", "1,256,2,64"],
            f"--tile is '64x8', but {ENTRY} is a kernel of the library",
        ),
        (["PEER,tiles=64x8"], "has 'tiles=64x8', not one of kernel, tile, ctas"),
        (["PEER,rounds=2,rounds=3"], "has rounds twice"),
        (["PEER,rounds=0"], "--rounds is '0', not an integer of at least 1"),
        (["PEER,rounds=2", "--flops", "x"], "--flops is 'x', not an integer of at least 1"),
        (["PEER", "--problem", "1,2,3,4", "--flops", "2"], "--problem determines the operations: leave out --flops"),
        (["PEER,rounds=2", "--chip", "gtx"], "the chip is 'gtx'"),
    ],
)
def test_refusals(words: list[str], message: str, peer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["compare", *(word.replace("PEER", peer) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
