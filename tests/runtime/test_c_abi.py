"""The C library by itself: header, symbols, every entry called from C, the example; and that under sanitizers."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import build_tree
import pytest
from operations import operations, write_header

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "src" / "sm120.h"
CC = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or "cc"]
CXX = [path for path in map(shutil.which, ("c++", "g++")) if path is not None][:1]
PROGRAMS = ("c_abi", "c_kernels", "c_operations", "c_watch")  # they call every function of sm120.h
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
    return Path(os.environ.get("PYSM120_LIBRARY") or ROOT / "build" / "libsm120.so").resolve()


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
    major, minor = re.findall(r"#define SM120_VERSION_M(?:AJOR|INOR) (\d+)", HEADER.read_text())
    assert re.search(rf"SONAME +libsm120\.so\.{major}\.{minor}$", run("objdump", "-p", library), re.MULTILINE)


class Called(NamedTuple):
    """What a program printed, and the functions of the library that it called."""

    output: str
    functions: set[str]


@pytest.fixture(scope="module")
def called(library: Path, device_name: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Called]:
    """Run the programs; the dynamic linker notes each function at its first call."""
    found = {}
    for name in PROGRAMS:
        folder = tmp_path_factory.mktemp(name)
        source = ROOT / "tests" / "runtime" / f"{name}.c"
        program = compiled(source, library, folder, "-std=c11", "-Wl,-z,lazy")
        output = run(program, device_name, LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(folder / "bindings"))
        text = "".join(path.read_text() for path in folder.glob("bindings.*"))
        found[name] = Called(output, set(re.findall(r"libsm120\.so\.[\d.]+ \[0\]: normal symbol `(\w+)'", text)))
    return found


def test_every_entry_is_called(called: dict[str, Called]) -> None:
    """By the programs, but for operations, which test_operations.py calls by their rows."""
    by_programs = set().union(*(program.functions for program in called.values()))
    by_rows = {f"sm120_{name}{suffix}" for name in operations() for suffix in ("", "_workspace")}
    never = declared() - by_programs - by_rows
    assert not never, f"no program of tests/runtime calls {', '.join(sorted(never))}: add a call to one of {PROGRAMS}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_entry(called: dict[str, Called], name: str) -> None:
    assert called[name].output == ""


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
    generated = f"-I{write_header(tmp_path / 'generated')}"
    program = compiled(ROOT / "tests" / "runtime" / "cuda_failures.c", library, tmp_path, "-std=c11", generated, "-ldl")
    assert run(program, LD_LIBRARY_PATH=str(fake_cuda(tmp_path / "whole"))) == ""
    limited = fake_cuda(tmp_path / "limited", "-DWITHOUT_TENSOR_MAPS")
    assert run(program, "limits", LD_LIBRARY_PATH=str(limited)) == ""
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
    if sanitize != "thread":  # cuda_failures.c has one thread
        run_failures(built, tmp_path, flags, options)


def run_failures(library: Path, folder: Path, flags: list[str], options: dict[str, str]) -> None:
    """Run the calls that fail with drivers that fail, all compiled with sanitizers."""
    generated = f"-I{write_header(folder / 'generated')}"
    program = compiled(ROOT / "tests" / "runtime" / "cuda_failures.c", library, folder, *flags, generated, "-ldl")
    run(program, **options, LD_LIBRARY_PATH=str(fake_cuda(folder / "fake", *flags)))
    limited = fake_cuda(folder / "limited", *flags, "-DWITHOUT_TENSOR_MAPS")
    run(program, "limits", **options, LD_LIBRARY_PATH=str(limited))
