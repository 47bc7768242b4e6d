"""Compile kernels of other people whose launches the timing model predicted before anybody measured them.

    python benchmarks/unseen.py SOURCES FOLDER [--list LIST.json]  # nvcc: FOLDER/*.cubin and FOLDER/LIST.json
    python -m pysm120 model --measure OUT.json --launches FOLDER/LIST.json  # on the GPU, by ncu: clocks, errors

`results/unseen_h100.json`, `_2.json` and `_3.json` have the sources with their commits, the commands of nvcc, and a
list of launches with their predictions. SOURCES has the checkouts; the first command says which is missing. It
needs no GPU, and the second one needs no compiler. Both name a kernel whose machine code is not that of the prediction:
its error says nothing.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from pysm120.model import launches

PREDICTED = Path(__file__).resolve().parent.parent / "results" / "unseen_h100.json"


def build(predicted: Path, sources: Path, folder: Path) -> list[str]:
    """Compile every file of a list, and copy the list beside them; return what is wrong, a sentence each."""
    document: dict[str, Any] = json.loads(predicted.read_text(encoding="utf-8"))
    wrong = []
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(predicted, folder)
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
    return wrong + launches.changed(document["launches"], folder)


def main() -> None:
    """Compile, and say what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", metavar="SOURCES", type=Path, help="the folder of the checkouts")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where cubins and the list go")
    parser.add_argument("--list", metavar="LIST.json", type=Path, default=PREDICTED, help="the predictions")
    given = parser.parse_args()
    wrong = build(given.list, given.sources, given.folder)
    print("\n".join(wrong) or "all kernels are those of the predictions")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
