"""Mutations of statements: words of the opcode, operands and literals that are changed, dropped, doubled or swapped."""

import random
import re
from collections.abc import Callable, Sequence

from statements import Statement

TYPES = "pred b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f16 f16x2 bf16 bf16x2 tf32 f32 f32x2 f64 e4m3x2 e5m2x2"
TYPES += " e2m1x2 e2m3x2 ue8m0x2 u16x2 s16x2"
WORDS = (
    "global shared shared::cta shared::cluster local const rn rz rm rp rni rzi ftz sat satfinite relu NaN lo hi wide"
)
WORDS += " v2 v4 v8 x1 x2 x4 trans sync aligned weak relaxed acquire release volatile cta cluster gpu sys nc ca cg lu"
WORDS += " L1::no_allocate L2::cache_hint L2::128B row col uni noinc parity eq lt ltu num hs and or add approx full cc"
LIMITS = (
    *(-(2**63), -(2**31) - 1, -(2**31), -129, -17, -1, 0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 127, 128),
    *(255, 256, 1024, 1025, 4095, 4096, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63),
    2**64 - 1,
)
# Registers of every kind, which each mutant may name.
SPARE = (
    ".reg .pred $p; .reg .b16 $h; .reg .s16 $hs; .reg .f16 $hf; .reg .b32 $r; .reg .s32 $rs; .reg .f32 $f; "
    ".reg .b64 $d; .reg .u64 $du; .reg .f64 $df; .reg .b128 $q; .reg .b8 $c; "
)
NAMES = ("$p", "!$p", "$h", "$hs", "$hf", "$r", "$rs", "$f", "$d", "$du", "$df", "$q", "$c")
VALUES = (
    *NAMES,
    *[
        "_",
        "0",
        "1",
        "-1",
        "0f3F800000",
        "0d3FF0000000000000",
        "1.5",
        "[$r]",
        "[$d]",
        "[$d+4]",
        "[$r+-8]",
        "[$h]",
        "[$f]",
        "[$d+$r]",
        "[4096]",
    ],
    *("{$r, $r}", "{$h, $h}", "{$f, $f, $f, $f}", "{$d, $d}", "{$r, _}", "{}", "[$d, {$r}]", "($r)"),
    *["$r|$p", "$p|$p", "%laneid", "%tid.x", "%tid", "%clock64", "%ctaid.y", "WARP_SZ", "-$r", "~$r"],
)
GUARDS = ("@$p", "@!$p", "@$r", "@!$r", "@_", "@1", "@-$p", "@$p @$p")

Mutation = Callable[[Statement, random.Random, Sequence[str]], "Statement | None"]


def split(operands: str) -> list[str]:
    """Split operands at the commas outside braces and brackets."""
    parts, depth = [""], 0
    for letter in operands:
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _opcode(statement: Statement, words: Sequence[str]) -> Statement:
    return statement._replace(opcode=".".join(words))


def drop_word(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    words = s.opcode.split(".")
    k = rng.randrange(1, len(words)) if words[1:] else 0
    return _opcode(s, words[:k] + words[k + 1 :]) if k else None


def double_word(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    words = s.opcode.split(".")
    if not words[1:]:
        return None
    word, at = rng.choice(words[1:]), rng.randrange(1, len(words) + 1)
    return _opcode(s, [*words[:at], word, *words[at:]])


def change_word(s: Statement, rng: random.Random, near: Sequence[str]) -> Statement | None:
    words = s.opcode.split(".")
    if not words[1:]:
        return None
    words[rng.randrange(1, len(words))] = rng.choice(rng.choice((near, near, WORDS.split(), TYPES.split())))
    return _opcode(s, words)


def add_word(s: Statement, rng: random.Random, near: Sequence[str]) -> Statement | None:
    words = s.opcode.split(".")
    at = rng.randrange(1, len(words) + 1)
    return _opcode(s, [*words[:at], rng.choice(rng.choice((near, near, WORDS.split(), TYPES.split()))), *words[at:]])


def swap_words(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    words = s.opcode.split(".")
    if not words[2:]:
        return None
    j, k = rng.sample(range(1, len(words)), 2)
    words[j], words[k] = words[k], words[j]
    return _opcode(s, words)


def change_type(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    words = s.opcode.split(".")
    places = [k for k, word in enumerate(words) if word in TYPES.split()]
    if not places:
        return None
    words[rng.choice(places)] = rng.choice(TYPES.split())
    return _opcode(s, words)


def all_types(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    """Change the type of the opcode and of the registers together."""
    words = s.opcode.split(".")
    places = [k for k, word in enumerate(words) if word in TYPES.split()]
    if not places:
        return None
    kind = rng.choice(TYPES.split())
    for k in places:
        words[k] = kind
    size = "pred" if kind == "pred" else kind if kind in {"f32", "f64"} else f"b{_bits(kind)}"
    return s._replace(opcode=".".join(words), inner=re.sub(r"\.reg \.\w+", f".reg .{size}", s.inner))


def _bits(kind: str) -> int:
    sizes = {"f32x2": 64, "tf32": 32, "u16x2": 32, "s16x2": 32, "f16x2": 32, "bf16x2": 32, "e2m1x2": 8}
    if kind in sizes:
        return sizes[kind]
    return 16 if kind.startswith(("e", "ue")) else int(re.sub(r"\D", "", kind))


def _operands(s: Statement, parts: Sequence[str]) -> Statement:
    return s._replace(operands=", ".join(parts))


def drop_operand(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    parts = split(s.operands)
    k = rng.randrange(len(parts)) if parts else 0
    return _operands(s, parts[:k] + parts[k + 1 :]) if parts else None


def add_operand(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    parts = split(s.operands)
    at = rng.choice((rng.randrange(len(parts) + 1), len(parts)))
    return _operands(s, [*parts[:at], rng.choice(rng.choice((VALUES, parts or VALUES))), *parts[at:]])


def swap_operands(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    parts = split(s.operands)
    if not parts[1:]:
        return None
    j, k = rng.sample(range(len(parts)), 2)
    parts[j], parts[k] = parts[k], parts[j]
    return _operands(s, parts)


def change_operand(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    parts = split(s.operands)
    if not parts:
        return None
    parts[rng.randrange(len(parts))] = rng.choice(VALUES)
    return _operands(s, parts)


def change_register(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    """Replace a register somewhere, also inside a vector or an address, by one of another kind."""
    declared = re.findall(r"\.reg \.\w+ (\S+);", s.inner)
    places = [m for name in declared for m in re.finditer(rf"(?<![\w$%]){re.escape(name)}(?![\w$])", s.operands)]
    if not places:
        return None
    m = rng.choice(places)
    return s._replace(operands=s.operands[: m.start()] + rng.choice(NAMES) + s.operands[m.end() :])


def redeclare(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    """Declare a register with another type."""
    places = [*re.finditer(r"\.reg \.(\w+)", s.inner)]
    if not places:
        return None
    m = rng.choice(places)
    kind = rng.choice(
        [
            "pred",
            "b8",
            "b16",
            "b32",
            "b64",
            "b128",
            "u16",
            "u32",
            "u64",
            "s16",
            "s32",
            "s64",
            "f16",
            "f16x2",
            "f32",
            "f64",
        ]
    )
    return s._replace(inner=s.inner[: m.start(1)] + kind + s.inner[m.end(1) :])


def resize_vector(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    """Drop or add an element, or change a vector and the word for its size."""
    vectors = [*re.finditer(r"\{([^{}]+)\}", s.operands)]
    if not vectors:
        return None
    m = rng.choice(vectors)
    items = [item.strip() for item in m[1].split(",")]
    action = rng.randrange(4)
    if action == 0:
        items = items[1:]
    elif action == 1:
        items = [*items, items[0]]
    elif action == 2:
        items[rng.randrange(len(items))] = rng.choice(("_", "0", "1", "0f00000000", *NAMES))
    else:
        items = items * 2 if rng.randrange(2) else items[: len(items) // 2]
        double = {"v2": "v4", "v4": "v8", "x1": "x2", "x2": "x4"}
        half = {new: old for old, new in double.items()}
        table = double if len(items) > len(m[1].split(",")) else half
        s = _opcode(s, [table.get(word, word) for word in s.opcode.split(".")])
    return s._replace(operands=f"{s.operands[: m.start()]}{{{', '.join(items)}}}{s.operands[m.end() :]}")


def limit(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    """Replace a literal by a limit, or an operand by one, or an offset of an address."""
    literals = [*re.finditer(r"(?<![\w.%$])-?(?:0x[0-9A-Fa-f]+|\d+)(?![\w.])", s.operands)]
    value = rng.choice(LIMITS)
    text = rng.choice((str(value), hex(value) if value >= 0 else str(value)))
    if literals and rng.randrange(3):
        m = rng.choice(literals)
        return s._replace(operands=s.operands[: m.start()] + text + s.operands[m.end() :])
    addresses = [*re.finditer(r"\[[^\]+{},]*(\+[^\]{},]*)?\]", s.operands)]
    if addresses and rng.randrange(2):
        m = rng.choice(addresses)
        base = m[0].strip("[]").split("+")[0].strip()
        return s._replace(operands=f"{s.operands[: m.start()]}[{base}+{text}]{s.operands[m.end() :]}")
    parts = split(s.operands)
    if not parts:
        return None
    parts[rng.randrange(len(parts))] = text
    return _operands(s, parts)


def negate(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    parts = split(s.operands)
    if not parts:
        return None
    k = rng.randrange(len(parts))
    parts[k] = rng.choice(("-", "!", "~")) + parts[k]
    return _operands(s, parts)


def guard(s: Statement, rng: random.Random, _: Sequence[str]) -> Statement | None:
    return s._replace(opcode=f"{rng.choice(GUARDS)} {s.opcode}")


MUTATIONS: dict[str, Mutation] = {
    made.__name__: made
    for made in (
        drop_word, double_word, change_word, add_word, swap_words, change_type, all_types,
        drop_operand, add_operand, swap_operands, change_operand, change_register, redeclare,
        resize_vector, limit, negate, guard,
    )
}  # fmt: skip


def mutants(corpus: Sequence[Statement], count: int, rng: random.Random) -> list[tuple[str, Statement]]:
    """Return this many different mutants, with the names of their mutations; every mutation has the same share."""
    near: dict[str, list[str]] = {}
    for s in corpus:
        name, *words = s.opcode.split(".")
        near[name] = sorted({*near.get(name, []), *words})
    found: dict[tuple[str, str, str], tuple[str, Statement]] = {}
    while len(found) < count:
        name, s = rng.choice(list(MUTATIONS)), rng.choice(corpus)
        changed = MUTATIONS[name](s._replace(inner=SPARE + s.inner), rng, near[s.opcode.split(".")[0]] or ["rn"])
        is_new = changed is not None and (changed.opcode, changed.operands) != (s.opcode, s.operands)
        if changed is not None and (is_new or name == "redeclare"):
            found.setdefault((changed.opcode, changed.operands, changed.inner), (name, changed))
    return list(found.values())
