"""``tune``: time all kernels that can compute an attention of a shape."""

import argparse
import datetime as dt
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from pysm120.cli import console
from pysm120.cli.command import Command, add_device
from pysm120.ops import attention_call
from pysm120.ops.attention import attention
from pysm120.runtime.arrays import Array
from pysm120.runtime.device import Device
from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.ffi import check, lib, new, new_struct, text
from pysm120.runtime.module import Builtin, builtins

DTYPES = {
    "mxfp8": ml_dtypes.bfloat16,
    "mxfp8_bf16": ml_dtypes.bfloat16,
    "bf16": ml_dtypes.bfloat16,
    "fp8": ml_dtypes.float8_e4m3fn,
}
SHAPE = 4
L2_TIMES = 3  # size of the rotating buffers, as a multiple of the L2
CALL_SECONDS = 0.002  # least duration of a run, which determines its number of calls


class Result(NamedTuple):
    """A config and its times in seconds; on the virtual device there are no times."""

    config: str
    entry: Builtin
    chosen: bool
    times: list[float]


def configs_of(args: Any) -> dict[str, Builtin]:
    """Return the configs of a call and their kernels."""
    found: dict[str, Builtin] = {}
    name, kernel = new("char const **"), new("int32_t *")
    while (status := lib.sm120_attention_config(args, len(found), name, kernel)) == lib.SM120_OK:
        found[text(name[0])] = builtins()[kernel[0]]
    if status != lib.SM120_UNSUPPORTED or not found:
        check(status)
    return found


def sets_of_arrays(device: Device, arguments: argparse.Namespace) -> list[tuple[Array, ...]]:
    """Return sets of q, k, v and out, enough to exceed the L2."""
    batch, rows, heads, head_dim = arguments.shape
    dtype = DTYPES.get(arguments.precision, np.float16)
    random = np.random.default_rng(arguments.seed)
    shapes = [(batch, rows, heads, head_dim), *[(batch, arguments.kv_rows, arguments.kv_heads, head_dim)] * 2]
    nbytes = 2 * np.dtype(dtype).itemsize * sum(math.prod(shape) for shape in shapes[:2])
    count = 1 if device.is_virtual else max(2, -(-L2_TIMES * device.info.l2_bytes // nbytes))
    if (1 + count) * nbytes > device.info.memory_bytes:  # checked before the host draws random numbers
        message = f"--shape needs {(1 + count) * nbytes:,} bytes, but {device} has {device.info.memory_bytes:,}"
        raise InvalidArgumentError(message)
    first = [device.array(random.standard_normal(shape, np.float32).astype(dtype)) for shape in shapes]
    return [(*(x.copy() for x in first), device.empty(shapes[0], dtype)) for _ in range(min(count, 64))]


def measure(device: Device, arguments: argparse.Namespace, config: str, sets: list[tuple[Array, ...]]) -> list[float]:
    """Return the seconds of a call with a config, one figure for each run."""
    turn = 0

    def call() -> None:
        nonlocal turn
        q, k, v, out = sets[turn % len(sets)]
        turn += 1
        attention(q, k, v, out=out, causal=arguments.causal, precision=arguments.precision, config=config)

    call()
    if device.is_virtual:
        return []
    start, end = device.event(), device.event()

    def several(count: int) -> float:
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return end.elapsed_since(start) / 1e3 / count

    several(3)
    count = max(3, min(1000, int(CALL_SECONDS / max(several(10), 1e-6))))
    several(count)
    return [several(count) for _ in range(arguments.runs)]


def tune(arguments: argparse.Namespace) -> tuple[str, list[Result]]:
    """Measure every config; return the device's name, and the results, the fastest first."""
    batch, rows, heads, head_dim = arguments.shape
    args = new_struct("sm120_attention_args")
    args.precision = attention_call.PRECISIONS[arguments.precision][0]
    args.batch, args.heads, args.kv_heads = batch, heads, arguments.kv_heads
    args.q_rows, args.kv_rows, args.head_dim, args.scale = rows, arguments.kv_rows, head_dim, 1.0
    configs = configs_of(args)
    chosen, kernel = new("char const **"), new("int32_t *")
    with Device(arguments.device) as device, console.progress(len(configs), "tuning") as step:
        check(lib.sm120_attention_chosen(device.handle.pointer, args, chosen, kernel))
        sets = sets_of_arrays(device, arguments)
        results = []
        for config, entry in configs.items():
            times = measure(device, arguments, config, sets)
            results.append(Result(config, entry, config == text(chosen[0]), times))
            step(config)
        shown = f"{device}, {device.info.name}"
    return shown, sorted(results, key=lambda x: statistics.median(x.times) if x.times else 0)


def flops(arguments: argparse.Namespace) -> float:
    """Return the flop of a call: two products; with a causal mask only the visible keys count."""
    batch, rows, heads, head_dim = arguments.shape
    keys = arguments.kv_rows
    pairs = float(rows * keys)
    if arguments.causal:
        pairs = float(np.clip(np.arange(rows) + keys - rows + 1, 0, keys).sum())
    return float(4 * batch * heads * head_dim) * pairs


def show(arguments: argparse.Namespace, device: str, results: list[Result]) -> None:
    """Print the table."""
    rows = []
    for x in results:
        timed = ["-"] * 3
        if x.times:
            middle = statistics.median(x.times)
            spread = f"{min(x.times) * 1e6:.1f} to {max(x.times) * 1e6:.1f}"
            timed = [f"{middle * 1e6:.1f}", spread, f"{flops(arguments) / middle / 1e12:.1f}"]
        mark = "*" if x.chosen else ""
        rows.append((f"{x.config}{mark}", x.entry.entry, str(x.entry.threads), f"{x.entry.shared_bytes:,}", *timed))
    shape = ", ".join(map(str, arguments.shape))
    title = f"attention {arguments.precision} ({shape}){' causal' if arguments.causal else ''} on {device}"
    console.table(title, ("config", "kernel", "threads", "shared bytes", "us", "spread", "TFLOP/s"), rows, left=2)
    print("* marks the default config of calls; config= or PYSM120_ATTENTION_CONFIG selects another one.")
    if not results[0].times:
        print("The virtual device measures no time: each config ran once.")


def write(arguments: argparse.Namespace, device: str, results: list[Result]) -> None:
    """Write the results as JSON."""
    found = {
        "device": device,
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "shape": arguments.shape,
        "kv_heads": arguments.kv_heads,
        "kv_rows": arguments.kv_rows,
        "causal": arguments.causal,
        "precision": arguments.precision,
        "configs": [
            {"config": x.config, "entry": x.entry.entry, "chosen": x.chosen, "seconds": x.times} for x in results
        ],
    }
    body = json.dumps(found, indent=1) + "\n"
    if arguments.json == "-":
        sys.stdout.write(body)
    else:
        Path(arguments.json).write_text(body)


def run(arguments: argparse.Namespace) -> int:
    """Tune."""
    arguments.kv_heads = arguments.shape[2] if arguments.kv_heads is None else arguments.kv_heads
    arguments.kv_rows = arguments.shape[1] if arguments.kv_rows is None else arguments.kv_rows
    if arguments.runs < 1:
        message = f"--runs is {arguments.runs}; it must be at least 1"
        raise InvalidArgumentError(message)
    for name, value in (("--kv-heads", arguments.kv_heads), ("--kv-rows", arguments.kv_rows)):
        if value < 1:
            message = f"{name} is {value}; it must be at least 1"
            raise InvalidArgumentError(message)
    if arguments.seed < 0:
        message = f"--seed is {arguments.seed}; it must be at least 0"
        raise InvalidArgumentError(message)
    if arguments.json not in {None, "-"} and (
        Path(arguments.json).is_dir() or not Path(arguments.json).parent.is_dir()
    ):
        message = f"--json is {arguments.json!r}, not a file in an existing folder"
        raise InvalidArgumentError(message)
    device, results = tune(arguments)
    if arguments.json != "-":
        show(arguments, device, results)
    if arguments.json:
        write(arguments, device, results)
    return 0


def shape_of(word: str) -> tuple[int, ...]:
    """Return the shape in a word such as 4,2048,32,128."""
    try:
        numbers = tuple(int(part) for part in word.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != SHAPE or min(numbers) < 1:
        message = f"{word!r} is not BATCH,ROWS,HEADS,HEAD_SIZE, four numbers of at least 1"
        raise argparse.ArgumentTypeError(message)
    return numbers


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_device(parser)
    parser.add_argument(
        "--shape",
        type=shape_of,
        default=(1, 4096, 32, 128),
        metavar="B,S,H,D",
        help="shape of q (default: 1,4096,32,128)",
    )
    parser.add_argument("--kv-heads", type=int, metavar="N", help="heads of k and v (default: as q)")
    parser.add_argument("--kv-rows", type=int, metavar="N", help="rows of k and v (default: as q)")
    parser.add_argument("--causal", action="store_true", help="causal attention")
    parser.add_argument(
        "--precision",
        choices=list(attention_call.PRECISIONS),
        default="bf16",
        help="precision of the products (default: %(default)s)",
    )
    parser.add_argument("--runs", type=int, default=15, help="timed runs of each config (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs (default: %(default)s)")
    parser.add_argument(
        "--json", metavar="FILE", help='write the times to a file; "-": print them instead of the table'
    )


COMMAND = Command("tune", "time the kernels that can compute an attention of a given shape", add, run)
