"""Tasks that fail, each in a way of its own. Children of a report import this file by its name."""

import os
import signal
import time
from collections.abc import Iterator
from typing import NoReturn

import numpy as np

from pysm120.report.bench import Bench, Outcome

STORE = """
.version 8.7
.target sm_90
.address_size 64
.visible .entry store(.param .u64 param_out, .param .u32 param_at, .param .u32 param_rounds)
{
    .reg .b64 out, offset;
    .reg .b32 at, rounds;
    .reg .pred more;
    ld.param.u64 out, [param_out];
    ld.param.u32 at, [param_at];
    ld.param.u32 rounds, [param_rounds];
    mul.wide.u32 offset, at, 4;
    add.u64 out, out, offset;
again:
    st.volatile.global.f32 [out], 0f3f800000;
    setp.ne.u32 more, rounds, 0;
@more bra again;
    ret;
}
"""


def stores(bench: Bench, *, at: int = 0, wanted: float = 1.0, rounds: int = 0) -> Iterator[Outcome]:
    """Store 1 at one place of four, after a result that is right."""
    yield Outcome("first", np.ones(3), np.ones(3))
    out = bench.out((4,), np.float32)
    bench.device.load(STORE)["store"](1, 1, out, np.uint32(at), np.uint32(rounds))
    bench.device.synchronize()
    yield bench.outcome("stored", out[:1] if at < 4 else out, np.full(1 if at < 4 else 4, wanted, np.float32), 1e-6)


def hangs(bench: Bench) -> Iterator[Outcome]:
    """Hang on the host."""
    yield Outcome("first", np.ones(3), np.ones(3))
    time.sleep(3600)
    yield Outcome(str(bench), np.ones(3), np.ones(3))


def dies(bench: Bench) -> Iterator[Outcome]:
    """Die of a signal."""
    yield Outcome("first", np.ones(3), np.ones(3))
    os.kill(os.getpid(), signal.SIGSEGV)
    yield Outcome(str(bench), np.ones(3), np.ones(3))


def raises(device: str) -> NoReturn:
    """Raise what is no error of the library."""
    message = f"no {device}"
    raise KeyError(message)


def exits(device: str) -> NoReturn:
    """End the process without a word."""
    os._exit(len(device) and 3)
