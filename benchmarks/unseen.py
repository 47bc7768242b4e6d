"""Measure launches of other people's kernels that the timing model predicted before anybody measured them.

    python benchmarks/unseen.py build SOURCES FOLDER      # nvcc: FOLDER/*.cubin; SOURCES has the checkouts
    python benchmarks/unseen.py measure FOLDER [OUT.json]  # on the GPU, by ncu: clocks and errors

`results/unseen_h100.json` has the predictions, the sources with their commits, the commands of nvcc, and the launches
with their arguments. `build` says which checkout is missing. It needs no GPU, `measure` needs no compiler. A kernel
whose machine code is not that of the prediction is named: its error says nothing. OUT.json is the same list with the
measured clocks.
"""

import argparse
import hashlib
import json
import shlex
import shutil
import statistics
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chip
import ml_dtypes
import numpy as np

import pysm120
from pysm120.machine_code import sass
from pysm120.model import measure
from pysm120.runtime.arrays import Array

PREDICTED = Path(__file__).resolve().parent.parent / "results" / "unseen_h100.json"
DRAWN = 1 << 20  # bytes or numbers; larger buffers repeat them
NAMES = ("--print-kernel-base", "mangled")  # as entries have them
FOUND = ("measured", "error", "failure")  # what a measurement adds to a prediction


def code_of(image: bytes, entry: str) -> str:
    """Return a digest of the instructions of a kernel."""
    words = (one.word.to_bytes(16, "little") for one in sass.disassemble(image, entry)[entry].instructions)
    return hashlib.sha256(b"".join(words)).hexdigest()[:16]


def build(document: dict[str, Any], sources: Path, folder: Path) -> list[str]:
    """Compile every file; return what is wrong, a sentence each."""
    wrong = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in document["sources"].items():
        if source["repository"] and not (sources / name).is_dir():
            of = f"git clone https://github.com/{source['repository']}, checkout {source['commit']}"
            wrong.append(f"{sources / name} is missing: {of}")
    for name, text in document["headers"].items():  # what the sources include and do not need
        (folder / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "include" / name).write_text(text, encoding="utf-8")
    for name, file in document["files"].items() if not wrong else ():
        text = file["text"].replace("{sources}", str(sources.resolve()))
        if "part" in file:  # of a source, up to a line
            path, until = file["part"]
            text = text.replace("{part}", (sources / path).read_text(encoding="utf-8").split(until)[0])
        (folder / f"{name}.cu").write_text(text, encoding="utf-8")
        command = shlex.split(file["compile"].format(sources=sources.resolve(), folder=folder.resolve()))
        for step in ([*command, "-ptx", "-o", f"{folder / name}.ptx", f"{folder / name}.cu"],
                     ["ptxas", "-arch=sm_90", f"{folder / name}.ptx", "-o", f"{folder / name}.cubin"]):  # fmt: skip
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode:
                wrong.append(f"{name}: {shlex.join(step)} failed: {done.stderr.strip()[:400]}")
                break
    return wrong + changed(document, folder)


def changed(document: dict[str, Any], folder: Path) -> list[str]:
    """Return the launches whose machine code is not that of the prediction, a sentence each."""
    found = []
    for row in document["launches"]:
        path = folder / f"{row['file']}.cubin"
        if not path.is_file():
            found.append(f"{row['name']}: {path} is missing")
        elif (code := code_of(path.read_bytes(), row["entry"])) != row["code"]:
            found.append(f"{row['name']}: the code of its kernel is {code}, but {row['code']} was predicted")
    return found


def contents(kind: str) -> bytes:
    """Return up to DRAWN values of a kind: normal f32, f16 and bf16, any i8, u8 and u32, zero."""
    rng = np.random.default_rng(0)
    if kind in {"i8", "u8", "u32"}:
        return rng.integers(0, 256, DRAWN, np.uint8).tobytes()
    types: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
    if kind in types:
        return rng.standard_normal(DRAWN, np.float32).astype(types[kind]).tobytes()
    return bytes(DRAWN)


def buffer(device: pysm120.Device, size: int, kind: str) -> Array:
    """Return device memory with contents of a kind."""
    return device.array(np.resize(np.frombuffer(contents(kind), np.uint8), size))


PACKED: dict[str, Callable[[Any], Any]] = {
    "i32": np.int32, "u32": np.uint32, "i64": np.int64, "f32": np.float32,
}  # fmt: skip


def arguments(row: dict[str, Any], addresses: list[int]) -> list[Any]:
    """Return the arguments of a launch.

    ["buf", n] is the address of a buffer, ["raw", hex, [[at, n], ...]] bytes with addresses of buffers at offsets.
    """
    found: list[Any] = []
    for kind, *rest in row["arguments"]:
        if kind == "buf":
            found.append(np.uint64(addresses[rest[0]]))
        elif kind == "raw":
            data = bytearray.fromhex(rest[0])
            for at, n in rest[1]:
                struct.pack_into("<Q", data, at, addresses[n])
            found.append(bytes(data))
        else:
            found.append(PACKED[kind](rest[0]))
    return found


def launch(row: dict[str, Any], folder: Path) -> None:
    """Launch a row a few times; ncu runs this."""
    with pysm120.Device("cuda") as device:
        kernel = device.load((folder / f"{row['file']}.cubin").read_bytes())[row["entry"]]
        buffers = [buffer(device, *one) for one in row["buffers"]]
        given = arguments(row, [int(one.address) for one in buffers])
        for _ in range(measure.LAUNCHES):
            kernel(tuple(row["grid"]), tuple(row["block"]), *given, shared=row["shared_bytes"])
        device.synchronize()


def show(document: dict[str, Any]) -> None:
    """Print predictions beside measurements."""
    errors = [abs(row["error"]) for row in document["launches"] if "error" in row]
    for row in document["launches"]:
        found = f"{row['measured']:12,.0f} {row['error']:+8.1%}" if "error" in row else f"failed: {row['failure']}"
        print(f"{row['name']:50s} {row['predicted']:12,} {found}")
    if errors:
        print(f"{len(errors)} launches: median error {statistics.median(errors):.1%}, largest {max(errors):.1%}")


def measured(row: dict[str, Any], number: int, folder: Path) -> dict[str, Any]:
    """Measure a launch with ncu, in a process of its own, since a fault would take the others with it."""
    words = [sys.executable, __file__, "launch", str(folder), str(number)]
    command = ["ncu", *measure.NCU, *NAMES, "--metrics", "sm__cycles_elapsed.max", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    row = {name: value for name, value in row.items() if name not in FOUND}
    try:
        (clocks,) = measure.read_cycles(done.stdout + done.stderr, [row["entry"]])
    except pysm120.Error as error:
        lines = (done.stdout + done.stderr).splitlines()
        said = next((line for line in reversed(lines) if line.startswith("pysm120.")), str(error))
        return {**row, "failure": said}
    return {**row, "measured": clocks, "error": round(row["predicted"] / clocks - 1, 4)}


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("build", "measure", "launch"))
    parser.add_argument("paths", nargs="+", type=Path, help="build: SOURCES FOLDER; measure: FOLDER [OUT.json]")
    given = parser.parse_args()
    document = json.loads(PREDICTED.read_text(encoding="utf-8"))
    if given.command == "build":
        wrong = build(document, *given.paths)
        print("\n".join(wrong) or "all kernels are those of the predictions")
        sys.exit(bool(wrong))
    folder, *out = given.paths
    if given.command == "launch":
        launch(document["launches"][int(str(out[0]))], folder)
        return
    if shutil.which("ncu") is None:
        sys.exit("ncu is not in PATH: it comes with the CUDA toolkit")
    for sentence in changed(document, folder):
        print(sentence)
    rows = [measured(row, number, folder) for number, row in enumerate(document["launches"])]
    with pysm120.Device("cuda") as device:
        found = {**document, "measured_on": chip.title(device, "ncu, the median of three launches"), "launches": rows}
    show(found)
    if out:
        out[0].write_text(measure.text_of(found), encoding="utf-8")


if __name__ == "__main__":
    main()
