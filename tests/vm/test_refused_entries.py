"""Entries that cannot run, and modules of many entries: reasons, memory, time."""

import subprocess
import sys
import time

import numpy as np
import pytest

import pysm120

HEAD = ".version 8.8\n.target sm_120f\n.address_size 64\n"
GOOD = (
    ".entry good(.param .u64 p) {\n .reg .b64 a; .reg .b32 x;\n ld.param.u64 a, [p]; mov.u32 x, 7;\n"
    " st.global.u32 [a], x; ret; }\n"
)
BAD = ".entry bad() {\n .reg .b32 a;\n frob.u32 a, a;\n { .reg .b32 b;\n add.u32 b, b, missing; }\n ret; }\n"
FUNCTION = ".func f() {\n wgmma.fence.sync.aligned;\n ret; }\n"
CALLER = ".entry {} () {{ call f; ret; }}\n"
DIRECTIVE = ".entry many() .reqnctapercluster 16 { ret; }\n"

pytestmark = pytest.mark.virtual


def works(module: pysm120.Module, device: pysm120.Device) -> bool:
    out = device.zeros(1, np.uint32)
    module["good"](1, 1, out)
    return bool(out.numpy()[0] == 7)


@pytest.mark.parametrize("order", ["bad first", "good first"])
def test_other_entries_work(device: pysm120.Device, order: str) -> None:
    parts = [BAD, DIRECTIVE, GOOD] if order == "bad first" else [GOOD, BAD, DIRECTIVE]
    module = device.load(HEAD + "".join(parts), name="mixed.ptx")
    assert sorted(module) == ["bad", "good", "many"]
    assert works(module, device)
    for _ in range(2):
        with pytest.raises(pysm120.InvalidProgramError) as refused:
            module["bad"](1, 1)
        message = str(refused.value)
        assert message.startswith("bad of mixed.ptx cannot run:")
        assert message.count("error:") == 2
        assert "unknown instruction 'frob.u32'\n frob.u32 a, a;\n ^" in message
        assert "undefined register 'missing'" in message
    with pytest.raises(pysm120.InvalidProgramError, match="clusters have 1 to 8 CTAs"):
        module["many"]
    assert works(module, device)


def test_functions_of_several_entries(device: pysm120.Device) -> None:
    """Each caller is refused for what its function does; a module without any other entry does not load."""
    module = device.load(HEAD + FUNCTION + CALLER.format("one") + GOOD + CALLER.format("two"))
    assert works(module, device)
    for name in ("one", "two"):
        with pytest.raises(pysm120.InvalidProgramError, match="wgmma"):
            module[name]
    with pytest.raises(pysm120.InvalidProgramError) as refused:
        device.load(HEAD + FUNCTION + CALLER.format("one") + CALLER.format("two") + BAD)
    assert [str(refused.value).count(word) for word in ("error:", "wgmma", "frob", "missing")] == [3, 2, 2, 2]


def test_strict(device: pysm120.Device) -> None:
    assert works(device.load(HEAD + GOOD, strict=True), device)
    with pytest.raises(pysm120.InvalidProgramError) as refused:
        device.load(HEAD + BAD + GOOD + DIRECTIVE, strict=True)
    for words in ("bad of <ptx> cannot run", "frob", "missing", "many of <ptx> cannot run", "clusters"):
        assert words in str(refused.value)


def test_what_no_entry_owns_is_refused_at_once(device: pysm120.Device) -> None:
    """A bad declaration, a name twice, and text without an end; the reasons before are told too."""
    for wrong in (".global .b99 x;\n", GOOD, ".entry last() {\n ret;\n"):
        with pytest.raises(pysm120.InvalidProgramError, match="frob"):
            device.load(HEAD + BAD + GOOD + wrong)


UNUSED = [
    ".global .texref other;",
    ".global .surfref other[4];",
    ".global .texref a = {width = 4, height = {1}}, other;",
    ".extern .global .b32 other;",
    ".extern .global .align 8 .b32 a[], other[3];",
    ".extern .const .b32 other;",
    ".extern .shared .b32 other[4];",
    ".extern .global .texref other;",
    ".extern .global .b32 a; .global .u64 table[2] = {a, a}; .global .u64 other = generic(table);",
]
USER = ".entry {}() {{\n .reg .b64 a;\n mov.b64 a, other;\n add.u64 a, a, other;\n ret; }}\n"


@pytest.mark.parametrize("declaration", UNUSED)
def test_declarations_that_no_code_names(device: pysm120.Device, declaration: str) -> None:
    """Only entries that name them cannot run, also through a function."""
    reason = r"'other' (is a texture|is not defined in this module|holds the address of 'table', which holds)"
    function = ".func f() { .reg .b64 a; mov.b64 a, other; ret; }\n" + CALLER.format("calls")
    text = HEAD + declaration + function + USER.format("names") + GOOD
    module = device.load(text)
    assert works(module, device)
    for name in ("calls", "names"):
        with pytest.raises(pysm120.InvalidProgramError, match=reason) as refused:
            module[name]
        assert str(refused.value).count("error:") == (2 if name == "names" else 1)
    with pytest.raises(pysm120.InvalidProgramError, match=reason) as refused:
        device.load(text, strict=True)
    assert str(refused.value).count("error:") == 3
    assert works(device.load(HEAD + declaration + GOOD, strict=True), device)


def test_extern_variable_that_is_defined_later(device: pysm120.Device) -> None:
    """An entry between the declaration and the definition may name it."""
    entry = ".entry good(.param .u64 p) {\n .reg .b64 a; .reg .b32 x;\n ld.param.u64 a, [p]; ld.global.b32 x, [v];\n"
    entry += " st.global.u32 [a], x; ret; }\n"
    declared, defined = ".extern .global .b32 v;\n", ".visible .global .b32 v = 7;\n"
    for parts in ((declared, entry, defined), (declared, defined, entry), (defined, declared, declared, entry)):
        module = device.load(HEAD + "".join(parts), strict=True)
        assert works(module, device)


def test_many_reasons(device: pysm120.Device) -> None:
    body = "".join(f" frob{n} a;\n" for n in range(1000))
    with pytest.raises(pysm120.InvalidProgramError) as refused:
        device.load(HEAD + f".entry k() {{\n{body} ret; }}\n")
    assert 10 <= str(refused.value).count("error:") <= 25


PEAK = """
import sys, resource
import pysm120
head, kind = sys.argv[1:]
device = pysm120.Device("virtual")
if kind == "entries":
    text = "".join(f".entry k{i}() {{ ret; }}\\n" for i in range(10000))
else:
    body = "add.u32 r, r, 1;\\n" * 200
    text = "".join(f".func f{i}() {{ .reg .b32 r; mov.u32 r, 0;\\n{body} ret; }}\\n" for i in range(10))
    text += "".join(f".entry k{i}() {{ " + "".join(f"call f{j};" for j in range(10)) + " ret; }\\n" for i in range(200))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
module = device.load(head + text)
module["k150"](1, 32)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", ["entries", "functions"])
def test_memory_of_many_entries(kind: str) -> None:
    """It grows with the text, not with its square, nor with the kernels times the functions that they call."""
    done = subprocess.run([sys.executable, "-c", PEAK, HEAD, kind], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60 << 10, f"{int(done.stdout) >> 10} MiB"


def test_code_that_was_not_kept(device: pysm120.Device) -> None:
    """A large module keeps little of its code; each entry runs all the same, with the variables of the module."""
    body = "".join(f"add.u32 x, x, {n % 7};\n" for n in range(2000))
    text = ".global .u32 shared_word = 5;\n" + "".join(
        f".entry k{i}(.param .u64 p) {{ .reg .b64 a; .reg .b32 x; .shared .b32 s[4]; ld.param.u64 a, [p];\n"
        f"ld.global.u32 x, [shared_word];\n{body} add.u32 x, x, {i}; st.global.u32 [a], x; ret; }}\n"
        for i in range(60)
    )
    module, out = device.load(HEAD + text), device.zeros(1, np.uint32)
    for i in (0, 59, 31, 59):
        module[f"k{i}"](1, 1, out)
        assert out.numpy()[0] == 5 + sum(n % 7 for n in range(2000)) + i


def test_time_of_many_labels(device: pysm120.Device) -> None:
    """Twice the labels take about twice as long, not four times."""
    times = []
    for count in (40_000, 160_000):
        started = time.process_time()
        device.load(HEAD + ".entry k() {\n" + "".join(f"l{i}:\n" for i in range(count)) + "ret; }")
        times.append(time.process_time() - started)
    assert times[1] < 8 * times[0] + 0.1
