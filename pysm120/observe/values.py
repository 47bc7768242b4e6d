"""Registers of a warp as text, in hexadecimal and by type. Equal lanes and lanes in equal steps are merged."""

import itertools
import re

import numpy as np
import numpy.typing as npt

from pysm120.observe.watch import BYTES, Instruction, Register, Step, as_type, lanes_of

MOST_RUNS = 4
LANES = 32
FEWEST_LANES = 3  # that make a sequence
SMALL = 10  # smaller numbers are the same in decimal and hexadecimal
LARGE = 1 << 16  # larger sequences are written in hexadecimal
ADDRESS = 1 << 32  # larger numbers are probably addresses, written in hexadecimal only
TINY, HUGE = 1e-9, 1e9  # untyped bits with an absolute f32 value in this range are shown as f32
PAIRS = {"f16x2": "f16", "bf16x2": "bf16"}
_BASE = re.compile(r"\[\s*([%$\w.]+)")
_ADDRESS = re.compile(r"\[\s*([%$\w.]+)\s*(?:\+\s*(-?\w+)\s*)?\]")


def type_of(register: Register, instruction: Instruction) -> str:
    """Return the type to show a register as: the declared one, or for .bN the instruction's type of that size.

    A written register takes the first such type of the opcode, a read one the last. A register between brackets
    is an address.
    """
    if register.type[0] != "b" or register.type.startswith("bf") or register.name in _BASE.findall(instruction.text):
        return register.type
    size = BYTES[register.type]
    words = instruction.opcode.split(".")
    types = [word for word in words[1:] if BYTES.get(word) == size and word[0] != "b"]
    if not types or words[0] in {"mma", "cvta"} or "wide" in words:
        return register.type
    return types[0 if register.is_write else -1]


def value_text(bits: int, high: int, kind: str) -> str:
    """Return one value as text: "7", "0x1f=31", "0x3f800000=1.0"; untyped bits: "0x3f800000~1"."""
    if kind == "pred":
        return str(bits & 1)
    size = BYTES.get(kind, 8)
    if kind == "b128":
        return f"0x{high:016x}{bits:016x}"
    bits &= (1 << 8 * size) - 1
    if kind in PAIRS:
        pair = as_type(np.array([bits & 0xFFFF, bits >> 16], np.uint64), PAIRS[kind]).tolist()
        return f"0x{bits:08x}=({float(pair[0]):g},{float(pair[1]):g})"
    value = as_type(np.array([bits], np.uint64), kind)[0]
    if "f" in kind:
        return f"0x{bits:0{2 * size}x}={value!s}"
    return untyped_text(bits) if kind == "b32" and bits >= LARGE else number_text(bits, int(value))


def number_text(bits: int, value: int) -> str:
    """Return an integer in decimal and hexadecimal, or in one of them if the other adds nothing."""
    if 0 <= value < SMALL:
        return str(value)
    return f"0x{bits:x}" if value >= ADDRESS else f"0x{bits:x}={value}"


def untyped_text(bits: int) -> str:
    """Return untyped 32 bits, also as f32 if that is a likely number."""
    number = float(as_type(np.array([bits], np.uint64), "f32")[0])
    return f"0x{bits:08x}~{number:.6g}" if TINY < abs(number) < HUGE else f"0x{bits:08x}"


def _sequence(values: list[int], lanes: list[int], kind: str) -> str:
    """Return "0..31" or "0x100..0x17c step 4" if the values are such a sequence, else ""."""
    contiguous = lanes == list(range(lanes[0], lanes[0] + len(lanes)))
    if not contiguous or len(lanes) < FEWEST_LANES or kind not in BYTES or "f" in kind or kind in {"pred", "b128"}:
        return ""
    if kind[0] != "s":
        values = [value & ((1 << 8 * BYTES[kind]) - 1) for value in values]
    step = values[1] - values[0]
    if step == 0 or any(b - a != step for a, b in itertools.pairwise(values)):
        return ""
    is_large = max(values[0], values[-1]) >= LARGE
    first, last = (hex(v) if is_large else str(v) for v in (values[0], values[-1]))
    return f"{first}..{last}" + (f" step {step}" if step != 1 else "")


def _runs(texts: list[str], lanes: list[int]) -> list[tuple[int, int, str]]:
    """Return (first lane, last lane, text) of runs of equal lanes."""
    runs: list[tuple[int, int, str]] = []
    for lane, value in zip(lanes, texts, strict=True):
        if runs and runs[-1][2] == value and runs[-1][1] == lane - 1:
            runs[-1] = (runs[-1][0], lane, value)
        else:
            runs.append((lane, lane, value))
    return runs


def lane_texts(register: Register, kind: str, mask: int) -> list[str]:
    """Return the value of each lane of a set."""
    return [value_text(int(register.bits[lane]), int(register.high[lane]), kind) for lane in lanes_of(mask)]


def register_text(register: Register, kind: str, mask: int) -> str:
    """Return the values of a register in a set of lanes as text; equal lanes are merged."""
    lanes = lanes_of(mask)
    if not lanes:
        return "-"
    texts = lane_texts(register, kind, mask)
    if len(set(texts)) == 1:
        return texts[0]
    sequence = _sequence([int(v) for v in as_type(register.bits, kind)[lanes]], lanes, kind) if "f" not in kind else ""
    return sequence or runs_text(texts, lanes)


def runs_text(texts: list[str], lanes: list[int]) -> str:
    """Return "{0-15: 1, 16-31: 2}", cut after a few."""
    runs = _runs(texts, lanes)
    shown = [f"{a}: {value}" if a == b else f"{a}-{b}: {value}" for a, b, value in runs[:MOST_RUNS]]
    return "{" + ", ".join(shown + ["..."] * (len(runs) > MOST_RUNS)) + "}"


def addresses(step: Step) -> list[tuple[str, npt.NDArray[np.uint64]]]:
    """Return the addresses by lane of a step's operands in brackets whose base is a register or a variable."""
    registers = {register.name: register for register in step.reads}
    found = []
    for match in _ADDRESS.finditer(step.instruction.text):
        base, variable = registers.get(match[1]), step.variables.get(match[1])
        if base is None and variable is None:
            continue
        offset = int(match[2], 0) if match[2] else 0
        size = 8 if base is None else BYTES.get(base.type, 8)
        values = [variable or 0] * LANES if base is None else base.bits.tolist()
        bits = [(value + offset) & ((1 << 8 * size) - 1) for value in values]
        found.append((re.sub(r"\s", "", match[0]), np.array(bits, np.uint64)))
    return found


def address_text(values: npt.NDArray[np.uint64], mask: int) -> str:
    """Return addresses by lane."""
    lanes = lanes_of(mask)
    if not lanes:
        return "-"
    texts = [hex(int(values[lane])) for lane in lanes]
    if len(set(texts)) == 1:
        return texts[0]
    numbers = [int(values[lane]) for lane in lanes]
    step = numbers[1] - numbers[0]
    in_steps = all(b - a == step for a, b in itertools.pairwise(numbers))
    if in_steps and lanes == list(range(lanes[0], lanes[0] + len(lanes))) and len(lanes) >= FEWEST_LANES:
        return f"{texts[0]}..{texts[-1]} step {step}"
    return runs_text(texts, lanes)
