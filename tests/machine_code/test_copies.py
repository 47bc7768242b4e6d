"""The machine code of cp.async: in the kernels of the library, and where ptxas makes what no GPU executes."""

import pytest
from sass_text import Op, listing

from pysm120.machine_code import sass
from pysm120.runtime.module import builtin_image, builtins

pytestmark = pytest.mark.virtual


@pytest.mark.parametrize("target", ["sm_120f", "sm_90"])
def test_gpus_take_all_copies_of_the_library(target: str) -> None:
    images = {
        builtin.entry: builtin_image(n, target, "cubin")
        for n, builtin in enumerate(builtins())
        if builtin.operation.startswith("attention_kv_cache")
    }
    functions = sass.disassemble_all(images)
    copies = [x for function in functions.values() for x in function.instructions if x.opcode.startswith("LDGSTS")]
    assert len(copies) > 500  # of all kernels for aligned rows
    for entry, function in functions.items():
        assert not sass.refused_copies(function), entry


def test_copies_that_gpus_refuse_are_found() -> None:
    """A uniform register in the shared address with a descriptor that begins at an odd one; either alone is legal."""
    texts = [
        "LDGSTS.E.BYPASS.LTC128B.128 [R27+0x200], desc[UR16][R12.64]",
        "LDGSTS.E.BYPASS.128 [R9+UR4], desc[UR8][R2.64]",
        "LDGSTS.E.BYPASS.LTC128B.128.ZFILL [R5+UR0], desc[UR1][R10.64], P2",
        "LDGSTS.E.BYPASS.LTC128B.128 [R9+UR0+0x4000], desc[UR11][R94.64]",
        "LDG.E R4, desc[UR1][R2.64]",
        "EXIT",
    ]
    function = sass.parse(listing("k", [Op(text) for text in texts]))["k"]
    assert [one.address for one in sass.refused_copies(function)] == [0x20, 0x30]
