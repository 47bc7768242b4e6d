"""``compare``: predict kernels of the library beside kernels in files, for one problem on one chip at one clock."""

import argparse
import json
from pathlib import Path
from typing import Any

from pysm120.cli import console, model
from pysm120.cli.command import Command
from pysm120.cli.model_kernel import INCOMPLETE, number, predicted
from pysm120.model import backward, chips, problem
from pysm120.model.chips import Chip
from pysm120.model.problem import BACKWARD
from pysm120.runtime.errors import Error, InvalidArgumentError
from pysm120.runtime.module import find_builtin
from pysm120.runtime.names import demangled

# Keys of a word and the options of `model` that they stand for; those that may be repeated take several words.
KEYS = ("kernel", "tile", "ctas", "rounds", "block", "shared", "warps", "stages", "profile", "ptx", "bytes")
REPEATED = ("loop", "branch")
HELP = f"""\
WORD, one for each kernel:
  attention_bf16_128x64_d128_walk                    a kernel of the library
  v5.cubin,tile=64x64,shared=49152,profile=p.json    a cubin or PTX, and options of `model` for it:
                                                     {", ".join((*KEYS, *REPEATED))}
tile=QxK has the rows of queries and of keys of a CTA's tile; the problem then says how many CTAs and rounds there are.
Kernels that are not attention take ctas=N,rounds=N instead.

example: python -m pysm120 compare attention_bf16_128x64_d128_walk v5.cubin,tile=64x64,shared=49152 \\
    --problem 1,4096,32,128 --chip rtx5090 --mhz 2640"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "python -m pysm120 compare WORD WORD ... [--problem B,S,H,D[,causal]] [OPTION ...]"
    parser.epilog = HELP
    parser.add_argument("kernels", metavar="WORD", nargs="+", help="a kernel, and how it is launched")
    parser.add_argument(
        "--problem",
        metavar="B,S,H,D[,causal]",
        help="batch, rows, heads (or heads/kv heads), head size of an attention or its gradients",
    )
    parser.add_argument("--flops", metavar="N", help="operations of the launch, if there is no --problem")
    parser.add_argument("--chip", default="rtx5090", help=f"{', '.join(chips.names())}, or a chip file")
    parser.add_argument("--mhz", metavar="N", help="clock rate (default: the chip's)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def options_of(word: str, arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the options of ``model`` for a word of ``compare``."""
    parser = argparse.ArgumentParser()
    model.add(parser)
    name, *pairs = word.split(",")
    words = [name, "--chip", arguments.chip]
    found: dict[str, list[str]] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals and found:  # a comma in a value, such as block=32,4
            found[list(found)[-1]][-1] += f",{pair}"
            continue
        if key not in {*KEYS, *REPEATED} or not value:
            message = f"{word!r} has {pair!r}, not one of {', '.join((*KEYS, *REPEATED))} with = and a value"
            raise InvalidArgumentError(message)
        if key in found and key not in REPEATED:
            message = f"{word!r} has {key} twice"
            raise InvalidArgumentError(message)
        found.setdefault(key, []).append(value)
    for key, values in found.items():
        words += [f"--{key}={value}" for value in values]
    if arguments.mhz:
        words += ["--mhz", arguments.mhz]
    is_launch = "ctas" in found or "rounds" in found
    if arguments.problem and not is_launch:
        words += ["--problem", arguments.problem]
    if not arguments.problem and find_builtin(name) and not is_launch:
        message = f"{name} needs --problem"
        raise InvalidArgumentError(message)
    return parser.parse_args(words)


def row(word: str, arguments: argparse.Namespace, chip: Chip) -> dict[str, Any]:
    """Return the figures of a word."""
    try:
        kernel, of, rounds, _, prediction, known, splits = predicted(options_of(word, arguments), chip)
    except Error as error:
        message = f"{word.split(',', maxsplit=1)[0]}: {error}"
        raise type(error)(message) from error
    builtin, clocks, bound = find_builtin(of.function.name), prediction.clocks, prediction.bound
    whole = problem.parse(arguments.problem) if arguments.problem else None
    is_backward = builtin is not None and builtin.operation == BACKWARD
    if whole and builtin and is_backward and kernel.file is None:
        clocks, bound = backward.predict_pass(of, builtin, whole, prediction, splits).clocks, "the whole pass"
    flops = float(number(arguments.flops, "--flops") or prediction.flops)
    if whole:
        flops = whole.backward_flops if is_backward else whole.flops
    mhz = float(of.chip["mhz"])
    seconds = clocks / (mhz * 1e6)
    return {
        "kernel": word.split(",", maxsplit=1)[0],
        "entry": of.function.name,
        "mhz": mhz,
        "microseconds": round(seconds * 1e6, 2),
        "tflops": round(flops / seconds / 1e12, 1),
        "tensor_share": round(prediction.shares.get("tensor", 0.0), 4),
        "ctas": len(rounds),
        "ctas_per_sm": of.slots,
        "warps": of.warps,
        "rounds": max(rounds),
        "bound": bound,
        "dram_gbs": round(prediction.dram_bytes / seconds / 1e9) if known else None,
        "branches": "recorded" if of.recording else "by rules",
        "incomplete": kernel.missing,
    }


def run(arguments: argparse.Namespace) -> int:
    """Compare."""
    if arguments.problem and arguments.flops:
        message = "--problem determines the operations: leave out --flops"
        raise InvalidArgumentError(message)
    number(arguments.flops, "--flops")
    chip = chips.load(arguments.chip)
    chip = chip.at(float(stated)) if (stated := number(arguments.mhz, "--mhz")) else chip
    mhz = float(chip["mhz"])
    rows = [row(word, arguments, chip) for word in arguments.kernels]
    if arguments.json:
        document = {"chip": chip.key, "mhz": mhz, "problem": arguments.problem, "kernels": rows}
        print(json.dumps(document, indent=1))
    else:
        show(rows, chip, mhz, arguments.problem)
    return INCOMPLETE if any(one["incomplete"] for one in rows) else 0


def names_of(rows: list[dict[str, Any]]) -> list[str]:
    """Return what rows are called: the file, and the kernel if the file occurs twice."""
    files = [Path(one["kernel"]).name for one in rows]
    return [
        f"{file}: {demangled(one['entry'])}" if files.count(file) > 1 else file
        for file, one in zip(files, rows, strict=True)
    ]


def show(rows: list[dict[str, Any]], chip: Chip, mhz: float, wanted: str | None) -> None:
    """Print the comparison."""
    names = names_of(rows)
    fastest = min(one["microseconds"] for one in rows)
    what = wanted or "launches as stated"
    console.table(
        f"Whole launches on {chip['name']} at {mhz:g} MHz, predicted from machine code: {what}",
        ("kernel", "us", "TFLOP/s", "of the fastest", "tensor pipe", "CTAs", "on an SM", "warps", "bound", "branches"),
        [
            (
                name + (" (incomplete)" if one["incomplete"] else ""),
                f"{one['microseconds']:,}",
                f"{one['tflops']}",
                f"{fastest / one['microseconds']:.1%}",
                f"{one['tensor_share']:.1%}",
                f"{one['ctas']:,}",
                f"{one['ctas_per_sm']}",
                f"{one['warps']}",
                one["bound"],
                one["branches"],
            )
            for name, one in zip(names, rows, strict=True)
        ],
        tail=2,
    )
    print("tensor pipe: of an SM in the main loop; warps: of a CTA that execute the main loop")
    for name, one in zip(names, rows, strict=True):
        for missing in one["incomplete"]:
            print(f"incomplete: {name}: {missing}")


COMMAND = Command("compare", "predict kernels of the library beside kernels in files, for one problem", add, run)
