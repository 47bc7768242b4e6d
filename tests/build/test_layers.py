"""What src/README.md promises beyond the order of the top folders: vm/, runtime/ and the system's headers."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src"
ISO_C = {"ctype", "errno", "fenv", "float", "inttypes", "limits", "math", "setjmp", "signal", "stdarg", "stdatomic"}
ISO_C |= {"stdbool", "stddef", "stdint", "stdio", "stdlib", "string"}
# Each folder of vm/, with the folders of vm/ that it may include.
VM = {
    "machine": set[str](),
    "check": {"machine"},
    "execute": {"machine", "check"},
    "defined": {"machine", "check", "execute"},
    "observe": {"machine", "execute"},
    "text": {"machine", "execute"},
    "run": {"machine", "check", "execute", "defined", "observe", "text"},
}


def includes(folder: str) -> Iterator[tuple[Path, str, str]]:
    """Yield each include of each file of a folder: the file, `"` or `<`, and what is included."""
    for path in sorted([*(SOURCES / folder).rglob("*.[ch]"), *(SOURCES / folder).rglob("*.def")]):
        for mark, name in re.findall(r'^\s*#\s*include\s*(["<])([^">]+)', path.read_text(), re.MULTILINE):
            yield path.relative_to(SOURCES), mark, name


def test_every_folder_has_its_row() -> None:
    """A new folder gets a row in src/README.md, and one in VM if it is in vm/."""
    folders = {path.name for path in [*SOURCES.iterdir(), *(SOURCES / "vm").iterdir()] if path.is_dir()}
    rows = set(re.findall(r"^\| `(\w+)/` \|", (SOURCES / "README.md").read_text(), re.MULTILINE))
    assert rows == folders
    assert {path.name for path in (SOURCES / "vm").iterdir()} == VM.keys()


@pytest.mark.parametrize("folder", VM)
def test_folders_of_vm_include_one_way(folder: str) -> None:
    """A file includes its own folder and those below it."""
    allowed = {f"vm/{name}" for name in {folder, *VM[folder]}}
    wrong = [
        f"{path} includes {name}"
        for path, mark, name in includes(f"vm/{folder}")
        if mark == '"' and name.startswith("vm/") and str(Path(name).parent) not in allowed
    ]
    assert not wrong


def test_only_platform_includes_the_system() -> None:
    """Elsewhere ISO C is enough, so that a port touches platform/ alone."""
    wrong = [
        f"{path} includes <{name}>"
        for path, mark, name in includes("")
        if mark == "<" and path.parts[0] != "platform" and name.removesuffix(".h") not in ISO_C
    ]
    assert wrong == ["vm/machine/poison.h includes <sanitizer/asan_interface.h>"]


def test_files_of_runtime_have_no_circles() -> None:
    """In runtime/ a file and its header depend only on files below them."""
    uses: dict[str, set[str]] = {}
    for path, mark, name in includes("runtime"):
        if mark == '"' and name.startswith("runtime/") and Path(name).stem != path.stem:
            uses.setdefault(path.stem, set()).add(Path(name).stem)
    while leaves := {name for name, used in uses.items() if not used & uses.keys()}:
        uses = {name: used for name, used in uses.items() if name not in leaves}
    assert not uses
