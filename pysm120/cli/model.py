"""``model``: predict a kernel's run time on a chip from its machine code."""

import argparse
import dataclasses
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from pysm120.cli import console
from pysm120.cli.command import Command
from pysm120.machine_code import sass
from pysm120.model import backward, chips, code_loops, files, predict, roles, validation
from pysm120.model import measure as measuring
from pysm120.model import problem as problems
from pysm120.model import record as records
from pysm120.model.chips import Chip
from pysm120.model.handovers import InTime
from pysm120.model.kernel_model import TYPICAL, KernelModel
from pysm120.model.predict import Prediction
from pysm120.model.problem import BACKWARD, Problem
from pysm120.model.record import NotRecordedError
from pysm120.model.recorded import Recording
from pysm120.observe.profile import Sources
from pysm120.observe.program import triple
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import Builtin, builtin_image, builtin_index, find_builtin

REASONS = 15  # rows of the table
INCOMPLETE = 3  # exit status: the prediction leaves out a part of the kernel, and says which
_INSTRUCTION_BYTES = 16
_LOOP = re.compile(r"(0x[0-9a-f]+)=(\d+(?:\.\d+)?)$")
_BRANCH = re.compile(r"(0x[0-9a-f]+)=(taken|not)$")


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
        "--chip", default="rtx5090", help=f"{', '.join(chips.names())}, or a chip file (default: %(default)s)"
    )
    parser.add_argument(
        "--problem",
        metavar="B,S,H,D[,causal]",
        help="batch, rows, heads (or heads/kv heads), head size of an attention or its gradients",
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
        help="bytes from and to DRAM, for a file; moved: all that its loads and stores move, if nothing is read twice",
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
    parser.add_argument("--mhz", metavar="N", help="clock rate for seconds and TFLOP/s (default: the chip's)")
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


def _number(word: str | None, name: str, least: int = 1) -> int | None:
    """Return the value of an option as an integer of at least ``least``."""
    if word is None:
        return None
    if not word.isdecimal() or int(word) < least:
        message = f"{name} is {word!r}, not an integer of at least {least}"
        raise InvalidArgumentError(message)
    return int(word)


def _branches(words: list[str]) -> dict[int, bool]:
    """Return the values of --branch."""
    stated = {}
    for word in words:
        found = _BRANCH.match(word)
        if found is None:
            message = f"--branch is {word!r}, not an address and a direction such as 0x3610=taken or 0x3610=not"
            raise InvalidArgumentError(message)
        stated[int(found[1], 16)] = found[2] == "taken"
    return stated


def _loops(words: list[str], model: KernelModel) -> dict[int, float]:
    """Return the values of --loop."""
    function, stated = model.function, dict[int, float]()
    known = {function.instructions[function.blocks[loop.header].first].address for loop in function.loops}
    main = {function.instructions[function.blocks[model.loop.header].first].address} if model.loop else set()
    for word in words:
        found = _LOOP.match(word)
        if found is None:
            message = f"--loop is {word!r}, not the address of a loop and its rounds such as 0x3610=8"
            raise InvalidArgumentError(message)
        address = int(found[1], 16)
        if address not in known - main:
            there = ", ".join(f"{one:#x}" for one in sorted(known - main)) or "no other loop"
            which = "the main loop, whose rounds are --rounds" if address in main else "not the begin of a loop"
            message = f"--loop is {word!r}, but {found[1]} is {which}; beside the main loop there is {there}"
            raise InvalidArgumentError(message)
        stated[address] = float(found[2])
    return stated


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


def _launch(model: KernelModel, arguments: argparse.Namespace) -> tuple[list[int], Problem | None]:
    """Return the rounds of each CTA, and the problem or None."""
    problem = _problem(model.function.name, arguments)
    if problem:
        return problem.rounds(_record_of(model.function.name)), problem
    stated = _number(arguments.rounds, "--rounds")
    if stated and model.loop is None:
        message = f"--rounds is {arguments.rounds!r}, but {model.function.name} has no loop: leave out --rounds"
        raise InvalidArgumentError(message)
    recorded = round(model.recording.rounds) if model.recording else 32
    rounds = 0 if model.loop is None else stated or recorded
    return [rounds] * (_number(arguments.ctas, "--ctas") or int(model.chip["sms"]) * model.slots), None


def _problem(name: str, arguments: argparse.Namespace) -> Problem | None:
    """Return the given problem, or the default problem of attention kernels."""
    rounds, ctas = _number(arguments.rounds, "--rounds"), _number(arguments.ctas, "--ctas")
    if arguments.problem and (rounds or ctas):
        message = "--problem determines the CTAs and rounds: leave out --ctas and --rounds"
        raise InvalidArgumentError(message)
    if arguments.problem:
        return problems.parse(arguments.problem)
    kernel = find_builtin(name)
    is_attention = kernel is not None and kernel.operation in {"attention", BACKWARD}
    return Problem(4, 2048, 32, kernel.head_dim) if kernel and is_attention and not rounds and not ctas else None


def _record_of(name: str) -> Builtin:
    """Return the record of a kernel; for a kernel that is not the library's, it has only the name."""
    return find_builtin(name) or Builtin(name, "", 0, 0)


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
    record = _record_of(model.function.name)
    flops = problem.flops_of(record) if problem else prediction.flops
    return {
        "kernel": model.function.name,
        "chip": chip.key,
        "problem": str(problem) if problem else None,
        "incomplete": missing,
        "ctas": len(rounds),
        "ctas_per_sm": model.slots,
        "rounds": max(rounds),
        "clocks": round(prediction.clocks),
        "mhz": mhz,
        "microseconds": round(seconds * 1e6, 2),
        "tflops": round(flops / seconds / 1e12, 1),
        "clocks_per_round": round(prediction.sm_round_clocks, 1),
        "code_bytes_per_round": _INSTRUCTION_BYTES * len(model.paths.around),
        "code_fits": model.paths.fit(chip),
        "clocks_outside_rounds": round(prediction.overhead_clocks),
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


def show(found: dict[str, Any], prediction: Prediction, chip: Chip, lines: dict[int, Place]) -> None:
    """Print the prediction."""
    title = f"{found['kernel']} on {chip['name']}: a prediction from its machine code"
    print(f"{title}; docs/explanation/model.md says how accurate it is")
    rows = [
        ("time", f"{found['microseconds']:,} us", f"{found['clocks']:,} clocks at {found['mhz']:g} MHz"),
        ("rate", f"{found['tflops']} TFLOP/s", found["problem"] or "flop of the matrix instructions"),
        ("launch", f"{found['ctas']:,} CTAs", f"{found['ctas_per_sm']} on an SM, {found['warps']} warps compute"),
        ("round", f"{found['clocks_per_round']:,} clocks", "of an SM, for one tile of one CTA"),
        ("outside", f"{found['clocks_outside_rounds']:,} clocks", "of a CTA, before and after its rounds"),
        ("L2", f"{found['l2_gbs']:,} GB/s", _limit(found, "l2", chip)),
        ("DRAM", f"{found['dram_gbs']:,} GB/s", _limit(found, "dram", chip))
        if found["dram_known"]
        else ("DRAM", "not known", f"of {found['dram_gbs_of_the_chip']:,} GB/s: give --bytes"),
    ]  # fmt: skip
    if prediction.add_bytes:
        rows.append(("adds in L2", f"{found['add_gbs']:,} GB/s", _limit(found, "add", chip)))
    if prediction.conflicts:
        note = "of the wavefronts of shared memory, counted on the virtual device"
        rows.append(("bank conflicts", f"{prediction.conflicts:.1%}", note))
    if not found["code_fits"]:
        code, kept = found["code_bytes_per_round"] >> 10, int(chip["code_bytes"]) >> 10
        note = f"the instruction cache has {kept} KiB: code is fetched in every round; slower if SMs drift apart"
        rows.append(("code", f"{code} KiB a round", note))
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


def pass_result(of: backward.Pass, chip: Chip, problem: Problem, mhz: float) -> dict[str, Any]:
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
        "tensor_share": round(problem.backward_flops / of.clocks / backward.tensor_flops(chip), 4),
    }


def show_pass(found: dict[str, Any]) -> None:
    """Print the prediction of a whole backward pass."""
    rows = [
        (one["kernel"], f"{one['clocks']:,}", f"{one['microseconds']:,}", f"{one['share']:.1%}", one["bound"])
        for one in found["kernels"]
    ]
    total = f"{found['tflops']} TFLOP/s, {found['tensor_share']:.1%} of the tensor pipe"
    rows.append(("all", f"{found['clocks']:,}", f"{found['microseconds']:,}", "100.0%", total))
    console.table("The whole backward pass", ("kernel", "clocks", "us", "of the time", "bound"), rows, tail=1)


def validate(path: Path) -> int:
    """Print predictions and measurements."""
    rows = list(validation.compare(validation.read(path), path.parent))
    table = [(row.name, f"{row.predicted:,.1f}", f"{row.measured:,.1f}", f"{row.error:+.1%}") for row in rows]
    console.table("Clocks, predicted and measured", ("what", "predicted", "measured", "error"), table)
    median, worst = validation.errors(rows)
    print(f"{len(rows)} comparisons: median error {median:.1%}, largest {worst:.1%}.")
    return 0


def measure(path: Path, launches: str | None, *, code: bool) -> None:
    """Measure on the GPU here, and write a file for --validate."""
    if path.suffix != ".json" or not path.parent.is_dir():
        message = f"--measure is {str(path)!r}, not a .json file in an existing folder"
        raise InvalidArgumentError(message)
    if launches:
        document, images = measuring.listed(Path(launches))
    else:
        loops = code_loops.loops() if code else measuring.all_loops()
        with console.progress(len(loops) + 1, "measuring") as step:
            document, images = measuring.everything(step, loops, with_launches=not code)
    for name, image in images.items():
        (path.parent / name).parent.mkdir(exist_ok=True)
        (path.parent / name).write_bytes(image)
    path.write_text(measuring.text_of(document), encoding="utf-8")
    print(f"{path} has {len(document['loops'])} loops and {len(document['launches'])} launches.")


class _Kernel:
    """The kernel of the command line, its PTX if there is one, and the recording of its branches."""

    def __init__(self, arguments: argparse.Namespace, chip: Chip) -> None:
        self.arguments, self.chip = arguments, chip
        self.why = "--rules" if arguments.rules else ""
        self.missing: list[str] = []  # what the prediction lacks, a sentence each
        self.target = files.target_of(chip)
        self.file = files.read(Path(arguments.kernel), arguments.ptx, self.target)
        index = None if self.file else builtin_index(arguments.kernel)
        text = builtin_image(index, self.target, "ptx").decode() if index is not None else None
        self.ptx = self.file.ptx if self.file else text

    def model(self, stages: int | None, stated: dict[int, bool]) -> KernelModel:
        """Return the model of the kernel."""
        record = None if self.arguments.rules else self._record
        if self.file:
            shared = _number(self.arguments.shared, "--shared", least=0) or 0
            image, entry, block = self.file.image, self.arguments.entry, self.arguments.block
            threads = files.threads_of(image, entry, triple(block, "--block") if block else None)
            return validation.image_model(
                self.chip, image, entry, shared, threads=threads, stages=stages, stated=stated, record=record,
                warps_of=self._warps_of, cold=self.arguments.bytes is not None,
            )  # fmt: skip
        for name in ("shared", "block", "warps", "loop", "bytes"):
            if given := getattr(self.arguments, name):
                word = given if isinstance(given, str) else given[0]
                message = f"--{name} is {word!r}, but {self.arguments.kernel} is a kernel of the library: leave it out"
                raise InvalidArgumentError(message)
        return validation.builtin_model(self.chip, self.arguments.kernel, stages=stages, stated=stated, record=record)

    def _warps_of(self, function: sass.Function, threads: int, recording: Recording | None) -> int:
        """Return the warps that execute the main loop: stated, recorded, or by the rules, which may have to assume."""
        stated, total = _number(self.arguments.warps, "--warps"), -(-threads // 32)
        if stated and stated > total:
            message = f"--warps is {stated}, but a CTA of {threads} threads has {total} warps"
            raise InvalidArgumentError(message)
        if stated or recording:
            return stated or (recording.warps if recording else total)
        warps, assumed = roles.warps_by_rules(function, threads)
        self.missing += [assumed] if assumed else []
        return warps

    def others(self, model: KernelModel, rounds: list[int]) -> list[roles.Other]:
        """Return what the CTAs of a file's kernel execute beside the main loop, as far as it is known."""
        if self.file is None or model.loop is None:
            return []
        stated = _loops(self.arguments.loop, model)
        found, unknown = roles.others(model, model.loop, rounds[0], stated)
        if unknown:
            which = ", ".join(f"{address:#x}" for address in unknown)
            self.missing.append(
                f"beside the main loop there are loops whose rounds nobody stated, at {which}: give --profile, or "
                f"--loop {unknown[0]:#x}=N"
            )
        return found

    def check(self, model: KernelModel) -> None:
        """Note what the model of a file's kernel lacks."""
        if self.file is None:
            return
        if model.loop and not self.arguments.rounds and not model.recording:
            self.missing.append("32 rounds of the main loop are assumed: give --rounds or --profile")
        if isinstance(model.handovers, InTime) and model.handovers.rings:
            self.missing.append(f"waits for copies are left out: {model.handovers.why}")

    def dram_bytes(self, model: KernelModel, rounds: list[int], others: list[roles.Other]) -> float | None:
        """Return the bytes that a file's kernel moves from and to DRAM; None if nobody stated them."""
        word = self.arguments.bytes
        if word == "moved":
            return predict.all_l2_bytes(model, rounds, others)
        if word is not None and not word.isdecimal():
            message = f"--bytes is {word!r}, neither an integer of at least 0 nor moved"
            raise InvalidArgumentError(message)
        return None if word is None else float(word)

    def check_memory(self, prediction: Prediction, *, dram_known: bool) -> None:
        """Note what memory may need longer for than the prediction."""
        chip, mhz = self.chip, float(self.arguments.mhz or self.chip["mhz"])
        gbs = prediction.l2_bytes / prediction.clocks * mhz / 1e3
        dram, l2 = float(chip["dram_gbs"]), float(chip["l2_gbs"])
        if not dram_known and gbs > dram:
            self.missing.append(
                f"its loads and stores are {gbs:,.0f} GB/s, and DRAM gives {dram:,.0f}: give --bytes N, or --bytes "
                f"moved if nothing is read twice, which takes at least {prediction.l2_bytes / dram / 1e3:,.2f} us"
            )
        if gbs > l2 and not chip["l2_binds"]:
            self.missing.append(
                f"it needs {gbs:,.0f} GB/s of L2, and {l2:,.0f} have been seen on such a chip: at that rate it would "
                f"take {prediction.l2_bytes / l2 / 1e3:,.2f} us"
            )

    def _record(self, function: sass.Function, threads: int) -> tuple[sass.Function, Recording | None]:
        """Return the kernel with the lines of its PTX, and the recording of its branches, as far as they are known."""
        if self.arguments.profile:
            known = self._with_lines(function)
            return known, records.of_file(known, Path(self.arguments.profile), threads)
        try:
            problem = _problem(function.name, self.arguments)
            if problem is None or self.ptx is None or self.file:
                self.why = "nothing was recorded: there is no attention problem and no --profile"
                return function, None
            return validation.recorder(self.ptx, self.target, problem, _record_of(function.name))(function, threads)
        except NotRecordedError as error:
            self.why = str(error)
            return function, None

    def _with_lines(self, function: sass.Function) -> sass.Function:
        """Return the kernel with the lines of its PTX, without which a profile says nothing of it."""
        word = self.arguments.profile
        if self.ptx is None:
            message = f"--profile is {word!r}, but the PTX is unknown: give --ptx FILE.ptx"
            raise InvalidArgumentError(message)
        try:
            return records.with_lines(function, self.ptx, self.target)
        except NotRecordedError as error:
            message = f"--profile is {word!r}, whose lines cannot be joined to the machine code: {error}"
            raise InvalidArgumentError(message) from error


def run(arguments: argparse.Namespace) -> int:
    """Predict."""
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
    mhz = float(_number(arguments.mhz, "--mhz") or chip["mhz"])
    stages = _number(arguments.stages, "--stages")
    kernel = _Kernel(arguments, chip)
    stated = _branches(arguments.branch)
    model = kernel.model(stages, stated)
    rounds, problem = _launch(model, arguments)
    held = problem.tensor_bytes(_record_of(model.function.name)) if problem else 0
    kernel.check(model)
    others = kernel.others(model, rounds)
    dram = kernel.dram_bytes(model, rounds, others)
    prediction = predict.predict(
        model, rounds, others=others, tensor_bytes=held, dram_bytes=dram, keep_events=picture is not None
    )
    known = dram is not None or kernel.file is None
    kernel.check_memory(prediction, dram_known=known)
    found = result(
        model, prediction, rounds, problem, mhz, _branches_by(model, kernel.why), kernel.missing, dram_known=known
    )
    record = _record_of(model.function.name)
    if problem and record.operation == BACKWARD:
        found["pass"] = pass_result(backward.predict_pass(model, record, problem, prediction), chip, problem, mhz)
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
