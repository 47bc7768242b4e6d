"""Properties of the kernels in a cubin, read from the ELF sections that ptxas writes for the driver."""

import dataclasses
import struct

from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.names import demangled

_CUDA = 190  # e_machine
_RESERVED = 1024  # reserved at the start of a CTA's shared memory from sm_90 on; ptxas includes it in its figure
# Records of .nv.info: the first byte is the format of the value, the second its meaning.
_IN_RECORD = (0x01, 0x02, 0x03)
_SIZED = 0x04
_HALF = 0x03  # the value is in the record, 16 bits
_MOST_REGISTERS = 0x1B
NO_LIMIT = 255  # registers that a thread may have at most
_REGISTERS, _FRAME, _MAX_THREADS, _REQUIRED_THREADS, _INDIRECT = 0x2F, 0x11, 0x05, 0x10, 0x34
_PARAMETER, _PARAMETERS = 0x17, 0x0A


@dataclasses.dataclass(frozen=True)
class Entry:
    """A kernel of a cubin.

    ``threads`` is .reqntid or .maxntid, 0 if the kernel has neither; ``fixed`` says that it is .reqntid.
    ``frame_bytes`` is local memory per thread.
    """

    name: str
    registers: int
    static_shared_bytes: int
    threads: int
    frame_bytes: int
    fixed: bool = False


@dataclasses.dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    data: bytes
    size: int
    info: int


class Cubin:
    """A cubin: its target and its kernels.

    Parameters
    ----------
    image : bytes
        The file.

    """

    def __init__(self, image: bytes) -> None:
        if image[:4] != b"\x7fELF" or len(image) < 64 or struct.unpack_from("<H", image, 18)[0] != _CUDA:  # noqa: PLR2004
            message = f"the image of {len(image)} bytes is not a cubin: it has no header of an ELF file for CUDA"
            raise InvalidArgumentError(message)
        try:
            self._read(image)
        except (struct.error, LookupError, ValueError, OverflowError) as error:
            message = f"the cubin of {len(image)} bytes is cut off or damaged: {error}"
            raise InvalidArgumentError(message) from error

    def _read(self, image: bytes) -> None:
        start, flags = struct.unpack_from("<Q", image, 40)[0], struct.unpack_from("<I", image, 48)[0]
        count, names = struct.unpack_from("<HH", image, 60)
        # An ABI of 8 has the target in bits 8 to 15, older ones in bits 0 to 7.
        self.target = flags >> 8 & 0xFF if image[8] >= 8 else flags & 0xFF  # noqa: PLR2004
        raw = [struct.unpack_from("<IIQQQQIIQQ", image, start + 64 * i) for i in range(count)]
        table = image[raw[names][4] : raw[names][4] + raw[names][5]]
        self._sections = [
            _Section(
                table[r[0] : table.index(b"\0", r[0])].decode(),
                r[1],
                image[r[4] : r[4] + r[5]] if r[1] != 8 else b"",  # noqa: PLR2004 - SHT_NOBITS has no bytes
                r[5],
                r[7],
            )
            for r in raw
        ]
        self.entries = tuple(self._entries())

    def _entries(self) -> list[Entry]:
        sections = {section.name: section for section in self._sections}
        names = self._names = self._symbols(sections)
        whole = list(_records(sections[".nv.info"].data)) if ".nv.info" in sections else []

        def of(attribute: int, name: str) -> int:
            for found, value in whole:
                if found == attribute:
                    symbol, number = struct.unpack("<II", value[:8])
                    if names.get(symbol) == name:
                        return int(number)
            return 0

        entries = []
        for section in self._sections:
            if not section.name.startswith(".text."):
                continue
            name = section.name.removeprefix(".text.")
            info = sections.get(f".nv.info.{name}")
            if info is None:
                continue
            threads, fixed = 0, False
            for found, value in _records(info.data):
                if found in {_MAX_THREADS, _REQUIRED_THREADS}:
                    x, y, z = struct.unpack("<III", value[:12])
                    threads, fixed = x * y * z, fixed or found == _REQUIRED_THREADS
            shared = sections.get(f".nv.shared.{name}")
            static = max(0, shared.size - _RESERVED) if shared else 0
            entries.append(Entry(name, of(_REGISTERS, name), static, threads, of(_FRAME, name), fixed))
        return entries

    @staticmethod
    def _symbols(sections: dict[str, _Section]) -> dict[int, str]:
        table, text = sections[".symtab"].data, sections[".strtab"].data
        names = {}
        for i in range(len(table) // 24):
            at = struct.unpack_from("<I", table, 24 * i)[0]
            names[i] = text[at : text.index(b"\0", at)].decode()
        return names

    def entry(self, name: str | None) -> Entry:
        """Return an entry by its name or a part of it, mangled or not; without a name, the only entry."""
        exact = [entry for entry in self.entries if name == entry.name]
        found = exact or [
            entry for entry in self.entries if name is None or name in entry.name or name in demangled(entry.name)
        ]
        if name is not None and len(found) > 1:
            both = ", ".join(demangled(entry.name) for entry in found)
            message = f"the kernel is {name!r}, which is a part of several names: {both}"
            raise InvalidArgumentError(message)
        if name is None and len(found) > 1:
            there = ", ".join(demangled(entry.name) for entry in found)
            message = f"the cubin has {len(found)} kernels, and none is named: {there}"
            raise InvalidArgumentError(message)
        if len(found) != 1:
            there = ", ".join(demangled(entry.name) for entry in self.entries) or "none"
            message = f"the kernel is {name!r}, which the cubin does not have; it has {there}"
            raise InvalidArgumentError(message)
        return found[0]

    def symbols(self, name: str) -> list[int]:
        """Return the indices of the symbols with a name."""
        return [index for index, found in self._names.items() if found == name]

    def code(self, name: str) -> bytes:
        """Return the machine code of an entry."""
        return next(section.data for section in self._sections if section.name == f".text.{name}")

    def constants(self, name: str, bank: int) -> bytes:
        """Return what a constant bank of an entry holds."""
        wanted = f".nv.constant{bank}.{name}"
        return next((section.data for section in self._sections if section.name == wanted), b"")

    def parameters(self, name: str) -> list[tuple[int, int]]:
        """Return the offset and the bytes of each parameter of an entry, in their order."""
        found = [struct.unpack("<IHHI", value) for value in self._attributes(name, _PARAMETER)]
        return [(offset, flags >> 18) for _, _, offset, flags in sorted(found, key=lambda row: row[1])]

    def first_parameter(self, name: str) -> int:
        """Return the place of the first parameter of an entry in constant bank 0."""
        return next((struct.unpack("<IHH", value)[1] for value in self._attributes(name, _PARAMETERS)), 0)

    def _attributes(self, name: str, wanted: int) -> list[bytes]:
        """Return the values of an attribute of an entry."""
        info = next(section.data for section in self._sections if section.name == f".nv.info.{name}")
        return [value for attribute, value in _records(info) if attribute == wanted]

    def most_registers(self, name: str) -> int:
        """Return the registers that ptxas was allowed for an entry, by .maxnreg or -maxrregcount; NO_LIMIT is 255."""
        return next((int.from_bytes(value, "little") for value in self._attributes(name, _MOST_REGISTERS)), NO_LIMIT)

    def indirect_branches(self, name: str) -> bytes:
        """Return the records of .nv.info that hold the targets of the indirect branches of an entry."""
        found = self._attributes(name, _INDIRECT)
        return b"".join(struct.pack("<BBH", _SIZED, _INDIRECT, len(value)) + value for value in found)


def _records(data: bytes) -> list[tuple[int, bytes]]:
    """Return the attributes of a .nv.info section and their values."""
    found, at = [], 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _SIZED:
            found.append((attribute, data[at : at + size]))
            at += size
        elif form == _HALF:
            found.append((attribute, data[at - 2 : at]))
        elif form not in _IN_RECORD:
            break
    return found
