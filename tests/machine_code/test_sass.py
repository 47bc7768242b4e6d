"""Machine code: scheduling fields, control flow, and what a cubin says of its kernels."""

import dataclasses
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from sass_text import Op, listing

from pysm120.machine_code import sass, tools
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError
from pysm120.runtime.module import builtin_image, builtins

pytestmark = pytest.mark.virtual

# As nvdisasm 13.5 prints it, of an sm_90 kernel.
REAL = """
\t.section\t.text.kernel,"ax",@progbits
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;                             /* 0x00000a00ff017b82 */
                                                                                      /* 0x000ff00000000800 */
        /*0010*/                   LDC.64 R226, c[0x0][0x3f0] ;                       /* 0x0000fc00ffe27b82 */
                                                                                      /* 0x000e220000000a00 */
\t//## File ".nv_debug_ptx_txt", line 446
        /*0020*/                   BSSY B0, `(.L_x_0) ;                               /* 0x000008f000007945 */
                                                                                      /* 0x000fe20003800000 */
        /*0030*/                   I2F.U32.RP R6, R226 ;                              /* 0x000000e200067306 */
                                                                                      /* 0x001e220000209000 */
.L_x_0:
        /*0040*/              @!P0 HMMA.16816.F32.BF16 R132, R160.reuse, R152, RZ ;   /* 0x00000098a084723c */
                                                                                      /* 0x041fec00000418ff */
"""


def test_scheduling_fields_of_known_words() -> None:
    # The fields as CuAssembler writes them: [B------:R-:W-:-:S08], [B------:R-:W0:-:S01], [B------:R-:W-:-:S01],
    # [B0-----:R-:W0:-:S01], [B0-----:R-:W-:Y:S06] with operand A in the cache.
    stack, parameter, sync, convert, product = sass.parse(REAL)["kernel"].instructions
    assert (stack.stall, stack.yields, stack.write_barrier, stack.read_barrier, stack.wait_mask) == (
        8,
        False,
        None,
        None,
        0,
    )
    assert (parameter.stall, parameter.write_barrier, parameter.read_barrier) == (1, 0, None)
    assert (parameter.opcode, parameter.operands, parameter.line) == ("LDC.64", ("R226", "c[0x0][0x3f0]"), 0)
    assert (sync.target, sync.operands, sync.line) == (0x40, ("B0", "0x40"), 446)
    assert (convert.wait_mask, convert.write_barrier, convert.stall) == (1, 0, 1)
    assert (product.wait_mask, product.stall, product.reuse, product.predicate) == (1, 6, 1, "!P0")
    assert product.is_tensor
    assert product.operands == ("R132", "R160.reuse", "R152", "RZ")


@pytest.mark.parametrize(("stall", "writes", "reads", "waits", "yields"), [(15, 5, 0, 63, True), (1, 7, 7, 0, False)])
def test_scheduling_fields_one_by_one(stall: int, writes: int, reads: int, waits: int, yields: bool) -> None:
    text = listing("k", [Op("NOP", stall, writes, reads, waits, yields)])
    (one,) = sass.parse(text)["k"].instructions
    assert (one.stall, one.wait_mask, one.yields) == (stall, waits, yields)
    assert one.write_barrier == (None if writes == 7 else writes)
    assert one.read_barrier == (None if reads == 7 else reads)


NESTED = [
    Op("MOV R1, RZ"),
    Op("MOV R2, RZ", label=".L_x_1"),  # outer loop
    Op("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2"),
    Op("@!P0 BRA `(.L_x_9)"),
    Op("HMMA.16816.F32 R4, R8, R12, R4", label=".L_x_2"),  # inner loop
    Op("@P1 BRA `(.L_x_3)"),
    Op("FMUL R4, R4, R5"),
    Op("FMUL R5, R4, R5"),
    Op("@P2 BRA `(.L_x_2)", label=".L_x_3"),
    Op("@P3 BRA `(.L_x_1)"),
    Op("EXIT"),
    Op("@!P0 BRA `(.L_x_9)", label=".L_x_9"),  # a wait that goes on, out of line
    Op("BRA `(.L_x_2)"),
]


def test_loops_and_the_main_loop() -> None:
    function = sass.parse(listing("k", NESTED))["k"]
    starts = [16 * block.first for block in function.blocks]
    assert starts == [0x00, 0x10, 0x40, 0x60, 0x80, 0x90, 0xA0, 0xB0, 0xC0]
    loops = {16 * function.blocks[loop.header].first: len(loop.blocks) for loop in function.loops}
    assert loops == {0x10: 7, 0x40: 3, 0xB0: 1}
    main = function.main_loop()
    assert 16 * function.blocks[main.header].first == 0x40
    taken = function.path(main, lambda _, index: index == 5)
    assert [one.address for one in taken] == [0x40, 0x50, 0x80]
    assert len(function.path(main, lambda *_: False)) == 5


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_round_with_all_rounds_of_the_loop_inside(rounds: int) -> None:
    function = sass.parse(listing("k", NESTED))["k"]
    outer, inner = function.loops[:2]
    way = [one.address for one in function.path(outer, lambda *_: False, {inner.header: rounds})]
    assert way == [0x10, 0x20, 0x30, *[0x40, 0x50, 0x60, 0x70, 0x80] * rounds, 0x90]


def test_reconvergence_leads_where_it_was_said() -> None:
    ops = [
        Op("BSSY B0, `(.L_x_1)"),
        Op("@P0 BRA `(.L_x_2)"),
        Op("BSYNC B0"),
        Op("EXIT", label=".L_x_2"),
        Op("EXIT", label=".L_x_1"),
    ]
    function = sass.parse(listing("k", ops))["k"]
    assert [block.successors for block in function.blocks] == [(1, 2), (3,), (), ()]


CALLS = [
    Op("MOV R2, 0x20"),
    Op("CALL.REL.NOINC `($k$product)"),
    Op("CALL.REL.NOINC `($k$slow)"),
    Op("CALL.REL.NOINC `($k$ends)"),
    Op("EXIT"),
    Op("IMMA.16832.S8.S8 R4, R8, R12, R4", label="$k$product"),
    Op("RET.REL.NODEC R2 `(k)"),
    Op("@P0 BRA `(.L_x_1)", label="$k$slow"),
    Op("FMUL R4, R4, R5"),
    Op("RET.REL.NODEC R2 `(k)", label=".L_x_1"),
    Op("FMUL R4, R4, R5", label="$k$ends"),
    Op("@P0 RET.REL.NODEC R2 `(k)"),
    Op("EXIT"),
]


def test_a_call_executes_a_function_without_branches() -> None:
    function = sass.parse(listing("k", CALLS))["k"]
    assert function.called == {0x10: function.instructions[5:7]}


def test_products_of_a_function_count_for_the_loop_that_calls_it() -> None:
    ops = [
        Op("FMUL R4, R4, R5", label=".L_x_1"),
        Op("CALL.REL.NOINC `($k$product)"),
        Op("@P0 BRA `(.L_x_1)"),
        *[Op("FMUL R4, R4, R5", label=".L_x_2"), *[Op("FMUL R4, R4, R5")] * 8, Op("@P0 BRA `(.L_x_2)")],
        Op("EXIT"),
        *CALLS[5:7],
    ]
    function = sass.parse(listing("k", ops))["k"]
    assert function.blocks[function.main_loop().header].first == 0


def test_a_kernel_without_a_loop_has_no_main_loop() -> None:
    function = sass.parse(listing("straight", [Op("EXIT")]))["straight"]
    with pytest.raises(InvalidArgumentError, match="straight has no loop"):
        function.main_loop()


def test_lines_as_long_as_the_name_of_the_kernel() -> None:
    """nvdisasm fills lines up to that length, between operands and a remark too; they are read in linear time."""
    text = REAL.replace("R226 ;   ", 'R226 (*"SpillRefill"*);   ').replace("   ", " " * 4000)
    assert len(text) > 100_000
    found, known = ([(x.opcode, x.operands) for x in sass.parse(one)["kernel"].instructions] for one in (text, REAL))
    assert found == known


def test_text_that_ends_too_early() -> None:
    text = "\n".join(listing("k", [Op("NOP")]).splitlines()[:-1])
    with pytest.raises(InvalidArgumentError, match="ends within the instruction at 0x0 of k"):
        sass.parse(text)


ENTRIES = {builtin.entry: index for index, builtin in enumerate(builtins())}


# On sm_90 nvdisasm remarks on its spills in some forms of the text.
SPILLING = "attention_nvfp4_mxfp8_192x64_d128"
INDIRECT = "attention_fp8_128x64_d64"  # on sm_120f it has an indirect branch, which ptxas made of two conditional ones


@pytest.mark.parametrize("target", ["sm_120f", "sm_90"])
def test_kernels_read_together_equal_kernels_read_alone(target: str, rng: np.random.Generator) -> None:
    """One run of nvdisasm for several cubins; it names the functions that a kernel calls by address."""
    entries = list(dict.fromkeys([SPILLING, INDIRECT, *map(str, rng.choice(list(ENTRIES), 4, replace=False))]))
    images = {entry: builtin_image(ENTRIES[entry], target, "cubin") for entry in entries}
    together = sass.disassemble_all(images)
    assert list(together) == entries
    for entry in entries:
        alone = sass.disassemble(images[entry], entry)[entry]
        for one, other in zip(together[entry].instructions, alone.instructions, strict=True):
            if not one.opcode.startswith("CALL"):
                assert one == dataclasses.replace(other, line=0)
    assert sass.disassemble_all({}) == {}


SWITCH = """
.version 9.0
.target {}
.address_size 64
.visible .entry switch(.param .u64 out, .param .u32 choice)
{{
    .reg .u32 %choice, %value;
    .reg .u64 %out;
    ld.param.u64 %out, [out];
    ld.param.u32 %choice, [choice];
    ways: .branchtargets one, two, one, three;
    brx.idx.uni %choice, ways;
one:
    atom.global.add.u32 %value, [%out], 1;
    bra.uni done;
two:
    atom.global.max.u32 %value, [%out], 2;
    bra.uni done;
three:
    atom.global.exch.b32 %value, [%out], 3;
done:
    st.global.u32 [%out + 4], %value;
    ret;
}}
"""


@pytest.mark.parametrize("target", ["sm_120f", "sm_90"])
def test_an_indirect_branch_leads_to_each_of_its_targets(target: str) -> None:
    image = sass.assemble(SWITCH.format(target), target)
    for function in (sass.disassemble(image)["switch"], sass.disassemble_all({"switch": image})["switch"]):
        (branch,) = (one for one in function.instructions if one.choices)
        assert branch.base in {"BRX", "BRXU"}
        (block,) = (block for block in function.blocks if function.instructions[block.last - 1] is branch)
        firsts = [function.instructions[function.blocks[n].first].address for n in block.successors]
        assert firsts == list(branch.choices)
        assert len(firsts) == 3


MARKED = """.version 8.8
.target sm_90
.address_size 64
#line 40 "a.ptx"
.visible .entry k(.param .u64 p)
{
    .reg .b64 a;
    .reg .f32 x;
    ld.param.u64 a, [p];
    ld.global.f32 x, [a];
#line 7 "lib/b.ptx"
    sin.approx.f32 x, x;
    st.global.f32 [a], x;
    ret;
}
"""


def test_lines_of_the_ptx_and_of_the_template() -> None:
    function = sass.disassemble(sass.assemble(MARKED, "sm_90"))["k"]
    lines = {one.opcode: one.line for one in function.instructions}
    assert lines["MUFU.SIN"] == 12
    places = sass.places(MARKED)
    assert len(places) == len(MARKED.splitlines())
    assert places[lines["MUFU.SIN"] - 1] == ("lib/b.ptx", 7)
    assert places[9] == ("a.ptx", 45)
    assert places[0] == ("", 0)


@pytest.mark.parametrize("image", [b"", b"PTX", b"\x7fELF" + bytes(100), builtin_image(0, "sm_90", "cubin")[:5000]])
def test_what_is_no_cubin(image: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="cubin"):
        sass.disassemble(image)


def test_missing_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(UnsupportedError, match=r"^nvdisasm was not found in PATH.*pip install nvidia-cuda-nvdisasm`$"):
        tools.run("nvdisasm", "--version")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvdisasm").write_text("#!/bin/sh\necho wrong >&2; exit 3\n")
    (tmp_path / "bin" / "nvdisasm").chmod(0o700)
    with pytest.raises(InvalidArgumentError, match="nvdisasm failed with status 3: wrong"):
        tools.run("nvdisasm", "--version")
