"""Structures by value on the command line, and kernels that are found by a part of their names."""

from pathlib import Path

import numpy as np
import pytest

import pysm120
from pysm120 import __main__
from pysm120.observe import argument
from pysm120.runtime.errors import InvalidArgumentError

# struct { uint8_t count; float *y; float scale; float *x; }, and a kernel y[i] = scale * x[i]
KERNEL = """.version 8.8
.target sm_120f
.address_size 64
.visible .entry _Z5scale4Args(.param .align 8 .b8 args[32])
{
    .reg .b64 x, y; .reg .f32 a, v; .reg .b32 i, n; .reg .pred q;
    ld.param.u8 n, [args]; ld.param.u64 y, [args + 8]; ld.param.f32 a, [args + 16]; ld.param.u64 x, [args + 24];
    mov.u32 i, %tid.x; setp.ge.u32 q, i, n; @q ret;
    mad.wide.u32 x, i, 4, x; mad.wide.u32 y, i, 4, y;
    ld.global.f32 v, [x]; mul.f32 v, v, a; st.global.f32 [y], v; ret;
}
.visible .entry other() { ret; }
"""

pytestmark = pytest.mark.virtual


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    path = tmp_path / "scale.ptx"
    path.write_text(KERNEL)
    return str(path)


@pytest.mark.parametrize("command", ["run", "check", "profile"])
def test_structures(kernel: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    out = tmp_path / "y.npy"
    target = f"{out}=f32[2,20]" if command == "run" else "f32[2,20]"
    word = f"struct(u8:20, {target}, f32:0.5, f32[20]:arange)"
    options = ["--kernel", "_Z5scale4Args", "--grid", "1", "--block", "32"]
    status = __main__.main([command, kernel, *options, *(["--seeds", "2"] if command == "check" else []), word])
    printed = capsys.readouterr().out
    assert status == 0, printed
    if command == "run":
        found = np.load(out)
        assert np.array_equal(found[0], np.arange(20) / 2)
        assert np.isnan(found[1]).all()
        assert "args.1" in printed
        assert "args.3" in printed


@pytest.mark.parametrize(("nbytes", "word", "wanted"), [(1, "u8:7", 7), (1, "u8[1]:7", 7), (4, "f32:1", 0x3F800000)])
def test_a_structure_of_one_scalar(tmp_path: Path, nbytes: int, word: str, wanted: int) -> None:
    """A scalar of its size, as nvcc's empty struct of one byte takes it."""
    path, out = tmp_path / "k.ptx", tmp_path / "y.npy"
    path.write_text(
        ".version 8.8\n.target sm_120f\n.address_size 64\n"
        f".visible .entry k(.param .u64 y, .param .align {nbytes} .b8 x[{nbytes}])\n"
        "{ .reg .b64 a; .reg .b32 v; ld.param.u64 a, [y]; "
        f"ld.param.u{8 * nbytes} v, [x]; st.global.u32 [a], v; ret; }}"
    )
    assert __main__.main(["run", str(path), "--grid", "1", "--block", "1", f"{out}=u32[1]", word]) == 0
    assert np.load(out).tolist() == [wanted]


def test_structures_that_are_wrong(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["run", kernel, "--kernel", "_Z5scale4Args", "--grid", "1", "--block", "32"]
    for word, message in (
        ("struct(u8:20,f32[20])", "which has 16 bytes, but parameter 0 args (.b8[32]) has 32"),
        ("struct(u8:300)", "u8 holds numbers from 0 to 255"),
        ("struct()", "argument 0 is ''"),
    ):
        assert __main__.main([*options, word]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(InvalidArgumentError, match="no structure in it"):
        argument.parse_argument(0, "struct(u8:1,struct(u8:1))")
    with pytest.raises(InvalidArgumentError, match="written to the same file"):
        argument.parse_arguments(["struct(o.npy=f32[1],o.npy=f32[1])"])


def test_kernels_by_a_part_of_their_names(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pysm120.Device("virtual") as device:
        module = device.load(Path(kernel))
        assert module["scale"] is module["_Z5scale4Args"]
        assert "scale" not in module
        assert "other" in module
        for part, words in (
            ("e", "2 entries with 'e' in their names: scale\\(Args\\), other"),
            ("zzz", "no entry 'zzz'"),
        ):
            with pytest.raises(KeyError, match=words):
                module[part]
        with pytest.raises(KeyError):
            module[""]
    shape = ["--grid", "1", "--block", "32"]
    assert __main__.main(["run", kernel, "--kernel", "scale", *shape, "struct(u8:1,f32[1],f32:2,f32[1]:ones)"]) == 0
    assert __main__.main(["run", kernel, "--kernel", "e", *shape]) == 2
    assert "--kernel is 'e': " in capsys.readouterr().err
