"""Fuzz the virtual device: build the targets, collect seeds, search, and keep what was found.

    python tests/fuzz/fuzz.py run TARGET [--runs N] [--seconds S] [--seed N] [--engine gcc|libfuzzer]
    python tests/fuzz/fuzz.py seeds              # keep the PTX that all tests load, in build/fuzz/seeds
    python tests/fuzz/fuzz.py minimise           # write tests/fuzz/corpus.* anew from them and what searches found

The targets: `parse` loads PTX, `run` executes it as well, `abi` makes calls of the C interface. The engine `gcc` is
engine.c, for which gcc is enough; `libfuzzer` needs clang with its runtimes. Both read the same folders and know the
same options. What a search finds is in build/fuzz/found/TARGET; an input that crashes, hangs or leaks is in build/fuzz/
as crash-, timeout- or leak-HASH. It belongs into tests/fuzz/regressions once what it shows is repaired.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "support")]

import build_tree  # noqa: E402

import build  # noqa: E402 # the folders have to be known first

FOLDER = ROOT / "build" / "fuzz"
TARGETS = {"parse": "ptx", "run": "ptx", "abi": "calls"}  # and of which kind their inputs are
SANITIZERS = "address,undefined"
SANITIZED = ROOT / "build" / f"sanitize-{SANITIZERS.replace(',', '-')}" / "objects"  # of the library
SEPARATOR = "%%%%\n"
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:max_allocation_size_mb=256:handle_abort=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def compiler(engine: str) -> list[str]:
    """Find the compiler of an engine."""
    if engine == "gcc":
        return build.find_cc()
    for name in ("clang", *(f"clang-{version}" for version in range(25, 11, -1))):
        if path := shutil.which(name):
            return [path]
    raise build.BuildError("the engine libfuzzer needs clang, which was not found")


@cache
def compiled(target: str, engine: str = "gcc") -> Path:
    """Build a target; return its program."""
    with build_tree.alone():
        return _compiled(target, engine)


def _compiled(target: str, engine: str) -> Path:
    cc, folder = compiler(engine), FOLDER / engine
    cache = build.Cache(folder)
    machine = build.target_platform(cc)
    flags = [*build.FLAGS, *(flag for flag in machine.compile_flags if flag != "-fPIC")]
    checked = build.sanitizer_flags(SANITIZERS)
    guided = ["-fsanitize-coverage=trace-pc,trace-cmp"] if engine == "gcc" else ["-fsanitize=fuzzer-no-link"]
    whole = target == "abi"  # the device alone is linked into the others
    include: list[str] = []
    if whole:
        build.build()
        import operations  # which needs the library

        include = [f"-I{operations.write_header(ROOT / 'build' / 'tests')}"]
    folders = [ROOT / "src"] if whole else [ROOT / "src" / "vm", ROOT / "src" / "platform"]
    sources = [path for folder in folders for path in sorted(folder.rglob("*.c")) if machine.has(path)]
    sources += [] if whole else [ROOT / "src" / "driver" / f"{name}.c" for name in ("registry", "tensor_map_rules")]
    own: list[tuple[str, list[str]]] = [(target, [*checked, *guided, *include])]
    own += [("target", checked), ("mutate", checked)]
    own += [("engine", [])] if engine == "gcc" else []
    version = build.run([*cc, "--version"])

    def compile_one(item: tuple[Path, Path, list[str]]) -> Path:
        source, output, options = item
        return build.compile_object(cache, source, output, [*cc, *options], version)

    work: list[tuple[Path, Path, list[str]]] = []
    for source in sources:
        is_shared = source.stem.endswith("_isa")  # with the sanitized library: these take long, and are not guided
        place = (SANITIZED if is_shared else folder) / source.parent.relative_to(ROOT)
        options = [*build.FLAGS, *machine.compile_flags] if is_shared else flags
        last = build.sanitizer_flags(SANITIZERS) if is_shared else [*checked, *guided]
        for output, extra in build.objects(source, place, machine, is_sanitized=True):
            work.append((source, output, [*options, *extra, *last]))
    work.sort(key=lambda item: item[1].is_relative_to(folder))  # those first
    work += [(HERE / f"{name}.c", folder / f"own_{name}.o", [*flags, *extra]) for name, extra in own]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(compile_one, work))
    if whole:
        folder_of_kernels = ROOT / "build" / "objects" / "build" / "generated"
        objects += [folder_of_kernels / "kernels.o", folder_of_kernels / f"images_{machine.system}.o"]
    link = ["-no-pie"] if engine == "gcc" else ["-fsanitize=fuzzer"]
    program = folder / target
    command = [*cc, f"-fsanitize={SANITIZERS}", *link, *map(str, objects), "-pthread", "-lm", "-ldl"]
    command += ["-o", str(program)]
    return cache.make(program, [version, *command, *objects], lambda: build.run(command))


def words() -> Path:
    """Write the words of the decoder's own tables, those in its strings that PTX could hold."""
    found: set[str] = set()
    for source in sorted((ROOT / "src" / "vm").rglob("*.*")):
        if re.match(r"decode|lanes.def|parser|operand|function|tensor|wmma", source.name):
            for text in re.findall(r'"((?:[^"\\]|\\.)*)"', source.read_text()):
                if not re.search(r"[%'\\,;]", text):
                    found |= {word for word in re.findall(r"\.?[a-zA-Z][\w:]*", text) if len(word) < 40}
    if not found:
        raise RuntimeError("no word of PTX was found in src/vm: the names of its files have changed")
    text = "".join(f"{word}\n" for word in sorted(found | {f".{w}" for w in found if w[0] != "."}))
    path = FOLDER / "words"
    with build_tree.alone():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    return path


def corpus(kind: str) -> Path:
    """Name the file that holds the inputs of a kind."""
    return HERE / f"corpus.{kind}"


def inputs(target: str) -> list[str]:
    """Return the inputs of a target's corpus."""
    packed = corpus(TARGETS[target])
    return packed.read_text().split(SEPARATOR) if packed.exists() else []


def regressions(target: str) -> list[str]:
    """Return the inputs that once showed a mistake, and the smallest call of every operation."""
    found = [path.read_text() for path in sorted((HERE / "regressions").glob(f"*.{TARGETS[target]}"))]
    if target == "abi":
        import operations

        count = len(operations.operations())
        found += [f"alloc 3 1048576 1; alloc 3 4194304 2; operation {index} 3 1 2 0;\n" for index in range(count)]
    return found


def unpack(texts: Iterable[str], folder: Path) -> Path:
    """Write inputs as the files of a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for text in texts:
        (folder / hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:16]).write_text(text)
    return folder


def unpack_all(target: str, folder: Path | None = None) -> Path:
    """Write corpus and regressions of a target as files."""
    return unpack(inputs(target) + regressions(target), folder or FOLDER / "corpus" / target)


def command(target: str, engine: str, *options: str) -> list[str]:
    """Write the command of a program with options that every run has."""
    return [str(compiled(target, engine)), f"-words={words()}", f"-artifact_prefix={FOLDER}/", "-timeout=20", *options]


def search(
    target: str, folders: Iterable[Path], *, engine: str = "gcc", quiet: bool = True, **limits: int
) -> subprocess.CompletedProcess[str]:
    """Run a target on folders; what is new goes to the first of them."""
    options = [f"-{name}={value}" for name, value in limits.items()]
    if engine == "libfuzzer":
        options += ["-max_len=16384", "-rss_limit_mb=4096", "-print_final_stats=1"]
    words = [*command(target, engine, *options), *map(str, folders)]
    errors = subprocess.PIPE if quiet else None
    return subprocess.run(words, stderr=errors, text=True, check=False, env={**OPTIONS, **os.environ})


def collect() -> None:
    """Run the tests of the virtual device and keep the PTX that they load."""
    environment = {
        **os.environ,
        "PYSM120_SEEDS": str(FOLDER / "seeds" / "ptx"),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    words = [sys.executable, "-m", "pytest", "-q", "-p", "collect", "-p", "no:cacheprovider", "--device", "virtual"]
    files = ["tests/vm", "tests/corpus", "tests/hardware", "tests/runtime/test_device.py", "tests/build/test_ptx.py"]
    subprocess.run([*words, *files], check=False, cwd=ROOT, env=environment)


def minimise(kind: str) -> None:
    """Pack the smallest inputs that reach, in one target or another, all that is reached by what there is."""
    chosen = FOLDER / "chosen"
    shutil.rmtree(chosen, ignore_errors=True)
    chosen.mkdir(parents=True)
    targets = [target for target in reversed(TARGETS) if TARGETS[target] == kind]
    for target in targets:
        folders = [unpack_all(target), FOLDER / "seeds" / kind, *(FOLDER / "found" / name for name in targets)]
        search(target, [chosen, *(folder for folder in folders if folder.exists())], merge=1).check_returncode()
    texts = []
    for path in sorted(chosen.iterdir(), key=lambda path: (path.stat().st_size, path.name)):
        data = path.read_bytes()
        if data.isascii() and SEPARATOR.encode() not in data and b"\r" not in data:
            texts.append(data.decode())
    packed = corpus(kind)
    packed.write_text(SEPARATOR.join(texts))
    print(f"{packed}: {len(texts)} inputs, {packed.stat().st_size} bytes")


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description="Fuzz the virtual device.")
    parser.add_argument("what", choices=["run", "seeds", "minimise"])
    parser.add_argument("target", nargs="?", choices=TARGETS, default="run")
    parser.add_argument("--engine", choices=["gcc", "libfuzzer"], default="gcc")
    parser.add_argument("--runs", type=int, help="how many inputs (default: no limit)")
    parser.add_argument("--seconds", type=int, help="for how long (default: no limit)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.what == "seeds":
        collect()
    elif arguments.what == "minimise":
        for kind in sorted(set(TARGETS.values())):
            minimise(kind)
    else:
        limits = {"runs": arguments.runs, "max_total_time": arguments.seconds, "seed": arguments.seed}
        found = FOLDER / "found" / arguments.target
        found.mkdir(parents=True, exist_ok=True)
        seeds = FOLDER / "seeds" / TARGETS[arguments.target]
        folders = [folder for folder in (found, unpack_all(arguments.target), seeds) if folder.exists()]
        given = {name: value for name, value in limits.items() if value is not None}
        done = search(arguments.target, folders, engine=arguments.engine, quiet=False, **given)
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
