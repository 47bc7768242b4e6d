"""``python -m pysm120 run``: the words for kernels and arguments, what is shown, what is written, what is refused."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from processes import wait_until_it_runs
from programs import BYTES, HEAD, SAXPY

from pysm120 import Device, __main__
from pysm120.cli import console, run
from pysm120.observe import argument, program
from pysm120.runtime.errors import InvalidArgumentError


@pytest.fixture
def saxpy(tmp_path: Path) -> str:
    path = tmp_path / "saxpy.ptx"
    path.write_text(SAXPY)
    return str(path)


def command(device_name: str, *words: str) -> int:
    return __main__.main(["run", "--device", device_name, *words])


def error_of(capsys: pytest.CaptureFixture[str], status: int, *words: str, name: str = "run") -> str:
    """Run what must fail; return its one line."""
    assert __main__.main([name, *words]) == status
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def test_files_in_and_out(
    device_name: str, saxpy: str, tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    n = int(rng.integers(1, 1000))
    x, y = rng.standard_normal((2, n), np.float32)
    y[0] = np.nan
    paths = [tmp_path / name for name in ("x.npy", "y.npy", "out.npy")]
    np.save(paths[0], x)
    np.save(paths[1], y)
    words = [str(paths[0]), f"{paths[2]}={paths[1]}", "f32:-0.5", f"u32:{n}", "--print", "2"]
    assert command(device_name, saxpy, "--kernel", "saxpy", "--grid", "8", "--block", "128", *words) == 0
    out = np.load(paths[2])
    assert out.dtype == np.float32
    assert np.array_equal(out, np.float32(-0.5) * x + y, equal_nan=True)
    assert np.array_equal(np.load(paths[1]), y, equal_nan=True)
    shown = capsys.readouterr().out
    rows = [line.replace("│", " ").split() for line in shown.splitlines()]
    (row,) = (row for row in rows if "param_y" in row)
    assert row[:3] == ["1", "param_y", f"f32[{n}]"]
    assert row[4:6] == ["of", f"{n}"]
    assert row[-1] == "1"
    if n > 1:
        assert float(row[-4]) == pytest.approx(np.nanmin(out), rel=1e-5)
        assert float(row[-3]) == pytest.approx(np.nanmax(out), rel=1e-5)
        assert float(row[-2]) == pytest.approx(np.nanmean(out, dtype=np.float64), rel=1e-4, abs=1e-6)
    assert re.search(r"argument 1: nan", shown)


def test_words_before_between_and_behind_options(device_name: str, saxpy: str, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    words = ["f32[7]:arange", "--kernel", "saxpy", f"{out}=f32[7]:1", "--grid", "1", "f32:2", "--block", "32", "u32:7"]
    assert command(device_name, saxpy, *words) == 0
    assert np.array_equal(np.load(out), 2 * np.arange(7, dtype=np.float32) + 1)


def test_a_parameter_of_bytes_takes_an_array_by_value(device_name: str, tmp_path: Path) -> None:
    path, out = tmp_path / "bytes.ptx", tmp_path / "out.npy"
    path.write_text(BYTES)
    words = [f"{out}=u64[4]", "u64[2]:arange", "u16:0xabcd", "s8:-1"]
    assert command(device_name, str(path), "--kernel", "bytes", "--grid", "1", "--block", "1", *words) == 0
    assert np.load(out).tolist() == [0, 1, 0xABCD, 0xFF]


def test_example_of_the_help_works(
    device_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(device_name, *program.EXAMPLE.split()) == 0
    assert "4,096 of 4,096" in capsys.readouterr().out


@pytest.mark.parametrize("name", argument.TYPES)
def test_generated_arrays_are_what_they_say(name: str) -> None:
    dtype = argument.TYPES[name]
    values = {
        fill: argument.parse_argument(3, f"{name}[3,5]:{fill}").value for fill in ("zeros", "ones", "1", "random")
    }
    assert all(x.shape == (3, 5) and x.dtype == dtype for x in values.values())
    if name != "ue8m0":
        assert not values["zeros"].astype(np.float64).any()
    assert (values["ones"].astype(np.float64) == 1).all()
    assert np.array_equal(values["1"], values["ones"])
    raw = np.frombuffer(values["random"].tobytes(), np.uint8)
    assert len(np.unique(raw)) > 3
    untouched = argument.parse_argument(0, f"{name}[4]").value.tobytes()
    assert untouched in {b"\xff" * 4 * dtype.itemsize, b"\x3f" * 4, b"\x0f" * 4}
    if dtype.kind in "iu":
        with pytest.raises(InvalidArgumentError, match="floating-point"):
            argument.parse_argument(0, f"{name}[4]:normal")
        with pytest.raises(InvalidArgumentError, match="has no NaN"):
            argument.parse_argument(0, f"{name}[4]:nan")
    elif name not in argument.WITHOUT_NAN:
        assert np.isnan(argument.parse_argument(0, f"{name}[4]:nan").value.astype(np.float64)).all()
        assert np.isnan(np.frombuffer(untouched, dtype).astype(np.float64)).all()


def test_generated_arrays_depend_on_seed_and_position_alone() -> None:
    one, again, other, later = (
        argument.parse_argument(index, "f32[64]:normal", seed).value for index, seed in ((0, 1), (0, 1), (0, 2), (1, 1))
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, later)
    uniform = argument.parse_argument(0, "f64[1000]:uniform").value
    assert 0 <= uniform.min() < 0.1
    assert 0.9 < uniform.max() < 1
    assert argument.parse_argument(0, "s16[5]:arange").value.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("word", "value"),
    [("u8:255", np.uint8(255)), ("s64:-0x10", np.int64(-16)), ("b16:7", np.uint16(7)), ("f16:0.1", np.float16(0.1)),
     ("f64:1e300", np.float64(1e300)), ("f32:-inf", np.float32(-np.inf)), ("bf16:3", ml_dtypes.bfloat16(3)),
     ("e4m3:448", ml_dtypes.float8_e4m3fn(448))],
)  # fmt: skip
def test_scalars(word: str, value: Any) -> None:
    found = argument.parse_argument(0, word).value
    assert found.dtype == value.dtype
    assert found.tobytes() == value.tobytes()


def test_types_that_numpy_cannot_name_pass_through_files(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(2, 3))
    found = argument.parse_argument(0, f"{path}:bf16").value
    assert found.dtype == ml_dtypes.bfloat16
    assert found.astype(np.float32).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert argument.parse_argument(0, str(path)).value.tobytes() == found.tobytes()
    assert run.statistics(argument.parse_argument(0, str(path)).value) == ("-", "-", "-", "-")


@pytest.mark.parametrize("word", ["s32[2,2]:1,-2,3,4", "s32[2,2]:[1, -2, 3, 4]"])
def test_lists_of_numbers(word: str) -> None:
    found = argument.parse_argument(0, word).value
    assert (found.dtype, found.tolist()) == (np.int32, [[1, -2], [3, 4]])


def test_lists_of_structures_have_brackets() -> None:
    first, second = argument.parse_argument(0, "struct(s32[2]:[1,-2],u32:3)").members
    assert (first.value.tolist(), second.value) == ([1, -2], 3)


@pytest.mark.parametrize(
    ("word", "message"),
    [("", "not a scalar such as u32:3"), ("u32", "not a scalar such as u32:3"), ("u31:3", "'u31' is not a type; "),
     ("i64:3", "(did you mean s64?)"), ("bfloat16[2]", "(did you mean bf16?)"), ("uint8_t:1", "(did you mean u8?)"),
     ("double:1", "(did you mean f64?)"), ("s32[2]:1,2,3", "its list has 3 numbers and its shape 2 elements"),
     ("s32[2]:[1,x]", "'x' is not a number of type s32"), ("u8[2]:1,256", "from 0 to 255"),
     ("u8:256", "from 0 to 255"), ("u8:-1", "from 0 to 255"), ("u8:1.5", "not a number of type u8"),
     ("f32:x", "not a number of type f32"), ("f32[]", "a shape is numbers"), ("f32[2,-1]", "a shape is numbers"),
     ("f32[2]:maybe", "normal, uniform, random, arange, zeros, ones, nan or a number, not 'maybe'"),
     ("u8[2]:1.5", "not a number of type u8"), ("f32[99999999999999]", "bytes of memory"), ("q31[2]", "not a type"),
     ("no.npy", "cannot be read"), ("out.npy=u32:3", "only an array"), ("out=f32[2]", "a .npy file to write"),
     ("no/out.npy=f32[2]", "folder 'no' does not exist"), ("e2m1[2]:nan", "e2m1 has no NaN")],
)  # fmt: skip
def test_bad_words_are_refused_by_name(word: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match="argument 5 is") as caught:
        argument.parse_argument(5, word)
    assert repr(word) in str(caught.value)
    assert message in str(caught.value)


def test_bad_files_are_refused_by_name(tmp_path: Path) -> None:
    broken, archive, wide = (tmp_path / name for name in ("broken.npy", "archive.npy", "wide.npy"))
    broken.write_bytes(b"\x93NUMPY\x01\x00 nothing")
    with archive.open("wb") as file:
        np.savez(file, x=np.ones(3))
    np.save(wide, np.ones(3))
    (tmp_path / "zip.npy").write_bytes(b"PK\x03\x04")
    np.save(tmp_path / "objects.npy", np.array([None, 1]), allow_pickle=True)
    shapes = ("(True,)", "(1.5,)", "(-4,)", f"({1 << 70},)", f"({1 << 62},)", "(None,)")
    for number, shape in enumerate(shapes):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(16)
        (tmp_path / f"shape{number}.npy").write_bytes(content)
    for word, message in (
        (str(broken), "cannot be read"),
        (str(archive), "an archive"),
        (f"{wide}:f32", "8 bytes, but f32 has 4"),
        (str(tmp_path / "objects.npy"), "cannot be read"),
        (f"{wide}:f31", "'f31' is not a type"),
        (str(tmp_path / "zip.npy"), "cannot be read: File is not a zip file"),
        *((str(tmp_path / f"shape{number}.npy"), "cannot be read: ") for number in range(len(shapes))),
    ):
        with pytest.raises(InvalidArgumentError, match="argument 0") as caught:
            argument.parse_argument(0, word)
        assert message in str(caught.value)


MANGLED = """.version 8.7
.target sm_120a
.address_size 64
.visible .entry _Z4axpyIfEv1Pf(.param .u64 _Z4axpyIfEv1Pf_param_0)
{
    .reg .b64 p;
    ld.param.u64 p, [_Z4axpyIfEv1Pf_param_0];
    st.global.u64 [p], p;
    ret;
}
.visible .entry _Z5earlyv() { ret; }
"""


def test_names_of_cpp_as_the_source_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.ptx"
    file.write_text(MANGLED, encoding="utf-8")
    launch = [str(file), "--grid", "1", "--block", "1"]
    axpy = [*launch, "--kernel", "axpy", "u64[1]"]
    cases = [
        (2, ["run", *launch], "has void axpy<float>(P, float), early()"),
        (2, ["trace", *axpy, "--from", "999"], "but void axpy<float>(P, float) has no instruction there"),
        (0, ["trace", *axpy], "ld.param.u64 p, [param_0]"),
        (0, ["profile", *axpy], "ld.param.u64 p, [param_0];"),
        (2, ["model", str(file), "--kernel", "axpy"], "void axpy<float>(P, float) does not state the threads of a CTA"),
        (2, ["compare", f"{file},kernel=axpy", f"{file},kernel=early"], "void axpy<float>(P, float) does not state"),
    ]
    for status, words, expected in cases:
        assert __main__.main(words) == status, words
        shown = "".join(capsys.readouterr())
        assert expected in shown, words
        assert "_Z" not in shown, words
    with Device("virtual") as device:
        module = device.load(file)
        assert repr(module["axpy"]) == "<Kernel void axpy<float>(P, float) of virtual:0>"
        assert "['void axpy<float>(P, float)', 'early()']" in repr(module)


def test_launches_that_are_refused(saxpy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--grid", "1", "--block", "32"]
    fine = ["f32[4]", "f32[4]", "f32:1", "u32:4"]
    kernel = [saxpy, "--kernel", "saxpy", *shape]
    for words, message in (
        (["nowhere.ptx"], "neither a file nor a kernel of the library"),
        ([saxpy, "--grid", "1", *fine], "--block is missing"),
        ([saxpy, "--block", "1", *fine], "--grid is missing"),
        ([saxpy, *shape, *fine], "--kernel is missing: "),
        ([saxpy, "--kernel", "waxpy", *shape, *fine], "no entry 'waxpy'; it has saxpy, nothing"),
        ([saxpy, "--grid", "1,2,3,4", "--block", "1"], "--grid is '1,2,3,4'"),
        ([saxpy, "--grid", "0", "--block", "1"], "--grid is '0'"),
        ([*kernel, "--shared", "lots"], "--shared is 'lots'"),
        ([*kernel, *fine[:3]], "takes 4 arguments, 3 were given: parameter 3 param_n (.u32) is missing"),
        ([*kernel, *fine, "u32:9"], "'u32:9' is too many"),
        (
            [*kernel, "u32:1", *fine[1:]],
            "param_x (.u64) takes an array such as f32[1024]:normal or x.npy or a number such as u64:1",
        ),
        ([*kernel, *fine[:2], "u32:1", "u32:4"], "param_a (.f32) takes a number such as f32:1"),
        ([*kernel, *fine[:3], "f32:4"], "param_n (.u32) takes a number such as u32:1"),
        ([*kernel, *fine[:3], "u32[1]"], "param_n (.u32) takes a number such as u32:1"),
        ([*kernel, "--device", "cuda", "--seed", "3", *fine], "only the virtual device supports it"),
        ([*kernel, "--checks", "most", *fine], "--checks is 'most', not one of off, default, full"),
        ([*kernel, f"{tmp_path}/o.npy=f32[4]", f"{tmp_path}/o.npy=f32[4]", *fine[2:]], "the same file"),
        (["quantize_mxfp8_f32_d", "--kernel", "saxpy", "--grid", "1"], "FILE is the kernel quantize_mxfp8_f32_d"),
    ):
        assert message in error_of(capsys, 2, *words, *([] if "--device" in words else ["--device", "virtual"]))
    with pytest.raises(SystemExit) as stop:
        __main__.main(["run", *kernel, "--fast"])
    assert stop.value.code == 2
    shown = capsys.readouterr().err
    assert "--fast" in shown
    assert "--kernel, --grid, --block" in shown
    assert shown.startswith("usage: python -m pysm120 run FILE")


@pytest.mark.virtual
def test_faults_say_where_and_end_with_status_1(saxpy: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [saxpy, "--kernel", "saxpy", "--grid", "1", "--block", "32", "f32[4]:1", "f32[4]:1", "f32:1", "u32:5"]
    line = error_of(capsys, 1, *words, "--device", "virtual")
    assert "past the end of an allocation of 16 bytes" in line
    assert f"saxpy at {saxpy}:" in line
    assert "CTA 0,0,0, warp 0, lane 4" in line


@pytest.mark.virtual
def test_levels_and_seeds_make_the_device(saxpy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def name(*words: str) -> str | None:
        arguments, rest = __main__.parser().parse_known_args(["run", saxpy, "--grid", "1", "--block", "1", *words])
        return program.parse(arguments, rest).device_name()

    monkeypatch.delenv("PYSM120_DEVICE", raising=False)
    assert name() is None
    assert name("--device", "virtual:0") == "virtual:0"
    assert name("--seed", "7") == "virtual?seed=7"
    assert name("--device", "virtual:0?seed=3&checks=off", "--seed", "7") == "virtual:0?checks=off&seed=7"
    monkeypatch.setenv("PYSM120_DEVICE", "virtual:0?seed=1")
    assert name("--checks", "full") == "virtual:0?seed=1&checks=full"


SPIN = (
    HEAD
    + """
.visible .entry spin()
{
again:
    bra                     again;
}
"""
)


@pytest.mark.virtual
@pytest.mark.usefixtures("control_c")
def test_ctrl_c_ends_a_kernel(tmp_path: Path) -> None:
    path = tmp_path / "spin.ptx"
    path.write_text(SPIN)
    words = [sys.executable, "-m", "pysm120", "run", str(path), "--grid", "1", "--block", "32", "--device", "virtual"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until_it_runs(process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() == "pysm120: interrupted"


def test_cooperative_launch(tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]) -> None:
    x = rng.integers(0, 9, 128).astype(np.int32)
    np.save(tmp_path / "x.npy", x)
    file = str(Path(__file__).parents[1] / "corpus" / "grids.ptx")
    words = [file, "--kernel", "arrives", "--grid", "4", "--block", "32"]
    rest = [str(tmp_path / "x.npy"), "s32[128]", f"{tmp_path / 'z.npy'}=s32[128]"]
    assert command("virtual", *words, "--cooperative", *rest) == 0
    assert np.array_equal(np.load(tmp_path / "z.npy"), np.roll(x + 1, -32) + 2 * x + 1)
    assert __main__.main(["check", *words, "--cooperative", "--seeds", "3", *rest]) == 0
    capsys.readouterr()
    assert "not cooperative, as grid.sync() needs" in error_of(capsys, 1, "--device", "virtual", *words, *rest)


def test_a_launch_that_does_not_end_says_what_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "k.ptx").write_text(HEAD + ".entry k() {\nagain: bra again;\n}\n")
    patience = console.patience
    monkeypatch.setattr(console, "patience", lambda: patience(0))
    monkeypatch.setenv("PYSM120_INSTRUCTION_LIMIT", str(1 << 25))
    assert __main__.main(["run", "--device", "virtual", f"{tmp_path}/k.ptx", "--grid", "1", "--block", "1"]) == 1
    first, fault = capsys.readouterr().err.split("\n", 1)
    assert "the launch still runs after 0 s; Ctrl-C ends it, and so does PYSM120_INSTRUCTION_LIMIT=N" in first
    assert "CUDA_ERROR_LAUNCH_TIMEOUT" in fault
