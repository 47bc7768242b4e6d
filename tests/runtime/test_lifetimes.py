"""What one thread or process does to memory while another uses it: each in a process of its own, which must survive."""

import processes
import pytest

pytestmark = pytest.mark.virtual

HEAD = """
import os, signal, sys, threading, time
import numpy as np
import pysm120
"""


def survives(program: str, **environment: str) -> None:
    """Run a program whose threads answer kernels on a busy machine."""
    processes.survives(HEAD + program, PYSM120_PATIENCE="20000", **environment)


def test_free_beside_a_copy() -> None:
    survives(
        """
device = pysm120.Device("virtual")

def copy(x):
    try:
        x.numpy()
    except pysm120.ClosedError:
        pass

for _ in range(25):
    x = device.zeros(32 << 20, np.uint8)
    thread = threading.Thread(target=copy, args=(x,))
    thread.start()
    time.sleep(0.003)
    x.free()
    thread.join()
"""
    )


SPIN = '''
device = pysm120.Device("virtual")
flag, out = device.pinned(1, np.uint32), device.zeros(1, np.uint32)
flag[0] = 0
module = device.load(""".version 8.8
.target sm_120f
.address_size 64
.visible .entry spin(.param .u64 flag, .param .u64 from, .param .u64 to) {
    .reg .b64 a; .reg .b32 r; .reg .pred q;
    ld.param.u64 a, [flag];
again:
    ld.volatile.global.u32 r, [a]; setp.eq.u32 q, r, 0; @q bra again;
    ld.param.u64 a, [from]; ld.global.u32 r, [a];
    ld.param.u64 a, [to]; st.global.u32 [a], r; ret;
}
.visible .entry read(.param .u64 from) {
    .reg .b64 a; .reg .b32 r;
    ld.param.u64 a, [from]; ld.global.u32 r, [a]; ret;
}""")
'''


def test_allocate_and_free_beside_a_launch() -> None:
    """Neither waits; what the launch was given stays until it ends, and no later launch may have it."""
    survives(
        SPIN
        + """
x = device.array(np.full(4096, 7, np.uint32))
address = x.address
beside = {"stream": device.stream()}
thread = threading.Thread(target=module["spin"], args=(1, 32, flag, np.uint64(address), out), kwargs=beside)
thread.start()
time.sleep(0.2)
started = time.perf_counter()
others = [device.zeros(100, np.uint32) for _ in range(50)]
x.free()
del others
assert time.perf_counter() - started < 5
assert device.array(np.arange(5)).numpy().tolist() == [0, 1, 2, 3, 4]
try:
    module["read"](1, 32, np.uint64(address))
except pysm120.FaultError as error:
    assert "use after free" in str(error), error
else:
    raise AssertionError("a freed address was read")
assert thread.is_alive()
flag[0] = 1
thread.join(20)
assert not thread.is_alive()
assert out.numpy()[0] == 7
""",
        PYSM120_THREADS="2",
    )


CHILD = """
child = os.fork()
if child == 0:
    signal.alarm(30)
    use()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_fork_between_launches() -> None:
    survives(
        """
q = np.random.default_rng(0).standard_normal((1, 256, 4, 64)).astype(np.float32)

def use():
    for _ in range(5):
        pysm120.attention(q, q, q)

use()
"""
        + CHILD
        + "use()",
        PYSM120_THREADS="4",
    )


def test_fork_beside_a_launch() -> None:
    """The child has its own device: the launch of the parent is not in it, nor what that waits for."""
    survives(
        SPIN
        + """
thread = threading.Thread(target=module["spin"], args=(64, 32, flag, out, out))
thread.start()
time.sleep(0.2)

def use():
    x = device.array(np.arange(100, dtype=np.uint32))
    module["read"](64, 32, x)
    assert x.numpy()[99] == 99
    x.free()
    device.close()
    with pysm120.Device("virtual") as other:
        other.array(np.arange(3)).numpy()
"""
        + CHILD
        + """
flag[0] = 1
thread.join(20)
assert not thread.is_alive()
""",
        PYSM120_THREADS="4",
    )


def test_garbage_collected_inside_the_parser_of_types() -> None:
    """A finalizer may be the first use of a function; the parser of cffi holds a lock at that time."""
    survives(
        """
import faulthandler, gc
from pysm120.runtime.ffi import ffi
faulthandler.dump_traceback_later(60, exit=True)
gc.disable()
device = pysm120.Device("virtual")

def kinds():
    yield lambda: device.array(np.zeros(4, np.float32))
    yield lambda: device.pinned(4)
    yield device.stream
    yield device.event
    yield lambda: pysm120.Device("virtual")

for number, make in enumerate(kinds()):
    cycle = []
    cycle.append((cycle, make()))
    del cycle
    gc.set_threshold(1)
    gc.enable()
    ffi.cast(f"uint8_t(*)[{4711 + number}]", 0)
    gc.disable()
    gc.collect()
device.close()
"""
    )


def test_garbage_collected_inside_a_callback() -> None:
    """A callback runs in the middle of a launch; the memory, streams and devices that it lets go are freed there."""
    survives(
        """
import faulthandler, gc
from pysm120.observe.watch import watching
faulthandler.dump_traceback_later(60, exit=True)
device = pysm120.Device("virtual")
seen = []

def see(step):
    seen.append(step)
    cycle = [device.array(np.zeros(4)), device.pinned(4), device.stream(), pysm120.Device("virtual")]
    cycle.append(cycle)
    del cycle
    gc.collect()
    return len(seen) == 3

x = np.zeros((1, 16, 1, 64), np.float32)
with watching(device, see, moment=0):
    try:
        pysm120.attention(x, x, x, device=device)
    except pysm120.Error as error:
        print(error)
assert len(seen) == 3
assert pysm120.attention(x, x, x, device=device).shape == x.shape
"""
    )


def test_signal_handler_uses_the_shared_device() -> None:
    """A handler runs between any two bytecodes of the main thread: while the device is opened, within a launch."""
    survives(
        """
import faulthandler
faulthandler.dump_traceback_later(60, exit=True)
x = np.random.default_rng(0).standard_normal((1, 64, 1, 64)).astype(np.float32)
calls = []

def handle(number, frame):
    calls.append(pysm120.attention(x, x, x, device="virtual"))
    signal.setitimer(signal.ITIMER_REAL, 0.003 * len(calls))

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.001)
while len(calls) < 8:
    last = pysm120.attention(x, x, x, device="virtual")
signal.setitimer(signal.ITIMER_REAL, 0)
for call in calls:
    np.testing.assert_array_equal(call, last)
""",
        PYSM120_THREADS="2",
    )
