"""The machine code of cp.async in the kernels of the library."""

import pytest

from pysm120.machine_code import sass
from pysm120.runtime.module import builtin_image, builtins

pytestmark = pytest.mark.virtual

COPY = "LDGSTS"


@pytest.mark.parametrize("target", ["sm_120f", "sm_90"])
def test_no_copy_has_a_uniform_register_in_its_shared_address(target: str) -> None:
    """From the sum of a lane's part and a uniform one, ptxas 13.0 makes [R5+UR0] with desc[UR1] behind it, where a
    copy has a cache policy. An H200 refuses that as an illegal instruction.
    """
    images = {
        builtin.entry: builtin_image(n, target, "cubin")
        for n, builtin in enumerate(builtins())
        if builtin.operation.startswith("attention_kv_cache")
    }
    copies = {
        entry: [x for x in function.instructions if x.opcode.startswith(COPY)]
        for entry, function in sass.disassemble_all(images).items()
    }
    assert sum(map(len, copies.values())) > 500  # of all kernels for aligned rows
    for entry, found in copies.items():
        assert not [x for x in found if "UR" in x.operands[0]], entry
