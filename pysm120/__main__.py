"""Command line: python -m pysm120 COMMAND, or --cflags --libs --cmakedir --pkgconfigdir."""

import argparse
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pysm120 import __version__
from pysm120.cli import (
    check,
    compare,
    demo,
    info,
    microbench,
    model,
    profile,
    report,
    resources,
    run,
    study,
    trace,
    tune,
)
from pysm120.cli.command import Command, add_device
from pysm120.runtime import ffi, interrupt
from pysm120.runtime.errors import Error, FaultError

COMMANDS = (
    info.COMMAND,
    Command(
        "demo",
        "compute a real model's attention and compare it with float64 NumPy",
        add_device,
        lambda arguments: demo.run(arguments.device),
    ),
    run.COMMAND,
    profile.COMMAND,
    trace.COMMAND,
    check.COMMAND,
    tune.COMMAND,
    report.COMMAND,
    study.COMMAND,
    microbench.COMMAND,
    resources.COMMAND,
    model.COMMAND,
    compare.COMMAND,
)


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
    for command in COMMANDS:
        text = command.help
        own = commands.add_parser(command.name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.add(own)
        own.set_defaults(parser=own)
    return top


def flags(arguments: argparse.Namespace) -> list[str]:
    """Return the text that --cflags, --libs, --cmakedir or --pkgconfigdir prints."""
    words = []
    library = ffi.library_path().resolve()
    if arguments.cflags:
        words.append(f"-I{ffi.include_directory()}")
    if arguments.libs:
        words += [f"-L{library.parent}", f"-l:{library.name}", f"-Wl,-rpath,{library.parent}"]
    if arguments.cmakedir:
        words.append(str(ffi.PACKAGE / "cmake"))
    if arguments.pkgconfigdir:
        # In the source tree the build writes a file of its own.
        installed = (ffi.PACKAGE / "sm120.h").is_file()
        words.append(str((ffi.PACKAGE if installed else ffi.PACKAGE.parent / "build") / "pkgconfig"))
    return words


def run_command(argv: Sequence[str] | None) -> int:
    """Run the command that the words name, or print what the options ask for; return the exit status."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - None if it is closed
    sys.stderr = sys.stderr or sys.stdout
    top = parser()
    arguments, words = top.parse_known_args(argv)
    chosen = next((command for command in COMMANDS if command.name == arguments.command), None)
    takes_words = chosen is not None and chosen.takes_words
    unknown = [word for word in words if word.startswith("-") or not takes_words]
    if unknown:
        own = arguments.parser if chosen is not None else top
        options = ", ".join(re.findall(r"^  (?:-\w, )?(--[\w-]+)", own.format_help(), re.MULTILINE))
        own.error(f"unrecognized arguments: {' '.join(unknown)}; the options are {options}")
    arguments.words = words
    printed = flags(arguments)
    if printed:
        print(shlex.join(printed))
        return 0
    if chosen is not None:
        return chosen.run(arguments)
    top.print_help()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status: 1 a kernel failed, 2 an argument is wrong or unsupported, 130 Ctrl-C."""
    try:
        interrupt.raise_again()
        return run_command(argv)
    except KeyboardInterrupt:
        print("\npysm120: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (Error, OSError, MemoryError) as error:
        is_ours = isinstance(error, Error | OSError)
        text = str(error) if is_ours else f"this machine has too little memory: {str(error) or 'an allocation failed'}"
        print(f"pysm120: {text}", file=sys.stderr)
        return 1 if isinstance(error, FaultError) else 2


if __name__ == "__main__":
    sys.exit(main())
