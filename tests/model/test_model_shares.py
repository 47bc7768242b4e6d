"""Warps and CTAs that do less than others: those that are off by a predicate."""

import dataclasses

from sass_text import Op, listing

from pysm120.machine_code import sass
from pysm120.model.recorded import Launch, Recording, Sectors


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
