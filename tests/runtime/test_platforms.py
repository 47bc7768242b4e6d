"""Libraries for other machines and systems: they build, the C programs pass, and results have the same bits.

A platform is tested where its compiler and what runs its programs are installed. PYSM120_PLATFORMS="aarch64 musl"
tests these two alone, and then a missing tool is an error; PYSM120_PLATFORMS=none tests none.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import build_tree
import pytest
from platforms import TARGETS, Target, chosen

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("c_abi", "c_kernels", "c_operations", "c_watch")
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]


TESTED = chosen()

pytestmark = pytest.mark.virtual


def run(*command: str | Path, environment: Mapping[str, str] | None = None, seconds: int = 600) -> str:
    """Run a program that must succeed; return what it prints."""
    whole = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds, env=whole)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def build(target: Target) -> Path:
    """Build the library for a platform."""
    with build_tree.alone():
        options = ["--name", target.folder] if target.folder.startswith("tests-") else []
        command: list[str | Path] = [sys.executable, ROOT / "tools" / "build.py", *options]
        library = Path(run(*command, environment={"CC": target.cc}).splitlines()[-1])
    assert library.parent == ROOT / "build" / target.folder
    return library


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.slow) for name in TESTED])
def built(request: pytest.FixtureRequest) -> tuple[Target, Path]:
    target = TARGETS[request.param]
    return target, build(target)


def run_program(
    cc: str, runner: tuple[str, ...], library: Path, folder: Path, name: str, isa: str | None = None
) -> str:
    """Compile a program of tests/runtime for a platform, run it, and return what it prints."""
    source = ROOT / "tests" / "runtime" / f"{name}.c"
    variables = {} if isa is None else {"PYSM120_VM_ISA": isa}
    if library.suffix == ".dll":  # which is searched beside the program
        program = folder / f"{name}.exe"
        link: list[str | Path] = [library.with_name("libsm120.dll.a"), "-D__USE_MINGW_ANSI_STDIO=1", "-static"]
        shutil.copy(library, folder)
        prefix = ROOT / "build" / "tests" / "wine"
        prefix.mkdir(parents=True, exist_ok=True)
        variables |= {"WINEPREFIX": str(prefix), "WINEDEBUG": "-all"}
    else:
        program = folder / name
        link = ["-L", library.parent, "-lsm120", f"-Wl,-rpath,{library.parent}"]
    run(*shlex.split(cc), *WARNINGS, "-I", ROOT / "src", source, "-o", program, *link, "-lm", "-pthread")
    return run(*runner, program, environment=variables, seconds=180)  # 10 on one idle core


def tool(target: Target, name: str) -> str:
    """Return the program of binutils for a platform."""
    prefix = re.match(r"(.*-)gcc", target.cc) if not target.cc.startswith("musl") else None
    return f"{prefix[1]}{name}" if prefix else name


def test_library_is_of_the_target(built: tuple[Target, Path]) -> None:
    target, library = built
    assert f"file format {target.format}" in run(tool(target, "objdump"), "-f", library)


def test_needs_the_system_alone(built: tuple[Target, Path]) -> None:
    target, library = built
    needed = re.findall(r"(?:NEEDED +|DLL Name: )(\S+)", run(tool(target, "objdump"), "-p", library))
    assert {re.split("[.-]", name)[0].lower() for name in needed} <= {"libc", "libm", "ld", "kernel32", "msvcrt"}
    assert needed


def test_exports_are_the_header(built: tuple[Target, Path]) -> None:
    target, library = built
    declared = re.findall(r"^SM120_API .*?(sm120_\w+)\(", (ROOT / "src" / "sm120.h").read_text(), re.MULTILINE)
    if library.suffix == ".dll":
        listing = run(tool(target, "objdump"), "-p", library).partition("[Ordinal/Name Pointer] Table")[2]
        exported = re.findall(r"^\s*\[ *\d+\].* (\w+)$", listing, re.MULTILINE)
    else:
        lines = run(tool(target, "nm"), "-D", "--defined-only", library).splitlines()
        start = {"_init", "_fini"} if "musl" in library.parent.name else set()  # of musl's own object files
        exported = [name for name in (line.split()[-1] for line in lines) if name not in start]
    assert sorted(exported) == sorted(declared)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(built: tuple[Target, Path], tmp_path: Path, name: str) -> None:
    target, library = built
    assert run_program(target.cc, target.runner, library, tmp_path, name) == ""


@pytest.fixture(scope="module")
def native_bits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the results of the library for this machine."""
    cc = os.environ.get("CC", "cc")
    text = run_program(cc, (), build_tree.built(), tmp_path_factory.mktemp("native"), "platform_bits")
    assert len(re.findall(r"^.+ [0-9a-f]{16}$", text, re.MULTILINE)) > 60
    return text


@pytest.mark.parametrize("isa", ["base", "v4"])
def test_same_bits(built: tuple[Target, Path], native_bits: str, tmp_path: Path, isa: str) -> None:
    """Vectors of any width, and none of a library that has one width."""
    target, library = built
    assert run_program(target.cc, target.runner, library, tmp_path, "platform_bits", isa) == native_bits


WHEELS = {
    "aarch64": (r"manylinux_2_\d+_aarch64", {"libsm120.so.0.2", "libsm120.so"}),
    "musl": ("musllinux_1_2_x86_64", {"libsm120.so.0.2", "libsm120.so"}),
    "windows": ("win_amd64", {"sm120.dll", "libsm120.dll.a"}),
}


def check_wheel(name: str, folder: Path) -> None:
    """A wheel for another platform has its tag and its library."""
    tag, files = WHEELS[name]
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    with build_tree.alone():
        run(*pip, "--wheel-dir", folder, ROOT, environment={"CC": TARGETS[name].cc})
    (wheel,) = folder.glob("*.whl")
    assert re.search(rf"-py3-none-{tag}\.whl$", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        libraries = {Path(path).name for path in archive.namelist() if "sm120." in Path(path).name}
        (library,) = files - {"libsm120.so", "libsm120.dll.a"}
        assert archive.read(f"pysm120/{library}") == (ROOT / "build" / TARGETS[name].folder / library).read_bytes()
    assert {name for name in libraries if re.search(r"\.(so|dll)\b", name)} == files


if any(name in WHEELS for name in TESTED):  # pytest takes a test without parameters for one that is skipped

    @pytest.mark.slow
    @pytest.mark.parametrize("name", [name for name in TESTED if name in WHEELS])
    def test_wheel(name: str, tmp_path: Path) -> None:
        check_wheel(name, tmp_path)
