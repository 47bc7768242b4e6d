"""sm120.hpp: it compiles without a warning, wraps every operation, and runs."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from operations import declared

from pysm120.runtime import ffi as binding

ROOT = Path(__file__).resolve().parents[2]
CXX = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]

needs_compiler = pytest.mark.skipif(CXX is None, reason="no C++ compiler: c++ or g++")


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_compiler
@pytest.mark.parametrize(
    ("source", "printed"),
    [("tests/runtime/wrapper.cpp", ""), ("examples/attention.cpp", r".+: largest error 0\.\d{3}\n")],
)
def test_programs(tmp_path: Path, device_name: str, source: str, printed: str) -> None:
    library = binding.library_path().resolve()
    program = tmp_path / "program"
    flags: list[str | Path] = [
        "-I",
        ROOT / "src",
        ROOT / source,
        library,
        f"-Wl,-rpath,{library.parent}",
        "-o",
        program,
    ]
    run(str(CXX), "-std=c++17", *WARNINGS, *flags)
    assert re.fullmatch(printed, run(program, device_name))


@needs_compiler
@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_two_files_may_include_it(tmp_path: Path, standard: str) -> None:
    """Nothing is defined twice when they are linked."""
    library = binding.library_path().resolve()
    for name in ("one", "two"):
        body = f'int {name}() {{ return sm120::Device("virtual").get() == nullptr; }}'
        text = '#include "sm120.hpp"\n' * 2 + body + "\n"
        (tmp_path / f"{name}.cpp").write_text(text)
    (tmp_path / "main.cpp").write_text("int one();\nint two();\nint main() { return one() + two(); }\n")
    sources = [tmp_path / f"{name}.cpp" for name in ("one", "two", "main")]
    flags: list[str | Path] = ["-I", ROOT / "src", library, f"-Wl,-rpath,{library.parent}", "-o", tmp_path / "program"]
    run(str(CXX), f"-std={standard}", *WARNINGS, *sources, *flags)
    run(tmp_path / "program")


def test_every_operation_is_wrapped() -> None:
    text = (ROOT / "src" / "sm120.hpp").read_text()
    wrapped = re.findall(r"^SM120_HPP_OPERATION(_WITH_WORKSPACE)?\((\w+)\)$", text, re.MULTILINE)
    names = {name for _, name in wrapped}
    assert names == {*declared()} - {"tensor_map_encode"}, "sm120.hpp has other operations than sm120.h: see its end"
    with_workspace = {name for name in names if hasattr(binding.lib, f"sm120_{name}_workspace")}
    assert {name for suffix, name in wrapped if suffix} == with_workspace
