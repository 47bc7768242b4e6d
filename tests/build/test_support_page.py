"""docs/reference/support.md says what the code supports: calls of every precision and feature are compared with it."""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import operations
import pytest

import pysm120
from pysm120.ops.attention_call import PRECISIONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "support.md"
HEADS, ROWS, DIM = 2, 16, 64
DTYPES = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
NO = (pysm120.UnsupportedError, pysm120.InvalidArgumentError, TypeError)

pytestmark = pytest.mark.virtual

Probe = Callable[[pysm120.Device, str, Any], object]


def tensors(device: pysm120.Device, dtype: Any, dims: Sequence[int] = (DIM, DIM), kv_heads: int = HEADS) -> list[Any]:
    """Return q, k and v of the smallest call."""
    shapes = [(1, ROWS, heads, dim) for heads, dim in ((HEADS, dims[0]), (kv_heads, dims[0]), (kv_heads, dims[1]))]
    return [device.array(np.ones(shape, np.float32).astype(dtype)) for shape in shapes]


def options(device: pysm120.Device) -> dict[str, dict[str, Any]]:
    """Return the options of each feature that both passes have."""

    def floats(*x: float) -> pysm120.Array:
        return device.array(np.array(x, np.float32))

    def integers(*x: int) -> pysm120.Array:
        return device.array(np.array(x, np.int32))

    bias = device.array(np.zeros((1, HEADS, ROWS, ROWS), np.float32))
    return {
        "causal, aligned to the last row and key": {"causal": True},
        "causal, aligned to the first row and key": {"causal": True, "causal_align": "top-left"},
        "window": {"window": (3, 2)},
        "diagonals": {"diagonals": integers(1)},
        "softcap": {"softcap": 5.0},
        "ALiBi": {"alibi_slopes": floats(0.5, 0.25)},
        "sinks": {"sinks": floats(0.5, 0.25)},
        "mask of floats": {"mask": bias},
        "mask of bool": {"mask": device.array(np.ones(bias.shape, np.bool_))},
        "lengths of keys": {"kv_lengths": integers(9)},
    }


def probes_of(call: Callable[..., object], given: Mapping[str, Mapping[str, Any]]) -> dict[str, Probe]:
    """Return a call for each feature."""
    return {name: functools.partial(call, **arguments) for name, arguments in given.items()}


# ---- forward ---------------------------------------------------------------------


def attend(device: pysm120.Device, precision: str, dtype: Any, **given: Any) -> object:
    """Call attention with some options, dims or kv_heads."""
    shape = {name: given.pop(name) for name in ("dims", "kv_heads") if name in given}
    q, k, v = tensors(device, dtype, **shape)
    return pysm120.attention(q, k, v, precision=precision, **given)


def packed(device: pysm120.Device, precision: str, dtype: Any) -> object:
    """Call attention of two packed sequences."""
    q, k, v = (x[0] for x in tensors(device, dtype))
    starts = device.array(np.array([0, 7, ROWS], np.int32))
    return pysm120.attention_varlen(q, k, v, starts, starts, precision=precision)


def strided(device: pysm120.Device, precision: str, dtype: Any) -> object:
    """Call attention of slices at an odd column."""
    views = [x[..., 1:34] for x in tensors(device, dtype)]
    return pysm120.attention(*views, precision=precision)


def with_past(device: pysm120.Device, precision: str, dtype: Any) -> object:
    """Call attention with keys and values before those of k and v."""
    q, k, v = tensors(device, dtype)
    return pysm120.attention(q, k, v, past_k=k, past_v=v, precision=precision)


def quantised(device: pysm120.Device, precision: str, dtype: Any, names: str) -> object:
    """Call attention of operands that are MXFP8 already."""
    given = dict(zip("qkv", tensors(device, dtype), strict=True))
    for name in names:
        elements = device.array(np.ones((1, ROWS, HEADS, DIM), ml_dtypes.float8_e4m3fn))
        shape = (1, 1, HEADS, DIM) if name == "v" else (1, ROWS, HEADS, DIM // 32)
        given[name] = elements, device.array(np.full(shape, 127, np.uint8))
    return pysm120.attention(**given, precision=precision)


def forward_probes(device: pysm120.Device) -> dict[str, Probe]:
    """Return a call for each row of the table."""
    ones = device.array(np.ones(HEADS, np.float32))
    given: dict[str, dict[str, Any]] = {
        "GQA and MQA": {"kv_heads": 1},
        "head sizes of q and v differ": {"dims": (64, 40)},
        **options(device),
        "LSE": {"return_lse": True},
        "a given number of splits of the keys": {"num_splits": 2},
        "smoothing of q and k": {"smoothing": True},
        "scales of q, k and v": {"q_scale": ones, "k_scale": ones, "v_scale": ones},
        "largest absolute value of the results": {"amax": device.array(np.zeros(HEADS, np.float32))},
        "results in e4m3, with a scale": {"out_dtype": ml_dtypes.float8_e4m3fn, "o_scale": ones},
    }
    return probes_of(attend, given) | {
        "any strides and addresses": strided,
        "packed sequences": packed,
        "past": with_past,
        "q and k that are MXFP8 already": functools.partial(quantised, names="qk"),
        "v that is MXFP8 already": functools.partial(quantised, names="v"),
    }


# ---- gradients -------------------------------------------------------------------


def differentiate(device: pysm120.Device, precision: str, dtype: Any, **given: Any) -> object:
    """Call attention_backward with some options, dims or kv_heads."""
    shape = {name: given.pop(name) for name in ("dims", "kv_heads") if name in given}
    q, k, v = tensors(device, dtype, **shape)
    out = device.array(np.ones((*q.shape[:-1], v.shape[-1]), np.float32).astype(dtype))
    lse = device.array(np.full((1, HEADS, ROWS), 3, np.float32))
    if given.pop("gradient_of_lse", False):
        given["dlse"] = lse
    if given.get("accumulate"):
        given |= {f"d{x}": device.array(np.zeros(y.shape, np.float32)) for x, y in zip("qkv", (q, k, v), strict=True)}
    return pysm120.attention_backward(out, q, k, v, out, lse, precision=precision, **given)


def packed_gradients(device: pysm120.Device, precision: str, dtype: Any) -> object:
    """Call attention_varlen_backward of two packed sequences."""
    q, k, v = (x[0] for x in tensors(device, dtype))
    starts, lse = device.array(np.array([0, 7, ROWS], np.int32)), device.array(np.full((HEADS, ROWS), 3, np.float32))
    return pysm120.attention_varlen_backward(q, q, k, v, q, lse, starts, starts, precision=precision)


def backward_probes(device: pysm120.Device) -> dict[str, Probe]:
    """Return a call for each row of the table."""
    common = options(device)
    given: dict[str, dict[str, Any]] = {
        "GQA and MQA": {"kv_heads": 1},
        "head sizes of q and v differ": {"dims": (64, 40)},
        **common,
        "gradient of sinks": {**common["sinks"], "return_dsinks": True},
        "gradient of a mask": {**common["mask of floats"], "return_dmask": True},
        "gradient of LSE": {"gradient_of_lse": True},
        "sums to given gradients": {"accumulate": True},
        "the same bits in every run": {"deterministic": True},
    }
    return probes_of(differentiate, given) | {"packed sequences": packed_gradients}


# ---- tables ----------------------------------------------------------------------


def is_supported(probe: Probe, device: pysm120.Device, precision: str, dtype: Any) -> bool:
    """Return whether the library takes a call."""
    try:
        probe(device, precision, dtype)
    except NO:
        return False
    return True


def dtypes_of(call: Probe, device: pysm120.Device, precision: str) -> list[str]:
    """Return the dtypes of q, k and v that a precision takes."""
    return [name for name, dtype in DTYPES.items() if is_supported(call, device, precision, dtype)]


def head_sizes(call: Callable[..., object], device: pysm120.Device, precision: str, dtype: Any) -> str:
    """Return the head sizes that a precision takes, from a trial of both sides of each limit."""
    sizes = (1, 128, 129, 256, 257)
    calls = [functools.partial(call, dims=(size, size)) for size in sizes]
    taken = [size for size, one in zip(sizes, calls, strict=True) if is_supported(one, device, precision, dtype)]
    assert taken == list(sizes[: len(taken)]), f"{precision} takes {taken} of {sizes}"
    return f"1 to {taken[-1]}" if taken else "no"


def table(
    call: Callable[..., object], probes: Mapping[str, Probe], device: pysm120.Device, precisions: Sequence[str]
) -> dict[str, list[str]]:
    """Return the rows of the table of one pass.

    The cell of a feature is "in 16 bits" where a precision takes float32, but with this feature only types of 16 bits.
    """
    rows: dict[str, list[str]] = {"dtypes of q, k, v": [], "head sizes": [], **{name: [] for name in probes}}
    for precision in precisions:
        dtypes = dtypes_of(call, device, precision)
        rows["dtypes of q, k, v"].append(", ".join(dtypes))
        first, last = DTYPES[dtypes[0]], DTYPES[dtypes[-1]]
        rows["head sizes"].append(head_sizes(call, device, precision, first))
        for name, probe in probes.items():
            narrow = first != last and is_supported(probe, device, precision, last)
            whole = is_supported(probe, device, precision, first)
            rows[name].append("yes" if whole else "in 16 bits" if narrow else "no")
    return rows


def rows_of(heading: str, text: str) -> dict[str, list[str]]:
    """Return the first table below a heading, its header row too, by the first cell."""
    section = re.search(rf"^## {re.escape(heading)}$\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, f"{PAGE.name} has no section {heading!r}"
    lines = re.search(r"(?:^\|.*\n)+", section[1], re.MULTILINE)
    assert lines is not None, f"{PAGE.name} has no table in {heading!r}"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[0].splitlines()]
    return {row[0]: row[1:] for row in (cells[0], *cells[2:])}


def as_markdown(head: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Write a table, for the message of a failure."""
    lines = [("", *head), ("---",) * (len(head) + 1), *((name, *cells) for name, cells in rows.items())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def compare(heading: str, head: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
    """Compare a table of the page with the truth."""
    shown = rows_of(heading, PAGE.read_text())
    written = {name: cells for name, cells in shown.items() if name}
    assert shown[""] == list(head), heading
    assert written == {**rows}, f"{PAGE.name}, {heading!r} must be:\n{as_markdown(head, rows)}"


@pytest.mark.parametrize(
    ("heading", "call", "probes", "public"),
    [
        ("Which features has attention?", attend, forward_probes, pysm120.attention),
        ("Which features have gradients?", differentiate, backward_probes, pysm120.attention_backward),
    ],
    ids=["forward", "backward"],
)
def test_features(
    heading: str,
    call: Callable[..., object],
    probes: Callable[[pysm120.Device], dict[str, Probe]],
    public: Callable[..., object],
) -> None:
    """The library takes what the page says, and raises an error for the rest."""
    device = pysm120.Device("virtual")
    backward = public is pysm120.attention_backward
    precisions = list(PRECISIONS)
    if backward:
        precisions = [name for name in precisions if dtypes_of(call, device, name)]
    truth = table(call, probes(device), device, precisions)
    compare(heading, [f"`{name}`" for name in precisions], truth)
    never = [name for name, cells in truth.items() if set(cells) == {"no"}]
    assert not never, f"no precision takes these, so the calls of this test may be wrong: {never}"
    tried = {"q", "k", "v", "dout", "out", "lse", "delta", "dq", "dk", "dv", "scale", "layout", "precision", "config"}
    tried |= {"device", "stream", "workspace", "past_k", "past_v"}
    source = inspect.getsource(sys.modules[__name__])
    lacking = [name for name in inspect.signature(public).parameters if name not in tried and f'"{name}"' not in source]
    assert not lacking, f"no row of {PAGE.name} tries these arguments"


def test_a_wrong_cell_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "support.md"
    page.write_text("## A?\n\nText.\n\n| | `x` |\n|---|---|\n| causal | no |\n\n## B?\n")
    monkeypatch.setattr(sys.modules[__name__], "PAGE", page)
    compare("A?", ["`x`"], {"causal": ["no"]})
    with pytest.raises(AssertionError, match=r"\| causal \| yes \|"):
        compare("A?", ["`x`"], {"causal": ["yes"]})
    with pytest.raises(AssertionError, match="no table in 'B"):
        compare("B?", [], {})


# ---- devices ---------------------------------------------------------------------


def recorded() -> dict[str, int]:
    """Count the launches of each operation, and of each precision of attention, that a Hopper GPU recorded."""
    rows = operations.operations()  # puts tests/hardware into sys.path
    import kernels
    import recording

    keys = recording.read()[0]
    counts = {}
    for name, row in rows.items():
        there = [launch for launch in row.recorded if kernels.key(launch) in keys]
        counts[name] = len(there)
        if name == "attention":
            counts |= {f"attention in `{p}`": sum(launch.precision == p for launch in there) for p in PRECISIONS}
    del counts["attention"]
    return counts


def test_devices() -> None:
    """Every operation has a row, and what ran on Hopper is what tests/data/hopper.npz holds."""
    shown = rows_of("Where was which operation tested?", PAGE.read_text())
    assert shown.pop("") == ["virtual SM120", "Hopper (9.0)", "SM120 (12.0, 12.1)"]
    by_name = {name.strip("`") if name.startswith("`") else name: cells for name, cells in shown.items()}
    counts = recorded()
    assert sorted(by_name) == sorted([*counts, "copy_batch"])
    assert {p.name for p in (ROOT / "results").iterdir() if p.is_dir()} == {"h100", "h200"}, (
        "another chip: change the page"
    )
    for name, cells in by_name.items():
        tested = name == "copy_batch" or counts[name]
        hopper = cells[1].split(";")[0]
        assert hopper == ("tested here" if tested else "untested on hardware"), name
        assert [cells[0], cells[2]] == ["tested here", "untested on hardware"], name


def test_versions() -> None:
    """Python, compute capabilities and the version of PTX are those of the project."""
    page = PAGE.read_text()
    (python,) = re.findall(r'^requires-python = ">=([\d.]+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert f"Python {python} or later" in page
    (version,) = re.findall(r"^\.version ([\d.]+)$", (ROOT / "ptx/parts/head.ptx").read_text(), re.MULTILINE)
    assert f"PTX {version}" in page
    source = (ROOT / "src/runtime/builtin.c").read_text()
    targets = dict(re.findall(r'capability_major == (\d+) \? "(\w+)"', source))
    written = {int(major): code for major, code in re.findall(r"\| (\d+)\.[\dx, .]+ \| `(sm_\w+)` \|", page)}
    assert written == {int(major): code for major, code in targets.items()}
