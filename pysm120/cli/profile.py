"""``profile``: run a kernel on the virtual device and show its instructions, bank conflicts and sectors by line."""

import argparse
import json
import re
from pathlib import Path

from pysm120.cli import console
from pysm120.cli.command import Command
from pysm120.model import chips, memory
from pysm120.model.chips import Chip
from pysm120.observe import program as programs
from pysm120.observe.profile import Counts, Line, Profile
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.names import demangled, readable

OPCODES = 20  # rows of the table
COLUMNS = ("executed", "share", "clocks", "lanes", "divergent", "conflicts", "sectors", "source")
_SM = re.compile(r"(.+?),([1-9]\d*)(?:,([1-9]\d*))?$")
NOTE = """\
clocks: what the busiest unit of one SM needs for the line (issue, shared memory, sectors, tensor cores);
lanes: average number of lanes that took part; divergent: divergent branches;
conflicts: additional wavefronts of shared memory because of bank conflicts;
sectors: 32-byte sectors for each access of global memory; in brackets the fewest that hold its bytes"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    programs.add_arguments(parser, "profile", device="virtual")
    parser.add_argument(
        "--top", metavar="N", help="show the N lines that cost the most clocks (default: all, in order)"
    )
    parser.add_argument(
        "--sm",
        metavar="CHIP,CTAS[,SMS]",
        help="run only the CTAs of one SM of a chip, or of some, so many at once, which share its L1",
    )
    parser.add_argument("--json", metavar="FILE", help="write all counts to a file")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the hottest lines (needs matplotlib)")


def row(line: Line, place: str, whole: Counts) -> tuple[str, ...]:
    """Return the cells of a line."""
    c = line.counts
    return (
        place,
        f"{c.executed:,}",
        f"{c.executed / whole.executed:.1%}",
        f"{line.clocks:,.1f}",
        f"{c.active_lanes:.1f}",
        f"{c.divergent_branches:,}" if c.branches else "",
        f"{c.bank_conflicts:,}" if c.shared_accesses else "",
        f"{c.sectors_per_access:.1f} ({c.ideal_sectors_per_access:.1f})" if c.global_accesses else "",
        readable(line.source),
    )


def show_totals(p: Profile) -> None:
    """Print the counts of the whole kernel."""
    c = p.total
    console.table(
        "In all",
        ("what", "count", "note"),
        [
            ("instructions of warps", f"{c.executed:,}", f"{c.active_lanes:.2f} of 32 lanes active on average"),
            ("lanes whose predicate was false", f"{c.predicated_off:,}", ""),
            ("branches", f"{c.branches:,}", f"{c.divergent_branches:,} divergent"),
            ("accesses of shared memory", f"{c.shared_accesses:,}",
             f"{c.shared_wavefronts:,} wavefronts, {c.bank_conflicts:,} because of bank conflicts"),
            ("accesses of global memory", f"{c.global_accesses:,}",
             (f"{c.global_sectors:,} sectors, at least {c.global_ideal_sectors:,}; "
              f"{c.global_lines:,} lines, at least {c.global_ideal_lines:,}")),
            ("tensor operations", f"{c.tensor_flops:,}", ""),
            *((f"  {name}", f"{flops:,}", "") for name, flops in p.tensor.items()),
            *((f"bytes {path}", f"{count:,}", "") for path, count in sorted(c.bytes.items(), key=lambda x: -x[1])),
        ],
        tail=1,
    )  # fmt: skip


def show_opcodes(p: Profile) -> None:
    """Print the most executed opcodes."""
    names = list(p.opcodes)
    rows = [
        (name, f"{p.opcodes[name].executed:,}", f"{p.opcodes[name].executed / p.total.executed:.1%}")
        for name in names[:OPCODES]
    ]
    if names[OPCODES:]:
        rest = sum(p.opcodes[name].executed for name in names[OPCODES:])
        rows.append((f"{len(names) - OPCODES} others", f"{rest:,}", f"{rest / p.total.executed:.1%}"))
    console.table("Instructions by opcode", ("opcode", "executed", "share"), rows)


def show_lines(p: Profile, top: int) -> None:
    """Print the listing of each file, or the most expensive lines of all files."""
    if top:
        lines = p.hottest(top)
        rows = [row(line, line.short_place, p.total) for line in lines]
        console.table(f"The {len(lines)} lines that cost the most clocks", ("place", *COLUMNS), rows, tail=1)
    else:
        for file in dict.fromkeys(line.file for line in p.lines):
            of_file = [line for line in p.lines if line.file == file]
            rows = [row(x, f"{x.line} in {Path(x.origin).name}" if x.origin else str(x.line), p.total) for x in of_file]
            console.table(f"Instructions by line of {file}", ("line", *COLUMNS), rows, left=0, tail=1)
    print(NOTE)


def path_of(word: str | None, name: str, ending: str) -> Path | None:
    """Return the file of an option."""
    if word is None:
        return None
    path = Path(word)
    if path.suffix != ending or not path.parent.is_dir():
        message = f"{name} is {word!r}, not a {ending} file in an existing folder"
        raise InvalidArgumentError(message)
    return path


def sm_of(word: str | None) -> tuple[Chip, int, int] | None:
    """Return the value of --sm: a chip, the CTAs that one of its SMs holds, and the SMs whose CTAs run."""
    if word is None:
        return None
    found = _SM.match(word)
    if found is None:
        message = f"--sm is {word!r}, not a chip and the CTAs that one of its SMs holds such as h200,8"
        raise InvalidArgumentError(message)
    return chips.load(found[1]), int(found[2]), int(found[3] or 1)


def run(arguments: argparse.Namespace) -> int:
    """Profile the kernel."""
    program = programs.parse(arguments, arguments.words, device="virtual")
    sm, options = sm_of(arguments.sm), dict[str, object]()
    if sm:
        chip, ctas, sms = sm
        options = {"multiprocessors": chip["sms"], "resident": ctas, "sampled": sms, "l1": memory.unified_bytes(chip)}
    top = programs.number(arguments.top, "--top", 0)
    to_json = path_of(arguments.json, "--json", ".json")
    to_plot = path_of(arguments.plot, "--plot", ".png")
    if to_plot:
        from pysm120.cli import plot  # noqa: PLC0415 - matplotlib is an extra, and slow to import
    with program.open(**options) as launch, launch.device.profile() as p:
        with console.patience():
            launch.run()
        outputs = launch.outputs()
    for output in outputs:
        output.save()
    shape = " x ".join(map(str, program.grid)), " x ".join(map(str, program.block))
    title = f"{demangled(launch.kernel.info.entry)}, grid {shape[0]}, block {shape[1]}"
    print(f"{title}, on {launch.device}")
    show_totals(p)
    show_opcodes(p)
    show_lines(p, top)
    if to_json:
        of_sm = {}
        if sm:
            shared = program.shared + launch.kernel.info.static_shared_bytes
            chip, ctas, _ = sm
            of_sm = {"sm": {"chip": chip.key, "ctas": ctas, "l1_bytes": ctas * memory.l1_bytes(chip, ctas, shared)}}
        to_json.write_text(json.dumps({**of_sm, **p.json()}, indent=1) + "\n", encoding="utf-8")
        print(f"{to_json} has all numbers.")
    if to_plot:
        plot.hottest_lines(p, title, top or plot.LINES, to_plot)
        print(f"{to_plot} shows the hottest lines.")
    return 0


COMMAND = Command(
    "profile", "run a kernel on the virtual device and count what each line does", add, run, takes_words=True
)
