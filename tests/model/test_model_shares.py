"""Warps and CTAs that do less than others: those that are off by a predicate. Additions to L2."""

import dataclasses

import pytest
from sass_text import Op, listing

from pysm120.machine_code import sass
from pysm120.model import chips
from pysm120.model.chips import Chip
from pysm120.model.recorded import Launch, Recording, Sectors
from pysm120.model.simulator import Pipes


@pytest.fixture(scope="module")
def h100() -> Chip:
    return chips.load("h100")


def of_lines(code: list[tuple[int, Op]]) -> sass.Function:
    """Return a kernel of instructions with the lines of their statements."""
    found = sass.parse(listing("k", [op for _, op in code]))["k"]
    return sass.Function(
        "k", [dataclasses.replace(one, line=line) for one, (line, _) in zip(found.instructions, code, strict=True)]
    )


def test_an_access_touches_nothing_where_its_predicate_is_false() -> None:
    code = [(10, Op("MOV R1, RZ")), (20, Op("@P0 LDG.E R4, [R2.64]")), (30, Op("LDG.E R5, [R2.64]"))]
    function = of_lines([*code, (40, Op("EXIT"))])
    every = Sectors(4, 1, 4, 1, 1, {4096: 2}, 4)
    launch = Launch(dict.fromkeys((10, 20, 30, 40), 4), 2, 1.0, sectors={20: every._replace(accesses=1), 30: every})
    recording = Recording(function, [launch], 2)
    guarded, always = (recording.sectors(one) for one in function.instructions[1:3])
    assert guarded == Sectors(1, 0.25, 1, 0.25, 0.25, {4096: 0.5}, 1)
    assert always == every


def test_an_addition_returns_the_old_value_from_l2(h100: Chip) -> None:
    (one, _) = of_lines(
        [(10, Op("ATOMG.E.ADD.STRONG.GPU PT, R3, desc[UR8][R2.64], R31")), (20, Op("EXIT"))]
    ).instructions
    assert Pipes(h100).of_memory(one, 30) == (h100.timing("load_global").latency, 0.0, 0.0)
