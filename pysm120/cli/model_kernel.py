"""The kernel of a command line: its model, its launch, what is recorded of it, and what its prediction lacks."""

import argparse
import dataclasses
import re
from pathlib import Path
from typing import NamedTuple

from pysm120.machine_code import pipes, sass
from pysm120.machine_code.cubin import Cubin
from pysm120.model import coverage, files, local, memory, predict, roles, splits, validation
from pysm120.model import problem as problems
from pysm120.model import record as records
from pysm120.model.chips import Chip
from pysm120.model.handovers import InTime
from pysm120.model.kernel_model import KernelModel
from pysm120.model.predict import Prediction
from pysm120.model.problem import BACKWARD, Problem
from pysm120.model.record import NotRecordedError
from pysm120.model.recorded import Recording
from pysm120.model.simulator import StuckError
from pysm120.model.splits import Splits
from pysm120.observe.program import triple
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import Builtin, builtin_image, builtin_index, find_builtin
from pysm120.runtime.names import demangled

INCOMPLETE = 3  # exit status: the prediction leaves out a part of the kernel, and says which
_MOST_CTAS, _MOST_STAGES = 1 << 24, 1 << 10  # beyond these a prediction takes minutes
_IDLE = 0.1  # most of the time in which an idle DRAM is busy
_REPEATS = 2  # times that L2 gives the bytes of DRAM, above which L1 may matter
_COPY_LOAD, _COPY_STORE = re.compile(r"UTMALDG|UBLKCP\.S\.G"), re.compile(r"UTMASTG|UBLKCP\.G\.S")
_LOOP = re.compile(r"(0x[0-9a-f]+)=(\d+(?:\.\d+)?)$")
_BRANCH = re.compile(r"(0x[0-9a-f]+)=(taken|not)$")
_TILE = re.compile(r"([1-9]\d*)x([1-9]\d*)$")


def number(word: str | None, name: str, least: int = 1, most: int | None = None) -> int | None:
    """Return the value of an option as an integer of at least ``least`` and at most ``most``."""
    if word is None:
        return None
    if not word.isdecimal() or int(word) < least:
        message = f"{name} is {word!r}, not an integer of at least {least}"
        raise InvalidArgumentError(message)
    if most is not None and int(word) > most:
        message = f"{name} is {word!r}; the model takes at most {most:,}"
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


def _launch(model: KernelModel, arguments: argparse.Namespace) -> tuple[list[int], Problem | None]:
    """Return the rounds of each CTA, and the problem or None."""
    problem = _problem(model.function.name, arguments)
    if arguments.tile and problem is None:
        message = f"--tile is {arguments.tile!r}, but there is no --problem that it divides"
        raise InvalidArgumentError(message)
    if problem:
        return problem.rounds(record_of(model.function.name, arguments.tile)), problem
    stated = number(arguments.rounds, "--rounds")
    if stated and model.loop is None:
        name = demangled(model.function.name)
        message = f"--rounds is {arguments.rounds!r}, but {name} has no loop: leave out --rounds"
        raise InvalidArgumentError(message)
    recorded = round(model.recording.rounds) if model.recording else 32
    rounds = 0 if model.loop is None else stated or recorded
    ctas = number(arguments.ctas, "--ctas", most=_MOST_CTAS) or int(model.chip["sms"]) * model.slots
    share = model.recording.share if model.recording else 1.0
    return [rounds] * max(1, round(share * ctas)), None


def _shares(model: KernelModel, rounds: list[int]) -> list[float]:
    """Return the recorded rounds of each CTA as a share of ``rounds``, which are whole; empty if all are alike."""
    if model.recording is None or model.loop is None or not rounds[0]:
        return []
    more = model.recording.rounds / rounds[0]
    return [more * share for share in model.recording.launches[-1].shares(len(rounds))]


def _problem(name: str, arguments: argparse.Namespace) -> Problem | None:
    """Return the given problem, or the default problem of attention kernels."""
    rounds, ctas = number(arguments.rounds, "--rounds"), number(arguments.ctas, "--ctas", most=_MOST_CTAS)
    if arguments.problem and (rounds or ctas):
        message = "--problem determines the CTAs and rounds: leave out --ctas and --rounds"
        raise InvalidArgumentError(message)
    if arguments.problem:
        return problems.parse(arguments.problem)
    kernel = find_builtin(name)
    is_attention = kernel is not None and kernel.operation in {"attention", BACKWARD}
    return Problem(4, 2048, 32, kernel.head_dim) if kernel and is_attention and not rounds and not ctas else None


def record_of(name: str, tile: str | None = None) -> Builtin:
    """Return the record of a kernel; for a kernel that is not the library's, it has only the name and the tile.

    ``tile``: rows of queries and of keys, "64x32".
    """
    known = find_builtin(name)
    if tile is None:
        return known or Builtin(name, "", 0, 0)
    found = _TILE.match(tile)
    if known or found is None:
        why = f"but {name} is a kernel of the library, which has its own"
        why = why if known else "not the rows of queries and of keys such as 64x32"
        message = f"--tile is {tile!r}, {why}"
        raise InvalidArgumentError(message)
    return Builtin(name, "", 0, 0, operation="attention", q_rows=int(found[1]), kv_rows=int(found[2]))


def tensor_classes(model: KernelModel) -> set[str]:
    """Return the classes of a kernel's matrix instructions."""
    return {pipes.class_of(one.opcode) for one in model.function.instructions if one.is_tensor}


class Kernel:
    """The kernel of the command line, its PTX if there is one, and the recording of its branches."""

    def __init__(self, arguments: argparse.Namespace, chip: Chip) -> None:
        self.arguments, self.chip = arguments, chip
        self.why = "--rules" if arguments.rules else ""
        self.missing: list[str] = []  # what the prediction lacks, a sentence each
        self.in_time = False  # whether every tile is taken to be there in time
        self.issues = 0.0  # the recorded instructions of a CTA
        self.target = files.target_of(chip)
        self.file = files.read(Path(arguments.kernel), arguments.ptx, self.target)
        index = None if self.file else builtin_index(arguments.kernel)
        text = builtin_image(index, self.target, "ptx").decode() if index is not None else None
        self.ptx = self.file.ptx if self.file else text

    def model(
        self,
        stages: int | None,
        stated: dict[int, bool],
        *,
        streamed: bool = False,
        busy: float = 0.0,
        share: float = 0.0,
    ) -> KernelModel:
        """Return the model of the kernel; ``streamed``, ``busy``, ``share``: as ``validation.image_model``."""
        record = None if self.arguments.rules else self._record
        if self.file:
            shared = number(self.arguments.shared, "--shared", least=0) or 0
            image, entry, block = self.file.image, self.arguments.entry, self.arguments.block
            threads = files.threads_of(image, entry, triple(block, "--block") if block else None)
            return validation.image_model(
                self.chip, image, entry, shared, threads=threads, stages=stages, stated=stated, record=record,
                warps_of=self._warps_of, streamed=streamed, busy=busy, share=share, tensor_bytes=self._tensor_bytes(),
                in_time=self.in_time,
            )  # fmt: skip
        is_ours = find_builtin(self.arguments.kernel) is not None
        for name in ("shared", "block", "warps", "loop", "bytes", "tile") if is_ours else ():
            if given := getattr(self.arguments, name):
                word = given if isinstance(given, str) else given[0]
                message = f"--{name} is {word!r}, but {self.arguments.kernel} is a kernel of the library: leave it out"
                raise InvalidArgumentError(message)
        return validation.builtin_model(self.chip, self.arguments.kernel, stages=stages, stated=stated, record=record)

    def _warps_of(self, function: sass.Function, threads: int, recording: Recording | None) -> int:
        """Return the warps that execute the main loop: stated, recorded, or by the rules, which may have to assume."""
        stated, total = number(self.arguments.warps, "--warps"), -(-threads // 32)
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
        stated = _loops(self.arguments.loop, model)
        if self.file is None:
            return []
        found, unknown = roles.others(model, model.loop, rounds[0], stated) if model.loop else ([], [])
        given = self.arguments
        if not (given.rounds or given.problem or given.loop or given.warps or given.branch):  # all as recorded
            covered = coverage.of(model, rounds, found)
            found += covered.parts if covered else []
            self.issues = covered.recorded if covered else 0.0
            self.missing += [covered.lacks] if covered and covered.lacks else []
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
        rounds = self.arguments.rounds or self.arguments.problem
        if model.loop and not rounds and not model.recording:
            self.missing.append("32 rounds of the main loop are assumed: give --rounds or --profile")
        around = (model.paths.sources[step.place] for step in model.paths.around)
        calls = [one for one in around if one.base == "CALL" and one.address not in model.function.called]
        if calls and not model.recording:
            where = f"{calls[0].operands[0]} at {calls[0].address:#x}"
            self.missing.append(f"the main loop calls {where}, whose branches nobody recorded: its time is left out")
        if isinstance(model.handovers, InTime) and model.handovers.rings:
            self.missing.append(
                f"waits for copies are left out: {model.handovers.why}; --stages N states how many tiles are under way"
            )
        if unknown := sorted(tensor_classes(model) - set(self.chip.timings)):
            self.missing.append(
                f"the file of chip {self.chip.key} has no timing of {', '.join(unknown)}: they take none"
            )
        if refused := sass.refused_copies(model.function):
            one = refused[0]
            self.missing.append(
                f"a GPU refuses this code: {one.opcode} {', '.join(one.operands)} at {one.address:#x} is an illegal "
                "instruction that ptxas 13.0 makes of cp.async with a cache policy"
            )
        if model.handovers.guessed:
            self.missing.append("the code does not tell the bytes that producers copy: L2 and DRAM may bound the time")
        self._check_copies(model)
        self._check_frame(model, self.file.image)

    def _check_frame(self, model: KernelModel, image: bytes) -> None:
        """Note that the main loop spills more than L1 holds beside shared memory, where nobody has measured L2."""
        if self.chip["l2_binds"]:
            return
        entry, block, chip = Cubin(image).entry(model.function.name), self.arguments.block, self.chip
        threads = files.threads_of(image, model.function.name, triple(block, "--block") if block else None)
        shared = entry.static_shared_bytes + (number(self.arguments.shared, "--shared", least=0) or 0)
        left = round(model.slots * memory.l1_bytes(chip, model.slots, shared))
        around = (model.paths.sources[step.place] for step in model.paths.around)
        words = {word for one in around if one.base == "LDL" for word in local.spilled(one)}
        frames = model.slots * threads * local.WORD_BYTES * len(words)
        if frames > left:
            self.missing.append(
                f"the main loop loads {frames:,} bytes of spilled registers on an SM, and L1 holds {left:,}: "
                "L2 or DRAM delivers them again and again, which the model leaves out"
            )

    def dram_bytes(self, model: KernelModel, rounds: list[int], others: list[roles.Other]) -> float | None:
        """Return the bytes that a file's kernel moves from and to DRAM; None if nobody stated them."""
        word = self.arguments.bytes
        if word == "moved":
            return predict.all_l2_bytes(model, rounds, others)
        if word is not None and not word.isdecimal():
            message = f"--bytes is {word!r}, neither an integer of at least 0 nor moved"
            raise InvalidArgumentError(message)
        return None if word is None else float(word)

    def reread_bytes(self, model: KernelModel, ctas: int, tensor_bytes: float) -> float:
        """Return the bytes that DRAM delivers again, as far as a profile tells which of them CTAs share."""
        recording = model.recording
        if recording is None or self.arguments.bytes == "moved":
            return 0.0
        found = memory.reread_bytes(model.chip, recording.launches[-1], ctas, model.slots, tensor_bytes)
        if found and recording.launches[-1].ctas == 1 < ctas:
            self.missing.append(
                f"{found:,.0f} bytes come from DRAM again, unless CTAs share them: profile more CTAs than one"
            )
            return 0.0
        return found

    def _check_copies(self, model: KernelModel) -> None:
        """Note bulk copies whose bytes are unknown: stores, and loads of which no ring tells the bytes."""
        if model.recording and model.recording.launches[-1].copied is not None:
            return
        bases = [one.opcode for one in model.function.instructions if one.is_copy]
        stores = [name for name in bases if _COPY_STORE.match(name)]
        loads = [] if model.paths.rings or model.handovers.guessed else [x for x in bases if _COPY_LOAD.match(x)]
        if stores or loads:
            names = ", ".join(sorted({*stores, *loads}))
            self.missing.append(f"how many bytes {names} move is unknown: record a launch with --profile")

    def check_together(self, model: KernelModel, ctas: int) -> None:
        """Note that another number of CTAs shared an L1 in the profile than on the chip."""
        together = model.recording.launches[-1].together if model.recording else 0
        held = min(model.slots, -(-ctas // int(self.chip["sms"])))
        if together and together != held:
            self.missing.append(
                f"{together} CTAs of the profile share an L1, but an SM of the chip holds {held}: profile with "
                f"--sm {self.chip.key},{held}"
            )

    def check_memory(self, prediction: Prediction, *, dram_known: bool, together: bool) -> None:
        """Note what memory may need longer for than the prediction; ``together``: CTAs shared the profile's L1."""
        chip, mhz = self.chip, float(self.chip["mhz"])
        gbs = prediction.l2_bytes / prediction.clocks * mhz / 1e3
        dram, l2 = float(chip["dram_gbs"]), float(chip["l2_gbs"])
        if not dram_known and gbs > dram:
            self.missing.append(
                f"its loads and stores are {gbs:,.0f} GB/s, and DRAM gives {dram:,.0f}: give --bytes N, or --bytes "
                f"moved if nothing is read twice, which takes at least {prediction.l2_bytes / dram / 1e3:,.2f} us"
            )
        moved, held = prediction.l2_bytes, prediction.dram_bytes
        is_bound = prediction.bound == "l2" and prediction.flops == 0 and not together
        if self.file and is_bound and moved > _REPEATS * held > 0:
            shared = "the CTAs of an SM share" if self.arguments.profile else "a CTA loads again"
            self.missing.append(
                f"L2 bounds the time with {moved / held:.1f} times the bytes of --bytes: L1 may serve what {shared}, "
                f"which the model leaves out; without L2 it would take at least {held / dram / 1e3:,.2f} us"
            )
        if gbs > l2 and not chip["l2_binds"]:
            self.missing.append(
                f"it needs {gbs:,.0f} GB/s of L2, and {l2:,.0f} have been seen on such a chip: at that rate it would "
                f"take {prediction.l2_bytes / l2 / 1e3:,.2f} us"
            )

    def _tensor_bytes(self) -> float:
        """Return the bytes of a file's tensors as far as they are known: those of --bytes, else of the problem."""
        word = self.arguments.bytes
        if word is not None:
            return float(word) if word.isdecimal() else 0.0
        name = self.arguments.entry or ""
        problem = _problem(name, self.arguments)
        return problem.tensor_bytes(record_of(name, self.arguments.tile)) if problem else 0.0

    def _record(self, function: sass.Function, threads: int) -> tuple[sass.Function, Recording | None]:
        """Return the kernel with the lines of its PTX, and the recording of its branches, as far as they are known."""
        if self.arguments.profile:
            recording = records.of_file(self._with_lines(function), Path(self.arguments.profile), threads)
            return recording.function, recording
        try:
            problem = _problem(function.name, self.arguments)
            if problem is None or self.ptx is None or self.file:
                self.why = "nothing was recorded: there is no attention problem and no --profile"
                return function, None
            return validation.recorder(self.ptx, self.target, problem, record_of(function.name))(function, threads)
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


class Predicted(NamedTuple):
    """A prediction, with what it was made from.

    ``dram_known``: whether somebody stated the bytes of DRAM. ``splits``: those of the library's own launch.
    """

    kernel: Kernel
    model: KernelModel
    rounds: list[int]
    problem: Problem | None
    prediction: Prediction
    dram_known: bool
    splits: Splits | None


def predicted(arguments: argparse.Namespace, chip: Chip, *, keep_events: bool = False) -> Predicted:
    """Predict the launch of the options of ``model``.

    If the warps of a file's kernel would wait for each other for ever, every tile is there in time.
    """
    kernel = Kernel(arguments, chip)
    try:
        return _predicted(kernel, arguments, chip, keep_events=keep_events)
    except StuckError:
        if not kernel.file:
            raise
    kernel = Kernel(arguments, chip)
    kernel.in_time = True
    return _predicted(kernel, arguments, chip, keep_events=keep_events)


def _predicted(kernel: Kernel, arguments: argparse.Namespace, chip: Chip, *, keep_events: bool) -> Predicted:
    """Predict the launch of a kernel."""
    stages = number(arguments.stages, "--stages", most=_MOST_STAGES)
    branches = _branches(arguments.branch)
    model = kernel.model(stages, branches)
    for address in branches:
        one = next((one for one in model.function.instructions if one.address == address), None)
        if one is None or not (one.is_branch and one.is_conditional):
            message = f"--branch is {address:#x}, where {demangled(model.function.name)} has no conditional branch"
            raise InvalidArgumentError(message)
    rounds, problem = _launch(model, arguments)
    warps = problem.warps(record_of(model.function.name, arguments.tile)) if problem else []
    all_ctas = (
        number(arguments.ctas, "--ctas", most=_MOST_CTAS) if model.recording and model.recording.share < 1 else None
    )
    leaving = all_ctas - len(rounds) if all_ctas else 0
    record, of_keys = record_of(model.function.name), None
    of_library = {"attention": splits.of_library, BACKWARD: splits.of_backward}.get(record.operation)
    if problem and kernel.file is None and of_library and not record.features:
        of_keys = of_library(record, problem, chip)
        rounds, warps = of_keys.rounds(record, problem), of_keys.warps(record, problem)
    held = problem.tensor_bytes(record) if problem else 0
    kernel.check(model)
    others = kernel.others(model, rounds)
    dram = kernel.dram_bytes(model, rounds, others)
    moved = predict.all_l2_bytes(model, rounds, others)
    streamed = bool(kernel.file and dram and memory.is_streamed(moved, dram))
    share = min(1.0, dram / moved) if dram and moved else 0.0
    if streamed:
        model = kernel.model(stages, branches, streamed=True, share=share)
        others = kernel.others(model, rounds)
    work = [] if problem or leaving or arguments.rounds else _shares(model, rounds)
    again = kernel.reread_bytes(model, len(rounds), held if dram is None else dram)

    def prediction_of(model: KernelModel, others: list[roles.Other]) -> Prediction:
        return predict.predict(
            model, rounds, warps=warps, others=others, tensor_bytes=held, dram_bytes=dram, reread_bytes=again,
            issues=kernel.issues, leaving=leaving, work=work, keep_events=keep_events,
        )  # fmt: skip

    prediction = prediction_of(model, others)
    if kernel.file and dram and prediction.dram_busy > _IDLE:  # loads wait longer than they would for an idle DRAM
        model = kernel.model(stages, branches, streamed=streamed, busy=prediction.dram_busy, share=share)
        others = kernel.others(model, rounds)
        prediction = prediction_of(model, others)
    kernel.chip = model.chip
    if problem and of_keys:
        behind = of_keys.clocks(record, problem, chip)
        prediction = dataclasses.replace(prediction, clocks=prediction.clocks + behind)
    known = dram is not None or problem is not None or kernel.file is None
    kernel.check_together(model, len(rounds) + leaving)
    together = bool(model.recording and model.recording.launches[-1].together)
    kernel.check_memory(prediction, dram_known=known, together=together)
    kernel.missing = list(dict.fromkeys(kernel.missing))  # a model that was built twice lacks it once
    return Predicted(kernel, model, rounds, problem, prediction, known, of_keys)
