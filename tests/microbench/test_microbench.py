"""``python -m pysm120 microbench``: forms that compute what they should and are what is timed; what is refused."""

import dataclasses
import json
import re
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pysm120
from pysm120 import __main__
from pysm120.cli import microbench_table as table
from pysm120.machine_code import sass
from pysm120.machine_code import tools as programs
from pysm120.microbench import (
    chain,
    forms_launch,
    graph,
    groups,
    kernel,
    launch,
    measure,
    prepare,
    proof,
    result,
    toolchain,
)
from pysm120.microbench.form import LANES, Form, Operand
from pysm120.runtime.errors import InvalidArgumentError

CHIPS = {"sm_90a": (9, 0), "sm_120a": (12, 0)}
NAMES = [form.name for form in groups.chosen([])]


def ends(form: Form) -> tuple[int, ...]:
    """Return the least and the greatest number of chains."""
    return tuple(dict.fromkeys((form.chains[0], form.chains[-1])))


def shorter(form: Form) -> Form:
    """Return a form with fewer steps in a trip: as good for a test, and faster to assemble."""
    return dataclasses.replace(form, unroll=3) if form.template in {"chain", "shared"} and form.unroll > 3 else form


def test_names_are_unlike() -> None:
    for capability in CHIPS.values():
        names = [(form.group, form.name) for form in groups.chosen([]) if form.exists_on(capability)]
        assert len(names) == len(set(names))
    assert {form.group for form in groups.chosen([])} == set(groups.GROUPS)


@pytest.mark.parametrize("group", groups.GROUPS)
def test_every_form_computes_what_it_should(
    device: pysm120.Device, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.is_virtual:  # its PTX alone: what ptxas makes of it is another test
        monkeypatch.setattr(toolchain, "missing", lambda: "nothing is to be assembled")
    ready = prepare.prepare(device, groups.GROUPS[group], is_short=True)
    launcher = launch.Launcher(device, 1)
    chip = prepare.Chip(device.info.capability)
    for one in ready:
        assert one.refusal == "" or not one.form.exists_on(chip.capability), f"{one.form.name}: {one.refusal}"
        for bench, loaded in one.kernels.values():
            assert launch.check(launcher, bench, loaded) == "", bench.form.name


def test_wrong_words_are_found(device: pysm120.Device) -> None:
    (form,) = (form for form in groups.chosen(["math"]) if form.name == "fma.rn.f32")
    for off in (dataclasses.replace(form, lines=("fma.rn.f32 X, X, B, A;",)),
                dataclasses.replace(form, lines=form.lines * 2)):  # fmt: skip
        (one,) = prepare.prepare(device, [off], is_short=True)
        for bench, loaded in one.kernels.values():
            assert "word 0 of lane 0" in launch.check(launch.Launcher(device, 1), bench, loaded)


@pytest.mark.parametrize("family", ["90", "120"])
def test_no_count_leaves_room_for_a_whole_step(family: str) -> None:
    """Else an opcode could stand there twice, or be hoisted, unseen; a wait alone may be tried again."""
    for form in groups.chosen([]):
        for pattern, count in form.counts(family).items():
            if isinstance(count, tuple) and "PHASECHK" not in pattern:
                assert count[0] > 0, form.name
                assert count[1] < max(form.unroll, 5), form.name


# ---- proofs ---------------------------------------------------------------------

LISTING = """
	.section	.text.entry,"ax",@progbits
.text.entry:
        /*0000*/                   CS2R R2, SR_CLOCKLO ;
.L_x_0:
        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0020*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0030*/                   UIADD3 UR4, UR4, -0x1, URZ ;
        /*0040*/              @P0  BRA `(.L_x_0) ;
        /*0050*/                   CS2R R6, SR_CLOCKLO ;
        /*0060*/                   EXIT ;
.L_x_1:
        /*0070*/                   BRA `(.L_x_1);
"""
HMMA = "        /*0020*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;\n"


def two_steps() -> kernel.BenchKernel:
    (form,) = (form for form in groups.chosen(["mma"]) if form.name == "m16n8k16 f32.bf16.bf16")
    return kernel.BenchKernel(dataclasses.replace(form, unroll=2), 1, "entry")


def objection(listing: str) -> str:
    count = iter(range(0, 1 << 12, 16))
    listing = re.sub(r"/\*[0-9a-f]{4}\*/", lambda _: f"/*{next(count):04x}*/", listing)
    return proof.prove(two_steps(), sass.parse(listing).get("entry"), "90").objection


def test_a_loop_of_what_it_claims_is_proven() -> None:
    found = proof.prove(two_steps(), sass.parse(LISTING)["entry"], "90")
    assert found.holds
    assert found.opcodes == {"HMMA.16816.F32.BF16": 2, "UIADD3": 1, "BRA": 1}
    assert found.summary == "2 HMMA.16816.F32.BF16, 1 UIADD3, 1 BRA"
    assert dataclasses.replace(found, patterns=("BR.*",)).summary.startswith("1 BRA, 2 HMMA")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace(HMMA, ""), "holds 1 of HMMA"),
        (lambda text: text.replace(HMMA, HMMA * 2), "holds 3 of HMMA"),
        (lambda text: text.replace(HMMA, "").replace(".L_x_0:\n", HMMA + ".L_x_0:\n"), "holds 1 of HMMA"),  # hoisted
        (lambda text: text.replace("HMMA.16816.F32.BF16", "HMMA.16816.F32"), "holds 0 of HMMA"),
        (lambda text: text.replace("@P0  BRA `(.L_x_0)", "NOP"), "no loop is left"),
        (lambda text: text.replace("CS2R R6, SR_CLOCKLO", "NOP"), "the clock is read 1 times"),
        (lambda text: text.replace("UIADD3 UR4", "LDL R1"), "spills registers"),
        (lambda text: text.replace(".text.entry", ".text.other"), "no entry"),
        (lambda text: text.replace("/*0050*/                   CS2R R6, SR_CLOCKLO",
                                   "/*0048*/ @P1 BRA `(.L_x_2);\n /*0050*/                   CS2R R6, SR_CLOCKLO")
         .replace(HMMA, HMMA + ".L_x_2:\n"), "2 loops"),
        (lambda text: text.replace("HMMA.", "@!PT HMMA.", 1), "holds 1 of HMMA"),  # padding that never executes
        (lambda text: text.replace("HMMA.", "@P1 HMMA.", 1), "may skip or repeat @P1 HMMA"),
        (lambda text: text.replace(HMMA, "/*0020*/ @P1 BRA `(.L_x_3) ;\n" + HMMA + ".L_x_3:\n"), "may skip or"),
        (lambda text: text.replace(HMMA, ".L_x_3:\n" + HMMA + "/*0020*/ @P1 BRA `(.L_x_3) ;\n"), "may repeat"),
        (lambda text: text.replace(HMMA, HMMA + "/*0030*/ CALL.REL.NOINC `(f) ;\n"), "calls a subroutine"),
        (lambda text: text.replace(HMMA, HMMA + "/*0030*/ FADD R1, R2, R3 ;\n" * 12), "14 other instructions"),
    ],
)  # fmt: skip
def test_a_loop_of_something_else_is_refused(change: Callable[[str], str], reason: str) -> None:
    assert change(LISTING) != LISTING
    assert reason in objection(change(LISTING))


def test_an_inner_loop_is_refused_even_where_conditions_are_not() -> None:
    bench = two_steps()
    free = dataclasses.replace(bench, form=dataclasses.replace(bench.form, is_conditional=True))
    inner = LISTING.replace("UIADD3 UR4, UR4, -0x1, URZ", "@P1 BRA{} `(.L_x_3)")
    inner = inner.replace(HMMA, ".L_x_3:\n" + HMMA)
    for text, reason in ((inner.format(""), "may repeat HMMA"), (inner.format(".U.ANY"), "")):
        found = proof.prove(free, sass.parse(text)["entry"], "90")
        assert reason in found.objection
        assert found.holds == (not reason)


@pytest.mark.usefixtures("tools")
def test_what_the_assembler_takes_out_of_a_loop_is_refused(device_name: str) -> None:
    """A product of constants stays outside of the loop: nothing may be said of its speed."""
    form = Form(
        name="hoisted",
        group="math",
        lines=("{ .reg .b32 high;", "ex2.approx.ftz.f32 high, A;", "add.rn.f32 X, X, high;", "}"),
        sass=r"MUFU\.EX2",
        state=Operand("b32"),
        inputs={"A": Operand("b32")},
        model=lambda words, _: words,
        chains=(1,),
        unroll=8,
    )
    with pysm120.Device(device_name) as device:
        (one,) = prepare.prepare(device, [form])
    assert "holds 0 of MUFU" in one.objection or "holds 1 of MUFU" in one.objection


def test_a_chain_is_one_whose_steps_wait() -> None:
    def length(*lines: str) -> int:
        text = "\t.section .text.f,\n" + "".join(f"/*{16 * i:04x}*/ {line} ;\n" for i, line in enumerate(lines))
        return chain.chained(sass.parse(text)["f"].instructions, ["FADD.*", "LDS.*", "SHFL.*", "IMAD.WIDE", "HMMA.*"])

    assert length("FADD R1, R1, R2", "FADD R1, R3, R1") == 2
    assert length("FADD R1, R2, R3", "FADD R4, R1, R3") == 0, "every trip begins anew"
    assert length("FADD R1, R1, R3", "FADD R4, R4, R3") == 1, "side by side"
    assert length("FADD R1, R4, R3", "MUFU.EX2 R4, R1", "FADD R5, R4, R3") == 1, "through what is not asked for"
    assert length("SHFL.IDX PT, R1, R1, R2, R3") == 1
    assert length("LDS.64 R2, [R3+0x10]") == 1, "the second register of a pair"
    assert length("LDS R2, [R3+0x10]") == 0
    assert length("IMAD.WIDE R2, R2, R3, R8") == length("HMMA.16816.F32 R4, R8, R12, R4") == 1
    assert length("HMMA.16816.F32 R4, R8, R12, RZ", "FADD R1, R1, R4") == 1, (
        "of products that begin at 0 the sums alone"
    )
    assert length("FADD R1, R2, R3", "ISETP.NE.AND P1, PT, R1, RZ, PT", "@P1 FADD R2, R4, R5") == 2, (
        "through a predicate"
    )
    assert length("STS [R1], R2", "BRA 0x0") == 0


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("target", CHIPS)
def test_steps_side_by_side_have_no_latency(target: str) -> None:
    """Loads in a row, whose sum alone is a chain; the same loads through each other's addresses are one."""
    (form,) = (form for form in groups.chosen(["shared"]) if form.name == "ld.shared.b32")
    beside = dataclasses.replace(
        form, lines=("{ .reg .b32 r;", "ld.volatile.shared.b32 r, [X0];", "add.u32 X1, X1, r; }"), besides=1
    )
    objections = []
    for one in (form, beside):
        (bench,) = kernel.kernels_of(one, 0, (1,))
        function = sass.parse(toolchain.assemble(kernel.write([bench], target), target).listing)[bench.entry]
        objections.append(proof.prove(bench, function, prepare.Chip(CHIPS[target]).family).objection)
    assert objections == ["", "only 0 of 15 steps wait for the previous one: the time of a step is not its latency"]


A = Operand("b32", 1, 3)


@pytest.mark.sampled(2, each=("target",))
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("target", CHIPS)
@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("dead", {"lines": ("fma.rn.f32 X, A, A, B;",)}, "no loop is left"),
        ("merged", {"lines": ("{ .reg .b32 r;", "shfl.sync.idx.b32 r, A, B, 31, -1;", "add.u32 X, X, r; }"),
                    "sass": r"SHFL\.IDX"}, "holds 1 of SHFL"),
        ("folded", {"lines": ("rcp.approx.ftz.f32 X, X;",), "sass": r"MUFU\.RCP"}, "no loop is left"),
        ("become two", {"lines": ("div.full.f32 X, A, X;",), "sass": r"MUFU\.RCP"}, "other instructions"),
        ("something else", {"lines": ("mul.lo.u32 X, X, 8;",), "sass": "IMAD"}, "holds 0 of IMAD"),
        ("at times", {"lines": ("{ .reg .pred p;", "setp.ne.u32 p, X, 0;", "@p fma.rn.f32 X, X, A, B; }"),
                      "besides": 1}, "may skip or repeat"),
        ("a subroutine", {"lines": ("{ .reg .b64 r; mov.b64 r, {X, A};", "rem.u64 r, r, 7919;", "cvt.u32.u64 X, r; }"),
                          "sass": {r"IMAD\.MOV.*|MOV": (0, 99)}}, "calls a subroutine"),
    ],
)  # fmt: skip
def test_what_the_assembler_makes_of_a_wrong_form_is_refused(
    target: str, name: str, change: dict[str, Any], reason: str
) -> None:
    form = Form(name=name, group="math", state=A, inputs={"A": A, "B": A}, model=lambda words, _: words,
                **{"sass": "FFMA", "unroll": 6, **change})  # fmt: skip
    (bench,) = kernel.kernels_of(form, 0, (1,))
    function = sass.parse(toolchain.assemble(kernel.write([bench], target), target).listing)[bench.entry]
    assert re.search(reason, proof.prove(bench, function, prepare.Chip(CHIPS[target]).family).objection)


@pytest.mark.usefixtures("tools")
def test_emulated_multicast_is_refused(device: pysm120.Device) -> None:
    """SM120 has none, and says so; were it let through, the machine code would tell."""
    (form,) = (form for form in groups.chosen(["copy"]) if "multicast" in form.name)
    (bench,) = kernel.kernels_of(form, 0, (1,))
    for target, reason in (("sm_90a", ""), ("sm_120a", "holds 0 of UBLKCP")):
        function = sass.parse(toolchain.assemble(kernel.write([bench], target), target).listing)[bench.entry]
        found = proof.prove(bench, function, prepare.Chip(CHIPS[target]).family)
        assert reason in found.objection
        assert found.holds == (not reason)
    if device.is_virtual:
        (ready,) = prepare.prepare(device, [form])
        assert ready.refusal == "sm_120a emulates multicast by a subroutine"


@pytest.mark.sampled(1, each=("target",))
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("target", CHIPS)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("nounroll", "unroll 4"), "of FFMA, not 4|loops between"),
        (("setp.ne.u32             more, trips, 0", "setp.ne.u32             more, trips, trips"), "no loop is left"),
        (("timed:\n", ""), "2 loops"),  # the clock is read in the loop
        (("mov.u64                 clock_end, %clock64", "mov.u64 clock_end, clock_start"), "the clock is read 1"),
    ],
)  # fmt: skip
def test_what_the_assembler_makes_of_a_wrong_frame_is_refused(
    target: str, change: tuple[str, str], reason: str
) -> None:
    (form,) = (form for form in groups.chosen(["math"]) if form.name == "fma.rn.f32")
    (bench,) = kernel.kernels_of(dataclasses.replace(form, unroll=4), 0, (1,))
    text = kernel.write([bench], target)
    assert change[0] in text
    text = text.replace(*change).replace("bra                   timed", "bra timed")
    if change[0] == "timed:\n":
        text = text.replace("mov.u64                 clock_start", "timed:\n    mov.u64 clock_start")
    function = sass.parse(toolchain.assemble(text, target).listing)[bench.entry]
    assert re.search(reason, proof.prove(bench, function, prepare.Chip(CHIPS[target]).family).objection)


@pytest.mark.sampled(1, each=("target",))
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("target", CHIPS)
@pytest.mark.parametrize("group", groups.GROUPS)
def test_every_loop_is_proven(target: str, group: str) -> None:
    forms = [form for form in groups.GROUPS[group] if form.exists_on(CHIPS[target])]
    for template in {form.template for form in forms}:
        kernels = [
            k
            for i, form in enumerate(forms)
            if form.template == template
            for k in kernel.kernels_of(shorter(form), i, ends(form))
        ]
        functions = sass.parse(toolchain.assemble(kernel.write(kernels, target), target).listing)
        family = prepare.Chip(CHIPS[target]).family
        objections = {k.entry: proof.prove(k, functions.get(k.entry), family).objection for k in kernels}
        assert {name: text for name, text in objections.items() if text} == {}


def test_what_ptxas_refuses_is_absent(device: pysm120.Device) -> None:
    (form,) = (form for form in groups.chosen(["math"]) if form.name == "lop3.b32")
    if toolchain.missing():
        pytest.fail(toolchain.missing())
    wrong = dataclasses.replace(form, name="wrong", lines=("lop3.b64 X, X, A, B, 0x96;",))
    ready = prepare.prepare(device, [form, wrong], is_short=True)
    assert ready[0].refusal == ""
    assert ready[0].kernels
    assert re.fullmatch(r"ptxas refuses it: .*", ready[1].refusal)
    found = measure.measure(launch.Launcher(device, 1), ready[1], measure.Choice())
    assert found.status == "absent"
    assert found.message == ready[1].refusal


# ---- the command ----------------------------------------------------------------


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert __main__.main(["microbench", *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_the_virtual_device_times_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    words = [
        "microbench",
        "mma",
        "--device",
        "virtual",
        "--only",
        "m16n8k16 f32.bf16",
        "--json",
        str(path),
        "--seed",
        "1",
    ]
    assert __main__.main(words) == 0
    shown = capsys.readouterr().out
    assert "which measures no time" in shown
    assert "3 checked" in shown
    report = result.load(path)
    assert report.is_virtual
    assert [r.status for r in report.results] == ["checked"] * 3
    assert all(r.latency is None and r.per_clock is None and not r.cells for r in report.results)


def test_what_runs_can_be_saved(tmp_path: Path, device_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["math", "--only", "lop3.b32", "--device", device_name, "--save"]
    assert __main__.main(["microbench", *words, str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chain_0.cubin", "chain_0.ptx", "chain_0.sass"]
    assert "lop3.b32" in (tmp_path / "chain_0.ptx").read_text()
    assert (tmp_path / "chain_0.cubin").read_bytes().startswith(b"\x7fELF")
    assert "b0_lop3_b32_1" in sass.parse((tmp_path / "chain_0.sass").read_text())
    capsys.readouterr()
    assert "not an existing folder" in error_of(capsys, *words, str(tmp_path / "none"))


def test_a_wrong_result_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (form,) = (form for form in groups.chosen(["math"]) if form.name == "lop3.b32")
    monkeypatch.setitem(groups.GROUPS, "math", [dataclasses.replace(form, model=lambda words, _: words)])
    assert __main__.main(["microbench", "math", "--device", "virtual"]) == 1
    assert "WRONG: word 0 of lane 0" in capsys.readouterr().out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["microbench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[9:] for line in lines] == NAMES


def test_wrong_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "GROUP is 'nonsense', not one of mma" in error_of(capsys, "nonsense")
    assert "--only is 'nonsense'" in error_of(capsys, "--only", "nonsense")
    assert "--runs is 'x'" in error_of(capsys, "--runs", "x", "--device", "virtual")
    assert "--json is 'a.txt'" in error_of(capsys, "--json", "a.txt", "--device", "virtual")
    assert "takes two files" in error_of(capsys, "compare", "a.json")
    assert "plot takes a file" in error_of(capsys, "plot", "a.json")
    assert "the picture is 'a.gif'" in error_of(capsys, "plot", "a.json", "a.gif")
    assert "none.json cannot be read: No such file" in error_of(
        capsys, "plot", str(tmp_path / "none.json"), str(tmp_path / "a.png")
    )
    assert "--save is" in error_of(capsys, "--save", "/proc", "--device", "virtual")
    assert "--json is '/proc/a.json', which cannot be written" in error_of(capsys, "--json", "/proc/a.json")
    assert "cannot be written" in error_of(capsys, "plot", "a.json", "/proc/a.png")
    plot = str(tmp_path / "a.png")
    assert "the virtual device measures no time" in error_of(capsys, "--plot", plot, "--device", "virtual")
    assert not list(tmp_path.iterdir())


def test_wrong_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def error(text: str) -> str:
        path = tmp_path / "a.json"
        path.write_text(text)
        return error_of(capsys, "compare", str(path), str(path))

    some_report(1).save(tmp_path / "right.json")
    right: dict[str, Any] = json.loads((tmp_path / "right.json").read_text())
    item = right["results"][0]
    others: list[Any] = [[], {}, {"results": 3}, "x", None]
    assert "a.json is not a file that `microbench --json` wrote: it is not JSON" in error("x")
    assert "it is not JSON, or not all of it" in error((tmp_path / "right.json").read_text()[:-9])
    for other in others:
        assert "it has no list of results" in error(json.dumps(other))
    assert "format 99" in error(json.dumps({**right, "format": 99}))
    text = {"median": "1", "least": 1, "greatest": 1}
    changes: list[dict[str, Any]] = [{"latency": text}, {"latency": 3}, {"name": 3}, {"more": 1}, {"cells": [1]}]
    items: list[Any] = [3, {"name": "x"}, *({**item, **change} for change in changes)]
    wrongs: list[dict[str, Any]] = [{"capability": 9}, {"capability": ["x", 0]}, {"more": 1}]
    for wrong in (*wrongs, *({"results": [x]} for x in items)):
        assert "one of its entries is missing, too much or of another type" in error(json.dumps({**right, **wrong}))
    assert "no timed form in common" in error(json.dumps({**right, "results": []}))
    assert "a.json is a report of the virtual device" in error(json.dumps({**right, "is_virtual": True}))
    assert "a.json cannot be read: Is a directory" in error_of(capsys, "compare", str(tmp_path), str(tmp_path)).replace(
        str(tmp_path), "a.json"
    )


def test_no_figure_without_tools(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a GPU; asked of the part that decides, since there may be none here."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sysconfig, "get_path", lambda _: "/nonexistent")
    monkeypatch.setattr(programs, "_CUDA", Path("/nonexistent"))
    toolchain.find.cache_clear()
    try:
        assert "pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm" in toolchain.missing()
        assert __main__.main(["microbench", "math", "--only", "lop3", "--device", "virtual"]) == 0
        assert "nothing is proven: ptxas and nvdisasm are" in capsys.readouterr().out
    finally:
        toolchain.find.cache_clear()


def some_report(factor: float, names: tuple[str, ...] = ("x", "y")) -> result.Report:
    spread = result.Spread(100 * factor, 99 * factor, 102 * factor)
    results = [
        result.Result(
            name,
            "math",
            "op",
            "measured",
            latency=spread,
            per_clock=spread,
            per_second=spread,
            megahertz=spread,
            chains=2,
            warps=4,
            cells=[result.Cell(2, 4, 100 * factor)],
        )
        for name in names
    ]
    return result.Report("a chip", (9, 0), 132, "1.2", "2026-01-01", is_virtual=False, version="0", results=results)


def test_reports_are_read_back_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    some_report(1).save(paths[0])
    some_report(1.25, ("y", "z")).save(paths[1])
    assert result.load(paths[0]) == some_report(1)
    assert __main__.main(["microbench", "compare", *map(str, paths)]) == 0
    shown = capsys.readouterr().out
    (row,) = (line for line in shown.splitlines() if re.match(r"\W*y\b", line))
    assert re.sub("[│|]", " ", row).split() == [
        "y",
        "100.0",
        "125.0",
        "1.250",
        "100.00",
        "125.00",
        "1.250",
        "1.250",
        "op",
    ]
    assert "1 forms in both; 1 only in A, 1 only in B" in shown
    assert "UNPROVEN" not in shown
    report = some_report(1)
    report.results[1].status = "unproven"
    report.results[1].latency = report.results[1].per_clock = None  # as launches have neither
    report.save(paths[1])
    assert __main__.main(["microbench", "compare", *map(str, paths)]) == 0
    shown = capsys.readouterr().out
    assert "2 forms in both" in shown
    assert "UNPROVEN: the machine code of 1 forms of B was not checked" in shown


def test_cells_are_shown_by_chains_and_warps(capsys: pytest.CaptureFixture[str]) -> None:
    report = some_report(1, ("x",))
    report.results[0].cells = [result.Cell(c, w, 10 * c + w) for c in (1, 2) for w in (4, 8) if (c, w) != (2, 8)]
    table.show_cells(report)
    rows = [re.sub("[│|]", " ", line).split() for line in capsys.readouterr().out.splitlines() if " x " in line]
    assert rows == [["x", "1", "14.00", "18.00", "op"], ["x", "2", "24.00", "op"]]


def test_the_results_of_the_h200_agree_with_what_is_known() -> None:
    report = result.load(Path(__file__).parents[2] / "results" / "h200" / "microbench.json")
    by_name = {r.name: r for r in report.results}
    assert {r.status for r in report.results} == {"measured", "absent"}

    def chip(name: str) -> float:
        found = by_name[name].per_second
        assert found is not None
        return found.median * 1e-12

    def rate(name: str) -> float:
        found = by_name[name].per_clock
        assert found is not None
        return found.median

    assert chip("m16n8k16 f32.bf16.bf16") == pytest.approx(636, rel=0.03)
    assert chip("m16n8k32 s32.s8.s8") == pytest.approx(1275, rel=0.03)
    for name in ("ld.shared.b32", "ld.shared.v4.b32", "ldmatrix.m8n8.x4.b16", "st.shared.v4.b32"):
        assert rate(name) == pytest.approx(128, rel=0.01)
    assert rate("ex2.approx.ftz.f32") == pytest.approx(16, rel=0.01)
    assert rate("fma.rn.f32") == pytest.approx(256, rel=0.02)
    # A rate of the whole chip is that of a multiprocessor, as often as there are some, at the clock meanwhile.
    for one in report.results:
        if one.group in {"mma", "math", "warp", "shared"} and one.status == "measured":
            assert one.per_clock is not None
            assert one.per_second is not None
            assert one.megahertz is not None
            whole = one.per_clock.median * report.multiprocessors * one.megahertz.median * 1e6
            assert one.per_second.median == pytest.approx(whole, rel=0.03), one.name


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    from pysm120.microbench import plot

    plot.draw(some_report(1), tmp_path / "a.png")
    figure = Figure()
    rates, latencies = figure.subplots(1, 2)
    plot._rates(rates, "g", some_report(1).results)
    plot._latencies(latencies, some_report(1).results)
    assert rates.get_xscale() == "log"
    assert not rates.patches  # bars that would begin nowhere
    assert latencies.patches
    assert latencies.get_xlim()[0] == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    some_report(1).save(tmp_path / "a.json")
    assert __main__.main(["microbench", "plot", str(tmp_path / "a.json"), str(tmp_path / "b.png")]) == 0
    assert (tmp_path / "b.png").read_bytes() == (tmp_path / "a.png").read_bytes()
    report = some_report(1)
    for one in report.results:
        one.latency = one.per_clock = None
    with pytest.raises(InvalidArgumentError, match="nothing to draw"):
        plot.draw(report, tmp_path / "b.png")


@pytest.mark.virtual
@pytest.mark.parametrize(
    "name", ["fma.rn.f32", "bar.sync, 4 warps", "ld.global.b64 after another, 16 KiB", "launch and synchronise"]
)
def test_the_steps_of_timing(device: pysm120.Device, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU would be asked to do, done here: the clock of the virtual device counts, though it times nothing."""
    monkeypatch.setattr(measure, "SHORT_CLOCKS", 100)
    monkeypatch.setattr(measure, "MOST_TRIPS", 8)
    monkeypatch.setattr(forms_launch, "LAUNCHES", 3)
    (form,) = (form for form in groups.chosen([]) if form.name == name)
    (ready,) = prepare.prepare(device, [form])
    found = result.Result(form.name, form.group, form.unit, "measured")
    measure._time(launch.Launcher(device, 1), ready, measure.Choice(runs=3, seconds=1e-6), found)
    assert found.status == "measured"
    if form.group == "launch":
        assert found.per_second is not None
        assert found.per_second.least > 0
        return
    assert found.latency is not None
    assert 0 <= found.latency.least <= found.latency.median <= found.latency.greatest
    assert len(found.cells) == form.has_rate * len(form.chains) * len(form.warps)
    if form.has_rate:
        assert found.per_clock is not None
        assert found.per_clock.least > 0
        assert found.chains in form.chains
        assert found.warps in form.warps


@pytest.mark.virtual
def test_what_fails_while_it_is_timed_has_no_figure(device: pysm120.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    (form,) = (form for form in groups.chosen([]) if form.name == "launch and synchronise")
    found = result.Result(form.name, form.group, form.unit, "measured")

    def timed(seconds: float) -> prepare.Ready:
        (ready,) = prepare.prepare(device, [dataclasses.replace(form, options={"seconds": lambda *_: seconds})])
        return ready

    measure._time(launch.Launcher(device, 1), timed(0.0), measure.Choice(), found)
    assert found.status == "objected"
    assert "too coarse" in found.message
    assert found.per_second is None

    def fail(*_: object) -> None:
        raise pysm120.DriverError("cuGraphLaunch answered 700\nmore")

    ready = timed(1.0)

    def shared(count: int) -> launch.Times:
        zeros = np.zeros((count, 1), np.uint64)
        return launch.Times(zeros, zeros, zeros, zeros, zeros)

    (lop3,) = (form for form in groups.chosen([]) if form.name == "lop3.b32")
    (one,) = prepare.prepare(device, [lop3])
    for ctas, status in ((1, "measured"), (2, "wrong")):
        monkeypatch.setattr(launch.Launcher, "prepared", lambda *_, n=ctas, **__: lambda _: (shared(n), None))
        found = result.Result(lop3.name, lop3.group, lop3.unit, "measured")
        measure._time(launch.Launcher(device, 1), one, measure.Choice(seconds=1e-9), found)
        assert found.status == status
        assert (found.latency is None) == (found.per_clock is None) == (not found.cells) == (status == "wrong")
    monkeypatch.undo()
    monkeypatch.setattr(measure, "_time", fail)
    monkeypatch.setattr(type(device), "is_virtual", property(lambda _: False))
    found = measure.measure(launch.Launcher(device, 1), ready, measure.Choice(may_be_unproven=True))
    assert (found.status, found.message) == ("wrong", "cuGraphLaunch answered 700")


def test_times_of_a_launch() -> None:
    start = np.array([[10, 12], [500, 490]], np.uint64)
    times = launch.Times(start, start + np.uint64(100), start * np.uint64(2), start * np.uint64(2) + np.uint64(50),
                         np.array([[3, 3], [4, 4]], np.uint64))  # fmt: skip
    assert times.clocks == 106  # of (102, 110)
    assert times.seconds == pytest.approx((1050 - 20) * 1e-9)
    assert times.megahertz == pytest.approx(1e3 * (102 / 54 + 110 / 70) / 2)
    assert times.is_spread
    assert not dataclasses.replace(times, sm=times.sm * 0).is_spread


def test_operands() -> None:
    words = Operand("b64", 2, [1, 2 << 32 | 3]).initial()
    assert words[:, 0].tolist() == [1, 0, 3, 2]
    assert words.shape == (4, LANES)
    drawn = Operand("b32", 1, 7, random=lambda rng, shape: rng.integers(0, 9, shape, np.uint32))
    assert drawn.initial()[0, 0] == 7
    assert len(set(drawn.initial(np.random.default_rng(1))[0])) > 2


@pytest.fixture
def tools() -> None:
    """Need ptxas, which the build has used, and nvdisasm, which comes with the extra `test`."""
    assert toolchain.missing() == ""


@pytest.mark.cuda
def test_a_graph_does_what_was_captured(device: pysm120.Device) -> None:
    text = """.version 8.0
.target sm_80
.address_size 64
.visible .entry one_more(.param .u64 param_at) {
    .reg .b64 at; .reg .b32 x;
    ld.param.u64 at, [param_at]; ld.global.u32 x, [at]; add.u32 x, x, 1; st.global.u32 [at], x; ret; }
"""
    kernel, count, stream = device.load(text)["one_more"], device.zeros(1, np.uint32), device.stream()

    def launch() -> None:
        for _ in range(5):
            kernel(1, 1, count, stream=stream)

    with graph.graph_of(device, stream, launch) as again:
        device.synchronize()
        assert count.numpy()[0] == 0, "captured, not run"
        again()
        again()
    assert count.numpy()[0] == 10
    with pytest.raises(pysm120.InvalidArgumentError), graph.graph_of(device, stream, lambda: kernel(0, 1, count)):
        pass
    kernel(1, 1, count, stream=stream)
    device.synchronize()
    assert count.numpy()[0] == 11, "a capture that failed leaves the stream usable"
