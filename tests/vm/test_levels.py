"""Levels of strictness and seeds: how they are chosen, and that a seed fixes every bit."""

import numpy as np
import pytest
from broken.planted import text

import pysm120

pytestmark = pytest.mark.virtual

RACE = text("@q  st.shared.b32 [at], a;\n@p  ld.shared.b32 b, [at];")

# a sum whose rounding depends on the order of its terms, within a CTA and between CTAs
SUM = text(
    """
    mad.lo.u32 a, n, 64, i;
    cvt.rn.f32.u32 a, a;
    mul.f32 a, a, 0f3F8147AE;
    red.global.add.f32 [x], a;
    atom.global.inc.u32 b, [x + 4], 1000000;
    mad.lo.u32 a, n, 64, i;
    mad.wide.u32 x, a, 4, x;
    st.global.b32 [x + 8], b;
"""
)


def run(name: str, program: str, ctas: int = 1) -> bytes:
    """Run a program on a new device and return its memory."""
    with pysm120.Device(name) as device:
        x = device.array(np.zeros(4096, np.uint32))
        device.load(program)["k"](ctas, 64, x)
        return x.numpy().tobytes()


@pytest.mark.parametrize(
    ("name", "variable", "caught"),
    [
        ("virtual", None, True),
        ("virtual:0", "default", True),
        ("virtual", "full", True),
        ("virtual", "off", False),
        ("virtual?checks=off", None, False),
        ("virtual:0?checks=off&seed=3", "full", False),
        ("virtual?seed=3&checks=default", "off", True),
        ("virtual?seed=18446744073709551615", "off", False),
        ("virtual?checks=full", "off", True),
    ],
)
def test_level(monkeypatch: pytest.MonkeyPatch, name: str, variable: str | None, caught: bool) -> None:
    monkeypatch.delenv("PYSM120_CHECKS", raising=False)
    if variable:
        monkeypatch.setenv("PYSM120_CHECKS", variable)
    if caught:
        with pytest.raises(pysm120.FaultError, match="data race"):
            run(name, RACE)
    else:
        run(name, RACE)


def test_devices_of_two_levels() -> None:
    with pysm120.Device("virtual?checks=off") as lax, pysm120.Device("virtual?checks=default") as strict:
        x, y = lax.zeros(1024, np.uint32), strict.zeros(1024, np.uint32)
        first, second = lax.load(RACE)["k"], strict.load(RACE)["k"]
        for _ in range(2):
            first(1, 64, x)
            with pytest.raises(pysm120.FaultError, match="data race"):
                second(1, 64, y)


@pytest.mark.parametrize(
    "name",
    [
        "virtual?",
        "virtual?check=full",
        "virtual?checks=",
        "virtual?checks=fullest",
        "virtual?seed=",
        "virtual?seed=-1",
        "virtual?seed=0x7",
        "virtual?checks=off&",
        "virtual?checks=off,seed=1",
        "virtual??checks=off",
        "virtual:0 ?seed=1",
        "virtual?seed=18446744073709551616",
        "virtual?seed=99999999999999999999",
        "virtual:x?seed=1",
        "cuda?checks=off",
        "virtualx",
        "virtual:00000000?seed=1",
        "virtual?checks=offseed=1",
        "virtual?seed=" + "1" * 300,
    ],
)
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(pysm120.InvalidArgumentError):
        pysm120.Device(name)


def test_a_level_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSM120_CHECKS", "strict")
    with pytest.raises(pysm120.Error, match=r"PYSM120_CHECKS is .strict., expected off, default or full"):
        run("virtual", SUM)


def test_a_seed_fixes_every_bit_at_full(monkeypatch: pytest.MonkeyPatch) -> None:
    results: dict[int, set[bytes]] = {}
    for seed in (0, 1, 2, 3):
        for threads in ("1", "2", "7"):
            monkeypatch.setenv("PYSM120_THREADS", threads)
            for _ in range(2):
                results.setdefault(seed, set()).add(run(f"virtual?checks=full&seed={seed}", SUM, 37))
    assert all(len(bits) == 1 for bits in results.values())
    assert len({next(iter(bits)) for bits in results.values()}) == len(results)  # and another seed, another order


@pytest.mark.parametrize("level", ["off", "default"])
def test_a_seed_fixes_every_cta(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    body = """
    st.shared.b32 [at + 1024], 0;
    bar.sync 0;
    mov.u32 a, %clock;
    atom.shared.exch.b32 b, [smem + 1024], i;
    mad.lo.u32 e, n, 64, i;
    mad.wide.u32 x, e, 8, x;
    st.global.v2.b32 [x], {a, b};
"""
    results: set[bytes] = set()
    for threads in ("1", "2", "7"):
        monkeypatch.setenv("PYSM120_THREADS", threads)
        body_right = body.replace("    st.shared", "@q  st.shared")
        results.add(run(f"virtual?checks={level}&seed=5", text(body_right), 31))
    assert len(results) == 1
