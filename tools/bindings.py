"""Write bindings of other languages from src/sm120.h, so that they cannot drift.

    python tools/bindings.py [--check]

It writes bindings/rust/sm120-sys/src/lib.rs. With --check it only says whether the file is up to date.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import cffi

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "src" / "sm120.h"
RUST = ROOT / "bindings" / "rust" / "sm120-sys" / "src" / "lib.rs"

PLAIN = {
    "int32_t": "i32",
    "uint32_t": "u32",
    "int64_t": "i64",
    "uint64_t": "u64",
    "uint8_t": "u8",
    "size_t": "usize",
    "float": "f32",
    "double": "f64",
    "char": "c_char",
    "void": "c_void",
}
WIDTH = 100  # of a line
SIGNED = ("SM120_OF_",)  # constants that functions take as int32_t, beside statuses
HEAD = """\
//! Declarations of libsm120, written by tools/bindings.py from sm120.h. That header has the documentation.
#![no_std]
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(non_camel_case_types)]

use core::ffi::{c_char, c_void};
"""
SIZED = "            size: core::mem::size_of::<Self>() as u32,\n"
DEFAULT = """\
impl Default for NAME {
    /// Zeros.
    fn default() -> Self {
        // SAFETY: every member is a number, a pointer, an Option of a function, or an array or struct of these.
        VALUE
    }
}
"""


def declarations(header: str) -> str:
    """Return the part of the header that cffi reads, without comments."""
    text = header.partition("/* cffi: begin */")[2].partition("/* cffi: end */")[0]
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).replace("SM120_API", "")


def rust_type(kind: Any, declared: str) -> str:
    """Return the type of a member in Rust. cffi knows sizes; `const` stands only in its declaration."""
    if kind.kind == "function":
        result, inside = re.findall(r"^(.*)\(\*\w+\)\((.*)\)$", declared, re.DOTALL)[0]
        arguments = ", ".join(c_type(re.sub(r"\w+\s*$", "", x)) for x in inside.split(","))
        return f'Option<unsafe extern "C" fn({arguments}) -> {c_type(result)}>'
    if kind.kind == "pointer":
        constness = "const" if "const" in declared.split() else "mut"
        return f"*{constness} {rust_type(kind.item, '')}"
    if kind.kind == "array":
        return f"[{rust_type(kind.item, declared)}; {kind.length}]"
    name = str(kind.cname).removeprefix("struct ")
    return PLAIN.get(name, name)


def spelled(name: str) -> str:
    """Return a name that Rust does not take for a keyword."""
    return f"r#{name}" if name in {"box", "type"} else name


def c_type(text: str) -> str:
    """Return a parameter's type, as C writes it, in Rust: `const void *const *` is *const *const c_void."""
    words = re.findall(r"\w+|\*", text)
    base: str = next(word for word in words if word not in {"const", "*"})
    made: str = PLAIN.get(base, base)
    is_const = "const" in words[: words.index("*") if "*" in words else None]
    for at, word in enumerate(words):
        if word == "*":
            made = f"*{'const' if is_const else 'mut'} {made}"
            is_const = words[at + 1 : at + 2] == ["const"]
    return made


def functions(text: str) -> list[str]:
    """Declare the functions."""
    made = []
    for result, name, inside in re.findall(r"^ *((?:const )?\w+ \*?)(sm120_\w+)\(([^()]*)\);", text, re.MULTILINE):
        parameters = []
        for parameter in [] if inside.strip() == "void" else inside.split(","):
            kind, called, dimension = re.findall(r"^\s*(.*?[\s*])(\w+)(\[\d+\])?\s*$", parameter, re.DOTALL)[0]
            parameters.append(f"{spelled(called)}: {c_type(kind + ('*' if dimension else ''))}")
        returned = c_type(result)
        one = f"    pub fn {name}({', '.join(parameters)}) -> {returned};"
        if len(one) > WIDTH:
            rows = "".join(f"        {parameter},\n" for parameter in parameters)
            one = f"    pub fn {name}(\n{rows}    ) -> {returned};"
        made.append(one)
    return made


def rust(header: str) -> str:
    """Return the Rust declarations of a header."""
    text = declarations(header)
    ffi: Any = cffi.FFI()
    ffi.cdef(text)
    parts = [HEAD]
    for name, value in re.findall(r"^#define (SM120_VERSION_M\w+|SM120_VERSION_PATCH) (\d+)$", header, re.MULTILINE):
        parts.append(f"pub const {name}: i32 = {value};")
    parts.append("")
    for base, star, name in re.findall(r"^typedef (\w+) (\*?)(sm120_\w+);", text, re.MULTILINE):
        parts.append(f"pub type {name} = {'*mut ' if star else ''}{PLAIN.get(base, base)};")
    parts.append("")
    statuses = re.search(r"sm120_status;\s*enum \{(.*?)\};", text, re.DOTALL)
    of_status = set(re.findall(r"\b(SM120_\w+) =", statuses[1] if statuses else ""))
    library: Any = ffi.dlopen(None)
    for name in re.findall(r"\b(SM120_\w+) =", text):
        kind = "sm120_status" if name in of_status else "i32" if name.startswith(SIGNED) else "u32"
        parts.append(f"pub const {name}: {kind} = {getattr(library, name)};")
    parts.append("")
    for name in re.findall(r"^typedef struct \w+ (sm120_\w+);", text, re.MULTILINE):
        parts += ["#[repr(C)]", f"pub struct {name} {{", "    _opaque: [u8; 0],", "}", ""]
    sizes = []
    for name in re.findall(r"^\} (sm120_\w+);", text, re.MULTILINE):
        kind = ffi.typeof(name)
        statements = re.findall(r"[^;]+", re.findall(rf"\{{([^}}]*)\}} {name};", text)[0])
        of = {member: x.strip() for member, _ in kind.fields for x in statements if re.search(rf"\b{member}\b", x)}
        members = [f"    pub {spelled(member)}: {rust_type(field.type, of[member])}," for member, field in kind.fields]
        parts += ["#[repr(C)]", "#[derive(Clone, Copy)]", f"pub struct {name} {{", *members, "}", ""]
        zeros = "unsafe { core::mem::zeroed() }"
        if kind.fields[0][0] == "size":
            zeros = f"let zeros: Self = {zeros};\n        Self {{\n{SIZED}            ..zeros\n        }}"
        made = DEFAULT.replace("NAME", name).replace("VALUE", zeros)
        parts.append(made.replace("/// Zeros.", "/// Zeros, with its size.") if "size_of" in zeros else made)
        sizes.append(f"    assert!(core::mem::size_of::<{name}>() == {ffi.sizeof(name)});")
    parts += ['#[cfg(target_pointer_width = "64")]', "const _: () = {", *sizes, "};", ""]
    parts += ['extern "C" {', *functions(text), "}", ""]
    return "\n".join(parts)


def main() -> None:
    """Write or check the bindings."""
    parser = argparse.ArgumentParser(description="Write the Rust declarations of sm120.h.")
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date")
    text = rust(HEADER.read_text(encoding="utf-8"))
    if not parser.parse_args().check:
        RUST.write_text(text, encoding="utf-8")
    elif RUST.read_text(encoding="utf-8") != text:
        sys.exit(f"{RUST.relative_to(ROOT)} is not that of sm120.h: run tools/bindings.py")


if __name__ == "__main__":
    main()
