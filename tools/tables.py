"""Write the records of the templates as C: constants, structs of parameters, records, images."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from records import FIELDS, Parameter

CODES = {  # of src/sm120.h
    "precision": {
        "bf16": "SM120_BF16",
        "f16": "SM120_F16",
        "mxfp8": "SM120_MXFP8",
        "mxfp8_bf16": "SM120_MXFP8_BF16",
        "mxfp8_f16": "SM120_MXFP8_F16",
        "nvfp4": "SM120_NVFP4",
        "nvfp4_mxfp8": "SM120_NVFP4_MXFP8",
        "fp8": "SM120_FP8",
    },
    "dtype": {"f32": "SM120_F32", "f16": "SM120_F16", "bf16": "SM120_BF16", "e4m3": "SM120_E4M3"},
}
SCALARS = {"f32": "float", "f64": "double"} | {
    f"{kind}{bits}": f"{'' if kind == 's' else 'u'}int{bits}_t" for kind in "usb" for bits in (8, 16, 32, 64)
}
TENSOR_MAP = ("b8[128]", 64)
WRITTEN = "/* Written by tools/build.py from the templates: do not edit. */\n"


class Image(NamedTuple):
    """The place of an image: its block, and its offset and size in the block."""

    block: int
    at: int
    size: int


class Entry(NamedTuple):
    """A kernel of the library. `images` are the PTX and the cubin of each target."""

    source: str
    record: Mapping[str, Any]
    registers: Mapping[str, int]
    images: Mapping[str, Image]


def constants(values: Mapping[str, int]) -> str:
    """Write constants.h."""
    lines = [WRITTEN, "#ifndef SM120_GENERATED_CONSTANTS_H", "#define SM120_GENERATED_CONSTANTS_H", "", "enum {"]
    lines += [f"    {name} = {value}," for name, value in values.items()]
    return "\n".join([*lines, "};", "", "#endif", ""])


def member(parameter: Parameter) -> str:
    """Declare a parameter as a member of a struct."""
    kind, _, count = parameter.type.partition("[")
    if (parameter.type, parameter.alignment) == TENSOR_MAP:
        return f"_Alignas(64) CUtensorMap {parameter.name};"
    if count:
        return f"_Alignas({parameter.alignment}) {SCALARS[kind]} {parameter.name}[{count};"
    return f"{SCALARS[kind]} {parameter.name};"


def struct(name: str, parameters: Iterable[Parameter]) -> list[str]:
    """Write a struct of parameters; each group in it is a struct of its own, which is written before."""
    lines, seen = [f"struct {name}_parameters {{"], {""}
    for parameter in parameters:
        if parameter.group and parameter.group not in seen:
            lines.append(f"    struct {parameter.group}_parameters {parameter.group};")
        elif not parameter.group:
            lines.append(f"    {member(parameter)}")
        seen.add(parameter.group)
    return [*lines, "};"]


def groups(lists: Mapping[str, list[Parameter]]) -> dict[str, list[tuple[str, str]]]:
    """Collect the members of the groups; ValueError if a group has different members in two kernels."""
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    for name, parameters in lists.items():
        for group in dict.fromkeys(p.group for p in parameters if p.group):
            members = [(member(p), p.name) for p in parameters if p.group == group]
            first, same = found.setdefault(group, (name, members))
            if members != same:
                raise ValueError(f"group {group!r} has other parameters in {name} than in {first}")
    return {group: members for group, (_, members) in found.items()}


def parameters(lists: Mapping[str, list[Parameter]]) -> str:
    """Write parameters.h: a struct for each list of parameters, with the layout of the kernel's parameters."""
    lines = [WRITTEN, "#ifndef SM120_GENERATED_PARAMETERS_H", "#define SM120_GENERATED_PARAMETERS_H", ""]
    lines += ["#include <stddef.h>", "#include <stdint.h>", "", '#include "driver/driver.h"']
    lines += ['#include "runtime/kernels.h"', ""]
    lines += [f"enum {{ KERNEL_PARAMETERS_MAX = {max(map(len, lists.values()))} }};", ""]
    for group, members in groups(lists).items():
        lines += [f"struct {group}_parameters {{", *(f"    {text}" for text, _ in members), "};", ""]
    for name, items in lists.items():
        lines += [*struct(name, items), f"extern const struct parameter_list {name}_list;"]
        for p in items:
            place = f"{p.group}.{p.name}" if p.group else p.name
            check = f"offsetof(struct {name}_parameters, {place}) == {p.offset}"
            lines.append(f'_Static_assert({check}, "as the kernel has it");')
        lines.append("")
    cases = [f"    {const}struct {name}_parameters *: &{name}_list" for name in lists for const in ("", "const ")]
    lines += ["/* The list that a struct of parameters belongs to, by a pointer to one. */"]
    lines += ["#define PARAMETER_LIST(p) _Generic((p), \\", ", \\\n".join(cases) + ")", "", "#endif", ""]
    return "\n".join(lines)


def shorter(name: str, lists: Mapping[str, list[Parameter]]) -> str | None:
    """Name the longest other list that a list begins with."""
    own = lists[name]
    found = [other for other, items in lists.items() if len(items) < len(own) and items == without_groups(own, items)]
    return max(found, key=lambda other: len(lists[other]), default=None)


def without_groups(own: list[Parameter], items: list[Parameter]) -> list[Parameter]:
    """Return the beginning of a list, as long as another list and with its groups, for a comparison without groups."""
    return [a._replace(group=b.group) for a, b in zip(own, items, strict=False)]


def kernels(
    lists: Mapping[str, list[Parameter]],
    entries: Iterable[Entry],
    blocks: Iterable[tuple[int, int]],
    values: Mapping[str, int],
) -> str:
    """Write kernels.c: the tables of src/runtime/kernels.h. `blocks`: bytes of each, compressed and not."""
    out = [WRITTEN, '#include "runtime/kernels.h"', '#include "generated/parameters.h"', '#include "sm120.h"', ""]
    for name, items in lists.items():
        out += [f"static const struct parameter {name}_items[] = {{"]
        out += [f'    {{{p.offset}, {p.bytes}, "{p.type}", "param_{p.name}"}},' for p in items]
        less = shorter(name, lists)
        out += ["};", f"const struct parameter_list {name}_list = {{"]
        out += [f"    {name}_items, {len(items)}, {f'&{less}_list' if less else 'NULL'}", "};", ""]
    rows, entries = list[str](), list(entries)
    for entry in entries:
        fields = [f'.source = "{entry.source}"']
        fields += [f".{name} = {value(name, entry.record[name])}" for name in FIELDS if name in entry.record]
        fields += [f".registers_{suffix} = {count}" for suffix, count in entry.registers.items()]
        fields += [f".{name} = {{{', '.join(map(str, image))}}}" for name, image in entry.images.items()]
        rows.append("{" + ",\n     ".join(fields) + "}")
    out += table("kernel_record", rows)
    out += operations([str(entry.record["operation"]) for entry in entries])
    rows, at = [], 0
    for packed_bytes, size in blocks:
        rows.append(f"{{{at}, {packed_bytes}, {size}}}")
        at += packed_bytes
    out += table("kernel_block", rows)
    out += table("kernel_constant", [f'{{"{name}", {number}}}' for name, number in values.items()])
    return "\n".join(out)


def operations(names: list[str]) -> list[str]:
    """Write the numbers of the records by operation, and where those of each operation are; ``names``: of each."""
    order = sorted(range(len(names)), key=lambda i: names[i])
    of_operation = [names[i] for i in order]
    rows = [f'{{"{name}", {of_operation.index(name)}, {names.count(name)}}}' for name in sorted(set(names))]
    numbers = "\n".join(f"    {i}," for i in order)
    return [f"const uint32_t kernel_order[] = {{\n{numbers}\n}};", *table("kernel_operation", rows)]


def table(name: str, rows: list[str]) -> list[str]:
    """Write an array and its length."""
    lines = [f"const struct {name} {name}s[] = {{", *(f"    {row}," for row in rows), "};"]
    return [*lines, f"const uint32_t {name}_count = {len(rows)};", ""]


def value(name: str, given: object) -> str:
    """Write a field's value in C."""
    if name in CODES:
        return CODES[name][str(given)]
    if name == "parameters":
        return f"&{given}_list"
    if isinstance(given, str):
        return f'"{given}"'
    return str(given).lower()


def images(path: Path, system: str) -> str:
    """Write the assembly that embeds the bytes of a file as kernel_images, for linux, windows or macos."""
    quoted = str(path).replace("\\", "\\\\").replace('"', '\\"')
    name = "_kernel_images" if system == "macos" else "kernel_images"
    section = {"windows": '.section .rdata, "dr"', "macos": ".section __TEXT,__const"}.get(system, ".section .rodata")
    before = {"windows": [], "macos": [f".private_extern {name}"]}.get(system, [f".hidden {name}"])
    after = []
    if system == "linux":
        before.append(f".type {name}, %object")
        after = [f".size {name}, . - {name}", '.section .note.GNU-stack, "", %progbits']
    lines = [section, f".globl {name}", *before, ".balign 16", f"{name}:", f'.incbin "{quoted}"', *after]
    return "\n".join(["/* Written by tools/build.py: do not edit. */", *lines, ""])
