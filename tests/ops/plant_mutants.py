"""Plant mistakes in the templates of kernels, and see which tests find them.

    python tests/ops/plant_mutants.py [--only WORDS] [--jobs N] [--seed N] [--list]

For each mutant of mutants.py, its template is expanded in a temporary folder and linked to a library with the mistake,
which the named tests then use on the virtual device. A line for each mutant: the test that failed, or SURVIVED. The
status is 1 if a mutant survives, or if the virtual device does not take its PTX.
"""

import argparse
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(ROOT / "ptx"), str(ROOT / "tests" / "support")]

import expand  # noqa: E402
import records  # noqa: E402
import tables  # noqa: E402
from build_tree import built  # noqa: E402
from mutants import MUTANTS, OPERATIONS, Mutant  # noqa: E402

import build  # noqa: E402 # sys.path must have the folders first
import pysm120  # noqa: E402

# A mistake can let a kernel run forever: no launch of the tests executes LIMIT warp instructions. A run of tests that
# takes longer than PATIENCE seconds counts as a test that found the mistake.
LIMIT, PATIENCE = 1 << 26, 240
CHAIN = [{"id": lzma.FILTER_LZMA1, "preset": 0, **build.PACKING["ptx"][1]}]
EXPANDING = threading.Lock()


class Found(NamedTuple):
    """What came of a mutant: the test that found it, or why none did, and the seconds that this took."""

    mutant: Mutant
    test: str = ""
    problem: str = ""
    seconds: float = 0

    def __str__(self) -> str:
        """Return the line of the report."""
        what = f"killed by {self.test} ({self.seconds:.0f} s)" if self.test else self.problem
        return f"{self.mutant.operation}: {self.mutant.mistake} [{self.mutant.file}]: {what}"


# ---- a library with a mistake ------------------------------------------------------


def edited(text: str, mutant: Mutant) -> str:
    """Return the text of a template with the mistake."""
    count = text.count(mutant.right)
    assert count == 1, f"{mutant.file} has {count} times, not once: {mutant.right!r} ({mutant.mistake})"
    return text.replace(mutant.right, mutant.wrong)


def changed_texts(mutant: Mutant, folder: Path) -> dict[tuple[str, str], str]:
    """Return the PTX that the mistake changes, by entry and target. `folder` gets a copy of the templates."""
    shutil.copytree(ROOT / "ptx", folder / "ptx")
    path = folder / mutant.file
    path.write_text(edited(path.read_text(), mutant))
    changed = {}
    for template in OPERATIONS[mutant.operation].templates:
        for target in build.TARGETS:
            with EXPANDING, mock.patch.object(expand, "ROOT", folder / "ptx"):
                read = records.read(folder / template, target)
            for kernel in read.kernels:
                entry = kernel.record["entry"]
                if (ROOT / "build" / "kernels" / f"{entry}.{target}.ptx").read_text() != kernel.text:
                    changed[entry, target] = kernel.text
    return changed


def refusal(texts: dict[tuple[str, str], str]) -> str:
    """Return what the virtual device says against the PTX, or ""."""
    try:
        with pysm120.Device("virtual") as device:
            for text in texts.values():
                device.load(text)
    except pysm120.Error as error:
        return str(error)
    return ""


@cache
def compiler() -> tuple[list[str], build.Platform]:
    """Return the C compiler and its platform."""
    cc = build.find_cc()
    return cc, build.target_platform(cc)


def with_texts(texts: dict[tuple[str, str], str], folder: Path) -> Path:
    """Link the library's objects with other PTX of some kernels; return the library."""
    generated = ROOT / "build" / "generated"
    table, images = (generated / "kernels.c").read_text(), (generated / "images.bin").read_bytes()
    blocks = []
    number = table.partition("kernel_blocks[]")[2].partition("};\n")[0].count("\n    {")
    for n, ((entry, target), text) in enumerate(texts.items(), number):
        data = text.encode()
        packed = lzma.compress(data, lzma.FORMAT_ALONE, filters=CHAIN)
        blocks.append(f"    {{{len(images)}, {len(packed)}, {len(data)}}},\n")
        images += packed
        place = rf'(\.entry = "{entry}",.*?\.ptx_{build.SUFFIXES[target]} = )\{{[\d, ]+\}}'
        table, count = re.subn(place, rf"\g<1>{{{n}, 0, {len(data)}}}", table, count=1, flags=re.DOTALL)
        assert count == 1, entry
    end = "};\nconst uint32_t kernel_block_count = "
    assert table.count(f"{end}{number};") == 1
    table = table.replace(f"{end}{number};", f"{''.join(blocks)}{end}{number + len(blocks)};")
    (folder / "kernels.c").write_text(table)
    (folder / "images.bin").write_bytes(images)
    cc, system = compiler()
    (folder / "images.s").write_text(tables.images(folder / "images.bin", system.system))
    objects = [*(ROOT / "build" / "objects").rglob("*.o")]
    objects = [path for path in objects if path.parent.name != "generated"]
    library = folder / "libsm120.so"
    sources = [folder / "kernels.c", folder / "images.s"]
    flags = [*build.FLAGS, *system.compile_flags, *build.INCLUDE]
    build.run([*cc, *flags, *sources, *objects, "-o", library, *system.link_flags(folder)])
    return library


# ---- tests -------------------------------------------------------------------------


def result_of(mutant: Mutant, library: Path, seed: int) -> Found:
    """Run the tests of a mutant with a library until one fails."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSM120_LIBRARY": str(library),
        "PYSM120_INSTRUCTION_LIMIT": str(LIMIT),
        "OPENBLAS_NUM_THREADS": "1",
    }
    words = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=no", "--device", "virtual", "--seed", str(seed)]
    command = [sys.executable, "-m", "pytest", *words, *(f"tests/ops/{test}" for test in mutant.tests)]
    if mutant.only:
        command += ["-k", mutant.only]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return Found(mutant, test=f"the limit of {PATIENCE} s")
    failed = re.search(r"^FAILED tests/ops/(.*?)(?: - |$)", done.stdout, re.MULTILINE)
    if done.returncode == 1 and failed:
        return Found(mutant, test=failed[1])
    if done.returncode == 0:
        return Found(mutant, problem=f"SURVIVED {done.stdout.splitlines()[-1]}")
    return Found(mutant, problem=f"NO RESULT: status {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")


def plant(mutant: Mutant, seed: int = 1) -> Found:
    """Plant a mistake and run its tests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = changed_texts(mutant, folder)
        if not texts:
            return Found(mutant, problem="NO CHANGE: the expanded PTX is the same")
        if why := refusal(texts):
            return Found(mutant, problem=f"REFUSED: {why}")
        return result_of(mutant, with_texts(texts, folder), seed)


def plant_all(mutants: list[Mutant], jobs: int, seed: int) -> Iterator[Found]:
    """Plant mistakes, so many at a time."""

    def one(mutant: Mutant) -> Found:
        start = time.perf_counter()
        return plant(mutant, seed)._replace(seconds=time.perf_counter() - start)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, mutants)


def main() -> None:
    """Print a line for each mutant."""
    parser = argparse.ArgumentParser(description="Plant mistakes in templates; see which tests find them.")
    parser.add_argument("--only", nargs="+", default=[], help="mutants with all of these words in their lines")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1, help="of the tests")
    parser.add_argument("--list", action="store_true", help="print the mutants, and plant none")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if all(word in str(Found(mutant)) for word in arguments.only)]
    if arguments.list:
        print(*(str(Found(mutant)).rstrip(": ") for mutant in chosen), sep="\n")
        return
    built()
    bad = 0
    for found in plant_all(chosen, arguments.jobs, arguments.seed):
        bad += not found.test
        print(found, flush=True)
    print(f"{len(chosen)} mutants, {len(chosen) - bad} killed")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
