"""``python -m pysm120 model`` on kernels that are not attention: loops, roles and blocks as others write them."""

import json
from pathlib import Path
from typing import Any

import pytest

from pysm120 import __main__
from pysm120.machine_code import sass

pytestmark = pytest.mark.virtual

HEAD = ".version 8.7\n.target sm_90\n.address_size 64\n"
# One thread computes an element: no loop, and no .maxntid.
NO_LOOP = (
    HEAD
    + """.visible .entry scale(.param .u64 out, .param .u32 count)
{
    .reg .b64 p, at;
    .reg .b32 i, n, size, block;
    .reg .f32 a;
    .reg .pred outside;
    ld.param.u64 p, [out];
    ld.param.u32 n, [count];
    mov.u32 i, %tid.x;
    mov.u32 block, %ctaid.x;
    mov.u32 size, %ntid.x;
    mad.lo.u32 i, block, size, i;
    setp.ge.u32 outside, i, n;
@outside bra done;
    mul.wide.u32 at, i, 4;
    add.u64 p, p, at;
    ld.global.f32 a, [p];
    add.f32 a, a, a;
    st.global.f32 [p], a;
done:
    ret;
}
"""
)
# first rounds of eight dependent FFMA, then second rounds of eight dependent square roots.
LOOPS = (
    HEAD
    + """.visible .entry loops(.param .u64 out, .param .u32 first, .param .u32 second)
.reqntid 128
{{
    .reg .b64 p, at;
    .reg .b32 n, m, i, tid;
    .reg .f32 a, half;
    .reg .pred more;
    ld.param.u64 p, [out];
    ld.param.u32 n, [first];
    ld.param.u32 m, [second];
    mov.u32 tid, %tid.x;
    mul.wide.u32 at, tid, 4;
    add.u64 p, p, at;
    ld.global.f32 a, [p];
    mov.f32 half, 0f3F000000;
{body}
    st.global.f32 [p], a;
    ret;
}}
"""
)
ADDS = "    fma.rn.f32 a, a, half, half;\n" * 8
ROOTS = "    sqrt.approx.f32 a, a;\n" * 8


def loop(name: str, body: str, count: str) -> str:
    """Return a loop of PTX that ptxas does not unroll."""
    begin = f'    mov.u32 i, 0;\n{name}:\n.pragma "nounroll";\n'
    return f"{begin}{body}    add.u32 i, i, 1;\n    setp.lt.u32 more, i, {count};\n@more bra {name};\n"


BOTH = LOOPS.format(body=loop("one", ADDS, "n") + loop("two", ROOTS, "m"))
# A tile is a loop of second rounds of roots, and eight additions.
NESTED = LOOPS.format(
    body=".reg .b32 j;\n.reg .pred again;\n    mov.u32 j, 0;\ntile:\n" + loop("inner", ROOTS, "m") + ADDS
    + "    add.u32 j, j, 1;\n    setp.lt.u32 again, j, n;\n@again bra tile;\n"
)  # fmt: skip
# A product of int4, which sm_90 emulates in a function, and a function of the user.
INT4 = LOOPS.format(
    body=".reg .b32 s<8>;\n    mov.b32 s4, 0;\n    mov.b32 s5, 0;\n    mov.b32 s6, 0;\n    mov.b32 s7, 0;\n"
    + loop("two", "    mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {s4, s5, s6, s7}, {n, m, i, tid}, {m, i}, "
           "{s4, s5, s6, s7};\n", "n")
    + "    add.u32 s4, s4, s5;\n    cvt.rn.f32.s32 a, s4;\n"
)  # fmt: skip
USERS = LOOPS.replace(".visible", """.func (.reg .f32 y) rounds(.reg .f32 x, .reg .u32 count)
{{
    .reg .u32 i;
    .reg .pred more;
    mov.f32 y, x;
    mov.u32 i, 0;
again:
    sqrt.approx.f32 y, y;
    add.u32 i, i, 1;
    setp.lt.u32 more, i, count;
@more bra again;
    ret;
}}
.visible""").format(body=loop("one", "    call (a), rounds, (a, m);\n", "n"))  # fmt: skip
# Warps 4 to 7 multiply, warps 0 to 3 read what they need.
ROLES = (
    HEAD
    + """.visible .entry roles(.param .u64 out, .param .u32 rounds)
.reqntid 256
{
    .shared .align 16 .b8 tile[4096];
    .reg .b64 p, at;
    .reg .b32 n, i, tid, x, y, s, a<4>, b<2>;
    .reg .f32 c<4>;
    .reg .pred more, reads;
    ld.param.u64 p, [out];
    ld.param.u32 n, [rounds];
    mov.u32 tid, %tid.x;
    mul.wide.u32 at, tid, 4;
    add.u64 p, p, at;
    mov.u32 s, tile;
    and.b32 x, tid, 127;
    mad.lo.u32 s, x, 4, s;
    mov.u32 i, 0;
    setp.lt.u32 reads, tid, 128;
@reads bra read;
    mov.f32 c0, 0f00000000;
    mov.f32 c1, c0;
    mov.f32 c2, c0;
    mov.f32 c3, c0;
multiply:
    bar.sync 1, 256;
    ld.shared.u32 a0, [s];
    mov.u32 a1, a0;
    mov.u32 a2, a0;
    mov.u32 a3, a0;
    mov.u32 b0, a0;
    mov.u32 b1, a0;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {c0, c1, c2, c3}, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3};
    bar.sync 2, 256;
    add.u32 i, i, 1;
    setp.lt.u32 more, i, n;
@more bra multiply;
    st.global.f32 [p], c0;
    ret;
read:
    ld.global.u32 y, [p];
    st.shared.u32 [s], y;
    bar.sync 1, 256;
    bar.sync 2, 256;
    add.u32 i, i, 1;
    setp.lt.u32 more, i, n;
@more bra read;
    ret;
}
"""
)
# Each round copies its own tile, to one of two stages in turn: the rules expect copies a round ahead.
LATE = (
    HEAD
    + """.visible .entry late(.param .u64 out, .param .u32 rounds)
.reqntid 128
{
    .shared .align 128 .b8 tile[4096];
    .shared .align 8 .b8 full[16];
    .reg .b64 p, at, none;
    .reg .b32 n, i, tid, s, f, stage, phase, half;
    .reg .f32 x, sum;
    .reg .pred more, met, is_first;
    ld.param.u64 p, [out];
    ld.param.u32 n, [rounds];
    mov.u32 tid, %tid.x;
    mov.u32 f, full;
    setp.eq.u32 is_first, tid, 0;
@is_first mbarrier.init.shared.b64 [f], 1;
@is_first mbarrier.init.shared.b64 [f + 8], 1;
    bar.sync 0;
    mov.u32 i, 0;
    mov.f32 sum, 0f00000000;
again:
    and.b32 stage, i, 1;
    shr.u32 phase, i, 1;
    and.b32 phase, phase, 1;
    mov.u32 f, full;
    mad.lo.u32 f, stage, 8, f;
    mov.u32 s, tile;
    mad.lo.u32 s, stage, 2048, s;
@!is_first bra wait;
    mbarrier.arrive.expect_tx.shared.b64 none, [f], 2048;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [p], 2048, [f];
wait:
    mbarrier.try_wait.parity.shared.b64 met, [f], phase;
@!met bra wait;
    mad.lo.u32 s, tid, 4, s;
    ld.shared.f32 x, [s];
    add.f32 sum, sum, x;
    bar.sync 0;
    add.u32 i, i, 1;
    setp.lt.u32 more, i, n;
@more bra again;
    mul.wide.u32 at, tid, 4;
    add.u64 p, p, at;
    st.global.f32 [p], sum;
    ret;
}
"""
)


def files(folder: Path, text: str) -> str:
    """Write a kernel's PTX and cubin; return the path of the cubin."""
    (folder / "k.ptx").write_text(text)
    (folder / "k.cubin").write_bytes(sass.assemble(text, "sm_90"))
    return f"{folder}/k.cubin"


def model(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    """Return the prediction of ``model --json`` for an H200."""
    given = __main__.main(["model", *words, "--chip", "h200", "--json"])
    shown = capsys.readouterr()
    assert given == status, shown.err + shown.out[:900]
    found: dict[str, Any] = json.loads(shown.out)
    assert bool(found["incomplete"]) == (status == 3)
    return found


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the error of ``model``, one line."""
    assert __main__.main(["model", *words, "--chip", "h200"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def profile(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """Profile the kernel of a folder; return the option and the file."""
    assert __main__.main(["profile", f"{folder}/k.ptx", "--json", f"{folder}/p.json", *words]) == 0
    capsys.readouterr()
    return "--profile", f"{folder}/p.json"


def test_a_kernel_without_a_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = files(tmp_path, NO_LOOP)
    assert "scale does not state the threads of a CTA: give --block" in refusal(capsys, path)
    assert "--block is '0', not one to three numbers" in refusal(capsys, path, "--block", "0")
    assert "--block is 32,64, which is 2048 threads; a CTA has at most 1024" in refusal(
        capsys, path, "--block", "32,64"
    )
    assert "but scale has no loop: leave out --rounds" in refusal(capsys, path, "--block", "256", "--rounds", "2")
    assert "--shared is '-1', not an integer of at least 0" in refusal(capsys, path, "--block", "64", "--shared=-1")
    found = model(capsys, path, "--block", "16,16", "--shared", "0", "--ctas", "1056")
    assert (found["ctas_per_sm"], found["warps"], found["rounds"]) == (8, 8, 0)
    # Each thread loads and stores four bytes: the early way out is not taken.
    assert found["l2_gbs"] * found["microseconds"] * 1e3 == pytest.approx(1056 * 256 * 8, rel=0.01)
    # A launch takes its start and, for each eight CTAs of an SM, at least the way to memory and back.
    two, four, eight = (model(capsys, path, "--block", "256", "--ctas", f"{n * 1360}")["clocks"] for n in (2, 4, 8))
    wave = (four - two) / 2
    assert wave > 600
    assert eight - four == pytest.approx(4 * wave, rel=0.05)
    assert __main__.main(["model", path, "--chip", "h200", "--block", "256"]) == 0
    assert "in the kernel" in capsys.readouterr().out


def test_the_threads_that_a_kernel_is_compiled_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = files(tmp_path, NO_LOOP.replace("\n{", "\n.maxntid 256\n{", 1))
    assert "but scale is compiled for at most 256 threads" in refusal(capsys, path, "--block", "512")
    assert model(capsys, path, "--block", "128")["warps"] == 4
    path = files(tmp_path, NO_LOOP.replace("\n{", "\n.reqntid 256\n{", 1))
    assert "but scale is compiled for 256 threads" in refusal(capsys, path, "--block", "128")
    assert model(capsys, path)["warps"] == 8


def test_loops_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = files(tmp_path, BOTH)
    launch = ["--grid", "2", "--block", "128", "f32[128]:ones"]
    recorded = model(capsys, path, "--ctas", "132", *profile(tmp_path, capsys, *launch, "u32:40", "u32:70"))
    adds = LOOPS.format(body=loop("one", ADDS, "n"))
    roots = LOOPS.format(body=loop("two", ROOTS, "m"))
    alone = [
        model(capsys, files(tmp_path, text), "--ctas", "132", "--rounds", rounds)["clocks"]
        for text, rounds in ((adds, "40"), (roots, "70"), (adds, "1"))
    ]
    # Both loops, and once what is around them.
    assert recorded["clocks"] == pytest.approx(alone[0] + alone[1] - alone[2], rel=0.03)
    path = files(tmp_path, BOTH)
    some = model(capsys, path, "--ctas", "132", "--rounds", "70", status=3)
    (sentence,) = some["incomplete"]
    assert "loops whose rounds nobody stated, at 0x" in sentence
    address = sentence.split("--loop ")[1].split("=")[0]
    stated = model(capsys, path, "--ctas", "132", "--rounds", "70", "--loop", f"{address}=40")
    other = model(capsys, path, "--ctas", "132", "--rounds", "40", "--loop", f"{address}=70")
    assert recorded["clocks"] in {stated["clocks"], other["clocks"]}
    assert "not the address of a loop" in refusal(capsys, path, "--rounds", "4", "--loop", "two=4")
    error = refusal(capsys, path, "--rounds", "4", "--loop", "0x10=4")
    assert f"0x10 is not the begin of a loop; beside the main loop there is {address}" in error
    assert "32 rounds of the main loop are assumed" in model(capsys, path, status=3)["incomplete"][0]


def test_a_loop_around_the_main_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A persistent kernel: the work of a tile outside the inner loop counts for every tile.

    With several tiles, a round is that of a tile.
    """
    path = files(tmp_path, NESTED)
    launch = ["--grid", "2", "--block", "128", "f32[128]:ones"]
    found = {}
    for tiles, rounds, seen in ((1, 60, 60), (30, 60, 30), (60, 30, 60)):
        words = profile(tmp_path, capsys, *launch, f"u32:{tiles}", f"u32:{rounds}")
        found[tiles, rounds] = model(capsys, path, "--ctas", "132", *words)
        assert found[tiles, rounds]["rounds"] == seen
    # 1800 rounds, and 30 times more of the eight dependent additions and of what leads to the inner loop.
    more = found[60, 30]["clocks"] - found[30, 60]["clocks"]
    assert 30 * 8 * 4 <= more <= 30 * 8 * 4 * 3


def test_what_is_around_an_inner_loop_overlaps_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tile loads from L2 in front of its inner loop what it adds behind it: nothing waits for that."""
    tile = "    mov.u32 j, 0;\ntile:\n"
    path = files(
        tmp_path,
        NESTED.replace(tile, f".reg .f32 b;\n{tile}    ld.volatile.global.f32 b, [p];\n").replace(
            "    add.u32 j, j, 1;\n", "    add.f32 a, a, b;\n    add.u32 j, j, 1;\n"
        ),
    )
    launch = ["--grid", "2", "--block", "128", "f32[128]:ones"]
    clocks = [
        model(capsys, path, "--ctas", "132", *profile(tmp_path, capsys, *launch, f"u32:{tiles}", f"u32:{rounds}"))[
            "clocks"
        ]
        for tiles, rounds in ((30, 20), (60, 10))
    ]
    assert 30 * 8 * 4 <= clocks[1] - clocks[0] <= 30 * (8 * 4 * 3 + 30)  # of the eight additions, not of the load


def test_products_that_a_function_emulates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A round takes at least what the ALUs need for the function, two clocks for each instruction."""
    path = files(tmp_path, INT4)
    (function,) = sass.disassemble(Path(path).read_bytes()).values()
    (body,) = set(function.called.values())
    on_alu = sum(one.base in {"LOP3", "SHF"} for one in body)
    assert on_alu > 80
    launch = ["--grid", "2", "--block", "128", "f32[128]:ones", "u32:64", "u32:3"]
    found = model(capsys, path, "--ctas", "132", *profile(tmp_path, capsys, *launch))
    assert found["rounds"] * found["clocks_per_round"] >= 64 * 2 * on_alu
    assert found["shares"]["tensor"] > 0


def test_a_function_with_branches_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = files(tmp_path, USERS)
    found = model(capsys, path, "--ctas", "132", "--rounds", "40", status=3)
    assert any("whose branches nobody recorded: its time is left out" in one for one in found["incomplete"])


def test_warps_with_roles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = files(tmp_path, ROLES)
    launch = ["--grid", "2", "--block", "256", "u32[256]:zeros", "u32:50"]
    found = model(capsys, path, "--ctas", "132", *profile(tmp_path, capsys, *launch))
    assert (found["warps"], found["rounds"]) == (4, 12)  # ptxas unrolls four rounds, and peels two of the fifty
    flops = found["tflops"] * found["microseconds"] * 1e6
    assert flops == pytest.approx(132 * 4 * 50 * 4096, rel=0.05)  # not of eight warps
    assumed = model(capsys, path, "--ctas", "132", "--rounds", "12", status=3)
    assert assumed["warps"] == 4
    assert "4 of the 8 warps of a CTA are assumed to execute the main loop" in assumed["incomplete"][0]
    assert model(capsys, path, "--ctas", "132", "--rounds", "12", "--warps", "4")["clocks"] == assumed["clocks"]
    assert "--warps is 9, but a CTA of 256 threads has 8 warps" in refusal(capsys, path, "--warps", "9")


def test_waits_that_the_rules_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = files(tmp_path, LATE)
    found = model(capsys, path, "--ctas", "132", "--rounds", "20", status=3)
    assert "waits for copies are left out" in found["incomplete"][0]
    assert found["l2_gbs"] * found["microseconds"] * 1e3 >= 132 * 20 * 2048  # the copies are counted
    assert __main__.main(["model", path, "--chip", "h200", "--rounds", "20"]) == 3
    assert "incomplete: waits for copies are left out" in capsys.readouterr().out


def test_options_of_files(capsys: pytest.CaptureFixture[str]) -> None:
    entry = "attention_bf16_128x64_d64_r16"
    for option, value in (("--block", "128"), ("--shared", "0"), ("--warps", "4"), ("--loop", "0x10=3")):
        error = refusal(capsys, entry, option, value)
        assert f"{option} is '{value}', but {entry} is a kernel of the library: leave it out" in error


def test_bytes_that_nothing_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CUTLASS passes the bytes of a tile as a parameter."""
    text = LATE.replace("[p], 2048, [f]", "[p], size, [f]").replace("none, [f], 2048", "none, [f], size")
    text = text.replace("    mov.u32 tid,", "    .reg .b32 size;\n    ld.param.u32 size, [bytes];\n    mov.u32 tid,")
    text = text.replace(".param .u32 rounds)", ".param .u32 rounds, .param .u32 bytes)")
    found = model(capsys, files(tmp_path, text), "--ctas", "132", "--rounds", "20", status=3)
    assert "the code does not tell the bytes that producers copy" in found["incomplete"][-1]
    assert found["l2_gbs"] * found["microseconds"] * 1e3 < 132 * 20 * 2048
