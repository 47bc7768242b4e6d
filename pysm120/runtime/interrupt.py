"""Ctrl-C while `python -m pysm120` starts: one line and exit status 130, as when a command runs.

It imports little, so that it is in force before anything that takes time.
A program that imports the package gets KeyboardInterrupt, as from every import.
"""

import os
import signal
import sys


def end(number: int, frame: object) -> None:
    """End the process at once: an exception would leave imports half done, whose libraries turn it into others."""
    del frame
    os.write(2, b"\npysm120: interrupted\n")
    os._exit(128 + number)


def is_starting() -> bool:
    """Whether Python imports the package for `python -m pysm120`, before it knows the path of the program."""
    return sys.argv[:1] == ["-m"] and "pysm120" in {word.removeprefix("-m") for word in sys.orig_argv}


def end_at_once() -> None:
    """Let Ctrl-C end the process, unless it is ignored or handled already."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


def raise_again() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, which commands handle."""
    if signal.getsignal(signal.SIGINT) is end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if is_starting():
    end_at_once()
