"""Command line: python -m pysm120 info | demo | --cflags --libs --cmakedir --pkgconfigdir."""

import argparse
import shlex
import sys
from collections.abc import Sequence

from pysm120 import __version__, _console, _ffi, demo
from pysm120.device import Device
from pysm120.errors import Error
from pysm120.module import builtins


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m pysm120",
        description="Attention kernels for NVIDIA SM120, on a GPU or on the virtual SM120.",
        epilog="example: cc example.c $(python -m pysm120 --cflags --libs)",
    )
    top.add_argument("--version", action="version", version=f"pysm120 {__version__}")
    top.add_argument("--cflags", action="store_true", help="print the C compiler's options to find sm120.h")
    top.add_argument("--libs", action="store_true", help="print the linker's options to use the library")
    top.add_argument("--cmakedir", action="store_true", help="print the folder for CMake's sm120_DIR")
    top.add_argument("--pkgconfigdir", action="store_true", help="print the folder for PKG_CONFIG_PATH")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in (
        ("info", "show devices, driver and the kernels in the library"),
        ("demo", "compute a real model's attention and compare with float64 NumPy"),
    ):
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.add_argument(
            "--device",
            metavar="NAME",
            help='"cuda", "cuda:1" or "virtual" (default: $PYSM120_DEVICE, else the first usable GPU, else "virtual")',
        )
    return top


def flags(arguments: argparse.Namespace) -> list[str]:
    """Return what --cflags, --libs, --cmakedir and --pkgconfigdir ask for."""
    words = []
    library = _ffi.library_path().resolve()
    if arguments.cflags:
        words.append(f"-I{_ffi.include_directory()}")
    if arguments.libs:
        words += [f"-L{library.parent}", f"-l:{library.name}", f"-Wl,-rpath,{library.parent}"]
    if arguments.cmakedir:
        words.append(str(_ffi.PACKAGE / "cmake"))
    if arguments.pkgconfigdir:
        # In the source tree the build writes a file of its own.
        installed = (_ffi.PACKAGE / "sm120.h").is_file()
        words.append(str((_ffi.PACKAGE if installed else _ffi.PACKAGE.parent / "build") / "pkgconfig"))
    return words


def driver_text(version: int) -> str:
    """Return a driver's version as people write it."""
    return f"{version // 1000}.{version % 1000 // 10}" if version else "-"


def device_rows() -> list[tuple[str, ...]]:
    """Return a row for every device."""
    rows = []
    for kind in ("cuda", "virtual"):
        for ordinal in range(_ffi.device_count(kind)):
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
    """Return why there is no CUDA device, or None where there is one."""
    if _ffi.device_count("cuda"):
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
        rows.append(
            (
                builtin.entry,
                builtin.source,
                str(builtin.threads),
                str(kernel.info.registers),
                f"{builtin.shared_bytes + kernel.info.static_shared_bytes:,}",
                str(kernel.occupancy(builtin.threads, builtin.shared_bytes)),
            )
        )
    return rows


def info(name: str | None) -> int:
    """Show devices and kernels."""
    print(f"pysm120 {__version__}, library {_ffi.version()} at {_ffi.library_path()}")
    _console.table(
        "Devices",
        ("device", "name", "target", "SMs", "memory", "shared bytes/CTA", "driver"),
        device_rows(),
        left=3,
    )
    reason = why_no_cuda()
    if reason:
        print(f"No CUDA device: {reason}")
    with Device(name) as device:
        _console.table(
            f"Kernels on {device}",
            ("entry", "template", "threads", "registers", "shared bytes", "CTAs/SM"),
            kernel_rows(device),
            left=2,
        )
        if device.is_virtual:
            print("Registers per thread are those that ptxas allocated for sm_120f; the virtual device allocates none.")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    top = parser()
    arguments = top.parse_args(argv)
    try:
        words = flags(arguments)
        if words:
            print(shlex.join(words))
            return 0
        if arguments.command == "info":
            return info(arguments.device)
        if arguments.command == "demo":
            return demo.run(arguments.device)
    except KeyboardInterrupt:
        print("\npysm120: interrupted", file=sys.stderr)
        return 130
    except (Error, OSError) as error:
        print(f"pysm120: {error}", file=sys.stderr)
        return 2
    top.print_help()
    return 0


if __name__ == "__main__":
    sys.exit(main())
