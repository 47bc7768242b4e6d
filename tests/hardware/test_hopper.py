"""Every form of an instruction on the virtual SM120 against the recording of a Hopper GPU, bit for bit.

The test id is the form's PTX. Approximate functions must keep within the bound of the PTX manual.
"""

from collections.abc import Iterator

import bounds
import kernels
import numpy as np
import operations
import pytest
import recording
from families import FAMILIES
from form import Form
from kernels import Kernel
from numpy.typing import NDArray

import pysm120

pytestmark = pytest.mark.virtual

KERNELS: tuple[Kernel, ...] = operations.recorded()
FORMS = [form for forms in FAMILIES.values() for form in forms]
EXACT = [form for form in FORMS if not form.bound]
APPROXIMATE = [form for form in FORMS if form.bound]


@pytest.fixture(scope="module")
def recorded() -> dict[str, NDArray[np.uint8]]:
    return recording.read()[0]


@pytest.fixture(scope="module")
def virtual() -> Iterator[pysm120.Device]:
    # What a chip computes for programs that the checks refuse is compared as well; of our kernels, those for sm_90.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSM120_VIRTUAL_CAPABILITY", "9")
        with pysm120.Device("virtual:0?checks=off") as device:
            yield device


def known(key: str, recorded: dict[str, NDArray[np.uint8]]) -> str:
    """Skip what was added or changed since the recording; test_the_recording_is_of_these_forms keeps that rare."""
    if key not in recorded:
        pytest.skip("awaits the next recording")
    return key


def outputs(
    form: Form, device: pysm120.Device, recorded: dict[str, NDArray[np.uint8]]
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Yield what the device and the recording say of each output: [lane, byte]."""
    key = known(recording.key(form), recorded)
    module = recording.load(device, [form])
    got = recording.run(device, module["form_0"], form)
    module.unload()
    yield from zip(form.split(got), recording.unpack(form, recorded[key]), strict=True)


def describe(form: Form, lane: int, got: NDArray[np.uint8], want: NDArray[np.uint8]) -> str:
    """Write the operands and the two results of a lane."""
    operands = [
        x[16 * lane : 16 * lane + 16].tobytes()[::-1].hex() if k == "m" else f"{int(x[lane]):0{2 * x.itemsize}x}"
        for k, x in zip(form.inputs, form.operands(), strict=True)
    ]
    mine, theirs = (x[lane].tobytes()[::-1].hex() for x in (got, want))
    return f"lane {lane}: ({', '.join(operands)}) -> {mine}, on Hopper {theirs}"


def test_the_recording_is_of_these_forms(recorded: dict[str, NDArray[np.uint8]]) -> None:
    """A form that was changed or added awaits the next recording; those must stay few."""
    lacking = [form.name for form in FORMS if recording.key(form) not in recorded]
    lacking += [kernel.name for kernel in KERNELS if kernels.key(kernel) not in recorded]
    assert len(lacking) * 50 < len(FORMS), f"run tests/hardware/record.py on a Hopper GPU: {lacking}"


@pytest.mark.parametrize("form", EXACT, ids=lambda form: form.name)
def test_exact(form: Form, virtual: pysm120.Device, recorded: dict[str, NDArray[np.uint8]]) -> None:
    for k, (got, want) in enumerate(outputs(form, virtual, recorded)):
        wrong = np.flatnonzero((got != want).any(axis=1))
        lines = "\n".join(describe(form, lane, got, want) for lane in wrong[:8])
        assert not wrong.size, f"out{k} differs in {wrong.size} of {form.lanes} lanes\n{lines}"


@pytest.mark.parametrize("form", APPROXIMATE, ids=lambda form: form.name)
def test_approximate(form: Form, virtual: pysm120.Device, recorded: dict[str, NDArray[np.uint8]]) -> None:
    ((got, want),) = outputs(form, virtual, recorded)
    found = bounds.compare(form, got, want)
    per_lane = 2 if form.inputs[0].endswith("x2") else 1
    lines = "\n".join(describe(form, index // per_lane, got, want) for index in found.wrong[:8])
    message = f"{len(found.wrong)} results are out of bounds; the largest difference is {found.largest:.0f} ulp"
    assert not found.wrong, f"{message}, {found.error:.3f} of the bound is used\n{lines}"
    # tanh.approx.bf16 exceeds its bound by 7e-5 of it on an H200.
    assert found.recorded_error <= 1.0001, f"Hopper itself uses {found.recorded_error:.5f} of the bound"


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernel(kernel: Kernel, virtual: pysm120.Device, recorded: dict[str, NDArray[np.uint8]]) -> None:
    """Run our kernels as Hopper runs them: the same bits, or after approximate functions nearly the same numbers."""
    key = known(kernels.key(kernel), recorded)
    got, want = kernel.run(virtual), recorded[key]
    if kernel.is_exact:
        assert np.array_equal(got, want), f"{got.tobytes().hex()} instead of {want.tobytes().hex()}"
        return
    x, y = got.view(np.float32), want.view(np.float32)
    with np.errstate(invalid="ignore"):
        off = np.where(x == y, 0, np.abs(x - y))  # infinities too
    assert (off <= kernel.step).all(), f"{off.max()} is the largest"
    assert (off > kernels.TOLERANCE).mean() <= kernels.FEW, f"{(off > kernels.TOLERANCE).sum()} of {off.size} are off"
