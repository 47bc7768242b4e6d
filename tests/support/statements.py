"""The statements of PTX files, each once, in a form that stands alone: what its operands name is declared beside it."""

import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import NamedTuple

HEAD = ".version 9.0\n.target sm_120f\n.address_size 64\n"
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
DECLARATION = re.compile(r"\.reg\s+\.(\w+)\s+([^;)]*?)\s*[;)]")
STATEMENT = re.compile(r"(?:[{}] |[\w$%]+: )*(?:@!?[\w%$]+ )?([a-z]\w*(?:\.[\w:]+)+)(?: (.*))?")
NAME = re.compile(r"(?<![\w.%$])[A-Za-z_%$][\w$]*")
# Special registers, `_`, and float constants as 0f3F800000, whose 0 is not part of a name.
NOT_DECLARED = re.compile(
    r"_|%(tid|ctaid|ntid|nctaid|laneid|warpid|nwarpid|clock|lanemask|smid|nsmid|globaltimer|cluster|is_|dynamic|total|"
    r"gridid|aggr|envreg|pm\d|current).*"
)
JUMPS = {"call", "ret", "bra", "brx"}


class Statement(NamedTuple):
    """A statement without its guard: opcode with modifiers, operands, and the declarations of what they name."""

    opcode: str
    operands: str
    outer: str
    inner: str

    def function(self, number: int, opcode: str) -> str:
        """Write a function with this statement under another opcode, on one line."""
        text = f"{self.outer}.visible .func f{number}() {{ {self.inner}{opcode} {self.operands}; ret; }}"
        return re.sub(r"\bVARIABLE(\d+)\b", rf"v{number}_\1", text)

    def entry(self, opcode: str) -> str:
        """Write a kernel with this statement under another opcode."""
        return self.function(0, opcode).replace(".func", ".entry", 1)


def registers(body: str) -> dict[str, str]:
    """Return the types of the registers that a function declares; a range r<4> stands as r*."""
    types = {}
    for kind, names in DECLARATION.findall(body):
        for name in names.split(","):
            plain = name.split()[-1]
            types[re.sub(r"<\d+>$", "*", plain)] = kind
    return types


def kind_of(name: str, types: dict[str, str]) -> str | None:
    """Return the type of a register."""
    ranges = (name[:k] + "*" for k in range(len(name) - 1, 0, -1) if name[k:].isdigit())
    return types.get(name) or next((types[x] for x in ranges if x in types), None)


def statements(text: str, known: Container[str] = ()) -> Iterator[Statement]:
    """Yield the statements of a module, except jumps, those on parameters and those whose opcodes are known."""
    for body in re.split(r"(?=\.(?:entry|func)\b)", COMMENT.sub("", text)):
        types = registers(body)
        for line in body.split(";"):
            match = STATEMENT.fullmatch(" ".join(line.split()))
            if match is None or match[1] in known or match[1].split(".")[0] in JUMPS or ".param" in match[1]:
                continue
            opcode, operands = match[1], match[2] or ""
            space = ".const" if ".const" in opcode else ".global" if ".global" in opcode else ".shared"
            inner, outer = "", ""
            for number, name in enumerate(sorted({x for x in NAME.findall(operands) if not NOT_DECLARED.fullmatch(x)})):
                kind = kind_of(name, types)
                if kind is not None:
                    inner += f".reg .{kind} {name}; "
                    continue
                operands = re.sub(rf"(?<![\w$%]){re.escape(name)}(?![\w$])", f"VARIABLE{number}", operands)
                if ".shared" in opcode or space == ".shared":
                    inner += f".shared .align 128 .b8 VARIABLE{number}[4096]; "
                else:
                    outer += f"{space} .align 128 .b8 VARIABLE{number}[4096]; "
            # offsets within the variable
            operands = re.sub(r"(VARIABLE\d+ ?\+ ?)(\d+)", lambda m: m[1] + str(int(m[2]) % 2048), operands)
            yield Statement(opcode, operands, outer, inner)


def distinct(files: list[Path]) -> list[Statement]:
    """Return one statement for each opcode with modifiers."""
    found: dict[str, Statement] = {}
    for file in files:
        for statement in statements(file.read_text(), found):
            found.setdefault(statement.opcode, statement)
    return list(found.values())
