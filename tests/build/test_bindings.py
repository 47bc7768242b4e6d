"""The Rust crate: written from sm120.h, with the layout of the C structs, and its example runs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pysm120.runtime import ffi as binding
from pysm120.runtime.ffi import ffi, lib

ROOT = Path(__file__).resolve().parents[2]
CRATE = ROOT / "bindings" / "rust" / "sm120-sys"
TOOL = ROOT / "tools" / "bindings.py"


def program(name: str) -> str | None:
    """Find a program of Rust, also where rustup puts it."""
    return shutil.which(name) or shutil.which(name, path=str(Path.home() / ".cargo" / "bin"))


needs_rust = pytest.mark.skipif(program("rustc") is None, reason="no Rust compiler: rustc")
needs_cargo = pytest.mark.skipif(program("cargo") is None, reason="no cargo")


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env={**os.environ, **variables}, timeout=300
    )
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_declarations_are_those_of_the_header() -> None:
    run(sys.executable, TOOL, "--check")
    text = (CRATE / "src" / "lib.rs").read_text()
    header = (ROOT / "src" / "sm120.h").read_text()
    wanted = re.findall(r"^SM120_API .*?\b(sm120_\w+)\(", header, re.MULTILINE)
    assert re.findall(r"\bfn (sm120_\w+)\(", text) == wanted
    version = ".".join(re.findall(r"^#define SM120_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header, re.MULTILINE))
    assert f'\nversion = "{version}"\n' in (CRATE / "Cargo.toml").read_text()


def test_a_changed_header_is_found(tmp_path: Path) -> None:
    """The check fails if a member, a constant or a function is not that of the header."""
    for name in ("src", "tools", "bindings/rust/sm120-sys/src"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(TOOL, tmp_path / "tools")
    shutil.copy(CRATE / "src" / "lib.rs", tmp_path / "bindings/rust/sm120-sys/src")
    header = (ROOT / "src" / "sm120.h").read_text()
    for old, new in (
        ("uint32_t axis; ", "uint64_t axis; "),
        ("SM120_FAULT = 8,", "SM120_FAULT = 9,"),
        ("sm120_version(void)", "sm120_version(int32_t what)"),
    ):
        assert old in header
        (tmp_path / "src" / "sm120.h").write_text(header.replace(old, new))
        done = subprocess.run(
            [sys.executable, tmp_path / "tools" / "bindings.py", "--check"], capture_output=True, text=True, check=False
        )
        assert "run tools/bindings.py" in done.stderr
    (tmp_path / "src" / "sm120.h").write_text(header)
    run(sys.executable, tmp_path / "tools" / "bindings.py", "--check")


@needs_rust
def test_the_layout_is_that_of_c(tmp_path: Path) -> None:
    """Sizes, offsets and constants in Rust; test_packaging compares those of cffi with the C compiler's."""
    lines, wanted = [], []
    for name in ffi.list_types()[0]:
        kind = ffi.typeof(name)
        if kind.kind != "struct" or not kind.fields or not name.startswith("sm120_"):
            continue
        lines.append(f'println!("{name} {{}} {{}}", size_of::<{name}>(), align_of::<{name}>());')
        wanted.append(f"{name} {ffi.sizeof(name)} {ffi.alignof(name)}")
        for member, _ in kind.fields:
            spelled = f"r#{member}" if member in {"box", "type"} else member
            lines.append(f'println!("{name}.{member} {{}}", offset_of!({name}, {spelled}));')
            wanted.append(f"{name}.{member} {ffi.offsetof(name, member)}")
    header = binding.declarations((ROOT / "src" / "sm120.h").read_text())
    for name in re.findall(r"\b(SM120_[A-Z0-9_]+) *=", header):
        lines.append(f'println!("{name} {{}}", {name});')
        wanted.append(f"{name} {getattr(lib, name)}")
    for name in ("sm120_attention_args", "sm120_device_info"):
        lines.append(f'println!("{name} {{}}", {name}::default().size);')
        wanted.append(f"{name} {ffi.sizeof(name)}")
    uses = "use core::mem::{align_of, offset_of, size_of};\nuse sm120_sys::*;\n"
    (tmp_path / "layout.rs").write_text(f"{uses}fn main() {{\n" + "\n".join(lines) + "\n}\n")
    rustc = (str(program("rustc")), "--edition", "2021", "-D", "warnings")
    crate = (CRATE / "src" / "lib.rs", "--crate-type", "rlib", "--crate-name", "sm120_sys")
    run(*rustc, *crate, "-o", tmp_path / "libsm120_sys.rlib")
    run(*rustc, "layout.rs", "--extern", "sm120_sys=libsm120_sys.rlib", "-o", tmp_path / "layout", cwd=tmp_path)
    assert run(tmp_path / "layout").splitlines() == wanted
    assert len(wanted) > 400


@needs_cargo
def test_the_example(tmp_path: Path, device_name: str) -> None:
    command = (str(program("cargo")), "run", "--offline", "--quiet", "--example", "attention", "--", device_name)
    folder = str(binding.library_path().resolve().parent)
    shutil.copytree(CRATE, tmp_path / "crate", ignore=shutil.ignore_patterns("target", "Cargo.lock"))
    shown = run(*command, cwd=tmp_path / "crate", SM120_LIB_DIR=folder, RUSTFLAGS="-D warnings")
    assert re.fullmatch(r"largest error 0\.\d{3}\n", shown)
