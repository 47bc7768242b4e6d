"""``model``: predict a kernel's run time on a chip from its machine code."""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

from pysm120.cli import console, model_learn
from pysm120.cli.command import Command
from pysm120.cli.model_kernel import INCOMPLETE, number, predicted, record_of
from pysm120.machine_code import sass
from pysm120.model import backward, chips, code_loops, validation
from pysm120.model import launches as launch_list
from pysm120.model import measure as measuring
from pysm120.model import record as records
from pysm120.model.chips import Chip
from pysm120.model.kernel_model import TYPICAL, KernelModel
from pysm120.model.predict import Prediction
from pysm120.model.problem import BACKWARD, Problem
from pysm120.model.record import NotRecordedError
from pysm120.observe.profile import Sources
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import Builtin
from pysm120.runtime.names import demangled

REASONS = 15  # rows of the table
CHIP = "rtx5090"
_INSTRUCTION_BYTES = 16


class Place(NamedTuple):
    """A line of a template, or of the PTX."""

    file: str
    line: int
    text: str


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("kernel", metavar="ENTRY|FILE", nargs="?", help="a kernel of the library, a cubin, or PTX")
    parser.add_argument(
        "--kernel", dest="entry", metavar="NAME", help="the entry, or a part of its name, if the file has several"
    )
    parser.add_argument(
        "--chip", help=f"{', '.join(chips.names())}, or a chip file (default: {CHIP}; with --learn that of the report)"
    )
    parser.add_argument(
        "--problem",
        metavar="B,S,H,D[,causal]",
        help="batch, rows, heads (or heads/kv heads), head size of an attention or its gradients",
    )
    parser.add_argument(
        "--tile", metavar="QxK", help="rows of queries and of keys of a tile, for a file with --problem: 64x32"
    )
    parser.add_argument(
        "--ctas", metavar="N", help="CTAs of the launch, if there is no --problem (default: fill the chip once)"
    )
    parser.add_argument(
        "--rounds", metavar="N", help="rounds of a CTA's main loop, if there is no --problem (default: 32)"
    )
    parser.add_argument(
        "--bytes",
        metavar="N|moved",
        help="bytes from and to DRAM, for a file, without what moves again, which --profile tells; moved: all that its "
        "loads and stores move, if nothing is read twice",
    )
    parser.add_argument(
        "--block", metavar="X[,Y,Z]", help="threads of a CTA, for a file (default: .reqntid or .maxntid)"
    )
    parser.add_argument("--shared", metavar="BYTES", help="dynamic shared memory of a CTA, for a file (default: 0)")
    parser.add_argument(
        "--warps",
        metavar="N",
        help="warps of a CTA that execute the main loop, for a file (default: recorded, or by rules)",
    )
    parser.add_argument(
        "--loop",
        metavar="0xADDRESS=N",
        action="append",
        default=[],
        help="rounds of another loop of a file, for a warp of a CTA (default: recorded)",
    )
    parser.add_argument(
        "--stages", metavar="N", help="tiles in shared memory (default: the copies before the main loop)"
    )
    parser.add_argument(
        "--branch",
        metavar="0xADDRESS=taken|not",
        action="append",
        default=[],
        help="state whether a branch of the main loop is taken",
    )
    parser.add_argument(
        "--rules",
        action="store_true",
        help="use rules for branches and hand-overs; record nothing on the virtual device",
    )
    parser.add_argument(
        "--profile", metavar="P.json", help="for a cubin: the output of `profile FILE.ptx ... --json P.json`"
    )
    parser.add_argument("--ptx", metavar="FILE.ptx", help="for a cubin: its PTX (default: the .ptx file beside it)")
    parser.add_argument("--mhz", metavar="N", help="clock rate of the SMs (default: the chip's)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--timeline", metavar="FILE.png", help="draw the warps of a quarter SM on its pipes (needs matplotlib)"
    )
    parser.add_argument(
        "--measure", metavar="FILE.json", help="measure loops and launches on this machine's GPU (launches by ncu)"
    )
    parser.add_argument(
        "--launches",
        metavar="LIST.json",
        help="with --measure: measure the launches of a list of kernels in files instead",
    )
    parser.add_argument(
        "--code", action="store_true", help="with --measure: measure the loops that are mostly code instead"
    )
    parser.add_argument(
        "--validate",
        metavar="FILE.json",
        help="compare predictions with the measurements in a file, and do nothing else",
    )
    parser.add_argument(
        "--learn", metavar="REPORT.json", help="fit the chip to what `report` measured, and show the changes"
    )
    parser.add_argument("--to", metavar="CHIP.toml", help="with --learn: write the fitted chip file")


def places(ptx: str | None, function: sass.Function, target: str) -> dict[int, Place]:
    """Return the lines of a kernel by address, if the code has them or ptxas is found."""
    if ptx is None:
        return {one.address: Place("", one.line, "") for one in function.instructions if one.line}
    try:
        known = (
            function if any(one.line for one in function.instructions) else records.with_lines(function, ptx, target)
        )
    except NotRecordedError:
        return {}
    lines, named, sources = ptx.splitlines(), sass.places(ptx), Sources()
    found = {}
    for one in known.instructions:
        if one.line:
            file, number = named[one.line - 1]
            text = (sources.line(file, number) if file else None) or lines[one.line - 1].strip()
            found[one.address] = Place(file.rsplit("/", 1)[-1], number + (not file), text)
    return found


def _branches_by(model: KernelModel, why: str) -> dict[str, Any]:
    """Return the branches of the main loop: recorded ones with the share of taken, and those that the rules decide."""
    recording = model.recording
    if recording is None:
        return {"by": "rules", "why": why, "recorded": {}, "rules": []}
    shares = {f"{address:#x}": round(share.of(TYPICAL), 4) for address, share in recording.shares.items()}
    return {"by": "recording", "why": why, "recorded": shares, "rules": [f"{x:#x}" for x in recording.by_rules]}


def result(
    model: KernelModel,
    prediction: Prediction,
    rounds: list[int],
    problem: Problem | None,
    mhz: float,
    branches: dict[str, Any],
    missing: list[str],
    *,
    dram_known: bool = True,
) -> dict[str, Any]:
    """Return the prediction as a value for ``json.dumps``."""
    chip = model.chip
    seconds = prediction.clocks / (mhz * 1e6)
    record = record_of(model.function.name)
    flops = problem.flops_of(record) if problem else prediction.flops
    return {
        "kernel": model.function.name,
        "chip": chip.key,
        "problem": str(problem) if problem else None,
        "incomplete": missing,
        "ctas": len(rounds) + prediction.leaving,
        "ctas_leaving": prediction.leaving,
        "ctas_per_sm": model.slots,
        "rounds": max(rounds),
        "clocks": round(prediction.clocks),
        "mhz": mhz,
        "microseconds": round(seconds * 1e6, 2),
        "tflops": round(flops / seconds / 1e12, 1),
        "clocks_per_round": round(prediction.sm_round_clocks, 1),
        "code_bytes_per_round": _INSTRUCTION_BYTES * len({step.place for step in model.paths.around}),
        "code_fits": model.paths.fit(chip),
        "clocks_outside_rounds": round(prediction.overhead_clocks),
        "even_share": round(sum(rounds) * prediction.sm_round_clocks / chip["sms"] / prediction.clocks, 4),
        "tensor_share": round(prediction.shares.get("tensor", 0.0), 4),
        "shares": {name: round(share, 4) for name, share in prediction.shares.items()},
        "bank_conflicts": round(prediction.conflicts, 4),
        "bound": prediction.bound,
        "l2_gbs": round(prediction.l2_bytes / seconds / 1e9),
        "l2_gbs_of_the_chip": chip["l2_gbs"],
        "add_gbs": round(prediction.add_bytes / seconds / 1e9),
        "add_gbs_of_the_chip": round(chip["add_bytes_per_clock"] * chip["sms"] * mhz / 1e3),
        "dram_gbs": round(prediction.dram_bytes / seconds / 1e9),
        "dram_known": dram_known,
        "reread_bytes": round(prediction.reread_bytes),
        "dram_gbs_of_the_chip": chip["dram_gbs"],
        "branches": branches,
        "warps": model.warps,
        "stages": model.handovers.stages,
        "handovers": {
            "by": "rules" if model.handovers.why else "recording",
            "why": model.handovers.why,
            "rings": [dataclasses.asdict(ring) for ring in model.handovers.rings],
        },
    }


def _limit(found: dict[str, Any], name: str, chip: Chip) -> str:
    """Return the bandwidth limit of a memory, and whether it bounds the time."""
    limit = f"of {found[f'{name}_gbs_of_the_chip']:,} GB/s"
    if name == "l2" and not chip["l2_binds"]:
        limit = f"of {chip['l2_gbs']:,} GB/s seen, and at most {chip.l2_limit:,.0f}"
    if name == "add" and not chip["adds_bind"]:
        return f"{limit} or more: the limit is unknown, so it does not bound the prediction"
    return f"{limit}, which bounds the time" if found["bound"].rstrip("s") == name else limit


def _row_of_splits(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the row about CTAs that share keys, if there are any."""
    splits = found["splits"]
    if not splits:
        return []
    return [("splits", f"{splits['splits']} of a tile", f"of those from tile {splits['first']:,} on; added up behind")]


def _rows_of_products(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the row of the rate, if there are matrix products."""
    note = found["problem"] or "flop of the matrix instructions"
    return [("rate", f"{found['tflops']} TFLOP/s", note)] if found["tflops"] else []


def _rows_of_rounds(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the main loop, if there is one."""
    each, rest = (f"{found[name]:,} clocks" for name in ("clocks_per_round", "clocks_outside_rounds"))
    rows = [
        ("round", each, "of an SM, for one round of the main loop of one CTA"),
        ("outside", rest, "of a CTA, before and after its rounds"),
        ("even share", f"{found['even_share']:.1%}", "of the time, if all rounds were spread evenly over the SMs"),
    ]
    return rows if found["rounds"] else []


def _code(found: dict[str, Any], chip: Chip) -> list[tuple[str, str, str]]:
    """Return the row on code that an SM does not keep, if there is some."""
    if found["code_fits"]:
        return []
    code, kept = found["code_bytes_per_round"] >> 10, int(chip["code_bytes"]) >> 10
    if not code:
        return [("code", "all", f"the instruction cache has {kept} KiB: each CTA fetches its code")]
    note = f"the instruction cache has {kept} KiB: code is fetched in every round; slower if SMs drift apart"
    return [("code", f"{code} KiB a round", note)]


def show(found: dict[str, Any], prediction: Prediction, chip: Chip, lines: dict[int, Place]) -> None:
    """Print the prediction."""
    title = f"{demangled(found['kernel'])} on {chip['name']}: a prediction from its machine code"
    print(f"{title}; docs/explanation/model.md says how accurate it is")
    rows = [
        ("time", f"{found['microseconds']:,} us", f"{found['clocks']:,} clocks at {found['mhz']:g} MHz"),
        *_rows_of_products(found),
        ("launch", f"{found['ctas']:,} CTAs", f"{found['ctas_per_sm']} on an SM, {found['warps']} warps compute"),
        *_row_of_splits(found),
        *_rows_of_rounds(found),
        ("L2", f"{found['l2_gbs']:,} GB/s", _limit(found, "l2", chip)),
        ("DRAM", f"{found['dram_gbs']:,} GB/s", _limit(found, "dram", chip))
        if found["dram_known"]
        else ("DRAM", "not known", f"of {found['dram_gbs_of_the_chip']:,} GB/s: give --bytes"),
    ]  # fmt: skip
    if prediction.reread_bytes:
        note = "of DRAM: L2 has lost them when CTAs touch them again"
        rows.append(("read again", f"{prediction.reread_bytes:,.0f} bytes", note))
    if prediction.add_bytes:
        rows.append(("adds in L2", f"{found['add_gbs']:,} GB/s", _limit(found, "add", chip)))
    if prediction.conflicts:
        note = "of the wavefronts of shared memory, counted on the virtual device"
        rows.append(("bank conflicts", f"{prediction.conflicts:.1%}", note))
    rows += _code(found, chip)
    branches = found["branches"]
    if branches["by"] == "recording":
        note = "recorded on the virtual device"
        if branches["rules"]:
            note += f"; by rules, because they have no line of their own: {', '.join(branches['rules'])}"
        rows.append(("branches", f"{len(branches['recorded'])} of the main loop", note))
    else:
        rows.append(("branches", "by rules", branches["why"]))
    if found["handovers"]["rings"]:
        why = found["handovers"]["why"]
        note = why or "the mbarriers of a CTA, recorded on the virtual device"
        rows.append(("hand-overs", "by rules" if why else f"{len(found['handovers']['rings'])} rings", note))
    for missing in found["incomplete"]:
        print(f"incomplete: {missing}")
    console.table("Prediction", ("what", "figure", "note"), rows, tail=1)
    console.table(
        "Units of an SM in the main loop" if found["rounds"] else "Units of an SM in the kernel",
        ("unit", "busy"),
        [(name, f"{share:.1%}") for name, share in prediction.shares.items() if share >= 0.005],  # noqa: PLR2004
    )
    reasons: dict[str, float] = {}
    for r in prediction.reasons:
        reasons[r.reason] = reasons.get(r.reason, 0.0) + r.clocks
    console.table(
        "What a warp waits for in a round",
        ("reason", "clocks"),
        [(name, f"{clocks:.0f}") for name, clocks in sorted(reasons.items(), key=lambda x: -x[1]) if clocks >= 1],
    )
    why = [
        (f"{r.address:#x}", f"{r.clocks:.1f}", r.reason, f"{place.file}:{place.line}", r.text)
        if (place := lines.get(r.address))
        else (f"{r.address:#x}", f"{r.clocks:.1f}", r.reason, "", r.text)
        for r in prediction.reasons[:REASONS]
    ]
    console.table(
        "Why it is not faster: clocks that a warp waits in a round, by the waiting instruction",
        ("address", "clocks", "waits for", "line", "instruction"),
        why,
        tail=3,
    )


def pass_result(of: backward.Pass, chip: Chip, problem: Problem, main: Builtin, mhz: float) -> dict[str, Any]:
    """Return the prediction of a whole backward pass as a value for ``json.dumps``."""
    seconds = of.clocks / (mhz * 1e6)
    return {
        "kernels": [
            {
                "kernel": part.entry,
                "clocks": round(part.clocks),
                "microseconds": round(part.clocks / mhz, 2),
                "share": round(part.clocks / of.clocks, 4),
                "bound": part.bound,
                "dram_bytes": round(part.dram_bytes),
            }
            for part in of.parts
        ],
        "clocks": round(of.clocks),
        "microseconds": round(seconds * 1e6, 2),
        "tflops": round(problem.backward_flops / seconds / 1e12, 1),
        "tensor_share": round(problem.backward_flops / of.clocks / backward.tensor_flops(chip, main), 4),
    }


def show_pass(found: dict[str, Any]) -> None:
    """Print the prediction of a whole backward pass."""
    rows = [
        (
            demangled(one["kernel"]),
            f"{one['clocks']:,}",
            f"{one['microseconds']:,}",
            f"{one['share']:.1%}",
            one["bound"],
        )
        for one in found["kernels"]
    ]
    total = f"{found['tflops']} TFLOP/s, {found['tensor_share']:.1%} of the tensor pipe"
    rows.append(("all", f"{found['clocks']:,}", f"{found['microseconds']:,}", "100.0%", total))
    console.table("The whole backward pass", ("kernel", "clocks", "us", "of the time", "bound"), rows, tail=1)


def validate(path: Path) -> int:
    """Print predictions and measurements."""
    rows = list(validation.compare(validation.read(path), path.parent))
    if not rows:
        message = f"--validate is {str(path)!r}, which has no launch and no loop that the model predicts"
        raise InvalidArgumentError(message)
    _show(rows)
    return 0


def _show(rows: list[validation.Row]) -> None:
    """Print predicted and measured clocks."""
    table = [(row.name, f"{row.predicted:,.1f}", f"{row.measured:,.1f}", f"{row.error:+.1%}") for row in rows]
    console.table("Clocks, predicted and measured", ("what", "predicted", "measured", "error"), table)
    median, worst = validation.errors(rows)
    print(f"{len(rows)} comparisons: median error {median:.1%}, largest {worst:.1%}.")


def measure(path: Path, launches: str | None, *, code: bool) -> None:
    """Measure on the GPU here, and write a file for --validate."""
    if path.suffix != ".json" or not path.parent.is_dir():
        message = f"--measure is {str(path)!r}, not a .json file in an existing folder"
        raise InvalidArgumentError(message)
    if launches:
        rows = measuring.read_list(Path(launches))["launches"]
        for sentence in launch_list.changed(rows, Path(launches).parent):
            print(sentence)
        with console.progress(len(rows), "measuring") as step:
            document, images = measuring.listed(Path(launches), step)
    else:
        loops = code_loops.loops() if code else measuring.all_loops()
        with console.progress(len(loops) + 1, "measuring") as step:
            document, images = measuring.everything(step, loops, with_launches=not code)
    for name, image in images.items():
        (path.parent / name).parent.mkdir(exist_ok=True)
        (path.parent / name).write_bytes(image)
    path.write_text(measuring.text_of(document), encoding="utf-8")
    print(f"{path} has {len(document['loops'])} loops and {len(document['launches'])} launches.")
    predicted = []
    for row in document["launches"]:
        if "failure" in row:
            print(f"{validation.name_of(row)} failed: {row['failure']}")
        if "error" in row:
            predicted.append(validation.Row(validation.name_of(row), row["predicted"], row["clocks"]))
    if predicted:
        _show(predicted)


def run(arguments: argparse.Namespace) -> int:
    """Predict, or learn, measure or validate."""
    if arguments.learn or arguments.to:
        return model_learn.run(arguments.learn, arguments.chip, arguments.to)
    arguments.chip = arguments.chip or CHIP
    if arguments.measure:
        measure(Path(arguments.measure), arguments.launches, code=arguments.code)
        return 0
    if arguments.validate:
        return validate(Path(arguments.validate))
    if arguments.kernel is None:
        message = (
            "the kernel is missing: give an entry of the library, a .cubin file, a .ptx file or --validate FILE.json"
        )
        raise InvalidArgumentError(message)
    picture = _picture(arguments.timeline)
    chip = chips.load(arguments.chip)
    chip = chip.at(float(stated)) if (stated := number(arguments.mhz, "--mhz")) else chip
    kernel, model, rounds, problem, prediction, known, splits = predicted(
        arguments, chip, keep_events=picture is not None
    )
    chip = model.chip
    mhz = float(chip["mhz"])
    found = result(
        model, prediction, rounds, problem, mhz, _branches_by(model, kernel.why), kernel.missing, dram_known=known
    )
    found["splits"] = dataclasses.asdict(splits) if splits and splits.splits > 1 else None
    record = record_of(model.function.name)
    if problem and record.operation == BACKWARD:
        whole = backward.predict_pass(model, record, problem, prediction, splits)
        found["pass"] = pass_result(whole, chip, problem, record, mhz)
    lines = places(kernel.ptx, model.function, kernel.target)
    if arguments.json:
        reasons = [
            {"clocks": round(r.clocks, 2), "waits_for": r.reason, "address": r.address, "instruction": r.text}
            | ({"file": lines[r.address].file, "line": lines[r.address].line, "source": lines[r.address].text}
               if r.address in lines else {})
            for r in prediction.reasons
        ]  # fmt: skip
        print(json.dumps({**found, "reasons": reasons}, indent=1))
    else:
        show(found, prediction, chip, lines)
        if "pass" in found:
            show_pass(found["pass"])
    if picture:
        from pysm120.model import timeline  # noqa: PLC0415 - matplotlib is an extra, and slow to import

        timeline.draw(prediction.events, f"{found['kernel']} on {chip['name']}: one quarter of an SM", picture)
        if not arguments.json:
            print(f"{picture} shows the warps of a quarter on its pipes.")
    return INCOMPLETE if kernel.missing else 0


def _picture(word: str | None) -> Path | None:
    """Return the file of the timeline."""
    if word is None:
        return None
    path = Path(word)
    if path.suffix != ".png" or not path.parent.is_dir():
        message = f"--timeline is {word!r}, not a .png file in an existing folder"
        raise InvalidArgumentError(message)
    return path


COMMAND = Command("model", "predict a kernel's run time on a chip from its machine code", add, run)
