"""Build the library libsm120: expand every template, assemble it, embed it, compile and link; then XLA's handlers.

    python tools/build.py [--sanitize address,undefined] [--name FOLDER]

Builds are incremental: an output is rebuilt if the hash of its command and inputs differs from the hash stored beside
it. The inputs of a template are the files that it includes, those of a kernel its PTX, those of a C file its headers.
The build needs a C compiler (CC, else cc or gcc) and nvcc 13.0 (PATH, CUDA_HOME or the PyPI wheel nvidia-cuda-nvcc).
The library needs neither at run time.

The C compiler says for which machine and system it compiles. A library for this Python is written to build/, any other
one to build/SYSTEM-MACHINE/. No step of the build runs what it has compiled.
"""

import argparse
import hashlib
import json
import lzma
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
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "ptx"), str(ROOT / "tools")]

import records  # noqa: E402 # sys.path must have the folders first
import tables  # noqa: E402
from expand import TemplateError  # noqa: E402
from records import Parameter  # noqa: E402

OLDEST_NVCC = (12, 9)
HEADERS = ("src/sm120.h", "src/sm120.hpp")  # that programs include
HANDLERS = "libsm120_xla.so"  # for pysm120.jax
SUFFIXES = {"sm_120f": "sm120", "sm_90": "sm90"}
TARGETS = tuple(SUFFIXES)
EXPANDERS = ("expand.py", "records.py")  # programs on which the expanded text depends, beside the templates
# Compression of images. A block has this many bytes, which decode in some ten milliseconds. PTX is coded in the context
# of the previous letter, machine code in that of a byte's position in its 16-byte instruction.
PACKING = {"ptx": (1_200_000, {"lc": 3, "lp": 0, "pb": 0}), "cubin": (600_000, {"lc": 0, "lp": 4, "pb": 4})}
FLAGS = [
    "-std=c11",
    "-O2",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fsigned-char",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wconversion",
    "-Werror",
]
# build/ holds generated/: the records of the templates as C.
INCLUDE = ["-I", str(ROOT / "src"), "-I", str(ROOT / "build")]
# Files named *_isa.c hold the loops over lanes: compiled once per vector width, chosen at run time.
ISA_FLAGS = {
    "x86_64": {
        "base": ["-O3", "-march=x86-64"],
        "v3": ["-O3", "-march=x86-64-v3"],
        "v4": ["-O3", "-march=x86-64-v4", "-mprefer-vector-width=512"],
    },
}
OTHER_ISA_FLAGS = {"base": ["-O3"]}  # the vectors that every CPU of the machine has, such as NEON
# Predefined macros by what they say of the target. The first one that the compiler defines counts.
MACHINES = {"__x86_64__": "x86_64", "__aarch64__": "aarch64"}
SYSTEMS = {"_WIN32": "windows", "__APPLE__": "macos", "__linux__": "linux"}


class BuildError(Exception):
    """An error of the build, with one sentence that says what is missing or wrong."""


def run(command: Sequence[str | Path]) -> str:
    """Run a command; return its output, or raise a BuildError that shows the command."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        message = f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
        raise BuildError(f"this command failed with status {done.returncode}:\n{message}")
    return done.stdout + done.stderr


def nvcc_version(nvcc: Path) -> str:
    """Return the version of an nvcc. It is remembered for an unchanged file, because nvcc takes long to answer."""
    status = nvcc.stat()
    asked = [str(nvcc.resolve()), status.st_size, status.st_mtime_ns]
    answers = ROOT / "build" / "nvcc.json"
    if answers.exists() and (known := json.loads(answers.read_text()))["asked"] == asked:
        return str(known["answer"])
    answer = run([nvcc, "--version"])
    answers.parent.mkdir(exist_ok=True)
    answers.write_text(json.dumps({"asked": asked, "answer": answer}))
    return answer


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
        release = re.search(r"release (\d+)\.(\d+)", nvcc_version(Path(candidate)))
        if release and (int(release[1]), int(release[2])) >= OLDEST_NVCC:
            return Path(candidate)
        too_old = too_old or f"{candidate} is {release[0] if release else 'of no known release'}, too old for sm_120f; "
    raise BuildError(
        f"{too_old}nvcc was not found in PATH, in CUDA_HOME or among the Python packages: install CUDA 13.0, or "
        "`pip install nvidia-cuda-nvcc==13.0.88`"
    )


def assembler(nvcc: Path, target: str) -> list[str]:
    """Choose the command that assembles PTX: the ptxas beside nvcc, else nvcc.

    Both are the same assembler, but nvcc runs a C++ compiler before it assembles anything, and a machine may have only
    gcc.
    """
    for folder in (nvcc.parent, nvcc.resolve().parent):
        if os.access(folder / "ptxas", os.X_OK):
            return [str(folder / "ptxas"), f"-arch={target}", "-v", "-Werror"]
    return [str(nvcc), "-cubin", f"-arch={target}", "-Werror", "all-warnings", "-Xptxas", "-v,-Werror"]


def find_cc() -> list[str]:
    """Find the C compiler: $CC, cc or gcc."""
    if words := shlex.split(os.environ.get("CC", "")):
        if shutil.which(words[0]) is None:
            raise BuildError(f"CC is {words[0]!r}, which is no program in PATH: give a C compiler, or unset CC")
        return words
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    raise BuildError("no C compiler was found: install gcc, or set CC")


class Platform(NamedTuple):
    """A machine, an operating system and, on Linux, a C library."""

    machine: str  # x86_64 or aarch64
    system: str  # linux, windows or macos
    libc: str  # glibc or musl; "" for systems that have one

    @property
    def name(self) -> str:
        """Return the name of the folder for builds: linux-aarch64, linux-x86_64-musl, windows-x86_64."""
        return "-".join((self.system, self.machine, *(["musl"] if self.libc == "musl" else [])))

    @property
    def library(self) -> str:
        """Return the file name of the library. The ABI may change with major and minor version."""
        major, minor, _ = versions()
        if self.system == "windows":
            return "sm120.dll"
        return f"libsm120.{major}.{minor}.dylib" if self.system == "macos" else f"libsm120.so.{major}.{minor}"

    @property
    def development(self) -> str:
        """Return the file name that -lsm120 finds: a link, or on Windows an import library."""
        return {"windows": "libsm120.dll.a", "macos": "libsm120.dylib"}.get(self.system, "libsm120.so")

    @property
    def compile_flags(self) -> list[str]:
        """Return options of the C compiler.

        On Windows, MinGW's own printf knows C11's %zu, which Microsoft's old one does not. gcc does not align the stack
        for vectors of 32 bytes there, so the assembler replaces aligned moves.
        """
        if self.system == "windows":
            unaligned = ["-Wa,-muse-unaligned-vector-move"] if self.machine == "x86_64" else []
            return [*unaligned, "-D__USE_MINGW_ANSI_STDIO=1", "-D_WIN32_WINNT=0x0602", "-DSM120_BUILD"]
        return ["-fPIC", "-pthread"]

    def link_flags(self, folder: Path) -> list[str]:
        """Return options of the link. The library stays loaded: its threads outlive a dlclose."""
        if self.system == "windows":  # thread_win32.c keeps it loaded
            return ["-shared", "-static", f"-Wl,--out-implib,{folder / self.development}"]
        if self.system == "macos":
            return ["-dynamiclib", f"-Wl,-install_name,@rpath/{self.library}", "-pthread"]
        return ["-shared", f"-Wl,-soname,{self.library}", "-Wl,-z,defs", "-Wl,-z,nodelete", "-pthread", "-lm", "-ldl"]

    @property
    def isa_flags(self) -> dict[str, list[str]]:
        """Return the options of files named *_isa.c, by vector width."""
        return ISA_FLAGS.get(self.machine, OTHER_ISA_FLAGS)

    def has(self, source: Path) -> bool:
        """Return whether a C file is compiled: of *_posix.c and *_win32.c the system's one is."""
        return not source.stem.endswith("_posix" if self.system == "windows" else "_win32")


def target_platform(cc: Sequence[str]) -> Platform:
    """Return for what a compiler compiles, by the macros that it predefines, and glibc by its <limits.h>."""
    listing = run([*cc, "-E", "-dM", "-x", "c", "-include", "limits.h", os.devnull])
    macros = set(re.findall(r"^#define (\w+)", listing, re.MULTILINE))
    machine = next((name for macro, name in MACHINES.items() if macro in macros), None)
    system = next((name for macro, name in SYSTEMS.items() if macro in macros), None)
    if machine is None or system is None:
        triple = run([*cc, "-dumpmachine"]).strip()
        raise BuildError(
            f"{shlex.join(cc)} compiles for {triple}, but the library is for x86_64 and aarch64 under "
            "Linux, Windows and macOS"
        )
    libc = ("glibc" if "__GLIBC__" in macros else "musl") if system == "linux" else ""
    return Platform(machine, system, libc)


def host_platform() -> Platform:
    """Return the platform of this Python."""
    system = {"win32": "windows", "darwin": "macos"}.get(sys.platform, sys.platform)
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    libc = ("glibc" if platform.libc_ver()[0] == "glibc" else "musl") if system == "linux" else ""
    return Platform(machine, system, libc)


class Cache:
    """Rebuilds outputs whose inputs or commands have changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digests: dict[Path, bytes] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def digest(self, path: Path) -> bytes:
        """Return the hash of a file at the time of the first call; b"" if the file does not exist."""
        if path not in self.digests:
            self.digests[path] = hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""
        return self.digests[path]

    def key(self, parts: Iterable[str | bytes | Path]) -> str:
        """Return the hash of words and of the contents of files."""
        whole = hashlib.sha256()
        for part in parts:
            data = self.digest(part) if isinstance(part, Path) else part
            whole.update(data.encode() if isinstance(data, str) else data)
            whole.update(b"\0")
        return whole.hexdigest()

    def make(
        self,
        output: Path,
        key: Iterable[str | bytes | Path],
        action: Callable[[], object],
        found: Callable[[], Iterable[Path]] = tuple,
    ) -> Path:
        """Run `action`, which writes `output`, unless the output was made with the same key.

        `found` lists further inputs; it is called when the output exists.
        """
        words = list(key)
        stamp = output.with_name(output.name + ".key")
        if not (output.exists() and stamp.exists() and stamp.read_text() == self.key([*words, *found()])):
            stamp.unlink(missing_ok=True)
            output.parent.mkdir(parents=True, exist_ok=True)
            action()
            for path in (output, *found()):
                self.digests.pop(path, None)
            stamp.write_text(self.key([*words, *found()]))
        return output

    def write(self, output: Path, data: str | bytes) -> Path:
        """Write a file, unless it has the same contents already."""
        raw = data.encode() if isinstance(data, str) else data
        if not output.exists() or output.read_bytes() != raw:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_bytes(raw)
        self.digests[output] = hashlib.sha256(raw).digest()
        return output


def remove_others(folder: Path, kept: Iterable[Path]) -> None:
    """Remove the files of a folder and its subfolders that this build has not made."""
    names = {path.name for path in kept}
    for path in folder.rglob("*"):
        if path.is_file() and path.name.removesuffix(".key") not in names:
            path.unlink()


# ---- kernels ----


class Templates(NamedTuple):
    """The contents of the templates: kernels by entry, the PTX of each by target, lists of parameters, constants."""

    records: dict[str, tuple[str, dict[str, Any]]]  # source, record
    texts: dict[tuple[str, str], Path]
    lists: dict[str, list[Parameter]]
    constants: dict[str, int]
    outputs: list[Path]  # files of expand()


def stem_of(source: Path) -> str:
    """Return the name for the files of a template: attention_mxfp8 for ptx/attention/mxfp8.ptx."""
    return "_".join(source.with_suffix("").parts[1:])


def expand(cache: Cache, template: Path, target: str) -> Path:
    """Expand a template for a target, if it or a file that it includes has changed.

    The PTX of each kernel is written to build/kernels/ENTRY.TARGET.ptx, and the records to the returned file.
    """
    output = cache.folder / "kernels" / f"{stem_of(template.relative_to(ROOT))}.{target}.json"

    def write() -> None:
        try:
            read = records.read(template, target)
        except (TemplateError, SyntaxError) as error:
            raise BuildError(str(error)) from error
        for kernel in read.kernels:
            cache.write(output.with_name(f"{kernel.record['entry']}.{target}.ptx"), kernel.text)
        said = {
            "files": read.files,
            "constants": {name: value for name, (_, value) in read.constants.items()},
            "kernels": [[kernel.record, kernel.parameters] for kernel in read.kernels],
        }
        output.write_text(json.dumps(said))

    def found() -> list[Path]:
        """Return the included templates, and the written files."""
        if not output.exists():
            return []
        said = json.loads(output.read_text())
        texts = [output.with_name(f"{record['entry']}.{target}.ptx") for record, _ in said["kernels"]]
        return [*(ROOT / file for file in said["files"]), *texts]

    return cache.make(output, [target, *(ROOT / "ptx" / name for name in EXPANDERS)], write, found)


def templates() -> list[Path]:
    """List the templates of the library's kernels.

    Files in parts/ are only included; bench/ is expanded by pysm120.microbench, for the chip that it finds.
    """
    return sorted(path for path in (ROOT / "ptx").glob("*/*.ptx") if path.parent.name not in {"parts", "bench"})


def read_templates(cache: Cache, pool: ThreadPoolExecutor) -> Templates:
    """Expand all templates for all targets, and check that they agree with each other."""
    work = [(template, target) for template in templates() for target in TARGETS]
    outputs = list(pool.map(lambda item: expand(cache, *item), work))
    found = Templates({}, {}, {}, {}, outputs)
    for (template, target), output in zip(work, outputs, strict=True):
        source = template.relative_to(ROOT).as_posix()
        said = json.loads(output.read_text())
        for name, value in said["constants"].items():
            if found.constants.setdefault(name, value) != value:
                raise BuildError(
                    f"{source}: constant {name} = {value}, but another template says {found.constants[name]}"
                )
        for record, rows in said["kernels"]:
            entry = record["entry"]
            if found.records.setdefault(entry, (source, record)) != (source, record):
                other = found.records[entry][0]
                raise BuildError(f"{source}: the kernel {entry} for {target} is not that of {other} for {TARGETS[0]}")
            name, parameters = record["parameters"], [Parameter(*row) for row in rows]
            if found.lists.setdefault(name, parameters) != parameters:
                raise BuildError(f"{source}: {entry} has other parameters than {name}_parameters of another kernel")
            found.texts[entry, target] = output.with_name(f"{entry}.{target}.ptx")
    return found


class Assembled(NamedTuple):
    """A kernel assembled for one target; `log` is the file with the output of ptxas -v."""

    cubin: Path
    log: Path

    def registers(self, entry: str) -> int:
        """Return the registers per thread."""
        found = re.search(r"Used (\d+) registers", self.log.read_text())
        if found is None:
            raise BuildError(f"ptxas said nothing of {entry} in {self.log}")
        return int(found[1])


def assemble(cache: Cache, command: list[str], version: str, ptx: Path) -> Assembled:
    """Assemble a kernel."""
    made = Assembled(ptx.with_suffix(".cubin"), ptx.with_suffix(".log"))
    words = [*command, str(ptx), "-o", str(made.cubin)]
    if not made.log.exists():
        made.cubin.unlink(missing_ok=True)
    cache.make(made.cubin, [version, *words, ptx], lambda: made.log.write_text(run(words)))
    return made


class Block(NamedTuple):
    """Images that are compressed together, because they share most of their contents."""

    images: list[Path]
    limit: int
    filters: dict[str, int]


def blocks(found: Templates) -> dict[str, Block]:
    """Divide the images of each template into blocks; return the blocks by the names of their packed files."""
    made: dict[str, Block] = {}
    for source in dict.fromkeys(source for source, _ in found.records.values()):
        stem = stem_of(Path(source))
        entries = [entry for entry, (other, _) in found.records.items() if other == source]
        kinds = {"ptx": [found.texts[entry, target] for entry in entries for target in TARGETS]}
        kinds |= {f"cubin.{t}": [found.texts[entry, t].with_suffix(".cubin") for entry in entries] for t in TARGETS}
        for kind, images in kinds.items():
            limit, filters = PACKING[kind.partition(".")[0]]
            block = Block([], limit, filters)
            size, count = limit, 0
            for image in images:
                size += image.stat().st_size
                if size > limit:
                    block = Block([], limit, filters)
                    made[f"{stem}.{kind}.{count}.lzma"] = block
                    count += 1
                    size = image.stat().st_size
                block.images.append(image)
    return made


def pack(cache: Cache, output: Path, block: Block) -> Path:
    """Compress a block."""
    chain = [{"id": lzma.FILTER_LZMA1, "preset": 6, **block.filters}]

    def write() -> None:
        data = b"".join(path.read_bytes() for path in block.images)
        output.write_bytes(lzma.compress(data, lzma.FORMAT_ALONE, filters=chain))

    return cache.make(output, [repr(chain), *block.images], write)


def make_kernels(cache: Cache, pool: ThreadPoolExecutor, system: str) -> tuple[list[Path], Path]:
    """Make all kernels and build/generated/; return the sources to compile, and the file that one of them embeds."""
    nvcc = find_nvcc()
    version = nvcc_version(nvcc)
    found = read_templates(cache, pool)
    commands = {target: assembler(nvcc, target) for target in TARGETS}
    made = list(pool.map(lambda key: assemble(cache, commands[key[1]], version, found.texts[key]), found.texts))
    assembled = dict(zip(found.texts, made, strict=True))

    divided = blocks(found)
    folder = cache.folder / "kernels"
    packed = list(pool.map(lambda name: pack(cache, folder / name, divided[name]), divided))
    places: dict[Path, tables.Image] = {}
    for number, block in enumerate(divided.values()):
        at = 0
        for path in block.images:
            places[path] = tables.Image(number, at, path.stat().st_size)
            at += places[path].size
    entries = []
    for entry, (source, record) in found.records.items():
        images: dict[str, tables.Image] = {}
        registers: dict[str, int] = {}
        for target, suffix in SUFFIXES.items():
            registers[suffix] = assembled[entry, target].registers(entry)
            images[f"ptx_{suffix}"] = places[found.texts[entry, target]]
            images[f"cubin_{suffix}"] = places[assembled[entry, target].cubin]
        entries.append(tables.Entry(source, record, registers, images))

    data = [path.read_bytes() for path in packed]
    sizes = [
        (len(one), sum(places[path].size for path in b.images)) for one, b in zip(data, divided.values(), strict=True)
    ]
    generated = cache.folder / "generated"
    embedded = cache.write(generated / "images.bin", b"".join(data))
    try:
        cache.write(generated / "parameters.h", tables.parameters(found.lists))
    except ValueError as error:
        raise BuildError(str(error)) from error
    cache.write(generated / "constants.h", tables.constants(found.constants))
    sources = [
        cache.write(generated / "kernels.c", tables.kernels(found.lists, entries, sizes, found.constants)),
        cache.write(generated / f"images_{system}.s", tables.images(embedded, system)),
    ]
    kept = [path.with_suffix(suffix) for path in found.texts.values() for suffix in (".ptx", ".cubin", ".log")]
    remove_others(folder, [*kept, *packed, *found.outputs])
    return sources, embedded


def versions() -> tuple[int, int, int]:
    """Return the version of sm120.h: major, minor, patch."""
    text = (ROOT / "src" / "sm120.h").read_text()
    major, minor, patch = re.findall(r"^#define SM120_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", text, re.MULTILINE)
    return int(major), int(minor), int(patch)


def pkgconfig(include: str, libraries: str) -> str:
    """Return the text of a sm120.pc two folders below a prefix with these folders."""
    text = (ROOT / "pysm120" / "pkgconfig" / "sm120.pc").read_text()
    heads = ("#", "prefix=", "includedir=", "libdir=")
    lines = [line for line in text.splitlines() if not line.startswith(heads)]
    places = [f"includedir=${{prefix}}/{include}", f"libdir=${{prefix}}/{libraries}"]
    return "\n".join(["prefix=${pcfiledir}/../..", *places, *lines, ""])


def write_pkgconfig(folder: Path) -> None:
    """Write the sm120.pc of the source tree, in which library and header are in different folders."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sm120.pc").write_text(pkgconfig("src", "build"))


def objects(
    source: Path, folder: Path, target: Platform, *, is_sanitized: bool = False
) -> list[tuple[Path, list[str]]]:
    """List the objects of one C file with the flags of each. Sanitizers see loops over lanes as for any processor."""
    if not source.stem.endswith("_isa"):
        return [(folder / f"{source.stem}.o", ["-DVM_BASE_ONLY"] if is_sanitized else [])]
    variants = [(isa, flags) for isa, flags in target.isa_flags.items() if isa == "base" or not is_sanitized]
    return [(folder / f"{source.stem}_{isa}.o", [*flags, f"-DVM_ISA={isa}"]) for isa, flags in variants]


def sanitizer_flags(sanitize: str) -> list[str]:
    """Return the options of a compiler for sanitizers, such as "address,undefined"; what they find ends the program."""
    return [f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"]


def compile_object(cache: Cache, source: Path, target: Path, command: list[str], version: str) -> Path:
    """Compile a C file if it, an included header or the command has changed."""
    listed = target.with_suffix(".d")

    def headers() -> list[Path]:
        """Read the make rule that the compiler has written: the object, a colon, and its inputs."""
        words = listed.read_text().replace("\\\n", " ").partition(": ")[2] if listed.exists() else ""
        return [Path(word.replace("\\ ", " ")) for word in re.split(r"(?<!\\)\s+", words) if word]

    words = [*command, *INCLUDE, "-MMD", "-MF", str(listed), "-c", str(source), "-o", str(target)]
    return cache.make(target, [version, source, *words], lambda: run(words), headers)


def build_handlers(cache: Cache, library: Path, cc: list[str], version: str, *, is_wanted: bool) -> None:
    """Build the handlers that pysm120.jax registers: a library beside libsm120, which alone knows XLA."""
    if not is_wanted:
        return
    source, output = ROOT / "bindings" / "xla" / "sm120_xla.c", library.with_name(HANDLERS)
    includes = [source.with_name("xla_ffi.h"), ROOT / "src" / "sm120.h"]
    command = [*cc, *FLAGS, "-I", str(ROOT / "src")]
    command += ["-shared", "-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,-rpath,$ORIGIN"]
    command += ["-o", str(output), str(source), str(library)]
    cache.make(output, [version, source, *includes, library, *command], lambda: run(command))


def build(*, sanitize: str | None = None, name: str | None = None, jobs: int = 2) -> Path:
    """Build the library.

    Parameters
    ----------
    sanitize : str, optional
        The value of -fsanitize=, such as "address,undefined"; such a library has a separate folder.
    name : str, optional
        A folder in build/ for the library and its objects, instead of the usual one.
    jobs : int
        The number of compilers that run at a time.

    Returns
    -------
    pathlib.Path
        build/libsm120.so.MAJOR.MINOR, or the same in build/sanitize-... or in build/SYSTEM-MACHINE

    Raises
    ------
    BuildError
        A compiler is missing or refuses something.
    """
    cache = Cache(ROOT / "build")
    cc = find_cc()
    target = target_platform(cc)
    is_native = target == host_platform()
    extra = sanitizer_flags(sanitize) if sanitize else []
    folder = cache.folder / (name or ("" if is_native else target.name))
    folder /= f"sanitize-{sanitize.replace(',', '-')}" if sanitize else ""
    with ThreadPoolExecutor(jobs) as pool:
        generated, images = make_kernels(cache, pool, target.system)
        version = run([*cc, "--version"])
        work: list[tuple[Path, Path, list[str]]] = []
        for source in [*filter(target.has, sorted((ROOT / "src").rglob("*.c"))), *generated]:
            place = folder / "objects" / source.parent.relative_to(ROOT)
            for output, flags in objects(source, place, target, is_sanitized=sanitize is not None):
                work.append((source, output, [*cc, *FLAGS, *target.compile_flags, *flags, *extra]))

        def compile_one(item: tuple[Path, Path, list[str]]) -> Path:
            source, output, command = item
            if source.suffix == ".s":
                words = [*cc, "-c", str(source), "-o", str(output)]
                return cache.make(output, [version, source, images, *words], lambda: run(words))
            return compile_object(cache, source, output, command, version)

        work.sort(key=lambda item: not item[0].stem.endswith("_isa"))  # they take longest: none may be the last one
        compiled = list(pool.map(compile_one, work))
    # Remove the objects of deleted sources, because tests link all objects of a folder.
    for stale in {*(folder / "objects").rglob("*.o")} - {*compiled}:
        stale.unlink()
    library = folder / target.library
    # Linked by the C compiler: it knows this machine's C library.
    link = folder / target.development
    words = [*cc, *extra, "-o", str(library), *map(str, compiled), *target.link_flags(folder)]
    cache.make(library, [version, *words, *compiled], lambda: run(words))
    handlers = library.with_name(HANDLERS)
    kept = {library, Path(f"{library}.key"), link, handlers, Path(f"{handlers}.key")}
    for stale in {*folder.glob("*sm120*")} - kept:  # other versions
        if stale.is_file():
            stale.unlink()
    if target.system != "windows":
        link.unlink(missing_ok=True)
        link.symlink_to(library.name)
    if is_native and not name:
        write_pkgconfig(cache.folder / "pkgconfig")
    build_handlers(
        cache,
        library,
        [*cc, *target.compile_flags],
        version,
        is_wanted=is_native and not (name or sanitize) and target.system == "linux",
    )
    return library


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the library.")
    parser.add_argument("--sanitize", help="value of -fsanitize=, for example address,undefined")
    parser.add_argument("--name", help="folder in build/ for the library, instead of the usual one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    try:
        print(build(sanitize=arguments.sanitize, name=arguments.name, jobs=arguments.jobs))
    except BuildError as error:
        sys.exit(f"build: {error}")
