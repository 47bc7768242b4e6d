"""``info``: devices, driver and the kernels in the library."""

import argparse

from pysm120 import __version__
from pysm120.cli import console
from pysm120.cli.command import Command, add_device
from pysm120.runtime import ffi
from pysm120.runtime.device import Device
from pysm120.runtime.errors import Error
from pysm120.runtime.module import builtins


def driver_text(version: int) -> str:
    """Return a driver's version in its usual form."""
    return f"{version // 1000}.{version % 1000 // 10}" if version else "-"


def device_rows() -> list[tuple[str, ...]]:
    """Return a row for every device."""
    rows = []
    for kind in ("cuda", "virtual"):
        for ordinal in range(ffi.device_count(kind)):
            try:
                with Device(f"{kind}:{ordinal}") as device:
                    info = device.info
            except Error as error:
                rows.append((f"{kind}:{ordinal}", str(error), *["-"] * 5))
                continue
            rows.append(
                (
                    str(device),
                    info.name,
                    f"sm_{info.capability[0]}{info.capability[1]}",
                    str(info.multiprocessors),
                    f"{info.memory_bytes / 2**30:.1f} GiB",
                    f"{info.shared_bytes_per_block:,}",
                    "-" if info.is_virtual else driver_text(info.driver_version),
                )
            )
    return rows


def why_no_cuda() -> str | None:
    """Return why there is no CUDA device, or None if there is one."""
    if ffi.device_count("cuda"):
        return None
    try:
        Device("cuda").close()
    except Error as error:
        return str(error)
    return None


def kernel_rows(device: Device) -> list[tuple[str, ...]]:
    """Return a row for every kernel inside the library."""
    kernels = device.builtin_kernels()
    rows: list[tuple[str, ...]] = []
    for builtin in builtins():
        kernel = kernels[builtin.entry]
        shared = builtin.shared_bytes + kernel.info.static_shared_bytes
        fits = shared <= device.info.shared_bytes_per_block
        rows.append(
            (
                builtin.entry,
                builtin.source,
                str(builtin.threads),
                str(kernel.info.registers),
                f"{shared:,}",
                str(kernel.occupancy(builtin.threads, builtin.shared_bytes) if fits else 0),
            )
        )
    return rows


def run(arguments: argparse.Namespace) -> int:
    """Show devices and kernels."""
    print(f"pysm120 {__version__}, library {ffi.version()} at {ffi.library_path()}")
    console.table(
        "Devices",
        ("device", "name", "target", "SMs", "memory", "shared bytes/CTA", "driver"),
        device_rows(),
        left=3,
    )
    reason = why_no_cuda()
    if reason:
        print(f"No CUDA device: {reason}")
    with Device(arguments.device) as device:
        console.table(
            f"Kernels on {device}",
            ("entry", "template", "threads", "registers", "shared bytes", "CTAs/SM"),
            kernel_rows(device),
            left=2,
        )
        if device.is_virtual:
            print("Registers per thread: as allocated by ptxas for sm_120f; the virtual device allocates none.")
    return 0


COMMAND = Command("info", "show devices, driver and the kernels in the library", add_device, run)
