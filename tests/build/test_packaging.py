"""The package as others get it: declarations, versions, the wheel, and what C programs are compiled with."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import build_tree
import cffi
import pytest

import pysm120
from pysm120.runtime import ffi as binding
from pysm120.runtime.ffi import ffi, lib

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools")]

import backend  # noqa: E402 # sys.path must have the folder first

import build  # noqa: E402

COMPILER = shlex.split(os.environ.get("CC") or "cc")


def run(*command: str | Path, **environment: str) -> str:
    """Run a program; return what it prints."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        cwd=environment.get("PWD"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compile_and_run(folder: Path, source: str, *flags: str) -> str:
    """Compile a C program and run it."""
    (folder / "program.c").write_text(source)
    run(
        *COMPILER,
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        folder / "program.c",
        *flags,
        "-o",
        folder / "program",
    )
    return run(folder / "program")


def structs() -> dict[str, list[str]]:
    """Name the members of every struct that callers fill."""
    names = [name for name in ffi.list_types()[0] if ffi.typeof(name).kind == "struct"]
    fields = {name: ffi.typeof(name).fields for name in names}
    return {name: [field for field, _ in members] for name, members in fields.items() if members}


def test_declarations_equal_the_compilers(tmp_path: Path) -> None:
    lines, expected = [], []
    for struct, members in structs().items():
        lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
        expected.append(f"{struct} {ffi.sizeof(struct)}")
        for member in members:
            lines.append(f'printf("{struct}.{member} %zu\\n", offsetof({struct}, {member}));')
            expected.append(f"{struct}.{member} {ffi.offsetof(struct, member)}")
    constants = re.findall(r"\b(SM120_[A-Z0-9_]+) *=", binding.declarations((ROOT / "src" / "sm120.h").read_text()))
    for name in constants:
        lines.append(f'printf("{name} %ld\\n", (long){name});')
        expected.append(f"{name} {getattr(lib, name)}")
    source = '#include <stdio.h>\n#include "sm120.h"\nint main(void) {\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    assert compile_and_run(tmp_path, source, f"-I{ROOT / 'src'}").splitlines() == expected
    assert len(structs()) >= 7
    assert len(constants) >= 24


def test_one_version() -> None:
    version = pysm120.__version__
    assert binding.version() == version
    major, minor, patch = map(int, version.split("."))
    assert lib.sm120_version() == 10000 * major + 100 * minor + patch
    assert f"Version: {version}\n" in (ROOT / "pysm120/pkgconfig/sm120.pc").read_text()
    cmake = (ROOT / "pysm120/cmake/sm120ConfigVersion.cmake").read_text()
    assert f'PACKAGE_VERSION "{version}"' in cmake
    assert f'"{major}.{minor}"' in cmake
    assert (major, minor) == binding.ABI
    assert f'"{binding.LIBRARY_NAME}"' in (ROOT / "pysm120/cmake/sm120Config.cmake").read_text()


PROGRAM = """
#include <stdio.h>
#include "sm120.h"
int main(void) {
    sm120_device *device = NULL;
    if (sm120_device_open("virtual", &device) != SM120_OK || sm120_device_close(device) != SM120_OK) {
        return 1;
    }
    puts(sm120_version_string());
    return 0;
}
"""


def test_flags_compile_a_program(tmp_path: Path) -> None:
    flags = run(sys.executable, "-m", "pysm120", "--cflags", "--libs")
    assert compile_and_run(tmp_path, PROGRAM, *flags.split()).strip() == pysm120.__version__
    folder = Path(run(sys.executable, "-m", "pysm120", "--cmakedir").strip())
    assert (folder / "sm120Config.cmake").is_file()


def test_flags_of_a_path_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    shutil.copy(binding.library_path(), folder / binding.LIBRARY_NAME)
    library = str(folder / binding.LIBRARY_NAME)
    flags = run(sys.executable, "-m", "pysm120", "--cflags", "--libs", PYSM120_LIBRARY=library)
    assert f"-L{folder}" in shlex.split(flags)
    assert compile_and_run(tmp_path, PROGRAM, *shlex.split(flags)).strip() == pysm120.__version__


def described(folder: Path, *fields: str) -> list[str]:
    """Return the options in a sm120.pc, as pkg-config does, which not every machine has."""
    text = (folder / "sm120.pc").read_text()
    values = {"pcfiledir": str(folder), **dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))}
    found = " ".join(dict(re.findall(r"^([\w.]+): (.*)$", text, re.MULTILINE))[x] for x in fields or ("Cflags", "Libs"))
    while "${" in found:
        found = re.sub(r"\$\{(\w+)\}", lambda name: values[name[1]], found)
    return found.split()


def test_pkgconfig_of_the_source_tree(tmp_path: Path) -> None:
    folder = run(sys.executable, "-m", "pysm120", "--pkgconfigdir").strip()
    text = (Path(folder) / "sm120.pc").read_text()
    assert "prefix=${pcfiledir}/../..\n" in text
    assert compile_and_run(tmp_path, PROGRAM, *described(Path(folder))).strip() == pysm120.__version__
    assert f"Version: {pysm120.__version__}\n" in text


def compile_the_example(include: Path, libraries: Path, folder: Path, device_name: str) -> None:
    """Compile the example by the command in its first line; run it with the same variables."""
    source = ROOT / "examples" / "attention.c"
    (command,) = re.findall(r": cc (.*) && ./a.out", source.read_text().splitlines()[0])
    places = {"CPATH": include, "LIBRARY_PATH": libraries, "LD_LIBRARY_PATH": libraries}
    variables = {name: str(place) for name, place in places.items()}
    shutil.copy(source, folder)
    run(*COMPILER, *command.split(), PWD=str(folder), **variables)
    assert re.fullmatch(r"error \d\.\d\d%\n", run(folder / "a.out", device_name, **variables))


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install below a prefix."""
    folder = tmp_path_factory.mktemp("prefix") / "usr"
    with build_tree.alone():
        printed = run(sys.executable, ROOT / "tools" / "install.py", "--prefix", folder)
    assert sorted(printed.split()) == sorted(str(path) for path in folder.rglob("*") if not path.is_dir())
    return folder


def test_installed_below_a_prefix(prefix: Path, tmp_path: Path, device_name: str) -> None:
    link = prefix / "lib" / "libsm120.so"
    assert link.is_symlink()
    assert link.resolve() == prefix / "lib" / binding.LIBRARY_NAME
    compile_the_example(prefix / "include", prefix / "lib", tmp_path, device_name)
    flags = described(prefix / "lib" / "pkgconfig")
    assert compile_and_run(tmp_path, PROGRAM, *flags).strip() == pysm120.__version__
    assert (prefix / "lib" / "cmake" / "sm120" / "sm120Config.cmake").is_file()


def test_the_static_library(prefix: Path, tmp_path: Path) -> None:
    """It needs no shared library of ours, and it defines no other global names than sm120.h."""
    archive = prefix / "lib" / "libsm120.a"
    flags = [f"-I{prefix / 'include'}", str(archive), *described(prefix / "lib" / "pkgconfig", "Libs.private")]
    assert compile_and_run(tmp_path, PROGRAM, *flags).strip() == pysm120.__version__
    assert "libsm120" not in run("objdump", "-p", tmp_path / "program")
    names = {line.split()[2] for line in run("nm", "-g", "--defined-only", archive).splitlines() if line[:1] == "0"}
    assert names == set(re.findall(r"^SM120_API .*?(sm120_\w+)\(", (ROOT / "src/sm120.h").read_text(), re.MULTILINE))


@pytest.mark.parametrize("words", [("--prefix",), ("--prefix", "/proc/none")])
def test_install_says_what_is_wrong(words: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, ROOT / "tools/install.py", *words], capture_output=True, check=False)
    assert done.returncode != 0
    assert done.stderr.decode().splitlines()[-1].startswith(("install: ", "./build.sh install: "))


def test_the_readme_compiles_the_example(tmp_path: Path, device_name: str) -> None:
    (command,) = re.findall(r"^cc examples.*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    command = command.replace("python", shlex.quote(sys.executable)).replace("cc ", f"{shlex.join(COMPILER)} ", 1)
    run("sh", "-c", f"{command} -o {shlex.quote(str(tmp_path / 'example'))}", PWD=str(ROOT))
    run(tmp_path / "example", device_name)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    with build_tree.alone():
        run(*pip, "--wheel-dir", folder, ROOT)
    (path,) = folder.glob("*.whl")
    return path


def test_one_wheel_for_every_python(wheel: Path) -> None:
    assert re.fullmatch(rf"pysm120-{pysm120.__version__}-py3-none-(many|musl)linux_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"pysm120-{pysm120.__version__}.dist-info/WHEEL").decode()
        about = archive.read(f"pysm120-{pysm120.__version__}.dist-info/METADATA").decode()
        licence = archive.read(f"pysm120-{pysm120.__version__}.dist-info/licenses/LICENSE")
        entries = archive.read(f"pysm120-{pysm120.__version__}.dist-info/entry_points.txt").decode()
    assert "Root-Is-Purelib: false" in metadata
    assert "License-Expression: Apache-2.0\n" in about
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert entries.split() == ["[pytest11]", "pytest_pysm120", "=", "pytest_pysm120"]
    names.remove("pytest_pysm120.py")
    for name in (
        binding.LIBRARY_NAME,
        "libsm120.so",
        "libsm120_xla.so",
        "sm120.h",
        "sm120.hpp",
        "py.typed",
        "data/minilm_qkv.npz",
        "cmake/sm120Config.cmake",
        "cmake/sm120ConfigVersion.cmake",
        "pkgconfig/sm120.pc",
        "__main__.py",
        "microbench/measure.py",
        "ptx/expand.py",
        "ptx/parts/head.ptx",
        "ptx/bench/chain.ptx",
    ):
        assert f"pysm120/{name}" in names
    assert not [name for name in names if not re.match(r"pysm120(-[\d.]+\.dist-info)?/", name)]
    sources = [path.relative_to(ROOT).as_posix() for path in (ROOT / "pysm120").rglob("*.py")]
    packed = [name for name in names if name.endswith(".py") and "/ptx/" not in name]
    assert sorted(packed) == sorted(sources)


def test_the_tag_is_of_the_newest_symbol(wheel: Path) -> None:
    """A wheel made with glibc states the newest version that objdump finds among the symbols."""
    listing = run("objdump", "-T", binding.library_path())
    versions = {(int(major), int(minor)) for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", listing)}
    major, minor = max(versions, default=(1, 2))
    kind = "many" if versions else "musl"
    assert re.search(rf"-py3-none-{kind}linux_{major}_{minor}_(x86_64|aarch64)\.whl$", wheel.name)


@pytest.mark.parametrize(
    ("versions", "tag"),
    [
        ({"GLIBC_2.2.5"}, "manylinux_2_17_x86_64"),
        ({"GLIBC_2.9", "GLIBC_2.34", "GLIBC_2.4"}, "manylinux_2_34_x86_64"),
        ({"GLIBC_2.28", "GCC_4.3.0"}, "manylinux_2_28_x86_64"),
    ],
)
def test_manylinux(versions: set[str], tag: str) -> None:
    assert backend.manylinux(versions, "x86_64") == tag


@pytest.mark.parametrize(
    ("platform", "tag"),
    [
        (build.Platform("x86_64", "windows", ""), "win_amd64"),
        (build.Platform("aarch64", "linux", "musl"), "musllinux_1_2_aarch64"),
    ],
)
def test_tags_of_other_systems(platform: build.Platform, tag: str) -> None:
    assert backend.platform_tag(platform, binding.library_path()) == tag


def test_the_wheel_needs_nothing_of_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = (
        "import numpy as np, pysm120; x = np.ones((1, 8, 1, 64), np.float32); "
        "print(pysm120.__file__, pysm120.attention(x, x, x, device='virtual').mean())"
    )
    # No compiler and no CUDA: no PATH at all. What the package needs may itself come by PYTHONPATH. With -S Python
    # reads no .pth file: that of the editable install would find in the source tree what the wheel lacks.
    path = os.pathsep.join([str(tmp_path), str(Path(cffi.__file__).parent.parent)])
    python = (sys.executable, "-S")
    where, mean = run(*python, "-c", program, PYTHONPATH=path, PATH="", PWD=str(tmp_path)).split()
    assert Path(where).is_relative_to(tmp_path)
    assert float(mean) == pytest.approx(1, abs=0.01)
    bench = (*python, "-m", "pysm120", "microbench", "math", "--only", "lop3", "--device", "virtual")
    assert "1 checked" in run(*bench, PYTHONPATH=path, PWD=str(tmp_path))
    for command in ("report", "study", "model", "profile", "trace", "compare"):
        usage = run(*python, "-m", "pysm120", command, "--help", PYTHONPATH=path, PWD=str(tmp_path))
        assert f"pysm120 {command} " in usage
    flags = run(*python, "-m", "pysm120", "--cflags", "--libs", PYTHONPATH=path, PWD=str(tmp_path))
    assert flags.startswith(f"-I{tmp_path}")
    assert compile_and_run(tmp_path, PROGRAM, *flags.split()).strip() == pysm120.__version__
    package = tmp_path / "pysm120"
    assert compile_and_run(tmp_path, PROGRAM, *described(package / "pkgconfig")).strip() == pysm120.__version__
    compile_the_example(package, package, tmp_path, "virtual")


def test_a_missing_library_is_one_sentence(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.so", "does not load"), (Path("libc.so.6"), "is not libsm120")):
        done = subprocess.run(
            [sys.executable, "-c", "import pysm120"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYSM120_LIBRARY": str(path)},
        )
        assert done.returncode == 1
        assert reason in done.stderr.splitlines()[-1]


def test_the_readme_runs(device_name: str) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    run(sys.executable, "-c", program, PYSM120_DEVICE=device_name)
