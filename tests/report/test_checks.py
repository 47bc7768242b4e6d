"""The checks of a report: they pass on the device at hand, and their references agree with other definitions."""

import importlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

import pysm120
from pysm120.report import bench, reference
from pysm120.report.tasks import Task, tasks
from pysm120.runtime.module import builtins

# Main kernels of gradients that Hopper chooses; the sum of split gradients; copies and quantisation of unusual strides.
NEVER = (
    r"attention_backward_b?f16_(128x128_d\d+|64x128_d(96|128)|64x64_d(192|256))|attention_backward_sum|copy_byte_rows"
    r"|copy_rows_rounded_b?f16|kv_cache_append_f32|quantize_mxfp8_\w+_any"
)
CHECKS = [task for task in tasks(quick=True) if task.section == "checks"]


def check_of(task: Task) -> bench.Check:
    """Return the function of a task with its options."""
    module, _, name = task.function.partition(":")
    return partial(getattr(importlib.import_module(module), name), **task.options)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("task", [pytest.param(task, id=task.name.replace(" ", "_")) for task in CHECKS])
def test_every_check_passes(device_name: str, task: Task, rng: np.random.Generator) -> None:
    rows = list(bench.rows_of(check_of(task), device_name, int(rng.integers(1 << 32))))
    assert rows
    assert [row for row in rows if row["status"] == "wrong"] == []


@pytest.mark.parametrize("kind", list(reference.GGUF))
def test_weights_are_those_of_the_gguf_package(kind: str, rng: np.random.Generator) -> None:
    raw = reference.gguf_blocks(rng, kind, 5, 512)
    wanted = dequantize(raw, gguf.GGMLQuantizationType[kind])  # rounded to float32
    np.testing.assert_allclose(reference.gguf_values(raw, kind), wanted, rtol=1e-6, atol=1e-6 * abs(wanted).max())


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 3.0}, {"sinks": np.array([0.5, 1.0])}])
def test_gradients_are_the_differences_of_attention(options: dict[str, Any], rng: np.random.Generator) -> None:
    q, k, v = rng.standard_normal((1, 3, 2, 4)), rng.standard_normal((1, 5, 1, 4)), rng.standard_normal((1, 5, 1, 4))
    dout, step = rng.standard_normal(q.shape), 1e-6
    for n, gradient in enumerate(reference.gradients(dout, q, k, v, **options)):
        for index in np.ndindex(gradient.shape):
            moved = []
            for sign in (1, -1):
                given = [x.copy() for x in (q, k, v)]
                given[n][index] += sign * step
                moved.append((dout * reference.attention(*given, **options)[0]).sum())
            assert gradient[index] == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x: x * 1.02, "relative error 2.00%, more than 1.00%"),
        (lambda x: np.where(np.arange(200)[:, None] == 77, 1.1 * x, x), "row (77,) is wrong"),
        (lambda x: np.where(np.arange(8) == 3, np.nan, x), "200 of 1,600 elements are nan"),
        (lambda x: x[:, :7], "shape (200, 7), not (200, 8)"),
    ],
)
def test_wrong_numbers_are_wrong(spoil: Callable[[Any], Any], message: str, rng: np.random.Generator) -> None:
    wanted = rng.standard_normal((200, 8)) + 3
    assert bench.judge(bench.Outcome("x", wanted.copy(), wanted, 0.01))["status"] == "right"
    found = bench.judge(bench.Outcome("x", spoil(wanted), wanted, 0.01))
    assert (found["status"], message in found["message"]) == ("wrong", True), found
    exact = bench.judge(bench.Outcome("x", np.nextafter(wanted, 9), wanted))
    assert exact["status"] == "wrong"


def test_results_beside_the_virtual_device() -> None:
    found = bench.beside({}, np.array([1.0, 2.0, np.inf]), np.array([1.0, 2.5, np.inf]))
    assert found["from_virtual"] == pytest.approx(0.5 / np.hypot(1, 2.5))
    assert found["equal_bytes"] == pytest.approx(23 / 24)


@pytest.mark.slow
@pytest.mark.virtual
def test_the_checks_launch_the_kernels() -> None:
    """As profiles say, the checks launch all but those kernels that only calls on Hopper, or rare calls, choose."""
    launched: set[str] = set()
    with pysm120.Device("virtual?checks=off") as device:
        for task in CHECKS[1:]:
            with device.profile() as profile:
                for _ in check_of(task)(bench.Bench(device, 1)):
                    pass
            launched |= {statement.kernel for statement in profile.statements}
    never = {builtin.entry for builtin in builtins()} - launched
    assert [entry for entry in sorted(never) if not re.fullmatch(NEVER, entry)] == []
