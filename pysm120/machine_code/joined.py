"""One ELF file with the machine code of several cubins, so that nvdisasm starts once for all of them."""

import struct
from collections.abc import Mapping

_HEADER_BYTES = 64
_CODE, _SYMBOLS, _STRINGS, _PROPERTIES = 1, 2, 3, 0x70000000  # sh_type
_EXECUTABLE = 0x6  # sh_flags: SHF_ALLOC | SHF_EXECINSTR
_FUNCTION, _ENTRY = 0x12, 0x10  # st_info: a global function; st_other: a kernel
_ALIGNMENT = 128


class _Names:
    """A string table: names that end in a zero byte."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, name: str) -> int:
        """Add a name; return its offset."""
        offset = len(self.data)
        self.data += name.encode() + b"\0"
        return offset


def join(image: bytes, code: Mapping[str, tuple[bytes, bytes]]) -> bytes:
    """Return an ELF file that nvdisasm reads: for each kernel a section of code, one of properties, and a symbol.

    It has nothing that a driver needs: no registers, no parameters, no relocations, no line numbers.

    Parameters
    ----------
    image : bytes
        A cubin for the target. The file takes the target from its ELF header.
    code : mapping from str to two bytes
        By entry the machine code of each kernel, as ``Cubin.code`` returns it, and the targets of its indirect
        branches, as ``Cubin.indirect_branches`` does: nvdisasm refuses such a branch without them.

    """
    strings, section_names = _Names(), _Names()
    body = bytearray(_HEADER_BYTES)
    sections = [bytes(64)]
    symbols = bytearray(24)
    symbols_index = 2 * len(code) + 1

    def add(name: str, data: bytes, kind: int, flags: int = 0, link: int = 0, info: int = 0, entry: int = 0) -> None:
        body.extend(bytes(-len(body) % _ALIGNMENT))
        row = (section_names.add(name), kind, flags, 0, len(body), len(data), link, info, _ALIGNMENT, entry)
        sections.append(struct.pack("<IIQQQQIIQQ", *row))
        body.extend(data)

    for number, (entry, (instructions, branches)) in enumerate(code.items(), 1):
        index = 2 * number - 1
        symbols += struct.pack("<IBBHQQ", strings.add(entry), _FUNCTION, _ENTRY, index, 0, len(instructions))
        add(f".text.{entry}", instructions, _CODE, _EXECUTABLE, link=symbols_index, info=number)
        add(f".nv.info.{entry}", branches, _PROPERTIES, link=symbols_index, info=index)
    add(".symtab", bytes(symbols), _SYMBOLS, link=symbols_index + 1, info=1, entry=24)
    add(".strtab", strings.data, _STRINGS)
    # The table names itself too, which add() does once the data is evaluated.
    add(".shstrtab", section_names.data + b".shstrtab\0", _STRINGS)
    body.extend(bytes(-len(body) % 8))

    header = bytearray(image[:_HEADER_BYTES])
    struct.pack_into("<QQ", header, 32, 0, len(body))
    struct.pack_into("<HHHHH", header, 54, 0, 0, 64, len(sections), len(sections) - 1)
    body[:_HEADER_BYTES] = header
    return bytes(body) + b"".join(sections)
