"""Looking on: what a watcher sees is what a model of the program computes, and looking changes nothing."""

import dataclasses
import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from broken.planted import text

import pysm120
from pysm120.observe import watch
from pysm120.runtime.errors import FaultError, InvalidArgumentError
from pysm120.runtime.ffi import ffi, lib, new_struct

pytestmark = pytest.mark.virtual

Lanes = npt.NDArray[np.uint32]
HEAD = ".version 8.8\n.target sm_120f\n.address_size 64\n"

# What each instruction does to 32-bit lanes, written without a look at the virtual device.
MODEL: dict[str, Callable[..., Any]] = {
    "add.u32": lambda a, b: a + b,
    "sub.u32": lambda a, b: a - b,
    "mul.lo.u32": lambda a, b: a * b,
    "xor.b32": lambda a, b: a ^ b,
    "and.b32": lambda a, b: a & b,
    "min.u32": np.minimum,
    "max.s32": lambda a, b: np.maximum(a.view(np.int32), b.view(np.int32)).view(np.uint32),
    "setp.lt.u32": lambda a, b: a < b,
    "setp.ge.s32": lambda a, b: a.view(np.int32) >= b.view(np.int32),
}


@dataclasses.dataclass
class Line:
    """A random instruction."""

    opcode: str
    to: str
    sources: tuple[str, str]
    guard: str

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {self.to}, {self.sources[0]}, {self.sources[1]};"


def random_program(rng: np.random.Generator, length: int) -> list[Line]:
    """Make a program on r0 .. r5, p0 .. p2."""
    lines = []
    for _ in range(length):
        opcode = str(rng.choice(list(MODEL)))
        to = f"p{rng.integers(3)}" if opcode.startswith("setp") else f"r{rng.integers(6)}"
        sources = (f"r{rng.integers(6)}", f"r{rng.integers(6)}")
        guard = str(rng.choice(["", "", "p0", "!p1", "p2"]))
        lines.append(Line(opcode, to, sources, guard))
    return lines


def assemble(lines: list[Line]) -> str:
    """Write the program, one instruction per line."""
    start = [f"mad.lo.u32 r{k}, i, {2 * k + 3}, {k * 0x9E3779B9 & 0xFFFFFFFF};" for k in range(6)]
    start += [f"setp.gt.u32 p{k}, r{k}, r{k + 1};" for k in range(3)]
    code = "\n".join([*start, *map(str, lines)])
    return f"{HEAD}.visible .entry k() {{\n.reg .b32 r<6>, i;\n.reg .pred p<3>;\nmov.u32 i, %tid.x;\n{code}\nret;\n}}\n"


@pytest.mark.parametrize("threads", [1, 31, 64, 70])
def test_every_value_is_the_models(device: pysm120.Device, rng: np.random.Generator, threads: int) -> None:
    lines = random_program(rng, 60)
    program = assemble(lines)
    warp = (threads - 1) // 32
    with device.trace(warp=warp, cta=(1,)) as found:
        device.load(program)["k"](2, threads)
    exists = np.arange(32) < threads - 32 * warp
    i = (np.arange(32) + 32 * warp).astype(np.uint32)
    now: dict[str, Any] = {f"r{k}": i * np.uint32(2 * k + 3) + np.uint32(k * 0x9E3779B9 & 0xFFFFFFFF) for k in range(6)}
    now |= {f"p{k}": now[f"r{k}"] > now[f"r{k + 1}"] for k in range(3)}
    steps = found.steps[10:-1]
    assert [s.instruction.text for s in steps] == [str(line)[:-1] for line in lines]
    for step, line in zip(steps, lines, strict=True):
        guard = line.guard.lstrip("!")
        mask = exists & (now[guard] ^ line.guard.startswith("!") if guard else True)
        assert step.mask == sum(1 << int(lane) for lane in np.nonzero(mask)[0])
        assert step.active == sum(1 << int(lane) for lane in np.nonzero(exists)[0])
        assert step.guard == line.guard
        assert {r.name for r in step.reads} == set(line.sources)
        for register in step.reads:
            assert np.array_equal(register.values[exists], now[register.name][exists])
        result = MODEL[line.opcode](now[line.sources[0]], now[line.sources[1]])
        now[line.to] = np.where(mask, result, now[line.to])
        (written,) = step.writes
        assert written.name == line.to
        assert np.array_equal(written.values[exists], now[line.to][exists])
        assert step.instruction.line == step.instruction.text_line
        assert program.splitlines()[step.instruction.line - 1] == str(line)


# Two warps meet at a barrier; shared memory holds what warp 0 wrote.
MEETING = (
    HEAD
    + """.visible .entry k(.param .u64 out) {
.shared .align 16 .f32 s[64];
.reg .b32 i, at; .reg .b64 x; .reg .f32 f; .reg .pred first, p;
ld.param.u64 x, [out];
mov.u32 i, %tid.x;
mov.u32 at, s;
mad.lo.u32 at, i, 4, at;
cvt.rn.f32.u32 f, i;
setp.lt.u32 first, i, 32;
@first st.shared.f32 [at], f;
bar.sync 0;
@!first ld.shared.f32 f, [at+-128];
mad.wide.u32 x, i, 4, x;
st.global.f32 [x], f;
ret;
}
"""
)


def line_of(program: str, start: str) -> int:
    """Return the line that begins so."""
    return 1 + next(k for k, line in enumerate(program.splitlines()) if line.startswith(start))


def test_break_shows_registers_shared_memory_and_the_other_warps(device: pysm120.Device) -> None:
    out = device.zeros(64)
    kernel = device.load(MEETING)["k"]
    line = line_of(MEETING, "@!first ld")
    with device.break_at(line, warp=1, shared=(1024, 128)) as found:
        kernel(1, 64, out)
    stop = found.stop
    assert stop is not None
    assert (stop.step.instruction.line, stop.step.warp, stop.step.guard) == (line, 1, "!first")
    assert stop.step.active == stop.step.mask == 0xFFFFFFFF
    registers = {r.name: r for r in stop.registers}
    assert set(registers) == {"x", "i", "at", "f", "first", "%tid.x"}  # p was never written
    assert np.array_equal(registers["i"].values, np.arange(32, 64))
    assert np.array_equal(registers["f"].values, np.arange(32, 64))
    assert registers["f"].type == "f32"
    assert not registers["first"].values.any()
    assert np.array_equal(np.frombuffer(stop.shared, np.float32), np.arange(32))
    here, there = (next(x for x in stop.lanes if x.warp == w) for w in (1, 0))
    assert here.is_here
    assert not there.is_here
    assert not out.numpy()[32:].any()  # the launch ended there

    with device.break_at(line_of(MEETING, "bar.sync"), hits=2) as found:
        kernel(1, 64, out)
    assert found.stop is not None
    waiting = next(x for x in found.stop.lanes if not x.is_here)
    assert waiting.waits_for == "barrier 0: 32 of 64 threads have arrived"
    assert waiting.next.text == "bar.sync 0"
    assert found.hits == 2


def test_break_that_is_never_reached_changes_nothing(device: pysm120.Device) -> None:
    out = device.zeros(64)
    for options in ({"warp": 7}, {"cta": (1,)}, {"hits": 3}, {"file": "other.ptx"}):
        with device.break_at(line_of(MEETING, "bar.sync"), **options) as found:
            device.load(MEETING)["k"](1, 64, out)
        assert found.stop is None
        assert np.array_equal(out.numpy(), np.tile(np.arange(32), 2))


def test_files_of_line_markers(device: pysm120.Device) -> None:
    program = MEETING.replace("mov.u32 i,", '#line 70 "ptx/some/template.ptx"\nmov.u32 i,')
    for file, reached in (("ptx/some/template.ptx", True), ("template.ptx", True), ("late.ptx", False), (None, True)):
        with device.break_at(71, file=file) as found:
            device.load(program, name="own.ptx")["k"](1, 64, device.zeros(64))
        assert (found.stop is not None) == reached
        if found.stop:
            assert found.stop.step.instruction.place == "ptx/some/template.ptx:71"
            assert program.splitlines()[found.stop.step.instruction.text_line - 1] == "mov.u32 at, s;"
    with device.break_at(7, file="own.ptx") as found:
        device.load(program, name="own.ptx")["k"](1, 64, device.zeros(64))
    assert found.stop
    assert found.stop.step.instruction.text == "ld.param.u64 x, [out]"


FUNCTION = (
    HEAD
    + """.func (.reg .b32 back) twice(.reg .b32 value) {
add.u32 back, value, value;
ret;
}
.visible .entry k() {
.reg .b32 a, b;
mov.u32 a, %laneid;
call (b), twice, (a);
xor.b32 a, a, b;
ret;
}
"""
)


def test_functions(device: pysm120.Device) -> None:
    kernel = device.load(FUNCTION)["k"]
    with device.break_at(line_of(FUNCTION, "add.u32")) as found:
        kernel(1, 32)
    assert found.stop
    assert found.stop.step.function == "twice"
    assert {r.name for r in found.stop.registers} == {"value"}
    with device.trace(lines=(line_of(FUNCTION, "xor"),) * 2) as trace:
        kernel(1, 32)
    (step,) = trace
    assert step.function == ""
    assert np.array_equal(step.writes[0].values, np.arange(32) ^ 2 * np.arange(32))


def test_loops_and_divergence(device: pysm120.Device) -> None:
    program = text(
        """
    mov.u32 a, 0;
again:
    add.u32 a, a, 1;
    setp.lt.u32 p, a, i;
@p  bra again;
"""
    )
    with device.trace() as found:
        device.load(program)["k"](1, 32, device.zeros(4, np.uint32))
    adds = [s for s in found if s.instruction.opcode == "add.u32"]
    assert len(adds) == 31
    for n, step in enumerate(adds):
        inside = sum(1 << lane for lane in range(32) if lane > n or n == 0)
        assert step.mask == inside


def test_limit_and_quiet(device: pysm120.Device) -> None:
    kernel = device.load(MEETING)["k"]
    seen: list[watch.Step] = []
    with device.trace(limit=5, see=seen.append) as found:
        kernel(1, 64, device.zeros(64))
    assert found.is_cut
    assert len(found) == 5 == len(seen)
    with device.trace(see=lambda step: step.instruction.opcode == "bar.sync", keep=False) as found:
        kernel(1, 64, device.zeros(64))
    assert not found.is_cut
    assert not found.steps


def test_looking_changes_no_result(rng: np.random.Generator) -> None:
    seed = int(rng.integers(1, 1 << 32))
    # the last warp to come stores: an order that is the seed's
    program = text("shr.u32 b, i, 5;\nst.relaxed.gpu.global.u32 [x], b;\natom.global.add.u32 a, [x + 4], 1;")
    results = []
    for looks in (False, True):
        with pysm120.Device(f"virtual?checks=full&seed={seed}") as device:
            x = device.zeros(4, np.uint32)
            kernel = device.load(program)["k"]
            if looks:
                with device.trace(cta=None, warp=None):
                    kernel(4, 256, x)
            else:
                kernel(4, 256, x)
            results.append(x.numpy().tolist())
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("body", "opcode", "is_asynchronous"),
    [
        ("st.relaxed.gpu.global.u32 [x], i;", "st.relaxed.gpu.global.u32", False),
        ("red.global.max.u32 [x], i;", "red.global.max.u32", False),
        ("atom.global.exch.b32 a, [x], i;", "atom.global.exch.b32", False),
        (
            """
    setp.ne.u32 p, i, 0;
@p  bra done;
    st.shared.u32 [at], 77;
    fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [x], [at], 16;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
done:
""",
            "cp.async.bulk.global.shared::cta.bulk_group",
            True,
        ),
    ],
)
def test_changes_of_memory(device: pysm120.Device, body: str, opcode: str, is_asynchronous: bool) -> None:
    x = device.zeros(8, np.uint32)
    with device.changes(x, 0, 4) as found:
        device.load(text(body))["k"](1, 64, x)
    assert found
    last = found[-1]
    assert last.step.instruction.opcode == opcode
    assert last.step.is_asynchronous == is_asynchronous
    assert last.value == x.numpy()[:1].tobytes()
    values = [change.value for change in found]
    assert all(a != b for a, b in itertools.pairwise(values))
    with device.changes(x, 28, 4) as found:
        device.load(text(body))["k"](1, 64, x)
    assert not found


def test_bytes_must_be_of_the_array(device: pysm120.Device) -> None:
    x = device.zeros(8, np.uint32)
    for offset, nbytes in ((0, 0), (0, 65), (29, 4), (-1, 4)):
        with pytest.raises(InvalidArgumentError, match="bytes of 32"), device.changes(x, offset, nbytes):
            pass
    device.close()
    with pytest.raises(pysm120.ClosedError), device.changes(x, 0, 4):
        pass


def test_arguments(device: pysm120.Device) -> None:
    for options in ({"line": 0}, {"line": -1}, {"line": 1 << 32}, {"line": 3, "hits": 0}, {"line": 3, "warp": -1}):
        with pytest.raises(InvalidArgumentError), device.break_at(**options):  # type: ignore[arg-type]
            pass
    with pytest.raises(InvalidArgumentError), device.trace(lines=(5, 4)):
        pass
    with pytest.raises(InvalidArgumentError, match="cta"), device.trace(cta=(0, -1)):
        pass
    with (
        pytest.raises(InvalidArgumentError, match="the CTA has 256 bytes, from address 0x400 on"),
        device.break_at(line_of(MEETING, "bar.sync"), shared=(1024, 257)),
    ):
        device.load(MEETING)["k"](1, 64, device.zeros(64))
    device.load(MEETING)["k"](1, 64, device.zeros(64))  # nobody looks any more


def test_failure_of_a_callback_ends_the_launch(device: pysm120.Device) -> None:
    def see(_step: watch.Step) -> None:
        message = "enough"
        raise KeyError(message)

    with pytest.raises(KeyError, match="enough"), device.trace(see=see):
        device.load(MEETING)["k"](1, 64, device.zeros(64))


def test_one_watcher_at_a_time(device: pysm120.Device) -> None:
    with device.trace() as found:
        with pytest.raises(InvalidArgumentError, match="is watched already"), device.break_at(3):
            pass
        with pysm120.Device("virtual") as other, other.trace() as others:
            other.load(MEETING)["k"](1, 32, other.zeros(64))
        device.load(MEETING)["k"](1, 32, device.zeros(64))
    assert len(found) == len(others) > 0
    with device.trace():
        device.close()


def test_a_launch_that_outlives_its_watcher(device: pysm120.Device) -> None:
    kernel, out = device.load(MEETING)["k"], device.zeros(64)
    begun, left = threading.Event(), threading.Event()

    def see(_step: watch.Step) -> None:
        begun.set()
        left.wait(60)

    thread = threading.Thread(target=kernel, args=(64, 64, out))
    with device.trace(cta=None, see=see, file="<ptx>") as found:
        thread.start()
        assert begun.wait(60)
    left.set()
    thread.join()
    assert len(found) == 1
    assert np.array_equal(out.numpy(), np.tile(np.arange(32), 2))


def test_faults_of_the_kernel_are_raised(device: pysm120.Device) -> None:
    with pytest.raises(FaultError, match="data race"), device.trace():
        device.load(text("@q  st.shared.b32 [at], a;\n@p  ld.shared.b32 b, [at];"))["k"](1, 64, device.zeros(8))


def test_a_callback_starts_and_closes_nothing(device: pysm120.Device) -> None:
    module, out = device.load(MEETING), device.zeros(64)
    kernel = module["k"]
    complaints = []

    def see(_step: watch.Step) -> None:
        for call in (partial(kernel, 1, 64, out), device.close):
            with pytest.raises(pysm120.Error) as refused:
                call()
            complaints.append(str(refused.value))
        for status in (
            lib.sm120_device_close(device.handle.pointer),
            lib.sm120_module_unload(module._pointer),
        ):
            assert status == lib.SM120_INVALID_ARGUMENT
            complaints.append(ffi.string(lib.sm120_last_error()).decode())
        pysm120.Device("virtual").close()
        device.load(FUNCTION).close()
        complaints.append(str(out.numpy()[0]))

    with device.trace(lines=(line_of(MEETING, "bar.sync"),) * 2, see=see):
        kernel(1, 64, out)
    wanted = ["cannot start a launch", "must not close its device", *["must not close an object"] * 2, "0.0"]
    assert len(complaints) == len(wanted)
    assert all(part in said for part, said in zip(wanted, complaints, strict=True))
    assert np.array_equal(device.zeros(3).numpy(), np.zeros(3))


def test_calls_in_a_callback_keep_how_the_device_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSM120_CHECKS", "default")
    race = text("@q  st.shared.b32 [at], a;\n@p  ld.shared.b32 b, [at];")
    with pysm120.Device("virtual?checks=off") as device:
        x = device.zeros(8)
        with device.trace(see=lambda _step: x.numpy() is None):
            device.load(race)["k"](3, 64, x)
        device.load(race)["k"](1, 64, x)


def test_a_step_is_over_when_its_callback_is(device: pysm120.Device) -> None:
    kept: list[Any] = []

    def keep(pointer: Any) -> bool:
        kept.append(pointer)
        return False

    with watch.watching(device, keep, moment=lib.SM120_BEFORE):
        device.load(MEETING)["k"](1, 32, device.zeros(64))
    info, register, lanes = (new_struct(f"sm120_{name}_info") for name in ("step", "register", "lanes"))
    for step in (kept[0], ffi.NULL, ffi.cast("sm120_step *", 8)):
        for status in (
            lib.sm120_step_query(step, info),
            lib.sm120_step_register(step, 0, 0, register),
            lib.sm120_step_lanes(step, 0, lanes),
            lib.sm120_step_shared(step, 1024, ffi.new("char[4]"), 4),
        ):
            assert status == lib.SM120_INVALID_ARGUMENT
            assert b"the step is not valid" in ffi.string(lib.sm120_last_error())


def watch_with(**fields: object) -> Any:
    """Make a watch that is right but for some fields."""
    raw = new_struct("sm120_watch")
    raw.moment = lib.SM120_AFTER
    raw.see = ffi.cast("int32_t(*)(void *, sm120_step const *)", 1)
    for name, value in fields.items():
        setattr(raw, name, value)
    return raw


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"see": ffi.NULL}, b"watch->see is NULL"),
        ({"moment": 2}, b"watch->moment = 2"),
        ({"bytes": 65}, b"watch->bytes = 65"),
        ({"bytes": 1, "moment": 0}, b"with watch->bytes it must be SM120_AFTER"),
        ({"first_line": 2, "last_line": 1}, b"it must be at least watch->first_line = 2"),
        ({"reserved": 1}, b"watch->reserved = 1"),
        ({"size": 8}, b"watch->size = 8"),
    ],
)
def test_watches_are_checked(device: pysm120.Device, fields: dict[str, object], complaint: bytes) -> None:
    assert lib.sm120_device_watch(device.handle.pointer, watch_with(**fields)) == lib.SM120_INVALID_ARGUMENT
    assert complaint in ffi.string(lib.sm120_last_error())


def test_memory_that_is_watched_must_exist(device: pysm120.Device) -> None:
    raw = watch_with(address=4096, bytes=4)
    assert lib.sm120_device_watch(device.handle.pointer, raw) == lib.SM120_OK
    with pytest.raises(pysm120.Error, match="the watched memory"):
        device.load(MEETING)["k"](1, 32, device.zeros(64))


def test_instructions(device: pysm120.Device) -> None:
    found = watch.instructions(device.load(FUNCTION)["k"])
    assert [i.text for i in found if "{" not in i.text][:5] == [
        "mov.u32 a, %laneid",
        "call (b), twice, (a)",
        "call (b), twice, (a)",
        "call (b), twice, (a)",
        "xor.b32 a, a, b",
    ]
    program = MEETING.replace("bar.sync 0;", "bar.sync // all of\n\t/* us */ 0 ;")
    assert "bar.sync 0" in [i.text for i in watch.instructions(device.load(program)["k"])]
