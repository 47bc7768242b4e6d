"""Run every form on a device and write what it computed: python tests/hardware/record.py --device cuda [--out FILE].

Each family runs in its own process, because a kernel that faults takes its CUDA context with it: the form is reported
and left out, and the family is taken up again without it.
"""

import argparse
import datetime as dt
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import kernels
import numpy as np
import recording
from families import FAMILIES
from form import Form
from kernels import Kernel
from numpy.typing import NDArray

import pysm120

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

import operations

KERNELS: tuple[Kernel, ...] = operations.recorded()
BATCH = 64  # forms of a module
PATIENCE = 120  # seconds that a family may take
ITEMS: dict[str, tuple[Form, ...] | tuple[Kernel, ...]] = {**FAMILIES, "kernels": KERNELS}


class Outcome:
    """What came of a family: bytes by index of the form, and why others gave none."""

    def __init__(self) -> None:
        self.results: dict[int, bytes] = {}
        self.errors: dict[int, str] = {}
        self.chip: dict[str, Any] = {}


def run_batch(device: pysm120.Device, batch: Sequence[tuple[int, Form]], outcome: Outcome) -> bool:
    """Run some forms; return whether the device can still be used."""
    try:
        module = recording.load(device, [form for _, form in batch])
    except pysm120.Error as error:
        if len(batch) == 1:
            outcome.errors[batch[0][0]] = str(error)
            return True
        half = len(batch) // 2
        return run_batch(device, batch[:half], outcome) and run_batch(device, batch[half:], outcome)
    for k, (index, form) in enumerate(batch):
        try:
            outcome.results[index] = recording.run(device, module[f"form_{k}"], form).tobytes()
        except pysm120.Error as error:  # noqa: PERF203
            outcome.errors[index] = str(error)
            if not device.is_virtual:
                return False
    module.unload()
    return True


def run_kernels(device: pysm120.Device, batch: Sequence[tuple[int, Kernel]], outcome: Outcome) -> bool:
    """Run some of our kernels; return whether the device can still be used."""
    for index, kernel in batch:
        try:
            outcome.results[index] = kernel.run(device).tobytes()
        except pysm120.Error as error:  # noqa: PERF203
            outcome.errors[index] = str(error)
            if not device.is_virtual:
                return False
    return True


def record_family(device_name: str, family: str, done: frozenset[int], to: Connection) -> None:
    """Run the forms of a family that are not done yet, until the end or until one breaks the device."""
    outcome = Outcome()
    forms = [(k, form) for k, form in enumerate(FAMILIES.get(family, ())) if k not in done]
    whole = [(k, kernel) for k, kernel in enumerate(KERNELS) if k not in done] if family == "kernels" else []
    try:
        with pysm120.Device(device_name) as device:
            info = device.info
            outcome.chip = {"name": info.name, "capability": info.capability, "driver": info.driver_version}
            run_kernels(device, whole, outcome)
            for k in range(0, len(forms), BATCH):
                if not run_batch(device, forms[k : k + BATCH], outcome):
                    break
    except pysm120.Error:
        if not outcome.errors:  # else closing a broken device failed too
            raise
    to.send(outcome)


def in_a_process(device_name: str, family: str, done: frozenset[int]) -> Outcome:
    """Run `record_family` in a process of its own; RuntimeError where it does not come back."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=record_family, args=(device_name, family, done, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(PATIENCE):
            raise RuntimeError(f"the process of family {family} gave no answer for {PATIENCE} s")
        outcome = receiver.recv()
    except EOFError:
        raise RuntimeError(f"the process of family {family} died") from None
    finally:
        process.terminate()
        process.join()
    assert isinstance(outcome, Outcome)
    return outcome


def record(device_name: str, families: Sequence[str]) -> tuple[dict[str, NDArray[np.uint8]], dict[str, Any]]:
    """Run every family, each as often as a fault makes it necessary."""
    results: dict[str, NDArray[np.uint8]] = {}
    meta: dict[str, Any] = {"date": dt.datetime.now(dt.timezone.utc).date().isoformat(), "bad": {}}
    for family in families:
        start, forms, done, found = time.monotonic(), ITEMS[family], set[int](), dict[int, bytes]()
        while len(done) < len(forms):
            try:
                outcome = in_a_process(device_name, family, frozenset(done))
            except RuntimeError as error:
                print(f"{family}: {error}", flush=True)
                meta["bad"][family] = str(error)
                break
            meta["chip"] = outcome.chip
            found |= outcome.results
            done |= {*outcome.results, *outcome.errors}
            for index, reason in outcome.errors.items():
                print(f"bad form: {forms[index].name}\n    {reason}", flush=True)
                meta["bad"][forms[index].name] = reason
        for index, data in found.items():
            form = forms[index]
            if isinstance(form, Form):
                results[recording.key(form)] = recording.pack(form, data)
            else:
                results[kernels.key(form)] = np.frombuffer(data, np.uint8)
        print(f"{family}: {len(found)} of {len(forms)} forms, {time.monotonic() - start:.1f} s", flush=True)
    return results, meta


def main() -> int:
    """Record, and say what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, virtual (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=recording.PATH, help="file to write (default: %(default)s)")
    parser.add_argument("--family", action="append", choices=list(ITEMS), help="only this one (may be repeated)")
    options = parser.parse_args()
    results, meta = record(options.device, options.family or list(ITEMS))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    recording.write(options.out, results, meta)
    size = options.out.stat().st_size
    print(f"{len(results)} forms, {len(meta['bad'])} bad, {size} bytes in {options.out}: {json.dumps(meta['chip'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
