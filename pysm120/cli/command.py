"""A command of ``python -m pysm120``."""

import argparse
import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Command:
    """A command: its name, a line of help, its options, and its function.

    ``run`` returns the exit status. With ``takes_words``, ``arguments.words`` has the words that are not options, in
    order; for other commands such words are an error.
    """

    name: str
    help: str
    add: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    takes_words: bool = False


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add --device."""
    parser.add_argument(
        "--device",
        metavar="NAME",
        help='"cuda", "cuda:1" or "virtual" (default: $PYSM120_DEVICE, else the first usable GPU, else "virtual")',
    )
