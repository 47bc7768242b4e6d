"""What ptxas allocated for the kernels of a cubin, read from the file itself."""

import struct

_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2
# An attribute of .nv.info: format, code, size; this one holds a symbol and a count of registers.
_ATTRIBUTE = struct.Struct("<BBH")
_SIZED, _REGISTER_COUNT = 4, 0x2F


def _string(data: bytes, at: int) -> str:
    """Return the string that starts at an offset."""
    return data[at : data.index(b"\0", at)].decode("utf-8", "replace")


def registers(cubin: bytes) -> dict[str, int]:
    """Return the registers per thread of every function in a cubin, by its name."""
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [_SECTION_HEADER.unpack_from(cubin, start + i * size) for i in range(count)]
    section_names = sections[names_index][4]
    symbols: list[str] = []
    counts: dict[int, int] = {}
    for name, kind, _, _, offset, length, link, *_ in sections:
        body = cubin[offset : offset + length]
        if kind == _SYMBOL_TABLE:
            strings = sections[link][4]
            symbols = [_string(cubin, strings + entry[0]) for entry in _SYMBOL.iter_unpack(body)]
        elif _string(cubin, section_names + name) == ".nv.info":
            counts = _register_counts(body)
    return {symbols[index]: value for index, value in counts.items() if index < len(symbols)}


def _register_counts(body: bytes) -> dict[int, int]:
    """Return symbol: registers of a section .nv.info."""
    counts = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(body):
        form, code, size = _ATTRIBUTE.unpack_from(body, at)
        at += _ATTRIBUTE.size
        if form != _SIZED:
            continue
        if code == _REGISTER_COUNT:
            symbol, value = struct.unpack_from("<II", body, at)
            counts[symbol] = value
        at += size
    return counts
