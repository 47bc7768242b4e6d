"""Variables of the environment: what is right, and one sentence for what is not."""

import ctypes
import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from micro import run

import pysm120

pytestmark = pytest.mark.virtual

PTX = """
.version 8.7
.target sm_120f
.address_size 64
.visible .entry k() { ret; }
"""
BAD = {
    "PYSM120_VIRTUAL_DEVICES": ["0", "17", "abc", "1 ", "-1"],
    "PYSM120_VIRTUAL_MEMORY": ["24G", "abc", "0", "-1", "0x", "1e9", "99999999999999999999999", "18446744073709551615"],
    "PYSM120_VM_ISA": ["v5", "avx2", "V3"],
    "PYSM120_VIRTUAL_CAPABILITY": ["13", "9.0", "sm_90", "0"],
    "PYSM120_THREADS": ["0", "-2", "1025", "two", "2.0", "+2"],
    "PYSM120_SEED": ["seven", "-1", "0xg", "18446744073709551616"],
    "PYSM120_CHECKS": ["strict", "0"],
    "PYSM120_INSTRUCTION_LIMIT": ["0", "1M"],
    "PYSM120_PATIENCE": ["-1", "1s", "86400001"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_bad_values_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with (
        pytest.raises(pysm120.InvalidArgumentError) as caught,
        pysm120.Device("virtual") as device,
    ):
        device.load(PTX)["k"](1, 32)
    assert f'{name} is "{value}", expected ' in str(caught.value)


def test_right_values_are_taken() -> None:
    right = {
        "PYSM120_VIRTUAL_DEVICES": "2",
        "PYSM120_VIRTUAL_MEMORY": "0x100000",
        "PYSM120_VM_ISA": "v4",
        "PYSM120_VIRTUAL_CAPABILITY": "12",
        "PYSM120_THREADS": "1024",
        "PYSM120_SEED": "18446744073709551615",
        "PYSM120_CHECKS": "full",
        "PYSM120_INSTRUCTION_LIMIT": "08",
        "PYSM120_PATIENCE": "0",
    }
    program = f"""if True:
        import pysm120
        with pysm120.Device("virtual:1") as device:
            device.load({PTX!r})["k"](1, 32)
            print(device.info.memory_bytes, pysm120.runtime.ffi.device_count("virtual"))
    """
    for environment in (right, dict.fromkeys(right, "")):
        command = [sys.executable, "-c", program if environment is right else program.replace("virtual:1", "virtual")]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        expected = "1048576 2" if environment is right else f"{24 << 30} 1"
        assert done.stdout.split() == expected.split()


def test_kernels_of_a_gpu_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """With capability 9 the library runs what a Hopper GPU would, with 8 it says that it has nothing for that."""
    q, k, v = np.random.default_rng(9).standard_normal((3, 1, 70, 2, 48), np.float32)
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", "9")
    with pysm120.Device("virtual") as device:
        assert device.info.capability == (9, 0)
        assert device.info.name == "virtual SM120 as sm_90"
        assert device.info.shared_bytes_per_block == device.info.shared_bytes_per_multiprocessor - 1024 == 232448
        kernel = device.load(PTX.replace("sm_120f", "sm_90"))["k"]
        assert [kernel.occupancy(32, n) for n in (115712, 115713, 232448)] == [2, 1, 1]
        kernel(1, 32, shared=232448)
        with pytest.raises(pysm120.InvalidArgumentError, match="at most 232448"):
            kernel(1, 32, shared=232449)
        hopper = pysm120.attention(q, k, v, precision="mxfp8", device=device)
    monkeypatch.setenv("PYSM120_VIRTUAL_CAPABILITY", "8")
    with (
        pysm120.Device("virtual") as device,
        pytest.raises(pysm120.UnsupportedError, match=r"compute capability 8\.0; the kernels .* run on 12\.x and 9\.x"),
    ):
        pysm120.attention(q, k, v, precision="mxfp8", device=device)
    monkeypatch.delenv("PYSM120_VIRTUAL_CAPABILITY")
    with pysm120.Device("virtual") as device:
        own = pysm120.attention(q, k, v, precision="mxfp8", device=device)
    assert not np.array_equal(own, hopper), "the products are rounded at different places"
    np.testing.assert_allclose(own, hopper, atol=1e-4 * np.abs(own).max())


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="reads glibc's fenv_t of x86-64")
def test_the_floating_point_environment_of_the_host_does_not_matter(
    device: pysm120.Device, rng: np.random.Generator
) -> None:
    """Flushed subnormals, as in callbacks of XLA, and rounding upwards; afterwards the host has them again."""
    math = ctypes.CDLL("libm.so.6")
    x, y = rng.standard_normal((2, 128)).astype(np.float32) * np.float32(1e-38)
    body = "mul.rn.f32 f0, in0, 0f3f000000; add.rn.f32 out0, f0, in1; mul.f32 out1, in0, 0f3eaaaaab;"
    wanted = run(device, body, [x, y], ["f4", "f4"])
    assert (np.abs(wanted[1][wanted[1] != 0]) < np.finfo(np.float32).tiny).any()
    before, changed, after = (ctypes.create_string_buffer(64) for _ in range(3))
    math.fegetenv(before)
    mxcsr = ctypes.c_uint32.from_buffer(changed, 28)
    ctypes.memmove(changed, before, 64)
    mxcsr.value |= 0x8000 | 0x0040 | 0x4000  # flush to zero, subnormals are zeros, round upwards
    try:
        math.fesetenv(changed)
        found = run(device, body, [x, y], ["f4", "f4"])
        math.fegetenv(after)
    finally:
        math.fesetenv(before)
    for got, best in zip(found, wanted, strict=True):
        assert got.tobytes() == best.tobytes()
    assert ctypes.c_uint32.from_buffer(after, 28).value & 0xE040 == 0xC040
