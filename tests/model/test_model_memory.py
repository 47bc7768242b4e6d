"""``python -m pysm120 model`` on files: the bytes of a launch bound its time, or the prediction says that they may."""

import json
from pathlib import Path
from typing import Any

import pytest

from pysm120 import __main__
from pysm120.model import chips, memory, streams
from pysm120.model.recorded import Adds, Launch, adds_of
from pysm120.observe.profile import Counts, Statement

pytestmark = pytest.mark.virtual

# Sums of rows: each thread reads 16 bytes in a round, `stride` bytes from its neighbour's.
SUMS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry sums(.param .u64 x, .param .u64 y, .param .u32 rounds)
.reqntid 256
{{
    .reg .b64 p, q, at;
    .reg .b32 n, i, tid, cta;
    .reg .f32 a<4>, sum;
    .reg .pred more;
    ld.param.u64 p, [x];
    ld.param.u64 q, [y];
    ld.param.u32 n, [rounds];
    mov.u32 tid, %tid.x;
    mov.u32 cta, %ctaid.x;
    mul.lo.u32 i, cta, n;
    mul.wide.u32 at, i, {row};
    add.u64 p, p, at;
    mul.wide.u32 at, tid, {stride};
    add.u64 p, p, at;
    mov.f32 sum, 0f00000000;
    mov.u32 i, 0;
again:
.pragma "nounroll";
    ld.global.v4.f32 {{a0, a1, a2, a3}}, [p];
    add.f32 sum, sum, a0;
    add.f32 sum, sum, a1;
    add.f32 sum, sum, a2;
    add.f32 sum, sum, a3;
    add.u64 p, p, {row};
    add.u32 i, i, 1;
    setp.lt.u32 more, i, n;
@more bra again;
    mul.wide.u32 at, tid, 4;
    add.u64 q, q, at;
    {store}
    ret;
}}
"""
STORE = "st.global.f32 [q], sum;"
ADD = "red.global.add.f32 [q], sum;"


def text(stride: int = 16, store: str = STORE) -> str:
    """Return the PTX of the sums."""
    return SUMS.format(stride=stride, row=256 * stride, store=store)


def model(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    """Return the prediction of ``model --json``."""
    given = __main__.main(["model", *words, "--json"])
    shown = capsys.readouterr()
    assert given == status, shown.err + shown.out[:600]
    found: dict[str, Any] = json.loads(shown.out)
    return found


def test_bytes_bound_the_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(text())
    launch = [str(path), "--ctas", "1360", "--rounds", "64"]
    size = 1360 * (64 * 256 * 16 + 256 * 4)
    unknown = model(capsys, *launch, status=3)
    assert not unknown["dram_known"]
    sentence = unknown["incomplete"][0]
    assert "GB/s, and DRAM gives 1,509: give --bytes N, or --bytes moved if nothing is read twice" in sentence
    known = model(capsys, *launch, "--bytes", str(size))
    assert known == {**model(capsys, *launch, "--bytes", "moved"), "reasons": known["reasons"]}
    assert known["bound"] == "dram"
    assert 0.8 * 1509 < known["dram_gbs"] <= 1509  # near what DRAM gives, and never more
    assert known["microseconds"] > 1.5 * unknown["microseconds"]
    # Most of it in L2: less time than from DRAM.
    cached = model(capsys, *launch, "--bytes", "1000", status=3)  # more of L2 than anybody has seen
    assert cached["microseconds"] < 0.8 * known["microseconds"]
    assert __main__.main(["model", *launch, "--bytes", "1.5"]) == 2
    assert "--bytes is '1.5', neither an integer of at least 0 nor moved" in capsys.readouterr().err


def test_l2_gives_no_more_than_its_slices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(text())
    found = model(capsys, str(path), "--ctas", "1360", "--rounds", "64", "--bytes", "0", status=3)
    chip = chips.load("rtx5090")
    assert chip.l2_limit == 7118
    assert found["l2_gbs"] <= chip.l2_limit
    (sentence,) = found["incomplete"]
    assert "GB/s of L2, and 5,000 have been seen on such a chip: at that rate it would take" in sentence
    assert chips.load("h200").l2_limit == chips.load("h200")["l2_gbs"]  # measured


def test_recorded_sectors_are_what_moves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(text(stride=64))  # of each 64 bytes, 16 are read: a sector of 32
    command = ["profile", str(path), "--grid", "2", "--block", "256", "--json", f"{tmp_path}/p.json"]
    assert __main__.main([*command, "f32[131072]:ones", "f32[256]", "u32:8"]) == 0
    capsys.readouterr()
    common = [str(path), "--ctas", "1360", "--rounds", "64", "--bytes", "moved"]
    lanes, sectors = (model(capsys, *common, *more) for more in ((), ("--profile", f"{tmp_path}/p.json")))
    moved = [found["l2_gbs"] * found["microseconds"] for found in (lanes, sectors)]
    assert moved[1] == pytest.approx(2 * moved[0], rel=0.02)
    assert sectors["microseconds"] > 1.7 * lanes["microseconds"]
    assert sectors["dram_gbs"] <= 1509


def test_additions_of_files_have_a_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores, adds = tmp_path / "s.ptx", tmp_path / "a.ptx"
    stores.write_text(text())
    adds.write_text(text(store="\n    ".join([ADD] * 8)))
    common = ["--chip", "h200", "--ctas", "1056", "--rounds", "1", "--bytes", "0"]
    plain, added = model(capsys, str(stores), *common), model(capsys, str(adds), *common)
    assert plain["add_gbs"] == 0
    assert added["bound"] == "adds"
    assert added["add_gbs"] <= added["add_gbs_of_the_chip"]
    assert added["add_gbs"] * added["microseconds"] * 1e3 == pytest.approx(1056 * 256 * 4 * 8, rel=0.01)
    assert added["clocks"] > plain["clocks"]
    returned = tmp_path / "r.ptx"  # an addition that returns the sum before it takes the same way
    returned.write_text(text(store="\n    ".join(["atom.global.add.f32 sum, [q], sum;"] * 8)))
    assert model(capsys, str(returned), *common)["add_gbs"] > 0


def bytes_of(found: dict[str, Any]) -> float:
    """Return the bytes that a launch moves from and to L2."""
    return float(found["l2_gbs"] * found["microseconds"] * 1e3)


def profiled(path: Path, capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    """Profile a kernel of one CTA; return its prediction."""
    profile = path.with_suffix(".json")
    assert __main__.main(["profile", str(path), "--grid", "1", "--json", str(profile), *words]) == 0
    capsys.readouterr()
    return model(capsys, str(path), "--ctas", "1360", "--bytes", "0", "--profile", str(profile), status=status)


NEVER = "@never st.global.v4.f32 [p], {a0, a1, a2, a3};"


@pytest.mark.parametrize("store", [NEVER, ""])
def test_what_no_lane_stores_moves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], store: str) -> None:
    loop = f"add.u64 p, p, 4096; setp.gt.u32 never, i, 9999; {store}"
    path = tmp_path / "k.ptx"
    kernel = text().replace(".reg .pred more;", ".reg .pred more, never;").replace("add.u64 p, p, 4096;", loop, 1)
    path.write_text(kernel)
    found = profiled(path, capsys, "--block", "256", "f32[8192]:ones", "f32[256]", "u32:8", status=3)
    assert bytes_of(found) == pytest.approx(1360 * (8 * 256 * 16 + 256 * 4), rel=0.01)
    (sentence,) = found["incomplete"]
    assert "GB/s of L2, and 5,000 have been seen on such a chip" in sentence


# Each CTA copies 1024 bytes to shared memory and back, twice.
COPIES = """.version 8.8
.target sm_120f
.address_size 64
.entry k(.param .u64 x, .param .u64 y)
.reqntid 1
{
    .shared .align 128 .b8 tile[1024];
    .shared .align 8 .b64 barrier;
    .reg .b64 from, to;
    .reg .b32 i;
    .reg .pred again, waits;
    ld.param.u64 from, [x];
    ld.param.u64 to, [y];
    mbarrier.init.shared::cta.b64 [barrier], 1;
    fence.mbarrier_init.release.cluster;
    mov.b32 i, 0;
loop:
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 1024;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [from], 1024, [barrier];
wait:
    mbarrier.try_wait.parity.shared::cta.b64 waits, [barrier], i;
@!waits bra wait;
    fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [to], [tile], 1024;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    add.u32 i, i, 1;
    setp.lt.u32 again, i, 2;
@again bra loop;
    ret;
}
"""


def test_bytes_of_bulk_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile tells those that are loaded and those that are stored; without one they are said to be unknown."""
    path = tmp_path / "k.ptx"
    path.write_text(COPIES)
    profile = ["--grid", "1", "--block", "1", "--json", str(path.with_suffix(".json")), "f32[256]:ones", "f32[256]"]
    assert __main__.main(["profile", str(path), *profile]) == 0
    capsys.readouterr()
    words = [str(path), "--ctas", "34000", "--profile", str(path.with_suffix(".json"))]
    moved = model(capsys, *words, "--bytes", "moved", status=3)
    assert len(moved["incomplete"]) == 1  # that waits for copies are left out
    assert moved["bound"] == "dram"
    assert bytes_of(moved) == pytest.approx(34000 * 4 * 1024, rel=0.01)
    assert moved["microseconds"] > 34000 * 4 * 1024 / 1509e3
    unknown = model(capsys, *words[:3], "--rounds", "2", "--bytes", "moved", status=3)
    assert any("how many bytes" in one and "UBLKCP.G.S" in one for one in unknown["incomplete"])


# Each thread stores and loads a word of local or shared memory in a round, by a generic or another address.
WORDS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry words(.param .u64 x, .param .u32 rounds)
.reqntid 128
{{
    {memory} .align 16 .b8 held[4096];
    .reg .b64 p, q, at;
    .reg .b32 n, i, tid, v;
    .reg .pred more;
    ld.param.u64 p, [x];
    ld.param.u32 n, [rounds];
    mov.u32 tid, %tid.x;
    mul.wide.u32 at, tid, 4;
    add.u64 p, p, at;
    ld.global.u32 v, [p];
    mov.u64 q, held;
    mul.wide.u32 at, tid, {stride};
    add.u64 q, q, at;
    {address}
    mov.u32 i, 0;
again:
.pragma "nounroll";
    st{space}.u32 [q], v;
    xor.b64 q, q, 4;
    ld{space}.u32 v, [q];
    add.u32 v, v, i;
    add.u32 i, i, 1;
    setp.lt.u32 more, i, n;
@more bra again;
    st.global.u32 [p], v;
    ret;
}}
"""


def words_of(memory: str, space: str, stride: int) -> str:
    """Return the PTX of a kernel that stores and loads words; ``space``: of the accesses, "" if they are generic."""
    first = f"st{space}.u32 [q], v; st{space}.u32 [q+4], v;"
    address = first if space else f"cvta{memory}.u64 q, q; {first}"
    return WORDS.format(memory=memory, space=space, address=address, stride=stride)


@pytest.mark.parametrize(("memory", "space"), [(".local", ".local"), (".shared", "")])
def test_local_and_shared_memory_are_not_in_l2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], memory: str, space: str
) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(words_of(memory, space, 8))
    found = profiled(path, capsys, "--block", "128", "s32[128]:arange", "u32:64")
    assert bytes_of(found) == pytest.approx(1360 * 2 * 128 * 4, rel=0.01)


def test_generic_accesses_have_bank_conflicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for space in (".shared", ""):
        for stride in (8, 32):
            path = tmp_path / f"k{stride}.ptx"
            path.write_text(words_of(".shared", space, stride))
            found.append(profiled(path, capsys, "--block", "128", "s32[128]:arange", "u32:64"))
    assert [one["bank_conflicts"] for one in found] == [pytest.approx(share, abs=0.01) for share in (1 / 2, 7 / 8) * 2]
    assert found[2]["clocks"] == pytest.approx(found[0]["clocks"], rel=0.15)
    assert found[3]["clocks"] == pytest.approx(found[1]["clocks"], rel=0.15)


def test_repeated_loads_may_be_from_l1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(text())
    launch = [str(path), "--chip", "h200", "--ctas", "20000", "--rounds", "64"]
    size = 20000 * 64 * 256 * 16
    found = [model(capsys, *launch, "--bytes", str(size // n), status=s)["incomplete"] for n, s in ((1, 0), (100, 3))]
    assert found[0] == []
    (sentence,) = found[1]
    assert sentence.startswith(
        "L2 bounds the time with 100.4 times the bytes of --bytes: L1 may serve what a CTA loads"
    )


# A product of two tiles that cp.async brings; nothing else is under way meanwhile.
PRODUCTS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry products(.param .u64 x, .param .u64 y, .param .u32 rounds)
.reqntid 32
{
    .shared .align 16 .b8 tile[512];
    .reg .b64 p, q, at;
    .reg .b32 n, i, tid, s, r<6>;
    .reg .f32 d<4>;
    .reg .pred more;
    ld.param.u64 p, [x];
    ld.param.u64 q, [y];
    ld.param.u32 n, [rounds];
    mov.u32 tid, %tid.x;
    mul.wide.u32 at, tid, 16;
    add.u64 p, p, at;
    add.u64 q, q, at;
    mov.u32 s, tile;
    mad.lo.u32 s, tid, 16, s;
    mov.f32 d0, 0f00000000; mov.f32 d1, d0; mov.f32 d2, d0; mov.f32 d3, d0;
    mov.u32 i, 0;
again:
.pragma "nounroll";
    cp.async.cg.shared.global [s], [p], 16;
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.sync 0;
    ld.shared.v4.b32 {r0, r1, r2, r3}, [s];
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d0, d1, d2, d3}, {r0, r1, r2, r3}, {r0, r1}, {d0, d1, d2, d3};
    bar.sync 0;
    add.u64 p, p, 512;
    add.u32 i, i, 1;
    setp.lt.u32 more, i, n;
@more bra again;
    st.global.v4.f32 [q], {d0, d1, d2, d3};
    ret;
}
"""


@pytest.mark.parametrize("chip", ["rtx5090", "rtxpro6000"])
def test_tiles_come_from_dram_if_l2_does_not_keep_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], chip: str
) -> None:
    path, of_chip = tmp_path / "k.ptx", chips.load(chip)
    path.write_text(PRODUCTS)
    launch = [str(path), "--chip", chip, "--ctas", "100", "--rounds", "16"]
    half = int(of_chip["l2_bytes"]) // 2
    near, far = (model(capsys, *launch, "--bytes", str(size)) for size in (half, half + 1))
    # So few CTAs load much less than the stated bytes, which keep DRAM busy.
    later = streams.from_dram(of_chip, 1.0).timing("load_global").latency - of_chip.timing("load_global").latency
    assert far["clocks_per_round"] - near["clocks_per_round"] == pytest.approx(later, abs=2)


def test_tiles_that_many_ctas_load_ahead_come_from_l2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """20,000 CTAs load a hundred times what comes from DRAM; 100 load less than that."""
    path, half = tmp_path / "k.ptx", int(chips.load("rtx5090")["l2_bytes"]) // 2
    copy = PRODUCTS[PRODUCTS.index("    cp.async.cg") : PRODUCTS.index("    cp.async.wait_group")]
    ahead = PRODUCTS.replace(copy, "").replace("    mma.sync", f"    bar.sync 0;\n{copy}    mma.sync", 1)
    path.write_text(ahead)
    for ctas, rounds, is_alike in (("20000", "512", True), ("100", "64", False)):
        launch, status = [str(path), "--ctas", ctas, "--rounds", rounds], 3 if is_alike else 0  # 3: L2 bounds it
        near, far = (model(capsys, *launch, "--bytes", str(size), status=status) for size in (half, half + 1))
        assert (far["clocks_per_round"] == near["clocks_per_round"]) is is_alike


def test_a_launch_takes_as_long_as_its_longest_cta(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four CTAs on four SMs, with 16, 32, 48 and 64 rounds: the last one has 1.6 times the average work."""
    path = tmp_path / "k.ptx"
    more = "ld.param.u32 n, [rounds];\n    mov.u32 i, %ctaid.x;\n    mad.lo.u32 n, n, i, n;"
    path.write_text(PRODUCTS.replace("ld.param.u32 n, [rounds];", more))
    profile = path.with_suffix(".json")
    words = ["--grid", "4", "--block", "32", "--checks", "off", "f16[32768]:zeros", "f32[128]", "u32:16"]
    assert __main__.main(["profile", str(path), "--json", str(profile), *words]) == 0
    capsys.readouterr()
    launch = [str(path), "--ctas", "4", "--bytes", "0", "--profile", str(profile)]
    longest, start = model(capsys, *launch), float(chips.load("rtx5090")["launch_clocks"])
    document = json.loads(profile.read_text())
    assert [number for number, _ in document["ctas"]["products"]] == [0, 1, 2, 3]
    of_each = [count for _, count in document["ctas"]["products"]]
    del document["ctas"]  # as in older profiles: all CTAs have the average
    profile.write_text(json.dumps(document))
    share = (longest["clocks"] - start) / (model(capsys, *launch)["clocks"] - start)
    assert share == pytest.approx(4 * of_each[3] / sum(of_each), rel=0.01)
    assert share == pytest.approx(1.6, rel=0.03)  # some instructions are in no round


def test_parts_of_a_line_come_from_l2_if_the_first_asked_for_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A round copies 32 bytes of each of 16 rows, so one of four rounds touches lines that the CTA had not touched."""
    path, chip = tmp_path / "k.ptx", chips.load("rtx5090")
    rows = "shl.b32 i, tid, 11;\n    and.b32 i, i, 0xf000;\n    and.b32 n, tid, 1;\n    mad.lo.u32 i, n, 16, i;"
    columns = PRODUCTS.replace("mul.wide.u32 at, tid, 16;\n    add.u64 p, p, at;", "mul.wide.u32 at, tid, 16;")
    columns = columns.replace("mov.u32 i, 0;", f"{rows}\n    ld.param.u32 n, [rounds];\n    mov.u32 i, 0;")
    columns = columns.replace(
        "mad.lo.u32 i, n, 16, i;", "mad.lo.u32 i, n, 16, i;\n    cvt.u64.u32 at, i;\n    add.u64 p, p, at;"
    )
    columns = columns.replace("cp.async.cg.shared.global", "cp.async.cg.shared.global.L2::128B")
    path.write_text(columns.replace("add.u64 p, p, 512;", "add.u64 p, p, 32;"))
    profile = path.with_suffix(".json")
    words = ["--grid", "1", "--block", "32", "f16[32768]:zeros", "f32[128]", "u32:64"]
    assert __main__.main(["profile", str(path), "--json", str(profile), *words]) == 0
    capsys.readouterr()
    launch = [str(path), "--ctas", "100", "--bytes", str(int(chip["l2_bytes"])), "--profile", str(profile)]
    parts = model(capsys, *launch)
    document = json.loads(profile.read_text())
    for one in document["statements"]:
        del one["global_first_lines"]  # as in older profiles: every line is the first
    profile.write_text(json.dumps(document))
    later = streams.from_dram(chip, 1.0)["async_latency"] - chip["async_latency"]
    slower = model(capsys, *launch)["clocks_per_round"] - parts["clocks_per_round"]
    assert slower == pytest.approx(later * 3 / 4, rel=0.02)  # DRAM is not quite as busy


@pytest.mark.parametrize(("lines", "lanes"), [(1, 1), (1, 32), (64, 1), (64, 4), (8192, 1), (8192, 32)])
def test_additions_to_few_lines_as_measured(lines: int, lanes: int) -> None:
    """A CTA of one warp makes ``rounds`` requests, of which each is for one line."""
    chip, requests = chips.load("h200"), 500
    page = (Path(__file__).resolve().parents[2] / "docs" / "explanation" / "model-log.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| {lines} |") and line.count("/") == 3)
    cell = row.split("|")[{1: 2, 4: 3, 32: 4}[lanes]]
    assert memory.add_requests(chip, lines, lanes) == pytest.approx(float(cell.split("/")[1]), rel=1e-9)
    few = Adds(requests, lanes, 1, min(lines, 264), 264)
    assert few.lines(264) == pytest.approx(min(lines, 264))
    assert Adds(requests, lanes, 4, 4 * 264, 264).lines(1000) == pytest.approx(4000)  # each CTA has lines of its own
    assert Adds(requests, lanes, 4, 4, 264).lines(1000) == 4  # all have the same


def test_lines_that_were_loaded_before_are_added_to() -> None:
    """Each of four CTAs loads 64 lines, the same ones, and adds to them: none is touched first by its addition."""
    counts = Counts(global_lines=256, global_first_lines=0, global_added_lines=64, lanes=8192, global_added_words=8192)
    found = adds_of([Statement("k", 0, "", 0, 1, "", "red", counts)], "k", 4)
    assert found == Adds(64, 1, 16, 64, 4)
    assert (found.lines(4), found.lines(8)) == (64, 128)  # no fewer than were seen
    assert adds_of([Statement("k", 0, "", 0, 1, "", "ld", Counts(global_lines=256))], "k", 4) is None


def test_additions_between_those_that_were_measured() -> None:
    chip = chips.load("h200")
    for lines, lanes in ((12, 1), (500, 7), (3000, 32), (1, 2)):
        around = [memory.add_requests(chip, n, k) for n in (lines / 2, 2 * lines) for k in (lanes / 2, 2 * lanes)]
        assert min(around) <= memory.add_requests(chip, lines, lanes) <= max(around)
    assert memory.add_requests(chip, 10**9, 1000) == memory.add_requests(chip, 8192, 32)


def test_ctas_that_add_to_the_same_line_wait_for_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 4096 CTAs each warp adds 32 words of a line: 8 lines in all, or 8 for each CTA."""
    path = tmp_path / "k.ptx"
    own = "mul.lo.u32 i, cta, 1024;\n    cvt.u64.u32 at, i;\n    add.u64 q, q, at;\n    " + ADD
    found = {}
    for name, store in (("same", ADD), ("own", own)):
        path.write_text(text(store=store))
        profile = path.with_suffix(".json")
        words = ["--grid", "8", "--block", "256", "f32[65536]:zeros", "f32[2048]", "u32:8"]
        assert __main__.main(["profile", str(path), "--json", str(profile), *words]) == 0
        capsys.readouterr()
        launch = ["--chip", "h200", "--ctas", "4096", "--profile", str(profile), "--bytes", "0"]
        found[name] = model(capsys, str(path), *launch)
    # 8 requests of each CTA; 0.43 requests a clock for 8 lines. CTAs with lines of their own have 32,768.
    start = float(chips.load("h200")["launch_clocks"])
    assert found["same"]["clocks"] >= start + 8 * 4096 / 0.43
    assert found["own"]["clocks"] < found["same"]["clocks"] / 2
    assert (found["same"]["bound"], found["own"]["bound"]) == ("adds", "l2")


@pytest.mark.parametrize(("place", "sectors"), [("16, s", 16), ("16, s16", 32), ("32, s", 32)])
def test_a_copy_takes_the_sectors_that_were_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, sectors: int
) -> None:
    """The halves of a sector go to one block of 32 bytes of shared memory, or to two: then L2 gives it twice."""
    path = tmp_path / "k.ptx"
    shifted = PRODUCTS.replace("mad.lo.u32 s, tid, 16, s;", f"add.u32 s16, s, 16;\n    mad.lo.u32 s, tid, {place};")
    path.write_text(shifted.replace("n, i, tid, s, r<6>", "n, i, tid, s, s16, r<6>").replace("tile[512]", "tile[2048]"))
    status = 3 if sectors > 16 else 0  # more of L2 than has been seen
    found = profiled(path, capsys, "--block", "32", "f16[32768]:zeros", "f32[256]", "u32:64", status=status)
    assert bytes_of(found) == pytest.approx(1360 * (64 * 32 * sectors + 512), rel=0.01)


@pytest.mark.parametrize(("sums", "shared", "left"), [(100, 0, 124_928), (100, 90_000, 40_048), (30, 90_000, None)])
def test_spills_that_l1_does_not_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sums: int, shared: int, left: int | None
) -> None:
    """Sums that 24 registers cannot keep: what the loop loads again is said to be left out, if L1 cannot hold it."""
    path = tmp_path / "k.ptx"
    kernel = SUMS.replace(".reqntid 256", ".reqntid 256\n.maxnreg 24").replace("a<4>, sum", "a<4>, sum, s<100>")
    first, each, last = (
        "".join(f"    {text.format(k=k, at=4 * k)};\n" for k in range(sums))
        for text in ("ld.global.f32 s{k}, [p+{at}]", "fma.rn.f32 s{k}, s{k}, a1, a0", "add.f32 sum, sum, s{k}")
    )
    kernel = kernel.replace("again:", f"{first}again:").replace("    add.f32 sum", f"{each}    add.f32 sum", 1)
    path.write_text(kernel.format(stride=16, row=4096, store=f"{last}    {STORE}"))
    launch = ["--bytes", "1000000", "--ctas", "170", "--rounds", "64", "--shared", str(shared)]
    said = model(capsys, str(path), *launch, status=0 if left is None else 3)["incomplete"]
    assert len(said) == (left is not None)
    assert not said or f"bytes of spilled registers on an SM, and L1 holds {left:,}: L2 or DRAM" in said[0]


# Every CTA reads `own` bytes twice and writes 1 KiB. `apart`: bytes from the first ones of a CTA to those of the next.
TWICE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 x, .param .u64 y, .param .u32 own, .param .u32 apart)
.reqntid 256
{
    .reg .b64 p, q, at;
    .reg .b32 n, i, tid, cta, far, time;
    .reg .f32 a, sum;
    .reg .pred more;
    ld.param.u64 p, [x];
    ld.param.u64 q, [y];
    ld.param.u32 n, [own];
    ld.param.u32 far, [apart];
    mov.u32 tid, %tid.x;
    mov.u32 cta, %ctaid.x;
    mul.wide.u32 at, cta, far;
    add.u64 p, p, at;
    mul.wide.u32 at, cta, 1024;
    add.u64 q, q, at;
    mul.wide.u32 at, tid, 4;
    add.u64 p, p, at;
    add.u64 q, q, at;
    mov.f32 sum, 0f00000000;
    mov.u32 time, 0;
twice:
    mov.u64 at, p;
    mov.u32 i, 0;
again:
.pragma "nounroll";
    ld.global.f32 a, [at];
    add.f32 sum, sum, a;
    add.u64 at, at, 1024;
    add.u32 i, i, 1024;
    setp.lt.u32 more, i, n;
@more bra again;
    add.u32 time, time, 1;
    setp.lt.u32 more, time, 2;
@more bra twice;
    st.global.f32 [q], sum;
    ret;
}
"""
KIB, CTAS = 1024, 2040  # 6 of 256 threads are resident on each of 170 SMs; L2 has 96 MiB, 96.4 KiB for each of 1020


def twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], own: int, *, apart: int, recorded: int = 2, ctas: int = CTAS
) -> dict[str, Any]:
    """Return the prediction of a launch whose profile has `recorded` CTAs."""
    path = tmp_path / "k.ptx"
    path.write_text(TWICE)
    command = ["profile", str(path), "--grid", str(recorded), "--block", "256", "--json", f"{tmp_path}/p.json"]
    arguments = [f"f32[{recorded * own // 4}]:ones", f"f32[{256 * recorded}]", f"u32:{own}", f"u32:{apart}"]
    assert __main__.main([*command, *arguments]) == 0
    capsys.readouterr()
    size = ctas * (own + KIB)
    launch = [str(path), "--ctas", str(ctas), "--bytes", str(size), "--profile", f"{tmp_path}/p.json"]
    found = model(capsys, *launch, status=0 if recorded > 1 or own <= 64 * KIB else 3)
    dram = found["dram_gbs"] * found["microseconds"] * 1e3
    assert dram == pytest.approx(size + found["reread_bytes"], rel=0.01)
    # Few bytes of DRAM, but so many that loads wait for it.
    without = [x if x != str(size) else str(size // 20) for x in launch]
    found["sm_microseconds"] = model(capsys, *without)["microseconds"]
    launch[launch.index(str(size))] = "moved"  # all that moves again is in it
    assert model(capsys, *launch)["reread_bytes"] == 0
    return found


def test_what_l2_loses_comes_from_dram_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = twice(tmp_path, capsys, 128 * KIB, apart=128 * KIB)
    assert lost["reread_bytes"] == CTAS * 128 * KIB
    assert lost["bound"] == "dram"
    held = twice(tmp_path, capsys, 64 * KIB, apart=64 * KIB)
    assert held["reread_bytes"] == 0
    # DRAM and the SMs overlap: a launch takes at least the longer of both, and less than both one after the other. The
    # SMs' loads come from L2 where L1 has lost what the CTA reads again. A launch takes 2.1 us to begin.
    chip = chips.load("rtx5090")
    begin = chip["launch_clocks"] / chip["mhz"]
    for found, times in ((held, 1), (lost, 4)):
        dram = CTAS * (times * 64 * KIB + KIB) / chip["dram_gbs"] / 1e3 + begin
        sms = found["sm_microseconds"]
        assert max(dram, sms) < found["microseconds"] < dram + sms - begin
    few = twice(tmp_path, capsys, 128 * KIB, apart=128 * KIB, ctas=510)  # 64 MiB on the whole chip
    assert few["reread_bytes"] == 0


def test_what_ctas_share_stays_in_l2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert twice(tmp_path, capsys, 128 * KIB, apart=0)["reread_bytes"] == 0
    # One CTA does not tell what others share.
    unknown = twice(tmp_path, capsys, 128 * KIB, apart=0, recorded=1)
    assert unknown["reread_bytes"] == 0
    assert unknown["incomplete"] == [
        f"{CTAS * 128 * KIB:,} bytes come from DRAM again, unless CTAs share them: profile more CTAs than one"
    ]
    assert twice(tmp_path, capsys, 64 * KIB, apart=0, recorded=1)["incomplete"] == []


@pytest.mark.parametrize(
    ("slots", "tensors", "lost"),
    [
        (6, 1 << 30, 1.0),  # L2 holds 96.4 KiB of each CTA, less than 128
        (3, 1 << 30, 0.0),  # 192.8 KiB, more than 181
        (4, 1 << 30, 0.6876),  # 144.6 KiB: of 128 to 181.0 KiB, those above
        (6, 96 << 20, 0.0),  # all tensors fit in L2
    ],
)
def test_how_much_l2_loses(slots: int, tensors: int, lost: float) -> None:
    chip = chips.load("rtx5090")
    recorded = Launch({}, 2, 1.0, reuse={128 * KIB: 500, 4 * KIB: 100})
    found = memory.reread_bytes(chip, recorded, 10000, slots, tensors)
    assert found == pytest.approx(lost * 32 * 500 / 2 * 10000, rel=1e-3)


SPARSE = """.version 8.8
.target sm_120a
.address_size 64
.visible .entry k(.param .u64 y)
{
    .reg .b64 q;
    .reg .b32 a;
    .reg .f32 d<4>;
    ld.param.u64 q, [y];
    mov.b32 a, 0x38383838;
    mov.f32 d0, 0f00000000;
    mov.f32 d1, d0;
    mov.f32 d2, d0;
    mov.f32 d3, d0;
    mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::mxf8f6f4.block_scale.f32.e4m3.e4m3.f32.ue8m0
        {d0, d1, d2, d3}, {a, a, a, a}, {a, a, a, a}, {d0, d1, d2, d3}, a, 0, a, {0, 0}, a, {0, 0};
    st.global.v4.f32 [q], {d0, d1, d2, d3};
    ret;
}
"""


def test_products_without_a_timing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(SPARSE)
    launch = [str(path), "--block", "32", "--ctas", "100", "--bytes", "1024"]
    assert model(capsys, *launch, status=3)["incomplete"] == [
        "the file of chip rtx5090 has no timing of mma_sf_sparse: they take none"
    ]
