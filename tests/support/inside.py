"""C programs of tests that use internals of the virtual device, which the library does not export."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from build_tree import built

ROOT = Path(__file__).resolve().parents[2]
CC = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or "cc"]
FLAGS = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-pthread"]


def compiled(source: Path, folder: Path) -> Path:
    """Compile a program and link it with the objects of the virtual device."""
    built()
    objects = ROOT / "build" / "objects"
    shared = [objects / "src" / "driver" / f"{name}.o" for name in ("registry", "tensor_map_rules")]
    program = folder / source.stem
    command: list[str | Path] = [
        *CC,
        *FLAGS,
        "-I",
        ROOT / "src",
        source,
        *shared,
        *(objects / "src" / "platform").glob("*.o"),
        *(objects / "src" / "vm").rglob("*.o"),
        "-lm",
        "-ldl",
        "-o",
        program,
    ]
    subprocess.run(command, check=True)
    return program
