"""The tasks of a report: what runs, in a process of its own, and for how long at most."""

import dataclasses
from typing import Any

from pysm120.microbench import groups
from pysm120.report import checks, reference

_CACHES = {
    "bf16": ((64, 96, 128, 192, 256, 51, 101, 201), 0.0),
    "f16": ((64, 96, 128, 192, 256, 51, 101, 201), 0.0),
    "e4m3": ((64, 128, 256, 51, 101, 201), 0.04),
    "mxfp8": ((64, 128, 256), 0.04),
    "nvfp4": ((64, 128, 256), 0.15),
}
ROUNDS = 3  # of every check in a full report, with other random inputs


@dataclasses.dataclass(frozen=True)
class Task:
    """A task: its name, its section, its function ("module:name") with options, and its limit in seconds.

    ``on_gpu``: it measures time, which the virtual device does not.
    """

    name: str
    section: str
    function: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    limit: float = 60.0
    on_gpu: bool = False


def _checks() -> list[Task]:
    """Return the checks of all operations."""
    found = [
        Task("kernels load", "checks", "loads", limit=120),
        *(Task(f"attention, {p}", "checks", "forward", {"precision": p}) for p in checks.FORWARD),
        *(Task(f"quantisation, {p}", "checks", "quantizers", {"precision": p}) for p in ("mxfp8", "nvfp4")),
        Task("attention, MXFP8 operands", "checks", "mx_operands"),
        Task("attention, features", "checks", "features"),
        Task("attention, real data", "checks", "real_data"),
        Task("scores", "checks", "score_kernels"),
        *(Task(f"gradients, {p}", "checks", "backward", {"precision": p}) for p in checks.BACKWARD),
        Task("gradients, features", "checks", "backward_features"),
        *(
            Task(f"caches, {kind}", "checks", "caches", {"kind": kind, "sizes": sizes, "bound": bound})
            for kind, (sizes, bound) in _CACHES.items()
        ),
        Task("caches, keys and values of two types", "checks", "mixed_caches"),
        Task("caches, rotated keys and long appends", "checks", "rotations"),
        Task("merge_states", "checks", "merges"),
        Task("quantize_mxfp8", "checks", "quantization"),
        Task("quantize_mxfp8, packed sequences", "checks", "packed_quantization"),
        Task("quantize_nvfp4", "checks", "nvfp4_quantization"),
        *(Task(f"weights, {kind}", "checks", "weights", {"kind": kind}) for kind in reference.GGUF),
        Task("copy_batch", "checks", "copies"),
    ]
    return [dataclasses.replace(one, function=f"pysm120.report.checks:{one.function}") for one in found]


def tasks(*, quick: bool) -> list[Task]:
    """Return the tasks in their order: first whether kernels are right, then how fast, then the model."""
    found = _checks()
    if not quick:
        again = [
            dataclasses.replace(one, name=f"{one.name}, round {n}") for n in range(2, ROUNDS + 1) for one in found[1:]
        ]
        found += again
    speeds = "pysm120.report.speed"
    few = {"quick": quick}
    found += [
        Task("attention", "speed", f"{speeds}:forward", few, 120, on_gpu=True),
        Task("gradients", "speed", f"{speeds}:backward", few, 120, on_gpu=True),
        Task("decode", "speed", f"{speeds}:decode", few, 120, on_gpu=True),
        Task("matvec", "speed", f"{speeds}:products", few, 120, on_gpu=True),
        Task("caches and copies", "speed", f"{speeds}:copies", few, 120, on_gpu=True),
    ]
    chosen = ["mma"] if quick else list(groups.GROUPS)
    found += [
        Task(
            f"microbench {name}",
            "microbench",
            f"{speeds}:microbench",
            {"group": name, "quick": quick},
            400,
            on_gpu=quick,
        )
        for name in chosen
    ]
    model = "pysm120.report.predictions"
    found += [
        Task("loops", "model", f"{model}:loops", few, 400, on_gpu=True),
        Task("launches", "model", f"{model}:launches", few, 400, on_gpu=True),
    ]
    return found


SYSTEM = Task("system", "system", "pysm120.report.system:rows", limit=90)
