"""The C library by itself: header, symbols, every entry called from C, the example; and that under sanitizers."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import build_tree
import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "src" / "sm120.h"
CC = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or "cc"]
CXX = [path for path in map(shutil.which, ("c++", "g++")) if path is not None][:1]
PROGRAMS = ("c_abi", "c_kernels", "c_operations", "c_watch")  # they call every entry
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]


def run(*command: str | Path, **environment: str) -> str:
    """Run a program that must succeed; what it printed."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=600, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def compiled(source: Path, library: Path, folder: Path, *flags: str, linked: bool = True) -> Path:
    """Compile a C program that needs the header and the library alone."""
    program = folder / source.stem
    words: list[str | Path] = [*CC, *WARNINGS, "-I", HEADER.parent, source, *([library] if linked else []), *flags]
    run(*words, f"-Wl,-rpath,{library.parent}", "-lm", "-pthread", "-o", program)
    return program


def declared() -> set[str]:
    """List the functions of the header."""
    return set(re.findall(r"^SM120_API .*?(sm120_\w+)\(", HEADER.read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def library() -> Path:
    return Path(os.environ.get("PYSM120_LIBRARY") or ROOT / "build" / "libsm120.so.0").resolve()


def fake_cuda(folder: Path, *flags: str) -> Path:
    """Compile the CUDA driver that has no GPU; the folder that holds it."""
    folder.mkdir()
    source, output = ROOT / "tests" / "runtime" / "fake_cuda.c", folder / "libcuda.so.1"
    run(*CC, "-std=c11", *WARNINGS, "-shared", "-fPIC", *flags, "-I", HEADER.parent, source, "-o", output)
    return folder


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def sanitize(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("standard", ["c99", "c11", *(["c++11", "c++20"] if CXX else [])])
def test_header_stands_alone(standard: str, tmp_path: Path) -> None:
    is_cxx = standard.startswith("c++")
    source = tmp_path / ("alone.cpp" if is_cxx else "alone.c")
    source.write_text("#include <sm120.h>\n#include <sm120.h>\nint main(void) { return sm120_version() < 0; }\n")
    run(*(CXX if is_cxx else CC), f"-std={standard}", *WARNINGS, "-I", HEADER.parent, "-fsyntax-only", source)


def test_exports_are_the_header(library: Path) -> None:
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    assert {line.split()[-1] for line in lines} == declared()


def test_needs_the_c_library_alone(library: Path) -> None:
    needed = re.findall(r"NEEDED +(\S+)", run("objdump", "-p", library))
    assert {re.split("[.-]", name)[0] for name in needed} <= {"libc", "libm", "libpthread", "libdl", "ld"}
    assert re.search(r"SONAME +libsm120\.so\.0$", run("objdump", "-p", library), re.MULTILINE)


def test_every_entry_is_called() -> None:
    text = "".join(
        (ROOT / "tests" / "runtime" / name).read_text() for name in ("c_abi.h", *(f"{p}.c" for p in PROGRAMS))
    )
    assert {name for name in declared() if not re.search(rf"\b{name}\(", text)} == set()


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_entry(library: Path, device_name: str, tmp_path: Path, name: str) -> None:
    assert run(compiled(ROOT / "tests" / "runtime" / f"{name}.c", library, tmp_path, "-std=c11"), device_name) == ""


@pytest.mark.virtual
def test_boundless_memory(library: Path, tmp_path: Path) -> None:
    program = compiled(ROOT / "tests" / "runtime" / "c_abi.c", library, tmp_path, "-std=c11")
    assert run(program, "virtual", PYSM120_VIRTUAL_MEMORY=str(2**47)) == ""


def test_example(library: Path, device_name: str, tmp_path: Path) -> None:
    output = run(compiled(ROOT / "examples" / "attention.c", library, tmp_path, "-std=c99"), device_name)
    assert re.fullmatch(r"error \d\.\d\d%\n", output)


@pytest.mark.virtual
def test_threads(library: Path, tmp_path: Path) -> None:
    assert (
        run(compiled(ROOT / "tests" / "runtime" / "threads.c", library, tmp_path, "-std=c11")).count("CTA") > 0
    )  # what they say


@pytest.mark.virtual
def test_unloading(library: Path, tmp_path: Path) -> None:
    program = compiled(ROOT / "tests" / "runtime" / "unload.c", library, tmp_path, "-std=c11", "-ldl", linked=False)
    assert run(program, str(library), PYSM120_THREADS="4") == ""


@pytest.mark.virtual
def test_failing_cuda_driver(library: Path, tmp_path: Path) -> None:
    program = compiled(ROOT / "tests" / "runtime" / "cuda_failures.c", library, tmp_path, "-std=c11", "-ldl")
    assert run(program, LD_LIBRARY_PATH=str(fake_cuda(tmp_path / "whole"))) == ""
    old = fake_cuda(tmp_path / "old", "-DWITHOUT_LAUNCH")
    assert run(program, "too-old", LD_LIBRARY_PATH=str(old)) == ""


@pytest.mark.slow
@pytest.mark.virtual
def test_sanitized(sanitize: str, tmp_path: Path) -> None:
    built = build_tree.built("--sanitize", sanitize)
    flags = ["-std=c11", "-g", f"-fsanitize={sanitize}"]
    options = {
        "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1",
        "TSAN_OPTIONS": "halt_on_error=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    for source in (
        *(f"tests/runtime/{name}.c" for name in PROGRAMS),
        "tests/runtime/threads.c",
        "examples/attention.c",
    ):
        run(compiled(ROOT / source, built, tmp_path, *flags), "virtual", **options)
    program = compiled(ROOT / "tests" / "runtime" / "cuda_failures.c", built, tmp_path, *flags, "-ldl")
    run(program, **options, LD_LIBRARY_PATH=str(fake_cuda(tmp_path / "fake", *flags)))
