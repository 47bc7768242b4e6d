"""What the code of a kernel refers to by numbers: parameters in constant bank 0, and addresses of instructions."""

import dataclasses
from functools import cached_property

from pysm120.machine_code.cubin import Cubin
from pysm120.machine_code.sass import Function
from pysm120.runtime.errors import InvalidArgumentError

_SPECIAL = {0x370: "%nctaid.x", 0x374: "%nctaid.y", 0x378: "%nctaid.z"}
_STACK, _DESCRIPTOR, _PARAMETERS_LOW = 0x37C, 0x358, 0x348
_SCALARS = (4, 8)
_BLOCK = 64  # a parameter of so many bytes is a tensor map, aligned to as many
STEP = 16  # bytes of an instruction


@dataclasses.dataclass(frozen=True)
class Layout:
    """The numbers of a kernel.

    Attributes
    ----------
    function : Function
        Its code.
    cubin : Cubin
        The file that it is in.

    """

    function: Function
    cubin: Cubin

    @cached_property
    def _parameters(self) -> list[tuple[int, int]]:
        return self.cubin.parameters(self.function.name)

    @cached_property
    def first(self) -> int:
        """The place of the first parameter in constant bank 0."""
        return self.cubin.first_parameter(self.function.name)

    def declarations(self) -> list[str]:
        """Return the parameters of the entry: p_0, p_1, ... at the offsets that the cubin states."""
        found, end = [], 0
        for i, (offset, size) in enumerate(self._parameters):
            align = _BLOCK if size % _BLOCK == 0 else size & -size
            if -(-end // align) * align != offset:
                raise InvalidArgumentError(f"{self.function.name}: parameter {i} is at {offset}, behind {end}")
            kind = f".b{8 * size} p_{i}" if size in _SCALARS else f".align {align} .b8 p_{i}[{size}]"
            found.append(f".param {kind}")
            end = offset + size
        return found

    def constant(self, d: str, place: int, wide: str) -> list[str]:
        """Return the statements that load 32 bits of constant bank 0; none if the place has no known meaning.

        ``wide`` is a register of 64 bits that they may use.
        """
        if place in _SPECIAL:
            return [f"mov.u32 {d}, {_SPECIAL[place]}"]
        if place in {_STACK, _DESCRIPTOR, _DESCRIPTOR + 4}:
            return [f"mov.b32 {d}, 0"]
        if place in {_PARAMETERS_LOW, _PARAMETERS_LOW + 4}:
            part = f"cvt.u32.u64 {d}, {wide}"
            shifted = [] if place == _PARAMETERS_LOW else [f"shr.u64 {wide}, {wide}, 32"]
            return [f"mov.u64 {wide}, p_0", f"cvta.param.u64 {wide}, {wide}", *shifted, part]
        for i, (offset, size) in enumerate(self._parameters):
            at = place - self.first - offset
            if 0 <= at <= size - 4:
                return [f"ld.param.b32 {d}, [p_{i}+{at}]"]
        return []

    def label(self, address: int) -> str:
        """Return the label of an instruction."""
        return f"at_{address:x}"

    @cached_property
    def returns(self) -> tuple[int, ...]:
        """The addresses behind calls."""
        return tuple(one.address + STEP for one in self.function.instructions if one.base == "CALL")

    def ends(self, barrier: str) -> tuple[int, ...]:
        """Return where the lanes that wait at a convergence barrier may go on."""
        found = (one.target for one in self.function.instructions if one.base == "BSSY" and one.operands[0] == barrier)
        return tuple(dict.fromkeys(target for target in found if target is not None))

    @cached_property
    def targets(self) -> frozenset[int]:
        """The addresses that need a label."""
        found = {address for one in self.function.instructions for address in (one.target, *one.choices)}
        return frozenset({*found, *self.returns} - {None})  # type: ignore[arg-type]
