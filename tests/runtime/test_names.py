"""Demangled names: those of compilers as c++filt shows them, and any other text without a crash."""

import random
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import pysm120
from pysm120 import __main__
from pysm120.runtime.names import demangled, readable

PAIRS = (
    ("_Z4axpyfPKfPf", "axpy(float, float const*, float*)"),
    ("_Z6kernelILi128EfEvPT0_i", "void kernel<128, float>(float*, int)"),
    (
        "_ZN7cutlass13device_kernelINS_4gemm4GemmILb1ELj5EEEEEvNT_6ParamsE",
        "void cutlass::device_kernel<cutlass::gemm::Gemm<true, 5u> >(cutlass::gemm::Gemm<true, 5u>::Params)",
    ),
    ("_ZN1n4copyINS_1m6kernelI3ABCEEEEvS4_", "void n::copy<n::m::kernel<ABC> >(n::m::kernel<ABC>)"),
    ("_ZN12_GLOBAL__N_11kEv", "(anonymous namespace)::k()"),
    ("_Z1kIJiN1c1CILi64EEES2_EEvDpT_", "void k<int, c::C<64>, c::C<64> >(int, c::C<64>, c::C<64>)"),
    ("_Z1kIJifEEvDpT_", "void k<int, float>(int, float)"),
    ("_Z3mapIZ4mainEUlfE_EvT_", "_Z3mapIZ4mainEUlfE_EvT_"),
    ("_Z3runIN3fooUlfE_EEvT_", "void run<foo::{lambda(float)#1}>(foo::{lambda(float)#1})"),
    ("add_one", "add_one"),
    ("_Z", "_Z"),
    ("_ZN3fooE_and_more", "_ZN3fooE_and_more"),
)  # fmt: skip
HOSTILE = (
    "_Z" + "P" * 100_000,
    "_Z" + "N" * 100_000,
    "_ZN" + "1aI" * 50_000,
    "_Z1fI" + "J" * 100_000,
    "_Z" + "9" * 5000,
    "_Z1fP1a" + "".join(f"1bIS{k:X}_S{k:X}_E" for k in range(60)),
)
CXXFILT = shutil.which("c++filt") or ""
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("mangled", "expected"), PAIRS)
def test_pairs(mangled: str, expected: str) -> None:
    assert demangled(mangled) == expected


@pytest.mark.skipif(not CXXFILT, reason="needs c++filt")
def test_names_of_nvcc() -> None:
    """What nvcc wrote is shown as c++filt shows it; the names of anonymous namespaces are shorter."""
    texts = [file.read_text() for file in (ROOT / "tests" / "corpus").glob("*.ptx")]
    names = sorted({name for text in texts for name in re.findall(r"\.(?:entry|func) (?:\([^)]*\) )?(_Z\w+)", text)})
    done = subprocess.run([CXXFILT], input="\n".join(names), capture_output=True, text=True, check=True)
    theirs = [re.sub(r"_INTERNAL_\w+|_GLOBAL__N_\w+", "(anonymous namespace)", x) for x in done.stdout.splitlines()]
    wrong = [f"{n}\n {demangled(n)}\n {x}" for n, x in zip(names, theirs, strict=True) if demangled(n) not in {x, n}]
    assert not wrong, "\n".join(wrong)
    assert sum(demangled(name) != name for name in names) > 0.9 * len(names) > 0


def test_hostile_names() -> None:
    start = time.monotonic()
    for name in HOSTILE:
        assert len(demangled(name)) <= max(len(name), 1 << 16)
    rng = random.Random(5)  # noqa: S311 - not a secret
    for _ in range(5000):
        letters = list(rng.choice(PAIRS)[0])
        for _ in range(4):
            letters[rng.randrange(len(letters))] = rng.choice("NSTIELJKPRO_0123456789abzZDp")
        demangled("_Z" + "".join(letters)[2:])
    assert time.monotonic() - start < 20


def test_texts() -> None:
    text = "_Z4axpyfPKfPf at k.ptx:4: a fault in _Z1gv, called by k"
    assert readable(text) == "axpy(float, float const*, float*) at k.ptx:4: a fault in g(), called by k"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("_Z4axpyfPKfPf_param_2", "param_2"),
        ("...PKfPf_param_12.1", "param_12.1"),
        ("param_x", "param_x"),
        ("axpy_param_0", "axpy_param_0"),
        ("_Z7param_1v", "param_1()"),
    ],
)
def test_parameters(name: str, shown: str) -> None:
    """nvcc names a parameter after its kernel."""
    assert readable(name) == shown


PTX = """.version 9.0
.target sm_120f
.address_size 64
.visible .entry _ZN4math4axpyIfEEvPT_(.param .u64 at)
{ .reg .b64 a; ld.param.u64 a, [at]; st.global.b32 [a], 7; ret; }
.visible .entry _ZN4math4axpyIdEEvPT_(.param .u64 at) { trap; }
"""


@pytest.mark.virtual
def test_kernels_are_found_and_faults_name_them(device: pysm120.Device) -> None:
    module = device.load(PTX)
    assert module["axpy<float>"].info.entry == "_ZN4math4axpyIfEEvPT_"
    with pytest.raises(KeyError, match=re.escape("void math::axpy<float>(float*), void math::axpy<double>(double*)")):
        module["math::axpy"]
    with pytest.raises(pysm120.Error, match=re.escape("void math::axpy<float>(float*) at")):
        module["axpy<float>"](1, 1, np.uint64(0))


def long_name(scopes: int, of: str) -> tuple[str, str]:
    """Return the name of a function in many namespaces, as nvcc mangles it and as it is shown."""
    names = [f"namespace_of_a_template_{k:04}" for k in range(scopes)]
    return f"_ZN{''.join(f'28{name}' for name in names)}4axpyI{of}EEvPT_", "::".join(names)


@pytest.mark.virtual
@pytest.mark.parametrize("scopes", [3, 8, 30, 100])
def test_long_names(device_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], scopes: int) -> None:
    """However long a name is, it is whole in the information about a kernel, and demangled wherever it is shown."""
    (mangled, scope), (other, _) = long_name(scopes, "f"), long_name(scopes, "d")
    shown = f"void {scope}::axpy<float>(float*)"
    text = PTX.replace("_ZN4math4axpyIfEEvPT_", mangled).replace("_ZN4math4axpyIdEEvPT_", other)
    text = text.replace("[at]", f"[{mangled}_param_0]", 1).replace("u64 at", f"u64 {mangled}_param_0", 1)
    with pysm120.Device(f"{device_name}?checks=full") as device:
        module = device.load(text)
        kernel = module["axpy<float>"]
        assert kernel.info.entry == mangled
        with pytest.raises(pysm120.Error) as fault:
            kernel(1, 1, np.uint64(0))
        assert f"{shown} at <ptx>:5: " in str(fault.value)
        assert "(CTA 0,0,0, warp 0, lane 0)" in str(fault.value)
        with pytest.raises(TypeError, match=re.escape(f"{shown} takes 1 arguments, 0 were given: parameter 0 param_0")):
            kernel(1, 1)
        with pytest.raises(KeyError, match=re.escape(f"{shown}, void {scope}::axpy<double>")):
            module["no_such"]
        undefined = device.load(text.replace("[a], 7;", "[a], u;").replace(".reg .b64 a;", ".reg .b64 a; .reg .b32 u;"))
        x = device.array(np.zeros(1, np.uint32))
        undefined["axpy<float>"](1, 1, x)
        with pytest.raises(pysm120.FaultError, match=re.escape(f"{shown} stored it at <ptx>:5, and register u")):
            x.numpy()
    file = tmp_path / "long.ptx"
    file.write_text(text)
    for command in (["run"], ["profile"], ["check", "--seeds", "2"]):
        words = [*command, str(file), "--kernel", "axpy<float>", "--grid", "1", "--block", "1", "u32[1]"]
        assert __main__.main(words) == 0
        found = re.sub(r"\s+", "", capsys.readouterr().out)
        assert re.sub(r"\s+", "", shown) in found
        assert "_ZN" not in found.replace(f"[{mangled}_param_0]", ""), "only in the program's text"
    assert __main__.main(["run", str(file), "--kernel", "axpy<float>", "--grid", "1", "--block", "1"]) != 0
    assert f"{shown} takes 1 arguments, 0 were given: parameter 0 param_0" in capsys.readouterr().err
