"""Local memory in the model: the lines that L1 and L2 have lost, by hand, and what they cost a kernel."""

import json
from pathlib import Path

import pytest

from pysm120 import __main__
from pysm120.machine_code import sass
from pysm120.machine_code.sass import Instruction
from pysm120.model import chips, local, memory
from pysm120.model.chips import Chip
from pysm120.model.local import Moved, Room
from pysm120.model.steps import Pipes
from pysm120.model.streams import from_dram

pytestmark = pytest.mark.virtual


@pytest.fixture
def h200() -> Chip:
    return chips.load("h200")


def code(*lines: str) -> list[Instruction]:
    """Return instructions, "OPCODE operand, operand" each; the last one leads back to the first."""
    words = [[*line.split(" ", 1), ""][:2] for line in (*lines, "BRA 0x0")]
    return [
        Instruction(16 * n, "", opcode, tuple(operands.split(", ")), 0, 0 if opcode == "BRA" else None)
        for n, (opcode, operands) in enumerate(words)
    ]


def moved(room: Room, *lines: str) -> dict[int, Moved]:
    return local.moved(code(*lines), room, lambda one: 2.0 if one.base == "LDG" else 0.0)


STORES = [f"STL [R1+{4 * n:#x}], R{n}" for n in range(4)]
LOADS = [f"LDL R{n}, [R1+{4 * n:#x}]" for n in range(4)]
LAST = [line.replace("LDL", "LDL.LU") for line in LOADS]


def test_the_words_of_an_access() -> None:
    words = [local.spilled(one) for one in code("STL [R1], R2", "LDL.64 R4, [R1+0x10]", "LDL R4, [R6]", "LDS R1, [R1]")]
    assert words == [[0], [4, 5], [], [], []]


def test_stores_reach_l2_and_loads_find_l1() -> None:
    assert moved(Room(4, 4), *STORES, *LOADS) == {
        **{n: Moved(stored=1) for n in range(4)},
        **{n: Moved() for n in range(4, 8)},
    }
    assert moved(Room(4, 4), "STL.128 [R1], R4")[0].stored == 4


def test_the_line_that_was_used_longest_ago_leaves() -> None:
    """Room for three of four lines, which are used in turn: each is gone when it is needed."""
    found = moved(Room(3, 4), *STORES, *LOADS)
    assert [found[n].of_l2 for n in range(4, 8)] == [1, 1, 1, 1]
    assert not any(one.of_dram or one.written for one in found.values())
    found = moved(Room(3, 3), *STORES, *LOADS)  # L2 has lost them too, and has written each of them to DRAM
    assert [found[n].of_dram for n in range(4, 8)] == [1, 1, 1, 1]
    assert sum(one.written for one in found.values()) == 4


def test_a_line_that_was_loaded_for_the_last_time_leaves_first() -> None:
    """The first of four lines makes room for the fourth, and the second for the first, which makes room for it."""
    found = moved(Room(3, 8), *STORES, *LAST)
    assert [found[n].of_l2 for n in range(4, 8)] == [1, 1, 0, 0]


def test_global_memory_takes_room() -> None:
    """Two loads of two lines each, between the stores and the loads of four."""
    loads = ["LDG R8, [R2]", "LDG R9, [R4]"]
    assert all(moved(Room(8, 8), *STORES, *loads, *LOADS)[n].of_l2 == 0 for n in range(6, 10))
    assert all(moved(Room(7, 8), *STORES, *loads, *LOADS)[n].of_l2 == 1 for n in range(6, 10))
    copies = ["LDGSTS [R8], [R2]"] * 2  # past L1
    assert all(moved(Room(4, 8), *STORES, *copies, *LOADS)[n].of_l2 == 0 for n in range(6, 10))


def test_what_a_path_touches_first_was_there() -> None:
    path = code(*LOADS)[:-1]  # no round
    assert local.moved(path, Room(1, 1), lambda _: 0.0) == {n: Moved() for n in range(4)}


def test_the_room_of_a_warp(h200: Chip) -> None:
    """Two CTAs of four warps with 15 KiB and 1 KiB of shared memory: 224 KiB of L1 and L2 / 132 for eight warps."""
    assert memory.of_warp(h200, 2, 15 * 1024, 128) == Room(224 * 1024 // 8 // 128, 50 * 1024 * 1024 // 132 // 8 // 128)
    assert memory.of_warp(chips.load("rtx5090"), 2, 15 * 1024, 128) is None  # nobody has measured its L2


def test_steps_of_local_memory(h200: Chip) -> None:
    def steps(chip: Chip, room: Room | None) -> list[tuple[int, float, float, float]]:
        pipes = Pipes(chip, room=room)
        found = pipes.steps(code(*STORES, *LOADS), {}, [])[:-1]
        return [(one.latency, one.loaded, one.stored, one.spilled) for one in found]

    stored, loaded = h200.timing("store_local").latency, h200.timing("load_local").latency
    of_l2, of_dram = int(h200.timing("load_global").latency), int(h200["dram_latency"])
    assert steps(h200, None) == [(stored, 0, 0, 0)] * 4 + [(loaded, 0, 0, 0)] * 4
    assert steps(h200, Room(4, 4)) == [(stored, 0, 128, 0)] * 4 + [(loaded, 0, 0, 0)] * 4
    assert steps(h200, Room(3, 4)) == [(stored, 0, 128, 0)] * 4 + [(of_l2, 128, 0, 0)] * 4
    lost = steps(h200, Room(3, 3))
    assert lost[4:] == [(of_dram, 128, 0, spilled) for *_, spilled in lost[4:]]
    assert sum(spilled for *_, spilled in lost) == 8 * 128  # each line is written once and read once
    assert steps(from_dram(h200), Room(3, 4)) == steps(h200, Room(3, 4))  # L2 has its own latency there too
    pipes = Pipes(from_dram(h200, share=1.0), warps=4, room=Room(3, 3))  # which meet at the end of the CTA
    latest = pipes.steps(code(*STORES, *LOADS), {}, [])[4].latency
    assert latest == of_dram + 2 * int(h200["dram_spread"])  # the slowest of four lines


# 64 sums that 24 registers cannot keep: each round loads most of them from local memory, and stores them there.
SUMS = """.version 8.0
.target sm_90
.address_size 64
.visible .entry sums(.param .u64 y, .param .u32 rounds)
.reqntid 256
.maxnreg 24
{
    .reg .b64 q, at;
    .reg .b32 n, i, tid;
    .reg .f32 sum, s<64>;
    .reg .pred more;
    ld.param.u64 q, [y];
    ld.param.u32 n, [rounds];
    mov.u32 tid, %tid.x;
    mul.wide.u32 at, tid, 4;
    add.u64 q, q, at;
    mov.u32 i, 0;
    mov.f32 sum, 0f00000000;
FIRST
again:
.pragma "nounroll";
EACH
    add.u32 i, i, 1;
    setp.lt.u32 more, i, n;
@more bra again;
LAST
    st.global.f32 [q], sum;
    ret;
}
"""


def test_stores_of_local_memory_bound_a_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str], h200: Chip) -> None:
    """Eight warps store n words in each round, which L2 takes at the rate of stores."""
    first, each, last = (
        "".join(f"    {line.format(k=k, at=4 * k)};\n" for k in range(64))
        for line in (
            "ld.volatile.global.f32 s{k}, [q+{at}]",
            "fma.rn.f32 s{k}, s{k}, s{k}, s{k}",
            "add.f32 sum, sum, s{k}",
        )
    )
    text = SUMS.replace("FIRST", first).replace("EACH", each).replace("LAST", last)
    path = tmp_path / "k.ptx"
    path.write_text(text)
    function = sass.disassemble(sass.assemble(text, "sm_90"))["sums"]
    n = sum(len(local.spilled(one)) for one in function.of_loop(function.main_loop()) if one.base == "STL")
    assert n > 40
    launch = ["--ctas", "132", "--rounds", "1000", "--shared", "120000", "--bytes", "1000"]  # one CTA fits on an SM
    assert __main__.main(["model", str(path), "--chip", "h200", *launch, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bound"] == "stores"
    wanted = h200["launch_clocks"] + 1000 * 8 * n * 128 / h200["store_bytes_per_clock"]
    assert wanted <= found["clocks"] <= 1.3 * wanted  # it was less than half of that
    assert not found["incomplete"]
