"""Prepare forms for a device: assemble, prove and load them; report forms that the chip does not support."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from pysm120.machine_code import sass
from pysm120.microbench import toolchain
from pysm120.microbench.form import Form
from pysm120.microbench.kernel import BenchKernel, kernels_of, write
from pysm120.microbench.proof import Proof, prove
from pysm120.runtime.device import Device
from pysm120.runtime.errors import Error, InvalidProgramError
from pysm120.runtime.module import Kernel

BATCH = 48  # forms for one call of ptxas
VIRTUAL = (12, 0)
FIRST_WITH_A = 9


@dataclasses.dataclass(frozen=True)
class Chip:
    """The target of machine code."""

    capability: tuple[int, int]

    @property
    def target(self) -> str:
        """The target with all features of the chip."""
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if major >= FIRST_WITH_A else "")

    @property
    def family(self) -> str:
        """The key of patterns of opcodes."""
        return f"{self.capability[0]}0"


@dataclasses.dataclass
class Ready:
    """A form on a device: its kernels, its machine code, or why it has none."""

    form: Form
    kernels: dict[int, tuple[BenchKernel, Kernel]] = dataclasses.field(default_factory=dict)
    proofs: dict[int, Proof] = dataclasses.field(default_factory=dict)
    refusal: str = ""

    @property
    def objection(self) -> str:
        """Why its figures would be wrong; "" if all loops are proven."""
        return next((proof.objection for proof in self.proofs.values() if not proof.holds), "")


def prepare(
    device: Device, forms: Sequence[Form], *, is_short: bool = False, folder: Path | None = None
) -> list[Ready]:
    """Prepare forms; forms that the chip lacks, or that ptxas rejects, have a message.

    If ptxas and nvdisasm are found, the loaded machine code is the one that was checked. Otherwise the driver gets PTX
    and nothing is proven. The virtual device always gets PTX. ``is_short``: only the smallest and the largest number of
    chains. ``folder``: a folder for PTX, machine code and its text.
    """
    chip = Chip(device.info.capability if not device.is_virtual else VIRTUAL)
    # Some names have a form for each family: the forms for other families are not listed.
    here = {form.name for form in forms if form.exists_on(chip.capability)}
    ready = [Ready(form) for form in forms if form.exists_on(chip.capability) or form.name not in here]
    present = []
    for index, one in enumerate(ready):
        if one.form.exists_on(chip.capability):
            counts = one.form.chains
            chosen = (counts[0], counts[-1]) if is_short and counts[1:] else counts
            present.append((one, kernels_of(one.form, index, chosen)))
        else:
            one.refusal = f"{chip.target} {one.form.lacks}"
    if not toolchain.missing():
        for template in dict.fromkeys(one.form.template for one, _ in present):
            same = [item for item in present if item[0].form.template == template]
            for start in range(0, len(same), BATCH):
                name = f"{template}_{start // BATCH}"
                _assemble(device, chip, same[start : start + BATCH], folder / name if folder else None)
    if device.is_virtual or toolchain.missing():
        for one, kernels in present:
            if not one.refusal:
                _load(device, chip, one, kernels)
    return ready


def _assemble(
    device: Device, chip: Chip, items: list[tuple[Ready, list[BenchKernel]]], path: Path | None = None
) -> None:
    """Assemble forms in one call; one by one if ptxas rejects one of them.

    ``path``: the name, without an ending, of files to write.
    """
    try:
        made = toolchain.assemble(
            write([kernel for _, kernels in items for kernel in kernels], chip.target), chip.target
        )
    except InvalidProgramError as error:
        if len(items) == 1:
            items[0][0].refusal = str(error)
            return
        for number, item in enumerate(items):
            _assemble(device, chip, [item], path and path.with_name(f"{path.name}_{number}"))
        return
    if path:
        made.save(path)
    functions = sass.parse(made.listing)
    module = None if device.is_virtual else device.load(made.cubin, name="bench")
    for one, kernels in items:
        for kernel in kernels:
            one.proofs[kernel.chains] = prove(kernel, functions.get(kernel.entry), chip.family)
            if module is not None:
                one.kernels[kernel.chains] = (kernel, module[kernel.entry])


def _load(device: Device, chip: Chip, one: Ready, kernels: list[BenchKernel]) -> None:
    """Load the PTX of a form."""
    try:
        module = device.load(write(kernels, chip.target), name=one.form.name)
    except (InvalidProgramError, Error) as error:
        one.refusal = str(error).splitlines()[0]
        return
    one.kernels = {kernel.chains: (kernel, module[kernel.entry]) for kernel in kernels}
