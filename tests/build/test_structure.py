"""Knowledge goes one way: what imports and includes say of the folders of pysm120 and of src."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What a package of pysm120 may know beside itself. "" is pysm120/__init__.py, the public API.
PACKAGES: dict[str, set[str]] = {
    "runtime": set(),
    "observe": {"runtime"},
    "machine_code": {"runtime"},
    "ops": {"runtime"},
    "compat": {"runtime", "ops"},
    "model": {"runtime", "observe", "machine_code", "ops"},
    "microbench": {"runtime", "machine_code"},
    "jax": {"runtime", "ops"},
    "torch": {"runtime", "ops"},
    "study": {"runtime", "ops"},
    "": {"runtime", "observe", "ops", "compat", "study"},
    "report": {"", "runtime", "machine_code", "ops", "model", "microbench"},
    "cli": {"", "runtime", "observe", "machine_code", "ops", "model", "microbench", "report", "study"},
    "__main__": {"", "cli", "runtime"},
}
# A Device offers profiles and traces, which look at what is below it.
MORE: dict[str, set[str]] = {"pysm120.runtime.device": {"observe"}}

# What a folder of src may include beside itself. Everybody may include sm120.h. The build writes "generated".
BELOW_VM = {"driver", "platform"}
FOLDERS: dict[str, set[str]] = {
    "platform": set(),
    "driver": {"platform"},
    "vm/machine": BELOW_VM,
    "vm/check": {*BELOW_VM, "vm/machine"},
    "vm/execute": {*BELOW_VM, "vm/machine", "vm/check"},
    "vm/defined": {*BELOW_VM, "vm/machine", "vm/check", "vm/execute"},
    "vm/observe": {*BELOW_VM, "vm/machine", "vm/execute"},
    "vm/text": {*BELOW_VM, "vm/machine", "vm/execute"},
    "vm/run": {*BELOW_VM, "vm/machine", "vm/check", "vm/execute", "vm/defined", "vm/observe", "vm/text"},
    "runtime": {"driver", "platform", "generated"},
    "ops": {"runtime", "driver", "platform", "generated"},
    "model": {"runtime", "driver", "platform"},
}
# The headers of ISO C. Only platform/ includes others, so that a port touches that folder alone.
ISO_C = {"ctype", "errno", "fenv", "float", "inttypes", "limits", "math", "setjmp", "signal", "stdarg", "stdatomic"}
ISO_C |= {"stdbool", "stddef", "stdint", "stdio", "stdlib", "string"}
ALLOWED_SYSTEM = {("src/vm/machine/poison.h", "sanitizer/asan_interface.h")}


def module_of(path: Path, root: Path) -> str:
    """Return the name of the module that a file is."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_in(root: Path) -> dict[str, Path]:
    return {module_of(path, root): path for path in sorted(root.glob("pysm120/**/*.py"))}


def imports_of(path: Path, name: str, modules: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """Yield the modules of pysm120 that a file imports, wherever in it, and the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        else:
            base = node.module or ""
            if node.level:
                package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
            members = [f"{base}.{alias.name}" for alias in node.names]
            found = [member if member in modules else base for member in members]
        for other in dict.fromkeys(found):
            if other in modules and other != name:
                yield other, node.lineno


def package_of(module: str) -> str:
    """Return the key of a module's package."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def wrong_imports(root: Path) -> list[str]:
    """Say which imports go against the order."""
    modules = modules_in(root)
    found = []
    for name, path in modules.items():
        package = package_of(name)
        place = path.relative_to(root)
        if package not in PACKAGES:
            found.append(
                f"{place} is in a package that {Path(__file__).name} does not know: add {package!r} to PACKAGES"
            )
            continue
        known = {package} | PACKAGES[package] | MORE.get(name, set())
        for other, line in imports_of(path, name, modules):
            if package_of(other) not in known:
                may = ", ".join(sorted(filter(None, known)))
                found.append(f"{place}:{line} imports {other}, but pysm120/{package} may import only {may}")
    return found


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the circles of a graph, one for each group of modules that reach each other."""
    found: list[list[str]] = []
    done: set[str] = set()

    def visit(node: str, way: list[str]) -> None:
        if node in way:
            found.append([*way[way.index(node) :], node])
            return
        if node in done:
            return
        for other in sorted(edges.get(node, ())):
            visit(other, [*way, node])
        done.add(node)

    for node in sorted(edges):
        visit(node, [])
    return found


def import_circles(root: Path) -> list[str]:
    """Say which modules import each other in a circle."""
    modules = modules_in(root)
    edges = {name: {other for other, _ in imports_of(path, name, modules)} for name, path in modules.items()}
    return [f"modules import each other in a circle: {' -> '.join(circle)}" for circle in circles(edges)]


def includes(root: Path, folder: str = "*") -> Iterator[tuple[Path, int, str, str]]:
    """Yield each include of the files of a folder of src: the file, the line, `"` or `<`, and what is included."""
    for path in sorted(p for suffix in ("c", "h", "def") for p in root.glob(f"src/{folder}/**/*.{suffix}")):
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := re.match(r'\s*#\s*include\s*(["<])([^">]+)', text):
                yield path.relative_to(root), line, match[1], match[2]


def folder_of(path: Path) -> str:
    """Return the key of FOLDERS for a file, named from src: the first folder, in vm the first two."""
    return "/".join(path.parts[: 2 if path.parts[0] == "vm" else 1])


def wrong_includes(root: Path) -> list[str]:
    """Say which files of C include against the order."""
    found = []
    for place, line, mark, name in includes(root):
        folder = folder_of(place.relative_to("src"))
        if mark == "<":
            system = name.removesuffix(".h") not in ISO_C and (str(place), name) not in ALLOWED_SYSTEM
            if system and folder != "platform":
                found.append(f"{place}:{line} includes <{name}>, but only src/platform may include the system")
        elif folder not in FOLDERS:
            found.append(f"{place} is in a folder that {Path(__file__).name} does not know: add {folder!r} to FOLDERS")
        elif "/" in name and (other := folder_of(Path(name))) not in {folder, *FOLDERS[folder]}:
            may = ", ".join(sorted({folder, *FOLDERS[folder]}))
            found.append(f"{place}:{line} includes from {other}, but src/{folder} may include only from {may}")
    return found


def test_every_folder_has_its_row() -> None:
    """A new folder of src gets a row in src/README.md and one in FOLDERS."""
    source = ROOT / "src"
    top, vm = ({path.name for path in folder.iterdir() if path.is_dir()} for folder in (source, source / "vm"))
    rows = set(re.findall(r"^\| `(\w+)/` \|", (source / "README.md").read_text(), re.MULTILINE))
    assert rows == top | vm
    assert FOLDERS.keys() == (top - {"vm"}) | {f"vm/{name}" for name in vm}


def test_files_of_runtime_have_no_circles() -> None:
    """In runtime/ a file and its header depend only on files below them."""
    edges: dict[str, set[str]] = {}
    for path, _, mark, name in includes(ROOT, "runtime"):
        if mark == '"' and name.startswith("runtime/") and Path(name).stem != path.stem:
            edges.setdefault(path.stem, set()).add(Path(name).stem)
    assert not circles(edges)


def test_imports_go_one_way() -> None:
    assert not (wrong := wrong_imports(ROOT)), "\n".join(wrong)


def test_no_module_imports_itself_by_a_circle() -> None:
    assert not (wrong := import_circles(ROOT)), "\n".join(wrong)


def test_includes_go_one_way() -> None:
    assert not (wrong := wrong_includes(ROOT)), "\n".join(wrong)


# ---- the checks themselves -------------------------------------------------------


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


WRONG_IMPORTS = {
    "at the top": "from pysm120.ops import call",
    "in a function": "def f():\n    from pysm120.ops.call import Operation",
    "for types alone": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pysm120.ops.call",
    "relative": "from ..ops import call",
}


@pytest.mark.parametrize("name", WRONG_IMPORTS)
def test_a_wrong_import_is_found(tmp_path: Path, name: str) -> None:
    files = {f"pysm120/{folder}/__init__.py": "" for folder in ("ops", "runtime")}
    write(tmp_path, {**files, "pysm120/ops/call.py": "", "pysm120/runtime/arrays.py": WRONG_IMPORTS[name]})
    (wrong,) = wrong_imports(tmp_path)
    assert wrong.startswith("pysm120/runtime/arrays.py:")
    assert wrong.endswith("imports pysm120.ops.call, but pysm120/runtime may import only runtime")


def test_a_circle_is_found(tmp_path: Path) -> None:
    files = {f"pysm120/runtime/{name}.py": "" for name in ("__init__", "d")}
    for name, other in ("ab", "bc", "ca"):
        files[f"pysm120/runtime/{name}.py"] = f"def f():\n    from pysm120.runtime import {other}, d"
    write(tmp_path, files)
    (wrong,) = import_circles(tmp_path)
    assert wrong.endswith("pysm120.runtime.a -> pysm120.runtime.b -> pysm120.runtime.c -> pysm120.runtime.a")


def test_a_wrong_include_is_found(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "src/vm/text/parse.c": '#include "vm/text/parse.h"\n#include <stdio.h>\n#include "runtime/error.h"\n',
            "src/vm/text/lexer.c": '#include "vm/run/launch.h"\n#include <unistd.h>\n',
        },
    )
    lexer, system, parse = wrong_includes(tmp_path)
    assert lexer.startswith("src/vm/text/lexer.c:1 includes from vm/run, but src/vm/text may include only from driver")
    assert system.startswith("src/vm/text/lexer.c:2 includes <unistd.h>, but only src/platform may")
    assert parse.startswith("src/vm/text/parse.c:3 includes from runtime, but src/vm/text may include only from driver")


def test_an_unknown_folder_is_found(tmp_path: Path) -> None:
    write(tmp_path, {"src/new/x.c": '#include "new/x.h"\n', "pysm120/new/__init__.py": ""})
    (include,), (package,) = wrong_includes(tmp_path), wrong_imports(tmp_path)
    assert "add 'new' to FOLDERS" in include
    assert "add 'new' to PACKAGES" in package
