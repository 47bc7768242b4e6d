"""Measure on a GPU the figures that the timing model predicts: clocks of loops, and launches under a profiler."""

import csv
import datetime as dt
import json
import lzma
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from pysm120.machine_code import sass
from pysm120.model import chips, work
from pysm120.model import launches as launch_list
from pysm120.model import loops as known_loops
from pysm120.model.loops import Loop
from pysm120.model.problem import Problem
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError
from pysm120.runtime.module import Builtin, builtin_image, builtins, find_builtin

ROUNDS, REPEATS = 256, 5
_WORDS = 1 << 21  # size of the buffer that a loop writes to and copies from


def loop_clocks(device: Device, loop: Loop, image: bytes) -> tuple[float, float]:
    """Return the clocks of a round of a loop: the median and the spread of the launches."""
    kernel = device.load(image)["loop"]
    ctas = loop.ctas or device.info.multiprocessors
    found = []
    for _ in range(REPEATS):
        out = device.zeros(_WORDS, np.uint64)
        kernel(ctas, 32 * loop.warps, out, np.uint32(ROUNDS))
        clocks = out.numpy()[: 3 * ctas * loop.warps].reshape(ctas, loop.warps, 3)
        per_cta = clocks[:, :, 1].max(axis=1) - clocks[:, :, 0].min(axis=1)
        found.append(float(np.median(per_cta)) / ROUNDS)
    return statistics.median(found), max(found) - min(found)


# ---- the file that `model --validate` reads --------------------------------------------------

LAUNCHES = 3
HOW = (
    f"loops: %clock64 around {ROUNDS} rounds, one CTA on every SM, median of the SMs and of {REPEATS} launches; "
    f"launches: sm__cycles_elapsed.max of ncu --clock-control none --cache-control none, median of {LAUNCHES}"
)
CASES = (
    ("attention_bf16_128x64_d32_r16", Problem(4, 2048, 32, 32)),
    ("attention_bf16_128x64_d32_r32", Problem(4, 2048, 32, 32)),
    ("attention_bf16_128x64_d64_r16", Problem(4, 2048, 32, 64)),
    ("attention_bf16_128x128_d64_r32", Problem(4, 2048, 32, 64)),
    ("attention_bf16_128x64_d96_r16", Problem(4, 2048, 32, 96)),
    ("attention_bf16_128x64_d96_r32", Problem(4, 2048, 32, 96)),
    ("attention_bf16_128x64_d128_r16", Problem(4, 2048, 32, 128)),
    ("attention_bf16_128x64_d128_r32", Problem(4, 2048, 32, 128)),
    ("attention_bf16_128x32_d256_r16", Problem(4, 2048, 16, 256)),
    ("attention_f16_128x64_d128_r32", Problem(1, 4096, 32, 128)),
    ("attention_f16_128x128_d64_r32", Problem(1, 4096, 32, 64)),
    ("attention_bf16_128x64_d128_r32", Problem(1, 4096, 32, 128, causal=True)),
    ("attention_bf16_128x64_d128_r16", Problem(4, 2048, 32, 128, causal=True)),
    ("attention_bf16_128x128_d64_r32", Problem(4, 2048, 32, 64, causal=True)),
    ("attention_bf16_128x64_d128_r16", Problem(1, 2048, 8, 128)),
    ("attention_bf16_128x64_d64_r16", Problem(1, 512, 32, 64)),
    ("attention_bf16_128x64_d128_any_r16", Problem(4, 2048, 32, 128)),
    ("attention_bf16_128x64_d64_any_r16", Problem(4, 2048, 32, 64, causal=True)),
    ("attention_bf16_128x64_d96_any_r16", Problem(4, 2048, 32, 96, causal=True)),
    ("attention_bf16_128x32_d256_any_r16", Problem(4, 2048, 16, 256)),
    ("attention_mxfp8_128x64_d64", Problem(4, 2048, 32, 64)),
    ("attention_mxfp8_192x64_d128", Problem(4, 2048, 32, 128)),
    ("attention_mxfp8_192x64_d128", Problem(4, 2048, 32, 128, causal=True)),
    ("attention_mxfp8_bf16_128x64_d64", Problem(4, 2048, 32, 64)),
    ("attention_mxfp8_bf16_128x64_d128", Problem(4, 2048, 32, 128)),
)
# The fields of a kernel that the model needs. They are kept with the figures, because kernels change.
_RECORD = (
    *("operation", "precision", "config", "features", "head_dim"),
    *("q_rows", "kv_rows", "group_heads", "group_rows", "q_warp_rows", "key_groups"),
)
_CYCLES, _TIME = "sm__cycles_elapsed.max", "gpu__time_duration.sum"  # in clocks and in nanoseconds
_FOUND = ("clocks", "ran_at_mhz", "error", "failure")  # what a measurement adds to a launch of a list
_NCU = ("--clock-control", "none", "--cache-control", "none", "--print-units", "base", "--csv", "--page", "raw")


def _builtin(entry: str) -> Builtin:
    """Return the kernel of the library with this entry."""
    found = find_builtin(entry)
    if found is None:
        message = f"the kernel is {entry!r}, which the library does not have"
        raise InvalidArgumentError(message)
    return found


def launch_cases() -> None:
    """Launch every case a few times; the profiler runs this."""
    with Device("cuda") as device:
        for entry, problem in CASES:
            _, launch = work.of_library(device, _builtin(entry), problem)
            for _ in range(LAUNCHES):
                launch()
            device.synchronize()


def launch_listed(path: str, number: str) -> None:
    """Launch one row of a list a few times; the profiler runs this."""
    row = read_list(Path(path))["launches"][int(number)]
    with Device("cuda") as device:
        launch = launch_list.Launch(device, row, launch_list.image_of(Path(path).parent, row))
        for _ in range(LAUNCHES):
            launch.launch()
        launch.check()


def read_list(path: Path) -> dict[str, Any]:
    """Return a document with a list of launches."""
    try:
        document = dict(json.loads(path.read_text(encoding="utf-8")))
        rows = list(document["launches"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"--launches is {str(path)!r}, not a file with a list of launches: {error}"
        raise InvalidArgumentError(message) from error
    launch_list.check(rows, path)
    return document


def _profiled(options: Sequence[str], function: str, *arguments: str) -> str:
    """Return what Nsight Compute prints of a function of this module, which runs in a process of its own."""
    program = f"import sys; from pysm120.model import measure; measure.{function}(*sys.argv[1:])"
    command = ["ncu", *_NCU, *options, "--metrics", f"{_CYCLES},{_TIME}", sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    return done.stdout + done.stderr


def launches() -> list[dict[str, Any]]:
    """Return the clocks of every case; empty if ncu is not in PATH."""
    if shutil.which("ncu") is None:
        return []
    entries = [entry for entry, _ in CASES]
    names = "|".join(dict.fromkeys(entries))
    clocks = read_cycles(_profiled(("-k", f"regex:^({names})$"), "launch_cases"), entries)
    return [
        {"entry": entry, "problem": str(problem), "clocks": each}
        for (entry, problem), each in zip(CASES, clocks, strict=True)
    ]


def read_cycles(text: str, entries: list[str], metric: str = _CYCLES) -> list[float]:
    """Return the clocks of every entry, launched a few times each, from the output of ncu --csv --page raw.

    ``metric``: what to return instead of clocks.
    """
    rows = list(csv.reader(text.splitlines()))
    head = next((i for i, row in enumerate(rows) if row[:1] == ["ID"]), None)
    if head is None:
        message = f"ncu printed no table: {text.strip()[-200:]!r}"
        raise UnsupportedError(message)
    column, name = rows[head].index(metric), rows[head].index("Kernel Name")
    table = [row for row in rows[head + 2 :] if len(row) == len(rows[head])]
    found = [(row[name].split("(")[0], float(row[column].replace(",", ""))) for row in table]
    if [entry for entry, _ in found] != [entry for entry in entries for _ in range(LAUNCHES)]:
        message = f"ncu reported {len(found)} launches, but {LAUNCHES * len(entries)} were made: {text[-200:]!r}"
        raise UnsupportedError(message)
    return [
        statistics.median(clocks for _, clocks in found[LAUNCHES * i : LAUNCHES * (i + 1)]) for i in range(len(entries))
    ]


def chip_of(device: Device) -> str:
    """Return the file of the GPU's chip."""
    name = device.info.name
    chip = next((key for key in chips.names() if name.endswith(str(chips.load(key)["name"]))), None)
    if chip is None:
        message = f"the GPU is {name!r}, but there are chip files only for {', '.join(chips.names())}"
        raise UnsupportedError(message)
    return chip


def listed(path: Path, steps: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Measure the launches of a list on the first GPU; return the list with the figures, and the files of the code.

    ``steps`` is called with the name of each launch.
    """
    document = read_list(path)
    if shutil.which("ncu") is None:
        message = "ncu is not in PATH: it comes with the CUDA toolkit"
        raise UnsupportedError(message)
    names = {str(row["image"]) for row in document["launches"]}
    images = {name: (path.parent / name).read_bytes() for name in sorted(names) if (path.parent / name).is_file()}
    with Device("cuda") as device:
        head = _head(device)
    rows = []
    for number, row in enumerate(document["launches"]):
        rows.append(measured(path, number, row))
        steps(str(row.get("name", row["entry"])))
    return {**document, **head, "loops": [], "launches": rows}, images


def measured(path: Path, number: int, row: dict[str, Any]) -> dict[str, Any]:
    """Measure a row of a list, in a process of its own, since a fault would take the others with it."""
    text = _profiled(("--print-kernel-base", "mangled"), "launch_listed", str(path.resolve()), str(number))
    row = {name: value for name, value in row.items() if name not in _FOUND}
    said = next((line for line in reversed(text.splitlines()) if line.startswith("pysm120.")), "")
    try:
        (clocks,) = read_cycles(text, [str(row["entry"])])
    except UnsupportedError as error:
        said = said or str(error)
    if said:
        return {**row, "failure": said}
    row["clocks"] = clocks
    (nanoseconds,) = read_cycles(text, [str(row["entry"])], _TIME)
    row["ran_at_mhz"] = round(1e3 * clocks / nanoseconds)
    if "predicted" in row:
        row["error"] = round(row["predicted"] / clocks - 1, 4)
    return row


def _head(device: Device) -> dict[str, Any]:
    """Return the header of measurements: chip, driver and date."""
    return {
        "chip": chip_of(device),
        "name": device.info.name,
        "driver": device.info.driver_version,
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "how": HOW,
    }


def text_of(document: dict[str, Any]) -> str:
    """Return measurements as JSON, one line for each loop or launch."""
    lists = {name: value for name, value in document.items() if isinstance(value, list)}
    text = json.dumps({name: [] if name in lists else value for name, value in document.items()}, indent=1)
    for name, rows in lists.items():
        if rows:
            lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
            text = text.replace(f'"{name}": []', f'"{name}": [\n{lines}\n ]')
    return text + "\n"


def everything(
    steps: Callable[[str], None], loops: Sequence[Loop], *, with_launches: bool
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Measure loops and launches on the first GPU; return the figures, and the code of the launches by file.

    ``steps`` is called with the name of each.
    """
    with Device("cuda") as device:
        head = _head(device)
        target = str(chips.load(head["chip"])["target"])
        target += "f" if target == "sm_120" else ""
        rows = []
        with ThreadPoolExecutor() as pool:
            made = list(pool.map(lambda loop: sass.assemble(loop.ptx(target), target), loops))
        for loop, image in zip(loops, made, strict=True):
            clocks, _ = loop_clocks(device, loop, image)
            rows.append({"name": loop.name, "warps": loop.warps, "clocks": round(clocks, 2)})
            steps(f"{loop.name}, {loop.warps} warps")
    found = launches() if with_launches else []
    images = keep_images(found, target)
    steps("launches")
    return {**head, "loops": rows, "launches": found}, images


def keep_images(rows: list[dict[str, Any]], target: str) -> dict[str, bytes]:
    """Write the file of its code into each row and return the files. The code is kept because kernels change."""
    files: dict[str, bytes] = {}
    for row in rows:
        builtin = _builtin(row["entry"])
        index = builtins().index(builtin)
        stem = f"{builtin.entry}.{target}"
        for form in ("cubin", "ptx"):
            if f"{stem}.{form}.xz" not in files:
                files[f"{stem}.{form}.xz"] = lzma.compress(builtin_image(index, target, form))
        row |= {"image": f"{stem}.cubin.xz", "ptx": f"{stem}.ptx.xz", "shared_bytes": builtin.shared_bytes}
        row["record"] = {name: getattr(builtin, name) for name in _RECORD}
    return files


def all_loops() -> list[Loop]:
    """Return the loops of calibration and of validation."""
    return [*known_loops.calibration(), *known_loops.validation()]
