"""The names of C++ functions, as compilers mangle them (the Itanium C++ ABI), in the form of the source.

Names of kernels need a part of the grammar: nested names, templates with types, numbers and packs, types of arguments,
lambdas, and what stands for an earlier part. A name with anything else stays as it is.
"""

import re
from collections.abc import Callable
from functools import lru_cache

_BUILTIN = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
    "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long",
    "y": "unsigned long long", "n": "__int128", "o": "unsigned __int128", "f": "float", "d": "double",
    "e": "long double", "g": "__float128", "z": "...", "Dh": "half", "Di": "char32_t", "Ds": "char16_t",
    "Du": "char8_t", "Dn": "decltype(nullptr)", "Da": "auto",
}  # fmt: skip
_STANDARD = {
    "St": "std", "Sa": "std::allocator", "Sb": "std::basic_string", "Ss": "std::string", "Si": "std::istream",
    "So": "std::ostream", "Sd": "std::iostream",
}  # fmt: skip
_SUFFIX = {"int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul", "long long": "ll"}
_SUFFIX |= {"unsigned long long": "ull"}
_MOST_DEPTH, _MOST_TEXT = 150, 1 << 16
_MANGLED = re.compile(r"\b_Z\w+")
_PARAMETER = re.compile(r"(?:\b_Z|\.\.\.)\w+_(param_[0-9]+)\b")  # nvcc puts the kernel's name in front


class _Unknown(Exception):  # noqa: N818 - never leaves this file
    """The name has a part that is not read."""


class _Name:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.seen: list[str] = []  # what S_, S0_, ... stand for
        self.arguments: list[str] = []  # of the template, what T_, T0_, ... stand for

    def take(self, word: str) -> bool:
        found = self.text.startswith(word, self.at)
        self.at += len(word) if found else 0
        return found

    def need(self, word: str) -> None:
        if not self.take(word):
            raise _Unknown

    def match(self, pattern: str) -> str:
        found = re.compile(pattern).match(self.text, self.at)
        if found is None:
            raise _Unknown
        self.at = found.end()
        return found[0]

    def keep(self, text: str) -> str:
        self.seen.append(text)
        return text

    def index(self) -> int:
        """Read what follows S or T: _ is 0, 0_ is 1; S counts in base 36."""
        digits = self.match("[0-9A-Z]*_")[:-1]
        return int(digits, 36) + 1 if digits else 0

    def source_name(self) -> str:
        length = int(self.match("[1-9][0-9]{0,4}"))
        name = self.text[self.at : self.at + length]
        if len(name) != length:
            raise _Unknown
        self.at += length
        return "(anonymous namespace)" if name.startswith(("_GLOBAL__N", "_INTERNAL_")) else name

    def unqualified(self) -> str:
        if self.take("Ul"):  # a lambda
            kinds = self.list_until("E", self.type)
            number = self.match("[0-9]*_")[:-1]
            shown = "" if kinds == ["void"] else ", ".join(kinds)
            return f"{{lambda({shown})#{int(number) + 2 if number else 1}}}"
        if self.take("Ut"):
            number = self.match("[0-9]*_")[:-1]
            return f"{{unnamed type#{int(number) + 2 if number else 1}}}"
        return self.source_name()

    def list_until(self, end: str, read: Callable[[], str]) -> list[str]:
        found = []
        while not self.take(end):
            found.append(read())
        return [one for one in found if one]

    def template_arguments(self) -> str:
        self.need("I")
        found = self.list_until("E", self.argument)
        self.arguments = found
        text = ", ".join(found)
        return f"<{text}{' ' if text.endswith('>') else ''}>"

    def argument(self) -> str:
        if self.take("J"):
            return ", ".join(self.list_until("E", self.argument))
        if self.take("L"):
            return self.literal()
        return self.type()

    def literal(self) -> str:
        if self.take("_Z"):
            text = f"&({self.encoding()})"
            self.need("E")
            return text
        kind = self.type()
        value = self.match("n?[0-9]+").replace("n", "-")
        self.need("E")
        if kind == "bool" and value in {"0", "1"}:
            return "true" if value == "1" else "false"
        return f"{value}{_SUFFIX[kind]}" if kind in _SUFFIX else f"({kind}){value}"

    def substitution(self) -> str:
        standard = self.text[self.at : self.at + 2]
        if standard in _STANDARD:
            self.at += 2
            return _STANDARD[standard]
        self.need("S")
        index = self.index()
        if index >= len(self.seen):
            raise _Unknown
        return self.seen[index]

    def nested(self) -> str:
        """Read N ... E: all but the whole are kept. No kernel is a const member function."""
        name, is_new = "", False
        while not self.take("E"):
            if is_new:
                self.keep(name)
            is_new = True
            if name and self.text.startswith("I", self.at):
                name += self.template_arguments()
            elif not name and self.text.startswith("S", self.at):
                name, is_new = self.substitution(), False
            elif not name and self.text.startswith("T", self.at):
                name = self.template_parameter()
            else:
                name += ("::" if name else "") + self.unqualified()
        return name

    def name(self) -> tuple[str, bool]:
        """Read a name; whether its last part has template arguments."""
        if self.take("N"):
            return self.nested(), self.text[self.at - 2] == "E"
        if self.take("St"):
            name, is_known = f"std::{self.unqualified()}", False
        elif self.text.startswith("S", self.at):
            name, is_known = self.substitution(), True
        else:
            name, is_known = self.unqualified(), False
        if not self.text.startswith("I", self.at):
            return name, False
        if not is_known:
            self.keep(name)
        return name + self.template_arguments(), True

    def type(self) -> str:
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise _Unknown
        text = self.any_type()
        self.depth -= 1
        if len(text) > _MOST_TEXT:
            raise _Unknown
        return text

    def any_type(self) -> str:
        for length in (1, 2):
            word = self.text[self.at : self.at + length]
            if word in _BUILTIN:
                self.at += length
                return _BUILTIN[word]
        text = self.derived() or self.template_parameter()
        if text:
            return self.keep(text)
        if self.text.startswith("S", self.at) and not self.text.startswith("St", self.at):
            after = re.compile("S(?:[0-9A-Z]*_|[a-z])").match(self.text, self.at)
            if after and not self.text.startswith("I", after.end()):
                return self.substitution()
        return self.keep(self.name()[0])

    def derived(self) -> str:
        """Read a pointer, a reference, or a const or volatile type; "" if there is none."""
        for word, sign in (("P", "*"), ("R", "&"), ("O", "&&")):
            if self.take(word):
                inner = self.type()
                if inner.endswith(")"):
                    raise _Unknown
                if word != "P" and inner.endswith("&"):  # references collapse
                    return inner if word == "O" else inner.rstrip("&") + "&"
                return inner + sign
        words = self.match("r?V?K?")
        if not words:
            return ""
        return self.type() + (" volatile" if "V" in words else "") + (" const" if "K" in words else "")

    def template_parameter(self) -> str:
        """Read T_, T0_, ... or the expansion of a pack of these; "" if there is none."""
        is_pack = self.take("Dp")
        if not self.take("T"):
            if is_pack:
                raise _Unknown
            return ""
        index = self.index()
        if index >= len(self.arguments):
            raise _Unknown
        return self.arguments[index]

    def encoding(self) -> str:
        name, is_template = self.name()
        if self.at >= len(self.text) or self.text[self.at] in "E.":
            return name
        arguments = self.arguments
        prefix = f"{self.type()} " if is_template else ""
        kinds = []
        while self.at < len(self.text) and self.text[self.at] not in "E.":
            self.arguments = arguments
            kinds.append(self.type())
        if not kinds:
            raise _Unknown
        return f"{prefix}{name}({'' if kinds == ['void'] else ', '.join(one for one in kinds if one)})"


@lru_cache(maxsize=4096)
def demangled(name: str) -> str:
    """Return the C++ name of a mangled one; any other name as it is."""
    if not name.startswith("_Z"):
        return name
    reader = _Name(name)
    reader.at = 2
    try:
        text = reader.encoding()
    except (_Unknown, ValueError, RecursionError):
        return name
    return text if reader.at == len(name) and len(text) <= _MOST_TEXT else name


def readable(text: str) -> str:
    """Return a text with all mangled names in it demangled, and nvcc's names of parameters without their kernel's."""
    return _MANGLED.sub(lambda found: demangled(found[0]), _PARAMETER.sub(r"\1", text))
