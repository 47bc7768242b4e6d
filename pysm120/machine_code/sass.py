"""Machine code of sm_90 and sm_120: instructions, their scheduling fields, basic blocks and loops."""

import dataclasses
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from pysm120.machine_code import joined, tools
from pysm120.machine_code.cubin import NO_LIMIT, Cubin
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.names import demangled

# The scheduling fields are bits 105 to 125 of an instruction's 128.
_STALL, _YIELD, _WRITE, _READ, _WAIT, _REUSE = (105, 4), (109, 1), (110, 3), (113, 3), (116, 6), (122, 4)
_NO_BARRIER = 7

_TENSOR = ("HMMA", "IMMA", "QMMA", "OMMA", "DMMA", "BMMA")
_CALL, _RETURN = "CALL", "RET"
_ENDS = ("EXIT", _RETURN, "BPT", "KILL")
_BRANCHES = ("BRA", "BRX", "JMP", "JMX", "BRXU")
_COPIES = ("UTMALDG", "UBLKCP", "UTMASTG", "UBLKRED", "UTMAREDG", "UBLKPF", "UTMAPF")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction of a kernel.

    Attributes
    ----------
    address : int
        Bytes from the begin of the kernel.
    predicate : str
        The guard: "P0", "!UP1" or "".
    opcode : str
        With all modifiers: "HMMA.16816.F32.BF16".
    operands : tuple of str
        As nvdisasm writes them, destination first; a label is replaced by its address, "0x940".
    word : int
        Its 128-bit encoding.
    target : int, optional
        The address of a label in it, such as the target of a branch.
    line : int
        The line of the PTX, 0 if unknown.
    choices : tuple of int
        The addresses to which an indirect branch may lead.

    """

    address: int
    predicate: str
    opcode: str
    operands: tuple[str, ...]
    word: int
    target: int | None = None
    line: int = 0
    choices: tuple[int, ...] = ()

    def _field(self, place: tuple[int, int]) -> int:
        first, bits = place
        return self.word >> first & (1 << bits) - 1

    @property
    def stall(self) -> int:
        """Clocks that the warp waits before its next instruction."""
        return self._field(_STALL)

    @property
    def yields(self) -> bool:
        """Whether the scheduler should prefer another warp next."""
        return self._field(_YIELD) == 0

    @property
    def write_barrier(self) -> int | None:
        """The barrier, 0 to 5, that is released when its result is written, or None."""
        number = self._field(_WRITE)
        return None if number == _NO_BARRIER else number

    @property
    def read_barrier(self) -> int | None:
        """The barrier that is released when its operands have been read, or None."""
        number = self._field(_READ)
        return None if number == _NO_BARRIER else number

    @property
    def wait_mask(self) -> int:
        """The barriers, a bit for each, that must be 0 before it is issued."""
        return self._field(_WAIT)

    @property
    def reuse(self) -> int:
        """The operands, a bit for each, that stay in the operand cache."""
        return self._field(_REUSE)

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.split(".", 1)[0]

    @property
    def is_tensor(self) -> bool:
        """Whether it is a matrix product."""
        return self.base in _TENSOR

    @property
    def is_copy(self) -> bool:
        """Whether it hands work to the copy engine."""
        return self.base in _COPIES

    @property
    def is_branch(self) -> bool:
        """Whether it may jump; returns and exits do not count."""
        return self.base in _BRANCHES

    @property
    def is_jump(self) -> bool:
        """Whether it may lead elsewhere than to the next instruction: a branch, a call or a return."""
        return self.is_branch or self.base in {_CALL, _RETURN}

    @property
    def is_conditional(self) -> bool:
        """Whether execution may continue with the next instruction."""
        conditions = [
            word for word in self.operands if re.fullmatch(r"!?U?(P|R)\w+", word) and word not in {"PT", "UPT"}
        ]
        return bool(self.predicate) or bool(conditions) or ".DIV" in self.opcode or ".ANY" in self.opcode

    def __str__(self) -> str:
        guard = f"@{self.predicate} " if self.predicate else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".rstrip()


@dataclasses.dataclass(frozen=True)
class Block:
    """A basic block: instructions [first, last) of the kernel, and the blocks that may follow it."""

    first: int
    last: int
    successors: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Loop:
    """A natural loop: its header, and all of its blocks, by index, in the order of the code."""

    header: int
    blocks: tuple[int, ...]


class Function:
    """The code of a kernel.

    Parameters
    ----------
    name : str
        The name of its entry.
    instructions : sequence of Instruction
        In the order of their addresses.
    most_registers : int, optional
        What ptxas was allowed, by .maxnreg or -maxrregcount; without a limit 255.

    """

    def __init__(self, name: str, instructions: Sequence[Instruction], most_registers: int = NO_LIMIT) -> None:
        self.name = name
        self.most_registers = most_registers
        self.instructions = tuple(instructions)
        self._index = {one.address: i for i, one in enumerate(self.instructions)}

    @cached_property
    def _jumps(self) -> dict[int, tuple[int, ...]]:
        """The targets of each instruction that may jump, index to index; BSYNC jumps to the address in its BSSY."""
        jumps: dict[int, tuple[int, ...]] = {}
        begun: dict[str, int] = {}
        for i, one in enumerate(self.instructions):
            if one.base == "BSSY" and one.target is not None:
                begun[one.operands[0]] = one.target
            elif one.base == "BSYNC":
                if one.operands[0] in begun:
                    jumps[i] = (self._index[begun[one.operands[0]]],)
            elif one.is_branch and (one.target is not None or one.choices):
                targets = one.choices if one.target is None else (one.target,)
                jumps[i] = tuple(self._index[target] for target in targets)
        return jumps

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Basic blocks in the order of the code."""
        count = len(self.instructions)
        ends = {i for i, one in enumerate(self.instructions) if i in self._jumps or one.is_branch or one.base in _ENDS}
        starts = sorted(
            {0, *(i for targets in self._jumps.values() for i in targets), *(i + 1 for i in ends if i + 1 < count)}
        )
        number = {first: n for n, first in enumerate(starts)}
        blocks = []
        for n, first in enumerate(starts):
            last = starts[n + 1] if n + 1 < len(starts) else count
            end = self.instructions[last - 1]
            after: list[int] = []
            goes_on = end.base not in {*_ENDS, *_BRANCHES, "BSYNC"} or last - 1 not in ends or end.is_conditional
            if goes_on and last < count:
                after.append(number[last])
            after += [number[target] for target in self._jumps.get(last - 1, ())]
            blocks.append(Block(first, last, tuple(dict.fromkeys(after))))
        return tuple(blocks)

    @cached_property
    def _dominators(self) -> list[int]:
        """The dominators of each block, as bits; -1 for a block that is not reachable."""
        order: list[int] = []
        seen = {0}
        stack = [(0, iter(self.blocks[0].successors))]
        while stack:
            block, rest = stack[-1]
            following = next((s for s in rest if s not in seen), None)
            if following is None:
                order.append(block)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(self.blocks[following].successors)))
        before: dict[int, list[int]] = {b: [] for b in order}
        for b in order:
            for s in self.blocks[b].successors:
                before[s].append(b)
        found = [-1] * len(self.blocks)
        found[0] = 1
        changed = True
        while changed:
            changed = False
            for b in reversed(order[:-1]):
                now = -1
                for p in before[b]:
                    now &= found[p]
                now |= 1 << b
                if now != found[b]:
                    found[b], changed = now, True
        return found

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Natural loops in the order of their headers; loops with the same header are merged."""
        before: list[list[int]] = [[] for _ in self.blocks]
        for b, block in enumerate(self.blocks):
            for s in block.successors:
                before[s].append(b)
        bodies: dict[int, set[int]] = {}
        for b, block in enumerate(self.blocks):
            for header in block.successors:
                if self._dominators[b] == -1 or not self._dominators[b] >> header & 1:
                    continue
                body = bodies.setdefault(header, {header})
                work = [b]
                while work:
                    at = work.pop()
                    if at not in body:
                        body.add(at)
                        work += [p for p in before[at] if self._dominators[p] != -1]
        return tuple(Loop(header, tuple(sorted(body))) for header, body in sorted(bodies.items()))

    @cached_property
    def called(self) -> dict[int, tuple[Instruction, ...]]:
        """The instructions that a call executes up to its return, by the address of the call.

        Only of functions without a branch: ptxas emulates products that the chip lacks by them. Other functions are the
        rare paths of divisions and roots, or code of the user.
        """
        calls = [one for one in self.instructions if one.base == _CALL]
        bodies = {one.target: self._straight(one.target) for one in calls}
        return {one.address: bodies[one.target] for one in calls if bodies[one.target]}

    def _straight(self, target: int | None) -> tuple[Instruction, ...]:
        """Return the instructions from an address to a return; nothing if code in between may go elsewhere."""
        first = self._index.get(-1 if target is None else target, len(self.instructions))
        for last in range(first, len(self.instructions)):
            one = self.instructions[last]
            if one.base == _RETURN and not one.predicate:
                return self.instructions[first : last + 1]
            if last in self._jumps or one.is_jump or one.base in _ENDS:
                break
        return ()

    def of_loop(self, loop: Loop) -> Iterable[Instruction]:
        """Yield the instructions of all blocks of a loop."""
        for b in loop.blocks:
            yield from self.instructions[self.blocks[b].first : self.blocks[b].last]

    def main_loop(self) -> Loop:
        """Return the smallest of the loops with the most matrix products; without any, of those with the most code.

        Products in a loop inside a loop count for the inner one: a loop over tiles has products too if the last round
        of its inner loop was peeled.
        """
        if not self.loops:
            message = f"{demangled(self.name)} has no loop"
            raise InvalidArgumentError(message)

        def rank(loop: Loop) -> tuple[int, int]:
            own = [one for one in self.own_of_loop(loop) for one in (one, *self.called.get(one.address, ()))]
            tensor = sum(one.is_tensor for one in own)
            size = sum(1 for _ in self.of_loop(loop))
            return tensor, -size if tensor else size

        return max(self.loops, key=rank)

    def dominates(self, block: int, other: int) -> bool:
        """Whether every way to a reachable block leads over another one."""
        return self._dominators[other] != -1 and bool(self._dominators[other] >> block & 1)

    def own_of_loop(self, loop: Loop) -> Iterable[Instruction]:
        """Yield the instructions of a loop that are in no loop inside it."""
        inner = {b for other in self.loops if set(other.blocks) < set(loop.blocks) for b in other.blocks}
        for b in loop.blocks:
            if b not in inner:
                yield from self.instructions[self.blocks[b].first : self.blocks[b].last]

    def path(
        self, loop: Loop, takes: Callable[["Function", int], bool], repeats: Mapping[int, int] | None = None
    ) -> list[Instruction]:
        """Return the instructions that one round of a loop executes.

        Parameters
        ----------
        loop : Loop
            One of ``loops``.
        takes : callable
            Called with this function and the index of a conditional branch; returns whether it is taken.
        repeats : mapping, optional
            The rounds that a loop inside it makes in each pass, by its header. Default: 1.

        """
        inside = set(loop.blocks)
        inner_loops = {one.header: set(one.blocks) for one in self.loops if set(one.blocks) < inside}
        done: list[Instruction] = []
        seen: set[int] = set()
        passed: Counter[int] = Counter()  # rounds of the loops inside in this pass, by header
        b = loop.header
        while b not in seen:
            seen.add(b)
            passed[b] += 1
            block = self.blocks[b]
            done += self.instructions[block.first : block.last]
            inner = [s for s in block.successors if s in inside]
            if not inner:
                break
            again = next((s for s in inner if b in inner_loops.get(s, ())), -1)
            if again >= 0 and passed[again] < (repeats or {}).get(again, 1):
                seen -= inner_loops[again]
                b = again
                continue
            if again in passed and again in (repeats or {}):
                passed[again] = 0
                inner = [s for s in inner if s != again] or inner
            b = inner[0]
            if len(inner) > 1:
                b = inner[1] if takes(self, block.last - 1) else inner[0]
                if b in seen and b != loop.header:  # an inner loop is executed once
                    b = next((other for other in inner if other not in seen or other == loop.header), b)
        return done


def block_of(function: Function, index: int) -> int:
    """Return the block that an instruction is in."""
    return next(n for n, block in enumerate(function.blocks) if block.first <= index < block.last)


# ---- nvdisasm's text --------------------------------------------------------------------

_SECTION = re.compile(r"\s*\.section\s+\.text\.([\w$.]+),")
_LABEL = re.compile(r"(\.L_x_\w+|\.L_\d+|\$[\w$]+):")  # those of ptxas's own functions begin with $
_CODE = re.compile(
    r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([^\s;]+)\s*(.*?)\s*;?\s*(?:/\* 0x([0-9a-f]{16}) \*/)?\s*$"
)
_SPACES = re.compile(r"\s{2,}")  # nvdisasm fills lines up to the length of the kernel's name
_REST = re.compile(r"\s*/\* 0x([0-9a-f]{16}) \*/")
_LINE = re.compile(r"\s*//## File \"([^\"]*)\", line (\d+)")
_LABEL_OPERAND = re.compile(r"`\(((?:\.L_|\$)[\w$]+)\)")
_CHOICES = re.compile(r"\(\*\"BRANCH_TARGETS (.*?)\"\*\)")
_REMARK = re.compile(r"\s*\(\*\".*?\"\*\)")  # such as (*"SpillRefill"*), with line information alone


def parse(text: str) -> dict[str, Function]:
    """Return the kernels in what ``nvdisasm -c`` prints, by name; without ``-hex`` the scheduling fields are 0."""
    functions: dict[str, Function] = {}
    labels: dict[str, int] = {}
    waiting: list[str] = []
    raw: list[tuple[int, str, str, str, int, int]] = []
    name, line = "", 0

    def finish() -> None:
        if name:
            functions[name] = Function(name, [_instruction(row, labels) for row in raw])
        labels.clear()
        raw.clear()

    lines = iter(text.splitlines())
    for row in lines:
        if found := _CODE.match(_SPACES.sub(" ", row)):  # in linear time: _CODE tries each place between spaces
            address = int(found[1], 16)
            labels.update(dict.fromkeys(waiting, address))
            waiting.clear()
            word = 0
            if found[5]:
                rest = _REST.match(next(lines, ""))
                if rest is None:
                    message = f"nvdisasm's text ends within the instruction at {address:#x} of {name}"
                    raise InvalidArgumentError(message)
                word = int(found[5], 16) | int(rest[1], 16) << 64
            raw.append((address, found[2] or "", found[3], found[4], word, line))
        elif found := _LINE.match(row):
            line = int(found[2])
        elif found := _LABEL.match(row):
            waiting.append(found[1])
        elif found := _SECTION.match(row):
            finish()
            name, line = found[1], 0
            waiting.clear()
    finish()
    return functions


def _instruction(row: tuple[int, str, str, str, int, int], labels: dict[str, int]) -> Instruction:
    """Make an instruction from a line, once the labels are known."""
    address, predicate, opcode, rest, word, line = row
    found = _LABEL_OPERAND.search(rest)
    target = labels.get(found[1]) if found else None
    if found:
        rest = rest[: found.start()] + (f"{target:#x}" if target is not None else found[1]) + rest[found.end() :]
    choices = _CHOICES.search(rest)
    leads = [labels[label] for label in choices[1].split(",") if label in labels] if choices else []
    rest = _REMARK.sub("", rest)
    operands = tuple(part.strip() for part in re.split(r",(?![^\[]*\])", rest) if part.strip())
    return Instruction(address, predicate, opcode, operands, word, target, line, tuple(dict.fromkeys(leads)))


def disassemble(image: bytes, entry: str | None = None) -> dict[str, Function]:
    """Return the kernels of a cubin by name, or one alone, with the lines of their PTX where it has line information.

    Needs nvdisasm, in PATH, in CUDA_HOME or from the PyPI wheel nvidia-cuda-nvdisasm.
    """
    cubin = Cubin(image)  # refuses what is none
    only = ["-fun", ",".join(map(str, cubin.symbols(cubin.entry(entry).name)))] if entry else []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(image)
        found = parse(tools.run("nvdisasm", "-hex", "-c", "-gp", *only, path))
    for name in {one.name for one in cubin.entries} & {*found}:
        found[name].most_registers = cubin.most_registers(name)
    return found


def disassemble_all(images: Mapping[str, bytes]) -> dict[str, Function]:
    """Return one kernel of each cubin, by entry, without line numbers. One run of nvdisasm reads all of them.

    Parameters
    ----------
    images : mapping from str to bytes
        The cubin of each entry. All have the same target.

    """
    if not images:
        return {}
    cubins = {entry: Cubin(image) for entry, image in images.items()}
    code = {entry: (cubin.code(entry), cubin.indirect_branches(entry)) for entry, cubin in cubins.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.cubin"
        path.write_bytes(joined.join(next(iter(images.values())), code))
        return parse(tools.run("nvdisasm", "-hex", "-c", path))


# A uniform register in the shared address, and a descriptor, 64 bits, that begins at an odd one.
_REFUSED = re.compile(r"\[[^\]]*UR[^\]]*\], desc\[UR\d*[13579]\]")


def refused_copies(function: Function) -> list[Instruction]:
    """Return the copies to shared memory that a GPU refuses as illegal instructions.

    If the address of a `cp.async` with a cache policy is a lane's part plus a uniform one, ptxas 13.0 encodes
    ``LDGSTS [R9+UR0+0x4000], desc[UR1][R94.64]``. An H100 and an H200 end such kernels with
    CUDA_ERROR_ILLEGAL_INSTRUCTION.
    """
    copies = (one for one in function.instructions if one.opcode.startswith("LDGSTS"))
    return [one for one in copies if _REFUSED.match(", ".join(one.operands))]


_MARKER = re.compile(r"#(?:line)?\s*(\d+)\s+\"([^\"]*)\"")
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")  # lines of the source, which would replace those of the PTX
_FILE = re.compile(r"^\s*\.file\s+(\d+)\s+\"([^\"]*)\"", re.MULTILINE)
_BODY = re.compile(r"\s*(?:\.(?:visible|weak|extern)\s+)*\.(?:entry|func)\b")
_VERSION = re.compile(r"^\s*\.version\s+(\d+)\.(\d+)", re.MULTILINE)
_TARGET = re.compile(r"^\s*\.target\s+sm_(\d+)([af]?)\b", re.MULTILINE)


def version_of(ptx: str) -> tools.Version:
    """Return the .version of a PTX text; (0, 0) if it has none."""
    found = _VERSION.search(ptx)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def targets(ptx: str, wanted: str) -> list[str]:
    """Return the targets that a PTX text can be assembled for so that a chip runs it, the likeliest first.

    Parameters
    ----------
    ptx : str
        The text. ptxas takes a target with a letter, such as sm_120a, for this very target alone.
    wanted : str
        The target that is preferred for the chip, such as "sm_120f" or "sm_90".

    """
    found = _TARGET.search(ptx)
    if found is None:
        return [wanted]
    own, number = f"sm_{found[1]}{found[2]}", int(found[1])
    chip = int(wanted.removeprefix("sm_").rstrip("af"))
    if number > chip or (found[2] and number != chip):
        message = f"the PTX has .target {own}, but the chip runs code for sm_{chip}"
        raise InvalidArgumentError(message)
    if found[2]:
        return [own]
    same = [own] if number == chip else []
    return list(dict.fromkeys([*same, wanted, f"sm_{chip}", f"sm_{chip}a"]))


def assemble(ptx: str, target: str, at: Path | None = None, most_registers: int = NO_LIMIT) -> bytes:
    """Return the cubin of a PTX text, with the lines of that text, whatever its line markers say.

    Needs a ptxas that reads the text's .version; ``at`` is one, instead of the first one found. ``most_registers`` is
    what it may give a thread.
    """
    limit = [f"-maxrregcount={most_registers}"] if most_registers < NO_LIMIT else []
    text = "\n".join("" if _MARKER.match(line) or _LOC.match(line) else line for line in ptx.splitlines())
    with tempfile.TemporaryDirectory() as folder:
        source, image = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(text + "\n", encoding="utf-8")
        at = at or tools.assemblers(version_of(ptx))[0]
        tools.run("ptxas", f"-arch={target}", "-lineinfo", *limit, source, "-o", image, at=at)
        return image.read_bytes()


def places(ptx: str) -> list[tuple[str, int]]:
    """Return the file and line that .loc or the line markers of a PTX text name, for each of its lines; else "".

    Of inlined code, .loc names the line of the function that was inlined.
    """
    files = {int(number): name for number, name in _FILE.findall(ptx)}
    found, file, number, located = [], "", 0, ("", 0)
    for line in ptx.splitlines():
        if marker := _MARKER.match(line):
            file, number = marker[2], int(marker[1]) - 1
        elif loc := _LOC.match(line):
            name = files.get(int(loc[1]), "") if int(loc[2]) else ""
            located = (name, int(loc[2])) if name else ("", 0)
        elif _BODY.match(line):
            located = ("", 0)
        found.append(located if located[0] else (file, number))
        number += 1
    return found
