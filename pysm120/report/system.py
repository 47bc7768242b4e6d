"""What a machine is: GPUs, driver, clocks, power limit, processor, Python."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pysm120 import __version__
from pysm120.machine_code import tools
from pysm120.runtime import ffi
from pysm120.runtime.device import Device

QUERY = {
    "name": "GPU",
    "driver_version": "driver",
    "vbios_version": "VBIOS",
    "pcie.link.gen.current": "PCIe generation now",
    "pcie.link.width.current": "PCIe lanes now",
    "clocks.max.sm": "highest SM clock",
    "clocks.max.memory": "highest memory clock",
    "power.limit": "power limit",
    "power.max_limit": "highest power limit",
    "temperature.gpu": "temperature",
    "ecc.mode.current": "ECC",
}
SECONDS = 20  # limit of nvidia-smi, which hangs when the driver does


def smi(*fields: str) -> list[list[str]] | str:
    """Return the answers of nvidia-smi for each GPU, or why there are none."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return "nvidia-smi was not found: clocks, power limit and temperature are unknown"
    command = [path, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)  # noqa: S603
    except subprocess.TimeoutExpired:
        return f"nvidia-smi did not answer in {SECONDS} s: clocks, power limit and temperature are unknown"
    if done.returncode != 0:
        return f"nvidia-smi failed with status {done.returncode}: {(done.stdout + done.stderr).strip()[:200]}"
    return [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()]


def _processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{named or platform.processor() or platform.machine()}, {os.cpu_count()} processors"


def _package(name: str) -> str:
    """Return the version of a package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def rows(device_name: str | None) -> Iterator[dict[str, Any]]:
    """Yield the facts: first the device that the report is about, then the machine."""
    with Device(device_name) as device:
        info = device.info
        yield {"name": "device", "value": str(device), "virtual": info.is_virtual, "chip": info.name}
        yield {"name": "name", "value": info.name}
        yield {"name": "compute capability", "value": f"{info.capability[0]}.{info.capability[1]}"}
        yield {"name": "multiprocessors", "value": info.multiprocessors}
        yield {"name": "memory", "value": f"{info.memory_bytes / 2**30:.1f} GiB"}
        yield {"name": "L2", "value": f"{info.l2_bytes / 2**20:.0f} MiB"}
        yield {"name": "shared memory of a CTA", "value": f"{info.shared_bytes_per_block:,} bytes"}
        if not info.is_virtual:
            yield {"name": "clock by the driver", "value": f"{info.clock_khz / 1000:.0f} MHz"}
            yield {
                "name": "CUDA of the driver",
                "value": f"{info.driver_version // 1000}.{info.driver_version % 1000 // 10}",
            }
            found = smi(*QUERY)
            if isinstance(found, str):
                yield {"name": "nvidia-smi", "value": found}
            else:
                for number, answers in enumerate(found):
                    for name, value in zip(QUERY.values(), answers, strict=False):
                        yield {"name": name if len(found) == 1 else f"{name} ({number})", "value": value}
    yield {"name": "pysm120", "value": f"{__version__}, library {ffi.version()}"}
    yield {"name": "CUDA devices", "value": ffi.device_count("cuda")}
    yield {"name": "system", "value": platform.platform()}
    yield {"name": "processor", "value": _processor()}
    yield {"name": "Python", "value": f"{platform.python_version()} ({platform.python_implementation()})"}
    for name in ("numpy", "torch"):
        yield {"name": name, "value": _package(name)}
    for name in ("ptxas", "nvdisasm"):
        yield {"name": name, "value": "found" if tools.locate(name) else "not found: loops are not measured"}
