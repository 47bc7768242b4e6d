"""Read the kernels of a template: the record of each, its parameters, and a PTX text that holds it alone.

What a template says of a kernel by note() is checked here, and every error names the template's line. The build writes
the records, parameters and constants as C (tools/tables.py); C and Python read them there.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from expand import Expansion, Line, Note, Place, TemplateError, marked

ENTRY = re.compile(r"\.visible \.entry (\w+)\(")
ANY_ENTRY = re.compile(r"\.entry\s+(\w+)")
PARAMETER = re.compile(r"\s*\.param (?:\.align (\d+) )?\.(\w+) (\w+)(?:\[(\d+)\])?([,)])")
SCALARS = {f"{kind}{bits}": bits // 8 for kind in "usb" for bits in (8, 16, 32, 64)} | {"f32": 4, "f64": 8}
PARAMETER_BYTES = 4096
SHARED_BYTES = 232448  # of a CTA on Hopper; 101376 on SM120


class Field(NamedTuple):
    """A field of a record: what it means, which values are right, and whether every kernel has it."""

    meaning: str
    values: range | tuple[str, ...] | type[str] | type[bool]
    is_needed: bool = False

    def complaint(self, value: object) -> str:
        """Say what is wrong with a value; "" where nothing is."""
        if isinstance(self.values, range):
            step = f", a multiple of {self.values.step}" if self.values.step > 1 else ""
            wanted = f"an int from {self.values.start} to {self.values[-1]}{step}"
            is_right = type(value) is int and value in self.values
        elif isinstance(self.values, tuple):
            wanted, is_right = f"one of {', '.join(self.values)}", value in self.values
        elif self.values is bool:
            wanted, is_right = "True or False", type(value) is bool
        else:
            wanted = "a word of small letters, digits and _"
            is_right = isinstance(value, str) and re.fullmatch(r"[a-z][a-z0-9_]*", value) is not None
        return "" if is_right else wanted


COUNT = range(1, 2**31)
# The order is that of struct kernel_record in src/runtime/kernels.h.
FIELDS = {
    "entry": Field("the kernel's name in PTX", str, is_needed=True),
    "operation": Field("what it computes; C finds kernels by it", str, is_needed=True),
    "parameters": Field("the C struct of its parameters, struct NAME_parameters", str, is_needed=True),
    "threads": Field("of a CTA", range(32, 1025, 32), is_needed=True),
    "shared": Field("dynamic shared memory of a CTA in bytes", range(SHARED_BYTES + 1), is_needed=True),
    "precision": Field(
        "of attention", ("bf16", "f16", "mxfp8", "mxfp8_bf16", "mxfp8_f16", "nvfp4", "nvfp4_mxfp8", "fp8")
    ),
    "dtype": Field("of the input's elements", ("f32", "f16", "bf16", "e4m3")),
    "element_bytes": Field("of a copied element", (range(1, 17))),
    "layout": Field("of the output", str),
    "config": Field("the name of this choice of tile and warps", str),
    "features": Field("whether it does more than tensors of one length and unchanged scores need", bool),
    "head_dim": Field("the head size that it is for; 0: any", range(1025)),
    "q_rows": Field("rows of a tile of queries", COUNT),
    "kv_rows": Field("rows of a tile of keys", COUNT),
    "key_groups": Field("groups of warps that hold the same rows and visit tiles of keys in turn", COUNT),
    "stages": Field("tiles of keys in flight", COUNT),
    "group_heads": Field("heads whose causal tiles take turns, at most", COUNT),
    "group_rows": Field("keys of those heads together, at most", COUNT),
    "q_warp_rows": Field("warps that share the rows of a tile's dQ", range(1, 33)),
    "ordered": Field("whether it can add up dQ in a fixed order", bool),
    "rows": Field("rows of the input that a CTA covers", COUNT),
    "columns": Field("columns of the input that a CTA covers", COUNT),
}


class Parameter(NamedTuple):
    """A parameter of a kernel. `group`: the struct inside the kernel's that it is a member of; "": none."""

    name: str
    type: str
    bytes: int
    alignment: int
    offset: int
    group: str


class Kernel(NamedTuple):
    """An entry: its record, its parameters, and PTX that holds no other one."""

    place: Place
    record: dict[str, Any]
    parameters: list[Parameter]
    text: str


class Template(NamedTuple):
    """What the build reads of a template, expanded for one target."""

    kernels: list[Kernel]
    constants: dict[str, tuple[Place, int]]
    files: list[str]


def read(template: Path, target: str) -> Template:
    """Expand a template and check what it says of its kernels; TemplateError where that is wrong."""
    expansion = Expansion(template, target)
    notes = checked(expansion.notes)
    bodies = entries(expansion.lines)
    declared = {entry for entry, _ in bodies}
    for entry, note in notes.items():
        if entry not in declared:
            raise TemplateError(note.place, f"note() of {entry}, which is not the entry of any kernel here")
    inside = {i for _, body in bodies for i in body}
    around = [i for i, line in enumerate(expansion.lines) if i not in inside and is_statement(line)]
    kernels = []
    for entry, body in bodies:
        place = expansion.lines[body[0]].place
        if entry not in notes:
            raise TemplateError(place, f"entry {entry} has no note()")
        text = marked([expansion.lines[i] for i in sorted({*around, *body})])
        kernels.append(Kernel(place, notes[entry].fields, parameters(expansion, body), text))
    require_one_list_each(kernels)
    return Template(kernels, expansion.constants, sorted({*expansion.files}))


def checked(notes: list[Note]) -> dict[str, Note]:
    """Check the fields of the notes; the notes by entry."""
    found: dict[str, Note] = {}
    fields_of: dict[str, Note] = {}
    for note in notes:
        for name, value in note.fields.items():
            if name not in FIELDS:
                raise TemplateError(note.place, f"note() has no field {name!r}; it has {', '.join(FIELDS)}")
            if wanted := FIELDS[name].complaint(value):
                raise TemplateError(note.place, f"note({name}={value!r}): {name} is {wanted}")
        missing = [name for name, field in FIELDS.items() if field.is_needed and name not in note.fields]
        if missing:
            raise TemplateError(note.place, f"note() lacks {missing[0]}: {FIELDS[missing[0]].meaning}")
        entry, operation = note.fields["entry"], note.fields["operation"]
        if entry in found:
            raise TemplateError(note.place, f"note() of {entry}, which line {found[entry].place.line} has noted")
        found[entry] = note
        same = fields_of.setdefault(operation, note)
        if different := sorted({*same.fields} ^ {*note.fields}):
            has = "has" if different[0] in note.fields else "lacks"
            message = f"note() of {entry} {has} {different[0]}, unlike that of {same.fields['entry']}: the kernels of "
            raise TemplateError(note.place, f"{message}{operation} have the same fields")
    return found


def is_statement(line: Line) -> bool:
    """Whether a line outside of kernels is more than a comment."""
    return bool(line.text) and not line.text.lstrip().startswith("//")


def entries(lines: list[Line]) -> list[tuple[str, range]]:
    """Find the kernels: each one's entry and the indices of its lines, which a line of `}` alone ends."""
    found: list[tuple[str, range]] = []
    i = 0
    while i < len(lines):
        start = ENTRY.match(lines[i].text)
        if start is None and is_statement(lines[i]) and ANY_ENTRY.search(lines[i].text):
            raise TemplateError(lines[i].place, "a kernel begins with `.visible .entry NAME(` in column 0")
        if start is None:
            i += 1
            continue
        end = next((j for j in range(i, len(lines)) if lines[j].text == "}"), None)
        if end is None:
            raise TemplateError(lines[i].place, f"entry {start[1]} is not closed by a line of `}}` alone")
        found.append((start[1], range(i, end + 1)))
        i = end + 1
    return found


def parameters(expansion: Expansion, body: range) -> list[Parameter]:
    """Read the .param lines of a kernel."""
    found: list[Parameter] = []
    offset, group = 0, ""
    if expansion.lines[body[0]].text.endswith("()"):
        return found
    for i in body[1:]:
        place, text = expansion.lines[i]
        group = expansion.groups.get(i, (place, group))[1]
        if not is_statement(expansion.lines[i]):
            continue
        match = PARAMETER.fullmatch(text)
        if match is None or match[2] not in SCALARS or not match[3].startswith("param_"):
            raise TemplateError(
                place, f"{text.strip()!r} is not `.param .TYPE param_NAME,` or `.align N .b8 param_NAME[N],`"
            )
        alignment, count = int(match[1] or SCALARS[match[2]]), int(match[4] or 1)
        size = SCALARS[match[2]] * count
        offset = -(-offset // alignment) * alignment
        if offset + size > PARAMETER_BYTES:
            raise TemplateError(
                place, f"{match[3]} ends at byte {offset + size}; a kernel has {PARAMETER_BYTES} of parameters"
            )
        kind = match[2] + (f"[{count}]" if match[4] else "")
        found.append(Parameter(match[3].removeprefix("param_"), kind, size, alignment, offset, group))
        offset += size
        if match[5] == ")":
            break
    return found


def require_one_list_each(kernels: list[Kernel]) -> None:
    """Check that kernels whose records name the same struct have the same parameters."""
    found: dict[str, Kernel] = {}
    for kernel in kernels:
        name = kernel.record["parameters"]
        same = found.setdefault(name, kernel)
        if kernel.parameters != same.parameters:
            pairs = zip([*kernel.parameters, None], [*same.parameters, None], strict=False)
            one, other = next((a, b) for a, b in pairs if a != b)
            message = f"{kernel.record['entry']} has {one.name if one else 'no more'} where {same.record['entry']}, "
            message += f"with parameters={name!r} too, has {other.name if other else 'no more'}"
            raise TemplateError(kernel.place, message)
