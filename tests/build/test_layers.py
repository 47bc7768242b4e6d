"""Includes of the C core go one way, as src/README.md has it, and only platform/ includes the system's headers."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent.parent.parent / "src"
ISO_C = {"errno", "limits", "math", "setjmp", "stdarg", "stdatomic", "stdbool", "stddef", "stdint", "stdio", "stdlib"}
ISO_C |= {"ctype", "fenv", "float", "inttypes", "signal", "string", "time"}
# Each folder, from the bottom up, with the folders that it may include.
MAY_INCLUDE = {
    "platform": set[str](),
    "driver": {"platform"},
    "vm/machine": {"platform", "driver"},
    "vm/check": {"platform", "driver", "vm/machine"},
    "vm/execute": {"platform", "driver", "vm/machine", "vm/check"},
    "vm/defined": {"platform", "driver", "vm/machine", "vm/check", "vm/execute"},
    "vm/observe": {"platform", "driver", "vm/machine", "vm/execute"},
    "vm/text": {"platform", "driver", "vm/machine", "vm/execute"},
    "vm/run": {
        *("platform", "driver"),
        *("vm/machine", "vm/check", "vm/execute", "vm/defined", "vm/observe", "vm/text"),
    },
    "runtime": {"platform", "driver"},
    "ops": {"platform", "driver", "runtime"},
}


def folder_of(path: Path) -> str:
    """Return the row of MAY_INCLUDE that a file belongs to; "" for src/ itself."""
    parts = path.parts[:-1]
    return "/".join(parts[: 2 if parts[:1] == ("vm",) else 1])


def includes() -> Iterator[tuple[Path, str, str]]:
    """Yield each include of each file: the file, `"` or `<`, and what is included."""
    for path in sorted([*SOURCES.rglob("*.[ch]"), *SOURCES.rglob("*.def")]):
        for mark, name in re.findall(r'^\s*#\s*include\s*(["<])([^">]+)', path.read_text(), re.MULTILINE):
            yield path.relative_to(SOURCES), mark, name


def test_every_folder_has_its_place() -> None:
    """A new folder gets a row in MAY_INCLUDE and in src/README.md."""
    folders = {folder_of(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.[ch]")} - {""}
    assert folders == MAY_INCLUDE.keys()
    readme = (SOURCES / "README.md").read_text()
    assert not [name for name in folders if f"`{name.removeprefix('vm/')}/`" not in readme]


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_includes_go_one_way(folder: str) -> None:
    """A file includes its own folder and those below it."""
    allowed = {"", folder, *MAY_INCLUDE[folder]}
    wrong = [
        f"{path} includes {name}"
        for path, mark, name in includes()
        if mark == '"' and folder_of(path) == folder and folder_of(Path(name)) not in allowed
    ]
    assert not wrong


def test_only_platform_includes_the_system() -> None:
    """Elsewhere ISO C is enough, so that a port touches platform/ alone."""
    wrong = [
        f"{path} includes <{name}>"
        for path, mark, name in includes()
        if mark == "<" and folder_of(path) != "platform" and name.removesuffix(".h") not in ISO_C
    ]
    assert wrong == ["vm/machine/poison.h includes <sanitizer/asan_interface.h>"]


def test_runtime_files_have_no_circles() -> None:
    """Within runtime/ a file and its header depend only on files below them."""
    uses: dict[str, set[str]] = {}
    for path, mark, name in includes():
        if mark == '"' and folder_of(path) == "runtime" and folder_of(Path(name)) == "runtime":
            uses.setdefault(path.stem, set()).add(Path(name).stem)
    uses = {name: used - {name} for name, used in uses.items()}
    while leaves := {name for name, used in uses.items() if not used & uses.keys()}:
        uses = {name: used for name, used in uses.items() if name not in leaves}
    assert not uses
