"""Statements of PTX: rows, scopes, operands, control flow, and the definitions that reach a statement."""

import pytest

from pysm120.machine_code.reaching import ENTRY, Reaching, Step
from pysm120.machine_code.statements import Statements, registers_of

pytestmark = pytest.mark.virtual

PTX = """.version 8.8
.target sm_90
.visible .entry k(.param .u64 p)
.reqntid 32
{
    .reg .b64 a;  // a comment; with a semicolon
    .reg .f32 x_<3>, y;
    .reg .pred more;
    ld.param.u64 a, [p];
loop:
    {
    .reg .f32 y;
    .reg .pred again;
@more ld.global.v2.f32 {x_0, y},
        [a + 8];
@!more bra loop;
    setp.lt.f32 again, x_0, y;
@again bra loop;
    bra.uni loop;
loop:
    }
    add.rn.f32 y, x_0, x_1; mov.f32 x_2, 0f00000000;
    ret;
}
"""


def test_statements() -> None:
    program = Statements(PTX)
    load, add = program.statements[1], program.statements[6]
    assert (load.first_row, load.row, load.guard, load.opcode) == (14, 15, "more", "ld.global.v2.f32")
    assert registers_of(load.results) == ("x_0@0", "y@1")
    assert [(one.is_address, one.registers) for one in load.sources] == [(True, ("a@0",))]
    assert (add.row, registers_of(add.results), registers_of(add.sources)) == (22, ("y@0",), ("x_0@0", "x_1@0"))
    assert program.statements[7].row == 22
    assert program.statements[7].sources[0].registers == (None,)
    assert registers_of(program.statements[3].results) == ()  # a predicate is no register here
    assert (program.bits["a@0"], program.bits["y@1"]) == (64, 32)


def test_control_flow() -> None:
    """Every branch in the inner block leads to the label of that block."""
    program = Statements(PTX)
    blocks = {(block.first, block.last): block.successors for block in program.blocks}
    assert blocks == {(0, 3): (3, 1), (3, 5): (3, 2), (5, 6): (3,), (6, 9): ()}


def test_definitions_that_reach() -> None:
    program = Statements(PTX)
    steps = [Step(registers_of(one.results), bool(one.guard)) for one in program.statements]
    reaching = Reaching(steps, program.blocks)
    assert reaching.of(6, "x_0@0") == {1, ENTRY}  # the load may not be executed
    assert reaching.of(8, "x_2@0") == {7}
    assert reaching.of(1, "a@0") == {0}
    assert all(reaching.is_reachable(i) for i in range(9))


def test_definitions_of_a_loop() -> None:
    blocks = Statements("""
.entry k() {
    .reg .b32 i, n;
    .reg .pred more;
    mov.b32 i, 0;
again:
    add.u32 i, i, 1;
    setp.lt.u32 more, i, 9;
@more bra again;
    mov.b32 n, i;
}
""")
    steps = [Step(registers_of(one.results), bool(one.guard)) for one in blocks.statements]
    reaching = Reaching(steps, blocks.blocks)
    assert reaching.of(1, "i@0") == {0, 1}
    assert reaching.of(4, "i@0") == {1}
