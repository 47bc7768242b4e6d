"""Build libsm120.so.0: expand every template, assemble it, embed it, compile and link.

    python tools/build.py [--sanitize address,undefined]

Only what changed is done again: an output is rebuilt when the hash of its command and of all that it reads differs from
the one stored beside it. Needs a C compiler (CC, else cc or gcc) and nvcc 13.0 (PATH, CUDA_HOME or the PyPI wheel
nvidia-cuda-nvcc); nothing at run time.
"""

import argparse
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OLDEST_NVCC = (12, 9)
SUFFIXES = {"sm_120f": "sm120", "sm_90": "sm90"}
TARGETS = tuple(SUFFIXES)
FLAGS = [
    "-std=c11",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wconversion",
    "-Werror",
]
# Files named *_isa.c hold the loops over lanes: compiled once per vector width, chosen at run time.
ISA_FLAGS = {
    "x86_64": {
        "base": ["-O3", "-march=x86-64"],
        "v3": ["-O3", "-march=x86-64-v3"],
        "v4": ["-O3", "-march=x86-64-v4", "-mprefer-vector-width=512"],
    },
}
OTHER_ISA_FLAGS = {"base": ["-O3"]}


class BuildError(Exception):
    """One sentence that says what is missing or wrong."""


def run(command: Sequence[str | Path]) -> str:
    """Run a command; its output, or a BuildError that shows it."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        message = f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
        raise BuildError(f"this command failed with status {done.returncode}:\n{message}")
    return done.stdout + done.stderr


def find_nvcc() -> Path:
    """Find an nvcc that knows sm_120f in PATH, in CUDA_HOME, or in the wheel nvidia-cuda-nvcc."""
    candidates = [shutil.which("nvcc")]
    if home := os.environ.get("CUDA_HOME"):
        candidates.append(str(Path(home) / "bin" / "nvcc"))
    folders = [*sys.path, sysconfig.get_path("purelib")]
    candidates += [str(Path(folder) / "nvidia/cu13/bin/nvcc") for folder in folders]
    too_old = ""
    for candidate in candidates:
        if not candidate or not os.access(candidate, os.X_OK):
            continue
        release = re.search(r"release (\d+)\.(\d+)", run([candidate, "--version"]))
        if release and (int(release[1]), int(release[2])) >= OLDEST_NVCC:
            return Path(candidate)
        too_old = too_old or f"{candidate} is {release[0] if release else 'of no known release'}, too old for sm_120f; "
    raise BuildError(
        f"{too_old}nvcc was not found in PATH, in CUDA_HOME or among the Python packages: install CUDA 13.0, or "
        "`pip install nvidia-cuda-nvcc==13.0.88`"
    )


def assembler(nvcc: Path, target: str) -> list[str]:
    """Choose the command that assembles PTX: the ptxas beside nvcc, else nvcc.

    They are the same assembler, but nvcc asks a C++ compiler for its properties before it assembles anything, and a
    machine that only has gcc has none.
    """
    for folder in (nvcc.parent, nvcc.resolve().parent):
        if os.access(folder / "ptxas", os.X_OK):
            return [str(folder / "ptxas"), f"-arch={target}", "-v", "-Werror"]
    return [str(nvcc), "-cubin", f"-arch={target}", "-Werror", "all-warnings", "-Xptxas", "-v,-Werror"]


def find_cc() -> list[str]:
    """Find the C compiler: $CC, cc or gcc."""
    if command := os.environ.get("CC"):
        return shlex.split(command)
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    raise BuildError("no C compiler was found: install gcc, or set CC")


class Cache:
    """Makes outputs whose inputs or commands changed since they were made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def make(self, output: Path, key: Iterable[str | bytes | Path], action: Callable[[], object]) -> Path:
        """Run `action`, which writes `output`, unless it was done with the same key."""
        digest = hashlib.sha256()
        for part in key:
            data = part.read_bytes() if isinstance(part, Path) else part
            digest.update(data.encode() if isinstance(data, str) else data)
            digest.update(b"\0")
        stamp = output.with_name(output.name + ".key")
        if not (output.exists() and stamp.exists() and stamp.read_text() == digest.hexdigest()):
            stamp.unlink(missing_ok=True)
            output.parent.mkdir(parents=True, exist_ok=True)
            action()
            stamp.write_text(digest.hexdigest())
        return output


def expansion(template: Path, target: str) -> tuple[str, list[dict[str, int | str]]]:
    """Expand a template: the PTX and its notes."""
    spec = importlib.util.spec_from_file_location("expand", ROOT / "ptx" / "expand.py")
    if spec is None or spec.loader is None:
        raise BuildError("ptx/expand.py is missing: this is no complete source tree")
    expand = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(expand)
    result = expand.Expansion(template, target)
    return result.text, result.notes


class Image(NamedTuple):
    """A template expanded and assembled for one target; `log` holds what ptxas -v says of each entry."""

    ptx: Path
    cubin: Path
    log: Path

    def registers(self, entry: str) -> int:
        """Return the registers per thread of an entry."""
        found = re.search(rf"'{entry}' for.*?Used (\d+) registers", self.log.read_text(), re.DOTALL)
        if found is None:
            raise BuildError(f"ptxas said nothing of {entry} in {self.log}")
        return int(found[1])


def assemble(cache: Cache, nvcc: Path, version: str, template: Path, target: str) -> Image:
    """Expand and assemble a template."""
    name = template.relative_to(ROOT / "ptx").with_suffix("").as_posix().replace("/", "_")
    ptx = cache.folder / "ptx" / f"{name}.{target}.ptx"
    text, _ = expansion(template, target)
    cache.make(ptx, [text], lambda: ptx.write_text(text))
    image = Image(ptx, ptx.with_suffix(".cubin"), ptx.with_suffix(".log"))
    command: list[str | Path] = [*assembler(nvcc, target), ptx, "-o", image.cubin]
    cache.make(image.cubin, [text, version, *map(str, command)], lambda: image.log.write_text(run(command)))
    return image


def c_bytes(data: bytes) -> str:
    """Write bytes as the inside of a C initialiser."""
    rows = [data[i : i + 24] for i in range(0, len(data), 24)]
    return "\n".join("    " + " ".join(f"{b}," for b in row) for row in rows)


def kernel_table(templates: list[Path], images: dict[tuple[int, str], Image]) -> str:
    """Write build/kernels.c: images and entries (src/runtime/kernels.h)."""
    out = ['/* Written by tools/build.py: do not edit. */\n#include "runtime/kernels.h"\n']
    files, entries = [], []
    for i, template in enumerate(templates):
        source = template.relative_to(ROOT).as_posix()
        fields = [f'.source = "{source}"']
        for target, suffix in SUFFIXES.items():
            for kind, path in zip(("ptx", "cubin"), images[i, target][:2], strict=True):
                data = path.read_bytes()
                symbol = f"{kind}_{suffix}"
                out.append(f"static const unsigned char {symbol}_{i}[] = {{\n{c_bytes(data)}\n    0}};\n")
                fields.append(f".{symbol} = {symbol}_{i}, .{symbol}_bytes = {len(data)}")
        files.append("    {" + ", ".join(fields) + "},")
        for note in expansion(template, TARGETS[0])[1]:
            for target, suffix in SUFFIXES.items():
                note[f"registers_{suffix}"] = images[i, target].registers(str(note["entry"]))
            pairs = [f".{k} = " + (f'"{v}"' if isinstance(v, str) else str(v)) for k, v in note.items()]
            entries.append("    {" + ", ".join([f".file = {i}", *pairs]) + "},")
    out += ["const struct kernel_file kernel_files[] = {", *files, "};"]
    out += [f"const uint32_t kernel_file_count = {len(files)};"]
    out += ["const struct kernel_entry kernel_entries[] = {", *entries, "};"]
    out += [f"const uint32_t kernel_entry_count = {len(entries)};"]
    return "\n".join(out) + "\n"


def write_pkgconfig(folder: Path) -> None:
    """Write the sm120.pc of the source tree, where library and header lie apart."""
    text = (ROOT / "pysm120" / "pkgconfig" / "sm120.pc").read_text()
    lines = [line for line in text.splitlines() if not line.startswith(("#", "prefix="))]
    text = "\n".join(["prefix=${pcfiledir}/../..", *lines, ""])
    text = text.replace("-I${prefix}", "-I${prefix}/src")
    for option in ("-L", "-rpath,"):
        text = text.replace(option + "${prefix}", option + "${prefix}/build")
    folder.mkdir(exist_ok=True)
    (folder / "sm120.pc").write_text(text)


def objects(source: Path, folder: Path) -> list[tuple[Path, list[str]]]:
    """List the objects of one C file with the flags of each."""
    if not source.stem.endswith("_isa"):
        return [(folder / f"{source.stem}.o", [])]
    variants = ISA_FLAGS.get(platform.machine(), OTHER_ISA_FLAGS)
    return [(folder / f"{source.stem}_{isa}.o", [*flags, f"-DVM_ISA={isa}"]) for isa, flags in variants.items()]


def build(*, sanitize: str | None = None, jobs: int = 2) -> Path:
    """Build the library.

    Parameters
    ----------
    sanitize : str, optional
        What -fsanitize= gets, "address,undefined" say; such a library goes to a folder of its own.
    jobs : int
        How many compilers run at a time.

    Returns
    -------
    pathlib.Path
        build/libsm120.so.0, or build/sanitize-.../libsm120.so.0.

    Raises
    ------
    BuildError
        A compiler is missing or refuses something.
    """
    cache = Cache(ROOT / "build")
    nvcc, cc = find_nvcc(), find_cc()
    nvcc_version, cc_version = run([nvcc, "--version"]), run([*cc, "--version"])
    # parts/ is included by the others; bench/ is expanded by pysm120.microbench, for the chip that it finds.
    templates = sorted(path for path in (ROOT / "ptx").glob("*/*.ptx") if path.parent.name not in {"parts", "bench"})
    with ThreadPoolExecutor(jobs) as pool:
        keys = [(i, target) for i in range(len(templates)) for target in TARGETS]
        made = pool.map(lambda key: assemble(cache, nvcc, nvcc_version, templates[key[0]], key[1]), keys)
        images = dict(zip(keys, made, strict=True))
        table = kernel_table(templates, images)
        kernels = cache.folder / "kernels.c"
        cache.make(kernels, [table], lambda: kernels.write_text(table))

        extra = [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-g"] if sanitize else []
        folder = cache.folder / (f"sanitize-{sanitize.replace(',', '-')}" if sanitize else "")
        headers = sorted([*(ROOT / "src").rglob("*.h"), *(ROOT / "src").rglob("*.def")])
        sources = [*sorted((ROOT / "src").rglob("*.c")), kernels]
        work: list[tuple[Path, list[str | bytes | Path], list[str]]] = []
        for source in sources:
            for target, flags in objects(source, folder / "objects" / source.parent.relative_to(ROOT)):
                command = [*cc, *FLAGS, *flags, *extra, "-I", str(ROOT / "src"), "-c", str(source), "-o", str(target)]
                work.append((target, [cc_version, source, *headers, *command], command))

        def compile_one(item: tuple[Path, list[str | bytes | Path], list[str]]) -> Path:
            target, key, command = item
            return cache.make(target, key, lambda: run(command))

        compiled = list(pool.map(compile_one, work))
    # Objects of sources that are gone would still be found by whoever links a folder of them.
    for stale in {*(folder / "objects").rglob("*.o")} - {*compiled}:
        stale.unlink()
    library = folder / "libsm120.so.0"
    # Linked by the C compiler: it knows this machine's C library. It stays loaded: its threads outlive a dlclose.
    flags = ["-shared", "-Wl,-soname,libsm120.so.0", "-Wl,-z,defs", "-Wl,-z,nodelete"]
    command = [*cc, *flags, *extra, "-o", str(library)]
    command += [*map(str, compiled), "-pthread", "-lm", "-ldl"]
    cache.make(library, [cc_version, *command, *compiled], lambda: run(command))
    link = library.with_name("libsm120.so")
    link.unlink(missing_ok=True)
    link.symlink_to(library.name)
    write_pkgconfig(cache.folder / "pkgconfig")
    return library


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the library.")
    parser.add_argument("--sanitize", help="what -fsanitize= gets, for example address,undefined")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    try:
        print(build(sanitize=arguments.sanitize, jobs=arguments.jobs))
    except BuildError as error:
        sys.exit(f"build: {error}")
